"""Translation: decodes sources as one batch, as many, token by token, or as texts through a translator."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.data.files import chunks
from regard.data.tokenizers.base import UNK, Tokenizer
from regard.decode.quantize import prepare
from regard.decode.search import (
    Constraints,
    DecodableModel,
    DecodingRequest,
    Hypothesis,
    Search,
    batch_by_tokens,
    inference_mode,
    make_requests,
)
from regard.decode.stepwise import StepwiseSearch, advance_stepwise, start_stepwise

if TYPE_CHECKING:
    from regard.tasks.translation.task import Translator

Ids = Sequence[int]


def translate(
    model: DecodableModel,
    sources: Sequence[Ids],
    search: Search,
    *,
    prefixes: Sequence[Ids] | None = None,
    constraints: Constraints = Constraints(),
) -> list[list[Hypothesis]]:
    """All sources as one batch; of each its hypotheses, best first (samples in the order in which they are drawn).

    Args:
        model: a model, or one that `prepare` has made faster, which pays for more than one batch.
        sources: plain ids, as a tokeniser's `encode` gives them.
        search: Greedy, Beam or Sampling.
        prefixes: for every source the ids that its translations must begin with.
        constraints: which tokens are allowed.
    """
    with inference_mode(model):
        requests = make_requests(sources, prefixes)
        return search.run(model, requests, constraints) if requests else []


def translate_all(
    model: DecodableModel,
    sources: Sequence[Ids],
    search: Search,
    *,
    tokens: int = 4096,
    prefixes: Sequence[Ids] | None = None,
    constraints: Constraints = Constraints(),
) -> list[list[Hypothesis]]:
    """As many sources as there are, in batches of at most `tokens` source tokens × beams, in the order given."""
    found = dict(translate_as_found(model, sources, search, tokens=tokens, prefixes=prefixes, constraints=constraints))
    return [found[index] for index in range(len(sources))]


def translate_as_found(
    model: DecodableModel,
    sources: Sequence[Ids],
    search: Search,
    *,
    tokens: int = 4096,
    prefixes: Sequence[Ids] | None = None,
    constraints: Constraints = Constraints(),
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """As `translate_all`, each with the index of its source as soon as it is found, the longest sources first."""
    requests, model = make_requests(sources, prefixes), prepare(model)
    for batch in batch_by_tokens([(len(source) + 1) * search.width for source in sources], tokens):
        with inference_mode(model):
            found = search.run(model, [requests[index] for index in batch], constraints)
        yield from zip(batch, found, strict=True)


def stream(
    model: DecodableModel,
    source: Ids,
    search: StepwiseSearch,
    *,
    prefix: Ids = (),
    constraints: Constraints = Constraints(),
) -> Iterator[int]:
    """The tokens of one translation as they are decoded, without EOS: those that `translate` gives for this source."""
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


# --- texts ---


WINDOW = 1000  # lines that share batches: the first of a long text are ready before the last are read
LINE_BREAKS = str.maketrans("\n\r", "  ")  # a model of characters may produce them, and one line would become two


@dataclass(frozen=True)
class Translation:
    """A translation as text, and its hypothesis."""

    text: str
    hypothesis: Hypothesis


EMPTY_TRANSLATION = Translation("", Hypothesis((), (), finished=True, score=0.0))


def translate_lines(
    translator: "Translator",
    texts: Iterable[str],
    search: Search,
    *,
    tokens: int = 4096,
    model: DecodableModel | None = None,
) -> Iterator[tuple[int, list[Translation]]]:
    """The translations of every text with its index, as soon as they are found; an empty line stays empty.

    Texts are read window by window, so there may be more of them than fit into memory. `model` is the translator's, if
    it has been prepared already.
    """
    model = prepare(translator.model) if model is None else model
    first = 0
    for some in chunks(texts, WINDOW):
        sources = translator.source.encode_batch(some)
        window = [DecodingRequest(tuple(source), index=index) for index, source in enumerate(sources, first)]
        first += len(window)
        yield from ((request.index, [EMPTY_TRANSLATION]) for request in window if not request.source)
        full = [request for request in window if request.source]
        for batch in batch_by_tokens([(len(request.source) + 1) * search.width for request in full], tokens):
            with inference_mode(model):  # not around a yield: the caller may need gradients
                found = search.run(model, [full[row] for row in batch], Constraints())
            for row, these in zip(batch, found, strict=True):
                yield full[row].index, [Translation(detokenize_line(translator, one.ids), one) for one in these]


def detokenize_line(translator: "Translator", ids: Sequence[int]) -> str:
    """Detokenised text, on one line."""
    return translator.detokenize(ids).translate(LINE_BREAKS)


def translate_texts(translator: "Translator", texts: Sequence[str], search: Search) -> list[str]:
    """The best translation of every text, in order."""
    found = dict(translate_lines(translator, texts, search))
    return [found[index][0].text for index in range(len(texts))]


def unknown_source_words(translator: "Translator", text: str) -> list[str]:
    """The words of a source text that are not in the vocabulary."""
    return unknown_words(translator.source, text)


def unknown_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text that are not in a vocabulary."""
    ids, pieces = tokenizer.encode(text), tokenizer.tokens(text)
    return [piece.removeprefix("<unk:").removesuffix(">") for piece, id in zip(pieces, ids, strict=True) if id == UNK]
