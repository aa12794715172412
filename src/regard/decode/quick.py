"""A prepared model and requests in; what beam search finds for them, by tensors alone, out.

The definition is beam.py; this agrees with it or objects. Sentences that are done leave once enough of them are.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.attention import Learned
from regard.decode import stages
from regard.decode.hypothesis import Hypothesis
from regard.decode.lanes import Lanes, Rules, grow, lanes_for
from regard.decode.limits import Allowed
from regard.decode.notes import told
from regard.decode.ready import Ready
from regard.decode.request import Request
from regard.decode.room import Room, room_for, step

if TYPE_CHECKING:
    from regard.decode.beam import Beam

APART = 8  # sentences for each core, so that it pays to let them work apart: to wake the others takes 50 µs each time
LEAVING = 8  # once one in so many is done, they leave: others move to their places, and to stay costs attention
FEW = 16  # beams, which are multiplied as fast as one
SLOTS = 16  # for each beam at first; many more are rarely seen at once


def objections(ready: Ready, beam: "Beam", requests: Sequence[Request], allowed: Allowed) -> list[str]:
    """Why a search cannot be run by tensors alone."""
    longest = max(request.limit(beam.longest) for request in requests)
    learned = [part for part in ready.model.target_places.recipe.beside if isinstance(part, Learned)]
    return [
        *(["coverage has to see where the model looks"] if beam.coverage_penalty else []),
        *(["a rule is asked about every beginning"] if allowed.rule is not None else []),
        *(f"{part} ends before the limit of {longest}" for part in learned if part.longest < longest),
        *(["the beam is wider than the vocabulary"] if beam.size > len(ready.model.words.bias) else []),
    ]


def run(ready: Ready, beam: "Beam", requests: Sequence[Request], allowed: Allowed) -> list[list[Hypothesis]]:
    if ready.device.type == "cuda":
        return stages.run(ready, beam, requests, allowed)
    cores = min(torch.get_num_threads(), len(requests) // APART)
    return by_cores(ready, beam, requests, allowed, cores) if cores > 1 else alone(ready, beam, requests, allowed)


def alone(ready: Ready, beam: "Beam", requests: Sequence[Request], allowed: Allowed) -> list[list[Hypothesis]]:
    with torch.inference_mode():
        return Searching.begin(ready, beam, requests, allowed).to_the_end()


def by_cores(
    ready: Ready, beam: "Beam", requests: Sequence[Request], allowed: Allowed, cores: int
) -> list[list[Hypothesis]]:
    """Every core searches by itself for its part of the sentences, and shares no small work with others."""
    threads, parts = torch.get_num_threads(), [requests[first::cores] for first in range(cores)]
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = [pool.submit(alone, ready, beam, part, allowed) for part in parts]
            by_index = {
                request.index: hypotheses
                for part, one in zip(parts, found, strict=True)
                for request, hypotheses in zip(part, one.result(), strict=True)
            }
    finally:
        torch.set_num_threads(threads)  # each thread has a number of its own, but the last to be set is any new one's
    return [by_index[request.index] for request in requests]


@dataclass(eq=False)
class Searching:
    """The search on its way: which requests are left, their room and their lanes."""

    ready: Ready
    beam: "Beam"
    rules: Rules
    requests: list[Request]
    room: Room
    lanes: Lanes
    forced: int

    @staticmethod
    def begin(ready: Ready, beam: "Beam", requests: Sequence[Request], allowed: Allowed) -> "Searching":
        limits = [request.limit(beam.longest) for request in requests]
        rules = Rules.of(beam.length_penalty, allowed, beam.size, max(limits), ready.model.words.bias)
        room = room_for(ready, [request.source for request in requests], beam.size, SLOTS * beam.size)
        lanes = lanes_for(requests, limits, rules, beam.best, beam.length_penalty, max(limits))
        return Searching(
            ready, beam, rules, list(requests), room, lanes, max(len(request.prefix) for request in requests)
        )

    def to_the_end(self) -> list[list[Hypothesis]]:
        asked, found = list(self.requests), dict[int, list[Hypothesis]]()
        places = self.ready.places(len(self.lanes.notes.words))
        at = 0
        while self.requests:
            if int(self.room.seen.any(1).sum(-1).max()) + self.beam.size > self.room.slots:
                self.room = self.room.wider(2 * self.room.slots)
            here, live, bias = self.room.at.clone(), self.live(), self.ready.model.words.bias
            states = step(self.ready, self.room, self.lanes.tokens, self.lanes.parents, places[at], live=live)
            grow(self.lanes, self.rules, states, self.ready.words, bias, here, forcing=at < self.forced, live=live)
            at += 1
            found |= self.let_go(at)
        return [found[request.index] for request in asked]

    def live(self) -> Tensor | None:
        """The beams that go on; None if nearly all do, or if they are so few that it does not matter."""
        goes = (self.lanes.totals > -torch.inf) & (self.lanes.ended < 0)[:, None]
        if goes.numel() < FEW or int(goes.sum()) * 20 > goes.numel() * 19:
            return None
        return goes.flatten().nonzero()[:, 0]

    def let_go(self, at: int) -> dict[int, list[Hypothesis]]:
        """Those that are done leave, if they are enough."""
        if self.lanes.broken:
            raise ValueError(
                "the model gives probabilities that are not numbers: its weights are broken (nan or infinite)"
            )
        done = (self.lanes.ended >= 0).tolist()
        if not all(done) and LEAVING * sum(done) < len(done):
            return {}
        going = [row for row, over in enumerate(done) if over]
        found = told(self.lanes, [self.requests[row] for row in going], going, self.beam, at)
        staying = [row for row, over in enumerate(done) if not over]
        # the last take the places of those that leave, so that few are moved
        last = [row for row in staying if row >= len(staying)]
        staying = [last.pop() if done[row] else row for row in range(len(staying))]
        self.requests = [self.requests[row] for row in staying]
        if staying:
            rows = torch.tensor(staying, device=self.room.at.device)
            self.room, self.lanes = self.room.keep(rows), self.lanes.keep(rows)
        return found
