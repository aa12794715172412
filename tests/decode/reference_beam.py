"""The reference beam search, one sentence after the other in plain Python: what the search by tensors must find."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import record_attention
from regard.data.tokenizers.base import BOS, EOS
from regard.decode import Beam
from regard.decode.beam import length_penalty
from regard.decode.beam_decoder import coverage_penalty, mean_cross_attention
from regard.decode.search import Constraints, DecodingRequest, Hypothesis, make_requests
from regard.decode.stepwise import PartialHypothesis, mask_disallowed
from regard.decode.topk import log_probabilities, stable_topk
from regard.models.seq2seq import DecodableModel, Reorderable, encode_sources, inference_mode

Candidate = tuple[float, int]  # a token's log-probability, and the token


def reference_translate(
    model: DecodableModel,
    sources: Sequence[Sequence[int]],
    beam: Beam,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    constraints: Constraints = Constraints(),
) -> list[list[Hypothesis]]:
    """As `translate`."""
    with inference_mode(model):
        return reference_beam(model, make_requests(sources, prefixes), beam, constraints)


def reference_beam(
    model: DecodableModel,
    requests: Sequence[DecodingRequest],
    beam: Beam,
    constraints: Constraints,
    on_step: "Callable[[SentenceBeam, SentenceBeam], None]" = lambda before, after: None,
) -> list[list[Hypothesis]]:
    """As `beam.run`; `on_step` is given every sentence's beam before and after each step."""
    finished: dict[int, list[Hypothesis]] = {}
    unfinished = [
        SentenceBeam(request, request.max_length(beam.max_length), (PartialHypothesis(request),))
        for request in requests
    ]
    rows = start_beams(model, requests)
    while unfinished:
        rows, scores = step_beams(model, rows, beam)
        prefixes = [row for sentence in unfinished for row in sentence.partial_hypotheses]
        values, tokens = stable_topk(mask_disallowed(scores, prefixes, constraints), beam.size)
        candidates = [list(zip(*pair, strict=True)) for pair in zip(values.tolist(), tokens.tolist(), strict=True)]
        covered = rows.coverage_penalties(beam)
        first, staying, parents = 0, [], []
        for sentence in unfinished:
            own = slice(first, first + len(sentence.partial_hypotheses))
            expanded = expand_beam(sentence, candidates[own], covered[own], beam)
            on_step(sentence, expanded)
            if expanded.done(beam):
                finished[expanded.request.index] = expanded.hypotheses(beam)
            else:
                staying.append(expanded)
                parents += [first + parent for parent in expanded.parents]
            first = own.stop
        unfinished = staying
        if unfinished:
            rows = rows.reorder(parents, [row for sentence in unfinished for row in sentence.partial_hypotheses])
    return [finished[request.index] for request in requests]


def score_upper_bound(log_probability: float, limit: int, alpha: float) -> float:
    """An upper bound of the score of any continuation of a hypothesis with this log-probability.

    Further tokens only lower the log-probability, which is negative, so it is divided by the largest length penalty,
    that of `limit` tokens. The coverage penalty only lowers the score.
    """
    return log_probability / length_penalty(limit, alpha)


@dataclass(frozen=True)
class SentenceBeam:
    """One sentence's beam, best first: its prefixes, the parent row of each, and all finished hypotheses."""

    request: DecodingRequest
    max_length: int
    partial_hypotheses: tuple[PartialHypothesis, ...]
    parents: tuple[int, ...] = ()
    finished: tuple[Hypothesis, ...] = ()
    stuck: tuple[PartialHypothesis, ...] = ()

    def done(self, beam: Beam) -> bool:
        if not self.partial_hypotheses or len(self.partial_hypotheses[0].tokens) == self.max_length:
            return True
        if len(self.finished) < beam.n_best:
            return False
        least = sorted((found.score for found in self.finished), reverse=True)[beam.n_best - 1]
        # a tie that is found later ranks lower
        return least >= score_upper_bound(self.partial_hypotheses[0].total, self.max_length, beam.length_penalty)

    def hypotheses(self, beam: Beam) -> list[Hypothesis]:
        cut = [
            row.truncate(row.total / length_penalty(len(row.tokens), beam.length_penalty)) for row in self.unfinished
        ]
        return [*rank_hypotheses(self.finished), *rank_hypotheses(cut)][: beam.n_best]

    @property
    def unfinished(self) -> tuple[PartialHypothesis, ...]:
        return (*self.stuck, *self.partial_hypotheses)


def rank_hypotheses(found: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Best first; of ties the one that was found first."""
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


def expand_beam(
    sentence: SentenceBeam, extensions: Sequence[Sequence[Candidate]], covered: Sequence[float], beam: Beam
) -> SentenceBeam:
    """One token more: the best `size` continuations of all prefixes. Ties: lower token first, then lower beam."""
    candidates = sorted(
        (-(row.total + value), token, parent, value)
        for parent, (row, own) in enumerate(zip(sentence.partial_hypotheses, extensions, strict=True))
        for value, token in own
        if value > -torch.inf
    )
    rows, parents, finished = [], [], list(sentence.finished)
    for cost, token, parent, value in candidates[: beam.size]:
        row = sentence.partial_hypotheses[parent]
        if token == EOS:
            penalty = length_penalty(len(row.tokens) + 1, beam.length_penalty)
            finished.append(row.finish(value, -cost / penalty + covered[parent]))
        else:
            rows.append(row.extend(token, value))
            parents.append(parent)
    stuck = () if candidates else sentence.partial_hypotheses  # no token is allowed after any of them
    return replace(
        sentence, partial_hypotheses=tuple(rows), parents=tuple(parents), finished=tuple(finished), stuck=stuck
    )


@dataclass(frozen=True, eq=False)
class BeamRows:
    """The beams of all sentences as rows of one batch: the model's state, and the coverage of each source."""

    owners: tuple[int, ...]
    tokens: Int[Tensor, " n"]
    lengths: Int[Tensor, " n"]
    state: Reorderable
    memory: Reorderable
    coverage: Float[Tensor, "n s"]

    def coverage_penalties(self, beam: Beam) -> list[float]:
        if not beam.coverage_penalty:
            return [0.0] * len(self.owners)
        return coverage_penalty(self.coverage, self.lengths, beam.coverage_penalty).tolist()

    def reorder(self, parents: Sequence[int], rows: Sequence[PartialHypothesis]) -> "BeamRows":
        """The rows of the next step. A sentence's beams share its encoded source, so it is copied only if owners
        move."""
        device = self.tokens.device
        index = torch.tensor(parents, device=device)
        tokens = torch.tensor([row.tokens[-1] for row in rows], device=device)
        owners = tuple(row.request.index for row in rows)
        state = self.state if list(parents) == list(range(len(self.owners))) else self.state.pick(index)
        memory = self.memory if owners == self.owners else self.memory.pick(index)
        return BeamRows(owners, tokens, self.lengths[index], state, memory, self.coverage[index])


def start_beams(model: DecodableModel, requests: Sequence[DecodingRequest]) -> BeamRows:
    memory, lengths = encode_sources(model, [request.source for request in requests])
    coverage = torch.zeros(len(requests), int(lengths.max()), device=lengths.device)
    tokens = torch.full_like(lengths, BOS)
    return BeamRows(
        tuple(request.index for request in requests), tokens, lengths, model.start(memory), memory, coverage
    )


def step_beams(model: DecodableModel, rows: BeamRows, beam: Beam) -> tuple[BeamRows, Float[Tensor, "n v"]]:
    """The log-probabilities of the next token; with a coverage penalty, also its cross-attention."""
    tokens = rearrange(rows.tokens, "n -> n 1")
    if not beam.coverage_penalty:
        logits, state = model.step(tokens, rows.state, rows.memory)
        return replace(rows, state=state), log_probabilities(logits[:, -1])
    with record_attention(model) as record:
        logits, state = model.step(tokens, rows.state, rows.memory)
    coverage = rows.coverage + mean_cross_attention(record)
    return replace(rows, state=state, coverage=coverage), log_probabilities(logits[:, -1])
