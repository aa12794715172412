"""Position variants: vectors for the embedding (sinusoidal, learned), rotations, and relative (ALiBi, T5, Shaw, CoPE).

Rotations have scaled frequencies for longer texts (Llama 3, YaRN, NTK), rows and columns of pictures, and xPos. Of
relative positions, a relation (distance, logarithmic bucket, path through a tree) says which learned numbers a pair of
positions reads.

In a dependency tree (Wang et al. 2019) the absolute position is the depth below the root, the relative one the path
through the tree. A tree comes as CoNLL-U writes it: governors[b, t] is the 1-based index of the governor of token t, 0
for the root and for padding. Such a scheme is written once and gets the trees of each batch:
`recipe.with_tree(tree=DependencyTree.from_governors(governors))`.
"""

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, field
from math import log, pi

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from regard.attention.block_map import is_tracing
from regard.attention.position import Bias, EmbeddingPosition, QueryKeyPosition, Rotary, ScorePosition
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


# --- linear in the distance ---


class LinearBias(Bias):
    """Abstract: -m |i - j|, each head by a slope m of its own, fixed or learned: one multiply-add a score in a kernel.

    Examples:
        >>> class Halving(LinearBias):  # each token further away weighs half as much
        ...     def slope(self, h):
        ...         return torch.full(h.shape, 2.0, device=h.device).log()
        >>> q = torch.zeros(1, 1, 3, 4)
        >>> steps(q, q, q, Recipe(position=Halving(), pattern=Causal())).weights[0, 0, 2]
        tensor([0.1429, 0.2857, 0.5714])
    """

    @abstractmethod
    def slope(self, h: Tensor) -> Tensor:
        """m of heads h."""

    def bias(self, b, h, i, j):
        return -self.slope(h) * (i - j).abs()


def is_linear(scheme: ScorePosition) -> bool:
    """Does it add -m |i - j| and nothing else? What a subclass changed is not."""
    verbs = ("bias", "score_term", "contextual_term", "value_term")
    return isinstance(scheme, LinearBias) and all(getattr(type(scheme), x) is getattr(LinearBias, x) for x in verbs)


@dataclass(frozen=True)
class Alibi(LinearBias):
    """-m |i - j|: far keys are dimmed, each head by a slope m of its own (Press et al. 2022).

    Examples:
        >>> Alibi(heads=4).slopes()
        tensor([0.2500, 0.0625, 0.0156, 0.0039], dtype=torch.float64)
        >>> head, i, j = torch.tensor(0), torch.tensor(3), torch.arange(5)
        >>> Alibi(heads=4).bias(0, head, i, j)
        tensor([-0.7500, -0.5000, -0.2500, -0.0000, -0.2500], dtype=torch.float64)
    """

    heads: int

    def __post_init__(self):
        if not isinstance(self.heads, int) or self.heads < 1:
            raise ValueError(f"{self}: heads must be a whole number, 1 or more")

    def shape_error(self, heads, head, length):
        return None if heads == self.heads else f"{self} has slopes for {self.heads} heads, not {heads}"

    def slope(self, h: Tensor) -> Tensor:
        # the paper's rule: for a power of two a geometric series; otherwise the rest comes from every other term of
        # the series for the next power
        power = 2 ** (self.heads.bit_length() - 1)
        h = h.double()
        return torch.exp2(-torch.where(h < power, h + 1, h - power + 0.5) * 8 / power)

    def slopes(self) -> Tensor:
        return self.slope(torch.arange(self.heads))


# --- relations: which bucket a pair of positions falls into ---


class Relation(ABC):
    """Abstract: the bucket of two positions, a number below `num_buckets`.

    Examples:
        >>> class Side(Relation):  # before, itself or after
        ...     num_buckets = 3
        ...     def bucket(self, b, i, j):
        ...         return (j - i).sign() + 1
        >>> RelativeBias(Side(), heads=8).weight.shape
        torch.Size([8, 3])
    """

    @property
    @abstractmethod
    def num_buckets(self) -> int: ...

    @abstractmethod
    def bucket(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor: ...

    def shape_error(self, length: int) -> str | None:
        """Why it does not cover so many positions; None if it does."""
        return None

    @property
    def batches(self) -> int:
        """For how many batch elements it holds data; 1 when it is the same for all."""
        return 1

    def with_tree(self, tree: DependencyTree) -> "Relation":
        return self


@dataclass(frozen=True)
class Clipped(Relation):
    """The distance j - i, no further than `max_distance` to either side (Shaw et al. 2018).

    Examples:
        >>> relation = Clipped(2)
        >>> relation.bucket(0, 3, torch.arange(7)), relation.num_buckets
        (tensor([0, 0, 1, 2, 3, 4, 4]), 5)
    """

    max_distance: int

    @property
    def num_buckets(self):
        return 2 * self.max_distance + 1

    def bucket(self, b, i, j):
        return (j - i).clamp(-self.max_distance, self.max_distance) + self.max_distance


@dataclass(frozen=True)
class LogBuckets(Relation):
    """T5's buckets: small distances each their own, larger ones shared, logarithmically up to `max_distance`.

    Examples:
        >>> relation = LogBuckets(buckets=8, max_distance=16, bidirectional=False)
        >>> relation.bucket(0, torch.tensor(20), torch.tensor([20, 19, 18, 17, 16, 14, 10, 4]))
        tensor([0, 1, 2, 3, 4, 5, 6, 7])
    """

    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    @property
    def num_buckets(self):
        return self.buckets

    def bucket(self, b, i, j):
        ahead = j - i
        buckets = self.buckets // 2 if self.bidirectional else self.buckets
        first = (ahead > 0) * buckets if self.bidirectional else ahead * 0
        distance = ahead.abs() if self.bidirectional else (-ahead).clamp(min=0)
        exact = buckets // 2
        # T5 computes this in float32; a larger type would move the bucket borders
        ratio = torch.log(distance.clamp(min=1).float() / exact) / log(self.max_distance / exact)
        far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
        return first + torch.where(distance < exact, distance, far)


# --- learned by bucket ---


class RelationPosition(ScorePosition):
    """Abstract: learned numbers that are read by the relation of two positions."""

    relation: Relation

    @property
    def batches(self):
        return self.relation.batches

    def with_tree(self, tree):
        """The same numbers read through another relation: a shallow copy, so the parameters are shared."""
        other = copy(self)
        other.relation = self.relation.with_tree(tree)
        return other


@dataclass(eq=False)
class RelativeBias(nn.Module, RelationPosition, Bias):
    """One learned number per head and relation: with LogBuckets, T5 (Raffel et al. 2020).

    Examples:
        >>> position = RelativeBias(Clipped(1), heads=1)
        >>> position.weight.data = torch.tensor([[0.1, 0.5, 0.2]])  # before, itself, after
        >>> i, j = torch.arange(3)[:, None], torch.arange(3)
        >>> position.bias(0, torch.tensor(0), i, j).data
        tensor([[0.5000, 0.2000, 0.2000],
                [0.1000, 0.5000, 0.2000],
                [0.1000, 0.1000, 0.5000]])
    """

    relation: Relation
    heads: int

    def __post_init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(self.heads, self.relation.num_buckets) * 0.1)

    def shape_error(self, heads, head, length):
        wrong = f"{self} has numbers for {self.heads} heads, not {heads}"
        return wrong if heads != self.heads else self.relation.shape_error(length)

    def bias(self, b, h, i, j):
        return self.weight[h, self.relation.bucket(b, i, j)]


@dataclass(eq=False)
class RelativeVectors(nn.Module, RelationPosition):
    """One learned key and value per relation: with Clipped, Shaw et al. 2018.

    e_ij = q_i · (k_j + a^K_ij)  (eq. 4)   and   z_i = Σ_j α_ij (v_j + a^V_ij)  (eq. 3), the query scaled as the
    score scales it. Both sums run over the few relations instead of over pairs. All heads share the vectors.

    Examples:
        >>> position = RelativeVectors(Clipped(4), head=16)
        >>> position.keys.shape, position.values.shape
        (torch.Size([9, 16]), torch.Size([9, 16]))
        >>> q = torch.randn(1, 2, 7, 16)
        >>> attend(q, q, q, Recipe(position=position)).shape
        torch.Size([1, 2, 7, 16])
    """

    relation: Relation
    head: int

    def __post_init__(self):
        super().__init__()
        self.keys, self.values = (
            nn.Parameter(torch.randn(self.relation.num_buckets, self.head) * self.head**-0.5) for _ in range(2)
        )

    def shape_error(self, heads, head, length):
        wrong = f"{self} adds to heads of width {self.head}, not {head}"
        return wrong if head != self.head else self.relation.shape_error(length)

    def score_term(self, q, b, h, i, j):
        per_relation = einsum(q, self.keys, "b h i d, r d -> b h i r")
        relation = self.relation.bucket(b, i, j)
        return per_relation.gather(-1, relation.expand(*q.shape[:3], relation.shape[-1]))

    def value_term(self, weights, b, h, i, j):
        relation = self.relation.bucket(b, i, j).expand_as(weights)
        by_relation = weights.new_zeros(*weights.shape[:3], self.relation.num_buckets).scatter_add(
            -1, relation, weights
        )
        return einsum(by_relation, self.values, "b h i r, r e -> b h i e")


# --- positions counted by the content ---


@dataclass(eq=False)
class CoPE(nn.Module, ScorePosition):
    """Contextual position encoding: positions count only the keys that a query lets count (Golovneva et al. 2024).

    The gate σ(s_ij) says how much key j counts, p_ij = Σ_{t ≥ j} σ(s_it) over the visible keys is its position, at most
    max_position, and q_i · e[p_ij] is added to the score, mixed from the two whole positions nearest. All heads share
    the vectors. With `Causal()`, as in the paper, a query counts back from itself.

    Examples:
        >>> position = CoPE(max_position=2, head=1)
        >>> position.vectors.data = torch.tensor([[0.0], [10.0], [20.0]])
        >>> q, k = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 3, 1)  # scores 0, gates ½: positions 1½, 1, ½
        >>> seen = steps(q, k, k, Recipe(position=position))
        >>> (seen.adjusted - seen.scores)[0, 0].data
        tensor([[15., 10.,  5.]])
    """

    max_position: int
    head: int

    def __post_init__(self):
        super().__init__()
        if self.max_position < 1:
            raise ValueError(f"CoPE(max_position={self.max_position}) counts nothing; use 1 or more")
        self.vectors = nn.Parameter(torch.randn(self.max_position + 1, self.head) * self.head**-0.5)

    def shape_error(self, heads, head, length):
        return None if head == self.head else f"{self} adds to heads of width {self.head}, not {head}"

    @property
    def is_contextual(self):
        return True

    def score_term(self, q, b, h, i, j):
        raise ValueError(f"{self} counts the keys by their scores; use contextual_term")

    def contextual_term(self, q, scores, visible, b, h, i, j):
        gates = torch.where(visible, torch.where(visible, scores, 0.0).sigmoid(), 0.0)
        position = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.max_position)
        below = position.detach().floor().long()
        per_position = einsum(q, self.vectors.to(q.dtype), "b h i d, p d -> b h i p")
        low, high = (per_position.gather(-1, at.clamp(max=self.max_position)) for at in (below, below + 1))
        return low + (high - low) * (position - below)


# --- dependency trees ---


@dataclass(frozen=True)
class TreePath(Relation):
    """The path through the tree, no longer than `max_distance`; for RelativeVectors and RelativeBias.

    Examples:
        >>> tree = DependencyTree.from_governors(torch.tensor([[2, 3, 0]]))  # the cat sleeps
        >>> TreePath(max_distance=4).with_tree(tree).paths[0]
        tensor([[ 0, -1, -2],
                [ 1,  0, -1],
                [ 2,  1,  0]])
        >>> RelativeVectors(TreePath(max_distance=4), head=16)
        RelativeVectors(relation=TreePath(max_distance=4), head=16)
    """

    max_distance: int
    paths: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def num_buckets(self):
        return 2 * self.max_distance + 1

    def shape_error(self, length):
        if self.paths is None or length <= self.paths.shape[1]:
            return None
        return (
            f"{self} holds trees of {self.paths.shape[1]} tokens, but there are {length}; pass the trees of this batch"
        )

    @property
    def batches(self):
        return 1 if self.paths is None else len(self.paths)

    def with_tree(self, tree: DependencyTree) -> "TreePath":
        return TreePath(self.max_distance, tree.path())

    def bucket(self, b, i, j):
        if self.paths is None:
            raise ValueError(f"{self} {TREE_MISSING}")
        return self.paths[b % len(self.paths), i, j].clamp(-self.max_distance, self.max_distance) + self.max_distance
