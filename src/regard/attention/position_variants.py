"""Position variants: vectors added to the token's own (sinusoidal, learned, depth in a tree), and other rotations.

These are scaled frequencies for longer texts (Llama 3, YaRN, NTK), rows and columns of pictures, and xPos. A dependency
tree comes as CoNLL-U writes it: governors[b, t] is the 1-based index of the governor of token t, 0 for the root and for
padding.
"""

from dataclasses import dataclass, field
from math import log, pi

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from regard.attention.block_map import is_tracing
from regard.attention.position import EmbeddingPosition, QueryKeyPosition, Rotary
from regard.ops.rotary import FrequencyScaling, Pairs

TREE_MISSING = "needs the sentences' trees: use recipe.with_tree(tree=DependencyTree.from_governors(governors))"


@dataclass(frozen=True, eq=False)
class DependencyTree:
    """Which tokens lie on the way from each token to its root, itself included: above[b, t, ancestor].

    Examples:
        >>> tree = DependencyTree.from_governors(torch.tensor([[2, 3, 0]]))  # the cat sleeps
        >>> tree.depth()
        tensor([[2, 1, 0]])
        >>> tree.path()[0]
        tensor([[ 0, -1, -2],
                [ 1,  0, -1],
                [ 2,  1,  0]])
    """

    ancestors: Tensor

    @staticmethod
    def from_governors(governors: Tensor) -> "DependencyTree":
        if governors.dim() != 2 or governors.is_floating_point():
            raise ValueError(f"a tree wants whole head indices shaped (batch, tokens), not {tuple(governors.shape)}")
        tokens = governors.shape[1]
        if governors.numel() and not 0 <= int(governors.min()) <= int(governors.max()) <= tokens:
            raise ValueError(f"a head index lies in 0 (root) to {tokens} (the last token), as in CoNLL-U")
        # one extra index is the root: it is its own governor
        parent = torch.cat((torch.zeros_like(governors[:, :1]), governors), 1)
        at = torch.arange(tokens + 1, device=governors.device).expand_as(parent)
        above = governors.new_zeros(len(governors), tokens + 1, tokens + 1, dtype=torch.bool)
        for _ in range(tokens + 1):
            above = above.scatter(2, at[..., None], torch.ones_like(at[..., None], dtype=torch.bool))
            at = parent.gather(1, at)
        if at.any():
            sentence = int(at.any(1).nonzero()[0])
            raise ValueError(f"sentence {sentence}: the governors form a cycle and never reach the root (0)")
        return DependencyTree(above[:, 1:, 1:])

    def depth(self) -> Tensor:
        """How many edges below the root word, (b, t)."""
        return self.ancestors.sum(-1) - 1

    def path(self) -> Tensor:
        """The signed path from i to j, (b, i, j).

        Along one line of descent it is the difference in depth, positive if j is the deeper; otherwise the length of
        the way over the nearest common ancestor, positive if j comes after i. (Wang et al. always go by the root.)
        """
        shared = einsum(self.ancestors.float(), self.ancestors.float(), "b i a, b j a -> b i j").long()
        depth = self.depth() + 1
        length = depth[:, :, None] + depth[:, None] - 2 * shared
        line = (shared == depth[:, :, None]) | (shared == depth[:, None])
        at = torch.arange(depth.shape[1], device=depth.device)
        order = torch.sign(at - at[:, None])
        return torch.where(line, depth[:, None] - depth[:, :, None], order * length)


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


# --- longer texts ---


@dataclass(frozen=True)
class RotaryScaling(FrequencyScaling):
    """Slower rotations, for texts longer than those of the training, as in Llama 3.1 (Dubey et al. 2024, 3.2).

    What turns `fast` times or more in `length` tokens stays as it is, what turns `slow` times or fewer is slowed down
    by the factor, and in between both are mixed. With length = 1 everything is slowed down
    (position interpolation, Chen et al. 2023).

    Examples:
        >>> frequency = torch.tensor([1.0, 1e-3, 1e-5])  # 1304 turns in 8192 tokens, 1.3 turns, 0.01 turns
        >>> RotaryScaling(factor=8.0).scale(frequency) / frequency
        tensor([1.0000, 0.2136, 0.1250])
        >>> Rotary(theta=500000.0, pairs="halves", scaling=RotaryScaling(factor=8.0))
        Rotary(theta=500000.0, pairs='halves', scaling=RotaryScaling(factor=8.0, length=8192, slow=1.0, fast=4.0))
    """

    factor: float
    length: int = 8192
    slow: float = 1.0
    fast: float = 4.0

    def __post_init__(self):
        if not self.factor > 0 or self.length < 1 or not 0 < self.slow < self.fast:
            raise ValueError(f"{self}: factor and length must be positive, and 0 < slow < fast")

    def scale(self, frequency):
        turns = self.length * frequency / (2 * pi)
        kept = ((turns - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        return frequency * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class NTKScaling(FrequencyScaling):
    """A larger theta: the slowest pair is slowed down by the factor, the fastest not at all ("NTK-aware", 2023).

    theta · factor^(d / (d - 2)) instead of theta, so that pair p of n turns factor^(-p / (n - 1)) times as fast.

    Examples:
        >>> NTKScaling(factor=4.0).scale(torch.tensor([1.0, 0.1, 0.01]))  # times 1, 1/2, 1/4
        tensor([1.0000, 0.0500, 0.0025])
    """

    factor: float

    def __post_init__(self):
        if not self.factor > 0:
            raise ValueError(f"{self}: the factor must be positive")

    def scale(self, frequency):
        pair = torch.arange(len(frequency), dtype=frequency.dtype, device=frequency.device)
        return frequency * self.factor ** (-pair / max(1, len(frequency) - 1))


@dataclass(frozen=True)
class YarnScaling(FrequencyScaling):
    """YaRN (Peng et al. 2023): slowed down by pairs, and a magnitude of 0.1 log(factor) + 1.

    As in the paper's code, both are mixed along the pairs, from the one that turns `fast` times in `length` tokens to
    the one that turns `slow` times; rounded to whole pairs where `whole` says so (gpt-oss does not).

    Examples:
        >>> frequency = 10_000.0 ** -(torch.arange(8) / 8)
        >>> YarnScaling(factor=4.0, length=4096).scale(frequency) / frequency  # pairs 2 to 6
        tensor([1.0000, 1.0000, 1.0000, 0.8125, 0.6250, 0.4375, 0.2500, 0.2500])
        >>> YarnScaling(factor=4.0, length=4096).magnitude
        1.138629436111989
    """

    factor: float
    length: int
    slow: float = 1.0
    fast: float = 32.0
    whole: bool = True

    def __post_init__(self):
        if not self.factor >= 1 or self.length < 1 or not 0 < self.slow < self.fast:
            raise ValueError(f"{self}: factor at least 1, length positive, and 0 < slow < fast")

    @property
    def magnitude(self):
        return 0.1 * log(self.factor) + 1

    def scale(self, frequency):
        if len(frequency) < 2:
            raise ValueError(f"{self} mixes along the pairs of a head; two features are only one")
        step = (frequency[0] / frequency[1]).log()  # from pair to pair; a tensor, or a GPU would have to wait
        first, last = ((self.length * frequency[0] / (2 * pi * turns)).log() / step for turns in (self.fast, self.slow))
        first, last = (first.floor(), last.ceil()) if self.whole else (first, last)
        first, last = first.clamp(min=0), last.clamp(max=2 * len(frequency) - 1)
        pair = torch.arange(len(frequency), dtype=frequency.dtype, device=frequency.device)
        slowed = ((pair - first) / (last - first).clamp(min=1e-3)).clamp(0, 1)
        return frequency * (1 - slowed + slowed / self.factor)


# --- pictures ---


@dataclass(frozen=True)
class AxialRotary(QueryKeyPosition):
    """2-D rotary for pictures: half of the features are rotated by the row, half by the column (Heo et al. 2024).

    Tokens are the patches of a picture of `width` columns, row by row, after `first` tokens that belong to no place.

    Examples:
        >>> x = torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(1, 1, 4, 4)
        >>> AxialRotary(width=2).rotate(x, torch.arange(4))[0, 0]  # rows 0, 0, 1, 1 and columns 0, 1, 0, 1
        tensor([[1.0000, 0.0000, 1.0000, 0.0000],
                [1.0000, 0.0000, 0.5403, 0.8415],
                [0.5403, 0.8415, 1.0000, 0.0000],
                [0.5403, 0.8415, 0.5403, 0.8415]])
    """

    width: int
    theta: float = 100.0
    first: int = 0

    def __post_init__(self):
        if self.width < 1 or self.first < 0 or not self.theta > 0:
            raise ValueError(f"{self}: width and theta must be positive, first not negative")

    def rotate(self, x, positions):
        if x.shape[-1] % 4:
            raise ValueError(f"{self} rotates pairs of features by two axes; {x.shape[-1]} is no multiple of 4")
        cell = positions - self.first
        row = torch.where(cell < 0, 0, cell.div(self.width, rounding_mode="floor"))
        column = torch.where(cell < 0, 0, cell % self.width)
        axis = Rotary(self.theta)
        down, across = x.chunk(2, -1)
        return torch.cat((axis.rotate(down, row), axis.rotate(across, column)), -1)


# --- decay ---


@dataclass(frozen=True)
class XPos(QueryKeyPosition):
    """Rotary whose pairs also shrink with the distance, the slow ones slowly (xPos; Sun et al. 2022).

    Pair p of a query at i is multiplied by ζ_p^(i / scale) and that of a key at j by ζ_p^(-j / scale), with
    ζ_p = (2p / d + 0.4) / 1.4, so that a product has the factor ζ_p^((i - j) / scale). Made for causal attention: keys
    ahead would grow. In float32 positions may reach about 70 times the scale.

    Examples:
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 1, 2, 2)
        >>> position = XPos(scale=1.0)
        >>> q, k = position.rotate(x, torch.arange(2)), position.rotate_keys(x, torch.arange(2))
        >>> (q @ k.mT)[0, 0]  # ζ = 0.4 / 1.4 = 2/7: below the diagonal 2/7 cos 1, above it 7/2 cos 1
        tensor([[1.0000, 1.8911],
                [0.1544, 1.0000]])
    """

    theta: float = 10_000.0
    scale: float = 512.0
    pairs: Pairs = "adjacent"

    def __post_init__(self):
        if self.pairs not in ("adjacent", "halves") or not self.theta > 0 or not self.scale > 0:
            raise ValueError(f"{self}: theta and scale must be positive, and pairs 'adjacent' or 'halves'")

    def rotate(self, x, positions):
        return Rotary(self.theta, self.pairs).rotate(x, positions) * self.growth(x, positions, 1.0)

    def rotate_keys(self, k, positions):
        return Rotary(self.theta, self.pairs).rotate(k, positions) * self.growth(k, positions, -1.0)

    def growth(self, x: Tensor, positions: Tensor, sign: float) -> Tensor:
        """ζ_p^(± position / scale), for both features of each pair."""
        pair = torch.arange(0, x.shape[-1], 2, device=x.device, dtype=torch.float64) / x.shape[-1]
        factor = ((pair + 0.4) / 1.4) ** (sign * positions[..., None].double() / self.scale)
        both = factor.repeat_interleave(2, -1) if self.pairs == "adjacent" else torch.cat((factor, factor), -1)
        return (both[:, None] if both.dim() == 3 else both).to(x.dtype)
