"""Visual question answering: a question's tokens attend to an image's patches by cross-attention.

model = VQAModel(config, shape=(3, 32, 32), vocabulary_size=60, answers=22)
with record_attention(model) as record:
    logits = model(pixels, tokens, lengths)
model.to_grid(record.weights("look.0.cross"))         b h t y x: where each token of the question attended
"""

from dataclasses import dataclass
from typing import ClassVar

from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import AttentionSites, Context, Padding, Recipe, SiteName
from regard.layers.pooling import AttentionPooling
from regard.layers.vision import PATCHES
from regard.models.config import EncoderConfig, check_heads
from regard.models.config_base import Choices, ConfigBase
from regard.models.encoder import Encoder, make_classifier_head
from regard.models.stack import StackConfig
from regard.models.transformer_layers import EncoderLayer, KeysValues
from regard.models.vision import PatchEncoder

X = Float[Tensor, "b t model"]
Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]
ImageIndex = Int[Tensor, " b"]
Pixels = Float[Tensor, "p c height width"]
Logits = Float[Tensor, "b answers"]


@dataclass(frozen=True, kw_only=True)
class VQAConfig(ConfigBase):
    """A model that answers questions about images. Keys without a sentence here are those of `ConfigBase`.

    Args:
        kind: cross, cross-attention of the question's tokens to the image's patches.
        patch: the side of the patches, in pixels.
        stem: the embedding of patches: linear (one map for each patch) or convolution (which sees across the edges).
        image_layers: layers of self-attention of the patches.
        question_layers: layers of self-attention of the tokens, before cross-attention.
        layers: layers of cross-attention and self-attention after them.
    """

    choices: ClassVar[Choices] = {"kind": ("cross",), "stem": tuple(PATCHES)}
    used_by: ClassVar[Choices] = {}

    kind: str = "cross"
    patch: int = 4
    stem: str = "linear"
    image_layers: int = 2
    question_layers: int = 1
    layers: int = 2
    model: int = 64
    heads: int = 4
    hidden: int = 128
    dropout: float = 0.0

    def __post_init__(self):
        self.check()
        check_heads(self.model, self.heads)

    def stack(self, layers: int) -> StackConfig:
        return StackConfig(
            layers=layers,
            model=self.model,
            heads=self.heads,
            hidden=self.hidden,
            activation="gelu",
            dropout=self.dropout,
        )


class CrossAttentionLayer(nn.Module):
    """Cross-attention to the patches, self-attention, feed-forward."""

    def __init__(self, stack: StackConfig):
        super().__init__()
        branches = 3 * stack.layers
        self.encoder_layer = EncoderLayer(stack, Recipe())
        self.cross, self.residual_cross = stack.attention(Recipe(), branches), stack.residual()

    def cross_keys_values(self, patches: Float[Tensor, "p s model"], image_index: ImageIndex | None) -> KeysValues:
        """The keys and values of each question's image, computed once for all the questions about it."""
        k, v = (
            rearrange(part(patches), "p s (g d) -> p g s d", g=self.cross.groups)
            for part in (self.cross.key, self.cross.value)
        )
        return (k, v) if image_index is None else (k.index_select(0, image_index), v.index_select(0, image_index))

    def forward(self, x: X, picture: KeysValues, padding: Padding) -> X:
        cross = self.cross
        x, _ = self.residual_cross((x, x), lambda y: cross.cross_heads(y, picture, Context()), cross.output)
        return self.encoder_layer(x, Context(padding))


class VQAModel(nn.Module):
    """Encoders of question and image, layers of cross-attention, pooling, and logits of the answers.

    Padding changes nothing, and each question sees its own image alone.

    Args:
        config: the sizes.
        shape: channels, rows and columns of an image.
        vocabulary_size: of the questions.
        answers: how many there are to choose from.
    """

    attention_sites: ClassVar[AttentionSites] = {
        "question_encoder.context.layers.*.attention": SiteName("question.*", "text", "text"),
        "image_encoder.layers.*.attention": SiteName("picture.*", "patches", "patches"),
        "layers.*.cross": SiteName("look.*.cross", "text", "patches"),
        "layers.*.encoder_layer.attention": SiteName("look.*.self", "text", "text"),
    }

    def __init__(self, config: VQAConfig, *, shape: tuple[int, int, int], vocabulary_size: int, answers: int):
        super().__init__()
        channels, rows, columns = shape
        self.question_encoder = Encoder(
            EncoderConfig(
                kind="transformer",
                layers=config.question_layers,
                model=config.model,
                heads=config.heads,
                hidden=config.hidden,
                dropout=config.dropout,
                activation="gelu",
            ),
            vocabulary_size,
        )
        self.image_encoder = PatchEncoder(
            PATCHES[config.stem](config.patch, config.model, channels=channels),
            config.stack(config.image_layers),
            image_size=(rows, columns),
        )
        stack = config.stack(config.layers)
        self.layers = nn.ModuleList(CrossAttentionLayer(stack) for _ in range(config.layers))
        self.norm, self.pooling = stack.final_norm(), AttentionPooling(config.model)
        self.output = make_classifier_head(config.model, answers)

    def forward(
        self, pixels: Pixels, tokens: Tokens, lengths: Lengths, image_index: ImageIndex | None = None
    ) -> Logits:
        """Question b ends after lengths[b] tokens, and is about image image_index[b], or image b without an index."""
        x, patches = self.question_encoder(tokens, lengths), self.image_encoder(pixels)
        for layer in self.layers:
            assert isinstance(layer, CrossAttentionLayer)
            x = layer(x, layer.cross_keys_values(patches, image_index), Padding(lengths))
        return self.output(self.pooling(self.norm(x), tokens, lengths))

    def to_grid(self, weights: Float[Tensor, "b h t patches"]) -> Float[Tensor, "b h t y x"]:
        """One layer's weights over the patches, laid out as the image is."""
        return rearrange(weights, "b h t (y x) -> b h t y x", y=self.image_encoder.grid[0])
