"""A picture and a question in, a score for each answer out: words look at patches by cross-attention.

model = Answering(config, shape=(3, 32, 32), words=60, answers=22)
logits, looked = model.look(pixels, tokens, lengths)
model.onto_grid(looked.weights["look.0"])            b h t y x: where each word of the question looked
"""

from dataclasses import dataclass
from typing import ClassVar

from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Padding, Recipe, Steps, attend, steps
from regard.layers.patches import PATCHES
from regard.layers.pooling import Attention
from regard.models.encoder import Encoder, chosen
from regard.models.picture_config import fitting
from regard.models.plain import Choices, Plain
from regard.models.reading_config import EncoderConfig
from regard.models.seq2seq import Looked
from regard.models.transformer import EncoderLayer, KeysValues, Stack
from regard.models.vision import PatchEncoder

X = Float[Tensor, "b t model"]
Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]
About = Int[Tensor, " b"]
Pixels = Float[Tensor, "p c height width"]
Logits = Float[Tensor, "b answers"]


@dataclass(frozen=True, kw_only=True)
class AnswerConfig(Plain):
    """What answers questions about pictures.

    Args:
        kind: cross, in which the question's words ask the picture's patches.
        patch, stem: as in PictureConfig.
        picture_layers: in which patches look at each other.
        question_layers: in which words look at each other, before they see the picture.
        layers: in which words look at each other, then at the patches.
        model, heads, hidden, dropout: of all of them.
    """

    choices: ClassVar[Choices] = {"kind": ("cross",), "stem": tuple(PATCHES)}
    used_by: ClassVar[Choices] = {}

    kind: str = "cross"
    patch: int = 4
    stem: str = "linear"
    picture_layers: int = 2
    question_layers: int = 1
    layers: int = 2
    model: int = 64
    heads: int = 4
    hidden: int = 128
    dropout: float = 0.0

    def __post_init__(self):
        self.check()
        fitting("", self.model, self.heads)

    def stack(self, layers: int) -> Stack:
        return Stack(
            layers=layers,
            model=self.model,
            heads=self.heads,
            hidden=self.hidden,
            activation="gelu",
            dropout=self.dropout,
        )


class LookingLayer(nn.Module):
    """Every word looks at the words, then at the patches, then thinks by itself."""

    def __init__(self, stack: Stack):
        super().__init__()
        branches = 3 * stack.layers
        self.words = EncoderLayer(stack, Recipe())
        self.cross, self.around_cross = stack.attention(Recipe(), branches), stack.around()

    def remember(self, patches: X, about: About | None) -> KeysValues:
        """The keys and values of each question's picture, made once for all the questions about it."""
        k, v = (
            rearrange(part(patches), "p s (g d) -> p g s d", g=self.cross.groups)
            for part in (self.cross.key, self.cross.value)
        )
        return (k, v) if about is None else (k.index_select(0, about), v.index_select(0, about))

    def forward(self, x: X, picture: KeysValues, padding: Padding) -> X:
        q = self.asks(self.around_cross.before(x))
        y = attend(q, *picture, self.cross.recipe_for(None, None))
        return self.words(self.around_cross.after(x, self.cross.joined(y)), padding)

    def look(self, x: X, picture: KeysValues, padding: Padding) -> tuple[X, Steps]:
        seen = steps(self.asks(self.around_cross.before(x)), *picture, self.cross.recipe_for(None, None))
        return self.words(self.around_cross.after(x, self.cross.joined(seen.output)), padding), seen

    def asks(self, x: X) -> Float[Tensor, "b h t d"]:
        return rearrange(self.cross.query(x), "b t (h d) -> b h t d", h=self.cross.heads)


class Answering(nn.Module):
    """The question's words, each a vector in context, ask the patches; one vector of them all scores the answers.

    Padding changes nothing, and each question is read with its own picture alone.

    Args:
        config: the sizes.
        shape: channels, rows and columns of a picture.
        words: the size of the vocabulary.
        answers: how many there are to choose from.
    """

    def __init__(self, config: AnswerConfig, *, shape: tuple[int, int, int], words: int, answers: int):
        super().__init__()
        channels, rows, columns = shape
        self.question = Encoder(
            EncoderConfig(
                kind="transformer",
                layers=config.question_layers,
                model=config.model,
                heads=config.heads,
                hidden=config.hidden,
                dropout=config.dropout,
                activation="gelu",
            ),
            words,
        )
        self.picture = PatchEncoder(
            PATCHES[config.stem](config.patch, config.model, channels=channels),
            config.stack(config.picture_layers),
            picture=(rows, columns),
        )
        stack = config.stack(config.layers)
        self.layers = nn.ModuleList(LookingLayer(stack) for _ in range(config.layers))
        self.norm, self.pooling = stack.last(), Attention(config.model)
        self.output = chosen(config.model, answers)

    def forward(self, pixels: Pixels, tokens: Tokens, lengths: Lengths, about: About | None = None) -> Logits:
        """Question b ends after lengths[b] tokens, and is about picture about[b]; if not told, about picture b."""
        x, patches = self.question(tokens, lengths), self.picture(pixels)
        for layer in self.layers:
            assert isinstance(layer, LookingLayer)
            x = layer(x, layer.remember(patches, about), Padding(lengths))
        return self.output(self.pooling(self.norm(x), tokens, lengths))

    def look(
        self, pixels: Pixels, tokens: Tokens, lengths: Lengths, about: About | None = None
    ) -> tuple[Logits, Looked]:
        """As `forward`, and the weights of every layer's words over the patches, look.0 and so on; and of the words."""
        x, patches, seen = self.question(tokens, lengths), self.picture(pixels), {}
        for n, layer in enumerate(self.layers):
            assert isinstance(layer, LookingLayer)
            x, looked = layer.look(x, layer.remember(patches, about), Padding(lengths))
            seen[f"look.{n}"] = [looked]
        pooled = self.pooling.look(self.norm(x), tokens, lengths)
        weights = Looked.of(seen).weights | {"pooling": rearrange(pooled.weights, "b t -> b 1 1 t")}
        return self.output(pooled.vector), Looked(weights)

    def onto_grid(self, weights: Float[Tensor, "b h t patches"]) -> Float[Tensor, "b h t y x"]:
        """One layer's weights over the patches, laid out as the picture is."""
        return rearrange(weights, "b h t (y x) -> b h t y x", y=self.picture.grid[0])
