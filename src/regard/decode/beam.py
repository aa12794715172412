"""Beam search: the few best beginnings of every sentence side by side, until none can overtake what is finished."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from regard.decode import quick
from regard.decode.hypothesis import Hypothesis
from regard.decode.limits import Allowed, Longest
from regard.decode.model import Model, Pickable, encoded, log_probabilities
from regard.decode.penalties import STRONGEST, attention_paid, coverage_penalty, highest_score, length_penalty
from regard.decode.permitted import permitted
from regard.decode.ranking import best
from regard.decode.ready import Ready
from regard.decode.request import Request, Row
from regard.decode.search import Search
from regard.text.vocabulary import BOS, EOS

Offer = tuple[float, int]  # a token's log-probability, and the token


@dataclass(frozen=True)
class Beam(Search):
    """The `size` best continuations of every step; those that end leave the beam and are ranked by their score.

    score(y) = log P(y) / lp(y) + cp(x, y), see penalties.py. At a step all have the same length, so the beam itself
    compares log-probabilities. A sentence is done when no beginning that is left can enter its best `best`, so what
    comes out is what going on to the limit would find. A beam of size 1 is greedy search, whatever the penalties.

    Args:
        size: how many beginnings are kept.
        length_penalty: α, 0 for none; above 0 favours longer translations.
        coverage_penalty: β, 0 for none; above 0 favours translations that looked at every source token.
        best: how many translations are wanted, at most `size`. Finished ones come first; ones cut by the limit follow
            if there are too few.
    """

    size: int = 5
    length_penalty: float = 0.0
    coverage_penalty: float = 0.0
    best: int = 1
    longest: Longest = Longest()

    def __post_init__(self):
        if not 1 <= self.best <= self.size:
            raise ValueError(f"a beam of size {self.size} cannot give the best {self.best}: 1 ≤ best ≤ size")
        for name, penalty in (("length", self.length_penalty), ("coverage", self.coverage_penalty)):
            if not 0 <= penalty <= STRONGEST:
                raise ValueError(f"a {name} penalty of {penalty} should lie between 0, for none, and {STRONGEST}")

    @property
    def width(self) -> int:
        return self.size

    def run(self, model: Model, requests: Sequence[Request], allowed: Allowed) -> list[list[Hypothesis]]:
        if isinstance(model, Ready):
            if not (why := quick.objections(model, self, requests, allowed)):
                return quick.run(model, self, requests, allowed)
            model = model.as_it_was(why)
        ended: dict[int, list[Hypothesis]] = {}
        going = [Sentence(request, request.limit(self.longest), (Row(request),)) for request in requests]
        rows = begin(model, requests)
        while going:
            rows, scores = read(model, rows, self)
            beginnings = [row for sentence in going for row in sentence.rows]
            values, tokens = best(permitted(scores, beginnings, allowed), self.size)
            offers = [list(zip(*pair, strict=True)) for pair in zip(values.tolist(), tokens.tolist(), strict=True)]
            covered = rows.coverage_penalties(self)
            first, staying, parents = 0, [], []
            for sentence in going:
                here = slice(first, first + len(sentence.rows))
                grown = grow(sentence, offers[here], covered[here], self)
                if grown.done(self):
                    ended[grown.request.index] = grown.hypotheses(self)
                else:
                    staying.append(grown)
                    parents += [first + parent for parent in grown.parents]
                first = here.stop
            going = staying
            if going:
                rows = rows.follow(parents, [row for sentence in going for row in sentence.rows])
        return [ended[request.index] for request in requests]


@dataclass(frozen=True)
class Sentence:
    """One sentence's beam, best first, which row each beginning grew from, and all that has ended."""

    request: Request
    limit: int
    rows: tuple[Row, ...]
    parents: tuple[int, ...] = ()
    finished: tuple[Hypothesis, ...] = ()
    stuck: tuple[Row, ...] = ()

    def done(self, beam: Beam) -> bool:
        if not self.rows or len(self.rows[0].written) == self.limit:
            return True
        if len(self.finished) < beam.best:
            return False
        least = sorted((found.score for found in self.finished), reverse=True)[beam.best - 1]
        # an equal that comes later ranks lower
        return least >= highest_score(self.rows[0].total, self.limit, beam.length_penalty)

    def hypotheses(self, beam: Beam) -> list[Hypothesis]:
        cut = [row.cut(row.total / length_penalty(len(row.written), beam.length_penalty)) for row in self.unfinished]
        return [*ranked(self.finished), *ranked(cut)][: beam.best]

    @property
    def unfinished(self) -> tuple[Row, ...]:
        return (*self.stuck, *self.rows)


def ranked(found: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Best first; of equals the one that was found first."""
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


def grow(sentence: Sentence, offers: Sequence[Sequence[Offer]], covered: Sequence[float], beam: Beam) -> Sentence:
    """One token on: the best `size` continuations of all beginnings. Equals: lower token first, then lower beam."""
    candidates = sorted(
        (-(row.total + value), token, parent, value)
        for parent, (row, offer) in enumerate(zip(sentence.rows, offers, strict=True))
        for value, token in offer
        if value > -torch.inf
    )
    rows, parents, finished = [], [], list(sentence.finished)
    for cost, token, parent, value in candidates[: beam.size]:
        row = sentence.rows[parent]
        if token == EOS:
            penalty = length_penalty(len(row.written) + 1, beam.length_penalty)
            finished.append(row.ended(value, -cost / penalty + covered[parent]))
        else:
            rows.append(row.then(token, value))
            parents.append(parent)
    stuck = () if candidates else sentence.rows  # a rule lets nothing follow any of them
    return replace(sentence, rows=tuple(rows), parents=tuple(parents), finished=tuple(finished), stuck=stuck)


@dataclass(frozen=True, eq=False)
class Rows:
    """The beams of all sentences as rows of the model: its state, and how far each source has been covered."""

    owners: tuple[int, ...]
    tokens: Int[Tensor, " n"]
    lengths: Int[Tensor, " n"]
    state: Pickable
    memory: Pickable
    coverage: Float[Tensor, "n s"]

    def coverage_penalties(self, beam: Beam) -> list[float]:
        if not beam.coverage_penalty:
            return [0.0] * len(self.owners)
        return coverage_penalty(self.coverage, self.lengths, beam.coverage_penalty).tolist()

    def follow(self, parents: Sequence[int], rows: Sequence[Row]) -> "Rows":
        """The rows that grew out of these. A sentence's beams share its memory, so it is copied only if owners move."""
        device = self.tokens.device
        picked = torch.tensor(parents, device=device)
        tokens = torch.tensor([row.written[-1] for row in rows], device=device)
        owners = tuple(row.request.index for row in rows)
        state = self.state if list(parents) == list(range(len(self.owners))) else self.state.pick(picked)
        memory = self.memory if owners == self.owners else self.memory.pick(picked)
        return Rows(owners, tokens, self.lengths[picked], state, memory, self.coverage[picked])


def begin(model: Model, requests: Sequence[Request]) -> Rows:
    memory, lengths = encoded(model, [request.source for request in requests])
    nothing = torch.zeros(len(requests), int(lengths.max()), device=lengths.device)
    tokens = torch.full_like(lengths, BOS)
    return Rows(tuple(request.index for request in requests), tokens, lengths, model.start(memory), memory, nothing)


def read(model: Model, rows: Rows, beam: Beam) -> tuple[Rows, Float[Tensor, "n v"]]:
    """The log-probabilities of the next token; with a coverage penalty, also where the model looked for it."""
    tokens = rearrange(rows.tokens, "n -> n 1")
    if not beam.coverage_penalty:
        logits, state = model.step(tokens, rows.state, rows.memory)
        return replace(rows, state=state), log_probabilities(logits[:, -1])
    logits, state, looked = model.look(tokens, rows.state, rows.memory)
    coverage = rows.coverage + attention_paid(looked)
    return replace(rows, state=state, coverage=coverage), log_probabilities(logits[:, -1])
