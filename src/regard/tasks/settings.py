"""A TOML file in; checked settings of a training run out, and back."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from regard.models.config import ModelConfig


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
    clip: float = 1.0
    decay: float = 0.0
    seed: int = 0
    precision: str = "float32"
    longest: int = 256  # ids on a side; longer pairs are left out of training
    validate_every: int = 500
    checkpoint_every: int = 500
    patience: int = 0
    average: int = 1  # checkpoints whose weights are averaged in the end

    def __post_init__(self):
        one_of("train.schedule", self.schedule, ("noam", "cosine", "constant"))
        if self.accumulate < 1 or self.average < 1:
            raise ValueError(f"train.accumulate = {self.accumulate} and train.average = {self.average} are at least 1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run: the tables [text], [model] and [train] of a file."""

    text: TextSettings = field(default_factory=TextSettings)
    model: ModelConfig = field(default_factory=lambda: ModelConfig.named("transformer", "tiny"))
    train: TrainSettings = field(default_factory=TrainSettings)

    def to_toml(self) -> str:
        tables = {"text": asdict(self.text), "model": self.model.to_dict(), "train": asdict(self.train)}
        return "\n".join(
            f"[{name}]\n"
            + "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in table.items())
            for name, table in tables.items()
        )

    @staticmethod
    def from_toml(text: str) -> "Settings":
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"the settings are no TOML: {error}") from None
        if unknown := [name for name in tables if name not in ("text", "model", "train")]:
            raise ValueError(f"settings have no table [{unknown[0]}]; they have [text], [model] and [train]")
        model = {"kind": "transformer", **tables.get("model", {})}
        return Settings(
            text=read_table(TextSettings, "text", tables.get("text", {})),
            model=sized(model),
            train=read_table(TrainSettings, "train", tables.get("train", {})),
        )

    def changed(self, changes: Mapping[str, str]) -> "Settings":
        """Some lines replaced, as `--set train.steps=100` asks for."""
        tables = tomllib.loads(self.to_toml())
        for name, value in changes.items():
            table, _, key = name.partition(".")
            if table not in tables or not key:
                raise ValueError(f"--set {name}={value}: write table.key=value, e.g. train.steps=1000")
            tables[table][key] = plain(value)
        return Settings.from_toml(
            "\n".join(
                f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
                for name, table in tables.items()
            )
        )


def sized(given: dict[str, Any]) -> ModelConfig:
    """A model by its fields; `size` names a starting point."""
    size = given.pop("size", None)
    start = ModelConfig.named(given["kind"], size).to_dict() if size else {}
    return ModelConfig.from_dict({**start, **given})


def read_table(kind: Any, name: str, given: Mapping[str, Any]) -> Any:
    """A dataclass from a table, its types checked; a whole number will do for a fraction."""
    known = {field.name: field.type for field in fields(kind)}
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"[{name}] has no {key!r}; it has {', '.join(known)}")
        wanted = (int, float) if known[key] is float else known[key]
        if not isinstance(value, wanted) or (isinstance(value, bool) and known[key] is not bool):  # type: ignore[arg-type]
            raise ValueError(f"{name}.{key} = {value!r} should be {getattr(known[key], '__name__', known[key])}")
    return kind(**given)


def plain(value: str) -> Any:
    """A value as TOML reads it; what is no TOML is text."""
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} = {value!r} is unknown; choose from {', '.join(known)}")
