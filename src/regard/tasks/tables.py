"""A TOML file in; checked settings of a run out, and back: what the settings of all tasks share."""

import json
import os
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Self

from regard.attention.notation import read_toml
from regard.models.plain import DEPTHS, Plain
from regard.models.reading_config import WordsConfig
from regard.text.files import read_lines, small

SHOWN = 200  # letters of a value that are said again
FIRST = "translate"  # the task of a file that names none


@dataclass(frozen=True, kw_only=True)
class From:
    """Abstract: the table [data]. Where examples come from: the miniature world, files, or a known corpus."""

    corpus: str = "world"  # world, files, or the name of a corpus that `regard data` knows
    train: tuple[str, ...] = ()  # for files
    valid: tuple[str, ...] = ()  # left out: every hundredth training example is held out
    test: tuple[str, ...] = ()
    skip_empty: bool = False  # leave out empty examples instead of refusing them

    def rooted(self, folder: Path) -> Self:
        train, valid, test = (
            tuple(os.path.abspath(folder / path) for path in paths) for paths in (self.train, self.valid, self.test)
        )
        return replace(self, train=train, valid=valid, test=test)


class Tables(ABC):
    """Abstract: the settings of one run, a frozen dataclass whose fields are the tables of a file.

    A table is a dataclass of plain values, or a `Plain` description of a model. The line `task` stands before them.
    """

    task: ClassVar[str]
    data: Any  # a From
    model: Any  # a Plain
    train: Any  # TrainSettings

    @classmethod
    @abstractmethod
    def of_world(cls) -> Self:
        """What `regard train` does when it is told nothing but the task: something of the miniature world, soon."""

    def rooted(self, folder: Path) -> Self:
        """Absolute paths, since a run may go on from another folder."""
        tables = {name: getattr(self, name) for name in self.names()}
        named = {name: one.rooted(folder) for name, one in tables.items() if isinstance(one, From | WordsConfig)}
        return replace(self, **named)  # type: ignore[type-var]

    def to_toml(self) -> str:
        tables = {name: dict_of(getattr(self, name)) for name in self.names()}
        return f"task = {json.dumps(self.task)}\n\n{toml(tables)}"

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path) -> Self:
        """A file; mistakes in it are named with it."""
        text = "\n".join(read_lines(small(path)))
        try:
            return cls.from_toml(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_toml(cls, text: str) -> Self:
        return cls.from_tables(parsed(text))

    @classmethod
    def from_tables(cls, given: Mapping[str, Any]) -> Self:
        """What a file holds; the values may be anything."""
        tables = dict(given)
        if (task := tables.pop("task", FIRST)) != cls.task:
            raise ValueError(f"the task is {task!r}, not {cls.task!r}; each has its own settings")
        if unknown := [name for name in tables if name not in cls.names()]:
            known = ", ".join(f"[{name}]" for name in cls.names())
            raise ValueError(f"settings have no table [{unknown[0]}]; they have {known}")
        if loose := [name for name, table in tables.items() if not isinstance(table, dict)]:
            raise ValueError(f"{loose[0]} stands outside of a table; write it under one, such as [train]")
        usual = cls()
        return cls(**{name: read_table(getattr(usual, name), name, table) for name, table in tables.items()})

    def changed(self, changes: Mapping[str, object]) -> Self:
        """Some lines replaced, as `--set train.steps=100` asks for; text is read as TOML where it can be.

        Another kind or size of model starts from the fields of its own.
        """
        tables = {name: dict(dict_of(getattr(self, name))) for name in self.names()}
        values = {name: plain(value) if isinstance(value, str) else value for name, value in changes.items()}
        for name in self.names():
            if isinstance(table := getattr(self, name), Plain) and {f"{name}.kind", f"{name}.size"} & values.keys():
                tables[name] = {"kind": table.kind} | ({"size": table.usual_size} if table.usual_size else {})
        for name, value in values.items():
            table, _, key = name.partition(".")
            if table not in tables or not key:
                raise ValueError(f"--set {name}={value}: write table.key=value, e.g. train.steps=1000")
            tables[table][key] = value
        return self.from_tables({"task": self.task, **tables})


def task_in(path: Path) -> str:
    """Which task a file of settings is for."""
    task = tables_in(path).get("task", FIRST)
    if not isinstance(task, str):
        raise ValueError(f"{path}: task = {task!r} should be text")
    return task


def tables_in(path: Path) -> dict[str, Any]:
    """What a file of settings holds, before anything of it is checked."""
    text = "\n".join(read_lines(small(path)))
    try:
        return parsed(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def depths_in(path: Path) -> dict[str, int]:
    """How many layers or blocks the model of a file of settings has, by the lines that say so."""
    model = tables_in(path).get("model")
    lines = model.items() if isinstance(model, dict) else ()
    return {name: value for name, value in lines if name.endswith(DEPTHS) and isinstance(value, int)}


# --- tables and lines ---


def parsed(text: str) -> dict[str, Any]:
    try:
        return read_toml(text)
    except ValueError as error:  # a TOMLDecodeError is one, too
        raise ValueError(f"the settings are no TOML: {error}") from None


def dict_of(table: Any) -> dict[str, Any]:
    return table.to_dict() if isinstance(table, Plain) else asdict(table)


def toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values; what JSON writes for them, TOML reads, but for numbers that are none."""

    def line(value: Any) -> str:
        strange = isinstance(value, float) and not isfinite(value)
        return str(value) if strange else json.dumps(value, ensure_ascii=False)

    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {line(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


def read_table(usual: Any, name: str, given: Mapping[str, Any]) -> Any:
    """A dataclass like the usual one from a table, its types checked."""
    kind = type(usual)
    known = {field.name: field.type for field in fields(kind)}

    def built(lines: Mapping[str, Any]) -> Any:
        if isinstance(usual, Plain):
            return usual.from_dict({"kind": usual.kind, **lines})
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in lines.items()})

    for key, value in given.items() if not isinstance(usual, Plain) else ():  # which looks at its lines itself
        if key not in known:
            raise ValueError(f"[{name}] has no {key!r}; it has {', '.join(known)}")
        if not fits(value, known[key]):
            raise ValueError(f"{name}.{key} = {shown(value)} should be {CALLED[known[key]]}")
    try:
        table = built(given)
    except ValueError as error:
        raise ValueError(in_table(str(error), name, given, built)) from None
    for key, value in given.items():  # behind the table's own checks, which know more
        if known.get(key) is int and not 0 <= value < 2**63:
            raise ValueError(f"{name}.{key} = {shown(value)} should be at least 0 and below 2^63")
    return table


def in_table(message: str, name: str, given: Mapping[str, Any], built: Callable[[Mapping[str, Any]], Any]) -> str:
    """What Python says about its arguments, said about the lines of a table: heads = 3 becomes model.heads = 3.

    Where none is named, it is the line without which the table can be built.
    """
    if f"{name}." in message:
        return message
    named, count = re.subn(rf"(?<![\w.'\"])({'|'.join(given)})(?= = )", rf"{name}.\1", message)
    if count:
        return named
    for key, value in given.items():
        with suppress(ValueError):
            built({other: line for other, line in given.items() if other != key})
            return f"{name}.{key} = {shown(value)}: {message}"
    return f"[{name}] {message}"


CALLED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple[str, ...]: "a list of texts",
}


def shown(value: Any) -> str:
    """As much of a value as belongs in a line."""
    return said if len(said := repr(value)) <= SHOWN else f"{said[:SHOWN]}…"


def fits(value: Any, wanted: Any) -> bool:
    """Values from a file may be anything; a whole number will do for a fraction."""
    if wanted == tuple[str, ...]:
        return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    kinds = (int, float) if wanted is float else wanted
    return isinstance(value, kinds) and (wanted is bool or not isinstance(value, bool))


def plain(value: str) -> Any:
    """A value as TOML reads it; what is no TOML is text."""
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return value


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} = {value!r} is unknown; choose from {', '.join(known)}")
