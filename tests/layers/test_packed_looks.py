"""Three ways to look within packed texts: each as each text alone has it, on paper, and by the kernels."""

import math
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from regard.layers.packed import NONE
from regard.layers.packed_looks import Dense, Looking, Tiled, Varlen, ends
from regard.layers.packed_rows import kept, row_look, row_look_at_itself
from tests.attention.interpreting import answer, interpreted
from tests.layers.test_packed import ASKED, ASKING, HEADS, LENGTH, D, alone, drawn, texts

SEED = torch.tensor(20_011)
GPU = torch.cuda.is_available()


def look(looking: Looking, q, k, v, asking, asked, *, causal=False, head=D, dropout=0.0):
    (sight,) = looking.sights(asking, asked, q.dtype, causal=causal)
    return sight.attend(q, k, v, head=head, dropout=dropout)


# --- one meaning ---


@pytest.mark.parametrize("looking", [Dense(), Tiled()], ids=str)
def test_two_texts_on_paper(looking):
    """Scores log 1 and log 3: the second text's only word has its own value, the first text's ¼ and ¾ of two."""
    where = texts((2, 1), length=3)
    q, v = torch.ones(1, 3, 1, dtype=torch.float64), torch.tensor([4.0, 8.0, 5.0], dtype=torch.float64)[None, :, None]
    k = torch.tensor([0.0, math.log(3), 9.0], dtype=torch.float64)[None, :, None]
    assert_close(look(looking, q, k, v, where, where, head=1).flatten().tolist(), [7.0, 7.0, 5.0])
    assert_close(look(looking, q, k, v, where, where, causal=True, head=1).flatten().tolist(), [4.0, 7.0, 5.0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("looking", [Dense(), Tiled()], ids=str)
def test_each_text_is_as_if_alone(looking, causal):
    asking = texts(*ASKING)
    asked = asking if causal else texts(*ASKED)
    made, real = drawn(3), (asking.text != NONE)[..., None]
    found, wanted = (
        look(looking, *made, asking, asked, causal=causal) * real,
        alone(*made, asking, asked, causal=causal),
    )
    assert_close(found, wanted)
    upstream = torch.randn_like(wanted)
    finds, wants = (torch.autograd.grad(out, made, upstream) for out in (found, wanted))
    assert_close(finds, wants)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("looking", [Dense(), Tiled()], ids=str)
def test_side_by_side_is_the_same_as_apart(looking, causal):
    where, heads = texts(*ASKING), 4
    q, (k, v) = drawn(3, heads=heads)[0], drawn(3, heads=2)[1:]
    (sight,) = looking.sights(where, where, q.dtype, causal=causal)
    together = sight.attend_itself(torch.cat((q, k, v), 2), heads=heads, head=D, dropout=0.0)
    one = sight.attend(q, k, v, head=D, dropout=0.0)
    assert_close(together, one)
    upstream = torch.randn_like(one)
    assert_close(*(torch.autograd.grad(out, [q, k, v], upstream) for out in (together, one)))


def test_by_tiles_what_sees_nothing_is_0_and_has_no_gradient():
    asking, asked = texts((5, 2), (3,)), texts((13,), ())
    made = drawn(2)
    out = look(Tiled(), *made, asking, asked)
    unseen = torch.tensor([[n >= 5 for n in range(LENGTH)], [True] * LENGTH])  # text 2 and row 1 find no word
    assert (out[unseen] == 0).all()
    assert (out[~unseen] != 0).all()
    dq, dk, dv = torch.autograd.grad(out.square().sum(), made)
    assert (dq[unseen] == 0).all()
    assert (dk[1] == 0).all()
    assert (dv[1] == 0).all()


def test_no_number_in_what_is_hidden_is_felt():
    where = texts((5, 2))
    made = [x.detach() for x in drawn(1)]
    out = look(Tiled(), *made, where, where)
    made[1][0, 5:] = torch.nan
    assert_close(look(Tiled(), *made, where, where)[:, :5], out[:, :5], rtol=0, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_the_derivative_is_that_of_the_look_with_its_dropout(causal):
    asking = torch.tensor([[1, 1, 2, 2, 0], [1, 2, 2, 2, 3]])
    asked = torch.tensor([[1, 2, 2, 2, 2, 0, 0], [1, 1, 2, 3, 3, 3, 0]])
    q, k, v = (torch.randn(2, n, w, dtype=torch.float64).requires_grad_() for n, w in ((5, 12), (7, 6), (7, 6)))
    how = {"head": 3, "causal": causal, "dropout": 0.3}
    assert gradcheck(lambda *x: row_look(*x, asking, asked, SEED, **how)[0], (q, k, v))
    together = torch.randn(2, 5, 24, dtype=torch.float64).requires_grad_()
    assert gradcheck(lambda x: row_look_at_itself(x, asking, SEED, 4, 3, causal, 0.3)[0], (together,))


def test_the_operations_tell_compilers_the_truth():
    where = texts(*ASKING).text
    q, k, v = (x.detach().requires_grad_() for x in drawn(3))
    torch.library.opcheck(row_look, (q, k, v, where, where, SEED, D, False, 0.3))
    together = torch.cat((q, k, v), 2).detach().requires_grad_()
    torch.library.opcheck(row_look_at_itself, (together, where, SEED, HEADS, D, True, 0.3))


# --- dropout ---


def test_dropout_leaves_its_share_without_a_pattern():
    """Of 2 million weights, a share within five standard deviations, and neighbours of every kind do not agree."""
    weights = torch.zeros(19, 7, 127, 127)
    found = kept(SEED, weights, 0.1).double() - 0.9
    deviation = 0.3 / found.numel() ** 0.5
    assert abs(found.mean()) < 5 * deviation
    other = kept(SEED + 1, weights, 0.1).double() - 0.9
    pairs = [(found, other), (found[1:], found[:-1]), (found[:, 1:], found[:, :-1])]
    pairs += [(found[:, :, 1:], found[:, :, :-1]), (found[..., 1:], found[..., :-1])]
    assert max(abs((a * b).mean()) for a, b in pairs) < 10 * 0.3 * deviation


def test_every_layer_drops_other_weights_and_a_seed_repeats_them():
    where = texts(*ASKING)
    made = drawn(3)

    def found():
        torch.manual_seed(3)
        return [
            sight.attend(*made, head=D, dropout=0.5) for sight in Tiled().sights(where, where, made[0].dtype, layers=2)
        ]

    (a, b), (c, d) = found(), found()
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert not torch.equal(a, b)


# --- mistakes, and where texts end ---


def test_ends_on_paper():
    """Rows of 13: texts of 3, 1 and 7 and 2 that fill up; 2 and 11; none at all. Four texts might have been there."""
    expected = [0, 3, 4, 11, 11, 13, 15, 26, 26, 26, 26, 26, 26, 26, 26, 39]
    assert ends(texts((3, 1, 7), (2, 11), ()), 4).tolist() == expected


def test_mistakes_are_named():
    long, short = texts((129,), length=129), texts((2,))
    with pytest.raises(ValueError, match="rows of 129 words do not fit into one tile of 128"):
        Tiled().sights(long, long, torch.bfloat16)
    with pytest.raises(ValueError, match=r"not in torch.float32 on cpu"):
        Varlen(3).sights(short, short, torch.float32)


# --- the kernels ---

CASES = {"cross": (False, 4, 2), "causal": (True, 3, 3)}


def by_kernel() -> dict[str, Any]:
    """How far the kernels are from plain torch in float64, under the interpreter."""
    from regard.layers import packed_kernel, packed_rows

    torch.manual_seed(0)
    found = {}
    for name, (causal, heads, groups) in CASES.items():
        asking = texts(*ASKING).text
        asked = asking if causal else texts(*((*row, 1) for row in ((2, 5, 4), (12,), (12,))), length=17).text
        widths = ((asking, heads), (asked, groups), (asked, groups), (asking, heads))
        exact = [torch.randn(3, side.shape[1], n * D, dtype=torch.float64) for side, n in widths]
        for dropout in (0.0, 0.3):
            given = asking, asked, SEED, D, causal, dropout
            how = {"head": D, "causal": causal, "dropout": dropout}
            wanted = [packed_rows.looked(*exact[:3], *given), *packed_rows.looked_back(exact[3], *exact[:3], *given)]
            q, k, v, grad = (x.float() for x in exact)  # the interpreter's products know no bfloat16
            out, into = torch.full_like(q, torch.nan), tuple(torch.full_like(x, torch.nan) for x in (q, k, v))
            sums = torch.full((3, heads, packed_rows.tile_size(q.shape[1], k.shape[1])), torch.nan)
            told = packed_kernel.Told(part=16)
            packed_kernel.look_forward(q, k, v, out, sums, asking, asked, SEED, told=told, **how)
            packed_kernel.look_backward(grad, q, k, v, out, sums, into, asking, asked, SEED, told=told, **how)
            far = [((a.double() - b).norm() / b.norm()).item() for a, b in zip((out, *into), wanted, strict=True)]
            found[f"{name}, {dropout}"] = max(far)
    return found


@pytest.fixture(scope="module")
def kernels() -> dict[str, float]:
    return interpreted("tests.layers.test_packed_looks")


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("case", CASES)
def test_the_kernels_interpreted_are_plain_torch(kernels, case, dropout):
    assert kernels[f"{case}, {dropout}"] < 2e-6


@pytest.mark.parametrize("kernel", ["rows_forward", "rows_backward"])
def test_the_kernels_compile_for_a_hopper(kernel):
    pytest.importorskip("triton", reason="Triton is not installed")
    import triton.language as tl

    from regard.layers import packed_kernel
    from tests.attention.interpreting import compiled

    function = getattr(packed_kernel, kernel)
    sizes = {"HEADS": 2, "SHARE": 2, "D": 64, "DD": 64, "TILE": 64, "PART": 32, "CUT": 7, "WIDE": tl.float32}
    kinds = dict.fromkeys(("asking", "asked", "seed"), "*i64") | dict.fromkeys(("scale", "share_kept"), "fp32")
    kinds["sums"] = "*fp32"
    whole = {
        name: "i32"
        for name in function.arg_names
        if name.endswith(("_row", "_step")) or name in ("queries", "keys", "causal")
    }
    assert ".target sm_90" in compiled(function, sizes, kinds | whole)


# --- on a GPU ---


def on_gpu(looking: Looking, made, asking, asked, *, causal: bool, dropout: float = 0.0):
    real = (asking.text != NONE)[..., None]
    given = [x.detach().requires_grad_() for x in made[:3]]
    out = look(looking, *given, asking, asked, causal=causal, head=64, dropout=dropout) * real
    return [out, *torch.autograd.grad(out, given, made[3])]


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("looking", [Tiled(), Varlen(5)], ids=str)
def test_on_a_gpu_it_is_as_good_as_under_a_mask(looking, causal):
    """In bfloat16: error at most twice that of the dense way, both against float64; Tiled has the same bits twice."""
    asking = texts((50, 3, 71), (127,), (13, 19, 23, 29, 31), (1,), length=128).to("cuda")
    asked = asking if causal else texts((7, 43, 61), (128,), (31, 29, 23, 19, 13), (90,), length=128).to("cuda")
    made = [torch.randn(4, 128, 192, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    exact = on_gpu(Dense(), [x.double() for x in made], asking, asked, causal=causal)
    plain, found, again = (on_gpu(way, made, asking, asked, causal=causal) for way in (Dense(), looking, looking))
    for want, usual, one in zip(exact, plain, found, strict=True):
        assert (one - want).norm() <= 2 * (usual - want).norm()
    if looking == Tiled():
        assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_on_a_gpu_dropout_is_that_of_plain_torch():
    from regard.layers.packed_rows import looked, looked_back

    where = texts((20, 3, 31), (61,), (13, 19, 23), length=61).to("cuda").text
    q, k, v, grad = (torch.randn(3, 61, 128, device="cuda") for _ in range(4))
    given = [x.requires_grad_() for x in (q, k, v)]
    how = where, where, SEED.cuda(), 64, True, 0.2
    found, _ = row_look(*given, *how)
    wanted = [x.detach().double() for x in given]
    assert_close(found.double(), looked(*wanted, *how), rtol=1e-3, atol=1e-3)
    for one, other in zip(
        torch.autograd.grad(found, given, grad), looked_back(grad.double(), *wanted, *how), strict=True
    ):
        assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    answer(by_kernel)
