"""States of fixed size as Triton kernels: linear attention, with decay, with the delta rule, and with both.

S_t = a_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ, o_t = S_tᵀ q_t; without delta rule S_t = a_t S_{t−1} + k_t v_tᵀ.
Tokens are cut into chunks. With c_i = Σ log a from a chunk's first token to token i, C that of its last, S the state
before it, D_ij = exp(c_i − c_j) for j ≤ i and 0 for later ones, and A = (Q Kᵀ) ∘ D,

    O  = exp(c) Q S + A U              U = V, or T β (V − exp(c) K S), T = (I + β (K Kᵀ) ∘ D below the diagonal)⁻¹
    S' = exp(C) S + K̃ᵀ U               K̃ = exp(C − c) K
       = (exp(C) − N) S + K̃ᵀ T β V     N = K̃ᵀ T β exp(c) K

so that the states follow from sums of one chunk each (Dao & Gu 2024; Yang et al. 2024, 2025). So do their gradients,
from the last chunk to the first: with Ō the gradient of O, R that of S and R' that of S',

    R  = (exp(C) − Nᵀ) R' + (exp(c) Q)ᵀ Ō − (β exp(c) K)ᵀ Tᵀ Aᵀ Ō
    Ū  = Aᵀ Ō + K̃ R',   X̄ = Tᵀ Ū,   V̄ = β X̄,   G = (Ō Uᵀ) ∘ D,   P = −β (X̄ Uᵀ) ∘ D below the diagonal
    Q̄  = G K + exp(c) Ō Sᵀ
    K̄  = Gᵀ Q + Pᵀ K + exp(C − c) U R'ᵀ  as a key, + P K − β exp(c) X̄ Sᵀ  as what reads the state to be erased
    c̄_i = q_i·q̄_i + k_i·(k̄_i as a reader) − k_i·(k̄_i as a key),   C̄ = Σ exp(C) S ∘ R' + Σ_i exp(C − c_i) k_i·R' u_i

and log a_t has C̄ and the sum of c̄ from t on. A decay of each feature is the same with Diag(a_t): D is then inside the
sums over features, Σ_d q_id k_jd exp(c_id − c_jd), and c̄ is not summed over them. Where the weights are divided by
their sum b, that is the output of values that are all 1: S has z = Σ exp(C − c) k for one more column, and Ō/b has
−(ō_i·o_i)/b_i.

Three kernels each way: the sums of every chunk, the states between chunks, the chunks themselves. Only the second goes
from chunk to chunk, for some columns of the state in each program. No two programs write to one address, so there are
no atomics and the gradients are the same every time. States are kept in float32. Every exponent is a sum of log a
between two tokens, hence at most 0: a difference of two sums, each of which is kept as two float32.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from regard.attention.gate import Decay
from regard.attention.kernels.tiles import load_block, precision, relu, store_block, tile_count, widths

Q = Float[Tensor, "b h t d"]
V = Float[Tensor, "b h t e"]
Gates = Float[Tensor, "b h t"]
Decays = Float[Tensor, "b h t *d"]


@dataclass(frozen=True)
class StateTiles:
    """How the work is cut, a matter of speed alone.

    Args:
        chunk: tokens of a chunk, which a program owns.
        warps: of the kernels of sums and outputs, and of gradients.
        columns: of a state, which a program carries from chunk to chunk.
        sums: how a state in float32 is multiplied with bfloat16: "bf16", "bf16x2" (as two numbers) or "tf32".
    """

    chunk: int = 64
    warps: int = 4
    gradient_warps: int = 8
    columns: int = 16
    sums: str = "bf16x2"

    @staticmethod
    def of(q: Tensor, v: Tensor, decay: Decay, *, delta: bool, mapped: bool) -> "StateTiles":
        """What fits into the registers and the shared memory of one multiprocessor; a decay of each feature is formed
        for every pair of tokens and feature of a chunk."""
        if q.dtype == torch.float32:
            return StateTiles(chunk=16, gradient_warps=8 if decay == "vector" else 4)
        if decay == "vector":
            return StateTiles(chunk=16, sums="bf16" if delta else "bf16x2")
        if max(q.shape[3], v.shape[3]) > 64:
            return StateTiles(warps=8, sums="bf16" if delta else "bf16x2")
        if delta:
            return StateTiles(gradient_warps=4, sums="bf16")
        return StateTiles(chunk=128, warps=8 if mapped else 4)  # φ takes registers


def chunked_state(
    q: Q,
    k: Q,
    v: V,
    log_decay: Decays | None = None,
    beta: Gates | None = None,
    *,
    normalised: bool = False,
    feature: str | None = None,
    tiles: StateTiles | None = None,
) -> V:
    """The output of every token, with gradients.

    Args:
        log_decay: log a, in float32, one for all features of a key or one for each; None: nothing decays.
        beta: of the delta rule, in float32; None: keys and values are added.
        normalised: the weights are divided by their sum; not with the delta rule.
        feature: φ of q and k, one of `FEATURE_MAPS`; None: they are mapped already.
    """
    gates = (None if x is None else x.contiguous() for x in (log_decay, beta))
    return ChunkedState.apply(*(x.contiguous() for x in (q, k, v)), *gates, normalised, feature, tiles)  # type: ignore[return-value]


def extend_state(
    q: Q,
    k: Q,
    v: V,
    log_decay: Decays | None,
    beta: Gates | None,
    past: tuple[Float[Tensor, "b h d e"], Float[Tensor, "b h d"] | None] | None,
    *,
    normalised: bool,
) -> tuple[V, Float[Tensor, "b h d e"], Float[Tensor, "b h d"] | None]:
    """The output of every token after a past of S and z, and S and z after the last; without gradients."""
    launch = Launch.of(q, v, log_decay, beta, None, normalised=normalised, feature=None)
    (b, h, _, d), e, (dp, ep) = q.shape, v.shape[3], (launch.options["DP"], launch.options["EP"])
    first, last = None, launch.new(launch.sum_size)
    if past is not None:
        kv, z = past
        parts = pad(kv.float(), (0, ep - e, 0, dp - d)), *(() if z is None else (pad(z.float(), (0, dp - d)),))
        first = torch.cat([x.reshape(b * h, -1) for x in parts], 1)
    log_decay, beta = (None if x is None else x.contiguous() for x in (log_decay, beta))
    out = launch.outputs(q.contiguous(), k.contiguous(), v.contiguous(), log_decay, beta, first, last)[0]
    z = last[:, dp * ep :].view(b, h, dp)[..., :d] if normalised else None
    return out, last[:, : dp * ep].view(b, h, dp, ep)[..., :d, :e], z


class ChunkedState(torch.autograd.Function):
    """Keeps its inputs and the state before every chunk; for the delta rule T and N; its output where it divides."""

    @staticmethod
    def forward(ctx, q: Q, k: Q, v: V, log_decay: Decays | None, beta: Gates | None, normalised, feature, tiles) -> V:  # type: ignore[override]
        launch = Launch.of(q, v, log_decay, beta, tiles, normalised=normalised, feature=feature)
        out, below, *states = launch.outputs(q, k, v, log_decay, beta)
        ctx.save_for_backward(q, k, v, log_decay, beta, *states, out if normalised else None, below)
        ctx.launch = launch
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        (q, k, v, log_decay, beta, before, kept, inverse, erased, out, below), launch = ctx.saved_tensors, ctx.launch
        grad, after = grad.contiguous(), launch.new_sums()
        launch.run(chunk_query_sums, q, k, out, grad, below, log_decay, beta, inverse, after)
        launch.scan(after, kept, erased, reverse=True)
        gradients = [None if x is None else torch.empty_like(x) for x in (q, k, v, log_decay, beta)]
        given = q, k, v, out, grad, below, log_decay, beta, inverse, before, after
        launch.run(chunk_gradients, *given, *gradients, warps=launch.tiles.gradient_warps)
        return *gradients, None, None, None


@dataclass(frozen=True, eq=False)
class Launch:
    """What all kernels of one call are launched with, batch and heads side by side.

    Args:
        heads: of all sentences.
        sum_size: numbers of one S, and of one z where there is one.
        options: constants of the kernels of chunks.
    """

    tiles: StateTiles
    heads: int
    tokens: int
    chunks: int
    sum_size: int
    device: torch.device
    options: dict[str, Any]

    @staticmethod
    def of(
        q: Q,
        v: V,
        log_decay: Decays | None,
        beta: Gates | None,
        tiles: StateTiles | None,
        *,
        normalised: bool,
        feature: str | None,
    ) -> "Launch":
        decay: Decay = "none" if log_decay is None else "scalar" if log_decay.dim() == 3 else "vector"
        tiles = tiles or StateTiles.of(q, v, decay, delta=beta is not None, mapped=feature is not None)
        (b, h, t), sizes = q.shape[:3], widths(q.shape[3], v.shape[3])
        exact = q.dtype == torch.float32
        options = sizes | {
            "CHUNK": tiles.chunk,
            "DECAY": decay,
            "DELTA": beta is not None,
            "NORMALISED": normalised,
            "MAP": None if feature is None else FEATURE_MAPS[feature],
            "PRECISION": precision(q) if exact else "tf32",
            "SUMS": precision(q) if exact else tiles.sums,
        }
        size = sizes["DP"] * (sizes["EP"] + normalised)
        return Launch(tiles, b * h, t, tile_count(t, tiles.chunk), size, q.device, options)

    @property
    def features(self) -> int:
        """That decay by themselves."""
        return self.options["DP"] if self.options["DECAY"] == "vector" else 1

    def new(self, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers of each head."""
        return torch.empty(self.heads, *sizes, dtype=dtype, device=self.device)

    def new_sums(self) -> Tensor:
        return self.new(self.chunks, self.sum_size)

    def run(self, kernel: Any, *tensors: Tensor | None, warps: int | None = None) -> None:
        """One program for each chunk of each head."""
        options = self.options | {"num_warps": warps or self.tiles.warps, "num_stages": 1}
        kernel[self.heads * self.chunks,](*tensors, self.tokens, self.chunks, **options)

    def outputs(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor | None,
        beta: Tensor | None,
        first: Tensor | None = None,
        last: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """The output, b, the state before every chunk, its decay, T and N; `last` is given the state after the last."""
        out, below = torch.empty_like(v), self.new(self.tokens) if self.options["NORMALISED"] else None
        before, inverse, erased = self.new_sums(), None, None
        kept = None if log_decay is None else self.new(self.chunks, self.features)
        if beta is not None:
            sides = self.tiles.chunk, self.options["DP"]
            inverse, erased = (self.new(self.chunks, side, side, dtype=q.dtype) for side in sides)
        self.run(chunk_key_sums, k, v, log_decay, beta, before, kept, inverse, erased)
        self.scan(before, kept, erased, first, last, reverse=False)
        self.run(chunk_outputs, q, k, v, log_decay, beta, inverse, before, out, below)
        return out, below, before, kept, inverse, erased

    def scan(
        self,
        sums: Tensor,
        kept: Tensor | None,
        erased: Tensor | None,
        first: Tensor | None = None,
        last: Tensor | None = None,
        *,
        reverse: bool,
    ) -> None:
        """Each chunk's sum becomes the state before it, or in reverse the gradient of the state after it."""
        sizes = {name: self.options[name] for name in ("DP", "EP", "DECAY")} | {"REVERSE": reverse}
        kernel: Any = running_sums if erased is None else running_states
        if erased is None:
            block = min(SCAN_WIDTH, sizes["EP"]) if sizes["DECAY"] == "vector" else SCAN_WIDTH
            options = sizes | {"SIZE": self.sum_size, "BLOCK": block, "STEP": SCAN_STEP, "num_warps": 1}
            kernel[self.heads, tile_count(self.sum_size, block)](sums, kept, first, last, self.chunks, **options)
            return
        columns = min(self.tiles.columns, sizes["EP"])
        options = sizes | {"COLUMNS": columns, "SUMS": self.options["SUMS"]}
        options |= {"num_warps": 4, "num_stages": 3}
        kernel[self.heads, sizes["EP"] // columns](sums, kept, erased, first, last, self.chunks, **options)


SCAN_WIDTH, SCAN_STEP = 128, 8  # numbers and chunks that a program of `running_sums` reads at once
NUMBERS = ["n", "chunks"]


# --- φ ---


@triton.jit
def elu_plus_one(x):
    return tl.where(x > 0.0, x + 1.0, tl.exp(tl.minimum(x, 0.0))), tl.where(x > 0.0, 1.0, tl.exp(tl.minimum(x, 0.0)))


FEATURE_MAPS: dict[str, Any] = {"elu+1": elu_plus_one, "relu": relu}  # each gives φ and its slope


@triton.jit
def load_features(x, head, t, n, D: tl.constexpr, DP: tl.constexpr, MAP: tl.constexpr):
    """φ of a chunk's rows; 0 beyond the last token and feature."""
    rows = load_block(x + head * n * D, t, n, D, DP, MASKED=True)
    if MAP is not None:
        mapped, _ = MAP(rows.to(tl.float32))
        rows = tl.where((t < n)[:, None] & (tl.arange(0, DP) < D)[None, :], mapped, 0.0).to(rows.dtype)
    return rows


@triton.jit
def slopes(x, head, t, n, D: tl.constexpr, DP: tl.constexpr, MAP: tl.constexpr):
    """φ' of a chunk's rows."""
    if MAP is None:
        slope = 1.0
    else:
        _, slope = MAP(load_block(x + head * n * D, t, n, D, DP, MASKED=True).to(tl.float32))
    return slope


# --- what the kernels of chunks share ---


@triton.jit
def chunk_tokens(chunks, CHUNK: tl.constexpr):
    """A program's head, its chunk of all, and its tokens."""
    program = tl.program_id(0)
    head = (program // chunks).to(tl.int64)
    return head, program.to(tl.int64), program % chunks * CHUNK + tl.arange(0, CHUNK)


@triton.jit
def chunk_decays(
    log_decay, head, t, n, D: tl.constexpr, DP: tl.constexpr, CHUNK: tl.constexpr, DECAY: tl.constexpr
):  # fmt: skip
    """D with 1 above the diagonal, exp(c) and exp(C − c) of each row, or of each row and feature, and C."""
    if DECAY == "none":
        one = tl.full([CHUNK, 1], 1.0, tl.float32)
        within, from_start, to_end, total = 1.0, one, one, 0.0
    else:
        if DECAY == "vector":
            logs = load_block(log_decay + head * n * D, t, n, D, DP, MASKED=True).to(tl.float64)
        else:
            logs = tl.load(log_decay + head * n + t, t < n, 0.0).to(tl.float64)
        c, total = tl.cumsum(logs, 0), tl.sum(logs, 0)
        high = c.to(tl.float32)
        low = (c - high.to(tl.float64)).to(tl.float32)
        apart = (tl.expand_dims(high, 1) - high[None]) + (tl.expand_dims(low, 1) - low[None])
        within = tl.exp(tl.minimum(apart, 0.0))
        from_start, to_end, total = tl.exp(high), tl.exp((total - c).to(tl.float32)), total.to(tl.float32)
        if DECAY == "scalar":
            from_start, to_end = from_start[:, None], to_end[:, None]
    return within, from_start, to_end, total


@triton.jit
def scaled(x, by):
    """x times numbers of its rows, or of rows and features, in its own precision."""
    return (x.to(tl.float32) * by).to(x.dtype)


@triton.jit
def products(x, y, within, DECAY: tl.constexpr, PRECISION: tl.constexpr):
    """(X Yᵀ) ∘ D."""
    if DECAY == "vector":
        return tl.sum(x.to(tl.float32)[:, None, :] * y.to(tl.float32)[None, :, :] * within, 2)
    else:  # noqa: RET505
        return tl.dot(x, tl.trans(y), input_precision=PRECISION) * within


@triton.jit
def of_rows(pulls, y, within, total, DECAY: tl.constexpr, PRECISION: tl.constexpr):
    """total + (P ∘ D) Y: what products with y give to their rows."""
    if DECAY == "vector":
        return total + tl.sum(pulls[:, :, None] * y.to(tl.float32)[None, :, :] * within, 1)
    else:  # noqa: RET505
        return tl.dot((pulls * within).to(y.dtype), y, total, input_precision=PRECISION)


@triton.jit
def of_columns(pulls, x, within, total, DECAY: tl.constexpr, PRECISION: tl.constexpr):
    """total + (P ∘ D)ᵀ X."""
    if DECAY == "vector":
        return total + tl.sum(pulls[:, :, None] * x.to(tl.float32)[:, None, :] * within, 0)
    else:  # noqa: RET505
        return tl.dot(tl.trans((pulls * within).to(x.dtype)), x, total, input_precision=PRECISION)


@triton.jit
def times_sums(x, sums, SUMS: tl.constexpr):
    """x times sums in float32, which all tokens before pass through."""
    if SUMS == "bf16":
        product = tl.dot(x.to(tl.bfloat16), sums.to(tl.bfloat16))
    elif SUMS == "bf16x2":
        high = sums.to(tl.bfloat16)
        low = (sums - high.to(tl.float32)).to(tl.bfloat16)
        product = tl.dot(x.to(tl.bfloat16), low, tl.dot(x.to(tl.bfloat16), high))
    else:
        product = tl.dot(x.to(tl.float32), sums, input_precision=SUMS)
    return product


@triton.jit
def read(x, by, sums, DECAY: tl.constexpr, SUMS: tl.constexpr):
    """(by X) S; numbers of rows multiply the product, which is not rounded."""
    if DECAY == "vector":
        return times_sums(scaled(x, by), sums, SUMS)
    else:  # noqa: RET505
        return times_sums(x, sums, SUMS) * by


@triton.jit
def store_sums(sums, program, matrix, vector, DP: tl.constexpr, EP: tl.constexpr, NORMALISED: tl.constexpr):
    """S and behind it z, or R and its last column."""
    d, e = tl.arange(0, DP), tl.arange(0, EP)
    first = sums + program * (DP * (EP + NORMALISED))
    tl.store(first + d[:, None] * EP + e[None, :], matrix)
    if NORMALISED:
        tl.store(first + DP * EP + d, vector)


@triton.jit
def load_sums(sums, program, DP: tl.constexpr, EP: tl.constexpr, NORMALISED: tl.constexpr):
    d, e = tl.arange(0, DP), tl.arange(0, EP)
    first = sums + program * (DP * (EP + NORMALISED))
    vector = tl.load(first + DP * EP + d) if NORMALISED else tl.zeros([DP], tl.float32)
    return tl.load(first + d[:, None] * EP + e[None, :]), vector


@triton.jit
def square(x, program, SIDE: tl.constexpr):
    """Where the chunk's matrix of so many rows and columns is."""
    at = tl.arange(0, SIDE)
    return x + program * (SIDE * SIDE) + at[:, None] * SIDE + at[None, :]


@triton.jit
def unit_lower_inverse(lower, SIDE: tl.constexpr, PRECISION: tl.constexpr):
    """(I + what is below the diagonal)⁻¹: from the inverses of blocks on the diagonal those of blocks twice as large,
    whose part below the diagonal is −T₂₂ L₂₁ T₁₁."""
    i, j = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    below = (i // 2 == j // 2) & (i > j)
    inverse = tl.where(i == j, 1.0, 0.0) - tl.where(below, lower, 0.0)
    for level in tl.static_range(1, 8):  # type: ignore[misc]
        if 2**level < SIDE:
            below = (i // 2 ** (level + 1) == j // 2 ** (level + 1)) & (i // 2**level > j // 2**level)
            step = tl.dot(tl.where(below, lower, 0.0), inverse, input_precision=PRECISION)
            inverse -= tl.dot(inverse, step, input_precision=PRECISION)
    return inverse


@triton.jit
def load_upstream(out, grad, below, head, t, n, E: tl.constexpr, EP: tl.constexpr, NORMALISED: tl.constexpr):
    """ō, −ō·o and 1 / b; where b is 0 the output is 0 whatever b: nothing is divided, and b has no gradient."""
    upstream = load_block(grad + head * n * E, t, n, E, EP, MASKED=True)
    if NORMALISED:
        outputs = load_block(out + head * n * E, t, n, E, EP, MASKED=True)
        total = tl.load(below + head * n + t, t < n, 0.0)
        last = tl.where(total == 0.0, 0.0, -tl.sum(upstream.to(tl.float32) * outputs.to(tl.float32), 1))
        share = 1.0 / tl.where(total == 0.0, 1.0, total)
    else:
        last, share = tl.zeros(t.shape, tl.float32), tl.full(t.shape, 1.0, tl.float32)
    return upstream, last[:, None], share[:, None]


# --- sums of chunks ---


@triton.jit(do_not_specialize=NUMBERS)
def chunk_key_sums(
    k, v, log_decay, beta, sums, kept, inverse, erased, n, chunks, D: tl.constexpr, DP: tl.constexpr,
    E: tl.constexpr, EP: tl.constexpr, CHUNK: tl.constexpr, DECAY: tl.constexpr, DELTA: tl.constexpr,
    NORMALISED: tl.constexpr, MAP: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """K̃ᵀ V and its decay; for the delta rule K̃ᵀ T β V, T and N."""
    head, program, t = chunk_tokens(chunks, CHUNK)  # type: ignore[misc]
    keys = load_features(k, head, t, n, D, DP, MAP)
    values = load_block(v + head * n * E, t, n, E, EP, MASKED=True)
    within, from_start, to_end, total = chunk_decays(log_decay, head, t, n, D, DP, CHUNK, DECAY)  # type: ignore[misc]
    late = keys if DECAY == "none" else scaled(keys, to_end)
    if DECAY == "vector":
        tl.store(kept + program * DP + tl.arange(0, DP), total)
    elif DECAY == "scalar":
        tl.store(kept + program, total)
    if DELTA:
        strength = tl.load(beta + head * n + t, t < n, 0.0).to(tl.float32)[:, None]
        overlaps = products(keys, keys, within, DECAY, PRECISION) * strength
        solved = unit_lower_inverse(overlaps, CHUNK, PRECISION)
        solved = solved.to(keys.dtype)
        tl.store(square(inverse, program, CHUNK), solved)
        values = tl.dot(solved, scaled(values, strength), input_precision=PRECISION).to(keys.dtype)
        reads = tl.dot(solved, scaled(keys, strength * from_start), input_precision=PRECISION).to(keys.dtype)
        lost = tl.dot(tl.trans(late), reads, input_precision=PRECISION)
        tl.store(square(erased, program, DP), lost.to(erased.dtype.element_ty))
    matrix = tl.dot(tl.trans(late), values, input_precision=PRECISION)
    store_sums(sums, program, matrix, tl.sum(late.to(tl.float32), 0), DP, EP, NORMALISED)


@triton.jit(do_not_specialize=NUMBERS)
def chunk_query_sums(
    q, k, out, grad, below, log_decay, beta, inverse, sums, n, chunks, D: tl.constexpr, DP: tl.constexpr,
    E: tl.constexpr, EP: tl.constexpr, CHUNK: tl.constexpr, DECAY: tl.constexpr, DELTA: tl.constexpr,
    NORMALISED: tl.constexpr, MAP: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """(exp(c) Q)ᵀ Ō, for the delta rule less (β exp(c) K)ᵀ Tᵀ Aᵀ Ō."""
    head, program, t = chunk_tokens(chunks, CHUNK)  # type: ignore[misc]
    upstream, last, share = load_upstream(out, grad, below, head, t, n, E, EP, NORMALISED)  # type: ignore[misc]
    queries = load_features(q, head, t, n, D, DP, MAP)
    within, from_start, _, _ = chunk_decays(log_decay, head, t, n, D, DP, CHUNK, DECAY)  # type: ignore[misc]
    early = queries.to(tl.float32) * from_start * share
    matrix = tl.dot(tl.trans(early.to(queries.dtype)), upstream, input_precision=PRECISION)
    if DELTA:
        keys = load_features(k, head, t, n, D, DP, MAP)
        strength = tl.load(beta + head * n + t, t < n, 0.0).to(tl.float32)[:, None]
        scores = products(queries, keys, within, DECAY, PRECISION)
        scores = tl.where(t[:, None] >= t[None, :], scores, 0.0).to(upstream.dtype)
        of_stored = tl.dot(tl.trans(scores), upstream, input_precision=PRECISION).to(upstream.dtype)
        solved = tl.load(square(inverse, program, CHUNK))
        of_stored = tl.dot(tl.trans(solved), of_stored, input_precision=PRECISION).to(upstream.dtype)
        matrix -= tl.dot(tl.trans(scaled(keys, strength * from_start)), of_stored, input_precision=PRECISION)
    store_sums(sums, program, matrix, tl.sum(early * last, 0), DP, EP, NORMALISED)


# --- from chunk to chunk ---


@triton.jit(do_not_specialize=["chunks"])
def running_sums(
    sums, kept, first, last, chunks, SIZE: tl.constexpr, DP: tl.constexpr, EP: tl.constexpr, BLOCK: tl.constexpr,
    STEP: tl.constexpr, DECAY: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """S' = exp(C) S + the chunk's sum; some chunks are read at once, and every thread has all of them."""
    at, row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, STEP)
    head = tl.program_id(0).to(tl.int64) * chunks
    # the numbers of a block belong to one feature, unless they are z's
    ALIKE: tl.constexpr = DECAY == "scalar" or (BLOCK <= EP and SIZE == DP * EP)  # type: ignore[assignment]
    FEATURES: tl.constexpr = 1 if DECAY == "scalar" else DP  # type: ignore[assignment]
    state = tl.zeros([BLOCK], tl.float32)
    if first is not None:
        state = tl.load(first + tl.program_id(0).to(tl.int64) * SIZE + at, at < SIZE, 0.0)
    for begin in range(0, chunks, STEP):
        step = begin + row
        chunk = (head + (chunks - 1 - step if REVERSE else step))[:, None]
        inside = (step < chunks)[:, None] & (at < SIZE)[None, :]
        here = tl.load(sums + chunk * SIZE + at[None, :], inside, 0.0)
        if DECAY != "none":
            if ALIKE:
                feature = tl.program_id(1) * BLOCK // EP % FEATURES
                decays = tl.exp(tl.load(kept + chunk * FEATURES + feature, (step < chunks)[:, None], 0.0))
            else:
                features = tl.where(at < DP * EP, at // EP, at - DP * EP)[None, :]
                decays = tl.exp(tl.load(kept + chunk * FEATURES + features, inside, 0.0))
        before = tl.zeros_like(here)
        for now in tl.static_range(STEP):
            this = (row == now)[:, None]
            before = tl.where(this, state[None, :], before)
            if DECAY != "none":
                state *= tl.sum(tl.where(this, decays, 0.0), 0)
            state += tl.sum(tl.where(this, here, 0.0), 0)
        tl.store(sums + chunk * SIZE + at[None, :], before, inside)
    if last is not None:
        tl.store(last + tl.program_id(0).to(tl.int64) * SIZE + at, state, at < SIZE)


@triton.jit(do_not_specialize=["chunks"])
def running_states(
    sums, kept, erased, first, last, chunks, DP: tl.constexpr, EP: tl.constexpr, COLUMNS: tl.constexpr,
    SUMS: tl.constexpr, DECAY: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    """S' = (exp(C) − N) S + the chunk's sum, for some columns of S; in reverse with Nᵀ."""
    head = tl.program_id(0).to(tl.int64)
    d, e = tl.arange(0, DP), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = d[:, None] * EP + e[None, :]
    state = tl.zeros([DP, COLUMNS], tl.float32)
    if first is not None:
        state = tl.load(first + head * (DP * EP) + inside)
    for step in range(chunks):
        program = head * chunks + (chunks - 1 - step if REVERSE else step)
        here = tl.load(sums + program * (DP * EP) + inside)
        lost = tl.load(square(erased, program, DP))
        tl.store(sums + program * (DP * EP) + inside, state)
        change = here - times_sums(tl.trans(lost) if REVERSE else lost, state, SUMS)
        if DECAY == "vector":
            state *= tl.exp(tl.load(kept + program * DP + d))[:, None]
        elif DECAY == "scalar":
            state *= tl.exp(tl.load(kept + program))
        state += change
    if last is not None:
        tl.store(last + head * (DP * EP) + inside, state)


# --- the chunks themselves ---


@triton.jit
def stored_values(
    keys, values, state, solved, strength, from_start, DECAY: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr
):  # fmt: skip
    """U = T β (V − exp(c) K S), and V − exp(c) K S itself."""
    new = values.to(tl.float32) - read(keys, from_start, state, DECAY, SUMS)
    return tl.dot(solved, (new * strength).to(values.dtype), input_precision=PRECISION).to(values.dtype), new


@triton.jit(do_not_specialize=NUMBERS)
def chunk_outputs(
    q, k, v, log_decay, beta, inverse, before, out, below, n, chunks, D: tl.constexpr, DP: tl.constexpr,
    E: tl.constexpr, EP: tl.constexpr, CHUNK: tl.constexpr, DECAY: tl.constexpr, DELTA: tl.constexpr,
    NORMALISED: tl.constexpr, MAP: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    head, program, t = chunk_tokens(chunks, CHUNK)  # type: ignore[misc]
    queries = load_features(q, head, t, n, D, DP, MAP)
    keys = load_features(k, head, t, n, D, DP, MAP)
    values = load_block(v + head * n * E, t, n, E, EP, MASKED=True)
    within, from_start, _, _ = chunk_decays(log_decay, head, t, n, D, DP, CHUNK, DECAY)  # type: ignore[misc]
    matrix, vector = load_sums(before, program, DP, EP, NORMALISED)  # type: ignore[misc]
    if DELTA:
        strength = tl.load(beta + head * n + t, t < n, 0.0).to(tl.float32)[:, None]
        solved = tl.load(square(inverse, program, CHUNK))
        values, _ = stored_values(keys, values, matrix, solved, strength, from_start, DECAY, PRECISION, SUMS)  # type: ignore[misc]
    scores = products(queries, keys, within, DECAY, PRECISION)
    scores = tl.where(t[:, None] >= t[None, :], scores, 0.0).to(values.dtype)
    above = read(queries, from_start, matrix, DECAY, SUMS)
    above = tl.dot(scores, values, above, input_precision=PRECISION)
    if NORMALISED:
        # of the scores as they are used: rounded in one place and not in the other, even a single key would not weigh 1
        total = tl.sum(scores.to(tl.float32), 1)
        total += tl.sum(queries.to(tl.float32) * from_start * vector[None, :], 1)
        above = above / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(below + head * n + t, total, t < n)
    store_block(out + head * n * E, t, n, above, E, EP)


@triton.jit(do_not_specialize=NUMBERS)
def chunk_gradients(
    q, k, v, out, grad, below, log_decay, beta, inverse, before, after, dq, dk, dv, d_decay, d_beta, n, chunks,
    D: tl.constexpr, DP: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, CHUNK: tl.constexpr, DECAY: tl.constexpr,
    DELTA: tl.constexpr, NORMALISED: tl.constexpr, MAP: tl.constexpr, PRECISION: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    head, program, t = chunk_tokens(chunks, CHUNK)  # type: ignore[misc]
    queries = load_features(q, head, t, n, D, DP, MAP)
    keys = load_features(k, head, t, n, D, DP, MAP)
    values = load_block(v + head * n * E, t, n, E, EP, MASKED=True)
    upstream, last, share = load_upstream(out, grad, below, head, t, n, E, EP, NORMALISED)  # type: ignore[misc]
    within, from_start, to_end, total = chunk_decays(log_decay, head, t, n, D, DP, CHUNK, DECAY)  # type: ignore[misc]
    matrix, vector = load_sums(before, program, DP, EP, NORMALISED)  # type: ignore[misc]
    later, later_vector = load_sums(after, program, DP, EP, NORMALISED)  # type: ignore[misc]
    seen, earlier = t[:, None] >= t[None, :], t[:, None] > t[None, :]

    scores = products(queries, keys, within, DECAY, PRECISION) * share
    scores = tl.where(seen, scores, 0.0).to(upstream.dtype)
    by_v = read(keys, to_end, later, DECAY, SUMS)
    by_v = tl.dot(tl.trans(scores), upstream, by_v, input_precision=PRECISION)
    if DELTA:
        strength = tl.load(beta + head * n + t, t < n, 0.0).to(tl.float32)[:, None]
        solved = tl.load(square(inverse, program, CHUNK))
        values, new = stored_values(keys, values, matrix, solved, strength, from_start, DECAY, PRECISION, SUMS)  # type: ignore[misc]
        of_new = tl.dot(tl.trans(solved), by_v.to(values.dtype), input_precision=PRECISION)
        by_v = of_new * strength
    store_block(dv + head * n * E, t, n, by_v, E, EP)

    pulls = (tl.dot(upstream, tl.trans(values), input_precision=PRECISION) + last) * share
    pulls = tl.where(seen, pulls, 0.0)
    by_q = (times_sums(upstream, tl.trans(matrix), SUMS) + last * vector[None, :]) * from_start * share
    by_q = of_rows(pulls, keys, within, by_q, DECAY, PRECISION)
    store_block(dq + head * n * D, t, n, by_q * slopes(q, head, t, n, D, DP, MAP), D, DP)

    by_k = (times_sums(values, tl.trans(later), SUMS) + later_vector[None, :]) * to_end
    if DECAY != "none":
        of_c = queries.to(tl.float32) * by_q
        of_total = tl.sum(by_k * keys.to(tl.float32), 0)
        lasting = tl.sum(matrix * later, 1) + vector * later_vector
        of_total += tl.exp(total) * lasting
    by_k = of_columns(pulls, queries, within, by_k, DECAY, PRECISION)
    if DELTA:
        pulls = -tl.dot(of_new.to(values.dtype), tl.trans(values), input_precision=PRECISION)
        pulls = tl.where(earlier, pulls, 0.0)
        overlaps = products(keys, keys, within, DECAY, PRECISION)
        of_strength = tl.sum(of_new * new, 1) + tl.sum(pulls * overlaps, 1)
        tl.store(d_beta + head * n + t, of_strength.to(d_beta.dtype.element_ty), t < n)
        by_k = of_columns(pulls * strength, keys, within, by_k, DECAY, PRECISION)
        by_reader = times_sums(by_v.to(values.dtype), tl.trans(matrix), SUMS) * -from_start
        by_reader = of_rows(pulls * strength, keys, within, by_reader, DECAY, PRECISION)
        if DECAY != "none":
            of_c += keys.to(tl.float32) * by_reader
    if DECAY != "none":
        of_c -= keys.to(tl.float32) * by_k
        if DECAY == "vector":
            of_log = tl.cumsum(of_c, 0, reverse=True) + of_total[None, :]
            store_block(d_decay + head * n * D, t, n, of_log, D, DP)
        else:
            of_log = tl.cumsum(tl.sum(of_c, 1), 0, reverse=True) + tl.sum(of_total, 0)
            tl.store(d_decay + head * n + t, of_log.to(d_decay.dtype.element_ty), t < n)
    if DELTA:
        by_k += by_reader
    store_block(dk + head * n * D, t, n, by_k * slopes(k, head, t, n, D, DP, MAP), D, DP)
