"""`regard graph`: classifies the nodes of a graph."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import CheckpointOption, DeviceOption, ModelArgument, resolve_device, writable_file
from regard.cli.translate import write_lines

if TYPE_CHECKING:
    from regard.data.graphs import Graph
    from regard.tasks.node_classification.task import NodeClassifier


def graph(
    model: ModelArgument,
    nodes: Annotated[Path, typer.Argument(help="Columns name, label and text or features; _ is an unknown label.")],
    edges: Annotated[Path, typer.Argument(help="Two names on every line, a tab between them.")],
    out: Annotated[Path | None, typer.Option(help="Write here instead of stdout.")] = None,
    best: Annotated[int, typer.Option("--top-k", "--best", min=1, help="Top-k labels per node.")] = 1,
    checkpoint: CheckpointOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Classify the nodes of a graph: node name, label and probability, tab-separated.

    It may be another graph than the training graph (inductive). Known labels of its nodes are ignored.

    Example: `regard graph run nodes.tsv edges.tsv`

    Example: `regard graph run nodes.tsv.gz edges.tsv.gz --top-k 3 --out labels.tsv`
    """
    from regard.data.graphs import read_graph
    from regard.tasks.node_classification.task import NodeClassifier

    out = out and writable_file(out)
    classifier = NodeClassifier.load(model, resolve_device(device), checkpoint)
    write_lines(label_lines(classifier, read_graph(nodes, edges), min(best, len(classifier.labels))), out, "labelled")


def label_lines(classifier: "NodeClassifier", graph: "Graph", best: int) -> Iterator[str]:
    most = classifier.probabilities(graph).topk(best)
    for node, found, chances in zip(graph.nodes, most.indices.tolist(), most.values.tolist(), strict=True):
        cells = (f"{classifier.labels.name(n)}\t{chance:.4f}" for n, chance in zip(found, chances, strict=True))
        yield "\t".join((node.name, *cells))
