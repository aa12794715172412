"""Does a test notice? Plants one error at a time into a copy of the code, runs the suite on it, says which test did.

python benchmarks/mutants.py               every mutant; writes benchmarks/results/mutants.json and docs/mutants.md
python benchmarks/mutants.py Window block  the mutants of these parts alone; writes nothing
"""

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from machine import write
from planted import ERRORS

ROOT = Path(__file__).parent.parent
ATTENTION = Path("src/regard/attention")


def files(*names: str) -> list[str]:
    return [f"tests/attention/test_{name}.py" for name in names]


# the cheap ones first: most errors never reach the second stage, and FlexAttention traces every call anew
STAGES = (
    files("worked", "caught", "recipe", "bad_input", "blocks", "heads"),
    [*files("peers_torch", "laws", "parity"), "-k", "not flex"],
    [*files("peers_torch", "laws", "parity"), "-k", "flex"],
)
OPTIONS = ["-x", "-q", "-n0", "-pno:cacheprovider", "-pno:anyio", "-Wignore::pytest.PytestAssertRewriteWarning"]
# imported once; every run is a fork of a process that has them, and loads our own code and tests anew
PRELOADED = ["torch._dynamo", "torch.distributed.tensor", "hypothesis", "einops", "jaxtyping", "beartype", "pytest"]
WORKERS = 2


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in src/regard/attention/`file`, and `new` takes its place."""

    file: str
    part: str
    wrong: str
    old: str
    new: str


MUTANTS = tuple(Mutant(file, *error) for file, errors in ERRORS.items() for error in errors)


@dataclass(frozen=True)
class Outcome:
    """The first test that failed, if one did, and how long that took."""

    noticed_by: str | None
    seconds: float


def main(parts: Sequence[str]) -> int:
    mutants = chosen(parts)
    console, began = Console(), time.perf_counter()
    get_context("forkserver").set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        original = Path(temporary) / "original"
        take_copy(ROOT, original)
        for mutant in mutants:
            mutated(mutant, original)  # stops at once where the code has moved on
        with console.status("first the suite as it is, without an error"):
            green = trial(None, original, Path(temporary) / "green")
        if green.noticed_by:
            raise SystemExit(f"the suite is red before any error is planted: {green.noticed_by}")
        console.print(f"without an error all tests pass ({green.seconds:.0f} s); now {len(mutants)} errors, one by one")
        outcomes = dict(trials(mutants, original, Path(temporary), console))
    rows = [{**asdict(mutant), **asdict(outcomes[mutant])} for mutant in mutants]
    survivors = [row for row in rows if not row["noticed_by"]]
    Console(width=150).print(table(rows))
    console.print(f"{len(rows) - len(survivors)} of {len(rows)} errors were noticed")
    if not parts:
        print(write("mutants", "make mutants", rows, seconds=time.perf_counter() - began, workers=WORKERS))
        (ROOT / "docs" / "mutants.md").write_text(page(rows))
    return 1 if survivors else 0


def chosen(parts: Sequence[str]) -> list[Mutant]:
    """The mutants of these parts; of all parts if none is named, and then none may be missing."""
    from regard.attention.backends import BACKENDS
    from regard.attention.notation import PARTS

    others = ["And", "Or", "Not", "Padding", "Documents", "Edges", "Tree", "Linformer", "Packed", "MultiHeadAttention"]
    if missing := {*parts, *([] if parts else [*PARTS, *BACKENDS, *others])} - {mutant.part for mutant in MUTANTS}:
        raise SystemExit(f"no error is planted into {', '.join(sorted(missing))}; add one to benchmarks/planted.py")
    return [mutant for mutant in MUTANTS if not parts or mutant.part in parts]


# --- one mutant ---


def take_copy(source: Path, target: Path) -> None:
    """What a test run needs. No bytecode: it is trusted by date, and a mutant may be as old as its original."""
    for folder in ("src", "tests"):
        shutil.copytree(source / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "pyproject.toml", target)


def mutated(mutant: Mutant, folder: Path) -> str:
    """The mutant's file with its error in place."""
    text = (folder / ATTENTION / mutant.file).read_text()
    if (times := text.count(mutant.old)) != 1:
        raise SystemExit(f"{mutant.part}, {mutant.wrong}: {times} × {mutant.old!r} in {mutant.file}; it must be once")
    return text.replace(mutant.old, mutant.new)


def trial(mutant: Mutant | None, original: Path, folder: Path) -> Outcome:
    """The suite on a copy of its own, in a process of its own."""
    take_copy(original, folder)
    if mutant:
        (folder / ATTENTION / mutant.file).write_text(mutated(mutant, folder))
    began = time.perf_counter()
    noticed_by = next(filter(None, (first_failure(mutant, folder, stage) for stage in STAGES)), None)
    shutil.rmtree(folder)
    return Outcome(noticed_by, time.perf_counter() - began)


def first_failure(mutant: Mutant | None, folder: Path, tests: list[str]) -> str | None:
    """The first test that fails on the copy, by name."""
    run = get_context("forkserver").Process(target=run_tests, args=(folder, tests))
    run.start()
    run.join()
    if run.exitcode == 0:
        return None
    for case in ElementTree.parse(folder / "report.xml").iter("testcase") if run.exitcode == 1 else ():
        if case.find("failure") is not None or case.find("error") is not None:
            return f"{case.get('classname', '').split('.')[-1]}.py::{case.get('name')}"
    # not a verdict: nothing could be collected, or the process died
    raise RuntimeError(f"{mutant or 'without an error'}: {run.exitcode}\n{(folder / 'said.txt').read_text()[-3000:]}")


def run_tests(folder: Path, tests: list[str]) -> None:
    """Runs in the new process: from here on `regard` and `tests` are the copy's."""
    import pytest
    import torch

    torch.set_num_threads(1)
    with (folder / "said.txt").open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.chdir(folder)
    sys.path.insert(0, str(folder / "src"))
    code = pytest.main([*OPTIONS, "--junitxml=report.xml", *tests])
    # the copy was tested, not the working tree
    assert Path(sys.modules["regard"].__file__ or "").is_relative_to(folder)
    sys.exit(int(code))


# --- all of them ---


def trials(
    mutants: Sequence[Mutant], original: Path, folder: Path, console: Console
) -> Iterator[tuple[Mutant, Outcome]]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    clocks = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    pool = ThreadPoolExecutor(WORKERS)
    jobs = {pool.submit(trial, mutant, original, folder / str(n)): mutant for n, mutant in enumerate(mutants)}
    try:
        with Progress(*columns, *clocks, console=console) as progress:
            task = progress.add_task("planting", total=len(jobs))
            for job in as_completed(jobs):
                mutant, outcome = jobs[job], job.result()
                if not outcome.noticed_by:
                    progress.console.print(f"[red]nobody noticed[/] {mutant.part}: {mutant.wrong}")
                progress.update(task, advance=1, description=mutant.part)
                yield mutant, outcome
    finally:
        pool.shutdown(cancel_futures=True)


def table(rows: list[dict]) -> Table:
    made = Table("part", "error planted", "first test that noticed it", "s")
    for row in rows:
        noticed = escape(row["noticed_by"]) if row["noticed_by"] else "[red]none[/]"
        made.add_row(row["part"], row["wrong"], noticed, f"{row['seconds']:.0f}")
    return made


def page(rows: list[dict]) -> str:
    """docs/mutants.md"""
    noticed = Counter(row["noticed_by"].split("::")[0] for row in rows if row["noticed_by"])
    by_file = ", ".join(f"`{file}` {count}" for file, count in noticed.most_common())
    lines = [
        "# Does a test notice?",
        "",
        "Written by `make mutants` (benchmarks/mutants.py); the errors are listed in benchmarks/planted.py.",
        "",
        "Each error below was planted alone into a copy of the code, and the tests were run until one failed, the",
        f"cheap ones first. {sum(noticed.values())} of {len(rows)} errors were noticed: {by_file}.",
        "",
        "| part | error planted | first test that noticed it |",
        "| --- | --- | --- |",
    ]
    for row in rows:
        cells = row["part"], row["wrong"], f"`{row['noticed_by']}`" if row["noticed_by"] else "**none**"
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
