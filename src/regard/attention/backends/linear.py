"""Linear attention: when the weights are φ(q)·φ(k) / Σ, reorder (QKᵀ)V into Q(KᵀV); linear time and memory.

Three forms of one sum (Katharopoulos et al. 2020): everybody sees everybody (one sum for all), causal in chunks (the
sum of the chunks before, plus the chunk itself materialised), and one token at a time with a state of fixed size. On a
GPU the causal form runs by the Triton kernels of `kernels/state.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.batch_patterns import Padding
from regard.attention.block_map import planning_objections
from regard.attention.gate import state_objections
from regard.attention.normaliser import Proportional
from regard.attention.pattern import And, Causal, Full, Pattern, Positions
from regard.attention.recipe import Recipe
from regard.attention.score import Feature, InnerProduct

PIECE = 8192
WIDEST = 128
KERNEL_DTYPES = (torch.bfloat16, torch.float32)
CHUNK = 128  # as many states are kept as there are chunks; within a chunk the scores are materialised


@dataclass(frozen=True, eq=False)
class LinearState:
    """All that causal linear attention remembers of the past: Σ φ(k) vᵀ, and Σ φ(k) where the weights are divided by
    their sum; with a gate, sums of what has decayed since."""

    kv: Float[Tensor, "b h d e"]
    k: Float[Tensor, "b h d"] | None


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    causal = split_padding(recipe.pattern)[0] == Causal()
    return [
        *running_sum_objections(recipe),
        *(
            ["a running sum needs queries at the end of consecutive keys"]
            if causal and (positions.start is None or positions.start + q.shape[2] != k.shape[2])
            else []
        ),
    ]


def running_sum_objections(recipe: Recipe) -> list[str]:
    """Why a state of fixed size cannot represent the keys, at whatever positions; empty if it can."""
    order, _ = split_padding(recipe.pattern)
    return [
        *([] if isinstance(recipe.score, InnerProduct) else [f"{recipe.score} is not an inner product"]),
        *(f"{scheme} adds to single scores, which never exist here" for scheme in recipe.score_positions),
        *state_objections(recipe.gate),
        *([] if recipe.normaliser == Proportional() else [f"{recipe.normaliser} is not proportional"]),
        *([] if order in (Causal(), Full()) else [f"{recipe.pattern} has no running sum"]),
    ]


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    return []


def split_padding(pattern: Pattern) -> tuple[Pattern, tuple[Padding, ...]]:
    """The pattern without its padding, and the padding, which only leaves keys out of every sum."""
    match pattern:
        case Padding():
            return Full(), (pattern,)
        case And(left, right):
            (one, ends), (other, more) = split_padding(left), split_padding(right)
            return other if one == Full() else one if other == Full() else And(one, other), ends + more
    return pattern, ()


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    k, v = repeat_heads(q, k, v)
    order, ends = split_padding(recipe.pattern)
    hidden = [is_padding(end, positions.k) for end in ends]
    if order == Full():
        state = sum_state(recipe, k, v, hidden)
        return torch.cat([read_state(map_queries(recipe, part), state) for part in q.split(PIECE, 2)], 2).to(q.dtype)
    old = k.shape[2] - q.shape[2]
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    if not old and not triton_objections(q, v, recipe.score):
        return run_kernels(recipe, q, k, v, hidden)
    past = sum_state(recipe, k[:, :, :old], v[:, :, :old], [mask[:, :, :old] for mask in hidden])
    return causal(recipe, q, k[:, :, old:], v[:, :, old:], past, [mask[:, :, old:] for mask in hidden])[0]


def run_kernels(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, hidden: Sequence[Tensor]) -> Tensor:
    from regard.attention.kernels.state import FEATURE_MAPS, chunked_state  # only here is Triton needed

    if isinstance(recipe.score, Feature) and recipe.score.map in FEATURE_MAPS and not hidden:
        return chunked_state(q, k, v, normalised=True, feature=recipe.score.map)
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    keys = hide_keys(recipe.score.fold_k(k).to(v.dtype), hidden)
    return chunked_state(recipe.score.fold_q(q).to(v.dtype), keys, v, normalised=True)


def is_padding(end: Padding, positions: Tensor) -> Bool[Tensor, "#b 1 j 1"]:
    """Which of the keys at these positions, (j) or (b, j), are padding."""
    return rearrange(positions >= end.lengths.to(positions.device)[:, None], "b j -> b 1 j 1")


def step(
    recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, *, positions: Tensor | None = None
) -> tuple[Tensor, LinearState]:
    """New tokens, and all that went before as a state: the same answer as reading everything again.

    `positions` are those of the new keys; only Padding asks for them.
    """
    order, ends = split_padding(recipe.pattern)
    if order != Causal():
        raise ValueError(f"{recipe.pattern} is not causal, so one token after another is not the same; use attend")
    if ends and positions is None:
        raise ValueError(f"{recipe.pattern} hides padding; say at which positions these keys are: positions=...")
    k, v = repeat_heads(q, k, v)
    hidden = [] if positions is None else [is_padding(end, positions) for end in ends]
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    if not prompt_objections(q, k, v, score=recipe.score):
        queries, keys = recipe.score.fold_q(q), hide_keys(recipe.score.fold_k(k), hidden)
        return read_prompt(queries, keys, v, None, None, state, normalised=True)
    past = sum_state(recipe, k[:, :, :0], v[:, :, :0]) if state is None else state
    return causal(recipe, q, k, v, past, hidden)


def prompt_objections(
    q: Tensor, k: Tensor, v: Tensor, *gates: Tensor | None, score: InnerProduct | None = None
) -> list[str]:
    """Why the kernels do not read new tokens and give the state after them; empty if they do."""
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, *gates))
    return [
        *(["a state that the kernels give has no gradient"] if learns else []),
        *(["one token is no chunk"] if q.shape[2] == 1 else []),
        *triton_objections(q, v, score),
    ]


def read_prompt(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    past: LinearState | None,
    *,
    normalised: bool,
) -> tuple[Tensor, LinearState]:
    """The output of new tokens by the kernels, and the state after them."""
    from regard.attention.kernels.state import extend_state  # only here is Triton needed

    before, gates = None if past is None else (past.kv, past.k), (log_decay, beta)
    log_decay, beta = (None if x is None else x.float() for x in gates)
    out, kv, z = extend_state(q.to(v.dtype), k.to(v.dtype), v, log_decay, beta, before, normalised=normalised)
    return out.to(q.dtype), LinearState(kv, z)


def repeat_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A key and value head for every query head."""
    if q.shape[1] == k.shape[1]:
        return k, v
    k, v = (repeat(x, "b g j d -> b (g r) j d", r=q.shape[1] // x.shape[1]) for x in (k, v))
    return k, v


def to_accumulation(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))  # a sum over thousands of keys overflows half precision


def map_queries(recipe: Recipe, q: Tensor) -> Tensor:
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    return to_accumulation(recipe.score.fold_q(q))


def map_keys(recipe: Recipe, k: Tensor, hidden: Sequence[Tensor] = ()) -> Tensor:
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    return hide_keys(to_accumulation(recipe.score.fold_k(k)), hidden)


def hide_keys(keys: Tensor, hidden: Sequence[Tensor]) -> Tensor:
    """φ(k), and 0 for keys that nobody sees."""
    for mask in hidden:
        keys = keys.masked_fill(mask, 0.0)
    return keys


def triton_objections(q: Tensor, v: Tensor, score: InnerProduct | None = None) -> list[str]:
    """Why Triton's kernels do not run with q, as the score folds it, and these values; empty if they do."""
    if q.device.type != "cuda":
        return [f"its kernels need a GPU, and q is on {q.device}"]
    widest = max((q if score is None else score.fold_q(q[:0])).shape[3], v.shape[3])
    return [
        *planning_objections(),  # a traced graph holds torch's operations alone
        *([] if find_spec("triton") else ["its kernels need Triton, which is not installed: pip install triton"]),
        *([] if q.numel() and v.numel() else ["there is nothing to do"]),
        *([f"a program cannot hold heads of width {widest}, only {WIDEST}"] if widest > WIDEST else []),
        # float16 ends at 65,504, which sums of thousands of keys pass
        *([] if q.dtype in KERNEL_DTYPES else [f"its kernels compute in bfloat16 or float32, not in {q.dtype}"]),
    ]


def sum_state(recipe: Recipe, k: Tensor, v: Tensor, hidden: Sequence[Tensor] = ()) -> LinearState:
    """The state after these keys and values, a piece at a time."""
    pieces = zip(*(x.split(PIECE, 2) for x in (k, v, *hidden)), strict=True)
    states = [
        key_value_state(map_keys(recipe, part, masks), to_accumulation(values)) for part, values, *masks in pieces
    ]
    return LinearState(sum(state.kv for state in states), sum(state.k for state in states))  # type: ignore[arg-type]


def key_value_state(k: Float[Tensor, "b h j d"], v: Float[Tensor, "b h j e"]) -> LinearState:
    return LinearState(einsum(k, v, "b h j d, b h j e -> b h d e"), k.sum(2))


def read_state(q: Float[Tensor, "b h i d"], state: LinearState) -> Float[Tensor, "b h i e"]:
    assert state.k is not None  # the weights are divided by their sum
    return divide(einsum(q, state.kv, "b h i d, b h d e -> b h i e"), einsum(q, state.k, "b h i d, b h d -> b h i"))


def causal(
    recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, past: LinearState, hidden: Sequence[Tensor] = ()
) -> tuple[Tensor, LinearState]:
    """A long sequence in pieces that fit the caches, each starting from the state the one before left."""
    parts = []
    for part, keys, values, *masks in zip(*(x.split(PIECE, 2) for x in (q, k, v, *hidden)), strict=True):
        out, past = chunked(map_queries(recipe, part), map_keys(recipe, keys, masks), to_accumulation(values), past)
        parts.append(out.to(q.dtype))
    return torch.cat(parts, 2), past


def chunked(
    q: Float[Tensor, "b h t d"], k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"], past: LinearState
) -> tuple[Float[Tensor, "b h t e"], LinearState]:
    assert past.k is not None  # the weights are divided by their sum
    tokens = q.shape[2]
    size = min(CHUNK, max(tokens, 1))
    q, k, v = (rearrange(pad(x, (0, 0, 0, -tokens % size)), "b h (n s) d -> b h n s d", s=size) for x in (q, k, v))
    # the state before each chunk: everything older, summed
    kv = running_sum(einsum(k, v, "b h n s d, b h n s e -> b h n d e"), past.kv)
    keys = running_sum(k.sum(3), past.k)
    after = LinearState(kv[:, :, -1], keys[:, :, -1])
    kv, keys = kv[:, :, :-1], keys[:, :, :-1]
    scores = einsum(q, k, "b h n i d, b h n j d -> b h n i j").tril()
    above = einsum(q, kv, "b h n i d, b h n d e -> b h n i e") + scores @ v
    below = einsum(q, keys, "b h n i d, b h n d -> b h n i") + scores.sum(-1)
    return rearrange(divide(above, below), "b h n s e -> b h (n s) e")[:, :, :tokens], after


def running_sum(parts: Tensor, past: Tensor) -> Tensor:
    """The sum before each part, and after the last."""
    return torch.cat((past[:, :, None], parts), 2).cumsum(2)


def divide(above: Tensor, below: Tensor) -> Tensor:
    """A row that sees nothing sums to 0 and gives 0."""
    return above / below.masked_fill(below == 0, 1.0)[..., None]
