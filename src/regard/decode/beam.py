"""Beam search: keeps the k best prefixes of each sentence, until none can overtake the finished hypotheses.

All sentences of a batch are searched at once, their beams held in tensors (beam_state.py). Hidden states come from a
`BeamDecoder`: `ModelBeams` for any model, `TransformerBeams`, which share one KV cache, for a Transformer.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention import Learned
from regard.decode import cuda_graphs, kv_cache
from regard.decode.beam_decoder import BeamDecoder, ModelBeams
from regard.decode.beam_state import BeamState, SearchRules, advance_beams, backtrack, initial_beam_state
from regard.decode.kv_cache import TransformerBeams
from regard.decode.search import (
    MAX_PENALTY,
    Constraints,
    DecodableModel,
    DecodingRequest,
    Hypothesis,
    LengthLimit,
    Search,
    token_index,
)
from regard.models.transformer import Transformer

SENTENCES_PER_CORE = 8  # from so many on, one search per core pays: waking threads takes 50 µs each time
LEAVING = 8  # once one sentence in so many is finished they are released: others move to their rows
SLOTS = 16  # KV cache slots per beam at first; many more are rarely in use at once


@dataclass(frozen=True)
class Beam(Search):
    """Beam search: the `size` best continuations of every step; finished ones leave the beam and are ranked by score.

    score(y) = log P(y) / lp(y) + cp(x, y), see search.py. At a step all prefixes have the same length, so the beam
    itself compares log-probabilities. A sentence is done when no prefix can enter its `n_best`, so the result is that
    of searching on to the limit. A beam of size 1 is greedy search, whatever the penalties.

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
        if isinstance(model, Transformer) and not objections(model, self, requests, constraints):
            return search_transformer(model, self, requests, constraints)
        sources = [request.source for request in requests]
        decoder = ModelBeams.begin(model, sources, self.size, self.coverage_penalty)
        return BeamSearch.begin(decoder, self, requests, constraints).run()


# --- the search ---


@dataclass(eq=False)
class BeamSearch:
    """A running search: the requests that are left, their decoder and their beams, after `steps` steps."""

    decoder: BeamDecoder
    beam: Beam
    rules: SearchRules
    requests: list[DecodingRequest]
    beams: BeamState
    allowed_next: "AllowedNext | None"
    steps: int = 0

    @staticmethod
    def begin(
        decoder: BeamDecoder, beam: Beam, requests: Sequence[DecodingRequest], constraints: Constraints
    ) -> "BeamSearch":
        limits = [request.max_length(beam.max_length) for request in requests]
        rules = SearchRules.of(
            beam.length_penalty, constraints, beam.size, max(limits), decoder.vocabulary, decoder.device
        )
        rules = replace(rules, refill=beam.refill)
        beams = initial_beam_state(
            requests, limits, rules, beam.n_best, beam.length_penalty, max(limits), coverage=beam.coverage_penalty > 0
        )
        allowed = None
        if constraints.allowed_next is not None:
            allowed = AllowedNext(constraints.allowed_next, [[()] * beam.size for _ in requests])
        return BeamSearch(decoder, beam, rules, list(requests), beams, allowed)

    def run(self) -> list[list[Hypothesis]]:
        wanted, found = list(self.requests), dict[int, list[Hypothesis]]()
        forced = max(len(request.prefix) for request in wanted)
        vocabulary, device = self.decoder.vocabulary, self.decoder.device
        steps = torch.arange(len(self.beams.backpointers.tokens), device=device)[:, None]
        while self.requests:
            self.decoder.ensure_slots()
            goes = (self.beams.totals > -torch.inf) & (self.beams.finished_step < 0)[:, None]
            live = self.decoder.live(goes)
            hidden = self.decoder.step(self.beams.tokens, self.beams.parents, live)
            advance_beams(
                self.beams,
                self.rules,
                hidden,
                self.decoder.output,
                self.decoder.bias,
                steps[self.steps],
                forcing=self.steps < forced,
                live=live,
                allowed=self.allowed_next and self.allowed_next.mask(live, self.requests, vocabulary, device),
                covered=self.decoder.covered,
            )
            self.steps += 1
            if self.allowed_next is not None:
                self.allowed_next.extend(self.beams)
            found |= self.release_finished()
        return [found[request.index] for request in wanted]

    def release_finished(self) -> dict[int, list[Hypothesis]]:
        """Finished sentences leave the batch, if there are enough."""
        if self.beams.nonfinite:
            raise ValueError(
                "the model's probabilities are not finite: its weights hold NaN or infinity; load another checkpoint"
            )
        done = (self.beams.finished_step >= 0).tolist()
        if not all(done) and LEAVING * sum(done) < len(done):
            return {}
        going = [row for row, over in enumerate(done) if over]
        requests = [self.requests[row] for row in going]
        found = backtrack(self.beams, requests, going, self.beam, self.steps, eos=self.rules.eos)
        staying = [row for row, over in enumerate(done) if not over]
        # the last take the rows of those that leave, so that few are moved
        last = [row for row in staying if row >= len(staying)]
        staying = [last.pop() if done[row] else row for row in range(len(staying))]
        self.requests = [self.requests[row] for row in staying]
        if staying:
            rows = torch.tensor(staying, device=self.decoder.device)
            self.decoder, self.beams = self.decoder.keep(rows), self.beams.select(rows)
            if self.allowed_next is not None:
                self.allowed_next.keep(staying)
        return found


@dataclass(eq=False)
class AllowedNext:
    """The constraint `allowed_next` in a running search: it is asked about the prefix of every beam."""

    rule: Callable[[tuple[int, ...]], Collection[int]]
    prefixes: list[list[tuple[int, ...]]]

    def mask(
        self,
        live: Int[Tensor, " n"] | None,
        requests: Sequence[DecodingRequest],
        vocabulary: int,
        device: torch.device,
    ) -> Bool[Tensor, "n v"]:
        rows = range(len(requests) * len(self.prefixes[0])) if live is None else live.tolist()
        allowed = torch.ones(len(rows), vocabulary, dtype=torch.bool, device=device)
        for row, flat in enumerate(rows):
            sentence, beam = divmod(flat, len(self.prefixes[0]))
            prefix = self.prefixes[sentence][beam]
            if len(prefix) >= len(requests[sentence].prefix):  # what is forced needs no permission
                allowed[row] = False
                allowed[row, token_index(self.rule(prefix), vocabulary, device)] = True
        return allowed

    def extend(self, beams: BeamState) -> None:
        self.prefixes = [
            [(*before[parent], token) for token, parent in zip(tokens, parents, strict=True)]
            for before, tokens, parents in zip(
                self.prefixes, beams.tokens.tolist(), beams.parents.tolist(), strict=True
            )
        ]

    def keep(self, rows: Sequence[int]) -> None:
        self.prefixes = [self.prefixes[row] for row in rows]


# --- the beams of a Transformer ---


def objections(
    model: Transformer, beam: Beam, requests: Sequence[DecodingRequest], constraints: Constraints
) -> list[str]:
    """Why the beams of a search cannot share one KV cache."""
    longest = max(request.max_length(beam.max_length) for request in requests)
    learned = [part for part in model.target_positions.recipe.embedding_positions if isinstance(part, Learned)]
    return [
        *kv_cache.objections(model),
        *(["CUDA graphs do not refill beams"] if beam.refill and model.embeddings.bias.is_cuda else []),
        *(["a coverage penalty needs the attention weights"] if beam.coverage_penalty else []),
        *(["allowed_next is a function of every prefix"] if constraints.allowed_next is not None else []),
        *(f"{part} ends before the limit of {longest}" for part in learned if part.max_length < longest),
        *(["the beam is wider than the vocabulary"] if beam.size > len(model.embeddings.bias) else []),
    ]


def search_transformer(
    model: Transformer, beam: Beam, requests: Sequence[DecodingRequest], constraints: Constraints
) -> list[list[Hypothesis]]:
    if model.embeddings.bias.is_cuda:
        return cuda_graphs.run(model, beam, requests, constraints)
    cores = min(torch.get_num_threads(), len(requests) // SENTENCES_PER_CORE)
    return (
        search_by_cores(model, beam, requests, constraints, cores)
        if cores > 1
        else search_single_threaded(model, beam, requests, constraints)
    )


def search_single_threaded(
    model: Transformer, beam: Beam, requests: Sequence[DecodingRequest], constraints: Constraints
) -> list[list[Hypothesis]]:
    sources, steps = [request.source for request in requests], max(one.max_length(beam.max_length) for one in requests)
    with torch.inference_mode():
        decoder = TransformerBeams.of(model, sources, beams=beam.size, slots=SLOTS * beam.size, steps=steps)
        return BeamSearch.begin(decoder, beam, requests, constraints).run()


def search_by_cores(
    model: Transformer, beam: Beam, requests: Sequence[DecodingRequest], constraints: Constraints, cores: int
) -> list[list[Hypothesis]]:
    """Every core searches its own part of the sentences, single-threaded."""
    threads, parts = torch.get_num_threads(), [requests[first::cores] for first in range(cores)]
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = [pool.submit(search_single_threaded, model, beam, part, constraints) for part in parts]
            by_index = {
                request.index: hypotheses
                for part, one in zip(parts, found, strict=True)
                for request, hypotheses in zip(part, one.result(), strict=True)
            }
    finally:
        torch.set_num_threads(threads)  # the number is per thread, but the last one set is that of new threads
    return [by_index[request.index] for request in requests]
