"""The HTTP API: what LibreTranslate's and OpenAI's clients expect, every task's verb, limits, keys and reloading."""

import asyncio
import base64
import gc
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any
from urllib.request import Request as URLRequest
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from regard.data.graphs import write_graph
from regard.data.tokenizers.subwords import SubwordTokenizer
from regard.decode import Beam, Greedy, prepare, translate
from regard.decode.continuous import ContinuousBeamSearch
from regard.decode.text_generation import ContinuousGeneration, GeneratedToken, TextRequest, generate
from regard.decode.translation import translate_texts
from regard.interop import export
from regard.serve.api import Api, ApiLimits, TextPart, VerbCall, create_api
from regard.serve.app import create_app
from regard.serve.model_store import ModelStore
from regard.serve.scheduler import (
    CallBatch,
    GenerationBatch,
    GenerationJob,
    Job,
    JsonFormatter,
    Metrics,
    RunningBatch,
    RunningSearches,
    Scheduler,
    SearchJob,
    SearchPool,
)
from regard.serve.security import MAX_HELD, JoinedWrites
from regard.serve.standard_routes import completion_parts, longest_beginning
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.node_classification.task import training_graph
from regard.tasks.registry import TASKS, get_task
from regard.tasks.translation.task import Translator
from tests.see.untrained_models import CAT, LEARNERS, generator, translator

from .client import HERE, TOKEN

KEY = "a key of the tests, long enough"
FORM = {"Content-Type": "Application/X-WWW-Form-Urlencoded; charset=UTF-8"}
CLI_SEARCH = Beam(5, length_penalty=1.0)  # what `regard translate` searches with


@pytest.fixture(scope="module")
def models():
    found = {name: make() for name, make in LEARNERS.items()}
    for one in found.values():
        one.model.eval()  # as a loaded one is
    return found


def client_of_api(api: Api, **how: Any) -> TestClient:
    return TestClient(create_api(api, **how), base_url=HERE, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(models):
    with client_of_api(Api(ModelStore.from_models(models))) as found:
        yield found


def error_of(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]


# --- translation ---


def test_translations_are_those_of_the_command_line(client, models):
    texts = [CAT, "", "the cat", "a dog"]
    answer = client.post("/translate", json={"q": texts, "source": "en", "target": "fr"}).json()
    assert answer == {"translatedText": [models["translate"].translate_document(text) for text in texts]}


def test_lines_of_a_text_are_translated_one_by_one(client, models):
    answer = client.post("/translate", json={"q": f"{CAT}\n\nthe cat", "source": "en", "target": "fr"}).json()
    assert answer["translatedText"].split("\n") == [
        models["translate"].translate_document(text) for text in (CAT, "", "the cat")
    ]


def test_documents_are_translated_with_their_lines_and_tags(client, models):
    """As the Python method does, in the scheduler's batches; a sentence that is too long is no error."""
    asked = {"q": [f"<p class='x'>{CAT} <b>cat</b>. <br>\n&amp; 17</p>", "<i>the cat</i>"], "format": "html"}
    answer = client.post("/translate", json={**asked, "source": "en", "target": "fr"}).json()["translatedText"]
    assert answer == [models["translate"].translate_document(text, format="html") for text in asked["q"]]
    assert re.findall(r"<[^>]*>|&amp;|17", answer[0]) == ["<p class='x'>", "<b>", "</b>", "<br>", "&amp;", "17", "</p>"]
    long = client.post("/translate", json={"q": "cat " * 1001, "source": "en", "target": "fr"})
    assert long.status_code == 200


def test_documents_of_all_clients_wait_in_one_queue_however_few_threads_there_are(models, monkeypatch):
    api, texts = Api(ModelStore.from_models({"t": models["translate"]})), [f"{CAT} {'the cat ' * n}" for n in range(24)]
    start = api.scheduler.start
    # the scheduler starts once all of them wait: a request that holds a thread meanwhile keeps the others out
    monkeypatch.setattr(api.scheduler, "start", lambda: None)

    def one_thread() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    def ask(text: str) -> str:
        answer = client.post("/translate", json={"q": text, "source": "en", "target": "fr"})
        return answer.json()["translatedText"]

    with client_of_api(api) as client, ThreadPoolExecutor(len(texts)) as pool:
        assert client.portal is not None
        client.portal.call(one_thread)
        answers = [pool.submit(ask, text) for text in texts]
        patience = monotonic() + 20
        while (waiting := len(api.scheduler.waiting)) < len(texts) and monotonic() < patience:
            sleep(0.01)
        start()
        assert [one.result() for one in answers] == [models["translate"].translate_document(text) for text in texts]
    assert waiting == len(texts)


# --- searches in processes of their own ---


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="forked processes")


def pool_of(api: Api) -> SearchPool:
    (served,) = api.models.values()
    assert served.pool is not None
    return served.pool


def search_processes(api: Api) -> list[int]:
    return [one.process.pid or 0 for one in pool_of(api).processes]


def is_running(process: int) -> bool:
    return Path(f"/proc/{process}").exists() and ") Z " not in Path(f"/proc/{process}/stat").read_text()


@LINUX
def test_searches_in_processes_give_what_the_command_line_gives(models):
    limits = ApiLimits(workers=2, processes=True)
    api, texts = Api(ModelStore.from_models({"t": models["translate"]}), limits=limits), [CAT, "the cat", "a dog"]
    wanted = translate_texts(models["translate"], texts, CLI_SEARCH)
    processes = search_processes(api)
    assert len(processes) == 2

    def ask(text: str) -> str:
        return client.post("/translate", json={"q": text, "source": "en", "target": "fr"}).json()["translatedText"]

    with client_of_api(api) as client, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, texts * 8)) == wanted * 8
        assert pool_of(api).jobs == []
        os.kill(processes[0], signal.SIGTERM)  # meant for the server: a search goes on
        os.kill(processes[1], signal.SIGKILL)
        while is_running(processes[1]):
            sleep(0.01)
        assert list(pool.map(ask, texts * 2)) == wanted * 2
        assert search_processes(api) == processes[:1]
        os.kill(processes[0], signal.SIGKILL)
        while is_running(processes[0]):
            sleep(0.01)
        assert list(pool.map(ask, texts * 2)) == wanted * 2  # by the workers
        assert search_processes(api) == []


@LINUX
def test_who_waits_for_a_process_that_dies_is_answered(models):
    """Those it has fail; those that wait for room in it go to the workers."""
    limits = ApiLimits(workers=1, processes=True, batch_tokens=1)
    api = Api(ModelStore.from_models({"t": models["translate"]}), limits=limits)
    (wanted,) = translate_texts(models["translate"], ["the cat"], CLI_SEARCH)
    (process,) = search_processes(api)

    def ask(text: str) -> Any:
        return client.post("/translate", json={"q": text, "source": "en", "target": "fr"})

    with client_of_api(api) as client, ThreadPoolExecutor(3) as pool:
        os.kill(process, signal.SIGSTOP)
        answers = [pool.submit(ask, "the cat") for _ in range(3)]
        while len(pool_of(api).waiting) < 2:
            sleep(0.01)
        os.kill(process, signal.SIGKILL)
        found = [one.result() for one in answers]
    assert sorted(one.status_code for one in found) == [200, 200, 500]
    assert [one.json()["translatedText"] for one in found if one.status_code == 200] == [wanted] * 2


@LINUX
def test_a_sentence_that_is_cancelled_or_late_leaves_its_process_at_once(models):
    search = {"source": (5, 6), "prefix": (), "beam": Beam(2)}

    async def work(scheduler: Scheduler) -> None:
        pool = SearchPool(prepare(models["translate"].model), 1, scheduler)
        (process,) = pool.processes
        os.kill(process.process.pid or 0, signal.SIGSTOP)  # none of them is found meanwhile
        kept, gone, late, waiting = [
            pool.job("k", SearchJob(**search), monotonic() + seconds) for seconds in (60.0, 60.0, 0.05, 60.0)
        ]
        scheduler.max_tokens = sum(job.tokens for job in (kept, gone, late))
        scheduler.submit([kept, gone, late, waiting])
        assert [*process.jobs.values()] == [kept, gone, late]
        assert (scheduler.count_running(), scheduler.count_waiting()) == (3, 1)
        scheduler.cancel([gone])
        assert [*process.jobs.values()] == [kept, late, waiting]  # its place is taken
        await asyncio.sleep(0.06)
        os.kill(process.process.pid or 0, signal.SIGCONT)
        for job, status in ((gone, 499), (late, 408)):
            with pytest.raises(ValueError) as refused:  # noqa: PT011
                await asyncio.wait_for(job.future, 5)
            assert refused.value.status == status  # type: ignore[attr-defined]
        assert await asyncio.wait_for(kept.future, 5) == await asyncio.wait_for(waiting.future, 5)
        assert process.jobs == {}
        assert process.tokens == 0

    scheduled(work)


@LINUX
def test_a_model_that_is_loaded_again_has_processes_of_its_own(models, tmp_path):
    models["translate"].save(tmp_path / "t")
    limits = ApiLimits(workers=1, processes=True)
    api = Api(ModelStore.from_folders([tmp_path / "t"]), limits=limits, keys=[KEY])
    (before,) = search_processes(api)
    with client_of_api(api) as client:
        key, asked = {"X-API-Key": KEY}, {"q": CAT, "source": "en", "target": "fr"}
        first = client.post("/translate", json=asked, headers=key).json()
        assert client.post("/admin/reload", headers=key).status_code == 200
        (after,) = search_processes(api)
        assert client.post("/translate", json=asked, headers=key).json() == first
    patience = monotonic() + 20
    while is_running(before) and monotonic() < patience:  # it ends with the last who hold the old model
        gc.collect()
        sleep(0.05)
    assert is_running(after)
    assert not is_running(before)


@LINUX
def test_what_a_search_process_raises_is_raised_here(models):
    async def work(scheduler: Scheduler) -> Any:
        pool = SearchPool(prepare(models["translate"].model), 1, scheduler)
        beams = Beam(2), Beam(2, n_best=2)
        given = [SearchJob((5,), (10**6,), Beam(2)), *(SearchJob((5,), (), beam) for beam in beams)]
        jobs = [pool.job("k", one, monotonic() + 60) for one in given]
        scheduler.submit(jobs[:1])
        with pytest.raises(ValueError, match="token 1000000 is not in the vocabulary"):
            await jobs[0].future
        scheduler.submit(jobs[1:])
        for beam, job in zip(beams, jobs[1:], strict=True):  # that of each, side by side
            assert [await job.future] == translate(pool.model, [(5,)], beam)

    scheduled(work)


def test_a_form_is_read_as_libretranslates_clients_send_it(client):
    form = client.post("/translate", data={"q": CAT, "source": "en", "target": "fr", "api_key": ""})
    assert form.json() == client.post("/translate", json={"q": CAT, "source": "en", "target": "fr"}).json()


def test_what_clients_leave_out_or_do_not_name_is_understood(client):
    asked = {"q": CAT, "source": "en", "target": "fr"}
    expected = client.post("/translate", json=asked).json()
    nulls = {**asked, "format": None, "alternatives": None, "api_key": None}
    assert client.post("/translate", json=nulls).json() == expected
    assert client.post("/translate", content=json.dumps(asked), headers=FORM).json() == expected  # curl's default


def test_a_refusal_names_the_field_and_what_is_wrong_with_the_type_it_has(client):
    asked = {"model": "write", "prompt": CAT}
    for wrong, sentence in (
        ({"stop": ["a"] * 5}, "stop: List should have at most 4 items"),
        ({"prompt": "a" * 20_001}, "prompt: String should have at most 20000 characters"),
        ({"n": 0}, "n: Input should be greater than or equal to 1"),
        ({"prompt": {}}, "prompt: Input should be a valid string"),
    ):
        assert error_of(client.post("/v1/completions", json={**asked, **wrong}), 400).startswith(sentence)
    for content, kind in ((b"--x", "multipart/form-data; boundary=x"), (b'{"q": "x"}', "text/plain"), (b"[]", "")):
        refused = client.post("/translate", content=content, headers={"Content-Type": kind})
        assert error_of(refused, 400) == "the body is not a JSON object; send one, with Content-Type: application/json"
    assert "UTF-8" in error_of(
        client.post("/translate", content=b'{"q":"\xff"}', headers={"Content-Type": "application/json"}), 400
    )
    for content in (b"nonsense", b'{"q": ', b"{'q': 'x'}"):
        refused = client.post("/translate", content=content, headers={"Content-Type": "application/json"})
        assert error_of(refused, 400) == "the body is not JSON; send an object, with Content-Type: application/json"
    refused = client.put("/translate")
    assert error_of(refused, 405) == "PUT is not for /translate; GET /openapi.json lists what there is"
    assert refused.headers["Allow"] == "POST"


def test_alternatives_are_made_of_the_next_best_of_every_sentence(client, models):
    asked = {"q": [CAT], "source": "en", "target": "fr"}
    answer = client.post("/translate", json={**asked, "alternatives": 2}).json()
    assert answer["translatedText"] == client.post("/translate", json=asked).json()["translatedText"]
    output = models["translate"].translate(CAT, beam=5, n_best=3)
    assert answer["alternatives"] == [[one.text for one in output.alternatives]]
    twice = client.post("/translate", json={**asked, "q": f"{CAT}\n{CAT}", "alternatives": 2}).json()
    (texts,) = answer["alternatives"]
    assert twice["alternatives"] == [f"{text}\n{text}" for text in texts]
    most = client.post("/translate", json={**asked, "q": "the cat", "alternatives": 7}).json()
    assert len(most["alternatives"]) == 7
    refused = client.post("/translate", json={**asked, "alternatives": 16})
    assert error_of(refused, 400) == "16 alternatives; this server gives 15 at most"


def test_texts_that_name_their_languages_themselves_are_translated_line_by_line(models):
    """Of a model of several languages, by a client that asks for none of them."""
    tokenizer = SubwordTokenizer.bpe([CAT, "le chat noir"] * 4, size=300).with_tags([">>fr<<", ">>de<<"])
    usual = models["translate"].settings
    settings = replace(usual, text=PairTokenizerSettings(kind="bpe"), data=replace(usual.data, target="fr de"))
    several = Translator.from_parts(tokenizer, tokenizer, settings=settings)
    several.model.eval()
    lines = [f">>fr<< {CAT}", ">>de<< the cat"]
    with client_of_api(Api(ModelStore.from_models({"both": several}))) as client:
        asked = {"q": ["\n".join(lines), lines[1]], "source": "en", "target": "fr de"}
        answer = client.post("/translate", json={**asked, "alternatives": 1}).json()
    best, second = ([one.text, one.alternatives[0].text] for one in several.translate(lines, n_best=2))
    assert answer["translatedText"] == [f"{best[0]}\n{second[0]}", second[0]]
    assert answer["alternatives"] == [[f"{best[1]}\n{second[1]}"], [second[1]]]


def test_alternatives_keep_what_must_survive(client):
    asked = {"source": "en", "target": "fr", "alternatives": 3}
    answer = client.post("/translate", json={**asked, "q": f"{CAT} https://a.org/b?c=1 17 Čapek"}).json()
    for text in (answer["translatedText"], *answer["alternatives"]):
        assert {"https://a.org/b?c=1", "17", "Čapek"} <= set(text.split())
    answer = client.post("/translate", json={**asked, "q": f"<p><b>{CAT}</b>", "format": "html"}).json()
    for text in (answer["translatedText"], *answer["alternatives"]):
        assert re.fullmatch(r"<p><b>.+</b>", text)


def test_languages_and_what_is_not_translated(client):
    there = client.get("/languages").json()
    assert there == [
        {"code": "en", "name": "English", "targets": ["fr"]},
        {"code": "fr", "name": "French", "targets": []},
    ]
    asked = {"q": CAT, "source": "en", "target": "fr"}
    assert "en-fr" in error_of(client.post("/translate", json={**asked, "target": "de"}), 400)
    assert "not detected" in error_of(client.post("/translate", json={**asked, "source": "auto"}), 400)
    assert "not detected" in error_of(client.post("/detect", json={"q": CAT}), 400)
    long = client.post("/models/translate/translate", json={"texts": "cat " * 1001})
    assert error_of(long, 413) == "a sentence of 1,001 tokens; send at most 1000"
    assert "send at most" in error_of(client.post("/translate", json={**asked, "q": ["cat"] * 129}), 413)


# --- completions ---


def completion(client, **asked: Any) -> Any:
    answer = client.post("/v1/completions", json={"model": "write", "seed": 3, **asked})
    assert answer.status_code == 200, answer.text
    return answer


def events_of(answer: Any) -> list[Any]:
    *lines, end = answer.text.strip().split("\n\n")
    assert end == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_completion_is_what_the_model_generates(client, models):
    answer = completion(client, prompt=CAT, max_tokens=7, temperature=0.8, top_p=0.9).json()
    expected = models["write"].generate(CAT, tokens=7, temperature=0.8, top_p=0.9, seed=3)
    [choice] = answer["choices"]
    assert choice == {"text": expected.generated, "index": 0, "logprobs": None, "finish_reason": "length"}
    assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 7, "total_tokens": 13}
    assert answer["object"] == "text_completion"


def test_a_stream_is_the_completion_in_parts(client):
    asked = {"prompt": [CAT, "the"], "max_tokens": 5, "n": 2, "logprobs": 2}
    whole, parts = completion(client, **asked).json(), events_of(completion(client, **asked, stream=True))
    assert len(whole["choices"]) == 4
    for index, choice in enumerate(whole["choices"]):
        mine = [one["choices"][0] for one in parts if one["choices"][0]["index"] == index]
        assert "".join(one["text"] for one in mine) == choice["text"]
        assert [one["finish_reason"] for one in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        joined = [value for one in mine for value in one["logprobs"]["token_logprobs"]]
        assert joined == choice["logprobs"]["token_logprobs"]
        for name in ("tokens", "text_offset", "top_logprobs"):
            assert [value for one in mine for value in one["logprobs"][name]] == choice["logprobs"][name]
        told = choice["logprobs"]
        for token, value, top in zip(told["tokens"], joined, told["top_logprobs"], strict=True):
            assert 2 <= len(top) <= 3
            assert top[token] == value <= max(top.values())
        for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
            assert choice["text"][offset:].lstrip().startswith(token)
    usage = events_of(completion(client, **asked, stream=True, stream_options={"include_usage": True}))[-1]
    assert usage["usage"] == whole["usage"]


def test_a_prompt_may_be_the_ids_of_its_tokens(client, models):
    _, ids = models["write"].encode_prompt(CAT)
    text, other = (completion(client, prompt=prompt, max_tokens=4).json() for prompt in (CAT, "the"))
    assert completion(client, prompt=ids, max_tokens=4).json()["choices"] == text["choices"]
    both = completion(client, prompt=[ids, ids[:1]], max_tokens=4, n=1).json()
    assert [one["text"] for one in both["choices"]] == [one["choices"][0]["text"] for one in (text, other)]
    assert both["usage"]["prompt_tokens"] == len(ids) + 1
    size = len(models["write"].model.embedding.weight)
    for wrong in (size, -1):
        refused = client.post("/v1/completions", json={"model": "write", "prompt": [5, wrong]})
        assert error_of(refused, 400) == f"prompt: token {wrong} is not in the vocabulary; ids are 0 to {size - 1}"


def test_settings_at_the_ends_of_what_openai_allows(client):
    best = completion(client, prompt=CAT, max_tokens=4, temperature=0).json()["choices"]
    assert completion(client, prompt=CAT, max_tokens=4, top_p=0).json()["choices"] == best
    drawn = [completion(client, prompt=CAT, max_tokens=4, seed=-1).json()["choices"] for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_a_stop_text_ends_a_completion_before_it(client):
    words = completion(client, prompt=CAT, max_tokens=12, temperature=0).json()["choices"][0]["text"].split(" ")
    stop = f"{words[3][-2:]} {words[4]}"
    cut = completion(client, prompt=CAT, max_tokens=12, temperature=0, stop=[stop]).json()["choices"][0]
    assert cut["finish_reason"] == "stop"
    assert " ".join(words).startswith(cut["text"])
    assert cut["text"] == " ".join(words).split(stop)[0]


def test_what_may_begin_a_stop_text_is_held_back():
    parts = [TextPart(text, ()) for text in ("ab", "c", "d<", "e", "nd", "x")]
    found = list(completion_parts(iter(parts), ["<end"], limit=9))  # type: ignore[arg-type]
    assert [one.text for one in found] == ["ab", "c", "d", "", ""]
    assert found[-1].finish == "stop"
    assert [longest_beginning(text, ["<end", "d"]) for text in ("a", "a<", "<en", "d")] == [0, 1, 3, 1]


def test_models_as_openai_lists_them_and_its_form_of_errors(client):
    assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["write"]
    assert client.get("/v1/models/write").json()["object"] == "model"
    refused = client.post("/v1/completions", json={"model": "translate", "prompt": CAT})
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert "there are write" in error_of(refused, 404)
    assert "max_tokens" in error_of(client.post("/v1/completions", json={"model": "write", "max_tokens": 10**6}), 400)
    assert "echo" in error_of(client.post("/v1/completions", json={"model": "write", "echo": True}), 400)
    assert "openapi" in error_of(client.post("/v1/chat/completions", json={}), 404)


# --- every task ---


def picture() -> str:
    found = BytesIO()
    Image.fromarray((np.arange(64 * 64 * 3) % 251).reshape(64, 64, 3).astype(np.uint8)).save(found, "PNG")
    return base64.b64encode(found.getvalue()).decode()


VERB_BODIES = {
    "picture": {"images": [picture()]},
    "answer": {"image": picture(), "questions": ["what colour is the circle"]},
    "write": {"prompts": [CAT], "tokens": 4},
}


@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "graph"])
def test_the_verb_of_every_task_answers_as_in_python(client, models, name, tmp_path):
    verb, body = get_task(models[name].settings.task).verb, VERB_BODIES.get(name, {"texts": [CAT, "the cat"]})
    answer = client.post(f"/models/{name}/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    if name in ("picture", "answer"):
        (tmp_path / "picture.png").write_bytes(base64.b64decode(picture()))
        path = str(tmp_path / "picture.png")
        expected = models[name].classify([path]) if name == "picture" else models[name].answer(path, body["questions"])
    else:
        expected = getattr(models[name], verb)(**body)
    found = answer.json()["outputs"]
    assert [one["text"] for one in found] == [one.text for one in expected]
    assert [one["score"] for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)


def test_a_table_is_sent_as_its_contents(client, models, tmp_path):
    """Two files, and labels by the names of the nodes."""
    paths = [str(tmp_path / name) for name in ("nodes.tsv", "edges.tsv")]
    write_graph(training_graph(models["graph"].settings.data), *paths)
    nodes, edges = (Path(path).read_text() for path in paths)
    found = client.post("/models/graph/classify", json={"nodes": nodes, "edges": edges}).json()["outputs"]
    expected = models["graph"].classify(*paths)
    assert {name: one["text"] for name, one in found.items()} == {name: one.text for name, one in expected.items()}
    refused = error_of(client.post("/models/graph/classify", json={"nodes": "a\tb", "edges": ""}), 400)
    assert "nodes" in refused
    assert str(tmp_path.parent) not in refused


def test_a_single_input_gives_a_single_output_and_alignments_if_wanted(client, models):
    body = {"texts": CAT, "beam": 3, "n_best": 2, "alignment": True}
    found = client.post("/models/translate/translate", json=body).json()["outputs"]
    expected = models["translate"].translate(CAT, beam=3, n_best=2)
    assert found["text"] == expected.text
    assert found["alternatives"][0]["text"] == expected.alternatives[0].text
    assert {(source, target) for source, target in found["alignment"]["links"]} == expected.alignment.links
    refused = client.post("/models/tag/tag", json={"texts": CAT, "alignment": True})
    assert "no alignment" in error_of(refused, 400)


@pytest.mark.parametrize("name", LEARNERS)
def test_attention_and_its_picture_of_any_model(client, models, name):
    from regard.see import trace_model

    task = get_task(models[name].settings.task)
    text = picture() if task.inputs.kind == "image" else task.example_input(models[name]).text
    body = {"text": text} | ({"question": "what colour is the circle"} if name == "answer" else {})
    found = client.post(f"/models/{name}/attention", json=body)
    assert found.status_code == 200, found.text
    weights = np.array(found.json()["weights"])
    assert weights.sum(-1) == pytest.approx(np.ones(len(weights)), abs=1e-5)
    if task.inputs.kind == "text":
        assert found.json()["output"] == trace_model(models[name], text).output_text
    if name in ("tag", "answer"):
        shown = client.post(f"/models/{name}/picture", json=body)
        assert shown.headers["Content-Type"] == "image/png"
        assert shown.content[:4] == b"\x89PNG"
    assert "LAYER:HEAD" in error_of(client.post(f"/models/{name}/attention", json={**body, "head": "x:9"}), 400)


def test_every_task_has_its_route_and_a_description(client, models):
    described = client.get("/openapi.json").json()["paths"]
    cards = client.get("/models").json()["models"]
    assert [card["name"] for card in cards] == [*LEARNERS]
    assert {card["task"] for card in cards} == {*TASKS} - {"masked_language_modeling"}
    for card in cards:
        assert f"/models/{card['name']}/{card['verb']}" in described


def test_a_route_is_made_from_the_signature_of_a_verb():
    """Of a task that nobody has heard of: its argument, which may be a list, is required; its options have defaults."""

    class Counter:
        def count(self, texts: str | Sequence[str], *, letters: bool = False, limit: int | None = None) -> Any: ...

    class Measurer:
        def measure(self, image: str | Path, ruler: str) -> Any: ...

    class NewTask:
        def __init__(self, task_model: type, verb: str):
            self.task_model, self.verb, self.name = task_model, verb, f"{verb}_things"

    how = VerbCall.of(NewTask(Counter, "count"))  # type: ignore[arg-type]
    assert (how.positional, how.files, how.batched) == (("texts",), (), True)
    assert how.body(texts=["a"]).model_dump() == {"texts": ["a"], "letters": False, "limit": None, "alignment": False}
    for wrong in ({}, {"texts": 3}, {"texts": "a", "limit": "b"}, {"texts": "a", "unknown": 1}):
        with pytest.raises(ValueError, match="CountThingsBody"):
            how.body(**wrong)
    alone = VerbCall.of(NewTask(Measurer, "measure"))  # type: ignore[arg-type]
    assert (alone.positional, alone.files, alone.batched) == (("image", "ruler"), ("image",), False)


# --- limits ---


MALFORMED = [
    *(
        b"",
        b"{",
        b"[]",
        b"null",
        b'"q"',
        b"[" * 50_000,
        b'{"q": 1}',
        b'{"q": "\\ud800", "source": "en", "target": "fr"}',
    ),
    *(
        b"\xff\xfe",
        b'{"q": {}}',
        b'{"q": ["a", 3]}',
        b'{"q": NaN}',
        b'{"alternatives": 1e400}',
        b'{"beam": ' + b"9" * 5000,
    ),
]


@pytest.mark.parametrize(
    "path", ["/translate", "/v1/completions", "/models/translate/translate", "/models/tag/attention"]
)
def test_a_malformed_body_is_refused_in_a_sentence(client, path):
    for body in MALFORMED:
        for kind in ("application/json", "application/x-www-form-urlencoded", "text/plain", ""):
            answer = client.post(path, content=body, headers={"Content-Type": kind})
            assert 400 <= answer.status_code < 500, (body[:40], kind, answer.text)
            assert answer.json()["error"]


def test_random_bodies_are_no_error_of_ours(client):
    draw, values = (
        random.Random(0),
        [None, True, -1, 0, 10**30, 1.5, "", "a", "\0", [], [[]], ["x"], {}, {"a": 1}, "é" * 99],
    )
    names = ["q", "source", "target", "alternatives", "prompt", "max_tokens", "n", "stop", "texts", "beam"]
    names += ["n_best", "text", "head"]
    for _ in range(40):
        path = draw.choice(
            [
                "/translate",
                "/v1/completions",
                "/models/translate/translate",
                "/models/write/generate",
                "/models/tag/picture",
            ]
        )
        body = {name: draw.choice(values) for name in draw.sample(names, draw.randint(0, 5))} | {"model": "write"}
        assert client.post(path, json=body).status_code < 500, (path, body)


def test_a_long_body_and_another_host_are_refused(models):
    api = Api(ModelStore.from_models({"tag": models["tag"]}), limits=ApiLimits(max_body=2000))
    with client_of_api(api) as client:
        assert "2,000 bytes" in error_of(client.post("/models/tag/tag", json={"texts": "a" * 3000}), 413)
        refused = client.post("/v1/completions", json={"prompt": "a" * 3000})
        assert refused.json()["error"]["type"] == "invalid_request_error"  # an object, as OpenAI's clients expect
        assert client.head("/health").status_code == client.head("/ready").status_code == 200
        assert client.get("/health", headers={"Host": "elsewhere.com"}).status_code == 400
        assert "access-control-allow-origin" not in client.get("/health", headers={"Origin": "https://a.b"}).headers
    with client_of_api(api, origins=["https://a.b"]) as client:
        assert (
            client.get("/health", headers={"Origin": "https://a.b"}).headers["access-control-allow-origin"]
            == "https://a.b"
        )


def test_a_body_that_is_too_long_is_read_so_that_its_client_sees_the_refusal(models):
    """A client that is still sending when its connection is closed reports a reset, and never the answer."""
    app = create_api(Api(ModelStore.from_models({"tag": models["tag"]}), limits=ApiLimits(max_body=2000)))
    parts, sent = [{"type": "http.request", "body": b"a" * 3000, "more_body": n < 9} for n in range(10)], []

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/translate", "headers": [(b"host", b"127.0.0.1")]}
    asyncio.run(app({**scope, "query_string": b"", "client": None, "server": ("127.0.0.1", 1)}, receive, send))
    assert (sent[0]["status"], parts) == (413, [])


def test_keys_are_asked_for_wherever_something_is_computed(models):
    api = Api(ModelStore.from_models({"t": models["translate"]}), keys=[KEY, f"{KEY} 2"])
    asked = {"q": CAT, "source": "en", "target": "fr"}
    with client_of_api(api) as client:
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200
        assert "key" in error_of(client.post("/translate", json=asked), 401)
        assert "key" in error_of(client.get("/models", headers={"Authorization": f"Bearer {KEY}x"}), 401)
        assert client.post("/translate", json=asked | {"api_key": KEY}).status_code == 200
        assert client.get("/models", headers={"X-API-Key": f"{KEY} 2"}).status_code == 200
        reloaded = client.post("/admin/reload", headers={"Authorization": f"Bearer {KEY}"})
        assert reloaded.json() == {"reloaded": ["t"]}
        # as the package libretranslatepy asks: a form with the key, of a GET as well
        form = {"content": f"api_key={KEY}".replace(" ", "+"), "headers": FORM}
        assert client.request("GET", "/languages", **form).json()[0]["code"] == "en"
        assert "not detected" in error_of(client.post("/detect", **form), 400)
        form["content"] = "q=a&api_key=x"
        assert "key" in error_of(client.request("GET", "/languages", **form), 401)
        assert "key" in error_of(client.post("/detect", **form), 401)
        assert "key" in error_of(client.get("/languages"), 401)
    with client_of_api(Api(ModelStore.from_models({"t": models["translate"]}))) as client:
        assert "no API keys" in error_of(client.post("/admin/reload"), 401)


# --- the scheduler ---


class SlowBatch(RunningBatch):
    """Jobs that end when they are allowed to."""

    def __init__(self, free: Event):
        self.free, self.jobs, self.sizes = free, [], []

    def add(self, jobs):
        self.jobs += jobs

    def step(self):
        self.sizes.append(len(self.jobs))
        if not self.free.wait(0.005):
            return []
        done, self.jobs = self.jobs, []
        for job in done:
            job.finish(len(self.sizes))
        return done

    def remove(self, jobs):
        self.jobs = [job for job in self.jobs if job not in jobs]


def job_of(batch: Any, given: Any = None, *, key: Any = "k", tokens: int = 1, seconds: float = 60.0) -> Job:
    return Job(key, batch, given, tokens=tokens, deadline=monotonic() + seconds)


def scheduled(work: Any, **how: Any) -> Any:
    """What an async function makes with a scheduler that runs."""

    async def run() -> Any:
        scheduler = Scheduler(Metrics(), **{"workers": 1, "max_waiting": 4, "max_tokens": 3} | how)
        scheduler.start()
        try:
            return await work(scheduler)
        finally:
            await scheduler.close()

    return asyncio.run(run())


def test_jobs_join_within_the_budget_wait_in_the_queue_and_are_refused_beyond():
    async def work(scheduler: Scheduler) -> None:
        free = Event()
        batch = SlowBatch(free)
        jobs = [job_of(lambda: batch) for _ in range(7)]
        for job in jobs:
            while scheduler.workers[0].tokens < 3 and scheduler.waiting:
                await asyncio.sleep(0.001)
            scheduler.submit([job])
        with pytest.raises(ValueError, match="too many requests"):
            scheduler.submit([job_of(lambda: batch)])
        free.set()
        await asyncio.gather(*(job.future for job in jobs))
        assert max(batch.sizes) == 3

    scheduled(work)


def test_a_cancelled_or_late_job_frees_its_place_at_once():
    async def work(scheduler: Scheduler) -> None:
        batch = SlowBatch(Event())
        kept, gone, late = job_of(lambda: batch), job_of(lambda: batch), job_of(lambda: batch, seconds=0.05)
        scheduler.submit([kept, gone, late])
        while not batch.jobs:
            await asyncio.sleep(0.001)
        scheduler.cancel([gone])
        try:
            for job, status in ((gone, 499), (late, 408)):
                with pytest.raises(ValueError) as refused:  # noqa: PT011
                    await asyncio.wait_for(job.future, 5)
                assert refused.value.status == status  # type: ignore[attr-defined]
            assert batch.jobs == [kept]
        finally:
            batch.free.set()
        await kept.future

    scheduled(work)


def test_a_job_that_fails_fails_alone():
    def call(inputs: list[int]) -> list[float]:
        return [1 / one for one in inputs]

    async def work(scheduler: Scheduler) -> Any:
        free = Event()
        blocker = job_of(lambda: SlowBatch(free), key="other", tokens=3)
        scheduler.submit([blocker])
        jobs = [job_of(lambda: CallBatch(call), given) for given in ([1, 2], [0], [4])]
        scheduler.submit(jobs)
        free.set()
        return await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)

    first, second, third = scheduled(work)
    assert (first, third) == ([1.0, 0.5], [0.25])
    assert isinstance(second, ZeroDivisionError)


def test_texts_advance_together_and_leave_at_once(models):
    generator, sizes = models["write"], list[int]()
    opening = tuple(generator.encode_prompt(CAT)[0])

    def texts() -> ContinuousGeneration:
        batch = ContinuousGeneration(generator.model)
        step = batch.step
        batch.step = lambda ahead=1: (sizes.append(len(batch.texts)), step(ahead))[1]  # type: ignore[method-assign]
        return batch

    def part_of(tokens: Iterator[GeneratedToken]) -> Iterator[TextPart]:
        for token in tokens:
            yield TextPart("", (token,), "stop" if token.id == stopping else None)

    def endless(tokens: Iterator[GeneratedToken]) -> Iterator[TextPart]:
        return (TextPart("", (token,)) for token in tokens)

    async def work(scheduler: Scheduler) -> Any:
        metrics = Metrics()
        jobs = [
            job_of(lambda: GenerationBatch(texts, metrics), GenerationJob(TextRequest(opening, tokens=n), parts))
            for n, parts in ((5, part_of), (2, part_of), (400, endless))
        ]
        scheduler.submit(jobs)
        found = [[part.tokens[0].id async for part in job.stream()] for job in jobs[:2]]
        scheduler.cancel(jobs[2:])
        with pytest.raises(ValueError, match="closed the connection"):
            await jobs[2].future
        return found

    stopping = -1
    alone = [token.id for token in generate(generator.model, opening, Greedy(), tokens=5)]
    assert scheduled(work) == [alone, alone[:2]]
    assert len(sizes) < 400
    assert max(sizes) == 3
    stopping = alone[0]
    assert scheduled(work) == [alone[:1], alone[:1]]


def test_what_was_accepted_is_finished_before_the_end():
    found = []

    async def work(scheduler: Scheduler) -> None:
        free = Event()
        jobs = [job_of(lambda: SlowBatch(free)) for _ in range(4)]
        scheduler.submit(jobs)
        closing = asyncio.ensure_future(scheduler.close())
        while not scheduler.closing:
            await asyncio.sleep(0.001)
        with pytest.raises(ValueError, match="shutting down"):
            scheduler.submit([job_of(lambda: SlowBatch(free))])
        free.set()
        found.extend(await asyncio.gather(*(job.future for job in jobs)))
        await closing

    scheduled(work)
    assert len(found) == 4


# --- what people watch ---


def test_metrics_count_requests_tokens_and_batches(models):
    with client_of_api(Api(ModelStore.from_models({"t": models["translate"]}))) as client:
        client.post("/translate", json={"q": [CAT, "the cat", "the cat"], "source": "en", "target": "fr"})
        text = client.get("/metrics").text
    assert 'regard_requests_total{route="/translate",status="200"} 1.0' in text
    assert 'regard_tokens_total{direction="read"} 10.0' in text  # a sentence that comes twice is translated once
    assert "regard_batch_size_count" in text
    assert "regard_request_seconds_bucket" in text


def test_a_request_is_one_line_of_json_without_its_text(client):
    import logging

    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("regard.api")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        client.post("/translate", json={"q": CAT, "source": "en", "target": "fr"}, headers={"X-Request-Id": "mine"})
    finally:
        logger.removeHandler(handler)
    line = JsonFormatter().format(records[-1])
    assert "cat" not in line
    told = json.loads(line)
    assert (told["id"], told["route"], told["status"], told["event"]) == ("mine", "/translate", 200, "request")


def test_the_page_and_the_api_share_a_process(models):
    store = ModelStore.from_models({"t": models["translate"]})
    app = create_api(Api(store), page=create_app(store, token=TOKEN))
    with TestClient(app, base_url=HERE) as client:
        assert client.get("/languages").status_code == 200
        assert client.get("/api/models").status_code == 403  # the page wants its token
        client.get("/", params={"token": TOKEN}).raise_for_status()
        assert client.get("/api/models").json()["models"][0]["name"] == "t"


def test_a_model_is_loaded_again_and_what_began_before_ends_with_the_old_one(tmp_path):
    translator().save(tmp_path / "run")
    api = Api(ModelStore.from_folders([tmp_path / "run"]), keys=[KEY])
    asked, key = {"q": CAT, "source": "en", "target": "fr", "api_key": KEY}, {"Authorization": f"Bearer {KEY}"}
    with client_of_api(api) as client:
        before, old = client.post("/translate", json=asked).json(), api.models["run"]
        other = translator(layers=2)
        other.save(tmp_path / "run")
        assert client.post("/translate", json=asked).json() == before
        assert client.post("/admin/reload", headers=key).status_code == 200
        assert api.models["run"].version != old.version
        now = client.post("/translate", json=asked).json()["translatedText"]
        assert now == translate_texts(other, [CAT], CLI_SEARCH)[0]
        (tmp_path / "run" / "settings.toml").write_text("task = 'translation'\nbroken")
        assert "as they were" in error_of(client.post("/admin/reload", headers=key), 409)
        assert client.post("/translate", json=asked).json()["translatedText"] == now


def test_generators_of_other_tokens_are_streamed_too():
    with client_of_api(Api(ModelStore.from_models({"write": generator(text="characters")}))) as client:
        asked = {"prompt": "the ca", "max_tokens": 9}
        whole = completion(client, **asked).json()["choices"][0]["text"]
        streamed = "".join(one["choices"][0]["text"] for one in events_of(completion(client, **asked, stream=True)))
        assert whole == streamed
        assert len(whole) == 9


# --- other engines ---


def test_an_exported_model_answers_as_the_run(tmp_path):
    run = translator(dropout=0.0)
    run.save(tmp_path / "run")
    export(tmp_path / "run", "ctranslate2", tmp_path / "exported", count=3)
    api = Api(ModelStore.from_folders([tmp_path / "run"]), exported=tmp_path / "exported")
    texts = [CAT, "the cat"]
    with client_of_api(api) as client:
        body = {"texts": texts, "beam": 3, "length_penalty": 0}
        found = client.post("/models/run/translate", json=body).json()["outputs"]
    assert [one["text"] for one in found] == translate_texts(run, texts, Beam(3, refill=True))
    translator(layers=2).save(tmp_path / "run")
    with pytest.raises(ValueError, match="was not exported from"):
        Api(ModelStore.from_folders([tmp_path / "run"]), exported=tmp_path / "exported")


# --- heavier: a real server ---


@pytest.mark.slow
def test_schemathesis_finds_no_error_of_ours(tmp_path):
    """Requests that the OpenAPI description allows, and some that it does not."""
    if (tool := shutil.which("schemathesis") or shutil.which("st")) is None:
        pytest.skip("schemathesis is not installed: pip install schemathesis")
    translator().save(tmp_path / "translator")
    generator().save(tmp_path / "writer")
    with serve_process(tmp_path / "translator", tmp_path / "writer") as port:
        run = [tool, "run", f"http://127.0.0.1:{port}/openapi.json", "--checks", "not_a_server_error", "-n", "60"]
        done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_a_server_that_is_told_to_end_answers_what_it_accepted(tmp_path, monkeypatch):
    """As benchmarks/api_load.py measures it: 64 clients, kill -TERM."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import api_load

    run, texts = translator(), [CAT, "the cat", "a dog"]
    run.model.eval()
    run.save(tmp_path / "translator")
    known = dict(zip(texts, translate_texts(run, texts, CLI_SEARCH), strict=True))
    with api_load.serving(tmp_path / "translator") as server:
        tally = asyncio.run(api_load.until_closed(server, known))
        assert server.process.wait(60) == 0
    assert (tally.lost, tally.differing, tally.errors) == (0, 0, 0)
    assert len(tally.seconds) > 64


@pytest.mark.slow
def test_a_model_in_onnx_answers_as_the_command_line(tmp_path):
    translator(dropout=0.0).save(tmp_path / "run")
    command, run = [sys.executable, "-m", "regard"], str(tmp_path / "run")
    exported = ["--to", "onnx", "--out", str(tmp_path / "onnx"), "--count", "3"]
    subprocess.run([*command, "export", run, *exported], check=True, capture_output=True)
    said = subprocess.run([*command, "translate", run, CAT], check=True, capture_output=True, text=True).stdout
    with serve_process(tmp_path / "run", options=("--exported", str(tmp_path / "onnx"))) as port:
        body = json.dumps({"q": CAT, "source": "en", "target": "fr"}).encode()
        asked = URLRequest(f"http://127.0.0.1:{port}/translate", body, {"Content-Type": "application/json"})
        with urlopen(asked) as answer:
            assert json.load(answer)["translatedText"] == said.strip()


@contextmanager
def serve_process(*runs: Path, options: Sequence[str] = ()) -> Iterator[int]:
    """The port of a server, which ends with the block as it should."""
    command = [sys.executable, "-m", "regard", "api", *map(str, runs), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield int(re.findall(r":(\d+)/", process.stdout.readline())[0])
        process.terminate()
        assert process.wait(60) == 0


# --- connections ---


class WrittenBytes(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self):
        super().__init__()
        self.parts, self.closed = list[bytes](), False

    def write(self, data: Any) -> None:
        self.parts.append(bytes(data))

    def close(self) -> None:
        self.closed = True


def test_what_is_written_in_one_turn_of_the_loop_is_one_packet():
    async def run() -> None:
        transport = WrittenBytes()
        joined = JoinedWrites(transport, asyncio.get_running_loop())
        joined.write(b"head ")
        joined.write(b"")
        joined.write(b"body")
        assert transport.parts == []
        await asyncio.sleep(0)
        assert transport.parts == [b"head body"]
        joined.write(b"much" * MAX_HELD)  # who reads slowly is noticed before more is held
        assert len(transport.parts) == 2
        joined.write(b"last")
        joined.close()
        assert transport.parts[2:] == [b"last"]
        assert transport.closed
        await asyncio.sleep(0)
        assert len(transport.parts) == 3

    asyncio.run(run())


def test_an_idle_search_is_used_for_beams_of_its_kind_alone(models):
    model = prepare(models["translate"].model)
    searches, source = RunningSearches(model), tuple(models["translate"].source.encode(CAT))
    first: ContinuousBeamSearch | None = None
    for index, size in enumerate((2, 2, 3)):
        searches.add([(index, SearchJob(source, (), Beam(size)), monotonic() + 60)])
        (search,) = searches.searches.values()
        assert (search is first) == (index == 1)
        first = first or search
        while searches.searches:
            searches.step()
        ended, _ = searches.report()
        (expected,) = translate(model, [source], Beam(size))
        assert ended[index] == expected
