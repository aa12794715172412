"""Build of all shipped translators beside each other on one machine: the teacher, its translations, four students.

    python benchmarks/build_shipped.py --data corpora --out models
    python benchmarks/build_shipped.py --data corpora --out models --device cpu --set data.sentences=1500 …

What `regard models build` does with one recipe of recipes/shipped after the other, with the same files and figures.
What needs little of a GPU is done meanwhile: the students' corpora are tokenised while the teacher learns. The four
students share the GPU. --test measures the test sets, once, in the end; --set changes lines of all recipes. Killed, the
same command goes on. OUT/build.log has the time of each phase.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from regard.cli.models import build_callbacks
from regard.cli.options import resolve_device
from regard.tasks.translation.build_recipe import BuildRecipe
from regard.tasks.translation.model_build import ModelBuild

RECIPES = Path(__file__).parent.parent / "recipes" / "shipped"
TEACHER, STUDENTS = "multilingual", ("en-fr", "fr-en", "en-de", "de-en")
OF_STUDENTS = ("student", "distillation", "back_translation")


def build(name: str, args: argparse.Namespace) -> ModelBuild:
    changes = dict(line.split("=", 1) for line in args.set)
    if name == TEACHER:
        changes = {key: value for key, value in changes.items() if key.partition(".")[0] not in OF_STUDENTS}
    recipe = BuildRecipe.load(RECIPES / f"{name}.toml", changes)
    device = resolve_device(args.device)
    return ModelBuild(
        recipe=recipe,
        data=args.data,
        out=args.out,
        device=device,
        test=args.test,
        changes=changes,
        callbacks=build_callbacks(),
    )


def translate(one: ModelBuild) -> None:
    """What the teacher writes for a student."""
    if one.recipe.back_translation.enabled:
        one.back_translate()
    if one.recipe.distillation.enabled:
        one.distil(one.better_teacher([]))


PHASES: dict[str, Callable[[ModelBuild], object]] = {
    "prepare": ModelBuild.prepare,
    "translate": translate,
    "build": ModelBuild.run,
}


def start(phase: str, name: str, args: argparse.Namespace) -> subprocess.Popen[bytes]:
    """A process of its own, which says what it does in OUT/NAME.PHASE.log."""
    with (args.out / f"{name}.{phase}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--phase", phase, name],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": "2", **os.environ},
        )


def wait(what: str, jobs: Sequence[subprocess.Popen[bytes]], args: argparse.Namespace, began: float) -> None:
    codes = [job.wait() for job in jobs]
    with (args.out / "build.log").open("a", encoding="utf-8") as log:
        print(f"{time.monotonic() - began:8.1f} s  {what}", *(code for code in codes if code), file=log)
    if any(codes):
        raise SystemExit(f"{what} failed: the logs in {args.out} say why; the same command goes on")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE")
    parser.add_argument("--phase", nargs=2, metavar=("PHASE", "RECIPE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.phase:
        PHASES[args.phase[0]](build(args.phase[1], args))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    wait("teacher's corpora", [start("prepare", TEACHER, args)], args, began)
    teacher = start("build", TEACHER, args)
    for name in STUDENTS:  # one after the other: each has a process for every core
        wait(f"corpora of {name}", [start("prepare", name, args)], args, began)
    wait("teacher", [teacher], args, began)
    wait("translations", [start("translate", name, args) for name in STUDENTS], args, began)
    wait("students and cards", [start("build", name, args) for name in STUDENTS], args, began)


if __name__ == "__main__":
    main()
