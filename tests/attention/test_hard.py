"""Hard attention: tiles against the definition, samples against softmax, Triton kernels against the tiles."""

from dataclasses import replace
from math import log, sqrt

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from regard.attention.backends import hard, tiles
from regard.attention.backends import hard as backends_hard
from regard.attention.backends.hard import (
    GROUP,
    HardFunction,
    HardOutput,
    TorchHard,
    choose_engine,
    discouraged,
    gumbel,
    hard_attention,
    objections,
    philox,
)
from regard.attention.backends.tiles import Interval, ScoreTiles
from regard.attention.batch_patterns import Padding
from regard.attention.functional import attend, steps
from regard.attention.normaliser import Softmax
from regard.attention.pattern import Causal, Full, Pattern, Positions, StrictCausal, Window
from regard.attention.position import Rotary
from regard.attention.position_variants import Alibi
from regard.attention.recipe import Recipe
from regard.attention.score import Additive, Dot
from regard.attention.softmax_variants import Hard, Sampled, StraightThrough, reinforce
from tests.attention.accuracy import LargestTensor, assert_as_accurate
from tests.attention.qkv import QKV, cast_leaves, random_qkv
from tests.attention.test_elementwise import PATTERNS
from tests.attention.triton_interpreter import compile_to_ptx, print_json

B, H, N, J, D, E = 2, 3, 7, 11, 5, 13
LONG = 2 * GROUP + 45  # three groups, the last not full
BEST, DRAW = Recipe(normaliser=Hard()), Recipe(normaliser=Sampled())


def inputs(keys: int = J, groups: int = H) -> QKV:
    return random_qkv((B, H, N, D), (B, groups, keys, D), (B, groups, keys, E))


def defined(given: QKV, recipe: Recipe, key: Tensor, q_index: int) -> tuple[Tensor, Tensor]:
    """Output and log p of these keys, with every matrix materialised."""
    found = steps(*given, recipe, q_index=q_index)
    weights = (key[..., None] == torch.arange(given[1].shape[2], device=key.device)).to(found.scores.dtype)
    v = given[2].expand(-1, weights.shape[1], -1, -1)
    return weights @ v, Sampled().log_probability(found.adjusted, found.visible, weights)


# --- the best ---


def test_two_keys_on_paper():
    """Scores log 1 and log 3: the second is the best, with probability 3/4; a draw has 1/4 or 3/4."""
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([0.0, log(3)]).view(1, 1, 2, 1)
    v = torch.tensor([5.0, 7.0]).view(1, 1, 2, 1)
    best = hard_attention(q, k, v, replace(BEST, score=Dot()))
    assert (best.out.item(), best.key.item()) == (7, 1)
    assert_close(best.log_probability.exp().item(), 3 / 4)
    for seed in range(10):
        drawn = hard_attention(q, k, v, replace(DRAW, score=Dot()), seed=seed)
        assert drawn.out.item() == (5.0, 7.0)[int(drawn.key)]
        assert_close(drawn.log_probability.exp().item(), (1 / 4, 3 / 4)[int(drawn.key)])


@pytest.mark.parametrize("keys", [(3, 8), (3, GROUP + 2), (GROUP - 1, GROUP)])
def test_of_equals_the_first_is_chosen(keys):
    k = torch.zeros(1, 1, GROUP + 5, 1)
    k[:, :, list(keys)] = 1.0
    assert hard_attention(torch.ones(1, 1, 1, 1), k, k).key.item() == keys[0]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_best_key_is_the_references(pattern):
    """Fewer queries than keys, heads that share keys; the output, and the gradient of the values."""
    given, upstream = inputs(groups=1), torch.randn(B, H, N, E, dtype=torch.double)
    recipe = replace(BEST, pattern=PATTERNS[pattern])
    want = attend(*given, recipe, q_index=J - N, backend="reference")
    found = hard_attention(*given, recipe, q_index=J - N)
    assert_close(found.out, want)
    wanted, gotten = (torch.autograd.grad(x, given[2], upstream) for x in (want, found.out))
    assert_close(gotten, wanted)


def test_rotary_positions_turn_queries_and_keys_first():
    q, k, v = (torch.randn(1, 2, 9, 6, dtype=torch.double) for _ in range(3))
    recipe = replace(BEST, position=Rotary())
    assert_close(hard_attention(q, k, v, recipe).out, attend(q, k, v, recipe, backend="reference"))


# --- log p and its gradient ---


@pytest.mark.parametrize("recipe", [BEST, DRAW], ids=["best", "drawn"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_log_p_is_that_of_the_definition_and_so_are_all_gradients(pattern, recipe):
    given, recipe = inputs(groups=1), replace(recipe, pattern=PATTERNS[pattern])
    found = hard_attention(*given, recipe, q_index=J - N, seed=3)
    got = found.out, found.log_probability
    want = defined(given, recipe, found.key, J - N)
    assert_close(got, want)
    upstream = [torch.randn_like(x) for x in want]
    assert_close(*(torch.autograd.grad(x, given, upstream) for x in (got, want)))


def test_with_several_groups_and_tiles_too(monkeypatch):
    monkeypatch.setattr(tiles, "SIZES", (GROUP,))
    given, recipe = inputs(LONG), replace(DRAW, pattern=Causal() & Window(170))
    found = hard_attention(*given, recipe, q_index=LONG - N, seed=5)
    assert len(found.key.div(GROUP, rounding_mode="floor").unique()) > 1
    got, want = (found.out, found.log_probability), defined(given, recipe, found.key, LONG - N)
    assert_close(got, want)
    upstream = [torch.randn_like(x) for x in want]
    assert_close(*(torch.autograd.grad(x, given, upstream) for x in (got, want)))


def test_the_gradient_of_log_p_is_its_slope():
    q, k, v = inputs()
    k, v = k[:, :1, :6], v[:, :1, :6]
    recipe = replace(DRAW, pattern=PATTERNS["causal window, padding"])
    assert torch.autograd.gradcheck(
        lambda q, k: hard_attention(q, k, v, recipe, seed=1).log_probability, (q[:, :1, :3], k)
    )


def test_reinforce_goes_the_way_of_the_expected_reward():
    """Over 30,000 queries that are one and the same, the mean of the estimator is the gradient of Σ p r."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 1, D), torch.randn(1, 1, J, D, requires_grad=True)
    reward = torch.randn(1, 1, J, 1)
    drawn = hard_attention(q.expand(-1, -1, 30_000, -1), k, reward, DRAW, seed=7)
    got = torch.autograd.grad(-reinforce(drawn.log_probability, drawn.out[..., 0], torch.zeros(1, 1, 30_000)), k)[0]
    want = torch.autograd.grad(attend(q, k, reward).sum(), k)[0]
    assert (got - want).norm() < 0.05 * want.norm()


def test_a_row_that_sees_nothing_chooses_nothing_and_learns_nothing():
    given = inputs()
    found = hard_attention(*given, replace(DRAW, pattern=PATTERNS["one sentence sees nothing"]), seed=2)
    assert bool((found.key[0] == -1).all())
    assert bool((found.key[1] >= 0).all())
    summed = found.out.sum() + found.log_probability.sum()
    for x in (found.out, found.log_probability, *torch.autograd.grad(summed, given)):
        assert not x[0].any()
        assert x[1].any()


@pytest.mark.parametrize("recipe", [BEST, DRAW], ids=["best", "drawn"])
def test_without_a_single_key_nothing_is_chosen(recipe):
    q, k, v = inputs()
    found = hard_attention(q, k[:, :, :0], v[:, :, :0], recipe, seed=1)
    assert found.out.shape == (B, H, N, E)
    assert bool((found.key == -1).all())
    assert not found.out.any()
    assert not torch.autograd.grad(found.log_probability.sum(), q)[0].any()


def test_a_hidden_key_cannot_be_felt():
    q, k, v = (x.detach() for x in inputs())
    recipe = replace(DRAW, pattern=Padding(torch.tensor([J - 2, J - 2])))
    want = hard_attention(q, k, v, recipe, seed=4)
    k[:, :, -2:], v[:, :, -2:] = torch.nan, torch.nan
    got = hard_attention(q, k, v, recipe, seed=4)
    assert_close((got.out, got.key, got.log_probability), (want.out, want.key, want.log_probability))


def test_half_precision_is_as_good_as_plain_torch():
    """log p and its gradients: error at most twice that of plain torch in the same dtype."""
    given = cast_leaves(inputs(), torch.bfloat16)
    exact = cast_leaves(given, torch.double)
    found, upstream = hard_attention(*given, DRAW, seed=6), torch.randn(B, H, N).bfloat16()
    truth, coarse, ours = (
        (log_p, torch.autograd.grad(log_p, x[:2], upstream.to(log_p)))
        for x, log_p in (
            (exact, defined(exact, DRAW, found.key, 0)[1]),
            (given, defined(given, DRAW, found.key, 0)[1]),
            (given, found.log_probability),
        )
    )
    assert_as_accurate(truth, coarse, ours)


def test_nothing_ever_grows_to_queries_times_keys(monkeypatch):
    monkeypatch.setattr(tiles, "SIZES", (GROUP,))
    q, k, v = (torch.randn(1, 1, n, 17, requires_grad=True) for n in (509, 1021, 1021))
    with LargestTensor() as largest:
        found = hard_attention(q, k, v, DRAW)
        (found.out.sum() + found.log_probability.sum()).backward()
    assert largest.numel <= 1021 * 17 < 509 * 1021


# --- the draws ---


def test_keys_are_drawn_as_often_as_softmax_says():
    """χ² over 301 keys in three groups, and over the groups: within five of its standard deviations."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 1, D), torch.randn(1, 1, LONG, D)
    draws = 30_000
    drawn = hard_attention(q.expand(-1, -1, draws, -1), k, k, DRAW, seed=11).key.flatten()
    p = (q @ k.mT / sqrt(D)).softmax(-1).flatten()
    for counts, chances in (
        (torch.bincount(drawn, minlength=LONG), p),
        (torch.bincount(drawn // GROUP, minlength=3), torch.stack([x.sum() for x in p.split(GROUP)])),
    ):
        chi = ((counts - draws * chances) ** 2 / (draws * chances)).sum()
        freedom = len(chances) - 1
        assert chi < freedom + 5 * sqrt(2 * freedom)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_drawn_key_is_always_visible(pattern):
    q, k, v = inputs()
    recipe = replace(DRAW, pattern=PATTERNS[pattern])
    visible = steps(q, k, v, recipe, q_index=J - N).visible
    for seed in range(3):
        key = hard_attention(q, k, v, recipe, q_index=J - N, seed=seed).key
        assert torch.equal(key >= 0, visible.any(-1))
        assert bool(visible.gather(-1, key.clamp(min=0)[..., None]).squeeze(-1)[key >= 0].all())


def test_a_seed_names_a_draw_and_torchs_generator_names_the_seed():
    q, k, v = inputs(LONG)
    first, again, other = (hard_attention(q, k, v, DRAW, seed=seed).key for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return hard_attention(q, k, v, DRAW).key

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_a_draw_does_not_depend_on_the_tiles(monkeypatch):
    q, k, v = (torch.randn(1, 2, 300, D) for _ in range(3))
    want = hard_attention(q, k, v, DRAW, seed=9).key
    monkeypatch.setattr(tiles, "SIZES", (GROUP,))
    assert torch.equal(hard_attention(q, k, v, DRAW, seed=9).key, want)


def test_seven_rounds_of_philox_give_the_published_bits():
    """philox4x32-7 of Random123's known answers."""
    zero = torch.tensor(0)
    assert [f"{int(word):08x}" for word in philox(*[zero] * 5)] == ["5f6fb709", "0d893f64", "4f121f81", "4f730a48"]


def test_philox_gives_the_published_bits(monkeypatch):
    """Known answers for ten rounds (Random123's kat_vectors): counters and key all 0, and all ones."""
    monkeypatch.setattr(backends_hard, "ROUNDS", 10)
    for seed, counter, words in (
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (-1, 2**32 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ):
        assert tuple(map(int, philox(torch.tensor(seed), *[torch.tensor(counter)] * 4))) == words


def test_the_noise_is_gumbels():
    """Its distribution function is exp(−e^{−x}); Kolmogorov's distance of 40,000 numbers is below 2 / √40,000."""
    x = (
        gumbel(torch.stack(philox(torch.tensor(5), torch.arange(10_000), 0, torch.tensor(0), 0)))
        .flatten()
        .sort()
        .values
    )
    wanted = torch.exp(-torch.exp(-x))
    assert (wanted - torch.linspace(0, 1, len(x), dtype=x.dtype)).abs().max() < 2 / sqrt(len(x))


# --- as a backend ---


def test_it_says_why_not():
    q, long = torch.zeros(1, 2, 3, D), torch.zeros(1, 2, 1000, D)
    positions = Positions.of(q, q, 0, None)
    assert "is not an inner product" in objections(replace(BEST, score=Additive(D, 4)), q, q, positions)[0]
    assert "adds to single scores" in objections(replace(BEST, position=Alibi(2)), q, q, positions)[0]
    assert "neither the best key" in objections(Recipe(normaliser=Softmax()), q, q, positions)[0]
    assert "noise of every key" in objections(Recipe(normaliser=StraightThrough()), q, q, positions)[0]
    assert objections(BEST, q, q, positions) == objections(DRAW, q, q, positions) == []
    assert "nothing is gained" in discouraged(BEST, q, q, positions)[0]
    assert discouraged(BEST, long, long, positions) == []
    assert isinstance(choose_engine(BEST, q, q, positions, None), TorchHard)
    with pytest.raises(ValueError, match="cannot run this recipe: Softmax"):
        hard_attention(q, q, q, Recipe())
    with pytest.raises(ValueError, match=r"do not fit: \(1, 2, 3, 5\), \(1, 2, 3, 5\), \(1, 2, 2, 5\)"):
        hard_attention(q, q, q[:, :, :2])


def test_as_a_backend_it_gives_the_output_alone():
    q, k, v = inputs()
    out = hard.attend(BEST, q, k, v, Positions.of(q, k, None, None))
    assert_close(out, attend(q, k, v, BEST, backend="reference"))


# --- the kernels ---

SEED = 2**50 + 77
CASES: dict[str, tuple[int | None, Pattern]] = {
    "the best, causal window, padding": (None, Causal() & Window(9) & Padding(torch.tensor([0, GROUP + 3]))),
    "drawn, the past alone, padding": (SEED, StrictCausal() & Padding(torch.tensor([13, GROUP + 2]))),
}


def engines(seed: int | None, pattern: Pattern, q: Tensor, k: Tensor, start: int, shapes=None):
    from regard.attention.kernels.tiles import TritonHard

    named = None if seed is None else torch.tensor(seed, device=q.device)
    interval = Interval.of(pattern)
    assert interval is not None
    plain = TorchHard(ScoreTiles.of(pattern, Positions.of(q, k, start, None), *q.shape[:2]), named)
    return plain, TritonHard(interval, start, named, shapes)


def kernel_cases() -> dict[str, tuple[bool, float]]:
    """Whether kernels and tiles choose the same keys, and how far all else is apart, for each case."""
    from regard.attention.kernels.tiles import HardTileShapes, TileShape

    found, shape = {}, TileShape(16, 32, 1, 1)
    for name, (seed, pattern) in CASES.items():
        q, k, v = (torch.randn(2, 1, n, w, requires_grad=True) for n, w in ((19, 5), (GROUP + 5, 5), (GROUP + 5, 7)))
        upstream, results = (torch.randn(2, 1, 19, 7), torch.randn(2, 1, 19)), []
        for engine in engines(
            seed, pattern, q, k, GROUP - 14, HardTileShapes(TileShape(16, GROUP, 1, 1), shape, shape, shape)
        ):
            out, key, log_p = HardFunction.apply(engine, q, k, v)
            results.append((key, out, log_p, *torch.autograd.grad((out, log_p), (q, k, v), upstream)))
        (key, *want), (same, *got) = results
        differences = [float(((x - y).abs().max() / x.abs().max()).detach()) for x, y in zip(want, got, strict=True)]
        found[name] = torch.equal(key, same), max(differences)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_kernels_interpreted_choose_the_same_keys_as_the_tiles(case, interpreted):
    same, difference = interpreted[case]
    assert same
    assert difference < 5e-6


@pytest.mark.parametrize("kernel", ["choose_kernel", "log_p_dq", "log_p_dk", "dv_kernel"])
def test_the_kernels_compile_for_a_hopper(kernel):
    """The interpreter forgives what the compiler does not; neither needs a GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels import tiles as kernels

    function = getattr(kernels, kernel)
    given = {"D": 13, "DP": 16, "E": 16, "EP": 16, "OWN": 64, "OTHER": 16, "SAMPLED": True, "ROUNDS": 7}
    given = {name: value for name, value in (given | {"PRECISION": "tf32"}).items() if name in function.arg_names}
    kinds = {"seed": "*i64", **dict.fromkeys(("key", "keys", "order", "edges"), "*i32")}
    kinds |= dict.fromkeys(("log_p", "lse", *(["grad"] if kernel != "dv_kernel" else [])), "*fp32")
    assert "wgmma" in compile_to_ptx(function, given, kinds)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("dtype", "seed", "pattern"),
    [
        (torch.bfloat16, None, Causal()),
        (torch.bfloat16, SEED, Full()),
        (torch.bfloat16, SEED, Window(60) & Padding(torch.tensor([200, 331]))),
        (torch.float32, SEED, Causal()),
    ],
    ids=str,
)
def test_on_a_gpu_the_kernels_choose_as_the_tiles_do(dtype, seed, pattern):
    """Keys but for near ties; log p and gradients within twice the error of plain torch in the same dtype."""
    torch.manual_seed(0)
    d, e = (53, 61) if dtype == torch.bfloat16 else (13, 11)
    given = random_qkv((2, 3, 257, d), (2, 3, 331, d), (2, 3, 331, e), dtype=dtype, device="cuda")
    exact = cast_leaves(given, torch.double)
    recipe = Recipe(score=Dot(), normaliser=Hard() if seed is None else Sampled(), pattern=pattern.to("cuda"))
    plain, fused = engines(seed, recipe.pattern, given[0], given[1], 74)
    assert type(choose_engine(recipe, given[0], given[2], Positions.of(given[0], given[1], 74, None), None)) is type(
        fused
    )
    keys = plain.choose(*exact)[1]
    found, again = (HardOutput(*HardFunction.apply(fused, *given)) for _ in range(2))
    assert (found.key != keys).float().mean() < 2e-3
    upstream = torch.randn(2, 3, 257, e).to("cuda", dtype), torch.randn(2, 3, 257).to("cuda", dtype)

    def forward_and_backward(given, made):
        return made, torch.autograd.grad(made, given, [x.to(y) for x, y in zip(upstream, made, strict=True)])

    truth, coarse = (forward_and_backward(x, defined(x, recipe, found.key, 74)) for x in (exact, given))
    ours, too = (forward_and_backward(given, (x.out, x.log_probability)) for x in (found, again))
    assert_as_accurate(truth, coarse, ours, slack=2e-5)
    assert all(map(torch.equal, tree_leaves(ours), tree_leaves(too)))


if __name__ == "__main__":
    print_json(kernel_cases)
