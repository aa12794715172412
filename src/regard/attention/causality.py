"""Causality: how far ahead a pattern lets a query look, proved from what the pattern is made of."""

import torch

from regard.attention.given import Edges
from regard.attention.pattern import And, Before, Causal, Not, Or, Pattern, Strided, Window
from regard.attention.reach import Block, Global, Prefix

HORIZON = 2**14  # differences tried at least, so that who looks ahead is found out before the text is long


def is_causal(pattern: Pattern, places: int) -> bool:
    """Is it proved that none of so many tokens sees a later one? Any pattern becomes causal by `& Causal()`."""
    ahead = lookahead(pattern, places)
    return ahead is not None and ahead <= 0


def lookahead(pattern: Pattern, places: int) -> int | None:
    """No visible key lies further ahead of its query than this, among so many places; None if it cannot be told."""
    match pattern:
        case Causal():
            return 0
        case Before():
            return -1
        case Window(size):
            return size - 1
        case Strided():
            return None  # however long the stride, some text is longer
        case Prefix(length):
            return length - 1  # the first query sees the last of them
        case Global(0):
            return -1
        case Edges(pairs):
            return int((pairs[1].long() - pairs[0].long()).max()) if pairs.numel() else -1
        case Block(size, among):
            blocks = lookahead(among, -(-places // size))
            return None if blocks is None else (blocks + 1) * size - 1
        case Or(left, right):
            ahead, other = lookahead(left, places), lookahead(right, places)
            return None if ahead is None or other is None else max(ahead, other)
        case And(left, right):
            known = [x for part in (left, right) if (x := lookahead(part, places)) is not None]
            if known and min(known) <= 0:
                return min(known)
            tried = by_difference(pattern, places)  # two that look ahead may still never see the same key
            return min(known, default=None) if tried is None else tried
        case Not(Not(inner)):
            return lookahead(inner, places)
        case Not(And(left, right)):
            return lookahead(~left | ~right, places)
        case Not(Or(left, right)):
            return lookahead(~left & ~right, places)
    return by_difference(pattern, places)


def by_difference(pattern: Pattern, places: int) -> int | None:
    """Where i - j alone matters there are few cases, and all are tried; None where more than that matters."""
    if not pattern.by_difference or pattern.asks_head:
        return None
    furthest = max(places, HORIZON)
    ahead = torch.arange(furthest - 1, -furthest, -1)
    zero = torch.zeros_like(ahead)
    seen = ahead[pattern.sees(zero, zero, -ahead, zero)]
    return int(seen[0]) if len(seen) else -furthest
