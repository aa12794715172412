"""Causality: how far ahead of a query a pattern shows keys, proved from what the pattern is made of."""

import torch

from regard.attention.batch_patterns import Edges
from regard.attention.pattern import And, Causal, Not, Or, Pattern, StrictCausal, Strided, Window
from regard.attention.sparse_patterns import Block, Global, Prefix

HORIZON = (
    2**14
)  # differences tried at least, so that a pattern that is not causal is found out before the sequence is long


def is_causal(pattern: Pattern, tokens: int) -> bool:
    """Is it proved that none of so many tokens sees a later one? Any pattern becomes causal by `& Causal()`."""
    ahead = lookahead(pattern, tokens)
    return ahead is not None and ahead <= 0


def lookahead(pattern: Pattern, tokens: int) -> int | None:
    """No visible key lies further ahead of its query than this, among so many tokens; None if it cannot be proved."""
    match pattern:
        case Causal():
            return 0
        case StrictCausal():
            return -1
        case Window(size):
            return size - 1
        case Strided():
            return None  # however long the stride, some sequence is longer
        case Prefix(length):
            return length - 1  # the first query sees the last of them
        case Global(0):
            return -1
        case Edges(pairs):
            return int((pairs[1].long() - pairs[0].long()).max()) if pairs.numel() else -1
        case Block(size, among):
            blocks = lookahead(among, -(-tokens // size))
            return None if blocks is None else (blocks + 1) * size - 1
        case Or(left, right):
            ahead, other = lookahead(left, tokens), lookahead(right, tokens)
            return None if ahead is None or other is None else max(ahead, other)
        case And(left, right):
            known = [x for part in (left, right) if (x := lookahead(part, tokens)) is not None]
            if known and min(known) <= 0:
                return min(known)
            tried = toeplitz_lookahead(pattern, tokens)  # two that are not causal may still share no key ahead
            return min(known, default=None) if tried is None else tried
        case Not(Not(inner)):
            return lookahead(inner, tokens)
        case Not(And(left, right)):
            return lookahead(~left | ~right, tokens)
        case Not(Or(left, right)):
            return lookahead(~left & ~right, tokens)
    return toeplitz_lookahead(pattern, tokens)


def toeplitz_lookahead(pattern: Pattern, tokens: int) -> int | None:
    """Where i - j alone matters there are few cases, and all are tried; None where more than that matters."""
    if not pattern.is_toeplitz or pattern.depends_on_head:
        return None
    furthest = max(tokens, HORIZON)
    ahead = torch.arange(furthest - 1, -furthest, -1)
    zero = torch.zeros_like(ahead)
    seen = ahead[pattern.sees(zero, zero, -ahead, zero)]
    return int(seen[0]) if len(seen) else -furthest
