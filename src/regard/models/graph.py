"""A graph's nodes and edges in, scores for each node's label out: alone, by the mean of neighbours, or by attention.

config = GraphConfig(kind="attention", layers=2, model=64, heads=4)
model = GraphClassifier(config, features=25, labels=5)
neighbours = Neighbours.of(joined(graph.edges, len(graph)), len(graph))
logits, looked = model.look(features, neighbours)
looked.around(17)["layers.0"]     whom node 17 looked at, and how much, by head

An attention layer costs time and memory for every edge, not for every pair of nodes: each edge is given a copy of a key
and a value, up to twice as many for the filling. Several graphs at once are one graph that is not connected.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Full, InnerProduct, MultiHeadAttention, NoPosition, Recipe
from regard.layers.block import FeedForward
from regard.layers.dropout import Dropout
from regard.layers.neighbours import Neighbours
from regard.models.config import refuse_misfits
from regard.models.encoder import chosen
from regard.models.reading_config import ORDERLY, Choices, Plain
from regard.models.transformer import Stack

KINDS = ("alone", "mean", "attention")
JOINED = ("mean", "attention")
X = Float[Tensor, "n model"]


@dataclass(frozen=True, kw_only=True)
class GraphConfig(Plain):
    """What tells the nodes of a graph apart.

    Args:
        kind: alone (no edges), mean (all neighbours weigh the same), attention.
        layers: so many edges away a node may see.
        model: the width of a node's vector; hidden: of the feed-forward layers.
        heads: of attention; averaging has no use for them.
        norm, activation, dropout: of the layers, as in EncoderConfig.
        attention_dropout: on the weights of edges.
        recipe: TOML: score and normaliser. `score = "Additive(16, hidden=16)"` for heads of width 16 is that of graph
            attention networks (Brody et al. 2022), but for tanh. The pattern is the graph's edges, and nodes have no
            order.
    """

    choices: ClassVar[Choices] = {"kind": KINDS, **ORDERLY}
    used_by: ClassVar[Choices] = {
        "attention_dropout": JOINED,
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
        with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, and here they are thrown away
            recipe_of(self)


def recipe_of(config: GraphConfig) -> Recipe:
    if config.kind != "attention":
        return Recipe(score=Alike())
    try:
        made = Recipe.from_toml(config.recipe)
        if made.position != NoPosition():
            raise ValueError(f"nodes have no order, so {made.position} says nothing of them; leave it out")
        if made.pattern != Full():
            raise ValueError(f"the pattern is the graph's edges, not {made.pattern}; leave it out")
        head = config.model // config.heads
        refuse_misfits(made, heads=config.heads, query=head, key=head, model=config.model)
    except ValueError as error:
        raise ValueError(f"the recipe: {error}") from None
    return made


@dataclass(frozen=True)
class Alike(InnerProduct):
    """0 for every key, so that whoever is seen weighs the same."""

    def fold_q(self, q):
        return torch.zeros_like(q)

    def fold_k(self, k):
        return k


@dataclass(frozen=True, eq=False)
class EdgesSeen:
    """How much each edge weighed, by the layer's name; no layers for a model without edges."""

    pairs: Int[Tensor, "2 e"]  # who looked, at whom
    weights: dict[str, Float[Tensor, "h e"]]

    def around(self, node: int) -> dict[str, tuple[Int[Tensor, " k"], Float[Tensor, "h k"]]]:
        """Whom a node looked at, itself among them, and how much in every head."""
        mine = self.pairs[0] == node
        return {name: (self.pairs[1, mine], weights[:, mine]) for name, weights in self.weights.items()}


class Layer(nn.Module, ABC):
    """Abstract: a node hears something, then thinks by itself."""

    def __init__(self, stack: Stack):
        super().__init__()
        self.feed_forward: FeedForward = stack.feed_forward(2 * stack.layers)
        self.around_feed_forward = stack.around()

    @abstractmethod
    def look(self, x: X, neighbours: Neighbours) -> tuple[X, Float[Tensor, "h e"] | None]:
        """As `forward`, and the weight of every edge, if there is any."""

    @abstractmethod
    def hear(self, x: X, neighbours: Neighbours) -> X: ...

    def forward(self, x: X, neighbours: Neighbours) -> X:
        return self.around_feed_forward(self.hear(x, neighbours), self.feed_forward)


class Alone(Layer):
    """Nothing is heard."""

    def hear(self, x, neighbours):
        return x

    def look(self, x, neighbours):
        return self(x, neighbours), None


class AmongNeighbours(Layer):
    """Every node looks at its neighbours, as the recipe says."""

    def __init__(self, stack: Stack, recipe: Recipe):
        super().__init__(stack)
        self.attention: MultiHeadAttention = stack.attention(recipe, 2 * stack.layers)
        self.around_attention = stack.around()
        if isinstance(recipe.score, Alike):  # nobody asks, so there is nothing to learn
            self.attention.query, self.attention.key = nn.Identity(), nn.Identity()

    def hear(self, x, neighbours):
        q, k, v = self.heads(x)
        y = neighbours.attend(q, k, v, self.attention.recipe_for(None, None))
        return self.around_attention.after(x, self.attention.joined(y)[0])

    def look(self, x, neighbours):
        q, k, v = self.heads(x)
        y, weights = neighbours.look(q, k, v, self.attention.recipe_for(None, None))
        x = self.around_attention.after(x, self.attention.joined(y)[0])
        return self.around_feed_forward(x, self.feed_forward), weights

    def heads(self, x: X) -> tuple[Tensor, Tensor, Tensor]:
        return self.attention.projected(rearrange(self.around_attention.before(x), "n m -> 1 n m"), None, None)


class GraphClassifier(nn.Module):
    """One label for every node. How the nodes are numbered changes nothing, nor does what a node cannot reach.

    Args:
        config: the kind and its sizes.
        features: how many numbers describe a node.
        labels: how many there are to choose from.
    """

    def __init__(self, config: GraphConfig, *, features: int, labels: int):
        super().__init__()
        stack = Stack(
            layers=config.layers,
            model=config.model,
            heads=config.heads if config.kind == "attention" else 1,
            hidden=config.hidden,
            norm=config.norm,
            activation=config.activation,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
        )
        recipe = recipe_of(config)
        self.input, self.dropout = nn.Linear(features, config.model), Dropout(config.dropout)
        self.layers = nn.ModuleList(
            Alone(stack) if config.kind == "alone" else AmongNeighbours(stack, recipe) for _ in range(config.layers)
        )
        self.norm, self.output = stack.last(), chosen(config.model, labels)

    def forward(self, features: Float[Tensor, "n f"], neighbours: Neighbours) -> Float[Tensor, "n labels"]:
        x = self.read(features, neighbours)
        for layer in self.layers:
            x = layer(x, neighbours)
        return self.output(self.norm(x))

    def look(
        self, features: Float[Tensor, "n f"], neighbours: Neighbours
    ) -> tuple[Float[Tensor, "n labels"], EdgesSeen]:
        """As `forward`, and the weights of every layer."""
        x, seen = self.read(features, neighbours), {}
        for n, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            x, weights = layer.look(x, neighbours)
            seen |= {} if weights is None else {f"layers.{n}": weights}
        return self.output(self.norm(x)), EdgesSeen(neighbours.pairs, seen)

    def read(self, features: Float[Tensor, "n f"], neighbours: Neighbours) -> X:
        wanted = neighbours.nodes, self.input.in_features
        if tuple(features.shape) != wanted:
            raise ValueError(f"{wanted[0]} nodes of {wanted[1]} features each are wanted, not {tuple(features.shape)}")
        return self.dropout(self.input(features))
