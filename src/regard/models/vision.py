"""A picture in, a score for each class out: the Vision Transformer, which can be asked where it looked.

patches = Patches(4, 128)
model = VisionTransformer(patches, Stack(layers=6, model=128, heads=4, hidden=512), picture=(32, 32), classes=10)
logits, looked = model.look(pictures)
model.encoder.onto_grid(looked.weights["layer.5"])   b h y x: how much each head saw of each patch
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from einops import rearrange, reduce, repeat
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import MultiHeadAttention, Recipe, Steps
from regard.layers.block import FeedForward
from regard.layers.dropout import Dropout
from regard.layers.patches import ConvolvedPatches, LearnedGrid, Patches, grid_of
from regard.models.seq2seq import Looked
from regard.models.transformer import Placed, Stack

X = Float[Tensor, "b t model"]
Pixels = Float[Tensor, "b c height width"]
Logits = Float[Tensor, "b classes"]


class Pool(nn.Module, ABC):
    """Abstract: how the tokens of a picture become one vector. Whatever it adds stands before the patches."""

    extra: int  # tokens of its own

    @abstractmethod
    def add(self, x: X) -> X:
        """The tokens the layers read."""

    @abstractmethod
    def take(self, x: X) -> Float[Tensor, "b model"]:
        """The one vector."""

    @abstractmethod
    def asks(self, weights: Float[Tensor, "b h i j"]) -> Float[Tensor, "b h j"]:
        """Of a layer's weights, those by which tokens enter that vector."""


class ClassToken(Pool):
    """A learned token that looks at all patches (Devlin et al. 2019, Dosovitskiy et al. 2021)."""

    extra = 1

    def __init__(self, model: int):
        super().__init__()
        self.token = nn.Parameter(torch.randn(model) * model**-0.5)

    def add(self, x):
        return torch.cat((repeat(self.token, "model -> b 1 model", b=len(x)).to(x.dtype), x), 1)

    def take(self, x):
        return x[:, 0]

    def asks(self, weights):
        return weights[:, :, 0]


class Mean(Pool):
    """The mean of all patches."""

    extra = 0

    def __init__(self, model: int):
        super().__init__()

    def add(self, x):
        return x

    def take(self, x):
        return reduce(x, "b t model -> b model", "mean")

    def asks(self, weights):
        return reduce(weights, "b h i j -> b h j", "mean")


POOLS: dict[str, type[ClassToken] | type[Mean]] = {"class": ClassToken, "mean": Mean}


class PatchLayer(nn.Module):
    """Every patch looks at every patch the recipe lets it see, then thinks by itself."""

    def __init__(self, stack: Stack, recipe: Recipe):
        super().__init__()
        branches = 2 * stack.layers
        self.attention: MultiHeadAttention = stack.attention(recipe, branches)
        self.feed_forward: FeedForward = stack.feed_forward(branches)
        self.around_attention, self.around_feed_forward = stack.around(), stack.around()

    def forward(self, x: X) -> X:
        x = self.around_attention(x, self.attention)
        return self.around_feed_forward(x, self.feed_forward)

    def look(self, x: X) -> tuple[X, Steps]:
        y, seen = self.attention.look(self.around_attention.before(x))
        x = self.around_attention.after(x, y)
        return self.around_feed_forward(x, self.feed_forward), seen


class PatchEncoder(nn.Module):
    """Patches and a stack of layers: a vector for each token of a picture, for whoever attends to them.

    Pictures are all of one size, so nothing is padded, and each is read by itself.

    Args:
        patches: makes tokens of a picture.
        stack: what the layers are made of.
        picture: the rows and columns of a picture, in pixels.
        recipe: of the attention between patches, read row by row, after the class token if there is one. Places
            beside the tokens are those of the patches alone. Left out: plain, with learned rows and columns.
        pool: how one vector is made of them: class or mean.
    """

    def __init__(
        self,
        patches: Patches | ConvolvedPatches,
        stack: Stack,
        *,
        picture: tuple[int, int],
        recipe: Recipe | None = None,
        pool: str = "mean",
    ):
        super().__init__()
        if patches.width != stack.model:
            raise ValueError(
                f"patches of width {patches.width} do not fit layers of width {stack.model}; make them one"
            )
        if pool not in POOLS:
            raise ValueError(f"no pool is called {pool!r}; there are {', '.join(POOLS)}")
        self.picture, self.grid = picture, grid_of(*picture, patches.size)
        recipe = Recipe(position=LearnedGrid(*self.grid, stack.model)) if recipe is None else recipe
        self.patches, self.dropout = patches, Dropout(stack.dropout)
        self.placed, self.pool = Placed(recipe.fresh()), POOLS[pool](stack.model)
        self.layers = nn.ModuleList(PatchLayer(stack, recipe) for _ in range(stack.layers))
        self.norm = stack.last()

    def tokens(self, x: Pixels) -> X:
        """What the first layer reads."""
        if tuple(x.shape[-2:]) != tuple(self.picture):
            raise ValueError(
                f"this model reads pictures of {self.picture[0]} x {self.picture[1]} pixels, "
                f"not {' x '.join(map(str, x.shape[-2:]))}; resize them"
            )
        return self.dropout(self.pool.add(self.placed(self.patches(x), 0)))

    def forward(self, x: Pixels) -> X:
        """The pool's own token first, if it has one, then the patches row by row."""
        x = self.tokens(x)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def look(self, x: Pixels) -> tuple[X, Looked]:
        """As `forward`, and the weights of every layer by its name, layer.0 and so on."""
        x, seen = self.tokens(x), {}
        for n, layer in enumerate(self.layers):
            assert isinstance(layer, PatchLayer)
            x, steps = layer.look(x)
            seen[f"layer.{n}"] = [steps]
        return self.norm(x), Looked.of(seen)

    def onto_grid(self, weights: Float[Tensor, "b h t t"]) -> Float[Tensor, "b h y x"]:
        """Of one layer's weights, how much the pooled vector is made of each patch; the class token is left out."""
        return rearrange(self.pool.asks(weights)[..., self.pool.extra :], "b h (y x) -> b h y x", y=self.grid[0])


def rollout(weights: Sequence[Float[Tensor, "b h t t"]]) -> Float[Tensor, "b t t"]:
    """How much of each token's last vector comes from each patch, layer upon layer (Abnar & Zuidema 2020).

    A layer mixes its input, of which half stays as it is on the way around, by the mean of its heads.
    """
    through = torch.eye(weights[0].shape[-1], device=weights[0].device, dtype=weights[0].dtype)[None]
    for layer in weights:
        mixed = (reduce(layer, "b h i j -> b i j", "mean") + torch.eye(layer.shape[-1]).to(layer)) / 2
        through = mixed @ through
    return through


class VisionTransformer(nn.Module):
    """Patches, a stack of layers, one vector, scores (Dosovitskiy et al. 2021, whose stack is pre-norm with gelu).

    `classes` is how many there are; the other arguments are those of PatchEncoder.
    """

    def __init__(
        self,
        patches: Patches | ConvolvedPatches,
        stack: Stack,
        *,
        picture: tuple[int, int],
        classes: int,
        recipe: Recipe | None = None,
        pool: str = "class",
    ):
        super().__init__()
        if classes < 1:
            raise ValueError(f"a picture belongs to one of {classes} classes; there must be at least one")
        self.encoder = PatchEncoder(patches, stack, picture=picture, recipe=recipe, pool=pool)
        self.output = nn.Linear(stack.model, classes)

    def forward(self, x: Pixels) -> Logits:
        return self.output(self.encoder.pool.take(self.encoder(x)))

    def look(self, x: Pixels) -> tuple[Logits, Looked]:
        """As `forward`, and the weights of every layer by its name, layer.0 and so on."""
        states, looked = self.encoder.look(x)
        return self.output(self.encoder.pool.take(states)), looked
