"""A sentence in, the same sentence out, through a latent of fixed size: the sequence autoencoder.

The fourth lecture's appendix: "the encoder … compresses it into a latent space representation", and the decoder
"takes the compressed representation … and attempts to reconstruct the original input from it". What the latent does not
hold is lost, for the decoder sees nothing else. It is a Seq2Seq whose target is its source, and is trained, searched
and scored like any other.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import nn

from regard.layers.bottleneck import Asked, Bottleneck, Latent, Lengths, Squeezed, Tokens
from regard.layers.cells import CELLS
from regard.layers.dropout import Dropout
from regard.layers.pooling import Last, Mean, Pooling
from regard.layers.recurrent import Recurrent
from regard.models.encoder import Encoder
from regard.models.from_latent import Crossing, FromLatent, Unrolled
from regard.models.plain import Choices, Plain
from regard.models.reading_config import (
    BY_ATTENTION,
    ORDERLY,
    RECURRENT,
    WRITERS,
    EncoderConfig,
    recipe_of,
    stack_of,
    wants_tree,
)
from regard.models.seq2seq import Looked, Memory, Seq2Seq, State

STATIC: dict[str, type[Pooling]] = {"last": Last, "mean": Mean}


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig(Plain):
    """An autoencoder of sentences. The latent holds latents × latent numbers, whatever the bottleneck.

    Args:
        kind: of encoder and decoder: elman, gru, lstm, transformer.
        bottleneck: attention (as many learned queries as there are latents ask all words), or without: last (the last
            state) or mean (of all states); that one vector is cut into the latents.
        latents: how many vectors the latent is; a decoder that is given one has nothing to choose.
        latent: the width of each.
        layers: of the encoder, and as many of the decoder.
        model, hidden, dropout, directions, groups, norm, activation, attention_dropout: as in EncoderConfig.
        heads: of a Transformer's layers, and of each query of the bottleneck.
        recipe: TOML, of both self-attentions; the decoder's looks back in any case.
    """

    choices: ClassVar[Choices] = {"kind": WRITERS, "bottleneck": ("attention", *STATIC), **ORDERLY}
    used_by: ClassVar[Choices] = {
        **{name: kinds for name, kinds in BY_ATTENTION.items() if name != "heads"},
        "directions": RECURRENT,
    }
    usual_size: ClassVar[str] = "tiny"

    kind: str
    bottleneck: str = "attention"
    latents: int = 4
    latent: int = 32
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
        if self.kind in RECURRENT and self.bottleneck in STATIC and self.heads != AutoencoderConfig.heads:
            raise ValueError(
                f"heads = {self.heads} means nothing to a model of kind {self.kind!r} with the bottleneck "
                f"{self.bottleneck!r}; leave it out, or use bottleneck = 'attention'"
            )
        if self.bottleneck == "last" and self.directions > 1:
            raise ValueError(
                "read backwards, the state at the last word knows no other; use directions = 1, or bottleneck = "
                "'mean' or 'attention'"
            )
        if self.bottleneck == "attention" and self.encoder.width % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide the states' width {self.encoder.width}")
        with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, and here they are thrown away
            if wants_tree(recipe_of(self.encoder)):
                raise ValueError(
                    "the recipe wants the trees of whole sentences, which nobody knows while one is being written; "
                    "use a place in the row, such as Sinusoidal()"
                )

    @property
    def encoder(self) -> EncoderConfig:
        """The half that reads."""
        names = {field.name for field in fields(EncoderConfig)} & {field.name for field in fields(self)}
        if self.kind in RECURRENT:
            names -= {"heads"}  # those are the bottleneck's
        return EncoderConfig(**{name: getattr(self, name) for name in names})

    @classmethod
    def named(cls, kind: str, size: str = "tiny") -> "AutoencoderConfig":
        if size not in SIZES:
            raise ValueError(f"no size is called {size!r}; there are {', '.join(SIZES)}")
        return SIZES[size](kind)


SIZES: dict[str, Callable[[str], AutoencoderConfig]] = {
    "tiny": lambda kind: AutoencoderConfig(kind=kind, layers=1, dropout=0.0),
    "small": lambda kind: AutoencoderConfig(kind=kind, model=256, hidden=512, latents=8, latent=64),
}


class Autoencoder(Seq2Seq[Memory, State]):
    """decoder(bottleneck(encoder(sentence))): one table of words reads and scores on both sides.

    Args:
        encoder: words to vectors in context.
        bottleneck: those to the latent.
        decoder: the latent, and the words so far, to what the next is predicted from.
    """

    def __init__(
        self, encoder: Encoder, bottleneck: Bottleneck, decoder: FromLatent[Any, Any], *, dropout: float = 0.0
    ):
        super().__init__()
        self.encoder, self.bottleneck, self.decoder = encoder, bottleneck, decoder
        self.dropout = Dropout(dropout)
        self.bias = nn.Parameter(torch.zeros(len(encoder.words.weight)))

    def latent(self, tokens: Tokens, lengths: Lengths) -> Latent:
        """All that will be known of a sentence; it ends after lengths[b] words."""
        return self.bottleneck(self.encoder(tokens, lengths), tokens, lengths)

    def look_in(self, tokens: Tokens, lengths: Lengths) -> tuple[Latent, Looked]:
        """As `latent`, and the weights on the way: of the encoder's layers, and of each word in each latent vector."""
        x, seen = self.encoder.look(tokens, lengths)
        latent, entered = self.bottleneck.look(x, tokens, lengths)
        return latent, Looked(
            {f"encoder.{name}": some for name, some in seen.weights.items()} | {"bottleneck": entered}
        )

    def remember(self, latent: Latent) -> Memory:
        """What the decoder goes by, from a latent of any origin: a sentence's, or a point between two."""
        if latent.dim() != 3 or tuple(latent.shape[1:]) != self.decoder.shape:
            k, m = self.decoder.shape
            raise ValueError(
                f"this model's latents are {k} vectors of width {m}, (b, {k}, {m}), not {(*latent.shape,)}"
            )
        return self.decoder.remember(latent)

    def encode(self, source, lengths):
        return self.remember(self.latent(source, lengths))

    def start(self, memory):
        return self.decoder.start(memory)

    def reach(self, tokens, state, memory, attending):
        x, after, seen = self.decoder.read(self.dropout(self.encoder.words.read(tokens)), state, memory, attending)
        return self.dropout(x), after, {f"decoder.{name}": steps for name, steps in seen.items()}

    def output(self):
        return self.encoder.words, self.bias


def build_autoencoder(config: AutoencoderConfig, size: int) -> Autoencoder:
    """With fresh weights, for a vocabulary of this size."""
    encoder, sizes = Encoder(config.encoder, size), {"latents": config.latents, "latent": config.latent}
    bottleneck = (
        Squeezed(STATIC[config.bottleneck](), encoder.width, **sizes)
        if config.bottleneck in STATIC
        else Asked(encoder.width, heads=config.heads, **sizes)
    )
    if config.kind == "transformer":
        decoder = Crossing(stack_of(config.encoder), recipe_of(config.encoder), **sizes)
        return Autoencoder(encoder, bottleneck, decoder)
    rnn = Recurrent(config.model, config.hidden, cell=CELLS[config.kind], layers=config.layers, dropout=config.dropout)
    return Autoencoder(encoder, bottleneck, Unrolled(rnn, model=config.model, **sizes), dropout=config.dropout)
