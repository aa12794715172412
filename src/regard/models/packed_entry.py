"""Both sides' words, packed, in; the states that enter both stacks out. In two ways, one meaning.

States flow through the layers twice, the same numbers: what a sub-layer reads, and what goes around it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import embedding

from regard.attention.position import Beside
from regard.layers.entry_step import enter_both
from regard.layers.hashed_dropout import by_hash
from regard.layers.packed import Texts
from regard.layers.residual_step import Noise
from regard.models.transformer import Placed, Transformer

X = Float[Tensor, "n t model"]
Flow = tuple[X, X]  # what a sub-layer reads, and what goes around it


def once(x: X) -> Flow:
    return x, x


def twice(x: X) -> Flow:
    """As the layers leave them, or a compiler would make the first layer's kernels apart from the others'."""
    return x, x.view_as(x)


# --- by the model's own parts ---


def entered(model: Transformer, source: Texts, target: Texts) -> tuple[Flow, Flow]:
    read, written = plainly(model, source, target)
    return once(read), once(written)


def plainly(model: Transformer, source: Texts, target: Texts) -> tuple[X, X]:
    read, written = words_of(model, source, target)
    placed_ones = placed(model.source_places, read, source), placed(model.target_places, written, target)
    return model.dropout(placed_ones[0]), model.dropout(placed_ones[1])


def words_of(model: Transformer, source: Texts, target: Texts) -> tuple[X, X]:
    """Both sides' word vectors; of one table at once, for its gradient is as large as itself, be they few or many."""
    if not one_table(model):
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


# --- by kernels ---


def entered_by_kernels(model: Transformer, source: Texts, target: Texts) -> tuple[Flow, Flow]:
    """By one for both sides, if they share their table, and places that do not learn."""
    schemes = model.source_places.recipe.beside
    shared = one_table(model) and list(schemes) == list(model.target_places.recipe.beside)
    if not shared or model.source_places.learned:
        read, written = plainly(model, source, target)
        return twice(read), twice(written)
    table = model.words.table("source").weight
    places = places_of(schemes, max(source.words.shape[1], target.words.shape[1]), table)
    (seeds,), share = by_hash(1, 1, table.device), model.dropout.p if model.training else 0.0
    assert seeds is not None
    words, at = (source.words, target.words), (source.at, target.at)
    read, around, written, past = enter_both(table, words, places, at, Noise(share, seeds[0]))
    return (read, around), (written, past)


def places_of(schemes: Sequence[Beside], length: int, table: Tensor) -> Float[Tensor, "length width"]:
    """The sum of their vectors for so many places, as wide as sums are."""
    at, wide = torch.arange(length, device=table.device), torch.promote_types(table.dtype, torch.float32)
    none = torch.zeros((length, table.shape[1]), dtype=wide, device=table.device)
    return sum((scheme.table(at, table.shape[1]).to(wide) for scheme in schemes), none)


def one_table(model: Transformer) -> bool:
    return model.words.table("source") is model.words.table("target")
