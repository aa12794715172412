"""Standard routes: translation as LibreTranslate has it, completions as OpenAI has them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import SystemRandom
from time import monotonic, time
from typing import Annotated, Any, Literal, NoReturn
from uuid import uuid4

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse

from regard.data.files import chunks
from regard.data.tokenizers.pretrained import PretrainedTokenizer
from regard.decode.beam import Beam
from regard.decode.document_translation import advance_work, documents_work, sentence_translator
from regard.decode.stepwise import Greedy, Sampling
from regard.decode.text_generation import GeneratedToken, TextRequest
from regard.decode.translation import Ask, Candidate, Translation
from regard.serve.api import NO_KEY, Api, ServedModel, Text, TextPart, header_key, ok, text_parts
from regard.serve.encoding import RequestError, encode_json
from regard.serve.scheduler import PAST_DEADLINE, GenerationJob, Job
from regard.tasks.protocol import token_label

LANGUAGES = {"en": "English", "fr": "French", "de": "German", "es": "Spanish", "it": "Italian", "nl": "Dutch"}
LANGUAGES |= {"pt": "Portuguese", "ru": "Russian", "zh": "Chinese", "ja": "Japanese", "cs": "Czech", "pl": "Polish"}
MAX_STOPS = 4
BRIEF = 2_000  # characters of plain text that are taken apart on the event loop: in less time than a thread needs

# --- translation, as LibreTranslate has it ---


class TranslateBody(BaseModel):
    """LibreTranslate's request."""

    q: Text | Annotated[list[Text], Field(max_length=1000)]
    source: str
    target: str
    format: Literal["text", "html"] | None = "text"
    alternatives: Annotated[int, Field(ge=0, le=100)] | None = 0
    api_key: str | None = None


class TranslateAnswer(BaseModel):
    """LibreTranslate's answer: lists where `q` was one."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None


def add_translation(app: FastAPI, api: Api) -> None:
    def translators() -> list[tuple[str, str, ServedModel]]:
        """The languages that each translates from and into."""
        found = [one for one in api.models.values() if one.task.batching == "search"]
        return [(one.task_model.settings.data.source, to, one) for one in found for to in target_languages(one)]

    @app.post("/translate", response_model=TranslateAnswer)
    async def translate(request: Request, body: TranslateBody) -> Response:
        """Translate a text, or each of a list, as LibreTranslate does, sentence by sentence; lines and tags stay."""
        if not api.accepts(header_key(request.headers) or body.api_key):
            raise RequestError(NO_KEY, 401)
        kind, alternatives = body.format or "text", body.alternatives or 0  # clients send null for what they leave out
        if body.source == "auto":
            no_detection()
        there = {(source, target): served for source, target, served in translators()}
        if (body.source, body.target) not in there:
            pairs = ", ".join("-".join(pair) for pair in there) or "none"
            raise RequestError(f"{body.source[:40]}-{body.target[:40]} is not translated here; there are {pairs}")
        texts = [body.q] if isinstance(body.q, str) else body.q
        lines = [text.splitlines() or [""] for text in texts]
        api.check_texts(flat := [line for text in lines for line in text])
        best, most = 1 + alternatives, api.limits.max_beam
        if best > most:
            raise RequestError(f"{alternatives} alternatives; this server gives {most - 1} at most")
        beam = Beam(max(Beam.size, best), length_penalty=1.0, n_best=best)  # as `regard translate` searches
        served = there[body.source, body.target]
        several = served.task_model.target_languages
        if not several or body.target in several:
            joined = await translate_whole(api, request, served, texts, beam, body.target, kind)
        else:
            found = iter(await api.translate(request, served, flat, beam))
            joined = [join_lines([next(found) for _ in text], best) for text in lines]
        answer: dict[str, Any] = {"translatedText": [text for text, *_ in joined]}
        if alternatives:
            answer["alternatives"] = [rest for _, *rest in joined]
        return ok({name: one[0] for name, one in answer.items()} if isinstance(body.q, str) else answer)

    async def require_key(request: Request) -> None:
        """In a header, or in the body, where LibreTranslate's clients send it with a GET as well."""
        key = header_key(request.headers)
        if key is None and api.keys:
            with suppress(ValueError, RecursionError):
                sent = json.loads(await request.body())
                key = str(sent.get("api_key")) if isinstance(sent, dict) else None
        if not api.accepts(key):
            raise RequestError(NO_KEY, 401)

    @app.get("/languages")
    async def languages(request: Request) -> Response:
        """The languages that can be translated, each with its targets."""
        await require_key(request)
        by_source: dict[str, list[str]] = {}
        for source, target, _ in translators():
            by_source.setdefault(source, []).append(target)
            by_source.setdefault(target, [])
        return ok([{"code": code, "name": LANGUAGES.get(code, code), "targets": to} for code, to in by_source.items()])

    @app.post("/detect", status_code=400)
    async def detect(request: Request) -> Response:
        """Not here: no model of ours detects languages."""
        await require_key(request)
        no_detection()


async def translate_whole(
    api: Api, request: Request, served: ServedModel, texts: Sequence[str], beam: Beam, target: str, kind: str
) -> list[list[str]]:
    """Documents, whose sentences the scheduler translates: no thread waits for them, so all clients share batches.

    Of each as many translations as the search is to give: the n-th is made of the n-th best of every sentence.
    """
    loop, deadline = asyncio.get_running_loop(), monotonic() + api.limits.timeout
    translator = served.task_model
    to = target if translator.target_languages else None
    by = sentence_translator(translator, beam, to=to)
    known = dict[str, Sequence[Candidate]]()  # all of the beam for each text, where several translations are wanted

    async def search(asked: Sequence[Ask]) -> dict[Ask, Sequence[Candidate]]:
        found = dict[Ask, Sequence[Candidate]]()
        for best in sorted({one.best for one in asked}):
            how = replace(beam, n_best=best)
            for some in chunks([one for one in asked if one.best == best], api.limits.max_texts, size_of_ask):
                if monotonic() > deadline:
                    raise RequestError(PAST_DEADLINE, 408)
                tagged = [translator.tag_source(one.text, to) for one in some]
                answers = await api.translate(request, served, tagged, how)
                found |= zip(
                    some, ([(one.text, one.hypothesis.score) for one in these] for these in answers), strict=True
                )
        return found

    async def translate(asked: Sequence[Ask], rank: int) -> list[Sequence[Candidate]]:
        if beam.n_best == 1:
            found = await search(asked)
            return [found[one] for one in asked]
        new = dict.fromkeys(Ask(one.text, beam.size) for one in asked if one.text not in known)
        for one, these in (await search(list(new))).items():
            known[one.text] = these
        return [(known[one.text][rank:] or known[one.text][-1:])[: one.best] for one in asked]

    align_words = by.align

    def align(source: str, found: str) -> Any:  # in a thread, as the work of what has markup is
        assert align_words is not None
        work = api.call(request, served.name, partial(align_words, source, found), len(source))
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    brief, ranked = kind == "text" and sum(map(len, texts)) <= BRIEF, list[list[str]]()
    for rank in range(beam.n_best):
        work, asked, answers, found = documents_work(texts, replace(by, align=by.align and align), kind), [], None, None
        while asked is not None:
            step = partial(advance_work, work, answers)
            asked, found = step() if brief else await asyncio.to_thread(step)
            answers = await translate(asked, rank) if asked is not None else None
        ranked.append(found or [])
    return [list(some) for some in zip(*ranked, strict=True)]


def size_of_ask(one: Ask) -> int:
    return len(one.text)


def target_languages(served: ServedModel) -> list[str]:
    """That of its corpus, and those that a model of several knows."""
    return list(dict.fromkeys([served.task_model.settings.data.target, *served.task_model.target_languages]))


def no_detection() -> NoReturn:
    raise RequestError("languages are not detected here; name the source, one of GET /languages")


def join_lines(lines: Sequence[Sequence[Translation]], best: int) -> list[str]:
    """The n-th texts are made of the n-th best translations of the lines, or of a line's last."""
    return ["\n".join(line[min(n, len(line) - 1)].text for line in lines) for n in range(best)]


# --- completions, as OpenAI has them ---


SomeTexts = Annotated[list[Text], Field(min_length=1, max_length=1000)]
TokenIds = Annotated[list[Annotated[int, Field(strict=True)]], Field(min_length=1, max_length=20_000)]


class CompletionBody(BaseModel):
    """OpenAI's request; what is not supported must have its default."""

    model: str
    prompt: Text | SomeTexts | TokenIds | Annotated[list[TokenIds], Field(min_length=1, max_length=1000)] = ""
    max_tokens: Annotated[int, Field(ge=1)] | None = 16
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] | None = 1.0
    n: Annotated[int, Field(ge=1, le=16)] | None = 1
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: Literal[False] | None = False
    stop: Text | Annotated[list[Text], Field(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    user: str | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None
    presence_penalty: Literal[0] | None = 0
    frequency_penalty: Literal[0] | None = 0
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None


def completion_parts(parts: Iterator[TextPart], stops: Sequence[str], limit: int) -> Iterator[TextPart]:
    """Until a stop text; what may be the beginning of one is held back."""
    held, count = "", 0
    for part in parts:
        held, count = held + part.text, count + len(part.tokens)
        if ends := [at for stop in stops if (at := held.find(stop)) >= 0]:
            yield TextPart(held[: min(ends)], part.tokens, "stop")
            return
        keep = longest_beginning(held, stops)
        yield TextPart(held[: len(held) - keep], part.tokens)
        held = held[len(held) - keep :]
    yield TextPart(held, (), "length" if count == limit else "stop")


def completion_stream(
    generator: Any, text: TextRequest, stops: Sequence[str], tokens: Iterator[GeneratedToken]
) -> Iterator[TextPart]:
    return completion_parts(text_parts(generator, text.prompt, tokens), stops, text.tokens)


def longest_beginning(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of a stop text."""
    return max(
        (n for stop in stops for n in range(1, min(len(stop), len(text)) + 1) if text.endswith(stop[:n])), default=0
    )


def add_completions(app: FastAPI, api: Api) -> None:
    begun = int(time())

    def card(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": begun, "owned_by": "regard"}

    def generators() -> dict[str, Any]:
        return {name: one.task_model for name, one in api.models.items() if one.task.batching == "generation"}

    def generator(name: str) -> Any:
        if name not in (there := generators()):
            raise RequestError(f"no language model is called {name!r:.80}; there are {', '.join(there) or 'none'}", 404)
        return there[name]

    @app.get("/v1/models")
    async def models() -> Response:
        """The language models, as OpenAI lists them."""
        return ok({"object": "list", "data": [card(name) for name in generators()]})

    @app.get("/v1/models/{model}")
    async def model(model: str) -> Response:
        generator(model)
        return ok(card(model))

    @app.post("/v1/completions")
    async def completions(request: Request, body: CompletionBody) -> Response:
        """Continue a text, or each of a list, as OpenAI's clients ask; streamed by server-sent events if wanted."""
        found, served, jobs = generator(body.model), api.models[body.model], list[Job]()
        limit = 16 if body.max_tokens is None else body.max_tokens
        if limit > api.limits.max_tokens:
            raise RequestError(f"max_tokens = {limit}; this server continues a text by at most {api.limits.max_tokens}")
        prompts = split_prompts(body.prompt)
        api.check_texts([""] * len(prompts) * (body.n or 1))
        stops = [stop for stop in ([body.stop] if isinstance(body.stop, str) else body.stop or []) if stop]
        seed, read = SystemRandom().getrandbits(32) if body.seed is None else body.seed, 0
        for prompt in prompts:
            opening, ids = found.encode_prompt(prompt) if isinstance(prompt, str) else check_ids(found, prompt)
            read += len(ids)
            for n in range(body.n or 1):
                text = TextRequest((*opening, *ids), completion_search(body, seed + n), limit, body.logprobs or 0)
                given = GenerationJob(text, partial(completion_stream, found, text, stops))
                jobs.append(api.generation_job(served, given, len(ids) + limit))
        answer = {"id": f"cmpl-{uuid4().hex}", "object": "text_completion", "created": int(time()), "model": body.model}
        texts = [CompletionText(found, index) for index in range(len(jobs))]
        if body.stream:
            api.scheduler.submit(jobs)
            usage = bool((body.stream_options or {}).get("include_usage"))
            events = stream_completions(api, jobs, texts, answer, body, read if usage else None)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        await api.run(request, jobs)
        for job, text in zip(jobs, texts, strict=True):
            async for part in job.stream():
                text.add(part)
        return ok({**answer, "choices": [one.choice(body) for one in texts], "usage": usage_of(read, texts)})


def split_prompts(prompt: str | Sequence[Any]) -> list[str | Sequence[int]]:
    """A text, or the ids of its tokens; or a list of either."""
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else [*prompt]


def check_ids(generator: Any, ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """As `encode_prompt`, of a prompt that the client has encoded."""
    size = len(generator.model.embedding.weight)
    if wrong := [one for one in ids if not 0 <= one < size]:
        raise RequestError(f"prompt: token {wrong[0]} is not in the vocabulary; ids are 0 to {size - 1}")
    own = not isinstance(generator.tokenizer, PretrainedTokenizer)  # whose clients send the first token as well
    return generator.encode_prompt("")[0] if own else [], [*ids]


def completion_search(body: CompletionBody, seed: int) -> Greedy | Sampling:
    temperature, top_p = (1.0 if one is None else one for one in (body.temperature, body.top_p))
    if temperature < 1e-6 or top_p == 0:
        return Greedy()
    return Sampling(temperature=temperature, top_p=top_p, seed=seed % 2**63)


class CompletionText:
    """One choice of an answer, as far as it has been generated."""

    def __init__(self, generator: Any, index: int):
        self.generator, self.index, self.count = generator, index, 0
        self.finish: str | None = None
        self.length = 0  # characters of all parts
        self.clear()

    def clear(self) -> None:
        self.text, self.tokens, self.offsets = "", list[GeneratedToken](), list[int]()

    def add(self, part: TextPart) -> None:
        self.text, self.finish = self.text + part.text, part.finish
        self.tokens += part.tokens
        self.offsets += [self.length] * len(part.tokens)
        self.length += len(part.text)
        self.count += len(part.tokens)

    def choice(self, body: CompletionBody) -> dict[str, Any]:
        label = partial(token_label, self.generator.tokenizer)
        found = {"text": self.text, "index": self.index, "logprobs": None, "finish_reason": self.finish}
        if body.logprobs is not None:
            names = [label(one.id) for one in self.tokens]
            # the token that was drawn is always among them
            top = [
                {label(id): value for id, value in (*one.alternatives, (one.id, one.log_probability))}
                for one in self.tokens
            ]
            found["logprobs"] = {
                "tokens": names,
                "token_logprobs": [one.log_probability for one in self.tokens],
                "top_logprobs": top if body.logprobs else None,
                "text_offset": self.offsets,
            }
        return found


def usage_of(read: int, texts: Sequence[CompletionText]) -> dict[str, int]:
    written = sum(text.count for text in texts)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


async def stream_completions(
    api: Api,
    jobs: Sequence[Job],
    texts: Sequence[CompletionText],
    answer: Mapping[str, Any],
    body: CompletionBody,
    read: int | None,
) -> AsyncIterator[bytes]:
    """A server-sent event for each part of each choice, in the order in which they come."""
    begin, first = monotonic(), True
    together: asyncio.Queue[tuple[CompletionText, TextPart | Exception | None]] = asyncio.Queue()

    async def forward(job: Job, text: CompletionText) -> None:
        try:
            async for part in job.stream():
                await together.put((text, part))
            await together.put((text, None))
        except Exception as error:
            await together.put((text, error))

    tasks = [asyncio.ensure_future(forward(job, text)) for job, text in zip(jobs, texts, strict=True)]
    try:
        left = len(jobs)
        while left:
            text, part = await together.get()
            if isinstance(part, Exception):
                yield event({"error": {"message": str(part), "type": "server_error", "param": None, "code": None}})
                left -= 1
            elif part is None:
                left -= 1
            elif part.text or part.tokens or part.finish:
                if first:
                    api.metrics.first_token.observe(monotonic() - begin)
                    first = False
                text.add(part)
                yield event({**answer, "choices": [text.choice(body)]})
                text.clear()
        if read is not None:
            yield event({**answer, "choices": [], "usage": usage_of(read, texts)})
        yield b"data: [DONE]\n\n"
    finally:  # also when the client has gone
        for task in tasks:
            task.cancel()
        if any(not job.future.done() for job in jobs):
            api.metrics.cancelled.inc()
            api.scheduler.cancel(jobs)


def event(value: Any) -> bytes:
    return b"data: " + encode_json(value) + b"\n\n"
