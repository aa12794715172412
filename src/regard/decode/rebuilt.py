"""An autoencoder and sentences in; the sentences that their latents tell out, and those between two."""

from collections.abc import Iterable, Iterator, Sequence

from regard.decode.greedy import Greedy
from regard.decode.latents import between, latents_of, write_from
from regard.decode.limits import Longest
from regard.decode.texts import BREAKS, WINDOW
from regard.decode.translate import translate_all
from regard.tasks.rebuild import Rebuilder
from regard.text.files import chunks


def rebuilt(rebuilder: Rebuilder, texts: Iterable[str], *, tokens: int = 4096) -> Iterator[str]:
    """A line for a line, in their order; an empty one stays empty."""
    for some in chunks(texts, WINDOW):
        sources = rebuilder.words.encode_all(some)
        found = iter(translate_all(rebuilder.model, list(filter(None, sources)), Greedy(), tokens=tokens))
        for source in sources:
            yield written(rebuilder, next(found)[0].ids) if source else ""


def sentences_between(rebuilder: Rebuilder, one: str, other: str, points: int = 5) -> list[str]:
    """What the points of the line between two latents tell, both ends included."""
    sources = rebuilder.words.encode_all((one, other))
    if not all(sources):
        raise ValueError("there is no way from or to an empty sentence; give two sentences")
    search = Greedy(Longest(0, Longest().of(max(map(len, sources)))))
    ends = latents_of(rebuilder.model, sources)
    found = write_from(rebuilder.model, between(ends[0], ends[1], points), search)
    return [written(rebuilder, these[0].ids) for these in found]


def written(rebuilder: Rebuilder, ids: Sequence[int]) -> str:
    """What the model wrote, as people write it, on one line."""
    return rebuilder.text(ids).translate(BREAKS)
