"""Vision models: a residual CNN with channel or spatial attention, the Vision Transformer, and questions about images.

stack = StackConfig(layers=6, model=128, heads=4, hidden=512)
model = VisionTransformer(Patches(4, 128), stack, image_size=(32, 32), classes=10)
with record_attention(model) as record:
    logits = model(images)
model.encoder.to_grid(record.weights("blocks.5"))   b h y x: the weight of each patch in each head

model = ChannelCNN(3, classes=10, attention="channel")
with record_attention(model) as record:
    logits = model(images)
record.weights("stage.2.1")                         b c 1 1, one for each channel

model = VQAModel(config, shape=(3, 32, 32), vocabulary_size=60, answers=22)
with record_attention(model) as record:
    logits = model(images, tokens, lengths)
model.to_grid(record.weights("look.0.cross"))       b h t y x: where each token of the question attended

Gates of channels and positions are attention without queries: each has a weight between 0 and 1, without softmax.
"""

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from regard.attention import AttentionSites, Context, EmbeddingPosition, GateCore, Padding, Recipe, SiteName
from regard.layers.embedding import PositionalEmbedding
from regard.layers.pooling import AttentionPooling
from regard.layers.stack import LayerRecipes, StackConfig
from regard.layers.transformer_layers import EncoderLayer, KeysValues, encode_layers
from regard.models.config import EncoderConfig, check_heads, check_recipe_shapes, parse_recipes
from regard.models.config_base import Choices, ConfigBase, RecipeText
from regard.models.encoder import Encoder, make_classifier_head
from regard.ops.dropout import Dropout

# --- patches ---

Grid = tuple[int, int]  # how many patches down, and how many across


def grid_of(height: int, width: int, size: int) -> Grid:
    """How many patches of `size` x `size` pixels an image has."""
    if size < 1:
        raise ValueError(f"a patch has 1 pixel a side or more, not {size}")
    if height % size or width % size or not height or not width:
        raise ValueError(
            f"patches of {size} x {size} pixels do not tile an image of {height} x {width}; "
            "choose a size that divides both, or resize the image"
        )
    return height // size, width // size


def patch(x: Float[Tensor, "b c height width"], size: int) -> Float[Tensor, "b t pixels"]:
    """Each patch flattened, pixel after pixel."""
    grid_of(x.shape[2], x.shape[3], size)
    return rearrange(x, "b c (y p) (x q) -> b (y x) (p q c)", p=size, q=size)


def unpatch(patches: Float[Tensor, "b t pixels"], size: int, grid: Grid) -> Float[Tensor, "b c height width"]:
    """The image again: the inverse of `patch`."""
    check_grid(patches.shape[1], grid)
    return rearrange(patches, "b (y x) (p q c) -> b c (y p) (x q)", y=grid[0], p=size, q=size)


def overlay(weights: Num[Tensor, "*any t"], size: int, grid: Grid) -> Num[Tensor, "*any height width"]:
    """One number for each patch, repeated over all its pixels: a heat map of attention."""
    check_grid(weights.shape[-1], grid)
    return repeat(weights, "... (y x) -> ... (y p) (x q)", y=grid[0], p=size, q=size)


def check_grid(patches: int, grid: Grid) -> None:
    if patches != grid[0] * grid[1]:
        raise ValueError(
            f"{patches} patches are no grid of {grid[0]} x {grid[1]}; leave the class token out, or give another grid"
        )


class Patches(nn.Module):
    """x_p E + b: each patch, flattened, becomes a token by one linear map (Dosovitskiy et al. 2021, eq. 1)."""

    def __init__(self, size: int, width: int, *, channels: int = 3):
        super().__init__()
        grid_of(size, size, size)
        self.size, self.width, self.channels = size, width, channels
        self.project = nn.Linear(size * size * channels, width)

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t model"]:
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ValueError(
                f"images are (batch, {self.channels} channels, rows, columns), not {tuple(x.shape)}; "
                "read them in the mode the model was made for"
            )
        return self.project(patch(x, self.size))


class ConvolutionalPatches(nn.Module):
    """Convolutions of stride 2, each with norm and ReLU, then one of 1 x 1: a patch knows a little of its neighbours.

    Instead of one linear map a few small ones, with which a Transformer learns in fewer steps (Xiao et al. 2021).
    """

    def __init__(self, size: int, width: int, *, channels: int = 3):
        super().__init__()
        if size < 2 or size & (size - 1):
            raise ValueError(f"patches of {size} x {size} pixels cannot be halved to 1; choose 2, 4, 8 or 16")
        self.size, self.width, self.channels = size, width, channels
        halvings = size.bit_length() - 1
        widths = [channels, *(max(1, width >> halvings - 1 - n) for n in range(halvings))]
        self.downsample = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
                    nn.GroupNorm(1, outputs),
                    nn.ReLU(),
                )
                for inputs, outputs in pairwise(widths)
            )
        )
        self.project = nn.Conv2d(width, width, 1)

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t model"]:
        grid_of(x.shape[2], x.shape[3], self.size)
        return rearrange(self.project(self.downsample(x)), "b m y x -> b (y x) m")


PATCHES: dict[str, type[Patches] | type[ConvolutionalPatches]] = {
    "linear": Patches,
    "convolution": ConvolutionalPatches,
}


@dataclass(eq=False)
class LearnedGridPosition(nn.Module, EmbeddingPosition):
    """A learned vector for each row of patches and one for each column; a patch gets the sum of its two."""

    rows: int
    columns: int
    model: int

    def __post_init__(self):
        super().__init__()
        if self.rows < 1 or self.columns < 1:
            raise ValueError(f"{self}: a grid has at least one row and one column")
        # so that the sum of the two is as large as a learned position in a text
        scale = (2 * self.model) ** -0.5
        self.row = nn.Parameter(torch.randn(self.rows, self.model) * scale)
        self.column = nn.Parameter(torch.randn(self.columns, self.model) * scale)

    def table(self, positions, model):
        if positions.shape[-1] > self.rows * self.columns:
            raise ValueError(
                f"{self} has {self.rows * self.columns} patches, not {positions.shape[-1]}; make the grid larger"
            )
        return self.row[positions // self.columns] + self.column[positions % self.columns]


# --- channel and spatial attention ---


Maps = Float[Tensor, "b c h w"]


class FeatureGate(nn.Module, ABC):
    """Abstract: a gate multiplies feature maps by weights between 0 and 1."""

    def __init__(self):
        super().__init__()
        self.core = GateCore("a gate: each weight by itself, between 0 and 1")

    @abstractmethod
    def weights(self, x: Maps) -> Float[Tensor, "b gc gh gw"]:
        """The weights; an axis of size 1 broadcasts."""

    def forward(self, x: Maps) -> Maps:
        return x * self.core(self.weights(x))


class SqueezeExcite(FeatureGate):
    """s = σ(W₂ ReLU(W₁ z + b₁) + b₂), z the mean of each channel: one weight a channel (Hu et al. 2018, eq. 2-4).

    The mean is taken over the whole map, so an image with a black border has other weights than the image alone.
    """

    attention_sites: ClassVar[AttentionSites] = {"": SiteName("", "pooled", "channels")}

    def __init__(self, channels: int, *, reduction: int = 16):
        super().__init__()
        if not 1 <= reduction <= channels:
            raise ValueError(
                f"reduction = {reduction} leaves none of {channels} channels, or adds some; choose 1 to {channels}"
            )
        self.squeeze, self.excite = (
            nn.Linear(channels, channels // reduction),
            nn.Linear(channels // reduction, channels),
        )

    def weights(self, x):
        z = reduce(x, "b c h w -> b c", "mean")
        return rearrange(torch.sigmoid(self.excite(torch.relu(self.squeeze(z)))), "b c -> b c 1 1")


class SpatialAttention(FeatureGate):
    """M = σ(f([mean over channels; maximum over channels])), f a convolution: one weight a position.

    The spatial gate of CBAM (Woo et al. 2018, eq. 3).
    """

    attention_sites: ClassVar[AttentionSites] = {"": SiteName("", "pooled", "places")}

    def __init__(self, *, kernel: int = 7):
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel = {kernel} has no centre; choose an odd number")
        self.convolve = nn.Conv2d(2, 1, kernel, padding=kernel // 2)

    def weights(self, x):
        mean, most = (reduce(x, "b c h w -> b 1 h w", how) for how in ("mean", "max"))
        return torch.sigmoid(self.convolve(torch.cat((mean, most), 1)))


# --- residual CNN ---

NewMaps = Float[Tensor, "b new_c new_h new_w"]
Pixels = Float[Tensor, "b c height width"]
Logits = Float[Tensor, "b classes"]
STAGES = 3  # each twice as wide as the one before, and half as high
GROUP = 16  # channels in a group of the group norm

GATES: dict[str, Callable[[int], FeatureGate] | None] = {
    "channel": lambda channels: SqueezeExcite(channels, reduction=min(16, channels)),
    "spatial": lambda channels: SpatialAttention(),
    "none": None,
}


Norm = Callable[[int], nn.Module]
# With batch norm an image's gradient depends on the other images of the batch while training, and its logits do not in
# `eval`; with group norm nothing ever does. Batch norm learns in fewer steps.
NORMS: dict[str, Norm] = {
    "group": lambda channels: nn.GroupNorm(max(1, channels // GROUP), channels),
    "batch": nn.BatchNorm2d,
}


def convolution(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class ConvolutionBlock(nn.Module):
    """x + gate(f(x)), f being norm, ReLU, convolution, twice (He et al. 2016 b)."""

    def __init__(self, inputs: int, outputs: int, *, norm: Norm, stride: int = 1, gate: FeatureGate | None = None):
        super().__init__()
        self.norm_in, self.norm_between = norm(inputs), norm(outputs)
        self.first, self.second = convolution(inputs, outputs, stride=stride), convolution(outputs, outputs)
        nn.init.zeros_(self.second.weight)  # a block starts as the identity (Goyal et al. 2017, 5.1)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else convolution(inputs, outputs, kernel=1, stride=stride)
        self.gate = gate

    def forward(self, x: Maps) -> NewMaps:
        activated = torch.relu(self.norm_in(x))
        y = self.second(torch.relu(self.norm_between(self.first(activated))))
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        return shortcut + (y if self.gate is None else self.gate(y))


class ChannelCNN(nn.Module):
    """Three stages of residual blocks with a gate on each, the mean of every channel, logits.

    Without gates, and with the norm of a batch, a wide residual network (Zagoruyko & Komodakis 2016).

    Args:
        channels: of an image: 3 for colours, 1 for grey.
        classes: how many there are.
        width: channels of the first stage; the last has four times as many.
        blocks: in each stage.
        attention: channel (squeeze-and-excitation), spatial (CBAM's) or none.
        norm: group or batch.
    """

    def __init__(
        self,
        channels: int = 3,
        *,
        classes: int,
        width: int = 64,
        blocks: int = 2,
        attention: str = "channel",
        norm: str = "group",
    ):
        super().__init__()
        if attention not in GATES:
            raise ValueError(f"attention is one of {', '.join(GATES)}, not {attention!r}")
        if norm not in NORMS:
            raise ValueError(f"norm is one of {', '.join(NORMS)}, not {norm!r}")
        if min(channels, classes, width, blocks) < 1:
            raise ValueError(
                f"channels = {channels}, classes = {classes}, width = {width}, blocks = {blocks}: each is at least 1"
            )
        if width > GROUP and width % GROUP:
            raise ValueError(f"width = {width} cannot be cut into groups of {GROUP} channels; choose a multiple")
        axis = "places" if attention == "spatial" else "channels"
        self.attention_sites: AttentionSites = {"stages.*-*.gate": SiteName("stage.*.*", "pooled", axis)}
        make_gate, widths = GATES[attention], [width, *(width * 2**stage for stage in range(STAGES))]
        self.channels, self.first = channels, convolution(channels, width)
        self.stages = nn.ModuleDict()
        for stage, (inputs, outputs) in enumerate(pairwise(widths)):
            for n in range(blocks):
                self.stages[f"{stage}-{n}"] = ConvolutionBlock(
                    outputs if n else inputs,
                    outputs,
                    norm=NORMS[norm],
                    stride=2 if stage and not n else 1,
                    gate=None if make_gate is None else make_gate(outputs),
                )
        # group norm leaves the means of the channels near each other: the second norm separates them again
        self.norm, self.vector_norm = NORMS[norm](widths[-1]), nn.LayerNorm(widths[-1])
        self.output = nn.Linear(widths[-1], classes)

    def forward(self, x: Pixels) -> Logits:
        # fast convolutions need channels last in memory, and the layers keep them so
        x = self.first(self.check_shape(x)).contiguous(memory_format=torch.channels_last)
        for block in self.stages.values():
            x = block(x)
        return self.output(self.vector_norm(reduce(torch.relu(self.norm(x)), "b c h w -> b c", "mean")))

    def check_shape(self, x: Pixels) -> Pixels:
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise ValueError(f"images are (batch, {self.channels} channels, rows, columns), not {tuple(x.shape)}")
        return x


# --- Vision Transformer ---


X = Float[Tensor, "b t model"]


class TokenPool(nn.Module, ABC):
    """Abstract: how the tokens of an image become one vector. Tokens that it adds come before the patches."""

    extra: int  # tokens of its own

    @abstractmethod
    def add_tokens(self, x: X) -> X:
        """The input of the layers."""

    @abstractmethod
    def pool(self, x: X) -> Float[Tensor, "b model"]:
        """The one vector."""

    @abstractmethod
    def pooled_weights(self, weights: Float[Tensor, "b h i j"]) -> Float[Tensor, "b h j"]:
        """Of a layer's weights, those of the tokens in that vector."""


class ClassToken(TokenPool):
    """A learned token that attends to all patches (Devlin et al. 2019, Dosovitskiy et al. 2021)."""

    extra = 1

    def __init__(self, model: int):
        super().__init__()
        self.token = nn.Parameter(torch.randn(model) * model**-0.5)

    def add_tokens(self, x):
        return torch.cat((repeat(self.token, "model -> b 1 model", b=len(x)).to(x.dtype), x), 1)

    def pool(self, x):
        return x[:, 0]

    def pooled_weights(self, weights):
        return weights[:, :, 0]


class MeanPool(TokenPool):
    """The mean of all patches."""

    extra = 0

    def __init__(self, model: int):
        super().__init__()

    def add_tokens(self, x):
        return x

    def pool(self, x):
        return reduce(x, "b t model -> b model", "mean")

    def pooled_weights(self, weights):
        return reduce(weights, "b h i j -> b h j", "mean")


POOLS: dict[str, type[ClassToken] | type[MeanPool]] = {"class": ClassToken, "mean": MeanPool}


class PatchEncoder(nn.Module):
    """Patches and a stack of layers: a vector for each token of an image.

    Images are all of one size, so nothing is padded, and each is encoded by itself.

    Args:
        patches: the embedding of patches.
        stack: the configuration of the layers.
        image_size: the rows and columns of an image, in pixels.
        recipe: of the attention between patches, row by row, after the class token if there is one. Embedding
            positions are those of the patches alone. Left out: plain, with learned rows and columns. One for all
            layers, or a list with one for each.
        pool: to one vector: class or mean.
        class_position: whether the class token has a position as well, the first; patches then follow from 1 on.
    """

    attention_sites: ClassVar[AttentionSites] = {"layers.*.attention": SiteName("blocks.*", "patches", "patches")}

    def __init__(
        self,
        patches: Patches | ConvolutionalPatches,
        stack: StackConfig,
        *,
        image_size: tuple[int, int],
        recipe: LayerRecipes | None = None,
        pool: str = "mean",
        class_position: bool = False,
    ):
        super().__init__()
        if patches.width != stack.model:
            raise ValueError(
                f"patches of width {patches.width} do not fit layers of width {stack.model}; make them equal"
            )
        if pool not in POOLS:
            raise ValueError(f"no pool is called {pool!r}; there are {', '.join(POOLS)}")
        self.image_size, self.grid = image_size, grid_of(*image_size, patches.size)
        self.class_position = class_position
        recipes = stack.recipes(
            Recipe(position=LearnedGridPosition(*self.grid, stack.model)) if recipe is None else recipe
        )
        self.patches, self.dropout = patches, Dropout(stack.dropout)
        self.positions, self.pool = PositionalEmbedding(recipes[0].fresh()), POOLS[pool](stack.model)
        self.layers = nn.ModuleList(EncoderLayer(stack, each) for each in recipes)
        self.norm = stack.final_norm()

    def forward(self, x: Pixels) -> X:
        """The class token first, if there is one, then the patches row by row."""
        if tuple(x.shape[-2:]) != tuple(self.image_size):
            raise ValueError(
                f"this model reads images of {self.image_size[0]} x {self.image_size[1]} pixels, "
                f"not {' x '.join(map(str, x.shape[-2:]))}; resize them"
            )
        x = self.patches(x)
        if self.class_position:
            x = self.positions(self.pool.add_tokens(x), 0)
        else:
            x = self.pool.add_tokens(self.positions(x, 0))
        x = self.dropout(x)
        return encode_layers(self.layers, self.norm, x)

    def to_grid(self, weights: Float[Tensor, "b h t t"]) -> Float[Tensor, "b h y x"]:
        """Of one layer's weights, that of each patch in the pooled vector; the class token is left out."""
        return rearrange(
            self.pool.pooled_weights(weights)[..., self.pool.extra :], "b h (y x) -> b h y x", y=self.grid[0]
        )


def rollout(weights: Sequence[Float[Tensor, "b h t t"]]) -> Float[Tensor, "b t t"]:
    """How much of each token's last vector comes from each patch, layer upon layer (Abnar & Zuidema 2020).

    A layer is taken for the mean of its heads, averaged with the identity of the residual path.
    """
    through = torch.eye(weights[0].shape[-1], device=weights[0].device, dtype=weights[0].dtype)[None]
    for layer in weights:
        mixed = (reduce(layer, "b h i j -> b i j", "mean") + torch.eye(layer.shape[-1]).to(layer)) / 2
        through = mixed @ through
    return through


class VisionTransformer(nn.Module):
    """Patches, a stack of layers, one vector, logits (Dosovitskiy et al. 2021, whose stack is pre-norm with gelu).

    `classes` is how many there are; the other arguments are those of PatchEncoder.
    """

    attention_sites: ClassVar[AttentionSites] = {
        "encoder.layers.*.attention": SiteName("blocks.*", "patches", "patches")
    }

    def __init__(
        self,
        patches: Patches | ConvolutionalPatches,
        stack: StackConfig,
        *,
        image_size: tuple[int, int],
        classes: int,
        recipe: LayerRecipes | None = None,
        pool: str = "class",
        class_position: bool = False,
    ):
        super().__init__()
        if classes < 1:
            raise ValueError(f"classes = {classes} should be at least 1")
        self.encoder = PatchEncoder(
            patches, stack, image_size=image_size, recipe=recipe, pool=pool, class_position=class_position
        )
        self.output = nn.Linear(stack.model, classes)

    def forward(self, x: Pixels) -> Logits:
        return self.output(self.encoder.pool.pool(self.encoder(x)))


# --- configuration ---


VIT, CNN = ("vit",), ("cnn",)
# layers, width, hidden width, heads
VIT_SIZES = {"tiny": (4, 64, 128, 4), "small": (6, 192, 384, 6), "base": (8, 384, 768, 6)}
# width of the first stage, blocks in each
CNN_SIZES = {"tiny": (16, 1), "small": (32, 2), "base": (64, 2)}


@dataclass(frozen=True, kw_only=True)
class VisionConfig(ConfigBase):
    """An image classifier. Keys without a sentence here are those of `ConfigBase`.

    Args:
        kind: vit (a Transformer over patches) or cnn (convolutions with channel or spatial attention).
        patch: the side of a vit's patches, in pixels.
        stem: the embedding of patches: linear (one map for each patch) or convolution (which sees across the edges).
        pool: how a vit's tokens become one vector: class (a class token) or mean.
        class_position: whether the class token has a position as well, before those of the patches.
        recipe: the recipe of a vit's attention, in TOML, or a list with one for each layer; without a position, rows
            and columns of patches are learned.
        width: channels of a cnn's first stage; the last has four times as many.
        blocks: how many a cnn has in each of its three stages.
        attention: what a cnn's blocks have: channel, spatial or none.
        norm: what a cnn normalises by: batch, which learns in fewer steps, or group, which does not depend on other
            images.
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
        **dict.fromkeys(("pool", "class_position", "norm_eps", "recipe"), VIT),
        **dict.fromkeys(("width", "blocks", "attention", "norm"), CNN),
    }
    sizes: ClassVar[tuple[str, ...]] = tuple(VIT_SIZES)
    default_size: ClassVar[str] = "tiny"

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
    class_position: bool = False
    norm_eps: float = 1e-5
    recipe: RecipeText = ""
    width: int = 16
    blocks: int = 1
    attention: str = "channel"
    norm: str = "batch"

    def __post_init__(self):
        self.check()
        if self.kind == "cnn" and self.width > GROUP and self.width % GROUP:
            raise ValueError(f"width = {self.width} cannot be cut into groups of {GROUP} channels; choose a multiple")
        if self.class_position and self.pool != "class":
            raise ValueError(f"class_position = true means nothing to pool = {self.pool!r}; use pool = 'class'")
        if self.kind == "vit":
            check_vision_sizes(self)

    @classmethod
    def from_size(cls, kind, size):
        sizes = VIT_SIZES if kind == "vit" else CNN_SIZES
        if size not in sizes:
            raise ValueError(f"no size is called {size!r}; there are {', '.join(sizes)}")
        if kind == "cnn":
            width, blocks = CNN_SIZES[size]
            return cls(kind=kind, width=width, blocks=blocks)
        layers, model, hidden, heads = VIT_SIZES[size]
        return cls(kind=kind, layers=layers, model=model, hidden=hidden, heads=heads)


def check_vision_sizes(config: VisionConfig) -> None:
    """Whether the recipe and the sizes of a stack over patches fit each other."""
    model, heads = config.model, config.heads
    check_heads(model, heads)

    def check(text: str) -> Recipe:
        try:
            parsed = build_patch_recipe(text, (1, 1), model)
            check_recipe_shapes(parsed, heads=heads, query=model // heads, key=model // heads, model=model)
        except ValueError as error:
            raise ValueError(f"the recipe: {error}") from None
        return parsed

    with torch.random.fork_rng(devices=[]):  # a learned part draws its weights, which are discarded here
        vision_stack(config).recipes(parse_recipes(config.recipe, check))


def vision_stack(config: VisionConfig) -> StackConfig:
    return StackConfig(
        layers=config.layers,
        model=config.model,
        heads=config.heads,
        hidden=config.hidden,
        activation="gelu",
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )


def build_patch_recipe(recipe: str, grid: Grid, model: int) -> Recipe:
    """What the text says; where it says nothing of positions, rows and columns of patches are learned."""
    parsed = Recipe.from_toml(recipe)
    return (
        parsed if "position" in tomllib.loads(recipe) else replace(parsed, position=LearnedGridPosition(*grid, model))
    )


def build_vision_model(
    config: VisionConfig, shape: tuple[int, int, int], classes: int
) -> VisionTransformer | ChannelCNN:
    """For images of so many channels, rows and columns."""
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
    grid = grid_of(rows, columns, config.patch)
    return VisionTransformer(
        PATCHES[config.stem](config.patch, config.model, channels=channels),
        vision_stack(config),
        image_size=(rows, columns),
        classes=classes,
        recipe=parse_recipes(config.recipe, lambda text: build_patch_recipe(text, grid, config.model)),
        pool=config.pool,
        class_position=config.class_position,
    )


# --- visual question answering ---


Tokens = Int[Tensor, "b t"]
Lengths = Int[Tensor, " b"]
ImageIndex = Int[Tensor, " b"]
ImagePixels = Float[Tensor, "p c height width"]
AnswerLogits = Float[Tensor, "b answers"]


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
        self, pixels: ImagePixels, tokens: Tokens, lengths: Lengths, image_index: ImageIndex | None = None
    ) -> AnswerLogits:
        """Question b ends after lengths[b] tokens, and is about image image_index[b], or image b without an index."""
        x, patches = self.question_encoder(tokens, lengths), self.image_encoder(pixels)
        for layer in self.layers:
            assert isinstance(layer, CrossAttentionLayer)
            x = layer(x, layer.cross_keys_values(patches, image_index), Padding(lengths))
        return self.output(self.pooling(self.norm(x), tokens, lengths))

    def to_grid(self, weights: Float[Tensor, "b h t patches"]) -> Float[Tensor, "b h t y x"]:
        """One layer's weights over the patches, laid out as the image is."""
        return rearrange(weights, "b h t (y x) -> b h t y x", y=self.image_encoder.grid[0])
