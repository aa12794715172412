"""CUDA graph capture: work with fixed addresses, launched once kernel by kernel and then replayed as a whole.

A step of a small model is hundreds of small kernels, and to launch them one by one takes longer than to run them. A
graph holds them all, in their order and with their addresses.
"""

import gc
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

WARMUPS = 2  # runs before capture: libraries create their handles and plans, and compilers their kernels


class GraphCapture(Protocol):
    """Captures work with fixed input addresses: returns what replays it, and the tensor of its result."""

    def __call__(self, work: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], object], Tensor]: ...


class CUDAGraphCapture:
    """GraphCapture by CUDA graphs. They run one after the other, so all share one memory pool.

    Args:
        option, remedy: what a failure's message begins and ends with.
    """

    def __init__(self, option: str = "", remedy: str = "run it kernel by kernel"):
        self.option, self.remedy = option, remedy
        self.pool, self.graphs = None, WeakSet[torch.cuda.CUDAGraph]()

    def __call__(self, work: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], object], Tensor]:
        if not self.graphs:  # a pool is gone with the last graph of it
            self.pool: Any = torch.cuda.graph_pool_handle()
            gc.collect()  # garbage of earlier steps belongs to another stream
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(WARMUPS):
                work()
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        try:
            # a failed capture would leave its own stream current
            with (
                torch.cuda.stream(torch.cuda.current_stream(device)),
                torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"),
            ):
                result = work()
        except RuntimeError as error:
            # the first error is the cause; the one after it says only that the capture failed
            first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            if isinstance(first, torch.OutOfMemoryError):
                raise first from None
            raise ValueError(
                f"{self.option}this model cannot be captured as a CUDA graph, for it synchronises with the GPU "
                f"or has a new shape every time ({str(first).splitlines()[0]}); {self.remedy}"
            ) from error
        self.graphs.add(graph)
        return graph.replay, result
