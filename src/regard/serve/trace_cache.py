"""LRU caches of traces, of arrays computed from them, and of corpora, safe for many threads.

A trace in use is not evicted: where all that fit are in use, a new one is refused. Arrays computed from traces
(thumbnails, statistics, the matrix of a head) have a bound of their own.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np
from torch import Tensor

from regard.see.corpus import CorpusSentence, CorpusStatistics
from regard.see.corpus_tally import corpus_statistics
from regard.see.head_views import alignment_error_rates, stage_row_chunks, stage_rows
from regard.see.sites import AttentionSite, GateSite, HeadStatistics
from regard.see.trace import Trace
from regard.serve.encoding import Floats, RequestError, bin_starts, max_pool
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import ProgressBar

MAX_TRACES, MAX_TRACE_BYTES = 1024, 2**31
KEEP_SECONDS = 10.0  # a trace that was used since then is in use
MAX_ARRAY_BYTES = 2**28  # of the computed arrays
ENTRY_BYTES = 1024  # of a cached entry besides its numbers: its key and the objects around small arrays
LABEL_BYTES = 100  # of a token's label and its other attributes
MAX_MATRIX_CELLS = 2**24  # cells of a matrix that is computed as a whole
THUMBNAIL = 48


class ArrayCache:
    """LRU cache of arrays by key, bounded in bytes."""

    def __init__(self, max_bytes: int = MAX_ARRAY_BYTES):
        self.max_bytes, self.nbytes = max_bytes, 0
        self.entries: OrderedDict[Hashable, Any] = OrderedDict()
        self.lock = Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self.lock:
            if key in self.entries:
                self.entries.move_to_end(key)
                return self.entries[key]
        value = make()  # outside the lock: others need not wait
        with self.lock:
            if key not in self.entries:
                self.entries[key], self.nbytes = value, self.nbytes + entry_nbytes(value)
            while len(self.entries) > 1 and self.nbytes > self.max_bytes:
                self.nbytes -= entry_nbytes(self.entries.popitem(last=False)[1])
        return value


def entry_nbytes(value: Any) -> int:
    return ENTRY_BYTES + total_nbytes(value)


def total_nbytes(value: Any) -> int:
    """Of an array, or of all arrays of a tuple or of an object's attributes."""
    if isinstance(value, (np.ndarray, Tensor)):
        return value.nbytes
    return sum(map(total_nbytes, value if isinstance(value, tuple) else vars(value).values()))


@dataclass(frozen=True, eq=False)
class CachedTrace:
    """A trace with its id, and arrays computed from it on demand."""

    id: str
    model: str
    trace: Trace
    text: str  # as requested; of an image its name, never its path
    folder: Path | None = None
    checkpoint: int | None = None
    arrays: ArrayCache = field(default_factory=ArrayCache)
    lock: Lock = field(default_factory=Lock)

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays, roughly: views of one array count twice."""
        of_sites = (x for site in self.sites.values() for x in (site.q, site.k, site.v, site.output))
        made_from = (site.projections.x for site in self.sites.values() if site.projections is not None)
        labels = sum(len(axis.labels) for axis in self.trace.axes.values())
        letters = 4 * (len(self.text) + len(self.trace.output_text))
        return total_nbytes((self.trace.predictions.logits, *of_sites, *made_from)) + LABEL_BYTES * labels + letters

    def site(self, name: str) -> AttentionSite:
        found = self.trace.sites.get(name)
        if isinstance(found, GateSite):
            raise RequestError(f"{name} is a gate and has no heads to show; {found.note}", 404)
        if found is None:
            raise RequestError(f"there is no layer {name!r:.80}; there are {', '.join(self.sites) or 'none'}", 404)
        return found

    def gate(self, name: str) -> GateSite:
        if isinstance(found := self.trace.sites.get(name), GateSite):
            return found
        there = [name for name, site in self.trace.sites.items() if isinstance(site, GateSite)]
        raise RequestError(f"there is no gate {name!r:.80}; there are {', '.join(there) or 'none'}", 404)

    def head(self, name: str, head: int) -> AttentionSite:
        """The layer, if it has that head."""
        site = self.site(name)
        if not 0 <= head < site.heads:
            raise RequestError(f"{name} has no head {head}; they are counted from 0 to {site.heads - 1}", 404)
        return site

    def labels(self, axis: str, count: int) -> tuple[str, ...]:
        found = self.trace.axes.get(axis)
        if found is not None and len(found.labels) == count:
            return found.labels
        return (axis,) if count == 1 else tuple(f"{axis} {n}" for n in range(count))

    def overview(self, name: str, size: int = THUMBNAIL) -> tuple[HeadStatistics, Tensor]:
        """The statistics of every head and a thumbnail of each, its larger side at most `size`."""
        site = self.site(name)
        with self.lock:  # many small kernels: two threads at once take longer than one after the other
            return self.arrays.get((self.id, name, size), lambda: site.overview(*thumbnail_shape(site.shape, size)))

    @property
    def sites(self) -> dict[str, AttentionSite]:
        """The layers that have heads."""
        return {name: site for name, site in self.trace.sites.items() if isinstance(site, AttentionSite)}

    def statistics(self) -> dict[str, Any]:
        found = {}
        for name in self.sites:
            seen, _ = self.overview(name)
            parts = {"entropy": seen.entropy, "distance": seen.distance, "sink": seen.sink, "largest": seen.largest}
            found[name] = {part: numbers.tolist() for part, numbers in parts.items()}
            if self.sites[name].signed:  # no shares of a whole
                found[name] |= dict.fromkeys(("entropy", "distance", "sink"), [None] * len(seen.sink))
            found[name]["aer"] = alignment_error_rates(self.trace, name)
        return found


class TraceCache:
    """LRU cache of traces by id, and of arrays computed from them."""

    def __init__(
        self, *, max_traces: int = MAX_TRACES, max_bytes: int = MAX_TRACE_BYTES, keep_seconds: float = KEEP_SECONDS
    ):
        self.max_traces, self.max_bytes, self.keep_seconds = max_traces, max_bytes, keep_seconds
        self.entries: OrderedDict[str, CachedTrace] = OrderedDict()
        self.last_used: dict[str, float] = {}  # monotonic time
        self.nbytes: dict[str, int] = {}
        self.ids_by_key: dict[Hashable, str] = {}
        self.arrays = ArrayCache()
        self.lock = Lock()

    def __getitem__(self, number: str) -> CachedTrace:
        with self.lock:
            if number not in self.entries:
                raise RequestError("this trace was evicted; ask again", 404)
            return self.touch(number)

    def get_or_create(self, key: Hashable, make: Callable[[str], CachedTrace]) -> CachedTrace:
        """The cached trace of an equal request, or a new one; `make` receives its id."""
        with self.lock:
            if (known := self.ids_by_key.get(key)) in self.entries and known is not None:
                return self.touch(known)
            self.evict(1)
            if len(self.entries) > 1 and (
                len(self.entries) >= self.max_traces or sum(self.nbytes.values()) > self.max_bytes
            ):
                raise RequestError(
                    f"{len(self.entries)} traces are in use and the cache is full; ask again in a moment", 429
                )
        cached = make(secrets.token_hex(8))  # outside the lock: others need not wait for a model
        with self.lock:
            self.entries[cached.id], self.ids_by_key[key] = cached, cached.id
            self.nbytes[cached.id] = cached.nbytes
            self.touch(cached.id)
            self.evict(0)
        return cached

    def touch(self, number: str) -> CachedTrace:
        self.last_used[number] = monotonic()
        self.entries.move_to_end(number)
        return self.entries[number]

    def evict(self, more: int) -> None:
        """Evicts least recently used traces until `more` fit; none that is in use."""
        now = monotonic()
        while len(self.entries) > 1 and (
            len(self.entries) + more > self.max_traces or sum(self.nbytes.values()) > self.max_bytes
        ):
            oldest = next(iter(self.entries))
            if now - self.last_used[oldest] < self.keep_seconds:
                break
            del self.entries[oldest], self.last_used[oldest], self.nbytes[oldest]
        self.ids_by_key = {key: number for key, number in self.ids_by_key.items() if number in self.entries}

    # --- the matrix of a head ---

    def matrix(self, cached: CachedTrace, name: str, head: int, stage: str) -> Floats | None:
        """The whole matrix, if it is small enough to be cached."""
        site, key = cached.head(name, head), (cached.id, name, head, stage)
        if site.shape[0] * site.shape[1] > MAX_MATRIX_CELLS:
            return None
        return self.arrays.get(key, lambda: stage_rows(site, head, stage, range(site.shape[0])))

    def window(self, cached: CachedTrace, name: str, head: int, stage: str, queries: range, keys: range) -> Floats:
        """A window of the matrix."""
        whole, across = self.matrix(cached, name, head, stage), slice(keys.start, keys.stop)
        if whole is not None:
            return whole[queries.start : queries.stop, across]
        found = stage_row_chunks(cached.head(name, head), head, stage, queries)
        return np.concatenate([part[:, across] for _, part in found])

    def pooled_window(
        self, cached: CachedTrace, name: str, head: int, stage: str, queries: range, keys: range, size: tuple[int, int]
    ) -> tuple[Floats, float, float]:
        """A window, max-pooled to at most `size`; and the range of its finite values."""
        whole, across = self.matrix(cached, name, head, stage), slice(keys.start, keys.stop)
        if whole is not None:
            part = whole[queries.start : queries.stop, across]
            return max_pool(part, *size, signed=stage == "weights" and cached.site(name).signed), *finite_range(part)
        site, rows = cached.head(name, head), min(size[0], len(queries))
        if stage == "weights":
            seen = site.max_pool(head, *size, queries=queries, keys=keys).cpu().numpy()
            return seen, *finite_range(seen)
        pooled = np.full((rows, len(bin_starts(len(keys), size[1]))), -np.inf, np.float32)
        low, high = np.inf, -np.inf
        for some, part in stage_row_chunks(site, head, stage, queries):
            part = part[:, across]
            least, most = finite_range(part)
            low, high = min(low, least), max(high, most)
            down = (np.asarray(some) - queries.start) * rows // len(queries)
            np.maximum.at(pooled, down, max_pool(part, len(part), size[1]))
        return pooled, low, high


def thumbnail_shape(shape: tuple[int, int], size: int) -> tuple[int, int]:
    """Rows and columns of a thumbnail whose larger side is at most `size`."""
    rows, columns = (max(1, round(count * min(1, size / max(shape)))) for count in shape)
    return min(rows, shape[0]), min(columns, shape[1])


def finite_range(values: Floats) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


# --- corpora ---


MAX_CORPORA = 4  # kept


@dataclass(eq=False)
class CorpusEntry:
    """Sentences for one model, and what was found of them."""

    model: str
    checkpoint: int | None
    sentences: list[CorpusSentence]
    name: str
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    found: CorpusStatistics | None = None
    lock: Lock = field(default_factory=Lock)

    def statistics(self, task_model: PretrainedModel, progress: ProgressBar) -> CorpusStatistics:
        with self.lock:
            if self.found is None:
                self.found = corpus_statistics(task_model, self.sentences, progress=progress)
            return self.found


class CorpusStore:
    """The last corpora by their ids."""

    def __init__(self):
        self.entries: OrderedDict[str, CorpusEntry] = OrderedDict()
        self.lock = Lock()

    def __getitem__(self, number: str) -> CorpusEntry:
        with self.lock:
            if number not in self.entries:
                raise RequestError("this corpus was forgotten; choose its sentences anew", 404)
            self.entries.move_to_end(number)
            return self.entries[number]

    def put(self, entry: CorpusEntry) -> CorpusEntry:
        with self.lock:
            self.entries[entry.id] = entry
            while len(self.entries) > MAX_CORPORA:
                self.entries.popitem(last=False)
        return entry
