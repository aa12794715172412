"""A call in; what a GPU takes for it, in time and in memory, out.

milliseconds    of one among calls that follow one another, as the layers of a model do: a processor that tells the
                GPU its kernels too slowly is timed with them
recorded        of the same work as a CUDA graph, as a captured step of training is: the kernels alone
waited          until one call has ended that found the GPU idle
mib             held at most beyond what was held before
"""

import gc
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch

Work = Callable[[], object]
LONG = 100.0  # milliseconds a call from which on a few calls are enough


def milliseconds(once: Work, seconds: float = 0.25, *, fewest: int = 3) -> float:
    """The median by events, of about so many seconds; the GPU never waits between two calls."""
    once()
    single = waited(once, 1)
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


def waited(once: Work, times: int = 10) -> float:
    """The least of so many."""
    found = []
    for _ in range(times):
        torch.cuda.synchronize()
        began = time.perf_counter()
        once()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - began))
    return min(found)


def recorded(once: Work, times: int = 1, seconds: float = 0.1) -> float | None:
    """Of one, where so many are recorded together; none, and the reason printed, where they cannot be."""
    try:
        return milliseconds(graph_of(once, times).replay, seconds, fewest=1) / times
    except Exception as error:
        print(f"  not recorded: {reason(error)}", flush=True)
        return None


def graph_of(once: Work, times: int) -> torch.cuda.CUDAGraph:
    """Told twice aside before, so that libraries and compilers have chosen their kernels."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        once()
        torch.cuda.set_sync_debug_mode("error")  # half a recording spoils those that follow: who waits fails here
        try:
            once()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # a recording that fails would leave its own stream behind
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
        for _ in range(times):
            once()
    return graph


def reason(error: Exception) -> str:
    """The first error is why; the one behind it tells only that the recording came to nothing."""
    first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
    return f"{type(first).__name__}: {[*str(first).splitlines(), ''][0][:150]}"


def mib(once: Work) -> float:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = once()
    torch.cuda.synchronize()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / 2**20
