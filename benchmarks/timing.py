"""Timing and memory of one call on a GPU, and its time on a CPU.

milliseconds            one of many calls in a row, as the layers of a model follow one another: the time that a slow
                        processor takes to launch the kernels counts
cuda_graph_milliseconds the same work captured in a CUDA graph, as a captured training step is: the kernels alone
latency                 until one call that found the GPU idle has ended
mib                     peak memory beyond what was allocated before
cpu_milliseconds        the median of several calls on a CPU
"""

import gc
import time
from collections.abc import Callable
from itertools import pairwise
from math import inf
from statistics import median

import torch

Work = Callable[[], object]
LONG = 100.0  # milliseconds a call from which on a few calls are enough


def milliseconds(once: Work, seconds: float = 0.25, *, fewest: int = 3) -> float:
    """The median by CUDA events, of about so many seconds; the GPU never waits between two calls."""
    once()
    single = latency(once, 1)
    calls = min(20, max(1, round(20 / single)))
    rounds = min(25, max(fewest, round(1e3 * seconds / (single * calls))))
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    for _ in range(0 if single > LONG else 2):
        once()
    marks[0].record()
    for mark in marks[1:]:
        for _ in range(calls):
            once()
        mark.record()
    torch.cuda.synchronize()
    return median(first.elapsed_time(second) for first, second in pairwise(marks)) / calls


def latency(once: Work, times: int = 10) -> float:
    """The least of so many."""
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        once()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - began))
    return min(found)


def cuda_graph_milliseconds(once: Work, times: int = 1, seconds: float = 0.1) -> float | None:
    """Of one call, where so many are captured in one graph; None, and the reason printed, where they cannot be."""
    try:
        return milliseconds(capture(once, times).replay, seconds, fewest=1) / times
    except Exception as error:
        print(f"  not captured: {reason(error)}", flush=True)
        return None


def capture(once: Work, times: int) -> torch.cuda.CUDAGraph:
    """Run twice on a side stream before, so that libraries and compilers have chosen their kernels."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        once()
        torch.cuda.set_sync_debug_mode(
            "error"
        )  # a failed capture spoils those that follow: what synchronises fails here
        try:
            once()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # a capture that fails would leave its own stream behind
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
        for _ in range(times):
            once()
    return graph


def reason(error: Exception) -> str:
    """The first error is why; the one behind it says only that the capture failed."""
    first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
    return f"{type(first).__name__}: {[*str(first).splitlines(), ''][0][:150]}"


def mib(once: Work) -> float:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = once()
    torch.cuda.synchronize()
    del result
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def cpu_milliseconds(once: Work, rounds: int = 10, *, warm: int = 1, limit: float = inf) -> float:
    """The median of so many rounds, or of fewer once they have taken `limit` milliseconds together."""
    for _ in range(warm):
        once()
    times: list[float] = []
    while len(times) < rounds and sum(times) <= limit:
        began = time.perf_counter()
        once()
        times.append(1e3 * (time.perf_counter() - began))
    return median(times)
