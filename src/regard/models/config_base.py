"""Configuration base: tables of settings as frozen dataclasses, whose keys have a type, a range and one sentence.

The sentence of a key stands under `Args:` in the docstring of the table, or of the base class that the key is from.
Types, choices and ranges are checked when a table is made; `describe_table` reads all of it for the reference.
"""

import re
from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import Field, asdict, dataclass, fields, replace
from difflib import get_close_matches
from inspect import cleandoc, isclass, isfunction
from math import inf
from types import FunctionType
from typing import Any, ClassVar, Self

from torch import nn

from regard.attention import Recipe
from regard.attention.parts import own_parts_of
from regard.layers.transformer_layers import ACTIVATIONS, NORM_ORDERS, Residual
from regard.models.rnn_seq2seq import READOUTS

OneRecipe = str | Recipe  # in TOML; a `Recipe` becomes its text
RecipeText = OneRecipe | tuple[OneRecipe, ...]  # one for all layers, or one for each
Choices = Mapping[str, tuple[str, ...]]
DEPTHS = ("layers", "blocks")  # suffixes of fields that count layers
MAX_WIDTH, MAX_DEPTH = 2**24, 1000  # limits beyond any hardware, whose products still fit torch's sizes
MAX_SHOWN = 200  # letters of a value that a message repeats
TYPE_NAMES: dict[Any, str] = {
    int: "a whole number",
    int | None: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple[str, ...]: "a list of texts",
    OneRecipe: "text",
    RecipeText: "text, or a list of texts, one for each layer",
}
# what a part of the user's own must be, where it can be chosen
OWN_CHOICES: dict[tuple[str, ...], type] = {
    tuple(NORM_ORDERS): Residual,
    tuple(ACTIVATIONS): FunctionType,
    tuple(READOUTS): nn.Module,
}


@dataclass(frozen=True)
class Range:
    """The numbers that a key may be: finite, at least `least`, at most `most`, and below `below`."""

    least: float
    most: float = inf
    below: float = inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most and value < self.below

    def __str__(self) -> str:
        """As in "should be at least 0 and below 1"."""
        most = f" and at most {self.most:,}" if self.most < inf else ""
        return f"at least {self.least:,}{most}" + (f" and below {self.below:,}" if self.below < inf else "")

    @property
    def interval(self) -> str:
        """As the reference writes it."""
        if self.most < inf:
            return f"{self.least:,} to {self.most:,}"
        return f"≥ {self.least:,}" + (f", < {self.below:,}" if self.below < inf else "")


AT_LEAST_0, AT_LEAST_1 = Range(0), Range(1)
FRACTION, SHARE = Range(0, below=1), Range(0, most=1)
Ranges = Mapping[str, Range]


class SettingsTable:
    """Abstract: a frozen dataclass of plain values, the keys of one table of a TOML file."""

    choices: ClassVar[Choices] = {}  # what a text may be; those of base classes hold too
    ranges: ClassVar[Ranges] = {}  # what a number may be; a whole number without a range is at least 0

    def __post_init__(self):
        self.check()

    def check(self) -> None:
        """Refuses a value of another type, or one that is not among the choices or outside of the range."""
        for field in fields(self):  # type: ignore[arg-type]
            check_value(field.name, getattr(self, field.name), field.type, self.known_choices(field.name))
            if isinstance(value := getattr(self, field.name), int | float) and field.type is not bool:
                check_range(field.name, value, self.known_range(field))

    @classmethod
    def known_choices(cls, name: str) -> tuple[str, ...]:
        """What a text may be; empty if it may be any."""
        return next((held[name] for base in cls.__mro__ if name in (held := vars(base).get("choices", {}))), ())

    @classmethod
    def known_range(cls, field: "Field[Any]") -> Range | None:
        """What a number may be."""
        named = (held[field.name] for base in cls.__mro__ if field.name in (held := vars(base).get("ranges", {})))
        return next(named, AT_LEAST_0 if field.type is int else None)

    def with_lines(self, lines: Mapping[str, Any]) -> Self:
        """The table that a file asks for with these lines: what they leave out stays as it is here."""
        return replace(self, **dict.fromkeys(self.derived_keys, None) | read_lists(lines))  # type: ignore[type-var]

    @property
    def derived_keys(self) -> tuple[str, ...]:
        """Keys whose values follow from those of others; set to None, they follow again."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """For a TOML file, which has no None, and lists instead of tuples."""
        values = {name: value for name, value in asdict(self).items() if value is not None}  # type: ignore[call-overload]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


class ConfigBase(SettingsTable, ABC):
    """Abstract: the table of a model, or of a part of one. What a kind cannot use must be left as it is.

    Args:
        layers: how many, each on top of the other.
        model: the width of embeddings, and of everything in a Transformer.
        hidden: the width of a Transformer's feed-forward layers, or of recurrent states.
        dropout: the share of values that training sets to zero, on embeddings and on what each layer adds.
        heads: attention heads in each layer; they share the width.
        groups: key and value heads, each of which serves as many query heads; left out, as many as there are heads.
        head: the width of a head; left out, the heads share the width of the model.
        norm: the norm before each sub-layer (pre) or after it (post), or a `Residual` of your own.
        norm_type: layer norm (layer) or RMS norm (rms).
        norm_eps: ε of the norms.
        qk_norm: each head's queries and keys are normed as well, before they are rotated.
        output_gate: the heads' outputs are multiplied by a gate σ(W x).
        feed_forward_type: plain, W₂ φ(W₁ x), or gated, W₂ (φ(V x) ⊙ W₁ x): SwiGLU with silu, GEGLU with gelu.
        activation: of the feed-forward layers: relu, gelu, gelu_tanh or silu, or a function of your own.
        bias: whether the linear layers have one.
        embedding_scale: embeddings are multiplied by √model (input), or not (none).
        shared_positions: whether positions that are learned inside attention have one set of weights for all layers.
        attention_dropout: the share of attention weights that training sets to zero.
        directions: 2 lets a recurrent encoder read backwards as well, each way with half of `hidden`.
        recipe: the recipe of attention, in TOML as Recipe.to_toml writes it or as a `Recipe`, or a list with one for
            each layer.
    """

    used_by: ClassVar[Choices]  # fields that not every kind can use
    sizes: ClassVar[tuple[str, ...]] = ()  # those that `from_size` knows
    default_size: ClassVar[str] = ""  # one of them
    kind: str

    @classmethod
    def from_size(cls, kind: str, size: str) -> Self:
        """One of the sizes; change what you like with dataclasses.replace."""
        raise ValueError(f"size = {size!r}: {cls.__name__} has no sizes; set its fields one by one")

    def check(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if field.type in (OneRecipe, RecipeText):
                value = getattr(self, field.name)
                value = tuple(map(recipe_text, value)) if isinstance(value, tuple) else recipe_text(value)
                object.__setattr__(self, field.name, value)
        super().check()
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            kinds = self.used_by.get(field.name, self.known_choices("kind"))
            if self.kind not in kinds and value != field.default:
                raise ValueError(
                    f"{field.name} = {value!r} means nothing to the kind {self.kind!r}; leave it out, or choose a kind "
                    f"that uses it: {', '.join(kinds)}"
                )

    @classmethod
    def known_range(cls, field: "Field[Any]") -> Range | None:
        if "dropout" in field.name:
            return FRACTION
        if field.name == "norm_eps":
            return SHARE
        if field.name == "directions":
            return Range(1, most=2)
        if field.name in cls.ranges:
            return cls.ranges[field.name]
        if field.type in (int, int | None):
            return Range(1, most=MAX_DEPTH if field.name.endswith(DEPTHS) else MAX_WIDTH)
        return super().known_range(field)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """By its fields; `size` names a starting point."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if unknown := [name for name in values if name not in (*names, "size")]:
            raise ValueError(f"{cls.__name__} has no {unknown[0]!r}; {suggest(unknown[0], names)}")
        if "kind" not in values:
            raise ValueError(f"{cls.__name__} needs a kind: {', '.join(cls.known_choices('kind'))}")
        size = values.get("size")
        start = cls.from_size(values["kind"], size).to_dict() if size else {}
        given = {name: value for name, value in values.items() if name != "size"}
        return cls(**read_lists(start | given))

    def with_lines(self, lines: Mapping[str, Any]) -> Self:
        """A size, or another kind, starts from fields of its own."""
        if "size" in lines or lines.get("kind", self.kind) != self.kind:
            return self.from_dict({"kind": self.kind, **lines})
        return super().with_lines(lines)


def recipe_text(given: OneRecipe) -> str:
    return given.to_toml() if isinstance(given, Recipe) else given


def read_lists(lines: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has lists, and a frozen dataclass tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in lines.items()}


# --- checks ---


def check_value(name: str, value: object, kind: Any, choices: tuple[str, ...] = ()) -> None:
    """Values from a file may be anything; an integer will do for a float."""
    if not has_type(value, kind):
        shown = list(value) if isinstance(value, tuple) else value  # as a file writes it
        raise ValueError(f"{name} = {shorten_value(shown)} should be {TYPE_NAMES[kind]}")
    if choices and value not in choices and not is_own_choice(name, value, choices):  # type: ignore[arg-type]
        raise ValueError(f"{name} = {value!r} is unknown; choose from {', '.join(filter(None, choices))}")


def has_type(value: Any, kind: Any) -> bool:
    if kind == OneRecipe:
        return isinstance(value, str)
    if kind in (tuple[str, ...], RecipeText):
        texts = value if isinstance(value, tuple) else (value,) if kind == RecipeText else (None,)
        return all(isinstance(text, str) for text in texts)
    return isinstance(value, int | float if kind is float else kind) and (kind is bool or not isinstance(value, bool))


def is_own_choice(name: str, value: str, choices: tuple[str, ...]) -> bool:
    """Whether a value is one of the user's own parts, where it can be one; a part of another kind is refused."""
    own, kind = own_parts_of(value).get(value), OWN_CHOICES.get(choices)
    if own is None or kind is None:
        return False
    if not (isfunction(own) if kind is FunctionType else isclass(own) and issubclass(own, kind)):
        wanted = "function of a tensor" if kind is FunctionType else f"subclass of {kind.__name__}"
        raise ValueError(f"{name} = {value!r} is a part of your own, and no {wanted}; name one that is")
    return True


def check_range(name: str, value: float, allowed: Range | None) -> None:
    if allowed is not None and value not in allowed:
        raise ValueError(f"{name} = {shorten_value(value)} should be {allowed}")
    if isinstance(value, int) and value >= 2**63:
        raise ValueError(f"{name} = {shorten_value(value)} should be below 2^63")


def shorten_value(value: Any) -> str:
    """As much of a value as belongs in a line."""
    return text if len(text := repr(value)) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names, or all of them: the second half of a message about an unknown one."""
    known = list(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"


# --- the reference ---


@dataclass(frozen=True)
class Setting:
    """A key of a table, as the reference shows it.

    Args:
        key: its name.
        type: such as "a whole number".
        default: None if it is left out.
        allowed: the choices or the range; empty if it may be anything.
        sentence: what it means.
        kinds: those that use it; empty if all do.
    """

    key: str
    type: str
    default: Any
    allowed: str
    sentence: str
    kinds: tuple[str, ...] = ()


def describe_table(table: SettingsTable) -> list[Setting]:
    """Every key, with the values of this table as the defaults."""
    sentences = key_sentences(type(table))
    found = [describe_key(table, field, sentences.get(field.name, "")) for field in fields(table)]  # type: ignore[arg-type]
    if isinstance(table, ConfigBase) and table.sizes:
        sentence = "the widths that the other keys start from; those set beside it are changed"
        found.insert(1, Setting("size", TYPE_NAMES[str], None, ", ".join(table.sizes), sentence))
    return found


def describe_key(table: SettingsTable, field: "Field[Any]", sentence: str) -> Setting:
    allowed = table.known_range(field)
    choices = filter(None, table.known_choices(field.name))
    return Setting(
        key=field.name,
        type=TYPE_NAMES[field.type],
        default=None if field.name in table.derived_keys else getattr(table, field.name),
        allowed=allowed.interval if allowed else ", ".join(choices),
        sentence=sentence,
        kinds=table.used_by.get(field.name, ()) if isinstance(table, ConfigBase) else (),
    )


def key_sentences(table: type) -> dict[str, str]:
    """What the docstrings of a class and of its bases say of each key; the class itself goes first."""
    found: dict[str, str] = {}
    for base in reversed(table.__mro__):
        found |= parse_args(base.__doc__ or "")
    return found


def parse_args(docstring: str) -> dict[str, str]:
    """The section `Args:`, by name; names before one colon share its sentence."""
    _, _, section = cleandoc(docstring).partition("\nArgs:\n")
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\S)", section.split("\n\n")[0]):
        names, colon, sentence = entry.partition(":")
        if colon:
            found |= {name.strip(): " ".join(sentence.split()).removesuffix(".") for name in names.split(",")}
    return found
