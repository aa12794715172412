"""What a node of a graph looked at in; the node among its neighbours out, lines as wide as weights, head by head."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from regard.models.graph import EdgesSeen
from regard.see.alignment import assert_weights, plain, words
from regard.see.labels import readable, short
from regard.see.numbers import brief
from regard.see.panel import Row, View, grid
from regard.see.star import Star
from regard.text.graphs import Graph

MOST = 24  # neighbours that have room around a node
LONGEST = 16  # terminal cells of a name, and of a label
ABREAST = 2  # heads in a row


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """How much a node looked at whom, itself among them or not, in each head; and what they are, where it is known."""

    name: str
    seen: tuple[str, ...]
    weights: Float[Tensor, "h seen"]
    labels: tuple[str | None, ...]

    def __post_init__(self):
        words(self.seen, "seen")
        if self.weights.dim() != 2 or self.weights.shape[1] != len(self.seen) or not len(self.weights):
            raise ValueError(
                f"{len(self.seen)} nodes that were looked at need weights of shape (heads, {len(self.seen)}), not "
                f"{tuple(self.weights.shape)}"
            )
        if len(self.labels) != len(self.seen):
            raise ValueError(f"{len(self.labels)} labels for {len(self.seen)} nodes; give one each, None if unknown")
        assert_weights(self.weights)

    @staticmethod
    def of(graph: Graph, looked: EdgesSeen, name: str, layer: str) -> "Neighbourhood":
        """Of one node, as a model looked in one of its layers."""
        around = looked.around(graph.index(name))
        if layer not in around:
            there = ", ".join(around) or "none: the model looks at no edges"
            raise ValueError(f"no layer is called {layer!r}; there are {there}")
        numbers, weights = around[layer]
        seen = [graph.nodes[number] for number in numbers.tolist()]
        return Neighbourhood(name, tuple(n.name for n in seen), weights, tuple(n.label for n in seen))


def neighbourhood_view(hood: Neighbourhood, *, title: str = "") -> View:
    """One star for each head, the same nodes in the same places; where there is no room, the lightest are left out."""
    weights = plain(hood.weights)
    ranked = sorted(range(len(hood.seen)), key=lambda n: -float(weights[:, n].sum()))
    others = [n for n in ranked if hood.seen[n] != hood.name]
    shown = sorted(others[:MOST], key=lambda n: (hood.labels[n] or "", others.index(n)))
    kinds = {label: number for number, label in enumerate(sorted({label or "" for label in hood.labels}))}
    own = next((n for n in ranked if hood.seen[n] == hood.name), None)
    centre = described(hood.name, None if own is None else hood.labels[own])
    stars = [
        Star(
            f"head {number}" if len(weights) > 1 else "",
            centre,
            tuple(described(hood.seen[n], hood.labels[n]) for n in shown),
            tuple(float(head[n]) for n in shown),
            (0 if own is None else kinds[hood.labels[own] or ""], *(kinds[hood.labels[n] or ""] for n in shown)),
            0.0 if own is None else float(head[own]),
            float(weights.max()) or 1.0,
        )
        for number, head in enumerate(weights)
    ]
    rows = grid(stars, ABREAST)
    rest = weights[:, others[MOST:]].sum(1).mean()
    left = f"{len(others) - MOST} more neighbours weigh {brief(float(rest))} together, in the mean of the heads"
    return View((Row(rows[0].panels, heading=title), *rows[1:]), notes=(("", left),) * (len(others) > MOST))


def described(name: str, label: str | None) -> str:
    name = short(readable(name), LONGEST)
    return name if label is None else f"{name}, {short(readable(label), LONGEST)}"
