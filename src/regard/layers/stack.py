"""Stacks of layers: sizes, norms, dropout and recipes, and new layers initialised by Xavier."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn
from torch.nn.init import xavier_uniform_, zeros_

from regard.attention import LayerForm, LayerOptions, MultiHeadAttention, Recipe
from regard.attention.parts import find_named, fresh
from regard.layers.transformer_layers import NORM_ORDERS, NORM_TYPES, FeedForward, Norm, Residual

LayerRecipes = Recipe | Sequence[Recipe]  # one for all layers, or one for each


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """The configuration of a stack of layers: sizes, norms, the feed-forward network, dropout; see `ConfigBase`.

    Examples:
        >>> stack = StackConfig(layers=2, model=16, heads=4, hidden=64, groups=2, norm="post")
        >>> type(stack.residual()).__name__
        'PostNorm'
        >>> stack.attention(regard.Recipe(), branches=4)(torch.randn(1, 5, 16)).shape
        torch.Size([1, 5, 16])
    """

    layers: int
    model: int
    heads: int
    hidden: int
    groups: int | None = None
    head: int | None = None
    norm: str = "pre"
    norm_type: str = "layer"
    norm_eps: float = 1e-5
    qk_norm: bool = False
    output_gate: bool = False
    form: LayerForm | None = None
    feed_forward_type: str = "plain"
    activation: str = "relu"
    bias: bool = True
    shared_positions: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0

    def __post_init__(self):
        find_named(self.norm, NORM_ORDERS, "norm")
        find_named(self.norm_type, NORM_TYPES, "norm type")

    @property
    def norm_order(self) -> type[Residual]:
        return find_named(self.norm, NORM_ORDERS, "norm")

    def residual(self) -> Residual:
        return self.norm_order(self.model, dropout=self.dropout, **self.norm_options)

    def final_norm(self) -> nn.Module:
        """What follows the last layer: a norm, if nothing else ever norms the sum."""
        return nn.Identity() if self.norm_order.norms_sum else self.make_norm(self.model)

    def init_gain(self, branches: int) -> float:
        """How large a branch may start: the sum of all starts as large as one (Radford et al. 2019), or is normed."""
        return 1.0 if self.norm_order.norms_sum else branches**-0.5

    def make_norm(self, width: int) -> Norm:
        return NORM_TYPES[self.norm_type](width, eps=self.norm_eps)

    @property
    def norm_options(self) -> dict[str, Any]:
        """None for layer norm as torch has it: a user's own `Residual` need not know of others."""
        return {} if (self.norm_type, self.norm_eps) == ("layer", 1e-5) else {"norm": self.make_norm}

    @property
    def projection(self) -> Callable[[int, int], nn.Module]:
        return nn.Linear if self.bias else partial(nn.Linear, bias=False)

    def recipes(self, given: LayerRecipes, name: str = "recipe") -> tuple[Recipe, ...]:
        """The recipe of each layer. What they add to the embeddings is added once, so they must agree on it."""
        if isinstance(given, Recipe) and self.shared_positions:
            given = given.fresh()  # this stack's own, and no other's
        each = (given,) * self.layers if isinstance(given, Recipe) else tuple(given)
        if len(each) != self.layers:
            raise ValueError(f"{name} has {len(each)} recipes for {self.layers} layers; give one, or one for each")
        added = dict.fromkeys(" + ".join(map(repr, one.embedding_positions)) or "nothing" for one in each)
        if len(added) > 1:
            raise ValueError(
                f"{name}: layers add {' and '.join(added)} to the embeddings, which is done once for all of them; give "
                "every recipe the same embedding positions"
            )
        return each

    def attention(self, recipe: Recipe, branches: int) -> MultiHeadAttention:
        """A new layer, initialised by Xavier; `branches` is how many residual branches the stack adds up."""
        own = recipe.fresh()
        options = LayerOptions(
            projection=self.projection,
            head_norm=self.make_norm if self.qk_norm else None,
            output_gate=self.projection if self.output_gate else None,
        )
        layer = MultiHeadAttention(
            self.model,
            heads=self.heads,
            groups=self.groups,
            head=self.head,
            recipe=replace(own, position=recipe.position) if self.shared_positions else own,
            dropout=self.attention_dropout,
            form=fresh(self.form),
            options=options,
        )
        if layer.latent is None:
            for one in (layer, *(() if layer.points is None else (layer.points.gather,))):
                for part in (one.query, one.key, one.value):
                    init_xavier(part, 2**-0.5)  # as if the three were one matrix
        else:
            of_query = list(layer.query) if isinstance(layer.query, nn.Sequential) else [layer.query]
            for part in (*of_query, layer.latent.down, layer.key, layer.value):
                if isinstance(part, nn.Linear):
                    init_xavier(part, 1.0)
        init_xavier(layer.output, self.init_gain(branches))
        return layer

    def feed_forward(self, branches: int) -> FeedForward:
        layer = FeedForward(
            self.model,
            self.hidden,
            activation=self.activation,
            kind=self.feed_forward_type,
            projection=self.projection,
        )
        for part in (layer.up, layer.gate):
            if part is not None:
                init_xavier(part, 1.0)
        init_xavier(layer.down, self.init_gain(branches))
        return layer


def init_xavier(part: nn.Module, gain: float) -> None:
    assert isinstance(part, nn.Linear)
    xavier_uniform_(part.weight, gain)
    if part.bias is not None:
        zeros_(part.bias)
