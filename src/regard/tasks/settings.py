"""A TOML file in; checked settings of a training run out, and back."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf, isfinite
from pathlib import Path
from typing import Any

from regard.models.config import ModelConfig
from regard.text.files import read_lines


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where sentence pairs come from: the miniature world, files of your own, or a corpus that `regard data` knows."""

    corpus: str = "world"  # world, files, or the name of a known corpus
    source: str = "en"
    target: str = "fr"
    train: tuple[str, ...] = ()  # for files: one .tsv or .jsonl, or two text files
    valid: tuple[str, ...] = ()  # left out: every hundredth training pair is held out
    test: tuple[str, ...] = ()
    skip_empty: bool = False  # leave out pairs with an empty side instead of refusing them
    sentences: int = 60_000  # for the world: how many, and of how many words
    shortest: int = 3
    longest: int = 12


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """How text becomes ids."""

    kind: str = "bpe"  # bpe, unigram, words or characters
    size: int = 8000
    joint: bool = True  # one vocabulary for both sides
    lower: bool = False
    source_language: str = ""  # en, de or fr: punctuation becomes words of its own; "" leaves text as it is
    target_language: str = ""

    def __post_init__(self):
        one_of("text.kind", self.kind, ("bpe", "unigram", "words", "characters"))


# what each number of [train] may be: at least, and below
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("steps", "tokens", "longest", "accumulate", "average"), (1, inf)),
    **dict.fromkeys(("validate_every", "checkpoint_every"), (1, inf)),
    **dict.fromkeys(("warmup", "patience", "seed", "clip", "decay", "consistency"), (0, inf)),
    "smoothing": (0, 1),
    "rate": (1e-12, inf),
}


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a model is trained."""

    steps: int = 10_000
    tokens: int = 4096  # in a batch, padding included
    accumulate: int = 1  # batches whose gradients are added up in a step
    schedule: str = "cosine"  # noam, cosine or constant
    rate: float = 1e-3  # the peak; for noam the factor
    warmup: int = 500
    smoothing: float = 0.1
    consistency: float = 0.0  # how much two passes under different dropout must agree (R-Drop)
    clip: float = 1.0
    decay: float = 0.0
    seed: int = 0
    precision: str = "float32"
    longest: int = 256  # ids on a side; longer pairs are left out of training
    validate_every: int = 500
    checkpoint_every: int = 500
    patience: int = 0
    exact: bool = True  # only algorithms that give the same bits every time; a few models have none on a GPU
    average: int = 1  # checkpoints whose weights are averaged in the end

    def __post_init__(self):
        one_of("train.schedule", self.schedule, ("noam", "cosine", "constant"))
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) < most:
                below = "" if most == inf else f" and below {most}"
                raise ValueError(f"train.{name} = {getattr(self, name)} should be at least {least}{below}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run: the tables [data], [text], [model] and [train] of a file."""

    data: DataSettings = field(default_factory=DataSettings)
    text: TextSettings = field(default_factory=TextSettings)
    model: ModelConfig = field(default_factory=lambda: ModelConfig.named("transformer", "tiny"))
    train: TrainSettings = field(default_factory=TrainSettings)

    def to_toml(self) -> str:
        return toml(
            {
                "data": asdict(self.data),
                "text": asdict(self.text),
                "model": self.model.to_dict(),
                "train": asdict(self.train),
            }
        )

    @staticmethod
    def load(path: Path) -> "Settings":
        """A file; mistakes in it are named with it."""
        text = "\n".join(read_lines(path))
        try:
            return Settings.from_toml(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @staticmethod
    def from_toml(text: str) -> "Settings":
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"the settings are no TOML: {error}") from None
        if unknown := [name for name in tables if name not in TABLES]:
            raise ValueError(f"settings have no table [{unknown[0]}]; they have {', '.join(f'[{t}]' for t in TABLES)}")
        if loose := [name for name, table in tables.items() if not isinstance(table, dict)]:
            raise ValueError(f"{loose[0]} stands outside of a table; write it under one, such as [train]")
        model = {"kind": "transformer", **tables.get("model", {})}
        return Settings(
            data=read_table(DataSettings, "data", tables.get("data", {})),
            text=read_table(TextSettings, "text", tables.get("text", {})),
            model=sized(model),
            train=read_table(TrainSettings, "train", tables.get("train", {})),
        )

    @staticmethod
    def of_world() -> "Settings":
        """What `regard train` does when it is told nothing: French, as the miniature world speaks it, in a minute."""
        rotary = 'position = "Rotary()"'
        return Settings(
            data=DataSettings(sentences=40_000, longest=7),
            text=TextSettings(kind="words", joint=False),
            model=ModelConfig(
                kind="transformer", layers=2, model=64, heads=4, hidden=128, dropout=0.0, encoder=rotary, decoder=rotary
            ),
            # small batches: where nothing is ambiguous for long, many steps teach more than exact ones
            train=TrainSettings(
                steps=3800, tokens=256, rate=5e-3, warmup=100, smoothing=0.0, decay=0.1, validate_every=950
            ),
        )

    def changed(self, changes: Mapping[str, object]) -> "Settings":
        """Some lines replaced, as `--set train.steps=100` asks for; text is read as TOML where it can be.

        Another kind or size of model starts from the fields of its own.
        """
        tables = tomllib.loads(self.to_toml())
        values = {name: plain(value) if isinstance(value, str) else value for name, value in changes.items()}
        if {"model.kind", "model.size"} & values.keys():
            tables["model"] = {"kind": self.model.kind, "size": "small"}
        for name, value in values.items():
            table, _, key = name.partition(".")
            if table not in tables or not key:
                raise ValueError(f"--set {name}={value}: write table.key=value, e.g. train.steps=1000")
            tables[table][key] = value
        return Settings.from_toml(toml(tables))


def toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values; what JSON writes for them, TOML reads, but for numbers that are none."""

    def line(value: Any) -> str:
        strange = isinstance(value, float) and not isfinite(value)
        return str(value) if strange else json.dumps(value, ensure_ascii=False)

    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {line(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


TABLES = tuple(field.name for field in fields(Settings))


def sized(given: dict[str, Any]) -> ModelConfig:
    """A model by its fields; `size` names a starting point."""
    size = given.pop("size", None)
    start = ModelConfig.named(given["kind"], size).to_dict() if size else {}
    return ModelConfig.from_dict({**start, **given})


def read_table(kind: Any, name: str, given: Mapping[str, Any]) -> Any:
    """A dataclass from a table, its types checked."""
    known = {field.name: field.type for field in fields(kind)}
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"[{name}] has no {key!r}; it has {', '.join(known)}")
        if not fits(value, known[key]):
            raise ValueError(f"{name}.{key} = {value!r} should be {CALLED[known[key]]}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})


CALLED = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple[str, ...]: "a list of files",
}


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
    except tomllib.TOMLDecodeError:
        return value


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} = {value!r} is unknown; choose from {', '.join(known)}")
