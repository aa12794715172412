"""Playground: masks of patterns, tables of position encodings, and the numbers of the lecture view.

Masks equal `Pattern.sees`, but are computed faster: Toeplitz patterns by one diagonal, Random by its picks, Block by
its inner pattern. The lecture view shows the worked example with any inputs, or one head of a trace.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

import numpy as np
import torch
from einops import einsum, rearrange
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention.backends import reference
from regard.attention.block_map import EMPTY, FULL, MIXED, Span
from regard.attention.catalogue import EXAMPLES, W_KEY, W_QUERY, W_VALUE, Matrix, WorkedExample, X, tensor
from regard.attention.functional import steps
from regard.attention.layer_options import LayerOptions
from regard.attention.multihead import MultiHeadAttention
from regard.attention.normaliser import Softmax
from regard.attention.parts import PARTS, RENAMED_PARTS, leaves, parse_part
from regard.attention.pattern import And, Causal, Full, Not, Or, Pattern, Positions, StrictCausal
from regard.attention.position import Rotary
from regard.attention.position_variants import Alibi, Learned, LogBuckets, RelativeBias, Sinusoidal
from regard.attention.recipe import Recipe
from regard.attention.score import Additive, Bilinear, Dot, InnerProduct, ScaledDot
from regard.attention.sparse_patterns import Block, Random
from regard.models.rnn_seq2seq import PrecomputedAdditive
from regard.models.safetensors_io import shapes_only
from regard.see.edits import refuse_index
from regard.see.plots.draw import PARSE_ERRORS
from regard.see.plots.recipe_views import one_line_repr
from regard.see.sites import AttentionSite
from regard.serve.encoding import ApiResponse, RequestError, float32_response, json_response
from regard.serve.handlers import ApiRequest, int_field, text_field

Mask = NDArray[np.bool_]
RowIndices = NDArray[np.int64]
EXACT_ROWS, SAMPLED_ROWS = 32, 48  # first rows that are counted exactly, and groups of which one row is counted
CHUNK_CELLS = 2**26


def full_mask(pattern: Pattern, length: int) -> Mask:
    return np.concatenate([mask_rows(pattern, some, length) for some in row_chunks(np.arange(length), pattern, length)])


def mask_rows(pattern: Pattern, rows: RowIndices, length: int) -> Mask:
    """The mask of these queries over keys 0, 1, ... length - 1."""
    match pattern:
        case And():
            return mask_rows(pattern.left, rows, length) & mask_rows(pattern.right, rows, length)
        case Or():
            return mask_rows(pattern.left, rows, length) | mask_rows(pattern.right, rows, length)
        case Not():
            return ~mask_rows(pattern.inner, rows, length)
        case Block(size=size, pattern=among):
            far, turn = np.unique(rows // size, return_inverse=True)
            wide = min(size, length)  # a block may be larger than the text
            return mask_rows(among, far, -(-length // size)).repeat(wide, axis=1)[turn, :length]
        case Random():
            return random_rows(pattern, rows, length)
    if pattern.is_toeplitz:
        return diagonal_rows(pattern, rows, length)
    zero, i, j = torch.zeros(1, 1, dtype=torch.long), torch.from_numpy(rows)[:, None], torch.arange(length)[None]
    return pattern.sees(zero, zero, i, j).expand(len(rows), length).numpy()


def diagonal_rows(pattern: Pattern, rows: RowIndices, length: int) -> Mask:
    """Row i is a window of one line: the visibility by the difference i - j."""
    most = int(rows.max(initial=0))
    differences = torch.arange(most, -length, -1)
    zero = torch.zeros_like(differences)
    line = pattern.sees(zero, zero, differences, zero).numpy()
    return sliding_window_view(line, length)[most - rows]


def random_rows(pattern: Random, rows: RowIndices, length: int) -> Mask:
    """Every token and its picks among the earlier tokens attend to each other."""
    tokens, seen = torch.arange(max(length, int(rows.max(initial=0)) + 1)), np.zeros((len(rows), length), np.bool_)
    row_of = np.full(len(tokens), -1)
    row_of[rows] = np.arange(len(rows))  # rows are unique
    for stratum in range(pattern.picks):
        found, exists = pattern.pick(tokens, stratum)
        later, earlier = tokens[exists].numpy(), found[exists].numpy()
        for query, key in ((later, earlier), (earlier, later)):
            inside = (row_of[query] >= 0) & (key < length)
            seen[row_of[query[inside]], key[inside]] = True
    return seen


def estimate_visible_cells(pattern: Pattern, length: int) -> int:
    """Estimates the visible cells of a mask that is too long to form; the first rows, which may be global, exactly."""
    edges = np.unique(np.r_[np.arange(EXACT_ROWS), np.geomspace(EXACT_ROWS, length, SAMPLED_ROWS + 1).astype(np.int64)])
    sizes, middles = np.diff(edges), (edges[:-1] + edges[1:] - 1) // 2
    total = 0
    for some, weights in zip(row_chunks(middles, pattern, length), row_chunks(sizes, pattern, length), strict=True):
        total += int((mask_rows(pattern, some, length).sum(1) * weights).sum())
    return total


def row_chunks(rows: RowIndices, pattern: Pattern, length: int) -> Iterator[RowIndices]:
    """Chunks of rows that fit into memory, if each part of the pattern has a mask of its own."""
    size = max(1, CHUNK_CELLS // (length * len(leaves(pattern))))
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


# --- patterns ---


MAX_PATTERN_LETTERS, MAX_PICKS = 500, 64
MAX_PATTERN_STEPS = 2**23  # parts of a pattern × tokens: a few seconds on one core
MAX_DRAWN_TOKENS, MAX_COUNTED_TOKENS = 4096, 2**20  # tokens of a mask that is drawn, and of one that is only counted
MAX_BLOCKS = 128
MAX_NUMBERS = 2**22
PATTERN_NAMES = [name for name, part in PARTS.items() if issubclass(part, Pattern)]
POSITION_KINDS = ("sinusoidal", "rotary", "alibi", "t5", "learned")


def patterns(request: ApiRequest) -> ApiResponse:
    length = int_field(request.body, "length", 1, MAX_COUNTED_TOKENS)
    pattern, length = parse_pattern(text_field(request.body, "pattern")), 64 if length is None else length
    refuse_work(pattern, length)
    return json_response(describe_mask(pattern, length))


def parse_pattern(text: str) -> Pattern:
    """Parses a pattern; other parts are refused, since a score could have any size."""
    if not text.strip() or len(text) > MAX_PATTERN_LETTERS:
        raise RequestError(f"a pattern has 1 to {MAX_PATTERN_LETTERS} letters, such as Causal() & Window(8)")
    names = re.findall(r"(\w+)\s*\(", text)
    if strange := [name for name in names if RENAMED_PARTS.get(name, name) not in PATTERN_NAMES]:
        raise RequestError(f"no pattern is called {strange[0]!r:.40}; there are {', '.join(PATTERN_NAMES)}")
    try:
        pattern = parse_part(text)
        if not isinstance(pattern, Pattern):
            raise RequestError(f"{text!r:.80} is not a pattern; write one such as Causal() & Window(8)")
        refuse_picks(pattern)  # before it is evaluated: each pick is a step
        full_mask(pattern, 2)
        pattern.count(Span(0, 2, 1), Span(0, 2, 1))
    except (*PARSE_ERRORS, RecursionError) as error:
        raise RequestError(f"{text!r:.80} is invalid: {error}") from None
    return pattern


def refuse_picks(pattern: Pattern) -> None:
    """Refuses patterns that are slow at any length."""
    if (picks := sum(part.picks for part in leaves(pattern) if isinstance(part, Random))) > MAX_PICKS:
        raise RequestError(f"at most {MAX_PICKS} random picks are allowed in total, not {picks}; use fewer")


def refuse_work(pattern: Pattern, length: int) -> None:
    """Refuses patterns that are slow at this length: each part is evaluated for every token, Random for each pick."""
    work = length * sum(part.picks if isinstance(part, Random) else 1 for part in leaves(pattern))
    if work > MAX_PATTERN_STEPS:
        raise RequestError(
            f"this pattern takes {work:,} steps for {length:,} tokens, and at most {MAX_PATTERN_STEPS:,} are allowed; "
            "use fewer parts and picks, or fewer tokens",
            413,
        )


def describe_mask(pattern: Pattern, length: int) -> dict[str, Any]:
    size = 2 ** max(0, (-(-length // MAX_BLOCKS) - 1).bit_length())
    about = {"pattern": one_line_repr(pattern), "length": length, "block": size}
    span = Span(0, length, size)
    area = (span.sizes[:, None] * span.sizes).numpy()
    if length <= MAX_DRAWN_TOKENS:
        seen = full_mask(pattern, length)
        starts = np.arange(0, length, size)
        low = high = np.add.reduceat(np.add.reduceat(seen, starts, 0, dtype=np.int64), starts, 1)
        cells, exact, empty = int(seen.sum()), True, int((~seen.any(1)).sum())
        drawn = base64.b64encode(np.packbits(seen).tobytes()).decode()
    else:
        low, high = (bound.numpy() for bound in pattern.count(span, span))
        exact, empty, drawn = bool((low == high).all()), None, None
        cells = int(low.sum()) if exact else estimate_visible_cells(pattern, length)
    # where the bounds differ, mixed is always correct
    blocks = np.where(high == 0, EMPTY, np.where(low == area, FULL, MIXED)).tolist()
    found = {"cells": cells, "share": cells / length**2, "exact": exact, "rows_empty": empty}
    return {**about, **found, "blocks": blocks, "mask": drawn}


def positions(request: ApiRequest) -> ApiResponse:
    kind = request.query.get("kind") or POSITION_KINDS[0]
    if kind not in POSITION_KINDS:
        raise RequestError(f"there is no kind of position {kind!r:.40}; there are {', '.join(POSITION_KINDS)}")
    length, width = request.query_int("length", 64, 1, 65_536), request.query_int("width", 64, 2, 4096)
    heads = request.query_int("heads", 8, 1, 256)
    numbers = heads * length**2 if kind in ("alibi", "t5") else length * width
    if numbers > MAX_NUMBERS:
        raise RequestError(f"{numbers:,} numbers are more than {MAX_NUMBERS:,}; use fewer tokens")
    return float32_response(position_table(kind, length, width, heads).float().numpy())


@torch.no_grad()
def position_table(kind: str, length: int, width: int, heads: int) -> Tensor:
    at = torch.arange(length)
    b, h = torch.zeros(1, 1, 1, dtype=torch.long), torch.arange(heads).view(-1, 1, 1)
    i, j = at.view(1, -1, 1), at.view(1, 1, -1)
    match kind:
        case "sinusoidal":
            return Sinusoidal().table(at, width)
        case "rotary":
            ones = torch.tensor([1.0, 0.0]).repeat(-(-width // 2)).expand(1, 1, length, -1)
            return Rotary().rotate(ones, at)[0, 0, :, :width]
        case "alibi":
            return Alibi(heads).bias(b, h, i, j)
    part = Learned(length, width) if kind == "learned" else RelativeBias(LogBuckets(), heads)
    # untrained weights with a fixed seed, independent of the global generator
    part.weight.normal_(0.0, width**-0.5 if kind == "learned" else 0.1, generator=torch.Generator().manual_seed(0))
    return part.table(at, width) if isinstance(part, Learned) else part.bias(b, h, i, j)


def lecture_numbers(request: ApiRequest) -> ApiResponse:
    """The lectures' example with other numbers, or the same steps for a head of a trace."""
    from regard.serve.playground import walk_through_example, walk_through_head

    if (number := text_field(request.body, "trace")) == "":
        return json_response(walk_through_example(dict(request.body)))
    cached = request.state.traces[number]
    name, head = text_field(request.body, "site"), int_field(request.body, "head", 0, 2**31) or 0
    site, query = cached.head(name, head), int_field(request.body, "query", 0, 2**31) or 0
    queries, keys = (
        axis.labels if (axis := cached.trace.axes.get(side)) else ()
        for side in (site.site_name.queries, site.site_name.keys)
    )
    return json_response(walk_through_head(site, head, query, queries=queries, keys=keys))


# --- the lecture view ---


MAX_NUMBER = 1000.0  # products of three stay readable, and far from overflow
MAX_SIDE = 8  # rows and columns

PATTERNS: dict[str, Pattern] = {"full": Full(), "causal": Causal(), "before": StrictCausal()}

# The lectures have x and one head. The second head is ours: the same with negated keys, so that its scores have the
# opposite sign. The output matrix copies the first head and sums the second in the last column.
DEFAULTS: dict[str, Matrix] = {
    "x": X,
    "wq": W_QUERY,
    "wk": W_KEY,
    "wv": W_VALUE,
    "wq2": W_QUERY,
    "wk2": [[-float(number) for number in row] for row in W_KEY],
    "wv2": W_VALUE,
    "wo": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]],
    "wg": [[1, 0, 0], [0, 0, 1], [0, 1, 0]],
    "wa": [[0.5, 0, 0], [0, 0.5, 0], [0, 0, 0.5]],
    "ua": [[0.5, -0.5, 0], [0, 0.5, -0.5], [-0.5, 0, 0.5]],
    "va": [[2, 1, 1]],
}


@dataclass(frozen=True, eq=False)
class LectureInputs:
    """The inputs of the example; defaults are those of the lectures."""

    matrices: dict[str, Tensor]
    visible: Tensor
    mask: str  # the name of a pattern, or "own"
    scaled: bool

    def __getitem__(self, name: str) -> Tensor:
        return self.matrices[name]


def parse_inputs(body: object) -> LectureInputs:
    if not isinstance(body, Mapping):
        raise ValueError(
            f"the example is an object of matrices, such as {{'x': [[1, 0], [0, 2]]}}, not {describe_value(body)}"
        )
    known = (*DEFAULTS, "mask", "scaled")
    if unknown := [name for name in body if name not in known]:
        raise ValueError(f"the example has no {unknown[0]!r:.40}; it has {', '.join(known)}")
    matrices = {name: parse_matrix(name, body.get(name, default)) for name, default in DEFAULTS.items()}
    refuse_shape_errors(matrices)
    if not isinstance(scaled := body.get("scaled", True), bool):
        raise ValueError(f"scaled is {scaled!r:.40}; it is true (divide by √d) or false (as the second lecture does)")
    visible, mask = parse_mask(body.get("mask", "full"), len(matrices["x"]))
    return LectureInputs(matrices, visible, mask, scaled)


def parse_matrix(name: str, rows: Any) -> Tensor:
    """Rows of equal length."""
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise ValueError(f"{name} is {describe_value(rows)}; write it as rows of numbers, such as [[1, 0], [0, 2]]")
    widths = [len(row) for row in rows]
    if not rows or not min(widths):
        raise ValueError(f"{name} is empty; it needs at least one row with one number")
    if len(set(widths)) > 1:
        raise ValueError(f"the rows of {name} have {', '.join(map(str, widths[:MAX_SIDE]))} numbers; give each as many")
    tallest = 2 * MAX_SIDE if name == "wo" else MAX_SIDE  # it takes two heads
    if len(rows) > tallest or widths[0] > MAX_SIDE:
        raise ValueError(f"{name} is {len(rows)} × {widths[0]}; at most {tallest} × {MAX_SIDE} are allowed; give fewer")
    for i, row in enumerate(rows, 1):
        for j, number in enumerate(row, 1):
            refuse_non_number(f"{name}, row {i}, column {j}", number)
    return tensor(rows)


def refuse_non_number(where: str, number: Any) -> None:
    if isinstance(number, str) and not number.strip():
        raise ValueError(f"{where} is empty; write a number such as 0.5")
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{where} is {number!r:.40}, not a number; write one such as 0.5")
    if isinstance(number, float) and not isfinite(number):
        raise ValueError(f"{where} is {number}; write a finite number such as 0.5")
    if abs(number) > MAX_NUMBER:
        shown = f"{number:.6g}" if abs(number) < 1e300 else "far too large"
        raise ValueError(f"{where} is {shown}; keep to numbers from -{MAX_NUMBER:.0f} to {MAX_NUMBER:.0f}")


def refuse_shape_errors(matrices: dict[str, Tensor]) -> None:
    """Every matrix must have the shape that follows from x, wq and wa."""
    model, head = matrices["x"].shape[1], matrices["wq"].shape[1]
    hidden = matrices["wa"].shape[0]
    each = dict.fromkeys(("wq", "wk", "wv", "wq2", "wk2", "wv2"), (model, head))
    each |= {"wo": (2 * head, model), "wg": (head, head), "wa": (hidden, head), "ua": (hidden, head), "va": (1, hidden)}
    for name, shape in each.items():
        if (found := tuple(matrices[name].shape)) != shape:
            raise ValueError(
                f"{name} is {found[0]} × {found[1]} and should be {shape[0]} × {shape[1]}: "
                f"x has {model} columns, wq {head}, wa {hidden} rows; change them together"
            )


def parse_mask(mask: Any, tokens: int) -> tuple[Tensor, str]:
    """The mask: the name of a pattern, or rows of cells, 1 = visible."""
    if isinstance(mask, str):
        if mask not in PATTERNS:
            raise ValueError(f"no mask is called {mask!r:.40}; there are {', '.join(PATTERNS)}, or rows of 1 and 0")
        at = torch.arange(tokens)
        return Positions(at, at, 0).grid(1, 1).visible(PATTERNS[mask])[0, 0], mask
    whole = isinstance(mask, list | tuple) and len(mask) == tokens
    if not whole or not all(isinstance(row, list | tuple) and len(row) == tokens for row in mask):
        raise ValueError(
            f"the mask must be {tokens} rows of {tokens}, one for each token of x; 1 = visible, 0 = masked"
        )
    if strange := [cell for row in mask for cell in row if cell not in (0, 1)]:
        raise ValueError(f"the mask holds {strange[0]!r:.40}; 1 = visible, 0 = masked")
    return torch.tensor([[bool(cell) for cell in row] for row in mask]), "own"


def describe_value(thing: object) -> str:
    """The value, shortened for a message."""
    return "nothing" if thing is None else f"{thing!r:.40}"


# --- the worked example ---


LOOK_AHEAD = "look-ahead mask"
LOOK_AHEAD_TOKENS = ["<start>", "I", "am", "fine"]

Rows = list[Any]


@torch.no_grad()
def walk_through_example(body: object) -> dict[str, Any]:
    """Every number of the example; ValueError for inputs that do not fit."""
    inputs = parse_inputs(body)
    layer = build_layer(inputs)
    q, k, v = layer.project(inputs["x"][None])
    seen = attention_steps(inputs, q, k, v, scaled=inputs.scaled)
    heads = [head_steps(inputs, n, q, k, v) for n in range(2)]
    joined = rearrange(seen.output, "b h t d -> b t (h d)")
    return {
        "given": {name: to_rows(matrix) for name, matrix in inputs.matrices.items()}
        | {"mask": inputs.visible.int().tolist(), "pattern": inputs.mask, "scaled": inputs.scaled},
        "root": q.shape[-1] ** 0.5,
        "heads": heads,
        "plain": weights_and_output(inputs, q, k, v, scaled=False),
        "divided": weights_and_output(inputs, q, k, v, scaled=True),
        "joined": to_rows(joined[0]),
        "output": to_rows(layer.merge_heads(seen.output)[0]),
        "others": other_scores(inputs, q[:, :1], k[:, :1], v[:, :1]),
        "look_ahead": look_ahead_example(),
    }


def build_layer(inputs: LectureInputs) -> MultiHeadAttention:
    """A multi-head layer of the library with the inputs as its weights."""
    model, head = inputs["wq"].shape
    layer = build_uninitialized(
        lambda: MultiHeadAttention(model, heads=2, head=head, options=LayerOptions(projection=plain_linear))
    )
    for part, names in ((layer.query, ("wq", "wq2")), (layer.key, ("wk", "wk2")), (layer.value, ("wv", "wv2"))):
        set_weight(part, torch.cat([inputs[name] for name in names], 1))
    set_weight(layer.output, inputs["wo"])
    return layer.eval()


Part = TypeVar("Part", bound=nn.Module)


def build_uninitialized(make: Callable[[], Part]) -> Part:
    """A module without initial weights; the global random generator is not used."""
    with shapes_only():
        part = make()
    return part.to_empty(device="cpu").double()


def plain_linear(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs, bias=False)


def set_weight(part: nn.Module, matrix: Tensor) -> None:
    """torch stores W transposed: x Wᵀ."""
    part.get_parameter("weight").copy_(matrix.T)


def attention_steps(inputs: LectureInputs, q: Tensor, k: Tensor, v: Tensor, *, scaled: bool) -> reference.Steps:
    recipe = Recipe(score=ScaledDot() if scaled else Dot())
    cells = Positions.of(q, k, None, None).grid(*q.shape[:2])
    return reference.steps(recipe, q, k, v, cells, inputs.visible[None, None])


def weights_and_output(inputs: LectureInputs, q: Tensor, k: Tensor, v: Tensor, *, scaled: bool) -> dict[str, Rows]:
    """The first head's weights and output with the scores divided by √d, or not."""
    seen = attention_steps(inputs, q, k, v, scaled=scaled)
    masked = seen.adjusted.masked_fill(~seen.visible, -torch.inf)[0, 0]
    return softmax_steps(masked) | {"weights": to_rows(seen.weights[0, 0]), "output": to_rows(seen.output[0, 0])}


def head_steps(inputs: LectureInputs, n: int, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Rows]:
    """One head, step by step."""
    seen = attention_steps(inputs, q, k, v, scaled=inputs.scaled)
    products = Dot().compare(q, k)
    masked = seen.adjusted.masked_fill(~seen.visible, -torch.inf)[0, n]
    return {
        "q": to_rows(q[0, n]),
        "k": to_rows(k[0, n]),
        "v": to_rows(v[0, n]),
        "scores": to_rows(products[0, n]),
        "scaled": to_rows(seen.scores[0, n]),
        "masked": to_rows(masked),
        **softmax_steps(masked),
        "weights": to_rows(seen.weights[0, n]),
        "output": to_rows(seen.output[0, n]),
    }


def softmax_steps(masked: Tensor) -> dict[str, Rows]:
    """Softmax in steps. The row's maximum is subtracted first: the weights stay equal, nothing overflows."""
    peak = masked.amax(-1, keepdim=True)
    some = peak.isfinite()
    exponentials = torch.where(some, (masked - torch.where(some, peak, 0.0)).exp(), 0.0)
    return {
        "peak": to_rows(peak),
        "exponentials": to_rows(exponentials),
        "sums": to_rows(exponentials.sum(-1, keepdim=True)),
    }


# --- additive and multiplicative scores (Bahdanau, Luong) ---


def other_scores(inputs: LectureInputs, q: Tensor, k: Tensor, v: Tensor) -> dict[str, dict[str, Rows]]:
    """Bahdanau's score and Luong's three, on the same queries, keys and values, without a mask."""
    hidden, head = inputs["wa"].shape
    general = build_uninitialized(lambda: Bilinear(head))
    general.weight.copy_(inputs["wg"])
    additive, concat = (build_uninitialized(lambda: Additive(head, hidden=hidden)) for _ in range(2))
    additive.W.weight.copy_(inputs["wa"])
    additive.U.weight.copy_(inputs["ua"])
    # Luong has one matrix for query and key, concatenated: W [q; k] = W_left q + W_right k
    both = torch.cat([inputs["wa"], inputs["ua"]], 1)
    concat.W.weight.copy_(both[:, :head])
    concat.U.weight.copy_(both[:, head:])
    for score in (additive, concat):
        score.v.copy_(inputs["va"][0])
    scores = {"bahdanau": additive, "dot": Dot(), "general": general, "concat": concat}
    found = {name: score_steps(Recipe(score=score), q, k, v) for name, score in scores.items()}
    inner = rearrange(additive.W(q)[0, 0], "i m -> i 1 m") + rearrange(additive.U(k)[0, 0], "j m -> 1 j m")
    found["bahdanau"] |= {"wq": to_rows(additive.W(q)[0, 0]), "uk": to_rows(additive.U(k)[0, 0])}
    found["bahdanau"]["inner"] = found["concat"]["inner"] = [to_rows(part) for part in inner]
    found["general"]["qw"] = to_rows(general.fold_q(q)[0, 0])
    found["concat"]["w"] = to_rows(both)
    return found


def score_steps(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Rows]:
    seen = steps(q, k, v, recipe)
    scores, weights, context = (to_rows(part[0, 0]) for part in (seen.scores, seen.weights, seen.output))
    return {"scores": scores, **softmax_steps(seen.scores[0, 0]), "weights": weights, "context": context}


def look_ahead_example() -> dict[str, Any]:
    """The second lecture's "<start> I am fine": its scaled scores, masked, and their weights."""
    case: WorkedExample = next(case for case in EXAMPLES if case.name == LOOK_AHEAD)
    seen = steps(*case.qkv(), case.recipe)
    masked = seen.adjusted.masked_fill(~seen.visible, -torch.inf)[0, 0]
    found = {"words": LOOK_AHEAD_TOKENS, "scores": to_rows(seen.scores[0, 0]), "masked": to_rows(masked)}
    return found | softmax_steps(masked) | {"weights": to_rows(seen.weights[0, 0])}


def to_rows(matrix: Tensor) -> Rows:
    """As JSON: None for −∞, and no negative zero."""
    return [[number + 0.0 if isfinite(number) else None for number in row] for row in matrix.tolist()]


# --- a head of a trace ---


MAX_KEYS, MAX_DIMENSIONS, MAX_HEADS = 5, 4, 12  # that are sent


@torch.no_grad()
def walk_through_head(
    site: AttentionSite, head: int, query: int, *, queries: Sequence[str], keys: Sequence[str]
) -> dict[str, Any]:
    """One query step by step, from q, k and v to the layer's own output; `queries` and `keys` are their labels."""
    refuse_index("head", head, site.heads, site.name)
    refuse_index("query", query, site.shape[0], site.name)
    seen = site.steps(head, (query,), slice(0, 1), torch.float32)
    q, k, v = (x[0, 0].float() for x in site.head_qkv(head))
    q = q[query : query + 1]
    masked = seen.adjusted.masked_fill(~seen.visible, -torch.inf)[0, 0]
    weights, output = seen.weights[0, 0], seen.output[0, 0]
    check = site.check(head)
    return {
        "about": summarize(site, head, query, queries, keys),
        "made": projections(site, head, query),
        "inner": score_terms(site, q, k),
        "v": to_rows(v[:MAX_KEYS, :MAX_DIMENSIONS]),
        "scores": to_rows(seen.scores[0, 0, :, :MAX_KEYS]),
        "bias": to_rows((seen.adjusted - seen.scores)[0, 0, :, :MAX_KEYS]),
        "masked": to_rows(masked[:, :MAX_KEYS]),
        "softmax": softmax_terms(site, masked, weights),
        "weights": to_rows(weights[:, :MAX_KEYS]),
        "weights_rest": float(weights[:, MAX_KEYS:].sum()),
        "output": to_rows(output[:, :MAX_DIMENSIONS]),
        "output_rest": to_rows(weights[:, MAX_KEYS:] @ v[MAX_KEYS:, :MAX_DIMENSIONS]),
        "layer": to_rows(site.output[0, head, query : query + 1, :MAX_DIMENSIONS].float()),
        "difference": check.error,
        "tolerance": check.tolerance,
        "all_heads": to_rows(torch.stack([site.row(n, query)[:MAX_KEYS] for n in range(min(MAX_HEADS, site.heads))])),
    }


def summarize(
    site: AttentionSite, head: int, query: int, queries: Sequence[str], keys: Sequence[str]
) -> dict[str, Any]:
    """Names and sizes, and how much of them is shown."""
    (_, n_k), width, values, score = site.shape, site.q.shape[-1], site.v.shape[-1], site.recipe.score
    label = queries[query] if query < len(queries) else site.site_name.queries
    shown = f"{count_text(MAX_KEYS, n_k, 'keys')} and {count_text(MAX_DIMENSIONS, width, 'dimensions')}"
    return {
        "site": site.name,
        "head": head,
        "heads": site.heads,
        "query": query,
        "label": label,
        "keys": [keys[j] if j < len(keys) else str(j) for j in range(min(MAX_KEYS, n_k))],
        "n_k": n_k,
        "width": width,
        "values": values,
        "score": str(score.score if isinstance(score, PrecomputedAdditive) else score),
        "pattern": str(site.recipe.pattern),
        "normaliser": str(site.recipe.normaliser),
        "note": site.note,
        "summary": f"{shown}; every sum runs over all of them",
    }


def projections(site: AttentionSite, head: int, query: int) -> dict[str, Any] | None:
    """x W = q, k and v of the shown positions; for each number what the other dimensions and the bias add.

    Rotary positions are applied later. None where the layer has no projections, or they are unknown.
    """
    if (origin := site.projections) is None:
        return None
    found: dict[str, Any] = {
        "model": [origin.x.shape[-1], origin.memory.shape[-1]],
        "turned": bool(site.recipe.query_key_positions),
    }
    for part, number, width in (
        ("q", head, site.q.shape[-1]),
        ("k", site.group(head), site.k.shape[-1]),
        ("v", site.group(head), site.v.shape[-1]),
    ):
        how = origin.head_projection(part, number, width)
        x = how.x[0, query : query + 1] if part == "q" else how.x[0, :MAX_KEYS]
        x, weight = x.float(), how.weight.float()[:, :MAX_DIMENSIONS]
        bias = torch.zeros(weight.shape[1]) if how.bias is None else how.bias.float()[:MAX_DIMENSIONS].cpu()
        found[part] = {
            "x": to_rows(x[:, :MAX_DIMENSIONS]),
            "w": to_rows(weight[:MAX_DIMENSIONS]),
            "bias": bias.tolist(),
            "rest": to_rows(x[:, MAX_DIMENSIONS:] @ weight[MAX_DIMENSIONS:]),
            "result": to_rows(x @ weight + bias.to(x)),
        }
    return found


def score_terms(site: AttentionSite, q: Tensor, k: Tensor) -> dict[str, Any]:
    """q and k as the score multiplies them, and for each product what the dimensions beyond the shown ones add."""
    score = site.recipe_after_rotation(torch.float32).score
    found: dict[str, Any] = {"dots": None, "root": None, "additive": None, "rest": None}
    match score:
        case ScaledDot():
            found["root"] = q.shape[-1] ** 0.5
        case InnerProduct():
            q, k = score.fold_q(q), score.fold_k(k)
        case PrecomputedAdditive() | Additive():
            learned, keys = (score.score, k) if isinstance(score, PrecomputedAdditive) else (score, score.U(k))
            wq, uk = learned.W(q), keys[:MAX_KEYS]
            each = learned.v * torch.tanh(wq + uk)
            found["additive"] = {
                "v": to_rows(learned.v[None, :MAX_DIMENSIONS]),
                "wq": to_rows(wq[:, :MAX_DIMENSIONS]),
                "uk": to_rows(uk[:, :MAX_DIMENSIONS]),
            }
            found["additive"]["width"] = wq.shape[-1]
            found["rest"] = to_rows(each[:, MAX_DIMENSIONS:].sum(-1)[None])
    if isinstance(score, InnerProduct):
        parts = ((q, k[:MAX_KEYS]), (q[:, MAX_DIMENSIONS:], k[:MAX_KEYS, MAX_DIMENSIONS:]))
        found["dots"], found["rest"] = (to_rows(einsum(a, b, "i d, j d -> i j")) for a, b in parts)
    return found | {
        "width": q.shape[-1],
        "q": to_rows(q[:, :MAX_DIMENSIONS]),
        "k": to_rows(k[:MAX_KEYS, :MAX_DIMENSIONS]),
    }


def softmax_terms(site: AttentionSite, masked: Tensor, weights: Tensor) -> dict[str, Any] | None:
    """Softmax in steps; None with another normaliser, or where an edit changed the weights."""
    plain = torch.where(masked.isfinite(), masked.softmax(-1), 0.0)
    if not isinstance(site.recipe.normaliser, Softmax) or not torch.allclose(plain, weights, atol=1e-6):
        return None
    found = softmax_steps(masked)
    return found | {"exponentials": [row[:MAX_KEYS] for row in found["exponentials"]]}


def count_text(some: int, all_: int, what: str) -> str:
    return f"all {all_} {what}" if all_ <= some else f"the first {some} of {all_} {what}"
