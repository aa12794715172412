"""`regard graph`: classifies the nodes of a graph."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.tasks.registry import ViewRequest

if TYPE_CHECKING:
    from regard.data.graphs import Graph
    from regard.models.graph import EdgeWeights
    from regard.see.plots.panels import View
    from regard.tasks.node_classification.task import NodeClassifier


@options.with_option_groups
def graph(
    model: options.ModelArgument,
    nodes: Annotated[Path, typer.Argument(help="Columns name, label and text or features; _ is an unknown label.")],
    edges: Annotated[Path, typer.Argument(help="Two names on every line, a tab between them.")],
    out: Annotated[Path | None, typer.Option(help="Write here instead of stdout.")] = None,
    best: Annotated[int, typer.Option("--top-k", "--best", min=1, help="Top-k labels per node.")] = 1,
    load: options.LoadOptions = options.LoadOptions(),
) -> None:
    """Classify the nodes of a graph: node name, label and probability, tab-separated.

    It may be another graph than the training graph (inductive). Known labels of its nodes are ignored.

    Example: `regard graph run nodes.tsv edges.tsv`

    Example: `regard graph run nodes.tsv.gz edges.tsv.gz --top-k 3 --out labels.tsv`
    """
    from regard.data.graphs import read_graph
    from regard.tasks.node_classification.task import NodeClassifier

    out = out and options.writable_file(out)
    classifier = load.load(NodeClassifier, model)
    options.write_lines(
        label_lines(classifier, read_graph(nodes, edges), min(best, len(classifier.labels))), out, "labelled"
    )


def label_lines(classifier: "NodeClassifier", graph: "Graph", best: int) -> Iterator[str]:
    most = classifier.probabilities(graph).topk(best)
    for node, found, chances in zip(graph.nodes, most.indices.tolist(), most.values.tolist(), strict=True):
        cells = (f"{classifier.labels.name(n)}\t{chance:.4f}" for n, chance in zip(found, chances, strict=True))
        yield "\t".join((node.name, *cells))


# --- look ---


def view_node(classifier: "NodeClassifier", folder: Path, text: str, request: ViewRequest) -> "tuple[str, View]":
    """`text` is a node of the graph that was trained on. Without a head, those of the first layer: it attends to nodes
    as they are, and the others at what nodes have heard."""
    from regard.tasks.node_classification.task import training_graph

    if refused := [name for name in ("word", "target") if vars(request)[name] is not None]:
        raise ValueError(f"--{refused[0]} means nothing to a node; leave it out")
    graph = training_graph(classifier.settings.data)
    node = graph.nodes[graph.index(text)]
    chances, attention = classifier.probabilities_with_attention(graph)
    best = chances[graph.index(text)].topk(min(3, len(classifier.labels)))
    found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    output = f"{text}: " + ", ".join(f"{classifier.labels.name(n)} {100 * chance:.1f} %" for n, chance in found)
    content = "" if graph.numeric else f"\n{' '.join(map(str, node.content))}"
    return output + content, view_neighbourhood(graph, attention, text, request)


def view_neighbourhood(graph: "Graph", attention: "EdgeWeights", name: str, request: ViewRequest) -> "View":
    from regard.see.plots.charts import Neighbourhood, neighbourhood_view
    from regard.see.plots.panels import View

    layers, heads = list(attention.weights), slice(None)
    if not layers:
        raise ValueError("this model was trained with kind = 'alone', and attends to no neighbours; train another")
    shown = layers if request.all_heads else layers[:1]
    if request.head is not None:
        layer, _, number = request.head.rpartition(":")
        if layer not in layers or not number.isdecimal() or int(number) >= len(attention.weights[layer]):
            there = ", ".join(f"{layer}:0 to {layer}:{len(attention.weights[layer]) - 1}" for layer in layers)
            raise ValueError(f"--head {request.head}: write LAYER:HEAD, one of {there}")
        shown, heads = [layer], slice(int(number), int(number) + 1)
    views = []
    for layer in shown:
        hood = Neighbourhood.of(graph, attention, name, layer)
        views.append(neighbourhood_view(replace(hood, weights=hood.weights[heads]), title=request.head or layer))
    return View(tuple(chain(*(view.rows for view in views))), notes=views[0].notes)


COMMANDS = {"graph": graph}
view = view_node
