"""A Transformer and rows of packed texts in; what tells each next target word out: the training pass without padding.

It runs the model's own layers on the same weights, with fewer and larger products: one for the queries, keys and
values of a layer, and one for the keys and values of the source in all decoder layers. All its tensors have the
sizes that the packing chose, whatever the sentences are, so that each layer is compiled once, and the whole pass can be
recorded as one graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from regard.attention import Causal, Full, MultiHeadAttention, Recipe, ScaledDot, Softmax
from regard.layers.block import FeedForward, Residual
from regard.layers.hashed_dropout import Seeds, by_torch, hashed_dropout
from regard.layers.linear_relu import fused
from regard.layers.packed import Texts
from regard.layers.packed_looks import Dense, Looking, Sight
from regard.models.transformer import DecoderLayer, EncoderLayer, Placed, Transformer

X = Float[Tensor, "n t model"]


@dataclass(frozen=True, eq=False)
class Side:
    """Where a side's words stand, who of those who look there sees whom, and of what its layer's dropouts are made."""

    at: Tensor
    sight: Sight
    seeds: Seeds = None


class Encode(Protocol):
    def __call__(self, layer: EncoderLayer, x: X, source: Side, /) -> X: ...


class Decode(Protocol):
    def __call__(self, layer: DecoderLayer, x: X, k: X, v: X, target: Side, source: Side, /) -> X: ...


Feed = Callable[[FeedForward, X], X]


def plainly(feed_forward: FeedForward, x: X) -> X:
    return feed_forward(x)


def encode_layer(layer: EncoderLayer, x: X, source: Side, /, *, feed: Feed = plainly) -> X:
    x = around(layer.around_attention, x, lambda y: to_itself(layer.attention, y, source), source.seeds, 0)
    return around(layer.around_feed_forward, x, lambda y: feed(layer.feed_forward, y), source.seeds, 1)


def decode_layer(layer: DecoderLayer, x: X, k: X, v: X, target: Side, source: Side, /, *, feed: Feed = plainly) -> X:
    """`source` holds who sees whom of those who look there."""
    seeds = target.seeds
    x = around(layer.around_attention, x, lambda y: to_itself(layer.attention, y, target), seeds, 0)
    across = partial(attended, layer.cross, k=k, v=v, asking=target, asked=source)
    x = around(layer.around_cross, x, lambda y: across(q=layer.cross.query(y)), seeds, 1)
    return around(layer.around_feed_forward, x, lambda y: feed(layer.feed_forward, y), seeds, 2)


def around(residual: Residual, x: X, f: Callable[[X], X], seeds: Seeds, n: int) -> X:
    """As the residual path has it; with seeds, by noise of our own, the layer's n-th."""
    if seeds is None:
        return residual(x, f)
    share = residual.dropout.p if residual.training else 0.0
    return residual.added(x, hashed_dropout(f(residual.before(x)), share, seeds[n]))


def encode_fused(layer: EncoderLayer, x: X, source: Side, /) -> X:
    return encode_layer(layer, x, source, feed=fused)


def decode_fused(layer: DecoderLayer, x: X, k: X, v: X, target: Side, source: Side, /) -> X:
    return decode_layer(layer, x, k, v, target, source, feed=fused)


@dataclass(frozen=True)
class Layers:
    """How a layer of each stack is run."""

    encode: Encode = encode_layer
    decode: Decode = decode_layer
    looking: Looking = Dense()
    seeds: Callable[[int, int, torch.device], list[Seeds]] = by_torch

    @staticmethod
    def fused(looking: Looking = Dense()) -> "Layers":
        """With the hidden layer's activation inside its product."""
        return Layers(encode_fused, decode_fused, looking)

    def compiled(self) -> "Layers":
        """By kernels made for it, one for all layers of a stack: few graphs, and soon made."""
        make: Callable = torch.compile(dynamic=False)
        return replace(self, encode=make(self.encode), decode=make(self.decode))


def states(model: Transformer, source: Texts, target: Texts, layers: Layers = Layers()) -> X:
    """As `model.states`, of every word of every target text."""
    read, written = words_of(model, source, target)
    x = model.dropout(placed(model.source_places, read, source))
    dtype = x.dtype if not torch.is_autocast_enabled(x.device.type) else torch.get_autocast_dtype(x.device.type)
    sights, many = layers.looking.sights, len(model.decoder)
    itself = sights(source, source, dtype, layers=len(model.encoder))
    back, across = sights(target, target, dtype, causal=True, layers=many), sights(target, source, dtype, layers=many)
    noise = layers.seeds(len(model.encoder), 2, x.device), layers.seeds(many, 3, x.device)
    for layer, seen, seeds in zip(model.encoder, itself, noise[0], strict=True):
        x = layers.encode(layer, x, Side(source.at, seen, seeds))  # type: ignore[arg-type]
    known = remembered([layer.cross for layer in model.decoder], model.encoder_norm(x))  # type: ignore[misc]
    x = model.dropout(placed(model.target_places, written, target))
    for layer, (k, v), own, other, seeds in zip(model.decoder, known, back, across, noise[1], strict=True):
        x = layers.decode(layer, x, k, v, Side(target.at, own, seeds), Side(source.at, other))  # type: ignore[arg-type]
    return model.decoder_norm(x)


def words_of(model: Transformer, source: Texts, target: Texts) -> tuple[X, X]:
    """Both sides' word vectors; of one table at once, for its gradient is as large as itself, be they few or many."""
    if model.words.table("source") is not model.words.table("target"):
        return model.words.source(source.words), model.words.target(target.words)
    counts = source.words.numel(), target.words.numel()
    both = model.words.source(torch.cat((source.words.flatten(), target.words.flatten()))[None])
    read, written = both[0].split(counts)
    return read.view(*source.words.shape, -1), written.view(*target.words.shape, -1)


def placed(places: Placed, x: X, texts: Texts) -> X:
    """Each place's vector is made once, not once a word; no text is longer than its row."""
    at = torch.arange(x.shape[1], device=x.device)
    for scheme in places.recipe.beside:
        x = x + embedding(texts.at, scheme.table(at, x.shape[-1]).to(x.dtype))
    return x


def to_itself(attention: MultiHeadAttention, x: X, side: Side) -> X:
    parts = attention.query, attention.key, attention.value
    if attention.recipe.inside:
        q, k, v = apart(parts, joint(parts, x))
        return attended(attention, q, k, v, side, side)
    heads, head, dropout = sizes(attention)
    return attention.output(side.sight.attend_itself(joint(parts, x), heads=heads, head=head, dropout=dropout))


def attended(attention: MultiHeadAttention, q: X, k: X, v: X, asking: Side, asked: Side) -> X:
    _, head, dropout = sizes(attention)
    for scheme in attention.recipe.inside:
        q, k = (
            rearrange(scheme.turn(rearrange(x, "n t (h d) -> n h t d", d=head), side.at), "n h t d -> n t (h d)")
            for x, side in ((q, asking), (k, asked))
        )
    return attention.output(asked.sight.attend(q, k, v, head=head, dropout=dropout))


def sizes(attention: MultiHeadAttention) -> tuple[int, int, float]:
    """How many heads, how wide each is, and which share of their weights is dropped."""
    assert isinstance(attention.query, nn.Linear)  # or it objected
    dropout = attention.dropout if attention.training else 0.0
    return attention.heads, attention.query.out_features // attention.heads, dropout


def remembered(cross: Sequence[MultiHeadAttention], memory: X) -> list[tuple[X, X]]:
    """The source's keys and values for every decoder layer, by one product."""
    projections = [part for attention in cross for part in (attention.key, attention.value)]
    parts = apart(projections, joint(projections, memory))
    return list(zip(parts[::2], parts[1::2], strict=True))


def joint(projections: Sequence[nn.Module], x: X) -> Float[Tensor, "n t all"]:
    """What all of them make of x, side by side, by one product."""
    parts = linears(projections)
    weight, bias = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
    return linear(x, weight, bias)


def apart(projections: Sequence[nn.Module], made: Float[Tensor, "n t all"]) -> Sequence[X]:
    return made.split([part.out_features for part in linears(projections)], -1)


def linears(projections: Sequence[nn.Module]) -> list[nn.Linear]:
    parts = [part for part in projections if isinstance(part, nn.Linear)]
    assert len(parts) == len(projections)  # or it objected
    return parts


# --- whom it can run ---


def objections(model: nn.Module) -> list[str]:
    """Why a model cannot be trained on packed texts; empty if it can."""
    if not isinstance(model, Transformer):
        return [f"{type(model).__name__} reads word after word, not all texts at once"]
    said = [
        f"{place}: {why}"
        for place, attention in attentions(model)
        for why in differences(attention, Causal() if place == "decoder" else Full())
    ]
    return list(dict.fromkeys(said))


def attentions(model: Transformer) -> list[tuple[str, MultiHeadAttention]]:
    return [
        *(("encoder", layer.attention) for layer in model.encoder),  # type: ignore[list-item]
        *(("decoder", layer.attention) for layer in model.decoder),  # type: ignore[list-item]
        *(("cross", layer.cross) for layer in model.decoder),  # type: ignore[list-item]
    ]


def differences(attention: MultiHeadAttention, pattern: Causal | Full) -> list[str]:
    recipe: Recipe = attention.recipe
    parts = (attention.query, attention.key, attention.value)
    return [
        *([] if recipe.score == ScaledDot() else [f"{recipe.score} is not the scaled dot product"]),
        *([] if recipe.normaliser == Softmax() else [f"{recipe.normaliser} is not softmax"]),
        *([] if recipe.pattern == pattern else [f"{recipe.pattern} is not {pattern}"]),
        *(f"{scheme} adds something for each pair of words" for scheme in recipe.on_score),
        *([] if attention.compress is None else [f"{attention.compress} mixes all keys"]),
        *([] if all(isinstance(part, nn.Linear) and part.bias is not None for part in parts) else ["it must project"]),
    ]
