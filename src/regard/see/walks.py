"""Forward passes with hooks: each repeats a model's own, layer by layer, and hands every attention to a runner.

The tests hold each to the bits of the model's own forward pass.
"""

from dataclasses import replace
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import DependencyTree, Edges, KVCache, Padding
from regard.layers.graph_attention import Neighbours
from regard.layers.pooling import AttentionPooling, Pooling, StaticPooling, token_mask
from regard.models.convolution import ChannelCNN, ConvolutionBlock
from regard.models.encoder import Encoder, SequenceClassifier, TokenClassifier, TransformerContext
from regard.models.graph import GraphAttentionLayer, GraphNetwork
from regard.models.tfidf import BagOfWordsClassifier
from regard.models.transformer import DecoderLayer, EncoderLayer, KVCaches
from regard.models.vision import PatchEncoder, VisionTransformer
from regard.models.vqa import CrossAttentionLayer, VQAModel
from regard.see.trace.projections import Projections
from regard.see.trace.recorder import AttentionRunner, run_heads
from regard.see.trace.sites import SiteName

X = Float[Tensor, "b t model"]
Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]


# --- layers ---


def encoder_layer(
    layer: EncoderLayer,
    x: X,
    spot: SiteName,
    attending: AttentionRunner,
    *,
    padding: Padding | None = None,
    tree: DependencyTree | None = None,
) -> X:
    recipe = layer.attention.effective_recipe(padding, tree)
    before = layer.residual_attention.sublayer_input(x)
    y = run_heads(layer.attention, before, spot, attending, pattern=padding, recipe=recipe)
    return feed(layer, layer.residual_attention.add_residual(x, y))


def reading_on(
    layer: EncoderLayer | DecoderLayer, x: X, cache: KVCache, spot: SiteName, attending: AttentionRunner
) -> tuple[X, KVCache]:
    """A layer's causal self-attention, up to the feed-forward; the KV cache keeps all keys."""
    attention, seen = layer.attention, cache.length
    before = layer.residual_attention.sublayer_input(x)
    q, k, v = attention.project(before, None, None)
    # of cached tokens only k and v are known
    origin = None if seen else Projections.of(attention, before, None)
    if isinstance(cache.past, tuple):
        k, v = (torch.cat((old, new), 2) for old, new in zip(cache.past, (k, v), strict=True))
    y = attending.attend(spot, q, k, v, attention.effective_recipe(None, None), at=seen, origin=origin)
    return layer.residual_attention.add_residual(x, attention.merge_heads(y)), KVCache((k, v), seen + x.shape[1])


def feed(layer: Any, x: X) -> X:
    return layer.residual_feed_forward((x, x), layer.feed_forward.hidden, layer.feed_forward.down)[0]


def decoder_layers(
    layers: Any, x: X, state: KVCaches, memory: Any, attending: AttentionRunner, keys: str, read: X | None = None
) -> tuple[X, KVCaches]:
    """Self-attention, cross-attention to the memory, feed-forward; `read` is what the memory was made from, where it is
    known."""
    caches, padding = [], Padding(memory.lengths)
    for n, layer in enumerate(layers):
        assert isinstance(layer, DecoderLayer)
        cache = state.layers[n]
        x, after = reading_on(layer, x, cache, SiteName(f"decoder.{n}.self", "read", "read"), attending)
        caches.append(after)
        cross, around = layer.cross, layer.residual_cross
        before = around.sublayer_input(x)
        q = rearrange(cross.query(before), "b t (h d) -> b h t d", h=cross.heads)
        origin = None if read is None else Projections.of(cross, before, read)
        spot, recipe = SiteName(f"decoder.{n}.cross", "written", keys), cross.effective_recipe(padding, None)
        k, v = memory.layers[n]
        y = attending.attend(spot, q, k, v, recipe, at=cache.length, origin=origin)
        x = feed(layer, around.add_residual(x, cross.merge_heads(y)))
    return x, KVCaches(tuple(caches))


def encoder(
    model: Encoder,
    tokens: Tokens,
    lengths: Lengths,
    attending: AttentionRunner,
    *,
    name: str = "encoder",
    axis: str = "text",
    heads: Tensor | None = None,
    beside: X | None = None,
) -> X:
    here, tree = token_mask(tokens, lengths), model.build_tree(tokens, lengths, heads)
    x, context = model.embed(tokens, lengths, tree, beside), model.context
    if isinstance(context, TransformerContext):
        for n, layer in enumerate(context.layers):
            assert isinstance(layer, EncoderLayer)
            spot = SiteName(f"{name}.{n}", axis, axis)
            x = encoder_layer(layer, x, spot, attending, padding=Padding(lengths), tree=tree)
        x = context.norm(x)
    else:
        x = context(x, lengths, tree)
    return x.masked_fill(~here[..., None], 0.0)


def patches(model: PatchEncoder, pixels: Tensor, attending: AttentionRunner, name: str) -> X:
    x = model.embed(pixels)
    for n, layer in enumerate(model.layers):
        assert isinstance(layer, EncoderLayer)
        x = encoder_layer(layer, x, SiteName(f"{name}.{n}", "patches", "patches"), attending)
    return model.norm(x)


def pooled(
    pooling: Pooling,
    x: X,
    tokens: Tokens,
    lengths: Lengths,
    attending: AttentionRunner,
    axis: str,
    name: str = "pooling",
) -> Float[Tensor, "b model"]:
    spot = SiteName(name, "pooled", axis)
    if isinstance(pooling, AttentionPooling):
        y = attending.attend(spot, *pooling.query_keys_values(x), pooling.effective_recipe(lengths))
        return rearrange(y, "b 1 1 m -> b m")
    if isinstance(pooling, StaticPooling):
        weights = attending.gate(spot, pooling.weights(tokens, lengths).to(x.dtype), "known before any vector is")
        return einsum(weights, x, "b t, b t m -> b m")
    found = pooling.look(x, tokens, lengths)
    if attending.gate(spot, found.weights, "the share of the features that each word gave") is not found.weights:
        raise ValueError(f"{name} takes the largest of each feature, and no weight of it can be switched off")
    return found.vector


# --- one answer ---


def tagger(
    model: TokenClassifier,
    attending: AttentionRunner,
    tokens: Tokens,
    lengths: Lengths,
    first: Int[Tensor, "b w"],
    heads: Tensor | None = None,
    letters: Tensor | None = None,
) -> Float[Tensor, "b w labels"]:
    x = encoder(model.encoder, tokens, lengths, attending, heads=heads, beside=model.encode_characters(letters))
    return model.classify_tokens(x, first)


def classifier(
    model: SequenceClassifier | BagOfWordsClassifier, attending: AttentionRunner, tokens: Tokens, lengths: Lengths
) -> Float[Tensor, "b labels"]:
    if isinstance(model, BagOfWordsClassifier):
        weights = model.weigh.weights(tokens, lengths)
        weights = attending.gate(SiteName("weigh", "pooled", "text"), weights, "known before any vector is")
        return model.score(tokens, lengths, weights)
    x = encoder(model.encoder, tokens, lengths, attending)
    return model.output(pooled(model.pooling, x, tokens, lengths, attending, "text"))


def picture(
    model: VisionTransformer | ChannelCNN, attending: AttentionRunner, pixels: Tensor
) -> Float[Tensor, "b classes"]:
    if isinstance(model, VisionTransformer):
        return model.output(model.encoder.pool.pool(patches(model.encoder, pixels, attending, "blocks")))
    x = model.embed(pixels)
    for name, block in model.stages.items():
        assert isinstance(block, ConvolutionBlock)
        around, y = block.branch(x)
        if block.gate is not None:
            weights = block.gate.weights(y)
            axis = "channels" if weights.shape[2:].numel() == 1 else "places"
            spot = SiteName(f"stage.{name.replace('-', '.')}", "pooled", axis)
            y = y * attending.gate(spot, weights, "a gate: each weight by itself, between 0 and 1")
        x = around + y
    return model.classify(x)


def answering(
    model: VQAModel, attending: AttentionRunner, pixels: Tensor, tokens: Tokens, lengths: Lengths
) -> Float[Tensor, "b answers"]:
    x = encoder(model.question_encoder, tokens, lengths, attending, name="question")
    seen = patches(model.image_encoder, pixels, attending, "picture")
    for n, layer in enumerate(model.layers):
        assert isinstance(layer, CrossAttentionLayer)
        before, cross = layer.residual_cross.sublayer_input(x), layer.cross
        spot, recipe, origin = (
            SiteName(f"look.{n}.cross", "text", "patches"),
            cross.effective_recipe(None, None),
            Projections.of(cross, before, seen),
        )
        y = attending.attend(
            spot, layer.cross_queries(before), *layer.cross_keys_values(seen, None), recipe, origin=origin
        )
        x = layer.residual_cross.add_residual(x, cross.merge_heads(y))
        x = encoder_layer(
            layer.encoder_layer, x, SiteName(f"look.{n}.self", "text", "text"), attending, padding=Padding(lengths)
        )
    return model.output(pooled(model.pooling, model.norm(x), tokens, lengths, attending, "text"))


def graph(
    model: GraphNetwork, attending: AttentionRunner, features: Float[Tensor, "n f"], neighbours: Neighbours
) -> Float[Tensor, "n labels"]:
    x = model.embed(features, neighbours)
    for n, layer in enumerate(model.layers):
        if isinstance(layer, GraphAttentionLayer):
            q, k, v = layer.project_heads(x)
            given = layer.attention.effective_recipe(None, None)
            y = attending.attend(
                SiteName(f"blocks.{n}", "nodes", "nodes"),
                q,
                k,
                v,
                replace(given, pattern=Edges(neighbours.pairs)),
                run=lambda q, k, v, recipe, at, given=given: neighbours.attend(q, k, v, given),
            )
            x = layer.residual_attention.add_residual(x, layer.attention.merge_heads(y)[0])
            x = feed(layer, x)
        else:
            x = layer(x, neighbours)
    return model.output(model.norm(x))
