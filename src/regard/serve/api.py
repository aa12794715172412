"""HTTP API: every task of the models given, translation as LibreTranslate has it, completions as OpenAI has them.

The routes of a model's own verb (`POST /models/NAME/VERB`) are made from the signature of that method, so a new task
has one on the day it is written. Whatever computes is a job of the scheduler, which batches the jobs of all clients.
"""

import asyncio
import base64
import binascii
import gc
import logging
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from inspect import Parameter, signature
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs
from uuid import uuid4

import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.decode import quantize
from regard.decode.beam import Beam, search_objections
from regard.decode.quantize import prepare
from regard.decode.search import Constraints, DecodingRequest, Hypothesis, Ids
from regard.decode.stepwise import Greedy, Sampling
from regard.decode.text_generation import (
    ContinuousGeneration,
    GeneratedToken,
    TextRequest,
    stream_text,
    text_constraints,
)
from regard.decode.translation import EMPTY_TRANSLATION, Translation, detokenize_line, encode_texts, translate_all
from regard.interop.exporter import BatchSearch, load_exported
from regard.models.transformer import Transformer
from regard.see.plots.attention_maps import parse_head_of, view_trace
from regard.see.plots.draw import draw
from regard.see.sites import AttentionSite
from regard.see.trace import Trace, select_initial, trace_model
from regard.serve.encoding import RequestError, encode_json
from regard.serve.model_store import ModelStore, describe_model, readable_file
from regard.serve.scheduler import (
    CallBatch,
    GenerationBatch,
    GenerationJob,
    Job,
    Metrics,
    Scheduler,
    SearchJob,
    SearchPool,
)
from regard.serve.security import HOSTS, BodyBudget, HTTPMiddleware
from regard.tasks.language_modeling.task import GenerationOutput
from regard.tasks.protocol import Task
from regard.tasks.registry import MAX_SENTENCE_TOKENS, get_task
from regard.tasks.translation.task import translation_output

OPEN_PATHS = ("/health", "/ready", "/metrics")  # that need no key
BODY_KEY_PATHS = ("/translate", "/languages", "/detect")  # to which LibreTranslate's clients send it in the body
DISCARDED_BYTES = 64 * 2**20  # of a body that is too long: a client that still sends would not see the refusal
MAX_ATTENTION_TOKENS = 512  # of an input whose weights are sent as numbers
CHARACTERS_PER_TOKEN = 4  # at least about so many, where only the budget needs to know
VERSIONS = count()
LOGGER = logging.getLogger("regard.api")

Text = Annotated[str, Field(max_length=20_000)]


@dataclass(frozen=True)
class ApiLimits:
    """What clients may ask for.

    Args:
        timeout: seconds from a request's arrival to its answer.
        max_texts: of one request.
        max_beam: of a search.
        max_tokens: that one text is continued by.
        max_body: bytes of a request.
        max_waiting: sentences and texts that wait; more are refused with 429.
        batch_tokens: of a running batch: source tokens × beams.
        workers: threads that compute, one core each; 0 for as many as torch uses.
        processes: whether a translator's searches run in processes of their own, one for each worker, which share its
            weights (Linux).
    """

    timeout: float = 60.0
    max_texts: int = 128
    max_beam: int = 16
    max_tokens: int = 4096
    max_body: int = 4 * 2**20
    max_waiting: int = 256
    batch_tokens: int = 4096
    workers: int = 0
    processes: bool = False


# --- models ---


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model as it is served; loaded again, it is another one, and jobs of the old one end with the old one.

    Args:
        task_model: for traces, and for verbs that batch their inputs themselves.
        model: prepared for decoding, where it translates or generates.
        search: of sentences that came together; None where nothing is translated.
        pool: of searches that sentences may join at any step; None where they cannot.
    """

    name: str
    task: Task
    task_model: Any
    folder: Path | None
    model: Any
    search: BatchSearch | None
    pool: SearchPool | None
    version: int

    @staticmethod
    def of(
        name: str,
        task_model: Any,
        folder: Path | None,
        precision: str,
        exported: Path | None,
        pool_of: Callable[[Transformer], SearchPool],
    ) -> "ServedModel":
        task, model, search, pool = get_task(task_model.settings.task), None, None, None
        if task.batching == "generation" and exported is None:
            # a CPU gains little from another copy of the weights, unless it is a smaller one
            plain = precision == "float32" and task_model.model.embedding.weight.device.type == "cpu"
            model = task_model.model if plain else prepare(task_model.model, precision)
        elif task.batching != "search":
            if precision != "float32" or exported is not None:
                what = f"precision {precision}" if exported is None else f"{exported}, an exported model,"
                raise ValueError(f"{what} is for translation, and {name} is for the task {task.name!r}; leave it out")
        elif exported is not None:
            search = load_exported(exported, task_model, folder)
        else:
            model = prepare(task_model.model, precision)
            search = partial(search_batch, model, task_model.target.first_ids)
            if isinstance(model, Transformer) and model.prepared and model.embeddings.bias.device.type == "cpu":
                pool = pool_of(model)
        return ServedModel(name, task, task_model, folder, model, search, pool, next(VERSIONS))

    def card(self) -> dict[str, Any]:
        found = {
            "name": self.name,
            "task": self.task.name,
            "verb": self.task.verb,
            "what": describe_model(self.task_model),
        }
        if self.task.batching == "search":
            found |= {"source": self.task_model.settings.data.source, "target": self.task_model.settings.data.target}
        return found


def search_batch(model: Any, prefix: Ids, beam: Beam, sources: Sequence[Ids]) -> list[list[Hypothesis]]:
    return translate_all(model, sources, beam, prefixes=[prefix] * len(sources))


# --- the application's state ---


class Api:
    """What all requests share: models by name, the scheduler, limits, keys and metrics."""

    def __init__(
        self,
        store: ModelStore,
        *,
        limits: ApiLimits = ApiLimits(),
        keys: Sequence[str] = (),
        precision: str = "float32",
        exported: Path | None = None,
    ):
        self.store, self.limits, self.keys = store, limits, [key.encode() for key in keys]
        self.precision, self.exported, self.metrics = precision, exported, Metrics()
        self.scheduler = Scheduler(
            self.metrics,
            workers=limits.workers or torch.get_num_threads(),
            max_waiting=limits.max_waiting,
            max_tokens=limits.batch_tokens,
        )
        self.bodies, self.draining, self.reloading = BodyBudget(), False, asyncio.Lock()
        self.models = {name: self.load(name) for name in store.entries}

    def load(self, name: str) -> ServedModel:
        entry = self.store.entry(name)
        model = entry.current_model()
        task = get_task(model.settings.task)
        decodes = task.batching == "search" or (task.batching == "generation" and not quantize.objections(model.model))
        precision = self.precision if decodes or len(self.store.entries) == 1 else "float32"
        processes = len(self.scheduler.workers) if self.limits.processes else 0
        pool_of = partial(SearchPool, processes=processes, scheduler=self.scheduler)
        return ServedModel.of(name, model, entry.folder, precision, self.exported, pool_of)

    async def reload(self) -> list[str]:
        """Every model from its folder again; what was accepted before ends with the model it began with."""
        async with self.reloading:
            gc.collect()  # those of a reload just before
            try:
                found = {name: await asyncio.to_thread(self.load, name) for name in self.store.entries}
            except (ValueError, OSError) as error:
                self.metrics.reloads.labels("failed").inc()
                raise RequestError(f"the models are as they were: {error}", 409) from None
            self.models = found
            # the old ones, and their search processes, go with the last request that they answer
            asyncio.get_running_loop().call_later(self.limits.timeout, gc.collect)
            self.metrics.reloads.labels("done").inc()
            logging.getLogger("regard").info("reloaded", extra={"fields": {"models": [*found]}})
            return [*found]

    async def reload_logged(self) -> None:
        """The same where nobody waits for the answer."""
        try:
            await self.reload()
        except RequestError as error:
            logging.getLogger("regard").error("not reloaded: %s", error)

    def accepts(self, key: str | None) -> bool:
        """Compares with every key in constant time."""
        given = (key or "").encode("utf-8", "replace")
        return not self.keys or sum(secrets.compare_digest(given, known) for known in self.keys) > 0

    def model(self, name: str) -> ServedModel:
        if name not in self.models:
            raise RequestError(f"there is no model {name!r:.80}; there are {', '.join(self.models)}", 404)
        return self.models[name]

    # --- jobs ---

    def generation_job(self, served: ServedModel, given: GenerationJob, tokens: int) -> Job:
        """The job of a text, which joins the running batch of its model."""
        generator = served.task_model
        rules, context = text_constraints(generator.tokenizer), max(2, generator.context_length)
        texts = partial(ContinuousGeneration, served.model, rules, context)
        return self.job(("text", served.version), partial(GenerationBatch, texts, self.metrics), given, tokens)

    def job(self, key: Any, batch: Callable[[], Any], given: Any, tokens: int) -> Job:
        return Job(key, batch, given, tokens=tokens, deadline=monotonic() + self.limits.timeout)

    async def run(self, request: Request, jobs: Sequence[Job]) -> list[Any]:
        """The results; jobs of a client that goes away are cancelled."""
        if not jobs:
            return []
        self.scheduler.submit(jobs)
        watch, results = asyncio.ensure_future(disconnect(request)), asyncio.gather(*(job.future for job in jobs))
        results.add_done_callback(lambda one: one.cancelled() or one.exception())  # which nobody may read any more
        try:
            await asyncio.wait([watch, results], return_when=asyncio.FIRST_COMPLETED)
            if not results.done():
                self.metrics.cancelled.inc()
                raise RequestError("the client closed the connection", 499)
            return results.result()
        finally:
            watch.cancel()
            if any(not job.future.done() for job in jobs):
                self.scheduler.cancel(jobs)

    async def call(self, request: Request, name: str, work: Callable[[], Any], tokens: int = 1) -> Any:
        """Work that shares no batch, on a worker."""
        ((found,),) = await self.run(
            request, [self.job((name, object()), lambda: CallBatch(lambda _: [work()]), [None], tokens)]
        )
        return found

    def translation_jobs(self, served: ServedModel, texts: Sequence[str], beam: Beam) -> list[Job | None]:
        """One for each text; None where there is nothing to translate."""
        translator, search = served.task_model, served.search
        assert search is not None
        if not 1 <= beam.size <= self.limits.max_beam:
            raise RequestError(f"a beam of {beam.size}; this server searches with 1 to {self.limits.max_beam}")
        prefix, found = tuple(translator.target.first_ids), list[Job | None]()
        for source in map(tuple, encode_texts(translator.source, texts)):
            if len(source) > MAX_SENTENCE_TOKENS:
                raise RequestError(f"a sentence of {len(source):,} tokens; send at most {MAX_SENTENCE_TOKENS}", 413)
            if not source:
                found.append(None)
                continue
            if served.pool is None or search_objections(served.model, beam, [DecodingRequest(source)], Constraints()):
                batch, tokens = partial(CallBatch, partial(search, beam)), (len(source) + 1) * beam.size
                found.append(self.job((served.version, beam, "alone"), batch, [source], tokens))
            else:
                key, given = (served.version, beam, "joins"), SearchJob(source, prefix, beam)
                found.append(served.pool.job(key, given, monotonic() + self.limits.timeout))
        return found

    async def translate(
        self, request: Request, served: ServedModel, texts: Sequence[str], beam: Beam
    ) -> list[list[Translation]]:
        """The n-best list of each text."""
        translator = served.task_model
        jobs = self.translation_jobs(served, texts, beam)
        results = iter(await self.run(request, [job for job in jobs if job is not None]))
        found = []
        for job in jobs:
            if job is None:
                found.append([EMPTY_TRANSLATION])
                continue
            result = next(results)
            hypotheses = result if isinstance(result[0], Hypothesis) else result[0]
            found.append([Translation(detokenize_line(translator, one.ids), one) for one in hypotheses])
        return found

    def check_texts(self, texts: Sequence[str]) -> None:
        if len(texts) > self.limits.max_texts:
            raise RequestError(f"{len(texts)} texts in one request; send at most {self.limits.max_texts}", 413)


async def disconnect(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- the middleware: keys, limits, metrics and logs ---


class ApiMiddleware(HTTPMiddleware):
    """ASGI middleware around all routes: reads the body within its limits, asks for the key, measures and logs."""

    def __init__(self, app: ASGIApp, api: Api):
        super().__init__(app)
        self.api = api

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin, status, api, body = monotonic(), 500, self.api, bytearray()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = identity
                if api.draining:
                    headers["Connection"] = "close"
            await send(message)

        headers = Headers(scope=scope)
        identity = headers.get("x-request-id", "")[:64].strip() or uuid4().hex
        identity = identity if identity.isascii() and identity.isprintable() else uuid4().hex
        try:
            refusal = self.refusal(scope["path"], headers) or await self.read(scope["path"], receive, body)
            if refusal is not None:
                await refusal(scope, receive, answer)
                return
            if headers.get("content-type", "").lower().startswith("application/x-www-form-urlencoded"):
                body[:] = form_as_json(bytes(body))  # LibreTranslate's own clients send forms
                scope["headers"] = [
                    *(one for one in scope["headers"] if one[0] not in (b"content-type", b"content-length"))
                ]
                scope["headers"] += [(b"content-type", b"application/json")]
            await self.app(scope, replay(bytes(body), receive), answer)
        finally:
            api.bodies.remove(len(body))
            route = vars(scope.get("route") or object).get("path", "other")
            seconds = monotonic() - begin
            api.metrics.requests.labels(route, str(status)).inc()
            api.metrics.seconds.labels(route).observe(seconds)
            fields = {"id": identity, "method": scope["method"], "route": route, "status": status}
            LOGGER.info(
                "request", extra={"fields": {**fields, "milliseconds": round(1e3 * seconds, 1), "bytes": len(body)}}
            )

    def refusal(self, path: str, headers: Headers) -> Response | None:
        if path in OPEN_PATHS or path in BODY_KEY_PATHS or not self.api.keys:
            return None
        return None if self.api.accepts(header_key(headers)) else error_response(path, NO_KEY, 401)

    async def read(self, path: str, receive: Receive, body: bytearray) -> Response | None:
        """The whole body; a refusal if it is too long, or all bodies together are."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return Response(status_code=400)
            part, more = message.get("body", b""), message.get("more_body", False)
            if len(body) + len(part) > self.api.limits.max_body:
                await discard(receive, more=more)
                return error_response(path, f"more than {self.api.limits.max_body:,} bytes were sent; send less", 413)
            try:
                self.api.bodies.add(len(part))
            except RequestError as full:
                await discard(receive, more=more)
                return error_response(path, str(full), full.status)
            body += part
        return None


async def discard(receive: Receive, *, more: bool) -> None:
    """The rest of a body, as far as `DISCARDED_BYTES`."""
    count = 0
    while more and count < DISCARDED_BYTES:
        message = await receive()
        count += len(message.get("body", b""))
        more = message.get("more_body", False)


NO_KEY = "an API key is needed; send it as Authorization: Bearer KEY"


def header_key(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def form_as_json(body: bytes) -> bytes:
    """A field that occurs once is a string, one that occurs more often a list."""
    if body.lstrip()[:1] == b"{":  # curl sends JSON as a form if nobody names its type
        return body
    found = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=1000)
    return encode_json({name: values if len(values) > 1 else values[0] for name, values in found.items()})


def replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read already; then what the client does next."""
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return parts.pop() if parts else await receive()

    return again


def error_response(path: str, sentence: str, status: int, more: Mapping[str, str] | None = None) -> Response:
    """In the form that clients of these routes expect: OpenAI's an object, all others a sentence."""
    sentence = " ".join(sentence.split())
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": sentence, "type": kind, "param": None, "code": None} if path.startswith("/v1/") else sentence
    headers = {429: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status) or more
    return Response(encode_json({"error": error}), status, headers, media_type="application/json")


async def handle_error(request: Request, error: Exception) -> Response:
    path = request.scope["path"]
    match error:
        case RequestError():
            return error_response(path, str(error), error.status)
        case RequestValidationError():
            return error_response(path, validation_sentence(error.errors()), 400)
        case HTTPException():
            there = "GET /openapi.json lists what there is"
            said = {
                400: "the body cannot be read; send JSON in UTF-8",
                404: f"there is nothing at {path[:80]}; {there}",
                405: f"{request.method} is not for {path[:80]}; {there}",
            }
            sentence = said.get(error.status_code, str(error.detail))
            return error_response(path, sentence, error.status_code, error.headers)
        case ValueError():
            return error_response(path, str(error), 400)
    logging.getLogger("regard").error("error in %s", path, exc_info=error)
    return error_response(path, f"internal error ({type(error).__name__}); see the server log", 500)


def validation_sentence(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first thing that is wrong; of a field that may be of several types, what is wrong with the type it has."""
    field = errors[0]["loc"][1:2]
    same = [one for one in errors if one["loc"][1:2] == field]
    wrong = next((one for one in same if not one["type"].endswith("_type")), same[0])
    if wrong["type"] == "json_invalid":
        return "the body is not JSON; send an object, with Content-Type: application/json"
    if wrong["loc"] == ("body",):
        return "the body is not a JSON object; send one, with Content-Type: application/json"
    # pydantic names the types as well, as list[str]
    where = ".".join(str(one) for n, one in enumerate(wrong["loc"][1:]) if n == 0 or isinstance(one, int))
    return f"{where[:80] or 'the body'}: {wrong['msg']}"


def ok(value: Any) -> Response:
    return Response(encode_json(value), media_type="application/json")


class StrictBody(BaseModel):
    """A body with nothing else in it."""

    model_config = ConfigDict(extra="forbid")


class ErrorBody(BaseModel):
    """One sentence with the remedy; under /v1 an object with a `message`."""

    error: str | dict[str, Any]


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": what}
    for status, what in {
        400: "refused",
        401: "no key",
        404: "no such model",
        408: "past its deadline",
        409: "the model's files cannot be read",
        413: "too long",
        429: "the queue is full; see Retry-After",
        499: "the client has gone",
        500: "our mistake",
        503: "shutting down",
    }.items()
}


# --- every task's own verb ---


@dataclass(frozen=True)
class VerbCall:
    """How a verb is called over HTTP: its body, which of its arguments are files, and which is a list of inputs."""

    body: type[BaseModel]
    positional: tuple[str, ...]
    files: tuple[str, ...]
    many: bool

    @property
    def batched(self) -> bool:
        return self.many and len(self.positional) == 1

    @staticmethod
    def of(task: Task) -> "VerbCall":
        """From the signature: arguments by position are required unless they have a default, and files are those that
        may be a path; options keep their defaults. A verb of one list of inputs shares batches."""
        known: dict[str, Any] = {}
        positional, files, last_many = [], [], False
        for name, one in [*signature(getattr(task.task_model, task.verb)).parameters.items()][1:]:
            many = "Sequence" in str(one.annotation)
            default = ... if one.default is Parameter.empty else one.default
            if name == "precision":  # the server's own
                continue
            if one.kind is Parameter.KEYWORD_ONLY:
                known[name] = (one.annotation, default)
                continue
            positional.append(name)
            last_many = many
            if "Path" in str(one.annotation):
                files.append(name)
                known[name] = (str | Annotated[list[str], Field(max_length=1000)] if many else str, default)
            else:
                known[name] = (Text | Annotated[list[Text], Field(max_length=1000)] if many else Text, default)
        known["alignment"] = (bool, False)
        body = create_model(f"{task.name.title().replace('_', '')}Body", __base__=StrictBody, **known)
        return VerbCall(body, tuple(positional), tuple(files), last_many)


def add_models(app: FastAPI, api: Api) -> None:
    @app.get("/models")
    async def models() -> Response:
        """The models, their tasks and verbs."""
        return ok({"models": [served.card() for served in api.models.values()]})

    for name, served in api.models.items():
        if served.task.verb:
            add_verb(app, api, name, VerbCall.of(served.task), served.task.verb)
        add_views(app, api, name)


def add_verb(app: FastAPI, api: Api, name: str, how: VerbCall, verb: str) -> None:
    async def run(request: Request, body: Any) -> Response:
        served, given = api.model(name), dict(body)
        aligned = given.pop("alignment")
        async with AsyncExitStack() as stack:
            given = await asyncio.to_thread(write_files, stack, served.task.inputs.kind, how, given)
            inputs = [given.pop(one) for one in how.positional]
            if single := isinstance(inputs[-1], str):
                inputs[-1] = [inputs[-1]] if how.many else inputs[-1]
            outputs = await run_verb(api, request, served, how, inputs, given)
            if aligned:
                outputs = await api.call(request, name, lambda: [with_alignment(one) for one in outputs])
        found = [to_json(one) for one in outputs]
        return ok({"outputs": found[0] if single else found})

    run.__annotations__["body"] = how.body
    run.__doc__ = f"What `{verb}` of this model returns for these inputs."
    app.post(f"/models/{name}/{verb}", operation_id=f"{verb}_{name}")(run)


async def run_verb(
    api: Api, request: Request, served: ServedModel, how: VerbCall, inputs: list[Any], options: Mapping[str, Any]
) -> Sequence[Any]:
    texts = inputs[-1] if isinstance(inputs[-1], list) else [inputs[-1]]
    api.check_texts(texts)
    if served.task.batching == "search":
        beam = options["beam"]
        beam = Beam(beam, length_penalty=options["length_penalty"], n_best=options["n_best"])
        found = await api.translate(request, served, texts, beam)
        return [translation_output(served.task_model, *pair) for pair in zip(texts, found, strict=True)]
    if options.get("tokens", 0) > api.limits.max_tokens:
        raise RequestError(f"tokens = {options['tokens']}; this server generates at most {api.limits.max_tokens}")
    tokens = sum(1 + len(text) // CHARACTERS_PER_TOKEN for text in texts)
    if served.task.batching == "generation":
        return await generate_texts(api, request, served, texts, **options)
    verb = getattr(served.task_model, served.task.verb)
    if not how.batched:
        found = await api.call(request, served.name, lambda: verb(*inputs, **options), tokens)
        return found if isinstance(found, list) else [found]
    key = (served.version, *sorted(options.items()))
    batch = partial(CallBatch, lambda some: verb(some, **options))
    [found] = await api.run(request, [api.job(key, batch, texts, tokens)])
    return found


async def generate_texts(
    api: Api, request: Request, served: ServedModel, prompts: Sequence[str], *, tokens: int, **options: Any
) -> list[GenerationOutput]:
    """As the model's own verb, token by token: other clients are served in between."""
    generator, jobs = served.task_model, list[Job]()
    search = Greedy() if options["temperature"] == 0 else Sampling(**options)
    for prompt in prompts:
        opening, ids = generator.encode_prompt(prompt)
        asked = TextRequest((*opening, *ids), search, tokens)
        parts = partial(text_parts, generator, asked.prompt)
        jobs.append(api.generation_job(served, GenerationJob(asked, parts), len(ids) + tokens))
    await api.run(request, jobs)
    found = []
    for prompt, job in zip(prompts, jobs, strict=True):
        parts = [part async for part in job.stream()]
        text = "".join(part.text for part in parts)
        score = sum(token.log_probability for part in parts for token in part.tokens)
        found.append(GenerationOutput(text=prompt + text, score=score, prompt=prompt, generated=text))
    return found


@dataclass(frozen=True)
class TextPart:
    """What a step adds to a generated text: the text itself, its tokens, and why it ends, if it does."""

    text: str
    tokens: tuple[GeneratedToken, ...]
    finish: Literal["stop", "length"] | None = None


def text_parts(generator: Any, prompt: Sequence[int], tokens: Iterator[GeneratedToken]) -> Iterator[TextPart]:
    """The continuation of a prompt: a part for every token, and what is left at the end."""
    found, sent = list[GeneratedToken](), 0

    def ids() -> Iterator[int]:
        for token in tokens:
            found.append(token)
            yield token.id

    for text in stream_text(generator.tokenizer, ids(), prompt):
        yield TextPart(text, tuple(found[sent:]))
        sent = len(found)


def write_files(stack: AsyncExitStack, kind: str, how: VerbCall, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments that are files come as their contents: an image in base64, a table as text."""
    if not how.files:
        return given
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="regard-")))
    for name in how.files:
        many = given[name] if isinstance(given[name], list) else [given[name]]
        paths = [str(write_file(folder / f"{name}-{n}", kind, one)) for n, one in enumerate(many)]
        given[name] = paths if isinstance(given[name], list) else paths[0]
    return given


def write_file(path: Path, kind: str, content: str) -> Path:
    if kind != "image":
        (path := path.with_suffix(".tsv")).write_text(content, encoding="utf-8", newline="")
        return path
    try:
        held = base64.b64decode(content.partition(",")[2] if content.startswith("data:") else content, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError("the image is not base64; send a PNG or JPEG file") from None
    (path := path.with_suffix(".png")).write_bytes(readable_file("image", held))
    return path


def with_alignment(output: Any) -> dict[str, Any]:
    """The output and its word alignment: one more forward pass."""
    if "alignment" not in dir(type(output)):
        raise RequestError("an output of this model has no alignment; leave it out")
    found = output.alignment
    links = sorted([source, target] for source, target in found.links)
    words = {"source": found.source, "target": found.target, "links": links, "weights": found.weights.tolist()}
    return {**to_json(output), "alignment": words}


def to_json(value: Any) -> Any:
    """Outputs as JSON has them; what an output refers to but does not print is left out."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if is_dataclass(value):
        return {one.name: to_json(getattr(value, one.name)) for one in fields(value) if one.repr}
    if isinstance(value, Mapping):
        return {str(name): to_json(one) for name, one in value.items()}
    return [to_json(one) for one in value] if isinstance(value, list | tuple) else value


# --- attention of any model ---


class ViewBody(StrictBody):
    """An input, and which head of which layer is wanted; without one, that at which the page opens."""

    text: Text
    question: Text | None = None
    target: Text | None = None
    more: Annotated[int, Field(ge=0, le=64)] = 0
    head: Annotated[str, Field(max_length=200, examples=["decoder.0.cross:1"])] | None = None


def add_views(app: FastAPI, api: Api, name: str) -> None:
    async def trace(request: Request, body: ViewBody, view: Callable[[Trace, Path | None], Any]) -> Any:
        served = api.model(name)
        kind = served.task.inputs.kind

        def work() -> Any:
            with tempfile.TemporaryDirectory(prefix="regard-") as folder:
                given = str(write_file(Path(folder) / "image", kind, body.text)) if kind == "image" else body.text
                inputs = {"question": body.question, "target": body.target, "more": body.more}
                seen = trace_model(served.task_model, given, longest=MAX_ATTENTION_TOKENS, **inputs)
                return view(seen, served.folder)

        return await api.call(request, name, work)

    @app.post(f"/models/{name}/attention", operation_id=f"attention_{name}")
    async def attention(request: Request, body: ViewBody) -> Response:
        """The output of this model for an input, the attention sites, and the weights of one head."""
        return ok(await trace(request, body, lambda seen, folder: describe_attention(seen, folder, body.head)))

    @app.post(f"/models/{name}/picture", operation_id=f"picture_{name}", response_class=PngResponse)
    async def picture(request: Request, body: ViewBody) -> Response:
        """The same as a picture."""
        png = await trace(request, body, lambda seen, folder: draw(view_trace(seen, folder, body.head)[1])._repr_png_())
        return PngResponse(png)


class PngResponse(Response):
    """A PNG picture."""

    media_type = "image/png"


def describe_attention(trace: Trace, folder: Path | None, head: str | None) -> dict[str, Any]:
    sites = {name: site for name, site in trace.sites.items() if isinstance(site, AttentionSite)}
    found: dict[str, Any] = {
        "output": trace.output_text,
        "axes": {name: axis.labels for name, axis in trace.axes.items()},
        "sites": {
            name: {"queries": site.site_name.queries, "keys": site.site_name.keys, "heads": site.heads}
            for name, site in sites.items()
        },
    }
    if head is not None:
        name, number = parse_head_of(head, {name: site.heads for name, site in sites.items()})
    elif (first := select_initial(trace, folder)) is not None:
        name, number = first.site, first.head
    else:
        return found
    return {**found, "head": f"{name}:{number}", "weights": sites[name].head(number).weights.tolist()}


# --- the application ---


def create_api(
    api: Api, *, loopback: bool = True, origins: Sequence[str] = (), page: Starlette | None = None
) -> FastAPI:
    """The application; run it with uvicorn.

    Args:
        loopback: whether only this machine reaches it: another host name is then refused (DNS rebinding).
        origins: whose pages may use it (CORS).
        page: the microscope, where it shares the process; it answers whatever the API does not.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        api.scheduler.start()
        async with AsyncExitStack() as stack:
            if page is not None:
                await stack.enter_async_context(page.router.lifespan_context(page))
            yield
        await api.scheduler.close()

    errors = (RequestError, ValueError, RequestValidationError, HTTPException, Exception)
    app = FastAPI(
        title="Regard",
        description="Models of sequences and of images over HTTP.",
        docs_url=None,  # these pages ask other servers for their scripts
        redoc_url=None,
        lifespan=lifespan,
        responses=ERRORS,
        exception_handlers=dict.fromkeys(errors, handle_error),
        swagger_ui_oauth2_redirect_url=None,
    )

    @app.head("/health", include_in_schema=False)  # what monitors ask
    @app.get("/health")
    async def health() -> Response:
        """The process lives."""
        return ok({"status": "ok"})

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready")
    async def ready() -> Response:
        """Whether new requests should be sent here: not while it shuts down."""
        if api.draining:
            raise RequestError("shutting down; ask another one", 503)
        return ok({"ready": True, "models": [*api.models]})

    @app.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(api.metrics.exposition(), media_type="text/plain; version=0.0.4")

    @app.post("/admin/reload")
    async def reload() -> Response:
        """Load every model from its folder again; no request is lost. Only where the server has keys."""
        if not api.keys:
            raise RequestError("this server has no API keys, so nobody may reload; send it SIGHUP", 401)
        return ok({"reloaded": await api.reload()})

    from regard.serve.standard_routes import add_completions, add_translation

    add_translation(app, api)
    add_completions(app, api)
    add_models(app, api)
    if page is not None:
        app.mount("/", page)
    app.add_middleware(ApiMiddleware, api=api)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    if loopback:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[host.strip("[]") for host in HOSTS])
    return app
