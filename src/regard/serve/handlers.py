"""Request handlers: models, traces, layers and heads. They need no running server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.serve import serializers
from regard.serve.encoding import (
    ApiResponse,
    RequestError,
    float32_response,
    json_response,
    scores_response,
    thumbnails_response,
    weights_response,
)
from regard.serve.head_views import explain_pair as pair_of
from regard.serve.head_views import parse_stage
from regard.serve.requests import AppState, int_field
from regard.serve.trace_cache import THUMBNAIL, CachedTrace, thumbnail_shape

MAX_CELLS = 65_536
MAX_MAP_SIDE = 4096  # rows or columns


@dataclass(frozen=True)
class ApiRequest:
    """Path parameters, query parameters and JSON body of a request."""

    state: AppState
    path: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cached(self) -> CachedTrace:
        return self.state.traces[self.path["id"]]

    @property
    def site(self) -> str:
        return self.path["site"]

    @property
    def head(self) -> int:
        """The head's number, checked against the layer."""
        number = self.path_int("head")
        self.cached.head(self.site, number)
        return number

    @property
    def stage(self) -> str:
        return parse_stage(self.query.get("stage") or "weights")

    def path_int(self, name: str) -> int:
        """An integer of the path."""
        text = self.path[name]
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise RequestError(f"there is no {name} {text!r:.40}; they are counted from 0", 404)
        return int(text)

    def query_int(self, name: str, usual: int, least: int, most: int) -> int:
        """An integer of the query string."""
        found = int_field(self.query, name, least, most)
        return usual if found is None else found

    def window(self) -> tuple[range, range]:
        """Queries and keys: all, or [top, bottom) and [left, right)."""
        n_q, n_k = self.cached.site(self.site).shape
        found = []
        for first, last, count in (("top", "bottom", n_q), ("left", "right", n_k)):
            start, stop = self.query_int(first, 0, 0, count), self.query_int(last, count, 0, count)
            if start >= stop:
                raise RequestError(f"{first}={start} and {last}={stop} leave nothing to show; there are {count}")
            found.append(range(start, stop))
        return found[0], found[1]


# --- models and traces ---


def list_models(request: ApiRequest) -> ApiResponse:
    return json_response({"models": request.state.models.describe_all()})


def list_checkpoints(request: ApiRequest) -> ApiResponse:
    return json_response(request.state.models.training_history(request.path["name"]))


def create_trace(request: ApiRequest) -> ApiResponse:
    return json_response(serializers.serialize_trace(request.state.trace_of_body(request.body)))


def get_trace(request: ApiRequest) -> ApiResponse:
    return json_response(serializers.serialize_trace(request.cached))


def statistics(request: ApiRequest) -> ApiResponse:
    return json_response(request.cached.statistics())


def image(request: ApiRequest) -> ApiResponse:
    if request.cached.trace.image is None:
        raise RequestError("this trace has no image; its input is a text", 404)
    return ApiResponse(serializers.image_png(request.cached.trace), "image/png")


def overview(request: ApiRequest) -> ApiResponse:
    """Thumbnails of every head, layer by layer as they are computed."""
    size, cached = request.query_int("size", THUMBNAIL, 4, 512), request.cached
    shapes = [(site.heads, *thumbnail_shape(site.shape, size)) for site in cached.sites.values()]
    return thumbnails_response(shapes, (cached.overview(name, size)[1].cpu().numpy() for name in cached.sites))


# --- layers and heads ---


def thumbnails(request: ApiRequest) -> ApiResponse:
    _, images = request.cached.overview(request.site, request.query_int("size", THUMBNAIL, 4, 512))
    return thumbnails_response([tuple(images.shape)], iter([images.cpu().numpy()]))


def gate(request: ApiRequest) -> ApiResponse:
    """The weights of a gate: channels × 1 × 1, 1 × rows × columns, or one per word."""
    return float32_response(request.cached.gate(request.site).weights[0].float().cpu().numpy())


def attention_map(request: ApiRequest) -> ApiResponse:
    head, stage, (queries, keys) = request.head, request.stage, request.window()
    size = (
        request.query_int("rows", MAX_MAP_SIDE, 1, MAX_MAP_SIDE),
        request.query_int("columns", MAX_MAP_SIDE, 1, MAX_MAP_SIDE),
    )
    values, low, high = request.state.traces.pooled_window(
        request.cached, request.site, head, stage, queries, keys, size
    )
    return weights_response(values) if stage in ("weights", "visible") else scores_response(values, low, high)


def cells(request: ApiRequest) -> ApiResponse:
    head, (queries, keys) = request.head, request.window()
    if len(queries) * len(keys) > MAX_CELLS:
        raise RequestError(f"{len(queries)} × {len(keys)} cells are more than {MAX_CELLS:,}; ask for a smaller window")
    return float32_response(
        request.state.traces.window(request.cached, request.site, head, request.stage, queries, keys)
    )


def row(request: ApiRequest) -> ApiResponse:
    return row_or_column(request, "query", 0)


def column(request: ApiRequest) -> ApiResponse:
    return row_or_column(request, "key", 1)


def row_or_column(request: ApiRequest, name: str, side: int) -> ApiResponse:
    """A whole row or column."""
    head, number, shape = request.head, request.path_int(name), request.cached.site(request.site).shape
    if number >= shape[side]:
        raise RequestError(f"{request.site} has no {name} {number}; they are counted from 0 to {shape[side] - 1}", 404)
    ranges = [range(shape[0]), range(shape[1])]
    ranges[side] = range(number, number + 1)
    found = request.state.traces.window(request.cached, request.site, head, request.stage, *ranges)
    return float32_response(found.reshape(-1))


def token_pair(request: ApiRequest) -> ApiResponse:
    (n_q, n_k), head = request.cached.site(request.site).shape, request.head
    query, key = request.query_int("query", 0, 0, n_q - 1), request.query_int("key", 0, 0, n_k - 1)
    return json_response(pair_of(request.cached.site(request.site), head, query, key))


def check_output(request: ApiRequest) -> ApiResponse:
    head = request.head
    found = request.cached.site(request.site).check(head)
    return json_response({"difference": found.error, "tolerance": found.tolerance})
