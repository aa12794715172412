"""A translator and sentences in; translated sentences out, each a line for a line."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from regard.decode.batches import by_budget
from regard.decode.hypothesis import Hypothesis
from regard.decode.limits import Allowed
from regard.decode.model import Model, at_rest
from regard.decode.ready import prepare
from regard.decode.request import Request
from regard.decode.search import Search
from regard.tasks.translate import Translator
from regard.text.files import chunks
from regard.text.vocabulary import UNK, Tokeniser

WINDOW = 1000  # lines that share batches: of a long text the first are there before the last are begun
BREAKS = str.maketrans("\n\r", "  ")  # a model that spells may write them, and a line would become two


@dataclass(frozen=True)
class Translation:
    """What the model wrote, as people write it, and how it found it."""

    text: str
    found: Hypothesis


NOTHING = Translation("", Hypothesis((), (), finished=True, score=0.0))


def translations(
    translator: Translator, texts: Iterable[str], search: Search, *, tokens: int = 4096, model: Model | None = None
) -> Iterator[tuple[int, list[Translation]]]:
    """The translations of every text with its place, as soon as they are found; an empty line stays empty.

    They are read window by window, so there may be more of them than fit into memory. `model` is the translator's, if
    it has been prepared already.
    """
    model = prepare(translator.model) if model is None else model
    due = 0
    for some in chunks(texts, WINDOW):
        sources = translator.source.encode_all(some)
        window = [Request(tuple(source), index=index) for index, source in enumerate(sources, due)]
        due += len(window)
        yield from ((request.index, [NOTHING]) for request in window if not request.source)
        full = [request for request in window if request.source]
        for batch in by_budget([(len(request.source) + 1) * search.width for request in full], tokens):
            with at_rest(model):  # not around a yield: whoever reads has gradients of their own
                found = search.run(model, [full[row] for row in batch], Allowed())
            for row, these in zip(batch, found, strict=True):
                yield full[row].index, [Translation(written(translator, one.ids), one) for one in these]


def written(translator: Translator, ids: Sequence[int]) -> str:
    """What the model wrote, as people write it, on one line."""
    return translator.text(ids).translate(BREAKS)


def translate_texts(translator: Translator, texts: Sequence[str], search: Search) -> list[str]:
    """The best translation of every text, in order."""
    found = dict(translations(translator, texts, search))
    return [found[place][0].text for place in range(len(texts))]


def unknown(translator: Translator, text: str) -> list[str]:
    """The words of a text that the model has no id for."""
    return unknown_words(translator.source, text)


def unknown_words(tokeniser: Tokeniser, text: str) -> list[str]:
    """The words of a text that a vocabulary has no id for."""
    ids, pieces = tokeniser.encode(text), tokeniser.tokens(text)
    return [piece.removeprefix("<unk:").removesuffix(">") for piece, id in zip(pieces, ids, strict=True) if id == UNK]
