"""Corpora over HTTP, on the command line and in the page: the numbers of `corpus_statistics` in all three."""

import json
from collections.abc import Iterator
from threading import Event
from threading import enumerate as enumerate_threads
from time import monotonic, sleep
from typing import Any

import pytest

from regard.see.corpus import held_out_sentences, read_corpus, serialize_statistics
from regard.see.corpus_tally import corpus_statistics
from regard.see.trace import trace_model
from regard.serve import trace_cache
from regard.serve.encoding import replace_nonfinite
from regard.serve.model_store import ModelStore
from regard.serve.trace_cache import CorpusEntry
from tests.cli.commands import assert_done, regard
from tests.interop.folders import save_folder

from .browser_page import BrowserPage
from .client import client_of, events, served

PAIRS = "the black cat ate the mouse\tle chat noir a mangé la souris\t0-0 1-2 2-1\nthe cat\tle chat\na dog\n"


def post_corpus(client: Any, **body: Any) -> dict[str, Any]:
    answer = client.post("/api/corpora", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def last_event(client: Any, number: str) -> tuple[str, dict[str, Any]]:
    answer = client.get(f"/api/corpora/{number}/statistics")
    *before, last = events("\n\n".join(part for part in answer.text.split("\n\n") if not part.startswith(":")))
    assert {name for name, _ in before} <= {"progress"}
    return last


def plain(value: Any) -> Any:
    """As JSON has it: lists for tuples, null for NaN."""
    return json.loads(json.dumps(replace_nonfinite(value)))


def test_the_page_gets_the_numbers_of_python_and_the_command_writes_them(client, models, tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text(PAIRS, encoding="utf-8")
    expected = plain(
        serialize_statistics(corpus_statistics(models["translate"], read_corpus(models["translate"], path)))
    )
    made = post_corpus(client, model="translate", name="pairs.tsv", content=PAIRS)
    assert made == {"id": made["id"], "model": "translate", "name": "pairs.tsv", "sentences": 3, "left_out": 0}
    name, found = last_event(client, made["id"])
    assert name == "result"
    assert {key: found[key] for key in expected} == expected
    assert last_event(client, made["id"])[1] == found  # what is known is not computed again
    models["translate"].save(tmp_path / "run")
    command = regard("look", tmp_path / "run", "--corpus", path, "--save", tmp_path / "found.json")
    assert "3 sentences" in assert_done(command)
    written = json.loads((tmp_path / "found.json").read_text())
    assert [one["spans"] for one in written["heads"]] == [one["spans"] for one in expected["heads"]]
    assert [one["entropy"] for one in written["heads"]] == [one["entropy"] for one in expected["heads"]]


def test_held_out_sentences_are_those_of_the_run(client, models):
    made = post_corpus(client, model="tag", count=7)
    assert made["sentences"] == 7
    _, found = last_event(client, made["id"])
    sentences = held_out_sentences(models["tag"], 7)
    assert [one["text"] for one in found["sentences"]] == [one.text for one in sentences]
    ((layer, states),) = found["layers"].items()
    near = client.get(f"/api/corpora/{made['id']}/neighbours", params={"layer": layer, "state": 3, "count": 2}).json()
    expected = corpus_statistics(models["tag"], sentences).states[layer].nearest(3, 2)
    assert [(one[1], one[0]) for one in near["neighbours"]] == [(n, pytest.approx(alike)) for n, alike in expected]
    assert states["states"] == sum(len(trace_model(models["tag"], one.text).axes["text"].labels) for one in sentences)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "picture"}, 400, "and no sentences"),
        ({"model": "translate", "count": 0}, 400, "count is a whole number from 1"),
        ({"model": "translate", "name": "../../a.tsv", "content": "a\tb\tc\td\n"}, 400, "a.tsv:1: 4 columns"),
        ({"model": "translate", "name": "a.txt", "content": "\n"}, 400, "a.txt holds no sentence"),
    ],
)
def test_what_is_no_corpus_is_refused_by_its_own_name(client, body, status, message):
    answer = client.post("/api/corpora", json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert "/tmp" not in answer.json()["error"]


def test_the_last_corpora_are_kept_and_unknown_states_refused(client, monkeypatch):
    monkeypatch.setattr(trace_cache, "MAX_CORPORA", 2)
    first, *_, last = (post_corpus(client, model="translate", name="a.txt", content="a dog")["id"] for _ in range(3))
    assert client.get(f"/api/corpora/{first}/neighbours").status_code == 404
    answer = client.get(f"/api/corpora/{last}/neighbours", params={"layer": "encoder.0"})
    assert (answer.status_code, "ask for their statistics first" in answer.json()["error"]) == (409, True)
    last_event(client, last)
    for query, message in (
        ({"layer": "x"}, "states of 'x' are not kept"),
        ({"layer": "encoder.0", "state": 99}, "no state 99"),
    ):
        assert message in client.get(f"/api/corpora/{last}/neighbours", params=query).json()["error"]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> Iterator[tuple[Any, ModelStore]]:
    here = tmp_path_factory.mktemp("foreign")
    store = ModelStore.from_folders([save_folder(name, here / name) for name in ("GPT-2", "BERT", "Marian")])
    with client_of(store) as client:
        yield client, store


@pytest.mark.parametrize("name", ["GPT-2", "BERT", "Marian"])
def test_models_of_hugging_face_are_counted_over_http_as_in_python(foreign, name, tmp_path):
    client, store = foreign
    path = tmp_path / "some.txt"
    path.write_text("the black cat ate the mouse\nthe mouse\na dog\n", encoding="utf-8")
    made = post_corpus(client, model=name, name="some.txt", content=path.read_text())
    kind, found = last_event(client, made["id"])
    model = store.model(name)
    expected = plain(serialize_statistics(corpus_statistics(model, read_corpus(model, path))))
    assert kind == "result"
    assert flat(found["heads"]) == pytest.approx(flat(expected["heads"]), abs=1e-5)
    assert any(one["spans"] for one in found["heads"])
    layer = next(iter(found["layers"]))
    near = client.get(f"/api/corpora/{made['id']}/neighbours", params={"layer": layer, "state": 1, "count": 3}).json()
    assert len(near["neighbours"]) == 3
    refused = client.post("/api/corpora", json={"model": name, "count": 5})
    assert (refused.status_code, "no sentences are held out; give a file" in refused.json()["error"]) == (400, True)


def flat(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [one for each in value.values() for one in flat(each)]
    if isinstance(value, list):
        return [one for each in value for one in flat(each)]
    return [float(value)] if isinstance(value, int | float) else []


# --- in the browser ---


@pytest.fixture(scope="module")
def address(models) -> Iterator[str]:
    with served(ModelStore.from_models({"translate": models["translate"]})) as where:
        yield where


def test_a_click_opens_the_sentence_of_a_span_and_a_dot_has_neighbours(shared_page, address, models):
    viewer = BrowserPage(shared_page, address)
    shared_page.goto(f'{address}#view=corpus&corpus=~{{"count":9}}')
    shared_page.locator("regard-corpus[data-painted$=heads]").wait_for()
    expected = corpus_statistics(models["translate"], held_out_sentences(models["translate"], 9))
    rows = shared_page.locator("regard-corpus table").first.locator("tbody tr")
    assert rows.count() == len(expected.heads)
    best = min(expected.heads, key=lambda head: 1.0 if head.aer is None else head.aer)  # the words' links are known
    assert rows.first.locator("button").inner_text() == f"{best.site}, {best.head}"
    assert float(rows.first.locator("data").first.get_attribute("value") or "") == pytest.approx(best.entropy)
    shared_page.locator("[data-sort=distance]").click()
    far = max(expected.heads, key=lambda head: head.distance)
    assert rows.first.locator("button").inner_text() == f"{far.site}, {far.head}"
    # states: the keyboard chooses a dot, and its neighbours are those of Python
    shared_page.locator("[name=corpus-shown][value=states]").click()
    shared_page.locator("regard-corpus[data-painted$=states]").wait_for()
    shared_page.locator(".scatter").focus()
    shared_page.keyboard.press("ArrowRight")
    shared_page.keyboard.press("Enter")
    shared_page.locator(".corpus .card table data").first.wait_for()
    shown = [float(one.get_attribute("value")) for one in shared_page.locator(".corpus .card table data").all()]
    layer = next(iter(expected.states))
    said = 'decodeURIComponent(location.hash).match(/"point":(\\d+)/)'
    shared_page.wait_for_timeout(300)  # the address follows a little later
    number = int(shared_page.evaluate(f"{said}[1]"))
    assert shown == pytest.approx([alike for _, alike in expected.states[layer].nearest(number)], abs=1e-5)
    # a span loads its sentence, at its head and cell
    shared_page.locator("[name=corpus-shown][value=heads]").click()
    shared_page.locator(".corpus .spans button").first.click()
    shared_page.locator("regard-matrix[data-painted]").wait_for()
    span = far.spans[0]
    assert shared_page.locator("#text").input_value() == expected.sentences[span.sentence].text
    weight = shared_page.locator("dd[data-stage=weights] data")
    weight.wait_for()
    assert float(weight.get_attribute("value") or "") == pytest.approx(span.weight, abs=1e-5)
    viewer.stop()
    assert not viewer.wrong
    assert all(url.startswith((address.split("/?")[0], "data:", "blob:")) for url in viewer.requested)


def test_the_counting_says_how_far_it_is_and_stops_at_a_click(shared_page, address, monkeypatch):
    going = Event()

    def slow(self: CorpusEntry, task_model: Any, progress: Any) -> Any:
        for _ in progress(range(10**6), "sentences"):
            going.set()
            sleep(0.01)

    monkeypatch.setattr(CorpusEntry, "statistics", slow)
    viewer = BrowserPage(shared_page, address)
    viewer.leave()
    shared_page.goto(f'{address}#view=corpus&corpus=~{{"count":7}}')
    shared_page.get_by_text("of 1000000 sentences").wait_for()
    assert going.wait(10)
    shared_page.get_by_role("button", name="Stop").click()
    said = shared_page.locator("#panel").get_by_text("Stopped; nothing was kept.")
    said.wait_for()
    shared_page.wait_for_timeout(300)  # the address has followed
    assert said.is_visible()
    last = monotonic() + 10
    while any(one.name == "regard explanation" for one in enumerate_threads()):  # the thread ends, too
        assert monotonic() < last
        sleep(0.05)
    viewer.stop()
    assert not viewer.wrong
