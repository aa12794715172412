"""Translation of texts: lines through a translator, in batches, with the words it does not know."""

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
)

if TYPE_CHECKING:
    from regard.tasks.translation.task import Translator


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
