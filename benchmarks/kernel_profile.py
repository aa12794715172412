"""Kernel profile: the milliseconds of a GPU call by kind and name of its kernels, CUDA graphs included."""

import re
from collections import defaultdict
from collections.abc import Callable

import torch
from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
from torch.profiler import ProfilerActivity, profile

# the first that fits; the name of a matrix product may hold anything, so they come late
KINDS = {
    "compiled": r"^triton_",
    "cross-entropy, ours": r"logsumexp_kernel|cross_entropy_kernel|rdrop_kernel|scale_kernel",
    "dropout, residual and layer norm, ours": r"dropout_add_layernorm",
    "column sums, ours": r"column_sum_kernel|partial_sum_kernel",
    "attention": r"packed_forward|packed_backward|flash|fmha|attention|sdpa",
    "optimiser, multi-tensor": r"multi_tensor|adam",
    "embedding": r"embedding|radix|sort|scan|krn_partial|compute_grad_weight|sum_and_scatter",
    "matrix products": r"gemm|cutlass|cublas|nvjet|splitk|gemv|xmma",
    "copies": r"memcpy|memset|copy|fill|catarray",
    "layer norms": r"layer_?norm|gammabeta",
    "element-wise, sums": r"elementwise|reduce|dropout|softmax",
}

REGIONS = r"Optimizer\.|ProfilerStep|Torch-Compiled|##|CompiledFunction"  # spans around kernels, not kernels


def kind_of(name: str) -> str:
    return next((kind for kind, how in KINDS.items() if re.search(how, name, re.IGNORECASE)), "others")


def profile_kernels(step: Callable[[], object], device: torch.device, say: Callable[..., None], most: int = 45) -> None:
    """Milliseconds of one call by kind, and of the kernels that took longest; and the time in which none ran."""
    if device.type != "cuda":
        say("  no GPU, nothing to profile")
        return
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize(device)
    events = [
        event
        for event in profiler.events() or []
        if event.device_type == DeviceType.CUDA and not re.match(REGIONS, event.name)
    ]
    spans = [(event.name, event.time_range.start, event.time_range.elapsed_us()) for event in events]
    if not spans:
        say("  the profiler saw no kernel")
        return
    by_kind, by_name = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for name, _, took in spans:
        by_kind[kind_of(name)].append(took)
        by_name[name].append(took)
    first, last = min(start for _, start, _ in spans), max(start + took for _, start, took in spans)
    busy = sum(took for *_, took in spans)
    say(f"  {len(spans)} kernels, {busy / 1e3:.2f} ms of {(last - first) / 1e3:.2f} ms from the first to the last")
    for kind, took in sorted(by_kind.items(), key=lambda each: -sum(each[1])):
        say(f"    {sum(took) / 1e3:7.3f} ms {len(took):5}  {kind}")
    for name, took in sorted(by_name.items(), key=lambda each: -sum(each[1]))[:most]:
        say(f"      {sum(took) / 1e3:7.3f} ms {len(took):5} × {sum(took) / len(took):7.1f} µs  {name[:110]}")
