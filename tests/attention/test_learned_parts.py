"""Learned parts of every kind: registered, saved, copied for each layer, with the reference's gradient."""

from copy import deepcopy
from dataclasses import dataclass, replace
from random import Random

import pytest
import torch
from einops import einsum
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    BACKENDS,
    Additive,
    AttentionDropout,
    Bias,
    Causal,
    Clipped,
    EmbeddingPosition,
    Full,
    Hard,
    InnerProduct,
    Learned,
    MultiHeadAttention,
    NoPosition,
    Normaliser,
    Padding,
    Pattern,
    Proportional,
    QueryKeyPosition,
    Recipe,
    RelativeBias,
    RelativeVectors,
    ReLU,
    Rotary,
    RowWise,
    ScaledDot,
    Score,
    Sinusoidal,
    Softmax,
    TopK,
    Window,
    attend,
    explain,
)
from regard.attention.backends import gather
from regard.attention.parts import tensors
from regard.attention.pattern import Positions
from regard.attention.position import Position, ScorePosition
from regard.attention.sparse_patterns import Block
from regard.layers.embedding import PositionalEmbedding
from regard.layers.pooling import AttentionPooling

B, H, D, N = 2, 4, 6, 11


def weights(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.double) + 0.5


# --- parts of our own: a module, a dataclass that is a module, or a frozen dataclass that holds a tensor ---


@dataclass(eq=False)
class LearnedFeature(nn.Module, InnerProduct):
    """exp(q W) · exp(k), W for each head: positive, so that linear attention can divide by the sum."""

    heads: int

    def __post_init__(self):
        super().__init__()
        self.weight = nn.Parameter(weights(self.heads, D, D) / D)

    def fold_q(self, q):
        return (q @ self.weight.to(q.dtype)).exp()

    def fold_k(self, k):
        return k.exp()


class LearnedDistance(nn.Module, Score):
    """-|q - k|² with a weight for each feature of each head: no inner product, and no dataclass."""

    def __init__(self, heads: int):
        super().__init__()
        self.weight = nn.Parameter(weights(heads, 1, 1, D))

    def compare(self, q, k):
        return -((q[:, :, :, None] - k[:, :, None]).square() * self.weight.to(q.dtype)).sum(-1)


@dataclass(frozen=True, eq=False)
class Halved(Score):
    """Holds another score, as a frozen dataclass."""

    score: Score

    def compare(self, q, k):
        return self.score.compare(q, k) / 2


@dataclass(eq=False)
class LearnedRotation(nn.Module, QueryKeyPosition):
    """A learned frequency for each feature: cos(position · f) x."""

    width: int

    def __post_init__(self):
        super().__init__()
        self.frequency = nn.Parameter(weights(self.width) / 9)

    def rotate(self, x, positions):
        angle = positions[..., None] * self.frequency.to(x.dtype)
        return x * (angle if positions.dim() == 1 else angle[:, None]).cos()


@dataclass(frozen=True, eq=False)
class HeldSlopes(Bias):
    """-m |i - j|, each head's slope a number that somebody else learns."""

    slopes: Tensor

    def bias(self, b, h, i, j):
        return -self.slopes[h] * (i - j).abs()


@dataclass(frozen=True, eq=False)
class HeldSlope(Bias):
    """The same slope for all heads: a number without an axis."""

    slope: Tensor

    def bias(self, b, h, i, j):
        return -self.slope * (i - j).abs()


class LearnedSlopes(nn.Module, Bias):
    def __init__(self):
        super().__init__()
        self.slopes = nn.Parameter(weights(H))

    def bias(self, b, h, i, j):
        return HeldSlopes(self.slopes).bias(b, h, i, j)


@dataclass(eq=False)
class LearnedValues(nn.Module, ScorePosition):
    """Adds to the scores what the query says of the distance, and to the values a vector for the past and the rest."""

    width: int

    def __post_init__(self):
        super().__init__()
        self.key, self.value = nn.Parameter(weights(self.width)), nn.Parameter(weights(2, self.width))

    def score_term(self, q, b, h, i, j):
        return (q @ self.key.to(q.dtype))[..., None] * (i - j) / N

    def value_term(self, weights, b, h, i, j):
        past = torch.stack([(weights * (j < i)).sum(-1), (weights * (j >= i)).sum(-1)], -1)
        return einsum(past, self.value.to(past.dtype), "b h i r, r e -> b h i e")


@dataclass(eq=False)
class LearnedReach(nn.Module, Pattern):
    """Nearer than a learned number of positions; a mask has no slope."""

    start: float

    def __post_init__(self):
        super().__init__()
        self.reach = nn.Parameter(torch.tensor(self.start))

    def sees(self, b, h, i, j):
        return (i - j).abs() < self.reach


class Temperature(nn.Module, RowWise):
    """softmax(t s), t for each head."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(weights(H, 1, 1))

    def weigh(self, scores, visible):
        return Softmax().weigh(scores * self.scale.to(scores.dtype), visible)


@dataclass(frozen=True, eq=False)
class HeldTemperature(RowWise):
    """The same, the number a field; a parameter or anybody's tensor."""

    scale: Tensor

    def weigh(self, scores, visible):
        return Softmax().weigh(scores * self.scale.to(scores.dtype), visible)


@dataclass(frozen=True, eq=False)
class Affine(RowWise):
    """softmax(a s + b): a parameter beside anybody's tensor."""

    scale: nn.Parameter
    shift: Tensor

    def weigh(self, scores, visible):
        return Softmax().weigh(scores * self.scale + self.shift, visible)


@dataclass(frozen=True, eq=False)
class Mixed(RowWise):
    """The mean of several normalisers."""

    among: tuple[Normaliser, ...]

    def weigh(self, scores, visible):
        return torch.stack([one.weigh(scores, visible) for one in self.among]).mean(0)


@dataclass(eq=False)
class FromAField(nn.Module, RowWise):
    """A dataclass whose field becomes the parameter."""

    scale: Tensor

    def __post_init__(self):
        scale = self.scale
        super().__init__()
        self.scale = nn.Parameter(scale)

    def weigh(self, scores, visible):
        return HeldTemperature(self.scale).weigh(scores, visible)


@dataclass(frozen=True)
class Competing(Normaliser):
    """Queries compete for each key; says nothing of itself, so nothing may be assumed."""

    def weigh(self, scores, visible):
        return torch.where(visible, scores.masked_fill(~visible, -1e9).softmax(-2), 0.0)


@dataclass(frozen=True, eq=False)
class Scaled(EmbeddingPosition):
    scheme: EmbeddingPosition

    def table(self, positions, model):
        return self.scheme.table(positions, model) * 2


# --- weights belong to the layer ---


REGISTERED = {
    "score": (lambda: Recipe(score=LearnedFeature(H)), {"score.weight"}),
    "score, no dataclass": (lambda: Recipe(score=LearnedDistance(H)), {"score.weight"}),
    "held score": (lambda: Recipe(score=Halved(LearnedDistance(H))), {"score_score.weight"}),
    "inside": (lambda: Recipe(position=LearnedRotation(D)), {"inside0.frequency"}),
    "bias": (lambda: Recipe(position=LearnedSlopes()), {"position0.slopes"}),
    "held parameter": (lambda: Recipe(position=HeldSlopes(nn.Parameter(weights(H)))), {"position0.slopes"}),
    "together": (
        lambda: Recipe(position=Sinusoidal() + LearnedRotation(D) + LearnedSlopes() + LearnedValues(D)),
        {"inside0.frequency", "position0.slopes", "position1.key", "position1.value"},
    ),
    "pattern": (lambda: Recipe(pattern=LearnedReach(3.5)), {"pattern.reach"}),
    "held pattern": (
        lambda: Recipe(pattern=~Block(2, LearnedReach(1.5)) | Causal() & LearnedReach(3.5)),
        {"pattern_left_inner_pattern.reach", "pattern_right_right.reach"},
    ),
    "normaliser": (lambda: Recipe(normaliser=Temperature()), {"normaliser.scale"}),
    "normaliser from a field": (lambda: Recipe(normaliser=FromAField(weights(H, 1, 1))), {"normaliser.scale"}),
    "held normaliser": (
        lambda: Recipe(normaliser=TopK(3, then=AttentionDropout(0.0, then=Temperature()))),
        {"normaliser_then_then.scale"},
    ),
    "several normalisers": (
        lambda: Recipe(normaliser=Mixed((Temperature(), Softmax(), HeldTemperature(nn.Parameter(weights(1)))))),
        {"normaliser_among_0.scale", "normaliser_among_2.scale"},
    ),
    "while training": (lambda: Recipe(normaliser=Hard(training=Temperature())), {"normaliser_training.scale"}),
    "ours": (
        lambda: Recipe(
            score=Additive(D, hidden=3), position=Rotary() + RelativeBias(Clipped(2), H), normaliser=TopK(2)
        ),
        {"score.W.weight", "score.U.weight", "score.v", "position0.weight"},
    ),
}


def layer_of(recipe: Recipe) -> MultiHeadAttention:
    return MultiHeadAttention(5, heads=H, head=D, recipe=recipe).double()


def scramble(layer: nn.Module) -> None:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(torch.rand_like(parameter) + 0.5)


@pytest.mark.parametrize("kind", REGISTERED)
def test_every_learned_part_is_registered_saved_loaded_and_copied(kind):
    build, names = REGISTERED[kind]
    recipe = build()
    layer, x = layer_of(recipe), torch.randn(B, N, 5, dtype=torch.double)
    learned = {f"learned.{name}" for name in names}
    assert {name for name, _ in layer.named_parameters() if name.startswith("learned")} == learned
    assert learned <= set(layer.state_dict())
    # made anew from the same recipe, it shares nothing; given the saved weights, it is the same layer
    other = layer_of(recipe.fresh())
    assert not {x.data_ptr() for x in layer.parameters()} & {x.data_ptr() for x in other.parameters()}
    scramble(layer)
    other.load_state_dict(layer.state_dict())
    assert_close(other(x), layer(x), rtol=0, atol=0)
    assert_close(deepcopy(layer)(x), layer(x), rtol=0, atol=0)
    # and what was loaded is what attention uses
    before = other(x)
    scramble(other)
    assert not torch.equal(other(x), before) or kind in ("pattern", "held pattern", "while training")
    layer.train()(x).sum().backward()
    without = [name for name, x in layer.named_parameters() if x.grad is None]
    assert all("reach" in name for name in without), "only who sees whom has no slope"


@pytest.mark.parametrize("kind", REGISTERED)
def test_a_fresh_recipe_is_the_same_recipe(kind):
    recipe = REGISTERED[kind][0]()
    fresh = recipe.fresh()
    assert repr(fresh) == repr(recipe)
    weightless = [name for name in ("score", "position", "pattern", "normaliser") if not has_weights(recipe, name)]
    assert all(getattr(fresh, name) is getattr(recipe, name) for name in weightless)


def has_weights(recipe: Recipe, name: str) -> bool:
    return any(True for _ in tensors(getattr(recipe, name)))


def test_what_was_shared_within_a_recipe_is_shared_in_its_copy():
    one = Temperature()
    fresh = Recipe(normaliser=Mixed((one, TopK(2, then=one)))).fresh().normaliser
    assert isinstance(fresh, Mixed)
    first, second = fresh.among
    assert isinstance(second, TopK)
    assert first is second.then is not one


def test_what_two_parts_of_a_recipe_share_they_share_in_its_copy():
    weight = nn.Parameter(weights(H))
    fresh = Recipe(position=HeldSlopes(weight), normaliser=HeldTemperature(weight)).fresh()
    assert isinstance(fresh.position, HeldSlopes)
    assert isinstance(fresh.normaliser, HeldTemperature)
    assert fresh.position.slopes is fresh.normaliser.scale is not weight


def test_a_tensor_that_is_no_parameter_stays_its_owners():
    slopes = (weights(H).requires_grad_() * 2).tanh()  # somebody's computation, which has a history and no copy
    recipe = Recipe(position=HeldSlopes(slopes), normaliser=Affine(nn.Parameter(weights(1)), slopes[:1]))
    fresh = recipe.fresh()
    assert isinstance(fresh.position, HeldSlopes)
    assert isinstance(fresh.normaliser, Affine)
    assert isinstance(recipe.normaliser, Affine)
    assert fresh.position.slopes is slopes
    assert fresh.normaliser.shift is recipe.normaliser.shift
    assert fresh.normaliser.scale is not recipe.normaliser.scale
    assert [name for name, _ in layer_of(recipe).learned.named_parameters()] == ["normaliser.scale"]


def test_poolings_and_places_register_what_their_parts_hold():
    pooling = AttentionPooling(5, recipe=Recipe(normaliser=TopK(2, then=HeldTemperature(nn.Parameter(torch.ones(1))))))
    assert "learned.normaliser_then.scale" in dict(pooling.named_parameters())
    plain, held = (
        PositionalEmbedding(Recipe(position=Sinusoidal() + scheme)) for scheme in (Learned(7, 4), Scaled(Learned(7, 4)))
    )
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in held.named_parameters()]
    assert [name for name, _ in plain.named_parameters()] == ["learned.0.weight"]


def test_learned_parts_keep_the_names_of_old_checkpoints():
    recipe = Recipe(
        score=LearnedFeature(H), position=RelativeBias(Clipped(2), H) + Rotary() + RelativeVectors(Clipped(2), D)
    )
    saved = [name for name in layer_of(recipe).state_dict() if name.startswith("learned.")]
    names = "score.weight", "position0.weight", "position1.keys", "position1.values"
    assert saved == [f"learned.{name}" for name in names]


# --- and get their gradients ---


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(gather, "SIZES", {4: 1.0})


SCORES = {
    "scaled dot": ScaledDot,
    "feature": lambda: LearnedFeature(H),
    "distance": lambda: LearnedDistance(H),
    "held distance": lambda: Halved(LearnedDistance(H)),
    "additive": lambda: Additive(D, hidden=3),
}
POSITIONS = {
    "none": NoPosition,
    "inside": lambda: LearnedRotation(D),
    "bias": LearnedSlopes,
    "held bias": lambda: HeldSlopes(weights(H).requires_grad_()),
    "one number": lambda: HeldSlope(weights().requires_grad_()),
    "computed bias": lambda: HeldSlopes(weights(H).requires_grad_().exp()),
    "values": lambda: LearnedValues(D),
    "relative bias": lambda: RelativeBias(Clipped(2), H),
    "all": lambda: LearnedRotation(D) + LearnedSlopes() + LearnedValues(D),
}
PATTERNS = {
    "full": Full,
    "window": lambda: Window(3),
    "padding": lambda: Causal() & Padding(torch.tensor([N, 4])),
    "learned": lambda: Causal() & LearnedReach(3.5),
}
NORMALISERS = {
    "softmax": Softmax,
    "relu": ReLU,
    "hard": Hard,
    "proportional": Proportional,
    "temperature": Temperature,
    "top-k": lambda: TopK(3, then=Temperature()),
    "held": lambda: HeldTemperature(weights(H, 1, 1).requires_grad_()),
    "several": lambda: Mixed((Temperature(), ReLU(), HeldTemperature(weights(1).requires_grad_()))),
    "competing": Competing,
}


def generated(seed: int) -> Recipe:
    """A recipe of random parts, each with something to learn more often than not."""
    chance = Random(seed)
    score, pattern, normaliser = (chance.choice(list(table)) for table in (SCORES, PATTERNS, NORMALISERS))
    position = chance.choice(list(POSITIONS))
    if normaliser == "proportional":  # it divides by a sum, which must not come near 0
        score, position = "feature", chance.choice(["none", "inside"])
    recipe = Recipe(
        score=SCORES[score](),
        position=POSITIONS[position](),
        pattern=PATTERNS[pattern](),
        normaliser=NORMALISERS[normaliser](),
    )
    recipe.learned().double()
    return recipe


def assert_agreement(
    recipe: Recipe,
    groups: int,
    new: int,
    *,
    tokens: int = N,
    width: int = D,
    like: Tensor = torch.zeros(0, dtype=torch.double),
) -> set[str]:
    """Who ran: in value and in every gradient like the reference."""
    q = torch.randn(B, H, new, width, dtype=torch.double).to(like).requires_grad_()
    k, v = (torch.randn(B, groups, tokens, width, dtype=torch.double).to(like).requires_grad_() for _ in range(2))
    inputs = [q, k, v, *dict.fromkeys(x for x in tensors(vars(recipe)) if x.requires_grad)]
    first, near = tokens - new, None if like.dtype == torch.double else 1e-2
    want = attend(q, k, v, recipe, q_index=first, backend="reference")
    upstream = torch.randn_like(want)
    wanted = torch.autograd.grad(want, inputs, upstream, allow_unused=True, retain_graph=True)
    ran = set()
    for name, backend in BACKENDS.items():
        if backend.objections(recipe, q, k, Positions.of(q, k, first, None)):
            continue
        got = attend(q, k, v, recipe, q_index=first, backend=name)
        assert_close(got, want, msg=lambda message, name=name: f"{name}: {recipe}: {message}", rtol=near, atol=near)
        gotten = torch.autograd.grad(got, inputs, upstream, allow_unused=True)
        for x, y in zip(wanted, gotten, strict=True):
            if x is not None and bool(x.any()):
                assert y is not None, f"{name} gives no gradient: {recipe}"
                assert_close(y, x, msg=lambda message, name=name: f"{name}: {recipe}: {message}", rtol=near, atol=near)
        ran.add(name)
    return ran


EVERYWHERE = {
    "linear": lambda: Recipe(score=LearnedFeature(H), position=LearnedRotation(D), normaliser=Proportional()),
    "additive": lambda: Recipe(score=Additive(D, hidden=3), position=LearnedRotation(D)),
    "relative": lambda: Recipe(score=LearnedFeature(H), position=LearnedRotation(D) + RelativeBias(Clipped(2), H)),
    "hard": lambda: Recipe(score=LearnedFeature(H), position=LearnedRotation(D), normaliser=Hard()),
    "elementwise": lambda: Recipe(score=LearnedFeature(H), pattern=LearnedReach(3.5), normaliser=ReLU()),
    "sdpa": lambda: Recipe(score=LearnedFeature(H), position=HeldSlopes(weights(H).requires_grad_())),
    "gather": lambda: Recipe(score=Halved(LearnedDistance(H)), position=LearnedValues(D), normaliser=Temperature()),
}


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_every_backend_runs_learned_parts(backend):
    recipe = EVERYWHERE[backend]()
    recipe.learned().double()
    assert backend in assert_agreement(recipe, groups=2, new=N)


def test_every_backend_gives_the_references_gradient_to_every_part_or_objects():
    for seed in range(60):
        assert_agreement(generated(seed), groups=(1, 2, 4)[seed % 3], new=(N, 4)[seed % 2])


@pytest.mark.slow
def test_every_backend_gives_the_references_gradient_over_thousands_of_recipes():
    for seed in range(1000, 4000):
        assert_agreement(generated(seed), groups=(1, 2, 4)[seed % 3], new=(N, 4, 7)[seed % 5 % 3])


ON_A_GPU = {
    "flex": lambda: Recipe(position=RelativeBias(Clipped(2), H), pattern=Window(30)),
    "sdpa": lambda: Recipe(position=LearnedSlopes(), pattern=Window(30)),
    "sdpa, one number": lambda: Recipe(position=HeldSlope(nn.Parameter(weights())), pattern=Window(30)),
    "block_sparse": lambda: Recipe(score=LearnedFeature(H), pattern=Window(30)),
    "block_sparse, learned": lambda: Recipe(pattern=Causal() & LearnedReach(30.5)),
    "gather": EVERYWHERE["gather"],
    "relative": EVERYWHERE["relative"],
    "additive": EVERYWHERE["additive"],
    "linear": EVERYWHERE["linear"],
    "hard": EVERYWHERE["hard"],
    "elementwise": lambda: Recipe(score=LearnedFeature(H), pattern=Window(30), normaliser=ReLU()),
}


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # torch warns of its own doing when it compiles
@pytest.mark.parametrize("backend", ON_A_GPU)
def test_every_backend_runs_learned_parts_on_a_gpu(backend):
    recipe = ON_A_GPU[backend]()
    recipe.learned().cuda().float()
    width = 16 if backend == "flex" else D  # narrower heads it cannot compile
    ran = assert_agreement(recipe, groups=2, new=200, tokens=200, width=width, like=torch.zeros(0, device="cuda"))
    assert backend.split(",")[0] in ran


@pytest.mark.parametrize("position", [NoPosition(), HeldSlopes(weights(1).requires_grad_())], ids=["", "bias"])
def test_a_long_text_does_not_lose_the_gradient(position: Position, monkeypatch):
    """Where `block` is chosen by itself."""
    monkeypatch.setattr(gather, "SIZES", {64: 1.6, 128: 1.2, 256: 1.0})
    normaliser = HeldTemperature(weights(1).requires_grad_()) if position == NoPosition() else Softmax()
    recipe = Recipe(position=position, pattern=Window(16), normaliser=normaliser)
    q, k, v = torch.randn(3, 1, 1, 2048, 4, dtype=torch.double)
    assert explain(recipe, q).backend == "gather"
    learned = list(tensors(vars(recipe)))
    got, want = (
        torch.autograd.grad(attend(q, k, v, recipe, backend=name).square().sum(), learned)
        for name in (None, "reference")
    )
    assert_close(got, want)


def test_a_normaliser_that_may_look_across_queries_is_not_cut():
    q = torch.randn(1, 2, 1100, 2)
    for normaliser in (Competing(), TopK(2000, then=Competing()), AttentionDropout(0.0, then=Competing())):
        recipe = Recipe(pattern=Window(8), normaliser=normaliser)
        with pytest.raises(ValueError, match=r"gather cannot run this recipe.*not RowWise"):
            attend(q, q, q, recipe, backend="gather")
        assert explain(recipe, q).backend == "reference"
    assert replace(Recipe(), normaliser=TopK(2)).normaliser.row_wise


def test_flex_objects_to_a_learned_bias_that_it_could_not_differentiate():
    """Of a number without an index its compiler makes no backward pass; how a user's own bias reads, nobody knows."""
    q, recipe = torch.zeros(1, H, 5, D), Recipe(position=HeldSlope(weights().requires_grad_()))
    with pytest.raises(ValueError, match=r"flex cannot run this recipe: HeldSlope.*read by an index"):
        attend(q, q, q, recipe, backend="flex")
    with pytest.raises(ValueError, match=r"flex cannot run this recipe: LearnedReach.*read by an index"):
        attend(q, q, q, Recipe(pattern=LearnedReach(3.5)), backend="flex")
    with torch.no_grad():
        assert not BACKENDS["flex"].objections(recipe, q, q, Positions.of(q, q, None, None))


class LeakyReLU(nn.Module, ReLU):
    """Is a ReLU to Python, and weighs otherwise."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.1, dtype=torch.double))

    def weigh(self, scores, visible):
        return torch.where(visible, scores.relu() - self.slope * (-scores).relu(), 0.0)


def test_what_derives_from_a_part_of_ours_is_not_taken_for_it():
    assert assert_agreement(Recipe(normaliser=LeakyReLU()), groups=2, new=N) == {"gather", "reference"}
