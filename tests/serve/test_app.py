"""Every question that the page asks, of a model of every kind: the reference's numbers, in shapes that fit."""

import base64
import json
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.testing import assert_close

from regard.attention.position_variants import Alibi, Sinusoidal
from regard.decode import Sampling
from regard.decode.alignment import aer, argmax_links
from regard.models.safetensors_io import saveable_tensors
from regard.see import AttentionSite, Edits, compare, trace_model, trace_with_edits
from regard.see.plots.recipe_views import mask
from regard.serve import trace_cache as keeping
from regard.serve.model_store import ModelStore
from regard.serve.playground import parse_pattern
from regard.world import find_lecture_sentence
from tests.see.untrained_models import CAT, translator

from .client import KINDS, assert_sentence, client_of, events, example, floats, octets, post_trace, row_in, site_path

STAGES = ("products", "scores", "adjusted", "visible", "masked", "weights")  # as Python calls them, and masked


def again(models, kind, trace, album):
    """The same trace by the library alone."""
    text = str(album / "picture.png") if trace["picture"] else trace["text"]
    if trace["picture"]:
        (album / "picture.png").write_bytes(base64.b64decode(trace["png"]))
    question = trace["question"] or None
    more = 12 if trace["task"] == "language_modeling" else 0
    return trace_model(models[kind], text, question=question, more=more)


@pytest.fixture(scope="module")
def made(client, models, tmp_path_factory):
    """Of every kind, the server's trace and the library's."""
    found = {}
    for kind in KINDS:
        trace = post_trace(client, example(client, kind))
        if trace["picture"]:
            png = client.get("/" + trace["picture"]["url"])
            assert png.headers["Content-Type"] == "image/png"
            trace["png"] = base64.b64encode(png.content).decode()
        found[kind] = trace, again(models, kind, trace, tmp_path_factory.mktemp(kind))
    return found


def sites(made, kind):
    trace, reference = made[kind]
    return [(card, reference.sites[card["name"]]) for card in trace["sites"] if card["shown"]]


def test_models_say_what_they_are(client):
    cards = client.get("/api/models").json()["models"]
    assert [card["name"] for card in cards] == KINDS
    for card in cards:
        assert set(card) == {"name", "task", "what", "example", "question", "picture", "sound", "checkpoints"}
        assert card["example"]
        assert "parameters" in card["what"]
        assert bool(card["question"]) == (card["task"] == "vqa")
        assert card["picture"] == (card["task"] in ("image_classification", "vqa"))
    assert post_trace(client, {"model": "answer", "text": cards[5]["example"]})["question"] == cards[5]["question"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_says_all_that_the_page_needs(made, kind):
    trace, reference = made[kind]
    assert (trace["output_text"], trace["task"]) == (reference.output_text, reference.task)
    assert trace["axes"] == {name: list(axis.labels) for name, axis in reference.axes.items()}
    assert [card["name"] for card in trace["sites"]] == list(reference.sites)
    assert trace["steps"] == (0 if reference.output_ids is None else len(reference.predictions.rows))
    assert (trace["output"] is None) == (reference.output_ids is not None)
    assert "trace_model(" in trace["python"]
    for card in trace["sites"]:
        site = reference.sites[card["name"]]
        if isinstance(site, AttentionSite):
            assert (card["n_q"], card["n_k"]) == site.shape
            assert card["heads"] == site.heads
            assert "Padding" not in card["pattern"]
            labels = trace["axes"].get(card["queries"], [card["queries"]])
            assert len(labels) == card["n_q"]
            assert len(trace["axes"][card["keys"]]) == card["n_k"]
        else:
            assert (card["kind"], card["shown"], card["heads"]) == ("gate", False, 0)
            assert card["why"]
    for name, words in trace["words"].items():
        for word, first, last in words:
            assert 0 <= first <= last < len(trace["axes"][name])
            assert word in reference.axes[name].words


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_is_the_reference_s(client, made, kind):
    trace, _ = made[kind]
    for card, site in sites(made, kind):
        head = card["heads"] - 1
        path, seen = f"{site_path(trace, card['name'])}/heads/{head}", site.head(head)
        wanted = dict(vars(seen)) | {"masked": seen.adjusted.masked_fill(~seen.visible, -torch.inf)}
        wanted["products"] = seen.scores if seen.products is None else seen.products
        for stage in STAGES:
            matrix = wanted[stage].float()
            found = floats(client, f"{path}/cells?stage={stage}")
            assert_close(torch.tensor(found), matrix, atol=1e-6, rtol=0)
        query, key = card["n_q"] - 1, card["n_k"] // 2
        assert_close(torch.tensor(floats(client, f"{path}/rows/{query}")), seen.weights[query], atol=1e-6, rtol=0)
        assert_close(torch.tensor(floats(client, f"{path}/columns/{key}")), seen.weights[:, key], atol=1e-6, rtol=0)
        check = client.get(f"{path}/check").json()
        assert check["difference"] <= check["tolerance"] < 1e-3


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cnn"])
def test_a_pair_adds_up(client, made, kind):
    """dot · scale + bias is the adjusted score, the softmax of a row its weights, and weight · v what is added."""
    trace, _ = made[kind]
    for card, site in sites(made, kind):
        path, key = f"{site_path(trace, card['name'])}/heads/0", card["n_k"] - 1
        query = card["n_q"] - 1
        pair = client.get(f"{path}/pair?query={query}&key={key}").json()
        assert sum(pair["products"]) == pytest.approx(pair["dot"], abs=1e-6)
        assert pair["dot"] * pair["scale"] + pair["bias"] == pytest.approx(pair["adjusted"], abs=1e-5)
        masked, row = (
            torch.tensor(floats(client, f"{path}/rows/{query}?stage={one}")) for one in ("masked", "weights")
        )
        assert_close(masked.softmax(-1), row, atol=1e-6, rtol=0)
        assert pair["visible"] == bool(masked[key].isfinite())
        assert pair["weight"] == pytest.approx(float(row[key]), abs=1e-6)
        assert pair["v"] == pytest.approx(site.head_qkv(0)[2][0, 0, key].tolist(), abs=1e-6)
        assert pair["added"] == pytest.approx([pair["weight"] * one for one in pair["v"]], abs=1e-6)
        if kind != "bahdanau":
            assert pair["products"] == pytest.approx(
                [a * b for a, b in zip(pair["q"], pair["k"], strict=True)], abs=1e-5
            )


def test_bahdanau_s_products_are_terms_of_his_score(client, made):
    trace, _ = made["bahdanau"]
    pair = client.get(f"{site_path(trace, 'attention')}/heads/0/pair?query=1&key=2").json()
    (score,) = floats(
        client, f"{site_path(trace, 'attention')}/heads/0/cells?stage=scores&top=1&bottom=2&left=2&right=3"
    )
    assert sum(pair["products"]) == pytest.approx(float(score[0]), abs=1e-5)
    assert "tanh" in pair["note"]
    assert pair["score"].startswith("Additive(")


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_opens_at_a_head_that_looks_somewhere(made, kind):
    trace, reference = made[kind]
    first = trace["opening"]
    if kind == "cnn":
        assert first is None
        return
    row = reference.site(first["site"]).row(first["head"], first["query"])
    assert float(row[first["key"]]) == float(row.max())
    if kind == "translate":
        assert first["site"] == "decoder.0.cross"


# --- heat maps of heads ---


@pytest.mark.parametrize("kind", ["translate", "picture", "graph"])
def test_maps_and_thumbnails_are_the_root_of_the_largest_weight(client, made, kind):
    trace, _ = made[kind]
    card, site = sites(made, kind)[-1]
    path = site_path(trace, card["name"])
    weights = site.head(0).weights.numpy()
    assert np.abs(octets(client, f"{path}/heads/0/map") - 255 * np.sqrt(weights)).max() <= 0.51
    small = octets(client, f"{path}/heads/0/map?rows=3&columns=2&top=1&bottom=8&left=0&right=5")
    part = weights[1:8, 0:5]
    by_hand = [[part[p * 7 // 3 + (p * 7 % 3 > 0) : -(-(p + 1) * 7 // 3), :3].max() for p in range(3)]]
    assert np.abs(small[:, 0] - 255 * np.sqrt(by_hand[0])).max() <= 0.51
    thumbnails = octets(client, f"{path}/thumbnails?size=5")
    assert thumbnails.shape[0] == card["heads"]
    assert max(thumbnails.shape[1:]) <= 5
    assert thumbnails[0].max() == octets(client, f"{path}/heads/0/map").max()
    every = client.get(f"/api/traces/{trace['id']}/overview?size=5")
    shapes = [[int(n) for n in one.split(",")] for one in every.headers["X-Shape"].split(";")]
    assert shapes[-1] == list(thumbnails.shape)
    assert len(every.content) == sum(heads * rows * columns for heads, rows, columns in shapes)
    assert every.content.endswith(thumbnails.tobytes())


def test_scores_are_mapped_from_low_to_high_and_hidden_ones_are_0(client, made):
    trace, reference = made["translate"]
    path = f"{site_path(trace, 'decoder.0.self')}/heads/1/map"
    answer, seen = client.get(f"{path}?stage=masked"), reference.site("decoder.0.self").head(1)
    low, high = map(float, answer.headers["X-Range"].split(","))
    found = octets(client, f"{path}?stage=masked")
    assert ((found == 0) == ~seen.visible.numpy()).all()
    visible = seen.adjusted[seen.visible]
    assert (low, high) == pytest.approx((float(visible.min()), float(visible.max())), abs=1e-6)
    assert (found.max(), found[found > 0].min()) == (255, 1)
    assert octets(client, f"{path}?stage=scores").min() >= 1


def test_a_matrix_too_large_to_keep_is_shown_the_same(client, made, monkeypatch):
    trace, _ = made["translate"]
    path = f"{site_path(trace, 'decoder.0.self')}/heads/2"
    maps = [f"{path}/map?rows=4&columns=3&stage={stage}&top=2&bottom=13&left=1&right=11" for stage in STAGES]
    lines = [f"{path}/cells?stage=masked&top=3&bottom=5", f"{path}/columns/4", f"{path}/rows/6?stage=scores"]
    shades, numbers = [octets(client, one) for one in maps], [floats(client, one) for one in lines]
    monkeypatch.setattr(keeping, "MAX_MATRIX_CELLS", 3)
    for before, one in zip(shades, maps, strict=True):
        assert np.abs(octets(client, one).astype(int) - before).max() <= 1
    for before, one in zip(numbers, lines, strict=True):
        assert_close(torch.tensor(floats(client, one)), torch.tensor(before), atol=1e-6, rtol=0)


def test_a_gate_gives_every_weight(client, made):
    trace, reference = made["cnn"]
    for site in trace["sites"]:
        assert (site["kind"], site["shown"], site["keys"]) == ("gate", False, "channels")
        found = floats(client, f"{site_path(trace, site['name'])}/gate")
        assert list(found.shape) == site["shape"] == [site["n_k"], 1, 1]
        assert np.array_equal(found, reference.sites[site["name"]].weights[0].numpy())
    assert_sentence(client.get(f"{site_path(trace, 'stage.9')}/gate"), 404, "no gate 'stage.9'; there are stage.0.0")
    edits = {"shut": [{"site": "stage.1.0"}], "off": [{"site": "stage.0.0", "head": 3}]}
    after = post_trace(client, example(client, "cnn") | {"edits": edits})
    assert after["edits"] == edits
    assert not floats(client, f"{site_path(after, 'stage.1.0')}/gate").any()
    channels = floats(client, f"{site_path(after, 'stage.0.0')}/gate").ravel()
    assert np.flatnonzero(channels == 0).tolist() == [3]
    assert "GateOff(site='stage.1.0')" in after["python"]
    assert "from regard.see import Edits, GateOff, HeadOff, compare, trace_model" in after["python"]
    body = {"model": "tag", "text": CAT, "edits": {"shut": [{"site": "encoder.0"}]}}
    assert_sentence(client.post("/api/traces", json=body), 400, "encoder.0 is no gate that could be shut")


def test_statistics_are_the_site_s(client, made):
    trace, reference = made["write"]
    found = client.get(f"/api/traces/{trace['id']}/statistics").json()["blocks.0"]
    seen = reference.site("blocks.0").statistics()
    for name in ("entropy", "distance", "sink", "largest"):
        assert found[name] == pytest.approx(getattr(seen, name).tolist(), abs=1e-6)
    assert found["aer"] is None


def test_a_known_alignment_gives_the_error_of_every_head(client, models):
    sentence = find_lecture_sentence(CAT)
    assert sentence is not None
    french = " ".join(sentence.words_for("fr"))
    trace = post_trace(client, {"model": "translate", "text": CAT, "target": french})
    assert sorted(map(tuple, trace["gold"])) == sorted(sentence.renderings["fr"].alignment)
    assert [word for word, _, _ in trace["words"]["written"]] == french.split()
    found = client.get(f"/api/traces/{trace['id']}/statistics").json()
    reference = trace_model(models["translate"], CAT, target=french)
    words = reference.word_weights("decoder.0.cross", 1)[:-1]
    error = aer(sentence.renderings["fr"].alignment, frozenset(), argmax_links(words))
    assert found["decoder.0.cross"]["aer"][1] == pytest.approx(error)
    assert found["encoder.0"]["aer"] is None


# --- what is written ---


@pytest.mark.parametrize("kind", ["translate", "bahdanau", "write", "rebuild"])
def test_next_tokens_are_the_whole_distribution(client, made, kind):
    trace, reference = made[kind]
    shares = floats(client, f"/api/traces/{trace['id']}/next/1")
    assert_close(torch.tensor(shares), reference.next_token_probabilities(1), atol=1e-6, rtol=0)
    best = client.get(f"/api/traces/{trace['id']}/next/1/tokens?count=3").json()
    assert [one["probability"] for one in best["tokens"]] == sorted(shares.tolist(), reverse=True)[:3]
    assert best["chosen"] == reference.output_ids[1]
    last = client.get(f"/api/traces/{trace['id']}/next/{trace['steps'] - 1}/tokens").json()
    assert last["chosen"] is None if kind == "write" else last["chosen"] in (None, 2)
    assert_sentence(client.get(f"/api/traces/{trace['id']}/next/{trace['steps']}"), 404, "counted from 0")


@pytest.mark.parametrize("kind", ["translate", "bahdanau", "write"])
def test_a_branch_goes_another_way_from_there(client, made, kind):
    trace, reference = made[kind]
    other = client.get(f"/api/traces/{trace['id']}/next/2/tokens?count=9").json()["tokens"][8]["id"]
    branch = client.post(f"/api/traces/{trace['id']}/branch", json={"step": 2, "token": other}).json()
    assert branch["id"] != trace["id"]
    assert branch["output_text"] == reference.branch(2, other).output_text
    found = client.get(f"/api/traces/{branch['id']}/next/2/tokens").json()
    assert found["chosen"] == other


def test_the_beam_is_a_tree(client, made):
    trace, _ = made["bahdanau"]
    steps = client.get(f"/api/traces/{trace['id']}/beam").json()["steps"]
    assert {node["parent"] for node in steps[0]} == {None}
    for before, after in pairwise(steps):
        assert all(not before[node["parent"]]["finished"] for node in after)
    assert sum(node["chosen"] for node in steps[0]) == 1
    steps = client.get(f"/api/traces/{made['write'][0]['id']}/beam").json()["steps"]
    assert [len(step) for step in steps] == [4] * 12  # of what is written behind the text
    assert not any(node["finished"] for step in steps for node in step)
    silent = post_trace(client, {"model": "write", "text": CAT, "more": 0})
    assert client.get(f"/api/traces/{silent['id']}/beam").json() == {"steps": []}


@pytest.mark.parametrize(
    ("kind", "query"), [("translate", {}), ("bahdanau", {}), ("rebuild", {}), ("write", {"more": 5})]
)
def test_generation_is_told_token_by_token(client, kind, query):
    answer = client.get("/api/generate", params={"model": kind, "text": CAT, **query})
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    *tokens, (last, trace) = events(answer.text)
    assert last == "done"
    assert {name for name, _ in tokens} == {"token"}
    first = tokens[0][1]["step"]
    written = trace["axes"]["text"][1:] if kind == "write" else trace["axes"]["written"]
    streamed = [token["token"] for _, token in tokens]
    assert streamed == [one for one in written[first:] if one != "…"]
    site = trace["sites"][-1]
    for _, token in tokens:
        assert 0 < token["probability"] <= 1
        row = row_in(token)
        assert row.sum() == pytest.approx(1, abs=1e-5)
        exact = [
            floats(client, f"{site_path(trace, site['name'])}/heads/{head}/rows/{token['step']}")
            for head in range(site["heads"])
        ]
        assert np.abs(row - np.mean(exact, 0)[: len(row)]).max() < 1e-5


def test_a_wider_beam_is_told_when_it_is_known(client):
    *tokens, (_, trace) = events(
        client.get("/api/generate", params={"model": "translate", "beam": 3, "text": CAT}).text
    )
    assert [token["token"] for _, token in tokens] == trace["axes"]["written"]
    *tokens, (_, trace) = events(
        client.get("/api/generate", params={"model": "write", "beam": 3, "text": CAT, "more": 5}).text
    )
    assert [token["token"] for _, token in tokens] == trace["axes"]["text"][-5:]
    row = floats(client, f"{site_path(trace, trace['sites'][-1]['name'])}/heads/0/rows/{tokens[0][1]['step']}")
    assert np.flatnonzero(row_in(tokens[0][1])).tolist() == np.flatnonzero(row).tolist()


@pytest.mark.parametrize(
    "query", [{"model": "tag", "text": CAT}, {"model": "none", "text": CAT}, {"model": "translate"}]
)
def test_a_stream_says_what_is_wrong(client, query):
    ((name, data),) = events(client.get("/api/generate", params=query).text)
    assert name == "error"
    assert data["error"]


# --- what if ---


def test_edits_change_what_is_said_and_the_difference_is_told(client, models):
    edits = {"off": [{"site": "encoder.0", "head": 0}], "temperatures": [{"site": "*", "value": 0.5}]}
    before = post_trace(client, {"model": "classify", "text": CAT})
    after = post_trace(client, {"model": "classify", "text": CAT, "edits": edits})
    assert after["edits"] == edits
    assert "HeadOff(site='encoder.0', head=0)" in after["python"]
    off = floats(client, f"{site_path(after, 'encoder.0')}/heads/0/cells")
    assert (off == 0).all()
    warm, cold = (
        floats(client, f"{site_path(one, 'encoder.0')}/heads/1/cells?stage=masked") for one in (before, after)
    )
    assert np.abs(cold - 2 * warm).max() < 1e-5
    found = client.post("/api/compare", json={"before": before["id"], "after": after["id"]}).json()
    assert found["output_text"] == [before["output_text"], after["output_text"]]
    moved = {one["token"]: one for one in found["distribution"]}
    shares = dict(zip(after["output"]["labels"], after["output"]["probabilities"], strict=True))
    assert moved.keys() == shares.keys()
    assert all(moved[name]["after"] == pytest.approx(share, abs=1e-6) for name, share in shares.items())
    assert all(one["change"] == pytest.approx(one["after"] - one["before"]) for one in moved.values())


def test_a_weight_of_a_head_that_is_off_is_refused(client):
    off = {"site": "encoder.0", "head": 1}
    edits = {"off": [off], "weights": [off | {"query": 0, "key": 1, "value": 0.5}]}
    answer = client.post("/api/traces", json={"model": "tag", "text": CAT, "edits": edits})
    assert_sentence(answer, 400, "head 1 of encoder.0 is off, so its weight 0.5 would be 0; switch it on, or set none")


def test_unknown_words_are_named(client):
    for kind in ("translate", "classify", "write", "rebuild"):
        assert post_trace(client, {"model": kind, "text": "the zebra ate 😀 the zebra"})["unknown"] == ["zebra", "😀"]
        assert post_trace(client, {"model": kind, "text": CAT})["unknown"] == []
    swapped = {"swaps": [{"word": 1, "to": "okapi"}]}
    assert post_trace(client, {"model": "translate", "text": CAT, "edits": swapped})["unknown"] == ["okapi"]


def test_a_target_is_given_and_a_translation_is_not(client):
    own = post_trace(client, {"model": "translate", "text": CAT})
    given = post_trace(client, {"model": "translate", "text": CAT, "target": "le chat"})
    assert (own["given"], given["given"]) == (0, given["steps"])


def test_what_a_run_tells_of_its_training(tmp_path):
    learner = translator()
    learner.save(tmp_path / "run")
    history = [{"step": 5, "loss": 2.5}, {"step": 10, "loss": 1.25}]
    for step in (5, 10):
        place = tmp_path / "run" / "checkpoints" / f"{step:08d}"
        place.mkdir(parents=True)
        save_file(saveable_tensors(learner.model), place / "model.safetensors")
        (place / "state.json").write_text(json.dumps({"progress": {"best_step": 5, "history": history}}))
    with client_of(ModelStore.from_folders([tmp_path / "run"])) as client:
        found = client.get("/api/models/run/checkpoints").json()
        assert found == {"checkpoints": [5, 10], "final": 5, "history": history}
        place.joinpath("state.json").write_text("{")  # damaged: there is less to tell, and no error
        found = client.get("/api/models/run/checkpoints").json()
        assert found == {"checkpoints": [5, 10]}


def test_a_hidden_cell_is_masked_and_weighs_nothing(client):
    edits = {"masks": [{"site": "encoder.0", "head": 1, "query": 2, "key": 3}]}
    trace = post_trace(client, {"model": "tag", "text": CAT, "edits": edits})
    path = f"{site_path(trace, 'encoder.0')}/heads/1"
    assert floats(client, f"{path}/rows/2?stage=masked")[3] == -np.inf
    assert floats(client, f"{path}/rows/2")[3] == 0
    assert client.get(f"{path}/pair?query=2&key=3").json()["visible"] is False


def test_two_models_are_compared_by_what_they_say(client, made):
    one, other = made["translate"][0], made["rebuild"][0]
    found = client.post("/api/compare", json={"before": one["id"], "after": other["id"]}).json()
    assert found["note"]
    assert found["distribution"] == []
    assert "".join(token["before"] for token in found["tokens"]) == "".join(one["axes"]["written"])


# --- pictures ---


def test_a_picture_is_given_and_named(client):
    written = BytesIO()
    Image.fromarray((np.arange(40 * 30 * 3) % 251).reshape(40, 30, 3).astype(np.uint8)).save(written, "PNG")
    given = base64.b64encode(written.getvalue()).decode()
    trace = post_trace(client, {"model": "picture", "text": "cat.png", "picture": given})
    assert trace["picture"]["rows"] * trace["picture"]["columns"] == len(trace["axes"]["patches"]) - 1
    again = post_trace(client, {"model": "picture", "text": trace["text"]})
    assert again["output"] == trace["output"]


@pytest.mark.parametrize("text", ["/etc/passwd", "../../picture.png", "picture.png", __file__])
def test_no_file_of_the_machine_is_read(client, text):
    assert_sentence(client.post("/api/traces", json={"model": "picture", "text": text}), 400, "there is no image")


# --- labs ---


@pytest.mark.parametrize("text", ["Causal() & Window(3)", "Window(2) | Global(1)", "~Block(4, Random(2))", "Before()"])
@pytest.mark.parametrize("length", [1, 13])
def test_a_pattern_is_drawn_as_it_sees(client, text, length):
    found = client.post("/api/patterns", json={"pattern": text, "length": length}).json()
    seen = mask(parse_pattern(text), length, length)[0].numpy()
    bits = np.unpackbits(np.frombuffer(base64.b64decode(found["mask"]), np.uint8))[: length**2]
    assert (bits.reshape(length, length) == seen).all()
    assert found["cells"] == seen.sum()
    assert found["share"] == pytest.approx(seen.mean())
    assert found["rows_empty"] == (~seen.any(1)).sum()
    assert found["blocks"] == (seen * 2).tolist()


def test_a_long_pattern_is_counted_and_not_drawn(client):
    exact = client.post("/api/patterns", json={"pattern": "Causal() & Window(8)", "length": 2**20}).json()
    assert (exact["cells"], exact["exact"], exact["mask"]) == (8 * 2**20 - 28, True, None)
    assert len(exact["blocks"]) <= 128
    about = client.post("/api/patterns", json={"pattern": "Window(3) | Global(2)", "length": 2**16}).json()
    assert about["cells"] == pytest.approx((5 + 4) * 2**16, rel=0.01)


def test_positions_are_the_library_s(client):
    waves = floats(client, "/api/positions?kind=sinusoidal&length=7&width=6")
    assert_close(torch.tensor(waves), Sinusoidal().table(torch.arange(7), 6).float())
    turned = floats(client, "/api/positions?kind=rotary&length=7&width=6")
    assert np.abs(turned[:, 1::2] - waves[:, ::2]).max() < 1e-6
    added = floats(client, "/api/positions?kind=alibi&length=5&heads=3")
    assert added[2, 4, 0] == pytest.approx(-4 * float(Alibi(3).slopes()[2]))
    assert floats(client, "/api/positions?kind=t5&length=5&heads=3").shape == (3, 5, 5)
    assert floats(client, "/api/positions?kind=learned&length=5&width=4").shape == (5, 4)


def test_the_lecture_is_walked_on_its_numbers_and_on_a_head(client, made):
    assert client.post("/api/lecture", json={}).json()["heads"][0]["weights"]
    trace, _ = made["translate"]
    body = {"trace": trace["id"], "site": "decoder.0.cross", "head": 1, "query": 2}
    assert client.post("/api/lecture", json=body).json()["about"]["head"] == 1
    assert_sentence(client.post("/api/lecture", json=body | {"head": 7}), 404, "no head 7")
    assert_sentence(client.post("/api/lecture", json={"x": "y"}), 400)


def test_what_changed_inside_is_what_python_finds(client, models):
    edits = {"off": [{"site": "decoder.0.cross", "head": 1}]}
    first = post_trace(client, {"model": "translate", "text": CAT, "target": "le chat noir"})
    second = post_trace(client, {"model": "translate", "text": CAT, "target": "le chat noir", "edits": edits})
    found = client.post("/api/compare", json={"before": first["id"], "after": second["id"]}).json()
    before = trace_model(models["translate"], CAT, target="le chat noir")
    own = compare(before, trace_with_edits(before, Edits.from_dict(edits)))
    assert list(found["weights"]) == list(own.weight_changes())
    for name, values in own.weight_changes().items():
        assert found["weights"][name] == pytest.approx(values.tolist(), abs=1e-6)
    for name, values in own.state_changes().items():
        assert found["states"][name] == pytest.approx(values.tolist(), abs=1e-6)


# --- drawing ---


@pytest.mark.parametrize("kind", ["translate", "write"])
def test_what_is_drawn_over_http_is_what_python_draws(client, models, kind):
    sampling = {"temperature": 1.5, "top_k": 7, "top_p": 0.9, "seed": 3}
    card = post_trace(client, {"model": kind, "text": CAT, "sampling": sampling})
    own = trace_model(models[kind], CAT, more=12 if kind == "write" else 0, sampling=Sampling(**sampling))
    assert (card["output_text"], card["sampling"]) == (own.output_text, sampling)
    assert "sampling=Sampling(temperature=1.5, top_k=7, top_p=0.9, seed=3)" in card["python"]
    other = Sampling(0.5, top_k=3)
    query = {"sampling": json.dumps({"temperature": 0.5, "top_k": 3})}
    found = client.get(f"/api/traces/{card['id']}/next/1/tokens", params=query).json()
    wanted = own.next_token_probabilities(1, other)
    assert found["kept"] == int((wanted > 0).sum()) == 3
    assert [one["drawn"] for one in found["tokens"]] == [float(wanted[one["id"]]) for one in found["tokens"]]
    assert sum(one["drawn"] for one in found["tokens"]) == pytest.approx(1, abs=1e-6)
    word = found["tokens"][1]["token"]  # a token as it is written
    branch = client.post(f"/api/traces/{card['id']}/branch", json={"step": 1, "token": word}).json()
    assert branch["output_text"] == own.branch(1, word).output_text


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"temperature": 0}, "a temperature is positive"),
        ({"top_p": 2}, "top_p=2 is no probability"),
        ({"heat": 1}, "sampling has numbers for temperature"),
        ({"seed": True}, "sampling has numbers for temperature"),
        ("{", "sampling is JSON"),
    ],
)
def test_a_sampling_that_cannot_be_is_refused(client, sampling, message):
    assert_sentence(
        client.post("/api/traces", json={"model": "translate", "text": CAT, "sampling": sampling}), 400, message
    )
