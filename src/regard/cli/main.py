"""The typer application: its commands, the tasks' own among them, whose errors are one line on stderr.

A command imports torch only when it runs, so that --help is instant.
"""

import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperGroup

from regard.cli.bench import bench
from regard.cli.data import data, vectors
from regard.cli.demo import demo, ladder, lecture
from regard.cli.look import look
from regard.cli.models import models
from regard.cli.runs import compare, evaluate, export, import_command, publish, runs
from regard.cli.serve import api, serve
from regard.cli.train import train
from regard.cli.visualize import draw, explain, gallery
from regard.tasks.registry import TASKS, get_commands, get_task

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


# what typer raises for a wrong command line: the base of its BadParameter, whether click is inside it or beside it
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])
MAX_MESSAGE_LETTERS = 1000  # letters of an error message
# what takes less memory, by the option that sets it
LESS_MEMORY = {
    "--batch-size": "smaller batches (--batch-size)",
    "--tokens": "fewer tokens (--tokens)",
    "--max-new-tokens": "fewer tokens (--max-new-tokens)",
    "--max-length": "shorter texts (--max-length)",
    "--device": "another --device",
}


class OneLineErrorGroup(TyperGroup):
    """A command group that prints an error as one line on stderr, with the remedy, and exits with 2."""

    def main(self, *args: Any, **extra: Any) -> Any:
        open_streams()
        notices = StderrLogHandler(logging.WARNING)
        logging.getLogger("regard").addHandler(notices)
        try:
            code = super().main(*args, **(extra | {"standalone_mode": False}))
        except typer.Abort:
            sys.exit(130)
        except UsageError as mistake:
            command = mistake.ctx.command_path if mistake.ctx else "regard"
            message = mistake.format_message().rstrip(".")
            fail(f"{message}{'' if message.endswith('?') else ';'} see {command} --help")
        except ValueError as mistake:
            fail(str(mistake))
        except OSError as mistake:
            where, why = mistake.filename or "output", mistake.strerror or mistake
            fail(f"{where}: {why}; free disk space, or choose another path")
        else:
            sys.exit(code if isinstance(code, int) else 0)
        finally:
            logging.getLogger("regard").removeHandler(notices)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (MemoryError, RuntimeError) as trouble:
            if not any(sign in f"{trouble!r}" for sign in ("MemoryError", "out of memory", "allocate memory")):
                raise
            command = self.commands[ctx.invoked_subcommand or ""]
            flags = {option.opts[0] for option in command.params}  # the others are former names
            remedies = [remedy for flag, remedy in LESS_MEMORY.items() if flag in flags]
            fail(f"there is not enough memory; use {', '.join(remedies)}{' or ' * bool(remedies)}a smaller model")


class StderrLogHandler(logging.Handler):
    """Log records of the library as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(record.getMessage(), err=True)


def open_streams() -> None:
    """Replaces standard streams that the caller has closed: Python then has none."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def fail(why: str) -> NoReturn:
    line = " ".join(why.split())
    if len(line) > MAX_MESSAGE_LETTERS:  # it quotes a file; the cause stands before the quotation, the remedy after it
        line = f"{line[: MAX_MESSAGE_LETTERS // 2]} … {line[-MAX_MESSAGE_LETTERS // 2 :]}"
    typer.echo(f"regard: {line}", err=True)
    sys.exit(2)


app = typer.Typer(
    cls=OneLineErrorGroup, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
)
"""The `regard` command, made with Typer; the script of that name runs it.

Examples:
    >>> from typer.testing import CliRunner
    >>> print(CliRunner().invoke(app, ["draw", "Causal()", "--tokens", "3"]).output, end="")
    ■ · ·
    ■ ■ ·
    ■ ■ ■
"""


@app.callback(invoke_without_command=True)
def regard(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,  # noqa: FBT002
) -> None:
    """Attention models you can build, train, run, trust and see."""
    if show_version:
        from importlib.metadata import version  # which loads the parser of e-mail headers

        typer.echo(version("regard"))
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def add_task_commands() -> None:
    """The commands of each task, in the order of the table."""
    for task in map(get_commands, TASKS):
        members = {} if task is None else vars(task)
        for name, command in members.get("COMMANDS", {}).items():
            app.command(name)(command)
        for name, command in members.get("FORMER_COMMANDS", {}).items():
            app.command(name, hidden=True)(command)


for command in (demo, train):
    app.command()(command)
add_task_commands()
for command in (evaluate, runs, compare, look, serve, api, export, publish, settings):
    app.command()(command)
app.command("import")(import_command)
app.add_typer(data, name="data")
app.add_typer(vectors, name="vectors")
app.add_typer(models, name="models")
for command in (ladder, lecture, draw, explain, gallery, bench):
    app.command()(command)
