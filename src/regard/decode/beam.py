"""Beam search: keeps the k best prefixes of each sentence, until none can overtake the finished hypotheses.

All sentences of a batch are searched at once. Their beams are tensors, of which nothing leaves the device between two
steps; log-probabilities are summed in float64. Hidden states come from a `BeamDecoder`: `ModelBeams` for any model,
`TransformerBeams`, which share one KV cache, for a Transformer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from einops import repeat
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from regard.attention import Learned
from regard.attention.core import is_recorded
from regard.attention.parts import field_values
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.decode import beam_decoder, beam_kernels
from regard.decode.beam_decoder import (
    LEAVING,
    SENTENCES_PER_CORE,
    BeamDecoder,
    ModelBeams,
    keep_unfinished,
    search_by_cores,
)
from regard.decode.kv_cache import TransformerBeams, find_kernels
from regard.decode.search import NOT_FINITE, Constraints, DecodingRequest, Hypothesis, LengthLimit, Search, token_index
from regard.models.seq2seq import DecodableModel
from regard.models.transformer import Transformer

SLOTS = 16  # KV cache slots per beam at first; many more are rarely in use at once
MAX_PENALTY = 64.0  # an exponent that float64 can still raise any length to


@dataclass(frozen=True)
class Beam(Search):
    """Beam search: the `size` best continuations of every step; finished ones leave the beam and are ranked by score.

    score(y) = log P(y) / lp(y) + cp(x, y). At a step all prefixes have the same length, so the beam itself compares
    log-probabilities. A sentence is done when no prefix can enter its `n_best`, so the result is that of searching on
    to the limit. A beam of size 1 is greedy search, whatever the penalties.

    Args:
        size: how many prefixes are kept.
        length_penalty: α, 0 for none; above 0 favours longer translations.
        coverage_penalty: β, 0 for none; above 0 favours translations that attend to every source token.
        n_best: how many hypotheses are returned, at most `size`. Finished ones come first; truncated ones follow if
            there are too few.
        refill: the next best prefix takes the place of one that has ended, so that `size` of them are kept to the end,
            as Hugging Face, fairseq and CTranslate2 do (Kasai et al. 2022); otherwise the beam becomes narrower.

    Examples:
        >>> translator = regard.load("run")
        >>> (hypotheses,) = translate(translator.model, [translator.source.encode("the cat")], Beam(4, n_best=2))
        >>> len(hypotheses), hypotheses[0].score >= hypotheses[1].score
        (2, True)
        >>> Beam(size=2, n_best=3)
        Traceback (most recent call last):
            ...
        ValueError: a beam of size 2 cannot give the best 3; 1 ≤ n_best ≤ size
    """

    size: int = 5
    length_penalty: float = 0.0
    coverage_penalty: float = 0.0
    n_best: int = 1
    max_length: LengthLimit = LengthLimit()
    refill: bool = False

    def __post_init__(self):
        if not 1 <= self.n_best <= self.size:
            raise ValueError(f"a beam of size {self.size} cannot give the best {self.n_best}; 1 ≤ n_best ≤ size")
        for name, penalty in (("length", self.length_penalty), ("coverage", self.coverage_penalty)):
            if not 0 <= penalty <= MAX_PENALTY:
                raise ValueError(f"a {name} penalty of {penalty} should lie between 0, for none, and {MAX_PENALTY}")

    @property
    def width(self) -> int:
        return self.size

    def run(
        self, model: DecodableModel, requests: Sequence[DecodingRequest], constraints: Constraints
    ) -> list[list[Hypothesis]]:
        if not isinstance(model, Transformer) or objections(model, self, requests, constraints):
            decoder = ModelBeams.begin(model, requests, self.size, self.coverage_penalty, constraints)
            return BeamSearch.begin(decoder, self, requests, constraints).run()
        if model.embeddings.bias.is_cuda:
            from regard.decode import cuda_graphs

            return cuda_graphs.run(model, self, requests, constraints)
        if (cores := min(torch.get_num_threads(), len(requests) // SENTENCES_PER_CORE)) > 1:
            return search_by_cores(partial(search_single_threaded, model, self, constraints), requests, cores)
        return search_single_threaded(model, self, constraints, requests)


def objections(
    model: Transformer, beam: Beam, requests: Sequence[DecodingRequest], constraints: Constraints
) -> list[str]:
    """Why the beams of a search cannot share one KV cache."""
    prepared = model.prepared and not is_recorded(model)
    ours = [] if prepared else beam_decoder.objections(model)
    return [*ours, *search_objections(model, beam, requests, constraints)]


def search_objections(
    model: Transformer, beam: Beam, requests: Sequence[DecodingRequest], constraints: Constraints
) -> list[str]:
    """The same of a prepared model that nobody records."""
    longest, bias = max(request.max_length(beam.max_length) for request in requests), model.embeddings.bias
    learned = [part for part in model.target_positions.recipe.embedding_positions if isinstance(part, Learned)]
    return [
        *(["CUDA graphs do not refill beams"] if beam.refill and bias.is_cuda else []),
        *(["a coverage penalty needs the attention weights"] if beam.coverage_penalty else []),
        *(["allowed_next is a function of every prefix"] if constraints.allowed_next is not None else []),
        *(f"{part} ends before the limit of {longest}" for part in learned if part.max_length < longest),
        *(["the beam is wider than the vocabulary"] if beam.size > len(bias) else []),
    ]


def search_single_threaded(
    model: Transformer, beam: Beam, constraints: Constraints, requests: Sequence[DecodingRequest]
) -> list[list[Hypothesis]]:
    sources, steps = [request.source for request in requests], max(one.max_length(beam.max_length) for one in requests)
    with torch.inference_mode():
        decoder = TransformerBeams.of(model, sources, beams=beam.size, slots=SLOTS * beam.size, steps=steps)
        return BeamSearch.begin(decoder, beam, requests, constraints).run()


@dataclass(eq=False)
class BeamSearch:
    """A running search: the requests that are left, their decoder and their beams, after `steps` steps."""

    decoder: BeamDecoder
    requests: list[DecodingRequest]
    beams: "BeamState"
    steps: int = 0

    @staticmethod
    def begin(
        decoder: BeamDecoder, beam: Beam, requests: Sequence[DecodingRequest], constraints: Constraints
    ) -> "BeamSearch":
        beams = initial_beam_state(beam, requests, constraints, decoder.vocabulary, decoder.device)
        return BeamSearch(decoder, list(requests), beams)

    def run(self) -> list[list[Hypothesis]]:
        wanted, found = list(self.requests), dict[int, list[Hypothesis]]()
        forced = max(len(request.prefix) for request in wanted)
        steps = torch.arange(len(self.beams.penalties), device=self.decoder.device)[:, None]
        while self.requests:
            goes = (self.beams.totals > -torch.inf) & (self.beams.finished_step < 0)[:, None]
            live = self.decoder.live(goes)
            hidden = self.decoder.step(self.beams.tokens, self.beams.parents, live)
            advance_beams(self.beams, self.decoder, hidden, steps[self.steps], forcing=self.steps < forced, live=live)
            self.steps += 1
            if self.beams.nonfinite:
                raise ValueError(NOT_FINITE)
            done = (self.beams.finished_step >= 0).tolist()
            if all(done) or LEAVING * sum(done) >= len(done):
                over = [row for row, finished in enumerate(done) if finished]
                found |= backtrack(self.beams, [self.requests[row] for row in over], over, self.steps)
                self.requests = [] if all(done) else keep_unfinished(self, done)
        return [found[request.index] for request in wanted]


@dataclass(frozen=True, eq=False)
class Backpointers:
    """For every step and sentence the selected candidates, best first; token -1 is none."""

    tokens: Int[Tensor, "t b c"]
    parents: Int[Tensor, "t b c"]
    log_probabilities: Float[Tensor, "t b c"]
    scores: Float[Tensor, "t b c"]  # log P(y) / lp(y), and + cp(x, y) of one that ends


@dataclass(frozen=True, eq=False)
class BeamState:
    """The beams of a batch, updated in place, and the rules of their search. A beam whose total is -∞ is empty.

    Args:
        tokens, parents, totals: the last token of each beam, its parent beam, its log-probability.
        best_finished: the n best finished scores.
        finished_step: the step at which a sentence was done, -1 if it is not.
        max_lengths, max_length_penalty: the length limit, and the length penalty of that length.
        forced: the forced tokens, one row per step, -1 where none is; no rows if there are none at all.
        nonfinite: whether the model ever gave NaN or infinite scores.
        penalties: the length penalty of every length from 1 on.
        refill: whether the next best prefix takes the place of a hypothesis that has ended.
        eos: the token that ends a hypothesis.
        prune: whether each beam that can no longer enter the n best is dropped at once. Otherwise all of a sentence's
            beams go on until the best of them is overtaken: the hypotheses found are the same, the beams are not.
    """

    tokens: Int[Tensor, "b k"]
    parents: Int[Tensor, "b k"]
    totals: Float[Tensor, "b k"]
    best_finished: Float[Tensor, "b n"]
    finished_step: Int[Tensor, " b"]
    max_lengths: Int[Tensor, " b"]
    max_length_penalty: Float[Tensor, " b"]
    forced: Int[Tensor, "rows b"]
    backpointers: Backpointers
    nonfinite: Bool[Tensor, ""]
    penalties: Float[Tensor, " t"]
    banned: UInt8[Tensor, " v"]
    min_length: int = 0
    refill: bool = False
    eos: int = EOS
    prune: bool = True


def length_penalty(length: int, alpha: float) -> float:
    """lp(y) = ((5 + |y|) / 6)^α, where |y| counts EOS."""
    return ((5 + length) / 6) ** alpha


def initial_beam_state(
    beam: Beam,
    requests: Sequence[DecodingRequest],
    constraints: Constraints,
    vocabulary: int,
    device: torch.device,
    steps: int = 0,
) -> BeamState:
    """One empty prefix of every sentence, for as many steps at least."""
    b, k, steps = len(requests), beam.size, max(steps, *(one.max_length(beam.max_length) for one in requests))
    banned = torch.zeros(vocabulary, dtype=torch.uint8, device=device)
    banned[token_index({PAD, BOS, *constraints.banned}, vocabulary, device)] = 1
    lengths = [length_penalty(length, beam.length_penalty) for length in range(1, steps + 1)]
    penalties = torch.tensor(lengths, dtype=torch.double, device=device)
    # refilled, twice as many are kept as there are beams, each of which may end
    none = torch.full((steps, b, 2 * k if beam.refill else k), -1, device=device)
    nothing = none.new_zeros(none.shape, dtype=torch.double)
    beams = BeamState(
        tokens=none.new_empty(b, k),
        parents=none.new_empty(b, k),
        totals=nothing.new_empty(b, k),
        best_finished=nothing.new_empty(b, beam.n_best),
        finished_step=none.new_empty(b),
        max_lengths=none.new_empty(b),
        max_length_penalty=nothing.new_empty(b),
        forced=none.new_empty(steps if any(request.prefix for request in requests) else 0, b),
        backpointers=Backpointers(none, none.clone(), nothing, nothing.clone()),
        nonfinite=torch.zeros((), dtype=torch.bool, device=device),
        penalties=penalties,
        banned=banned,
        min_length=constraints.min_length,
        refill=beam.refill,
    )
    begin_sentences(beams, requests, beam.max_length)
    return beams


def begin_sentences(beams: BeamState, requests: Sequence[DecodingRequest], limit: LengthLimit) -> None:
    """One empty prefix of every sentence."""
    device, prefixes = beams.tokens.device, [request.prefix for request in requests]
    limits = torch.tensor([request.max_length(limit) for request in requests], device=device)
    beams.tokens.fill_(BOS)
    beams.parents.zero_()
    beams.totals.fill_(-torch.inf)
    beams.totals[:, 0] = 0.0  # a sentence starts with one beam
    beams.best_finished.fill_(-torch.inf)
    beams.finished_step.fill_(-1)
    beams.max_lengths.copy_(limits)
    beams.max_length_penalty.copy_(beams.penalties[limits - 1])
    beams.forced.fill_(-1)
    if longest := max(map(len, prefixes)):
        token_index({token for prefix in prefixes for token in prefix}, len(beams.banned), device)
        rows = [[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes]
        beams.forced[:longest] = torch.tensor(rows, device=device).T


def advance_beams(
    beams: BeamState,
    decoder: BeamDecoder,
    hidden: Float[Tensor, "n model"],
    step: Int[Tensor, " _"],
    *,
    forcing: bool,
    live: Int[Tensor, " n"] | None = None,
) -> None:
    """All beams extended by one token.

    Args:
        hidden: the states of the beams, or of the live ones.
        step: how many tokens the beams have; one number for all sentences, or one for each.
        forcing: whether some token may be forced at this step.
        live: the flat indices of the beams that the states belong to; None for all beams.
    """
    b, k = beams.tokens.shape
    must = repeat(beams.forced[step, rows_of(beams)], "b -> (b k) 1", k=k) if forcing else None
    must = must if must is None or live is None else must[live]
    banned = beams.banned
    if beams.min_length:
        banned = banned.clone()
        banned[EOS : EOS + 1].copy_(step < beams.min_length)
    candidates = decoder.topk(hidden, banned, k + beams.refill, must)  # refilled, EOS and k others
    beams.nonfinite.logical_or_(~candidates.finite)
    values, tokens, covered = candidates.values, candidates.tokens, decoder.covered
    kernels = find_kernels(values.dtype, beams.tokens, beams.parents, beams.totals)
    if kernels is not None and covered is None:
        beam_kernels.select_candidates(kernels, beams, values, tokens, step, live)
        return
    if live is not None:
        values = values.new_full((b * k, values.shape[1]), -torch.inf).index_copy_(0, live, values)
        tokens = tokens.new_zeros(b * k, tokens.shape[1]).index_copy_(0, live, tokens)
    # not by einops, nor below: for one sentence it would take a twentieth of the step
    values, tokens = (part.view(b, k, part.shape[1]) for part in (values, tokens))
    select = select_candidates
    if values.is_cuda:
        from regard.decode.kernels import select_candidates_cuda as select

    select(beams, values, tokens, step, covered)


def select_candidates(
    beams: BeamState,
    values: Float[Tensor, "b k c"],
    tokens: Int[Tensor, "b k c"],
    step: Int[Tensor, " _"],
    covered: Float[Tensor, "b k"] | None = None,
) -> None:
    """The best of all beams' candidates; those that end are recorded as finished, the others go on, with `refill` those
    that follow them too. Ties: lower token first, then lower beam."""
    (_, k, c), history = values.shape, beams.backpointers
    kept = history.tokens.shape[2]
    totals = (beams.totals[:, :, None] + values).flatten(1)
    values, tokens = values.flatten(1), tokens.flatten(1)
    by_token = tokens.sort(dim=-1, stable=True).indices
    totals, order = totals.gather(1, by_token).sort(dim=-1, descending=True, stable=True)
    picked, totals = by_token.gather(1, order)[:, :kept], totals[:, :kept]
    there = totals > -torch.inf
    token, value = tokens.gather(1, picked).where(there, -1), values.gather(1, picked)
    parent, ends, rows = picked // c, token == beams.eos, rows_of(beams)
    scores = totals / beams.penalties.index_select(0, step)[:, None]
    if covered is not None:
        scores = scores + covered.double().gather(1, parent).where(ends, 0.0)
    for part, now in zip(field_values(history), (token, parent, value, scores), strict=True):
        part.index_put_((step, rows), now.to(part.dtype))

    scores = scores.masked_fill(~ends, -torch.inf)[:, :k]
    beams.best_finished.copy_(torch.cat((beams.best_finished, scores), 1).topk(beams.best_finished.shape[1], -1).values)
    least = beams.best_finished[:, -1:]
    # a tie that is found later ranks lower, so equality is enough. A beam whose upper bound is too low is dropped: what
    # takes its slot has a lower total, and is dropped as well
    goes = there & ~ends
    best = totals if beams.prune else totals.masked_fill(~goes, -torch.inf).amax(-1, keepdim=True)
    overtaken = (least >= best / beams.max_length_penalty[:, None]) & (least > -torch.inf)
    goes = goes & ~overtaken
    front = (~goes).byte().sort(dim=-1, stable=True).indices[:, :k]
    goes = goes.gather(1, front)
    beams.totals.copy_(totals.gather(1, front).masked_fill(~goes, -torch.inf))
    beams.tokens.copy_(token.gather(1, front).masked_fill(~goes, PAD))
    beams.parents.copy_(parent.gather(1, front).masked_fill(~goes, 0))
    over = (beams.totals[:, 0] == -torch.inf) | (step + 1 == beams.max_lengths)
    beams.finished_step.copy_(torch.where(over & (beams.finished_step < 0), step, beams.finished_step))


def rows_of(beams: BeamState) -> Int[Tensor, " b"]:
    return torch.arange(len(beams.tokens), device=beams.tokens.device)


def backtrack(
    beams: BeamState, requests: Sequence[DecodingRequest], rows: Sequence[int], steps: int
) -> dict[int, list[Hypothesis]]:
    """The hypotheses of finished sentences, by following the backpointers: those of all sentences at once, as the
    device waits meanwhile."""
    if (kernels := find_kernels(torch.float32, beams.finished_step)) is not None:
        by_row = beam_kernels.backtrack(kernels, beams, rows, steps)
        return {request.index: one for request, one in zip(requests, by_row, strict=True)}
    history, size = beams.backpointers, beams.tokens.shape[1]
    picked = torch.tensor(rows, dtype=torch.long, device=history.tokens.device)
    tokens, parents, values, scores = (part[:steps, picked].cpu().numpy() for part in field_values(history))
    ended = beams.finished_step[picked].cpu().numpy()
    goes = (tokens >= 0) & (tokens != beams.eos)
    goes &= goes.cumsum(-1) <= size
    front = np.argsort(~goes, axis=-1, kind="stable")  # beam j holds candidate front[j]

    # every EOS up to the last step counts; where no token was allowed, the prefixes before it are truncated
    when = np.arange(steps)[:, None, None]
    ends = (tokens == beams.eos) & (when <= ended[:, None])
    ends[..., size:] = False  # further candidates are there to refill the beam
    stuck = ~(tokens[ended, np.arange(len(ended))] >= 0).any(-1)
    last = ended - stuck
    cuts = goes & (when == last[:, None])

    # of every sentence the best: finished before truncated ones, of ties the one that was found first
    step, n, rank = (ends | cuts).nonzero()
    order = np.lexsort((-scores[step, n, rank], cuts[step, n, rank], n))  # stable, its last key first
    place = n[order]
    order = order[np.arange(len(place)) - np.searchsorted(place, place) < beams.best_finished.shape[1]]
    step, n, rank = step[order], n[order], rank[order]
    finished, ranked_by = ends[step, n, rank].tolist(), scores[step, n, rank].tolist()

    longest = int(step.max(initial=-1)) + 1
    written, each = (np.zeros((len(step), longest), part.dtype) for part in (tokens, values))
    for at in reversed(range(longest)):
        here = step >= at
        written[here, at], each[here, at] = tokens[at, n[here], rank[here]], values[at, n[here], rank[here]]
        if at:
            rank = np.where(here, front[at - 1, n, parents[at, n, rank]], rank)

    found: dict[int, list[Hypothesis]] = {request.index: [] for request in requests}
    paths = zip(step.tolist(), n.tolist(), finished, ranked_by, written.tolist(), each.tolist(), strict=True)
    for end, sentence, over, score, ids, logs in paths:
        one = Hypothesis(tuple(ids[: end + 1 - over]), tuple(logs[: end + 1]), finished=over, score=score)
        found[requests[sentence].index].append(one)
    for sentence in np.flatnonzero(last < 0).tolist():
        found[requests[sentence].index] = [Hypothesis((), (), finished=False, score=0.0)]
    return found
