"""Linear layers in C: the same numbers as torch's operations, row by row; those are used where C cannot be compiled."""

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from regard.decode import Beam, prepare, translate
from regard.decode.quantized_linear import (
    ChunkedVocabLinear,
    Float32KernelLinear,
    Int8KernelLinear,
    Int8Linear,
    KernelLinear,
    linear_kernels,
)
from regard.decode.topk import CHUNK, topk_logprobs_torch
from regard.ops import c_kernels

from .test_models import SOURCES, model

SHAPES = [(1, 11, 17), (4, 64, 64), (5, 3, 1), (7, 130, 200), (13, 512, 65), (70, 48, 129), (5, 2048, 70)]
KERNELS: list[type[KernelLinear]] = [Float32KernelLinear, Int8KernelLinear]
both = pytest.mark.parametrize("kernel", KERNELS)
compiled = pytest.mark.skipif(linear_kernels() is None, reason="needs a C compiler and AVX-512 VNNI")


@pytest.fixture
def no_kernels(monkeypatch):
    """As on a machine without a compiler."""
    monkeypatch.setenv("CC", "no-such-compiler")
    linear_kernels.cache_clear()
    yield
    linear_kernels.cache_clear()


def random_layer(k: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(n, k, generator=draw), torch.randn(n, generator=draw)


def random_rows(rows: int, k: int) -> Tensor:
    return torch.randn(rows, k, generator=torch.Generator().manual_seed(9))


@compiled
@pytest.mark.parametrize(("rows", "k", "n"), SHAPES)
def test_a_linear_layer_is_that_of_torch(rows, k, n):
    layer, x = random_layer(k, n), random_rows(rows, k)
    torch.testing.assert_close(Int8KernelLinear(*layer)(x), Int8Linear(*layer)(x), rtol=1e-5, atol=1e-5)
    exact = linear(x.double(), *(part.double() for part in layer))
    error = (linear(x, *layer) - exact).abs().max()
    assert (Float32KernelLinear(*layer)(x) - exact).abs().max() <= 2 * error + 1e-6 * k**0.5


@compiled
def test_rounding_errors_of_a_long_sum_do_not_grow_with_its_length():
    """They grow with its root, as those of the products; one by one, a sum of 4,096 is off by 9e-6 times the root."""
    layer, x = random_layer(4096, 65), random_rows(13, 4096)
    exact = linear(x.double(), *(part.double() for part in layer))
    assert (Float32KernelLinear(*layer)(x) - exact).abs().max() <= 3e-6 * 4096**0.5


@compiled
def test_an_example_by_hand():
    """x = [1, -2]: x̂ = [64, -127] of size 2 (63.5 rounds to the even 64), Ŵ = [127, 64] of scale 2 / 127 for [2, 1]."""
    layer, x = (torch.tensor([[2.0, 1.0]]), torch.tensor([0.5])), torch.tensor([[1.0, -2.0]])
    expected = (64 * 127 - 127 * 64) * (2 / 127) * (2 / 127) + 0.5
    assert Int8KernelLinear(*layer)(x).item() == pytest.approx(expected)
    assert Int8KernelLinear(*layer)(torch.zeros(1, 2)).item() == 0.5
    assert Float32KernelLinear(*layer)(torch.tensor([[1.0, -2.0], [3.0, 0.25]])).tolist() == [[0.5], [6.75]]


@compiled
@both
def test_a_row_does_not_depend_on_the_others(kernel):
    linear, x = kernel(*random_layer(96, 300)), random_rows(17, 96)
    banned = torch.zeros(300, dtype=torch.uint8)
    together, found = linear(x), linear.topk(x, banned, 3, None)
    for row in range(17):
        alone = linear.topk(x[row : row + 1], banned, 3, None)
        assert torch.equal(linear(x[row : row + 1])[0], together[row])
        assert torch.equal(alone.values[0], found.values[row])
        assert torch.equal(alone.tokens[0], found.tokens[row])


@compiled
@pytest.mark.parametrize("v", [30, 16 * CHUNK, 2500])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_the_best_tokens_are_those_of_torch(rows, v):
    layer, x, count = random_layer(24, v), random_rows(rows, 24), 5
    banned, must = torch.zeros(v, dtype=torch.uint8), torch.full((rows, 1), -1)
    best = Int8Linear(*layer)(x)[0].argsort(descending=True)
    banned[best[:2]] = 1
    must[0] = best[0]  # a forced token may be banned
    for asked in (None, must):
        by_int8 = ChunkedVocabLinear.of(*layer).topk(x, banned, count, asked)
        by_float32 = topk_logprobs_torch(linear(x, *layer), banned, count, asked)
        for kernel, wanted in zip(KERNELS, (by_float32, by_int8), strict=True):
            found = kernel(*layer).topk(x, banned, count, asked)
            assert torch.equal(found.tokens, wanted.tokens)
            torch.testing.assert_close(found.values, wanted.values, rtol=1e-5, atol=1e-5)
            assert found.finite


@compiled
@both
def test_of_equal_tokens_the_lower_comes_first(kernel):
    linear = kernel(torch.zeros(700, 8), torch.zeros(700).index_fill(0, torch.tensor([3, 90, 600, 699]), 1.0))
    found = linear.topk(random_rows(2, 8), torch.zeros(700, dtype=torch.uint8), 6, None)
    assert found.tokens.tolist() == 2 * [[3, 90, 600, 699, 0, 1]]


@compiled
@both
def test_probabilities_of_scores_far_apart_add_up(kernel):
    weight, bias = torch.zeros(1100, 4), torch.linspace(-200.0, 300.0, 1100)
    found = kernel(weight, bias).topk(torch.zeros(1, 4), torch.zeros(1100, dtype=torch.uint8), 1100, None)
    expected = bias.double().log_softmax(0).flip(0)
    torch.testing.assert_close(found.values[0].double(), expected, rtol=1e-6, atol=1e-5)


@compiled
@both
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_noticed(kernel, wrong):
    linear, x = kernel(*random_layer(20, 80)), random_rows(3, 20)
    x[1, 7] = wrong
    assert not linear.topk(x, torch.zeros(80, dtype=torch.uint8), 2, None).finite
    assert not linear(x)[1].isfinite().all()
    assert linear(x)[[0, 2]].isfinite().all()


@pytest.mark.usefixtures("no_kernels")
def test_without_a_compiler_torch_computes():
    made = model("transformer").float()
    assert linear_kernels() is None
    for precision in ("int8", "float32"):
        assert not any(isinstance(part, KernelLinear) for part in prepare(made, precision).modules())


@compiled
@both
def test_a_model_decodes_alike_by_either(kernel, monkeypatch):
    made = model("transformer").float()
    by_kernels = prepare(made, kernel.precision)
    monkeypatch.setenv("REGARD_KERNELS", "0")
    linear_kernels.cache_clear()
    by_torch = prepare(made, kernel.precision)
    monkeypatch.delenv("REGARD_KERNELS")
    linear_kernels.cache_clear()
    assert any(isinstance(part, kernel) for part in by_kernels.modules())
    assert not any(isinstance(part, KernelLinear) for part in by_torch.modules())
    for one, other in zip(*(translate(each, SOURCES, Beam(3)) for each in (by_kernels, by_torch)), strict=True):
        assert [hypothesis.ids for hypothesis in one] == [hypothesis.ids for hypothesis in other]
        assert one[0].score == pytest.approx(other[0].score, abs=1e-3 if kernel.precision == "int8" else 1e-5)


@compiled
def test_kernels_that_cannot_be_compiled_are_done_without(monkeypatch, tmp_path):
    (tmp_path / "broken").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "broken").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "broken"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    linear_kernels.cache_clear()
    assert linear_kernels() is None
    monkeypatch.delenv("CC")
    linear_kernels.cache_clear()
    assert linear_kernels() is not None
    assert len(list((tmp_path / "cache" / "regard").iterdir())) == 1  # nothing is left beside the library
    monkeypatch.setattr(c_kernels, "has_avx512_vnni", lambda: False)
    linear_kernels.cache_clear()
    assert linear_kernels() is None
    linear_kernels.cache_clear()


@compiled
def test_a_compiler_without_openmp_compiles_kernels_for_one_thread(monkeypatch, tmp_path):
    (tmp_path / "cc").write_text('#!/bin/sh\ncase "$*" in *-fopenmp*) exit 1 ;; esac\nexec cc "$@"\n')
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    linear_kernels.cache_clear()
    try:
        assert linear_kernels() is not None
        assert Float32KernelLinear(*random_layer(9, 3000))(random_rows(500, 9)).isfinite().all()
    finally:
        linear_kernels.cache_clear()


def test_of_several_openmp_libraries_torch_s_own_is_linked(tmp_path):
    own = f"{Path(torch.__file__).parent}/lib/libgomp.so.1"
    lines = [f"7f0000000000-7f0000001000 r-xp 00000000 fd:00 1234  {path}\n" for path in ("/a/libgomp-1.so", own)]
    (tmp_path / "maps").write_text("".join(lines))
    assert c_kernels.openmp_of_torch(tmp_path / "maps")[-1] == own
    (tmp_path / "maps").write_text(lines[0])
    assert c_kernels.openmp_of_torch(tmp_path / "maps")[-1] == "/a/libgomp-1.so"
    (tmp_path / "maps").write_text("")
    assert c_kernels.openmp_of_torch(tmp_path / "maps") == []


@compiled
@both
def test_threads_share_the_columns_and_give_the_same_bits(kernel):
    layer, x, threads = random_layer(200, 3000), random_rows(40, 200), torch.get_num_threads()
    banned, must = torch.zeros(3000, dtype=torch.uint8), torch.full((40, 1), 2999)
    found, made = list[tuple[Tensor, ...]](), kernel(*layer)
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            best, forced = made.topk(x, banned, 7, None), made.topk(x, banned, 7, must)
            found.append((made(x), best.values, best.tokens, forced.values))
    finally:
        torch.set_num_threads(threads)
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@compiled
@both
def test_rows_of_another_kind_are_refused_and_not_read_as_if_they_were_right(kernel):
    made, banned = kernel(*random_layer(20, 80)), torch.zeros(80, dtype=torch.uint8)
    for wrong in (random_rows(3, 19), random_rows(3, 20).double(), random_rows(3, 20).bfloat16()):
        for run in (made, lambda x: made.topk(x, banned, 2, None)):
            with pytest.raises(ValueError, match="prepared for 20 numbers in float32 on a CPU cannot read"):
                run(wrong)


@compiled
@both
def test_a_gradient_is_refused_and_not_0(kernel):
    x = random_rows(3, 20).requires_grad_()
    y = kernel(*random_layer(20, 80))(x)
    assert torch.equal(y, kernel(*random_layer(20, 80))(x.detach()))
    with pytest.raises(ValueError, match="prepared model is for inference and has no gradients"):
        y.sum().backward()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@compiled
@both
def test_a_thread_that_ends_gives_its_memory_back(kernel):
    """A search on each core has new threads for every batch."""
    made, x = kernel(*random_layer(8, 600)), random_rows(3000, 8)
    each = 3000 * 512 * 4  # the scores of a slice

    def search() -> None:
        made.topk(x, torch.zeros(600, dtype=torch.uint8), 2, None)

    def in_new_threads(count: int) -> int:
        for _ in range(count):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(search).result()
        return resident_bytes()

    before = in_new_threads(5)
    assert in_new_threads(40) - before < 10 * each
