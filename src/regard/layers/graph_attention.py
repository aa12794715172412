"""Graph attention: attention over the edges of a graph, at the cost of the edges and not of all pairs.

The definition is the pattern `Edges`, which any backend can run; but edges are scattered over all pairs of nodes, so
nearly every block of those holds some, and a full mask would be needed. Here each node's neighbours are gathered
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
HeadOutputs = Float[Tensor, "1 h n e"]


@dataclass(frozen=True, eq=False)
class NeighbourGroup:
    """Nodes with up to so many neighbours. Where a node has fewer, its last neighbour pads the row, masked."""

    nodes: Int[Tensor, " r"]
    neighbours: Int[Tensor, "r c"]  # nodes
    edges: Int[Tensor, "r c"]  # numbers of edges
    counts: Int[Tensor, " r"]

    def gather_nodes(self, x: Heads) -> Float[Tensor, "r h 1 d"]:
        return rearrange(x[0, :, self.nodes], "h r d -> r h 1 d")

    def gather_neighbours(self, x: Heads) -> Float[Tensor, "r h c d"]:
        # along the first axis of contiguous rows, where torch gathers and adds fastest
        rows = rearrange(x, "1 h n d -> n (h d)").index_select(0, self.neighbours.flatten())
        return rearrange(rows, "(r c) (h d) -> r h c d", r=len(self.nodes), h=x.shape[1])

    @property
    def mask(self) -> Tensor:
        """Which entries of `edges` are not padding."""
        return torch.arange(self.neighbours.shape[1], device=self.neighbours.device) < self.counts[:, None]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The edges of a graph, sorted by query node, and the groups they are attended in.

    A row is padded to the next power of 2, so at most half of what is gathered is padding, whatever the hubs.
    """

    edges: Edges
    nodes: int
    groups: tuple[NeighbourGroup, ...]

    @property
    def pairs(self) -> Int[Tensor, "2 e"]:
        """Query node, key node."""
        return self.edges.edge_index

    @staticmethod
    def of(edges: Edges, nodes: int) -> "Neighbours":
        codes = edges.codes()
        queries, at = codes // 2**31, codes % 2**31
        if len(codes) and (last := max(int(queries.max()), int(at.max()))) >= nodes:
            raise ValueError(f"an edge names node {last}, but there are {nodes}, counted from 0")
        counts = torch.bincount(queries, minlength=nodes)
        first = counts.cumsum(0) - counts
        wide = 2 ** torch.arange(32, device=codes.device)
        width = wide[torch.searchsorted(wide, counts.clamp(min=1))]
        groups = []
        for size in width[counts > 0].unique().tolist():
            mine = ((width == size) & (counts > 0)).nonzero().flatten()
            place = torch.arange(size, device=codes.device).minimum(counts[mine, None] - 1)
            numbers = first[mine, None] + place
            groups.append(NeighbourGroup(mine, at[numbers], numbers, counts[mine]))
        return Neighbours(Edges(torch.stack((queries, at))), nodes, tuple(groups))

    def attend(self, q: Heads, k: Heads, v: Heads, recipe: Recipe) -> Heads:
        """As `regard.attention.attend` with the pattern `Edges`, group by group. A node that sees nobody gets 0."""
        parts = [
            attend(
                group.gather_nodes(q),
                group.gather_neighbours(k),
                group.gather_neighbours(v),
                group_recipe(recipe, group),
            )
            for group in self.groups
        ]
        return self.scatter(parts, q, v)

    def edge_weights(self, q: Heads, k: Heads, v: Heads, recipe: Recipe) -> Float[Tensor, "h e"]:
        """The weight of every edge in every head."""
        weights = v.new_zeros(q.shape[1], self.pairs.shape[1])
        for group in self.groups:
            computed = steps(
                group.gather_nodes(q),
                group.gather_neighbours(k),
                group.gather_neighbours(v),
                group_recipe(recipe, group),
            )
            by_edge = rearrange(computed.weights, "r h 1 c -> h r c")[:, group.mask]
            weights = weights.index_copy(1, group.edges[group.mask], by_edge)
        return weights

    def scatter(self, parts: list[Float[Tensor, "_ h 1 e"]], q: Heads, v: Float[Tensor, "1 g n e"]) -> HeadOutputs:
        """The outputs of the groups, each at its node."""
        heads, head = q.shape[1], v.shape[3]
        out = v.new_zeros(self.nodes, heads * head)
        for group, part in zip(self.groups, parts, strict=True):
            out = out.index_copy(0, group.nodes, rearrange(part, "r h 1 d -> r (h d)"))
        return rearrange(out, "n (h d) -> 1 h n d", h=heads)

    def to(self, device: torch.device | str) -> "Neighbours":
        groups = (NeighbourGroup(*(part.to(device) for part in vars(group).values())) for group in self.groups)
        return Neighbours(Edges(self.pairs.to(device)), self.nodes, tuple(groups))


def group_recipe(recipe: Recipe, group: NeighbourGroup) -> Recipe:
    return replace(recipe, pattern=Padding(group.counts))


def undirected_edges(pairs: Iterable[tuple[int, int]], nodes: int) -> Edges:
    """Both ends of every pair see each other, and every node sees itself."""
    one, other = torch.tensor(list(pairs), dtype=torch.long).reshape(-1, 2).T
    itself = torch.arange(nodes)
    return Edges(torch.stack((torch.cat((one, other, itself)), torch.cat((other, one, itself)))))
