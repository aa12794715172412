"""JSON, float32 and uint8 encodings of arrays.

Weights for drawing are bytes round(255·√weight): a linear byte would lose up to 63 % of a row's mass. Those that may be
below 0 are 128 ± 127·√|weight|. Every number that the page prints is sent as float32. JSON has no NaN.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
OCTET_STREAM = "application/octet-stream"


class RequestError(ValueError):
    """A refused request: one sentence with the remedy, and the HTTP status."""

    def __init__(self, sentence: str, status: int = 400):
        super().__init__(sentence)
        self.status = status


Part = TypeVar("Part", covariant=True)


class ClosableIterator(Protocol[Part]):
    """As a generator is."""

    def __iter__(self) -> Iterator[Part]: ...

    def __next__(self) -> Part: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class ApiResponse:
    """A response: bytes or a stream of bytes, media type and headers."""

    body: bytes | ClosableIterator[bytes]
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


def json_response(value: Any) -> ApiResponse:
    return ApiResponse(encode_json(value))


def encode_json(value: Any) -> bytes:
    """ASCII only, so that lone surrogates in a token survive; NaN and infinities become null."""
    return json.dumps(replace_nonfinite(value), allow_nan=False, separators=(",", ":")).encode("ascii")


def replace_nonfinite(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: replace_nonfinite(one) for name, one in value.items()}
    return [replace_nonfinite(one) for one in value] if isinstance(value, (list, tuple)) else value


def float32_response(values: NDArray[np.floating]) -> ApiResponse:
    """Little-endian float32, row after row."""
    return ApiResponse(np.ascontiguousarray(values, "<f4").tobytes(), OCTET_STREAM, {"X-Shape": shape_header(values)})


def weights_response(weights: Floats, *, signed: bool = False) -> ApiResponse:
    coded = signed_sqrt_bytes(weights) if signed else sqrt_bytes(weights)
    return ApiResponse(coded.tobytes(), OCTET_STREAM, {"X-Shape": shape_header(weights)})


def thumbnails_response(shapes: Sequence[tuple[int, ...]], arrays: Iterator[NDArray[np.uint8]]) -> ApiResponse:
    """Arrays of `thumbnail_bytes` one after the other, each sent when it is computed; the header has all shapes."""
    headers = {"X-Shape": ";".join(",".join(map(str, shape)) for shape in shapes)}
    return ApiResponse((one.tobytes() for one in arrays), OCTET_STREAM, headers)


def scores_response(values: Floats, low: float, high: float) -> ApiResponse:
    headers = {"X-Shape": shape_header(values), "X-Range": f"{low!r},{high!r}"}
    return ApiResponse(scale_to_bytes(values, low, high).tobytes(), OCTET_STREAM, headers)


def sqrt_bytes(weights: Floats) -> NDArray[np.uint8]:
    return np.rint(255 * np.sqrt(np.clip(np.nan_to_num(weights), 0.0, 1.0))).astype(np.uint8)


def signed_sqrt_bytes(weights: Floats) -> NDArray[np.uint8]:
    """From 1 at -1 to 255 at 1, and 128 at 0."""
    within = np.clip(np.nan_to_num(weights), -1.0, 1.0)
    return (128 + np.rint(127 * np.sign(within) * np.sqrt(np.abs(within)))).astype(np.uint8)


def thumbnail_bytes(weights: Floats, *, signed: bool = False) -> NDArray[np.uint8]:
    """As `sqrt_bytes`, or the signed ones, but 0 only where masked (-∞)."""
    if signed:
        return np.where(np.isneginf(weights), 0, signed_sqrt_bytes(weights)).astype(np.uint8)
    return np.where(np.isneginf(weights), 0, np.maximum(sqrt_bytes(weights), 1)).astype(np.uint8)


def scale_to_bytes(values: Floats, low: float, high: float) -> NDArray[np.uint8]:
    """0 where masked (-∞), else from 1 at `low` to 255 at `high`."""
    share = (np.nan_to_num(values, posinf=high, neginf=low) - low) / ((high - low) or 1.0)
    found = 1 + np.rint(254 * np.clip(share, 0.0, 1.0))
    return np.where(np.isneginf(values), 0, found).astype(np.uint8)


def max_pool(values: Floats, rows: int, columns: int, *, signed: bool = False) -> Floats:
    """Max-pools to at most so many rows and columns; signed: what is furthest from 0."""
    if signed:
        least, most = -max_pool(-values, rows, columns), max_pool(values, rows, columns)
        return np.where(-least > most, least, most)
    for axis, most in enumerate((rows, columns)):
        values = max_pool_axis(values, bin_starts(values.shape[axis], most), axis)
    return values


def max_pool_axis(values: Floats, starts: NDArray[np.intp], axis: int) -> Floats:
    """np.maximum.reduceat, the k-th row of every bin at once: several times as fast."""
    ends = np.append(starts[1:], values.shape[axis])
    found = values.take(starts, axis)
    for k in range(1, (ends - starts).max(initial=0)):
        np.maximum(found, values.take(np.minimum(starts + k, ends - 1), axis), out=found)
    return found


def bin_starts(count: int, most: int) -> NDArray[np.intp]:
    """The start of each of at most so many bins, if index i falls into bin i·bins // count."""
    cells = min(count, most)
    return -(-np.arange(cells) * count // cells)


def shape_header(values: NDArray[Any]) -> str:
    return ",".join(map(str, values.shape))
