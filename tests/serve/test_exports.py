"""Files that need nothing else: pictures, numbers that are the reference's, and a page that asks nobody anything."""

import base64
import csv
import json
import re
from dataclasses import dataclass, replace
from io import BytesIO, StringIO

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image
from torch.testing import assert_close

from regard.attention import MultiHeadAttention
from regard.attention.score import Score
from regard.see import AttentionSite, show, trace_model
from regard.see.plots.layout import colormap, normalize
from regard.see.plots.mpl_figure import ink_on
from regard.see.plots.panels import ColourScale, Panel
from regard.serve.encoding import RequestError
from regard.serve.exports import (
    VIEWS,
    bundle_page,
    escape_formula,
    export_bytes,
    head_maps,
    page_file,
    reachable_modules,
)
from regard.serve.trace_cache import CachedTrace
from tests.narrowing import assert_all_instances, not_none
from tests.see.untrained_models import CAT, generator, tagger, translator

from .client import KINDS, example, post_trace

EVIL = "</script><script>alert(1)</script> <!-- ]]> =cmd() & \u2028"


def data_in(page: str) -> dict:
    return json.loads(re.findall(r'<script type="application/json" id="regard-data">(.*?)</script>', page)[0])


def showing(learner, text: str = CAT, **more) -> CachedTrace:
    return CachedTrace("id", "model", trace_model(learner, text, **more), text)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cnn"])
def test_every_kind_of_model_can_be_taken_along(client, kind):
    trace = post_trace(client, example(client, kind))
    site = trace["sites"][-1]["name"]
    for format, begins in (("npz", b"PK"), ("csv", b"site,head"), ("html", b"<!doctype html>")):
        answer = client.get(f"/api/traces/{trace['id']}/export", params={"site": site, "head": 0, "format": format})
        assert answer.status_code == 200, answer.text
        assert answer.content.startswith(begins)
        assert answer.headers["Content-Disposition"].endswith(f'-0.{format}"')


def test_a_picture_is_drawn_for_a_head_and_for_all_of_a_site(client):
    trace = post_trace(client, example(client, "translate"))
    path = f"/api/traces/{trace['id']}/export"
    svg = client.get(path, params={"site": "decoder.0.cross", "head": 1, "format": "svg"}).text
    assert all(word in svg for word in ("mouse", "decoder.0.cross", "head 1", "written", "source", CAT))
    assert not re.findall(r'(?:href|src)="(?!#|data:)', svg)
    png = client.get(path, params={"site": "encoder.0", "format": "png"}).content
    assert min(Image.open(BytesIO(png)).size) > 100


def test_a_drawn_weight_has_the_colour_that_it_has_on_the_page():
    stops = re.search(r"light: \{\s*weights: (\[.*?\])", page_file("js/paint.js"))
    assert stops is not None
    page = [to_rgb(colour) for colour in json.loads(stops[1])]
    (panel,) = head_maps(showing(translator()), "decoder.0.cross", 1).panels()
    assert isinstance(panel, Panel)
    for weight in np.linspace(0, 1, 101):
        place = np.sqrt(weight) * (len(page) - 1)  # as paint.js goes from stop to stop
        wanted = [np.interp(place, range(len(page)), part) for part in zip(*page, strict=True)]
        found = colormap(panel.scale)(float(normalize(panel.scale)(weight)))
        assert np.abs(np.array(found[:3]) - wanted).max() < 2 / 255


def test_numbers_are_read_on_every_colour_that_is_drawn():
    def luminance(colour) -> float:
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in to_rgb(colour)]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    for kind in ("weights", "roots", "signed"):
        paint = colormap(ColourScale(kind))
        for share in np.linspace(0, 1, 501):
            behind = paint(float(share))
            dark, light = sorted((luminance(behind[:3]), luminance(ink_on(behind))))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (kind, share)


def test_a_long_text_is_drawn_by_its_largest_weights():
    body = export_bytes(showing(tagger(), " ".join([CAT] * 100)), "png", "encoder.0", 1)
    assert max(Image.open(BytesIO(body)).size) < 4000


def test_numbers_are_the_reference_s():
    one = showing(translator())
    site = one.trace.site("decoder.0.cross")
    held = np.load(BytesIO(export_bytes(one, "npz")), allow_pickle=False)
    weights = site.head(2).weights.numpy()
    assert np.abs(held["decoder.0.cross/weights"][2] - weights).max() <= 1e-6
    assert held["decoder.0.cross/keys"].tolist() == [*CAT.split(), "</s>"]
    assert np.isneginf(held["decoder.0.self/masked"][0]).any()
    rows = list(csv.DictReader(StringIO(export_bytes(one, "csv", "decoder.0.cross", 2).decode())))
    assert len(rows) == weights.size
    for row in rows[:: len(rows) // 7]:
        assert float(row["weight"]) == pytest.approx(float(weights[int(row["query"]), int(row["key"])]), abs=1e-6)


def test_what_is_too_much_for_a_file_says_so():
    one = showing(tagger(), " ".join([CAT] * 100))
    for kind in ("npz", "csv"):
        with pytest.raises(RequestError, match="choose a layer and a head"):
            export_bytes(one, kind)
    assert export_bytes(one, "npz", "encoder.0", 0)


@pytest.mark.parametrize(("label", "written"), [("=1+1", "'=1+1"), ("@x", "'@x"), ("-", "-"), ("cat", "cat"), ("", "")])
def test_no_token_becomes_a_formula(label, written):
    assert escape_formula(label) == written


# --- a page in a file ---


def test_the_page_asks_nobody_anything():
    page = export_bytes(showing(translator()), "html").decode()
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[0]
    script = re.findall(r"script-src ([^;]*)", policy)[0]
    # no script by its address: data: would let any markup that got in bring its own
    assert re.fullmatch(r"'nonce-[\w-]{22}'", script)
    assert policy.startswith("default-src 'none'; ")
    assert script not in export_bytes(showing(translator()), "html").decode()
    assert "connect-src" not in policy
    outside = [one for one in re.findall(r"(?:https?:)?//[\w.-]+", page) if "regard.invalid" not in one]
    assert not [one for one in re.findall(r'(?:src|href|action)="([^"]*)"', page) if not one.startswith("data:")]
    assert not [one for one in outside if one.startswith("http") and "www.w3.org" not in one]
    assert page.index("Content-Security-Policy") < page.index("<script")


def test_the_page_holds_the_trace_exactly():
    one = showing(translator())
    held = data_in(export_bytes(one, "html", "decoder.0.cross", 1).decode())
    assert held["trace"]["output_text"] == one.trace.output_text
    assert held["view"] == {"site": "decoder.0.cross", "head": 1, "view": "matrix"}
    assert len(held["heads"]) == sum(
        site.heads for site in assert_all_instances(one.trace.sites.values(), AttentionSite)
    )
    head = one.trace.site("decoder.0.cross").head(1)
    for name, matrix in (("weights", head.weights), ("products", not_none(head.products)), ("scores", head.scores)):
        found = np.frombuffer(base64.b64decode(held["heads"]["decoder.0.cross/1"][name]), "<f4")
        assert np.abs(found.reshape(matrix.shape) - matrix.numpy()).max() <= 1e-6
    shares = np.frombuffer(base64.b64decode(held["next"]), "<f4").reshape(held["trace"]["steps"], -1)
    assert np.abs(shares[1] - one.trace.next_token_probabilities(1).numpy()).max() <= 1e-6
    assert held["beam"]


@dataclass(frozen=True)
class Distance(Score):
    """A score of one's own, which multiplies nothing."""

    def compare(self, q, k):
        return -torch.cdist(q, k)


def test_a_score_without_products_is_taken_along_like_any_other():
    learner = generator()
    attention = next(part for part in learner.model.modules() if isinstance(part, MultiHeadAttention))
    attention.recipe = replace(attention.recipe, score=Distance())
    one = showing(learner)
    for kind in ("html", "npz", "csv"):
        assert export_bytes(one, kind)
    name, *_ = one.trace.sites
    weights = one.trace.site(name).head(0).weights.numpy().ravel()
    card = data_in(export_bytes(one, "html").decode())["heads"][f"{name}/0"]
    assert np.abs(np.frombuffer(base64.b64decode(card["weights"]), "<f4") - weights).max() < 1e-6
    assert "q" not in card
    assert card["note"] == "Distance() has no elementwise products to show"


def test_no_token_gets_out_of_the_data():
    page = export_bytes(showing(tagger(), EVIL), "html").decode()
    assert "<script>alert" not in page
    assert data_in(page)["trace"]["text"] == EVIL
    assert bundle_page({"x": "</script>"}, "<b>&").count("<title>&lt;b&gt;&amp;</title>") == 1


def test_a_large_trace_has_the_weights_of_its_heads_and_a_larger_one_the_head_that_was_asked_for(monkeypatch):
    one = showing(tagger(), " ".join([CAT] * 20))
    cells = one.trace.site("encoder.0").shape[0] ** 2
    monkeypatch.setattr("regard.serve.exports.MAX_FULL_CELLS", cells)
    held = data_in(export_bytes(one, "html", "encoder.0", 2).decode())["heads"]
    assert len(held) == sum(site.heads for site in assert_all_instances(one.trace.sites.values(), AttentionSite))
    assert next(iter(held)) == "encoder.0/2"
    assert {"products", "scores", "q", "k", "v"} <= set(held.pop("encoder.0/2"))
    for card in held.values():
        assert set(card) == {"shape", "weights", "check"}
    monkeypatch.setattr("regard.serve.exports.MAX_PAGE_CELLS", 2 * cells - 1)
    held = data_in(export_bytes(one, "html", "encoder.0", 2).decode())
    assert list(held["heads"]) == ["encoder.0/2"]
    assert held["thumbnails"]["encoder.0"]["shape"][0] == 3


def test_the_shown_views_come_with_all_they_need():
    modules = reachable_modules()
    assert {f"js/views/{view}.js" for view in VIEWS if view in ("overview", "matrix", "lines")} <= set(modules)
    for name, text in modules.items():
        assert "import.meta" not in text, name
        for needed in re.findall(r'(?:from|import)\s*"regard/([^"]+)"', text):
            assert needed in modules, f"{name} needs {needed}"
    assert "js/views/lecture.js" not in modules


def test_a_notebook_shows_it_in_a_frame():
    one = generator()
    shown = show(one, CAT)
    frame = shown._repr_html_()
    assert frame.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert 'sandbox="allow-scripts"' in frame
    assert data_in(shown.html)["trace"]["output_text"] == CAT
    trace = trace_model(one, CAT, more=3)
    assert data_in(show(trace, site="blocks.0", head=2).html)["view"]["head"] == 2
    assert_close(trace.site("blocks.0").row(2, 1).sum().item(), 1.0, atol=1e-5, rtol=0)
