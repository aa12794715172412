"""Catalogue of named recipes, one line each, and worked examples to check on paper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction as F
from math import isqrt, log, sqrt

import torch
from torch import Tensor

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
from regard.attention.normaliser import Proportional, ReLU, Sigmoid
from regard.attention.pattern import Causal, Full, StrictCausal, Window
from regard.attention.position import NoPosition, Position, Rotary
from regard.attention.position_variants import (
    Alibi,
    AxialRotary,
    Clipped,
    CoPE,
    Learned,
    LogBuckets,
    NTKScaling,
    RelativeBias,
    RelativeVectors,
    Sinusoidal,
    XPos,
    YarnScaling,
)
from regard.attention.recipe import Recipe
from regard.attention.scaled_score import LogitScale, SoftCap
from regard.attention.score import Additive, Bilinear, Cosine, Dot, Feature, ScaledDot, Score
from regard.attention.softmax_variants import (
    Differential,
    Entmax,
    Hard,
    MultiToken,
    SinkSoftmax,
    SoftmaxPlusOne,
    Sparsemax,
    StickBreaking,
    StraightThrough,
    TalkingHeads,
    TopK,
)
from regard.attention.sparse_patterns import (
    Block,
    Global,
    LightningIndexer,
    PerHead,
    Prefix,
    Random,
    Strided,
    TopBlocks,
)


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


LayerMaker = Callable[[RecipeSizes], tuple[Recipe, ...]]
LAYER_RECIPES: dict[str, LayerMaker] = {
    "softmax": lambda n: (get_recipe("causal", "rotary", n),),
    "sliding window": lambda n: (get_recipe("sliding window", "rotary", n),),
    "linear": lambda n: (get_recipe("causal linear", "rotary", n),),
    "retention": lambda n: (get_recipe("retention", "rotary", n),),
    "mamba-2": lambda n: (get_recipe("mamba-2", "rotary", n),),
    "gla": lambda n: (get_recipe("gla", "rotary", n),),
    "delta rule": lambda n: (get_recipe("delta rule", "rotary", n),),
    "gated delta rule": lambda n: (get_recipe("gated delta rule", "rotary", n),),
    "kimi delta": lambda n: (get_recipe("kimi delta", "rotary", n),),
    "forget gate": lambda n: (get_recipe("forget gate", "rotary", n),),
    "differential": lambda n: (replace(get_recipe("differential", "rotary", n), pattern=Causal()),),
    "5 window : 1 full": lambda n: (*LAYER_RECIPES["sliding window"](n) * 5, *LAYER_RECIPES["softmax"](n)),
    "3 delta : 1 full": lambda n: (*LAYER_RECIPES["delta rule"](n) * 3, *LAYER_RECIPES["softmax"](n)),
    "3 gated delta : 1 full": lambda n: (*LAYER_RECIPES["gated delta rule"](n) * 3, *LAYER_RECIPES["softmax"](n)),
}
"""Recipes of causal language models by name, one for each layer of a period: those of one recipe, and the hybrids of
Gemma 3 (five windows to one full layer) and Qwen3-Next (three delta rules to one). `get_layer_recipes` repeats the
period; the setting `model.recipe` of a language model takes these names. All have rotary positions, also where a paper
has a short convolution instead, which is not attention's part.

Examples:
    >>> [type(recipe.gate).__name__ for recipe in LAYER_RECIPES["3 delta : 1 full"](RecipeSizes())]
    ['Delta', 'Delta', 'Delta', 'NoGate']
"""


def get_layer_recipes(name: str, layers: int, sizes: RecipeSizes = RecipeSizes()) -> tuple[Recipe, ...]:
    """A recipe for each layer. The last layer is the last of a period, so that a shallow hybrid has its full layer.

    Examples:
        >>> [type(recipe.gate).__name__ for recipe in get_layer_recipes("3 gated delta : 1 full", 6)]
        ['GatedDelta', 'NoGate', 'GatedDelta', 'GatedDelta', 'GatedDelta', 'NoGate']
        >>> get_layer_recipes("5 window : 1 full", 2, RecipeSizes(window=16))[0].pattern
        Causal() & Window(size=16)
    """
    if name not in LAYER_RECIPES:
        raise ValueError(f"no recipe of layers is called {name!r}; there are {', '.join(LAYER_RECIPES)}")
    period = LAYER_RECIPES[name](sizes)
    return (period * -(-layers // len(period)))[-layers:]


CONTENT_RECIPES: dict[str, Callable[[RecipeSizes, Position], Recipe]] = {
    "top blocks": lambda n, p: Recipe(position=p, pattern=TopBlocks(2, n.block)),
    "moba": lambda n, p: Recipe(position=p, pattern=TopBlocks(2, n.block, queries=1)),
    "lightning indexer": lambda n, p: Recipe(position=p, pattern=LightningIndexer(n.window, query=n.heads * n.head)),
}
"""Named recipes whose patterns are chosen from queries and keys; `get_recipe` knows them too.

Examples:
    >>> get_recipe("moba").pattern
    TopBlocks(k=2, block=16, queries=1)
    >>> x = torch.randn(1, 8, 40, 4)
    >>> steps(x, x, x, get_recipe("top blocks", sizes=RecipeSizes(block=2))).visible.sum(-1).max()  # 2 blocks of 2 keys
    tensor(4)
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
    recipes = RECIPES | GATED_RECIPES | CONTENT_RECIPES
    for wanted, known in ((name, recipes), (position, POSITIONS)):
        if wanted not in known:
            raise ValueError(f"nothing is called {wanted!r}; there are {', '.join(map(repr, known))}")
    return recipes[name](sizes, POSITIONS[position](sizes))


# --- worked examples ---


Matrix = Sequence[Sequence[float | F]]


@dataclass(frozen=True)
class WorkedExample:
    """One head of attention with every number given; `digits` says how far the source prints them.

    Examples:
        >>> example = WorkedExample(
        ...     name="halves", source="two equal keys", recipe=Recipe(score=Dot()),
        ...     q=[[0.0]], k=[[1.0], [2.0]], v=[[4.0], [9.0]], weights=[[0.5, 0.5]], output=[[6.5]],
        ... )
        >>> attend(*example.qkv(), example.recipe)
        tensor([[[[6.5000]]]], dtype=torch.float64)
    """

    name: str
    source: str
    recipe: Recipe
    q: Matrix
    k: Matrix
    v: Matrix
    weights: Matrix
    output: Matrix
    digits: int = 12

    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (tensor(x)[None, None] for x in (self.q, self.k, self.v))
        return q, k, v


def tensor(matrix: Matrix) -> Tensor:
    return torch.tensor([[float(x) for x in row] for row in matrix], dtype=torch.float64)


def logs(matrix: Matrix) -> Matrix:
    """Scores whose exponentials are given, so that softmax weights are fractions."""
    return [[log(x) for x in row] for row in matrix]


def eye(n: int) -> Matrix:
    return [[float(i == j) for j in range(n)] for i in range(n)]


def agrees(answer: object, expected: object) -> bool:
    """Whether the answer to an exercise has the expected numbers, up to 0.001; a gap that was left open (...) has none.

    >>> agrees([0.333, 0.667], torch.tensor([1 / 3, 2 / 3])), agrees(..., 7.0)
    (True, False)
    """
    try:
        found, wanted = (torch.as_tensor(x, dtype=torch.float64) for x in (answer, expected))
    except (TypeError, ValueError, RuntimeError):  # what torch raises for a value, a list or a nesting without numbers
        return False
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=0, atol=1e-3)


# second lecture, "self attention numerical": x, and x times w_query, w_key and w_value
X: Matrix = [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]]
W_QUERY: Matrix = [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]
W_KEY: Matrix = [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]]
W_VALUE: Matrix = [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]]
Q: Matrix = [[1, 0, 2], [2, 2, 2], [2, 1, 3]]
K: Matrix = [[0, 1, 1], [4, 4, 0], [2, 3, 1]]
V: Matrix = [[1, 2, 3], [2, 8, 0], [2, 6, 3]]

# second lecture, the look-ahead mask: scaled scores of <start> I am fine
LOOK_AHEAD: Matrix = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.3, 0.6, 0.1], [0.1, 0.3, 0.3, 0.3]]
# second lecture, "Hi how are you": raw scores, and the weights it prints (in tenths; its third row sums to 11)
HI: Matrix = [[98, 27, 10, 12], [27, 89, 31, 67], [10, 31, 91, 54], [12, 67, 54, 92]]
HI_TENTHS: Matrix = [[7, 1, 1, 1], [1, 6, 2, 1], [1, 3, 6, 1], [1, 3, 3, 3]]

EXAMPLES: tuple[WorkedExample, ...] = (
    WorkedExample(
        name="two tokens",
        source="softmax of log 1, log 3 and log 2, log 2",
        recipe=Recipe(score=Dot()),
        q=logs([[1, 3], [2, 2]]),
        k=eye(2),
        v=[[4], [8]],
        weights=[[F(1, 4), F(3, 4)], [F(1, 2), F(1, 2)]],
        output=[[7], [6]],
    ),
    WorkedExample(
        name="two tokens, causal",
        source="the same, the first token seeing only itself",
        recipe=Recipe(score=Dot(), pattern=Causal()),
        q=logs([[1, 3], [2, 2]]),
        k=eye(2),
        v=[[4], [8]],
        weights=[[1, 0], [F(1, 2), F(1, 2)]],
        output=[[4], [6]],
    ),
    WorkedExample(
        name="strictly before",
        source="second lecture: e_ij = -∞ for j ≥ i; the first row sees nothing",
        recipe=Recipe(score=Dot(), pattern=StrictCausal()),
        q=logs([[1, 3, 1], [2, 2, 1], [1, 3, 9]]),
        k=eye(3),
        v=[[4], [8], [5]],
        weights=[[0, 0, 0], [1, 0, 0], [F(1, 4), F(3, 4), 0]],
        output=[[0], [4], [7]],
    ),
    WorkedExample(
        name="window of two",
        source="each token and its direct neighbours",
        recipe=Recipe(score=Dot(), pattern=Window(2)),
        q=logs([[1, 3, 7], [1, 2, 1], [9, 1, 4]]),
        k=eye(3),
        v=[[4], [8], [3]],
        weights=[[F(1, 4), F(3, 4), 0], [F(1, 4), F(1, 2), F(1, 4)], [0, F(1, 5), F(4, 5)]],
        output=[[7], [F(23, 4)], [4]],
    ),
    WorkedExample(
        name="self-attention, unscaled",
        source="second lecture, self attention numerical",
        recipe=Recipe(score=Dot()),
        q=Q,
        k=K,
        v=V,
        weights=[[0.0634, 0.4683, 0.4683], [0.0000, 0.9820, 0.0180], [0.0003, 0.8805, 0.1192]],
        output=[[1.9366, 6.6831, 1.5951], [2.0000, 7.9640, 0.0540], [1.9997, 7.7599, 0.3584]],
        digits=4,
    ),
    WorkedExample(
        name="self-attention, scaled",
        source="second lecture, training trick 3 on the same numbers",
        recipe=Recipe(),
        q=Q,
        k=K,
        v=V,
        weights=[[0.1361, 0.4319, 0.4319], [0.0009, 0.9088, 0.0903], [0.0074, 0.7547, 0.2378]],
        output=[[1.8639, 6.3194, 1.7042], [1.9991, 7.8141, 0.2735], [1.9926, 7.4796, 0.7359]],
        digits=4,
    ),
    WorkedExample(
        name="look-ahead mask",
        source="second lecture, 6.1: <start> I am fine",
        recipe=Recipe(score=Dot(), pattern=Causal()),
        q=LOOK_AHEAD,
        k=eye(4),
        v=eye(4),
        weights=[[1, 0, 0, 0], [0.3775, 0.6225, 0, 0], [0.2584, 0.3156, 0.4260, 0], [0.2144, 0.2619, 0.2619, 0.2619]],
        output=[[1, 0, 0, 0], [0.3775, 0.6225, 0, 0], [0.2584, 0.3156, 0.4260, 0], [0.2144, 0.2619, 0.2619, 0.2619]],
        digits=4,
    ),
    WorkedExample(
        name="Hi how are you",
        source="second lecture, 3.1: the weights it prints, its third row divided by 1.1 to sum to 1",
        recipe=Recipe(score=Dot()),
        q=logs(HI_TENTHS),
        k=eye(4),
        v=eye(4),
        weights=[
            [F(7, 10), F(1, 10), F(1, 10), F(1, 10)],
            [F(1, 10), F(6, 10), F(2, 10), F(1, 10)],
            [F(1, 11), F(3, 11), F(6, 11), F(1, 11)],
            [F(1, 10), F(3, 10), F(3, 10), F(3, 10)],
        ],
        output=[
            [F(7, 10), F(1, 10), F(1, 10), F(1, 10)],
            [F(1, 10), F(6, 10), F(2, 10), F(1, 10)],
            [F(1, 11), F(3, 11), F(6, 11), F(1, 11)],
            [F(1, 10), F(3, 10), F(3, 10), F(3, 10)],
        ],
    ),
    WorkedExample(
        name="scalar self-attention",
        source="fourth lecture, W of size d×1: q, k and v are one number per word",
        recipe=Recipe(score=Dot()),
        q=[[0], [1], [2], [-1]],
        k=[[0], [log(2)], [log(3)], [0]],
        v=[[4], [7], [14], [21]],
        weights=[
            [F(1, 4), F(1, 4), F(1, 4), F(1, 4)],
            [F(1, 7), F(2, 7), F(3, 7), F(1, 7)],
            [F(1, 15), F(4, 15), F(9, 15), F(1, 15)],
            [F(6, 17), F(3, 17), F(2, 17), F(6, 17)],
        ],
        output=[[F(46, 4)], [F(81, 7)], [F(179, 15)], [F(199, 17)]],
    ),
    WorkedExample(
        name="weight-free",
        source="fifth lecture: a_ij = softmax(x_i · x_j), A_i = Σ a_ij x_j",
        recipe=Recipe(score=Dot()),
        q=[[sqrt(log(2)), 0], [0, sqrt(log(3))]],
        k=[[sqrt(log(2)), 0], [0, sqrt(log(3))]],
        v=[[sqrt(log(2)), 0], [0, sqrt(log(3))]],
        weights=[[F(2, 3), F(1, 3)], [F(1, 4), F(3, 4)]],
        output=[[2 / 3 * sqrt(log(2)), sqrt(log(3)) / 3], [sqrt(log(2)) / 4, 3 / 4 * sqrt(log(3))]],
    ),
    WorkedExample(
        name="ReLU instead of softmax",
        source="fourth lecture: you don't have to use softmax",
        recipe=Recipe(score=Dot(), normaliser=ReLU()),
        q=[[2, -1], [-3, 1]],
        k=eye(2),
        v=[[4], [8]],
        weights=[[2, 0], [0, 1]],
        output=[[8], [8]],
    ),
    WorkedExample(
        name="sparsemax",
        source="Martins & Astudillo 2016: the threshold of 1, 0.5, -1 is 0.25",
        recipe=Recipe(score=Dot(), normaliser=Sparsemax()),
        q=[[1, 0.5, -1]],
        k=eye(3),
        v=[[4], [8], [100]],
        weights=[[F(3, 4), F(1, 4), 0]],
        output=[[5]],
    ),
    WorkedExample(
        name="top two of three",
        source="softmax of log 1, log 3, log 2 without the smallest",
        recipe=Recipe(score=Dot(), normaliser=TopK(2)),
        q=logs([[1, 3, 2]]),
        k=eye(3),
        v=[[100], [5], [10]],
        weights=[[0, F(3, 5), F(2, 5)]],
        output=[[7]],
    ),
    WorkedExample(
        name="proportional",
        source="s / Σ s: the normaliser of linear attention",
        recipe=Recipe(score=Dot(), normaliser=Proportional()),
        q=[[1, 3], [2, 2]],
        k=eye(2),
        v=[[4], [8]],
        weights=[[F(1, 4), F(3, 4)], [F(1, 2), F(1, 2)]],
        output=[[7], [6]],
    ),
    WorkedExample(
        name="hard",
        source="fourth lecture: one part of the input, a binary choice",
        recipe=Recipe(score=Dot(), normaliser=Hard()),
        q=[[1, 3], [2, 1]],
        k=eye(2),
        v=[[4], [8]],
        weights=[[0, 1], [1, 0]],
        output=[[8], [4]],
    ),
    WorkedExample(
        name="softmax plus one",
        source="exp(s) / (1 + Σ exp(s)): a quarter goes to nobody, then half",
        recipe=Recipe(score=Dot(), normaliser=SoftmaxPlusOne()),
        q=logs([[1, 2], [F(1, 2), F(1, 2)]]),
        k=eye(2),
        v=[[4], [8]],
        weights=[[F(1, 4), F(1, 2)], [F(1, 4), F(1, 4)]],
        output=[[5], [3]],
    ),
    WorkedExample(
        name="entmax",
        source="Peters et al. 2019, α = 1.5: [s/2 - τ]₊², here τ = -3/5",
        recipe=Recipe(score=Dot(), normaliser=Entmax(1.5)),
        q=[[F(2, 5), 0, -2]],
        k=eye(3),
        v=[[25], [50], [100]],
        weights=[[F(16, 25), F(9, 25), 0]],
        output=[[34]],
    ),
    WorkedExample(
        name="stick-breaking",
        source="Tan et al. 2024: the nearest key breaks off σ(s) of the stick, the next one σ(s) of what is left",
        recipe=Recipe(score=Dot(), pattern=StrictCausal(), normaliser=StickBreaking()),
        q=logs([[1, 1, 1], [3, 1, 1], [1, 3, 1]]),
        k=eye(3),
        v=[[8], [16], [5]],
        weights=[[0, 0, 0], [F(3, 4), 0, 0], [F(1, 8), F(3, 4), 0]],
        output=[[0], [6], [13]],
    ),
    WorkedExample(
        name="soft cap",
        source="log 3 · tanh(s / log 3): a large score counts as log 3, one far below 0 as -log 3",
        recipe=Recipe(score=SoftCap(log(3), Dot())),
        q=[[1000, 0], [1000, -1000]],
        k=eye(2),
        v=[[4], [8]],
        weights=[[F(3, 4), F(1, 4)], [F(9, 10), F(1, 10)]],
        output=[[5], [F(22, 5)]],
    ),
)
"""Worked examples, one head each: the second lecture's numbers, and one or more for each part.

Examples:
    >>> example = EXAMPLES[0]
    >>> example.name, example.source
    ('two tokens', 'softmax of log 1, log 3 and log 2, log 2')
    >>> steps(*example.qkv(), example.recipe).weights[0, 0]
    tensor([[0.2500, 0.7500],
            [0.5000, 0.5000]], dtype=torch.float64)
"""
