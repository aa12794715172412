"""Speed-run: seconds from the start of the process to a model of Multi30k, English to German, that is good enough.

    python benchmarks/speedrun.py --data FOLDER                    prints the clock at each validation
    python benchmarks/speedrun.py --data FOLDER --test --write     the test set, once, when the clock has stopped
    python benchmarks/speedrun.py --data FOLDER --set train.steps=2000 --set train.deterministic=false

The clock counts from when the system made this process, so imports, reading, vocabularies, CUDA graph capture,
validation and saving are in it. Near the end each validation also translates the validation set; the first model that
reaches --ready there is saved, and the clock stops. Without one, the best of them by validation is.
"""

import argparse
import atexit
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CLOCK = os.sysconf("SC_CLK_TCK")


def since_birth() -> float:
    """Seconds since the system made this process."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / CLOCK


def say(*what: Any) -> None:
    print(f"[{since_birth():6.1f} s]", *what, flush=True)


def main() -> None:
    args = arguments()
    say("begun")
    import torch

    from regard.decode import Beam
    from regard.tasks.translation.task import TranslationSettings, Translator
    from regard.training.run import TrainingRun

    settings = TranslationSettings.from_toml(args.recipe.read_text(encoding="utf-8"))
    settings = settings.with_changes({name: value for name, _, value in (line.partition("=") for line in args.set)})
    say("torch and regard are loaded")
    if args.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.zeros(1, device="cuda")
        say("the GPU answers")
    pairs, held_out = (settings.data.read(split, args.data).examples for split in ("train", "valid"))
    translator = Translator.from_examples(pairs, settings)
    say("the vocabulary is learnt")
    folder = Path(tempfile.mkdtemp(dir=args.scratch))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    fit = TrainingRun(translator.job(pairs, held_out, args.device), folder)
    say(f"{sum(weight.numel() for weight in translator.model.parameters()):,} weights, {len(pairs):,} pairs encoded")
    search, clock = Beam(args.beam, length_penalty=args.length_penalty), {}
    best, tokens, begun, steps = (-1.0, 0), 0, 0.0, fit.steps()
    for report in steps:
        if report.step == 1:
            report.loss  # noqa: B018 (waits for the step)
            begun = time.perf_counter()
            say("the first step is done")
        else:
            tokens += report.tokens
        if report.validation is None:
            continue
        speed = tokens / (time.perf_counter() - begun)
        figures = {"loss": report.loss, "held out": report.validation["loss"], "target tokens/s": speed}
        if report.step >= args.after * settings.train.steps:
            figures["BLEU"] = measured(translator, held_out, search)
            if figures["BLEU"] > best[0]:
                best = figures["BLEU"], report.step
                translator.save(folder / "best")
        clock[report.step] = {"seconds": round(since_birth(), 1), **figures}
        say(f"step {report.step:,}", *(f"{name} {value:,.3f}" for name, value in figures.items()))
        if best[1] and best[0] >= args.ready:
            break
    seconds = since_birth()
    say(f"done: BLEU {best[0]:.2f} on valid at step {best[1]:,}; the clock stops")
    steps.close()
    more: dict[str, Any] = {"seconds": round(seconds, 1), "valid": round(best[0], 2), "step": best[1]}
    if args.test:
        test = settings.data.read("test", args.data).examples
        more["test"] = round(measured(Translator.load(folder / "best", args.device), test, search), 2)
        say(f"BLEU {more['test']:.2f} on test")
    if args.write:
        rows = [{"step": step, **figures} for step, figures in clock.items()]
        command = " ".join(["python", *sys.argv])
        print(result(command, rows, settings=settings.to_toml().splitlines(), search=repr(search), **more))


def result(command: str, rows: list[dict[str, Any]], **more: Any) -> Path:
    from machine import write

    return write("speedrun", command, rows, **more)


def measured(translator: Any, pairs: Any, search: Any) -> float:
    """BLEU of the recipe's normal form: lower-cased and tokenised."""
    from regard.decode.translation import translate_lines
    from regard.tasks.translation.metrics import translation_metrics

    found = dict(translate_lines(translator, [pair.source for pair in pairs], search, tokens=65_536))
    texts = [found[place][0].text for place in range(len(pairs))]
    return translation_metrics(translator.target.normalizer, texts, [pair.target for pair in pairs])[0].value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=Path(__file__).parent.parent / "recipes/multi30k-speedrun.toml")
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds known corpora")
    parser.add_argument("--set", action="append", default=[], help="any line of the recipe, as table.key=value")
    parser.add_argument("--ready", type=float, default=41.9, help="BLEU on the validation set that is enough")
    parser.add_argument("--after", type=float, default=0.9, help="the share of the steps before BLEU is measured")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm") if Path("/dev/shm").is_dir() else None)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


if __name__ == "__main__":
    main()
