"""Triton kernels of beam search: segmented top-k log-probabilities, candidate selection, and the slots of the KV cache.

For a segment of tokens j: m = max xⱼ, s = Σ exp(xⱼ - m), where x = logits + bias; then the best `COUNT` of the tokens
that are not banned, of ties the lower first. The logsumexp over all tokens follows from the m and s of all segments,
and the best tokens of a row are among those of its segments.
"""

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from regard.data.tokenizers.base import PAD
from regard.decode.beam import BeamState, select_candidates
from regard.decode.topk import TopKLogProbs

SEGMENT = 4096  # tokens of a segment
MAX_CANDIDATES = 4096  # of a sentence, which are held in registers


@triton.jit
def segment_topk_kernel(
    logits, bias, closed, values, words, highest, sums, vocabulary, pieces, COUNT: tl.constexpr, SEGMENT: tl.constexpr
):
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = piece * SEGMENT + tl.arange(0, SEGMENT)
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
def subtract_logsumexp_kernel(
    values, highest, sums, whole, pieces, COUNT: tl.constexpr, PIECES: tl.constexpr, CC: tl.constexpr
):
    """One row: the logsumexp over all of its segments, and its values less that."""
    row, piece, at = tl.program_id(0).to(tl.int64), tl.arange(0, PIECES), tl.arange(0, CC)
    top = tl.load(highest + row * pieces + piece, mask=piece < pieces, other=-float("inf"))
    part = tl.load(sums + row * pieces + piece, mask=piece < pieces, other=0.0)
    most = tl.max(top, 0)
    total = most + tl.log(tl.sum(part * tl.exp(top - most), 0))
    tl.store(whole + row, total)
    inside, place = at < pieces * COUNT, values + row * pieces * COUNT + at
    tl.store(place, tl.load(place, mask=inside, other=0.0) - total, mask=inside)


def segment_topk(
    logits: Tensor, bias: Tensor, banned: Tensor, count: int, segment: int = SEGMENT
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of every segment's best tokens, (n, segments × count), the tokens, each row's logsumexp, (n,
    1).

    `banned` is 1 for banned tokens, as uint8.
    """
    n, v = logits.shape
    pieces = -(-v // segment)
    values = torch.empty(n, pieces * count, dtype=torch.float32, device=logits.device)
    words = torch.empty(n, pieces * count, dtype=torch.int32, device=logits.device)
    highest, sums = (torch.empty(n, pieces, dtype=torch.float32, device=logits.device) for _ in range(2))
    segment_topk_kernel[(n, pieces)](
        logits,
        bias,
        banned,
        values,
        words,
        highest,
        sums,
        v,
        pieces,
        COUNT=count,
        SEGMENT=segment,
        num_warps=8,  # type: ignore[call-arg]
    )
    whole = torch.empty(n, 1, dtype=torch.float32, device=logits.device)
    many, all_ = triton.next_power_of_2(pieces), triton.next_power_of_2(pieces * count)
    subtract_logsumexp_kernel[(n,)](
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


def topk_logprobs_triton(
    logits: Float[Tensor, "n v"],
    bias: Float[Tensor, " v"],
    banned: UInt8[Tensor, " v"],
    count: int,
    must: Int[Tensor, "n 1"] | None,
) -> TopKLogProbs:
    """More than `count` tokens of a row, the best among them; without host synchronisation, so a CUDA graph can capture
    it."""
    values, tokens, whole = segment_topk(logits, bias, banned, count)
    found = TopKLogProbs(values, tokens, whole.isfinite().all())
    if must is None:
        return found
    token = must.clamp_min(0)
    return found.force(must, logits.gather(1, token).float() + bias[token] - whole)


# --- candidate selection ---


NONE = tl.constexpr(2**31 - 1)


@triton.jit
def select_candidates_kernel(
    values, words, at, penalties, tokens, parents, totals, leading, ended, limits, farthest,
    said, grown, each, marks, END: tl.constexpr, EMPTY: tl.constexpr, BEAMS: tl.constexpr, OFFERS: tl.constexpr,
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
        equal = left & (candidate == best)  # of ties the lower token, then the lower beam
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
    score = total / tl.load(penalties + now)
    tl.store(marks + note, score, mask=real)

    score = tl.where(picked == END, score, -float("inf"))
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


def select_candidates_triton(
    beams: BeamState,
    values: Float[Tensor, "b k c"],
    words: Int[Tensor, "b k c"],
    at: Int[Tensor, " 1"],
) -> None:
    (b, k, c), best, backpointers = values.shape, beams.best_finished.shape[1], beams.backpointers
    written = (
        beams.tokens,
        beams.parents,
        beams.totals,
        beams.best_finished,
        beams.finished_step,
        beams.max_lengths,
        beams.max_length_penalty,
    )
    history = (backpointers.tokens, backpointers.parents, backpointers.log_probabilities, backpointers.scores)
    assert all(part.is_contiguous() for part in (values, words, *written, *history))
    many = triton.next_power_of_2(k * c)
    select_candidates_kernel[(b,)](
        values, words, at, beams.penalties, *written, *history,
        END=beams.eos, EMPTY=PAD, BEAMS=k, OFFERS=c, BEST=best,
        BB=triton.next_power_of_2(k), OO=many, WW=triton.next_power_of_2(best),
        num_warps=1 if many <= 256 else 8,  # type: ignore[call-arg]
    )  # fmt: skip


def select_candidates_cuda(
    beams: BeamState,
    values: Float[Tensor, "b k c"],
    tokens: Int[Tensor, "b k c"],
    step: Int[Tensor, " 1"],
    covered: Float[Tensor, "b k"] | None,
) -> None:
    """By the kernel, if it knows the rules of the search."""
    if values[0].numel() <= MAX_CANDIDATES and beams.prune and not beams.refill and covered is None:
        select_candidates_triton(beams, values, tokens, step)
    else:
        select_candidates(beams, values, tokens, step, covered)


@triton.jit
def write_slots_kernel(
    keys, values, key, value, slots, new_b, new_g, new_t, many,
    BEAMS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, WW: tl.constexpr,
):  # fmt: skip
    """The key and the value of one beam, of all heads."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, WW)
    sentence, beam, group, wide, inside = row // BEAMS, row % BEAMS, at // WIDTH, at % WIDTH, at < GROUPS * WIDTH
    new = sentence * new_b + beam * new_t + group * new_g + wide
    place = ((sentence * GROUPS + group) * many + tl.load(slots + row)) * WIDTH + wide
    tl.store(keys + place, tl.load(key + new, mask=inside, other=0.0), mask=inside)
    tl.store(values + place, tl.load(value + new, mask=inside, other=0.0), mask=inside)


@triton.jit
def follow_parents_kernel(
    seen, parents, slots, visible, BEAMS: tl.constexpr, SLOTS: tl.constexpr, BB: tl.constexpr, SS: tl.constexpr
):  # fmt: skip
    """One sentence."""
    sentence, beam, slot = tl.program_id(0).to(tl.int64), tl.arange(0, BB), tl.arange(0, SS)
    real = beam < BEAMS
    parent = tl.load(parents + sentence * BEAMS + beam, mask=real, other=0)
    inside = real[:, None] & (slot < SLOTS)[None, :]
    sees = tl.load(seen + ((sentence * BEAMS + parent) * SLOTS)[:, None] + slot[None, :], mask=inside, other=0)
    tl.debug_barrier()  # every thread has read what its parent saw before any writes
    free = (tl.max(sees.to(tl.int32), 0) == 0).to(tl.int32)
    new = (free[None, :] > 0) & (tl.cumsum(free, 0)[None, :] == beam[:, None] + 1)  # the first free, the second, ...
    tl.store(slots + sentence * BEAMS + beam, tl.sum(tl.where(new, slot[None, :], 0), 1).to(tl.int64), mask=real)
    sees = (sees != 0) | new
    place = ((sentence * BEAMS + beam) * SLOTS)[:, None] + slot[None, :]
    tl.store(seen + place, sees.to(tl.uint8), mask=inside)
    tl.store(visible + place, tl.where(sees, 0.0, -float("inf")).to(visible.dtype.element_ty), mask=inside)


def write_slots_triton(
    past: tuple[Float[Tensor, "b g c d"], Float[Tensor, "b g c d"]],
    key: Float[Tensor, "b g k d"],
    value: Float[Tensor, "b g k d"],
    slots: Int[Tensor, "b k"],
) -> None:
    """Each beam's new key and value into its slot."""
    b, groups, beams, d = key.shape
    key, value = (new if new.stride(3) == 1 else new.contiguous() for new in (key, value))
    if key.stride() != value.stride():  # a rotated key lies otherwise than a value
        key, value = key.contiguous(), value.contiguous()
    keys, values = past
    assert all(part.is_contiguous() for part in (keys, values, slots))
    new_b, new_g, new_t, _ = key.stride()
    write_slots_kernel[(b * beams,)](
        keys, values, key, value, slots, new_b, new_g, new_t, keys.shape[2],
        BEAMS=beams, GROUPS=groups, WIDTH=d, WW=triton.next_power_of_2(groups * d),
        num_warps=2,  # type: ignore[call-arg]
    )  # fmt: skip


def follow_parents_triton(
    seen: Bool[Tensor, "b k c"], parents: Int[Tensor, "b k"], dtype: torch.dtype
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k c"]]:
    """As `follow_parents`."""
    b, beams, slots = seen.shape
    assert all(part.is_contiguous() for part in (seen, parents))
    found, mask = torch.empty_like(parents), torch.empty(seen.shape, dtype=dtype, device=seen.device)
    follow_parents_kernel[(b,)](
        seen.view(torch.uint8), parents, found, mask, BEAMS=beams, SLOTS=slots,
        BB=triton.next_power_of_2(beams), SS=triton.next_power_of_2(slots),
        num_warps=1 if beams * slots <= 512 else 8,  # type: ignore[call-arg]
    )  # fmt: skip
    return found, mask
