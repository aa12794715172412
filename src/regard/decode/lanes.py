"""States in; the beams of every sentence one word on, and notes from which each translation can be read back, out.

What beam.py does hypothesis by hypothesis, here for all sentences at once and without leaving the device: the same
candidates in the same order, the same sums in double precision, the same moment to stop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from regard.decode.limits import Allowed
from regard.decode.linears import Linear
from regard.decode.offers import on_cpu, on_gpu, open_from
from regard.decode.penalties import length_penalty
from regard.decode.permitted import known
from regard.decode.request import Request
from regard.decode.slices import MANY, Sliced, offered
from regard.text.vocabulary import BOS, EOS, PAD

CANDIDATES = 4096  # of a sentence, at most, for the GPU's kernel: they stand in registers


@dataclass(frozen=True, eq=False)
class Notes:
    """Of every step and sentence the candidates chosen, best first; a word of -1 is none."""

    words: Int[Tensor, "t b k"]
    parents: Int[Tensor, "t b k"]
    values: Float[Tensor, "t b k"]
    totals: Float[Tensor, "t b k"]


@dataclass(frozen=True, eq=False)
class Lanes:
    """Beams side by side, written in place. A lane whose total is -∞ is empty.

    Args:
        tokens, parents, totals: the last word of each beam, the beam it grew from, its log-probability.
        leading: the best finished scores, as many as are wanted.
        ended: at which step a sentence was done, -1 if it is not.
        limits, farthest: the most words, and the length penalty of so many.
        forced: the words that must come, one row to a step, -1 where any may; no rows if none must anywhere.
        broken: whether the model ever gave something that is not a number.
    """

    tokens: Int[Tensor, "b k"]
    parents: Int[Tensor, "b k"]
    totals: Float[Tensor, "b k"]
    leading: Float[Tensor, "b n"]
    ended: Int[Tensor, " b"]
    limits: Int[Tensor, " b"]
    farthest: Float[Tensor, " b"]
    forced: Int[Tensor, "t b"]
    broken: Bool[Tensor, ""]
    notes: Notes

    def keep(self, rows: Int[Tensor, " n"]) -> "Lanes":
        """These sentences alone."""
        by_sentence = ("tokens", "parents", "totals", "leading", "ended", "limits", "farthest")
        kept = {name: getattr(self, name)[rows] for name in by_sentence}
        notes = Notes(*(note[:, rows] for note in parts(self.notes)))
        return replace(self, **kept, forced=self.forced[:, rows], notes=notes)


def parts(value: Any) -> list[Any]:
    return [getattr(value, field.name) for field in fields(value)]


@dataclass(frozen=True, eq=False)
class Rules:
    """What is the same for all sentences: the penalty of a length, which words are closed, when the end may come."""

    penalties: Float[Tensor, " t"]
    closed: UInt8[Tensor, " v"]
    shortest: int
    size: int

    @staticmethod
    def of(alpha: float, allowed: Allowed, size: int, steps: int, bias: Float[Tensor, " v"]) -> "Rules":
        penalties = [length_penalty(length, alpha) for length in range(1, steps + 1)]
        closed = torch.zeros(len(bias), dtype=torch.uint8, device=bias.device)
        closed[known({PAD, BOS, *allowed.never}, bias[None])] = 1
        return Rules(torch.tensor(penalties, dtype=torch.double, device=bias.device), closed, allowed.shortest, size)


def lanes_for(
    requests: Sequence[Request], limits: Sequence[int], rules: Rules, best: int, alpha: float, steps: int
) -> Lanes:
    device, b, k = rules.penalties.device, len(requests), rules.size
    totals = torch.full((b, k), -torch.inf, dtype=torch.double, device=device)
    totals[:, 0] = 0.0  # the beams of a sentence start as one
    longest = max((len(request.prefix) for request in requests), default=0)
    padded = [[*request.prefix, *[-1] * (steps - len(request.prefix))] if longest else [] for request in requests]
    if strange := [word for row in padded for word in row if word >= len(rules.closed)]:
        raise ValueError(f"token {strange[0]} is not in the vocabulary of {len(rules.closed)}")
    none = torch.full((steps, b, k), -1, device=device)
    nothing = torch.zeros((steps, b, k), dtype=torch.double, device=device)
    return Lanes(
        torch.full((b, k), BOS, device=device),
        torch.zeros((b, k), dtype=torch.long, device=device),
        totals,
        torch.full((b, best), -torch.inf, dtype=torch.double, device=device),
        torch.full((b,), -1, device=device),
        torch.tensor(limits, device=device),
        torch.tensor([length_penalty(limit, alpha) for limit in limits], dtype=torch.double, device=device),
        rearrange(torch.tensor(padded, dtype=torch.long, device=device), "b t -> t b"),
        torch.zeros((), dtype=torch.bool, device=device),
        Notes(none, none.clone(), nothing, nothing.clone()),
    )


def grow(
    lanes: Lanes,
    rules: Rules,
    states: Float[Tensor, "n model"],
    words_of: Linear,
    bias: Tensor,
    at: Int[Tensor, " 1"],
    *,
    forcing: bool,
    live: Int[Tensor, " n"] | None = None,
) -> None:
    """All beams one word on.

    Args:
        words_of: scores of all words, by a state; on a GPU without their bias.
        at: how many words stand already.
        forcing: whether some word may be forced at this step.
        live: whose states these are, of all beams counted through; None if all have theirs.
    """
    b, k = lanes.tokens.shape
    must = repeat(lanes.forced.index_select(0, at), "1 b -> (b k) 1", k=k) if forcing else None
    must = must if must is None or live is None else must[live]
    closed = open_from(rules.closed, at, rules.shortest)
    if isinstance(words_of, Sliced) and len(states) >= MANY:
        offers = offered(words_of, states, closed, k, must)
    elif states.is_cuda:
        offers = on_gpu(words_of(states), bias, closed, k, must)
    else:
        offers = on_cpu(words_of(states), closed, k, must)
    lanes.broken.logical_or_(~offers.sound)
    values, words = offers.values, offers.words
    if live is not None:
        values = values.new_full((b * k, values.shape[1]), -torch.inf).index_copy_(0, live, values)
        words = words.new_zeros(b * k, words.shape[1]).index_copy_(0, live, words)
    values, words = (rearrange(part, "(b k) c -> b k c", b=b) for part in (values, words))
    if values.is_cuda and values[0].numel() <= CANDIDATES:
        from regard.decode.lanes_kernel import chosen

        chosen(lanes, rules, values, words, at)
    else:
        choose(lanes, rules, values, words, at)


def choose(
    lanes: Lanes, rules: Rules, values: Float[Tensor, "b k c"], words: Int[Tensor, "b k c"], at: Int[Tensor, " 1"]
) -> None:
    """Of what each beam offers the best `size`; those that end are noted, the others go on. Equals: lower word first,
    then lower beam."""
    _, k, c = values.shape
    totals = rearrange(rearrange(lanes.totals, "b k -> b k 1") + values, "b k c -> b (k c)")
    by_word = rearrange(words, "b k c -> b (k c)").sort(dim=-1, stable=True).indices
    totals, order = totals.gather(1, by_word).sort(dim=-1, descending=True, stable=True)
    picked, totals = by_word.gather(1, order)[:, :k], totals[:, :k]
    there = totals > -torch.inf
    word = rearrange(words, "b k c -> b (k c)").gather(1, picked).where(there, -1)
    value = rearrange(values, "b k c -> b (k c)").gather(1, picked)
    parent = picked // c
    for note, now in zip(parts(lanes.notes), (word, parent, value, totals), strict=True):
        note.index_copy_(0, at, now.to(note.dtype)[None])

    ends = word == EOS
    scores = (totals / rules.penalties.index_select(0, at)).masked_fill(~ends, -torch.inf)
    lanes.leading.copy_(torch.cat((lanes.leading, scores), 1).topk(lanes.leading.shape[1], -1).values)
    least = lanes.leading[:, -1:]
    # an equal that comes later ranks lower, so equality is enough. A beam whose best end is too late is dropped: what
    # comes in its stead has a lower total, and is dropped as well
    overtaken = (least >= totals / rearrange(lanes.farthest, "b -> b 1")) & (least > -torch.inf)
    goes = there & ~ends & ~overtaken
    front = (~goes).byte().sort(dim=-1, stable=True).indices
    goes = goes.gather(1, front)
    lanes.totals.copy_(totals.gather(1, front).masked_fill(~goes, -torch.inf))
    lanes.tokens.copy_(word.gather(1, front).masked_fill(~goes, PAD))
    lanes.parents.copy_(parent.gather(1, front).masked_fill(~goes, 0))
    over = (lanes.totals[:, 0] == -torch.inf) | (at + 1 == lanes.limits)
    lanes.ended.copy_(torch.where(over & (lanes.ended < 0), at, lanes.ended))
