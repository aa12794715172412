"""Translation: decodes sources as one batch, as many, or token by token."""

from collections.abc import Iterator, Sequence

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

    Examples:
        >>> translator = regard.load("run")
        >>> source, prefix = translator.source.encode("the cat sleeps"), translator.target.encode("le chat")
        >>> ((found,),) = translate(translator.model, [source], Beam(4), prefixes=[prefix])
        >>> translator.target.decode(found.ids[:2])
        'le chat'
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
