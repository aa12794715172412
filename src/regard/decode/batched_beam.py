"""Batched beam search: what many sentences need beside one: a search per core, and the rows of those that are done."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.search import DecodingRequest, Hypothesis

if TYPE_CHECKING:
    from regard.decode.beam import BeamSearch, BeamState
    from regard.decode.kv_cache import BeamKVCache

SENTENCES_PER_CORE = 8  # from so many on, one search per core pays: waking threads takes 50 µs each time
LEAVING = 8  # once one sentence in so many is finished they are released: others move to their rows


def search_by_cores(
    search: Callable[[Sequence[DecodingRequest]], list[list[Hypothesis]]],
    requests: Sequence[DecodingRequest],
    cores: int,
) -> list[list[Hypothesis]]:
    """Every core searches its own part of the sentences, single-threaded; all parts have about as many tokens."""
    threads, turn, by_length = torch.get_num_threads(), 2 * cores, sorted(requests, key=lambda one: len(one.source))
    parts = [by_length[core::turn] + by_length[turn - 1 - core :: turn] for core in range(cores)]
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = list(pool.map(search, parts))
    finally:
        torch.set_num_threads(threads)  # the number is per thread, but the last one set is that of new threads
    by_index = dict(zip((one.index for part in parts for one in part), chain(*found), strict=True))
    return [by_index[request.index] for request in requests]


def keep_unfinished(search: "BeamSearch", done: Sequence[bool]) -> list[DecodingRequest]:
    """A running search goes on without the sentences that are done; the requests that are left."""
    staying = rows_that_stay(done)
    rows = torch.tensor(staying, device=search.decoder.device)
    search.decoder, search.beams = search.decoder.keep(rows), select_sentences(search.beams, rows)
    return [search.requests[row] for row in staying]


def rows_that_stay(done: Sequence[bool]) -> list[int]:
    """The rows of the sentences that are not done: the last take the rows of those that leave, so few are moved."""
    staying = [row for row, over in enumerate(done) if not over]
    last = [row for row in staying if row >= len(staying)]
    return [last.pop() if done[row] else row for row in range(len(staying))]


def select_sentences(beams: "BeamState", rows: Int[Tensor, " n"]) -> "BeamState":
    """The beams of these sentences alone."""
    by_sentence = {part.name: getattr(beams, part.name)[rows] for part in fields(beams)[:7]}
    history = {part.name: getattr(beams.backpointers, part.name)[:, rows] for part in fields(beams.backpointers)}
    backpointers = replace(beams.backpointers, **history)
    return replace(beams, **by_sentence, forced=beams.forced[:, rows], backpointers=backpointers)


def keep_sentences(cache: "BeamKVCache", rows: Int[Tensor, " n"]) -> "BeamKVCache":
    """The cache of these sentences alone, in this order. Keys and values are moved within the old one, which is
    lost."""
    move_rows((part for pair in (*cache.sources, *cache.past) for part in pair), rows)
    sources, past = (
        tuple((k[: len(rows)], v[: len(rows)]) for k, v in layers) for layers in (cache.sources, cache.past)
    )
    mask, seen, at = cache.source_mask[rows], cache.seen[rows], cache.at.clone()
    return replace(cache, sources=sources, source_mask=mask, past=past, seen=seen, at=at)


def move_rows(stores: Iterable[Tensor], rows: Int[Tensor, " n"]) -> None:
    """Row n of every store becomes the row `rows[n]`, in place; what keeps its place is not moved."""
    moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
    for store in stores:
        store[moved] = store[rows[moved]]
