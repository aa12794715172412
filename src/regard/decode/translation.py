"""Translation: as many sources or texts as there are, in batches, and the words that a translator does not know."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.data.files import chunks
from regard.data.tokenizers.base import UNK, Tokenizer
from regard.decode.quantize import prepare
from regard.decode.search import (
    Constraints,
    DecodingRequest,
    Hypothesis,
    Ids,
    Search,
    make_requests,
    search_batch,
)
from regard.models.seq2seq import DecodableModel

if TYPE_CHECKING:
    from regard.tasks.translation.task import Translator

WINDOW = 1000  # lines that share batches: the first of a long text are ready before the last are read
LINE_BREAKS = str.maketrans("\n\r", "  ")  # a model of characters may produce them, and one line would become two


def translate_all(
    model: DecodableModel,
    sources: Sequence[Ids],
    search: Search,
    *,
    tokens: int = 4096,
    prefixes: Sequence[Ids] | None = None,
    constraints: Constraints = Constraints(),
) -> list[list[Hypothesis]]:
    """As many sources as there are, in batches of at most `tokens` source tokens × beams, in the order given.

    Examples:
        >>> translator = regard.load("run")
        >>> sources = [translator.source.encode(text) for text in ("the cat sleeps", "a dog", "the dog")]
        >>> found = translate_all(translator.model, sources, Beam(2), tokens=16)
        >>> len(found), found[1][0].ids == translate(translator.model, sources[1:2], Beam(2))[0][0].ids
        (3, True)
    """
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
    """As `translate_all`, each with the index of its source as soon as it is found, the longest sources first.

    Examples:
        >>> translator = regard.load("run")
        >>> sources = [translator.source.encode(text) for text in ("a dog", "the cat sleeps", "dog")]
        >>> [index for index, _ in translate_as_found(translator.model, sources, Greedy(), tokens=4)]
        [1, 0, 2]
    """
    requests = make_requests(sources, prefixes)
    yield from translate_requests(prepare(model), requests, search, tokens=tokens, constraints=constraints)


def translate_requests(
    model: DecodableModel,
    requests: Sequence[DecodingRequest],
    search: Search,
    *,
    tokens: int,
    constraints: Constraints = Constraints(),
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The hypotheses of each request with its index, batch by batch."""
    for batch in batch_by_tokens([(len(request.source) + 1) * search.width for request in requests], tokens):
        some = [requests[row] for row in batch]
        found = search_batch(model, some, search, constraints)
        yield from zip((request.index for request in some), found, strict=True)


def batch_by_tokens(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Indices in batches whose padded size, rows × longest, is at most `tokens`; the longest come first.

    One that is over the budget by itself makes a batch of its own.
    """
    if tokens < 1:
        raise ValueError(f"a budget of {tokens} tokens fits nothing; give at least 1")
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


# --- texts ---


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
        tag = translator.target.first_ids
        window = [DecodingRequest(tuple(source), tag, index) for index, source in enumerate(sources, first)]
        first += len(window)
        yield from ((request.index, [EMPTY_TRANSLATION]) for request in window if not request.source)
        full = [request for request in window if request.source]
        for index, found in translate_requests(model, full, search, tokens=tokens):
            yield index, [Translation(detokenize_line(translator, one.ids), one) for one in found]


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
