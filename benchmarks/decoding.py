"""Tokens per second of beam search, ours and theirs: the same Transformer-base, the same weights, the same sentences.

    python benchmarks/decoding.py                   CPU, 2 threads: Hugging Face and CTranslate2, if installed
    python benchmarks/decoding.py --device cuda     GPU, bfloat16: Hugging Face's generate

Ours and theirs take turns, round after round, so that whoever else uses the machine disturbs both; a figure is the
median over the rounds of the ratio within a round. Beside each stands how many translations are the same, token for
token, as those of our own search in float32.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from decoding_peers import Ids, Translate, copier, ctranslate2, hugging_face, marian, sources
from machine import write
from regard.decode import Beam, prepare, translate
from regard.models import Seq2Seq

BEAM, ALONE = 4, 4  # so many sentences at least, one after the other where a batch holds fewer
WARM = {"cpu": 1, "cuda": 2}


def ours(model: Seq2Seq, precision: str) -> Translate:
    ready, beam = prepare(model, precision), Beam(BEAM)
    return lambda asked: [found[0].ids for found in translate(ready, asked, beam)]


def rivals(model: Seq2Seq, device: str) -> dict[str, Callable[[], Translate]]:
    """Who takes part, in the order of the turns; each is made only where it can be."""
    if device == "cuda":
        return {
            "regard bfloat16": lambda: ours(model, "bfloat16"),
            "regard float32": lambda: ours(model, "float32"),
            "hugging face bfloat16": lambda: hugging_face(marian(model, device, torch.bfloat16), BEAM),
        }
    return {
        "regard float32": lambda: ours(model, "float32"),
        "ctranslate2 float32": lambda: ctranslate2(model, BEAM, "float32", torch.get_num_threads()),
        "regard int8": lambda: ours(model, "int8"),
        "ctranslate2 int8": lambda: ctranslate2(model, BEAM, "int8", torch.get_num_threads()),
        "hugging face float32": lambda: hugging_face(marian(model, device, torch.float32), BEAM),
    }


def timed(run: Translate, batches: Sequence[Sequence[Ids]], device: str) -> tuple[float, list[Ids]]:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    found = [ids for asked in batches for ids in run(asked)]
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, found


def measured(
    made: dict[str, Translate], batch: int, rounds: int, device: str, until: float
) -> tuple[dict[str, list[float]], dict[str, list[Ids]]]:
    """Seconds of every round, and what each found in the first."""
    seconds, first = {name: [] for name in made}, {}
    texts = sources(max(batch, ALONE), seed=batch)
    batches = [texts[start : start + batch] for start in range(0, len(texts), batch)]
    for name, run in made.items():
        try:
            for _ in range(WARM[device]):
                first[name] = timed(run, batches, device)[1]
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            print(f"{name} fails at batch {batch}: {str(error).splitlines()[0]}", flush=True)
    made, seconds = {name: made[name] for name in first}, {name: seconds[name] for name in first}
    for n in range(rounds):
        if n and time.perf_counter() > until:
            break
        for name, run in made.items():
            seconds[name].append(timed(run, batches, device)[0])
    return seconds, first


def profiled(run: Translate, batch: int, device: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    asked = sources(batch, seed=batch)
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]) as seen:
        run(asked)
    order = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
    print(seen.key_averages().table(sort_by=order, row_limit=30, max_name_column_width=60), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=140.0, help="no round is begun later than that")
    parser.add_argument("--profile", action="store_true", help="print which kernels our last batch spends its time in")
    parser.add_argument("--only", nargs="*", default=[], help="words of the names that take part")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    start = time.perf_counter()
    model = copier().to(given.device)
    made: dict[str, Translate] = {}
    for name, make in rivals(model, given.device).items():
        if given.only and not any(word in name for word in given.only):
            continue
        try:
            made[name] = make()
        except ImportError as error:
            print(f"{name} does not take part: {error}", flush=True)
    rows, batches = [], given.batches or ([1, 32] if given.device == "cpu" else [1, 32, 256])
    for place, batch in enumerate(batches):
        left = given.seconds - (time.perf_counter() - start)
        until = time.perf_counter() + left / (len(batches) - place)
        try:
            seconds, found = measured(made, batch, given.rounds, given.device, until)
        except RuntimeError as error:
            print(f"batch {batch}: {str(error).splitlines()[0]}", flush=True)
            continue
        if not found:
            continue
        base = next(found[name] for name in ("regard float32", *made) if name in found)
        for name in found:
            tokens = sum(len(ids) + 1 for ids in found[name])
            row = {
                "who": name,
                "batch": batch,
                "tokens": tokens,
                "tokens_per_second": round(tokens / median(seconds[name]), 1),
                "same": round(sum(a == b for a, b in zip(found[name], base, strict=True)) / len(base), 3),
                "rounds": len(seconds[name]),
                "times": {
                    other: round(median(b / a for a, b in zip(seconds[name], seconds[other], strict=True)), 2)
                    for other in found
                    if name.startswith("regard") and not other.startswith("regard")
                },
            }
            rows.append(row)
            print(row, flush=True)
    if not given.only:
        write(f"decoding-{given.device}", f"python benchmarks/decoding.py --device {given.device}", rows, beam=BEAM)
    table = Table("who", "batch", "tokens/s", "same as our float32", "times as fast as")
    for row in rows:
        times = ", ".join(f"{other} {ratio}×" for other, ratio in row["times"].items())
        table.add_row(row["who"], str(row["batch"]), f"{row['tokens_per_second']:,}", f"{row['same']:.1%}", times)
    Console(width=160).print(table)
    if given.profile:
        profiled(next(run for name, run in made.items() if name.startswith("regard")), batches[-1], given.device)


if __name__ == "__main__":
    main()
