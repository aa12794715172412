"""Probes by the GPU's kernels, beside cuDNN's forward pass in the same run; see probes.py, which calls this.

Prints each line as soon as it is known, and goes on where a part fails.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from regard.attention import Recipe, read
from regard.attention.kernels import probe_reach, probes
from regard.attention.kernels.probes import Found, Shape
from regard.attention.places import Places
from regard.attention.probes import Probed, Wanted, probe

COLUMNS = [Shape(64, 128), Shape(64, 128, stages=2), Shape(64, 128, stages=4), Shape(64, 64), Shape(128, 64)]
COLUMNS += [Shape(128, 128, warps=8), Shape(128, 64, warps=8)]
ROWS = [Shape(128, 64), Shape(64, 128), Shape(128, 128, warps=8), Shape(64, 64), Shape(128, 64, stages=2)]
MASKED = [Shape(64, 128), Shape(64, 128, registers=168), Shape(64, 64)]
OTHERS = ["Causal()", "Window(512)"]


def say(*words: object) -> None:
    print(*words, flush=True)


def milliseconds(run: Callable[[], Any], rounds: int = 3) -> float:
    """The median, by the device's own clock."""
    run()
    times = []
    for _ in range(rounds):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        run()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after))
    return statistics.median(times)


def extra_mib(run: Callable[[], Any]) -> float:
    """The most memory it holds beyond what was there before, its results among it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = run()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def forward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """cuDNN's output and the log-sum-exp it keeps for its backward pass."""
    given = {"compute_log_sumexp": True, "dropout_p": 0.0, "is_causal": causal, "return_debug_mask": False}
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, **given)
    return out, lse.view(q.shape[:3])


def fused(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


def measured(n: int, heads: int, kinds: list[str], wanted: dict[str, dict], *, sweep: bool) -> Iterator[dict]:
    """Full attention: each statistic; other patterns: all of them together."""
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, 64, generator=generator, device="cuda").bfloat16() for _ in range(3))
    began = time.perf_counter()
    for pattern in ["Full()", *OTHERS]:
        causal, recipe = pattern == "Causal()", Recipe(pattern=read(pattern))
        say(f"--- {pattern}, {n:,} tokens, {heads} heads of 64, after {time.perf_counter() - began:.0f} s")
        try:
            theirs = milliseconds(partial(fused, q, k, v, causal=causal))
            say(f"cuDNN forward {theirs:.1f} ms")
            # what is dense is what anyone would have to run for a window, but its log-sum-exp is another
            known = probe(q, k, recipe, Wanted(log_sum_exp=True)).log_sum_exp
            assert known is not None
            if "Window" not in pattern:
                lse = forward(q, k, v, causal=causal)[1]
                say(f"our log-sum-exp and cuDNN's differ by at most {(lse - known).abs().max():.1e}")
                known = lse
        except Exception as error:  # the rest can still be told
            say(f"failed: {error!r}"[:300])
            continue
        for kind in kinds if pattern == "Full()" else ["all"]:
            for given in (known, None):
                run = partial(probe, q, k, recipe, Wanted(**wanted[kind]), log_sum_exp=given)
                name = f"{kind}, log-sum-exp {'given' if given is not None else 'found'}"
                try:
                    row = {"pattern": pattern, "kind": kind, "tokens": n, "heads": heads}
                    row |= {"log_sum_exp": "given" if given is not None else "found"}
                    mib, ours = extra_mib(run), milliseconds(run)
                    row |= {"seconds": ours / 1e3, "sdpa_seconds": theirs / 1e3, "ratio": ours / theirs}
                    row |= {"mib_of_all": mib, "mib_of_weights": heads * n * n * 4 / 2**20}
                    say(f"{name:34} {ours:8.1f} ms  {ours / theirs:5.2f} of cuDNN's  {mib:6.0f} MiB beyond the inputs")
                    yield row
                except Exception as error:
                    say(f"{name}: failed: {error!r}"[:300])
        try:
            for name, off in exactness(recipe, q, k, probe(q, k, recipe, Wanted(**wanted["all"])), wanted["all"]):
                say(f"  off float64 by at most {off:.1e}: {name}")
                yield {"pattern": pattern, "kind": f"error of {name}", "tokens": n, "heads": heads, "error": off}
        except Exception as error:
            say(f"exactness: failed: {error!r}"[:300])
        if pattern == "Full()":
            where_time_goes(partial(probe, q, k, recipe, Wanted(**wanted["all"])))
        if sweep and pattern != "Window(512)":
            swept(recipe, q, k, known, Wanted(**wanted["all"]))
    say(f"done after {time.perf_counter() - began:.0f} s")


def where_time_goes(run: Callable[[], Any]) -> None:
    """Each kernel's share, if the machine lets us count."""
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            torch.cuda.synchronize()
        spent = sorted(profile.key_averages(), key=lambda x: -x.self_device_time_total)
        for x in spent[:10]:
            say(f"  {x.self_device_time_total / 1e3:8.2f} ms in {x.count:5} of {x.key[:70]}")
    except Exception as error:
        say(f"profile: failed: {error!r}"[:300])


def swept(recipe: Recipe, q: Tensor, k: Tensor, lse: Tensor, wanted: Wanted) -> None:
    """The pass that knows the log-sum-exp, and the one that finds it, in other shapes."""
    seen = probe_reach.Seen.of(recipe, q, k, Places.of(q, k, 0, None))
    full = seen.everything

    def columns(shape: Shape) -> Found:
        return probes.find(seen, wanted, lse, columns=shape)

    def rows(shape: Shape) -> Tensor:
        return probes.sums(seen, None, shape)

    for what, run, shapes in (("columns", columns, COLUMNS if full else MASKED), ("rows", rows, ROWS if full else [])):
        times: dict[Shape, float] = {}
        for shape in shapes:
            try:
                times[shape] = milliseconds(partial(run, shape), 2)
                say(f"  {what} {shape}: {times[shape]:.1f} ms")
            except Exception as error:
                say(f"  {what} {shape}: failed: {error!r}"[:200])
        if times:
            say(f"  best {what}: {min(times, key=lambda shape: times[shape])}")


def exactness(recipe: Recipe, q: Tensor, k: Tensor, seen: Probed, asked: dict) -> Iterator[tuple[str, float]]:
    """Relative errors at full length against float64: whole rows of some queries, whole columns, whole cells."""
    n, head, rows, keys = q.shape[2], q.shape[1] - 1, [1, n_th(q, 3), n_th(q, 7) + 1], [0, n_th(k, 5) + 1]
    lse, top, places = seen.log_sum_exp, seen.top, torch.arange(n, device=q.device)
    assert lse is not None
    assert top is not None

    def scores(i: Tensor, j: Tensor) -> Tensor:
        s = q[0, head, i].double() @ k[0, head, j].double().mT * q.shape[3] ** -0.5
        zero = torch.zeros((), dtype=torch.long, device=q.device)
        return s.masked_fill_(~recipe.pattern.sees(zero, zero, i[:, None], j), -torch.inf)

    def weights(i: Tensor, j: Tensor) -> Tensor:
        return (scores(i, j) - lse[0, head, i, None].double()).exp()

    def off(got: Tensor, want: Tensor) -> float:
        return float(((got.double() - want).abs() / want.abs().clamp(min=1e-12)).max())

    chosen = torch.tensor(rows, device=q.device)
    s = scores(chosen, places)
    p = s.softmax(-1)
    yield "log-sum-exp", off(lse[0, head, chosen], s.logsumexp(-1))
    for name, got, want in (
        ("entropy", seen.entropy, torch.special.entr(p).sum(-1)),
        ("largest weights", top.weights, p.topk(asked["top"]).values),
    ):
        assert got is not None
        yield name, off(got[0, head, chosen], want)
    named = top.keys[0, head, chosen]
    weighed = p.gather(-1, named.clamp(min=0)).masked_fill_(named < 0, 0.0)
    yield "weights of the keys named", off(weighed, p.topk(asked["top"]).values)
    columns = torch.tensor(keys, device=q.device)
    assert seen.mass is not None
    yield "mass", off(seen.mass[0, head, columns], weights(places, columns).sum(0))
    for name, picture in (("map", seen.map), ("peaks", seen.peaks)):
        assert picture is not None
        down, across = picture.shape[2:]
        row, cell = down - 1, across - 1
        i, j = (places[places * size // n == at] for size, at in ((down, row), (across, cell)))
        block = weights(i, j)
        want = block.sum() if name == "map" else block.max()
        yield name, off(picture[0, head, row, cell], want)


def n_th(x: Tensor, part: int) -> int:
    return x.shape[2] * part // 8
