"""Batched beam search: beam search over tensors for a prepared model, with finished sentences released.

The definition is beam.py; this agrees with it or objects. Finished sentences leave the batch once there are enough.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.attention import Learned
from regard.attention.hooks import is_recorded
from regard.decode import stages
from regard.decode.beam_state import BeamState, SearchRules, advance_beams, backtrack, initial_beam_state
from regard.decode.constraints import Constraints
from regard.decode.hypothesis import DecodingRequest, Hypothesis
from regard.decode.ready import PreparedModel
from regard.decode.room import BeamKVCache, room_for, step

if TYPE_CHECKING:
    from regard.decode.beam import Beam

SENTENCES_PER_CORE = 8  # from so many on, one search per core pays: waking threads takes 50 µs each time
LEAVING = 8  # once one sentence in so many is finished they are released: others move to their rows
FEW = 16  # beams, whose matrix products take as long as one beam's
SLOTS = 16  # KV cache slots per beam at first; many more are rarely in use at once


def objections(
    ready: PreparedModel, beam: "Beam", requests: Sequence[DecodingRequest], constraints: Constraints
) -> list[str]:
    """Why a search cannot run batched."""
    longest = max(request.max_length(beam.max_length) for request in requests)
    learned = [part for part in ready.model.target_positions.recipe.embedding_positions if isinstance(part, Learned)]
    return [
        *(["a coverage penalty needs the attention weights"] if beam.coverage_penalty else []),
        *(["its attention is recorded or edited"] if is_recorded(ready) else []),
        *(["allowed_next is a function of every prefix"] if constraints.allowed_next is not None else []),
        *(f"{part} ends before the limit of {longest}" for part in learned if part.max_length < longest),
        *(["the beam is wider than the vocabulary"] if beam.size > len(ready.model.embeddings.bias) else []),
    ]


def run(
    ready: PreparedModel, beam: "Beam", requests: Sequence[DecodingRequest], constraints: Constraints
) -> list[list[Hypothesis]]:
    if ready.device.type == "cuda":
        return stages.run(ready, beam, requests, constraints)
    cores = min(torch.get_num_threads(), len(requests) // SENTENCES_PER_CORE)
    return (
        search_by_cores(ready, beam, requests, constraints, cores)
        if cores > 1
        else search_single_threaded(ready, beam, requests, constraints)
    )


def search_single_threaded(
    ready: PreparedModel, beam: "Beam", requests: Sequence[DecodingRequest], constraints: Constraints
) -> list[list[Hypothesis]]:
    with torch.inference_mode():
        return BatchedBeamSearch.begin(ready, beam, requests, constraints).run()


def search_by_cores(
    ready: PreparedModel, beam: "Beam", requests: Sequence[DecodingRequest], constraints: Constraints, cores: int
) -> list[list[Hypothesis]]:
    """Every core searches its own part of the sentences, single-threaded."""
    threads, parts = torch.get_num_threads(), [requests[first::cores] for first in range(cores)]
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = [pool.submit(search_single_threaded, ready, beam, part, constraints) for part in parts]
            by_index = {
                request.index: hypotheses
                for part, one in zip(parts, found, strict=True)
                for request, hypotheses in zip(part, one.result(), strict=True)
            }
    finally:
        torch.set_num_threads(threads)  # the number is per thread, but the last one set is that of new threads
    return [by_index[request.index] for request in requests]


@dataclass(eq=False)
class BatchedBeamSearch:
    """A running search: the requests that are left, their KV cache and their beams."""

    ready: PreparedModel
    beam: "Beam"
    rules: SearchRules
    requests: list[DecodingRequest]
    room: BeamKVCache
    beams: BeamState
    forced: int

    @staticmethod
    def begin(
        ready: PreparedModel, beam: "Beam", requests: Sequence[DecodingRequest], constraints: Constraints
    ) -> "BatchedBeamSearch":
        limits = [request.max_length(beam.max_length) for request in requests]
        rules = SearchRules.of(beam.length_penalty, constraints, beam.size, max(limits), ready.model.embeddings.bias)
        room = room_for(ready, [request.source for request in requests], beam.size, SLOTS * beam.size)
        beams = initial_beam_state(requests, limits, rules, beam.n_best, beam.length_penalty, max(limits))
        return BatchedBeamSearch(
            ready, beam, rules, list(requests), room, beams, max(len(request.prefix) for request in requests)
        )

    def run(self) -> list[list[Hypothesis]]:
        asked, found = list(self.requests), dict[int, list[Hypothesis]]()
        places = self.ready.places(len(self.beams.backpointers.tokens))
        at = 0
        while self.requests:
            if int(self.room.seen.any(1).sum(-1).max()) + self.beam.size > self.room.slots:
                self.room = self.room.wider(2 * self.room.slots)
            here, live, bias = self.room.at.clone(), self.live_rows(), self.ready.model.embeddings.bias
            states = step(self.ready, self.room, self.beams.tokens, self.beams.parents, places[at], live=live)
            advance_beams(
                self.beams, self.rules, states, self.ready.words, bias, here, forcing=at < self.forced, live=live
            )
            at += 1
            found |= self.release_finished(at)
        return [found[request.index] for request in asked]

    def live_rows(self) -> Tensor | None:
        """The unfinished beams; None if nearly all are, or if there are too few for it to matter."""
        goes = (self.beams.totals > -torch.inf) & (self.beams.finished_step < 0)[:, None]
        if goes.numel() < FEW or int(goes.sum()) * 20 > goes.numel() * 19:
            return None
        return goes.flatten().nonzero()[:, 0]

    def release_finished(self, at: int) -> dict[int, list[Hypothesis]]:
        """Finished sentences leave the batch, if there are enough."""
        if self.beams.nonfinite:
            raise ValueError(
                "the model's probabilities are not finite: its weights hold NaN or infinity; load another checkpoint"
            )
        done = (self.beams.finished_step >= 0).tolist()
        if not all(done) and LEAVING * sum(done) < len(done):
            return {}
        going = [row for row, over in enumerate(done) if over]
        found = backtrack(self.beams, [self.requests[row] for row in going], going, self.beam, at)
        staying = [row for row, over in enumerate(done) if not over]
        # the last take the rows of those that leave, so that few are moved
        last = [row for row in staying if row >= len(staying)]
        staying = [last.pop() if done[row] else row for row in range(len(staying))]
        self.requests = [self.requests[row] for row in staying]
        if staying:
            rows = torch.tensor(staying, device=self.room.at.device)
            self.room, self.beams = self.room.keep(rows), self.beams.select(rows)
        return found
