"""Plain values as a file holds them in, checked descriptions of models that read and write texts out."""

import tomllib
from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch

from regard.attention import Recipe, RelativeBias, RelativeVectors, Sinusoidal, TreeDepth, TreePath
from regard.layers.block import ACTIVATIONS, ORDERS
from regard.layers.pooling import Attention, Last, Max, Mean, Pooling, TokenWeights
from regard.models.config import ModelConfig, check, refuse_misfits
from regard.models.transformer import Stack

RECURRENT = ("elman", "gru", "lstm")
TRANSFORMER = ("transformer",)
ENCODERS = ("embed", *RECURRENT, *TRANSFORMER)
WRITERS = (*RECURRENT, *TRANSFORMER)
POOLINGS = ("mean", "max", "last", "weights", "attention")
Choices = Mapping[str, tuple[str, ...]]
ORDERLY: Choices = {"norm": tuple(ORDERS), "activation": tuple(ACTIVATIONS)}
BY_ATTENTION: Choices = dict.fromkeys(
    ("heads", "groups", "norm", "activation", "attention_dropout", "recipe"), TRANSFORMER
)


class Plain(ABC):
    """Abstract: a frozen dataclass whose fields a TOML table holds. What a kind cannot use must be left as it is."""

    choices: ClassVar[Choices]
    used_by: ClassVar[Choices]  # fields that not every kind can use
    kind: str

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
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if unknown := [name for name in given if name not in names]:
            raise ValueError(f"{cls.__name__} has no {unknown[0]!r}; it has {', '.join(names)}")
        if "kind" not in given:
            raise ValueError(f"{cls.__name__} needs a kind: {', '.join(cls.choices['kind'])}")
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Plain):
    """What reads a text before it is labelled.

    Args:
        kind: embed (no context), elman, gru, lstm, transformer.
        layers: of recurrent states or of attention, each on top of the other.
        model: the width of word vectors, and of everything in a Transformer.
        hidden: the width of recurrent states (both directions together), or of a Transformer's feed-forward layers.
        dropout: on embeddings, between layers or on residual branches, and on what leaves the encoder.
        directions: 2 lets a recurrent encoder read backwards as well, each way with half of `hidden`.
        heads, groups, norm, activation, attention_dropout: of a Transformer, as in ModelConfig.
        recipe: TOML, as Recipe.to_toml writes it; positions in dependency trees want the sentences' heads. Without a
            position, a Transformer's is Sinusoidal().
    """

    choices: ClassVar[Choices] = {"kind": ENCODERS, **ORDERLY}
    used_by: ClassVar[Choices] = {
        **BY_ATTENTION,
        **dict.fromkeys(("layers", "hidden"), WRITERS),
        "directions": RECURRENT,
    }

    kind: str
    layers: int = 2
    model: int = 128
    hidden: int = 256
    dropout: float = 0.1
    directions: int = 1
    heads: int = 4
    groups: int | None = None
    norm: str = "pre"
    activation: str = "relu"
    attention_dropout: float = 0.0
    recipe: str = ""

    def __post_init__(self):
        self.check()
        if self.hidden % self.directions:
            raise ValueError(f"two directions cannot share hidden = {self.hidden}; make it even")
        fitting(self)

    @property
    def width(self) -> int:
        """Of the vectors that leave the encoder."""
        return self.hidden if self.kind in RECURRENT else self.model


@dataclass(frozen=True, kw_only=True)
class WriterConfig(Plain):
    """A language model.

    Args:
        kind: elman, gru, lstm, or transformer: a decoder without a source.
        layers, model, hidden, heads, groups, norm, activation, attention_dropout: as in EncoderConfig.
        dropout: as there; a recurrent model uses one mask for all words of a text.
        word_dropout: leaves out words of the vocabulary, wherever they stand in the batch.
        weight_dropout: on the weights between recurrent states, the same for all words (Merity et al. 2018).
        tied: words are scored by the table that reads them.
        recipe: TOML; it looks back in any case. `Window(n)` reads on with n − 1 remembered words, linear attention
            (`Feature()` and `Proportional()`) with a state of fixed size.
    """

    choices: ClassVar[Choices] = {"kind": WRITERS, **ORDERLY}
    used_by: ClassVar[Choices] = {**BY_ATTENTION, "weight_dropout": RECURRENT}

    kind: str
    layers: int = 2
    model: int = 128
    hidden: int = 256
    dropout: float = 0.1
    word_dropout: float = 0.0
    weight_dropout: float = 0.0
    tied: bool = True
    heads: int = 4
    groups: int | None = None
    norm: str = "pre"
    activation: str = "gelu"
    attention_dropout: float = 0.0
    recipe: str = ""

    def __post_init__(self):
        self.check()
        if wants_tree(given := fitting(self)):
            raise ValueError(
                f"{given.position} wants the trees of whole sentences, which nobody knows while a text is being "
                "written; use a place in the row, such as Sinusoidal()"
            )


@dataclass(frozen=True, kw_only=True)
class PoolingConfig(Plain):
    """How a text's words become one vector.

    Args:
        kind: mean, max, last, weights (one learned number for each word of the vocabulary), attention.
        recipe: of attention, in TOML: score and normaliser. `normaliser = "Hard()"` chooses one word.
    """

    choices: ClassVar[Choices] = {"kind": POOLINGS}
    used_by: ClassVar[Choices] = {"recipe": ("attention",)}

    kind: str = "attention"
    recipe: str = ""

    def __post_init__(self):
        self.check()
        with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, and here they are thrown away
            Recipe.from_toml(self.recipe)


def build_pooling(config: PoolingConfig, width: int, size: int) -> Pooling:
    """For vectors of this width, of words from a vocabulary of this size."""
    match config.kind:
        case "attention":
            return Attention(width, recipe=Recipe.from_toml(config.recipe))
        case "weights":
            return TokenWeights(size)
    return {"mean": Mean, "max": Max, "last": Last}[config.kind]()


def fitting(config: EncoderConfig | WriterConfig) -> Recipe:
    """The recipe, if it and the sizes fit each other; what it learns is not for use."""
    if config.kind == "transformer" and config.model % config.heads:
        raise ValueError(f"heads = {config.heads} does not divide model = {config.model}; choose one that does")
    if config.groups is not None and config.heads % config.groups:
        raise ValueError(f"groups = {config.groups} does not divide heads = {config.heads}; choose one that does")
    with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, and here they are thrown away
        return recipe_of(config)


def recipe_of(config: EncoderConfig | WriterConfig) -> Recipe:
    """What the text says, and places in the row where it says nothing of places."""
    try:
        made = Recipe.from_toml(config.recipe)
        if "position" not in tomllib.loads(config.recipe):
            made = replace(made, position=Sinusoidal())
        if config.kind == "transformer":
            head = config.model // config.heads
            refuse_misfits(made, heads=config.heads, query=head, key=head, model=config.model)
    except ValueError as error:
        raise ValueError(f"the recipe: {error}") from None
    return made


def wants_tree(recipe: Recipe) -> bool:
    """Does a position ask for dependency trees?"""
    relations = (part.relation for part in recipe.on_score if isinstance(part, RelativeBias | RelativeVectors))
    return any(isinstance(part, TreeDepth | TreePath) for part in (*recipe.beside, *relations))


def stack_of(config: EncoderConfig | WriterConfig | ModelConfig) -> Stack:
    return Stack(
        layers=config.layers,
        model=config.model,
        heads=config.heads,
        groups=config.groups,
        hidden=config.hidden,
        norm=config.norm,
        activation=config.activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )
