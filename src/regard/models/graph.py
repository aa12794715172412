"""Graph network: labels of nodes from their features alone, the mean of their neighbours, or graph attention.

config = GraphConfig(kind="attention", layers=2, model=64, heads=4)
model = GraphNetwork(config, features=25, labels=5)
neighbours = Neighbours.of(undirected_edges(graph.edges, len(graph)), len(graph))
logits, attention = model.look(features, neighbours)
attention.weights_of_node(17)["layers.0"]     the neighbours of node 17, and their weights, by head

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

from regard.attention import Full, InnerProduct, MultiHeadAttention, NoPosition, Recipe
from regard.layers.feed_forward import FeedForward
from regard.layers.graph_attention import Neighbours
from regard.models.config import NORM_AND_ACTIVATION, Choices, ConfigBase, check_recipe_shapes
from regard.models.encoder import make_classifier_head
from regard.models.transformer import StackConfig
from regard.ops.dropout import Dropout

GRAPH_KINDS = ("alone", "mean", "attention")
EDGE_KINDS = ("mean", "attention")
X = Float[Tensor, "n model"]


@dataclass(frozen=True, kw_only=True)
class GraphConfig(ConfigBase):
    """A classifier of a graph's nodes.

    Args:
        kind: alone (no edges), mean (all neighbours have the same weight), attention.
        layers: how many; information travels one edge in each.
        model: the width of a node's vector; hidden: of the feed-forward layers.
        heads: of attention alone.
        norm, activation, dropout: of the layers, as in EncoderConfig.
        attention_dropout: on the weights of edges.
        recipe: TOML: score and normaliser. `score = "Additive(16, hidden=16)"` for heads of width 16 is that of graph
            attention networks (Brody et al. 2022), but for tanh. The pattern is the graph's edges, and nodes have no
            order.
    """

    choices: ClassVar[Choices] = {"kind": GRAPH_KINDS, **NORM_AND_ACTIVATION}
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
    recipe: str = ""

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
        parsed = Recipe.from_toml(config.recipe)
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


class GraphLayer(nn.Module, ABC):
    """Abstract: aggregation over neighbours, and feed-forward."""

    def __init__(self, stack: StackConfig):
        super().__init__()
        self.feed_forward: FeedForward = stack.feed_forward(2 * stack.layers)
        self.residual_feed_forward = stack.residual()

    @abstractmethod
    def look(self, x: X, neighbours: Neighbours) -> tuple[X, Float[Tensor, "h e"] | None]:
        """As `forward`, and the weight of every edge, if there is any."""

    @abstractmethod
    def aggregate(self, x: X, neighbours: Neighbours) -> X: ...

    def forward(self, x: X, neighbours: Neighbours) -> X:
        return self.feed(self.aggregate(x, neighbours))

    def feed(self, x: X) -> X:
        return self.residual_feed_forward((x, x), self.feed_forward.hidden, self.feed_forward.down)[0]


class FeedForwardLayer(GraphLayer):
    """No aggregation."""

    def aggregate(self, x, neighbours):
        return x

    def look(self, x, neighbours):
        return self(x, neighbours), None


class GraphAttentionLayer(GraphLayer):
    """Attention of every node to its neighbours, as the recipe says."""

    def __init__(self, stack: StackConfig, recipe: Recipe):
        super().__init__(stack)
        self.attention: MultiHeadAttention = stack.attention(recipe, 2 * stack.layers)
        self.residual_attention = stack.residual()
        if isinstance(recipe.score, UniformScore):  # without queries and keys there is nothing to learn
            self.attention.query, self.attention.key = nn.Identity(), nn.Identity()

    def aggregate(self, x, neighbours):
        q, k, v = self.project_heads(x)
        y = neighbours.attend(q, k, v, self.attention.effective_recipe(None, None))
        return self.residual_attention.add_residual(x, self.attention.merge_heads(y)[0])

    def look(self, x, neighbours):
        q, k, v = self.project_heads(x)
        y, weights = neighbours.look(q, k, v, self.attention.effective_recipe(None, None))
        x = self.residual_attention.add_residual(x, self.attention.merge_heads(y)[0])
        return self.feed(x), weights

    def project_heads(self, x: X) -> tuple[Tensor, Tensor, Tensor]:
        return self.attention.project(rearrange(self.residual_attention.sublayer_input(x), "n m -> 1 n m"), None, None)


class GraphNetwork(nn.Module):
    """One label for every node. How the nodes are numbered changes nothing, nor does what a node cannot reach.

    Args:
        config: the kind and its sizes.
        features: how many numbers describe a node.
        labels: how many there are to choose from.
    """

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
        x = self.embed(features, neighbours)
        for layer in self.layers:
            x = layer(x, neighbours)
        return self.output(self.norm(x))

    def look(
        self, features: Float[Tensor, "n f"], neighbours: Neighbours
    ) -> tuple[Float[Tensor, "n labels"], EdgeWeights]:
        """As `forward`, and the weights of every layer."""
        x, seen = self.embed(features, neighbours), {}
        for n, layer in enumerate(self.layers):
            assert isinstance(layer, GraphLayer)
            x, weights = layer.look(x, neighbours)
            seen |= {} if weights is None else {f"layers.{n}": weights}
        return self.output(self.norm(x)), EdgeWeights(neighbours.pairs, seen)

    def embed(self, features: Float[Tensor, "n f"], neighbours: Neighbours) -> X:
        expected = neighbours.nodes, self.input.in_features
        if tuple(features.shape) != expected:
            raise ValueError(
                f"{expected[0]} nodes of {expected[1]} features each are expected, not {tuple(features.shape)}"
            )
        return self.dropout(self.input(features))
