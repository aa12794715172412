"""Linear cross-entropy: as torch's cross-entropy, chunk by chunk, in far less memory."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.testing import assert_close

from regard.layers.embedding import Embedding
from regard.ops.linear_cross_entropy import (
    BUDGET,
    TILE,
    LossInputs,
    LossOptions,
    linear_cross_entropy,
    linear_cross_entropy_per_row,
)
from regard.training.numerics import use_deterministic
from tests.attention.qkv import cast_leaves
from tests.forks import run_program

N, WIDTH, SIZE, HIDDEN = 13, 7, 29, 3  # HIDDEN: the word that is ignored
CHUNKS = {"1 row": 1, "5 rows": 5, "all rows": N}
EXACT: Any = {"rtol": 0.0, "atol": 1e-12}


Weights = tuple[Tensor, Tensor, Tensor]  # states, table, bias


def operands(
    n: int = N, width: int = WIDTH, size: int = SIZE, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> tuple[Weights, Tensor]:
    """States, a table as large as ours begin, a bias, and wanted words of which some are ignored."""
    shapes = (n, width), (size, width), (size,)
    drawn = [torch.randn(shape, dtype=dtype, device=device) for shape in shapes]
    x, table, bias = (
        (each * scale).requires_grad_() for each, scale in zip(drawn, (1.0, width**-0.5, 0.5), strict=True)
    )
    wanted = torch.randint(0, size, (n,), device=device)
    wanted[1::4] = HIDDEN
    return (x, table, bias), wanted


def plain(weights: Weights, wanted: Tensor, *, smoothing: float = 0.0, reduction: str = "sum") -> Tensor:
    scores = linear(*weights)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return cross_entropy(wide, wanted, ignore_index=HIDDEN, label_smoothing=smoothing, reduction=reduction)


def ours(weights: Weights, wanted: Tensor, *, smoothing: float = 0.0, rows: int = 5) -> Tensor:
    budget = rows * len(weights[1]) * max(4, weights[0].element_size())
    return linear_cross_entropy(*weights, wanted, smoothing=smoothing, ignore_index=HIDDEN, budget=budget)


def gradients(loss: Tensor, weights: Sequence[Tensor], incoming: float = 1.0) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss * incoming, weights)


# --- the definition ---

# one state, two words with the scores log 1 and log 3
PAPER = torch.tensor([[1.0]]), torch.tensor([[0.0], [math.log(3)]]), torch.zeros(2), torch.tensor([1])


def test_the_cost_of_a_word_on_paper():
    """p = ¼, ¾. The second word costs −log ¾; half smoothed, ½ log 4/3 + ½ · ½ (log 4 + log 4/3)."""
    assert_close(linear_cross_entropy(*PAPER).item(), math.log(4 / 3))
    smoothed = 0.5 * math.log(4 / 3) + 0.25 * (math.log(4) + math.log(4 / 3))
    assert_close(linear_cross_entropy(*PAPER, smoothing=0.5).item(), smoothed)


def test_the_gradient_on_paper():
    """∂/∂s = p − (0, 1) = (¼, −¼); half smoothed, ¼ and ¾ are what is wanted, and nothing is to be learnt."""
    *given, wanted = PAPER
    x, table, bias = (each.clone().requires_grad_() for each in given)
    weights = x, table, bias
    dx, dtable, dbias = gradients(linear_cross_entropy(*weights, wanted), weights)
    assert_close(dbias, torch.tensor([0.25, -0.25]))
    assert_close(dtable, torch.tensor([[0.25], [-0.25]]))
    assert_close(dx, torch.tensor([[-0.25 * math.log(3)]]))
    for still in gradients(linear_cross_entropy(*weights, wanted, smoothing=0.5), weights):
        assert_close(still, torch.zeros_like(still))


@pytest.mark.parametrize("rows", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_it_is_cross_entropy_with_its_gradients(smoothing, rows):
    weights, wanted = operands()
    expected, found = plain(weights, wanted, smoothing=smoothing), ours(weights, wanted, smoothing=smoothing, rows=rows)
    assert_close(found, expected, **EXACT)
    incoming = -1.7  # a loss is scaled before it is differentiated
    pairs = zip(gradients(found, weights, incoming), gradients(expected, weights, incoming), strict=True)
    for one, other in pairs:
        assert_close(one, other, **EXACT)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_derivative_is_that_of_the_loss(smoothing):
    weights, wanted = operands(5, 3, 7)
    assert torch.autograd.gradcheck(
        lambda x, table, bias: ours((x, table, bias), wanted, smoothing=smoothing, rows=2), weights
    )


@given(shift=st.floats(-30, 30), smoothing=st.floats(0, 1), rows=st.integers(1, 17))
@settings(max_examples=30, deadline=None)
def test_what_all_scores_have_in_common_changes_nothing(shift, smoothing, rows):
    (x, table, bias), wanted = operands()
    loss = ours((x, table, bias), wanted, smoothing=smoothing, rows=rows)
    assert_close(ours((x, table, bias + shift), wanted, smoothing=smoothing, rows=rows), loss, rtol=0, atol=1e-10)
    assert_close(gradients(loss, [bias])[0].sum(), torch.zeros((), dtype=torch.float64), **EXACT)


# --- how the rows are split ---


def test_other_batches_give_the_same_gradient():
    weights, wanted = operands()
    whole = gradients(ours(weights, wanted, smoothing=0.1), weights)
    x, table, bias = weights
    parts = [
        ours((x[some], table, bias), wanted[some], smoothing=0.1) for some in (slice(0, 2), slice(2, 9), slice(9, N))
    ]
    for one, other in zip(gradients(torch.stack(parts).sum(), weights), whole, strict=True):
        assert_close(one, other, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("size", "budget"), [(32_003, BUDGET), (101, 4096), (32_003, 1)])
def test_a_chunk_keeps_to_its_budget(dtype, size, budget):
    wide = torch.promote_types(dtype, torch.float32)
    x, table, bias = (torch.zeros(shape, dtype=dtype) for shape in ((1009, 1), (size, 1), (size,)))
    chunks = LossInputs.of(x, table, bias, torch.zeros(1009, dtype=torch.long), LossOptions(0.0, HIDDEN, budget)).chunks
    rows = chunks[0].stop
    assert rows == 1 or rows * size * wide.itemsize <= budget
    assert rows < TILE or rows % TILE == 0
    assert [row for some in chunks for row in range(1009)[some]] == list(range(1009))


def test_the_same_numbers_give_the_same_bits():
    weights, wanted = operands(dtype=torch.float32)
    with use_deterministic(torch.device("cpu")):
        losses = [ours(weights, wanted, smoothing=0.1) for _ in range(2)]
        first, second = (gradients(loss, weights) for loss in losses)
    assert torch.equal(*losses)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


# --- rows that do not count ---


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_rows_that_are_all_ignored_cost_and_teach_nothing(smoothing):
    weights, wanted = operands()
    loss = ours(weights, torch.full_like(wanted, HIDDEN), smoothing=smoothing)
    assert loss.item() == 0.0
    assert not any(each.any() for each in gradients(loss, weights))


def test_no_rows_cost_nothing():
    (x, table, bias), wanted = operands()
    weights = x[:0].detach().requires_grad_(), table, bias
    loss = ours(weights, wanted[:0], smoothing=0.1)
    assert loss.item() == 0.0
    assert not any(each.any() for each in gradients(loss, weights))


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_an_ignored_state_cannot_be_felt(poison):
    (x, table, bias), wanted = operands()
    hidden = wanted == HIDDEN
    poisoned = x.detach().masked_fill(hidden[:, None], poison).requires_grad_()
    clean, felt = (ours((some, table, bias), wanted, smoothing=0.1) for some in (x, poisoned))
    assert torch.equal(clean, felt)
    pairs = zip(gradients(clean, (x, table, bias)), gradients(felt, (poisoned, table, bias)), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert torch.equal(
        *(linear_cross_entropy_per_row(some, table, bias, wanted, ignore_index=HIDDEN) for some in (x, poisoned))
    )


def test_a_word_that_is_forbidden_learns_nothing():
    weights, wanted = operands()
    with torch.no_grad():
        weights[2][11] = -torch.inf
    wanted[wanted == 11] = 12
    found, expected = ours(weights, wanted), plain(weights, wanted)
    assert_close(found, expected, **EXACT)
    dtable = gradients(found, weights)[1]
    assert not dtable[11].any()
    assert_close(dtable, gradients(expected, weights)[1], **EXACT)


# --- evaluation ---


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_costs_are_those_of_each_word(smoothing):
    weights, wanted = operands()
    found = linear_cross_entropy_per_row(
        *weights, wanted, smoothing=smoothing, ignore_index=HIDDEN, budget=5 * SIZE * 8
    )
    assert_close(found, plain(weights, wanted, smoothing=smoothing, reduction="none").detach(), **EXACT)
    assert not found.requires_grad


def test_the_loss_has_the_same_bits_with_and_without_gradients():
    weights, wanted = operands(dtype=torch.float32)
    learning = ours(weights, wanted, smoothing=0.1)
    with torch.no_grad():
        judging = ours(weights, wanted, smoothing=0.1)
    with torch.inference_mode():
        again = ours(weights, wanted, smoothing=0.1)
    assert torch.equal(learning, judging)
    assert torch.equal(learning, again)
    assert not judging.requires_grad


# --- as part of a graph ---


def test_the_way_back_can_be_gone_twice():
    weights, wanted = operands()
    loss = ours(weights, wanted)
    first = torch.autograd.grad(loss, weights, retain_graph=True)
    assert all(torch.equal(one, other) for one, other in zip(first, gradients(loss, weights), strict=True))


def test_a_second_derivative_is_refused():
    weights, wanted = operands()
    with pytest.raises(ValueError, match="second derivative"):
        torch.autograd.grad(ours(weights, wanted), weights, create_graph=True)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch's own tracer does
def test_it_compiles_into_one_graph():
    weights, wanted = operands()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    found, expected = compiled(weights, wanted, smoothing=0.1), ours(weights, wanted, smoothing=0.1)
    assert_close(found, expected, **EXACT)
    for one, other in zip(gradients(found, weights), gradients(expected, weights), strict=True):
        assert_close(one, other, **EXACT)


def test_a_tied_table_learns_from_reading_and_from_scoring():
    table, wanted = Embedding(SIZE, WIDTH).double(), torch.randint(0, SIZE, (N,))
    bias, read = torch.randn(SIZE, dtype=torch.float64), torch.randint(0, SIZE, (1, N))
    x = table.embed(read)[0]
    found = gradients(linear_cross_entropy(x, table.weight, bias, wanted, smoothing=0.1), [table.weight])[0]
    x = table.embed(read)[0]
    whole = cross_entropy(table.logits(x[None], bias)[0], wanted, reduction="sum", label_smoothing=0.1)
    assert_close(found, gradients(whole, [table.weight])[0], **EXACT)


# --- rounding: no worse than twice what torch does in the same precision ---


def errors(loss, costs, weights, exact):
    """How far costs and gradients are from those in float64, as shares of their size."""
    found = [costs, *gradients(loss, weights)]
    return [((one.double() - other).norm() / other.norm()).item() for one, other in zip(found, exact, strict=True)]


def assert_rounds_well(
    dtype: torch.dtype,
    *,
    autocast: bool,
    rows: int,
    device: str = "cpu",
    sizes: tuple[int, int, int] = (509, 67, 1031),
) -> None:
    weights, wanted = operands(*sizes, dtype=torch.float32, device=device)
    if not autocast:
        weights = cast_leaves(weights, dtype)
    wide = cast_leaves(weights, torch.float64)
    exact = [
        plain(wide, wanted, smoothing=0.1, reduction="none").detach(),
        *gradients(plain(wide, wanted, smoothing=0.1), wide),
    ]
    with torch.autocast(device, dtype, enabled=autocast):
        budget = rows * sizes[2] * 4
        loss = linear_cross_entropy(*weights, wanted, smoothing=0.1, ignore_index=HIDDEN, budget=budget)
        costs = linear_cross_entropy_per_row(*weights, wanted, smoothing=0.1, ignore_index=HIDDEN, budget=budget)
        theirs = plain(weights, wanted, smoothing=0.1)
        their_costs = plain(weights, wanted, smoothing=0.1, reduction="none").detach()
    assert loss.dtype == costs.dtype == torch.float32
    assert [each.dtype for each in gradients(ours(weights, wanted), weights)] == [each.dtype for each in weights]
    ratios = zip(errors(loss, costs, weights, exact), errors(theirs, their_costs, weights, exact), strict=True)
    for mine, other in ratios:
        assert mine <= 2 * other
        assert mine < 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("dtype", "autocast", "rows"),
    [
        (torch.float32, False, 101),
        # so many chunks that their rounded shares must be summed in float32
        (torch.bfloat16, True, 2),
        (torch.float16, True, 2),
        (torch.bfloat16, False, 2),
    ],
)
def test_rounding_is_no_worse_than_twice_that_of_torch(dtype, autocast, rows):
    assert_rounds_well(dtype, autocast=autocast, rows=rows)


def test_autocast_leaves_float64_alone():
    weights, wanted = operands()
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(weights, wanted, smoothing=0.1)
    assert_close(found, plain(weights, wanted, smoothing=0.1), **EXACT)


# --- memory ---

MEASURED = """
import sys
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from machine import forget_peak, peak_mib
from regard.ops.linear_cross_entropy import linear_cross_entropy

torch.set_num_threads(1)
n, size, width = map(int, sys.argv[1:])
weights = [torch.randn(shape, requires_grad=True) for shape in ((n, width), (size, width), (size,))]
wanted = torch.randint(0, size, (n,))
losses = {
    "ours": lambda: linear_cross_entropy(*weights, wanted, smoothing=0.1, budget=2 * 2**20),
    "evaluated": torch.no_grad()(lambda: linear_cross_entropy(*weights, wanted, smoothing=0.1, budget=2 * 2**20)),
    "full": lambda: cross_entropy(linear(*weights), wanted, reduction="sum", label_smoothing=0.1),
}
linear_cross_entropy(weights[0][:2], *weights[1:], wanted[:2]).backward()  # what torch loads at its first step
for name, loss in losses.items():
    forget_peak()
    before, found = peak_mib(), loss()
    if found.requires_grad:
        torch.autograd.grad(found, weights)
    print(name, peak_mib() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux forgets the peak of a process")
def test_the_scores_are_never_all_there():
    n, size, width = 4099, 8209, 11
    done = run_program(MEASURED, n, size, width)
    assert done.code == 0, done.err
    peaks = {name: float(mib) for name, mib in (line.split() for line in done.out.splitlines())}
    scores = n * size * 4 / 2**20
    assert peaks["full"] > scores  # so the measure sees them where they are
    assert peaks["ours"] < scores / 6
    assert peaks["evaluated"] < scores / 6


# --- mistakes ---


def test_mistakes_are_named():
    (x, table, bias), wanted = (each.detach() for each in operands()[0]), operands()[1]
    for change, words in (
        ({"x": x[:, :5]}, "width 5 .* width 7"),
        ({"bias": bias[:11]}, r"\(11,\) does not fit 29 classes"),
        ({"targets": wanted[:5]}, r"13 states .* \(5,\)"),
        ({"smoothing": 1.5}, "smoothing = 1.5"),
        ({"budget": 0}, "budget of 0 bytes"),
    ):
        for loss in (linear_cross_entropy, linear_cross_entropy_per_row):
            given = {"x": x, "table": table, "bias": bias, "targets": wanted, **change}
            with pytest.raises(ValueError, match=words):
                loss(**given)


def test_a_word_that_the_table_has_not_is_an_error():
    weights, wanted = operands()
    for word in (SIZE, -1):
        wanted[0] = word
        with pytest.raises(RuntimeError, match="out of bounds"):
            ours(weights, wanted)


# --- on a GPU ---


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_on_a_gpu_is_no_worse_than_twice_that_of_torch(dtype):
    assert_rounds_well(dtype, autocast=dtype != torch.float32, rows=401, device="cuda", sizes=(2053, 256, 8209))


@pytest.mark.gpu
def test_on_a_gpu_the_same_numbers_give_the_same_bits_in_little_memory():
    n, width, size = 4099, 64, 32_003
    weights, wanted = operands(n, width, size, torch.float32, "cuda")
    with use_deterministic(torch.device("cuda")), torch.autocast("cuda", torch.bfloat16):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        losses = [linear_cross_entropy(*weights, wanted, smoothing=0.1, ignore_index=HIDDEN) for _ in range(2)]
        first, second = (gradients(loss, weights) for loss in losses)
        peak = torch.cuda.max_memory_allocated() - before
    assert torch.equal(*losses)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert peak < 6 * BUDGET < n * size * 4
