"""Plain values as a file holds them in; a checked description of a model that looks at pictures, and the model, out."""

import tomllib
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from regard.attention import Recipe
from regard.layers.patches import PATCHES, Grid, LearnedGrid, grid_of
from regard.models.config import refuse_misfits
from regard.models.convolution import GATES, GROUP, NORMS, ChannelCNN
from regard.models.plain import Choices, Plain
from regard.models.transformer import Stack
from regard.models.vision import POOLS, VisionTransformer

VIT, CNN = ("vit",), ("cnn",)
# layers, width, hidden width, heads
VIT_SIZES = {"tiny": (4, 64, 128, 4), "small": (6, 192, 384, 6), "base": (8, 384, 768, 6)}
# width of the first stage, blocks in each
CNN_SIZES = {"tiny": (16, 1), "small": (32, 2), "base": (64, 2)}


@dataclass(frozen=True, kw_only=True)
class PictureConfig(Plain):
    """What tells pictures apart.

    Args:
        kind: vit (a Transformer over patches) or cnn (convolutions whose channels or places are weighed).
        patch: the side of a vit's patches, in pixels.
        stem: what makes tokens of them: linear (one map for each patch) or convolution (which sees across the edges).
        layers, model, heads, hidden, dropout, attention_dropout: of a vit, as in EncoderConfig.
        pool: how a vit's tokens become one vector: class (a token of its own asks them) or mean.
        recipe: of a vit's attention, in TOML. Without a position, rows and columns of patches are learned.
        width: channels of a cnn's first stage; the last has four times as many.
        blocks: in each of its three stages.
        attention: channel, spatial or none.
        norm: batch, which learns in fewer steps, or group, which never looks at other pictures.
    """

    choices: ClassVar[Choices] = {
        "kind": (*VIT, *CNN),
        "stem": tuple(PATCHES),
        "pool": tuple(POOLS),
        "attention": tuple(GATES),
        "norm": tuple(NORMS),
    }
    used_by: ClassVar[Choices] = {
        **dict.fromkeys(("patch", "stem", "layers", "model", "heads", "hidden", "dropout", "attention_dropout"), VIT),
        **dict.fromkeys(("pool", "recipe"), VIT),
        **dict.fromkeys(("width", "blocks", "attention", "norm"), CNN),
    }
    usual_size: ClassVar[str] = "tiny"

    kind: str
    patch: int = 4
    stem: str = "linear"
    layers: int = 4
    model: int = 64
    heads: int = 4
    hidden: int = 128
    dropout: float = 0.0
    attention_dropout: float = 0.0
    pool: str = "mean"
    recipe: str = ""
    width: int = 16
    blocks: int = 1
    attention: str = "channel"
    norm: str = "batch"

    def __post_init__(self):
        self.check()
        if self.kind == "cnn" and self.width > GROUP and self.width % GROUP:
            raise ValueError(f"width = {self.width} cannot be cut into groups of {GROUP} channels; choose a multiple")
        if self.kind == "vit":
            fitting(self.recipe, self.model, self.heads)

    @classmethod
    def named(cls, kind, size):
        sizes = VIT_SIZES if kind == "vit" else CNN_SIZES
        if size not in sizes:
            raise ValueError(f"no size is called {size!r}; there are {', '.join(sizes)}")
        if kind == "cnn":
            width, blocks = CNN_SIZES[size]
            return cls(kind=kind, width=width, blocks=blocks)
        layers, model, hidden, heads = VIT_SIZES[size]
        return cls(kind=kind, layers=layers, model=model, hidden=hidden, heads=heads)


def fitting(recipe: str, model: int, heads: int) -> None:
    """Whether the recipe and the sizes of a stack over patches fit each other."""
    if model % heads:
        raise ValueError(f"heads = {heads} does not divide model = {model}; choose one that does")
    with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, and here they are thrown away
        try:
            made = Recipe.from_toml(recipe)
            refuse_misfits(made, heads=heads, query=model // heads, key=model // heads, model=model)
        except ValueError as error:
            raise ValueError(f"the recipe: {error}") from None


def patch_recipe(recipe: str, grid: Grid, model: int) -> Recipe:
    """What the text says; where it says nothing of places, rows and columns of patches are learned."""
    made = Recipe.from_toml(recipe)
    return made if "position" in tomllib.loads(recipe) else replace(made, position=LearnedGrid(*grid, model))


def build_picture_model(
    config: PictureConfig, shape: tuple[int, int, int], classes: int
) -> VisionTransformer | ChannelCNN:
    """For pictures of so many channels, rows and columns."""
    channels, rows, columns = shape
    if config.kind == "cnn":
        return ChannelCNN(
            channels,
            classes=classes,
            width=config.width,
            blocks=config.blocks,
            attention=config.attention,
            norm=config.norm,
        )
    stack = Stack(
        layers=config.layers,
        model=config.model,
        heads=config.heads,
        hidden=config.hidden,
        activation="gelu",
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )
    return VisionTransformer(
        PATCHES[config.stem](config.patch, config.model, channels=channels),
        stack,
        picture=(rows, columns),
        classes=classes,
        recipe=patch_recipe(config.recipe, grid_of(rows, columns, config.patch), config.model),
        pool=config.pool,
    )
