"""Nothing in; small fixed queries and keys out, on which recipes show how they differ."""

from dataclasses import fields, replace

import torch
from torch import Tensor

from regard.attention.attending import steps
from regard.attention.backends.reference import Steps
from regard.attention.position import Alibi
from regard.attention.recipe import Recipe
from regard.attention.relative import RelativeBias, RelativeVectors
from regard.attention.score import Additive, Bilinear, Dot

ENGLISH = ("the", "black", "cat", "ate", "the", "mouse")
FRENCH = {"le": "the", "chat": "cat", "noir": "black", "a": "ate", "mangé": "ate", "la": "the", "souris": "mouse"}


def smooth(tokens: int, *, query: int = 8, key: int | None = None) -> tuple[Tensor, Tensor]:
    """Each query looks for a place along a bent line; some keys speak louder than others.

    q_i · k_j = loud_j Σ_f a_f cos(π f (line_i - j / n)): waves that agree only where j / n is near the line.
    """
    key = query if key is None else key
    at = (torch.arange(tokens, dtype=torch.float64) + 0.5) / tokens
    line = at + 0.13 * torch.sin(2 * torch.pi * at)
    loud = 1 + 0.1 * torch.cos(2 * torch.pi * 3 * at)
    return 2.2 * waves(line, query), 2.2 * loud[:, None] * waves(at, key)


def waves(at: Tensor, width: int) -> Tensor:
    """Pairs of sines and cosines, each pair faster and fainter; of one length, whatever the width."""
    pair = torch.arange(width) // 2
    phase = torch.pi / 2 * (torch.arange(width) % 2)
    return torch.cos(torch.pi * (pair + 1) * at[:, None] - phase) * 0.9**pair


def seen_by(recipe: Recipe, tokens: int) -> Steps:
    """Every step of a recipe on the smooth example, as wide as its learned parts ask for."""
    query = key = 8
    if isinstance(recipe.score, Additive | Bilinear):
        query, key = recipe.score.query, recipe.score.key or recipe.score.query
    heads = 1
    for scheme in recipe.on_score:
        query = key = scheme.head if isinstance(scheme, RelativeVectors) else query
        heads = scheme.heads if isinstance(scheme, Alibi | RelativeBias) else heads
    like = next(recipe.learned().parameters(), torch.zeros(1))  # learned parts may live elsewhere
    q, k = (x.to(like).expand(1, heads, -1, -1) for x in smooth(tokens, query=query, key=key))
    with torch.no_grad():
        return steps(q, k, k, replace(recipe, pattern=recipe.pattern.to(like.device)))


def black_cat() -> tuple[Steps, tuple[str, ...], tuple[str, ...]]:
    """The lectures' translation: French words look for English ones by meaning, and among equals for the nearest."""
    meanings = sorted(set(ENGLISH))
    k = torch.stack([torch.tensor([float(word == meaning) for meaning in meanings]) for word in ENGLISH])
    q = torch.stack([5 * torch.tensor([float(word == meaning) for meaning in meanings]) for word in FRENCH.values()])
    q, k = (x.expand(1, 8, -1, -1) for x in (q, k))
    seen = steps(q, k, k, Recipe(score=Dot(), position=Alibi(8)))
    first = {field.name: getattr(seen, field.name)[:, :1] for field in fields(Steps) if field.name != "log_probability"}
    return Steps(**first), ENGLISH, tuple(FRENCH)  # the first of eight heads has the steepest slope
