"""Linear layers: projections of the same states by one product, and what inference swaps for a model's own layers."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.ops import dispatch
from regard.ops.fused_layers import fused_qkv_linear, has_bias


def project_all(
    x: Float[Tensor, "... i"], projections: Sequence[nn.Module], *, fused: bool = False
) -> tuple[Tensor, ...]:
    """Each projection of x, such as queries, keys and values; fused, on a GPU, all are views of one product."""
    if (whole := find_whole(*projections)) is not None:
        return whole.forward(x)
    if fused and dispatch.use_fused(x):
        linears = [part for part in projections if has_bias(part)]
        if len(linears) == len(projections):
            return fused_qkv_linear(x, [part.weight for part in linears], [part.bias for part in linears])
    return tuple([part(x) for part in projections])


class FusedLinear(nn.Module):
    """Several projections of the same states as one linear layer, for inference: each is a view of its output.

    Args:
        linear: of all rows of all projections, one behind the other.
        sizes: how many rows each has.
    """

    def __init__(self, linear: nn.Module, sizes: Sequence[int]):
        super().__init__()
        self.linear, self.sizes = linear, list(sizes)
        self.parts = tuple(LinearPart(self, n) for n in range(len(sizes)))  # in a tuple, so none is a child

    def forward(self, x: Float[Tensor, "... i"]) -> tuple[Tensor, ...]:
        return self.linear(x).split_with_sizes(self.sizes, -1)


class LinearPart(nn.Module):
    """One projection of a FusedLinear. Who wants all of them asks `project_all`, which multiplies once."""

    def __init__(self, whole: FusedLinear, index: int):
        super().__init__()
        self.whole, self.index = whole, index

    def forward(self, x: Float[Tensor, "... i"]) -> Tensor:
        return self.whole(x)[self.index]


def find_whole(*projections: nn.Module) -> FusedLinear | None:
    """The FusedLinear that these are all the parts of, if they are."""
    first = projections[0]
    return first.whole if type(first) is LinearPart and first.whole.parts == projections else None


class DirectModule(nn.Module):
    """Abstract: is called without torch's search for hooks, a tenth of a small model's step, unless it has some."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) if self._forward_hooks or self._forward_pre_hooks else self.forward(x)


class MkldnnLinear(DirectModule):
    """The weight prepacked for oneDNN: with few rows several times as fast as `linear`."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
        self.bias, self.op = bias.detach(), torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x, self.weight, self.bias, "none", [], "")
