"""A Transformer and rows of packed texts in; what tells each next target word out: the training pass without padding.

It runs the model's own layers on the same weights, with fewer and larger products: one for the queries, keys and
values of a layer, and one for the keys and values of the source in all decoder layers. All its tensors have the
sizes that the packing chose, whatever the sentences are, so that each layer is compiled once, and the whole pass can be
recorded as one graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from regard.attention import Causal, Full, MultiHeadAttention, Recipe, ScaledDot, Softmax
from regard.layers.packed import Texts, attend_within, hidden
from regard.models.transformer import DecoderLayer, EncoderLayer, Placed, Transformer

X = Float[Tensor, "n t model"]


@dataclass(frozen=True, eq=False)
class Side:
    """Where a side's words stand, and what is added to the scores of those who look at each other."""

    at: Tensor
    added: Tensor


class Encode(Protocol):
    def __call__(self, layer: EncoderLayer, x: X, source: Side, /) -> X: ...


class Decode(Protocol):
    def __call__(self, layer: DecoderLayer, x: X, k: X, v: X, target: Side, source: Side, /) -> X: ...


def encode_layer(layer: EncoderLayer, x: X, source: Side, /) -> X:
    x = layer.around_attention(x, lambda y: to_itself(layer.attention, y, source))
    return layer.around_feed_forward(x, layer.feed_forward)


def decode_layer(layer: DecoderLayer, x: X, k: X, v: X, target: Side, source: Side, /) -> X:
    """`source` holds what is added to the scores of those who look there."""
    x = layer.around_attention(x, lambda y: to_itself(layer.attention, y, target))
    x = layer.around_cross(x, lambda y: attended(layer.cross, layer.cross.query(y), k, v, target, source))
    return layer.around_feed_forward(x, layer.feed_forward)


@dataclass(frozen=True)
class Layers:
    """How a layer of each stack is run."""

    encode: Encode = encode_layer
    decode: Decode = decode_layer

    @staticmethod
    def compiled() -> "Layers":
        """By kernels made for it, one for all layers of a stack: few graphs, and soon made."""
        make: Callable = torch.compile(dynamic=False)
        return Layers(make(encode_layer), make(decode_layer))


def states(model: Transformer, source: Texts, target: Texts, layers: Layers = Layers()) -> X:
    """As `model.states`, of every word of every target text."""
    x = model.dropout(placed(model.source_places, model.words.source(source.words), source))
    dtype = x.dtype if not torch.is_autocast_enabled(x.device.type) else torch.get_autocast_dtype(x.device.type)
    itself, back, across = (
        hidden(source, source, dtype),
        hidden(target, target, dtype, causal=True),
        hidden(target, source, dtype),
    )
    for layer in model.encoder:
        x = layers.encode(layer, x, Side(source.at, itself))  # type: ignore[arg-type]
    known = remembered([layer.cross for layer in model.decoder], model.encoder_norm(x))  # type: ignore[misc]
    x = model.dropout(placed(model.target_places, model.words.target(target.words), target))
    for layer, (k, v) in zip(model.decoder, known, strict=True):
        x = layers.decode(layer, x, k, v, Side(target.at, back), Side(source.at, across))  # type: ignore[arg-type]
    return model.decoder_norm(x)


def placed(places: Placed, x: X, texts: Texts) -> X:
    """Each place's vector is made once, not once a word; no text is longer than its row."""
    at = torch.arange(x.shape[1], device=x.device)
    for scheme in places.recipe.beside:
        x = x + embedding(texts.at, scheme.table(at, x.shape[-1]).to(x.dtype))
    return x


def to_itself(attention: MultiHeadAttention, x: X, side: Side) -> X:
    q, k, v = joint((attention.query, attention.key, attention.value), x)
    return attended(attention, q, k, v, side, side)


def attended(attention: MultiHeadAttention, q: X, k: X, v: X, asking: Side, asked: Side) -> X:
    assert isinstance(attention.query, nn.Linear)  # or it objected
    head = attention.query.out_features // attention.heads
    for scheme in attention.recipe.inside:
        q, k = (
            rearrange(scheme.turn(rearrange(x, "n t (h d) -> n h t d", d=head), side.at), "n h t d -> n t (h d)")
            for x, side in ((q, asking), (k, asked))
        )
    dropout = attention.dropout if attention.training else 0.0
    return attention.output(attend_within(q, k, v, asked.added, head=head, dropout=dropout))


def remembered(cross: Sequence[MultiHeadAttention], memory: X) -> list[tuple[X, X]]:
    """The source's keys and values for every decoder layer, by one product."""
    parts = joint([part for attention in cross for part in (attention.key, attention.value)], memory)
    return list(zip(parts[::2], parts[1::2], strict=True))


def joint(projections: Sequence[nn.Module], x: X) -> Sequence[X]:
    """What each of them makes of x, by one product of all their weights."""
    parts = [part for part in projections if isinstance(part, nn.Linear)]
    assert len(parts) == len(projections)  # or it objected
    weight, bias = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
    return linear(x, weight, bias).split([part.out_features for part in parts], -1)


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
