"""Who is joined to whom in; attention over these edges out, at the cost of the edges and not of all pairs.

The definition is the pattern `Edges`, which any backend can run; but edges lie scattered over all pairs of nodes, so
nearly every block of those holds some, and a mask of them all would be made. Here each node's neighbours are gathered
instead: nodes with about equally many neighbours are a batch of one query each. Every score and normaliser works.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import Edges, Padding, Recipe, attend, steps

Heads = Float[Tensor, "1 h n d"]


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that see up to so many others. Where a node sees fewer, its last neighbour fills the row, hidden."""

    nodes: Int[Tensor, " r"]
    seen: Int[Tensor, "r c"]  # nodes
    edges: Int[Tensor, "r c"]  # numbers of edges
    counts: Int[Tensor, " r"]

    def of_nodes(self, x: Heads) -> Float[Tensor, "r h 1 d"]:
        return rearrange(x[0, :, self.nodes], "h r d -> r h 1 d")

    def of_seen(self, x: Heads) -> Float[Tensor, "r h c d"]:
        # along the first axis of contiguous rows, where torch gathers and adds fastest
        rows = rearrange(x, "1 h n d -> n (h d)").index_select(0, self.seen.flatten())
        return rearrange(rows, "(r c) (h d) -> r h c d", r=len(self.nodes), h=x.shape[1])

    @property
    def real(self) -> Tensor:
        """Which places of `edges` are no filling."""
        return torch.arange(self.seen.shape[1], device=self.seen.device) < self.counts[:, None]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The edges of a graph, sorted by who looks, and the groups they are attended in.

    A row is filled up to the next power of 2, so at most half of what is gathered is filling, whatever the hubs.
    """

    pairs: Int[Tensor, "2 e"]  # who looks, at whom
    nodes: int
    groups: tuple[Group, ...]

    @staticmethod
    def of(edges: Edges, nodes: int) -> "Neighbours":
        codes = edges.codes()
        looks, at = codes // 2**31, codes % 2**31
        if len(codes) and (last := max(int(looks.max()), int(at.max()))) >= nodes:
            raise ValueError(f"an edge names node {last}, but there are {nodes}, counted from 0")
        counts = torch.bincount(looks, minlength=nodes)
        first = counts.cumsum(0) - counts
        wide = 2 ** torch.arange(32, device=codes.device)
        width = wide[torch.searchsorted(wide, counts.clamp(min=1))]
        groups = []
        for size in width[counts > 0].unique().tolist():
            mine = ((width == size) & (counts > 0)).nonzero().flatten()
            place = torch.arange(size, device=codes.device).minimum(counts[mine, None] - 1)
            numbers = first[mine, None] + place
            groups.append(Group(mine, at[numbers], numbers, counts[mine]))
        return Neighbours(torch.stack((looks, at)), nodes, tuple(groups))

    def attend(self, q: Heads, k: Heads, v: Heads, recipe: Recipe) -> Heads:
        """As `regard.attention.attend` with the pattern `Edges`. A node that sees nobody gets 0."""
        parts = [
            attend(group.of_nodes(q), group.of_seen(k), group.of_seen(v), seeing(recipe, group))
            for group in self.groups
        ]
        return self.together(parts, q, v)

    def look(self, q: Heads, k: Heads, v: Heads, recipe: Recipe) -> tuple[Heads, Float[Tensor, "h e"]]:
        """The output, and the weight of every edge in every head."""
        parts, weights = [], v.new_zeros(q.shape[1], self.pairs.shape[1])
        for group in self.groups:
            seen = steps(group.of_nodes(q), group.of_seen(k), group.of_seen(v), seeing(recipe, group))
            parts.append(seen.output)
            by_edge = rearrange(seen.weights, "r h 1 c -> h r c")[:, group.real]
            weights = weights.index_copy(1, group.edges[group.real], by_edge)
        return self.together(parts, q, v), weights

    def together(self, parts: list[Float[Tensor, "r h 1 d"]], q: Heads, v: Heads) -> Heads:
        """What the groups made, each node in its place."""
        heads, head = q.shape[1], v.shape[3]
        out = v.new_zeros(self.nodes, heads * head)
        for group, part in zip(self.groups, parts, strict=True):
            out = out.index_copy(0, group.nodes, rearrange(part, "r h 1 d -> r (h d)"))
        return rearrange(out, "n (h d) -> 1 h n d", h=heads)

    def to(self, device: torch.device | str) -> "Neighbours":
        groups = (Group(*(part.to(device) for part in vars(group).values())) for group in self.groups)
        return Neighbours(self.pairs.to(device), self.nodes, tuple(groups))


def seeing(recipe: Recipe, group: Group) -> Recipe:
    return replace(recipe, pattern=Padding(group.counts))


def joined(pairs: Iterable[tuple[int, int]], nodes: int) -> Edges:
    """Both ends of every pair see each other, and every node sees itself."""
    one, other = torch.tensor(list(pairs), dtype=torch.long).reshape(-1, 2).T
    itself = torch.arange(nodes)
    return Edges(torch.stack((torch.cat((one, other, itself)), torch.cat((other, one, itself)))))
