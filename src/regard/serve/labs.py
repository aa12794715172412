"""What somebody types in a lab in: a pattern and a length, a kind of position; its mask, cost and table out."""

import base64
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.attention.blocks import EMPTY, FULL, MIXED, Span
from regard.attention.notation import PARTS, leaves, read
from regard.attention.pattern import Pattern
from regard.attention.position import Alibi, Learned, Rotary, Sinusoidal
from regard.attention.reach import Random
from regard.attention.relative import LogBuckets, RelativeBias
from regard.see.asked import UNFIT
from regard.see.views import code
from regard.serve import masks
from regard.serve.answers import Request
from regard.serve.asking import text_in, whole
from regard.serve.wire import Answer, Refused, as_floats, as_json

LONGEST_TEXT, MOST_PICKS = 500, 64
MOST_WORK = 2**23  # parts of a pattern × tokens: a few seconds on one core
DRAWN, LONGEST = 4096, 2**20  # tokens of a mask that is drawn, and of one that is only counted
SIDE = 128  # blocks
MOST_NUMBERS = 2**22
NAMES = [name for name, part in PARTS.items() if issubclass(part, Pattern)]
KINDS = ("sinusoidal", "rotary", "alibi", "t5", "learned")


def patterns(asked: Request) -> Answer:
    length = whole(asked.body, "length", 1, LONGEST)
    pattern, length = pattern_of(text_in(asked.body, "pattern")), 64 if length is None else length
    refuse_work(pattern, length)
    return as_json(measured(pattern, length))


def pattern_of(text: str) -> Pattern:
    """What the text describes; only patterns are built, for a score could be of any size."""
    if not text.strip() or len(text) > LONGEST_TEXT:
        raise Refused(f"a pattern has 1 to {LONGEST_TEXT} letters, such as Causal() & Window(8)")
    if strange := [name for name in re.findall(r"(\w+)\s*\(", text) if name not in NAMES]:
        raise Refused(f"no pattern is called {strange[0]!r:.40}; there are {', '.join(NAMES)}")
    try:
        pattern = read(text)
        if not isinstance(pattern, Pattern):
            raise Refused(f"{text!r:.80} is no pattern; write one such as Causal() & Window(8)")
        refuse_picks(pattern)  # before it is tried: each pick is a step
        masks.whole(pattern, 2)
        pattern.count(Span(0, 2, 1), Span(0, 2, 1))
    except (*UNFIT, RecursionError) as error:
        raise Refused(f"{text!r:.80} does not work: {error}") from None
    return pattern


def refuse_picks(pattern: Pattern) -> None:
    """What would take long, whatever the length."""
    if (picks := sum(part.picks for part in leaves(pattern) if isinstance(part, Random))) > MOST_PICKS:
        raise Refused(f"Random picks at most {MOST_PICKS} in all here, not {picks}; take fewer")


def refuse_work(pattern: Pattern, length: int) -> None:
    """What would take long at this length: each part is asked about every token, and Random once for each pick."""
    work = length * sum(part.picks if isinstance(part, Random) else 1 for part in leaves(pattern))
    if work > MOST_WORK:
        raise Refused(
            f"this pattern takes {work:,} steps for {length:,} tokens, and at most {MOST_WORK:,} are taken; take fewer "
            "parts and picks, or a shorter text",
            413,
        )


def measured(pattern: Pattern, length: int) -> dict[str, Any]:
    size = 2 ** max(0, (-(-length // SIDE) - 1).bit_length())
    about = {"pattern": code(pattern), "length": length, "block": size}
    span = Span(0, length, size)
    area = (span.sizes[:, None] * span.sizes).numpy()
    if length <= DRAWN:
        seen = masks.whole(pattern, length)
        starts = np.arange(0, length, size)
        low = high = np.add.reduceat(np.add.reduceat(seen, starts, 0, dtype=np.int64), starts, 1)
        cells, exact, empty = int(seen.sum()), True, int((~seen.any(1)).sum())
        drawn = base64.b64encode(np.packbits(seen).tobytes()).decode()
    else:
        low, high = (bound.numpy() for bound in pattern.count(span, span))
        exact, empty, drawn = bool((low == high).all()), None, None
        cells = int(low.sum()) if exact else masks.about(pattern, length)
    # where bounds leave a doubt, mixed is never wrong
    blocks = np.where(high == 0, EMPTY, np.where(low == area, FULL, MIXED)).tolist()
    found = {"cells": cells, "share": cells / length**2, "exact": exact, "rows_empty": empty}
    return {**about, **found, "blocks": blocks, "mask": drawn}


def positions(asked: Request) -> Answer:
    kind = asked.query.get("kind") or KINDS[0]
    if kind not in KINDS:
        raise Refused(f"there is no kind of position {kind!r:.40}; there are {', '.join(KINDS)}")
    length, width = asked.asked("length", 64, 1, 65_536), asked.asked("width", 64, 2, 4096)
    heads = asked.asked("heads", 8, 1, 256)
    numbers = heads * length**2 if kind in ("alibi", "t5") else length * width
    if numbers > MOST_NUMBERS:
        raise Refused(f"{numbers:,} numbers are more than the {MOST_NUMBERS:,} that are sent; ask for a shorter text")
    return as_floats(table(kind, length, width, heads).float().numpy())


@torch.no_grad()
def table(kind: str, length: int, width: int, heads: int) -> Tensor:
    at = torch.arange(length)
    b, h = torch.zeros(1, 1, 1, dtype=torch.long), torch.arange(heads).view(-1, 1, 1)
    i, j = at.view(1, -1, 1), at.view(1, 1, -1)
    match kind:
        case "sinusoidal":
            return Sinusoidal().table(at, width)
        case "rotary":
            ones = torch.tensor([1.0, 0.0]).repeat(-(-width // 2)).expand(1, 1, length, -1)
            return Rotary().turn(ones, at)[0, 0, :, :width]
        case "alibi":
            return Alibi(heads).bias(b, h, i, j)
    part = Learned(length, width) if kind == "learned" else RelativeBias(LogBuckets(), heads)
    # fresh numbers, the same each time, whatever others draw meanwhile
    part.weight.normal_(0.0, width**-0.5 if kind == "learned" else 0.1, generator=torch.Generator().manual_seed(0))
    return part.table(at, width) if isinstance(part, Learned) else part.bias(b, h, i, j)


def lecture(asked: Request) -> Answer:
    """The lectures' example with other numbers, or the same walk over a head of a scene."""
    from regard.serve.lecture import lecture as walk
    from regard.serve.lecture_site import lecture_on

    if (number := text_in(asked.body, "scene")) == "":
        return as_json(walk(dict(asked.body)))
    showing = asked.desk.scenes[number]
    name, head = text_in(asked.body, "site"), whole(asked.body, "head", 0, 2**31) or 0
    site, query = showing.head(name, head), whole(asked.body, "query", 0, 2**31) or 0
    queries, keys = (
        axis.labels if (axis := showing.scene.axes.get(side)) else () for side in (site.spot.queries, site.spot.keys)
    )
    return as_json(lecture_on(site, head, query, queries=queries, keys=keys))
