"""One layer of a Transformer and rows of packed texts in; what the layer makes of them out. In three ways.

    plain         the layer's own parts, step by step
    fused         the same, with the hidden layer's activation inside its product
    by kernels    all that stands between two products is one kernel of ours, on the way there and on the way back

States flow through the layers twice, the same numbers: what a sub-layer reads, and what goes around it. So the kernels'
way back gets two gradients, and adds them as it reads them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.attention import MultiHeadAttention
from regard.layers.block import FeedForward, PreNorm, Residual
from regard.layers.hashed_dropout import Seeds, by_hash, by_torch, hashed_dropout
from regard.layers.linear_relu import fused, hidden
from regard.layers.linear_summed import summed_linear
from regard.layers.packed import Texts
from regard.layers.packed_looks import Dense, Looking, Sight
from regard.layers.residual_step import Noise, added, added_and_normed, normed
from regard.models.packed_entry import Flow, X, entered, entered_by_kernels, once
from regard.models.transformer import DecoderLayer, EncoderLayer, Transformer

Product = Callable[[Sequence[nn.Module], X], Tensor]  # of several projections with states, side by side


@dataclass(frozen=True, eq=False)
class Side:
    """Where a side's words stand, who of those who look there sees whom, and of what its layer's dropouts are made."""

    at: Tensor
    sight: Sight
    seeds: Seeds = None


class Encode(Protocol):
    def __call__(self, layer: EncoderLayer, flow: Flow, source: Side, /) -> Flow: ...


class Decode(Protocol):
    def __call__(self, layer: DecoderLayer, flow: Flow, k: X, v: X, target: Side, source: Side, /) -> Flow: ...


Feed = Callable[[FeedForward, X], X]


# --- by the layer's own parts ---


def plainly(feed_forward: FeedForward, x: X) -> X:
    return feed_forward(x)


def encode_layer(layer: EncoderLayer, flow: Flow, source: Side, /, *, feed: Feed = plainly) -> Flow:
    def look(y: X) -> X:
        return layer.attention.output(at_itself(layer.attention, y, source))

    x = around(layer.around_attention, flow[0], look, source.seeds, 0)
    x = around(layer.around_feed_forward, x, lambda y: feed(layer.feed_forward, y), source.seeds, 1)
    return once(x)


def decode_layer(
    layer: DecoderLayer, flow: Flow, k: X, v: X, target: Side, source: Side, /, *, feed: Feed = plainly
) -> Flow:
    """`source` holds who sees whom of those who look there."""
    seeds = target.seeds

    def look(y: X) -> X:
        return layer.attention.output(at_itself(layer.attention, y, target))

    def across(y: X) -> X:
        return layer.cross.output(attended(layer.cross, layer.cross.query(y), k, v, target, source))

    x = around(layer.around_attention, flow[0], look, seeds, 0)
    x = around(layer.around_cross, x, across, seeds, 1)
    x = around(layer.around_feed_forward, x, lambda y: feed(layer.feed_forward, y), seeds, 2)
    return once(x)


def around(residual: Residual, x: X, f: Callable[[X], X], seeds: Seeds, n: int) -> X:
    """As the residual path has it; with seeds, by noise of our own, the layer's n-th."""
    if seeds is None:
        return residual(x, f)
    return residual.added(x, hashed_dropout(f(residual.before(x)), share_of(residual), seeds[n]))


def share_of(residual: Residual) -> float:
    return residual.dropout.p if residual.training else 0.0


def encode_fused(layer: EncoderLayer, flow: Flow, source: Side, /) -> Flow:
    return encode_layer(layer, flow, source, feed=fused)


def decode_fused(layer: DecoderLayer, flow: Flow, k: X, v: X, target: Side, source: Side, /) -> Flow:
    return decode_layer(layer, flow, k, v, target, source, feed=fused)


# --- by kernels ---


def encode_by_kernels(layer: EncoderLayer, flow: Flow, source: Side, /) -> Flow:
    look = partial(at_itself, layer.attention, side=source, by=summed)
    flow = past(layer.around_attention, flow, look, layer.attention.output, source.seeds, 0)
    return fed(layer, flow, source.seeds, 1)


def decode_by_kernels(layer: DecoderLayer, flow: Flow, k: X, v: X, target: Side, source: Side, /) -> Flow:
    def across(y: X) -> X:
        return attended(layer.cross, summed([layer.cross.query], y), k, v, target, source)

    look = partial(at_itself, layer.attention, side=target, by=summed)
    flow = past(layer.around_attention, flow, look, layer.attention.output, target.seeds, 0)
    flow = past(layer.around_cross, flow, across, layer.cross.output, target.seeds, 1)
    return fed(layer, flow, target.seeds, 2)


def fed(layer: EncoderLayer | DecoderLayer, flow: Flow, seeds: Seeds, n: int) -> Flow:
    feed_forward = layer.feed_forward
    return past(layer.around_feed_forward, flow, partial(hidden, feed_forward), feed_forward.down, seeds, n)


def past(residual: Residual, flow: Flow, f: Callable[[X], X], last: nn.Module, seeds: Seeds, n: int) -> Flow:
    """The residual path past what f makes and its last layer projects."""
    assert isinstance(last, nn.Linear)
    assert seeds is not None
    read, passed = flow
    noise = Noise(share_of(residual), seeds[n])
    if isinstance(residual, PreNorm):
        return added(passed, linear(f(normed(read, residual.norm)), last.weight), last.bias, noise)
    return added_and_normed(passed, linear(f(read), last.weight), last.bias, residual.norm, noise)


# --- what all of them look with ---


def joint(projections: Sequence[nn.Module], x: X) -> Float[Tensor, "n t all"]:
    """What all of them make of x, side by side, by one product."""
    weights, biases = parts_of(projections)
    return linear(x, torch.cat(weights), torch.cat(biases))


def summed(projections: Sequence[nn.Module], x: X) -> Float[Tensor, "n t all"]:
    """The same, with sums of our own for the biases' gradients."""
    return summed_linear(x, *parts_of(projections))


def parts_of(projections: Sequence[nn.Module]) -> tuple[list[Tensor], list[Tensor]]:
    """Their weights, and their biases."""
    parts = linears(projections)
    return [part.weight for part in parts], [part.bias for part in parts]


def at_itself(attention: MultiHeadAttention, x: X, side: Side, by: Product = joint) -> X:
    parts = attention.query, attention.key, attention.value
    if attention.recipe.inside:
        q, k, v = apart(parts, by(parts, x))
        return attended(attention, q, k, v, side, side)
    heads, head, dropout = sizes(attention)
    return side.sight.attend_itself(by(parts, x), heads=heads, head=head, dropout=dropout)


def attended(attention: MultiHeadAttention, q: X, k: X, v: X, asking: Side, asked: Side) -> X:
    _, head, dropout = sizes(attention)
    for scheme in attention.recipe.inside:
        q, k = (
            rearrange(scheme.turn(rearrange(x, "n t (h d) -> n h t d", d=head), side.at), "n h t d -> n t (h d)")
            for x, side in ((q, asking), (k, asked))
        )
    return asked.sight.attend(q, k, v, head=head, dropout=dropout)


def sizes(attention: MultiHeadAttention) -> tuple[int, int, float]:
    """How many heads, how wide each is, and which share of their weights is dropped."""
    assert isinstance(attention.query, nn.Linear)  # or it objected
    dropout = attention.dropout if attention.training else 0.0
    return attention.heads, attention.query.out_features // attention.heads, dropout


def apart(projections: Sequence[nn.Module], made: Float[Tensor, "n t all"]) -> Sequence[X]:
    return made.split([part.out_features for part in linears(projections)], -1)


def linears(projections: Sequence[nn.Module]) -> list[nn.Linear]:
    parts = [part for part in projections if isinstance(part, nn.Linear)]
    assert len(parts) == len(projections)  # or it objected
    return parts


# --- the choice ---


@dataclass(frozen=True)
class Layers:
    """How a layer of each stack is run."""

    encode: Encode = encode_layer
    decode: Decode = decode_layer
    looking: Looking = Dense()
    seeds: Callable[[int, int, torch.device], list[Seeds]] = by_torch
    product: Product = joint  # by which all layers' keys and values of the source are made
    enter: Callable[[Transformer, Texts, Texts], tuple[Flow, Flow]] = entered

    @staticmethod
    def fused(looking: Looking = Dense()) -> "Layers":
        """With the hidden layer's activation inside its product."""
        return Layers(encode_fused, decode_fused, looking)

    @staticmethod
    def by_kernels(looking: Looking = Dense()) -> "Layers":
        """By as few kernels as there are, none of which a compiler has to make: the fastest way on a GPU."""
        return Layers(encode_by_kernels, decode_by_kernels, looking, by_hash, summed, entered_by_kernels)

    def compiled(self) -> "Layers":
        """By kernels made for it, one for all layers of a stack: few graphs, and soon made."""
        make: Callable = torch.compile(dynamic=False)
        return replace(self, encode=make(self.encode), decode=make(self.decode))
