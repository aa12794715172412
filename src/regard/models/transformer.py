"""Transformer: the encoder–decoder by attention alone (Vaswani et al. 2017), also on packed batches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
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
from regard.data.packing import PackedBatch
from regard.layers.embedding import PositionalEmbedding, TiedEmbeddings
from regard.layers.stack import LayerRecipes, StackConfig
from regard.layers.transformer_layers import (
    DecoderLayer,
    EncoderLayer,
    KeysValues,
    cross_keys_values,
    decode_layers,
    encode_layers,
)
from regard.models.seq2seq import DecoderState, Memory, Seq2Seq
from regard.ops import dispatch
from regard.ops.dropout import Dropout
from regard.ops.fused_layers import DropoutNoise, draw_seed, embedding_dropout

X = Float[Tensor, "b t model"]


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

    prepared: bool = False  # by `regard.decode.prepare`: for inference alone, its linear layers swapped
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
        return cross_keys_values(self.decoder, encode_layers(self.encoder, self.encoder_norm, x, context), context)

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
        x = decode_layers(self.decoder, self.decoder_norm, x, source, context, across, cells)
        return self.embeddings.scale_output(x)

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


def embed_packed(
    embeddings: TiedEmbeddings,
    places: tuple[PositionalEmbedding, PositionalEmbedding],
    dropout: Dropout,
    source: PackedBatch,
    target: PackedBatch,
) -> tuple[X, X]:
    """Both sides' embeddings with their positions; of one table by one op, for its gradient is as large as the table,
    be the tokens few or many."""
    sides, table = (source, target), embeddings.table("source")
    if table is not embeddings.table("target"):
        embedded = embeddings.embed_source(source.tokens), embeddings.embed_target(target.tokens)
    elif dispatch.use_fused(table.weight) and table.scaled and not places[0].learned and same_schemes(*places):
        positions = places[0].table(max(side.tokens.shape[1] for side in sides), table.weight)
        noise = DropoutNoise(dropout.p if dropout.training else 0.0, draw_seed(table.weight.device))
        tokens, at = (source.tokens, target.tokens), (source.position_ids, target.position_ids)
        x, _, y, _ = embedding_dropout(table.weight, tokens, positions, at, noise)
        return x, y
    else:
        counts = [side.tokens.numel() for side in sides]
        both = table.embed(torch.cat([side.tokens.flatten() for side in sides])[None])[0].split(counts)
        embedded = tuple(x.view(*side.tokens.shape, -1) for x, side in zip(both, sides, strict=True))
    x, y = (dropout(place(part, side.position_ids)) for place, part, side in zip(places, embedded, sides, strict=True))
    return x, y


def same_schemes(one: PositionalEmbedding, other: PositionalEmbedding) -> bool:
    return list(one.recipe.embedding_positions) == list(other.recipe.embedding_positions)
