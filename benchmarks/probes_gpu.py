"""Attention statistics on a GPU: our kernels beside cuDNN's forward pass in one run; called by probes.py.

Prints each line as soon as it is known, and goes on where a part fails.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from regard.attention import Recipe, parse_part
from regard.attention.kernels import stats, stats_plan
from regard.attention.kernels.stats_plan import StatsTileShape
from regard.attention.pattern import Positions
from regard.attention.stats import AttentionStats, StatsRequest, attention_stats
from timing import mib, milliseconds

# queries and keys a tile, warps, stages, registers, chunk; the first is the default
COLUMNS = [
    *((64, 128, 4, 3, 128, 16), (64, 128, 4, 3, 128, 32), (64, 128, 4, 3, 168, 16), (64, 128, 4, 3, 168, 32)),
    *((64, 128, 4, 2, 128, 16), (64, 128, 4, 4, 128, 16), (128, 128, 8, 3, 128, 16)),
    *((128, 128, 8, 2, 128, 32), (128, 128, 4, 2, None, 16), (64, 64, 4, 3, 96, 16)),
]
MASKED = [
    *((64, 128, 4, 3, 168, 16), (64, 128, 4, 3, 168, 32), (64, 128, 4, 3, 128, 16), (64, 128, 4, 3, 128, 32)),
    *((64, 128, 4, 3, None, 16), (128, 128, 8, 3, 128, 16), (64, 64, 4, 3, 128, 16), (64, 128, 4, 2, 168, 16)),
]
ROWS = [
    *((128, 64, 4, 3, None, 16), (128, 64, 4, 3, 128, 16), (128, 64, 4, 3, 168, 16), (128, 64, 4, 4, None, 16)),
    *((128, 128, 8, 3, 128, 16), (64, 128, 4, 3, 128, 16), (128, 64, 8, 3, 128, 16)),
]
SPACES = [2**28, 2**29, 5 * 2**27]
OTHERS = ["Causal()", "Window(512)"]
SMALL = 8192  # tokens that compile the same kernels as the full length does
PROFILING = 7  # seconds that the profiler takes, most of them to begin
BEGAN = time.perf_counter()


def say(*words: object) -> None:
    print(f"{time.perf_counter() - BEGAN:5.1f} s ", *words, flush=True)


def inputs(n: int, heads: int) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(1, heads, n, 64, generator=generator, device="cuda").bfloat16() for _ in range(3)]


def forward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """cuDNN's output and the log-sum-exp it keeps for its backward pass."""
    given = {"compute_log_sumexp": True, "dropout_p": 0.0, "is_causal": causal, "return_debug_mask": False}
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, **given)
    return out, lse.view(q.shape[:3])


def fused(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


@dataclass(frozen=True, eq=False)
class Given:
    """One pattern's recipe, numbers, log-sum-exp, and what cuDNN takes for them."""

    pattern: str
    q: Tensor
    k: Tensor
    lse: Tensor
    theirs: float

    @staticmethod
    def of(pattern: str, q: Tensor, k: Tensor, v: Tensor) -> "Given":
        causal = pattern == "Causal()"
        theirs = milliseconds(partial(fused, q, k, v, causal=causal))
        say(f"--- {pattern}, {q.shape[2]:,} tokens, {q.shape[1]} heads of 64: cuDNN forward {theirs:.1f} ms")
        if "Window" not in pattern:
            return Given(pattern, q, k, forward(q, k, v, causal=causal)[1], theirs)
        # what is dense is what anyone would have to run for a window, but its log-sum-exp is another
        lse = attention_stats(q, k, Recipe(pattern=parse_part(pattern)), StatsRequest(log_sum_exp=True)).log_sum_exp
        assert lse is not None
        return Given(pattern, q, k, lse, theirs)

    @property
    def recipe(self) -> Recipe:
        return Recipe(pattern=parse_part(self.pattern))

    def rows(self, kind: str, wanted: dict) -> Iterator[dict]:
        """One statistic, with the log-sum-exp given and not."""
        for lse in (self.lse, None):
            run = partial(attention_stats, self.q, self.k, self.recipe, StatsRequest(**wanted), log_sum_exp=lse)
            known = "given" if lse is not None else "found"
            name, n, heads = f"{kind}, log-sum-exp {known}", self.q.shape[2], self.q.shape[1]
            try:
                row = {"pattern": self.pattern, "kind": kind, "tokens": n, "heads": heads, "log_sum_exp": known}
                held, ours = mib(run), milliseconds(run)
                row |= {"seconds": ours / 1e3, "sdpa_seconds": self.theirs / 1e3, "ratio": ours / self.theirs}
                row |= {"mib_of_all": held, "mib_of_weights": heads * n * n * 4 / 2**20}
                say(f"{name:34} {ours:8.1f} ms  {ours / self.theirs:5.2f} of cuDNN's  {held:6.0f} MiB beyond inputs")
                yield row
            except Exception as error:
                say(f"{name}: failed: {error!r}"[:300])

    def errors(self, wanted: dict) -> Iterator[dict]:
        n, heads = self.q.shape[2], self.q.shape[1]
        try:
            seen = attention_stats(self.q, self.k, self.recipe, StatsRequest(**wanted))
            assert seen.log_sum_exp is not None
            say(f"  log-sum-exp off the one given by at most {(seen.log_sum_exp - self.lse).abs().max():.1e}")
            for name, off in exactness(self.recipe, self.q, self.k, seen, wanted):
                say(f"  off float64 by at most {off:.1e}: {name}")
                yield {"pattern": self.pattern, "kind": f"error of {name}", "tokens": n, "heads": heads, "error": off}
        except Exception as error:
            say(f"exactness: failed: {error!r}"[:300])


def measured(
    n: int, heads: int, kinds: list[str], wanted: dict[str, dict], *, sweep: bool, until: float
) -> Iterator[dict]:
    """All statistics together, for each pattern; then each alone, for full attention, until it is time to stop."""
    q, k, v = inputs(n, heads)
    failed = compile_all(wanted["all"], heads) if sweep else {}
    full: Given | None = None
    for pattern in ["Full()", *OTHERS]:
        if late(pattern, until):
            continue
        try:
            given = Given.of(pattern, q, k, v)
        except Exception as error:  # the rest can still be measured
            say(f"{pattern} failed: {error!r}"[:300])
            continue
        yield from given.rows("all", wanted["all"])
        if pattern == "Full()":
            full = given
        if sweep and pattern != "Window(512)":
            yield from swept(given, StatsRequest(**wanted["all"]), failed)
        else:
            yield from given.errors(wanted["all"])
    for kind in [] if sweep or full is None else kinds:
        if kind != "all" and not late(kind, until):
            yield from full.rows(kind, wanted[kind])  # type: ignore[union-attr]
    if full is not None and not late("a profile", until - PROFILING):
        where_time_goes(
            partial(attention_stats, q, k, full.recipe, StatsRequest(**wanted["all"]), log_sum_exp=full.lse)
        )
    say("done")


def late(what: str, until: float) -> bool:
    if time.perf_counter() - BEGAN > until:
        say("no time left for", what)
    return time.perf_counter() - BEGAN > until


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


def compile_one(task: tuple[str, StatsTileShape], wanted: dict, heads: int) -> str | None:
    """In a process of its own, for the others to find in Triton's cache; the reason if it does not compile."""
    try:
        q, k, _ = inputs(SMALL, heads)
        work(task, q, k, torch.full((1, heads, SMALL), 12.0, device="cuda"), StatsRequest(**wanted))()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return None


def compile_all(wanted: dict, heads: int) -> dict[tuple[str, StatsTileShape], str | None]:
    shapes = {"columns": COLUMNS, "causal": MASKED, "rows": ROWS}
    tasks = [(kind, StatsTileShape(*shape)) for kind, some in shapes.items() for shape in some]
    failed: dict[tuple[str, StatsTileShape], str | None] = dict.fromkeys(tasks)
    try:
        with ProcessPoolExecutor(12, mp_context=get_context("spawn")) as pool:
            each = pool.map(compile_one, tasks, [wanted] * len(tasks), [heads] * len(tasks))
            failed = dict(zip(tasks, each, strict=True))
    except Exception as error:  # then each is compiled when it is needed
        say(f"{type(error).__name__}: {error}".splitlines()[0])
    for task, why in failed.items():
        if why:
            say("does not run:", *task, why)
    say(f"compiled {len(tasks)} kernels")
    return failed


def work(
    task: tuple[str, StatsTileShape], q: Tensor, k: Tensor, lse: Tensor, wanted: StatsRequest
) -> Callable[[], Any]:
    """The pass that knows the log-sum-exp, or the one that finds it, in this shape."""
    kind, shape = task
    recipe = Recipe(pattern=parse_part("Causal()" if kind == "causal" else "Full()"))
    seen = stats_plan.StatsInputs.of(recipe, q, k, Positions.of(q, k, 0, None))
    if kind == "rows":
        return lambda: stats.log_sum_exps(seen, None, shape)
    return lambda: stats.compute_stats(seen, wanted, lse, columns=shape)


def swept(given: Given, wanted: StatsRequest, failed: dict[tuple[str, StatsTileShape], str | None]) -> Iterator[dict]:
    """Both passes in other shapes; then the best in less and in more space."""
    kinds, best = ("columns", "rows") if given.pattern == "Full()" else ("causal",), {}
    for task, why in failed.items():
        if task[0] not in kinds or why:
            continue
        try:
            took = milliseconds(work(task, given.q, given.k, given.lse, wanted), 0.04)
            say(f"  {task[0]} {took:.1f} ms  {task[1]}")
            yield {"pattern": given.pattern, "sweep": task[0], "shape": str(task[1]), "seconds": took / 1e3}
            best[task[0]] = min((took, str(task[1]), task), best.get(task[0], (took, str(task[1]), task)))
        except Exception as error:
            say(f"  {task[0]} {task[1]}: failed: {error!r}"[:200])
    for kind, (took, shape, task) in best.items():
        say(f"  BEST {kind}: {took:.1f} ms  {shape}")
        for space in SPACES if kind == "columns" else []:
            usual, stats_plan.SPACE = stats_plan.SPACE, space
            try:
                took = milliseconds(work(task, given.q, given.k, given.lse, wanted), 0.04)
                say(f"  in {space / 2**20:.0f} MiB {took:.1f} ms")
                yield {"pattern": given.pattern, "sweep": "space", "mib": space / 2**20, "seconds": took / 1e3}
            except Exception as error:
                say(f"  in {space / 2**20:.0f} MiB: failed: {error!r}"[:200])
            finally:
                stats_plan.SPACE = usual


# --- errors at full length ---


def exactness(recipe: Recipe, q: Tensor, k: Tensor, seen: AttentionStats, request: dict) -> Iterator[tuple[str, float]]:
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
        ("largest weights", top.weights, p.topk(request["top"]).values),
    ):
        assert got is not None
        yield name, off(got[0, head, chosen], want)
    named = top.keys[0, head, chosen]
    weighed = p.gather(-1, named.clamp(min=0)).masked_fill_(named < 0, 0.0)
    yield "weights of the keys named", off(weighed, p.topk(request["top"]).values)
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
