"""Linear time and memory: when the weights are φ(q)·φ(k) / Σ, reorder (QKᵀ)V into Q(KᵀV).

Three forms of one sum (Katharopoulos et al. 2020): everybody sees everybody (one sum for all), causal in chunks (the
sum of the chunks before, plus the chunk itself in the open), and one token at a time with a state of fixed size.
"""

from dataclasses import dataclass

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.normaliser import Proportional
from regard.attention.pattern import Causal, Full
from regard.attention.places import Places
from regard.attention.recipe import Recipe
from regard.attention.score import InnerProduct

CHUNK = 128  # as many states are kept as there are chunks; within a chunk the scores are in the open


@dataclass(frozen=True, eq=False)
class State:
    """All that causal linear attention remembers of the past: Σ φ(k) vᵀ and Σ φ(k)."""

    kv: Float[Tensor, "b h d e"]
    k: Float[Tensor, "b h d"]


def objections(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
    causal = recipe.pattern == Causal()
    return [
        *([] if isinstance(recipe.score, InnerProduct) else [f"{recipe.score} is not an inner product"]),
        *(f"{scheme} touches single scores, which never exist here" for scheme in recipe.on_score),
        *([] if recipe.normaliser == Proportional() else [f"{recipe.normaliser} is not proportional"]),
        *([] if causal or recipe.pattern == Full() else [f"{recipe.pattern} has no running sum"]),
        *(
            ["a running sum needs queries at the end of consecutive keys"]
            if causal and (places.start is None or places.start + q.shape[2] != k.shape[2])
            else []
        ),
    ]


def doubts(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
    return []


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
    dtype, (q, k, v) = q.dtype, fold(recipe, q, k, v)
    if recipe.pattern == Full():
        return read(q, remember(k, v)).to(dtype)
    old = k.shape[2] - q.shape[2]
    return chunked(q, k[:, :, old:], v[:, :, old:], remember(k[:, :, :old], v[:, :, :old])).to(dtype)


def step(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, state: State | None) -> tuple[Tensor, State]:
    """New tokens, and all that went before as a state: the same answer as reading everything again."""
    dtype, (q, k, v) = q.dtype, fold(recipe, q, k, v)
    state = remember(k[:, :, :0], v[:, :, :0]) if state is None else state
    new = remember(k, v)
    return chunked(q, k, v, state).to(dtype), State(state.kv + new.kv, state.k + new.k)


def fold(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    k, v = (repeat(x, "b g j d -> b (g r) j d", r=q.shape[1] // x.shape[1]) for x in (k, v))
    wide = torch.promote_types(q.dtype, torch.float32)  # a sum over thousands of keys overflows half precision
    return recipe.score.fold_q(q).to(wide), recipe.score.fold_k(k).to(wide), v.to(wide)


def remember(k: Float[Tensor, "b h j d"], v: Float[Tensor, "b h j e"]) -> State:
    return State(einsum(k, v, "b h j d, b h j e -> b h d e"), k.sum(2))


def read(q: Float[Tensor, "b h i d"], state: State) -> Float[Tensor, "b h i e"]:
    return divide(einsum(q, state.kv, "b h i d, b h d e -> b h i e"), einsum(q, state.k, "b h i d, b h d -> b h i"))


def chunked(
    q: Float[Tensor, "b h t d"], k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"], past: State
) -> Float[Tensor, "b h t e"]:
    tokens = q.shape[2]
    size = min(CHUNK, max(tokens, 1))
    q, k, v = (rearrange(pad(x, (0, 0, 0, -tokens % size)), "b h (n s) d -> b h n s d", s=size) for x in (q, k, v))
    # the state before each chunk: everything older, summed
    kv = before(einsum(k, v, "b h n s d, b h n s e -> b h n d e"), past.kv)
    keys = before(k.sum(3), past.k)
    scores = einsum(q, k, "b h n i d, b h n j d -> b h n i j").tril()
    above = einsum(q, kv, "b h n i d, b h n d e -> b h n i e") + scores @ v
    below = einsum(q, keys, "b h n i d, b h n d -> b h n i") + scores.sum(-1)
    return rearrange(divide(above, below), "b h n s e -> b h (n s) e")[:, :, :tokens]


def before(parts: Tensor, past: Tensor) -> Tensor:
    return torch.cat((past[:, :, None], parts[:, :, :-1]), 2).cumsum(2)


def divide(above: Tensor, below: Tensor) -> Tensor:
    """A row that sees nothing sums to 0 and gives 0."""
    return above / below.masked_fill(below == 0, 1.0)[..., None]
