"""Logits in; of every stretch of words its maximum, its sum of exponentials and its few best words out: one pass.

For a stretch of words j: m = max xⱼ, s = Σ exp(xⱼ - m), where x = logits + bias; then the best `COUNT` of the words
that may come, of equals the lower first. log Σ exp over all words follows from the m and s of all stretches, and the
best words of a row are among those of its stretches.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

STRETCH = 4096


@triton.jit
def stretches(
    logits, bias, closed, values, words, highest, sums, vocabulary, pieces, COUNT: tl.constexpr, STRETCH: tl.constexpr
):
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = piece * STRETCH + tl.arange(0, STRETCH)
    inside = at < vocabulary
    x = tl.load(logits + row * vocabulary + at, mask=inside, other=-float("inf")).to(tl.float32)
    x += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    top = tl.max(x, 0)
    shifted = tl.where(inside, tl.exp(x - top), 0.0)
    tl.store(highest + row * pieces + piece, top)
    tl.store(sums + row * pieces + piece, tl.sum(shifted, 0))
    shut = tl.load(closed + at, mask=inside, other=1)
    x = tl.where(shut != 0, -float("inf"), x)
    for n in tl.static_range(COUNT):
        best = tl.max(x, 0)
        word = tl.min(tl.where(x == best, at, 2147483647), 0)
        tl.store(values + (row * pieces + piece) * COUNT + n, best)
        tl.store(words + (row * pieces + piece) * COUNT + n, word)
        x = tl.where(at == word, -float("inf"), x)


@triton.jit
def ending(values, highest, sums, whole, pieces, COUNT: tl.constexpr, PIECES: tl.constexpr, CC: tl.constexpr):
    """One row: log Σ exp over all of its stretches, and its values less that."""
    row, piece, at = tl.program_id(0).to(tl.int64), tl.arange(0, PIECES), tl.arange(0, CC)
    top = tl.load(highest + row * pieces + piece, mask=piece < pieces, other=-float("inf"))
    part = tl.load(sums + row * pieces + piece, mask=piece < pieces, other=0.0)
    most = tl.max(top, 0)
    total = most + tl.log(tl.sum(part * tl.exp(top - most), 0))
    tl.store(whole + row, total)
    inside, place = at < pieces * COUNT, values + row * pieces * COUNT + at
    tl.store(place, tl.load(place, mask=inside, other=0.0) - total, mask=inside)


def offers(
    logits: Tensor, bias: Tensor, closed: Tensor, count: int, stretch: int = STRETCH
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of every stretch's best words, (n, stretches × count), the words, each row's log Σ exp, (n, 1).

    `closed` is 1 for words that may not come, as uint8.
    """
    n, v = logits.shape
    pieces = -(-v // stretch)
    values = torch.empty(n, pieces * count, dtype=torch.float32, device=logits.device)
    words = torch.empty(n, pieces * count, dtype=torch.int32, device=logits.device)
    highest, sums = (torch.empty(n, pieces, dtype=torch.float32, device=logits.device) for _ in range(2))
    stretches[(n, pieces)](
        logits,
        bias,
        closed,
        values,
        words,
        highest,
        sums,
        v,
        pieces,
        COUNT=count,
        STRETCH=stretch,
        num_warps=8,  # type: ignore[call-arg]
    )
    whole = torch.empty(n, 1, dtype=torch.float32, device=logits.device)
    many, all_ = triton.next_power_of_2(pieces), triton.next_power_of_2(pieces * count)
    ending[(n,)](
        values,
        highest,
        sums,
        whole,
        pieces,
        COUNT=count,
        PIECES=many,
        CC=all_,
        num_warps=1,  # type: ignore[call-arg]
    )
    return values, words.long(), whole
