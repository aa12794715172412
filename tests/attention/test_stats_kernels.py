"""Statistics kernels: interpreted against the reference, compiled for a Hopper GPU, and on a GPU."""

import re
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.attention import (
    Alibi,
    Causal,
    Clipped,
    Cosine,
    Documents,
    Dot,
    Full,
    LogBuckets,
    NoPosition,
    Padding,
    Pattern,
    Position,
    Prefix,
    Recipe,
    RelativeBias,
    Sparsemax,
    StrictCausal,
    Window,
    attention_stats,
    steps,
)
from regard.attention.kernels import stats_plan as stats
from regard.attention.kernels.stats_plan import (
    FAR,
    DifferenceRange,
    SlabMemory,
    StatsInputs,
    band,
    lengths,
    objections,
    row_owners,
    segments,
)
from regard.attention.pattern import Positions
from regard.attention.stats import AttentionStats, StatsRequest, TopKeys, stats_by_kernels
from tests.attention.stats_reference import assert_stats
from tests.attention.triton_interpreter import compile_for_hopper, print_json

ALL = StatsRequest(
    rows=(5, 2), columns=(0, 5, 3), top=3, map=(3, 5), peaks=(5, 2), mass=True, entropy=True, log_sum_exp=True
)
NEST = replace(ALL, map=(4, 4), peaks=(4, 2), top=2)
WIDE = replace(ALL, map=(1, 2), peaks=(1, 3), top=0)
EVEN = replace(ALL, map=(1, 2), peaks=(1, 1), top=2)
PATTERNS: dict[str, Pattern] = {
    "full": Full(),
    "causal": Causal(),
    "before": StrictCausal(),
    "window": Window(131),
    "causal window": Causal() & Window(67),
    "padding": Padding(torch.tensor([331, 0])),
    "a window past a sentence's end": Window(67) & Padding(torch.tensor([331, 0])),
    "causal padding": Causal() & Padding(torch.tensor([1009, 211])),
}
# name: pattern, position, queries, keys, first position, width, request, with its log-sum-exp
INTERPRETED: dict[str, tuple[Pattern, Position, int, int, int, int, StatsRequest, bool]] = {
    "full, one pass, blocks nest in cells": (Full(), NoPosition(), 7, 64, 0, 16, NEST, True),
    "full, one pass, whole tiles": (Full(), NoPosition(), 16, 32, 0, 16, EVEN, True),
    "causal after a cache, one pass, whole tiles": (Causal(), NoPosition(), 16, 64, 16, 16, EVEN, True),
    "full, two passes, nothing nests": (Full(), NoPosition(), 7, 37, 0, 11, ALL, False),
    "causal window after a cache, one pass": (Causal() & Window(5), NoPosition(), 11, 41, 23, 16, ALL, True),
    "padding, one sentence sees nothing": (Padding(torch.tensor([17, 0])), NoPosition(), 7, 23, 0, 16, ALL, False),
    "a window past a sentence's end": (Window(5) & Padding(torch.tensor([11])), NoPosition(), 19, 29, 0, 16, ALL, True),
    "a window with a full middle": (Window(41), NoPosition(), 61, 67, 0, 16, WIDE, True),
    "before, with slopes, two passes": (StrictCausal(), Alibi(heads=2), 7, 13, 0, 16, ALL, False),
}
ALONE = "maxima alone, without a weight"


def seen_by(recipe: Recipe, q: torch.Tensor, k: torch.Tensor, start: int = 0) -> StatsInputs:
    return StatsInputs.of(recipe, q, k, Positions.of(q, k, start, None))


def doubled(seen: AttentionStats) -> AttentionStats:
    """In double precision."""
    parts: dict[str, Any] = {name: x.double() for name, x in vars(seen).items() if isinstance(x, torch.Tensor)}
    if seen.top is not None:
        parts["top"] = TopKeys(seen.top.keys, seen.top.weights.double())
    return replace(seen, **parts)


# --- what they know of a recipe ---


def test_patterns_are_bands_of_differences():
    assert band(Full()) == DifferenceRange(-FAR, FAR)
    assert band(Causal()) == DifferenceRange(0, FAR)
    assert band(Causal() & Window(5)) == DifferenceRange(0, 4)
    assert band(StrictCausal() & (Window(3) & Padding(torch.tensor([2])))) == DifferenceRange(1, 2)
    for other in (Prefix(3), Causal() | Window(3), ~Causal(), Causal() & Documents(torch.zeros(1, 5).long())):
        assert band(other) is None


def test_the_shortest_of_several_lengths_holds():
    pattern = Padding(torch.tensor([5, 9])) & (Causal() & Padding(torch.tensor([7])))
    assert lengths(pattern, 2, 8, torch.device("cpu")).tolist() == [5, 7]
    assert lengths(Causal(), 2, 8, torch.device("cpu")).tolist() == [8, 8]


def test_they_say_why_not():
    q = torch.zeros(1, 2, 131, 16, dtype=torch.bfloat16)
    positions = Positions.of(q, q, 0, None)

    def why(recipe: Recipe = Recipe(), x: torch.Tensor = q, top: int = 0, at: Positions = positions) -> str:
        return "; ".join(objections(recipe, x, x, at, top))

    assert "not on cpu" in why()
    assert "would round torch.float32" in why(x=q.float())
    assert "would round what it makes of q" in why(Recipe(score=Cosine()))
    assert "would round" not in why(Recipe(score=Dot()))
    assert "not softmax" in why(Recipe(normaliser=Sparsemax()))
    assert "not a band" in why(Recipe(pattern=Prefix(3)))
    assert "one by one" in why(at=Positions.of(q, q, torch.randperm(131), None))
    assert "cannot hold the 65 largest" in why(top=65)
    assert "127 tokens" in why(x=q[:, :, :127])
    assert "side by side" in why(x=q.mT.contiguous().mT)
    for scheme in (Alibi(heads=2), RelativeBias(LogBuckets(), 2), RelativeBias(Clipped(4), 2)):
        assert "i - j alone" not in why(Recipe(position=scheme))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("scheme", [None, Alibi(heads=3), RelativeBias(LogBuckets(8, 32), 3)])
def test_rows_and_columns_in_the_open_are_the_reference(pattern, scheme):
    """Whole scores of a few queries and keys, after a cache, three heads sharing one key head."""
    q, k = torch.randn(2, 3, 29, 7).half(), torch.randn(2, 1, 41, 7).half()
    recipe = Recipe(pattern=PATTERNS[pattern], position=NoPosition() if scheme is None else scheme)
    with torch.no_grad():
        want = steps(q.float(), k.float(), k.float(), recipe, q_index=12)
        seen = seen_by(recipe, q, k, 12)
        lse = want.adjusted.masked_fill(~want.visible, -torch.inf).logsumexp(-1)
        assert_close(seen.rows((28, 3)), want.weights[:, :, [28, 3]])
        assert_close(seen.columns((0, 40, 7), lse), want.weights[..., [0, 40, 7]], rtol=1e-4, atol=1e-6)


# --- how the work is cut ---


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 99), st.sets(st.integers(1, 120), max_size=2), st.sampled_from([4, 16]))
def test_segments_hold_every_query_once_and_never_cross_a_row(n_q, heights, tile):
    cuts = segments(n_q, heights, tile)
    assert cuts[0] == 0
    assert cuts[-1] == n_q
    assert all(first < stop for first, stop in pairwise(cuts))
    for down in heights:
        rows = [first * down // n_q for first in cuts[:-1]]
        assert rows == [(stop - 1) * down // n_q for stop in cuts[1:]]
        owners = row_owners(cuts, down, torch.device("cpu")).tolist()
        assert rows == [row for row in range(down) for _ in range(owners[row], owners[row + 1])]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_slabs_hold_every_head_query_and_visible_block_once(pattern, monkeypatch):
    monkeypatch.setattr(stats, "SPACE", 2**17)
    monkeypatch.setattr(stats, "LONGEST", 64)
    q = torch.zeros(2, 3, 1009, 16)
    seen, cuts = seen_by(Recipe(pattern=PATTERNS[pattern]), q, q), segments(1009, {7}, 16)
    work = SlabMemory(seen, 32, 20, 4)
    met = torch.zeros(6, 1009, 32, dtype=torch.long)
    for slab in work.slabs(cuts):
        assert (slab.queries.start, slab.queries.stop) == (cuts[slab.cuts.start], cuts[slab.cuts.stop])
        single = slab.cuts.stop - slab.cuts.start == 1 == slab.heads.stop - slab.heads.start
        one = work.needed(cuts, slab.cuts.start, slab.cuts.stop)
        assert single or one * (slab.heads.stop - slab.heads.start) <= 2**17
        met[slab.heads, slab.queries, slab.blocks] += 1
    least, most = seen.band.least, seen.band.most
    apart = torch.arange(1009)[:, None] - torch.arange(1009)
    visible = torch.nn.functional.pad((apart >= least) & (apart <= most), (0, 15)).view(1009, 32, 32).any(-1)
    assert met.max() == 1
    assert (met[:, visible] == 1).all()


# --- interpreted ---


def interpreted_cases() -> dict[str, str]:
    """Run under Triton's interpreter, in many small slabs: for each case nothing, or what is wrong with it."""
    from triton.runtime import interpreter

    from regard.attention.kernels import stats as kernels
    from regard.attention.kernels.stats_plan import StatsTileShape

    wrap, wrapped = interpreter._patch_lang, set()

    def once(fn: Any) -> Any:
        """The interpreter wraps the language anew at every call, layer on layer: once for each module will do.

        And its whole numbers, arrays of one, are none for numpy 2.4.
        """
        modules = fn.__globals__["__name__"]
        if modules not in wrapped:
            wrapped.add(modules)
            wrap(fn)
            interpreter.tl.tensor.__index__ = lambda self: self.handle.data.item()  # type: ignore[attr-defined]
        return interpreter._LangPatchScope()

    interpreter._patch_lang = once
    find, new = kernels.compute_stats, kernels.new_output
    # what nobody has written must not be read
    kernels.new_output = lambda *size, **kind: new(*size, **kind).fill_(1000)
    stats.SPACE, stats.LONGEST = 2**13, 48
    wrong = {}
    for name, (pattern, position, n_q, n_k, start, width, wanted, known) in INTERPRETED.items():
        torch.manual_seed(len(name))
        # a thread's keys of a row are one chunk, or two
        columns = StatsTileShape(16, 32, 1, 1, registers=168, chunk=4 if known else 8)
        kernels.compute_stats = partial(find, rows=StatsTileShape(16, 16, 1, 1), columns=columns)
        batch = pattern.batches
        q, k = torch.randn(batch, 2, n_q, width).half(), torch.randn(batch, 1, n_k, width).half()
        recipe = Recipe(pattern=pattern, position=position)
        want = steps(q.double(), k.double(), k.double(), recipe, q_index=start)
        lse = want.adjusted.masked_fill(~want.visible, -torch.inf).logsumexp(-1) if known else None
        try:
            seen = doubled(stats_by_kernels(seen_by(recipe, q, k, start), wanted, lse))
            assert_stats(seen, want.weights, want.adjusted, want.visible, wanted, rtol=1e-5, atol=2e-6)
            wrong[name] = ""
        except AssertionError as error:
            wrong[name] = str(error)
    q, k = torch.randn(1, 1, 5, 16).half(), torch.randn(1, 1, 71, 16).half()
    weights = steps(q.double(), k.double(), k.double(), Recipe()).weights
    alone = stats_by_kernels(
        seen_by(Recipe(), q, k), StatsRequest(top=2, peaks=(1, 1)), (q.double() @ k.double().mT / 4).logsumexp(-1)
    )
    assert alone.top is not None
    assert alone.peaks is not None
    off = (alone.top.weights - weights.topk(2).values).abs().max() + (alone.peaks - weights.max()).abs().max()
    return wrong | {ALONE: "" if off < 1e-5 else f"off by {off}"}


@pytest.mark.parametrize("case", [*INTERPRETED, ALONE])
def test_interpreted_they_see_what_the_reference_sees(case, interpreted):
    assert interpreted[case] == ""


# --- compiled ---

POINTERS = {"lengths": "*i32", "cuts": "*i32", "owners": "*i32", "keys": "*i64", "q": "*bf16", "k": "*bf16"}
POINTERS |= dict.fromkeys(("table", "lse", "ells", "entropy", "block_stats", "entropy_sum", "sums", "peaks"), "*fp32")
POINTERS |= dict.fromkeys(("maxima", "groups", "weights", "parts", "out"), "*fp32")
CONSTANTS = {"D": 64, "WIDE": 64, "QUERIES": 64, "KEYS": 128, "ROWS": 32, "GROUP_SLOTS": 128, "MOST": 8, "SLOTS": 8}
CONSTANTS |= {"MASS": True, "PEAKS": 2, "ENTROPY": True, "TOP": True, "BIASED": False, "MASKED": False}
CONSTANTS |= {"CHUNKS": 8, "STATS": 2, "EVEN": True, "ONLY": 0}
ONE_WARP = ("fold_block_stats", "pick_keys", "pool_cells")


def compiled(kernel: str, **options: int | None) -> Any:
    """For a GPU that need not be there."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels import stats as kernels

    function = vars(kernels)[kernel]
    given: dict[str, Any] = dict(CONSTANTS, PEAKS=True, WIDE=128) if kernel in ONE_WARP else dict(CONSTANTS)
    given |= {"column_pass": {"q_t": 64}, "pick_keys": {"k_t": 64, "WIDE": 64}}.get(kernel, {})
    pointers = POINTERS | ({"cuts": "i32", "length": "i32"} if kernel == "pool_cells" else {}) | {"c": "fp32"}
    aligned = [name for name in function.arg_names if name in POINTERS or re.fullmatch("[qk]_[bht]", name)]
    return compile_for_hopper(function, given, pointers, aligned, **options)


@pytest.mark.parametrize("kernel", ["row_pass", "column_pass", "fold_block_stats", "pick_keys", "pool_cells"])
def test_they_compile_for_a_hopper_without_a_single_atomic(kernel):
    """The interpreter forgives what the compiler does not; neither needs a GPU."""
    ptx = compiled(kernel, num_warps=1 if kernel in ONE_WARP else 4, num_stages=2).asm["ptx"]
    assert ("wgmma" in ptx) == (kernel in ("row_pass", "column_pass"))
    assert not re.search(r"\b(atom|red)\.", ptx)


def test_the_pass_over_columns_takes_few_instructions_for_each_weight():
    """An exponential, its exponent, the sum, the entropy and the largest are 5; 4 programs must fit side by side."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels.stats_plan import COLUMNS

    made = compiled("column_pass", num_warps=COLUMNS.warps, num_stages=COLUMNS.stages, maxnreg=COLUMNS.registers)
    ptx, cells = made.asm["ptx"], COLUMNS.queries * COLUMNS.keys // (32 * COLUMNS.warps)
    assert ptx.count("ex2.approx") == cells + 1  # and once for the largest of all
    loop = next(part for part in re.split(r"\n\$L__BB", ptx) if "wgmma" in part)
    assert not re.search(r"\b(ld|st)\.(shared|local)", loop)  # sums stay in their threads
    assert ".maxnreg 128" in ptx


# --- on a GPU ---

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def assert_found_on_gpu(recipe: Recipe, wanted: StatsRequest, dtype: torch.dtype, start: int, *, known: bool) -> None:
    q, k = torch.randn(2, 4, 1009 - start, 64), torch.randn(2, 2, 1009, 64)
    q, k = (x.to("cuda", dtype) for x in (q, k))
    assert objections(recipe, q, k, Positions.of(q, k, start, None), wanted.top) == []
    with torch.no_grad():
        want = steps(q.double(), k.double(), k.double(), recipe, q_index=start)
        lse = want.adjusted.masked_fill(~want.visible, -torch.inf).logsumexp(-1)
        seen = attention_stats(q, k, recipe, wanted, q_index=start, log_sum_exp=lse if known else None)
    assert_stats(doubled(seen), want.weights, want.adjusted, want.visible, wanted, rtol=2e-5, atol=3e-6)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("start", [0, 421])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_on_a_gpu_they_see_what_the_reference_sees(pattern, start, known, monkeypatch):
    """In float32 to its last digits, with sizes that nest in nothing, in several slabs."""
    monkeypatch.setattr(stats, "SPACE", 2**18)
    monkeypatch.setattr(stats, "LONGEST", 200)
    dtype = torch.float16 if pattern == "full" and known else torch.bfloat16
    assert_found_on_gpu(Recipe(pattern=PATTERNS[pattern].to("cuda")), ALL, dtype, start, known=known)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("top", [1, 5, 8, 33, 64])
def test_on_a_gpu_any_number_of_the_largest_is_found(top):
    assert_found_on_gpu(Recipe(pattern=Causal()), replace(ALL, top=top), torch.bfloat16, 0, known=True)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("scheme", [Alibi(heads=4), RelativeBias(LogBuckets(), 4), RelativeBias(Clipped(9), 4)])
def test_on_a_gpu_biases_by_difference_are_added(scheme):
    recipe = Recipe(pattern=Causal(), position=scheme)
    recipe.learned().cuda().double()
    assert_found_on_gpu(recipe, ALL, torch.bfloat16, 100, known=False)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("size", "width"), [((8, 8), 64), ((7, 13), 40), ((64, 16), 128), ((2048, 3), 64), ((1, 1), 64)]
)
def test_on_a_gpu_maps_of_any_size_are_those_of_the_plain_path_and_the_same_every_time(size, width):
    q, k = torch.randn(2, 1, 3, 2048, width, device="cuda", dtype=torch.bfloat16)
    wanted = StatsRequest(map=size, peaks=size, mass=True, entropy=True, top=8)
    first, again = attention_stats(q, k, Recipe(), wanted), attention_stats(q, k, Recipe(), wanted)
    plain = attention_stats(q.float(), k.float(), Recipe(), wanted)
    for name in ("map", "peaks", "mass", "entropy"):
        assert torch.equal(vars(first)[name], vars(again)[name]), name
        assert_close(vars(first)[name], vars(plain)[name], rtol=1e-4, atol=1e-5)
    assert first.top is not None
    assert again.top is not None
    assert plain.top is not None
    assert torch.equal(first.top.keys, again.top.keys)
    assert_close(first.top.weights, plain.top.weights, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.filterwarnings("default")
def test_on_a_gpu_a_hidden_key_cannot_be_felt():
    q, k = torch.randn(2, 2, 3, 1009, 64, device="cuda", dtype=torch.bfloat16)
    recipe = Recipe(pattern=Padding(torch.tensor([700, 333], device="cuda")))
    wanted = StatsRequest(mass=True, entropy=True, map=(5, 5), peaks=(3, 7), top=4, log_sum_exp=True)
    clean = attention_stats(q, k, recipe, wanted)
    k[0, :, 700:] = torch.nan
    k[1, :, 333:] = torch.nan
    noisy = attention_stats(q, k, recipe, wanted)
    for name in ("map", "peaks", "mass", "entropy", "log_sum_exp"):
        assert torch.equal(vars(clean)[name], vars(noisy)[name]), name


if __name__ == "__main__":
    print_json(interpreted_cases)
