"""Continuous batching: a beam search on a CPU that sentences join and leave at any step, each of its own age.

It is the search of beam.py with a number of steps for each sentence. What it keeps of a sentence is a row of one store
with spare rows: a sentence that joins is written behind the others, and when one leaves the last takes its row, so
nothing else moves, and nothing is made anew.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from jaxtyping import Bool, Float, Int
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
    begin_sentences,
    initial_beam_state,
)
from regard.decode.beam_decoder import rows_that_stay
from regard.decode.kv_cache import BeamKVCache, TransformerBeams, encode_batch
from regard.decode.search import NOT_FINITE, Constraints, DecodingRequest, Hypothesis
from regard.layers.transformer_layers import KeysValues
from regard.models.transformer import Transformer

ROWS, COLUMNS, STEPS = 4, 16, 32  # sentences, source tokens and steps that a store has room for at first
IDLE_BYTES = 2**26  # of a store that is kept while nobody searches


@dataclass(frozen=True, eq=False)
class SearchStore:
    """What is kept of the sentences of a search, row by row, and rows for others.

    Args:
        sources, past: the keys and the values of every layer in turn, as in BeamKVCache.
        steps: how many steps each has made.
        beams: their history and forced tokens lie sentence by sentence.
    """

    sources: Float[Tensor, "n rows g s d"]
    source_mask: Float[Tensor, "rows 1 1 s"]
    past: Float[Tensor, "n rows g c d"]
    seen: Bool[Tensor, "rows k c"]
    at: Int[Tensor, "rows 1"]
    steps: Int[Tensor, " rows"]
    beams: BeamState

    @staticmethod
    def of(sources: Sequence[KeysValues], beams: BeamState, slots: int) -> "SearchStore":
        """Without a row, for sentences such as these."""
        keys, k = sources[0][0], beams.tokens.shape[1]
        n, g, d = 2 * len(sources), keys.shape[1], keys.shape[3]
        whole = torch.zeros(0, 1, dtype=torch.long)
        beams = replace(beams, forced=torch.full((len(beams.penalties), len(beams.tokens)), -1))
        return SearchStore(
            keys.new_zeros(n, 0, g, 0, d),
            keys.new_zeros(0, 1, 1, 0),
            keys.new_zeros(n, 0, g, slots, d),
            torch.zeros(0, k, slots, dtype=torch.bool),
            whole,
            whole[:, 0],
            rows_of_beams(beams, slice(0, 0)),
        )

    @property
    def slots(self) -> int:
        return self.seen.shape[2]

    @property
    def nbytes(self) -> int:
        return self.sources.nbytes + self.past.nbytes

    def by_sentence(self, used: int) -> list[Tensor]:
        """All that a sentence has, by rows; of the slots those that are in use."""
        beams = self.beams
        own = (getattr(beams, part.name) for part in fields(beams)[:7])
        history = (part.transpose(0, 1) for part in (beams.forced, *field_values(beams.backpointers)))
        stores = self.sources.transpose(0, 1), self.past[:, :, :, :used].transpose(0, 1)
        return [*stores, self.source_mask, self.seen, self.at, self.steps, *own, *history]

    def grow(self, beams: BeamState, *, rows: int = 0, columns: int = 0, slots: int = 0) -> "SearchStore":
        """With so many more rows, source tokens and slots, for as many steps as there are in these beams."""
        own, steps = self.beams, len(beams.penalties) - len(self.beams.penalties)
        by_sentence = {
            part.name: pad(value := getattr(own, part.name), (*(value.dim() - 1) * (0, 0), 0, rows))
            for part in fields(own)[:7]
        }
        history = (
            pad(part.transpose(0, 1), (0, 0, 0, steps, 0, rows)).transpose(0, 1)
            for part in field_values(own.backpointers)
        )
        forced = pad(own.forced.T, (0, steps, 0, rows), value=-1).T
        longer = replace(beams, **by_sentence, forced=forced, backpointers=Backpointers(*history))
        return SearchStore(
            pad(self.sources, (0, 0, 0, columns, 0, 0, 0, rows)),
            pad(self.source_mask, (0, columns, 0, 0, 0, 0, 0, rows), value=-torch.inf),
            pad(self.past, (0, 0, 0, slots, 0, 0, 0, rows)),
            pad(self.seen, (0, slots, 0, 0, 0, rows)),
            pad(self.at, (0, 0, 0, rows)),
            pad(self.steps, (0, rows)),
            longer,
        )

    def write(self, first: int, sources: Sequence[KeysValues], mask: Float[Tensor, "b 1 1 s"]) -> BeamState:
        """New sentences behind the first ones; their beams, to begin with."""
        there, columns = slice(first, first + len(mask)), mask.shape[-1]
        copy_all(self.sources[:, there, :, :columns].unbind(0), [part for pair in sources for part in pair])
        self.source_mask[there, ..., columns:] = -torch.inf
        self.source_mask[there, ..., :columns] = mask
        self.seen[there], self.at[there], self.steps[there] = False, 0, 0
        return rows_of_beams(self.beams, there)

    def move(self, rows: Sequence[int], used: int) -> None:
        """Row n becomes the row `rows[n]`; what keeps its place is not moved."""
        for to, row in enumerate(rows):
            if to != row:
                parts = self.by_sentence(used)
                copy_all([part[to] for part in parts], [part[row] for part in parts])

    def cache(self, rows: int, columns: int) -> BeamKVCache:
        """Of the first rows."""
        sources, past = (
            tuple(zip(parts[::2], parts[1::2], strict=True))
            for parts in (self.sources[:, :rows, :, :columns].unbind(0), self.past[:, :rows].unbind(0))
        )
        mask = self.source_mask[:rows, ..., :columns]
        return BeamKVCache(sources, mask, past, self.seen[:rows], self.at[:rows])


def copy_all(stores: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
    """Each part into its store, in one call."""
    torch._foreach_copy_(stores, parts)  # type: ignore[reportPrivateImportUsage]


def rows_of_beams(beams: BeamState, rows: slice) -> BeamState:
    """The beams of these rows, in the same memory."""
    by_sentence = {part.name: getattr(beams, part.name)[rows] for part in fields(beams)[:7]}
    history = Backpointers(*[part[:, rows] for part in field_values(beams.backpointers)])
    return replace(beams, **by_sentence, forced=beams.forced[:, rows], backpointers=history)


@dataclass(eq=False)
class ContinuousBeamSearch:
    """A running beam search. Each request is told apart by its `index`, and its hypotheses are those of a search alone.

    Args:
        model: one that `regard.decode.beam.objections` has none against.
        requests: of the sentences that are searched now, row by row.
        store: what is kept of them; the decoder's cache and the beams are its first rows.
    """

    model: Transformer
    beam: Beam
    requests: list[DecodingRequest] = field(default_factory=list)
    decoder: TransformerBeams | None = None
    beams: BeamState | None = None
    store: SearchStore | None = None

    def add(self, requests: Sequence[DecodingRequest]) -> None:
        """New sentences, encoded together; they make their first step with the next step of the others."""
        with torch.inference_mode():
            sources, mask = encode_batch(self.model, [request.source for request in requests])
            new = self.reserve(requests, sources).write(len(self.requests), sources, mask)
            begin_sentences(new, requests, self.beam.max_length)
            self.requests = [*self.requests, *requests]
            self.select_rows()

    def step(self) -> dict[int, list[Hypothesis]]:
        """All sentences one token on; the hypotheses of those that are finished, which leave at once."""
        assert self.decoder is not None
        assert self.beams is not None
        assert self.store is not None
        with torch.inference_mode():
            self.ensure_slots()
            steps = self.store.steps[: len(self.requests)]
            prefixes = any(request.prefix for request in self.requests)
            forcing = prefixes and bool((self.beams.forced.gather(0, steps[None]) >= 0).any())
            live = self.decoder.live(self.beams.totals > -torch.inf)
            hidden = self.decoder.step(self.beams.tokens, self.beams.parents, live)
            advance_beams(self.beams, self.decoder, hidden, steps, forcing=forcing, live=live)
            steps.add_(1)
            if self.beams.nonfinite:
                raise ValueError(NOT_FINITE)
            done = [step >= 0 for step in self.beams.finished_step.tolist()]
            if not any(done):
                return {}
            over = [row for row, finished in enumerate(done) if finished]
            requests = [self.requests[row] for row in over]
            found = backtrack(self.beams, requests, over, int(steps[over].max()))
            self.keep(rows_that_stay(done))
            return found

    def remove(self, indices: Collection[int]) -> None:
        """These requests leave without a result."""
        with torch.inference_mode():
            self.keep(rows_that_stay([request.index in indices for request in self.requests]))

    # --- rows ---

    def keep(self, rows: Sequence[int]) -> None:
        """These sentences alone, in this order."""
        assert self.decoder is not None
        assert self.store is not None
        self.requests = [self.requests[row] for row in rows]
        if rows:
            self.store.move(rows, self.decoder.used)
            self.select_rows()
            return
        self.beams = None
        if self.store.nbytes > IDLE_BYTES:
            self.decoder = self.store = None

    def reserve(self, requests: Sequence[DecodingRequest], sources: Sequence[KeysValues]) -> SearchStore:
        """The store, with room for these sentences behind the others. It grows by more than they need."""
        rows, columns = len(self.requests) + len(requests), sources[0][0].shape[2]
        steps = max(request.max_length(self.beam.max_length) for request in requests)
        if self.store is None or self.decoder is None or steps > len(self.store.beams.penalties):
            bias, steps = self.model.embeddings.bias, steps + -steps % STEPS
            longer = initial_beam_state(self.beam, requests, Constraints(), len(bias), bias.device, steps)
            store = self.store or SearchStore.of(sources, longer, SLOTS * self.beam.size)
        else:
            store, longer = self.store, self.store.beams
        most, widest = len(store.seen), store.source_mask.shape[-1]
        if rows > most or columns > widest or longer is not store.beams:
            store = store.grow(
                longer,
                rows=max(rows, 2 * most, ROWS) - most if rows > most else 0,
                columns=columns + -columns % COLUMNS - widest if columns > widest else 0,
            )
            used = 0 if self.decoder is None else self.decoder.used
            cache = store.cache(rows, columns)
            self.decoder = TransformerBeams.over(self.model, cache, len(longer.penalties), used)
        self.store = store
        return store

    def select_rows(self) -> None:
        """The rows of the store that the sentences use, as the decoder's cache and the beams."""
        assert self.decoder is not None
        assert self.store is not None
        rows, longest = len(self.requests), max(len(request.source) for request in self.requests)
        self.decoder.cache = self.store.cache(rows, 1 + longest)
        self.beams = rows_of_beams(self.store.beams, slice(0, rows))

    def ensure_slots(self) -> None:
        """Room for one more token of every beam."""
        assert self.decoder is not None
        assert self.store is not None
        seen = self.decoder.cache.seen
        if self.decoder.used + self.beam.size > self.store.slots and (
            int(seen.any(1).sum(-1).max()) + self.beam.size > self.store.slots
        ):
            self.store = self.store.grow(self.store.beams, slots=self.store.slots)
            self.select_rows()
