"""Explanations over HTTP: what takes a while, in a thread of its own, its progress and result as events.

    GET /api/traces/{id}/explain?method=heads&row=1      event: progress {"done": 3, "total": 24, "what": "heads"}
                                                         event: result   {"kind": "heads", "effects": {...}, ...}
    POST /api/corpora {"model": "run", "count": 1000}                    {"id": ..., "sentences": 1000}
    POST /api/corpora {"model": "run", "name": "test.tsv", "content": …}
    GET  /api/corpora/{id}/statistics                                    event: progress …, event: result …
    GET  /api/corpora/{id}/neighbours?layer=encoder.1&state=7            the states most alike

A method of `regard.see.methods` explains one trace, and statistics a corpus: many sentences of one model.
Whoever closes the stream stops the method at its next item.
"""

import logging
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path, PurePath
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Event, Thread
from time import monotonic
from typing import Any, TypeVar

from torch import Tensor

from regard.see.corpus import (
    CorpusSentence,
    held_out_sentences,
    read_corpus,
    serialize_neighbours,
    serialize_statistics,
)
from regard.see.methods import (
    Explanation,
    HeadEffects,
    LogitContributions,
    LogitLens,
    NextTokens,
    PatchEffects,
    PredictionTarget,
    ResidualStream,
    StreamPart,
    TokenMatrices,
    TokenScores,
    explain,
    patch_activations,
)
from regard.see.methods.layers import find_blocks, queries_of_block
from regard.see.trace import Trace
from regard.serve.encoding import ApiResponse, RequestError, json_response
from regard.serve.generation import server_sent_event
from regard.serve.handlers import ApiRequest, int_field, text_field
from regard.serve.trace_cache import CorpusEntry
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import ProgressBar

MAX_SECONDS = 600.0  # of one explanation
POLL_SECONDS = 0.25  # how often a stream looks whether somebody still listens
MAX_RUNNING = 2
MAX_SENTENCES, USUAL_SENTENCES = 10_000, 1000
MAX_CORPUS_CHARACTERS = 8 * 2**20
LENS_OPTIONS = 5  # tokens of a cell of the logit lens
# all pairs of tokens, or a run of the model for each token: longer texts would take minutes and gigabytes
MAX_TOKENS = {"flow": 24, "value-zeroing": 128, "value-norms": 1024, "attention-gradient": 1024, "rollout": 2048}
PARTS = ("residual", "attention", "head")

T = TypeVar("T")
RUNNING = BoundedSemaphore(MAX_RUNNING)


class ClientDisconnect(Exception):
    """Nobody listens any more."""


@dataclass(frozen=True, eq=False)
class ExplanationJob:
    """A method that runs in a thread of its own, and what it has said so far."""

    compute: Callable[[ProgressBar], dict[str, Any]]
    events: SimpleQueue[bytes] = field(default_factory=SimpleQueue)
    stopped: Event = field(default_factory=Event)
    done: Event = field(default_factory=Event)

    def progress(self, items: Iterable[T], what: str, total: int | None = None, /) -> Iterator[T]:
        """Counts the items, says so at most ten times a second, and stops where nobody listens."""
        items = list(items)
        last = monotonic() + MAX_SECONDS
        sent = 0.0
        for n, item in enumerate(items):
            if self.stopped.is_set():
                raise ClientDisconnect
            if (now := monotonic()) > last:
                raise RequestError(f"it takes longer than {MAX_SECONDS:.0f} s; send a shorter text", 413)
            if now - sent > 0.1:
                self.events.put(server_sent_event("progress", {"done": n, "total": len(items), "what": what}))
                sent = now
            yield item

    def run(self) -> None:
        try:
            self.events.put(server_sent_event("result", self.compute(self.progress)))
        except ClientDisconnect:
            pass
        except ValueError as error:
            self.events.put(server_sent_event("error", {"error": " ".join(str(error).split())}))
        except Exception as error:  # any error must reach the page
            logging.getLogger("regard").exception("while explaining")
            sentence = f"internal error ({type(error).__name__}); see the server log"
            self.events.put(server_sent_event("error", {"error": sentence}))
        finally:
            RUNNING.release()
            self.done.set()

    def stream(self) -> Generator[bytes]:
        if not RUNNING.acquire(timeout=POLL_SECONDS):  # an event: a page cannot read the status of a stream
            busy = f"{MAX_RUNNING} explanations are under way; stop one, or ask again in a moment"
            yield server_sent_event("error", {"error": busy})
            return
        Thread(target=self.run, name="regard explanation", daemon=True).start()
        try:
            while not (self.done.is_set() and self.events.empty()):
                try:
                    yield self.events.get(timeout=POLL_SECONDS)
                except Empty:
                    yield b": still under way\n\n"
        finally:
            self.stopped.set()


def explanation(request: ApiRequest) -> ApiResponse:
    """One method on one trace, as events."""
    trace, method = request.cached.trace, text_field(request.query, "method")
    row = int_field(request.query, "row", -1, 2**31)
    row = -1 if row is None else row

    def compute(progress: ProgressBar) -> dict[str, Any]:
        if method == "patching":
            if not (other := text_field(request.query, "other")):
                raise RequestError("patching compares two traces; give the id of the other one")
            part = text_field(request.query, "part") or PARTS[0]
            if part not in PARTS:
                raise ValueError(f"a patch is of {', '.join(PARTS)}, not {part!r:.40}")
            patches = patch_activations(trace, request.state.traces[other].trace, row, part=part, progress=progress)  # type: ignore[arg-type]
            return serialize_patches(trace, patches, part)
        refuse_long(trace, method)
        return serialize_explanation(trace, explain(trace, method, row, progress))

    return ApiResponse(ExplanationJob(compute).stream(), "text/event-stream")


def refuse_long(trace: Trace, method: str) -> None:
    tokens = max((max(trace.site(name).shape) for name in trace.attention_names), default=0)
    if tokens > (most := MAX_TOKENS.get(method, 16_384)):
        raise RequestError(f"{method} is for up to {most:,} tokens, and there are {tokens:,}; send a shorter text", 413)


# --- as JSON ---


def serialize_explanation(trace: Trace, found: Explanation) -> dict[str, Any]:
    match found:
        case HeadEffects():
            effects = {name: each.tolist() for name, each in found.effects.items()}
            about = {"effects": effects, "log_probability": found.log_probability}
            return {"kind": "heads", "target": serialize_target(found.target)} | about
        case TokenScores():
            scores = {axis: each.tolist() for axis, each in found.scores.items()}
            sums = {"total": found.total, "difference": found.difference}
            return {"kind": "tokens", "target": serialize_target(found.target), "scores": scores} | sums
        case TokenMatrices():
            some = {name: serialize_matrix(each, found.axes[name]) for name, each in found.matrices.items()}
            return {"kind": "matrices", "matrices": some}
        case LogitLens():
            rows, layers = range(len(trace.predictions.rows)), range(len(found.layers))
            best = [[found.best(layer, row, LENS_OPTIONS) for row in rows] for layer in layers]
            return {"kind": "lens", "layers": found.layers, "rows": trace.predictions.rows, "best": best}
        case LogitContributions():
            sums = {"total": found.total, "logit": found.logit}
            return {
                "kind": "contributions",
                "target": serialize_target(found.target),
                "parts": dict(found.parts),
            } | sums
        case NextTokens():
            return {"kind": "next", "row": found.row, "tokens": found.tokens, "kept": found.kept} | {
                "entropy": found.entropy
            }
        case ResidualStream():
            return serialize_stream(trace, found)


MAX_STREAM_NUMBERS = 200_000  # of all vectors of a residual stream together; of more the largest entries alone are sent
TOP_ENTRIES = 8


def serialize_stream(trace: Trace, found: ResidualStream) -> dict[str, Any]:
    """Every part with its norm, its largest entries and what it added; of an attention, each head's share too."""
    parts = {} if found.contributions is None else found.contributions.parts
    numbers = sum(len(part.vector) for some in found.stacks.values() for part in some)

    def serialize_part(part: StreamPart) -> dict[str, Any]:
        top = part.vector.abs().topk(min(TOP_ENTRIES, len(part.vector))).indices.tolist()
        heads = [value for name, value in parts.items() if name.startswith(f"{part.name}.head ")]
        return {
            "name": part.name,
            "kind": part.kind,
            "layer": part.layer,
            "norm": float(part.vector.norm()),
            "top": [[n, float(part.vector[n])] for n in top],
            "vector": part.vector.tolist() if numbers <= MAX_STREAM_NUMBERS else None,
            "width": len(part.vector),
            "added": part.added,
            "heads": heads,
            "sites": part.sites,
            "best": part.best,
        }

    stacks = []
    for name, some in found.stacks.items():
        axis, place = axis_of_layer(trace, some[0].layer), found.positions[name]
        labels = trace.axes[axis].labels if axis in trace.axes else ()
        label = labels[place] if place < len(labels) else str(place)
        where = {"name": name, "axis": axis, "position": place, "label": label}
        stacks.append(where | {"parts": [serialize_part(part) for part in some]})
    best = trace.predictions.best(found.target.row, LENS_OPTIONS)
    sums = {"total": sum(parts.values()) if parts else None, "biases": parts.get("biases"), "note": found.note}
    about = {"kind": "stream", "target": serialize_target(found.target), "logit": found.logit, "best": best}
    return about | sums | {"stacks": stacks}


def serialize_target(target: PredictionTarget) -> dict[str, Any]:
    return {"row": target.row, "option": target.option, "name": target.name}


def serialize_matrix(values: Tensor, axes: tuple[str, str]) -> dict[str, Any]:
    return {"queries": axes[0], "keys": axes[1], "values": values.float().cpu().tolist()}


def serialize_patches(trace: Trace, found: PatchEffects, part: str) -> dict[str, Any]:
    effects = [[None if isnan(one) else one for one in each] for each in found.effects.tolist()]
    axes = {"axes": ["head" if part == "head" else axis_of_layer(trace, name) for name in found.layers]}
    logits = {"clean": found.clean, "other": found.other}
    return {"kind": "patches", "layers": found.layers, "labels": found.labels, "effects": effects} | axes | logits


def axis_of_layer(trace: Trace, name: str) -> str:
    """The positions of an attention, or of a layer: those of the queries of its first attention."""
    if name in trace.sites:
        return trace.site(name).site_name.queries
    model = trace.request.task_model.model
    (block,) = (block for block in find_blocks(model) if block.name == name)
    return queries_of_block(model, block)


# --- corpora ---


def create_corpus(request: ApiRequest) -> ApiResponse:
    """The sentences of an uploaded file, or those that the run holds out."""
    step, count = int_field(request.body, "checkpoint", 0, 2**62), int_field(request.body, "count", 1, MAX_SENTENCES)
    entry = request.state.models.entry(text_field(request.body, "model") or None)
    task_model = request.state.models.model(entry.name, step)
    content = text_field(request.body, "content", MAX_CORPUS_CHARACTERS)
    name = text_field(request.body, "name") or "held-out sentences"
    sentences = read_content(task_model, name, content) if content else held_out_sentences(task_model)
    some = sentences[: count or USUAL_SENTENCES]
    made = request.state.corpora.put(CorpusEntry(entry.name, step, some, name))
    return json_response(describe_corpus(made) | {"left_out": len(sentences) - len(some)})


def describe_corpus(entry: CorpusEntry) -> dict[str, Any]:
    return {"id": entry.id, "model": entry.model, "name": entry.name, "sentences": len(entry.sentences)}


def read_content(task_model: PretrainedModel, name: str, content: str) -> list[CorpusSentence]:
    """Of a file that was uploaded: its name says what it holds, and where it was is nobody's business."""
    endings = [one for one in PurePath(name).suffixes if one in (".txt", ".tsv", ".jsonl", ".conllu")]
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        path = Path(folder) / f"sentences{endings[-1] if endings else '.txt'}"
        path.write_text(content, encoding="utf-8")
        try:
            return read_corpus(task_model, path)
        except ValueError as error:
            raise RequestError(str(error).replace(str(path), PurePath(name).name)) from None


def statistics(request: ApiRequest) -> ApiResponse:
    entry = request.state.corpora[request.path["id"]]

    def compute(progress: ProgressBar) -> dict[str, Any]:
        task_model = request.state.models.model(entry.model, entry.checkpoint)
        return describe_corpus(entry) | serialize_statistics(entry.statistics(task_model, progress))

    return ApiResponse(ExplanationJob(compute).stream(), "text/event-stream")


def neighbours(request: ApiRequest) -> ApiResponse:
    entry = request.state.corpora[request.path["id"]]
    if entry.found is None:
        raise RequestError("nothing is known of these sentences yet; ask for their statistics first", 409)
    layer, number = request.query.get("layer") or "", request.query_int("state", 0, 0, 2**31)
    found = serialize_neighbours(entry.found, layer, number, request.query_int("count", 10, 1, 100))
    return json_response({"layer": layer, "state": number, "neighbours": found})
