"""Text generation with a language model: continues a prompt token by token, and streams it as text.

No token is read twice while the KV cache holds at most `context` tokens. A model whose cache grows with the text (full
attention) then restarts from the last half of them, as if they were the whole text; one whose state is bounded
(recurrent, windowed, linear attention) never has to.
"""

import codecs
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.data.tokenizers.base import BOS, EOS, UNK, LosslessTokenizer, Tokenizer, WordTokenizer
from regard.data.tokenizers.pretrained import PretrainedTokenizer
from regard.decode.beam import Beam, BeamSearch
from regard.decode.beam_decoder import AllowedNext, ModelBeams
from regard.decode.search import Constraints, DecodingRequest, LengthLimit, inference_mode
from regard.decode.stepwise import PartialHypothesis, StepwiseSearch
from regard.models.language_model import LanguageModel
from regard.models.seq2seq import DecoderState

NO_EOS = -2  # no candidate's token: -1 stands for no candidate
CONTEXT_TOKENS = 8  # that decide how the text of the next one begins


@dataclass(frozen=True)
class GeneratedToken:
    """A token, and the model's own log-probability of it, before temperature and truncation."""

    id: int
    log_probability: float


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    search: StepwiseSearch,
    *,
    tokens: int,
    constraints: Constraints = Constraints(),
    context: int | None = None,
) -> Iterator[GeneratedToken]:
    """Up to `tokens` tokens after the prompt (after BOS without one), fewer if the constraints allow none.

    EOS does not end the text: for a model of words it is the end of a line.
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
            [(token, value)] = search.choose_allowed(model.logits(x[:, -1:])[:, 0], [row], constraints)
        if value == -torch.inf or token in constraints.stop:
            return
        yield GeneratedToken(token, value)
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
