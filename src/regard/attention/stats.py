"""Attention statistics: exact weights, entropy, mass and maps of a recipe, in memory that grows with n, never n².

    stats = attention_stats(q, k, recipe, StatsRequest(rows=(0, 7), top=8, map=(64, 64), mass=True, entropy=True))
    stats.rows, stats.top, stats.map, stats.mass, stats.entropy

Fused kernels return no weights, and at a hundred thousand tokens nobody could hold them. What is not requested is not
computed: rows alone cost no more than those rows. A query that sees nothing weighs every key 0.

The weights are computed a band at a time: some queries against every key they may see (the pattern's block map leaves
out the rest), so that each row is whole and the reference itself can weigh it, whatever the normaliser.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.attention.backends import reference
from regard.attention.block_map import MIXED
from regard.attention.functional import prepare
from regard.attention.gate import StateGate
from regard.attention.kernels import stats_plan as plan
from regard.attention.normaliser import AttentionDropout, Normaliser, Softmax
from regard.attention.pattern import Full, IndexGrid, Pattern, Positions
from regard.attention.position import PositionSum, ScorePosition
from regard.attention.recipe import Recipe
from regard.attention.score import Additive, Dot, InnerProduct, Score
from regard.attention.softmax_variants import Sampled, StraightThrough, TopK
from regard.attention.text_positions import with_score_positions

ROWS = 128  # queries in a band, and the size of the blocks that are skipped
CELLS_AT_ONCE = {"cpu": 2**20, "cuda": 2**24}  # weights in a band: what stays in a cache, what keeps a GPU busy


@dataclass(frozen=True)
class KeyRuns:
    """The keys a band sees, as ascending runs (first, stop), and where among them the pattern must be evaluated."""

    runs: tuple[tuple[int, int], ...]
    mixed: tuple[tuple[int, int], ...]  # counted in the band, from its first key

    def __len__(self) -> int:
        return sum(stop - first for first, stop in self.runs)

    def hull(self) -> "KeyRuns":
        """The keys between them too."""
        first, stop = self.runs[0][0], self.runs[-1][1]
        return KeyRuns(((first, stop),), ((0, stop - first),))

    def take(self, x: Tensor, dim: int) -> Tensor:
        parts = [x.narrow(dim, first, stop - first) for first, stop in self.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def where(self, key: int) -> int | None:
        """The index of this key within the band; None if it is not in it."""
        before = 0
        for first, stop in self.runs:
            if first <= key < stop:
                return before + key - first
            before += stop - first
        return None

    def parts(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """What belongs to each run of keys, along the last axis."""
        lengths = [stop - first for first, stop in self.runs]
        for (first, stop), part in zip(self.runs, x.split(lengths, -1), strict=True):
            yield slice(first, stop), part


@dataclass(frozen=True, eq=False)
class QueryBand:
    """Some batch elements, heads and queries, the keys they see, and their scores and weights, those of the reference.

    Scores and weights hold until the next band is made.
    """

    batch: slice
    heads: slice
    queries: slice
    reach: KeyRuns
    of: tuple[int, int]  # so many queries and keys there are in all
    scores: Tensor  # with positions, the hidden ones too
    hidden: "HiddenKeys"
    normaliser: Normaliser
    weights: Tensor
    scratch: Tensor | None = None  # as large as the weights, for softmax of q · k; then hidden scores are -∞

    @property
    def at(self) -> tuple[slice, slice, slice]:
        return self.batch, self.heads, self.queries

    @property
    def query_indices(self) -> Tensor:
        return torch.arange(self.queries.start, self.queries.stop, device=self.weights.device)

    @property
    def keys(self) -> Tensor:
        return torch.cat([torch.arange(*run, device=self.weights.device) for run in self.reach.runs])

    def weighted_sum(self, x: Tensor) -> Tensor:
        """Σ_j w_ij x_ij"""
        return torch.mul(self.weights, x, out=self.scratch).sum(-1)

    def entropy(self) -> Tensor:
        """-Σ w log w. Of softmax log w = s - max s + log max w: a logarithm for each query, not for each weight."""
        if self.scratch is None:
            return entropy(self.weights)
        logs = torch.sub(self.scores, self.scores.amax(-1, keepdim=True), out=self.scratch)
        self.hidden.fill_(logs, 0.0)  # 0 log 0 = 0
        most = self.weights.amax(-1)
        return most.masked_fill_(most == 0, 1.0).reciprocal().log() - logs.mul_(self.weights).sum(-1)


@dataclass(frozen=True, eq=False)
class StatsCall:
    """The inputs of one call: q and k already rotated by their positions, and their index grid."""

    recipe: Recipe
    q: Tensor
    k: Tensor
    cells: IndexGrid

    @staticmethod
    def of(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> "StatsCall":
        if why := stochastic_objection(recipe.normaliser):
            raise ValueError(why)
        if q.dtype.itemsize < 4:  # as fused kernels do: scores and sums of half precision are kept in single
            q, k, recipe = q.float(), k.float(), to_float32(recipe)
        score = recipe.score
        if isinstance(score, InnerProduct):  # map q and k once, not again in every band
            q, k, score = score.fold_q(q), score.fold_k(k), Dot()
        else:
            score = ChunkedScore(score, score.hidden if isinstance(score, Additive) else q.shape[3], cells_at_once(q))
        recipe = replace(with_score_positions(recipe, map(ScoreTermOnly, recipe.score_positions)), score=score)
        return StatsCall(recipe, q, k, positions.grid(*q.shape[:2]))

    def select_queries(self, queries: tuple[int, ...]) -> "StatsCall":
        chosen = torch.tensor(queries, dtype=torch.long, device=self.q.device)
        cells = replace(self.cells, i=self.cells.i.index_select(2, chosen))
        return replace(self, q=self.q.index_select(2, chosen), cells=cells)

    @property
    def is_plain(self) -> bool:
        """Softmax of q · k alone: nobody else has made the scores or may keep them, so they can be written over."""
        return replace(self.recipe, pattern=Full()) == Recipe(score=Dot(), position=PositionSum(()))

    def bands(self, reaches: list[KeyRuns]) -> Iterator[QueryBand]:
        """All queries, ROWS at a time, each with its reach; fewer queries and heads where that would be too many."""
        (size, heads, n_q, _), at_once = self.q.shape, cells_at_once(self.q)
        memory = self.shared_memory(max(map(len, reaches), default=0)) if self.is_plain else None
        for number, reach in enumerate(reaches):
            if not len(reach):
                continue
            if isinstance(self.recipe.gate, StateGate):  # what is stored under a key depends on all between
                reach = reach.hull()
            rows = ROWS if self.recipe.normaliser.row_wise else n_q
            first, last = number * rows, min((number + 1) * rows, n_q)
            for queries in slices(first, last, min(rows, at_once // len(reach)) if rows == ROWS else rows):
                fit = at_once // ((queries.stop - queries.start) * len(reach))
                for batch in slices(0, size, fit // heads):
                    hidden = self.hidden(batch, queries, reach)
                    own = whole_groups(fit, heads // self.k.shape[1]) if self.recipe.normaliser.head_wise else heads
                    for some in slices(0, heads, own):
                        yield self.band(batch, some, queries, reach, hidden, memory)

    def hidden(self, batch: slice, queries: slice, reach: KeyRuns) -> "HiddenKeys":
        cells = self.cells_of(batch, slice(None), queries, reach)
        parts = ((slice(*some), replace(cells, j=cells.j[..., slice(*some)])) for some in reach.mixed)
        return HiddenKeys(tuple((some, ~part.visible(self.recipe.pattern)) for some, part in parts))

    def shared_memory(self, keys: int) -> Tensor:
        """What the largest band of so many keys needs, for all bands: new memory for each takes longer than softmax."""
        b, h, i, _ = self.q.shape
        return self.q.new_empty(3, min(max(cells_at_once(self.q), keys), b * h * i * keys))

    def band(
        self, batch: slice, heads: slice, queries: slice, reach: KeyRuns, hidden: "HiddenKeys", memory: Tensor | None
    ) -> QueryBand:
        share = self.q.shape[1] // self.k.shape[1]
        q = self.q[batch, heads, queries]
        k = reach.take(self.k[batch, heads.start // share : -(-heads.stop // share)], 2)
        of, hidden = (self.q.shape[2], self.k.shape[2]), hidden.of(heads)
        if memory is not None:
            scores, weights, scratch = softmax_of_products(q, k, hidden, memory)
            return QueryBand(batch, heads, queries, reach, of, scores, hidden, self.recipe.normaliser, weights, scratch)
        cells = self.cells_of(batch, heads, queries, reach)
        own = self.recipe.normaliser.for_heads(range(heads.start, heads.stop))
        recipe = replace(self.recipe, normaliser=own)
        yes = torch.ones((), dtype=torch.bool, device=q.device)
        visible = yes.expand(1, 1, q.shape[2], len(reach))
        if recipe.normaliser == Softmax() and not any(scheme.is_contextual for scheme in recipe.score_positions):
            recipe = replace(recipe, normaliser=MaskedSoftmax(hidden))
        elif hidden.parts:
            visible = hidden.visible(visible)
        steps = reference.steps(recipe, q, k, k[..., :0], cells, visible)
        return QueryBand(
            batch, heads, queries, reach, of, steps.adjusted, hidden, self.recipe.normaliser, steps.weights
        )

    def cells_of(self, batch: slice, heads: slice, queries: slice, reach: KeyRuns) -> IndexGrid:
        i, j = (at[batch] if len(at) > 1 else at for at in (self.cells.i, self.cells.j))
        return IndexGrid(self.cells.b[batch], self.cells.h[:, heads], i[:, :, queries], reach.take(j, 3))


def softmax_of_products(q: Tensor, k: Tensor, hidden: "HiddenKeys", memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores q · k, -∞ where hidden, their softmax, and as much scratch, in memory that is theirs."""
    shape = *q.shape[:3], k.shape[2]
    scores, weights, scratch = memory[:, : torch.Size(shape).numel()].view(3, *shape)
    if k.shape[1] < q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT, out=scores.flatten(0, 1))
    hidden.fill_(scores, -torch.inf)
    return scores, hidden.clear_blind(torch.softmax(scores, -1, out=weights)), scratch


# --- what is hidden ---


@dataclass(frozen=True, eq=False)
class HiddenKeys:
    """Which keys of a band are hidden after all, and only where that is in doubt: most blocks are full or empty."""

    parts: tuple[tuple[slice, Tensor], ...]

    def of(self, heads: slice) -> "HiddenKeys":
        return HiddenKeys(tuple((at, mask[:, heads] if mask.shape[1] > 1 else mask) for at, mask in self.parts))

    def visible(self, everything: Tensor) -> Tensor:
        shape = self.parts[0][1].shape[:2]
        visible = everything.expand(*shape, -1, -1).clone()
        for at, mask in self.parts:
            visible[..., at] = ~mask
        return visible

    def put(self, scores: Tensor) -> Tensor:
        """The scores, -∞ where hidden."""
        scores = scores.clone() if self.parts else scores
        self.fill_(scores, -torch.inf)
        return scores

    def fill_(self, x: Tensor, value: float) -> None:
        """Write a value where keys are hidden."""
        for at, mask in self.parts:
            x[..., at].masked_fill_(mask, value)

    def clear_blind(self, weights: Tensor) -> Tensor:
        """Write 0 for queries from which every key is hidden, of which softmax makes NaN."""
        if sum(at.stop - at.start for at, _ in self.parts) == weights.shape[-1]:
            blind = torch.stack([mask.all(-1, keepdim=True) for _, mask in self.parts]).all(0)
            weights.masked_fill_(blind, 0.0)
        return weights


@dataclass(frozen=True, eq=False)
class MaskedSoftmax(Normaliser):
    """Softmax that knows where keys are hidden, and masks nothing elsewhere."""

    hidden: HiddenKeys

    def weigh(self, scores, visible):
        return self.hidden.clear_blind(self.hidden.put(scores).softmax(-1))


# --- which keys ---


def key_runs(pattern: Pattern, n_q: int, n_k: int, start: int | None) -> list[KeyRuns]:
    """For each band the keys it may see; all of them where no block map can be had."""
    number = -(-n_q // ROWS)
    if start is None or pattern.depends_on_head or not n_k or not n_q:
        return all_keys(n_q, n_k)
    runs: list[list[tuple[int, int]]] = [[] for _ in range(number)]
    mixed: list[list[tuple[int, int]]] = [[] for _ in range(number)]
    lengths = [0] * number
    blocks = pattern.blocks(n_q, n_k, ROWS, start=start)
    for row, first, stop, state in zip(*map(Tensor.tolist, blocks.runs()), strict=True):
        begin, end = first * ROWS, min(stop * ROWS, n_k)
        joins = bool(runs[row]) and runs[row][-1][1] == begin  # a mixed run may go on from a full one
        runs[row].append((runs[row].pop()[0] if joins else begin, end))
        if state == MIXED:
            mixed[row].append((lengths[row], lengths[row] + end - begin))
        lengths[row] += end - begin
    return [KeyRuns(tuple(keys), tuple(some)) for keys, some in zip(runs, mixed, strict=True)]


def all_keys(n_q: int, n_k: int) -> list[KeyRuns]:
    return [KeyRuns(((0, n_k),), ((0, n_k),))] * -(-n_q // ROWS)


def slices(first: int, last: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    for start in range(first, last, size):
        yield slice(start, min(start + size, last))


def whole_groups(fit: int, share: int) -> int:
    """So many heads that each key head serves all of them or one alone."""
    return fit // share * share or 1


def cells_at_once(x: Tensor) -> int:
    return CELLS_AT_ONCE["cpu" if x.device.type == "cpu" else "cuda"]


# --- the recipe, prepared ---


def stochastic_objection(normaliser: Normaliser) -> str | None:
    """Why there is no such thing as its exact weights; None if there is."""
    if isinstance(normaliser, (Sampled, StraightThrough, AttentionDropout)):
        return (
            f"{normaliser} samples, and its weights differ from call to call: ask for what it samples from (Softmax())"
        )
    return stochastic_objection(normaliser.then) if isinstance(normaliser, TopK) else None


def to_float32(recipe: Recipe) -> Recipe:
    """The same recipe in single precision."""

    def wide(part: Any) -> Any:
        return deepcopy(part).float() if isinstance(part, nn.Module) else part

    recipe = with_score_positions(recipe, map(wide, recipe.score_positions))
    return replace(recipe, score=wide(recipe.score), normaliser=wide(recipe.normaliser))


@dataclass(frozen=True, eq=False)
class ScoreTermOnly(ScorePosition):
    """Another scheme, less what it adds to the values, which are not needed here."""

    scheme: ScorePosition

    def score_term(self, q, b, h, i, j):
        return self.scheme.score_term(q, b, h, i, j)

    @property
    def is_contextual(self):
        return self.scheme.is_contextual

    def contextual_term(self, q, scores, visible, b, h, i, j):
        return self.scheme.contextual_term(q, scores, visible, b, h, i, j)


@dataclass(frozen=True, eq=False)
class ChunkedScore(Score):
    """Another score, a few keys at a time: one that takes q and k together needs `hidden` numbers per pair."""

    score: Score
    hidden: int
    at_once: int

    def compare(self, q, k):
        size = max(1, self.at_once // max(1, self.hidden * q.shape[0] * q.shape[1] * q.shape[2]))
        return torch.cat([self.score.compare(q, part) for part in k.split(size, 2)], -1)


# --- the request and the statistics ---


CHUNK = 64  # weights of which only the largest is compared first, in search of the top


@dataclass(frozen=True, kw_only=True)
class StatsRequest:
    """Which statistics to compute; `AttentionStats` says what each is. Queries and keys count from 0.

    Examples:
        >>> q = torch.zeros(1, 1, 8, 4)
        >>> stats = attention_stats(q, q, Recipe(pattern=Causal()), StatsRequest(rows=(1,), map=(2, 2)))
        >>> stats.rows[0, 0]
        tensor([[0.5000, 0.5000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000]])
        >>> stats.map[0, 0]
        tensor([[4.0000, 0.0000],
                [2.5381, 1.4619]])
    """

    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    top: int = 0
    map: tuple[int, int] | None = None
    peaks: tuple[int, int] | None = None
    mass: bool = False
    entropy: bool = False
    log_sum_exp: bool = False

    def __post_init__(self):
        if not self.rows and not self.needs_all_queries:
            raise ValueError("nothing is requested: name a statistic, e.g. StatsRequest(mass=True)")
        if self.top < 0:
            raise ValueError(f"top={self.top}: keys are counted from 1, and 0 asks for none")
        for name, size in (("map", self.map), ("peaks", self.peaks)):
            if size is not None and (len(size) != 2 or min(size) < 1):
                raise ValueError(f"{name}={size}: a map has rows and columns, at least one of each, e.g. (64, 64)")

    @property
    def needs_all_queries(self) -> bool:
        """Whether more is requested than single rows."""
        return bool(self.columns or self.top or self.map or self.peaks or self.mass or self.entropy or self.log_sum_exp)

    def shape_error(self, n_q: int, n_k: int) -> str | None:
        for name, chosen, length in (("rows", self.rows, n_q), ("columns", self.columns, n_k)):
            if wrong := [index for index in chosen if not 0 <= index < length]:
                return f"{name}: there is no {wrong[0]} among {length}; they are counted from 0 to {length - 1}"
        return None


@dataclass(frozen=True, eq=False)
class TopKeys:
    """The keys that weigh most, largest first, of equal ones any; key -1 and weight 0 where fewer weigh anything.

    Both are (b, h, i, k).

    Examples:
        >>> q, k = torch.tensor([[[[1.0, 3.0, 4.0]]]]).log(), torch.eye(3)[None, None]
        >>> stats = attention_stats(q, k, Recipe(score=Dot()), StatsRequest(top=2))
        >>> stats.top.keys, stats.top.weights
        (tensor([[[[2, 1]]]]), tensor([[[[0.5000, 0.3750]]]]))
    """

    keys: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionStats:
    """What was requested; None what was not. i runs over all queries and j over all keys.

    Examples:
        >>> q = torch.zeros(1, 1, 4, 8)
        >>> stats = attention_stats(q, q, Recipe(pattern=Causal()))
        >>> stats.mass[0, 0]  # 1 + 1/2 + 1/3 + 1/4, 1/2 + 1/3 + 1/4, ...
        tensor([2.0833, 1.0833, 0.5833, 0.2500])
        >>> stats.entropy[0, 0]  # log 1, log 2, log 3, log 4
        tensor([0.0000, 0.6931, 1.0986, 1.3863])
        >>> stats.rows is None
        True
    """

    rows: Tensor | None  # weights of the chosen queries, (b, h, rows, j)
    columns: Tensor | None  # weights of the chosen keys, (b, h, i, columns)
    top: TopKeys | None
    map: Tensor | None  # the weights shrunk to a picture: query i and key j add to cell (i·R // n_q, j·C // n_k)
    peaks: Tensor | None  # the same, but the largest weight of each cell
    mass: Tensor | None  # what each key gets from all queries together, (b, h, j)
    entropy: Tensor | None  # -Σ p log p, p the weights over their sum, (b, h, i); NaN where a weight is negative
    log_sum_exp: Tensor | None  # log Σ exp of the scores a query sees, (b, h, i); -inf where it sees nothing


@torch.no_grad()
def attention_stats(
    q: Tensor,
    k: Tensor,
    recipe: Recipe = Recipe(),
    request: StatsRequest = StatsRequest(mass=True, entropy=True),
    *,
    q_index: int | Tensor | None = None,
    k_index: int | Tensor | None = None,
    log_sum_exp: Tensor | None = None,
) -> AttentionStats:
    """Exactly what `steps(q, k, v, recipe).weights` would give; half precision is computed in single.

    Args:
        recipe: what attention is; any that the reference runs, unless its normaliser samples.
        request: which statistics.
        q_index: positions of the queries, as in `attend`; a number lets the pattern's empty blocks be skipped.
        k_index: positions of the keys, likewise.
        log_sum_exp: log Σ exp of the scores each query sees, (b, h, i), if a fused forward pass has kept it: saves the
            kernels (on a GPU, in half precision) half of their time. Others compute it themselves.

    Examples:
        >>> q = torch.zeros(1, 1, 4096, 8)
        >>> stats = attention_stats(q, q, Recipe(pattern=Window(2)))
        >>> stats.mass[0, 0, :3]  # 1/2 + 1/3, 1/2 + 1/3 + 1/3, 1/3 + 1/3 + 1/3
        tensor([0.8333, 1.1667, 1.0000])
        >>> stats.entropy[0, 0, :3]  # log 2, log 3, log 3
        tensor([0.6931, 1.0986, 1.0986])
    """
    recipe, q, k, positions = prepare(q, k, k, recipe, q_index, k_index)
    if why := request.shape_error(q.shape[2], k.shape[2]):
        raise ValueError(why)
    if log_sum_exp is not None and log_sum_exp.shape != q.shape[:3]:
        raise ValueError(f"log_sum_exp has {tuple(log_sum_exp.shape)}, not one number per query: {tuple(q.shape[:3])}")
    if not plan.objections(recipe, q, k, positions, request.top):
        return stats_by_kernels(plan.StatsInputs.of(recipe, q, k, positions), request, log_sum_exp)
    call = StatsCall.of(recipe, q, k, positions)
    stats = allocate_stats(request, call.q, call.k)
    if not recipe.normaliser.row_wise:  # a query's weights depend on the others, so all are weighed at once
        for band in call.bands(all_keys(1, k.shape[2])):
            accumulate_band(band, request, stats)
            if stats.rows is not None:
                stats.rows[band.batch, band.heads] = band.weights[:, :, list(request.rows)]
        return stats
    if stats.rows is not None:
        for band in call.select_queries(request.rows).bands(all_keys(len(request.rows), k.shape[2])):
            stats.rows[band.at] = band.weights
    if request.needs_all_queries:
        for band in call.bands(key_runs(recipe.pattern, q.shape[2], k.shape[2], positions.start)):
            accumulate_band(band, request, stats)
    return stats


def stats_by_kernels(seen: plan.StatsInputs, request: StatsRequest, log_sum_exp: Tensor | None) -> AttentionStats:
    """By the kernels: what they find they find in one or two passes; single rows and columns are materialised."""
    if not request.needs_all_queries:
        rows = seen.rows(request.rows)
        return AttentionStats(
            rows=rows, columns=None, top=None, map=None, peaks=None, mass=None, entropy=None, log_sum_exp=None
        )
    from regard.attention.kernels.stats import compute_stats  # only here is Triton needed

    with torch.cuda.device_of(seen.q):
        found, heads = compute_stats(seen, request, log_sum_exp), seen.q.shape[1]

    def parted(x: Tensor | None) -> Tensor | None:
        return None if x is None else rearrange(x, "(b h) ... -> b h ...", h=heads)

    lse, keys, weights = parted(found.log_sum_exp), parted(found.keys), parted(found.weights)
    assert lse is not None
    return AttentionStats(
        # after the kernels: what takes many small calls is called while they run
        rows=seen.rows(request.rows) if request.rows else None,
        columns=seen.columns(request.columns, lse) if request.columns else None,
        top=None if keys is None or weights is None else TopKeys(keys, weights),
        map=parted(found.map),
        peaks=parted(found.peaks),
        mass=parted(found.mass),
        entropy=parted(found.entropy),
        log_sum_exp=lse if request.log_sum_exp else None,
    )


def allocate_stats(request: StatsRequest, q: Tensor, k: Tensor) -> AttentionStats:
    """The statistics of queries that see nothing, to be filled in."""
    (b, h, i, _), j = q.shape, k.shape[2]
    top = (q.new_full((b, h, i, request.top), -1, dtype=torch.long), q.new_zeros(b, h, i, request.top))
    return AttentionStats(
        rows=q.new_zeros(b, h, len(request.rows), j) if request.rows else None,
        columns=q.new_zeros(b, h, i, len(request.columns)) if request.columns else None,
        top=TopKeys(*top) if request.top else None,
        map=q.new_zeros(b, h, *request.map) if request.map else None,
        peaks=q.new_zeros(b, h, *request.peaks) if request.peaks else None,
        mass=q.new_zeros(b, h, j) if request.mass else None,
        entropy=q.new_zeros(b, h, i) if request.entropy else None,
        log_sum_exp=q.new_full((b, h, i), -torch.inf) if request.log_sum_exp else None,
    )


def accumulate_band(band: QueryBand, request: StatsRequest, into: AttentionStats) -> None:
    """Add the statistics of one band."""
    weights, whose = band.weights, (band.batch, band.heads)
    if into.columns is not None:
        for number, key in enumerate(request.columns):
            if (index := band.reach.where(key)) is not None:
                into.columns[(*band.at, number)] = weights[..., index]
    if into.top is not None:
        keys, best = top_weights(weights, request.top)
        into.top.keys[band.at][..., : keys.shape[-1]] = band.keys[keys].masked_fill(best <= 0, -1)
        into.top.weights[band.at][..., : keys.shape[-1]] = best.clamp(min=0)
    if into.entropy is not None:
        into.entropy[band.at] = band.entropy()
    if into.log_sum_exp is not None:
        into.log_sum_exp[band.at] = log_sum_exp(band)
    if into.mass is not None:
        for keys, part in band.reach.parts(weights.sum(2)):
            into.mass[whose][..., keys] += part
    if into.map is not None:
        cells = band.keys * into.map.shape[3] // band.of[1]
        for row, some in map_rows(band, into.map.shape[2]):
            sums = some.sum(2)
            into.map[whose][:, :, row].scatter_add_(-1, cells.expand_as(sums), sums)
    if into.peaks is not None:
        cells = band.keys * into.peaks.shape[3] // band.of[1]
        for row, some in map_rows(band, into.peaks.shape[2]):
            most = some.amax(2)
            into.peaks[whose][:, :, row].scatter_reduce_(-1, cells.expand_as(most), most, "amax")


def map_rows(band: QueryBand, rows: int) -> Iterator[tuple[int, Tensor]]:
    """The rows of a map that the band's queries fall into, each with the weights of those queries."""
    first, stop, n = band.queries.start, band.queries.stop, band.of[0]
    for row in range(first * rows // n, (stop - 1) * rows // n + 1):
        # query i falls into row i·R // n, so a row begins at the first i that is at least row·n / R
        start, end = max(first, -(-row * n // rows)), min(stop, -(-(row + 1) * n // rows))
        if start < end:
            yield row, band.weights[:, :, start - first : end - first]


def log_sum_exp(band: QueryBand) -> Tensor:
    """log Σ exp s. Softmax has summed already: its largest weight is exp(max s - lse)."""
    scores = band.hidden.put(band.scores)
    if band.normaliser != Softmax():
        return scores.logsumexp(-1)
    largest_weight = band.weights.amax(-1)
    return torch.where(largest_weight == 0, -torch.inf, scores.amax(-1) - largest_weight.log())


def entropy(weights: Tensor) -> Tensor:
    """H = log S - (Σ w log w) / S with S = Σ w: for weights that sum to 1 the last term alone."""
    total = weights.sum(-1)
    some = torch.where(total == 0, 1.0, total)
    # 0 log 0 = 0, hence no -∞; several times faster than xlogy
    logs = weights.log().clamp_(min=torch.finfo(weights.dtype).min)
    return some.log() - logs.mul_(weights).sum(-1) / some


def top_weights(weights: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Indices and values of the largest weights of each row, largest first.

    The k largest lie in the k chunks whose own largest are the largest: a pass of maxima instead of a partial sort.
    """
    n = weights.shape[-1]
    if n < 4 * most * CHUNK:
        best = weights.topk(min(most, n))
        return best.indices, best.values
    # what fills the last chunk must not count as a key, not even where all that is left weighs 0
    filled = pad(weights, (0, -n % CHUNK), value=-torch.inf)
    chunks = rearrange(filled, "... (c s) -> ... c s", s=CHUNK)
    chosen = chunks.amax(-1).topk(most).indices
    candidates = chunks.gather(-2, chosen[..., None].expand(*chosen.shape, CHUNK))
    best = rearrange(candidates, "... c s -> ... (c s)").topk(most)
    return chosen.gather(-1, best.indices // CHUNK) * CHUNK + best.indices % CHUNK, best.values
