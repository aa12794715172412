"""What the beams of a sentence offer in; its beams one word on, and the notes of it, out. One Triton kernel.

As `lanes.choose` does it, number by number in double precision, without its fifty small kernels: of a few hundred
candidates the best few are taken one after the other.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from regard.text.vocabulary import EOS, PAD

if TYPE_CHECKING:
    from regard.decode.lanes import Lanes, Rules

NONE = tl.constexpr(2**31 - 1)


@triton.jit
def choosing(
    values, words, at, penalties, tokens, parents, totals, leading, ended, limits, farthest,
    said, grown, each, sums, END: tl.constexpr, EMPTY: tl.constexpr, BEAMS: tl.constexpr, OFFERS: tl.constexpr,
    BEST: tl.constexpr, BB: tl.constexpr, OO: tl.constexpr, WW: tl.constexpr,
):  # fmt: skip
    """One sentence."""
    sentence, now = tl.program_id(0).to(tl.int64), tl.load(at)
    place, lane, wanted = tl.arange(0, OO), tl.arange(0, BB), tl.arange(0, WW)
    left, real = place < BEAMS * OFFERS, lane < BEAMS
    word = tl.load(words + sentence * BEAMS * OFFERS + place, mask=left, other=0).to(tl.int32)
    value = tl.load(values + sentence * BEAMS * OFFERS + place, mask=left, other=-float("inf")).to(tl.float64)
    candidate = tl.load(totals + sentence * BEAMS + place // OFFERS, mask=left, other=-float("inf")) + value

    total, cost = tl.full((BB,), -float("inf"), tl.float64), tl.zeros((BB,), tl.float64)
    picked, parent = tl.full((BB,), -1, tl.int32), tl.zeros((BB,), tl.int32)
    for rank in range(BEAMS):
        best = tl.max(tl.where(left, candidate, -float("inf")), 0)
        equal = left & (candidate == best)  # of equals the lower word, then the lower beam
        lowest = tl.min(tl.where(equal, word, NONE), 0)
        chosen = tl.minimum(tl.min(tl.where(equal & (word == lowest), place, NONE), 0), BEAMS * OFFERS - 1)
        total, picked = tl.where(lane == rank, best, total), tl.where(lane == rank, lowest, picked)
        parent = tl.where(lane == rank, chosen // OFFERS, parent)
        cost = tl.where(lane == rank, tl.sum(tl.where(place == chosen, value, 0.0), 0), cost)
        left = left & (place != chosen)
    there = real & (total > -float("inf"))
    picked = tl.where(there, picked, -1)
    note = (now * tl.num_programs(0) + sentence) * BEAMS + lane
    tl.store(said + note, picked.to(tl.int64), mask=real)
    tl.store(grown + note, parent.to(tl.int64), mask=real)
    tl.store(each + note, cost, mask=real)
    tl.store(sums + note, total, mask=real)

    ends = picked == END
    score = tl.where(ends, total / tl.load(penalties + now), -float("inf"))
    old = tl.load(leading + sentence * BEST + wanted, mask=wanted < BEST, other=-float("inf"))
    tl.debug_barrier()  # every thread has read what is written below
    led, least = old, tl.max(old, 0)
    for rank in range(BEST):
        before, here = tl.max(old, 0), tl.max(score, 0)
        least = tl.maximum(before, here)
        led = tl.where(wanted == rank, least, led)
        gone = tl.where(before >= here, tl.min(tl.where(old == before, wanted, WW), 0), WW)
        new = tl.where(before >= here, BB, tl.min(tl.where(score == here, lane, BB), 0))
        old, score = tl.where(wanted == gone, -float("inf"), old), tl.where(lane == new, -float("inf"), score)
    tl.store(leading + sentence * BEST + wanted, led, mask=wanted < BEST)

    hope = tl.where(least > -float("inf"), total / tl.load(farthest + sentence), float("inf"))
    goes = there & (picked != END) & (hope > least)
    going, count = tl.cumsum(goes.to(tl.int32), 0), tl.sum(goes.to(tl.int32), 0)
    front = sentence * BEAMS + tl.where(goes, going - 1, count + lane - going)  # those that go on come first
    tl.store(totals + front, tl.where(goes, total, -float("inf")), mask=real)
    tl.store(tokens + front, tl.where(goes, picked, EMPTY).to(tl.int64), mask=real)
    tl.store(parents + front, tl.where(goes, parent, 0).to(tl.int64), mask=real)
    over, done = (count == 0) | (now + 1 == tl.load(limits + sentence)), tl.load(ended + sentence)
    tl.store(ended + sentence, tl.where(over & (done < 0), now, done))


def chosen(
    lanes: "Lanes", rules: "Rules", values: Float[Tensor, "b k c"], words: Int[Tensor, "b k c"], at: Int[Tensor, " 1"]
) -> None:
    (b, k, c), best, notes = values.shape, lanes.leading.shape[1], lanes.notes
    written = (lanes.tokens, lanes.parents, lanes.totals, lanes.leading, lanes.ended, lanes.limits, lanes.farthest)
    noted = (notes.words, notes.parents, notes.values, notes.totals)
    assert all(part.is_contiguous() for part in (values, words, *written, *noted))
    many = triton.next_power_of_2(k * c)
    choosing[(b,)](
        values, words, at, rules.penalties, *written, *noted, END=EOS, EMPTY=PAD, BEAMS=k, OFFERS=c, BEST=best,
        BB=triton.next_power_of_2(k), OO=many, WW=triton.next_power_of_2(best),
        num_warps=1 if many <= 256 else 8,  # type: ignore[call-arg]
    )  # fmt: skip
