"""Additive attention without its n × m × d tensor: tiles against the definition, Triton kernels against the tiles."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from math import atanh, log

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from regard.attention.backends import additive
from regard.attention.backends.additive import QueryVisibility, TorchAdditive, additive_attention
from regard.attention.batch_patterns import Padding
from regard.attention.functional import attend
from regard.attention.normaliser import AttentionDropout, Softmax
from regard.attention.parts import parse_part
from regard.attention.pattern import Causal, Full, Pattern, Positions, Window
from regard.attention.position_variants import Alibi
from regard.attention.recipe import Recipe
from regard.attention.score import Additive
from tests.attention.accuracy import LargestTensor, PeakMemory, assert_as_accurate
from tests.attention.triton_interpreter import compile_for_hopper, print_json

B, H, N, J, D, E = 2, 3, 7, 11, 5, 13
PATTERNS: dict[str, Pattern] = {
    "full": Full(),
    "causal": Causal(),
    "window": Window(3),
    "padding": Padding(torch.tensor([11, 4])),
    "causal padding": Causal() & Padding(torch.tensor([3, 10])),
    "one sentence sees nothing": Padding(torch.tensor([0, 5])),
    "the first query sees nothing": parse_part("Causal() & ~Window(1)"),
}


def inputs(scale: float = 1.0, dtype: torch.dtype = torch.double, device: str = "cpu") -> list[Tensor]:
    """a, b, v, values"""
    shapes = [(B, H, N, D), (B, H, J, D), (H, D), (B, H, J, E)]
    made = [torch.randn(shape, dtype=torch.double) for shape in shapes]
    made[0], made[1] = made[0] * scale, made[1] * scale
    return [x.to(device, dtype).requires_grad_() for x in made]


def plain(a: Tensor, b: Tensor, v: Tensor, values: Tensor, pattern: Pattern = Full()) -> Tensor:
    """The definition, with every triple materialised."""
    scores = (torch.tanh(a[:, :, :, None] + b[:, :, None]) * v.expand(a.shape[1], -1)[:, None, None]).sum(-1)
    visible = QueryVisibility(pattern, Positions.of(a, b, 0, None).grid(*a.shape[:2])).band(slice(0, a.shape[2]))
    visible = torch.ones_like(scores, dtype=torch.bool) if visible is None else visible.expand_as(scores)
    return Softmax().weigh(scores, visible) @ values


def tiled(a: Tensor, b: Tensor, v: Tensor, values: Tensor, pattern: Pattern = Full()) -> Tensor:
    return additive_attention(a, b, v, values, QueryVisibility.of(pattern, a, b))


def forward_and_backward(
    run: Callable[..., Tensor], given: Sequence[Tensor], upstream: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    out = run(*given)
    return out, torch.autograd.grad(out, given, upstream.to(out))


@pytest.fixture
def _small_tiles(monkeypatch):
    for name, size in (("CELLS_AT_ONCE", B * H * J * 3), ("CELLS_KEPT", 0), ("TRIPLES_AT_ONCE", 40)):
        monkeypatch.setattr(additive, name, size)
    monkeypatch.setattr(additive, "KEYS_AT_ONCE", 4)


# --- the operation ---


def test_two_keys_on_paper():
    """tanh gives ±1/2, v is 2 log 3: scores ± log 3, weights 9/10 and 1/10, of values 10 and 0: 9."""
    b = torch.tensor([atanh(1 / 2), -atanh(1 / 2)], dtype=torch.double).view(1, 1, 2, 1)
    values = torch.tensor([10.0, 0.0], dtype=torch.double).view(1, 1, 2, 1)
    v = torch.tensor([2 * log(3)], dtype=torch.double)
    assert_close(additive_attention(torch.zeros_like(b[:, :, :1]), b, v, values).item(), 9.0)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("groups", [3, 1])
def test_it_is_the_reference(pattern, groups):
    """Through the recipe, fewer queries than keys, with the gradients of W, U and v."""
    recipe = Recipe(score=Additive(D, hidden=17), pattern=PATTERNS[pattern])
    recipe.learned().double()
    q = torch.randn(B, H, N, D, dtype=torch.double, requires_grad=True)
    k, v = (torch.randn(B, groups, J, width, dtype=torch.double, requires_grad=True) for width in (D, E))
    positions = Positions.of(q, k, J - N, None)
    assert additive.objections(recipe, q, k, positions) == []
    want = attend(q, k, v, recipe, q_index=J - N, backend="reference")
    got = additive.attend(recipe, q, k, v, positions)
    assert_close(got, want)
    learned, upstream = (q, k, v, *recipe.learned().parameters()), torch.randn_like(want)
    wanted, gotten = (torch.autograd.grad(y, learned, upstream) for y in (want, got))
    assert_close(gotten, wanted)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("scale", [1.0, 50.0, 500.0])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_is_the_definition_however_large_the_numbers(scale, pattern):
    given, upstream = inputs(scale), torch.randn(B, H, N, E, dtype=torch.double)
    wanted = forward_and_backward(partial(plain, pattern=PATTERNS[pattern]), given, upstream)
    gotten = forward_and_backward(partial(tiled, pattern=PATTERNS[pattern]), given, upstream)
    assert_close(gotten, wanted)


@pytest.mark.parametrize("far", [30.0, 42.0, 44.0, 50.0])
def test_far_apart_in_float32_nothing_overflows_and_opposites_cancel(far):
    """a = far, b = -far + x: tanh x, though each exponential alone is near the end of its range or past it."""
    x = torch.tensor([-50.0, -2.0, 0.0, 1.0, 50.0])
    a, b = torch.full((1, 1, 1, 1), far), (x - far).view(1, 1, -1, 1)
    scores = TorchAdditive.of(a, b, torch.ones(1, 1)).scores(slice(0, 1), None).flatten() + 1
    assert_close(scores, torch.tanh(x), atol=2e-5, rtol=0)  # x - far itself is rounded, by up to 4e-6


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("pattern", ["full", "causal padding"])
def test_its_gradients_are_slopes(pattern):
    a, b, v, values = inputs()
    given = a[:, :1, :3], b[:, :1, :5], v[:1], values[:, :1, :5, :2]
    assert torch.autograd.gradcheck(partial(tiled, pattern=PATTERNS[pattern]), given)


def test_a_row_that_sees_nothing_gives_nothing_and_learns_nothing():
    given = inputs()
    pattern = Padding(torch.tensor([0, 5]))
    out, (da, db, _, of_values) = forward_and_backward(partial(tiled, pattern=pattern), given, torch.ones(B, H, N, E))
    for x in (out, da, db, of_values):
        assert not x[0].any()
        assert x[1].any()


def test_without_a_single_key_the_output_is_zero():
    a, b, v, values = inputs()
    out = additive_attention(a, b[:, :, :0], v, values[:, :, :0])
    assert out.shape == (B, H, N, E)
    assert not out.any()
    assert not torch.autograd.grad(out.sum(), a)[0].any()


def test_a_hidden_key_cannot_be_felt():
    a, b, v, values = (x.detach() for x in inputs())
    visibility = QueryVisibility.of(Padding(torch.tensor([J - 2, J - 2])), a, b)
    want = additive_attention(a, b, v, values, visibility)
    b[:, :, -2:] = torch.nan
    assert_close(additive_attention(a, b, v, values, visibility), want)


@pytest.mark.parametrize("kept", [0, 2**23])
@pytest.mark.parametrize(("cells", "triples", "keys"), [(1, 1, 1), (B * H * J * 2, 2 * D * 3, 2), (2**21, 2**17, 32)])
def test_the_size_of_bands_and_tiles_changes_nothing(cells, triples, keys, kept, monkeypatch):
    given, upstream = inputs(), torch.randn(B, H, N, E, dtype=torch.double)
    want = forward_and_backward(plain, given, upstream)
    sizes = {"CELLS_AT_ONCE": cells, "TRIPLES_AT_ONCE": triples, "KEYS_AT_ONCE": keys, "CELLS_KEPT": kept}
    for name, size in sizes.items():
        monkeypatch.setattr(additive, name, size)
    assert_close(forward_and_backward(additive_attention, given, upstream), want)


def test_one_v_for_all_heads_gathers_the_gradient_of_each():
    a, b, v, values = inputs()
    one = v[0].detach().requires_grad_()
    out, upstream = additive_attention(a, b, one, values), torch.randn(B, H, N, E, dtype=torch.double)
    wanted = torch.autograd.grad(plain(a, b, one, values), one, upstream)
    assert_close(torch.autograd.grad(out, one, upstream), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_good_as_plain_torch(dtype):
    """Outputs and every gradient: error at most twice that of plain torch in the same dtype."""
    given, upstream = inputs(), torch.randn(B, H, N, E, dtype=torch.double)
    rounded = [x.detach().to(dtype).requires_grad_() for x in given]
    exact = [x.detach().double().requires_grad_() for x in rounded]
    truth, coarse, ours = (
        forward_and_backward(run, x, upstream.to(dtype))
        for run, x in ((plain, exact), (plain, rounded), (additive_attention, rounded))
    )
    assert_as_accurate(truth, coarse, ours)


def test_nothing_ever_grows_to_queries_times_keys_times_width(monkeypatch):
    """71 × 131 × 37 triples: no tensor exceeds the inputs, and the weights are not even n × m."""
    for name, size in (("CELLS_AT_ONCE", 3000), ("CELLS_KEPT", 0), ("TRIPLES_AT_ONCE", 4700)):
        monkeypatch.setattr(additive, name, size)
    a, b, values = (torch.randn(1, 1, n, 37, requires_grad=True) for n in (71, 131, 131))
    v = torch.randn(37, requires_grad=True)
    with LargestTensor() as largest:
        additive_attention(a, b, v, values).sum().backward()
    assert largest.numel <= 131 * 37 < 71 * 131


def test_on_a_gpu_it_holds_less_than_a_tenth_of_a_gibibyte_beyond_its_inputs(monkeypatch):
    """The benchmark's size, output and gradients included; nothing runs, for neither tensors nor kernels are real."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels import additive as fused

    for name in KINDS:
        monkeypatch.setattr(fused, name, defaultdict(lambda: lambda *given, **constants: None))
    monkeypatch.setattr(torch, "autocast", lambda *given, **options: nullcontext())  # knows no such device
    make = partial(torch.empty, dtype=torch.bfloat16, device="meta")
    given = [make(8, 1, 1024, 512).requires_grad_() for _ in range(3)] + [make(512).requires_grad_()]
    a, b, values, v = given
    with PeakMemory() as held:
        out = additive_attention(a, b, v, values, pairs=fused.TritonAdditive.of)
        gradients = torch.autograd.grad(out, given, make(8, 1, 1024, 512).detach())
    assert [x.shape for x in gradients] == [x.shape for x in given]
    upstream = 8 * 2**20  # is an input
    assert held.most - upstream <= 0.1 * 2**30


# --- as a backend ---


def test_it_says_why_not():
    q = torch.zeros(1, 2, 3, D)
    positions = Positions.of(q, q, 0, None)
    score = Additive(D, hidden=4)
    refused = {
        "is not v·tanh": Recipe(),
        "adds to single scores": Recipe(score=score, position=Alibi(heads=2)),
        "is not softmax": Recipe(score=score, normaliser=AttentionDropout(0.1)),
    }
    for reason, recipe in refused.items():
        assert reason in additive.objections(recipe, q, q, positions)[0]
    assert additive.objections(Recipe(score=score), q, q, positions) == []
    assert "nothing is gained" in additive.discouraged(Recipe(score=score), q, q, positions)[0]
    long = torch.zeros(1, 2, 1000, D)
    assert additive.discouraged(Recipe(score=score), long, long, Positions.of(long, long, 0, None)) == []


def test_shapes_that_do_not_fit_are_named():
    a, b, v, values = inputs()
    with pytest.raises(ValueError, match=r"do not fit: .*\(2, 3, 11, 5\), \(4,\)"):
        additive_attention(a, b, v[0, :4], values)


# --- the kernels ---

KINDS = {
    "exponent_limits": {"fits": "*i32", **dict.fromkeys(("heads", "queries", "keys", "d"), "i32")},
    "scores_exponentials": {"fits": "*i32", "out": "*i64", **dict.fromkeys(("stride", "tokens", "d", "padded"), "i32")},
    "scores_forward": {
        **dict.fromkeys(("fits", "live"), "*i32"),
        **dict.fromkeys(("a", "b", "ones"), "*i64"),
        **dict.fromkeys(("heads", "high", "wide", "here", "there", "unit"), "i32"),
    },
    "scores_backward": {
        "fits": "*i32",
        "live": "*i32",
        "g": "*i64",
        "keys": "*bf16",
        **dict.fromkeys(("rows", "count", "wide", "each", "unit"), "i32"),
    },
    "softmax_forward": {"out": "*bf16", **dict.fromkeys(("high", "wide", "stride"), "i32")},
    "softmax_backward": {"p": "*bf16", "upstream": "*bf16", **dict.fromkeys(("high", "wide", "stride"), "i32")},
    "backward_exponentials": {"fits": "*i32", **dict.fromkeys(("stride", "tokens", "padded"), "i32")},
    "sum_partial_gradients": {"out": "*bf16", **dict.fromkeys(("heads", "count", "rows", "tokens", "stride"), "i32")},
}
SIZES = {
    "D": 37,
    "PADDED": 64,
    "PAIRS": 16,
    "DEPTH": 1,
    "WARPS": 8,
    "CHUNK": 8,
    "DOWN": 8,
    "ACROSS": 4,
    "SHARE": 4,
    "ALONE": False,
    "AHEAD": True,
}
SIZES |= {"SOME": True, "APPROXIMATE": True, "FOLD": True, "WHOLE": 64, "TOKENS": 64, "DEEP": 32, "WIDE": 64}


def kernel_cases() -> dict[str, float]:
    """Run under Triton's interpreter: the largest relative difference between kernels and tiles, for each case."""
    torch.set_deterministic_debug_mode("error")  # fills what is empty with NaN: nobody may read what nobody wrote
    from regard.attention.kernels.additive import (
        AdditiveTileShapes,
        GradientTileShape,
        ScoreTileShape,
        TritonAdditive,
    )

    small, other = (
        AdditiveTileShapes(ScoreTileShape(2, 2, 4, 2), GradientTileShape(4, 1, 2, 2)),
        AdditiveTileShapes(ScoreTileShape(4, 1, 2, 1), GradientTileShape(4, 1, 1, 4, alone=True)),
    )
    single = AdditiveTileShapes(ScoreTileShape(2, 1, 2, 2), GradientTileShape(4, 2, 2, 2, together=1))
    few = AdditiveTileShapes(ScoreTileShape(2, 2, 4, 2), GradientTileShape(4, 1, 2, 2, together=8, ahead=False))
    causal = Causal() & Padding(torch.tensor([3, 10]))
    differences = {}
    for name, sizes, scales, pattern, shape, kept in (
        ("one head out of range", (1, 2, 7, 11, 5), [1.0, 50.0], Full(), small, 2**23),
        ("causal padding, weights found again", (2, 1, 7, 11, 5), [2.0], causal, other, 0),
        ("several tiles, each a part", (1, 1, 7, 37, 3), [1.0], Full(), small, 2**23),
        ("several tiles and widths, one part", (1, 1, 3, 19, 34), [1.0], Full(), single, 2**23),
        ("five tiles, not in four parts but in three", (1, 1, 5, 67, 3), [1.0], Full(), few, 2**23),
    ):
        additive.CELLS_KEPT = kept
        torch.manual_seed(len(name))
        sentences, heads, queries, keys, d = sizes
        additive.CELLS_AT_ONCE = sentences * heads * keys * 5
        a, b = (torch.randn(sentences, heads, n, d) * torch.tensor(scales).view(-1, 1, 1) for n in (queries, keys))
        given = [a, b, torch.randn(heads, d), torch.randn(sentences, heads, keys, 3)]
        given = [x.requires_grad_() for x in given]
        fits = TritonAdditive.of(*(x.detach() for x in given[:3])).limits.fits.tolist()
        assert fits == [int(scale < 10) for _ in range(sentences) for scale in scales]
        visibility, upstream = QueryVisibility.of(pattern, a, b), torch.randn(sentences, heads, queries, 3)
        want, got = (
            forward_and_backward(partial(additive_attention, visibility=visibility, pairs=pairs), given, upstream)
            for pairs in (TorchAdditive.of, partial(TritonAdditive.of, shape=shape))
        )
        pairs = zip(tree_leaves(want), tree_leaves(got), strict=True)
        differences[name] = max(float((x - y).abs().max() / x.abs().max()) for x, y in pairs)
    return differences | far_cases() | {"rows in several parts": rows_in_parts()}


def rows_in_parts() -> float:
    """Rows of 19 keys, 8 at a time, one of which sees none: weights, and gradients of the scores."""
    from regard.attention.kernels.additive import softmax_backward, softmax_forward

    s, upstream = (9 * torch.randn(2, 3, 19) for _ in range(2))
    s[1, 2] = -torch.inf
    p, g = torch.empty_like(s), torch.empty_like(s)
    softmax_forward[3, 2](s, p, 3, 19, 57, WIDE=8)  # type: ignore[index]
    softmax_backward[3, 2](p, upstream, g, 3, 19, 57, WIDE=8)  # type: ignore[index]
    weights = s.softmax(-1).nan_to_num(0.0)
    wanted = weights * (upstream - (weights * upstream).sum(-1, keepdim=True))
    return max(float((p - weights).abs().max()), float((g - wanted).abs().max() / wanted.abs().max()))


def far_cases() -> dict[str, float]:
    """Scores at the ends of the range: how far from the definition; infinitely if they did not take the short way."""
    from regard.attention.kernels.additive import TritonAdditive

    differences = {}
    for far in (0.0, 8.0, -8.0):
        for name, v, most in (
            ("all", [1.0] * 6, 21.2),
            ("tiny ones", [-3.0, 1e-9, 0.0, -1e-12, 2.0, 1e-5], 14.3),
            ("none", [0.0] * 6, 14.3),
        ):
            x, weights = torch.tensor([-21.0, -14.0, -2.0, 0.0, 1.0, 7.0, most]), torch.tensor([v])
            a, b = torch.full((1, 1, 1, 6), far), (x - far).view(1, 1, -1, 1).expand(1, 1, 7, 6)
            fused = TritonAdditive.of(a, b.contiguous(), weights)
            got = fused.scores(slice(0, 1), None).flatten() + weights.sum()
            want = (torch.tanh(a.double() + b.double()) * weights).sum(-1).flatten()
            short = bool(fused.limits.fits.all())
            differences[f"far by {far:g}, {name}"] = float((got - want).abs().max()) if short else float("inf")
    one = torch.ones(1, 6)
    beyond = [(a + 8, b.contiguous(), one), (a + 39, b - 39, one), (a * torch.nan, b.contiguous(), one)]
    differences["beyond the range, or not a number"] = float(
        sum(int(TritonAdditive.of(*x).limits.fits.sum()) for x in beyond)
    )
    return differences


@pytest.mark.parametrize(
    "case",
    [
        "one head out of range",
        "causal padding, weights found again",
        "several tiles, each a part",
        "several tiles and widths, one part",
        "five tiles, not in four parts but in three",
        "rows in several parts",
    ],
)
def test_the_kernels_interpreted_agree_with_the_tiles(case, interpreted):
    assert interpreted[case] < 5e-6


@pytest.mark.parametrize("weights", ["all", "tiny ones", "none"])
@pytest.mark.parametrize("far", ["0", "8", "-8"])
def test_scores_are_right_to_the_ends_of_the_range(far, weights, interpreted):
    """v is folded into the exponentials, which tiny or no weights must survive."""
    assert interpreted[f"far by {far}, {weights}"] < 3e-5


def test_numbers_out_of_range_never_take_the_short_way(interpreted):
    assert interpreted["beyond the range, or not a number"] == 0


@pytest.mark.parametrize("kernel", KINDS)
def test_the_kernels_compile_for_a_hopper(kernel):
    """The interpreter forgives what the compiler does not; neither needs a GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels import additive as additive_kernels

    function = vars(additive_kernels)[kernel]
    given = {name: SIZES[name] for name in function.arg_names if name in SIZES}
    kinds = {name: KINDS[kernel].get(name, "*fp32") for name in function.arg_names}
    made = compile_for_hopper(function, given, kinds, num_warps=8, num_stages=1)
    assert ".target sm_90" in made.asm["ptx"]
    assert ("rcp.approx" in made.asm["ptx"]) == (kernel in ("scores_forward", "scores_backward"))
    # layouts are as `unit` wants them: nothing changes threads in the loops, and warps only add up once at the end
    if kernel == "scores_forward":
        assert made.metadata.shared == 0
    # Triton 3.7 lays this one out otherwise; how fast that is was not measured
    if kernel == "scores_backward" and tuple(map(int, version("triton").split(".")[:2])) < (3, 7):
        assert made.asm["ptx"].count("st.shared") <= 2
        assert made.asm["ptx"].count("shfl.sync") <= 3


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 50.0])
@pytest.mark.parametrize("pattern", ["full", "causal padding"])
def test_on_a_gpu_the_kernels_are_as_good_as_plain_torch(dtype, scale, pattern):
    """Error at most twice that of plain torch in the same dtype, plus float32's own last digits."""
    from regard.attention.backends.additive import choose_engine

    shapes = [(2, 3, 257, 101), (2, 3, 331, 101), (3, 101), (2, 3, 331, 67)]
    given = [torch.randn(shape) * (scale if n < 2 else 1) for n, shape in enumerate(shapes)]
    given = [x.to("cuda", dtype).requires_grad_() for x in given]
    exact = [x.detach().double().requires_grad_() for x in given]
    upstream = torch.randn(2, 3, 257, 67).to("cuda", dtype)
    chosen = Full() if pattern == "full" else (Causal() & Padding(torch.tensor([200, 331]))).to("cuda")
    assert choose_engine(given[0]).__qualname__ == "TritonAdditive.of"
    truth, coarse = (forward_and_backward(partial(plain, pattern=chosen), x, upstream) for x in (exact, given))
    ours, again = (forward_and_backward(partial(tiled, pattern=chosen), given, upstream) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(tree_leaves(ours), tree_leaves(again), strict=True))
    assert_as_accurate(truth, coarse, ours, slack=2e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("sizes", [(1, 2, 17, 5, 3), (3, 1, 131, 307, 70)])
@pytest.mark.parametrize("cut", ["default", "two widths a thread", "small and alone"])
def test_on_a_gpu_the_shapes_of_tiles_change_nothing(sizes, cut):
    from regard.attention.kernels.additive import (
        AdditiveTileShapes,
        GradientTileShape,
        ScoreTileShape,
        TritonAdditive,
    )

    shape = {
        "default": AdditiveTileShapes(),
        "two widths a thread": AdditiveTileShapes(
            ScoreTileShape(8, 2, 4, 8, None), GradientTileShape(8, 2, 8, 8, registers=128)
        ),
        "small and alone": AdditiveTileShapes(
            ScoreTileShape(4, 2, 2, 4, None), GradientTileShape(8, 1, 4, 4, alone=True, together=1)
        ),
    }[cut]
    b, h, queries, keys, d = sizes
    given = [
        torch.randn(size, device="cuda") for size in ((b, h, queries, d), (b, h, keys, d), (h, d), (b, h, keys, 7))
    ]
    given, upstream = [x.requires_grad_() for x in given], torch.randn(b, h, queries, 7, device="cuda")
    visibility = QueryVisibility.of(Causal() | Window(9), given[0], given[1])
    want, got = (
        forward_and_backward(partial(additive_attention, visibility=visibility, pairs=pairs), given, upstream)
        for pairs in (TorchAdditive.of, partial(TritonAdditive.of, shape=shape))
    )
    for x, y in zip(tree_leaves(want), tree_leaves(got), strict=True):
        assert (x - y).abs().max() <= 2e-5 * x.abs().max()


if __name__ == "__main__":
    print_json(kernel_cases)
