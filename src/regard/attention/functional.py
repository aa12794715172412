"""Functional attention: attend, every step of it, and which backend runs a recipe and why."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.attention.backends import BACKENDS, choose, reference
from regard.attention.batch_patterns import describe_tensor
from regard.attention.gate import NoGate, check_gate
from regard.attention.pattern import Indices, Pattern, Positions, is_readable
from regard.attention.recipe import Recipe
from regard.attention.text_positions import at_positions, token_positions_of


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe = Recipe(),
    *,
    q_index: Indices = None,
    k_index: Indices = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    backend: str | None = None,
    check_finite: bool = False,
) -> Tensor:
    """Each query's weighted sum of values: q is (b, h, i, d), k (b, g, j, d), v (b, g, j, e); out (b, h, i, e).

    Args:
        recipe: what attention is: score × position × pattern × normaliser.
        q_index: the index of the queries in their row or cache, which patterns ask about: of the first, or of all,
            (i) or (b, i). Default: from 0.
        k_index: the index of the keys, likewise.
        q_positions: the place of the queries in their text, (b, i), which position schemes ask about. Default: q_index.
        k_positions: the place of the keys, likewise.
        backend: which backend runs it. Default: the first that neither objects nor is discouraged; see `explain`.
        check_finite: raise if q, k or v hold NaN or infinity.

    Examples:
        >>> q, k = torch.tensor([[[[1.0, 3.0], [2.0, 2.0]]]]).log(), torch.eye(2)[None, None]
        >>> v = torch.tensor([[[[4.0], [9.0]]]])
        >>> attend(q, k, v, Recipe(score=Dot()))[0, 0]  # (4 + 3·9) / 4 and (2·4 + 2·9) / 4
        tensor([[7.7500],
                [6.5000]])
        >>> attend(q, k, v, Recipe(score=Dot(), pattern=Causal()))[0, 0, 0]  # the first sees itself alone
        tensor([4.])
    """
    where = q_index, k_index, q_positions, k_positions
    recipe, q, k, positions = prepare(q, k, v, recipe, *where, check_finite=check_finite)
    name = choose(recipe, q, k, positions)[0] if backend is None else backend
    if name not in BACKENDS:
        raise ValueError(f"no backend is called {name!r}; there are {', '.join(BACKENDS)}")
    if backend and (why := BACKENDS[name].objections(recipe, q, k, positions)):
        raise ValueError(f"{name} cannot run this recipe: {'; '.join(why)}")
    return BACKENDS[name].attend(recipe, q, k, v, positions)


def steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe = Recipe(),
    *,
    q_index: Indices = None,
    k_index: Indices = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
) -> reference.Steps:
    """Everything materialised: scores, adjusted, visible, weights and output, by the reference.

    Examples:
        >>> q, k = torch.tensor([[[[1.0, 3.0], [2.0, 2.0]]]]).log(), torch.eye(2)[None, None]
        >>> seen = steps(q, k, torch.tensor([[[[4.0], [9.0]]]]), Recipe(score=Dot()))
        >>> seen.weights[0, 0]  # softmax of log 1 and log 3; of log 2 and log 2
        tensor([[0.2500, 0.7500],
                [0.5000, 0.5000]])
        >>> seen.output[0, 0]
        tensor([[7.7500],
                [6.5000]])
    """
    recipe, q, k, positions = prepare(q, k, v, recipe, q_index, k_index, q_positions, k_positions)
    return reference.steps(recipe, q, k, v, positions.grid(*q.shape[:2]))


@dataclass(frozen=True)
class Explanation:
    """Which backend runs a recipe, and why each better one does not. Prints as sentences.

    Examples:
        >>> explanation = explain(Recipe(), torch.randn(1, 8, 64, 32))
        >>> explanation.backend
        'sdpa'
        >>> explanation.reasons["linear"]
        ['Softmax() is not proportional']
    """

    backend: str
    reasons: dict[str, list[str]]

    def __str__(self) -> str:
        others = (f"  not {name}: {'; '.join(why)}" for name, why in self.reasons.items())
        return "\n".join([f"{self.backend} runs this recipe", *others])

    __repr__ = __str__


def explain(
    recipe: Recipe, q: Tensor, k: Tensor | None = None, *, q_index: Indices = None, k_index: Indices = None
) -> Explanation:
    """Which backend runs this recipe for such queries (and keys, if they differ), and why the others do not.

    Examples:
        >>> q = torch.randn(1, 8, 4096, 64)
        >>> explain(Recipe(score=Feature(), pattern=Causal(), normaliser=Proportional()), q)
        linear runs this recipe
        >>> explain(Recipe(pattern=Causal()), q).backend
        'sdpa'
        >>> explain(Recipe(pattern=Causal()), q).reasons["gather"]
        ['53% of the blocks are visible, so skipping the others saves little']
    """
    k = q if k is None else k
    return Explanation(*choose(*prepare(q, k, k, recipe, q_index, k_index)))


def prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe,
    q_index: Indices,
    k_index: Indices,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    *,
    check_finite: bool = False,
    past: Mapping[Pattern, Pattern] | None = None,
) -> tuple[Recipe, Tensor, Tensor, Positions]:
    """What every backend may rely on: shapes that fit, q and k already rotated, and a pattern that holds its plan."""
    check_inputs(q, k, v, recipe, q_index, k_index)
    if check_finite:
        for name, x in (("q", q), ("k", k), ("v", v)):
            if not bool(torch.isfinite(x).all()):
                raise ValueError(f"{name} holds {int((~torch.isfinite(x)).sum())} values that are NaN or infinite")
    apart = q_positions is not None or k_positions is not None
    given = token_positions_of(q, k, q_index, k_index, q_positions, k_positions) if apart else None
    positions = Positions.of(q, k, q_index, k_index)
    at_q, at_k = (positions.q, positions.k) if given is None else (given.q, given.k)
    for scheme in recipe.query_key_positions:
        q, k = scheme.rotate(q, at_q), scheme.rotate_keys(k, at_k)
    pattern = recipe.pattern.plan(q, k, positions, past)
    recipe = recipe if pattern is recipe.pattern else replace(recipe, pattern=pattern)
    return recipe if given is None else at_positions(recipe, given), q, k, positions


def check_inputs(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe, q_index: Indices, k_index: Indices) -> None:
    """The user's mistakes, each with the offending values and a remedy. Nothing is ever broadcast in silence."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{name} must be (batch, heads, tokens, width), not {tuple(x.shape)}; add axes of size 1")
        if not x.is_floating_point():
            raise ValueError(f"{name} holds {x.dtype}; attention needs floating-point numbers: use {name}.float()")
        if x.dtype != q.dtype or x.device != q.device:
            raise ValueError(f"q is {q.dtype} on {q.device}, {name} {x.dtype} on {x.device}; move one to the other")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"every key needs a value: k is {tuple(k.shape)}, v is {tuple(v.shape)}")
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"q holds {q.shape[0]} sentences and k {k.shape[0]}; use expand to share one among all")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads: not a multiple")
    if why := recipe.score.shape_error(q.shape[-1], k.shape[-1]):
        raise ValueError(why)
    for part in (recipe.pattern, *recipe.score_positions):
        if part.batches not in (1, q.shape[0]):
            raise ValueError(f"{part} holds data for {part.batches} sentences, q for {q.shape[0]}")
    ends = []
    for name, at, x in (("q_index", q_index, q), ("k_index", k_index, k)):
        one, each = (x.shape[2],), (x.shape[0], x.shape[2])
        if isinstance(at, Tensor) and (at.is_floating_point() or tuple(at.shape) not in (one, each)):
            raise ValueError(f"{name} must hold whole numbers shaped {one} or {each}, not {describe_tensor(at)}")
        first, end = position_range(at, x)
        if first < 0:
            raise ValueError(
                f"{name} begins at {first}, but indices count from 0: add {-first} to q_index and k_index alike"
            )
        ends.append(end)
    for scheme in recipe.score_positions:
        if why := scheme.shape_error(q.shape[1], reference.fold_query(recipe, q[:0]).shape[-1], max(ends)):
            raise ValueError(why)
    if why := recipe.pattern.shape_error(*ends):
        raise ValueError(why)
    if not isinstance(recipe.gate, NoGate):
        check_gate(recipe.gate, recipe.pattern, recipe.score, q, k)


def position_range(at: Indices, x: Tensor) -> tuple[int, int]:
    """The first position and the one after the last; 0 and 0 where they cannot be read."""
    if not isinstance(at, Tensor):
        return at or 0, (at or 0) + x.shape[2]
    return (int(at.min()), int(at.max()) + 1) if is_readable(at) else (0, 0)
