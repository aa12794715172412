"""Transformer layers: of encoder and decoder; their feed-forward network, and their residual connections with norms."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from regard.attention import Context, Recipe
from regard.attention.kv_cache import LayerCache
from regard.attention.multihead import split_heads
from regard.attention.parts import find_named
from regard.ops import dispatch
from regard.ops.dropout import Dropout
from regard.ops.fused_layers import has_bias, layernorm, linear_dropout_add_norm, linear_relu
from regard.ops.linear import project_all
from regard.ops.rms_norm import rms_norm

if TYPE_CHECKING:
    from regard.layers.stack import StackConfig

X = Float[Tensor, "*batch model"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),  # GPT-2's
    "silu": silu,
}
"""Activations of a feed-forward network by name; `ModelConfig.activation` takes one.

Examples:
    >>> {name: round(activation(torch.tensor(-1.0)).item(), 4) for name, activation in ACTIVATIONS.items()}
    {'relu': 0.0, 'gelu': -0.1587, 'gelu_tanh': -0.1588, 'silu': -0.2689}
"""
FEED_FORWARDS = {"plain": "W₂ φ(W₁ x)", "gated": "W₂ (φ(V x) ⊙ W₁ x)"}


class FeedForward(nn.Module):
    """W₂ φ(W₁ x + b₁) + b₂, for every token by itself (Vaswani et al. 2017, eq. 2).

    Gated, W₂ (φ(V x) ⊙ W₁ x) (Shazeer 2020): with silu that is SwiGLU, with gelu GEGLU.

    Args:
        kind: plain or gated.
        projection: makes each linear layer.

    Examples:
        >>> layer = FeedForward(model=4, hidden=16)
        >>> layer(torch.randn(2, 5, 4)).shape
        torch.Size([2, 5, 4])
        >>> sum(weight.numel() for weight in layer.parameters())  # 4 · 16 + 16 + 16 · 4 + 4
        148
    """

    def __init__(
        self,
        model: int,
        hidden: int,
        *,
        activation: str = "relu",
        kind: str = "plain",
        projection: Callable[[int, int], nn.Module] = nn.Linear,
    ):
        super().__init__()
        find_named(kind, FEED_FORWARDS, "feed-forward network")
        self.up, self.down = projection(model, hidden), projection(hidden, model)
        self.gate = projection(model, hidden) if kind == "gated" else None
        self.activation = find_named(activation, ACTIVATIONS, "activation")

    def hidden(self, x: X, *, fused: bool = False) -> Float[Tensor, "*batch hidden"]:
        """φ(W₁ x + b₁), or φ(V x) ⊙ W₁ x."""
        if self.gate is not None:
            gate, up = project_all(x, (self.gate, self.up), fused=fused)
            return self.activation(gate) * up
        if fused and self.activation is relu and dispatch.use_fused(x) and has_bias(self.up):
            return linear_relu(x, self.up.weight, self.up.bias)
        return self.activation(self.up(x))

    def forward(self, x: X) -> X:
        return self.down(self.hidden(x))


Norm = nn.LayerNorm | nn.RMSNorm
NormType = Callable[[int], Norm]  # of states of this width
# (x - mean) / deviation (Ba et al. 2016), or x / root mean square (Zhang & Sennrich 2019), times learned weights
NORM_TYPES: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


def project_dropout_add_norm(
    residual: X,
    y: Float[Tensor, "*batch width"],
    project: nn.Module,
    dropout: Dropout,
    norm: Norm | None,
    *,
    fused: bool = False,
) -> tuple[X, X]:
    """norm(residual + dropout(project(y))), twice; without a norm the sum itself: how every sub-layer ends."""
    if fused and dispatch.use_fused(residual) and has_bias(project):
        return linear_dropout_add_norm(residual, y, project, dropout, norm)
    y = project(y)
    x = residual + (dropout(y) if dropout.training else y)
    x = x if norm is None else apply_norm(x, norm)
    return x, x


def apply_norm(x: X, norm: Norm, *, fused: bool = False) -> X:
    """norm(x), called without torch's module, which takes as long as the norm of a few tokens."""
    if isinstance(norm, nn.RMSNorm):
        return rms_norm(x, norm.weight, norm.eps)
    if fused and dispatch.use_fused(x):
        return layernorm(x, norm)
    return torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


Stream = tuple[X, X]  # what a sub-layer reads, and what goes around it: the same numbers


class Residual(nn.Module, ABC):
    """Abstract: the path around a sub-layer W f(x), of which W is the last projection.

    What flows from sub-layer to sub-layer is a pair of the same numbers, (x, residual): what the next one reads, and
    what goes around it. So a fused backward pass gets two gradients, and adds them as it reads them. Unless a path
    `norms_sum`, a stack ends with a norm of its own, and its branches start small.

    Examples:
        >>> class NoNorm(Residual):  # x + W f(x)
        ...     def forward(self, x, f, project, *, fused=False):
        ...         y = x[1] + project(f(x[0]))
        ...         return y, y
        >>> x = torch.ones(1, 2, 3)
        >>> NoNorm(3)((x, x), torch.neg, torch.nn.Identity())[0].sum()
        tensor(0.)
    """

    norms_sum: ClassVar[bool] = False

    def __init__(self, model: int, *, dropout: float = 0.0, norm: NormType = nn.LayerNorm):
        super().__init__()
        self.norm, self.dropout = norm(model), Dropout(dropout)

    @abstractmethod
    def forward(self, x: Stream, f: Callable[[Tensor], Tensor], project: nn.Module, *, fused: bool = False) -> Stream:
        """Fused, a GPU does all that follows the projection in one kernel."""


class PostNorm(Residual):
    """norm(x + W f(x)): as published (Vaswani et al. 2017). Wants a warm-up.

    Examples:
        >>> residual, linear, x = PostNorm(4), torch.nn.Linear(4, 4), torch.randn(1, 3, 4)
        >>> output, _ = residual((x, x), torch.relu, linear)
        >>> output.allclose(residual.norm(x + linear(x.relu())), atol=1e-6)
        True
    """

    norms_sum = True

    def forward(self, x, f, project, *, fused=False):
        return project_dropout_add_norm(x[1], f(x[0]), project, self.dropout, self.norm, fused=fused)


class PreNorm(Residual):
    """x + W f(norm(x)): the residual path is free from top to bottom (Xiong et al. 2020).

    Examples:
        >>> residual, linear, x = PreNorm(4), torch.nn.Linear(4, 4), torch.randn(1, 3, 4)
        >>> output, _ = residual((x, x), torch.relu, linear)
        >>> output.allclose(x + linear(residual.norm(x).relu()), atol=1e-6)
        True
    """

    def forward(self, x, f, project, *, fused=False):
        y = f(apply_norm(x[0], self.norm, fused=fused))
        return project_dropout_add_norm(x[1], y, project, self.dropout, None, fused=fused)


NORM_ORDERS: dict[str, type[Residual]] = {"pre": PreNorm, "post": PostNorm}
"""Where the layer norm stands, by name; `ModelConfig.norm` takes one.

Examples:
    >>> {name: order.__name__ for name, order in NORM_ORDERS.items()}
    {'pre': 'PreNorm', 'post': 'PostNorm'}
"""


# --- layers of an encoder and of a decoder, and stacks of them ---


States = Float[Tensor, "b t model"]
# of the source sentences; b and t of a layer are 1 and n where padding is left out
KeysValues = tuple[Float[Tensor, "sentences g s d"], Float[Tensor, "sentences g s d"]]


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each with a residual connection."""

    def __init__(self, stack: "StackConfig", recipe: Recipe):
        super().__init__()
        branches = 2 * stack.layers
        self.attention, self.feed_forward = stack.attention(recipe, branches), stack.feed_forward(branches)
        self.residual_attention, self.residual_feed_forward = stack.residual(), stack.residual()

    def forward(self, x: States, context: Context = Context(), cache: LayerCache | None = None) -> States:
        attention, fused = self.attention, context.fused
        x = self.residual_attention(
            (x, x), lambda y: attention.compute_heads(y, None, context, cache), attention.output, fused=fused
        )
        hidden = partial(self.feed_forward.hidden, fused=fused)
        return self.residual_feed_forward(x, hidden, self.feed_forward.down, fused=fused)[0]


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the source, then a feed-forward network."""

    def __init__(self, stack: "StackConfig", recipe: Recipe, cross: Recipe):
        super().__init__()
        branches = 3 * stack.layers
        self.attention, self.cross = stack.attention(recipe, branches), stack.attention(cross, branches)
        self.feed_forward = stack.feed_forward(branches)
        self.residual_attention, self.residual_cross = stack.residual(), stack.residual()
        self.residual_feed_forward = stack.residual()

    def forward(
        self, x: States, source: KeysValues, context: Context, across: Context, cache: LayerCache | None = None
    ) -> States:
        """`source` holds the keys and values of the source, `across` which of them each token may attend to."""
        attention, cross, fused = self.attention, self.cross, context.fused
        first = 0 if cache is None else cache.first
        x = self.residual_attention(
            (x, x), lambda y: attention.compute_heads(y, None, context, cache), attention.output, fused=fused
        )
        x = self.residual_cross(x, lambda y: cross.cross_heads(y, source, across, first), cross.output, fused=fused)
        hidden = partial(self.feed_forward.hidden, fused=fused)
        return self.residual_feed_forward(x, hidden, self.feed_forward.down, fused=fused)[0]


def cross_keys_values(
    layers: Iterable[nn.Module], states: States, context: Context = Context()
) -> tuple[KeysValues, ...]:
    """The source's keys and values for every decoder layer, which are the same for every target token."""
    crosses = [layer.cross for layer in layers if isinstance(layer, DecoderLayer)]
    projections = [part for cross in crosses for part in (cross.key, cross.value)]
    parts = context.pad(*project_all(states, projections, fused=context.fused))
    heads = [split_heads(part, crosses[n // 2].groups) for n, part in enumerate(parts)]
    keys = [cross.norm_keys(k) for cross, k in zip(crosses, heads[::2], strict=True)]
    return tuple(zip(keys, heads[1::2], strict=True))


def encode_layers(layers: Iterable[nn.Module], norm: nn.Module, x: States, context: Context = Context()) -> States:
    for layer in layers:
        x = layer(x, context)
    return norm(x)


def decode_layers(
    layers: Iterable[nn.Module],
    norm: nn.Module,
    x: States,
    source: Sequence[KeysValues],
    context: Context,
    across: Context,
    cells: Sequence[LayerCache | None],
) -> States:
    for layer, keys_values, cell in zip(layers, source, cells, strict=True):
        x = layer(x, keys_values, context, across, cell)
    return norm(x)
