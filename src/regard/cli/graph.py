"""A trained model and a graph in; a label with its probability for every node out."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Checkpoint, Device, Model, device_of, file_for
from regard.cli.translate import write

if TYPE_CHECKING:
    from regard.tasks.graph import Labeller
    from regard.text.graphs import Graph


def graph(
    model: Model,
    nodes: Annotated[Path, typer.Argument(help="Columns name, label and text or features; _ is an unknown label.")],
    edges: Annotated[Path, typer.Argument(help="Two names on every line, a tab between them.")],
    out: Annotated[Path | None, typer.Option(help="Write here instead of the terminal.")] = None,
    best: Annotated[int, typer.Option(min=1, help="So many labels for each node, the most probable first.")] = 1,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Label the nodes of a graph: each one's name, a label and the probability, with tabs between.

    It may be another graph than it was trained on. Labels that its nodes have already play no part.

    Example: `regard graph run nodes.tsv edges.tsv`

    Example: `regard graph run nodes.tsv.gz edges.tsv.gz --best 3 --out labels.tsv`
    """
    from regard.tasks.graph import Labeller
    from regard.text.graphs import read_graph

    out = out and file_for(out)
    labeller = Labeller.load(model, device_of(device), checkpoint)
    write(lines(labeller, read_graph(nodes, edges), min(best, len(labeller.labels))), out, "labelled")


def lines(labeller: "Labeller", given: "Graph", best: int) -> Iterator[str]:
    most = labeller.probabilities(given).topk(best)
    for node, found, chances in zip(given.nodes, most.indices.tolist(), most.values.tolist(), strict=True):
        cells = (f"{labeller.labels.name(n)}\t{chance:.4f}" for n, chance in zip(found, chances, strict=True))
        yield "\t".join((node.name, *cells))
