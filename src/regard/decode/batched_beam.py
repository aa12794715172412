"""Batched beam search: beam search over tensors for a Transformer, with finished sentences released.

The definition is beam.py; this agrees with it or objects. Finished sentences leave the batch once there are enough.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.attention import Learned
from regard.decode import cuda_graphs, kv_cache
from regard.decode.beam_state import BeamState, SearchRules, advance_beams, backtrack, initial_beam_state
from regard.decode.constraints import Constraints
from regard.decode.hypothesis import DecodingRequest, Hypothesis
from regard.decode.kv_cache import TransformerBeams
from regard.models.transformer import Transformer

if TYPE_CHECKING:
    from regard.decode.beam import Beam

SENTENCES_PER_CORE = 8  # from so many on, one search per core pays: waking threads takes 50 µs each time
LEAVING = 8  # once one sentence in so many is finished they are released: others move to their rows
FEW = 16  # beams, whose matrix products take as long as one beam's
SLOTS = 16  # KV cache slots per beam at first; many more are rarely in use at once


def objections(
    model: Transformer, beam: "Beam", requests: Sequence[DecodingRequest], constraints: Constraints
) -> list[str]:
    """Why a search cannot run batched."""
    longest = max(request.max_length(beam.max_length) for request in requests)
    learned = [part for part in model.target_positions.recipe.embedding_positions if isinstance(part, Learned)]
    return [
        *kv_cache.objections(model),
        *(["a coverage penalty needs the attention weights"] if beam.coverage_penalty else []),
        *(["allowed_next is a function of every prefix"] if constraints.allowed_next is not None else []),
        *(f"{part} ends before the limit of {longest}" for part in learned if part.max_length < longest),
        *(["the beam is wider than the vocabulary"] if beam.size > len(model.embeddings.bias) else []),
    ]


def run(
    model: Transformer, beam: "Beam", requests: Sequence[DecodingRequest], constraints: Constraints
) -> list[list[Hypothesis]]:
    if model.embeddings.bias.device.type == "cuda":
        return cuda_graphs.run(model, beam, requests, constraints)
    cores = min(torch.get_num_threads(), len(requests) // SENTENCES_PER_CORE)
    return (
        search_by_cores(model, beam, requests, constraints, cores)
        if cores > 1
        else search_single_threaded(model, beam, requests, constraints)
    )


def search_single_threaded(
    model: Transformer, beam: "Beam", requests: Sequence[DecodingRequest], constraints: Constraints
) -> list[list[Hypothesis]]:
    with torch.inference_mode():
        return BatchedBeamSearch.begin(model, beam, requests, constraints).run()


def search_by_cores(
    model: Transformer, beam: "Beam", requests: Sequence[DecodingRequest], constraints: Constraints, cores: int
) -> list[list[Hypothesis]]:
    """Every core searches its own part of the sentences, single-threaded."""
    threads, parts = torch.get_num_threads(), [requests[first::cores] for first in range(cores)]
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = [pool.submit(search_single_threaded, model, beam, part, constraints) for part in parts]
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

    beam: "Beam"
    rules: SearchRules
    requests: list[DecodingRequest]
    decoder: TransformerBeams
    beams: BeamState
    forced: int

    @staticmethod
    def begin(
        model: Transformer, beam: "Beam", requests: Sequence[DecodingRequest], constraints: Constraints
    ) -> "BatchedBeamSearch":
        limits = [request.max_length(beam.max_length) for request in requests]
        rules = SearchRules.of(beam.length_penalty, constraints, beam.size, max(limits), model.embeddings.bias)
        decoder = TransformerBeams.of(
            model,
            [request.source for request in requests],
            beams=beam.size,
            slots=SLOTS * beam.size,
            steps=max(limits),
        )
        beams = initial_beam_state(requests, limits, rules, beam.n_best, beam.length_penalty, max(limits))
        return BatchedBeamSearch(
            beam, rules, list(requests), decoder, beams, max(len(request.prefix) for request in requests)
        )

    def run(self) -> list[list[Hypothesis]]:
        asked, found = list(self.requests), dict[int, list[Hypothesis]]()
        at = 0
        while self.requests:
            self.decoder.ensure_slots()
            here, live, output, bias = torch.tensor([at]), self.live_rows(), self.decoder.output, self.decoder.bias
            states = self.decoder.step(self.beams.tokens, self.beams.parents, live)
            advance_beams(self.beams, self.rules, states, output, bias, here, forcing=at < self.forced, live=live)
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
            rows = torch.tensor(staying, device=self.decoder.device)
            self.decoder, self.beams = self.decoder.keep(rows), self.beams.select(rows)
        return found
