"""Continuous batching: a beam search on a CPU that sentences join and leave at any step, each of its own age.

It is the search of beam.py with a number of steps for each sentence. Keys and values stay in one store with spare rows:
a sentence that joins is written behind the others, and when one leaves the last takes its row, so nothing else moves.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.parts import field_values
from regard.decode.beam import (
    SLOTS,
    Backpointers,
    Beam,
    BeamState,
    advance_beams,
    backtrack,
    initial_beam_state,
)
from regard.decode.beam_decoder import move_rows, rows_that_stay, select_sentences
from regard.decode.kv_cache import BeamKVCache, TransformerBeams
from regard.decode.search import NOT_FINITE, Constraints, DecodingRequest, Hypothesis
from regard.models.transformer import Transformer


@dataclass(eq=False)
class ContinuousBeamSearch:
    """A running beam search. Each request is told apart by its `index`, and its hypotheses are those of a search alone.

    Args:
        model: one that `regard.decode.beam.objections` has none against.
        requests: of the sentences that are searched now, row by row.
        steps: how many steps each has made.
        store: the keys and values, with spare rows behind those of the requests; the decoder's cache is a part of it.
    """

    model: Transformer
    beam: Beam
    requests: list[DecodingRequest] = field(default_factory=list)
    steps: Int[Tensor, " b"] = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    decoder: TransformerBeams | None = None
    beams: BeamState | None = None
    store: BeamKVCache | None = None

    def add(self, requests: Sequence[DecodingRequest]) -> None:
        """New sentences, encoded together; they make their first step with the next step of the others."""
        steps = max(request.max_length(self.beam.max_length) for request in requests)
        steps = steps if self.beams is None else max(steps, len(self.beams.penalties))
        slots = SLOTS * self.beam.size if self.store is None else 0  # those of the store
        with torch.inference_mode():
            sources = [request.source for request in requests]
            new = TransformerBeams.of(self.model, sources, beams=self.beam.size, slots=slots, steps=steps)
            cache = replace(new.cache, at=new.cache.at.repeat(len(requests), 1))
            device = new.device
            beams = initial_beam_state(self.beam, requests, Constraints(), new.vocabulary, device, steps)
            beams = replace(beams, forced=forced_tokens(requests, steps, device))
            if self.decoder is None or self.beams is None or self.store is None:
                self.store, self.beams, self.decoder = cache, beams, new
            else:
                self.store = write_rows(self.store, cache, len(self.requests))
                self.beams = join_states(self.beams, beams)
                self.decoder = replace(self.decoder, embedding_positions=new.embedding_positions)
            self.requests = [*self.requests, *requests]
            self.steps = torch.cat((self.steps, self.steps.new_zeros(len(requests))))
            self.select_cache()

    def step(self) -> dict[int, list[Hypothesis]]:
        """All sentences one token on; the hypotheses of those that are finished, which leave at once."""
        assert self.decoder is not None
        assert self.beams is not None
        with torch.inference_mode():
            self.ensure_slots()
            forcing = bool((self.beams.forced.gather(0, self.steps[None]) >= 0).any())
            live = self.decoder.live(self.beams.totals > -torch.inf)
            hidden = self.decoder.step(self.beams.tokens, self.beams.parents, live)
            advance_beams(self.beams, self.decoder, hidden, self.steps, forcing=forcing, live=live)
            self.steps = self.steps + 1
            if self.beams.nonfinite:
                raise ValueError(NOT_FINITE)
            done = (self.beams.finished_step >= 0).tolist()
            if not any(done):
                return {}
            going = [row for row, over in enumerate(done) if over]
            requests, steps = [self.requests[row] for row in going], int(self.steps[going].max())
            found = backtrack(self.beams, requests, going, steps)
            self.keep(rows_that_stay(done))
            return found

    def remove(self, indices: Collection[int]) -> None:
        """These requests leave without a result."""
        with torch.inference_mode():
            self.keep(rows_that_stay([request.index in indices for request in self.requests]))

    # --- rows ---

    def keep(self, rows: Sequence[int]) -> None:
        """These sentences alone, in this order."""
        assert self.beams is not None
        assert self.store is not None
        self.requests = [self.requests[row] for row in rows]
        if not rows:
            self.decoder = self.beams = self.store = None
            self.steps = self.steps[:0]
            return
        index, store = torch.tensor(rows), self.store
        stores = (part for pair in (*store.sources, *store.past) for part in pair)
        move_rows((*stores, store.source_mask, store.seen, store.at), index)
        self.steps, self.beams = self.steps[index], select_sentences(self.beams, index)
        self.select_cache()

    def select_cache(self) -> None:
        """The part of the store that the sentences use, as the decoder's cache."""
        assert self.decoder is not None
        assert self.store is not None
        store, b, s = self.store, len(self.requests), 1 + max(len(request.source) for request in self.requests)
        self.decoder.cache = BeamKVCache(
            tuple((k[:b, :, :s], v[:b, :, :s]) for k, v in store.sources),
            store.source_mask[:b, ..., :s],
            tuple((k[:b], v[:b]) for k, v in store.past),
            store.seen[:b],
            store.at[:b],
        )

    def ensure_slots(self) -> None:
        """Room for one more token of every beam."""
        assert self.decoder is not None
        assert self.store is not None
        seen = self.decoder.cache.seen
        if self.decoder.used + self.beam.size > self.store.slots and (
            int(seen.any(1).sum(-1).max()) + self.beam.size > self.store.slots
        ):
            self.store = self.store.wider()
            self.select_cache()


def forced_tokens(requests: Sequence[DecodingRequest], steps: int, device: torch.device) -> Int[Tensor, "t b"]:
    """The forced tokens, -1 where none is: of others that join some may be forced."""
    rows = [[*request.prefix, *[-1] * (steps - len(request.prefix))] for request in requests]
    return torch.tensor(rows, dtype=torch.long, device=device).T


def write_rows(store: BeamKVCache, new: BeamKVCache, first: int) -> BeamKVCache:
    """New sentences behind the first ones of a store, which grows if it has too few rows or columns."""
    rows, s = first + len(new.seen), new.source_mask.shape[-1]
    if rows > len(store.seen) or s > store.source_mask.shape[-1]:
        more = max(rows, 2 * len(store.seen)) - len(store.seen) if rows > len(store.seen) else 0
        store = grow_store(store, more, max(0, s - store.source_mask.shape[-1]))
    for (keys, values), (k, v) in zip(store.sources, new.sources, strict=True):
        keys[first:rows, :, :s], values[first:rows, :, :s] = k, v
    store.source_mask[first:rows] = -torch.inf
    store.source_mask[first:rows, ..., :s] = new.source_mask
    store.seen[first:rows], store.at[first:rows] = False, 0
    return store


def grow_store(store: BeamKVCache, rows: int, columns: int) -> BeamKVCache:
    """With so many more rows, and columns of sources."""
    below, beside = (0, 0, 0, 0, 0, 0, 0, rows), (0, 0, 0, columns, 0, 0, 0, rows)
    return BeamKVCache(
        tuple((pad(k, beside), pad(v, beside)) for k, v in store.sources),
        pad(store.source_mask, (0, columns, 0, 0, 0, 0, 0, rows), value=-torch.inf),
        tuple((pad(k, below), pad(v, below)) for k, v in store.past),
        pad(store.seen, (*below[:4], 0, rows)),
        pad(store.at, (0, 0, 0, rows)),
    )


def join_states(old: BeamState, new: BeamState) -> BeamState:
    """The beams of both; the history is as long as the longer one's."""
    missing = len(new.penalties) - len(old.penalties)
    assert missing >= 0, "a new state is made for as many steps as any sentence may take"
    history = (
        torch.cat((pad(a, (0, 0, 0, 0, 0, missing)), b), 1)
        for a, b in zip(field_values(old.backpointers), field_values(new.backpointers), strict=True)
    )
    forced = torch.cat((pad(old.forced, (0, 0, 0, missing), value=-1), new.forced), 1)
    by_sentence = {part.name: torch.cat((getattr(old, part.name), getattr(new, part.name))) for part in fields(old)[:7]}
    return replace(new, **by_sentence, forced=forced, backpointers=Backpointers(*history))
