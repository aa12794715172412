"""Names of works in; how fast we and others do them, side by side, as a table, JSON and pictures, out."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from regard.cli.options import DataFolder, Device, command_of, device_of, folder_for

if TYPE_CHECKING:
    from rich.table import Table

    from regard.cli.benches.measuring import Row
    from regard.cli.benches.work import Missing, Setting, Work

WIDE = 120  # of a table in a file


def bench(
    works: Annotated[list[str] | None, typer.Argument(help="Which works; without any, all of them.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say what works there are, and leave.")] = False,  # noqa: FBT002
    quick: Annotated[bool, typer.Option("--quick", help="Small and few, to see that all is well.")] = False,  # noqa: FBT002
    rounds: Annotated[int | None, typer.Option(min=1, help="How many turns everybody has.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of everybody; without it, as many as torch takes.")
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(help="The folder with a virtual environment for each toolkit; else out/peers of the checkout."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for the figures, as JSON.")] = Path("bench"),
    plot: Annotated[Path | None, typer.Option(help="A folder for the pictures.")] = None,
    data: DataFolder = None,
    device: Device = "auto",
) -> None:
    """Measure Regard and every peer that is installed on the same work, in turns, and print the ratios.

    Beside every figure stands whether the answer was right. Whoever answers wrongly gets no ratio, and the command
    fails. Toolkits that cannot live in one environment have their own: `benchmarks/peers.sh` makes them.

    Example: `regard bench --list`

    Example: `regard bench attention additive --plot docs/pictures`

    Example: `regard bench train --peers out/peers --data corpora --threads 2`

    Example: `regard bench --quick`
    """
    from shutil import rmtree
    from tempfile import mkdtemp

    import torch
    from rich.console import Console

    from regard.cli.benches.work import CHECKOUT, Setting
    from regard.cli.benches.works import WORKS

    if list_:
        typer.echo("\n".join(f"{work.name:<10} {work.about}" for work in WORKS.values()))
        return
    chosen = [chosen_work(name, WORKS) for name in works or WORKS]
    folder_for(out)
    if plot:
        folder_for(plot)
    if threads:
        torch.set_num_threads(threads)
    console, wrong = Console(), []
    console = console if console.is_terminal else Console(width=WIDE)
    device, threads = device_of(device), threads or torch.get_num_threads()
    for work in chosen:
        folder = Path(mkdtemp(prefix=f"regard-bench-{work.name}-"))
        setting = Setting(
            device=device,
            quick=quick,
            threads=threads,
            rounds=rounds,
            peers=(peers or CHECKOUT / "out" / "peers").absolute(),
            data=data and data.absolute(),
            folder=folder,
        )
        rows, missing = measured(work, setting)
        if all(row.state != "unable" for row in rows):
            rmtree(folder)  # otherwise somebody's log tells why
        for case in dict.fromkeys(row.case for row in rows):
            console.print(table(work, [row for row in rows if row.case == case]))
        for one in missing:
            console.print(f"not measured: {one.name}: {one.why}", soft_wrap=True, highlight=False, markup=False)
        if not rows:
            continue
        asked = command_asked(work.name, setting, data)
        typer.echo(f"written: {written(work, rows, missing, asked, setting, out)}")
        if plot:
            typer.echo(f"drawn: {drawn(work, rows, device, plot)}")
        wrong += [f"{work.name}: {row.case}: {row.way}: {row.said}" for row in rows if row.failed]
    for line in wrong:
        typer.echo(f"FAILED: {line}", err=True)
    if wrong:
        raise typer.Exit(1)


def chosen_work(name: str, works: "dict[str, Work]") -> "Work":
    if name not in works:
        raise ValueError(f"no work is called {name!r}; there are {', '.join(works)}")
    return works[name]


def measured(work: "Work", setting: "Setting") -> "tuple[list[Row], list[Missing]]":
    """Every case of a work, with a progress bar for whoever is there to see it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from regard.cli.benches.measuring import measure, rounds_of
    from regard.cli.benches.work import Missing

    rows: list[Row] = []
    missing: dict[Missing, None] = {}
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        preparing = progress.add_task(f"{work.name}: preparing", total=None)
        for case in work.cases(setting):
            if isinstance(case, Missing):
                missing[case] = None
                continue
            progress.update(preparing, visible=False)
            total = (case.warm + rounds_of(case, setting)) * len(case.ways)
            task = progress.add_task(f"{work.name}: {case.name}", total=total)
            rows += measure(case, setting, lambda _, task=task: progress.advance(task))
            missing |= dict.fromkeys(case.missing)
    return rows, list(missing)


def table(work: "Work", rows: "list[Row]") -> "Table":
    """Of one case."""
    from rich.table import Table

    from regard.cli.benches.measuring import brief

    shown = Table(title=f"{work.name}: {rows[0].case}", title_justify="left", title_style="")
    shown.add_column("way", no_wrap=True)
    for name in (work.unit, "from–to", "we are faster"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("the answer", overflow="fold")
    for row in rows:
        figures = ["", "", ""]
        if row.speed and row.slowest and row.fastest:
            ends = sorted(work.figure(speed) for speed in (row.slowest, row.fastest))
            figures = [brief(work.figure(row.speed)), f"{brief(ends[0])}–{brief(ends[1])}", ""]
        if row.ratio and row.least and row.most:
            figures[2] = f"{row.ratio:.2f}× ({row.least:.2f}–{row.most:.2f})"
        words = {"right": row.said, "wrong": f"WRONG: {row.said}", "unable": f"none: {row.said}"}[row.state]
        shown.add_row(*map(escape, (row.way, *figures, words)), style="bold" if row.ours else "")
    return shown


def command_asked(work: str, setting: "Setting", data: Path | None) -> str:
    """The command for this work alone; a place of this machine is nobody else's business."""
    words = ["regard", "bench", work, "--device", setting.device, "--threads", setting.threads]
    words += ["--quick"] if setting.quick else []
    words += ["--rounds", setting.rounds] if setting.rounds else []
    return command_of(*words) + (" --data FOLDER" if data else "")


def written(
    work: "Work", rows: "list[Row]", missing: "list[Missing]", command: str, setting: "Setting", out: Path
) -> Path:
    import json

    from regard.text.files import write_whole
    from regard.train.machine import result

    more: dict[str, Any] = {"work": work.name, "about": work.about, "unit": work.unit, "threads": setting.threads}
    more |= {"missing": [asdict(one) for one in missing]}
    path = out / f"bench-{work.name}-{setting.device.split(':')[0]}.json"
    content = result(command, [asdict(row) for row in rows], **more)
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def drawn(work: "Work", rows: "list[Row]", device: str, folder: Path) -> Path:
    from regard.cli.benches.plot import plot
    from regard.see.paint import save

    return save(plot(work, rows), folder / f"bench-{work.name}-{device.split(':')[0]}.png")
