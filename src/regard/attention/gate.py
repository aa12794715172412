"""Gates: how much of the past each token keeps, and how strongly it writes; on the scores or on a state.

    Forget()                          adds c_i - c_j to the scores, c = Σ log f          Forgetting Transformer
    Retention(), Lightning(heads)     S_t = γ S_{t-1} + k_t v_tᵀ                         retention, lightning attention
    ScalarDecay()                     S_t = a_t S_{t-1} + k_t v_tᵀ                       Mamba-2, simple GLA
    VectorDecay()                     S_t = Diag(a_t) S_{t-1} + k_t v_tᵀ                 GLA
    Delta()                           S_t = (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ    DeltaNet
    GatedDelta(), KimiDelta()         the same of a_t S_{t-1}, and of Diag(a_t) S_{t-1}  Gated DeltaNet, KDA

A state S of fixed size is read by o_t = S_tᵀ q_t. Unrolled, each of them is attention with the effective weights that
`effective_scores` forms: q_i · Diag(a_{j+1} ⋯ a_i) k_j, for the delta rule times the inverse of a triangular matrix.

A gate is a value. What it wants of each token, log a and β, a layer makes from the token (`GateProjection`) and binds
to the recipe for one batch: `recipe.with_gate(log_decay=..., beta=...)`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Literal

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from regard.attention.normaliser import Normaliser, Proportional, RowWise, Softmax
from regard.attention.pattern import And, Causal, IndexGrid, Pattern
from regard.attention.position import Bias, Position
from regard.attention.position_variants import Alibi
from regard.attention.score import InnerProduct, Score

Decay = Literal["none", "fixed", "scalar", "vector"]  # fixed: whatever the token; vector: of each feature


class Gate(ABC):
    """Abstract: `decay` and `delta` say what it wants of each token: log a, one number or one for each feature, and β.

    Examples:
        >>> GatedDelta().decay, GatedDelta().delta
        ('scalar', True)
        >>> GatedDelta().values
        ('log_decay', 'beta')
    """

    decay: Decay = "none"
    delta: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """What must be bound before it can run."""
        return *(("log_decay",) if self.decay in ("scalar", "vector") else ()), *(("beta",) if self.delta else ())

    @abstractmethod
    def bind(self, log_decay: Tensor | None, beta: Tensor | None, first: int) -> "Gate":
        """The same with the values of one batch."""

    def bound_values(self) -> dict[str, Tensor]:
        """What was bound, by name: a KV cache keeps it beside the keys, and binds that of all tokens anew."""
        return {}

    def make_log_decay(self, x: Tensor, rate: Tensor) -> Tensor:
        """log a of what is projected from the token, and of a positive rate for each head; Mamba-2's."""
        return -rate * softplus(x)

    @property
    def has_rate(self) -> bool:
        """Does a head learn its own rate and time step, as in Mamba-2?"""
        return self.decay in ("scalar", "vector")

    @property
    def low_rank(self) -> int | None:
        """The rank of the projection to the decay of each feature."""
        return None

    def values_error(self, batch: int, heads: int, width: int, keys: int) -> str | None:
        """Why it cannot run with so many sentences, heads, features of a key and keys; None if it can."""
        if self.values:
            names = ", ".join(f"{name}=..." for name in self.values)
            return f"{self} has not been given its values for this batch; use recipe.with_gate({names}), or a layer"
        return None


@dataclass(frozen=True)
class NoGate(Gate):
    """Nothing is forgotten, and nothing is erased.

    Examples:
        >>> Recipe().gate
        NoGate()
        >>> Recipe() == Recipe(gate=NoGate())
        True
    """

    def bind(self, log_decay, beta, first):
        raise ValueError("this recipe has no gate to give values to; use e.g. Recipe(gate=ScalarDecay(), ...)")


# --- on the score ---


@dataclass(frozen=True)
class Forget(Gate):
    """softmax(q kᵀ / √d + c_i - c_j) v, c = Σ log f: the Forgetting Transformer (Lin et al. 2025), f = σ(w x + b).

    Examples:
        >>> recipe = Recipe(pattern=Causal(), gate=Forget())
        >>> q = torch.zeros(1, 1, 3, 4)
        >>> half = torch.full((1, 1, 3), 0.5).log()  # what is one token older weighs half as much
        >>> steps(q, q, q, recipe.with_gate(log_decay=half)).weights[0, 0, 2]
        tensor([0.1429, 0.2857, 0.5714])
    """

    decay = "scalar"

    def bind(self, log_decay, beta, first):
        check_values(self, log_decay, beta)
        assert log_decay is not None  # or it was refused
        return BoundForget(log_decay, first)

    @property
    def has_rate(self):
        return False

    def make_log_decay(self, x, rate):
        return logsigmoid(x)


@dataclass(frozen=True, eq=False, repr=False)
class BoundForget(Gate, Bias):
    """The forget gates of one batch, log f, (b, h, t); the first belongs to the key at index `first`."""

    log_decay: Float[Tensor, "b h t"]
    first: int = 0
    total: Float[Tensor, "b h t"] | None = None  # Σ log f, where it is summed already

    def bind(self, log_decay, beta, first):
        return Forget().bind(log_decay, beta, first)

    def bound_values(self):
        return {"log_decay": self.log_decay}

    def summed(self) -> "BoundForget":
        """For a kernel compiled from the bias, which can only look numbers up."""
        return replace(self, total=running_total(self.log_decay))

    def bias(self, b, h, i, j):
        total = running_total(self.log_decay) if self.total is None else self.total
        return token_values(total, b, h, i - self.first) - token_values(total, b, h, j - self.first)

    def shape_error(self, heads, head, length):
        own, tokens = self.log_decay.shape[1:]
        if own in (1, heads) and length <= self.first + tokens:
            return None
        return f"{self} is for {own} heads and {self.first + tokens} tokens, not {heads} and {length}"

    @property
    def batches(self):
        return len(self.log_decay)

    def __repr__(self):
        return f"Forget({'×'.join(map(str, self.log_decay.shape))})"


# --- on the state ---


@dataclass(frozen=True)
class Unnormalised(RowWise):
    """s itself: linear attention without a denominator, as retention and the delta rule have it.

    Examples:
        >>> scores = torch.tensor([[[[1.0, -3.0, 6.0]]]])
        >>> Unnormalised().weigh(scores, scores < 5)
        tensor([[[[ 1., -3.,  0.]]]])
    """

    def weigh(self, scores, visible):
        return torch.where(visible, scores, 0.0)


class StateGate(Gate):
    """Abstract: a gate of a state of fixed size, which needs an inner product and causal order.

    Examples:
        >>> q = k = v = torch.ones(1, 1, 3, 1)
        >>> recipe = Recipe(score=Dot(), pattern=Causal(), normaliser=Unnormalised(), gate=ScalarDecay())
        >>> half = torch.full((1, 1, 3), 0.5).log()
        >>> attend(q, k, v, recipe.with_gate(log_decay=half))[0, 0, :, 0]  # 1, 1 + 1/2, 1 + 1/2 + 1/4
        tensor([1.0000, 1.5000, 1.7500])
    """

    def bind(self, log_decay, beta, first):
        check_values(self, log_decay, beta)
        return BoundGate(self, log_decay, beta, first)

    def total_decay_at(self, b: Tensor, h: Tensor, j: Tensor) -> Tensor | None:
        """Σ log a up to and with the tokens at these indices, which broadcast to (b, h, j); with the features as a last
        axis, or None if nothing decays."""
        return None

    def beta_at(self, b: Tensor, h: Tensor, j: Tensor) -> Tensor | None:
        """β of the tokens at these indices; None without the delta rule."""
        return None


class FixedDecay(StateGate):
    """Abstract: the state of a head decays by the same factor at every token."""

    decay = "fixed"

    @abstractmethod
    def rate(self, h: Tensor) -> Tensor:
        """log γ of these heads."""

    def bind(self, log_decay, beta, first):
        raise ValueError(f"{self} decays whatever the token is, and takes no values")

    def total_decay_at(self, b, h, j):
        return self.rate(h) * (j + 1)


@dataclass(frozen=True)
class Retention(FixedDecay):
    """γ = 1 - 2^(-5 - h) in head h: retention (Sun et al. 2023, eq. 8).

    Examples:
        >>> Retention().rate(torch.arange(3)).exp()  # 31/32, 63/64, 127/128
        tensor([0.9688, 0.9844, 0.9922], dtype=torch.float64)
    """

    def rate(self, h):
        return torch.log1p(-torch.exp2(-5.0 - h.double()))


@dataclass(frozen=True)
class Lightning(FixedDecay):
    """γ = exp(-m), m the slope of ALiBi in that head: lightning attention (Qin et al. 2024).

    Examples:
        >>> Lightning(heads=4).rate(torch.arange(4))
        tensor([-0.2500, -0.0625, -0.0156, -0.0039], dtype=torch.float64)
    """

    heads: int

    def rate(self, h):
        return -Alibi(self.heads).slope(h)

    def values_error(self, batch, heads, width, keys):
        return Alibi(self.heads).shape_error(heads, width, keys)


@dataclass(frozen=True)
class ScalarDecay(StateGate):
    """S_t = a_t S_{t-1} + k_t v_tᵀ, log a = -exp(A) softplus(w x + b): Mamba-2 (Dao & Gu 2024), whose step size scales
    the values besides, and with other decays simple GLA.

    Examples:
        >>> Recipe(score=Dot(), pattern=Causal(), normaliser=Unnormalised(), gate=ScalarDecay()).gate
        ScalarDecay()
    """

    decay = "scalar"


@dataclass(frozen=True)
class VectorDecay(StateGate):
    """S_t = Diag(a_t) S_{t-1} + k_t v_tᵀ, a = σ(W₂ W₁ x + b)^(1/τ): gated linear attention (GLA, Yang et al. 2024).

    Examples:
        >>> VectorDecay()
        VectorDecay(temperature=16.0, rank=16)
    """

    temperature: float = 16.0
    rank: int = 16
    decay = "vector"

    @property
    def has_rate(self):
        return False

    @property
    def low_rank(self):
        return self.rank

    def make_log_decay(self, x, rate):
        return logsigmoid(x) / self.temperature


@dataclass(frozen=True)
class Delta(StateGate):
    """S_t = (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ, β = σ(w x): the delta rule (DeltaNet; Schlag et al. 2021, Yang
    et al. 2024), which overwrites what was stored under a key. Keys of length 1 (`Cosine`) keep it stable.

    Examples:
        >>> k = torch.eye(2)[None, None, [0, 1, 0]]  # the first key is written twice
        >>> v = torch.tensor([[[[4.0], [9.0], [5.0]]]])
        >>> recipe = Recipe(score=Dot(), pattern=Causal(), normaliser=Unnormalised(), gate=Delta())
        >>> steps(k, k, v, recipe.with_gate(beta=torch.ones(1, 1, 3))).weights[0, 0]
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])
    """

    delta = True


@dataclass(frozen=True)
class GatedDelta(StateGate):
    """S_t = a_t (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ: the gated delta rule (Gated DeltaNet; Yang et al. 2025), of
    Qwen3-Next; log a as in Mamba-2, β = σ(w x).

    Examples:
        >>> GatedDelta().values
        ('log_decay', 'beta')
    """

    decay = "scalar"
    delta = True


@dataclass(frozen=True)
class KimiDelta(StateGate):
    """S_t = (I - β_t k_t k_tᵀ) Diag(a_t) S_{t-1} + β_t k_t v_tᵀ: Kimi Delta Attention (KDA; Kimi Team 2025), the gated
    delta rule with a decay of each feature.

    Examples:
        >>> KimiDelta().decay
        'vector'
    """

    rank: int = 16
    decay = "vector"
    delta = True

    @property
    def low_rank(self):
        return self.rank


@dataclass(frozen=True, eq=False, repr=False)
class BoundGate(StateGate):
    """A gate with the values of one batch; the first of them belong to the key at index `first`."""

    gate: StateGate
    log_decay: Float[Tensor, "b h t *d"] | None
    beta: Float[Tensor, "b h t"] | None
    first: int = 0

    @property
    def decay(self) -> Decay:  # type: ignore[override]
        return self.gate.decay

    @property
    def delta(self) -> bool:  # type: ignore[override]
        return self.gate.delta

    @property
    def values(self):
        return ()

    def bind(self, log_decay, beta, first):
        return self.gate.bind(log_decay, beta, first)

    def bound_values(self):
        values = {"log_decay": self.log_decay, "beta": self.beta}
        return {name: x for name, x in values.items() if x is not None}

    def total_decay_at(self, b, h, j):
        if self.log_decay is None:
            return None
        return token_values(running_total(self.log_decay), b, h, j - self.first)

    def beta_at(self, b, h, j):
        return None if self.beta is None else token_values(self.beta, b, h, j - self.first)

    def values_error(self, batch, heads, width, keys):
        for name, x in (("log_decay", self.log_decay), ("beta", self.beta)):
            wanted = (batch, heads, keys, *((width,) if x is not None and x.dim() == 4 else ()))
            sizes = () if x is None else zip(x.shape, wanted, strict=True)
            if any(size not in ((1, most) if axis != 2 else (most,)) for axis, (size, most) in enumerate(sizes)):
                assert x is not None
                return f"{name} of {self.gate} is {tuple(x.shape)}, not {wanted}"
        return None

    def __repr__(self):
        shapes = (f"{name} {'×'.join(map(str, x.shape))}" for name, x in self.bound_values().items())
        return f"{type(self.gate).__name__}({', '.join(shapes)})"


def check_values(gate: Gate, log_decay: Tensor | None, beta: Tensor | None) -> None:
    """Refuses values that the gate does not want, or not of this shape."""
    for name, x in (("log_decay", log_decay), ("beta", beta)):
        if (x is None) is (name in gate.values):
            what = "missing" if x is None else "too many"
            raise ValueError(f"{gate} wants {' and '.join(gate.values)} of each token; {name} is {what}")
        axes = 4 if name == "log_decay" and gate.decay == "vector" else 3
        if x is not None and (x.dim() != axes or not x.is_floating_point()):
            shape = "(b, h, t, d)" if axes == 4 else "(b, h, t)"
            raise ValueError(f"{name} of {gate} holds one number for each {shape}, not {x.dtype} {tuple(x.shape)}")


def running_total(log_decay: Tensor) -> Tensor:
    """Σ log a over the tokens so far; in double precision, for differences of large sums are wanted."""
    return log_decay.double().cumsum(2)


def token_values(x: Tensor, b: Tensor, h: Tensor, t: Tensor) -> Tensor:
    """x[b, h, t]; what has one row or head for all is the same for each."""
    b, h = (at if size > 1 else at * 0 for at, size in zip((b, h), x.shape, strict=False))
    return x[b, h, t]


def state_objections(gate: Gate) -> list[str]:
    """Why a backend that weighs scores cannot run it; empty if it can."""
    return [f"{gate} keeps a state"] if isinstance(gate, StateGate) else []


def check_state(gate: StateGate, score: Score, schemes: Sequence[Position], normaliser: Normaliser) -> None:
    """Refuses parts that a state cannot be combined with."""
    if not isinstance(score, InnerProduct):
        raise ValueError(f"{gate} keeps a state of keys, which only an inner product has, not {score!r}")
    if schemes:
        raise ValueError(f"{schemes[0]} adds to single scores, which the state of {gate} has not")
    if normaliser == Softmax():
        raise ValueError(f"softmax needs every score, and {gate} keeps a state: normaliser=Unnormalised()")
    if gate.delta and normaliser == Proportional():
        raise ValueError(f"{gate} erases, so its weights may sum to 0: normaliser=Unnormalised()")


def check_gate(gate: Gate, pattern: Pattern, score: Score, q: Tensor, k: Tensor) -> None:
    """Refuses a gate without its values, or with those of other tokens, and a state of tokens that nothing orders."""
    if isinstance(gate, StateGate) and not is_causal_state(pattern):
        raise ValueError(f"{gate} runs from the first token to the last, and {pattern} is not causal; add & Causal()")
    folded = score.fold_k(k[:0]) if isinstance(score, InnerProduct) else k
    if why := gate.values_error(q.shape[0], q.shape[1], folded.shape[-1], k.shape[2]):
        raise ValueError(why)


def is_causal_state(pattern: Pattern) -> bool:
    """Is it causal, whatever else it hides?"""
    if isinstance(pattern, And):
        return is_causal_state(pattern.left) or is_causal_state(pattern.right)
    return pattern == Causal()


# --- the effective weights ---


def effective_scores(
    gate: StateGate,
    score: Score,
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b h j c"],
    grid: IndexGrid,
    visible: Bool[Tensor, "b h i j"],
    pattern: Pattern,
) -> Float[Tensor, "b h i j"]:
    """What each value weighs in o_i = S_iᵀ q_i, q and k as the score folds them.

    A_ij = q_i · Diag(a_{j+1} ⋯ a_i) k_j where i sees j. The delta rule stores u_t = β_t (v_t - what was stored under
    k_t) in place of v_t: U = diag(β) (V - L U), L the same products of keys with the keys before them, so that
    A U = A (I + diag(β) L)⁻¹ diag(β) V (Yang et al. 2024, eq. 10).
    """
    assert isinstance(score, InnerProduct)  # or the recipe is refused
    q, k = score.fold_q(q), score.fold_k(k)
    b, h, i, j = grid.b[..., 0], grid.h[..., 0], grid.i[..., 0], grid.j[:, :, 0]
    at_q, at_k = gate.total_decay_at(b, h, i), gate.total_decay_at(b, h, j)
    scores = decayed_products(q, k, at_q, at_k, visible)
    if (beta := gate.beta_at(b, h, j)) is None:
        return scores
    beta = beta.to(scores.dtype)
    among = IndexGrid(grid.b, grid.h, grid.j.mT, grid.j).visible(pattern)
    # a key that is hidden from its own token is hidden from all, and erases nothing
    earlier = among & (grid.j < grid.j.mT) & among.diagonal(dim1=-2, dim2=-1)[..., None]
    products = decayed_products(k, k, at_k, at_k, earlier.expand(*k.shape[:3], k.shape[2]))
    erased = torch.where(earlier, beta[..., None] * products, 0.0)
    inverse_of = {"upper": False, "left": False, "unitriangular": True}  # I + erased, in single precision at least
    solved = torch.linalg.solve_triangular(to_single(erased), to_single(scores), **inverse_of)
    return solved.to(scores.dtype) * beta[:, :, None]


def decayed_products(
    x: Float[Tensor, "b h i d"],
    y: Float[Tensor, "b h j d"],
    at_x: Float[Tensor, "#b #h i *d"] | None,
    at_y: Float[Tensor, "#b #h j *d"] | None,
    seen: Bool[Tensor, "b h i j"],
) -> Float[Tensor, "b h i j"]:
    """Σ_d x_id y_jd exp(c_id - c_jd) where seen, else 0. Only differences are exponentiated: exp(-c) overflows."""
    if at_x is None or at_y is None:
        return torch.where(seen, einsum(x, y, "b h i d, b h j d -> b h i j"), 0.0)

    def decay(one: Tensor, other: Tensor) -> Tensor:
        return (one[..., None] - other[..., None, :]).masked_fill(~seen, -torch.inf).exp().to(x.dtype)

    if at_x.dim() == 3:
        return torch.where(seen, einsum(x, y, "b h i d, b h j d -> b h i j") * decay(at_x, at_y), 0.0)
    features = zip(x.unbind(-1), y.unbind(-1), at_x.unbind(-1), at_y.unbind(-1), strict=True)
    terms = (one[..., None] * other[..., None, :] * decay(c, c_too) for one, other, c, c_too in features)
    return torch.where(seen, sum(terms), 0.0)  # type: ignore[arg-type]


# --- the values, from the tokens ---


class GateProjection(nn.Module):
    """What a gate wants of each token, from the token: log a, and β = σ(w x).

    Args:
        gate: which gate.
        model: the width of the tokens.
        heads, head: how many heads, and the width of their keys.

    Examples:
        >>> made = GateProjection(GatedDelta(), 8, heads=2, head=4)(torch.randn(1, 5, 8))
        >>> {name: tuple(x.shape) for name, x in made.items()}
        {'log_decay': (1, 2, 5), 'beta': (1, 2, 5)}
    """

    gate: Gate

    def __init__(self, gate: Gate, model: int, *, heads: int, head: int):
        super().__init__()
        # not as a part of this module: one with weights is the recipe's, which the layer registers
        self.__dict__["gate"], self.heads = gate, heads
        self.decay = self.beta = self.rate = self.time_step = None
        if "log_decay" in gate.values:
            width = heads * head if gate.decay == "vector" else heads
            rank, bias = gate.low_rank, not gate.has_rate
            self.decay = (
                nn.Linear(model, width, bias=bias)
                if rank is None
                else nn.Sequential(nn.Linear(model, rank, bias=False), nn.Linear(rank, width, bias=bias))
            )
            if gate.has_rate:  # as Mamba-2 begins: rates of 1 to 16, and time steps of 0.001 to 0.1
                self.rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
                steps = torch.empty(width).uniform_(log(1e-3), log(1e-1)).exp()
                self.time_step = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))  # softplus of it is the step
        if "beta" in gate.values:
            self.beta = nn.Linear(model, heads, bias=False)

    def forward(self, x: Float[Tensor, "b t m"], memory: Tensor | None = None) -> dict[str, Float[Tensor, "b h t *d"]]:
        """By their names, as `Recipe.with_gate` wants them."""
        if memory is not None:
            raise ValueError(f"{self.gate} gates a text's own past, and not another text: leave out memory")
        made: dict[str, Tensor] = {}
        if self.decay is not None:
            decay = to_single(self.decay(x))
            if self.time_step is not None:
                decay = decay + self.time_step.to(decay.dtype)
            decay = decay.unflatten(-1, (self.heads, -1))
            rate = decay.new_ones(()) if self.rate is None else self.rate.to(decay.dtype).exp()[:, None]
            decay = self.gate.make_log_decay(decay, rate).transpose(1, 2)
            made["log_decay"] = decay if self.gate.decay == "vector" else decay[..., 0]
        if self.beta is not None:
            made["beta"] = to_single(self.beta(x)).sigmoid().transpose(1, 2)
        return made


def to_single(x: Tensor) -> Tensor:
    """In single precision at least: a decay near 1 rounds to 1 in half."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
