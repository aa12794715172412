"""Scenes that were made in; kept for whoever asks again, the least recently used going first, safe for many at once.

A scene that somebody looks at stays: where all that fit are in use, a new one is refused. What is worked out of scenes
(thumbnails, statistics, the matrix of a head) is kept within a bound of its own.
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

from regard.decode.agreement import aer
from regard.decode.alignment import hard
from regard.see.scene import Scene
from regard.see.summaries import Statistics
from regard.see.trace import Gate, Site
from regard.serve.stages import bands, rows_of
from regard.serve.wire import Floats, Refused, coarse, starts

MOST_SCENES, MOST_BYTES = 1024, 2**31
IN_USE = 10.0  # seconds since somebody asked about a scene
ARRAY_BYTES = 2**28  # of what was worked out
LABEL = 100  # bytes of a token's label, and of what else is known about it
WHOLE = 2**24  # cells of a matrix that is worked out as a whole
THUMBNAIL = 48


class ArrayCache:
    """Arrays by key, the least recently used going first when all together are too large."""

    def __init__(self, most_bytes: int = ARRAY_BYTES):
        self.most_bytes, self.bytes = most_bytes, 0
        self.kept: OrderedDict[Hashable, Any] = OrderedDict()
        self.lock = Lock()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self.lock:
            if key in self.kept:
                self.kept.move_to_end(key)
                return self.kept[key]
        made = make()  # outside the lock: others need not wait
        with self.lock:
            if key not in self.kept:
                self.kept[key], self.bytes = made, self.bytes + bytes_of(made)
            while len(self.kept) > 1 and self.bytes > self.most_bytes:
                self.bytes -= bytes_of(self.kept.popitem(last=False)[1])
        return made


def bytes_of(value: Any) -> int:
    """Of an array, or of all in a tuple or in a value."""
    if isinstance(value, (np.ndarray, Tensor)):
        return value.nbytes
    return sum(map(bytes_of, value if isinstance(value, tuple) else vars(value).values()))


@dataclass(frozen=True, eq=False)
class Showing:
    """A scene with what the page calls it, and what is worked out of it when first asked for."""

    id: str
    model: str
    scene: Scene
    text: str  # as it was asked for; of a picture its name, never its path
    folder: Path | None = None
    checkpoint: int | None = None
    found: ArrayCache = field(default_factory=ArrayCache)
    lock: Lock = field(default_factory=Lock)

    @property
    def bytes(self) -> int:
        """What its arrays hold, roughly: views of one array count twice."""
        of_sites = (x for site in self.sites.values() for x in (site.q, site.k, site.v, site.output))
        made_from = (site.origin.x for site in self.sites.values() if site.origin is not None)
        labels = sum(len(axis.labels) for axis in self.scene.axes.values())
        letters = 4 * (len(self.text) + len(self.scene.said))
        return bytes_of((self.scene.outcome.logits, *of_sites, *made_from)) + LABEL * labels + letters

    def site(self, name: str) -> Site:
        found = self.scene.sites.get(name)
        if isinstance(found, Gate):
            raise Refused(f"{name} is a gate and has no heads to show; {found.note}", 404)
        if found is None:
            raise Refused(f"there is no site {name!r:.80}; there are {', '.join(self.sites) or 'none'}", 404)
        return found

    def gate(self, name: str) -> Gate:
        if isinstance(found := self.scene.sites.get(name), Gate):
            return found
        there = [name for name, site in self.scene.sites.items() if isinstance(site, Gate)]
        raise Refused(f"there is no gate {name!r:.80}; there are {', '.join(there) or 'none'}", 404)

    def head(self, name: str, head: int) -> Site:
        """The site, if it has that head."""
        site = self.site(name)
        if not 0 <= head < site.heads:
            raise Refused(f"{name} has no head {head}; they are counted from 0 to {site.heads - 1}", 404)
        return site

    def labels(self, axis: str, count: int) -> tuple[str, ...]:
        found = self.scene.axes.get(axis)
        if found is not None and len(found.labels) == count:
            return found.labels
        return (axis,) if count == 1 else tuple(f"{axis} {n}" for n in range(count))

    def overview(self, name: str, size: int = THUMBNAIL) -> tuple[Statistics, Tensor]:
        """The statistics of every head and a thumbnail of each, its larger side at most `size`."""
        site = self.site(name)
        with self.lock:  # many small steps: two at once would take longer than one after the other
            return self.found.get((self.id, name, size), lambda: site.overview(*small(site.shape, size)))

    @property
    def sites(self) -> dict[str, Site]:
        """Those that have heads."""
        return {name: site for name, site in self.scene.sites.items() if isinstance(site, Site)}

    def statistics(self) -> dict[str, Any]:
        found = {}
        for name in self.sites:
            seen, _ = self.overview(name)
            parts = {"entropy": seen.entropy, "distance": seen.distance, "sink": seen.sink, "largest": seen.largest}
            found[name] = {part: numbers.tolist() for part, numbers in parts.items()} | {"aer": self.errors(name)}
        return found

    def errors(self, name: str) -> list[float] | None:
        """Of every head the alignment error rate, where the alignment is known."""
        scene, spot = self.scene, self.site(name).spot
        if not scene.gold or (spot.queries, spot.keys) != ("written", "source"):
            return None
        ends = len(scene.axes["written"].groups) - len(scene.axes["written"].words)
        heads = (scene.words(name, head) for head in range(self.site(name).heads))
        return [aer(scene.gold, frozenset(), hard(words[: len(words) - ends])) for words in heads]


class Scenes:
    """Showings by their ids, and what was worked out of them."""

    def __init__(self, *, most: int = MOST_SCENES, most_bytes: int = MOST_BYTES, in_use: float = IN_USE):
        self.most, self.most_bytes, self.in_use = most, most_bytes, in_use
        self.kept: OrderedDict[str, Showing] = OrderedDict()
        self.used: dict[str, float] = {}  # when each was asked for last
        self.bytes: dict[str, int] = {}
        self.asked: dict[Hashable, str] = {}
        self.arrays = ArrayCache()
        self.lock = Lock()

    def __getitem__(self, number: str) -> Showing:
        with self.lock:
            if number not in self.kept:
                raise Refused("this scene is forgotten, for many were asked for since; ask again", 404)
            return self.use(number)

    def made(self, key: Hashable, make: Callable[[str], Showing]) -> Showing:
        """The showing of what was asked before, or a new one; `make` is given its id."""
        with self.lock:
            if (known := self.asked.get(key)) in self.kept and known is not None:
                return self.use(known)
            self.forget(1)
            if len(self.kept) > 1 and (len(self.kept) >= self.most or sum(self.bytes.values()) > self.most_bytes):
                raise Refused(f"{len(self.kept)} scenes are in use, and no more fit; ask again in a moment", 429)
        showing = make(secrets.token_hex(8))  # outside the lock: others need not wait for a model
        with self.lock:
            self.kept[showing.id], self.asked[key], self.bytes[showing.id] = showing, showing.id, showing.bytes
            self.use(showing.id)
            self.forget(0)
        return showing

    def use(self, number: str) -> Showing:
        self.used[number] = monotonic()
        self.kept.move_to_end(number)
        return self.kept[number]

    def forget(self, more: int) -> None:
        """As many as must go for so many more to fit; but none that is in use."""
        now = monotonic()
        while len(self.kept) > 1 and (len(self.kept) + more > self.most or sum(self.bytes.values()) > self.most_bytes):
            oldest = next(iter(self.kept))
            if now - self.used[oldest] < self.in_use:
                break
            del self.kept[oldest], self.used[oldest], self.bytes[oldest]
        self.asked = {key: number for key, number in self.asked.items() if number in self.kept}

    # --- the matrix of a head ---

    def matrix(self, showing: Showing, name: str, head: int, stage: str) -> Floats | None:
        """All of it, if it is small enough to be kept."""
        site, key = showing.head(name, head), (showing.id, name, head, stage)
        if site.shape[0] * site.shape[1] > WHOLE:
            return None
        return self.arrays.get(key, lambda: rows_of(site, head, stage, range(site.shape[0])))

    def part(self, showing: Showing, name: str, head: int, stage: str, queries: range, keys: range) -> Floats:
        """A window of it."""
        whole, across = self.matrix(showing, name, head, stage), slice(keys.start, keys.stop)
        if whole is not None:
            return whole[queries.start : queries.stop, across]
        found = bands(showing.head(name, head), head, stage, queries)
        return np.concatenate([part[:, across] for _, part in found])

    def picture(
        self, showing: Showing, name: str, head: int, stage: str, queries: range, keys: range, size: tuple[int, int]
    ) -> tuple[Floats, float, float]:
        """A window at most so large, each cell the largest that falls into it; and the finite values' low and high."""
        whole, across = self.matrix(showing, name, head, stage), slice(keys.start, keys.stop)
        if whole is not None:
            part = whole[queries.start : queries.stop, across]
            return coarse(part, *size), *extremes(part)
        site, rows = showing.head(name, head), min(size[0], len(queries))
        if stage == "weights":
            seen = site.pooled(head, *size, queries=queries, keys=keys).cpu().numpy()
            return seen, *extremes(seen)
        picture = np.full((rows, len(starts(len(keys), size[1]))), -np.inf, np.float32)
        low, high = np.inf, -np.inf
        for some, part in bands(site, head, stage, queries):
            part = part[:, across]
            least, most = extremes(part)
            low, high = min(low, least), max(high, most)
            down = (np.asarray(some) - queries.start) * rows // len(queries)
            np.maximum.at(picture, down, coarse(part, len(part), size[1]))
        return picture, low, high


def small(shape: tuple[int, int], size: int) -> tuple[int, int]:
    """Rows and columns of a thumbnail whose larger side is at most `size`."""
    rows, columns = (max(1, round(count * min(1, size / max(shape)))) for count in shape)
    return min(rows, shape[0]), min(columns, shape[1])


def extremes(values: Floats) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
