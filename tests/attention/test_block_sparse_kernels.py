"""Block-sparse kernels against the definition, forward and backward, for every kind of tile."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from regard.attention.backends import block_sparse
from regard.attention.backends import block_sparse as backends_block_sparse
from regard.attention.backends.block_sparse import BlockSparseTiles
from regard.attention.batch_patterns import Documents, PackedSequences, Padding
from regard.attention.functional import attend, explain, steps
from regard.attention.normaliser import Normaliser, Softmax
from regard.attention.pattern import Causal, Full, Pattern, Positions, Window
from regard.attention.position_variants import LinearBias
from regard.attention.recipe import Recipe
from regard.attention.scaled_score import SoftCap
from regard.attention.score import Cosine
from regard.attention.softmax_variants import SinkSoftmax
from regard.attention.sparse_patterns import Block, BlockChoice, Global, Random, Strided
from regard.ops.dropout import mix_bits, shift_right
from tests.attention.triton_interpreter import compile_for_hopper, print_json

QUERIES, KEYS = (
    PackedSequences.of([torch.zeros(n, 1) for n in (5, 19, 7)]),
    PackedSequences.of([torch.zeros(n, 1) for n in (17, 3, 21)]),
)
CHOSEN = torch.tensor([[[[-1, 0], [-1, 1], [0, 2]], [[-1, 0], [0, 1], [1, 2]]]]).repeat(2, 1, 1, 1)
CHOSEN[1, 0, 2] = torch.tensor([-1, 2])  # of heads and sentences that choose otherwise
# name: pattern, queries, keys, position of the first query
CASES: dict[str, tuple[Pattern, int, int, int]] = {
    "full": (Full(), 19, 37, 0),
    "window": (Window(7), 41, 41, 0),
    "a window wider than tiles": (Window(29), 37, 61, 11),
    "causal through a cache": (Causal(), 5, 43, 38),
    "causal window with padding": (Causal() & Window(20) & Padding(torch.tensor([11, 31])), 29, 37, 5),
    "a sentence without a word": (Padding(torch.tensor([0, 19])), 19, 23, 0),
    "the first query sees nothing": (Causal() & ~Window(1), 23, 23, 0),
    "nobody sees anybody": (Causal() & ~Causal(), 17, 17, 0),
    "packed texts": (QUERIES.pattern & Causal(), 31, 31, 0),
    "packed targets onto packed sources": (QUERIES.cross_pattern(KEYS), 31, 41, 0),
    "names in any order": (Documents(torch.tensor([[0, 2, 1], [5, 5, 0]]).repeat(1, 7)) & Window(9), 21, 21, 0),
    "longformer": (Window(3) | Global(2), 37, 37, 0),
    "blocks at random": (Block(16, Window(1) | Random(1)), 53, 53, 0),
    "strided with padding": (Strided(3) & Padding(torch.tensor([0, 30])), 19, 37, 0),
    "chosen blocks": (BlockChoice(CHOSEN, 32, 32) & Padding(torch.tensor([53, 79])), 79, 79, 0),
    "strided packed texts": ((Strided(3) | Global(1)) & QUERIES.pattern, 31, 31, 0),
}
DROPPING = [
    "causal window with padding",
    "a sentence without a word",
    "packed targets onto packed sources",
    "longformer",
]
SLOPING = ["full", "causal through a cache", "packed texts", "longformer"]
CAPPING = {"window": 0.7, "longformer": 70.0}  # below and above what is exponentiated without a running maximum
SINKING = ["causal window with padding", "longformer", "a sentence without a word"]


def inputs(
    n: int, m: int, widths: tuple[int, int], dtype: torch.dtype, heads: tuple[int, int] = (4, 2), batch: int = 2
) -> list[Tensor]:
    """q, k, v and what comes back; heads share keys, and tokens lie before heads as projections leave them."""
    (d, e), (h, g) = widths, heads
    shapes = [(batch, n, h, d), (batch, m, g, d), (batch, m, g, e), (batch, n, h, e)]
    return [torch.randn(shape, dtype=torch.double).to(dtype).transpose(1, 2) for shape in shapes]


def forward_and_backward(run, q: Tensor, k: Tensor, v: Tensor, upstream: Tensor) -> list[Tensor]:
    given = [x.detach().requires_grad_() for x in (q, k, v)]
    out = run(*given)
    return [out, *torch.autograd.grad(out, given, upstream.to(out))]


@dataclass(eq=False)
class LearnedSlopes(nn.Module, LinearBias):
    """A part as a user might write it: ALiBi whose slopes learn."""

    heads: int

    def __post_init__(self):
        super().__init__()
        self.slopes = nn.Parameter(torch.rand(self.heads, dtype=torch.double))

    def slope(self, h):
        return self.slopes[h]


def defined(pattern: Pattern, start: int = 0, normaliser: Normaliser = Softmax(), **parts: Any):
    recipe = Recipe(pattern=pattern, normaliser=normaliser, **parts)
    return lambda q, k, v: attend(q, k, v, recipe, q_index=start, backend="reference")


def defined_dropping(pattern: Pattern, start: int, rate: float, seed: Tensor):
    """The definition, its weights multiplied by the mask that the seed names."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = steps(q, k, v, Recipe(pattern=pattern), q_index=start).weights
        values = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        return (weights * multipliers(weights, rate, seed)) @ values

    return run


def multipliers(weights: Tensor, rate: float, seed: Tensor) -> Tensor:
    """0 or 1/(1 - rate) for each weight, as `ops/dropout_triton.py` says."""
    cut, low = round(rate * 2**24), seed.to(torch.int32)
    row = torch.arange(weights[..., 0].numel(), device=weights.device).view(*weights.shape[:3], 1)
    key = mix_bits(low + 0x5BD1E995, low)
    first = mix_bits((row + seed).to(torch.int32), key)
    bits = mix_bits(first + torch.arange(weights.shape[3], dtype=torch.int32, device=weights.device), key)
    return (shift_right(bits, 8) >= cut).to(weights) * 2**24 / (2**24 - cut)


def ours(pattern: Pattern, start: int = 0, shapes: Any = None, **dropping: Any):
    from regard.attention.kernels.block_sparse import block_sparse_attention

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        tiles = BlockSparseTiles.of(pattern, q.shape[2], k.shape[2], start=start, device=q.device)
        return block_sparse_attention(q, k, v, tiles, scale=q.shape[3] ** -0.5, shapes=shapes, **dropping)

    return run


def furthest(want: list[Tensor], got: list[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(want, got, strict=True))


def meetings_differ(device: str = "cpu") -> float:
    """In how many numbers the kernels for packed texts differ from plain torch."""
    from regard.attention.kernels.block_sparse import segment_reach_kernel

    differing = 0
    for rows, others, n, m in ((1, 1, 37, 61), (3, 1, 16, 5), (1, 2, 1, 300), (2, 2, 129, 1023)):
        for names in (torch.Tensor.clone, lambda x: x.sort().values):
            own, other = (names(torch.randint(-3, 9, shape)) for shape in ((rows, n), (others, m)))
            for size, step in ((16, 16), (32, 2)):
                got = segment_reach_kernel(own.to(device), other.to(device), size, step)
                differing += int((got.cpu() != backends_block_sparse.segment_reach(own, other, size, step)).sum())
    return float(differing)


def kernel_cases() -> dict[str, float]:
    """Under Triton's interpreter, in float64: the largest difference between kernels and definition, for each case."""
    from regard.attention.kernels.block_sparse import SparseTileShape, SparseTileShapes

    backends_block_sparse.SIZES = {32: 1.0}
    torch.manual_seed(0)
    differences: dict[str, float] = {}
    for number, (name, (pattern, n, m, start)) in enumerate(CASES.items()):
        own, parts, bulk = (16, 32)[number % 2], (1, 3)[number // 2 % 2], number // 4 % 2 == 0
        shape, other = (
            SparseTileShape(own, 16, 4, 1, parts, bulk=bulk),
            SparseTileShape(48 - own, 16, 4, 1, parts, bulk=not bulk),
        )
        given = inputs(n, m, [(16, 16), (13, 5)][number % 3 == 0], torch.double, (2, 1), pattern.batches)
        want = forward_and_backward(defined(pattern, start), *given)
        got = forward_and_backward(ours(pattern, start, SparseTileShapes(shape, other, shape)), *given)
        assert all(bool(x.isfinite().all()) for x in got), name
        differences[name] = furthest(want, got)
        if name in DROPPING:
            seed = torch.tensor(2**40 + 7 * number)
            want = forward_and_backward(defined_dropping(pattern, start, 0.3, seed), *given)
            got = forward_and_backward(
                ours(pattern, start, SparseTileShapes(shape, other, shape), dropout=0.3, seed=seed), *given
            )
            differences[f"{name}, dropping"] = furthest(want, got)
        if name in SINKING:
            sink = SinkSoftmax.of(torch.randn(2, dtype=torch.double).requires_grad_())
            want = forward_and_backward(defined(pattern, start, sink), *given)
            tiled = ours(pattern, start, SparseTileShapes(shape, other, shape), sinks=sink.sinks)
            differences[f"{name}, with sinks"] = furthest(want, forward_and_backward(tiled, *given))
            of_sinks = [
                torch.autograd.grad(run(*given[:3]), sink.sinks, given[3])[0]
                for run in (defined(pattern, start, sink), tiled)
            ]
            differences[f"{name}, of sinks"] = furthest(of_sinks[:1], of_sinks[1:])
        if name in SLOPING:
            scheme = LearnedSlopes(2)
            ways = (
                defined(pattern, start, position=scheme),
                ours(pattern, start, SparseTileShapes(shape, other, shape), slopes=scheme.slopes),
            )
            differences[f"{name}, sloping"] = furthest(*(forward_and_backward(way, *given) for way in ways))
            of_slopes = [torch.autograd.grad(way(*given[:3]), scheme.slopes, given[3])[0] for way in ways]
            differences[f"{name}, of slopes"] = furthest(of_slopes[:1], of_slopes[1:])
        if name in CAPPING:
            cap = CAPPING[name]
            given = [30 * given[0] if cap > 1 else given[0], *given[1:]]
            want = forward_and_backward(defined(pattern, start, score=SoftCap(cap)), *given)
            tiled = ours(pattern, start, SparseTileShapes(shape, other, shape), cap=cap)
            differences[f"{name}, capped"] = furthest(want, forward_and_backward(tiled, *given))
        if name == "a sentence without a word":
            assert all(not x[0].any() for x in got), "a row that sees nothing gives 0 and gradient 0"
    shape = SparseTileShape(16, 16, 4, 1)
    run, given = (
        ours(Causal() & Window(3), 0, SparseTileShapes(shape, shape, shape)),
        inputs(5, 7, (3, 2), torch.double, (2, 1), 1),
    )
    wanting = tuple(x.detach().requires_grad_() for x in given[:3])
    differences["gradcheck"] = float(not torch.autograd.gradcheck(run, wanting, fast_mode=True))
    run = ours(Causal() & Window(3), 0, SparseTileShapes(shape, shape, shape), dropout=0.4, seed=torch.tensor(5))
    differences["gradcheck, dropping"] = float(not torch.autograd.gradcheck(run, wanting, fast_mode=True))
    given, scheme = inputs(83, 83, (16, 16), torch.double, (2, 1), 2), LearnedSlopes(2)
    scheme.slopes.data = torch.tensor([2.5, 0.3], dtype=torch.double)
    for name, pattern in {"causal": Causal(), "both ways": Full()}.items():
        tiled = ours(pattern, 0, SparseTileShapes(shape, shape, shape), slopes=scheme.slopes)
        ways = defined(pattern, 0, position=scheme), tiled
        differences[f"steep, {name}"] = furthest(*(forward_and_backward(way, *given) for way in ways))
        far = [x.clone() for x in given]
        far[2][:, :, :9] = torch.nan  # what is beyond the reach of the last queries is not even read
        differences[f"steep, {name}, unread"] = float(tiled(*far[:3])[:, 0, 64:].isnan().any())
    differences["segment_reach"] = meetings_differ()
    given = inputs(29, 29, (16, 16), torch.float16, (2, 1), 1)
    shapes = SparseTileShapes(shape, shape, shape)
    for name, cap in {"half precision": None, "half precision, capped": 2.5}.items():
        way = defined(Window(9)) if cap is None else defined(Window(9), score=SoftCap(cap))
        ways = way, ours(Window(9), 0, shapes, cap=cap)
        truth = forward_and_backward(way, *(x.double() for x in given))
        worst = [
            [float((x.double() - y).abs().max()) for x, y in zip(forward_and_backward(run, *given), truth, strict=True)]
            for run in ways
        ]
        differences[name] = max(m / p for p, m in zip(*worst, strict=True))
    for key in (12, 13):  # in either half, what is no number is seen by its neighbours, and by no other
        broken = given[1].clone()
        broken[:, :, key] = torch.nan
        out = ours(Window(9), 0, shapes, cap=2.5)(given[0], broken, given[2])
        near = (torch.arange(29) - key).abs() < 9
        differences[f"no number, {key}"] = float((out.isnan() != near[:, None]).sum())
    return differences


@pytest.mark.parametrize(
    "case",
    [
        *(*CASES, "gradcheck", "segment_reach"),
        *(f"{name}, dropping" for name in (*DROPPING, "gradcheck")),
        *(f"{name}, {what} sinks" for name in SINKING for what in ("with", "of")),
        *(f"{name}, {what}" for name in SLOPING for what in ("sloping", "of slopes")),
        *(f"{name}, capped" for name in CAPPING),
    ],
)
def test_the_kernels_interpreted_agree_with_the_definition(case, interpreted):
    assert interpreted[case] < 1e-10


@pytest.mark.parametrize("way", ["causal", "both ways"])
def test_what_a_steep_slope_makes_negligible_is_not_read_and_not_missed(way, interpreted):
    assert interpreted[f"steep, {way}"] < 1e-8
    assert interpreted[f"steep, {way}, unread"] == 0


@pytest.mark.parametrize("case", ["half precision", "half precision, capped"])
def test_half_precision_interpreted_is_as_good_as_plain_torch(case, interpreted):
    assert interpreted[case] <= 2


@pytest.mark.parametrize("key", [12, 13])
def test_a_score_that_is_no_number_is_not_lost_below_a_cap(key, interpreted):
    assert interpreted[f"no number, {key}"] == 0


@cache
def made(kernel: str, kind: str, cut: int = 0, *, sloped: bool = False, capped: bool = False) -> Any:
    """A kernel compiled for a Hopper, which needs no GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    import triton.language as tl

    from regard.attention.kernels import block_sparse as block_sparse_kernels

    function = getattr(block_sparse_kernels, kernel)
    given: dict[str, Any] = {"D": 64, "DD": 64, "E": 64, "EE": 64, "WIDE": tl.float32, "OWN": 64, "TILE": 64}
    given |= {"SIZE": 128, "PARTS": 3 if kind == "texts" else 1, "PRECISION": "tf32", "BULK": kind == "band"}
    given |= {"CUT": cut} | ({} if cut else {"seed": None})
    given |= {"AHEAD": kind == "lists"} | dict.fromkeys(() if sloped else ("slopes", "farthest", "of_slopes"))
    given |= {"APPROXIMATE": 1} | ({} if capped else {"cap": None})
    given |= {"BOUNDED": capped and not sloped} if kernel == "forward_kernel" else {}
    given |= {"share": 1} if kind != "lists" else {}
    given |= dict.fromkeys(("firsts", "columns", "kinds", "masks") if kind != "lists" else ())
    given |= dict.fromkeys(("q_names", "k_names", "reach") if kind != "texts" else ())
    types = {"lse": "*fp32", "delta": "*fp32", "scale": "fp32", "masks": "*i8", "q_names": "*i64"}
    types |= {"cap": "fp32", "slopes": "*fp32", "of_slopes": "*fp32", "unit": "fp32", "farthest": "*i32"}
    types |= {"k_names": "*i64", "seed": "*i64"} | dict.fromkeys(
        ("firsts", "columns", "kinds", "lengths", "reach"), "*i32"
    )
    types |= dict.fromkeys(("q", "k", "v", "out", "upstream", "dq", "dk", "dv"), "*bf16")
    if kind == "band":
        loaded = ("q", "upstream") if kernel == "dkv_kernel" else ("k", "v")
        types |= dict.fromkeys(loaded, "tensordesc<bf16[1, 1, 64, 64]>")
    aligned = [name for name in function.arg_names if types.get(name, "*i")[0] == "*"]
    return compile_for_hopper(function, given, types, aligned, num_warps=4, num_stages=2)


COMPILED = [
    (kernel, kind) for kernel in ("forward_kernel", "dq_kernel", "dkv_kernel") for kind in ("lists", "texts", "band")
]


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [pytest.param(*pair, marks=[] if n in (0, 4, 8) else pytest.mark.slow) for n, pair in enumerate(COMPILED)],
)
def test_the_kernels_compile_for_a_hopper_and_use_its_matrix_unit(kernel, kind):
    """The interpreter forgives what the compiler does not."""
    ptx = made(kernel, kind).asm["ptx"]
    assert ".target sm_90" in ptx
    assert ptx.count("wgmma.mma_async") >= 2
    assert ("cp.async.bulk.tensor" in ptx) == (kind == "band")


@pytest.mark.parametrize("kernel", ["forward_kernel", "dq_kernel", "dkv_kernel"])
def test_without_dropout_nothing_of_it_is_compiled(kernel):
    """What is not dropped costs nothing: no seed is read, and no index is hashed."""
    hashing = "1935289751"  # the second multiplier of the hash
    assert hashing not in made(kernel, "band").asm["ptx"]
    dropping = made(kernel, "band", 2**20).asm["ptx"]
    assert hashing in dropping
    assert dropping.count("wgmma.mma_async") == made(kernel, "band").asm["ptx"].count("wgmma.mma_async")


def test_half_of_the_exponentials_below_a_cap_take_no_special_function():
    """Which half is known when a kernel is compiled: the other is not computed beside it."""
    ptx = made("forward_kernel", "band", capped=True).asm["ptx"]
    scores = 64 * 64 // 128  # of a thread
    assert (ptx.count("tanh.approx"), ptx.count("ex2.approx")) == (scores, scores // 2)


@pytest.mark.parametrize(
    "kernel", ["forward_kernel", *(pytest.param(x, marks=pytest.mark.slow) for x in ("dq_kernel", "dkv_kernel"))]
)
def test_a_slope_and_a_cap_compile_for_a_hopper(kernel):
    """A cap costs one special function a score, and a slope none."""

    def special(**parts: bool) -> int:
        ptx = made(kernel, "band", **parts).asm["ptx"]
        return sum(ptx.count(name) for name in ("ex2.approx", "tanh.approx"))

    assert special(sloped=True) == special()
    assert special(sloped=True, capped=True) > 1.8 * special()
    maxima = [made(kernel, "band", **parts).asm["ptx"].count("max.f32") for parts in ({}, {"capped": True})]
    assert (maxima[0] > maxima[1] == 0) if kernel == "forward_kernel" else maxima[0] == maxima[1]  # bounded scores


def test_the_kernels_for_names_compile_for_a_hopper():
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels import block_sparse as block_sparse_kernels

    types = {**dict.fromkeys(("names", "least", "most"), "*i64"), "found": "*i32"}
    for kernel, sizes in (
        (block_sparse_kernels.run_min_max, {"SIZE": 64}),
        (block_sparse_kernels.tile_segment_reach, {"SIZE": 128}),
    ):
        given = sizes | ({"CHUNK": block_sparse_kernels.CHUNK} if "CHUNK" in kernel.arg_names else {})
        assert ".target sm_90" in compile_for_hopper(kernel, given, types, num_warps=4).asm["ptx"]


def test_a_dropout_mask_looks_random():
    """The rate is met in all, in each row and in each column, and neither rows nor columns resemble each other."""
    mask = multipliers(torch.zeros(2, 3, 128, 512, dtype=torch.double), 0.3, torch.tensor(11))
    assert set(mask.unique().tolist()) == {0.0, 2**24 / (2**24 - round(0.3 * 2**24))}
    deviation = ((mask > 0).double() - 0.7).flatten(0, 2) / 0.21**0.5
    rows, columns = deviation.shape
    assert abs(float(deviation.sum())) < 4 * deviation.numel() ** 0.5
    for x, size in ((deviation, columns), (deviation.T, rows)):
        assert float(x.sum(1).abs().max()) < 5 * size**0.5
        alike = (x @ x.T).fill_diagonal_(0.0)
        assert float(alike.abs().max()) < 6.5 * size**0.5


def test_no_length_is_compiled_for():
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels import block_sparse as block_sparse_kernels

    for kernel in (
        block_sparse_kernels.forward_kernel,
        block_sparse_kernels.dq_kernel,
        block_sparse_kernels.dkv_kernel,
    ):
        free = {param.name for param in kernel.params if param.do_not_specialize}
        assert free >= {"n_q", "n_k", "start", "least", "most", "heads", "reach_b"}


def test_a_scale_below_zero_is_refused():
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels.block_sparse import block_sparse_attention

    q = torch.zeros(1, 1, 3, 4)
    with pytest.raises(ValueError, match=r"scale=-1\.0: .* put the sign into q"):
        block_sparse_attention(q, q, q, BlockSparseTiles.of(Full(), 3, 3), scale=-1.0)


# --- on a GPU ---

GPU = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LARGE: dict[str, tuple[Pattern, int, int, int]] = {
    "window": (Window(131), 1009, 1009, 0),
    "causal window with padding": (Causal() & Window(200) & Padding(torch.tensor([311, 1201])), 907, 1201, 101),
    "packed texts": (Documents.from_lengths([101, 13, 512, 383]) & Causal(), 1009, 1009, 0),
    "packed targets onto packed sources": (
        Documents(
            Documents.from_lengths([97, 300, 211]).segment_ids, Documents.from_lengths([400, 53, 334]).segment_ids
        ),
        608,
        787,
        0,
    ),
    "bigbird": (Block(64, Window(2) | Global(1) | Random(1)), 1009, 1009, 0),
    "longformer": (Window(67) | Global(3), 1009, 1009, 0),
    "some see nothing": (Strided(3) & Causal() & Padding(torch.tensor([0, 30])), 617, 617, 0),
}


def assert_as_good(pattern: Pattern, run, given: list[Tensor], start: int) -> None:
    """Error at most twice that of the definition in the same dtype, plus float32's own last digits."""
    truth = forward_and_backward(defined(pattern, start), *(x.double() for x in given))
    plain, mine = forward_and_backward(defined(pattern, start), *given), forward_and_backward(run, *given)
    for true, theirs, got in zip(*map(tree_leaves, (truth, plain, mine)), strict=True):
        assert bool(got.isfinite().all())
        allowed = 2 * (theirs.double() - true).abs().max() + 2e-5 * true.abs().max()
        assert (got.double() - true).abs().max() <= allowed


class TestOnAGpu:
    pytestmark = GPU

    @pytest.mark.parametrize("case", LARGE)
    def test_the_kernels_are_as_good_as_plain_torch(self, case):
        pattern, n, m, start = LARGE[case]
        given = [x.to("cuda") for x in inputs(n, m, (64, 64), torch.bfloat16)]
        pattern = pattern.to("cuda")
        assert_as_good(pattern, ours(pattern, start), given, start)

    @pytest.mark.parametrize(
        ("dtype", "widths"),
        [
            (torch.bfloat16, (32, 32)),
            (torch.bfloat16, (80, 40)),
            (torch.float32, (64, 64)),
            (torch.bfloat16, (256, 256)),
        ],
    )
    def test_every_width_and_single_precision(self, dtype, widths):
        given = [x.to("cuda") for x in inputs(509, 601, widths, dtype)]
        assert_as_good(Window(97), ours(Window(97)), given, 0)

    @pytest.mark.parametrize("cap", [0.7, 50.0, 70.0])
    def test_scores_at_their_cap_are_as_good_as_plain_torch(self, cap):
        """2^c is far from overflow, and the sum of a row that is at -c throughout is no 0."""
        q, k, v, upstream = (x.to("cuda") for x in inputs(509, 509, (64, 64), torch.bfloat16))
        truth, plain, mine = (
            forward_and_backward(way, *(x.to(dtype) for x in (100 * q, k.abs(), v, upstream)))
            for way, dtype in (
                (defined(Causal(), score=SoftCap(cap)), torch.double),
                (defined(Causal(), score=SoftCap(cap)), torch.bfloat16),
                (ours(Causal(), cap=cap), torch.bfloat16),
            )
        )
        for true, theirs, got in zip(truth, plain, mine, strict=True):
            assert bool(got.isfinite().all())
            assert (got.double() - true).norm() <= 2 * (theirs.double() - true).norm() + 1e-3 * true.norm()

    def test_the_backend_takes_what_it_does_best(self):
        q, k, v, _ = (x.to("cuda") for x in inputs(1009, 1009, (64, 64), torch.bfloat16))
        recipe = Recipe(score=Cosine(), pattern=Window(101))
        positions = Positions.of(q, k, None, None)
        assert (
            block_sparse.objections(recipe, q, k, positions) == block_sparse.discouraged(recipe, q, k, positions) == []
        )
        want = attend(q.double(), k.double(), v.double(), recipe, backend="reference")
        got = block_sparse.attend(recipe, q, k, v, positions)
        assert (got.double() - want).norm() / want.norm() < 2e-2
        assert "sdpa" in explain(Recipe(), q, k).backend

    def test_another_length_compiles_nothing_anew(self):
        from regard.attention.kernels import block_sparse as block_sparse_kernels

        def compiled() -> int:
            kernels = (
                block_sparse_kernels.forward_kernel,
                block_sparse_kernels.dq_kernel,
                block_sparse_kernels.dkv_kernel,
            )
            return sum(len(kernel.device_caches[torch.cuda.current_device()][0]) for kernel in kernels)

        counts = []
        for n, size in ((1024, 64), (1025, 1), (999, 128), (16, 100)):
            given = [x.to("cuda") for x in inputs(n, n, (64, 64), torch.bfloat16)]
            forward_and_backward(ours(Window(size)), *given)
            counts.append(compiled())
        assert len(set(counts)) == 1

    @pytest.mark.parametrize("case", LARGE)
    def test_the_kernels_drop_what_their_seed_names(self, case):
        pattern, n, m, start = LARGE[case]
        given = [x.to("cuda") for x in inputs(n, m, (64, 64), torch.float32)]
        pattern, seed = pattern.to("cuda"), torch.tensor(2**40 + 11, device="cuda")
        want = forward_and_backward(defined_dropping(pattern, start, 0.3, seed), *(x.double() for x in given))
        got = forward_and_backward(ours(pattern, start, dropout=0.3, seed=seed), *given)
        for true, found in zip(want, got, strict=True):
            assert (found.double() - true).abs().max() <= 1e-4 * true.abs().max()

    def test_a_cuda_graph_drops_other_weights_each_time(self):
        q, k, v, _ = (x.to("cuda") for x in inputs(640, 640, (64, 64), torch.bfloat16))
        run = ours(Window(131), dropout=0.3)
        run(q, k, v)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run(q, k, v)
        found = []
        for _ in range(2):
            graph.replay()
            found.append(out.clone())
        assert not torch.equal(*found)
        assert all(bool(x.isfinite().all()) for x in found)

    def test_names_are_met_by_kernels_as_by_plain_torch(self):
        assert meetings_differ("cuda") == 0

    def test_a_cuda_graph_reads_a_batchs_names_anew(self):
        """What was worked out from the names at capture is not trusted at replay."""
        q, k, v, _ = (x.to("cuda") for x in inputs(640, 640, (64, 64), torch.bfloat16))
        texts = [Documents.from_lengths(lengths).to("cuda") for lengths in ([100, 540], [333, 7, 300])]
        ids = texts[0].segment_ids.clone()
        run = ours(Documents(ids) & Window(131))
        run(q, k, v)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = run(q, k, v)
        for text in texts:
            ids.copy_(text.segment_ids)
            graph.replay()
            assert torch.equal(out, ours(text & Window(131))(q, k, v))

    def test_gradients_are_the_same_every_time(self):
        given = [x.to("cuda") for x in inputs(1009, 1009, (64, 64), torch.bfloat16)]
        one, two = (forward_and_backward(ours(Window(131)), *given) for _ in range(2))
        assert all(map(torch.equal, one, two))


if __name__ == "__main__":
    print_json(kernel_cases)
