"""Scenes that were made in; kept for whoever asks again, the least recently used going first, safe for many at once.

What is worked out of a scene (thumbnails, statistics, the matrix of a head) is kept beside it, within a bound.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
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

MOST_SCENES, MOST_BYTES = 64, 2**31
HEAD_BYTES = 2**28  # of matrices kept
WHOLE = 2**24  # cells of a matrix that is worked out as a whole
THUMBNAIL = 48


@dataclass(frozen=True, eq=False)
class Showing:
    """A scene with what the page calls it, and what is worked out of it when first asked for."""

    id: str
    model: str
    scene: Scene
    text: str  # as it was asked for; of a picture its name, never its path
    folder: Path | None = None
    checkpoint: int | None = None
    found: dict[Hashable, Any] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    @property
    def bytes(self) -> int:
        """What its arrays hold, roughly: views of one array count twice."""
        of_sites = (x for site in self.sites.values() for x in (site.q, site.k, site.v, site.output))
        made_from = (site.origin.x for site in self.sites.values() if site.origin is not None)
        arrays = [self.scene.outcome.logits, *of_sites, *made_from]
        return sum(x.numel() * x.element_size() for x in arrays)

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
            if ("overview", name, size) not in self.found:
                self.found["overview", name, size] = site.overview(*small(site.shape, size))
            return self.found["overview", name, size]

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
    """Showings by their ids, and matrices of their heads."""

    def __init__(self, *, most: int = MOST_SCENES, most_bytes: int = MOST_BYTES, head_bytes: int = HEAD_BYTES):
        self.most, self.most_bytes, self.head_bytes = most, most_bytes, head_bytes
        self.kept: OrderedDict[str, Showing] = OrderedDict()
        self.asked: dict[Hashable, str] = {}
        self.matrices: OrderedDict[Hashable, Floats] = OrderedDict()
        self.lock = Lock()

    def __getitem__(self, number: str) -> Showing:
        with self.lock:
            if number not in self.kept:
                raise Refused("this scene is forgotten, for many were asked for since; ask again", 404)
            self.kept.move_to_end(number)
            return self.kept[number]

    def made(self, key: Hashable, make: Callable[[str], Showing]) -> Showing:
        """The showing of what was asked before, or a new one; `make` is given its id."""
        with self.lock:
            if (known := self.asked.get(key)) in self.kept and known is not None:
                self.kept.move_to_end(known)
                return self.kept[known]
        showing = make(secrets.token_hex(8))  # outside the lock: others need not wait for a model
        with self.lock:
            self.kept[showing.id], self.asked[key] = showing, showing.id
            sizes = {number: one.bytes for number, one in self.kept.items()}
            while len(self.kept) > 1 and (len(self.kept) > self.most or sum(sizes.values()) > self.most_bytes):
                gone, _ = self.kept.popitem(last=False)
                del sizes[gone]
            self.asked = {key: number for key, number in self.asked.items() if number in self.kept}
        return showing

    # --- the matrix of a head ---

    def matrix(self, showing: Showing, name: str, head: int, stage: str) -> Floats | None:
        """All of it, if it is small enough to be kept."""
        site, key = showing.head(name, head), (showing.id, name, head, stage)
        if site.shape[0] * site.shape[1] > WHOLE:
            return None
        with self.lock:
            if key in self.matrices:
                self.matrices.move_to_end(key)
                return self.matrices[key]
        matrix = rows_of(site, head, stage, range(site.shape[0]))
        with self.lock:
            self.matrices[key] = matrix
            while len(self.matrices) > 1 and sum(one.nbytes for one in self.matrices.values()) > self.head_bytes:
                self.matrices.popitem(last=False)
        return matrix

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
