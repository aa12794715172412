"""Request handlers: parse a request, compute its trace or read it from the cache, and answer in JSON or bytes.

They need no running server.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from einops import rearrange
from PIL import Image

from regard.attention.batch_patterns import Padding
from regard.attention.gate import NoGate
from regard.attention.pattern import And, Full, Pattern
from regard.data.files import find_lone_surrogate
from regard.decode.stepwise import Sampling
from regard.see.edits import KINDS, Edits
from regard.see.head_views import pair_terms, parse_stage, row_terms, score_text
from regard.see.plots.recipe_views import one_line_repr
from regard.see.sites import AttentionSite, GateSite
from regard.see.trace import MAX_TOKENS, Trace, TraceRequest, build_trace, select_initial
from regard.serve.encoding import (
    ApiResponse,
    RequestError,
    float32_response,
    json_response,
    scores_response,
    thumbnail_bytes,
    thumbnails_response,
    weights_response,
)
from regard.serve.model_store import MediaStore, ModelStore
from regard.serve.trace_cache import THUMBNAIL, CachedTrace, CorpusStore, TraceCache, thumbnail_shape
from regard.tasks.own_parts import files_of
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import Task, TaskInput, TokenAxis
from regard.tasks.registry import get_task

# --- parsing ---


MAX_CHARACTERS = 200_000
MAX_PAIR_TOKENS, MAX_SEARCH_TOKENS = 4096, 1024  # of a source with a target, and of one that is translated
MAX_NEW_TOKENS, DEFAULT_NEW_TOKENS, MAX_BEAM = 256, 12, 32
MAX_EDITS = 4096
FIELDS = ("model", "text", "question", "target", "beam", "more", "checkpoint", "edits", "sampling", "picture", "sound")
UPLOADS = {"picture": ("image", "image"), "sound": ("audio", "sound")}  # a file in base64: the kind of input, its name


@dataclass(frozen=True)
class TraceQuery:
    """A validated request: the model, and the trace to compute."""

    model: str
    request: TraceRequest
    text: str
    folder: Path | None
    checkpoint: int | None
    version: int

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for requests with the same trace."""
        one = self.request
        inputs = (self.text, one.question, one.target, one.beam, one.more, one.prefix, one.ids, one.sampling)
        return self.model, self.checkpoint, self.version, *inputs, one.edits


@dataclass(frozen=True, eq=False)
class AppState:
    """Models, cached traces, uploaded images and sounds, corpora."""

    models: ModelStore
    traces: TraceCache
    media: MediaStore
    corpora: CorpusStore = field(default_factory=CorpusStore)

    def trace_of_body(self, body: Mapping[str, Any]) -> CachedTrace:
        return self.get_trace(self.parse(body))

    def get_trace(self, query: TraceQuery) -> CachedTrace:
        def make(number: str) -> CachedTrace:
            trace, arrays = build_trace(query.request), self.traces.arrays
            return CachedTrace(number, query.model, trace, query.text, query.folder, query.checkpoint, arrays)

        return self.traces.get_or_create(query.key, make)

    def parse(self, body: Mapping[str, Any]) -> TraceQuery:
        if strange := [name for name in body if name not in FIELDS]:
            raise RequestError(f"{strange[0]!r:.80} is an unknown field; a trace request has {', '.join(FIELDS)}")
        step = int_field(body, "checkpoint", 0, 2**62)
        entry = self.models.entry(text_field(body, "model") or None)
        task_model, edits = self.models.model(entry.name, step), edits_field(body)
        task = get_task(task_model.settings.task)
        options = task.inputs.options
        text, question = text_field(body, "text"), text_field(body, "question")
        read = text
        kind = task.inputs.kind
        for name, (wanted, what) in UPLOADS.items():
            if body.get(name) and kind != wanted:
                raise RequestError(f"{entry.name} takes no {what}s; give {task.inputs.description}")
            if kind == wanted:
                given = text_field(body, name, most=2**26)
                text = self.media.put(kind, given) if given else text
                if not text.strip():
                    raise RequestError(f"no {what} given; send {task.inputs.description}, or name an example")
                read = str(self.media.path(kind, text))
        if not text.strip():
            raise RequestError("the text is empty; give at least one word")
        target, beam = text_field(body, "target") or None, int_field(body, "beam", 1, MAX_BEAM)
        if "question" in options and not question.strip():
            question = task.example_input(task_model).question or ""
        more = int_field(body, "more", 0, MAX_NEW_TOKENS)
        more = (DEFAULT_NEW_TOKENS if more is None else more) if "more" in options else more or 0
        refuse_long_text(task, task_model, TaskInput(text, question, target))
        request = TraceRequest(
            *(task_model, read, question or None, target, beam, more, MAX_TOKENS + MAX_NEW_TOKENS),
            edits=edits,
            sampling=sampling_field(body),
        )
        return TraceQuery(entry.name, request, text, entry.folder, step, entry.version)


def text_field(body: Mapping[str, Any], name: str, most: int = MAX_CHARACTERS) -> str:
    """A string of the body; "" if it is missing."""
    text = body.get(name)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise RequestError(f"{name} is a text, not {text!r:.80}")
    if len(text) > most:
        raise RequestError(f"{name} has {len(text):,} letters, and at most {most:,} are accepted; split it", 413)
    if "\0" in text:
        raise RequestError(f"{name} holds a NUL character, which no text does; remove it")
    if at := find_lone_surrogate(text):
        raise RequestError(f"character {at} of {name} is a lone surrogate; remove it")
    return text


def int_field(body: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    """An integer of the body or of a query string (there a string); None if it is missing."""
    value = body.get(name)
    if value is None or value == "":
        return None
    try:
        number = None if isinstance(value, (bool, float)) else int(value)
    except (ValueError, TypeError):
        number = None
    if number is None or not least <= number <= most:
        raise RequestError(f"{name} is a whole number from {least} to {most}, not {value!r:.40}")
    return number


def edits_field(body: Mapping[str, Any]) -> Edits:
    """As an object or, in a query string, as its JSON."""
    edits = body.get("edits") or {}
    if isinstance(edits, str):
        try:
            edits = json.loads(edits)
        except (ValueError, RecursionError):
            raise RequestError("edits are JSON, a table of lists; these cannot be read") from None
    if isinstance(edits, dict) and sum(len(some) for some in edits.values() if isinstance(some, list)) > MAX_EDITS:
        raise RequestError(f"there are more than {MAX_EDITS:,} edits; make fewer", 413)
    return Edits.from_dict(edits)


def sampling_field(body: Mapping[str, Any]) -> Sampling | None:
    """As an object or, in a query string, as its JSON: temperature, top_k, top_p and seed."""
    given = body.get("sampling") or None
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise RequestError('sampling is JSON, as in {"temperature": 0.8, "seed": 1}; this cannot be read') from None
    if given is None:
        return None
    kinds: dict[str, Any] = {"temperature": float | int, "top_k": int, "top_p": float | int, "seed": int}
    wrong = not isinstance(given, dict) or any(
        name not in kinds or isinstance(one, bool) or not isinstance(one, kinds[name]) for name, one in given.items()
    )
    if wrong:
        raise RequestError(f"sampling has numbers for {', '.join(kinds)}, and {given!r:.80} is something else")
    return Sampling(**given)


def refuse_long_text(task: Task, task_model: PretrainedModel, given: TaskInput) -> None:
    """Refuses texts that would take minutes: attention is quadratic in their length."""
    counts = [len(tokenizer.encode(text)) for tokenizer, text in task.texts(task_model, given)]
    most, why = MAX_TOKENS, "are attended to; split the text"
    if "target" in task.inputs.options:
        most, why = MAX_PAIR_TOKENS, "are accepted with a target; split it"
        if not given.target:
            most = MAX_SEARCH_TOKENS
            why = f"are accepted without a target; split it, or pass a target (then {MAX_PAIR_TOKENS:,})"
        elif counts[1] > MAX_PAIR_TOKENS:
            raise RequestError(f"the target is longer than {MAX_PAIR_TOKENS:,} tokens; split it", 413)
    if counts and counts[0] > most:
        raise RequestError(f"the text has {counts[0]:,} tokens, and at most {most:,} {why}", 413)


# --- request handlers ---


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
    return json_response(serialize_trace(request.state.trace_of_body(request.body)))


def get_trace(request: ApiRequest) -> ApiResponse:
    return json_response(serialize_trace(request.cached))


def statistics(request: ApiRequest) -> ApiResponse:
    return json_response(request.cached.statistics())


def image(request: ApiRequest) -> ApiResponse:
    if request.cached.trace.image is None:
        raise RequestError("this trace has no image; its input is a text", 404)
    return ApiResponse(image_png(request.cached.trace), "image/png")


def overview(request: ApiRequest) -> ApiResponse:
    """Thumbnails of every head, layer by layer as they are computed."""
    size, cached = request.query_int("size", THUMBNAIL, 4, 512), request.cached
    shapes = [(site.heads, *thumbnail_shape(site.shape, size)) for site in cached.sites.values()]
    sites = cached.sites.items()
    pictures = (thumbnail_bytes(cached.overview(name, size)[1].cpu().numpy(), signed=one.signed) for name, one in sites)
    return thumbnails_response(shapes, pictures)


# --- layers and heads ---


def thumbnails(request: ApiRequest) -> ApiResponse:
    _, images = request.cached.overview(request.site, request.query_int("size", THUMBNAIL, 4, 512))
    signed = request.cached.site(request.site).signed
    return thumbnails_response([tuple(images.shape)], iter([thumbnail_bytes(images.cpu().numpy(), signed=signed)]))


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
    if stage not in ("weights", "visible"):
        return scores_response(values, low, high)
    return weights_response(values, signed=stage == "weights" and request.cached.site(request.site).signed)


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
    return json_response(asdict(pair_terms(request.cached.site(request.site), head, query, key)))


def terms_of_row(request: ApiRequest) -> ApiResponse:
    """One row in full: every term of every score, and what adds up."""
    (n_q, _), head = request.cached.site(request.site).shape, request.head
    query = request.query_int("query", 0, 0, n_q - 1)
    return json_response(asdict(row_terms(request.cached.site(request.site), head, query)))


def check_output(request: ApiRequest) -> ApiResponse:
    head = request.head
    found = request.cached.site(request.site).check(head)
    return json_response({"difference": found.error, "tolerance": found.tolerance})


# --- traces as JSON ---


MAX_OPTIONS = 100  # labels of a classification
MAX_PART_LETTERS = 160  # letters of a recipe's part


def serialize_trace(cached: CachedTrace) -> dict[str, Any]:
    trace = cached.trace
    return {
        "id": cached.id,
        "model": cached.model,
        "task": trace.task,
        "options": list(trace.request.task.inputs.options),
        "text": cached.text,
        "question": trace.request.question or "",
        "checkpoint": cached.checkpoint,
        "output_text": trace.output_text,
        "output": serialize_output(trace),
        "axes": {name: list(axis.labels) for name, axis in trace.axes.items()},
        "words": {name: serialize_words(axis) for name, axis in trace.axes.items() if axis.words},
        "sites": [serialize_site(site) for site in trace.sites.values()],
        "opening": None if (first := select_initial(trace, cached.folder)) is None else vars(first),
        "rows": list(trace.predictions.rows),
        "steps": 0 if trace.output_ids is None else len(trace.predictions.rows),
        "given": trace.forced_steps,
        "unknown": list(trace.out_of_vocabulary),
        "swappable": trace.request.swappable_text.split(),
        "gold": sorted(map(list, trace.gold_alignment)) or None,
        "picture": serialize_image(cached),
        "edits": trace.request.edits.to_dict(),
        "sampling": serialize_sampling(trace.request.sampling),
        "python": python_code(cached),
    }


def serialize_sampling(sampling: Sampling | None) -> dict[str, Any] | None:
    names = ("temperature", "top_k", "top_p", "seed")
    return None if sampling is None else {name: vars(sampling)[name] for name in names}


def serialize_output(trace: Trace) -> dict[str, Any] | None:
    """The labels of one prediction, most probable first; of several (tags) the best of each; None for a text."""
    if trace.output_ids is not None:
        return None
    if len(trace.predictions.rows) == 1:
        best = trace.predictions.best(0, MAX_OPTIONS)
        return {"labels": [name for name, _ in best], "probabilities": [share for _, share in best], "rows": None}
    best = [trace.predictions.best(row, 1)[0] for row in range(len(trace.predictions.rows))]
    return {
        "labels": [name for name, _ in best],
        "probabilities": [share for _, share in best],
        "rows": list(trace.predictions.rows),
    }


def serialize_words(axis: TokenAxis) -> list[list[Any]]:
    """Each word with the positions of its first and last token."""
    positions: dict[int, list[int]] = {}
    for position, word in enumerate(axis.word_ids):
        if word is not None:
            positions.setdefault(word, []).append(position)
    return [[axis.words[word], min(some), max(some)] for word, some in sorted(positions.items())]


def serialize_site(site: AttentionSite | GateSite) -> dict[str, Any]:
    spot = site.site_name
    shared = {"name": site.name, "queries": spot.queries, "keys": spot.keys}
    if isinstance(site, GateSite):
        empty = dict.fromkeys(("score", "position", "pattern", "normaliser"), "")
        size = {"heads": 0, "n_q": 0, "n_k": site.weights[0].numel(), "shape": list(site.weights.shape[1:])}
        return {**shared, "kind": "gate", **size, **empty, "shown": False, "why": site.note}
    kind = "self" if spot.queries == spot.keys else "pool" if spot.queries == "pooled" else "cross"
    recipe = site.recipe
    parts = {
        "position": recipe.position,
        "pattern": without_padding(recipe.pattern),
        "normaliser": recipe.normaliser,
        **({} if isinstance(recipe.gate, NoGate) else {"gate": recipe.gate}),
    }
    return {
        **shared,
        "kind": kind,
        "heads": site.heads,
        "n_q": site.shape[0],
        "n_k": site.shape[1],
        "signed": site.signed,
        "score": score_text(recipe.score)[:MAX_PART_LETTERS],
        **{name: one_line_repr(part)[:MAX_PART_LETTERS] for name, part in parts.items()},
        "shown": True,
        "why": site.note,
    }


def without_padding(pattern: Pattern) -> Pattern:
    """A single sentence has no padding, so Padding is not shown."""
    if isinstance(pattern, And):
        left, right = without_padding(pattern.left), without_padding(pattern.right)
        return right if left == Full() else left if right == Full() else And(left, right)
    return Full() if isinstance(pattern, Padding) else pattern


def serialize_image(cached: CachedTrace) -> dict[str, Any] | None:
    pixels = cached.trace.image
    if pixels is None:
        return None
    axis = cached.trace.axes.get("patches")
    rows, columns = (axis.grid if axis else None) or (0, 0)
    size = {"height": pixels.shape[1], "width": pixels.shape[2]}
    return {"url": f"api/traces/{cached.id}/picture", "rows": rows, "columns": columns, **size}


def image_png(trace: Trace) -> bytes:
    """The image as the model receives it."""
    assert trace.image is not None
    pixels, written = trace.image.cpu(), BytesIO()
    array = pixels[0] if len(pixels) == 1 else rearrange(pixels, "c h w -> h w c")
    Image.fromarray(array.numpy()).save(written, "PNG")
    return written.getvalue()


# --- Python code ---


def python_code(cached: CachedTrace) -> str:
    """Code that computes the same trace with the public interface."""
    request = cached.trace.request
    folder = "run" if cached.folder is None else str(cached.folder)
    text = {"image": "image.png", "audio": "sound.wav"}.get(request.task.inputs.kind, request.text)
    options: dict[str, object] = {"question": request.question, "target": request.target, "beam": request.beam}
    words = [repr(folder), repr(text), *(f"{name}={value!r}" for name, value in options.items() if value is not None)]
    words += [f"more={request.more}"] if request.more else []
    drawn = serialize_sampling(request.sampling)
    words += [f"sampling=Sampling({', '.join(f'{name}={one}' for name, one in drawn.items())})"] if drawn else []
    own_parts = request.task_model.settings.own_parts
    words += [f"parts={[str(file) for file in files_of(own_parts)]}"] if own_parts else []
    how = ", ".join(words)
    lines = (
        [] if cached.checkpoint is None else [f"# checkpoint of step {cached.checkpoint}: load it with --checkpoint"]
    )
    lines += ["from regard.decode import Sampling"] if drawn else []
    lines += [] if not request.prefix and request.ids is None else ["# then branches: trace.branch(step, token)"]
    if not request.edits:
        return "\n".join(
            [
                *lines,
                "from regard.see import trace_model",
                "",
                f"trace = trace_model({how})",
                "print(trace.output_text)\n",
            ]
        )
    used = sorted({"Edits", "compare", "trace_model", *(KINDS[name].__name__ for name in request.edits.to_dict())})
    return "\n".join(
        [
            *lines,
            f"from regard.see import {', '.join(used)}",
            "",
            f"edits = Edits(\n{edits_code(request.edits)})",
            f"before = trace_model({how})",
            f"after = trace_model({how}, edits=edits)",
            "print(compare(before, after))\n",
        ]
    )


def edits_code(edits: Edits) -> str:
    return "".join(f"    {name}={getattr(edits, name)!r},\n" for name in KINDS if getattr(edits, name))
