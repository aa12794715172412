"""Graph network: labels of nodes from their features alone, the mean of their neighbours, or graph attention.

config = GraphConfig(kind="attention", layers=2, model=64, heads=4)
model = GraphNetwork(config, features=25, labels=5)
neighbours = Neighbours.of(undirected_edges(graph.edges, len(graph)), len(graph))
with record_attention(model) as record:
    logits = model(features, neighbours)
edge_weights(record, neighbours).weights_of_node(17)["blocks.0"]     node 17's neighbours and their weights, by head

An attention layer costs time and memory for every edge, not for every pair of nodes: each edge gets a copy of a key
and a value, up to twice as many with padding. Several graphs at once are one graph that is not connected.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import (
    AttentionCall,
    AttentionRecord,
    AttentionSites,
    Context,
    Edges,
    Full,
    InnerProduct,
    MultiHeadAttention,
    NoPosition,
    Padding,
    Recipe,
    SiteName,
    attend,
    steps,
)
from regard.attention.multihead import concatenate_heads
from regard.layers.stack import StackConfig
from regard.layers.transformer_layers import FeedForward
from regard.models.config import STACK_CHOICES, check_recipe_shapes
from regard.models.config_base import Choices, ConfigBase, OneRecipe, recipe_text
from regard.models.encoder import make_classifier_head
from regard.ops.dropout import Dropout

# --- graph attention ---


# The definition is the pattern `Edges`, which any backend can run; but edges are scattered over all pairs of nodes, so
# nearly every block of those holds some, and a full mask would be needed. Here each node's neighbours are gathered
# instead: nodes with about equally many neighbours are a batch of one query each. Every score and normaliser works.
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


# --- networks ---


GRAPH_KINDS = ("alone", "mean", "attention")
EDGE_KINDS = ("mean", "attention")
X = Float[Tensor, "n model"]


@dataclass(frozen=True, kw_only=True)
class GraphConfig(ConfigBase):
    """A classifier of a graph's nodes. Keys without a sentence here are those of `ConfigBase`.

    Args:
        kind: alone (no edges), mean (all neighbours have the same weight) or attention.
        layers: how many; information travels one edge in each.
        model: the width of a node's vector.
        hidden: the width of the feed-forward layers.
        attention_dropout: the share of edges whose weights training sets to zero.
        recipe: the recipe of attention, in TOML or as a `Recipe`: its score and normaliser, since the pattern is the
            graph's edges and nodes have no order. `score = "Additive(16, hidden=16)"` for heads of width 16 is that of
            graph attention networks (Brody et al. 2022), but for tanh.
    """

    choices: ClassVar[Choices] = {"kind": GRAPH_KINDS, **STACK_CHOICES}
    used_by: ClassVar[Choices] = {
        "attention_dropout": EDGE_KINDS,
        **dict.fromkeys(("heads", "recipe"), ("attention",)),
    }

    kind: str
    layers: int = 2
    model: int = 64
    hidden: int = 128
    heads: int = 4
    norm: str = "pre"
    activation: str = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    recipe: OneRecipe = ""

    def __post_init__(self):
        self.check()
        if self.kind == "attention" and self.model % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide model = {self.model}; choose one that does")
        with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, which are discarded here
            graph_recipe(self)


def graph_recipe(config: GraphConfig) -> Recipe:
    if config.kind != "attention":
        return Recipe(score=UniformScore())
    try:
        parsed = Recipe.from_toml(recipe_text(config.recipe))
        if parsed.position != NoPosition():
            raise ValueError(f"nodes have no order, so {parsed.position} does not apply; leave it out")
        if parsed.pattern != Full():
            raise ValueError(f"the pattern is the graph's edges, not {parsed.pattern}; leave it out")
        head = config.model // config.heads
        check_recipe_shapes(parsed, heads=config.heads, query=head, key=head, model=config.model)
    except ValueError as error:
        raise ValueError(f"the recipe: {error}") from None
    return parsed


@dataclass(frozen=True)
class UniformScore(InnerProduct):
    """0 for every key, so that all visible keys have the same weight."""

    def fold_q(self, q):
        return torch.zeros_like(q)

    def fold_k(self, k):
        return k


@dataclass(frozen=True, eq=False)
class EdgeWeights:
    """The weight of each edge, by the layer's name; no layers for a model without edges."""

    pairs: Int[Tensor, "2 e"]  # query node, key node
    weights: dict[str, Float[Tensor, "h e"]]

    def weights_of_node(self, node: int) -> dict[str, tuple[Int[Tensor, " k"], Float[Tensor, "h k"]]]:
        """The neighbours of a node, itself included, and their weights in every head."""
        edges_of_node = self.pairs[0] == node
        return {
            name: (self.pairs[1, edges_of_node], weights[:, edges_of_node]) for name, weights in self.weights.items()
        }


def edge_weights(record: AttentionRecord, neighbours: Neighbours) -> EdgeWeights:
    """The weights of the edges in every layer that was recorded, at the cost of the edges."""
    calls = {name: call for name, (call, *_) in record.calls.items() if isinstance(call, AttentionCall)}
    weights = {name: neighbours.edge_weights(one.q, one.k, one.v, one.recipe) for name, one in calls.items()}
    return EdgeWeights(neighbours.pairs, weights)


class GraphLayer(nn.Module, ABC):
    """Abstract: aggregation over neighbours, and feed-forward."""

    def __init__(self, stack: StackConfig):
        super().__init__()
        self.feed_forward: FeedForward = stack.feed_forward(2 * stack.layers)
        self.residual_feed_forward = stack.residual()

    @abstractmethod
    def aggregate(self, x: X, neighbours: Neighbours) -> X: ...

    def forward(self, x: X, neighbours: Neighbours) -> X:
        x = self.aggregate(x, neighbours)
        return self.residual_feed_forward((x, x), self.feed_forward.hidden, self.feed_forward.down)[0]


class FeedForwardLayer(GraphLayer):
    """No aggregation."""

    def aggregate(self, x, neighbours):
        return x


class GraphAttentionLayer(GraphLayer):
    """Attention of every node to its neighbours, as the recipe says."""

    def __init__(self, stack: StackConfig, recipe: Recipe):
        super().__init__(stack)
        self.attention: MultiHeadAttention = stack.attention(recipe, 2 * stack.layers)
        self.residual_attention = stack.residual()
        if isinstance(recipe.score, UniformScore):  # without queries and keys there is nothing to learn
            self.attention.query, self.attention.key = nn.Identity(), nn.Identity()

    def aggregate(self, x, neighbours):
        attention = self.attention

        def attend(y: X) -> X:
            # one attention over all nodes, which the neighbours compute group by group
            q, k, v = attention.project(rearrange(y, "n m -> 1 n m"))
            recipe = attention.effective_recipe(Context(neighbours.edges))
            return concatenate_heads(attention.core(q, k, v, recipe, kernel=neighbours.attend))[0]

        return self.residual_attention((x, x), attend, attention.output)[0]


class GraphNetwork(nn.Module):
    """One label for every node. How the nodes are numbered changes nothing, nor does what a node cannot reach.

    Args:
        config: the kind and its sizes.
        features: how many numbers describe a node.
        labels: how many there are to choose from.
    """

    attention_sites: ClassVar[AttentionSites] = {"layers.*.attention": SiteName("blocks.*", "nodes", "nodes")}

    def __init__(self, config: GraphConfig, *, features: int, labels: int):
        super().__init__()
        stack = StackConfig(
            layers=config.layers,
            model=config.model,
            heads=config.heads if config.kind == "attention" else 1,
            hidden=config.hidden,
            norm=config.norm,
            activation=config.activation,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
        )
        recipe = graph_recipe(config)
        self.input, self.dropout = nn.Linear(features, config.model), Dropout(config.dropout)
        self.layers = nn.ModuleList(
            FeedForwardLayer(stack) if config.kind == "alone" else GraphAttentionLayer(stack, recipe)
            for _ in range(config.layers)
        )
        self.norm, self.output = stack.final_norm(), make_classifier_head(config.model, labels)

    def forward(self, features: Float[Tensor, "n f"], neighbours: Neighbours) -> Float[Tensor, "n labels"]:
        expected = neighbours.nodes, self.input.in_features
        if tuple(features.shape) != expected:
            raise ValueError(
                f"{expected[0]} nodes of {expected[1]} features each are expected, not {tuple(features.shape)}"
            )
        x = self.dropout(self.input(features))
        for layer in self.layers:
            x = layer(x, neighbours)
        return self.output(self.norm(x))
