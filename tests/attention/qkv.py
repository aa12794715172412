"""Three tensors as leaves of the graph, such as queries, keys and values: random ones, and copies in another dtype."""

import torch
from torch import Tensor

QKV = tuple[Tensor, Tensor, Tensor]
Shape = tuple[int, ...]


def random_qkv(q: Shape, k: Shape, v: Shape, *, dtype: torch.dtype = torch.double, device: str = "cpu") -> QKV:
    a, b, c = (torch.randn(shape, dtype=torch.double).to(device, dtype).requires_grad_() for shape in (q, k, v))
    return a, b, c


def cast_leaves(qkv: QKV, dtype: torch.dtype) -> QKV:
    q, k, v = (x.detach().to(dtype, copy=True).requires_grad_() for x in qkv)
    return q, k, v
