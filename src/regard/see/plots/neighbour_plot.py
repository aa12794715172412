"""Neighbourhood of a graph node: its attention to each neighbour, head by head."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from regard.data.graphs import Graph
from regard.models.graph import EdgeWeights
from regard.see.plots.attention_maps import assert_weights, to_cpu_double, word_labels
from regard.see.plots.labels import format_number, truncate_label, visible_text
from regard.see.plots.panels import NeighbourPlot, PanelRow, View, grid

MAX_NEIGHBOURS = 24  # neighbours that have room around a node
MAX_NODE_CELLS = 16  # terminal cells of a name, and of a label
PLOTS_PER_ROW = 2  # heads in a row


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """How much a node looked at whom, itself among them or not, in each head; and what they are, where it is known."""

    name: str
    neighbours: tuple[str, ...]
    weights: Float[Tensor, "h seen"]
    labels: tuple[str | None, ...]

    def __post_init__(self):
        word_labels(self.neighbours, "seen")
        if self.weights.dim() != 2 or self.weights.shape[1] != len(self.neighbours) or not len(self.weights):
            raise ValueError(
                f"{len(self.neighbours)} neighbours need weights of shape (heads, {len(self.neighbours)}), "
                f"not {tuple(self.weights.shape)}"
            )
        if len(self.labels) != len(self.neighbours):
            raise ValueError(
                f"{len(self.labels)} labels for {len(self.neighbours)} nodes; give one each, None if unknown"
            )
        assert_weights(self.weights)

    @staticmethod
    def of(graph: Graph, looked: EdgeWeights, name: str, layer: str) -> "Neighbourhood":
        """Of one node, in one layer of a model."""
        around = looked.weights_of_node(graph.index(name))
        if layer not in around:
            there = ", ".join(around) or "none: the model has no graph attention"
            raise ValueError(f"no layer is called {layer!r}; there are {there}")
        numbers, weights = around[layer]
        seen = [graph.nodes[number] for number in numbers.tolist()]
        return Neighbourhood(name, tuple(n.name for n in seen), weights, tuple(n.label for n in seen))


def neighbourhood_view(hood: Neighbourhood, *, title: str = "") -> View:
    """One plot for each head, the same nodes at the same positions; beyond MAX_NEIGHBOURS the lightest are left out."""
    weights = to_cpu_double(hood.weights)
    ranked = sorted(range(len(hood.neighbours)), key=lambda n: -float(weights[:, n].sum()))
    others = [n for n in ranked if hood.neighbours[n] != hood.name]
    shown = sorted(others[:MAX_NEIGHBOURS], key=lambda n: (hood.labels[n] or "", others.index(n)))
    kinds = {label: number for number, label in enumerate(sorted({label or "" for label in hood.labels}))}
    own = next((n for n in ranked if hood.neighbours[n] == hood.name), None)
    centre = node_label(hood.name, None if own is None else hood.labels[own])
    plots = [
        NeighbourPlot(
            f"head {number}" if len(weights) > 1 else "",
            centre,
            tuple(node_label(hood.neighbours[n], hood.labels[n]) for n in shown),
            tuple(float(head[n]) for n in shown),
            (0 if own is None else kinds[hood.labels[own] or ""], *(kinds[hood.labels[n] or ""] for n in shown)),
            0.0 if own is None else float(head[own]),
            float(weights.max()) or 1.0,
        )
        for number, head in enumerate(weights)
    ]
    rows = grid(plots, PLOTS_PER_ROW)
    rest = weights[:, others[MAX_NEIGHBOURS:]].sum(1).mean()
    count, weight = len(others) - MAX_NEIGHBOURS, format_number(float(rest))
    left = f"{count} more neighbours weigh {weight} together, in the mean of the heads"
    return View(
        (PanelRow(rows[0].panels, heading=title), *rows[1:]), notes=(("", left),) * (len(others) > MAX_NEIGHBOURS)
    )


def node_label(name: str, label: str | None) -> str:
    name = truncate_label(visible_text(name), MAX_NODE_CELLS)
    return name if label is None else f"{name}, {truncate_label(visible_text(label), MAX_NODE_CELLS)}"
