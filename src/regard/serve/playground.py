"""Masks of patterns, tables of position encodings, and the numbers of the lecture view.

Masks equal `Pattern.sees`, but are computed faster: Toeplitz patterns by one diagonal, Random by its picks, Block by
its inner pattern.
"""

import base64
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from regard.attention.block_map import EMPTY, FULL, MIXED, Span
from regard.attention.pattern import And, Not, Or, Pattern
from regard.attention.position import Learned, Rotary, Sinusoidal
from regard.attention.relative_position import Alibi, LogBuckets, RelativeBias
from regard.attention.serialize import PARTS, RENAMED_PARTS, leaves, parse_part
from regard.attention.sparse_patterns import Block, Random
from regard.see.parse import PARSE_ERRORS
from regard.see.plots.recipe_views import one_line_repr
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
    from regard.serve.lecture_view import walk_through_example, walk_through_head

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
