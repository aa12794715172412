"""`regard settings`: every key of a task's settings, with type, default, range and one sentence."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from regard.tasks.registry import TASKS, get_task

if TYPE_CHECKING:
    from rich.console import Console

    from regard.tasks.settings_reference import TableReference


def settings(
    task: Annotated[str | None, typer.Argument(help=f"{', '.join(TASKS)}; default: all of them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,  # noqa: FBT002
    markdown: Annotated[bool, typer.Option("--markdown", help="Write the page docs/settings.md.")] = False,  # noqa: FBT002
) -> None:
    """List all settings: what a recipe may hold, and what `regard train --set table.key=value` may change.

    In a pipe each key is a line of task, table.key, type, default, range and meaning, with tabs between them.

    Example: `regard settings tagging`

    Example: `regard settings translation --json`

    Example: `regard settings --markdown`
    """
    from rich.console import Console

    from regard.tasks.settings_reference import describe_all, describe_tables, to_markdown

    if as_json and markdown:
        raise ValueError("--json and --markdown are two forms of the same; choose one")
    names = list(TASKS) if task is None else [get_task(task).name]
    console = Console(markup=False, highlight=False)
    if markdown:
        typer.echo(to_markdown(describe_all(names)), nl=False)
    elif as_json:
        found = {name: [one.to_json() for one in describe_tables(get_task(name).settings)] for name in names}
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    elif console.is_terminal:
        for table in describe_all(names):
            print_table(console, table)
    else:
        for name in names:
            for table in describe_tables(get_task(name).settings):
                for key, *cells in table.rows():
                    typer.echo("\t".join((name, f"{table.name}.{key}", *cells)))


def print_table(console: "Console", table: "TableReference") -> None:
    """Each key beside its sentence; below that its type, range and default: a window has no room for five columns."""
    from rich.table import Table
    from rich.text import Text

    console.print(f"\n[{table.name}] of {table.task_list}: {table.summary}\n")
    shown = Table.grid(padding=(0, 2, 0, 0))
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(ratio=1)
    for key, kind, default, allowed, meaning in table.rows():
        facts = ": ".join(filter(None, (kind, allowed)))
        shown.add_row(
            key,
            Text(f"{meaning}\n").append(f"{facts}; {f'default {default}' if default else 'may be left out'}", "dim"),
        )
    console.print(shown)
