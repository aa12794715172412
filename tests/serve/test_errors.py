"""What strangers, mistakes and many at once do to the server: one sentence each time, and everybody else is served."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest
from safetensors.torch import save_file
from starlette.testclient import TestClient

from regard.models.safetensors_io import saveable_tensors
from regard.see import Trace
from regard.see.trace import TraceRequest, build_trace
from regard.serve import handlers
from regard.serve.app import create_app, page_folder
from regard.serve.encoding import RequestError
from regard.serve.model_store import ModelStore
from regard.serve.trace_cache import CachedTrace, TraceCache
from tests.see.untrained_models import CAT, tagger, translator

from .client import HERE, TOKEN, assert_sentence, client_of, example, floats, post_trace, site_path, visitor

HOSTILE = {
    "markup": "<script>alert(1)</script> <img src=x onerror=alert(2)> </textarea>",
    "right to left": "שלום עולם ‮evil‬ مرحبا",
    "combining": "Z" + "\u0353\u034d\u0359" * 40 + " e\u0301 \u200b\u200d",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 😀😀",
    "blanks": "a\u00a0b\u3000c\u2028d\t e",
    "formula": '=HYPERLINK("http://evil") @SUM(1) -2+3',
    "template": "{{7*7}} ${7*7} %s %n {0}",
    "not characters": "\ufffe\uffff \ud7ff",
}


# --- texts ---


@pytest.mark.parametrize("kind", ["translate", "tag", "classify", "write", "rebuild"])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_any_text_is_read_and_comes_back_as_it_was(client, kind, text):
    answer = client.post("/api/traces", json={"model": kind, "text": text})
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"] == text
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.content.isascii()


@pytest.mark.parametrize("kind", ["translate", "tag", "classify", "write", "rebuild", "answer"])
def test_a_hundred_thousand_letters_are_answered_with_a_sentence(client, kind):
    long = "the cat " * 12_500
    body = example(client, kind) | ({"question": long} if kind == "answer" else {"text": long})
    assert_sentence(client.post("/api/traces", json=body), 413, "; split ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty"),
        (" \n", "the text is empty"),
        ("a\0b", "NUL"),
        ("half \ud800", "a lone surrogate"),
        (7, "text is a text"),
        (["x"], "text is a text"),
        (None, "the text is empty"),
    ],
)
def test_what_is_no_text_is_refused(client, text, message):
    answer = client.post(
        "/api/traces",
        content=json.dumps({"model": "translate", "text": text}),
        headers={"Content-Type": "application/json"},
    )
    assert_sentence(answer, 400, message)


def test_two_hundred_thousand_letters_are_not_even_read(client):
    assert_sentence(client.post("/api/traces", json={"model": "tag", "text": "x" * 200_001}), 413, "200,001 letters")


# --- requests ---


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "nobody", "text": CAT}, 404, "there is no model 'nobody'; there are translate, tag"),
        ({"model": "tag", "text": CAT, "target": "x"}, 400, "target means nothing"),
        ({"model": "tag", "text": CAT, "beam": 0}, 400, "from 1 to 32"),
        ({"model": "tag", "text": CAT, "beam": True}, 400, "whole number"),
        ({"model": "write", "text": CAT, "more": 10**6}, 400, "from 0 to 256"),
        ({"model": "tag", "text": CAT, "checkpoint": 3}, 404, "no checkpoint of step 3; none are kept"),
        ({"model": "tag", "text": CAT, "colour": 3}, 400, "'colour' is an unknown field"),
        ({"model": "tag", "text": CAT, "picture": "aGk="}, 400, "takes no images"),
        (
            {"model": "picture", "text": "x", "picture": "aGk="},
            400,
            "the image: not a complete PNG or JPEG image (no PNG",
        ),
        ({"model": "picture", "text": "x", "picture": "!!"}, 400, "not base64"),
        ({"model": "tag", "text": CAT, "edits": {"fly": []}}, 400, "no edit is called 'fly'"),
        ({"model": "tag", "text": CAT, "edits": [1]}, 400, "edits are a table"),
        ({"model": "tag", "text": CAT, "edits": {"off": [{}] * 4097}}, 413, "more than 4,096 edits"),
        ({"model": "tag", "text": CAT, "edits": {"off": [{"site": "*", "head": 0}]}}, 400, "there is no site '*'"),
        ({"model": "tag", "text": CAT, "edits": {"off": [{"site": "x", "head": 0}]}}, 400, "there is no site 'x'"),
        ({"model": "tag", "text": CAT, "edits": {"swaps": [{"word": 99, "to": "x"}]}}, 400, "there is no word 99"),
        ({"model": "graph", "text": "Nobody"}, 400, "Nobody"),
    ],
)
def test_a_trace_that_cannot_be_is_a_sentence(client, body, status, message):
    assert_sentence(client.post("/api/traces", json=body), status, message)


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/sites/encoder.0/heads/99/map", 404, "encoder.0 has no head 99; they are counted from 0 to 2"),
        ("/sites/encoder.0/heads/3/rows/0", 404, "no head 3"),
        ("/sites/encoder.0/heads/-1/rows/0", 404, "no head '-1'"),
        ("/sites/encoder.0/heads/x/check", 404, "no head 'x'"),
        ("/sites/encoder.0/heads/0/rows/99", 404, "no query 99"),
        ("/sites/encoder.0/heads/0/columns/99", 404, "no key 99"),
        ("/sites/encoder.0/heads/0/pair?query=99&key=0", 400, "query is a whole number from 0"),
        ("/sites/encoder.0/heads/0/cells?stage=wings", 400, "there is no stage 'wings'"),
        ("/sites/encoder.0/heads/0/cells?top=5&bottom=2", 400, "leave nothing to show"),
        ("/sites/encoder.0/heads/0/map?rows=0", 400, "rows is a whole number"),
        ("/sites/encoder.0/heads/0/map?rows=1e9", 400, "rows is a whole number"),
        ("/sites/none/heads/0/map", 404, "there is no layer 'none'; there are encoder.0"),
        ("/sites/none/thumbnails", 404, "there is no layer 'none'"),
        ("/sites/encoder.0/thumbnails?size=100000", 400, "size is a whole number"),
        ("/overview?size=100000", 400, "size is a whole number"),
        ("/next/0", 400, "generates nothing step by step"),
        ("/export?format=exe", 400, "cannot write 'exe'"),
        ("/export?site=encoder.0&head=9&format=csv", 404, "no head 9"),
        ("/nothing", 404, "there is nothing at"),
    ],
)
def test_what_is_not_there_is_a_sentence(client, path, status, message):
    trace = post_trace(client, {"model": "tag", "text": CAT})
    assert_sentence(client.get(f"/api/traces/{trace['id']}{path}"), status, message)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/api/patterns", {"pattern": "", "length": 4}, "a pattern has 1 to 500 letters"),
        ("/api/patterns", {"pattern": "Bilinear(100000)", "length": 4}, "no pattern is called 'Bilinear'"),
        ("/api/patterns", {"pattern": "__import__('os')", "length": 4}, "no pattern is called '__import__'"),
        ("/api/patterns", {"pattern": "Window(0)", "length": 4}, "Window"),
        ("/api/patterns", {"pattern": "Causal() & 3", "length": 4}, "cannot read"),
        ("/api/patterns", {"pattern": "3", "length": 4}, "no part; write one such as"),
        ("/api/patterns", {"pattern": "~" * 400 + "Causal()", "length": 2**21}, "length is a whole number"),
        ("/api/patterns", {"pattern": "(" * 450, "length": 4}, "cannot read"),
        ("/api/patterns", {"pattern": "Random(1000)", "length": 4}, "at most 64 random picks"),
        ("/api/compare", {"before": 1}, "before is a text"),
        ("/api/compare", {"before": ""}, "two traces are compared"),
    ],
)
def test_a_lab_refuses_in_a_sentence(client, path, body, message):
    assert_sentence(client.post(path, json=body), 400, message)


@pytest.mark.parametrize("query", ["kind=magic", "kind=alibi&length=60000", "length=-1", "width=x"])
def test_positions_that_cannot_be(client, query):
    assert_sentence(client.get(f"/api/positions?{query}"), 400)


def test_a_forgotten_trace_is_asked_again(client):
    assert_sentence(client.get("/api/traces/0123456789abcdef"), 404, "ask again")
    assert_sentence(client.post("/api/compare", json={"before": "x", "after": "y"}), 404, "ask again")


def test_a_gate_has_no_heads(client):
    trace = post_trace(client, example(client, "cnn"))
    for site in trace["sites"]:
        assert_sentence(client.get(f"{site_path(trace, site['name'])}/thumbnails"), 404, "is a gate")


# --- who may ask ---


def test_only_this_machine_s_own_page_may_ask(client):
    for host in ("evil.example", "evil.example:8642", "127.0.0.1.evil.example", ""):
        assert_sentence(client.get("/api/models", headers={"Host": host}), 403, "is not this machine")
    for host in ("localhost", "127.0.0.1:8642", "[::1]:8642"):
        assert client.get("/api/models", headers={"Host": host}).status_code == 200
    body = {"model": "tag", "text": CAT}
    answer = client.post("/api/traces", json=body, headers={"Origin": "https://evil.example"})
    assert_sentence(answer, 403, "cross-origin request refused")
    assert client.post("/api/traces", json=body, headers={"Origin": HERE}).status_code == 200
    for site in ("cross-site", "same-site", "nonsense"):  # a page at another port of this machine is of the same site
        framed = {"Sec-Fetch-Site": site}
        assert_sentence(client.get("/api/models", headers=framed), 403, "cross-origin request refused")
        assert_sentence(client.get("/static/js/main.js", headers=framed), 403, "cross-origin request refused")
        assert client.get("/", headers=framed).status_code == 200
    for site in ("same-origin", "none"):
        assert client.get("/api/models", headers={"Sec-Fetch-Site": site}).status_code == 200
    assert_sentence(client.post("/api/traces", content=json.dumps(body)), 400, "send JSON")


@pytest.mark.parametrize("path", ["/", "/static/js/main.js", "/api/models", "/api/generate?text=x", "/nowhere"])
def test_without_the_token_nobody_is_told_anything(client, path):
    """127.0.0.1 can be reached by every user of a machine."""
    stranger = TestClient(client.app, base_url=HERE)
    guesses = ("", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "é")
    for guess in guesses:
        assert_sentence(stranger.get(path, params={"token": guess}), 403, "open the URL with ?token=")
    assert not stranger.cookies
    for guess in (guess for guess in guesses if guess.isascii()):
        assert_sentence(stranger.get(path, headers={"Cookie": f"regard-80={guess}"}), 403, "?token=")
    assert_sentence(stranger.post("/api/traces", json={"model": "tag", "text": CAT}), 403, "?token=")


def test_a_visit_with_the_token_sets_a_cookie_that_no_script_can_read(client):
    guest = TestClient(client.app, base_url=HERE)
    (cookie,) = guest.get("/", params={"token": TOKEN}).headers.get_list("Set-Cookie")
    assert cookie == f"regard-80={TOKEN}; Path=/; HttpOnly; SameSite=Strict"
    assert guest.get("/api/models").status_code == 200
    assert "Set-Cookie" not in guest.get("/").headers
    assert "Set-Cookie" not in guest.get("/", params={"token": TOKEN}, headers={"Host": "evil.example"}).headers


@pytest.mark.parametrize("path", ["/", "/static/js/api.js", "/api/models", "/nowhere", "/static/../app.py"])
def test_every_answer_is_wrapped_safely(client, path):
    headers = client.get(path).headers
    assert headers["Content-Security-Policy"].startswith("default-src 'self'; img-src 'self' data: blob:;")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert not any(name.startswith("access-control") for name in headers)


def test_the_page_is_there_and_nothing_beside_it(client):
    assert client.get("/").text.startswith("<!doctype html>")
    assert "javascript" in client.get("/static/js/main.js").headers["Content-Type"]
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/js/none.js", "/app.py"):
        assert_sentence(client.get(path), 404, "there is nothing at")
    assert_sentence(client.get("/api/traces"), 405, "method GET is not allowed")


def test_all_scripts_together_travel_in_less_than_150_kilobytes(client):
    scripts = sorted(page_folder().rglob("*.js"))
    assert len(scripts) > 20
    total = 0
    for path in scripts:
        with client.stream("GET", f"/static/{path.relative_to(page_folder())}") as answer:
            total += len(b"".join(answer.iter_raw()))
    assert total < 150_000


def test_no_view_loads_150_kilobytes_of_script_even_unpacked():
    """A view's own scripts come when it is opened: with the page's they are all that a browser has to read."""
    views = sorted(set(re.findall(r'import\("\./(\w+)\.js"\)', (page_folder() / "js/views/index.js").read_text())))
    assert len(views) >= 15
    page = needed(page_folder() / "js/main.js")
    sizes = {
        view: sum(path.stat().st_size for path in page | needed(page_folder() / f"js/views/{view}.js"))
        for view in views
    }
    assert max(sizes.values()) < 150_000, sizes


def needed(script: Path) -> set[Path]:
    """It and what it imports before it runs."""
    found, waiting = set(), [script]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            imported = re.findall(r'^(?:import|export)\b[^;(]*?"(\..+?)"', one.read_text(), re.MULTILINE)
            waiting += [(one.parent / name).resolve() for name in imported]
    return found


@pytest.mark.parametrize("sent", [b"{", b"", b"[1]", b"3", b'{"text": NaN' + b"[" * 100_000, b"\xff\xfe"])
def test_what_is_no_table_is_refused(client, sent):
    answer = client.post("/api/traces", content=sent, headers={"Content-Type": "application/json"})
    assert_sentence(answer, 400, "the body is not")


def test_too_much_is_refused_before_it_is_read(client):
    body = b'{"text": "' + b"x" * (13 * 2**20) + b'"}'
    answer = client.post("/api/traces", content=body, headers={"Content-Type": "application/json"})
    assert_sentence(answer, 413, "send less")


@pytest.mark.parametrize(("trouble", "status"), [(KeyError("secret"), 500), (MemoryError(), 413), (OSError("x"), 500)])
def test_a_mistake_of_ours_is_a_sentence_and_is_logged(models, trouble, status, monkeypatch, caplog):
    def fails(request):
        raise trouble

    monkeypatch.setitem(__import__("regard.serve.app", fromlist=["GET_ROUTES"]).GET_ROUTES, "/api/positions", fails)
    with client_of(ModelStore.from_models(models)) as client:
        sentence = assert_sentence(client.get("/api/positions"), status)
    assert "secret" not in sentence
    assert "error in /api/positions" in caplog.text


# --- many at once ---


def test_two_people_at_once_get_what_each_alone_would(client):
    texts = {kind: [f"{CAT} {word}" for word in ("the", "cat", "ate", "mouse")] for kind in ("translate", "tag")}
    alone = {
        (kind, text): post_trace(client, {"model": kind, "text": text})["output_text"]
        for kind in texts
        for text in texts[kind]
    }
    together = Barrier(2)

    def person(kind: str) -> dict[tuple[str, str], str]:
        found = {}
        mine, warm = visitor(client.app), {"temperatures": [{"site": "*", "value": 1}]}
        for text in texts[kind]:
            together.wait(timeout=120)
            trace = post_trace(mine, {"model": kind, "text": text, "edits": warm})
            found[kind, text] = trace["output_text"]
            path = site_path(trace, trace["sites"][0]["name"])
            assert floats(mine, f"{path}/heads/1/cells").sum(1) == pytest.approx(1, abs=1e-5)
        return found

    with ThreadPoolExecutor(2) as people:
        both = list(people.map(person, texts))
    assert both[0] | both[1] == alone


def test_nobody_waits_for_somebody_else_s_model(client, monkeypatch):
    started, go_on = Event(), Event()

    def slowly(request: TraceRequest) -> Trace:
        if request.text == "slow":
            started.set()
            assert go_on.wait(timeout=120)
        return build_trace(request)

    monkeypatch.setattr(handlers, "build_trace", slowly)
    with ThreadPoolExecutor(1) as other:
        slow = other.submit(post_trace, client, {"model": "tag", "text": "slow"})
        assert started.wait(timeout=120)
        assert post_trace(client, {"model": "tag", "text": "quick"})["text"] == "quick"
        assert not slow.done()
        go_on.set()
        assert slow.result(timeout=120)["text"] == "slow"


def test_the_same_question_is_answered_from_what_is_kept(client):
    body = {"model": "classify", "text": CAT}
    assert post_trace(client, body)["id"] == post_trace(client, dict(body))["id"]
    assert (
        post_trace(client, body | {"edits": {"swaps": [{"word": 1, "to": "white"}]}})["id"]
        != post_trace(client, body)["id"]
    )


def test_the_least_recently_used_trace_goes_first():
    from regard.see import trace_model

    trace, kept = trace_model(tagger(), CAT), TraceCache(max_traces=2, keep_seconds=0)
    ids = [kept.get_or_create(n, lambda number: CachedTrace(number, "tag", trace, CAT)).id for n in range(2)]
    assert kept[ids[0]].id == ids[0]
    third = kept.get_or_create(2, lambda number: CachedTrace(number, "tag", trace, CAT)).id
    assert kept[ids[0]].id == ids[0]
    assert kept[third].id == third
    with pytest.raises(RequestError, match="ask again"):
        kept[ids[1]]
    small = TraceCache(max_bytes=1, keep_seconds=0)
    assert (
        len({small.get_or_create(n, lambda number: CachedTrace(number, "tag", trace, CAT)).id for n in range(3)}) == 3
    )
    assert len(small.entries) == 1


# --- files ---


def test_a_model_that_is_swapped_is_noticed(tmp_path):
    folder = tmp_path / "run"
    one, other = translator(), translator(layers=2)
    one.save(folder)
    with client_of(ModelStore.from_folders([folder])) as client:
        before = post_trace(client, {"text": CAT})
        assert before["model"] == "run"
        other.save(folder)
        after = post_trace(client, {"text": CAT})
        assert len(after["sites"]) == 2 * len(before["sites"])
        assert floats(client, f"{site_path(before, 'encoder.0')}/heads/0/rows/0").sum() == pytest.approx(1, abs=1e-5)
        weights = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        torn = client.post("/api/traces", json={"text": CAT})
        assert_sentence(torn, 409, "the files of run changed and cannot be read")
        (folder / "model.safetensors").unlink()
        assert_sentence(client.post("/api/traces", json={"text": CAT}), 409, "restore them, then ask again")
        (folder / "model.safetensors").write_bytes(weights)
        assert post_trace(client, {"text": CAT})["output_text"] == after["output_text"]
        assert str(folder) in after["python"]


def test_earlier_steps_of_training_are_shown(tmp_path):
    folder = tmp_path / "run"
    last = translator()
    last.save(folder)
    for step in (5, 10):
        place = folder / "checkpoints" / f"{step:08d}"
        place.mkdir(parents=True)
        weights = {name: tensor * (1 + step) for name, tensor in saveable_tensors(last.model).items()}
        save_file(weights, place / "model.safetensors")
    with client_of(ModelStore.from_folders([folder, folder])) as client:
        cards = client.get("/api/models").json()["models"]
        assert [(card["name"], card["checkpoints"]) for card in cards] == [("run", [5, 10]), ("run-2", [5, 10])]
        assert client.get("/api/models/run/checkpoints").json() == {"checkpoints": [5, 10]}
        assert_sentence(client.get("/api/models/none/checkpoints"), 404, "there is no model 'none'")
        body = {"model": "run", "text": CAT, "target": "le chat"}
        steps = [post_trace(client, body | more) for more in ({"checkpoint": 5}, {"checkpoint": 10}, {})]
        rows = [floats(client, f"{site_path(one, 'encoder.0')}/heads/0/rows/0").tolist() for one in steps]
        assert rows[0] != rows[1] != rows[2]
        assert [one["checkpoint"] for one in steps] == [5, 10, None]
        why = assert_sentence(client.post("/api/traces", json=body | {"checkpoint": 7}), 404)
        assert why == "run has no checkpoint of step 7; there are 5, 10"


def test_an_empty_model_store_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no model given"):
        ModelStore.from_folders([])
    with pytest.raises(ValueError, match="holds no model"):
        ModelStore.from_folders([tmp_path])


def test_routes_and_answers_know_each_other(models):
    paths = {route.path for route in create_app(ModelStore.from_models(models), token=TOKEN).routes}  # type: ignore[attr-defined]
    assert {"/", "/static", "/api/generate", "/api/lecture", "/api/traces/{id}/export"} <= paths
