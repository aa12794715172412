"""Hard attention in one pass: the value of one key per query, which key it is, and its log-probability.

Keys are taken in groups of GROUP. Going over them, a query keeps the log of the sum of all weights so far, and of one
group, the candidate, the scores: a reservoir. In the end it selects a key of the candidate.

    Hard     the group with the highest score replaces the candidate; its best key is selected, the first of equals
    Sampled  p(key) = p(group) p(key | group). A group of weight W = Σ e^s replaces the candidate if log W plus Gumbel
             noise is the highest so far, which samples groups in proportion to W; in the last candidate s plus noise
             decides likewise. Noise per group, not per key: a hundredth of the random numbers.

Noise comes from Philox (Salmon et al. 2011), which turns a seed and four counters (group or four keys; query; batch
element and head; which of both) into random bits, the same on every device and in any order, as Triton's `tl.philox`
makes them on a GPU. So one seed gives one sample, whatever the tiles. The seed comes from torch's generator. The
output's gradient goes to the selected values alone; that of log p = s_selected − lse is

    ∂log p_i/∂s_ij = [j = selected_i] − softmax(s_i)_j,

recomputed tile by tile from the log-sum-exp. Nothing of the size queries × keys ever exists. Here in plain torch, for
every pattern; `kernels/tiles.py` has the Triton kernels.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from regard.attention.backends.tiles import Interval, K, Out, Q, ScoreTiles, V, Visible, triton_tile_objections
from regard.attention.block_map import planning_objections
from regard.attention.gate import state_objections
from regard.attention.normaliser import Normaliser
from regard.attention.pattern import Positions
from regard.attention.recipe import Recipe
from regard.attention.score import InnerProduct
from regard.attention.softmax_variants import Hard, Sampled, StraightThrough
from regard.ops.dispatch import accumulation_dtype

GROUP = 128
ROUNDS = 7  # of Philox: the fewest that pass every known test
FEWEST = 2**16  # scores: below this the definition is as fast

Row = Float[Tensor, "b h i"]
Key = Int[Tensor, "b h i"]


@dataclass(frozen=True, eq=False)
class HardOutput:
    """v[key], the key (−1 for a query that sees nothing), and log of its softmax probability (then 0)."""

    out: Out
    key: Key
    log_probability: Row


def hard_attention(
    q: Q,
    k: Float[Tensor, "b g j c"],
    v: Float[Tensor, "b g j e"],
    recipe: Recipe = Recipe(normaliser=Hard()),
    *,
    q_index: int | Tensor | None = None,
    k_index: int | Tensor | None = None,
    seed: int | None = None,
) -> HardOutput:
    """One key per query: the best if the recipe's normaliser is Hard, a sample if it is Sampled. Never n × n.

    `log_probability` carries a gradient to q and k, for `reinforce`; `out` carries one to v.

    Args:
        seed: fixes the sample; the same seed selects the same keys. Default: one from torch's generator.
    """
    if k.shape[:3] != v.shape[:3] or len(q) != len(k) or q.shape[1] % k.shape[1]:
        raise ValueError(f"q, k and v do not fit: {', '.join(f'{tuple(x.shape)}' for x in (q, k, v))}")
    if why := recipe.score.shape_error(q.shape[3], k.shape[3]):
        raise ValueError(why)
    positions = Positions.of(q, k, q_index, k_index)
    if why := objections(recipe, q, k, positions):
        raise ValueError(f"hard attention cannot run this recipe: {'; '.join(why)}")
    for scheme in recipe.query_key_positions:
        q, k = scheme.rotate(q, positions.q), scheme.rotate_keys(k, positions.k)
    fixed = None if seed is None else torch.tensor(seed, device=q.device)
    return run_hard(recipe, q, k, v, positions, fixed)


# --- as a backend ---


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    return [
        *([] if q.is_cuda else planning_objections()),  # plain torch reads the block map
        *([] if isinstance(recipe.score, InnerProduct) else [f"{recipe.score} is not an inner product"]),
        *(f"{scheme} adds to single scores, whose gradients are not kept" for scheme in recipe.score_positions),
        *normaliser_objections(recipe.normaliser),
        *state_objections(recipe.gate),
    ]


def normaliser_objections(normaliser: Normaliser) -> list[str]:
    if type(normaliser) in (Hard, Sampled):
        return []
    if isinstance(normaliser, StraightThrough):
        return [f"{normaliser} learns through the noise of every key, and here a group of keys shares one sample"]
    return [f"{normaliser} is neither the best key (Hard) nor a sample (Sampled)"]


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    return [
        *([f"{scores:,} scores are no burden, so nothing is gained"] if scores < FEWEST else []),
        *([f"{q.shape[2]} queries leave a kernel's tile empty"] if q.is_cuda and q.shape[2] < 16 else []),
    ]


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    return run_hard(recipe, q, k, v, positions, None).out


# --- the operation ---


def run_hard(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions, seed: Tensor | None) -> HardOutput:
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    k, v = (repeat(x, "b g j d -> b (g r) j d", r=q.shape[1] // x.shape[1]) for x in (k, v))
    if seed is None and isinstance(recipe.normaliser, Sampled):
        seed = torch.randint(2**63 - 1, (), device=q.device)
    elif not isinstance(recipe.normaliser, Sampled):
        seed = None
    engine = choose_engine(recipe, q, v, positions, seed)
    return HardOutput(*HardFunction.apply(engine, recipe.score.fold_q(q), recipe.score.fold_k(k), v))  # type: ignore[misc]


class HardEngine(ABC):
    """Abstract: what goes over the tiles, in plain torch or by kernels."""

    @abstractmethod
    def choose(self, q: Q, k: K, v: V) -> tuple[Out, Key, Row, Row]:
        """The selected value, which key it is, log p of it, and the log-sum-exp of its row."""

    @abstractmethod
    def scores_backward(self, q: Q, k: K, key: Key, lse: Row, grad: Row) -> tuple[Q, K]:
        """From the gradient of log p."""

    @abstractmethod
    def values_backward(self, key: Key, grad: Out, v: V) -> V:
        """The gradient of the output, added up over the queries that selected each key: in one order, always."""


class HardFunction(torch.autograd.Function):
    """Keeps q, k, v, the selected keys and the log-sum-exp."""

    @staticmethod
    def forward(ctx, engine, q, k, v):
        with torch.autocast(q.device.type, enabled=False):
            out, key, log_p, lse = engine.choose(q, k, v)
        ctx.save_for_backward(q, k, v, key, lse)
        ctx.engine = engine
        ctx.mark_non_differentiable(key)
        ctx.set_materialize_grads(False)  # where log p is not used it costs nothing
        return out, key, log_p

    @staticmethod
    @once_differentiable
    def backward(ctx, of_out, _, of_log_p):  # type: ignore[override]
        (q, k, v, key, lse), (_, *wanted) = ctx.saved_tensors, ctx.needs_input_grad
        dq = dk = dv = None
        with torch.autocast(q.device.type, enabled=False):
            if of_log_p is not None and any(wanted[:2]):
                dq, dk = ctx.engine.scores_backward(q, k, key, lse, of_log_p)
            if of_out is not None and wanted[2]:
                dv = ctx.engine.values_backward(key, of_out, v)
        return None, dq, dk, dv


def choose_engine(recipe: Recipe, q: Tensor, v: Tensor, positions: Positions, seed: Tensor | None) -> HardEngine:
    """With a seed for a sample, without for the best."""
    if triton_tile_objections(recipe.pattern, positions, q, v):
        return TorchHard(ScoreTiles.of(recipe.pattern, positions, *q.shape[:2]), seed)
    from regard.attention.kernels.tiles import TritonHard  # only here is Triton needed

    interval = Interval.of(recipe.pattern)
    assert interval is not None  # or it would say why not
    assert positions.start is not None
    return TritonHard(interval, positions.start, seed)


# --- in plain torch ---


@dataclass(frozen=True, eq=False)
class TorchHard(HardEngine):
    """Every pattern, on any device."""

    tiles: ScoreTiles
    seed: Tensor | None

    def choose(self, q, k, v):
        key = torch.full(q.shape[:3], -1, device=q.device)
        lse, log_p = (torch.zeros(q.shape[:3], dtype=accumulation_dtype(q), device=q.device) for _ in range(2))
        for rows, seen in self.tiles.bands():
            mine = q[:, :, rows].to(accumulation_dtype(q))
            reservoir = Reservoir.empty(mine, rows, self.seed)
            for cols, visible in seen:
                reservoir = reservoir.after(scores(mine, k[:, :, cols], visible), cols.start // GROUP)
            key[:, :, rows], log_p[:, :, rows], lse[:, :, rows] = reservoir.decide()
        out = torch.gather(v, 2, repeat(key.clamp(min=0), "b h i -> b h i e", e=v.shape[3])) if k.shape[2] else None
        out = v.new_zeros(*q.shape[:3], v.shape[3]) if out is None else out.masked_fill_((key < 0)[..., None], 0.0)
        return out, key, log_p, lse

    def scores_backward(self, q, k, key, lse, grad):
        dq, dk = (torch.zeros_like(x, dtype=accumulation_dtype(x)) for x in (q, k))
        for rows, seen in self.tiles.bands():
            mine, upstream = q[:, :, rows].to(dq.dtype), grad[:, :, rows, None].to(dq.dtype)
            for cols, visible in seen:
                p = scores(mine, k[:, :, cols], visible).sub_(lse[:, :, rows, None]).exp_()
                hit = key[:, :, rows, None] == torch.arange(cols.start, cols.stop, device=q.device)
                ds = hit.to(p.dtype).sub_(p).mul_(upstream)
                dq[:, :, rows] += ds @ k[:, :, cols].to(ds.dtype)
                dk[:, :, cols] += ds.mT @ mine
        return dq.to(q.dtype), dk.to(k.dtype)

    def values_backward(self, key, grad, v):
        """Sorted by key; then every key's queries are adjacent and are summed in their order."""
        batch, heads, keys, _ = v.shape
        first = keys * torch.arange(batch * heads, device=key.device).view(batch, heads, 1)
        found = key >= 0
        flat, upstream = (key + first)[found], grad[found].to(accumulation_dtype(v))
        if not len(flat):
            return torch.zeros_like(v)  # segment_reduce refuses an empty tensor
        counts = torch.bincount(flat, minlength=batch * heads * keys)
        sums = torch.segment_reduce(upstream[flat.argsort(stable=True)], "sum", lengths=counts, initial=0)
        return sums.to(v.dtype).view(v.shape)


def scores(q: Tensor, k: Tensor, visible: Visible) -> Float[Tensor, "b h r c"]:
    s = q @ k.to(q.dtype).mT
    return s if visible is None else torch.where(visible, s, -torch.inf)


@dataclass(frozen=True, eq=False)
class Reservoir:
    """What some queries know after some groups of keys: the candidate group, its scores, and the sum of all."""

    rows: Int[Tensor, "r"]
    heads: Int[Tensor, "b h"]
    seed: Tensor | None
    best: Float[Tensor, "b h r"]
    group: Int[Tensor, "b h r"]
    scores: Float[Tensor, "b h r group"]
    lse: Float[Tensor, "b h r"]

    @staticmethod
    def empty(q: Float[Tensor, "b h r d"], rows: slice, seed: Tensor | None) -> "Reservoir":
        none = q.new_full(q.shape[:3], -torch.inf)
        numbers = torch.arange(q.shape[0] * q.shape[1], device=q.device).view(q.shape[:2])
        at = torch.arange(rows.start, rows.stop, device=q.device)
        held = none[..., None].expand(-1, -1, -1, GROUP)
        return Reservoir(at, numbers, seed, none, torch.full_like(none, -1, dtype=torch.long), held, none)

    def after(self, s: Float[Tensor, "b h r c"], first: int) -> "Reservoir":
        """Having seen these scores too, of the groups from `first` on."""
        missing = -s.shape[-1] % GROUP
        s = pad(s, (0, missing), value=-torch.inf) if missing else s
        s = rearrange(s, "b h r (g t) -> b h r g t", t=GROUP)
        weight = s.logsumexp(-1)
        groups = torch.arange(first, first + s.shape[3], device=s.device)
        race = s.amax(-1) if self.seed is None else weight + self.group_noise(groups).to(s.dtype)
        best, at = race.max(-1)
        better = best > self.best
        theirs = s.gather(3, repeat(at, "b h r -> b h r 1 t", t=GROUP)).squeeze(3)
        return Reservoir(
            self.rows,
            self.heads,
            self.seed,
            torch.where(better, best, self.best),
            torch.where(better, at + first, self.group),
            torch.where(better[..., None], theirs, self.scores),
            torch.logaddexp(self.lse, weight.logsumexp(-1)),
        )

    def decide(self) -> tuple[Key, Row, Row]:
        """The key, log p and log-sum-exp."""
        race = self.scores if self.seed is None else self.scores + self.key_noise().to(self.scores.dtype)
        at, found = race.argmax(-1, keepdim=True), self.group >= 0
        log_p = (self.scores.gather(-1, at).squeeze(-1) - self.lse).clamp(max=0.0)
        key = self.group * GROUP + at.squeeze(-1)
        return torch.where(found, key, -1), torch.where(found, log_p, 0.0), torch.where(found, self.lse, 0.0)

    def group_noise(self, groups: Int[Tensor, "g"]) -> Float[Tensor, "b h r g"]:
        return gumbel(self.words(groups, 0)[0])

    def key_noise(self) -> Float[Tensor, "b h r t"]:
        """For each key of the candidate: four from each turn of the generator."""
        fours = self.group[..., None] * (GROUP // 4) + torch.arange(GROUP // 4, device=self.group.device)
        return gumbel(rearrange(list(self.words(fours, 1)), "word b h r t -> b h r (t word)"))

    def words(self, numbers: Int[Tensor, "*#bhr n"], kind: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        assert self.seed is not None
        return philox(self.seed, numbers, self.rows[:, None], self.heads[..., None, None], kind)


# --- Gumbel noise ---


Word = Tensor | int


def gumbel(bits: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """−log(−log u) with u in (0, 1), from 32 random bits; the winners' side of u is the fine one."""
    u = (bits.double() + 0.5) * 2.0**-32
    return -u.clamp(max=1 - 2.0**-24).neg().log1p().neg().log()


def philox(seed: Tensor, c0: Word, c1: Word, c2: Word, c3: Word) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of Philox 4×32, as numbers below 2³². What overflows is cut off by `low`."""
    low = 2**32 - 1
    k0, k1 = seed & low, (seed >> 32) & low
    for _ in range(ROUNDS):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32 & low) ^ c1 ^ k0, b & low, (a >> 32 & low) ^ c3 ^ k1, a & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return c0, c1, c2, c3  # type: ignore[return-value]
