"""Node classification on the command line: accuracy by label, and views of attention over neighbours."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from regard.data.graphs import Graph
from regard.models.graph import EdgeWeights
from regard.see.plots.neighbour_plot import Neighbourhood, neighbourhood_view
from regard.see.plots.panels import View
from regard.tasks.node_classification.data import (
    LabelledNode,
    NodeClassificationSettings,
    read_labelled_nodes,
    training_graph,
)
from regard.tasks.node_classification.task import NodeClassifier, graph_of
from regard.tasks.registry import Task, ViewRequest


@dataclass(frozen=True)
class NodeClassificationMetrics:
    """Which labels were right, by the label that would have been right."""

    wanted: Counter[str]
    right: Counter[str]
    nodes: int  # of the whole graph
    edges: int
    outputs: tuple[str, ...] = field(repr=False)

    @property
    def accuracy(self) -> float:
        return 100 * self.right.total() / self.wanted.total()

    @property
    def signature(self) -> str:
        return f"nodes:{self.wanted.total()}|among:{self.nodes}|edges:{self.edges}"

    def table(self) -> str:
        wide = max(map(len, self.wanted))
        lines = [f"accuracy {self.accuracy:.2f} %   {self.signature}", ""]
        lines += [f"{name:<{wide}} {100 * self.right[name] / n:6.2f} %  of {n:,}" for name, n in self.by_label]
        return "\n".join(lines)

    @property
    def by_label(self) -> list[tuple[str, int]]:
        return sorted(self.wanted.items())

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "signature": self.signature,
            "by_label": {name: {"nodes": n, "right": self.right[name]} for name, n in self.by_label},
        }

    def lines(self) -> list[str]:
        return list(self.outputs)


def evaluate_node_classifier(labeller: NodeClassifier, nodes: Sequence[LabelledNode]) -> NodeClassificationMetrics:
    graph = graph_of(nodes)
    for one in nodes:  # a label that is unknown could never be right
        labeller.labels.index(one.node.label or "", f"the node {one.node.name!r}")
    numbers = labeller.probabilities(graph).argmax(-1).tolist()
    both = [(one.node, labeller.labels.name(numbers[one.number])) for one in nodes]
    return NodeClassificationMetrics(
        Counter(node.label or "" for node, _ in both),
        Counter(found for node, found in both if node.label == found),
        len(graph),
        len(graph.edges),
        tuple(f"{node.name}\t{found}" for node, found in both),
    )


# --- looking ---


def view_node(labeller: NodeClassifier, folder: Path, text: str, asked: ViewRequest) -> tuple[str, View]:
    """`text` is a node of the graph that was trained on. Without a head, those of the first layer: it looks at nodes
    as they are, and the others at what nodes have heard."""
    if refused := [name for name in ("word", "target") if vars(asked)[name] is not None]:
        raise ValueError(f"--{refused[0]} means nothing to a node; leave it out")
    graph = training_graph(labeller.settings.data)
    node = graph.nodes[graph.index(text)]
    chances, looked = labeller.probabilities_with_attention(graph)
    best = chances[graph.index(text)].topk(min(3, len(labeller.labels)))
    found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    said = f"{text}: " + ", ".join(f"{labeller.labels.name(n)} {100 * chance:.1f} %" for n, chance in found)
    content = "" if graph.numeric else f"\n{' '.join(map(str, node.content))}"
    return said + content, view_neighbourhood(graph, looked, text, asked)


def view_neighbourhood(graph: Graph, looked: EdgeWeights, name: str, asked: ViewRequest) -> View:
    layers, heads = list(looked.weights), slice(None)
    if not layers:
        raise ValueError("this model was trained with kind = 'alone', and looks at no neighbours; train another")
    shown = layers if asked.all_heads else layers[:1]
    if asked.head is not None:
        layer, _, number = asked.head.rpartition(":")
        if layer not in layers or not number.isdecimal() or int(number) >= len(looked.weights[layer]):
            there = ", ".join(f"{layer}:0 to {layer}:{len(looked.weights[layer]) - 1}" for layer in layers)
            raise ValueError(f"--head {asked.head}: write LAYER:HEAD, one of {there}")
        shown, heads = [layer], slice(int(number), int(number) + 1)
    views = []
    for layer in shown:
        hood = Neighbourhood.of(graph, looked, name, layer)
        views.append(neighbourhood_view(replace(hood, weights=hood.weights[heads]), title=asked.head or layer))
    return View(tuple(chain(*(view.rows for view in views))), notes=views[0].notes)


NODE_CLASSIFICATION = Task(
    settings=NodeClassificationSettings,
    examples="nodes",
    read=read_labelled_nodes,
    from_examples=NodeClassifier.from_examples,
    from_description=NodeClassifier.from_description,
    load=NodeClassifier.load,
    evaluate=evaluate_node_classifier,
    view=view_node,
    input_description="the name of a node",
    suggested_command=lambda folder: ("evaluate", folder),
)
