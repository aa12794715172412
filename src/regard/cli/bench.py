"""`regard bench`: benchmarks Regard against its peers, as tables, JSON and plots."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from regard.cli.options import DataFolder, DeviceOption, resolve_device, shell_command, writable_folder

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from regard.cli.benchmarks.harness import Benchmark, BenchmarkResult, BenchmarkSettings, MissingPeer

FILE_WIDTH = 120  # columns of a table that is not printed on a terminal


def bench(
    benchmarks: Annotated[list[str] | None, typer.Argument(help="Benchmarks to run; default: all.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the benchmarks and exit.")] = False,  # noqa: FBT002
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and few rounds: a smoke test.")] = False,  # noqa: FBT002
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds per implementation.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads for every implementation; default: torch's.")
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(
            help="The folder with a virtual environment for each toolkit; default: out/peers of the checkout."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the results, as JSON.")] = Path("bench"),
    plot: Annotated[Path | None, typer.Option(help="A folder for the plots.")] = None,
    data: DataFolder = None,
    device: DeviceOption = "auto",
) -> None:
    """Time Regard and every installed peer on the same benchmarks, round-robin, and print the ratios.

    Every result is checked for correctness. A wrong result gets no ratio, and the command fails. Toolkits that need
    an environment of their own have one: `benchmarks/peers.sh` creates them.

    Example: `regard bench --list`

    Example: `regard bench attention additive --plot docs/pictures`

    Example: `regard bench train --peers out/peers --data corpora --threads 2`

    Example: `regard bench --quick`
    """
    from tempfile import mkdtemp

    import torch
    from rich.console import Console

    from regard.cli.benchmarks import BENCHMARKS
    from regard.cli.benchmarks.harness import CHECKOUT, BenchmarkSettings

    if list_:
        typer.echo("\n".join(f"{benchmark.name:<10} {benchmark.about}" for benchmark in BENCHMARKS.values()))
        return
    chosen = [find_benchmark(name, BENCHMARKS) for name in benchmarks or BENCHMARKS]
    writable_folder(out)
    if plot:
        writable_folder(plot)
    if threads:
        torch.set_num_threads(threads)
    console, wrong = Console(), list[str]()
    console = console if console.is_terminal else Console(width=FILE_WIDTH)
    device, threads = resolve_device(device), threads or torch.get_num_threads()
    for benchmark in chosen:
        folder = Path(mkdtemp(prefix=f"regard-bench-{benchmark.name}-"))
        setting = BenchmarkSettings(
            device=device,
            quick=quick,
            threads=threads,
            rounds=rounds,
            peers=(peers or CHECKOUT / "out" / "peers").absolute(),
            data=data and data.absolute(),
            folder=folder,
        )
        wrong += report_benchmark(benchmark, setting, console, out, plot)
    for line in wrong:
        typer.echo(f"FAILED: {line}", err=True)
    if wrong:
        raise typer.Exit(1)


def report_benchmark(
    benchmark: "Benchmark", setting: "BenchmarkSettings", console: "Console", out: Path, plot: Path | None
) -> list[str]:
    """Runs a benchmark, prints its tables, and writes its results and plot; a line for each that failed."""
    from shutil import rmtree

    rows, missing = run_benchmark(benchmark, setting)
    if all(row.state != "failed" for row in rows):
        rmtree(setting.folder)  # otherwise a log tells why
    for case in dict.fromkeys(row.case for row in rows):
        console.print(results_table(benchmark, [row for row in rows if row.case == case]))
    for one in missing:
        console.print(f"not measured: {one.name}: {one.why}", soft_wrap=True, highlight=False, markup=False)
    if not rows:
        return []
    command = reproduce_command(benchmark.name, setting)
    typer.echo(f"written: {write_results(benchmark, rows, missing, command, setting, out)}")
    if plot:
        typer.echo(f"drawn: {write_plot(benchmark, rows, setting.device, plot)}")
    return [f"{benchmark.name}: {row.case}: {row.implementation}: {row.message}" for row in rows if row.failed]


def find_benchmark(name: str, benchmarks: "dict[str, Benchmark]") -> "Benchmark":
    if name not in benchmarks:
        raise ValueError(f"no benchmark is called {name!r}; there are {', '.join(benchmarks)}")
    return benchmarks[name]


def run_benchmark(
    benchmark: "Benchmark", setting: "BenchmarkSettings"
) -> "tuple[list[BenchmarkResult], list[MissingPeer]]":
    """Every case of a benchmark, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from regard.cli.benchmarks.harness import MissingPeer, count_rounds, measure

    rows: list[BenchmarkResult] = []
    missing: dict[MissingPeer, None] = {}
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        preparing = progress.add_task(f"{benchmark.name}: preparing", total=None)
        for case in benchmark.cases(setting):
            if isinstance(case, MissingPeer):
                missing[case] = None
                continue
            progress.update(preparing, visible=False)
            total = (case.warmup + count_rounds(case, setting)) * len(case.implementations)
            task = progress.add_task(f"{benchmark.name}: {case.name}", total=total)
            rows += measure(case, setting, lambda _, task=task: progress.advance(task))
            missing |= dict.fromkeys(case.missing)
    return rows, list(missing)


def results_table(benchmark: "Benchmark", rows: "list[BenchmarkResult]") -> "Table":
    """The table of one case."""
    from rich.table import Table

    from regard.cli.benchmarks.harness import format_number

    shown = Table(title=f"{benchmark.name}: {rows[0].case}", title_justify="left", title_style="")
    shown.add_column("implementation", no_wrap=True)
    for name in (benchmark.unit, "min–max", "speed-up of Regard"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("correctness", overflow="fold")
    for row in rows:
        figures = ["", "", ""]
        if row.speed and row.slowest and row.fastest:
            ends = sorted(benchmark.displayed(speed) for speed in (row.slowest, row.fastest))
            figures = [
                format_number(benchmark.displayed(row.speed)),
                f"{format_number(ends[0])}–{format_number(ends[1])}",
                "",
            ]
        if row.ratio and row.ratio_min and row.ratio_max:
            figures[2] = f"{row.ratio:.2f}× ({row.ratio_min:.2f}–{row.ratio_max:.2f})"
        message = {"correct": row.message, "wrong": f"WRONG: {row.message}", "failed": f"FAILED: {row.message}"}[
            row.state
        ]
        shown.add_row(*map(escape, (row.implementation, *figures, message)), style="bold" if row.ours else "")
    return shown


def reproduce_command(benchmark: str, setting: "BenchmarkSettings") -> str:
    """The command that runs this benchmark alone, without paths of this machine."""
    words = ["regard", "bench", benchmark, "--device", setting.device, "--threads", setting.threads]
    words += ["--quick"] if setting.quick else []
    words += ["--rounds", setting.rounds] if setting.rounds else []
    return shell_command(*words) + (" --data FOLDER" if setting.data else "")


def write_results(
    benchmark: "Benchmark",
    rows: "list[BenchmarkResult]",
    missing: "list[MissingPeer]",
    command: str,
    setting: "BenchmarkSettings",
    out: Path,
) -> Path:
    import json

    from regard.cli.benchmarks.harness import benchmark_record
    from regard.data.files import write_text_atomic

    more: dict[str, Any] = {
        "benchmark": benchmark.name,
        "about": benchmark.about,
        "unit": benchmark.unit,
        "threads": setting.threads,
    }
    more |= {"missing": [asdict(one) for one in missing]}
    path = out / f"bench-{benchmark.name}-{setting.device.split(':')[0]}.json"
    content = benchmark_record(command, [asdict(row) for row in rows], **more)
    write_text_atomic(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def write_plot(benchmark: "Benchmark", rows: "list[BenchmarkResult]", device: str, folder: Path) -> Path:
    from regard.cli.benchmarks.harness import plot_results
    from regard.see.plots.mpl_figure import save

    return save(plot_results(benchmark, rows), folder / f"bench-{benchmark.name}-{device.split(':')[0]}.png")
