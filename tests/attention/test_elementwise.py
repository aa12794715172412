"""ReLU and sigmoid attention without n × n weights: tiles against the definition, Triton kernels against the tiles."""

from collections.abc import Callable, Sequence
from math import log

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from regard.attention.backends import elementwise, tiles
from regard.attention.backends.elementwise import TorchElementwise, choose_engine, elementwise_attention
from regard.attention.backends.tiles import Interval, ScoreTiles
from regard.attention.batch_patterns import Documents, Edges, Padding
from regard.attention.functional import attend
from regard.attention.normaliser import Normaliser, ReLU, Sigmoid, Softmax
from regard.attention.parts import parse_part
from regard.attention.pattern import Causal, Full, Pattern, Positions, StrictCausal, Window
from regard.attention.position_variants import Alibi
from regard.attention.recipe import Recipe
from regard.attention.score import Additive, Dot
from regard.attention.sparse_patterns import Random, Strided
from tests.attention.accuracy import LargestTensor, assert_as_accurate
from tests.attention.qkv import QKV, cast_leaves, random_qkv
from tests.attention.triton_interpreter import print_json

B, H, N, J, D, E = 2, 3, 7, 11, 5, 13
INTERVALS: dict[str, Pattern] = {
    "full": Full(),
    "causal": Causal(),
    "window": Window(3),
    "the past alone": StrictCausal(),
    "padding": Padding(torch.tensor([11, 4])),
    "causal window, padding": Causal() & Window(4) & Padding(torch.tensor([3, 10])),
    "one sentence sees nothing": Padding(torch.tensor([0, 5])),
    "two lengths": Padding(torch.tensor([9, 4])) & Padding(torch.tensor([6, 8])),
    "nothing": StrictCausal() & Window(1),
}
OTHERS: dict[str, Pattern] = {
    "every third": Strided(3),
    "longformer": parse_part("Window(2) | Global(1)"),
    "not a window": parse_part("~Window(2)"),
    "random": Random(2, seed=0),
    "documents": Documents.from_lengths([4, 7]),
    "edges": Edges(torch.tensor([[4, 5, 6, 10], [0, 3, 9, 9]])),
}
PATTERNS = INTERVALS | OTHERS


def inputs(groups: int = H) -> QKV:
    return random_qkv((B, H, N, D), (B, groups, J, D), (B, groups, J, E))


def forward_and_backward(out: Tensor, given: Sequence[Tensor], upstream: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    return out, torch.autograd.grad(out, given, upstream.to(out))


def tiled(pattern: Pattern, normaliser: Normaliser = ReLU()) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Of q, k and v; queries are at the end."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positions = Positions.of(q, k, k.shape[2] - q.shape[2], None)
        return elementwise.attend(Recipe(normaliser=normaliser, pattern=pattern), q, k, v, positions)

    return run


@pytest.fixture
def _small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "SIZES", (4,))


# --- the operation ---


def test_three_keys_on_paper():
    """Scores 2, −3 and 1 of values 1, 100 and 10: ReLU gives 2·1 + 0 + 1·10 = 12."""
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([2.0, -3.0, 1.0]).view(1, 1, 3, 1)
    v = torch.tensor([1.0, 100.0, 10.0]).view(1, 1, 3, 1)
    recipe = Recipe(score=Dot(), normaliser=ReLU())
    assert elementwise.attend(recipe, q, k, v, Positions.of(q, k, 0, None)).item() == 12


def test_two_keys_of_a_sigmoid_on_paper():
    """Scores log 3 and 0, so weights 3/4 and 1/2, of values 8 and 4: 6 + 2."""
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([log(3), 0.0]).view(1, 1, 2, 1)
    recipe = Recipe(score=Dot(), normaliser=Sigmoid())
    out = elementwise.attend(recipe, q, k, torch.tensor([8.0, 4.0]).view(1, 1, 2, 1), Positions.of(q, k, 0, None))
    assert_close(out.item(), 8.0)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("normaliser", [ReLU(), Sigmoid()], ids=str)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_reference(pattern, normaliser):
    """Fewer queries than keys, heads that share keys, values wider than keys."""
    given, upstream = inputs(groups=1), torch.randn(B, H, N, E, dtype=torch.double)
    recipe = Recipe(normaliser=normaliser, pattern=PATTERNS[pattern])
    want = attend(*given, recipe, q_index=J - N, backend="reference")
    got = tiled(PATTERNS[pattern], normaliser)(*given)
    assert_close(forward_and_backward(got, given, upstream), forward_and_backward(want, given, upstream))


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("q_index", [torch.tensor([3, 0, 9, 4, 4, 10, 1]), torch.arange(2 * N).view(2, N)])
def test_places_may_be_anywhere(q_index):
    given = inputs()
    recipe = Recipe(normaliser=ReLU(), pattern=Causal())
    want = attend(*given, recipe, q_index=q_index, backend="reference")
    assert_close(elementwise.attend(recipe, *given, Positions.of(given[0], given[1], q_index, None)), want)


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("normaliser", [ReLU(), Sigmoid()], ids=str)
@pytest.mark.parametrize("pattern", ["full", "causal window, padding", "longformer"])
def test_its_gradients_are_slopes(pattern, normaliser):
    q, k, v = inputs()
    given = q[:, :1, :3], k[:, :1, :6], v[:, :1, :6, :2]
    assert torch.autograd.gradcheck(tiled(PATTERNS[pattern], normaliser), given)


@pytest.mark.parametrize("normaliser", [ReLU(), Sigmoid()], ids=str)
def test_a_row_that_sees_nothing_gives_nothing_and_learns_nothing(normaliser):
    given = inputs()
    out = tiled(PATTERNS["one sentence sees nothing"], normaliser)(*given)
    for x in (out, *torch.autograd.grad(out.sum(), given)):
        assert not x[0].any()
        assert x[1].any()


def test_without_a_single_key_the_output_is_zero():
    q, k, v = inputs()
    out = tiled(Full())(q, k[:, :, :0], v[:, :, :0])
    assert out.shape == (B, H, N, E)
    assert not out.any()


def test_a_hidden_key_cannot_be_felt():
    q, k, v = (x.detach() for x in inputs())
    run = tiled(Padding(torch.tensor([J - 2, J - 2])))
    want = run(q, k, v)
    k[:, :, -2:] = torch.nan
    assert_close(run(q, k, v), want)


@pytest.mark.parametrize("size", [1, 3, 8, 128])
def test_the_size_of_tiles_changes_nothing(size, monkeypatch):
    given, upstream = inputs(), torch.randn(B, H, N, E, dtype=torch.double)
    want = forward_and_backward(tiled(PATTERNS["longformer"])(*given), given, upstream)
    monkeypatch.setattr(tiles, "SIZES", (size,))
    assert_close(forward_and_backward(tiled(PATTERNS["longformer"])(*given), given, upstream), want)


@pytest.mark.parametrize("normaliser", [ReLU(), Sigmoid()], ids=str)
def test_half_precision_is_as_good_as_plain_torch(normaliser):
    """Output and every gradient: error at most twice that of plain torch in the same dtype."""
    given, upstream = cast_leaves(inputs(), torch.bfloat16), torch.randn(B, H, N, E).bfloat16()
    exact = cast_leaves(given, torch.double)
    recipe = Recipe(normaliser=normaliser)
    truth, coarse = (forward_and_backward(attend(*x, recipe, backend="reference"), x, upstream) for x in (exact, given))
    ours = forward_and_backward(tiled(Full(), normaliser)(*given), given, upstream)
    assert_as_accurate(truth, coarse, ours)


def test_nothing_ever_grows_to_queries_times_keys(monkeypatch):
    monkeypatch.setattr(tiles, "SIZES", (32,))
    q, k, v = (torch.randn(1, 1, n, 17, requires_grad=True) for n in (211, 331, 331))
    with LargestTensor() as largest:
        tiled(Causal())(q, k, v).sum().backward()
    assert largest.numel <= 331 * 17 < 211 * 331


# --- as a backend ---


def test_it_says_why_not():
    q, long = torch.zeros(1, 2, 3, D), torch.zeros(1, 2, 1000, D)
    positions = Positions.of(q, q, 0, None)
    refused = {
        "is not an inner product": Recipe(score=Additive(D, 4), normaliser=ReLU()),
        "adds to single scores": Recipe(position=Alibi(2), normaliser=ReLU()),
        "each key by itself": Recipe(normaliser=Softmax()),
    }
    for reason, recipe in refused.items():
        assert reason in elementwise.objections(recipe, q, q, positions)[0]
    assert elementwise.objections(Recipe(normaliser=Sigmoid()), q, q, positions) == []
    assert "nothing is gained" in elementwise.discouraged(Recipe(normaliser=ReLU()), q, q, positions)[0]
    assert elementwise.discouraged(Recipe(normaliser=ReLU()), long, long, positions) == []
    assert isinstance(choose_engine(Recipe(normaliser=ReLU()), q, q, positions), TorchElementwise)


@pytest.mark.parametrize("pattern", INTERVALS)
def test_an_interval_sees_what_its_pattern_sees(pattern):
    found = Interval.of(INTERVALS[pattern])
    assert found is not None
    b, i, j = torch.arange(B).view(-1, 1, 1, 1), torch.arange(-2, 17).view(-1, 1), torch.arange(J)
    ends = found.ends(B, J, torch.device("cpu")).view(-1, 1, 1, 1)
    seen = (i - j >= found.low) & (i - j <= found.high) & (j < ends)
    assert torch.equal(seen, INTERVALS[pattern].sees(b, torch.zeros_like(b), i, j).expand_as(seen))


@pytest.mark.parametrize("pattern", OTHERS)
def test_what_is_no_interval_is_not_taken_for_one(pattern):
    assert Interval.of(OTHERS[pattern]) is None


# --- the kernels ---

CASES = {
    "relu, causal window, padding": (ReLU(), Causal() & Window(9) & Padding(torch.tensor([0, 29])), 6),
    "sigmoid, the past alone, padding": (Sigmoid(), StrictCausal() & Padding(torch.tensor([13, 35])), 14),
}


def kernel_cases() -> dict[str, float]:
    """The largest relative difference between kernels and tiles, for each case."""
    from regard.attention.kernels.tiles import ElementwiseTileShapes, TileShape, TritonElementwise

    differences, shape = {}, TileShape(16, 16, 1, 1)
    for name, (normaliser, pattern, start) in CASES.items():
        q, k, v = (torch.randn(2, 1, n, w, requires_grad=True) for n, w in ((21, 5), (35, 5), (35, 7)))
        interval, upstream = Interval.of(pattern), torch.randn(2, 1, 21, 7)
        assert interval is not None
        engines = (
            TorchElementwise(normaliser, ScoreTiles.of(pattern, Positions.of(q, k, start, None), 2, 1)),
            TritonElementwise(normaliser, interval, start, ElementwiseTileShapes(shape, shape, shape)),
        )
        want, got = (
            forward_and_backward(elementwise_attention(q, k, v, engine), (q, k, v), upstream) for engine in engines
        )
        pairs = zip(tree_leaves(want), tree_leaves(got), strict=True)
        differences[name] = max(float(((x - y).abs().max() / x.abs().max()).detach()) for x, y in pairs)
    return differences


@pytest.mark.parametrize("case", CASES)
def test_the_kernels_interpreted_agree_with_the_tiles(case, interpreted):
    assert interpreted[case] < 5e-6


@pytest.mark.parametrize("kernel", ["row_out", "row_dq", "row_dkv"])
def test_the_kernels_compile_for_a_hopper(kernel):
    """The interpreter forgives what the compiler does not; neither needs a GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels import tiles as kernels
    from tests.attention.triton_interpreter import compile_to_ptx

    given = {
        "D": 16,
        "DP": 16,
        "E": 13,
        "EP": 16,
        "OWN": 64,
        "OTHER": 32,
        "WEIGH": kernels.sigmoid,
        "PRECISION": "tf32",
    }
    assert "wgmma" in compile_to_ptx(getattr(kernels, kernel), given)


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@gpu
@pytest.mark.parametrize(
    ("dtype", "normaliser", "pattern"),
    [
        (torch.bfloat16, ReLU(), Full()),
        (torch.bfloat16, ReLU(), Causal() & Padding(torch.tensor([200, 331]))),
        (torch.bfloat16, ReLU(), Window(40)),
        (torch.bfloat16, Sigmoid(), Causal()),
        (torch.float32, ReLU(), Causal()),
    ],
    ids=str,
)
def test_on_a_gpu_the_kernels_are_as_good_as_plain_torch(dtype, normaliser, pattern):
    """Error at most twice that of plain torch in the same dtype, plus float32's own last digits."""
    d, e = (53, 61) if dtype == torch.bfloat16 else (13, 11)
    given = random_qkv((2, 3, 257, d), (2, 3, 331, d), (2, 3, 331, e), dtype=dtype, device="cuda")
    exact = cast_leaves(given, torch.double)
    upstream = torch.randn(2, 3, 257, e).to("cuda", dtype)
    recipe = Recipe(normaliser=normaliser, pattern=pattern.to("cuda"))
    positions = Positions.of(given[0], given[1], 74, None)
    assert not isinstance(choose_engine(recipe, given[0], given[2], positions), TorchElementwise)
    truth, coarse = (
        forward_and_backward(attend(*x, recipe, q_index=74, backend="reference"), x, upstream) for x in (exact, given)
    )
    ours, again = (
        forward_and_backward(elementwise.attend(recipe, *given, positions), given, upstream) for _ in range(2)
    )
    assert_as_accurate(truth, coarse, ours, slack=2e-5)
    assert all(map(torch.equal, tree_leaves(ours), tree_leaves(again)))


if __name__ == "__main__":
    print_json(kernel_cases)
