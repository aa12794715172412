"""Numbers in; the bytes that travel to the page out: shades of √weight, exact float32, and JSON without NaN.

A shade is round(255·√weight): a linear byte would lose up to 63 % of a row's mass. Every number that the page prints
comes as float32 instead.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
OCTETS = "application/octet-stream"


class Refused(ValueError):
    """What cannot be answered, and the status that says so; the message is one sentence with the remedy."""

    def __init__(self, sentence: str, status: int = 400):
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """What goes out: bytes, at once or as they are found, what they are, and headers."""

    body: bytes | Iterator[bytes]
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


def as_json(value: Any) -> Answer:
    return Answer(encoded(value))


def encoded(value: Any) -> bytes:
    """ASCII alone, so that half a surrogate pair in a token stays what it is; what is no number is null."""
    return json.dumps(finite(value), allow_nan=False, separators=(",", ":")).encode("ascii")


def finite(value: Any) -> Any:
    """The same without NaN and infinities, which JSON cannot write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, (list, tuple)) else value


def as_floats(values: Floats) -> Answer:
    """Little-endian float32, row after row."""
    return Answer(np.ascontiguousarray(values, "<f4").tobytes(), OCTETS, {"X-Shape": shape_of(values)})


def as_shades(weights: Floats) -> Answer:
    return Answer(shades(weights).tobytes(), OCTETS, {"X-Shape": shape_of(weights)})


def as_thumbnails(shapes: Sequence[tuple[int, ...]], found: Iterator[Floats]) -> Answer:
    """Array after array, each sent when it is found; their shapes are known before."""
    headers = {"X-Shape": ";".join(",".join(map(str, shape)) for shape in shapes)}
    return Answer((thumbnail(one).tobytes() for one in found), OCTETS, headers)


def as_spread(values: Floats, low: float, high: float) -> Answer:
    headers = {"X-Shape": shape_of(values), "X-Range": f"{low!r},{high!r}"}
    return Answer(spread(values, low, high).tobytes(), OCTETS, headers)


def shades(weights: Floats) -> NDArray[np.uint8]:
    return np.rint(255 * np.sqrt(np.clip(np.nan_to_num(weights), 0.0, 1.0))).astype(np.uint8)


def thumbnail(weights: Floats) -> NDArray[np.uint8]:
    """As `shades`, but 0 only where hidden (-∞)."""
    return np.where(np.isneginf(weights), 0, np.maximum(shades(weights), 1)).astype(np.uint8)


def spread(values: Floats, low: float, high: float) -> NDArray[np.uint8]:
    """0 where hidden (-∞), else from 1 at `low` to 255 at `high`."""
    share = (np.nan_to_num(values, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    found = 1 + np.rint(254 * np.clip(share, 0.0, 1.0))
    return np.where(np.isneginf(values), 0, found).astype(np.uint8)


def coarse(values: Floats, rows: int, columns: int) -> Floats:
    """Never more than so many rows and columns; each cell the largest of what falls into it."""
    down, across = (starts(count, most) for count, most in zip(values.shape, (rows, columns), strict=True))
    return np.maximum.reduceat(np.maximum.reduceat(values, down, axis=0), across, axis=1)


def starts(count: int, most: int) -> NDArray[np.intp]:
    """Where each of at most so many cells begins, if place i falls into cell i·cells // count."""
    cells = min(count, most)
    return -(-np.arange(cells) * count // cells)


def shape_of(values: NDArray[Any]) -> str:
    return ",".join(map(str, values.shape))
