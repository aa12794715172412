"""Gated linear attention: states with decay and delta rule, chunk by chunk; linear time and memory.

S_t = (I - β_t k_t k_tᵀ) Diag(a_t) S_{t-1} + β_t k_t v_tᵀ, o_t = S_tᵀ q_t (without the delta rule: Diag(a_t) S_{t-1} +
k_t v_tᵀ). Within a chunk the weights are materialised; what older tokens add comes from the state before it (Yang et
al. 2024: Gated linear attention; Parallelizing linear transformers with the delta rule). Every exponent is a sum of
log a over tokens between two others, hence at most 0: strong decays underflow to 0 and nothing overflows. On a GPU it
runs by the Triton kernels of `kernels/state.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.backends.linear import (
    LinearState,
    divide,
    is_padding,
    prompt_objections,
    read_prompt,
    repeat_heads,
    to_accumulation,
    triton_objections,
)
from regard.attention.batch_patterns import Documents, Padding
from regard.attention.block_map import planning_objections
from regard.attention.gate import BoundGate, FixedDecay, Gate, NoGate, StateGate, Unnormalised
from regard.attention.normaliser import Proportional
from regard.attention.pattern import And, Causal, Pattern, Positions
from regard.attention.recipe import Recipe
from regard.attention.score import InnerProduct

PIECE = 4096  # tokens at a time, which fit the caches
CHUNK = 64  # within a chunk the scores are materialised
NOTHING = -200.0  # the logarithm of a decay that leaves nothing in single precision
PART = 8  # of a chunk: between parts a decay of each feature is a product of two, within a part it is materialised


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    at_end = positions.start is not None and positions.start + q.shape[2] == k.shape[2]
    return running_sum_objections(recipe) or [
        *([] if at_end else ["a running sum needs queries at the end of consecutive keys"]),
        *document_objections(recipe.pattern),
    ]


def running_sum_objections(recipe: Recipe) -> list[str]:
    """Why a state of fixed size cannot represent the keys, at whatever positions; empty if it can."""
    state = isinstance(recipe.gate, StateGate)
    sums = recipe.normaliser in (Unnormalised(), Proportional())
    strange = [part for part in conjuncts(recipe.pattern) if not isinstance(part, Causal | Padding | Documents)]
    return [
        *([] if isinstance(recipe.score, InnerProduct) else [f"{recipe.score} is not an inner product"]),
        *(f"{scheme} adds to single scores, which never exist here" for scheme in recipe.score_positions),
        *([] if sums else [f"{recipe.normaliser} is neither proportional nor unnormalised"]),
        *([] if state or isinstance(recipe.gate, NoGate) else [f"{recipe.gate} keeps no state"]),
        *([f"{recipe.gate} has decays of its own making"] if has_own_decays(recipe.gate) else []),
        *([] if Causal() in conjuncts(recipe.pattern) else [f"{recipe.pattern} is not causal"]),
        *(f"{part} has no running sum" for part in strange),
    ]


def has_own_decays(gate: Gate) -> bool:
    """Does it say how its state decays, or what it writes, otherwise than by values or a rate of each head?"""
    if not isinstance(gate, StateGate) or isinstance(gate, BoundGate):
        return False
    plain = FixedDecay if isinstance(gate, FixedDecay) else StateGate
    return (type(gate).total_decay_at, type(gate).beta_at) != (plain.total_decay_at, plain.beta_at)


def document_objections(pattern: Pattern) -> list[str]:
    """A state begins anew with each document, so that none may be taken up again."""
    found = [part for part in conjuncts(pattern) if isinstance(part, Documents)]
    if found and (why := planning_objections()):  # it reads where documents begin
        return why
    return [
        *(f"{part} are documents besides" for part in found[1:]),
        *(f"{part} has other segments for keys" for part in found if part.key_segment_ids is not None),
        *(f"a document of {part} is interrupted" for part in found if is_interrupted(part)),
    ]


def is_interrupted(documents: Documents) -> bool:
    """Does a document go on after another?"""
    ids = documents.segment_ids
    begins = len(ids) + int((ids.diff(dim=1) != 0).sum())
    return begins != sum(len(row.unique()) for row in ids)


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    return []


def conjuncts(pattern: Pattern) -> list[Pattern]:
    return [*conjuncts(pattern.left), *conjuncts(pattern.right)] if isinstance(pattern, And) else [pattern]


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    old = k.shape[2] - q.shape[2]
    found = [part for part in conjuncts(recipe.pattern) if isinstance(part, Documents)]
    segments = found[0].segment_ids[:, : k.shape[2]] if found else None
    q = pad(q, (0, 0, old, 0))
    inputs = GatedInputs.of(recipe, q, k, v, positions.k)
    by_torch = triton_objections(inputs.q, inputs.v)
    out = run(recipe, inputs, None, segments)[0] if by_torch else run_kernels(recipe, inputs, segments)
    return out[:, :, old:].to(q.dtype)


def step(
    recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, state: LinearState | None, *, positions: Tensor
) -> tuple[Tensor, LinearState]:
    """New tokens at these positions, and all that went before as a state: the same as reading everything again."""
    if found := [part for part in conjuncts(recipe.pattern) if isinstance(part, Documents)]:
        raise ValueError(f"{found[0]} begins anew where a document does, and a cache goes on; use attend")
    inputs = GatedInputs.of(recipe, q, k, v, positions)
    given = inputs.q, inputs.k, inputs.v, inputs.log_decay, inputs.beta
    by_torch, normalised = prompt_objections(*given), recipe.normaliser == Proportional()
    out, after = run(recipe, inputs, state) if by_torch else read_prompt(*given, state, normalised=normalised)
    return out.to(q.dtype), after


@dataclass(frozen=True, eq=False)
class GatedInputs:
    """q and k as the score folds them, a key and value head for every query head, and what the gate wants; hidden keys
    are 0 and write nothing."""

    q: Float[Tensor, "b h t d"]
    k: Float[Tensor, "b h t d"]
    v: Float[Tensor, "b h t e"]
    log_decay: Float[Tensor, "b h t *d"] | None
    beta: Float[Tensor, "b h t"] | None

    @staticmethod
    def of(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> "GatedInputs":
        assert isinstance(recipe.score, InnerProduct)  # or it objected
        with torch.autocast(q.device.type, enabled=False):
            k, v = repeat_heads(q, k, v)
            log_decay, beta = gate_values(recipe.gate, q)
            queries, keys = recipe.score.fold_q(q), recipe.score.fold_k(k)
            for part in (part for part in conjuncts(recipe.pattern) if isinstance(part, Padding)):
                hidden = is_padding(part, positions)
                keys = keys.masked_fill(hidden, 0.0)
                beta = None if beta is None else beta.masked_fill(hidden[..., 0], 0.0)
        return GatedInputs(queries, keys, v, log_decay, beta)


def run(
    recipe: Recipe, inputs: GatedInputs, past: LinearState | None, segments: Int[Tensor, "#b t"] | None = None
) -> tuple[Tensor, LinearState]:
    """The output of every token, and the state after the last."""
    q, k, v, log_decay, beta = inputs.q, inputs.k, inputs.v, inputs.log_decay, inputs.beta
    with torch.autocast(q.device.type, enabled=False):
        if recipe.normaliser == Unnormalised():
            before = None if past is None else past.kv
            out, after = gated_linear(q, k, v, log_decay, beta, before, segments)
            return out, LinearState(after, None)
        # Σ φ(k) is the state of values that are all 1
        v = torch.cat((v, torch.ones_like(v[..., :1])), -1)
        before = None if past is None or past.k is None else torch.cat((past.kv, past.k[..., None]), -1)
        out, after = gated_linear(q, k, v, log_decay, beta, before, segments)
        return divide(out[..., :-1], out[..., -1]), LinearState(after[..., :-1], after[..., -1])


def run_kernels(recipe: Recipe, inputs: GatedInputs, segments: Int[Tensor, "#b t"] | None) -> Tensor:
    from regard.attention.kernels.state import chunked_state  # only here is Triton needed

    v, log_decay, beta = inputs.v, inputs.log_decay, inputs.beta
    if segments is not None:  # the first token of a document forgets all that was before
        begins = pad(segments.diff(dim=1) != 0, (1, 0))[:, None]
        log_decay = v.new_zeros(v.shape[:3], dtype=torch.float32) if log_decay is None else log_decay
        log_decay = log_decay.masked_fill(begins if log_decay.dim() == 3 else begins[..., None], NOTHING)
    log_decay, beta = (None if x is None else x.float() for x in (log_decay, beta))
    queries, keys, normalised = inputs.q.to(v.dtype), inputs.k.to(v.dtype), recipe.normaliser == Proportional()
    return chunked_state(queries, keys, v, log_decay, beta, normalised=normalised)


def gate_values(gate: Gate, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """log a, (b, h, t) or (b, h, t, d), and β, (b, h, t), of every token."""
    (b, h, t), values = q.shape[:3], gate.bound_values()
    if isinstance(gate, FixedDecay):
        values["log_decay"] = gate.rate(torch.arange(h, device=q.device)).view(1, -1, 1).expand(b, h, t)
    log_decay, beta = (values.get(name) for name in ("log_decay", "beta"))
    log_decay = None if log_decay is None else log_decay.expand(b, h, t, *log_decay.shape[3:])
    return log_decay, None if beta is None else beta.expand(b, h, t)


def gated_linear(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b h t d"],
    v: Float[Tensor, "b h t e"],
    log_decay: Float[Tensor, "b h t *d"] | None,
    beta: Float[Tensor, "b h t"] | None,
    past: Float[Tensor, "b h d e"] | None = None,
    segments: Int[Tensor, "#b t"] | None = None,
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h d e"]]:
    """The output of every token, and the state after the last; both in single precision at least.

    Args:
        log_decay: log a; None: nothing decays.
        beta: of the delta rule; None: keys and values are added.
        past: the state before the first token; None: nothing.
        segments: the document of each token, where the state begins anew.
    """
    if q.shape[2] == 1:
        query, key, value = (to_accumulation(x) for x in (q, k, v))
        return one_token(query, key, value, log_decay, beta, past)
    given = [x for x in (log_decay, beta) if x is not None]
    ids: Sequence[Tensor | None] = [None] * max(1, -(-q.shape[2] // PIECE))
    ids = ids if segments is None else segments.split(PIECE, 1)
    parts, last = [], None
    for here, *tensors in zip(ids, *(x.split(PIECE, 2) for x in (q, k, v, *given)), strict=True):
        queries, keys, values, *gates = tensors
        decay = gates[0] if log_decay is not None else None
        strength = to_accumulation(gates[-1]) if beta is not None else None
        q, k, v = (to_accumulation(x) for x in (queries, keys, values))
        out, past = scan_chunks(ChunkedInputs.of(q, k, v, decay, strength, here, last), past)
        parts.append(out[:, :, : queries.shape[2]])
        last = None if here is None else here[:, -1:]
    assert past is not None  # there is one piece at least
    return torch.cat(parts, 2), past


def one_token(
    q: Float[Tensor, "b h 1 d"],
    k: Float[Tensor, "b h 1 d"],
    v: Float[Tensor, "b h 1 e"],
    log_decay: Float[Tensor, "b h 1 *d"] | None,
    beta: Float[Tensor, "b h 1"] | None,
    past: Float[Tensor, "b h d e"] | None,
) -> tuple[Float[Tensor, "b h 1 e"], Float[Tensor, "b h d e"]]:
    """The recursion itself: the same work whatever went before."""
    state = v.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if past is None else past.to(v)
    if log_decay is not None:
        decay = log_decay.to(v.dtype).exp()
        state = (decay[..., None] if decay.dim() == 3 else decay.mT) * state
    new = v if beta is None else beta.to(v.dtype)[..., None] * (v - k @ state)
    state = state + k.mT @ new
    return q @ state, state


# --- chunks, in plain torch ---


@dataclass(frozen=True, eq=False)
class ChunkedInputs:
    """n chunks of s tokens; what fills the last one writes nothing.

    Args:
        total: Σ log a from the first token of the chunk to each, in double precision.
        seen: which tokens of a chunk are of the same document as which; None: all.
        goes_on: the tokens of a chunk whose document began before it.
        stays: those whose document is that of the chunk's last.
        keeps: chunks all of whose tokens are of the document before.
    """

    q: Float[Tensor, "b h n s d"]
    k: Float[Tensor, "b h n s d"]
    v: Float[Tensor, "b h n s e"]
    total: Float[Tensor, "b h n s *d"] | None
    beta: Float[Tensor, "b h n s"] | None
    seen: Bool[Tensor, "b 1 n s s"] | None = None
    goes_on: Bool[Tensor, "b 1 n s"] | None = None
    stays: Bool[Tensor, "b 1 n s"] | None = None
    keeps: Bool[Tensor, "b 1 n"] | None = None

    @staticmethod
    def of(
        q: Float[Tensor, "b h t d"],
        k: Float[Tensor, "b h t d"],
        v: Float[Tensor, "b h t e"],
        log_decay: Float[Tensor, "b h t *d"] | None,
        beta: Float[Tensor, "b h t"] | None,
        segments: Int[Tensor, "#b t"] | None,
        last: Int[Tensor, "#b 1"] | None = None,
    ) -> "ChunkedInputs":
        """Of these tokens; `last` is the document of the token before the first."""
        size = min(CHUNK, max(q.shape[2], 1))
        fill = -q.shape[2] % size

        def cut(x: Tensor) -> Tensor:
            filled = pad(x, (*(0, 0) * (x.dim() - 3), 0, fill))
            return filled.unflatten(2, (-1, size))

        total = None if log_decay is None else cut(log_decay.double()).cumsum(3)
        parts = cut(q), cut(k), cut(v), total, None if beta is None else cut(beta)
        if segments is None:
            return ChunkedInputs(*parts)
        ids = torch.cat((segments, segments[:, -1:].expand(-1, fill)), 1)[:, None].unflatten(2, (-1, size))
        ends = ids[..., -1]
        before = torch.cat((ids[:, :, :1, 0] if last is None else last[:, None], ends[:, :, :-1]), 2)
        same, stays = ids[..., None] == ids[..., None, :], ids == ends[..., None]
        return ChunkedInputs(*parts, same, ids == before[..., None], stays, ends == before)

    def decay(self, exponent: Tensor) -> Tensor:
        """exp of it, to multiply vectors of each token, or states."""
        made = exponent.to(self.q.dtype).exp()
        return made if self.total is not None and self.total.dim() == 5 else made[..., None]

    def to_query(self, x: Tensor) -> Tensor:
        """Queries or keys as they read the state before the chunk: with what has decayed since."""
        x = x if self.total is None else x * self.decay(self.total)
        return x if self.goes_on is None else x * self.goes_on[..., None]

    def to_state(self) -> Tensor:
        """Keys as they are in the state after the chunk."""
        k = self.k if self.total is None else self.k * self.decay(self.total[:, :, :, -1:] - self.total)
        return k if self.stays is None else k * self.stays[..., None]

    def of_state(self) -> Tensor | None:
        """By what a chunk multiplies the state before it; None: by 1."""
        kept = None if self.total is None else self.decay(self.total[:, :, :, -1])
        if kept is not None and kept.dim() == 4:  # (b, h, n, d) or (b, h, n, 1)
            kept = kept[..., None]
        if self.keeps is None:
            return kept
        keeps = self.keeps[..., None, None].to(self.q.dtype)
        return keeps if kept is None else kept * keeps

    def products(self, x: Tensor, *, diagonal: int) -> Float[Tensor, "b h n s s"]:
        """x_i · Diag(a_{j+1} ⋯ a_i) k_j of the tokens of a chunk, for j up to i + diagonal."""
        size = x.shape[3]
        lower = torch.ones(size, size, dtype=torch.bool, device=x.device).tril(diagonal)
        seen = lower if self.seen is None else lower & self.seen
        if self.total is None:
            found = x @ self.k.mT
        elif self.total.dim() == 4:
            exponent = (self.total[..., None] - self.total[..., None, :]).to(x.dtype)
            found = x @ self.k.mT * exponent.masked_fill(~lower, -torch.inf).exp()
        else:
            found = vector_products(x, self.k, self.total)
        return torch.where(seen, found, 0.0)


def vector_products(
    x: Float[Tensor, "b h n s d"], k: Float[Tensor, "b h n s d"], total: Float[Tensor, "b h n s d"]
) -> Float[Tensor, "b h n s s"]:
    """Σ_d x_id k_jd exp(c_id - c_jd) for j ≤ i, a part of the chunk at a time.

    Between parts the exponential is a product of two, from the key to the end of the part before the query's and from
    there to the query, neither of which is above 1; within a part it is formed for every pair.
    """
    rows, size = [], x.shape[3]
    for first in range(0, size, PART):
        some = slice(first, min(first + PART, size))
        one, c = x[..., some, :], total[..., some, :]
        lower = torch.ones(one.shape[3], one.shape[3], dtype=torch.bool, device=x.device).tril()
        exponent = (c[..., None, :] - c[..., None, :, :]).to(x.dtype)
        decay = exponent.masked_fill(~lower[..., None], -torch.inf).exp()
        parts = [einsum(one, k[..., some, :], decay, "b h n i d, b h n j d, b h n i j d -> b h n i j")]
        if first:
            there = total[..., first - 1 : first, :]
            since, before = ((part).to(x.dtype).exp() for part in (c - there, there - total[..., :first, :]))
            parts.insert(0, (one * since) @ (k[..., :first, :] * before).mT)
        rows.append(pad(torch.cat(parts, -1), (0, size - some.stop)))
    return torch.cat(rows, 3)


def scan_chunks(
    chunks: ChunkedInputs, past: Float[Tensor, "b h d e"] | None
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h d e"]]:
    """The output of every token, and the state after the last."""
    values, keys, kept = chunks.v, chunks.to_state(), chunks.of_state()
    state = values.new_zeros(*keys.shape[:2], keys.shape[-1], values.shape[-1]) if past is None else past.to(values)
    erased: Sequence[Tensor | None] = [None] * values.shape[2]
    if chunks.beta is not None:
        # U = (I + diag(β) L)⁻¹ diag(β) (V - what the state holds under K)
        beta, width = chunks.beta[..., None], values.shape[-1]
        written = beta * chunks.products(chunks.k, diagonal=-1)
        right = beta * torch.cat((values, chunks.to_query(chunks.k)), -1)
        solved = torch.linalg.solve_triangular(written, right, upper=False, unitriangular=True)
        values, erased = solved[..., :width], solved[..., width:].unbind(2)
    states, stored = [], []
    of_each = [None] * values.shape[2] if kept is None else kept.unbind(2)
    for v, k, decay, under in zip(values.unbind(2), keys.unbind(2), of_each, erased, strict=True):
        states.append(state)
        stored.append(v if under is None else v - under @ state)
        state = (state if decay is None else decay * state) + k.mT @ stored[-1]
    if not states:
        return rearrange(values, "b h n s e -> b h (n s) e"), state
    before, values = torch.stack(states, 2), torch.stack(stored, 2)
    out = chunks.to_query(chunks.q) @ before + chunks.products(chunks.q, diagonal=0) @ values
    return rearrange(out, "b h n s e -> b h (n s) e"), state
