"""Transformer: the encoder–decoder by attention alone (Vaswani et al. 2017), and its layers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import (
    AttentionSites,
    CacheCell,
    Causal,
    Context,
    Full,
    KVCache,
    Padding,
    Recipe,
    Segments,
    Sinusoidal,
    SiteName,
)
from regard.attention.kv_cache import LayerCache
from regard.attention.multihead import pad, split_heads
from regard.data.batching import PackedBatch
from regard.layers.embedding import PositionalEmbedding, TiedEmbeddings
from regard.layers.packed_embedding import embed_packed
from regard.models.seq2seq import DecoderState, Memory, Seq2Seq
from regard.models.stack import LayerRecipes, StackConfig
from regard.ops.dropout import Dropout
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
        self,
        x: X,
        source: KeysValues,
        context: Context,
        across: Context,
        cache: LayerCache | None = None,
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
    parts = pad(context.tokens, *project_all(states, projections, fused=context.fused))
    heads = [split_heads(part, crosses[n // 2].groups) for n, part in enumerate(parts)]
    keys = [cross.norm_keys(k) for cross, k in zip(crosses, heads[::2], strict=True)]
    return tuple(zip(keys, heads[1::2], strict=True))


@dataclass(frozen=True, eq=False)
class EncodedSource(Memory):
    """Each decoder layer's keys and values of the source tokens."""

    layers: tuple[KeysValues, ...]
    lengths: Int[Tensor, " b"]


@dataclass(frozen=True, eq=False)
class KVCaches(DecoderState):
    """Each decoder layer's keys and values of the target tokens read so far."""

    layers: tuple[KVCache, ...]


class Transformer(Seq2Seq[EncodedSource, KVCaches]):
    """An encoder and a decoder, whose tokens attend to the tokens before them and to the encoded source.

    Args:
        embeddings: of both sides.
        stack: the configuration of the layers of both sides.
        decoder_layers: how many the decoder has, if not as many as the encoder.
        encoder, decoder: the recipes of the two self-attentions; the decoder's is causal in any case. Embedding
            positions are added to the embeddings.
        cross: the recipe of the cross-attention to the source. Each of the three is one recipe, or a list with one for
            every layer.

    Examples:
        >>> from regard.layers import TiedEmbeddings
        >>> model = Transformer(TiedEmbeddings(11, 13, 16), StackConfig(layers=2, model=16, heads=4, hidden=32))
        >>> model(torch.tensor([[5, 6, 2]]), torch.tensor([3]), torch.tensor([[1, 7]])).shape
        torch.Size([1, 2, 13])
    """

    attention_sites: ClassVar[AttentionSites] = {
        "encoder.*.attention": SiteName("encoder.*", "source", "source"),
        "decoder.*.attention": SiteName("decoder.*.self", "read", "read"),
        "decoder.*.cross": SiteName("decoder.*.cross", "written", "source"),
    }

    def __init__(
        self,
        embeddings: TiedEmbeddings,
        stack: StackConfig,
        *,
        decoder_layers: int | None = None,
        encoder: LayerRecipes = Recipe(position=Sinusoidal()),
        decoder: LayerRecipes = Recipe(position=Sinusoidal()),
        cross: LayerRecipes = Recipe(),
    ):
        super().__init__()
        below = stack if decoder_layers is None else replace(stack, layers=decoder_layers)
        encoders = stack.recipes(encoder, "encoder")
        decoders, crosses = below.recipes(decoder, "decoder"), below.recipes(cross, "cross")
        if crosses[0].embedding_positions:
            raise ValueError(
                f"{crosses[0].position} is added to embeddings, and cross-attention has none of its own; "
                "give it to the encoder's or the decoder's recipe"
            )
        self.embeddings, self.dropout = embeddings, Dropout(stack.dropout)
        # separate weights, should encoder and decoder be given one learned scheme
        self.source_positions, self.target_positions = (
            PositionalEmbedding(encoders[0].fresh()),
            PositionalEmbedding(decoders[0].fresh()),
        )
        self.encoder = nn.ModuleList(EncoderLayer(stack, recipe) for recipe in encoders)
        self.decoder = nn.ModuleList(
            DecoderLayer(below, make_causal(recipe), across) for recipe, across in zip(decoders, crosses, strict=True)
        )
        self.encoder_norm, self.decoder_norm = stack.final_norm(), stack.final_norm()

    def encode(self, source, lengths):
        x = self.dropout(self.source_positions(self.embeddings.embed_source(source), 0))
        return EncodedSource(self.encode_embedded(x, Context(Padding(lengths))), lengths)

    def encode_embedded(self, x: X, context: Context) -> tuple[KeysValues, ...]:
        for layer in self.encoder:
            x = layer(x, context)
        return cross_keys_values(self.decoder, self.encoder_norm(x), context)

    def start(self, memory):
        return KVCaches((KVCache(),) * len(memory.layers))

    def decode_hidden(self, tokens, state, memory):
        cells = [CacheCell(cache) for cache in state.layers]
        x = self.dropout(self.target_positions(self.embeddings.embed_target(tokens), state.layers[0].length))
        across = Context(Padding(memory.lengths))
        x = self.decode_embedded(x, memory.layers, Context(), across, cells)
        return x, KVCaches(tuple(cell.cache for cell in cells))

    def decode_embedded(
        self,
        x: X,
        source: tuple[KeysValues, ...],
        context: Context,
        across: Context,
        cells: Sequence[LayerCache | None],
    ) -> X:
        for layer, keys_values, cell in zip(self.decoder, source, cells, strict=True):
            x = layer(x, keys_values, context, across, cell)
        return self.embeddings.scale_output(self.decoder_norm(x))

    def packed_hidden_states(self, source: PackedBatch, target: PackedBatch) -> X:
        """As `hidden_states`, of every token of every target text of packed rows: the same layers, whose context says
        which tokens belong to one text, and where they stand in it."""
        places = self.source_positions, self.target_positions
        x, y = embed_packed(self.embeddings, places, self.dropout, source, target)
        own = Segments(target.segment_ids, target.position_ids)
        across = replace(own, key_ids=source.segment_ids, key_positions=source.position_ids)
        memory = self.encode_embedded(x, Context(segments=Segments(source.segment_ids, source.position_ids)))
        none = [None] * len(self.decoder)
        return self.decode_embedded(y, memory, Context(segments=own), Context(segments=across), none)

    def output(self):
        return self.embeddings.table("output"), self.embeddings.bias


def make_causal(recipe: Recipe) -> Recipe:
    """The same recipe, causal; plain causality stays plain, for the fused kernels know it."""
    plain = recipe.pattern in (Full(), Causal())
    return replace(recipe, pattern=Causal() if plain else recipe.pattern & Causal())
