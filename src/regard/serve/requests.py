"""Parses and validates requests into trace queries."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.files import find_lone_surrogate
from regard.see.trace.edits import Edits
from regard.see.trace.trace import MAX_TOKENS, TraceRequest, build_trace
from regard.serve.encoding import RequestError
from regard.serve.model_store import ImageStore, ModelStore
from regard.serve.trace_cache import CachedTrace, TraceCache
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import Task, TaskInput
from regard.tasks.registry import get_task

MAX_CHARACTERS = 200_000
MAX_PAIR_TOKENS, MAX_SEARCH_TOKENS = 4096, 1024  # of a source with a target, and of one that is translated
MAX_NEW_TOKENS, DEFAULT_NEW_TOKENS, MAX_BEAM = 256, 12, 32
MAX_EDITS = 4096
FIELDS = ("model", "text", "question", "target", "beam", "more", "checkpoint", "edits", "picture")


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
        inputs = (self.text, one.question, one.target, one.beam, one.more, one.prefix, one.ids)
        return self.model, self.checkpoint, self.version, *inputs, one.edits


@dataclass(frozen=True, eq=False)
class AppState:
    """Models, cached traces and uploaded images."""

    models: ModelStore
    traces: TraceCache
    images: ImageStore

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
        if task.inputs.kind == "image":
            given = body.get("picture")
            text = text if given in (None, "") else self.images.put(text_field(body, "picture", most=2**26))
            if not text.strip():
                raise RequestError("no image given; send a PNG or JPEG file, or name an example")
            read = str(self.images.path(text))
        elif body.get("picture"):
            raise RequestError(f"{entry.name} takes no images; give a text")
        if not text.strip():
            raise RequestError("the text is empty; give at least one word")
        target, beam = text_field(body, "target") or None, int_field(body, "beam", 1, MAX_BEAM)
        if "question" in options and not question.strip():
            question = task.example_input(task_model).question or ""
        more = int_field(body, "more", 0, MAX_NEW_TOKENS)
        more = (DEFAULT_NEW_TOKENS if more is None else more) if "more" in options else more or 0
        refuse_long_text(task, task_model, TaskInput(text, question, target))
        request = TraceRequest(
            task_model, read, question or None, target, beam, more, MAX_TOKENS + MAX_NEW_TOKENS, edits=edits
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
