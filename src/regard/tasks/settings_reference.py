"""Settings reference: every key of every table of every task, with type, default, range and one sentence.

`regard settings` shows it, and docs/settings.md is `regard settings --markdown`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from regard.models.config_base import Setting, describe_table
from regard.tasks.config import RunSettings
from regard.tasks.registry import TASKS, get_task

COLUMNS = ("key", "type", "default", "range", "meaning")
PAGE_HEAD = """# Settings

Every run is described by a few tables of settings. They stand in a recipe (a TOML file, as the examples in
[recipes](../recipes)) or behind `--set` on the command line:

```toml
task = "tagging"

[model]
layers = 3

[train]
learning_rate = 2e-3
```

```bash
regard train recipe.toml --set train.steps=2000 --set layers=4   # the key alone will do where one table has it
regard settings tagging                                          # this page for one task, in the terminal
regard train --task tagging --train train.conllu --dry-run       # all settings of a run, before it is trained
```

In Python, `regard.train("tagging", layers=4, steps=2000)` sets the same keys; a key of several tables is named with its
table: `**{"train.max_length": 100}`. Settings are values, which can be made and changed without training anything:

```python
>>> from regard.tasks.tagging.task import TaggingSettings
>>> settings = TaggingSettings().with_changes({"layers": 4, "train.steps": 2000})
>>> settings.model.layers, settings.train.steps
(4, 2000)
>>> settings.with_changes({"model.leyers": 4})
Traceback (most recent call last):
    ...
ValueError: [model] has no 'leyers'; did you mean layers?
>>> settings.with_changes({"model.dropout": 1.5})
Traceback (most recent call last):
    ...
ValueError: model.dropout = 1.5 should be at least 0 and below 1
```

A key that is left out has its default. On the command line some follow from the data instead: without a recipe, steps,
warm-up, batch size, vocabulary size and the intervals of validation and checkpoints follow from the number of examples;
and without training files, a task learns the miniature world with settings of its own. `--dry-run` shows what a run
would have. A misspelt key is refused with the nearest that exists.

The line `parts = ["mine.py"]` before the tables names Python files that `regard train` runs, and whose
[parts of your own](howto/own-part.md) the settings can then name; `--parts mine.py` does the same on the command line.

This page is made from the code: `regard settings --markdown > docs/settings.md`.
"""


@dataclass(frozen=True)
class TableReference:
    """One table of settings, as one or several tasks have it.

    Args:
        name: between its brackets in a file.
        summary: what the table is about.
        tasks: that have it.
        settings: its keys, with the defaults of the first of these tasks.
        exceptions: other defaults, by key and task.
    """

    name: str
    summary: str
    tasks: tuple[str, ...]
    settings: tuple[Setting, ...]
    exceptions: dict[str, dict[str, Any]]

    @property
    def task_list(self) -> str:
        return "all tasks" if set(self.tasks) >= set(TASKS) else ", ".join(self.tasks)

    def rows(self, quote: str = "") -> Iterator[tuple[str, str, str, str, str]]:
        """A row for each key, as `COLUMNS` calls its columns; key and values stand between quotes."""
        for one in self.settings:
            default = self.format_defaults(one, quote)
            only = f" ({', '.join(one.kinds)} only)" if one.kinds else ""
            kind = one.type.split(",")[0].removeprefix("a ")
            yield f"{quote}{one.key}{quote}", kind, default, one.allowed, f"{one.sentence}{only}"

    def format_defaults(self, setting: Setting, quote: str = "") -> str:
        """The default, and those of other tasks; each value between quotes."""
        others: dict[str, list[str]] = {}
        for task, value in self.exceptions.get(setting.key, {}).items():
            others.setdefault(format_default(value), []).append(task)
        values = [("", format_default(setting.default))]
        values += [(f" for {', '.join(tasks)}", value) for value, tasks in others.items()]
        return "; ".join(f"{quote}{value}{quote}{which}" for which, value in values if value)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def describe_tables(settings: type[RunSettings]) -> list[TableReference]:
    """The tables of a task, with its own defaults."""
    usual = settings()
    tables = [(name, getattr(usual, name)) for name in settings.table_names()]
    return [
        TableReference(name, table_summary(table), (settings.task,), tuple(describe_table(table)), {})
        for name, table in tables
    ]


def describe_all(tasks: Iterable[str] = TASKS) -> list[TableReference]:
    """The tables of several tasks, each once; where the defaults of a task differ, they are its exceptions."""
    found: dict[tuple[str, str, tuple[str, ...]], TableReference] = {}
    for table in (table for task in tasks for table in describe_tables(get_task(task).settings)):
        identity = table.name, table.summary, tuple(setting.key for setting in table.settings)
        found[identity] = merge_tables(found[identity], table) if identity in found else table
    return sorted(found.values(), key=lambda table: -len(table.tasks))


def merge_tables(one: TableReference, other: TableReference) -> TableReference:
    """The same table of more tasks."""
    exceptions = dict(one.exceptions)
    for mine, theirs in zip(one.settings, other.settings, strict=True):
        if mine.default != theirs.default:
            exceptions[mine.key] = exceptions.get(mine.key, {}) | dict.fromkeys(other.tasks, theirs.default)
    return replace(one, tasks=one.tasks + other.tasks, exceptions=exceptions)


def table_summary(table: Any) -> str:
    """The first paragraph of the docstring, without what a reader of the code alone needs."""
    first = " ".join((type(table).__doc__ or "").split("\n\n")[0].split())
    return first.removesuffix(" Keys without a sentence here are those of `ConfigBase`.")


def format_default(value: Any) -> str:
    """As TOML writes it; nothing for a key that is left out."""
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def to_markdown(tables: Iterable[TableReference]) -> str:
    """The page of the reference."""
    tables = list(tables)
    lines = [PAGE_HEAD]
    for task in dict.fromkeys(task for table in tables for task in table.tasks):
        names = (f"`[{name}]`" for name in get_task(task).settings.table_names())
        lines.append(f"- `{task}`: {', '.join(names)}")
    for table in tables:
        lines += ["", f"## [{table.name}] of {table.task_list}", "", table.summary, "", markdown_row(COLUMNS)]
        lines += ["| --- | --- | --- | --- | --- |"]
        lines += [markdown_row(row) for row in table.rows(quote="`")]
    return "\n".join(lines) + "\n"


def markdown_row(cells: Iterable[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
