"""Absolute positions: a vector for each position, or depth in a dependency tree, added to the token's own."""

from dataclasses import dataclass, field

import torch
from einops import rearrange
from torch import Tensor, nn

from regard.attention.block_map import is_tracing
from regard.attention.dependency_tree import TREE_MISSING, DependencyTree
from regard.attention.position import EmbeddingPosition
from regard.ops.rotary import Pairs


@dataclass(frozen=True, repr=False)
class Sinusoidal(EmbeddingPosition):
    """PE(pos, 2i) = sin(pos / θ^(2i/d)), PE(pos, 2i + 1) = cos(same): stripes of ever slower waves.

    Marian's sines stand in the first half, its cosines in the second; fairseq's tokens (M2M100, NLLB) moreover are
    counted from 2.

    Examples:
        >>> Sinusoidal().table(torch.arange(3), model=4)
        tensor([[ 0.0000,  1.0000,  0.0000,  1.0000],
                [ 0.8415,  0.5403,  0.0100,  1.0000],
                [ 0.9093, -0.4161,  0.0200,  0.9998]], dtype=torch.float64)
    """

    theta: float = 10_000.0
    pairs: Pairs = "adjacent"
    first: int = 0

    def __post_init__(self):
        if not self.theta > 0:
            raise ValueError(f"{self}: theta must be positive; the slowest wave is about theta tokens long")
        if self.pairs not in ("adjacent", "halves") or self.first < 0:
            raise ValueError(f"{self}: pairs are 'adjacent' or 'halves', and the first position is 0 or more")

    def table(self, positions, model):
        pair = torch.arange(0, model, 2, device=positions.device, dtype=torch.float64)
        angle = (positions[..., None].double() + self.first) * self.theta ** (-pair / model)
        waves = torch.stack((angle.sin(), angle.cos()), -1)
        order = {"adjacent": "(pair two)", "halves": "(two pair)"}[self.pairs]
        return rearrange(waves, f"... pair two -> ... {order}")[..., :model]

    def __repr__(self):
        pairs = "" if self.pairs == "adjacent" else f", pairs={self.pairs!r}"
        return f"Sinusoidal(theta={self.theta!r}{pairs}{f', first={self.first}' * bool(self.first)})"


@dataclass(eq=False)
class Learned(nn.Module, EmbeddingPosition):
    """A learned vector for each of the first `max_length` positions.

    Examples:
        >>> position = Learned(max_length=32, model=8)
        >>> position.embed(torch.zeros(2, 5, 8), torch.arange(5)).shape
        torch.Size([2, 5, 8])
        >>> position.table(torch.arange(40), 8)
        Traceback (most recent call last):
            ...
        ValueError: Learned(max_length=32, model=8) has positions 0 to 31; this sequence is longer: raise `max_length`
    """

    max_length: int
    model: int

    def __post_init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(self.max_length, self.model) * self.model**-0.5)

    def table(self, positions, model):
        if not is_tracing() and (
            positions.shape[-1] > self.max_length
            or (positions.device.type == "cpu" and positions.max() >= self.max_length)
        ):
            raise ValueError(
                f"{self} has positions 0 to {self.max_length - 1}; this sequence is longer: raise `max_length`"
            )
        return self.weight[positions]


@dataclass(frozen=True)
class TreeDepth(EmbeddingPosition):
    """The depth in the tree, encoded by the same waves as a position in the sequence. Add it to Sinusoidal().

    Examples:
        >>> tree = DependencyTree.from_governors(torch.tensor([[2, 3, 0]]))  # the cat sleeps
        >>> recipe = Recipe(position=TreeDepth()).with_tree(tree=tree)
        >>> table = recipe.embed(torch.zeros(1, 3, 8), torch.arange(3))
        >>> torch.equal(table[0], Sinusoidal().table(torch.tensor([2, 1, 0]), 8).float())
        True
    """

    theta: float = 10_000.0
    depths: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def batches(self):
        return 1 if self.depths is None else len(self.depths)

    def with_tree(self, tree: DependencyTree) -> "TreeDepth":
        return TreeDepth(self.theta, tree.depth())

    def table(self, positions, model):
        if self.depths is None:
            raise ValueError(f"{self} {TREE_MISSING}")
        depths = (
            self.depths[:, positions]
            if positions.dim() == 1
            else self.depths.expand(len(positions), -1).gather(1, positions)
        )
        return Sinusoidal(self.theta).table(depths, model)
