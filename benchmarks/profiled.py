"""A step of training in; which kernels a GPU spent it on, by kind and by name, printed. Recorded graphs included."""

import re
from collections import defaultdict
from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# the first that fits; a product's name may have anything in it, so it comes late
KINDS = {
    "compiled": r"^triton_",
    "vocabulary, turning scores": r"rows_summed|tiles_turned|pairs_turned|numbers_scaled",
    "residual path, ours": r"^residual_",
    "sums of columns, ours": r"columns_summed|parts_summed",
    "attention": r"rows_forward|rows_backward|flash|fmha|attention|sdpa",
    "optimiser, multi-tensor": r"multi_tensor|adam|weights_stepped",
    "embedding": r"words_entered|words_left|embedding|radix|sort|scan|krn_partial|compute_grad_weight|sum_and_scatter",
    "products": r"gemm|cutlass|cublas|nvjet|splitk|gemv|xmma",
    "copies": r"memcpy|memset|copy|fill|catarray",
    "norms": r"layer_?norm|gammabeta",
    "element-wise, sums": r"elementwise|reduce|dropout|softmax",
}

REGIONS = r"Optimizer\.|ProfilerStep|Torch-Compiled|##|CompiledFunction"  # spans around kernels, not kernels


def kind_of(name: str) -> str:
    return next((kind for kind, how in KINDS.items() if re.search(how, name, re.IGNORECASE)), "others")


def kinds_and_kernels(
    step: Callable[[], object], device: torch.device, say: Callable[..., None], most: int = 45
) -> None:
    """Milliseconds of one step, by kind and for the kernels that took longest; and when nothing ran."""
    if device.type != "cuda":
        say("  no GPU, nothing to profile")
        return
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as watched:
        step()
        torch.cuda.synchronize(device)
    events = [
        event
        for event in watched.events() or []
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
