"""Corpora over HTTP: many sentences of one model, their statistics with progress as events, and neighbours of a state.

POST /api/corpora {"model": "run", "count": 1000}                    {"id": ..., "sentences": 1000}
POST /api/corpora {"model": "run", "name": "test.tsv", "content": …}
GET  /api/corpora/{id}/statistics                                    event: progress …, event: result …
GET  /api/corpora/{id}/neighbours?layer=encoder.1&state=7            the states most alike
"""

import tempfile
from pathlib import Path, PurePath
from typing import Any

from regard.see.corpus import (
    CorpusSentence,
    held_out_sentences,
    read_corpus,
    serialize_neighbours,
    serialize_statistics,
)
from regard.serve.encoding import ApiResponse, RequestError, json_response
from regard.serve.explanations import ExplanationJob
from regard.serve.handlers import ApiRequest, int_field, text_field
from regard.serve.trace_cache import CorpusEntry
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import ProgressBar

MAX_SENTENCES, USUAL_SENTENCES = 10_000, 1000
MAX_CORPUS_CHARACTERS = 8 * 2**20


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
