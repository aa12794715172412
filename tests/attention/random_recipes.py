"""Random recipes: every part of the catalogue and parts of a user's own, over awkward sizes, from one seed each.

A part of our own is written here in three forms: weightless (frozen dataclass), learned (`nn.Module`) and holding a
tensor (frozen dataclass). What each computes is in naive.py once more, in float64 and without the library.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random as Dice
from typing import TypeVar

import torch
from einops import rearrange
from torch import Tensor, nn

from regard.attention import (
    Additive,
    Alibi,
    AttentionDropout,
    AxialRotary,
    Bias,
    Bilinear,
    Block,
    Causal,
    Clipped,
    CoPE,
    Cosine,
    DependencyTree,
    Differential,
    Documents,
    Dot,
    Edges,
    EmbeddingPosition,
    Entmax,
    Feature,
    Full,
    Global,
    Hard,
    InnerProduct,
    LogBuckets,
    LogitScale,
    MultiToken,
    NoPosition,
    Normaliser,
    NTKScaling,
    Padding,
    Pattern,
    PerHead,
    Position,
    Prefix,
    Proportional,
    QueryKeyPosition,
    Random,
    Recipe,
    RelativeBias,
    RelativeVectors,
    ReLU,
    Rotary,
    RowWise,
    Sampled,
    ScaledDot,
    Score,
    Sigmoid,
    SinkSoftmax,
    Sinusoidal,
    SoftCap,
    Softmax,
    SoftmaxPlusOne,
    Sparsemax,
    StickBreaking,
    StraightThrough,
    StrictCausal,
    Strided,
    TalkingHeads,
    TopK,
    TreePath,
    Window,
    XPos,
    YarnScaling,
)
from regard.attention.position import ScorePosition

POSITION_LIMIT = 24  # positions of tokens are below this
HEADS = 8  # at most

Part = TypeVar("Part")
Module = TypeVar("Module", bound=nn.Module)


# --- parts of a user's own ---


@dataclass(frozen=True)
class Distance(Score):
    """-|q - k|²: not an inner product."""

    def compare(self, q, k):
        return -(q[:, :, :, None] - k[:, :, None]).square().sum(-1)


@dataclass(eq=False)
class LearnedDistance(nn.Module, Score):
    """-Σ_d w_d (q_d - k_d)²"""

    width: int

    def __post_init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(self.width))

    def compare(self, q, k):
        return weighted_distance(self.weight, q, k)


@dataclass(frozen=True, eq=False)
class HeldDistance(Score):
    weight: Tensor

    def compare(self, q, k):
        return weighted_distance(self.weight, q, k)


def weighted_distance(weight: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return -(weight * (q[:, :, :, None] - k[:, :, None]).square()).sum(-1)


@dataclass(frozen=True, eq=False)
class HeldProduct(InnerProduct):
    """(M q) · (M k): an inner product of another width than q and k have."""

    weight: Tensor

    def fold_q(self, q):
        return q @ self.weight

    def fold_k(self, k):
        return k @ self.weight


@dataclass(frozen=True)
class RootBias(Bias):
    """-√|i - j|, and half of it in odd heads."""

    def bias(self, b, h, i, j):
        return -(i - j).abs().double().sqrt() / (1 + h % 2)


@dataclass(eq=False)
class LearnedBias(nn.Module, Bias):
    """A number for each head and each difference, modulo five, which even sentences turn round."""

    def __post_init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(HEADS, 5))

    def bias(self, b, h, i, j):
        return cyclic_bias(self.weight, b, h, i, j)


@dataclass(frozen=True, eq=False)
class HeldBias(Bias):
    weight: Tensor

    def bias(self, b, h, i, j):
        return cyclic_bias(self.weight, b, h, i, j)


def cyclic_bias(weight: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return weight[h, (i - j) % 5] * (1 - b % 2 * 2)


@dataclass(frozen=True)
class Growing(QueryKeyPosition):
    """Tokens grow with their position."""

    def rotate(self, x, positions):
        return grown(x, positions, torch.ones((), dtype=x.dtype))


@dataclass(eq=False)
class LearnedGrowing(nn.Module, QueryKeyPosition):
    def __post_init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.ones(()))

    def rotate(self, x, positions):
        return grown(x, positions, self.rate)


@dataclass(frozen=True, eq=False)
class HeldGrowing(QueryKeyPosition):
    rate: Tensor

    def rotate(self, x, positions):
        return grown(x, positions, self.rate)


def grown(x: Tensor, positions: Tensor, rate: Tensor) -> Tensor:
    at = rearrange(positions, "... t -> ... 1 t 1") if positions.dim() == 2 else positions[:, None]
    return x * (1 + 0.05 * rate * at.to(x.dtype))


@dataclass(frozen=True)
class Nearness(ScorePosition):
    """Σ_d q_d for the same position, and its share of the weights is added to every value."""

    width: int

    def score_term(self, q, b, h, i, j):
        return torch.where(i == j, q.sum(-1, keepdim=True), 0.0)

    def value_term(self, weights, b, h, i, j):
        return torch.where(i == j, weights, 0.0).sum(-1, keepdim=True).expand(*weights.shape[:3], self.width)


@dataclass(eq=False)
class LearnedNearness(nn.Module, ScorePosition):
    """The same with a vector for each: q·a where positions agree, and c added to the value."""

    width: int
    value: int

    def __post_init__(self):
        super().__init__()
        self.a, self.c = nn.Parameter(torch.randn(self.width)), nn.Parameter(torch.randn(self.value))

    def score_term(self, q, b, h, i, j):
        return torch.where(i == j, (q @ self.a)[..., None], 0.0)

    def value_term(self, weights, b, h, i, j):
        return torch.where(i == j, weights, 0.0).sum(-1, keepdim=True) * self.c


@dataclass(frozen=True, eq=False)
class HeldNearness(ScorePosition):
    a: Tensor
    c: Tensor

    def score_term(self, q, b, h, i, j):
        return torch.where(i == j, (q @ self.a)[..., None], 0.0)

    def value_term(self, weights, b, h, i, j):
        return torch.where(i == j, weights, 0.0).sum(-1, keepdim=True) * self.c


@dataclass(frozen=True)
class Coprime(Pattern):
    """i + 2j is no multiple of three."""

    def sees(self, b, h, i, j):
        return (i + 2 * j) % 3 != 0


@dataclass(frozen=True)
class OddHeads(Pattern):
    """Odd heads see the past, even ones everything."""

    def sees(self, b, h, i, j):
        return (h % 2 == 0) | (j <= i)


@dataclass(eq=False)
class LearnedGate(nn.Module, Pattern):
    """Differences whose number is positive; a pattern is no function with a slope, so nothing learns from it."""

    def __post_init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7))

    def sees(self, b, h, i, j):
        return self.weight[(i - j) % 7] > 0


@dataclass(frozen=True, eq=False)
class HeldMask(Pattern):
    """As the tensor says, a row for each position."""

    mask: Tensor

    def sees(self, b, h, i, j):
        return self.mask[i, j]


@dataclass(frozen=True)
class Softplus(RowWise):
    """log(1 + e^s), each key by itself."""

    def weigh(self, scores, visible):
        return torch.where(visible, nn.functional.softplus(scores), 0.0)


@dataclass(eq=False)
class LearnedTemperature(nn.Module, RowWise):
    """softmax(t · s)"""

    def __post_init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.7))

    def weigh(self, scores, visible):
        return Softmax().weigh(scores * self.weight, visible)


@dataclass(frozen=True, eq=False)
class HeldTemperature(RowWise):
    weight: Tensor

    def weigh(self, scores, visible):
        return Softmax().weigh(scores * self.weight, visible)


@dataclass(frozen=True)
class AcrossQueries(Normaliser):
    """Softmax over the queries of each key, as in slot attention, instead of over the keys of each query."""

    def weigh(self, scores, visible):
        return Softmax().weigh(scores.mT, visible.mT).mT


# --- a case ---


@dataclass(frozen=True)
class Family:
    """What the four parts may be. Most backends take few recipes, which throws of any dice would hardly ever hit."""

    score: tuple[type, ...] = (Score,)
    scheme: tuple[type, ...] = (Position,)
    pattern: tuple[type, ...] = (Pattern,)
    normaliser: tuple[type, ...] = (Normaliser,)


FAMILIES = (
    *(Family(),) * 6,
    *(Family((Feature,), (EmbeddingPosition, QueryKeyPosition), (Full, Causal, Padding), (Proportional,)),) * 2,
    Family((Additive,), (EmbeddingPosition, QueryKeyPosition), normaliser=(Softmax,)),
    *(Family((InnerProduct,), (RelativeBias, RelativeVectors), normaliser=(Softmax,)),) * 2,
    Family((InnerProduct,), (EmbeddingPosition, QueryKeyPosition), normaliser=(Hard,)),
    Family((InnerProduct,), (EmbeddingPosition, QueryKeyPosition), normaliser=(ReLU, Sigmoid)),
    *(Family((InnerProduct,), (EmbeddingPosition, QueryKeyPosition, Bias), normaliser=(Softmax, AttentionDropout)),)
    * 2,
)


@dataclass(frozen=True, eq=False)
class Case:
    """One call of attention, and every number in it that may have a gradient."""

    recipe: Recipe
    q: Tensor
    k: Tensor
    v: Tensor
    q_index: int | Tensor | None
    k_index: int | Tensor | None
    held: tuple[Tensor, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.q, self.k, self.v, *self.held

    def normalisers(self) -> list[Normaliser]:
        """The normaliser and what it wraps."""
        found = [self.recipe.normaliser]
        while isinstance(found[-1], TopK | AttentionDropout | TalkingHeads | MultiToken):
            found.append(found[-1].then)
        return found

    @property
    def draws(self) -> bool:
        """Is anything drawn at random?"""
        kinds = self.normalisers()
        return any(
            isinstance(x, Sampled | StraightThrough) or (isinstance(x, AttentionDropout) and x.rate > 0) for x in kinds
        )

    @property
    def jumps(self) -> bool:
        """Does the smallest rounding of a score choose another key?"""
        return any(isinstance(x, TopK | Hard) for x in self.normalisers())

    @property
    def bends(self) -> bool:
        """Does the smallest rounding of a score change a slope, though not a value?"""
        has_kinks = any(isinstance(x, ReLU | Sparsemax | Entmax) for x in self.normalisers())
        has_kinks = has_kinks or any(isinstance(x, CoPE) for x in self.recipe.position.parts())
        return has_kinks or self.recipe.score == Feature("relu")


def random_case(
    seed: int, dtype: torch.dtype = torch.float64, *, rounded: torch.dtype | None = None, empty: str | None = None
) -> Case:
    """The same recipe and numbers for one seed, whatever the type; first `rounded` to a smaller one, if that is given.

    `empty` names what there is none of: sentences, queries or keys.
    """
    return Maker(seed, dtype, rounded, empty).case()


class Maker:
    """Throws the dice; every choice takes the same throws, whatever the type and sizes."""

    def __init__(self, seed: int, dtype: torch.dtype, rounded: torch.dtype | None, empty: str | None):
        self.dice, self.generator = Dice(seed), torch.Generator().manual_seed(seed)
        self.dtype, self.rounded, self.held = dtype, rounded, list[Tensor]()
        dice = self.dice
        self.b, self.groups, self.share = dice.choice((1, 2, 3)), dice.choice((1, 2)), dice.choice((1, 2, 3))
        self.n_q, self.n_k = (1 + dice.randrange(9) for _ in range(2))
        self.b, self.n_q, self.n_k = (
            0 if empty == name else size
            for name, size in (("sentences", self.b), ("queries", self.n_q), ("keys", self.n_k))
        )
        self.d, self.e = dice.choice((2, 4, 6)), dice.choice((1, 3, 4, 6))
        self.c = self.d  # the width of keys, which some scores let differ
        self.family = dice.choice(FAMILIES)

    @property
    def heads(self) -> int:
        return self.groups * self.share

    def case(self) -> Case:
        score = self.fitting(self.score, self.family.score)
        self.e = self.folded(score) if self.dice.random() < 0.4 else self.e  # Shaw's vectors add to both alike
        position = self.position(score)
        pattern = self.pattern()
        normaliser = self.fitting(lambda: self.normaliser(score), self.family.normaliser)
        whole = isinstance(score, Dot) and self.dice.random() < 0.5  # whole numbers, so that there are ties
        whole = whole and not any(isinstance(part, CoPE) for part in position.parts())  # whose slope is not one there
        q = self.numbers(self.b, self.heads, self.n_q, self.d, whole=whole)
        k = self.numbers(self.b, self.groups, self.n_k, self.c, whole=whole)
        v = self.numbers(self.b, self.groups, self.n_k, self.e)
        q_index, k_index = self.at(self.n_q), self.at(self.n_k)
        if self.dice.random() < 0.3:  # as a cache has it: the queries are the last of the keys
            q_index, k_index = max(0, self.n_k - self.n_q), None
        recipe = Recipe(score=score, position=position, pattern=pattern, normaliser=normaliser)
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        return Case(recipe, q, k, v, q_index, k_index, tuple(self.held))

    def fitting(self, make: Callable[[], Part], kinds: tuple[type, ...]) -> Part:
        """Throw again until the part is of the family."""
        while True:
            before = len(self.held)
            if isinstance(part := make(), kinds):
                return part
            del self.held[before:]

    # --- numbers ---

    def numbers(self, *shape: int, whole: bool = False) -> Tensor:
        if whole:
            return torch.randint(-2, 3, shape, generator=self.generator).to(self.dtype)
        return self.cast(torch.randn(shape, generator=self.generator, dtype=torch.float64))

    def cast(self, x: Tensor) -> Tensor:
        return x.to(self.rounded or self.dtype).to(self.dtype)

    def hold(self, *shape: int) -> Tensor:
        """A tensor for a part to hold."""
        x = self.numbers(*shape).requires_grad_()
        self.held.append(x)
        return x

    def learned(self, part: Module) -> Module:
        """A learned part with numbers of ours, in our type."""
        part.to(self.dtype)
        for weight in part.parameters():
            weight.data = self.numbers(*weight.shape) * 0.5
            self.held.append(weight)
        return part

    def pick(self, *makers: Callable[[], Part]) -> Part:
        return self.dice.choice(makers)()

    def below(self, stop: int, *, start: int = 0) -> int:
        return self.dice.randrange(start, stop)

    # --- parts ---

    def score(self) -> Score:
        self.c = self.d
        return self.pick(
            Dot,
            ScaledDot,
            Cosine,
            lambda: Feature(self.dice.choice(("elu+1", "relu", "exp"))),
            lambda: Feature(self.dice.choice(("elu+1", "exp"))),
            lambda: self.learned(Bilinear(self.d, key=self.wider())),
            lambda: self.learned(Additive(self.d, hidden=3, key=self.wider())),
            Distance,
            lambda: self.learned(LearnedDistance(self.d)),
            lambda: HeldDistance(self.hold(self.d)),
            lambda: HeldProduct(self.hold(self.d, 5)),
            lambda: SoftCap(1.5, self.pick(Dot, ScaledDot, Distance)),
            self.logit_scale,
            lambda: SoftCap(2.0, self.logit_scale()),
        )

    def logit_scale(self) -> LogitScale:
        return self.learned(LogitScale(self.heads, self.pick(ScaledDot, lambda: Cosine(1.0))))

    def wider(self) -> int:
        self.c = self.dice.choice((2, 4, 8))
        return self.c

    def position(self, score: Score) -> Position:
        position = NoPosition()
        for _ in range(self.dice.choice((0, 0, 1, 1, 2)) if RelativeBias not in self.family.scheme else 1):
            position = position + self.fitting(lambda: self.scheme(score), self.family.scheme)
        return position

    def scheme(self, score: Score) -> Position:
        width = self.folded(score)
        relation = self.pick(
            lambda: Clipped(self.below(4)),
            lambda: LogBuckets(8, 12, bidirectional=self.dice.random() < 0.5),
            lambda: TreePath(1 + self.below(3)).with_tree(self.tree()),
        )
        makers = [
            Sinusoidal,
            lambda: Rotary(theta=100.0, pairs=self.dice.choice(("adjacent", "halves"))),
            lambda: Alibi(self.heads),
            lambda: self.learned(RelativeBias(relation, self.heads)),
            RootBias,
            lambda: self.learned(LearnedBias()),
            lambda: HeldBias(self.hold(HEADS, 5)),
            Growing,
            lambda: self.learned(LearnedGrowing()),
            lambda: HeldGrowing(self.hold()),
            lambda: Nearness(self.e),
            lambda: self.learned(LearnedNearness(width, self.e)),
            lambda: HeldNearness(self.hold(width), self.hold(self.e)),
            lambda: XPos(theta=100.0, scale=8.0, pairs=self.dice.choice(("adjacent", "halves"))),
            lambda: self.learned(CoPE(1 + self.below(4), width)),
        ]
        if self.d == self.c == 4:
            makers += [lambda: Rotary(theta=100.0, fraction=0.5), lambda: AxialRotary(3, first=self.below(2))]
        if self.d == self.c and self.d > 2:
            makers += [
                lambda: Rotary(theta=100.0, scaling=NTKScaling(3.0)),
                lambda: Rotary(100.0, "halves", YarnScaling(4.0, 64, fast=4.0, whole=self.dice.random() < 0.5)),
            ]
        if isinstance(score, InnerProduct) and self.e == width:
            makers += [lambda: self.learned(RelativeVectors(relation, width))] * 3
        return self.pick(*makers)

    def folded(self, score: Score) -> int:
        """How wide a query is as the score folds it."""
        if isinstance(score, HeldProduct):
            return score.weight.shape[1]
        return self.c if isinstance(score, Bilinear) else self.d

    def tree(self) -> DependencyTree:
        """For each sentence, or one for all: every token hangs below an earlier one, or is a root (0)."""
        sentences = self.dice.choice((1, self.b))
        heads = [self.below(t + 1) for _ in range(sentences) for t in range(POSITION_LIMIT)]
        return DependencyTree.from_governors(torch.tensor(heads).long().view(sentences, POSITION_LIMIT))

    def pattern(self, depth: int = 0) -> Pattern:
        if depth == 2 or self.dice.random() > 0.45:
            return self.fitting(self.leaf, self.family.pattern)
        one, other = self.pattern(depth + 1), self.pattern(depth + 1)
        if self.family.pattern != (Pattern,):
            return one & other
        return self.pick(lambda: one & other, lambda: one | other, lambda: ~one)

    def leaf(self) -> Pattern:
        return self.pick(
            Full,
            Full,
            Causal,
            Causal,
            StrictCausal,
            lambda: Window(1 + self.below(5)),
            lambda: Strided(1 + self.below(4)),
            lambda: Prefix(self.below(7)),
            lambda: Global(self.below(4)),
            lambda: Global((self.below(4), self.below(9))),
            lambda: PerHead((Causal(), Window(1 + self.below(4)), Full())),
            lambda: Random(1 + self.below(3), self.below(5)),
            lambda: Block(1 + self.below(4), self.pick(Causal, lambda: Window(2), lambda: Random(2))),
            lambda: Padding(self.whole(self.sentences(), below=self.n_k + 2)),
            lambda: Padding(self.whole(self.b, below=self.n_k + 2)),
            lambda: Documents(self.whole(self.b, POSITION_LIMIT, below=3)),
            lambda: Documents(
                self.whole(self.sentences(), POSITION_LIMIT, below=2), self.whole(self.b, POSITION_LIMIT, below=2)
            ),
            lambda: Edges(self.whole(2, 60, below=10)),
            Coprime,
            OddHeads,
            lambda: self.learned(LearnedGate()),
            lambda: HeldMask(self.whole(POSITION_LIMIT, POSITION_LIMIT, below=3) > 0),
        )

    def sentences(self) -> int:
        """Data of a batch: one row for each sentence, or one for all."""
        return self.dice.choice((1, self.b))

    def whole(self, *shape: int, below: int) -> Tensor:
        return torch.randint(0, below, shape, generator=self.generator)

    def normaliser(self, score: Score) -> Normaliser:
        positive = isinstance(score, Feature)  # what is divided by its sum had better be
        plain = [Softmax, ReLU, Sigmoid, Sparsemax, Hard, Softplus]
        plain += [lambda: self.learned(LearnedTemperature()), lambda: HeldTemperature(self.hold())]
        plain += [
            AcrossQueries,
            SoftmaxPlusOne,
            StickBreaking,
            lambda: Entmax(self.dice.choice((1.25, 1.5, 1.5, 1.75))),
        ]
        plain += [lambda: self.learned(SinkSoftmax(self.heads))] * 2
        plain += [lambda: self.learned(TalkingHeads(self.heads, self.pick(Softmax, Sparsemax, Sigmoid)))]
        plain += [lambda: self.learned(MultiToken(self.heads, 1 + self.below(3), self.dice.choice((1, 3))))]
        plain += [lambda: self.learned(Differential(3))] if self.heads % 2 == 0 else []
        plain += [Proportional] * 12 if positive else [Softmax] * 3
        normaliser = self.pick(*plain)
        if isinstance(normaliser, AcrossQueries | TalkingHeads | MultiToken | Differential):
            return normaliser
        if self.dice.random() < 0.25:
            normaliser = TopK(1 + self.below(4), normaliser)
        if self.dice.random() < 0.1:
            normaliser = AttentionDropout(0.0, normaliser)
        if self.dice.random() < 0.1:
            return self.pick(
                Sampled, StraightThrough, lambda: AttentionDropout(0.3, normaliser), lambda: TopK(2, Sampled())
            )
        return normaliser

    # --- positions ---

    def at(self, tokens: int) -> int | Tensor | None:
        """From 0, from a number on, at positions of their own, or of each batch element's own."""
        kind = self.dice.choice(("none", "none", "none", "number", "consecutive", "shared", "own"))
        first, anywhere = self.below(POSITION_LIMIT - 12), self.whole(self.b, POSITION_LIMIT, below=POSITION_LIMIT)
        return {
            "none": None,
            "number": first,
            "consecutive": torch.arange(first, first + tokens),
            "shared": torch.arange(POSITION_LIMIT - tokens, POSITION_LIMIT).flip(0),
            "own": anywhere[:, :tokens],
        }[kind]
