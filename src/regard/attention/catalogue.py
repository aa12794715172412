"""Catalogue of named recipes, one line each; for the gallery, the tests and whoever searches for a name."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt

from regard.attention.absolute_position import Learned, Sinusoidal
from regard.attention.batch_patterns import Documents
from regard.attention.gate import (
    Delta,
    Forget,
    GatedDelta,
    KimiDelta,
    Lightning,
    Retention,
    ScalarDecay,
    StateGate,
    Unnormalised,
    VectorDecay,
)
from regard.attention.hard_normaliser import Hard, StraightThrough
from regard.attention.head_mixing import Differential, MultiToken, TalkingHeads
from regard.attention.normaliser import Proportional, ReLU, Sigmoid
from regard.attention.pattern import Causal, Full, StrictCausal, Window
from regard.attention.position import NoPosition, Position, Rotary
from regard.attention.recipe import Recipe
from regard.attention.relative_position import Alibi, Clipped, CoPE, LogBuckets, RelativeBias, RelativeVectors
from regard.attention.rotary_variants import AxialRotary, NTKScaling, XPos, YarnScaling
from regard.attention.scaled_score import LogitScale, SoftCap
from regard.attention.score import Additive, Bilinear, Cosine, Dot, Feature, ScaledDot, Score
from regard.attention.softmax_variants import Entmax, SinkSoftmax, SoftmaxPlusOne, Sparsemax, StickBreaking, TopK
from regard.attention.sparse_patterns import Block, Global, PerHead, Prefix, Random, Strided


@dataclass(frozen=True)
class RecipeSizes:
    """The sizes that a name leaves open.

    Args:
        heads, head: how many heads, and the width of one.
        tokens: of the text, for recipes whose parts depend on its length.
        window, block: of sparse patterns, in tokens.

    Examples:
        >>> get_recipe("sliding window", "alibi", RecipeSizes(heads=4, window=32))
        Recipe(score=ScaledDot(), position=Alibi(heads=4), pattern=Causal() & Window(size=32), normaliser=Softmax())
    """

    heads: int = 8
    head: int = 64
    tokens: int = 512
    window: int = 64
    block: int = 16


POSITIONS: dict[str, Callable[[RecipeSizes], Position]] = {
    "none": lambda n: NoPosition(),
    "sinusoidal": lambda n: Sinusoidal(),
    "learned": lambda n: Learned(n.tokens, n.heads * n.head),
    "rotary": lambda n: Rotary(),
    "alibi": lambda n: Alibi(n.heads),
    "t5": lambda n: RelativeBias(LogBuckets(), n.heads),
    "shaw": lambda n: RelativeVectors(Clipped(4), n.head),
    "partial rotary": lambda n: Rotary(fraction=0.5),
    "ntk": lambda n: Rotary(scaling=NTKScaling(factor=4.0)),
    "yarn": lambda n: Rotary(scaling=YarnScaling(factor=4.0, length=n.tokens)),
    "axial rotary": lambda n: AxialRotary(width=max(1, isqrt(n.tokens))),
    "xpos": lambda n: XPos(scale=n.tokens / 4),
    "cope": lambda n: CoPE(max_position=n.window, head=n.head),
}
"""Position schemes by name, made for the given `RecipeSizes`; the second argument of `get_recipe`.

Examples:
    >>> list(POSITIONS)[:7]
    ['none', 'sinusoidal', 'learned', 'rotary', 'alibi', 't5', 'shaw']
    >>> POSITIONS["t5"](RecipeSizes(heads=4))
    RelativeBias(relation=LogBuckets(buckets=32, max_distance=128, bidirectional=True), heads=4)
"""

RECIPES: dict[str, Callable[[RecipeSizes, Position], Recipe]] = {
    "dot": lambda n, p: Recipe(score=Dot(), position=p),
    "scaled dot": lambda n, p: Recipe(position=p),
    "luong general": lambda n, p: Recipe(score=Bilinear(n.head), position=p),
    "bahdanau": lambda n, p: Recipe(score=Additive(n.head, hidden=n.head), position=p),
    "cosine": lambda n, p: Recipe(score=Cosine(), position=p),
    "learned temperature": lambda n, p: Recipe(score=LogitScale(n.heads, Cosine(1.0)), position=p),
    "soft cap": lambda n, p: Recipe(score=SoftCap(2.0), position=p),
    "causal": lambda n, p: Recipe(position=p, pattern=Causal()),
    "strictly before": lambda n, p: Recipe(position=p, pattern=StrictCausal()),
    "sliding window": lambda n, p: Recipe(position=p, pattern=Causal() & Window(n.window)),
    "dilated window": lambda n, p: Recipe(position=p, pattern=Window(n.window) & Strided(2)),
    "strided": lambda n, p: Recipe(position=p, pattern=Causal() & (Window(n.window) | Strided(n.window))),
    "never itself": lambda n, p: Recipe(position=p, pattern=Full() & ~Window(1)),
    "prefix": lambda n, p: Recipe(position=p, pattern=Causal() | Prefix(n.window)),
    "documents": lambda n, p: Recipe(position=p, pattern=Causal() & three_documents(n)),
    "local blocks": lambda n, p: Recipe(position=p, pattern=Block(n.block)),
    "longformer": lambda n, p: Recipe(position=p, pattern=Window(n.window) | Global(1)),
    "chosen globals": lambda n, p: Recipe(position=p, pattern=Window(n.window) | Global((0, n.tokens // 2))),
    "per head": lambda n, p: Recipe(position=p, pattern=PerHead((Causal() & Window(n.window), Causal()))),
    "random": lambda n, p: Recipe(position=p, pattern=Random(3, seed=0) | Window(1)),
    "bigbird": lambda n, p: Recipe(position=p, pattern=Block(n.block, Window(2) | Global(1) | Random(3, seed=0))),
    "relu": lambda n, p: Recipe(position=p, normaliser=ReLU()),
    "sigmoid": lambda n, p: Recipe(position=p, normaliser=Sigmoid()),
    "sparsemax": lambda n, p: Recipe(position=p, normaliser=Sparsemax()),
    "entmax": lambda n, p: Recipe(position=p, normaliser=Entmax(1.5)),
    "top-k": lambda n, p: Recipe(position=p, normaliser=TopK(3)),
    "softmax plus one": lambda n, p: Recipe(position=p, normaliser=SoftmaxPlusOne()),
    "sinks": lambda n, p: Recipe(position=p, pattern=Causal(), normaliser=SinkSoftmax(n.heads)),
    "stick-breaking": lambda n, p: Recipe(position=p, pattern=StrictCausal(), normaliser=StickBreaking()),
    "talking heads": lambda n, p: Recipe(position=p, normaliser=TalkingHeads(n.heads)),
    "differential": lambda n, p: Recipe(position=p, normaliser=Differential(n.head)),
    "multi-token": lambda n, p: Recipe(position=p, pattern=Causal(), normaliser=MultiToken(n.heads, queries=3, keys=5)),
    "hard": lambda n, p: Recipe(position=p, normaliser=Hard()),
    "hard, straight-through": lambda n, p: Recipe(position=p, normaliser=Hard(training=StraightThrough())),
    "linear": lambda n, p: Recipe(score=Feature(), position=p, normaliser=Proportional()),
    "causal linear": lambda n, p: Recipe(score=Feature(), position=p, pattern=Causal(), normaliser=Proportional()),
}
"""Named recipes, made for the given `RecipeSizes` and position; `get_recipe` looks one up.

Examples:
    >>> RECIPES["longformer"](RecipeSizes(window=256), Rotary()).pattern
    Window(size=256) | Global(tokens=1)
    >>> sorted(RECIPES)[:4]
    ['bahdanau', 'bigbird', 'causal', 'causal linear']
"""


GATED_RECIPES: dict[str, Callable[[RecipeSizes, Position], Recipe]] = {
    "forget gate": lambda n, p: Recipe(position=p, pattern=Causal(), gate=Forget()),
    "retention": lambda n, p: state_recipe(ScaledDot(), p, Retention()),
    "lightning": lambda n, p: state_recipe(ScaledDot(), p, Lightning(n.heads)),
    "mamba-2": lambda n, p: state_recipe(ScaledDot(), p, ScalarDecay()),
    "gla": lambda n, p: state_recipe(ScaledDot(), p, VectorDecay()),
    "delta rule": lambda n, p: state_recipe(Cosine(1.0), p, Delta()),
    "gated delta rule": lambda n, p: state_recipe(Cosine(1.0), p, GatedDelta()),
    "kimi delta": lambda n, p: state_recipe(Cosine(1.0), p, KimiDelta()),
}
"""Named recipes with a gate, whose values a layer makes from the tokens; `get_recipe` knows them too. Those that keep a
state take no position that adds to scores.

Examples:
    >>> get_recipe("gated delta rule").gate
    GatedDelta()
    >>> MultiHeadAttention(8, heads=2, recipe=get_recipe("gla"))(torch.randn(1, 5, 8)).shape
    torch.Size([1, 5, 8])
"""


def state_recipe(score: Score, position: Position, gate: StateGate) -> Recipe:
    return Recipe(score=score, position=position, pattern=Causal(), normaliser=Unnormalised(), gate=gate)


def three_documents(n: RecipeSizes) -> Documents:
    """Three documents in one row."""
    third = n.tokens // 3
    return Documents.from_lengths([third, third, n.tokens - 2 * third])


def get_recipe(name: str, position: str = "none", sizes: RecipeSizes = RecipeSizes()) -> Recipe:
    """A recipe by its name, e.g. get_recipe("bigbird", "rotary").

    Examples:
        >>> get_recipe("bigbird", "rotary").pattern
        Block(size=16, pattern=Window(size=2) | Global(tokens=1) | Random(picks=3, seed=0))
        >>> get_recipe("causal linear")
        Recipe(score=Feature(map='elu+1'), position=NoPosition(), pattern=Causal(), normaliser=Proportional())
    """
    recipes = RECIPES | GATED_RECIPES
    for wanted, known in ((name, recipes), (position, POSITIONS)):
        if wanted not in known:
            raise ValueError(f"nothing is called {wanted!r}; there are {', '.join(map(repr, known))}")
    return recipes[name](sizes, POSITIONS[position](sizes))
