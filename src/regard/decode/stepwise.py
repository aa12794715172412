"""Stepwise search: greedy search and sampling, which fix each token before the next; and text generation by them.

`generate` continues a prompt token by token, and streams it as text. No token is read twice while the KV cache holds at
most `context` tokens. A model whose cache grows with the text (full attention) then restarts from the last half of
them, as if they were the whole text; one whose state is bounded (recurrent, windowed, linear attention) never has to.
"""

import codecs
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.tokenizers.base import BOS, EOS, PAD, UNK, LosslessTokenizer, Tokenizer, WordTokenizer
from regard.data.tokenizers.pretrained import PretrainedTokenizer
from regard.decode.beam import Beam, BeamSearch, objections
from regard.decode.beam_decoder import AllowedNext, ModelBeams
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
from regard.models.language_model import LanguageModel
from regard.models.seq2seq import DecodableModel, DecoderState, Reorderable, device_of, encode_sources, inference_mode
from regard.models.transformer import Transformer


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
        return PartialHypothesis(
            self.request, self.sample_index, (*self.tokens, token), (*self.scores, score), self.total + score
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
    banned = {PAD, BOS, *constraints.banned} | ({EOS} if len(rows[0].tokens) < constraints.min_length else set())
    vocabulary, device = scores.shape[-1], scores.device
    masked = scores.index_fill(-1, token_index(banned, vocabulary, device), -torch.inf)
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

    rows, unfinished, finished = [], [], dict(before.finished)
    for n, (row, (token, value)) in enumerate(zip(before.rows, chosen, strict=True)):
        key = row.request.index, row.sample_index
        if value == -torch.inf:  # no token is allowed
            finished[key] = row.truncate(row.total)
        elif token == EOS:
            finished[key] = row.finish(value, row.total + value)
        elif len(row.tokens) + 1 == row.request.max_length(search.max_length):
            row = row.extend(token, value)
            finished[key] = row.truncate(row.total)
        else:
            rows.append(row.extend(token, value))
            unfinished.append(n)
    memory = before.memory
    if rows and len(rows) < len(before.rows):
        index = torch.tensor(unfinished, device=last.device)
        state, memory = state.pick(index), memory.pick(index)
    return StepwiseState(tuple(rows), state, memory, finished)


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

    def choose(self, scores: Float[Tensor, "n v"], rows: Sequence[PartialHypothesis]) -> Int[Tensor, " n"]:
        probabilities, tokens = self.truncate_distribution(scores)
        index = draw_indices(probabilities, [self.uniform_draw(row) for row in rows])
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


# --- text of a language model ---


NO_EOS = -2  # no candidate's token: -1 stands for no candidate
CONTEXT_TOKENS = 8  # that decide how the text of the next one begins


@dataclass(frozen=True)
class GeneratedToken:
    """A token, and the model's own log-probability of it, before temperature and truncation; `alternatives` are the
    most probable tokens instead of it."""

    id: int
    log_probability: float
    alternatives: tuple[tuple[int, float], ...] = ()


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    search: StepwiseSearch,
    *,
    tokens: int,
    constraints: Constraints = Constraints(),
    context: int | None = None,
    top: int = 0,
) -> Iterator[GeneratedToken]:
    """Up to `tokens` tokens after the prompt (after BOS without one), fewer if the constraints allow none.

    EOS does not end the text: for a model of words it is the end of a line. With each token come the
    `top` most probable ones.
    """
    if tokens < 1 or (context is not None and context < 2):
        raise ValueError(
            f"tokens={tokens} should be at least 1, and context={context} at least 2, or None for no limit"
        )
    limit = context if has_growing_cache(model) else None
    recent = deque(prompt or [BOS], maxlen=limit)
    state, unread, seen, row = model.start(1), list(recent), 0, PartialHypothesis(DecodingRequest(()))
    for _ in range(tokens):
        with inference_mode(model):  # not around the yield: the caller may need gradients
            x, state = model.decode_hidden(torch.tensor([unread], device=model.embedding.weight.device), state)
            logits = model.logits(x[:, -1:])[:, 0]
            [(token, value)] = search.choose_allowed(logits, [row], constraints)
            best, ids = stable_topk(log_probabilities(logits), top) if top else (logits[:, :0], logits[:, :0])
        if value == -torch.inf or token in constraints.stop:
            return
        yield GeneratedToken(token, value, tuple(zip(ids[0].tolist(), best[0].tolist(), strict=True)))
        row, seen = row.extend(token, value), seen + len(unread)
        recent.append(token)
        unread = [token]
        if limit is not None and seen >= limit:
            state, unread, seen = model.start(1), list(recent)[-(limit // 2) :], 0


def continuation_search(
    model: LanguageModel, prompt: Sequence[int], beam: Beam, tokens: int, constraints: Constraints = Constraints()
) -> BeamSearch:
    """Beam search for `tokens` tokens after the prompt, ready to run; as in `generate`, EOS does not end the text."""
    return batched_continuation_search(model, [list(prompt) or [BOS]], beam, tokens, constraints)


def batched_continuation_search(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    beam: Beam,
    tokens: int,
    constraints: Constraints = Constraints(),
) -> BeamSearch:
    """The same after several prompts, which are as long as each other."""
    read = torch.tensor([list(prompt) for prompt in prompts], device=model.embedding.weight.device)

    def forward(tokens: Tensor, state: Any, memory: None) -> tuple[Tensor, DecoderState]:
        x, state = model.decode_hidden(tokens, state)
        return model.logits(x[:, -1:]), state

    decoder = ModelBeams.after(read, forward, model.start(len(prompts)), None, beam.size)
    requests = [DecodingRequest((), index=n) for n in range(len(prompts))]
    decoder.allowed_next = AllowedNext.of(constraints, requests)
    search = BeamSearch.begin(decoder, replace(beam, max_length=LengthLimit(0, tokens)), requests, constraints)
    if EOS in constraints.stop:
        return search
    return replace(search, beams=replace(search.beams, eos=NO_EOS))


def has_growing_cache(model: LanguageModel) -> bool:
    """Whether the model's state grows with every token (a KV cache)."""
    with inference_mode(model):
        _, state = model.decode_hidden(torch.tensor([[BOS]], device=model.embedding.weight.device), model.start(1))
    return model.memory_grows(state)


def text_constraints(tokenizer: Tokenizer) -> Constraints:
    """Bans ids without text: UNK, and EOS except for a model of words, where it is the end of a line, and for one from
    elsewhere, where it is the end of the text."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return Constraints(banned=frozenset([UNK]), stop=frozenset([EOS]))
    return Constraints(banned=frozenset([UNK] if isinstance(tokenizer, WordTokenizer) else [UNK, EOS]))


def stream_text(tokenizer: Tokenizer, tokens: Iterable[int], prompt: Sequence[int] = ()) -> Iterator[str]:
    """The text of each token after the prompt. A character of several bytes comes with the last of them."""
    if isinstance(tokenizer, LosslessTokenizer):
        yield from stream_bytes(tokenizer, tokens, at_start=not prompt)
        return
    if isinstance(tokenizer, PretrainedTokenizer):
        yield from stream_foreign(tokenizer, tokens, prompt)
        return
    line_start = not prompt or prompt[-1] == EOS
    for token in tokens:
        yield "\n" if token == EOS else f"{'' if line_start else ' '}{tokenizer.decode([token])}"
        line_start = token == EOS


def stream_foreign(tokenizer: PretrainedTokenizer, tokens: Iterable[int], prompt: Sequence[int]) -> Iterator[str]:
    """What each token adds to the text of those before it, the last few of which decide on blanks and letters."""
    ids, read, start = list(prompt), len(prompt), max(0, len(prompt) - CONTEXT_TOKENS)
    for token in tokens:
        ids.append(token)
        before, text = tokenizer.text(ids[start:read]), tokenizer.text(ids[start:])
        if text.endswith("\ufffd"):  # half of a letter
            continue
        yield text.removeprefix(before)
        read, start = len(ids), max(start, len(ids) - CONTEXT_TOKENS)
    yield tokenizer.text(ids[start:]).removeprefix(tokenizer.text(ids[start:read]))


def stream_bytes(tokenizer: LosslessTokenizer, tokens: Iterable[int], *, at_start: bool) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        text = decoder.decode(b"".join(tokenizer.ids_to_bytes([token])))
        yield text.removeprefix(tokenizer.prefix) if at_start else text
        at_start = at_start and not text
    yield decoder.decode(b"", final=True)
