"""A Transformer and rows of packed texts in; what tells each next target word out: the training pass without padding.

It runs the model's own layers on the same weights, with fewer and larger products: one for the queries, keys and
values of a layer, and one for the keys and values of the source in all decoder layers. All its tensors have the
sizes that the packing chose, whatever the sentences are, so that each layer is compiled once, and the whole pass can be
recorded as one graph.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import Causal, Full, MultiHeadAttention, Recipe, ScaledDot, Softmax
from regard.layers.packed import Texts
from regard.models.packed_layers import Layers, Product, Side, apart
from regard.models.transformer import Transformer

X = Float[Tensor, "n t model"]


def states(model: Transformer, source: Texts, target: Texts, layers: Layers = Layers()) -> X:
    """As `model.states`, of every word of every target text."""
    flow, written = layers.enter(model, source, target)
    x = flow[0]
    dtype = x.dtype if not torch.is_autocast_enabled(x.device.type) else torch.get_autocast_dtype(x.device.type)
    sights, many = layers.looking.sights, len(model.decoder)
    itself = sights(source, source, dtype, layers=len(model.encoder))
    back, across = sights(target, target, dtype, causal=True, layers=many), sights(target, source, dtype, layers=many)
    noise = layers.seeds(len(model.encoder), 2, x.device), layers.seeds(many, 3, x.device)
    for layer, seen, seeds in zip(model.encoder, itself, noise[0], strict=True):
        flow = layers.encode(layer, flow, Side(source.at, seen, seeds))  # type: ignore[arg-type]
    memory = model.encoder_norm(flow[0])
    known = remembered([layer.cross for layer in model.decoder], memory, layers.product)  # type: ignore[misc]
    flow = written
    for layer, (k, v), own, other, seeds in zip(model.decoder, known, back, across, noise[1], strict=True):
        flow = layers.decode(layer, flow, k, v, Side(target.at, own, seeds), Side(source.at, other))  # type: ignore[arg-type]
    return model.decoder_norm(flow[0])


def remembered(cross: Sequence[MultiHeadAttention], memory: X, by: Product) -> list[tuple[X, X]]:
    """The source's keys and values for every decoder layer, by one product."""
    projections = [part for attention in cross for part in (attention.key, attention.value)]
    parts = apart(projections, by(projections, memory))
    return list(zip(parts[::2], parts[1::2], strict=True))


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
