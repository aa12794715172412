"""A model and its input in, its scores out, every attention on the way handed to `attending`: one walk a kind of model.

Each goes the way of the model's own forward pass, layer by layer, and the tests hold it to the same bits.
"""

from dataclasses import replace
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import Cache, Edges, Padding, Tree
from regard.layers.neighbours import Neighbours
from regard.layers.pooling import Attention, Pooling, Static, real
from regard.models.answering import Answering, LookingLayer
from regard.models.convolution import ChannelCNN, ConvolutionBlock
from regard.models.counting import OneHot
from regard.models.encoder import ByAttention, Classifier, Encoder, Tagger
from regard.models.graph import AmongNeighbours, GraphClassifier
from regard.models.transformer import Caches, DecoderLayer, EncoderLayer
from regard.models.vision import PatchEncoder, PatchLayer, VisionTransformer
from regard.see.attending import Attending, heads_of
from regard.see.origin import Origin
from regard.see.trace import Spot

X = Float[Tensor, "b t model"]
Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]


# --- layers ---


def encoder_layer(
    layer: EncoderLayer | PatchLayer,
    x: X,
    spot: Spot,
    attending: Attending,
    *,
    padding: Padding | None = None,
    tree: Tree | None = None,
) -> X:
    recipe = layer.attention.recipe_for(padding, tree)
    before = layer.around_attention.before(x)
    y = heads_of(layer.attention, before, spot, attending, pattern=padding, recipe=recipe)
    return layer.around_feed_forward(layer.around_attention.after(x, y), layer.feed_forward)


def reading_on(
    layer: EncoderLayer | DecoderLayer, x: X, cache: Cache, spot: Spot, attending: Attending
) -> tuple[X, Cache]:
    """A layer's look at the tokens before it, up to the feed-forward; all of them are remembered."""
    attention, seen = layer.attention, cache.seen
    before = layer.around_attention.before(x)
    q, k, v = attention.projected(before, None, None)
    origin = None if seen else Origin.of(attention, before, None)  # what came before is remembered as k and v alone
    if isinstance(cache.past, tuple):
        k, v = (torch.cat((old, new), 2) for old, new in zip(cache.past, (k, v), strict=True))
    y = attending.attend(spot, q, k, v, attention.recipe_for(None, None), at=seen, origin=origin)
    return layer.around_attention.after(x, attention.joined(y)), Cache((k, v), seen + x.shape[1])


def decoder_layers(
    layers: Any, x: X, state: Caches, memory: Any, attending: Attending, keys: str, read: X | None = None
) -> tuple[X, Caches]:
    """Every word looks at the words before it, then at the memory, then thinks by itself; `read` is what the memory
    was made from, where it is known."""
    caches, padding = [], Padding(memory.lengths)
    for n, layer in enumerate(layers):
        assert isinstance(layer, DecoderLayer)
        cache = state.layers[n]
        x, after = reading_on(layer, x, cache, Spot(f"decoder.{n}.self", "read", "read"), attending)
        caches.append(after)
        cross, around = layer.cross, layer.around_cross
        before = around.before(x)
        q = rearrange(cross.query(before), "b t (h d) -> b h t d", h=cross.heads)
        origin = None if read is None else Origin.of(cross, before, read)
        spot, recipe = Spot(f"decoder.{n}.cross", "written", keys), cross.recipe_for(padding, None)
        k, v = memory.layers[n]
        y = attending.attend(spot, q, k, v, recipe, at=cache.seen, origin=origin)
        x = layer.around_feed_forward(around.after(x, cross.joined(y)), layer.feed_forward)
    return x, Caches(tuple(caches))


def encoder(
    model: Encoder,
    tokens: Tokens,
    lengths: Lengths,
    attending: Attending,
    *,
    name: str = "encoder",
    axis: str = "text",
    heads: Tensor | None = None,
    beside: X | None = None,
) -> X:
    here, tree = real(tokens, lengths), model.tree(tokens, lengths, heads)
    x, context = model.embedded(tokens, lengths, tree, beside), model.context
    if isinstance(context, ByAttention):
        for n, layer in enumerate(context.layers):
            assert isinstance(layer, EncoderLayer)
            spot = Spot(f"{name}.{n}", axis, axis)
            x = encoder_layer(layer, x, spot, attending, padding=Padding(lengths), tree=tree)
        x = context.norm(x)
    else:
        x = context(x, lengths, tree)
    return x.masked_fill(~here[..., None], 0.0)


def patches(model: PatchEncoder, pixels: Tensor, attending: Attending, name: str) -> X:
    x = model.tokens(pixels)
    for n, layer in enumerate(model.layers):
        assert isinstance(layer, PatchLayer)
        x = encoder_layer(layer, x, Spot(f"{name}.{n}", "patches", "patches"), attending)
    return model.norm(x)


def pooled(
    pooling: Pooling, x: X, tokens: Tokens, lengths: Lengths, attending: Attending, axis: str, name: str = "pooling"
) -> Float[Tensor, "b model"]:
    spot = Spot(name, "pooled", axis)
    if isinstance(pooling, Attention):
        y = attending.attend(spot, *pooling.asked(x), pooling.recipe_for(lengths))
        return rearrange(y, "b 1 1 m -> b m")
    if isinstance(pooling, Static):
        weights = attending.gate(spot, pooling.weights(tokens, lengths).to(x.dtype), "known before any vector is")
        return einsum(weights, x, "b t, b t m -> b m")
    found = pooling.look(x, tokens, lengths)
    if attending.gate(spot, found.weights, "the share of the features that each word gave") is not found.weights:
        raise ValueError(f"{name} takes the largest of each feature, and no weight of it can be switched off")
    return found.vector


# --- one answer ---


def tagger(
    model: Tagger,
    attending: Attending,
    tokens: Tokens,
    lengths: Lengths,
    first: Int[Tensor, "b w"],
    heads: Tensor | None = None,
    letters: Tensor | None = None,
) -> Float[Tensor, "b w labels"]:
    x = encoder(model.encoder, tokens, lengths, attending, heads=heads, beside=model.spelt(letters))
    return model.tagged(x, first)


def classifier(
    model: Classifier | OneHot, attending: Attending, tokens: Tokens, lengths: Lengths
) -> Float[Tensor, "b labels"]:
    if isinstance(model, OneHot):
        weights = model.weigh.weights(tokens, lengths)
        weights = attending.gate(Spot("weigh", "pooled", "text"), weights, "known before any vector is")
        return model.scored(tokens, lengths, weights)
    x = encoder(model.encoder, tokens, lengths, attending)
    return model.output(pooled(model.pooling, x, tokens, lengths, attending, "text"))


def picture(model: VisionTransformer | ChannelCNN, attending: Attending, pixels: Tensor) -> Float[Tensor, "b classes"]:
    if isinstance(model, VisionTransformer):
        return model.output(model.encoder.pool.take(patches(model.encoder, pixels, attending, "blocks")))
    x = model.begun(pixels)
    for name, block in model.stages.items():
        assert isinstance(block, ConvolutionBlock)
        around, y = block.branch(x)
        if block.gate is not None:
            weights = block.gate.weigh(y)
            axis = "channels" if weights.shape[2:].numel() == 1 else "places"
            spot = Spot(f"stage.{name.replace('-', '.')}", "pooled", axis)
            y = y * attending.gate(spot, weights, "a gate: each weight by itself, between 0 and 1")
        x = around + y
    return model.scores(x)


def answering(
    model: Answering, attending: Attending, pixels: Tensor, tokens: Tokens, lengths: Lengths
) -> Float[Tensor, "b answers"]:
    x = encoder(model.question, tokens, lengths, attending, name="question")
    seen = patches(model.picture, pixels, attending, "picture")
    for n, layer in enumerate(model.layers):
        assert isinstance(layer, LookingLayer)
        before, cross = layer.around_cross.before(x), layer.cross
        spot, recipe, origin = (
            Spot(f"look.{n}.cross", "text", "patches"),
            cross.recipe_for(None, None),
            Origin.of(cross, before, seen),
        )
        y = attending.attend(spot, layer.asks(before), *layer.remember(seen, None), recipe, origin=origin)
        x = layer.around_cross.after(x, cross.joined(y))
        x = encoder_layer(layer.words, x, Spot(f"look.{n}.self", "text", "text"), attending, padding=Padding(lengths))
    return model.output(pooled(model.pooling, model.norm(x), tokens, lengths, attending, "text"))


def graph(
    model: GraphClassifier, attending: Attending, features: Float[Tensor, "n f"], neighbours: Neighbours
) -> Float[Tensor, "n labels"]:
    x = model.read(features, neighbours)
    for n, layer in enumerate(model.layers):
        if isinstance(layer, AmongNeighbours):
            q, k, v = layer.heads(x)
            given = layer.attention.recipe_for(None, None)
            y = attending.attend(
                Spot(f"blocks.{n}", "nodes", "nodes"),
                q,
                k,
                v,
                replace(given, pattern=Edges(neighbours.pairs)),
                run=lambda q, k, v, recipe, at, given=given: neighbours.attend(q, k, v, given),
            )
            x = layer.around_attention.after(x, layer.attention.joined(y)[0])
            x = layer.around_feed_forward(x, layer.feed_forward)
        else:
            x = layer(x, neighbours)
    return model.output(model.norm(x))
