"""Sources in; translations with their scores out: as one batch, as many, or token by token."""

from collections.abc import Iterator, Sequence

from regard.decode.batches import by_budget
from regard.decode.hypothesis import Hypothesis
from regard.decode.limits import Allowed
from regard.decode.model import Model, at_rest
from regard.decode.ready import prepare
from regard.decode.request import Request, requests
from regard.decode.search import Search
from regard.decode.walk import Walker, advance, begin

Ids = Sequence[int]


def translate(
    model: Model,
    sources: Sequence[Ids],
    search: Search,
    *,
    prefixes: Sequence[Ids] | None = None,
    allowed: Allowed = Allowed(),
) -> list[list[Hypothesis]]:
    """All sources as one batch; of each its translations, best first (a sample's in the order of the draws).

    Args:
        model: a model, or one that `prepare` has made faster, which pays for more than one batch.
        sources: plain ids, as a tokeniser's `encode` gives them.
        search: Greedy, Beam or Sample.
        prefixes: for every source the ids its translations must begin with.
        allowed: which tokens may come.
    """
    with at_rest(model):
        asked = requests(sources, prefixes)
        return search.run(model, asked, allowed) if asked else []


def translate_all(
    model: Model,
    sources: Sequence[Ids],
    search: Search,
    *,
    tokens: int = 4096,
    prefixes: Sequence[Ids] | None = None,
    allowed: Allowed = Allowed(),
) -> list[list[Hypothesis]]:
    """As many sources as there are, in batches of at most `tokens` source tokens × beams, in the order given."""
    found = dict(in_turn(model, sources, search, tokens=tokens, prefixes=prefixes, allowed=allowed))
    return [found[index] for index in range(len(sources))]


def in_turn(
    model: Model,
    sources: Sequence[Ids],
    search: Search,
    *,
    tokens: int = 4096,
    prefixes: Sequence[Ids] | None = None,
    allowed: Allowed = Allowed(),
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """As `translate_all`, each with the place of its source as soon as it is found, the longest sources first."""
    asked, model = requests(sources, prefixes), prepare(model)
    for batch in by_budget([(len(source) + 1) * search.width for source in sources], tokens):
        with at_rest(model):
            found = search.run(model, [asked[index] for index in batch], allowed)
        yield from zip(batch, found, strict=True)


def stream(
    model: Model, source: Ids, search: Walker, *, prefix: Ids = (), allowed: Allowed = Allowed()
) -> Iterator[int]:
    """The tokens of one translation as they come, without the end: what `translate` gives for this source alone."""
    request = Request(tuple(source), tuple(prefix))
    with at_rest(model):  # not around a yield: whoever reads the stream has gradients of their own
        walk = begin(model, [request])
    given = 0
    while walk.rows:
        with at_rest(model):
            walk = advance(model, walk, search, allowed)
        written = walk.rows[0].written if walk.rows else walk.ended[request.index, 0].ids
        yield from written[given:]
        given = len(written)
