"""Run settings: the tables of a settings.toml as checked dataclasses, and defaults that depend on the data."""

import json
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from regard.attention import parts
from regard.data.files import read_lines, require_small_file
from regard.data.token_files import TextMixture
from regard.data.tokenizers.base import TOKENIZED_LANGUAGES
from regard.models.config import EncoderConfig, WordEmbeddingConfig
from regard.models.config_base import (
    AT_LEAST_1,
    DEPTHS,
    Choices,
    ConfigBase,
    Ranges,
    SettingsTable,
    shorten_value,
    suggest,
)
from regard.tasks.own_parts import OwnParts, format_record, own_parts_in
from regard.tasks.splits import DataSettings
from regard.training.config import TrainSettings, warmup_for

T = TypeVar("T")
S = TypeVar("S", bound="RunSettings")
DEFAULT_TASK = "translation"  # the task of a file that names none
TASK_ALIASES = {  # former names of tasks, which older settings and recipes hold
    "translate": "translation",
    "tag": "tagging",
    "classify": "sequence_classification",
    "write": "language_modeling",
    "picture": "image_classification",
    "answer": "vqa",
    "rebuild": "autoencoding",
    "graph": "node_classification",
}
RENAMED_KEYS = {  # former keys of tables, which older settings and recipes hold
    "train.tokens": "batch_size",
    "train.accumulate": "gradient_accumulation",
    "train.rate": "learning_rate",
    "train.warmup": "warmup_steps",
    "train.smoothing": "label_smoothing",
    "train.consistency": "rdrop",
    "train.clip": "max_grad_norm",
    "train.decay": "weight_decay",
    "train.longest": "max_length",
    "train.best": "best_metric",
    "train.exact": "deterministic",
    "train.average": "average_checkpoints",
    "train.keep": "keep_checkpoints",
    "train.capture": "cuda_graph",
    "text.size": "vocab_size",
    "text.lower": "lowercase",
    "data.shortest": "min_length",
    "data.longest": "max_length",
    "data.most": "max_tokens",
    "data.pictures": "images",
    "data.rows": "height",
    "data.columns": "width",
    "augment.turn": "rotation",
    "augment.stretch": "scale",
    "augment.grey": "grayscale",
    "augment.hide": "cutout",
    "augment.both_ways": "flip_at_test",
    "model.picture_layers": "image_layers",
}
RENAMED_VALUES = {  # and former values
    "train.precision": {"narrow": "bf16-pure"},
}
# keys that are called otherwise on the command line and in `regard.train`, as the flags are
SHORT_KEYS = {"model": "model.kind", "size": "model.size"}


class RunSettings(ABC):
    """Abstract: the settings of one run, a frozen dataclass whose fields are the tables of a file.

    A table is a `SettingsTable`. The line `task` stands before them; where parts of a user's own are used, so does the
    line `parts`, which says where they come from.
    """

    task: ClassVar[str]
    data: Any  # DataSettings
    model: Any  # ConfigBase
    train: Any  # TrainSettings

    @classmethod
    @abstractmethod
    def of_world(cls) -> Self:
        """What `regard train` does when only the task is given: learns the miniature world, in about a minute."""

    def with_absolute_paths(self, folder: Path) -> Self:
        """Absolute paths, since a run may go on from another folder."""
        tables = {name: getattr(self, name) for name in self.table_names()}
        named = {
            name: one.resolve(folder) if isinstance(one, WordEmbeddingConfig) else one.with_absolute_paths(folder)
            for name, one in tables.items()
            if isinstance(one, DataSettings | WordEmbeddingConfig)
        }
        return replace(self, **named)  # type: ignore[type-var]

    def to_toml(self) -> str:
        tables = {name: getattr(self, name).to_dict() for name in self.table_names()}
        return f"task = {json.dumps(self.task)}\n{format_record(self.own_parts)}\n{format_toml(tables)}"

    @property
    def own_parts(self) -> dict[str, Any]:
        """The parts of a user's own that the settings name."""
        tables = (getattr(self, name) for name in self.table_names())
        return own_parts_in(
            value for table in tables if isinstance(table, ConfigBase) for value in vars(table).values()
        )

    def to_flat_dict(self) -> dict[str, Any]:
        """Every setting by its table and key, such as train.steps, as a file holds it."""
        tables = tomllib.loads(self.to_toml())
        return {f"{table}.{key}": value for table in self.table_names() for key, value in tables[table].items()}

    @classmethod
    def table_names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path, own_parts: OwnParts = OwnParts()) -> Self:
        """A file; mistakes in it are named with it. Parts of a user's own that it uses must be given."""
        tables = read_tables(path)
        try:
            own_parts.check_record(tables.get("parts", []), path.parent)
            return cls.from_tables(tables, own_parts)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_toml(cls, text: str) -> Self:
        return cls.from_tables(parse_toml(text))

    @classmethod
    def from_tables(cls, given: Mapping[str, Any], own_parts: OwnParts = OwnParts()) -> Self:
        """What a file holds; the values may be anything. The line `parts` is but a record, and runs nothing."""
        tables = {name: table for name, table in given.items() if name != "parts"}
        if resolve_task_name(task := tables.pop("task", DEFAULT_TASK)) != cls.task:
            raise ValueError(f"the task is {task!r}, not {cls.task!r}; use the command of that task; see regard --help")
        for name, table in tables.items():
            if not isinstance(table, dict):
                where = "such as [train]" if name in cls.table_names() else f"as {cls.resolve_key(name)} is"
                raise ValueError(f"{name} stands outside of a table; write it under one, {where}")
            cls.check_table_name(name)
            for key in table:
                cls.resolve_key(f"{name}.{key}")
        usual = cls()
        return cls(**{name: read_table(getattr(usual, name), name, table, own_parts) for name, table in tables.items()})

    @classmethod
    @cache
    def keys(cls) -> Mapping[str, list[str]]:
        """The keys of each table."""
        return {field.name: table_keys(field.default) for field in fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def resolve_key(cls, name: str) -> str:
        """`table.key` of a setting, from the key alone if one table has it; an unknown one names its nearest."""
        tables, (table, dot, key) = cls.keys(), (name := SHORT_KEYS.get(name, name)).partition(".")
        if not dot:
            found = [f"{table}.{name}" for table, keys in tables.items() if name in keys]
            if len(found) > 1:
                raise ValueError(f"{name} is a setting of several tables; name one: {' or '.join(found)}")
            if not found:
                near = suggest(name, dict.fromkeys(key for keys in tables.values() for key in keys))
                hint = near if near.startswith("did") else f"see regard settings {cls.task}"
                raise ValueError(f"the task {cls.task!r} has no setting {name!r}; {hint}")
            return found[0]
        cls.check_table_name(table)
        if key in tables[table] or RENAMED_KEYS.get(name) in tables[table]:
            return name
        elsewhere = [f"{other}.{key}" for other, keys in tables.items() if key in keys]
        hint = f"did you mean {elsewhere[0]}?" if elsewhere else suggest(key, tables[table])
        raise ValueError(f"[{table}] has no {key!r}; {hint}")

    @classmethod
    def check_table_name(cls, name: str) -> None:
        if name not in cls.table_names():
            near = suggest(name, cls.table_names())
            raise ValueError(f"the settings of {cls.task} have no table [{name}]; {near}")

    @classmethod
    def current_names(cls, changes: Mapping[str, T]) -> dict[str, T]:
        """Changes by table and key, as they are called today; where both are given, `with_changes` refuses them."""
        resolved = {cls.resolve_key(name): value for name, value in changes.items()}
        renamed = {}
        for name, value in resolved.items():
            table, former = name.partition(".")[0], RENAMED_KEYS.get(name)
            new = f"{table}.{former}" if former in cls.keys()[table] else name
            renamed[name if new in resolved else new] = value
        return renamed

    def with_changes(self, changes: Mapping[str, object], own_parts: OwnParts = OwnParts()) -> Self:
        """Some lines replaced, as `--set train.steps=100` asks for; text is read as TOML where it can be.

        Another kind or size of model starts from the fields of its own.
        """
        tables = {name: getattr(self, name).to_dict() for name in self.table_names()}
        values = {
            self.resolve_key(name): parse_value(value) if isinstance(value, str) else value
            for name, value in changes.items()
        }
        for name in self.table_names():
            if (
                isinstance(table := getattr(self, name), ConfigBase)
                and {f"{name}.kind", f"{name}.size"} & values.keys()
            ):
                tables[name] = {"kind": table.kind} | ({"size": table.default_size} if table.default_size else {})
        replaced: dict[str, dict[str, Any]] = {name: {} for name in tables}
        for name, value in values.items():
            table, _, key = name.partition(".")
            replaced[table][key] = value
        for name, lines in replaced.items():
            tables[name] |= resolve_renamed(type(getattr(self, name)), name, lines)
        return self.from_tables({"task": self.task, **tables}, OwnParts({**self.own_parts, **own_parts.named}))


def changed_settings(before: RunSettings, after: RunSettings) -> dict[str, list[Any]]:
    """Settings that differ, by name: [before, after]; None where only the other has a setting."""
    if before.task != after.task:
        return {"task": [before.task, after.task]}
    return differing_values(before.to_flat_dict(), after.to_flat_dict())


def require_unchanged(settings: S, fitting: S, given: Collection[str]) -> S:
    """The settings that fit prepared corpora, unless the user has set another value for one of them."""
    for name, (given_value, prepared) in changed_settings(settings, fitting).items():
        if name in given:
            raise ValueError(f"{name} = {given_value!r}, but the corpora were prepared with {prepared!r}; leave it out")
    return fitting


def differing_values(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What two mappings have otherwise, by name: [one, other]; None where it is missing."""
    names = dict.fromkeys((*one, *other))
    return {name: [one.get(name), other.get(name)] for name in names if one.get(name) != other.get(name)}


def table_keys(table: Any) -> list[str]:
    """The keys that a file may give a table; a model's may have a size."""
    return [field.name for field in fields(table)] + ["size"] * isinstance(table, ConfigBase)


def resolve_task_name(task: Any) -> Any:
    """The name of a task today; a name that no task ever had, or no text at all, comes back as it is."""
    return TASK_ALIASES.get(task, task) if isinstance(task, str) else task


def resolve_renamed(kind: type, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The lines of a table by the keys and values of today."""
    known = {field.name for field in fields(kind)}
    lines: dict[str, Any] = {}
    for former, value in given.items():
        line = f"{name}.{former}"
        key = new if (new := RENAMED_KEYS.get(line, former)) in known else former
        if key != former and key in given:
            raise ValueError(
                f"{line} = {shorten_value(value)} and {name}.{key} = {shorten_value(given[key])} are the same setting, "
                f"renamed; leave out {former}"
            )
        values = RENAMED_VALUES.get(line, {})
        lines[key] = values.get(value, value) if isinstance(value, str) else value
    return lines


def read_task_name(path: Path) -> str:
    """Which task a file of settings is for."""
    task = read_tables(path).get("task", DEFAULT_TASK)
    if not isinstance(task, str):
        raise ValueError(f"{path}: task = {task!r} should be text")
    return resolve_task_name(task)


def read_tables(path: Path) -> dict[str, Any]:
    """What a file of settings holds, before anything of it is checked."""
    text = "\n".join(read_lines(require_small_file(path)))
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_depths(path: Path) -> dict[str, int]:
    """How many layers or blocks the model of a file of settings has, by the lines that say so."""
    model = read_tables(path).get("model")
    lines = model.items() if isinstance(model, dict) else ()
    return {name: value for name, value in lines if name.endswith(DEPTHS) and isinstance(value, int)}


# --- tables and lines ---


def parse_toml(text: str) -> dict[str, Any]:
    try:
        return parts.parse_toml(text)
    except ValueError as error:  # a TOMLDecodeError is one, too
        raise ValueError(f"the settings are no TOML: {error}") from None


def format_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values; what JSON writes for them, TOML reads, but for numbers that are none."""

    def line(value: Any) -> str:
        strange = isinstance(value, float) and not isfinite(value)
        return str(value) if strange else json.dumps(value, ensure_ascii=False)

    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {line(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


def read_table(usual: SettingsTable, name: str, given: Mapping[str, Any], own_parts: OwnParts = OwnParts()) -> Any:
    """The usual table with the lines of a file; a mistake is named with the table and the key."""
    given = resolve_renamed(type(usual), name, given)

    def built(lines: Mapping[str, Any]) -> Any:
        if isinstance(usual, ConfigBase):
            lines = {key: own_parts.attach(line) for key, line in lines.items()}
        return usual.with_lines(lines)

    try:
        return built(given)
    except ValueError as error:
        raise ValueError(locate_error(str(error), name, given, built)) from None


def locate_error(message: str, name: str, given: Mapping[str, Any], built: Callable[[Mapping[str, Any]], Any]) -> str:
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
            return f"{name}.{key} = {shorten_value(value)}: {message}"
    return f"[{name}] {message}"


def parse_value(value: str) -> Any:
    """A value as TOML reads it; what is no TOML is text."""
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return value


# --- tables of several tasks ---


LANGUAGES = ("", *TOKENIZED_LANGUAGES)  # of text whose punctuation becomes words of its own


@dataclass(frozen=True, kw_only=True)
class PairTokenizerSettings(SettingsTable):
    """How text of two languages becomes ids.

    Args:
        kind: subwords (bpe or unigram), words or characters; pretrained is that of a model imported from elsewhere.
        vocab_size: ids of a vocabulary; subwords need at least 260, and follow from the number of examples if left out.
        joint: one vocabulary for both sides.
        lowercase: text is read and written in lower case.
        source_language: whose rules make punctuation words of its own; left out, the text stays as it is.
        target_language: the same for the other side.
    """

    choices: ClassVar[Choices] = {
        "kind": ("bpe", "unigram", "words", "characters", "pretrained"),
        **dict.fromkeys(("source_language", "target_language"), LANGUAGES),
    }
    ranges: ClassVar[Ranges] = {"vocab_size": AT_LEAST_1}

    kind: str = "bpe"
    vocab_size: int = 8000
    joint: bool = True
    lowercase: bool = False
    source_language: str = ""
    target_language: str = ""


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(SettingsTable):
    """How text of one language becomes ids.

    Args:
        kind: subwords (bpe or unigram), words, characters or bytes; pretrained is that of a model imported from
            elsewhere.
        vocab_size: ids of the vocabulary; subwords need at least 260, and follow from the number of examples if left
            out.
        lowercase: text is read and written in lower case.
        language: whose rules make punctuation words of its own; left out, the text stays as it is.
    """

    choices: ClassVar[Choices] = {
        "kind": ("bpe", "unigram", "words", "characters", "bytes", "pretrained"),
        "language": LANGUAGES,
    }
    ranges: ClassVar[Ranges] = {"vocab_size": AT_LEAST_1}

    kind: str = "bpe"
    vocab_size: int = 8000
    lowercase: bool = False
    language: str = ""


# --- defaults of the miniature world, and those that depend on the data ---


def world_training(**changes: Any) -> TrainSettings:
    """Training on the miniature world: where the right answer is certain, labels are not smoothed."""
    return TrainSettings(label_smoothing=0.0, **changes)


def world_encoder_run() -> dict[str, Any]:
    """Tables [text], [model] and [train] of an encoder that learns the miniature world's sentences in a minute."""
    sizes = {"layers": 2, "model": 64, "heads": 4, "hidden": 128, "dropout": 0.0}
    return {
        "text": TokenizerSettings(kind="words"),
        "model": EncoderConfig(kind="transformer", **sizes, recipe='position = "Rotary()"'),
        "train": world_training(steps=2000, batch_size=512, learning_rate=3e-3, warmup_steps=100, validate_every=400),
    }


LINE_CHARACTERS = 80  # running text counts as if it had lines of so many
VALIDATIONS = 20
MIN_STEPS, MAX_STEPS = 250, 100_000


def effective_examples(examples: Sequence[Any] | TextMixture) -> int:
    """How many there are; of running text, whose lines may be as long as they like, in lines of the usual length."""
    if isinstance(examples, TextMixture):
        return max(len(examples), examples.characters // LINE_CHARACTERS)
    texts = examples if len(examples) and isinstance(examples[0], str) else ()
    return max(len(examples), sum(map(len, texts)) // LINE_CHARACTERS)


def batch_tokens_for(examples: int) -> int:
    return 512 << sum(examples >= limit for limit in (250, 2_500, 25_000))


def vocabulary_size_for(examples: int) -> int:
    return min(8000, max(500, round(examples * 2 / 3000) * 1000))


def epochs_for(examples: int) -> float:
    return min(100.0, max(2.0, 20 * sqrt(30_000 / examples)))


def steps_for(examples: int, epoch: int) -> int:
    """So many steps make an epoch."""
    return min(MAX_STEPS, max(MIN_STEPS, round(epochs_for(examples) * epoch)))


def fit_to_data(settings: RunSettings, examples: int, given: Collection[str]) -> RunSettings:
    """Batch and vocabulary size for so many examples, unless given; never more than is usual for the task.

        examples     tokens in a batch     subwords           epochs
        n            512; from 250 on      two thirds of n,   20 · √(30,000 / n), from 2 to 100;
                     1,024, 2,500 2,048,   500 to 8,000       in steps 250 to 100,000
                     25,000 4,096

    A subword must be seen a few dozen times to be learnt; a sentence pair has about two dozen, so there should be fewer
    subwords than pairs. Few examples ask for small batches, because many uncertain steps teach more than few exact
    ones, and for more epochs, though less work in all: a hundred times the examples are shown a tenth as often. More
    epochs than a model needs do no harm but take time: it is validated twenty times, and the checkpoint with the least
    held-out loss is the one that stays, so what it learns by heart after that is thrown away.

    What is given on the command line is never changed; recipes and the miniature world bring figures of their own.
    """
    changes: dict[str, Any] = {}
    if "train.batch_size" not in given:
        tokens = min(settings.train.batch_size, max(batch_tokens_for(examples), 2 * settings.train.max_length))
        changes["train"] = replace(settings.train, batch_size=tokens)
    if "text" in settings.table_names() and "text.vocab_size" not in given:
        text = vars(settings)["text"]
        if text.kind in ("bpe", "unigram"):
            changes["text"] = replace(text, vocab_size=min(text.vocab_size, vocabulary_size_for(examples)))
    return replace(settings, **changes)  # type: ignore[type-var]


def plan_steps(train: TrainSettings, examples: int, epoch: int, given: Collection[str]) -> TrainSettings:
    """Steps, and what follows from them, but for what was given; so many steps make an epoch."""
    steps = train.steps if "train.steps" in given else steps_for(examples, epoch)
    often = min(train.validate_every, max(10, steps // VALIDATIONS))
    follows = {
        "steps": steps,
        "warmup_steps": warmup_for(steps),
        "validate_every": often,
        "checkpoint_every": min(train.checkpoint_every, often),
    }
    return replace(train, **{name: value for name, value in follows.items() if f"train.{name}" not in given})
