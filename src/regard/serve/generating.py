"""A question in; what the model writes, token by token as it is chosen, as server-sent events out, then the scene."""

import base64
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.decode.limits import Allowed, Longest
from regard.decode.model import at_rest, encoded, log_probabilities
from regard.decode.permitted import permitted
from regard.decode.request import Request, Row
from regard.decode.writing import usual
from regard.see.attending import Tracing
from regard.see.scene import Asked
from regard.see.scene_writing import Pair
from regard.see.swaps import swapped, without_swaps
from regard.see.tokens import named
from regard.see.trace import Site
from regard.see.walked import Walked, WalkedWriter
from regard.serve.answers import Request as Asking
from regard.serve.asking import Desk, Wanted
from regard.serve.described import described
from regard.serve.scenes import Showing
from regard.serve.wire import Answer, Refused
from regard.serve.wire import encoded as as_text
from regard.tasks.rebuild import Rebuilder
from regard.tasks.translate import Translator
from regard.tasks.write import Author
from regard.text.vocabulary import BOS, EOS


def generate(asked: Asking) -> Answer:
    return Answer(events(asked.desk, asked.query), "text/event-stream")


def events(desk: Desk, query: Mapping[str, Any]) -> Iterator[bytes]:
    """A mistake is an event too, for nobody can read the status of a stream."""
    try:
        wanted = desk.wanted({"beam": "1"} | dict(query) if greedy(desk, query) else query)
        for token in told(desk, wanted):
            yield event("token", token)
        yield event("done", described(desk.shown(wanted)))
    except ValueError as error:
        yield event("error", {"error": " ".join(str(error).split())})
    except Exception as error:  # whatever it is, the page must hear of it
        logging.getLogger("regard").exception("while generating")
        yield event("error", {"error": f"something broke inside Regard ({type(error).__name__}); its log says more"})


def event(name: str, value: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + as_text(value) + b"\n\n"


def greedy(desk: Desk, query: Mapping[str, Any]) -> bool:
    """Unless somebody asks for more, one hypothesis: it can be watched while it grows."""
    learner = desk.shelf.learner(query.get("model") or None)
    return isinstance(learner, (Translator, Rebuilder)) and not query.get("beam")


def told(desk: Desk, wanted: Wanted) -> Iterator[dict[str, Any]]:
    match wanted.asked.learner:
        case Author() as author if (wanted.asked.beam or 1) == 1:
            yield from authored(wanted.asked, author)
        case Author() as author:
            yield from retold(
                desk.shown(wanted), "text", len(author.beginning(swapped(wanted.asked.text, wanted.asked.edits))[1])
            )
        case Translator() | Rebuilder() as learner:
            if wanted.asked.beam == 1 and wanted.asked.target is None:
                yield from translated(wanted.asked, Pair.of(learner))
            else:
                yield from retold(desk.shown(wanted), "written", 0)
        case other:
            raise Refused(
                f"a model for the task {other.settings.task!r} writes nothing step by step; ask for its scene"
            )


def translated(asked: Asked, pair: Pair) -> Iterator[dict[str, Any]]:
    """As greedy search does, one step at a time, every attention in the open."""
    source, tracing = pair.reading(asked), Tracing(without_swaps(asked.edits))
    walked, row = Walked(pair.model, tracing), Row(Request(()))
    with at_rest(pair.model):
        memory, lengths = encoded(walked, [source.ids])
        state = walked.start(memory)
    token = BOS
    for step in range(Longest().of(len(source.ids))):
        tracing.calls.clear()
        with at_rest(pair.model):  # not around the yield, which may go on in another thread
            logits, state = walked.step(torch.tensor([[token]], device=lengths.device), state, memory)
            scores = permitted(log_probabilities(logits[:, -1]), [row], Allowed())
        token = int(scores[0].argmax())
        yield said(step, named(pair.target, token), float(scores[0, token].exp()), looked(tracing, "written"))
        if token == EOS:
            return
        row = row.then(token, float(scores[0, token]))


def authored(asked: Asked, author: Author) -> Iterator[dict[str, Any]]:
    opening, ids = author.beginning(swapped(asked.text, asked.edits))
    tracing, row = Tracing(without_swaps(asked.edits)), Row(Request(()))
    walked, unread = WalkedWriter(author.model, tracing), opening + ids
    state = walked.start(1)
    for step in range(len(ids), len(ids) + asked.more):
        tracing.calls.clear()
        with at_rest(author.model):
            x, state = walked.read(torch.tensor([unread], device=author.model.words.weight.device), state)
            scores = permitted(log_probabilities(walked.logits(x[:, -1:])[:, 0]), [row], usual(author.words))
        token = int(scores[0].argmax())
        yield said(step, named(author.words, token), float(scores[0, token].exp()), looked(tracing, "text"))
        row, unread = row.then(token, float(scores[0, token])), [token]


def retold(showing: Showing, queries: str, first: int) -> Iterator[dict[str, Any]]:
    """What a search with several hypotheses found, from a step on: it is known at its end alone."""
    scene, ids = showing.scene, showing.scene.generated()
    sites = [site for site in scene.sites.values() if isinstance(site, Site) and site.spot.queries == queries]
    for step in range(first, len(ids) if queries == "text" else len(scene.outcome.rows)):
        one = ids[step] if step < len(ids) else EOS
        # what a language model reads begins before its first step
        row = mean_row(sites[-1], sites[-1].shape[0] - len(scene.outcome.rows) + step) if sites else None
        yield said(step, scene.outcome.rows[step], float(scene.next_tokens(step)[one]), row)


def said(step: int, token: str, share: float, row: Tensor | None) -> dict[str, Any]:
    packed = None if row is None else base64.b64encode(row.cpu().numpy().astype("<f4").tobytes()).decode()
    return {"step": step, "token": token, "probability": share, "row": packed}


def looked(tracing: Tracing, queries: str) -> Tensor | None:
    """Of the last layer that asked, the newest query's weights, the mean of its heads."""
    calls = [some[-1] for some in tracing.calls.values() if some[-1].spot.queries == queries]
    sites = [site for site in calls if isinstance(site, Site)]
    return mean_row(sites[-1], sites[-1].shape[0] - 1) if sites else None


def mean_row(site: Site, query: int) -> Tensor:
    return torch.stack([site.row(head, query) for head in range(site.heads)]).mean(0)
