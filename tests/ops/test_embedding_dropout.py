"""Fused embedding with dropout: worked by hand, against its parts, its derivative, and the Triton kernels."""

from typing import Any

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from regard.ops.dropout import hashed_dropout
from regard.ops.fused_layers import DropoutNoise, embedding_dropout, embedding_dropout_backward, embedding_dropout_op
from tests.attention.triton_interpreter import compile_to_ptx, print_json

SEED = torch.tensor([1_234_577, 7_654_321], dtype=torch.int32)
GPU = torch.cuda.is_available()
WORDS = torch.tensor([[3, 0, 3], [1, 2, 3]]), torch.tensor([[2, 2], [0, 4]])
AT = torch.tensor([[0, 1, 0], [0, 1, 2]]), torch.tensor([[0, 1], [0, 0]])


def drawn(width: int = 5, **how) -> tuple[torch.Tensor, torch.Tensor]:
    how = {"dtype": torch.float64, **how}
    return torch.randn(5, width, **how).requires_grad_(), torch.randn(3, width, **how)


def test_on_paper():
    """Word 1 is (3, 4), of width 2; times √2, and (1, 1) for its place."""
    table, places = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[1.0, 1.0]])
    word, at = torch.tensor([[1]]), torch.tensor([[0]])
    found = embedding_dropout(table, (word, word), places, (at, at), DropoutNoise(0.0, SEED))
    assert_close(torch.stack(found).flatten(1), torch.tensor([[3 * 2**0.5 + 1, 4 * 2**0.5 + 1]]).expand(4, 2))


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_it_is_its_parts_one_after_the_other(share):
    table, places = drawn()
    found = embedding_dropout(table, WORDS, places, AT, DropoutNoise(share, SEED))
    both = [torch.cat([part.flatten() for part in parts]) for parts in (WORDS, AT)]
    one, other = hashed_dropout(table[both[0]] * 5**0.5 + places[both[1]], share, SEED).split([6, 4])
    wanted = [part.view(*shape.shape, 5) for part, shape in ((one, WORDS[0]), (other, WORDS[1])) for _ in range(2)]
    assert_close(list(found), wanted)
    upstream = [torch.randn_like(part) for part in found]
    assert_close(*(torch.autograd.grad(made, [table], upstream) for made in (found, wanted)))


def test_the_derivative_is_that_of_the_step_with_its_dropout():
    table, places = drawn()
    assert gradcheck(lambda table: embedding_dropout(table, WORDS, places, AT, DropoutNoise(0.3, SEED)), (table,))


def test_the_operations_tell_compilers_the_truth():
    table, places = (part.detach().float() for part in drawn())
    torch.library.opcheck(embedding_dropout_op, (table, WORDS[0].flatten(), AT[0].flatten(), places, SEED, 0.3))
    grads = [torch.randn(2, n, 5) for n in (3, 3, 2, 2)]
    torch.library.opcheck(embedding_dropout_backward, (*grads, SEED, 0.3))


# --- the kernels ---


def by_kernel() -> dict[str, Any]:
    """How far the kernels are from plain torch, under the interpreter."""
    from regard.ops import dropout_triton

    torch.manual_seed(0)
    (table, places), found = (part.detach() for part in drawn(19)), {}
    words, at = (torch.cat([part.flatten() for part in parts]) for parts in (WORDS, AT))
    a, b, c, d = (torch.randn(2, n, 19, dtype=torch.float64) for n in (3, 3, 2, 2))
    for share in (0.0, 0.3):
        pairs = [
            (
                dropout_triton.launch_embedding_forward(table, words, at, places, SEED, share),
                embedding_dropout_op(table, words, at, places, SEED, share),
            ),
            (
                dropout_triton.launch_embedding_backward(((a, b), (c, d)), SEED, share),
                embedding_dropout_backward(a, b, c, d, SEED, share),
            ),
        ]
        found[str(share)] = max((one - other).abs().max().item() for one, other in pairs)
    return found


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_kernels_interpreted_are_plain_torch(interpreted, share):
    assert interpreted[str(share)] < 1e-12


@pytest.mark.parametrize("kernel", ["embedding_forward_kernel", "embedding_backward_kernel"])
def test_the_kernels_compile_for_a_hopper(kernel):
    pytest.importorskip("triton", reason="Triton is not installed")
    import triton.language as tl

    from regard.ops import dropout_triton

    kinds = {**dict.fromkeys(("tokens", "position_ids"), "*i64"), "positions": "*fp32", "seed": "*i32"}
    kinds |= {**dict.fromkeys(("begin", "rows"), "i32"), **dict.fromkeys(("scale", "keep_scale"), "fp32")}
    sizes = {"WIDTH": 512, "WW": 512, "ROWS": 4, "CUT": 7, "WIDE": tl.float32}
    assert ".target sm_90" in compile_to_ptx(getattr(dropout_triton, kernel), sizes, kinds)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("width", [512, 300])
def test_on_a_gpu_it_is_plain_torch_rounded_once(width):
    table = torch.randn(1009, width, dtype=torch.bfloat16)
    places, (words, at) = torch.randn(64, width), (torch.randint(0, n, (2, 7, 61)) for n in (1009, 64))
    found = []
    for device in ("cpu", "cuda"):
        leaf, *rest = (part.to(device) for part in (table, words, places, at))
        leaf = leaf.detach().requires_grad_()
        seed, ((source, target), where, (source_at, target_at)) = SEED.to(device), rest
        out = embedding_dropout(leaf, (source, target), where, (source_at, target_at), DropoutNoise(0.1, seed))
        grad = torch.autograd.grad(out, [leaf], [torch.ones_like(part) for part in out])
        found.append([part.detach().cpu().float() for part in (*out, *grad)])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, rtol=2**-7, atol=2**-7)


if __name__ == "__main__":
    print_json(by_kernel)
