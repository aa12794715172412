"""Linear layer with relu: worked by hand, its derivative, and its rounding on a GPU."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import linear, relu
from torch.testing import assert_close

from regard.layers.transformer_layers import FeedForward
from regard.ops import dispatch
from regard.ops.fused_layers import linear_relu, linear_relu_op


def drawn(*shapes, **how):
    return [torch.randn(shape, **how).requires_grad_() for shape in shapes]


def test_on_paper():
    """1·2 + 3·1 − 4 = 1 stays, 1·1 − 3·1 + 1 = −1 is cut off."""
    x, weight = torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 1.0], [1.0, -1.0]])
    assert linear_relu(x, weight, torch.tensor([-4.0, 1.0])).tolist() == [[1.0, 0.0]]


def test_it_is_the_two_steps_with_their_derivative():
    given = drawn((2, 3, 5), (7, 5), (7,), dtype=torch.float64)
    assert_close(linear_relu(*given), relu(linear(*given)))
    assert gradcheck(linear_relu, given)
    torch.library.opcheck(linear_relu_op, tuple(x.detach().float().requires_grad_() for x in given))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_feed_forward_layer_is_the_same_fused(activation, monkeypatch):
    layer, (x,) = FeedForward(5, 7, activation=activation).double(), drawn((2, 3, 5), dtype=torch.float64)
    results = []
    for fused in (False, True):
        monkeypatch.setattr(dispatch, "use_fused", lambda x, fused=fused: fused)
        made = layer.down(layer.hidden(x, fused=fused))
        results.append([made, *torch.autograd.grad(made.square().sum(), [x, *layer.parameters()])])
    assert_close(*results)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("autocast", [False, True])
def test_on_a_gpu_it_is_as_good_as_the_two_steps(autocast):
    """In bfloat16: error at most twice that of the two steps, both against float64."""
    dtype = torch.float32 if autocast else torch.bfloat16
    given = drawn((3, 128, 256), (512, 256), (512,), device="cuda", dtype=dtype)
    exact = [x.detach().double().requires_grad_() for x in given]
    upstream, results = torch.randn(3, 128, 512, device="cuda", dtype=torch.float64), []
    for work, on in ((lambda *x: relu(linear(*x)), exact), (lambda *x: relu(linear(*x)), given), (linear_relu, given)):
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast and on is given):
            made = work(*on)
        results.append([made, *torch.autograd.grad(made, on, upstream.to(made.dtype))])
    for want, usual, found in zip(*results, strict=True):
        assert found.dtype == usual.dtype
        assert (found - want).norm() <= 2 * (usual - want).norm()
