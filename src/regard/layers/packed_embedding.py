"""Packed embedding: the tokens of both sides of packed pairs to vectors, of one table by one op."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.batching import PackedBatch
from regard.layers.embedding import PositionalEmbedding, TiedEmbeddings
from regard.ops import dispatch
from regard.ops.dropout import Dropout
from regard.ops.fused_dropout import DropoutNoise, draw_seed, embedding_dropout

X = Float[Tensor, "b t model"]


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
