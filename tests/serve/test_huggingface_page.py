"""The page of Hugging Face models: every route and every view, for encoders, decoders, pairs, vision and speech."""

import csv
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.see import Trace, show, trace_model
from regard.serve.app import GET_ROUTES, POST_ROUTES
from regard.serve.exports import MEDIA_TYPES
from regard.serve.model_store import MediaStore, ModelStore
from tests.interop.families import FAMILIES, pictures, sounds
from tests.interop.folders import SENTENCE, save_folder

from .browser_page import BrowserPage, in_shares, open_tab
from .client import client_of, events, floats, octets, post_trace, row_in, served, site_path

KINDS = ["BERT", "GPT-2", "Llama", "Gemma 2", "Gemma 3", "gpt-oss", "Marian", "T5", "ViT", "Whisper"]
ALONE = {"/api/positions", "/api/patterns"}  # of no model
NOT_HERE = {"/api/traces/{id}/sites/{site}/gate"}  # of models with gates
NOT_HERE |= {"/api/corpora", "/api/corpora/{id}/statistics", "/api/corpora/{id}/neighbours"}  # test_corpora.py


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    here = tmp_path_factory.mktemp("models")
    return {name: save_folder(name, here / name.lower().replace(" ", "-")) for name in KINDS}


@pytest.fixture(scope="module")
def store(folders) -> ModelStore:
    return ModelStore.from_folders(folders.values())


@pytest.fixture(scope="module")
def client(store):
    with client_of(store) as found:
        yield found


def example(name: str) -> str:
    return {pictures: "example 2", sounds: "example sound"}.get(FAMILIES[name].inputs, SENTENCE)


def generates(name: str) -> bool:
    return FAMILIES[name].generates or name == "Gemma 2"


def reference(store: ModelStore, folder: Path, name: str) -> Trace:
    """By the library alone."""
    media, text = MediaStore(), example(name)
    kind = {pictures: "image", sounds: "audio"}.get(FAMILIES[name].inputs)
    more = 12 if generates(name) and "decoder.0.cross" not in FAMILIES[name].sites else 0
    found = trace_model(store.model(folder.name), str(media.path(kind, text)) if kind else text, more=more)
    media.close()
    return found


class Visitor:
    """Requests by their route, each of which it notes."""

    def __init__(self, client: Any):
        self.client, self.visited = client, set[str]()

    def get(self, route: str, params: dict[str, Any] | None = None, /, **path: Any) -> Any:
        answer = self.client.get(route.format(**path), params=params or {})
        assert answer.status_code == 200, (route, answer.text)
        self.visited.add(route)
        return answer

    def post(self, route: str, body: dict[str, Any], /, **path: Any) -> Any:
        answer = self.client.post(route.format(**path), json=body)
        assert answer.status_code == 200, (route, answer.text)
        self.visited.add(route)
        return answer.json()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KINDS)
def test_every_route_answers_for_every_kind(client, store, folders, name):
    model, own = folders[name].name, reference(store, folders[name], name)
    visitor = Visitor(client)
    body = {"model": model, "text": example(name)}
    trace = visitor.post("/api/traces", body)
    assert trace["output_text"] == own.output_text
    assert [site["name"] for site in trace["sites"]] == list(own.sites)
    last = FAMILIES[name].sites[-1]
    site, where = own.site(last), {"id": trace["id"], "site": last, "head": 1}
    n_q, n_k = site.shape
    head = "/api/traces/{id}/sites/{site}/heads/{head}"

    weights = site.weights(1).numpy()
    for route, at, wanted in (("rows/{query}", n_q - 1, weights[-1]), ("columns/{key}", n_k - 1, weights[:, -1])):
        answer = visitor.get(f"{head}/{route}", **where, query=at, key=at)
        assert np.allclose(np.frombuffer(answer.content, "<f4"), wanted, atol=1e-6)
    for stage in ("products", "scores", "adjusted", "visible", "masked", "weights"):
        visitor.get(head + "/map", {"stage": stage}, **where)
        visitor.get(head + "/cells", {"stage": stage}, **where)
    drawn = octets(client, f"{site_path(trace, last)}/heads/1/map")
    assert np.abs(drawn - 255 * np.sqrt(weights)).max() <= 0.5 + 1e-3
    pair = visitor.get(head + "/pair", {"query": n_q - 1, "key": 0}, **where).json()
    assert abs(pair["weight"] - weights[-1, 0]) < 1e-6
    scaled = pair["dot"] * pair["scale"]
    capped = pair["cap"] * np.tanh(scaled / pair["cap"]) if pair["cap"] else scaled
    assert abs(capped + pair["bias"] - pair["adjusted"]) < 1e-4
    terms = visitor.get(head + "/row", {"query": n_q - 1}, **where).json()
    assert np.allclose(
        [one["weight"] for one in terms["keys"]], weights[-1, [one["key"] for one in terms["keys"]]], atol=1e-6
    )
    explained = visitor.get("/api/traces/{id}/explain", {"method": "value-norms"}, id=trace["id"]).text
    assert "event: result" in explained, explained
    check = visitor.get(head + "/check", **where).json()
    assert check["difference"] <= min(check["tolerance"], 1e-4)

    visitor.get("/api/models")
    visitor.get("/api/models/{name}/checkpoints", name=model)
    assert visitor.get("/api/traces/{id}", id=trace["id"]).json() == trace
    visitor.get("/api/traces/{id}/overview", id=trace["id"])
    visitor.get("/api/traces/{id}/sites/{site}/thumbnails", **where)
    statistics = visitor.get("/api/traces/{id}/statistics", id=trace["id"]).json()
    assert np.allclose(statistics[last]["entropy"], site.statistics().entropy, atol=1e-6)
    asked = {"format": "npz", "site": last, "head": 1}
    assert_exported("npz", visitor.get("/api/traces/{id}/export", asked, id=trace["id"]).content, weights, last)
    visitor.post("/api/lecture", {"trace": trace["id"], "site": last, "head": 1, "query": n_q - 1})

    off = visitor.post("/api/traces", body | {"edits": {"off": [{"site": last, "head": h} for h in range(4)]}})
    assert not floats(client, f"{site_path(off, last)}/heads/1/rows/0").any()
    changed = visitor.post("/api/compare", {"before": trace["id"], "after": off["id"]})
    assert changed["output_text"] == [trace["output_text"], off["output_text"]]
    if own.image is not None:
        assert visitor.get("/api/traces/{id}/picture", id=trace["id"]).content.startswith(b"\x89PNG")
    if generates(name):
        generated_text(visitor, trace, own, model, body)
    unseen = {*GET_ROUTES, *POST_ROUTES} - visitor.visited - ALONE - NOT_HERE
    writing = {route for route in unseen if "next" in route or "beam" in route or "branch" in route}
    assert unseen - {"/api/traces/{id}/picture"} == (set() if generates(name) else writing | {"/api/generate"})
    assert ("/api/traces/{id}/picture" in unseen) == (own.image is None)


def generated_text(visitor: Visitor, trace: dict[str, Any], own: Trace, model: str, body: dict[str, Any]) -> None:
    """The steps, the tree, a branch and live generation."""
    step = trace["steps"] // 2
    shares = np.frombuffer(visitor.get("/api/traces/{id}/next/{step}", id=trace["id"], step=step).content, "<f4")
    assert np.allclose(shares, own.next_token_probabilities(step), atol=1e-6)
    best = visitor.get("/api/traces/{id}/next/{step}/tokens", id=trace["id"], step=step).json()["tokens"]
    assert best[0]["probability"] == pytest.approx(shares.max())
    assert visitor.get("/api/traces/{id}/beam", id=trace["id"]).json()["steps"]
    other = best[1]["id"]
    branch = visitor.post("/api/traces/{id}/branch", {"step": step, "token": other}, id=trace["id"])
    assert branch["id"] != trace["id"]
    stream = visitor.get("/api/generate", body)
    *tokens, (name, done) = events(stream.text)
    assert name == "done", tokens
    crossing = [site for site in own.sites if site.endswith("cross")]
    if not crossing:  # what is streamed is greedy, and so is the trace
        assert done["output_text"] == own.output_text
        last = own.site(list(own.sites)[-1])
        mean = torch.stack([last.row(head, last.shape[0] - 2) for head in range(4)]).mean(0)
        assert np.allclose(row_in(tokens[-1][1]), mean[: len(row_in(tokens[-1][1]))], atol=1e-5)


@pytest.mark.parametrize(
    "name", [one if one in ("T5", "ViT") else pytest.param(one, marks=pytest.mark.slow) for one in KINDS]
)
def test_a_file_of_every_format_is_written_for_every_kind(client, store, folders, name):
    trace = post_trace(client, {"model": folders[name].name, "text": example(name)})
    last = FAMILIES[name].sites[-1]
    weights = reference(store, folders[name], name).site(last).weights(1).numpy()
    for kind in MEDIA_TYPES:
        asked = {"format": kind, "site": last, "head": 1}
        assert_exported(kind, client.get(f"/api/traces/{trace['id']}/export", params=asked).content, weights, last)


def assert_exported(kind: str, content: bytes, weights: np.ndarray, site: str) -> None:
    match kind:
        case "npz":
            assert np.allclose(np.load(io.BytesIO(content))[f"{site}/weights"][0], weights, atol=1e-6)
        case "csv":
            lines = list(csv.DictReader(io.StringIO(content.decode())))
            assert np.allclose([float(line["weight"]) for line in lines], weights.reshape(-1), atol=1e-6)
        case "html":
            assert site in content.decode()
        case _:
            signs = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
            assert content.startswith(signs[kind])


# --- in a browser ---


TEXT = ["overview", "matrix", "lines", "alignment", "pair"]
GENERATED, EDITED = ["generation", "beam"], ["whatif", "comparison"]
VIEWS = {
    "BERT": [*TEXT, *EDITED, "corpus"],
    "gpt-oss": [*TEXT, *GENERATED, *EDITED, "corpus"],
    "T5": [*TEXT, *GENERATED, *EDITED, "corpus"],
    "ViT": ["overview", "matrix", "lines", "pair", "overlay", *EDITED],
    "Whisper": [*TEXT, *GENERATED, *EDITED],
}


@pytest.fixture(scope="module")
def address(store) -> Iterator[str]:
    with served(store) as where:
        yield where


def wait_painted(viewer: BrowserPage, view: str, frame: Any = None) -> None:
    found, last = (frame or viewer.page).locator(f"regard-{view}"), time.monotonic() + 120
    while not (found.count() and found.get_attribute("data-painted")):
        assert time.monotonic() < last, f"{view} was never painted: {viewer.wrong}"
        time.sleep(0.02)


@pytest.mark.parametrize(("name", "share"), in_shares(VIEWS))
def test_every_view_is_painted_for_every_kind(shared_page, address, folders, name, share):
    viewer = BrowserPage(shared_page, address)
    shared_page.goto(f"{address}#model={folders[name].name}&text={example(name)}&view=matrix")
    wait_painted(viewer, "matrix")
    predicting = [] if name == "BERT" else ["model"]
    groups = [one.get_attribute("data-views") or "" for one in shared_page.locator("#groups button").all()]
    assert sorted(" ".join(groups).split()) == sorted(
        [*VIEWS[name], "start", "explain", "row", "positions", "masks", "lecture", *predicting]
    )
    for view in [*VIEWS[name], "explain", *predicting, "row", "start"][share]:
        open_tab(shared_page, view)
        wait_painted(viewer, view)
        assert not shared_page.locator("#problem").is_visible(), (view, shared_page.locator("#problem").inner_text())
    viewer.stop()
    assert not viewer.wrong


@pytest.mark.parametrize("name", ["T5", "ViT"])
def test_the_page_of_a_trace_in_a_file(shared_page, store, folders, tmp_path, name):
    path = tmp_path / "page.html"
    path.write_text(show(reference(store, folders[name], name)).html, encoding="utf-8")
    viewer = BrowserPage(shared_page, "")
    shared_page.goto(path.as_uri())
    wait_painted(viewer, "overview")
    for view in [one for one in VIEWS[name] if one not in (*EDITED, "corpus")]:
        open_tab(shared_page, view)
        wait_painted(viewer, view)
    viewer.stop()
    assert not viewer.wrong


def test_a_head_whose_weights_alone_are_in_the_file_is_drawn(shared_page, store, folders, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.serve.exports.MAX_FULL_CELLS", 0)
    path = tmp_path / "page.html"
    path.write_text(show(reference(store, folders["BERT"], "BERT"), site="encoder.1", head=2).html, encoding="utf-8")
    viewer = BrowserPage(shared_page, "")
    shared_page.goto(path.as_uri())
    for view in ("matrix", "lines", "alignment", "overview"):
        open_tab(shared_page, view)
        wait_painted(viewer, view)
        assert not shared_page.locator("#problem").is_visible(), view
    open_tab(shared_page, "pair")
    shared_page.locator("#problem").wait_for()
    assert "holds only this head's weights" in shared_page.locator("#problem").inner_text()
    viewer.stop()
