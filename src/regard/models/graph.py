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
from dataclasses import dataclass
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
    Full,
    InnerProduct,
    MultiHeadAttention,
    NoPosition,
    Recipe,
    SiteName,
)
from regard.attention.multihead import concatenate_heads
from regard.layers.graph_attention import Neighbours
from regard.layers.sublayers import FeedForward
from regard.models.config import STACK_CHOICES, check_recipe_shapes
from regard.models.config_base import Choices, ConfigBase, OneRecipe, recipe_text
from regard.models.encoder import make_classifier_head
from regard.models.stack import StackConfig
from regard.ops.dropout import Dropout

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
