"""Plain values as a file holds them in, checked descriptions of models that read and write texts out."""

import os
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from regard.attention import Recipe, RelativeBias, RelativeVectors, Sinusoidal, TreeDepth, TreePath
from regard.layers.block import ACTIVATIONS, ORDERS
from regard.layers.pooling import Attention, Last, Max, Mean, Pooling, TokenWeights
from regard.models.config import ModelConfig, refuse_misfits
from regard.models.counting import LogRatio, TfIdf
from regard.models.plain import Choices, Plain
from regard.models.transformer import Stack

RECURRENT = ("elman", "gru", "lstm")
TRANSFORMER = ("transformer",)
ENCODERS = ("embed", *RECURRENT, *TRANSFORMER)
WRITERS = (*RECURRENT, *TRANSFORMER)
POOLINGS = ("mean", "max", "last", "tf-idf", "log-ratio", "weights", "attention")
WORDS = ("learned", "skip-gram", "file", "one-hot")
STATIC = ("mean", "last", "tf-idf", "log-ratio", "weights")  # poolings that need no vectors to weigh words
# layers, width, hidden width, heads
SIZES = {"tiny": (2, 128, 256, 4), "small": (4, 256, 1024, 4), "base": (6, 512, 2048, 8)}
ORDERLY: Choices = {"norm": tuple(ORDERS), "activation": tuple(ACTIVATIONS)}
BY_ATTENTION: Choices = dict.fromkeys(
    ("heads", "groups", "norm", "activation", "attention_dropout", "recipe"), TRANSFORMER
)


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
    usual_size: ClassVar[str] = "tiny"

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

    @classmethod
    def named(cls, kind, size):
        return cls(kind=kind, **sizes_of(kind, size))

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
        input_dropout, output_dropout: more of it on the vectors of the words read and on those that are scored, with
            one mask for all words of a text.
        word_dropout: leaves out words of the vocabulary, wherever they stand in the batch.
        weight_dropout: on the weights between recurrent states, the same for all words (Merity et al. 2018).
        tied: words are scored by the table that reads them.
        recipe: TOML; it looks back in any case. `Window(n)` reads on with n − 1 remembered words, linear attention
            (`Feature()` and `Proportional()`) with a state of fixed size.
    """

    choices: ClassVar[Choices] = {"kind": WRITERS, **ORDERLY}
    used_by: ClassVar[Choices] = {**BY_ATTENTION, "weight_dropout": RECURRENT}
    usual_size: ClassVar[str] = "tiny"

    kind: str
    layers: int = 2
    model: int = 128
    hidden: int = 256
    dropout: float = 0.1
    input_dropout: float = 0.0
    output_dropout: float = 0.0
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

    @classmethod
    def named(cls, kind, size):
        return cls(kind=kind, **sizes_of(kind, size))


def sizes_of(kind: str, size: str) -> dict[str, Any]:
    """The widths of one of the sizes, as far as the kind has them."""
    if size not in SIZES:
        raise ValueError(f"no size is called {size!r}; there are {', '.join(SIZES)}")
    layers, model, hidden, heads = SIZES[size]
    match kind:
        case "transformer":
            return {"layers": layers, "model": model, "hidden": hidden, "heads": heads}
        case "embed":
            return {"model": model}
    return {"layers": max(1, layers // 2), "model": model, "hidden": 2 * model}


@dataclass(frozen=True, kw_only=True)
class WordsConfig(Plain):
    """What a word is to a model, before it stands anywhere.

    Args:
        kind: learned (a vector, with the rest of the model), skip-gram (a vector learnt beforehand from the texts
            trained on), file (a vector learnt elsewhere, as `regard vectors` writes them), one-hot (no vector: a
            place in a list as long as the vocabulary).
        dropout: the share of words that are left out while training.
        frozen: vectors learnt beforehand stay as they are.
        window, epochs: of skip-gram.
        file: with vectors, as wide as the model; its words are known, even those that no training text has.
        ngrams: with one-hot, 2 counts pairs of words as well, 3 triples.
        buckets: for pairs and triples; several of them may share one.
    """

    choices: ClassVar[Choices] = {"kind": WORDS}
    used_by: ClassVar[Choices] = {
        **dict.fromkeys(("window", "epochs"), ("skip-gram",)),
        "frozen": ("skip-gram", "file"),
        "file": ("file",),
        **dict.fromkeys(("ngrams", "buckets"), ("one-hot",)),
    }

    kind: str = "learned"
    dropout: float = 0.0
    frozen: bool = True
    window: int = 5
    epochs: int = 5
    file: str = ""
    ngrams: int = 1
    buckets: int = 2**18

    def __post_init__(self):
        self.check()
        if self.kind == "file" and not self.file:
            raise ValueError("words.kind = 'file' wants words.file = the path of vectors; regard vectors learns some")

    def rooted(self, folder: Path) -> "WordsConfig":
        return replace(self, file=os.path.abspath(folder / self.file)) if self.file else self

    @property
    def stays(self) -> bool:
        """Vectors from before that are not to be changed."""
        return self.kind in ("skip-gram", "file") and self.frozen


@dataclass(frozen=True, kw_only=True)
class PoolingConfig(Plain):
    """How a text's words become one vector.

    Args:
        kind: mean, max, last, tf-idf and log-ratio (by formulas, from the texts trained on), weights (one learned
            number for each word of the vocabulary), attention.
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
        case "tf-idf":
            return TfIdf(torch.zeros(size))
        case "log-ratio":
            return LogRatio(size)
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
