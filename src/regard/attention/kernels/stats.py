"""Attention statistics on a GPU: launches the kernels of `stats_kernels.py`, a slab of queries and heads at a time.

The log-sum-exp comes from the forward pass, if it was kept, or from a pass of its own. All else takes one pass, over a
slab of queries of a few heads at a time, so that the partial results of each block of keys fit into a fixed space:

    a segment of queries × a key        the sum and the largest of its weights, from which mass, map and peaks
    a query × a block of keys           the largest exponent of a weight, and Σ p log p, from which the entropy
    a query × a chunk of a block        the largest exponent, from which the largest weights and their keys

A segment never crosses the border of a map's row, whatever the map's size; a row's segments add up to it.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from regard.attention.kernels.stats_kernels import (
    BY_BLOCK,
    BY_KEY,
    GROUP,
    SPAN,
    WITH,
    WITHOUT,
    column_pass,
    fold_block_stats,
    pick_keys,
    pool_cells,
    row_pass,
)
from regard.attention.kernels.stats_plan import (
    COLUMNS,
    FAR,
    LOG_2_E,
    LONGEST,
    MARGIN,
    ROWS,
    RequestedStats,
    Slab,
    SlabMemory,
    StatsInputs,
    StatsTileShape,
    default_shape,
    row_owners,
    segments,
    slice_length,
    tile_count,
)

FOLDED = 128  # notes of queries that are folded together
VISIBILITY = ("lengths", "heads", "start", "least", "most", "first_head", "first_block", "first_query")


@dataclass(frozen=True, eq=False)
class KernelStats:
    """As in AttentionStats, batch and heads side by side."""

    log_sum_exp: Float[Tensor, "n i"]
    entropy: Float[Tensor, "n i"] | None
    mass: Float[Tensor, "n j"] | None
    map: Float[Tensor, "n r c"] | None
    peaks: Float[Tensor, "n rows columns"] | None
    keys: Tensor | None
    weights: Tensor | None


def compute_stats(
    seen: StatsInputs,
    request: RequestedStats,
    log_sum_exp: Tensor | None,
    *,
    rows: StatsTileShape = ROWS,
    columns: StatsTileShape | None = None,
) -> KernelStats:
    """Everything requested; with a log-sum-exp in one pass, without in two."""
    n_q, n_k, n = seen.q.shape[2], seen.k.shape[2], seen.heads
    entropy = new_output(seen, n, n_q) if request.entropy else None
    known = log_sum_exp is not None
    lse = log_sum_exp.reshape(n, n_q).float() if known else log_sum_exps(seen, entropy, rows)
    found = KernelStats(
        log_sum_exp=lse,
        entropy=entropy,
        mass=new_output(seen, n, n_k).zero_() if request.mass else None,
        map=new_output(seen, n, *request.map).zero_() if request.map else None,
        peaks=new_output(seen, n, *request.peaks).zero_() if request.peaks else None,
        keys=new_output(seen, n, n_q, request.top, dtype=torch.long) if request.top else None,
        weights=new_output(seen, n, n_q, request.top) if request.top else None,
    )
    with_entropy = request.entropy and known
    if with_entropy or request.mass or request.map or request.peaks or request.top:
        ColumnPass(seen, found, columns or default_shape(seen, request), with_entropy=with_entropy).run()
    return found


def new_output(seen: StatsInputs, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(size, dtype=dtype, device=seen.q.device)


def log_sum_exps(seen: StatsInputs, entropy: Tensor | None, shape: StatsTileShape) -> Float[Tensor, "n i"]:
    """The log-sum-exp of every row, and its entropy if a tensor is passed for it."""
    n_q = seen.q.shape[2]
    lse = new_output(seen, seen.heads, n_q)
    launch_kernel(
        row_pass,
        (tile_count(n_q, shape.queries), seen.heads),
        common_arguments(seen) | shape.options(),
        lse=lse,
        entropy=lse if entropy is None else entropy,
        ENTROPY=entropy is not None,
        MASKED=not (seen.sees_all and seen.k.shape[2] % shape.keys == 0),
    )
    return lse


def launch_kernel(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any], **more: Any) -> None:
    kernel[grid](**arguments, **more)


def common_arguments(seen: StatsInputs) -> dict[str, Any]:
    """Arguments of every kernel over q and k."""
    (_, heads, n_q, d), biases = seen.q.shape, seen.biases
    strides = zip(("q_b", "q_h", "q_t", "k_b", "k_h", "k_t"), (*seen.q.stride()[:3], *seen.k.stride()[:3]), strict=True)
    return dict(strides) | {
        "q": seen.q,
        "k": seen.k,
        "table": seen.lengths if biases is None else biases * LOG_2_E,
        "lengths": seen.lengths,
        "n_q": n_q,
        "heads": heads,
        "share": heads // seen.k.shape[1],
        "start": seen.start,
        "least": seen.band.least,
        "most": seen.band.most,
        "c": seen.scale * LOG_2_E,
        "differences": n_q + seen.k.shape[2] - 1 + 2 * MARGIN,
        "origin": seen.origin,
        "D": d,
        "WIDE": max(16, triton.next_power_of_2(d)),
        "BIASED": biases is not None,
    }


@dataclass(frozen=True, eq=False)
class ColumnPass:
    """The pass that knows the log-sum-exp, slab by slab."""

    seen: StatsInputs
    found: KernelStats
    shape: StatsTileShape
    with_entropy: bool

    def run(self) -> None:
        seen, device, known = self.seen, self.seen.q.device, self.found.log_sum_exp
        # a blind row has lse -∞, but every key is hidden from it, and 0 serves as well; a tile more, to be read in vain
        ells = new_output(seen, known.numel() + self.shape.queries).zero_()
        ells[: known.numel()] = (known * LOG_2_E).nan_to_num(0.0, 0.0, 0.0).flatten()
        maps = [x for x in (self.found.map, self.found.peaks) if x is not None]
        cuts = segments(seen.q.shape[2], {x.shape[1] for x in maps}, self.shape.queries)
        at = torch.tensor(cuts, dtype=torch.int32, device=device)
        arguments = common_arguments(seen) | {"CHUNKS": self.shape.chunks}
        owners = {x.shape[1]: row_owners(cuts, x.shape[1], device) for x in maps}
        for slab in self.space.slabs(cuts):
            self.run_slab(slab, ells, at, arguments | {"EVEN": self.even(cuts)}, owners)

    def even(self, cuts: list[int]) -> bool:
        """Does every segment, from the first query on that sees a block, hold whole tiles only?"""
        tile, least = self.shape.queries, self.seen.band.least
        whole = least <= -FAR or ((least - self.seen.start) % tile == 0 and self.shape.keys % tile == 0)
        return whole and all(cut % tile == 0 for cut in cuts)

    @property
    def space(self) -> SlabMemory:
        each_query = 4 * (self.with_entropy + (self.found.keys is not None) * (1 + self.shape.chunks))
        return SlabMemory(self.seen, self.shape.keys, each_query, each_key=4 * (self.summed + (self.peaks > 0)))

    @property
    def masked(self) -> bool:
        return not (self.seen.sees_all and self.seen.k.shape[2] % self.shape.keys == 0)

    def launches(self) -> list[tuple[int, bool, StatsTileShape]]:
        """Which programs, with masks or not, how cut: where most need none, they are spared the others' registers."""
        band, shape = self.seen.band, self.shape
        if not self.masked or shape.registers is None or band.most - band.least < LONGEST:
            return [(0, self.masked, shape)]
        quick = shape if self.peaks == BY_KEY.value else replace(shape, registers=COLUMNS.registers)
        return [(WITHOUT.value, False, quick), (WITH.value, True, shape)]

    @property
    def summed(self) -> bool:
        return self.found.mass is not None or self.found.map is not None

    @property
    def peaks(self) -> int:
        """How finely: where blocks nest in cells, a number for each block will do."""
        if self.found.peaks is None:
            return 0
        nests = self.seen.k.shape[2] % (self.found.peaks.shape[2] * self.shape.keys) == 0
        return (BY_BLOCK if nests else BY_KEY).value

    def run_slab(
        self, slab: Slab, ells: Tensor, cuts: Tensor, arguments: dict[str, Any], owners: dict[int, Tensor]
    ) -> None:
        seen, found, shape, n_k = self.seen, self.found, self.shape, self.seen.k.shape[2]
        heads, own, blocks, queries = map(slice_length, (slab.heads, slab.cuts, slab.blocks, slab.queries))
        top, stats = found.keys is not None, self.with_entropy + (found.keys is not None)
        sums, peaks, block_stats, maxima = (
            new_output(seen, *size) if wanted else None
            for size, wanted in (
                ((heads, own, n_k), self.summed),
                ((heads, own, n_k), self.peaks > 0),
                ((heads, blocks, queries, stats), stats > 0),
                ((heads, blocks, queries, shape.chunks), top),
            )
        )
        if not seen.sees_all:  # tiles that nobody sees are skipped; nobody reads their statistics
            for part in (sums, peaks):
                if part is not None:
                    part.zero_()
        here = {"first_head": slab.heads.start, "first_block": slab.blocks.start, "first_query": slab.queries.start}
        for only, masked, cut in self.launches():
            launch_kernel(
                column_pass,
                (blocks, own, heads),
                arguments | here | cut.options(),
                lse=ells,
                cuts=cuts,
                sums=ells if sums is None else sums,  # a pointer that is not used
                peaks=ells if peaks is None else peaks,
                block_stats=ells if block_stats is None else block_stats,
                maxima=ells if maxima is None else maxima,
                n_k=n_k,
                first_cut=slab.cuts.start,
                slab=queries,
                MASS=self.summed,
                PEAKS=self.peaks,
                ENTROPY=self.with_entropy,
                TOP=top,
                MASKED=masked,
                ONLY=only,
            )
        if found.mass is not None and sums is not None:
            found.mass[slab.heads] += sums.sum(1)
        if found.map is not None and sums is not None:
            self.pool(found.map, sums, n_k, slab, owners)
        if found.peaks is not None and peaks is not None:
            self.pool(found.peaks, peaks, n_k // shape.keys if self.peaks == BY_BLOCK.value else n_k, slab, owners)
        if block_stats is not None:
            self.fold(block_stats, maxima, ells, slab, arguments | here)

    def fold(
        self, block_stats: Tensor, maxima: Tensor | None, ells: Tensor, slab: Slab, arguments: dict[str, Any]
    ) -> None:
        """The entropies of the slab's queries, their largest weights, and the keys of these."""
        found, (heads, blocks, queries, stats) = self.found, block_stats.shape
        many = tile_count(blocks, GROUP.value)
        parts = tile_count(many, SPAN.value)
        groups = ells if maxima is None else new_output(self.seen, heads, queries, many)
        entropy_sum = new_output(self.seen, heads, parts, queries) if self.with_entropy else ells
        sizes = {"block_stats": block_stats, "groups": groups, "rows": queries, "blocks": blocks, "many": many}
        grid = tile_count(queries * stats, FOLDED), parts, heads
        kinds = {"TOP": maxima is not None, "ENTROPY": self.with_entropy, "KEYS": self.shape.keys}
        known = {name: arguments[name] for name in VISIBILITY} | {"MASKED": self.masked}
        launch_kernel(fold_block_stats, grid, sizes | kinds | known, entropy_sum=entropy_sum, WIDE=FOLDED, num_warps=1)
        if found.entropy is not None and self.with_entropy:
            found.entropy[slab.heads, slab.queries] = entropy_sum.sum(1) * -log(2)
        if found.keys is None or maxima is None:
            return
        most = found.keys.shape[2]
        at_most = tile_count(
            tile_count(self.seen.k.shape[2], self.shape.keys), GROUP.value
        )  # in any slab: one kernel for all
        launch_kernel(
            pick_keys,
            (queries, heads),
            {name: value for name, value in arguments.items() if name != "EVEN"} | sizes,
            ells=ells,
            maxima=maxima,
            keys=found.keys,
            weights=found.weights,
            KEYS=self.shape.keys,
            STATS=stats,
            MASKED=self.masked,
            GROUP_SLOTS=triton.next_power_of_2(at_most),
            MOST=most,
            SLOTS=triton.next_power_of_2(most),
            num_warps=1 if most <= 16 else 4,
            num_stages=1,
        )

    def pool(self, out: Tensor, parts: Tensor, length: int, slab: Slab, owners: dict[int, Tensor]) -> None:
        """The slab's part of a map, from numbers for each key or, side by side, for each block of keys."""
        (_, down, across), n_q = out.shape, self.seen.q.shape[2]
        first, last = (query * down // n_q for query in (slab.queries.start, slab.queries.stop - 1))
        launch_kernel(
            pool_cells,
            ((last - first + 1) * across, slice_length(slab.heads)),
            {"parts": parts, "owners": owners[down], "out": out[slab.heads]},
            length=length,
            stride=parts.shape[2],
            first_row=first,
            first_cut=slab.cuts.start,
            cuts=slice_length(slab.cuts),
            across=across,
            down=down,
            PEAKS=out is self.found.peaks,
            WIDE=min(1024, max(16, triton.next_power_of_2(tile_count(length, across)))),
            num_warps=1,
        )
