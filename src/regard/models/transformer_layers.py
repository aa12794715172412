"""Transformer layers: those of encoders and decoders, and a stack of them with the norm behind it."""

from collections.abc import Iterable, Sequence
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import Context, Recipe
from regard.attention.kv_cache import LayerCache
from regard.attention.multihead import split_heads
from regard.models.stack import StackConfig
from regard.ops.linear import project_all

X = Float[Tensor, "b t model"]
# of the source sentences; b and t of a layer are 1 and n where padding is left out
KeysValues = tuple[Float[Tensor, "sentences g s d"], Float[Tensor, "sentences g s d"]]


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each with a residual connection."""

    def __init__(self, stack: StackConfig, recipe: Recipe):
        super().__init__()
        branches = 2 * stack.layers
        self.attention, self.feed_forward = stack.attention(recipe, branches), stack.feed_forward(branches)
        self.residual_attention, self.residual_feed_forward = stack.residual(), stack.residual()

    def forward(self, x: X, context: Context = Context(), cache: LayerCache | None = None) -> X:
        attention, fused = self.attention, context.fused
        x = self.residual_attention(
            (x, x), lambda y: attention.compute_heads(y, None, context, cache), attention.output, fused=fused
        )
        hidden = partial(self.feed_forward.hidden, fused=fused)
        return self.residual_feed_forward(x, hidden, self.feed_forward.down, fused=fused)[0]


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the source, then a feed-forward network."""

    def __init__(self, stack: StackConfig, recipe: Recipe, cross: Recipe):
        super().__init__()
        branches = 3 * stack.layers
        self.attention, self.cross = stack.attention(recipe, branches), stack.attention(cross, branches)
        self.feed_forward = stack.feed_forward(branches)
        self.residual_attention, self.residual_cross = stack.residual(), stack.residual()
        self.residual_feed_forward = stack.residual()

    def forward(
        self, x: X, source: KeysValues, context: Context, across: Context, cache: LayerCache | None = None
    ) -> X:
        """`source` holds the keys and values of the source, `across` which of them each token may attend to."""
        attention, cross, fused = self.attention, self.cross, context.fused
        first = 0 if cache is None else cache.first
        x = self.residual_attention(
            (x, x), lambda y: attention.compute_heads(y, None, context, cache), attention.output, fused=fused
        )
        x = self.residual_cross(x, lambda y: cross.cross_heads(y, source, across, first), cross.output, fused=fused)
        hidden = partial(self.feed_forward.hidden, fused=fused)
        return self.residual_feed_forward(x, hidden, self.feed_forward.down, fused=fused)[0]


def cross_keys_values(layers: Iterable[nn.Module], states: X, context: Context = Context()) -> tuple[KeysValues, ...]:
    """The source's keys and values for every decoder layer, which are the same for every target token."""
    crosses = [layer.cross for layer in layers if isinstance(layer, DecoderLayer)]
    projections = [part for cross in crosses for part in (cross.key, cross.value)]
    parts = context.pad(*project_all(states, projections, fused=context.fused))
    heads = [split_heads(part, crosses[n // 2].groups) for n, part in enumerate(parts)]
    keys = [cross.norm_keys(k) for cross, k in zip(crosses, heads[::2], strict=True)]
    return tuple(zip(keys, heads[1::2], strict=True))


def encode_layers(layers: Iterable[nn.Module], norm: nn.Module, x: X, context: Context = Context()) -> X:
    for layer in layers:
        x = layer(x, context)
    return norm(x)


def decode_layers(
    layers: Iterable[nn.Module],
    norm: nn.Module,
    x: X,
    source: Sequence[KeysValues],
    context: Context,
    across: Context,
    cells: Sequence[LayerCache | None],
) -> X:
    for layer, keys_values, cell in zip(layers, source, cells, strict=True):
        x = layer(x, keys_values, context, across, cell)
    return norm(x)
