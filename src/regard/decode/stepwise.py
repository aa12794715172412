"""Stepwise search: greedy search and sampling, which fix each token before the next."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.decode.beam import LEAVING, SENTENCES_PER_CORE, SLOTS, Beam, objections
from regard.decode.beam_decoder import rows_that_stay, search_by_cores
from regard.decode.kv_cache import TransformerBeams
from regard.decode.search import (
    NOT_FINITE,
    Constraints,
    DecodingRequest,
    Hypothesis,
    Ids,
    LengthLimit,
    Search,
    token_index,
)
from regard.decode.topk import log_probabilities, stable_topk
from regard.models.seq2seq import DecodableModel, Reorderable, device_of, encode_sources, inference_mode
from regard.models.transformer import Transformer

CACHED_SAMPLES = 32  # of a sentence, at most, with the beam KV cache: each reads the slots of all


@dataclass(frozen=True)
class PartialHypothesis:
    """A hypothesis that is still being extended: its tokens, and the log-probability of each."""

    request: DecodingRequest
    sample_index: int = 0
    tokens: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    total: float = 0.0

    @property
    def forced_token(self) -> int | None:
        """The token that must come next, if one must."""
        step = len(self.tokens)
        return self.request.prefix[step] if step < len(self.request.prefix) else None

    def extend(self, token: int, score: float) -> "PartialHypothesis":
        return self.extend_by((token,), (score,))

    def extend_by(self, tokens: Sequence[int], scores: Sequence[float]) -> "PartialHypothesis":
        """By several tokens at once: one copy of those before them."""
        total = self.total
        for score in scores:  # not sum(), which rounds otherwise from Python 3.12 on
            total += score
        return PartialHypothesis(
            self.request, self.sample_index, (*self.tokens, *tokens), (*self.scores, *scores), total
        )

    def finish(self, end: float, score: float) -> Hypothesis:
        """Finished by EOS, whose log-probability is `end`."""
        return Hypothesis(self.tokens, (*self.scores, end), finished=True, score=score)

    def truncate(self, score: float) -> Hypothesis:
        """Stopped before the model produced EOS."""
        return Hypothesis(self.tokens, self.scores, finished=False, score=score)


class StepwiseSearch(Search):
    """Abstract: a search without backtracking; it fixes each token before the next is computed."""

    max_length: LengthLimit

    @abstractmethod
    def choose(self, scores: Float[Tensor, "n v"], rows: Sequence[PartialHypothesis]) -> Int[Tensor, " n"]:
        """The next token of every row; disallowed tokens have -∞."""

    def choose_allowed(
        self, logits: Float[Tensor, "n v"], rows: Sequence[PartialHypothesis], constraints: Constraints
    ) -> list[tuple[int, float]]:
        """The next token of every row, and the model's log-probability of it: -∞ where no token is allowed."""
        scores = mask_disallowed(log_probabilities(logits), rows, constraints)
        chosen = self.choose(scores, rows)
        values = scores.gather(-1, rearrange(chosen, "n -> n 1"))[:, 0]
        return list(zip(chosen.tolist(), values.tolist(), strict=True))

    def run(
        self, model: DecodableModel, requests: Sequence[DecodingRequest], constraints: Constraints
    ) -> list[list[Hypothesis]]:
        state = start_stepwise(model, requests, self.width)
        while state.rows:
            state = advance_stepwise(model, state, self, constraints)
        return [[state.finished[request.index, sample] for sample in range(self.width)] for request in requests]


def mask_disallowed(
    scores: Float[Tensor, "n v"], rows: Sequence[PartialHypothesis], constraints: Constraints
) -> Float[Tensor, "n v"]:
    """The log-probabilities unchanged where a token is allowed, and -∞ elsewhere."""
    if not scores.amax(-1).isfinite().all():
        raise ValueError(NOT_FINITE)
    vocabulary, device = scores.shape[-1], scores.device
    masked = scores.index_fill(-1, token_index({PAD, BOS, *constraints.banned}, vocabulary, device), -torch.inf)
    if short := [n for n, row in enumerate(rows) if len(row.tokens) < constraints.min_length]:
        masked[short, EOS] = -torch.inf
    for n, row in enumerate(rows):
        if row.forced_token is not None:  # even a banned token
            only, values = token_index([row.forced_token], vocabulary, device), scores[n]
        elif constraints.allowed_next is not None:
            only, values = token_index(constraints.allowed_next(row.tokens), vocabulary, device), masked[n]
        else:
            continue
        masked[n] = torch.full_like(values, -torch.inf).index_copy(0, only, values[only])
    return masked


@dataclass(frozen=True, eq=False)
class StepwiseState:
    """Unfinished rows, the model's state for each, and the finished hypotheses, by sentence and sample."""

    rows: tuple[PartialHypothesis, ...]
    state: Reorderable
    memory: Reorderable
    finished: dict[tuple[int, int], Hypothesis]


def start_stepwise(model: DecodableModel, requests: Sequence[DecodingRequest], samples: int = 1) -> StepwiseState:
    memory, lengths = encode_sources(model, [request.source for request in requests])
    if samples > 1:
        memory = memory.pick(torch.arange(len(requests), device=lengths.device).repeat_interleave(samples))
    rows = tuple(PartialHypothesis(request, sample) for request in requests for sample in range(samples))
    return StepwiseState(rows, model.start(memory), memory, {})


def advance_stepwise(
    model: DecodableModel, before: StepwiseState, search: StepwiseSearch, constraints: Constraints
) -> StepwiseState:
    """Every row extended by one token. Finished rows leave the batch, so that nothing more is computed for them."""
    last = torch.tensor([row.tokens[-1] if row.tokens else BOS for row in before.rows], device=device_of(model))
    logits, state = model.step(rearrange(last, "n -> n 1"), before.state, before.memory)
    chosen = search.choose_allowed(logits[:, -1], before.rows, constraints)

    finished = dict(before.finished)
    extended = extend_rows(before.rows, chosen, search.max_length, finished)
    unfinished = [n for n, row in enumerate(extended) if row is not None]
    rows = [row for row in extended if row is not None]
    memory = before.memory
    if rows and len(rows) < len(before.rows):
        index = torch.tensor(unfinished, device=last.device)
        state, memory = state.pick(index), memory.pick(index)
    return StepwiseState(tuple(rows), state, memory, finished)


def extend_rows(
    rows: Sequence[PartialHypothesis],
    chosen: Sequence[tuple[int, float]],
    limit: LengthLimit,
    finished: dict[tuple[int, int], Hypothesis],
) -> list[PartialHypothesis | None]:
    """Each by its token; None where that ends it, which is then among the finished."""
    found: list[PartialHypothesis | None] = []
    for row, (token, value) in zip(rows, chosen, strict=True):
        key = row.request.index, row.sample_index
        extended = None
        if value == -torch.inf:  # no token is allowed
            finished[key] = row.truncate(row.total)
        elif token == EOS:
            finished[key] = row.finish(value, row.total + value)
        else:
            extended = row.extend(token, value)
            if len(extended.tokens) == row.request.max_length(limit):
                finished[key], extended = extended.truncate(extended.total), None
        found.append(extended)
    return found


def stream(
    model: DecodableModel,
    source: Ids,
    search: StepwiseSearch,
    *,
    prefix: Ids = (),
    constraints: Constraints = Constraints(),
) -> Iterator[int]:
    """The tokens of one translation as they are decoded, without EOS: those that `translate` gives for this source.

    Examples:
        >>> translator = regard.load("run")
        >>> source = translator.source.encode("the cat sleeps")
        >>> ((found,),) = translate(translator.model, [source], Greedy())
        >>> tuple(stream(translator.model, source, Greedy())) == found.ids
        True
    """
    request = DecodingRequest(tuple(source), tuple(prefix))
    with inference_mode(model):  # not around a yield: the caller may need gradients
        state = start_stepwise(model, [request])
    streamed = 0
    while state.rows:
        with inference_mode(model):
            state = advance_stepwise(model, state, search, constraints)
        tokens = state.rows[0].tokens if state.rows else state.finished[request.index, 0].ids
        yield from tokens[streamed:]
        streamed = len(tokens)


# --- greedy search ---


@dataclass(frozen=True)
class Greedy(StepwiseSearch):
    """Greedy search: the most probable token each time; of ties the one with the lower id.

    Examples:
        >>> translator = regard.load("run")
        >>> source = translator.source.encode("the cat sleeps")
        >>> ((greedy,),) = translate(translator.model, [source], Greedy())
        >>> ((beam,),) = translate(translator.model, [source], Beam(1))
        >>> greedy.ids == beam.ids
        True
    """

    max_length: LengthLimit = LengthLimit()

    @property
    def width(self) -> int:
        return 1

    def run(self, model, requests, constraints):
        beam = Beam(1, max_length=self.max_length)  # is greedy search
        if isinstance(model, Transformer) and not objections(model, beam, requests, constraints):
            return beam.run(model, requests, constraints)
        return super().run(model, requests, constraints)

    def choose(self, scores, rows):
        return scores.argmax(-1)


# --- sampling ---


@dataclass(frozen=True)
class Sampling(StepwiseSearch):
    """Sampling with temperature, top-k and nucleus (top-p) truncation.

    Args:
        temperature: below 1 sharpens the distribution, above 1 flattens it.
        top_k: only this many of the most probable tokens are kept.
        top_p: of those, the fewest that together reach this probability (Holtzman et al. 2020).
        seed: the same seed gives the same samples for a sentence, whatever it is batched with.
        samples: how many translations of every sentence.

    Examples:
        >>> translator = regard.load("run")
        >>> source = translator.source.encode("the cat")
        >>> search = Sampling(temperature=0.7, top_p=0.9, seed=3, samples=4)
        >>> (samples,), (again,) = (translate(translator.model, [source], search) for _ in range(2))
        >>> len(samples), samples == again
        (4, True)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    samples: int = 1
    max_length: LengthLimit = LengthLimit()

    def __post_init__(self):
        if not self.temperature >= 1e-6:
            raise ValueError(f"a temperature is positive, not {self.temperature}; for the best token alone use Greedy")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} keeps no token: at least 1, or None for all of them")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is no probability above 0 and up to 1; 1 keeps every token")
        if self.seed < 0 or self.samples < 1:
            raise ValueError(f"seed {self.seed} must not be negative, and samples {self.samples} at least 1")

    @property
    def width(self) -> int:
        return self.samples

    def run(self, model, requests, constraints):
        beams = Beam(self.samples, max_length=self.max_length)
        if (
            not isinstance(model, Transformer)
            or model.embeddings.bias.is_cuda
            or self.samples > CACHED_SAMPLES
            or objections(model, beams, requests, constraints)
        ):
            return super().run(model, requests, constraints)
        sample = partial(sample_with_cache, model, self, constraints)
        if (cores := min(torch.get_num_threads(), len(requests) // SENTENCES_PER_CORE)) > 1:
            return search_by_cores(sample, requests, cores)
        return sample(requests)

    def choose(self, scores: Float[Tensor, "n v"], rows: Sequence[PartialHypothesis]) -> Int[Tensor, " n"]:
        return self.draw(scores, [self.uniform_draw(row) for row in rows])

    def draw(self, scores: Float[Tensor, "n v"], uniform: Sequence[float]) -> Int[Tensor, " n"]:
        """The token of every row that a number in [0, 1) stands for."""
        probabilities, tokens = self.truncate_distribution(scores)
        index = draw_indices(probabilities, uniform)
        return tokens.gather(-1, rearrange(index, "n -> n 1"))[:, 0]

    def truncate_distribution(self, scores: Float[Tensor, "n v"]) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
        """The probabilities to sample from and their tokens; truncated ones are 0. They need not sum to 1."""
        if (
            self.top_k is None and self.top_p == 1
        ):  # nothing is truncated, so nothing need be sorted, which is expensive
            tokens = torch.arange(scores.shape[-1], device=scores.device).expand_as(scores)
            return self.apply_temperature(scores), tokens
        values, tokens = stable_topk(scores, scores.shape[-1] if self.top_k is None else self.top_k)
        probabilities = self.apply_temperature(values)
        if self.top_p == 1:  # rounding may carry the sum to 1 before the last token
            return probabilities, tokens
        before = probabilities.cumsum(-1) - probabilities  # the token that crosses p has less than p before it
        return torch.where(before < self.top_p, probabilities, 0.0), tokens

    def probabilities(
        self, logits: Float[Tensor, " v"], constraints: Constraints = Constraints()
    ) -> Float[Tensor, " v"]:
        """With which probability each token is drawn next: 0 for all that is truncated or not allowed."""
        row = PartialHypothesis(DecodingRequest(()))
        drawn, tokens = self.truncate_distribution(mask_disallowed(log_probabilities(logits[None]), [row], constraints))
        return torch.zeros_like(logits).scatter(0, tokens[0], (drawn / drawn.sum(-1, keepdim=True))[0].to(logits))

    def apply_temperature(self, scores: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """softmax(scores / temperature); all 0 where no token is allowed."""
        return torch.where(scores > -torch.inf, (scores / self.temperature).softmax(-1), 0.0)

    def uniform_draw(self, row: PartialHypothesis) -> float:
        """A number in [0, 1) that depends on the seed, the sentence, the sample and the position alone."""
        return float(np.random.default_rng([self.seed, row.request.index, row.sample_index, len(row.tokens)]).random())


def draw_indices(probabilities: Float[Tensor, "n k"], uniform: Sequence[float]) -> Int[Tensor, " n"]:
    """Inverse transform sampling: where the cumulative sum passes the uniform number times the total."""
    reached = probabilities.cumsum(-1)
    total = reached[:, -1]
    number = torch.tensor(uniform, dtype=reached.dtype, device=reached.device) * total
    # rounding may carry the number up to the total itself, which nothing passes
    number = number.minimum(total.nextafter(torch.zeros_like(total)))
    return (reached <= rearrange(number, "n -> n 1")).sum(-1).clamp_max(probabilities.shape[-1] - 1)


@torch.inference_mode()
def sample_with_cache(
    model: Transformer, search: Sampling, constraints: Constraints, requests: Sequence[DecodingRequest]
) -> list[list[Hypothesis]]:
    """As any other model is sampled from, with the beam KV cache: samples are beams, and each is its own parent."""
    k, left, finished = search.samples, list(requests), dict[tuple[int, int], Hypothesis]()
    steps = max(request.max_length(search.max_length) for request in requests)
    decoder = TransformerBeams.of(model, [one.source for one in requests], beams=k, slots=SLOTS * k, steps=steps)
    rows: list[PartialHypothesis | None] = [PartialHypothesis(one, n) for one in requests for n in range(k)]
    while left:
        last = torch.tensor([row.tokens[-1] if row and row.tokens else BOS for row in rows]).view(-1, k)
        goes = torch.tensor([row is not None for row in rows]).view(-1, k)
        live = decoder.live(goes)
        hidden = decoder.step(last, torch.arange(k).expand_as(last), live)
        going = [n for n, row in enumerate(rows) if row is not None]
        unfinished = [row for row in rows if row is not None]
        hidden = hidden[going] if live is None else hidden[: len(going)]  # of the live ones those come first
        logits = model.embeddings.table("output").logits(hidden, model.embeddings.bias)
        chosen = search.choose_allowed(logits, unfinished, constraints)
        for n, row in zip(going, extend_rows(unfinished, chosen, search.max_length, finished), strict=True):
            rows[n] = row
        done = [not any(rows[first : first + k]) for first in range(0, len(rows), k)]
        if all(done):
            left = []
        elif LEAVING * sum(done) >= len(done):
            staying = rows_that_stay(done)
            decoder = decoder.keep(torch.tensor(staying))
            left = [left[one] for one in staying]
            rows = [row for one in staying for row in rows[one * k : (one + 1) * k]]
    return [[finished[request.index, n] for n in range(k)] for request in requests]
