"""Plain values as a file holds them in, a checked description of a model out: what all such descriptions share."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, fields
from types import UnionType
from typing import Any, ClassVar, Self

Choices = Mapping[str, tuple[str, ...]]
DEPTHS = ("layers", "blocks")  # how the fields end that say how often something is built
WIDEST, DEEPEST = 2**24, 1000  # numbers beyond any machine, whose products torch could not count either
CALLED = {str: "text", float: "a number", bool: "true or false"}


class Plain(ABC):
    """Abstract: a frozen dataclass whose fields a TOML table holds. What a kind cannot use must be left as it is."""

    choices: ClassVar[Choices]
    used_by: ClassVar[Choices]  # fields that not every kind can use
    usual_size: ClassVar[str] = ""  # of the sizes that `named` knows; none if it knows none
    kind: str

    @classmethod
    def named(cls, kind: str, size: str) -> Self:
        """One of the sizes; change what you like with dataclasses.replace."""
        raise ValueError(f"size = {size!r}: {cls.__name__} has no sizes; set its fields one by one")

    def check(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            check(field.name, value, field.type, self.choices)  # type: ignore[arg-type]
            kinds = self.used_by.get(field.name, self.choices["kind"])
            if self.kind not in kinds and value != field.default:
                raise ValueError(
                    f"{field.name} = {value!r} means nothing to the kind {self.kind!r}; leave it out, or choose a kind "
                    f"that uses it: {', '.join(kinds)}"
                )

    def to_dict(self) -> dict[str, str | int | float]:
        """For a TOML file, which has no None."""
        return {name: value for name, value in asdict(self).items() if value is not None}  # type: ignore[call-overload]

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Self:
        """By its fields; `size` names a starting point."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if unknown := [name for name in given if name not in (*names, "size")]:
            raise ValueError(f"{cls.__name__} has no {unknown[0]!r}; it has {', '.join(names)}")
        if "kind" not in given:
            raise ValueError(f"{cls.__name__} needs a kind: {', '.join(cls.choices['kind'])}")
        size = given.get("size")
        start = cls.named(given["kind"], size).to_dict() if size else {}
        return cls(**start | {name: value for name, value in given.items() if name != "size"})


def check(name: str, value: object, kind: type | UnionType, choices: Choices) -> None:
    """Values from a file may be anything; a whole number will do for a fraction."""
    wanted = int | float if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name} = {repr(value)[:200]} should be {CALLED.get(kind, 'a whole number')}")
    if name in choices and value not in choices[name]:
        raise ValueError(f"{name} = {value!r} is unknown; choose from {', '.join(filter(None, choices[name]))}")
    if "dropout" in name and not 0 <= value < 1:  # type: ignore[operator]
        raise ValueError(f"{name} = {value} should lie in [0, 1)")
    if name == "directions" and value not in (1, 2):
        raise ValueError(f"directions = {value} should be 1 or 2")
    if isinstance(value, int) and kind is not float and not isinstance(value, bool):
        most = DEEPEST if name.endswith(DEPTHS) else WIDEST
        if value < 1:
            raise ValueError(f"{name} = {value} should be at least 1")
        if value > most:
            raise ValueError(f"{name} = {value} should be at most {most:,}: nobody could hold such a model")
