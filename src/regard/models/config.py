"""Plain values as a file holds them in, a checked description of a model out: one for every rung of the ladder."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from regard.attention import Additive, Bilinear, Dot, Learned, Recipe, Sinusoidal
from regard.attention.backends.reference import folded
from regard.layers.block import ACTIVATIONS, ORDERS
from regard.layers.cells import CELLS
from regard.layers.words import TIES
from regard.models.aligning import READOUTS
from regard.models.plain import Choices, Plain

PLAIN = ("elman", "gru", "lstm")
LUONG = ("luong-dot", "luong-general")
ALIGNING = ("bahdanau", *LUONG)
KINDS = (*PLAIN, *ALIGNING, "transformer")

# fields that not every kind can use
USED_BY: Choices = {
    **dict.fromkeys(
        ("heads", "groups", "norm", "activation", "attention_dropout", "encoder", "decoder"), ("transformer",)
    ),
    "cross": (*ALIGNING, "transformer"),
    "cell": ALIGNING,
    "directions": (*PLAIN, *LUONG),
    "readout": ("bahdanau",),
    "input_feeding": LUONG,
}
CHOICES: Choices = {
    "kind": KINDS,
    "tie": tuple(TIES),
    "norm": tuple(ORDERS),
    "activation": tuple(ACTIVATIONS),
    "cell": ("", *CELLS),
    "readout": tuple(READOUTS),
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Plain):
    """Plain fields, as a TOML file holds them. What a kind cannot use must be left as it is.

    Args:
        kind: the rung: elman, gru or lstm without attention; bahdanau, luong-dot, luong-general; transformer.
        layers: of the encoder, and as many of the decoder.
        model: the width of word vectors, and of everything in a Transformer.
        hidden: the width of recurrent states, or of a Transformer's feed-forward layers.
        dropout: on embeddings, between layers or on residual branches, and on recurrent outputs.
        tie: which word tables are one: none, target (and output), all.
        heads, groups: query heads, and the key and value heads that serve them (left out: one each).
        norm: pre or post.
        activation: relu or gelu.
        attention_dropout: on the attention weights.
        encoder, decoder, cross: recipes in TOML, as Recipe.to_toml writes them. A line left out means the kind's own:
            sinusoidal positions beside the words of a Transformer, the additive score of Bahdanau and so on.
        cell: elman, gru or lstm, for decoders with attention (left out: gru for Bahdanau, lstm for Luong).
        directions: 2 lets the encoder read backwards as well, each way with half of `hidden`. Bahdanau's always does,
            each way with all of it.
        readout: maxout or tanh, between Bahdanau's states and the words.
        input_feeding: Luong's decoder is told what it concluded last.
    """

    choices: ClassVar[Choices] = CHOICES
    used_by: ClassVar[Choices] = USED_BY
    usual_size: ClassVar[str] = "small"

    kind: str
    layers: int = 2
    model: int = 128
    hidden: int = 256
    dropout: float = 0.1
    tie: str = "none"
    heads: int = 4
    groups: int | None = None
    norm: str = "pre"
    activation: str = "relu"
    attention_dropout: float = 0.0
    encoder: str = ""
    decoder: str = ""
    cross: str = ""
    cell: str = ""
    directions: int = 1
    readout: str = "maxout"
    input_feeding: bool = False

    def __post_init__(self):
        self.check()
        if self.kind == "transformer" and self.model % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide model = {self.model}; choose one that does")
        if self.groups is not None and self.heads % self.groups:
            raise ValueError(f"groups = {self.groups} does not divide heads = {self.heads}; choose one that does")
        if self.hidden % self.directions:
            raise ValueError(f"two directions cannot share hidden = {self.hidden}; make it even")
        with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, and here they are thrown away
            for place in ("encoder", "decoder", "cross"):
                recipe(self, place)

    @classmethod
    def named(cls, kind: str, size: str = "small") -> "ModelConfig":
        sizes = TRANSFORMER_SIZES if kind == "transformer" else RECURRENT_SIZES
        if size not in sizes:
            raise ValueError(f"no size is called {size!r}; there are {', '.join(sizes)}")
        return sizes[size](kind)


Size = Callable[[str], ModelConfig]
TRANSFORMER_SIZES: dict[str, Size] = {
    "tiny": lambda kind: ModelConfig(kind=kind, layers=2, model=128, heads=4, hidden=256),
    "small": lambda kind: ModelConfig(kind=kind, layers=4, model=256, heads=4, hidden=1024),
    # Vaswani et al. 2017, table 3
    "base": lambda kind: ModelConfig(kind=kind, layers=6, model=512, heads=8, hidden=2048, norm="post", tie="target"),
}
RECURRENT_SIZES: dict[str, Size] = {
    "tiny": lambda kind: ModelConfig(kind=kind, layers=1, model=128, hidden=128),
    "small": lambda kind: ModelConfig(kind=kind, layers=1, model=256, hidden=512, dropout=0.3),
    "base": lambda kind: ModelConfig(kind=kind, layers=2, model=512, hidden=1024, dropout=0.3),
}


def recipe(config: ModelConfig, place: str) -> Recipe:
    """The recipe at one of the three places: what the text says, and the kind's own where it says nothing."""
    try:
        text = getattr(config, place)
        given, written = Recipe.from_toml(text), tomllib.loads(text)
        own = {name: part for name, part in own_parts(config, place).items() if name not in written}
        made = replace(given, **own)
        fit(config, made)
    except ValueError as error:
        raise ValueError(f"the recipe {place!r}: {error}") from None
    return made


def own_parts(config: ModelConfig, place: str) -> dict[str, Any]:
    match config.kind:
        case "transformer":
            return {} if place == "cross" else {"position": Sinusoidal()}
        case "bahdanau":
            return {"score": Additive(config.hidden, hidden=config.hidden, key=2 * config.hidden)}
        case "luong-general":
            return {"score": Bilinear(config.hidden)}
    return {"score": Dot()}


def fit(config: ModelConfig, made: Recipe) -> None:
    """Parts with sizes of their own must have those of the model."""
    if config.kind == "transformer":
        heads, query, key = config.heads, config.model // config.heads, config.model // config.heads
    else:
        heads, query, key = 1, config.hidden, config.hidden * (2 if config.kind == "bahdanau" else 1)
    refuse_misfits(made, heads=heads, query=query, key=key, model=config.model)


def refuse_misfits(made: Recipe, *, heads: int, query: int, key: int, model: int) -> None:
    if why := made.score.misfit(query, key):
        raise ValueError(why)
    width = folded(made, torch.empty(0, heads, 0, query)).shape[-1]
    misfits = [scheme.misfit(heads, width, 0) for scheme in made.on_score]
    misfits += [
        f"{scheme} adds to words of width {scheme.model}, not {model}"
        for scheme in made.beside
        if isinstance(scheme, Learned) and scheme.model != model
    ]
    for why in filter(None, misfits):
        raise ValueError(why)
