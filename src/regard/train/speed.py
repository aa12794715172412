"""A device in; how many additions and multiplications a second its products of matrices reach, measured, out."""

import time

import torch


def matrix_rate(device: torch.device | str, dtype: torch.dtype = torch.bfloat16, *, size: int = 8192) -> float:
    """FLOP/s of one large product of random numbers on a GPU: what a model's utilisation is measured against."""
    a, b, c = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(3))
    for _ in range(3):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize(device)
    began, times = time.perf_counter(), 20
    for _ in range(times):
        torch.mm(a, b, out=c)
    torch.cuda.synchronize(device)
    return 2.0 * size**3 * times / (time.perf_counter() - began)
