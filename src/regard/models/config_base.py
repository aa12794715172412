"""Base of model configurations: dataclasses whose fields a TOML table holds, with their checks."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, fields
from types import UnionType
from typing import Any, ClassVar, Self

RecipeText = str | tuple[str, ...]  # recipes in TOML: one for all layers, or one for each
Choices = Mapping[str, tuple[str, ...]]
DEPTHS = ("layers", "blocks")  # suffixes of fields that count layers
MAX_WIDTH, MAX_DEPTH = 2**24, 1000  # limits beyond any hardware, whose products still fit torch's sizes
TYPE_NAMES = {str: "text", float: "a number", bool: "true or false"}


class ConfigBase(ABC):
    """Abstract: a frozen dataclass whose fields a TOML table holds. What a kind cannot use must be left as it is."""

    choices: ClassVar[Choices]
    used_by: ClassVar[Choices]  # fields that not every kind can use
    default_size: ClassVar[str] = ""  # of those that `from_size` knows; empty if it knows none
    kind: str

    @classmethod
    def from_size(cls, kind: str, size: str) -> Self:
        """One of the sizes; change what you like with dataclasses.replace."""
        raise ValueError(f"size = {size!r}: {cls.__name__} has no sizes; set its fields one by one")

    def check(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            check_value(field.name, value, field.type, self.choices)  # type: ignore[arg-type]
            kinds = self.used_by.get(field.name, self.choices["kind"])
            if self.kind not in kinds and value != field.default:
                raise ValueError(
                    f"{field.name} = {value!r} means nothing to the kind {self.kind!r}; leave it out, or choose a kind "
                    f"that uses it: {', '.join(kinds)}"
                )

    def to_dict(self) -> dict[str, str | int | float | list[str]]:
        """For a TOML file, which has no None, and lists instead of tuples."""
        values = {name: value for name, value in asdict(self).items() if value is not None}  # type: ignore[call-overload]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """By its fields; `size` names a starting point."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if unknown := [name for name in values if name not in (*names, "size")]:
            raise ValueError(f"{cls.__name__} has no {unknown[0]!r}; it has {', '.join(names)}")
        if "kind" not in values:
            raise ValueError(f"{cls.__name__} needs a kind: {', '.join(cls.choices['kind'])}")
        size = values.get("size")
        start = cls.from_size(values["kind"], size).to_dict() if size else {}
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**start | {name: value for name, value in given.items() if name != "size"})


def check_value(name: str, value: object, kind: type | UnionType, choices: Choices) -> None:
    """Values from a file may be anything; an integer will do for a float."""
    if kind == RecipeText:
        if not all(isinstance(text, str) for text in (value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"{name} = {repr(value)[:200]} should be text, or a list of texts, one for each layer")
        return
    expected = int | float if kind is float else kind
    if not isinstance(value, expected) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} = {repr(value)[:200]} should be {TYPE_NAMES.get(kind, 'a whole number')}")
    if name in choices and value not in choices[name]:
        raise ValueError(f"{name} = {value!r} is unknown; choose from {', '.join(filter(None, choices[name]))}")
    if "dropout" in name and not 0 <= value < 1:  # type: ignore[operator]
        raise ValueError(f"{name} = {value} should lie in [0, 1)")
    if name == "directions" and value not in (1, 2):
        raise ValueError(f"directions = {value} should be 1 or 2")
    if isinstance(value, int) and kind is not float and not isinstance(value, bool):
        limit = MAX_DEPTH if name.endswith(DEPTHS) else MAX_WIDTH
        if value < 1:
            raise ValueError(f"{name} = {value} should be at least 1")
        if value > limit:
            raise ValueError(f"{name} = {value} should be at most {limit:,}: nobody could hold such a model")


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} = {value!r} is unknown; choose from {', '.join(known)}")
