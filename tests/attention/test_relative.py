"""Relative-position attention without n²: tiles against the definition, Triton kernels against the tiles."""

from functools import partial
from math import log

import pytest
import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from regard.attention import DependencyTree
from regard.attention.backends import relative as backends_relative
from regard.attention.backends.relative import (
    by_distance,
    causal_and_lengths,
    constant_from,
    discouraged,
    is_identity,
    objections,
    triton_relative_objections,
)
from regard.attention.batch_patterns import Documents, Padding
from regard.attention.functional import attend
from regard.attention.normaliser import AttentionDropout
from regard.attention.parts import parse_part
from regard.attention.pattern import Causal, Full, Pattern, Positions, Window
from regard.attention.position_variants import Alibi, Clipped, LogBuckets, RelativeBias, RelativeVectors, TreePath
from regard.attention.recipe import Recipe
from regard.attention.score import Additive, Cosine
from tests.attention.accuracy import LargestTensor, assert_as_accurate
from tests.attention.triton_interpreter import compile_for_hopper, print_json

B, H, N, J, D = 2, 4, 7, 11, 5
PATTERNS: dict[str, Pattern] = {
    "full": Full(),
    "causal": Causal(),
    "window": Window(3),
    "documents": Documents(torch.tensor([[0] * 4 + [1] * 7, [0] * 9 + [1] * 2])),
    "causal padding": Causal() & Padding(torch.tensor([3, 10])),
    "one sentence sees nothing": Padding(torch.tensor([0, 5])),
    "the first query sees nothing": parse_part("Causal() & ~Window(1)"),
}


def some_trees() -> DependencyTree:
    """Every word hangs on an earlier one, or on the root."""
    return DependencyTree.from_governors(
        torch.tensor([[int(torch.randint(0, t + 1, ())) for t in range(J)] for _ in range(B)])
    )


def schemes(heads: int = H, head: int = D) -> dict[str, RelativeBias | RelativeVectors]:
    tree = TreePath(2).with_tree(some_trees())
    return {
        "t5": RelativeBias(LogBuckets(buckets=8, max_distance=7), heads=heads),
        "t5, one way": RelativeBias(LogBuckets(buckets=6, max_distance=5, bidirectional=False), heads=heads),
        "clipped bias": RelativeBias(Clipped(3), heads=heads),
        "shaw": RelativeVectors(Clipped(2), head=head),
        "shaw, everything alike": RelativeVectors(Clipped(0), head=head),
        "buckets of vectors": RelativeVectors(LogBuckets(buckets=8, max_distance=6), head=head),
        "tree bias": RelativeBias(tree, heads=heads),
        "tree vectors": RelativeVectors(tree, head=head),
    }


def inputs(queries: int = N, groups: int = H, head: int = D, dtype: torch.dtype = torch.double) -> list[torch.Tensor]:
    shapes = [(B, H, queries, head), (B, groups, J, head), (B, groups, J, head)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def forward_and_backward(run, given, learned, upstream):
    out = run(*given)
    return out, torch.autograd.grad(out, (*given, *learned), upstream.to(out))


def ours(recipe: Recipe, q, k, v, *, q_index: int | torch.Tensor = 0, k_index: torch.Tensor | None = None):
    positions = Positions.of(q, k, q_index, k_index)
    assert objections(recipe, q, k, positions) == []
    return backends_relative.attend(recipe, q, k, v, positions)


@pytest.fixture
def _small_bands(monkeypatch):
    monkeypatch.setattr(backends_relative, "CELLS_AT_ONCE", 3 * B * H * J)


# --- the operation ---


def on_paper(scheme: RelativeBias | RelativeVectors) -> torch.Tensor:
    """One query, 1, at place 1; keys that say nothing and values 8 and 0 at positions 0 and 1."""
    scheme.double()
    q, k = torch.ones(1, 1, 1, 1, dtype=torch.double), torch.zeros(1, 1, 2, 1, dtype=torch.double)
    v = torch.tensor([8.0, 0.0], dtype=torch.double).view(1, 1, 2, 1)
    return ours(Recipe(position=scheme), q, k, v, q_index=1).squeeze()


def test_a_bias_on_paper():
    """One position back is worth log 3, so the weights are 3/4 and 1/4: 6."""
    scheme = RelativeBias(Clipped(1), heads=1)
    scheme.weight.data = torch.tensor([[log(3), 0.0, -7.0]])
    assert_close(on_paper(scheme), torch.tensor(6.0, dtype=torch.double), atol=1e-6, rtol=0)


def test_vectors_on_paper():
    """The same weights by q·a^K, and one position back adds a^V = 4 to the value: 6 + 3/4 · 4 = 9."""
    scheme = RelativeVectors(Clipped(1), head=1)
    scheme.keys.data = torch.tensor([[log(3)], [0.0], [-7.0]])
    scheme.values.data = torch.tensor([[4.0], [0.0], [-7.0]])
    assert_close(on_paper(scheme), torch.tensor(9.0, dtype=torch.double), atol=1e-6, rtol=0)


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("_small_bands")
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("scheme", schemes())
def test_it_is_the_reference(scheme, pattern, groups):
    """Through the recipe, fewer queries than keys, with the gradients of all that is learned."""
    recipe = Recipe(position=schemes()[scheme].double(), pattern=PATTERNS[pattern])
    learned, upstream = list(recipe.learned().parameters()), torch.randn(B, H, N, D, dtype=torch.double)
    given = inputs(groups=groups)
    want = forward_and_backward(
        partial(attend, recipe=recipe, q_index=J - N, backend="reference"), given, learned, upstream
    )
    got = forward_and_backward(partial(ours, recipe, q_index=J - N), given, learned, upstream)
    assert_close(got, want)


@pytest.mark.parametrize("scheme", ["t5", "shaw"])
def test_places_of_each_sentences_own(scheme):
    recipe = Recipe(position=schemes()[scheme].double(), pattern=Causal(), score=Cosine())
    given, at = inputs(), (torch.randint(0, 20, (B, N)), torch.randint(0, 20, (B, J)))
    upstream, learned = torch.randn(B, H, N, D, dtype=torch.double), list(recipe.learned().parameters())
    run = partial(attend, recipe=recipe, q_index=at[0], k_index=at[1], backend="reference")
    want = forward_and_backward(run, given, learned, upstream)
    got = forward_and_backward(partial(ours, recipe, q_index=at[0], k_index=at[1]), given, learned, upstream)
    assert_close(got, want)


@pytest.mark.usefixtures("_small_bands")
@pytest.mark.parametrize("scheme", ["t5", "shaw", "tree vectors"])
def test_its_gradients_are_slopes(scheme):
    recipe = Recipe(position=schemes(heads=1)[scheme].double(), pattern=PATTERNS["causal padding"])
    given = [x[:, :1, :5] for x in inputs()]
    learned = [x.detach() for x in recipe.learned().parameters()]
    names = [name.split(".")[-1] for name, _ in recipe.learned().named_parameters()]

    def run(q, k, v, *numbers):
        for name, number in zip(names, numbers, strict=True):
            delattr(recipe.position, name)
            setattr(recipe.position, name, number)
        return ours(recipe, q, k, v)

    assert torch.autograd.gradcheck(run, (*given, *(x.requires_grad_() for x in learned)))


@pytest.mark.parametrize("scheme", schemes())
def test_a_row_that_sees_nothing_gives_nothing_and_learns_nothing(scheme):
    recipe = Recipe(position=schemes()[scheme].double(), pattern=Padding(torch.tensor([0, 5])))
    given, learned = inputs(), list(recipe.learned().parameters())
    out, gradients = forward_and_backward(partial(ours, recipe), given, learned, torch.ones(B, H, N, D))
    for x in (out, *gradients[:3]):
        assert not x[0].any()
        assert x[1].any()
    assert all(bool(x.isfinite().all()) for x in gradients)


def test_without_a_single_key_the_output_is_zero():
    recipe = Recipe(position=schemes()["shaw"].double())
    q, k, v = inputs()
    out = ours(recipe, q, k[:, :, :0], v[:, :, :0])
    assert out.shape == (B, H, N, D)
    assert not out.any()
    assert not torch.autograd.grad(out.sum(), q)[0].any()


def test_a_hidden_key_cannot_be_felt():
    recipe = Recipe(position=schemes()["t5"].double(), pattern=Padding(torch.tensor([J - 2, J - 2])))
    q, k, v = (x.detach() for x in inputs())
    want = ours(recipe, q, k, v)
    k[:, :, -2:] = torch.nan
    assert_close(ours(recipe, q, k, v), want)


@pytest.mark.parametrize("scheme", ["t5", "shaw", "tree bias"])
@pytest.mark.parametrize("cells", [1, 5 * B * H * J, 2**20])
def test_the_size_of_bands_changes_nothing(cells, scheme, monkeypatch):
    recipe = Recipe(position=schemes()[scheme].double(), pattern=Causal())
    given, learned, upstream = inputs(), list(recipe.learned().parameters()), torch.randn(B, H, N, D)
    want = forward_and_backward(partial(ours, recipe), given, learned, upstream)
    monkeypatch.setattr(backends_relative, "CELLS_AT_ONCE", cells)
    assert_close(forward_and_backward(partial(ours, recipe), given, learned, upstream), want)


def assert_as_good(recipe: Recipe, given: list[torch.Tensor], ours_by, slack: float = 0.0) -> None:
    """Outputs and every gradient: error at most twice that of the reference in the same dtype, against float64."""
    dtype, upstream = given[0].dtype, torch.randn_like(given[0])
    exact = [x.detach().double().requires_grad_() for x in given]
    learned = recipe.learned().to(dtype)
    coarse = forward_and_backward(
        partial(attend, recipe=recipe, backend="reference"), given, learned.parameters(), upstream
    )
    mine = forward_and_backward(ours_by, given, learned.parameters(), upstream)
    learned.double()
    truth = forward_and_backward(
        partial(attend, recipe=recipe, backend="reference"), exact, learned.parameters(), upstream
    )
    assert_as_accurate(truth, coarse, mine, slack=slack)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", ["t5", "shaw"])
def test_half_precision_is_as_good_as_plain_torch(dtype, scheme):
    recipe = Recipe(position=schemes()[scheme], pattern=Causal())
    assert_as_good(recipe, inputs(dtype=dtype), partial(ours, recipe))


@pytest.mark.parametrize("scheme", ["t5", "shaw"])
def test_nothing_ever_grows_to_queries_times_keys(scheme, monkeypatch):
    monkeypatch.setattr(backends_relative, "CELLS_AT_ONCE", 4000)
    q, k, v = (torch.randn(1, 1, 211, 13, requires_grad=True) for _ in range(3))
    recipe = Recipe(position=schemes(1, 13)[scheme])
    with LargestTensor() as largest:
        ours(recipe, q, k, v).sum().backward()
    assert largest.numel <= 8000 < 211 * 211


# --- as a backend ---


def test_it_says_why_not():
    q = torch.zeros(1, 2, 3, D)
    positions, t5 = Positions.of(q, q, 0, None), schemes(heads=2)["t5"]
    assert "is learned about pairs" in objections(Recipe(), q, q, positions)[0]
    assert "not learned by relations" in objections(Recipe(position=t5 + Alibi(heads=2)), q, q, positions)[0]
    assert "is added besides" in objections(Recipe(position=t5 + schemes(heads=2)["shaw"]), q, q, positions)[0]
    assert "is not softmax" in objections(Recipe(position=t5, normaliser=AttentionDropout(0.1)), q, q, positions)[0]
    assert "inner product" in objections(Recipe(position=t5, score=Additive(D, hidden=4)), q, q, positions)[0]
    assert "CUDA" in triton_relative_objections(Recipe(position=t5), q, q, positions)[0]
    assert "one band" in discouraged(Recipe(position=t5), q, q, positions)[0]
    long = torch.zeros(1, 2, 1000, D)
    assert discouraged(Recipe(position=t5), long, long, Positions.of(long, long, 0, None)) == []


def test_which_patterns_the_kernels_know():
    lengths = torch.tensor([3, 1])
    assert causal_and_lengths(Causal() & Full()) == (True, [])
    assert causal_and_lengths(Padding(lengths) & Causal()) == (True, [lengths])
    assert causal_and_lengths(Causal() & Window(3)) is None
    assert causal_and_lengths(Causal() | Padding(lengths)) is None


@pytest.mark.parametrize(
    "relation", [LogBuckets(), LogBuckets(bidirectional=False), LogBuckets(8, 7), Clipped(5), Clipped(0)]
)
def test_from_the_reach_on_nothing_changes(relation):
    reach = constant_from(relation)
    assert reach is not None
    zero, far = torch.zeros((), dtype=torch.long), torch.arange(reach, 10 * reach)
    for side in (-far, far):
        assert len(relation.bucket(zero, zero, side).unique()) == 1
    assert constant_from(LogBuckets()) == 92  # the last bucket begins at 8 · 16^(7/8) = 90.5
    assert constant_from(TreePath(2)) is None
    assert constant_from(LogBuckets(32, 8)) is None


def test_where_every_distance_is_a_relation_nothing_is_spread():
    """Shaw's vectors are taken as they are; buckets, of which several distances share one, are not."""
    learned = torch.randn(7, 5)
    assert is_identity(Clipped(3), 3)
    assert by_distance(Clipped(3), 3, learned) is learned
    assert not is_identity(Clipped(0), 1)
    assert not is_identity(LogBuckets(8, 7), 3)
    assert_close(by_distance(Clipped(3), 4, learned), learned[[0, 0, 1, 2, 3, 4, 5, 6, 6]])


# --- the kernels ---

SMALL = ("dot_vectors", "add_vectors", "sum_vectors")
CASES = {  # scheme, pattern, sentences, heads, position of the first query
    "t5": (RelativeBias(LogBuckets(8, 7), heads=1), Full(), 1, 1, 0),
    "t5, causal, padded, one sentence empty, heads sharing keys": (
        *(RelativeBias(Clipped(3), heads=2), Causal() & Padding(torch.tensor([0, 41])), 2, 2, 6),
    ),
    "shaw, heads sharing keys": (RelativeVectors(Clipped(5), head=16), Full(), 1, 2, 0),
    "shaw, causal, padded": (RelativeVectors(Clipped(3), head=16), Causal() & Padding(torch.tensor([37])), 1, 1, 6),
    "further than there are positions": (RelativeVectors(Clipped(80), head=16), Causal(), 1, 1, 3),
}


def kernel_cases() -> dict[str, float]:
    """Run under Triton's interpreter: the largest relative difference from the reference in float64, for each case."""
    from regard.attention.kernels.relative import RelativeTileShape, RelativeTileShapes

    small = RelativeTileShapes(
        RelativeTileShape(16, 32, 1, 1), RelativeTileShape(16, 16, 1, 1), RelativeTileShape(32, 16, 1, 1), side=16
    )
    RelativeTileShapes.of = staticmethod(lambda q, *, vectors: small)
    differences = {}
    for name, (scheme, pattern, sentences, heads, start) in CASES.items():
        torch.manual_seed(len(name))
        sizes = (heads, 37), (1, 43), (1, 43)
        given = [torch.randn(sentences, h, n, 16, requires_grad=True) for h, n in sizes]
        recipe, upstream = Recipe(position=scheme, pattern=pattern), torch.randn_like(given[0])
        positions = Positions.of(given[0], given[1], start, None)
        run = partial(backends_relative.attend_by_kernels, recipe, positions=positions)
        got = forward_and_backward(run, given, list(scheme.parameters()), upstream)
        exact = [x.detach().double().requires_grad_() for x in given]
        scheme.double()
        run = partial(attend, recipe=recipe, q_index=start, backend="reference")
        want = forward_and_backward(run, exact, list(scheme.parameters()), upstream)
        pairs = zip(tree_leaves(want), tree_leaves(got), strict=True)
        differences[name] = max(float((x - y).abs().max() / x.abs().max()) for x, y in pairs)
    return differences


@pytest.mark.parametrize("case", CASES)
def test_the_kernels_interpreted_agree_with_the_reference(case, interpreted):
    assert interpreted[case] < 5e-6


def test_sums_along_diagonals_on_paper():
    """Two tiles of 2 × 2 beside each other: rows 1 2 | 3 4 and 5 6 | 7 8, distances from -1 - 1 on."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels.relative import by_distance, slot_count

    assert slot_count(2, 2) == 2
    tiles = torch.tensor([[[1.0, 2.0], [5.0, 6.0]], [[3.0, 4.0], [7.0, 8.0]]]).view(1, 1, 2, 1, 2, 2)
    # row 0 begins at distance -1, row 1 one before: -1 is 1 + 6, 0 is 2 + 7, 1 is 3 + 8
    assert by_distance(tiles, 2).tolist() == [[7.0, 9.0, 11.0]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kernel", "vectors"),
    [("forward", False), ("diagonals", False)]
    + [(kernel, True) for kernel in ("forward", "prepare", "queries_backward", "keys_backward", *SMALL)],
)
def test_the_kernels_compile_for_a_hopper(kernel, vectors):
    """The interpreter forgives what the compiler does not; neither needs a GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels import relative

    function = getattr(relative, f"{kernel}_kernel")
    shapes = relative.RelativeTileShapes.of(torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16), vectors=vectors)
    shape = {"queries_backward": shapes.queries, "keys_backward": shapes.keys}.get(kernel, shapes.forward)
    options = shape.options(vectors=vectors)
    given = {name: value for name, value in options.items() if name.isupper()}
    given |= {"D": 64, "E": 64, "REACH": 92, "CAUSAL": True, "PADDED": True, "PRECISION": "tf32"}
    given |= {"WIDTH": 185, "SLOTS": 4, "SIDE": 64, "SOME": 64, "PIECE": 512, "LOGARITHM": vectors}
    halves = dict.fromkeys(("q", "k", "v", "x", "y", "grad", "out", "of_q", "of_k", "of_v"), "*bf16")
    whole = dict.fromkeys(("queries", "keys", "start", "heads", "share", "chunks", "each", "rows"), "i32")
    types: dict[str, str] = dict.fromkeys(function.arg_names, "*fp32")
    types |= halves | whole | {"lengths": "*i32", "unit": "fp32", "factor": "fp32"}
    chosen = {name: value for name, value in options.items() if not name.isupper()}
    ptx = compile_for_hopper(function, given, types, **chosen).asm["ptx"]
    assert ("wgmma" in ptx) == (kernel != "prepare")
    assert "atom." not in ptx


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("scheme", "pattern", "dtype", "head", "groups"),
    [
        (RelativeBias(LogBuckets(), heads=4), "full", torch.bfloat16, 64, 4),
        (RelativeBias(Clipped(17), heads=4), "causal padding", torch.bfloat16, 128, 2),
        (RelativeVectors(Clipped(16), head=64), "full", torch.bfloat16, 64, 4),
        (RelativeVectors(Clipped(5), head=32), "causal padding", torch.float16, 32, 4),
        (RelativeVectors(Clipped(5), head=32), "causal padding", torch.float32, 32, 2),
    ],
)
def test_on_a_gpu_the_kernels_are_as_good_as_plain_torch(scheme, pattern, dtype, head, groups):
    given = [torch.randn(2, h, n, head) for h, n in ((4, 509), (groups, 571), (groups, 571))]
    given = [x.to("cuda", dtype).requires_grad_() for x in given]
    seen = Full() if pattern == "full" else (Causal() & Padding(torch.tensor([300, 571]))).to("cuda")
    recipe = Recipe(position=scheme.cuda(), pattern=seen)
    assert triton_relative_objections(recipe, given[0], given[1], Positions.of(given[0], given[1], 0, None)) == []
    assert_as_good(recipe, given, partial(ours, recipe), slack=2e-5)


if __name__ == "__main__":
    print_json(kernel_cases)
