"""One token after another: what greedy search and sampling share, for whole batches and for streams."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from regard.decode.hypothesis import Hypothesis
from regard.decode.limits import Allowed, Longest
from regard.decode.model import Model, Pickable, device_of, encoded, log_probabilities
from regard.decode.permitted import permitted
from regard.decode.request import Request, Row
from regard.decode.search import Search
from regard.text.vocabulary import BOS, EOS


class Walker(Search):
    """A search that never looks back: it settles each token before it asks for the next."""

    longest: Longest

    @abstractmethod
    def choose(self, scores: Float[Tensor, "n v"], rows: Sequence[Row]) -> Int[Tensor, " n"]:
        """The next token of every row; what may not come has -∞."""

    def run(self, model: Model, requests: Sequence[Request], allowed: Allowed) -> list[list[Hypothesis]]:
        walk = begin(model, requests, self.width)
        while walk.rows:
            walk = advance(model, walk, self, allowed)
        return [[walk.ended[request.index, draw] for draw in range(self.width)] for request in requests]


@dataclass(frozen=True, eq=False)
class Walk:
    """Rows on their way, the model's state for each, and the translations that have ended, by sentence and draw."""

    rows: tuple[Row, ...]
    state: Pickable
    memory: Pickable
    ended: dict[tuple[int, int], Hypothesis]


def begin(model: Model, requests: Sequence[Request], draws: int = 1) -> Walk:
    memory, lengths = encoded(model, [request.source for request in requests])
    if draws > 1:
        memory = memory.pick(torch.arange(len(requests), device=lengths.device).repeat_interleave(draws))
    rows = tuple(Row(request, draw) for request in requests for draw in range(draws))
    return Walk(rows, model.start(memory), memory, {})


def advance(model: Model, walk: Walk, walker: Walker, allowed: Allowed) -> Walk:
    """Every row one token on. Rows that end leave, so that nothing is computed for them any more."""
    last = torch.tensor([row.written[-1] if row.written else BOS for row in walk.rows], device=device_of(model))
    logits, state = model.step(rearrange(last, "n -> n 1"), walk.state, walk.memory)
    scores = permitted(log_probabilities(logits[:, -1]), walk.rows, allowed)
    chosen = walker.choose(scores, walk.rows)
    values = scores.gather(-1, rearrange(chosen, "n -> n 1"))[:, 0]

    rows, staying, ended = [], [], dict(walk.ended)
    for n, (row, token, value) in enumerate(zip(walk.rows, chosen.tolist(), values.tolist(), strict=True)):
        place = row.request.index, row.draw
        if value == -torch.inf:  # a rule lets nothing follow
            ended[place] = row.cut(row.total)
        elif token == EOS:
            ended[place] = row.ended(value, row.total + value)
        elif len(row.written) + 1 == row.request.limit(walker.longest):
            row = row.then(token, value)
            ended[place] = row.cut(row.total)
        else:
            rows.append(row.then(token, value))
            staying.append(n)
    memory = walk.memory
    if rows and len(rows) < len(walk.rows):
        kept = torch.tensor(staying, device=last.device)
        state, memory = state.pick(kept), memory.pick(kept)
    return Walk(tuple(rows), state, memory, ended)
