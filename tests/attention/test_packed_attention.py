"""Packed attention: each segment of a row as if it stood alone, columns of one product, dropout, and the kernels."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from regard.attention import AttentionDropout, Causal, Documents, Recipe, attend
from regard.attention.backends.packed import (
    keep_mask,
    packed_attention,
    packed_attention_backward,
    packed_attention_op,
    packed_joint_backward,
)
from regard.ops.fused_layers import are_columns
from tests.attention.qkv import QKV, cast_leaves, random_qkv
from tests.attention.triton_interpreter import print_json

HEADS, D, LENGTH = 3, 5, 13
QUERIES, KEYS = ((3, 1, 7), (2, 11), (4,)), ((2, 5, 4), (12, 1), (13,))
SEED = torch.tensor(20_011)
GPU = torch.cuda.is_available()


def segments(*rows: tuple[int, ...], length: int = LENGTH) -> Tensor:
    """Texts of these lengths in each row, counted from 1; the rest is padding, 0."""
    ids = torch.zeros((len(rows), length), dtype=torch.long)
    for n, row in enumerate(rows):
        filled = torch.repeat_interleave(torch.arange(1, len(row) + 1), torch.tensor(row, dtype=torch.long))
        ids[n, : len(filled)] = filled
    return ids


def drawn(n: int, heads: int = HEADS, d: int = D) -> QKV:
    shape = n, LENGTH, heads * d
    return random_qkv(shape, shape, shape)


def packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Tensor,
    keys: Tensor,
    *,
    causal: bool = False,
    head: int = D,
    dropout: float = 0.0,
) -> Tensor:
    return packed_attention(q, k, v, queries, keys, SEED.to(q.device), head=head, causal=causal, dropout=dropout)


def by_definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Tensor,
    keys: Tensor,
    *,
    causal: bool,
    backend: str = "reference",
    head: int = D,
) -> Tensor:
    q, k, v = (x.unflatten(2, (-1, head)).transpose(1, 2) for x in (q, k, v))
    pattern = Documents(queries, None if keys is queries else keys)
    recipe = Recipe(pattern=pattern & Causal() if causal else pattern)
    return attend(q, k, v, recipe, backend=backend).transpose(1, 2).flatten(2)


def test_two_texts_on_paper():
    """Scores log 1 and log 3: the second text's only token has its own value, the first text's ¼ and ¾ of two."""
    where = segments((2, 1), length=3)
    q, v = torch.ones(1, 3, 1, dtype=torch.float64), torch.tensor([4.0, 8.0, 5.0], dtype=torch.float64)[None, :, None]
    k = torch.tensor([0.0, math.log(3), 9.0], dtype=torch.float64)[None, :, None]
    assert_close(packed(q, k, v, where, where, head=1).flatten().tolist(), [7.0, 7.0, 5.0])
    assert_close(packed(q, k, v, where, where, causal=True, head=1).flatten().tolist(), [4.0, 7.0, 5.0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [1, HEADS])
def test_it_is_documents_by_the_definition(causal, groups):
    """Whatever the ids: padding is a segment like any other, and ids may be negative."""
    queries = segments(*QUERIES) - 1
    keys = queries if causal else segments(*KEYS) - 1
    q, (k, v) = drawn(3)[0], drawn(3, heads=groups)[1:]
    results = []
    for out in (packed(q, k, v, queries, keys, causal=causal), by_definition(q, k, v, queries, keys, causal=causal)):
        results.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v])])
    assert_close(*results)


@pytest.mark.parametrize("causal", [False, True])
def test_the_backend_takes_causality_and_segments_from_the_pattern(causal):
    (q, k, v), queries = drawn(3), segments(*QUERIES)
    keys = queries if causal else segments(*KEYS)
    found, wanted = (by_definition(q, k, v, queries, keys, causal=causal, backend=b) for b in ("packed", "reference"))
    assert_close(found, wanted)


@pytest.mark.parametrize("width", [2, 2 * D + 1])
def test_the_backend_takes_values_of_any_width(width):
    """Narrower than a tile of queries, or several tiles wide."""
    q, k = torch.randn(2, 3, HEADS, LENGTH, D, dtype=torch.float64)
    v = torch.randn(3, HEADS, LENGTH, width, dtype=torch.float64)
    recipe = Recipe(pattern=Documents(segments(*QUERIES)))
    assert_close(attend(q, k, v, recipe, backend="packed"), attend(q, k, v, recipe, backend="reference"))


def test_what_sees_nothing_is_0_and_has_no_gradient():
    queries, keys = segments((5, 8), (3, 10)), segments((13,), ()) * 1
    made = drawn(2)
    out = packed(*made, queries, keys)
    unseen = torch.tensor([[n >= 5 for n in range(LENGTH)], [True] * LENGTH])  # text 2 and row 1 find no token
    assert (out[unseen] == 0).all()
    assert (out[~unseen] != 0).all()
    dq, dk, dv = torch.autograd.grad(out.square().sum(), made)
    assert (dq[unseen] == 0).all()
    assert (dk[1] == 0).all()
    assert (dv[1] == 0).all()


def test_no_number_in_what_is_hidden_is_felt():
    where = segments((5, 2))
    q, k, v = (x.detach() for x in drawn(1))
    out = packed(q, k, v, where, where)
    k[0, 5:] = torch.nan
    assert_close(packed(q, k, v, where, where)[:, :5], out[:, :5], rtol=0, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_columns_of_one_product_have_gradients_in_one_tensor(causal):
    where, widths = segments(*QUERIES), [4 * D, 2 * D, 2 * D]
    home = torch.randn(3, LENGTH, sum(widths), dtype=torch.float64).requires_grad_()
    q, k, v = home.split(widths, 2)
    columns = q, k, v
    apart = cast_leaves(columns, torch.float64)
    assert are_columns(*columns)
    assert not are_columns(*apart)
    one, other = (packed(*parts, where, where, causal=causal, dropout=0.3) for parts in (columns, apart))
    assert_close(one, other)
    upstream = torch.randn_like(one)
    grads = torch.autograd.grad(one, columns, upstream, retain_graph=True)
    assert are_columns(*grads)
    assert_close(torch.cat(grads, 2), torch.cat(torch.autograd.grad(other, apart, upstream), 2))


@pytest.mark.parametrize("causal", [False, True])
def test_the_derivative_is_that_of_attention_with_its_dropout(causal):
    queries = torch.tensor([[1, 1, 2, 2, 0], [1, 2, 2, 2, 3]])
    keys = torch.tensor([[1, 2, 2, 2, 2, 0, 0], [1, 1, 2, 3, 3, 3, 0]])
    q, k, v = (torch.randn(2, n, w, dtype=torch.float64).requires_grad_() for n, w in ((5, 12), (7, 6), (7, 6)))
    assert gradcheck(lambda q, k, v: packed(q, k, v, queries, keys, head=3, causal=causal, dropout=0.3), (q, k, v))


def test_the_operations_tell_compilers_the_truth():
    where = segments(*QUERIES)
    q, k, v = (x.detach() for x in drawn(3))
    options = where, where, SEED, D, False, 0.3
    torch.library.opcheck(packed_attention_op, (q, k, v, *options))
    out, sums = packed_attention_op(q, k, v, *options)
    for backward in (packed_attention_backward, packed_joint_backward):
        torch.library.opcheck(backward, (torch.randn_like(out), out, sums, q, k, v, *options))


# --- dropout ---


def test_dropout_leaves_its_share_without_a_pattern():
    """Of 2 million weights, a share within five standard deviations, and neighbours of every kind do not agree."""
    weights = torch.zeros(19, 7, 127, 127)
    found = keep_mask(SEED, weights, 0.1).double() - 0.9
    deviation = 0.3 / found.numel() ** 0.5
    assert abs(found.mean()) < 5 * deviation
    other = keep_mask(SEED + 1, weights, 0.1).double() - 0.9
    pairs = [(found, other), (found[1:], found[:-1]), (found[:, 1:], found[:, :-1])]
    pairs += [(found[:, :, 1:], found[:, :, :-1]), (found[..., 1:], found[..., :-1])]
    assert max(abs((a * b).mean()) for a, b in pairs) < 10 * 0.3 * deviation


def test_every_layer_drops_other_weights_and_a_seed_repeats_them():
    where, recipe = segments(*QUERIES), Recipe(pattern=Documents(segments(*QUERIES)), normaliser=AttentionDropout(0.5))
    q, k, v = (x.detach().unflatten(2, (HEADS, D)).transpose(1, 2) for x in drawn(len(where)))

    def two_layers() -> list[Tensor]:
        torch.manual_seed(3)
        return [attend(q, k, v, recipe, backend="packed") for _ in range(2)]

    (a, b), (c, d) = two_layers(), two_layers()
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert not torch.equal(a, b)


# --- the kernels ---

CASES = {"cross": (False, 4, 2), "causal": (True, 3, 3)}


def by_kernel() -> dict[str, Any]:
    """How far the kernels are from plain torch in float64, under the interpreter."""
    from regard.attention.backends import packed
    from regard.attention.kernels import packed as kernels

    torch.manual_seed(0)
    found = {}
    for name, (causal, heads, groups) in CASES.items():
        queries = segments(*QUERIES)
        keys = queries if causal else segments(*((*row, 1) for row in ((2, 5, 4), (12,), (12,))), length=17)
        widths = ((queries, heads), (keys, groups), (keys, groups), (queries, heads))
        exact = [torch.randn(3, side.shape[1], n * D, dtype=torch.float64) for side, n in widths]
        for dropout in (0.0, 0.3):
            given = queries, keys, SEED, D, causal, dropout
            how = {"head": D, "causal": causal, "dropout": dropout}
            wanted = [
                packed.packed_attention_torch(*exact[:3], *given),
                *packed.packed_attention_torch_backward(exact[3], *exact[:3], *given),
            ]
            q, k, v, grad = (x.float() for x in exact)  # the interpreter's products know no bfloat16
            out, dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, q, k, v))
            sums = torch.full((3, heads, packed.tile_size(q.shape[1], k.shape[1])), torch.nan)
            launch = kernels.PackedLaunch(part=16)
            kernels.launch_forward(q, k, v, out, sums, queries, keys, SEED, launch=launch, **how)
            kernels.launch_backward(grad, q, k, v, out, sums, (dq, dk, dv), queries, keys, SEED, launch=launch, **how)
            far = [((a.double() - b).norm() / b.norm()).item() for a, b in zip((out, dq, dk, dv), wanted, strict=True)]
            found[f"{name}, {dropout}"] = max(far)
    return found


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_interpreted_are_plain_torch(interpreted, case, dropout):
    assert interpreted[f"{case}, {dropout}"] < 2e-6


@pytest.mark.parametrize("kernel", ["packed_forward_kernel", "packed_backward_kernel"])
def test_the_kernels_compile_for_a_hopper(kernel):
    pytest.importorskip("triton", reason="Triton is not installed")
    import triton.language as tl

    from regard.attention.kernels import packed as kernels
    from tests.attention.triton_interpreter import compile_to_ptx

    function = getattr(kernels, kernel)
    sizes = {"HEADS": 2, "SHARE": 2, "D": 64, "DD": 64, "TILE": 64, "PART": 32, "CUT": 7, "WIDE": tl.float32}
    kinds: dict[str, str] = dict.fromkeys(("q_segments", "k_segments", "seed"), "*i64")
    kinds |= {"scale": "fp32", "keep_scale": "fp32", "sums": "*fp32"}
    whole = {
        name: "i32"
        for name in function.arg_names
        if name.endswith(("_row", "_step")) or name in ("queries", "keys", "causal")
    }
    assert ".target sm_90" in compile_to_ptx(function, sizes, kinds | whole)


# --- on a GPU ---


def on_gpu(made: list[Tensor], queries: Tensor, keys: Tensor, *, causal: bool, backend: str) -> list[Tensor]:
    q, k, v = (x.detach().requires_grad_() for x in made[:3])
    out = by_definition(q, k, v, queries, keys, causal=causal, backend=backend, head=64)
    return [out, *torch.autograd.grad(out, (q, k, v), made[3])]


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("causal", [False, True])
def test_on_a_gpu_it_is_as_good_as_under_a_mask(causal):
    """In bfloat16: error at most twice that of SDPA under a mask, both against float64; and the same bits twice."""
    queries = segments((50, 3, 71), (127,), (13, 19, 23, 29, 31), (1,), length=128).cuda()
    keys = queries if causal else segments((7, 43, 61), (128,), (31, 29, 23, 19, 13), (90,), length=128).cuda()
    made = [torch.randn(4, 128, 192, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    exact = on_gpu([x.double() for x in made], queries, keys, causal=causal, backend="reference")
    plain, found, again = (
        on_gpu(made, queries, keys, causal=causal, backend=backend) for backend in ("sdpa", "packed", "packed")
    )
    for want, usual, one in zip(exact, plain, found, strict=True):
        assert (one - want).norm() <= 2 * (usual - want).norm()
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_on_a_gpu_dropout_is_that_of_plain_torch():
    from regard.attention.backends.packed import packed_attention_torch, packed_attention_torch_backward

    where = segments((20, 3, 31), (61,), (13, 19, 23), length=61).cuda()
    q, k, v, grad = (torch.randn(3, 61, 128, device="cuda") for _ in range(4))
    given = q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
    how = where, where, SEED.cuda(), 64, True, 0.2
    found = packed_attention(*given, where, where, SEED.cuda(), head=64, causal=True, dropout=0.2)
    wanted = [x.detach().double() for x in given]
    assert_close(found.double(), packed_attention_torch(*wanted, *how), rtol=1e-3, atol=1e-3)
    for one, other in zip(
        torch.autograd.grad(found, given, grad),
        packed_attention_torch_backward(grad.double(), *wanted, *how),
        strict=True,
    ):
        assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    print_json(by_kernel)
