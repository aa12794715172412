"""Linear projections of the same states, such as queries, keys and values: each by itself, or all by one product."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from regard.ops import dispatch
from regard.ops.fused_linear import fused_qkv_linear


def project_all(
    x: Float[Tensor, "... i"], projections: Sequence[nn.Module], *, fused: bool = False
) -> tuple[Tensor, ...]:
    """Each projection of x; fused, on a GPU, by one product, of which all are views."""
    if (whole := find_whole(*projections)) is not None:
        return whole.forward(x)
    if not (fused and dispatch.use_fused(x)):
        return tuple([part(x) for part in projections])
    linears = [part for part in projections if type(part) is nn.Linear and part.bias is not None]
    if len(linears) < len(projections):
        return tuple([part(x) for part in projections])
    return fused_qkv_linear(x, [part.weight for part in linears], [part.bias for part in linears])


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
