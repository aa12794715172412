"""A model and a sentence, or a text to go on with, in; every hypothesis that a beam kept, step by step, out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.decode.beam import Beam, Sentence, begin, grow, read
from regard.decode.hypothesis import Hypothesis
from regard.decode.limits import Allowed
from regard.decode.model import Model, at_rest, log_probabilities
from regard.decode.permitted import permitted
from regard.decode.ranking import best
from regard.decode.request import Request, Row


@dataclass(frozen=True)
class Node:
    """A beginning that was kept, or one that ended here: then `finished`, and `score` is what it is ranked by."""

    ids: tuple[int, ...]
    parent: int | None  # its place among the open nodes of the step before; None at the first
    log_probability: float  # of all its tokens together, the end included
    finished: bool
    score: float


@dataclass(frozen=True)
class BeamTree:
    """The nodes of every step, open ones first, best first; and what was found in the end, best first."""

    steps: tuple[tuple[Node, ...], ...]
    found: tuple[Hypothesis, ...]

    def chosen(self, node: Node) -> bool:
        """Is the node on the way to the best?"""
        best_ids = self.found[0].ids
        return best_ids == node.ids if node.finished else best_ids[: len(node.ids)] == node.ids


def beam_tree(model: Model, source: tuple[int, ...], beam: Beam, prefix: tuple[int, ...] = ()) -> BeamTree:
    """The search again, for one sentence alone, everything kept: it finds what `beam.run` finds."""
    request, steps = Request(source, prefix), []
    with at_rest(model):
        sentence = Sentence(request, request.limit(beam.longest), (Row(request),))
        rows = begin(model, [request])
        while True:
            rows, scores = read(model, rows, beam)
            values, tokens = best(permitted(scores, sentence.rows, Allowed()), beam.size)
            offers = [list(zip(*pair, strict=True)) for pair in zip(values.tolist(), tokens.tolist(), strict=True)]
            grown = grow(sentence, offers, rows.coverage_penalties(beam), beam)
            steps.append(nodes(sentence, grown))
            if grown.done(beam):
                return BeamTree(tuple(steps), tuple(grown.hypotheses(beam)))
            sentence, rows = grown, rows.follow(grown.parents, grown.rows)


def nodes(before: Sentence, after: Sentence) -> tuple[Node, ...]:
    begun = [row.written for row in before.rows]
    first = not begun[0]
    kept = [open_node(row, None if first else parent) for row, parent in zip(after.rows, after.parents, strict=True)]
    ended = [
        Node(one.ids, None if first else begun.index(one.ids), one.log_probability, finished=True, score=one.score)
        for one in after.finished[len(before.finished) :]
    ]
    return (*kept, *ended)


def continued(writer: Any, prompt: Sequence[int], size: int, tokens: int, allowed: Allowed) -> BeamTree:
    """So many tokens behind a text: the `size` best beginnings of each step. As in all writing, nothing ends before."""
    rows, state, steps = (Row(Request(())),), writer.start(1), []
    with at_rest(writer):
        device = writer.words.weight.device
        unread = torch.tensor([list(prompt)], device=device)
        for step in range(tokens):
            x, state = writer.read(unread, state)
            values, ids = best(permitted(log_probabilities(writer.logits(x[:, -1:])[:, 0]), rows, allowed), size)
            # of equals the lower token first, then the better beginning, as in every beam here
            offers = sorted(
                (-(rows[parent].total + value), token, parent, value)
                for parent, offer in enumerate(zip(values.tolist(), ids.tolist(), strict=True))
                for value, token in zip(*offer, strict=True)
                if value > -torch.inf
            )[:size]
            if not offers:
                break
            parents = [parent for _, _, parent, _ in offers]
            rows = tuple(rows[parent].then(token, value) for _, token, parent, value in offers)
            steps.append(
                tuple(open_node(row, parent if step else None) for row, parent in zip(rows, parents, strict=True))
            )
            unread = torch.tensor([[row.written[-1]] for row in rows], device=device)
            state = state.pick(torch.tensor(parents, device=device))
    return BeamTree(tuple(steps), tuple(row.cut(row.total) for row in rows))


def open_node(row: Row, parent: int | None) -> Node:
    return Node(row.written, parent, row.total, finished=False, score=row.total)
