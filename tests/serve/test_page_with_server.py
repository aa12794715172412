"""The real server and its page in a real browser, and the page in a file: every view, exact numbers, nobody asked."""

import math
import os
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from PIL import Image

from regard.decode import Sampling
from regard.see import ablate_heads, pair_terms, patch_activations, residual_stream, show, trace_model
from regard.see.trace import select_initial
from regard.serve.model_store import ModelStore
from tests.narrowing import not_none
from tests.see.untrained_models import CAT, generator

from .browser_page import BrowserPage, open_tab
from .client import served

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; `pip install playwright`")

SHARED = 2 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # a machine with other work takes longer
EVIL = "</script><script>window.evil=1</script> <img src=x onerror=window.evil=1> ‮שלום‬ 👩‍👧 e\u0301"
SHOWN = {
    "translate": [
        *("overview", "matrix", "lines", "alignment", "pair", "generation", "beam", "whatif", "comparison"),
        *("positions", "masks", "lecture"),
    ],
    "bahdanau": ["pair", "alignment"],
    "classify": ["overview", "whatif"],
    "write": ["generation", "lines"],
    "picture": ["overlay"],
    "answer": ["overlay", "matrix"],
    "graph": ["matrix"],
}
CROSS = {"site": "decoder.0.cross", "head": "~1", "query": "~2", "key": "~3"}


@pytest.fixture(scope="module")
def address(models) -> Iterator[str]:
    with served(ModelStore.from_models(models)) as where:
        yield where


class Open(BrowserPage):
    def painted(self, view: str, frame: Any = None) -> Any:
        """The view, once it is there."""
        found = (frame or self.page).locator(f"regard-{view}")
        last = time.monotonic() + 120
        while not (found.count() and found.get_attribute("data-painted")):
            assert time.monotonic() < last, f"{view} was never painted: {self.wrong}"
            time.sleep(0.02)
        return found


@pytest.fixture
def open_page(shared_page, address) -> Iterator[Open]:
    found = Open(shared_page, address)
    yield found
    found.stop()
    assert not found.wrong


def state(**values: str) -> str:
    return "#" + "&".join(f"{name}={quote(value)}" for name, value in values.items())


def values(view: Any) -> list[float]:
    return [float(one.get_attribute("value")) for one in view.locator("data").all()]


def assert_holds(view: Any, number: float) -> None:
    """Among the exact values that a view shows, once what was asked of the server is there."""
    last, distance = time.monotonic() + 10, math.inf
    while distance > 1e-6:
        assert time.monotonic() < last, (number, distance)
        distance = min((abs(one - number) for one in values(view)), default=math.inf)


# of the others test_microscope.py opens every view in the short form
@pytest.mark.parametrize(
    "model", [pytest.param(kind, marks=() if kind in ("answer", "graph") else pytest.mark.slow) for kind in SHOWN]
)
def test_every_view_shows_what_the_server_says(address, open_page, model):
    text = {"graph": "Martin-0", "picture": "example 3", "answer": "example 3"}.get(model, CAT)
    page, views = open_page.page, SHOWN[model]
    page.goto(address + state(model=model, text=text, view=views[0]))
    for view in views:
        open_tab(page, view)
        if view == "lecture":
            page.locator("regard-lecture").wait_for()
        else:
            open_page.painted(view)
        assert not page.locator("#problem").is_visible(), view
    assert {urlsplit(url).hostname for url in open_page.requested} <= {"127.0.0.1", None}


def test_a_number_on_the_page_is_the_reference_s(address, open_page, models):
    open_page.page.goto(address + state(model="translate", text=CAT, view="matrix", **CROSS))
    seen = trace_model(models["translate"], CAT).site("decoder.0.cross").head(1)
    view = open_page.painted("matrix")
    for matrix in (seen.products, seen.adjusted, seen.weights):
        assert matrix is not None
        assert_holds(view, float(matrix[2, 3]))


def test_another_text_opens_at_its_own_cell_and_a_pair_has_the_numbers_of_python(address, open_page, models):
    page, other = open_page.page, "a mouse eats the big black cat"
    page.goto(
        address + state(model="translate", text=CAT, view="start", site="encoder.0", head="~1", query="~5", key="~5")
    )
    open_page.painted("start")
    page.locator("#text").fill(other)
    page.get_by_role("button", name="Run").click()
    trace = trace_model(models["translate"], other)
    first = not_none(select_initial(trace))
    site, shown = trace.site(first.site), f"{first.site}, head {first.head}. Click another cell."
    page.get_by_text(shown).wait_for()
    view = page.locator("regard-start")
    assert_holds(view, 100 * float(site.weights(first.head)[first.query, first.key]))
    open_tab(page, "pair")
    view, pair = open_page.painted("pair"), pair_terms(site, first.head, first.query, first.key)
    for number in (pair.dot, pair.adjusted, pair.weight):
        assert_holds(view, number)


def test_the_model_is_drawn_part_by_part_and_adds_up_to_the_logit(address, open_page, models):
    open_page.page.goto(address + state(model="translate", text=CAT, view="model", prediction="~2", **CROSS))
    view = open_page.painted("model")
    found = residual_stream(trace_model(models["translate"], CAT), 2)
    contributions = not_none(found.contributions)
    assert "✓ equals" in view.locator(".law").inner_text()
    assert_near(values(view.locator(".law")), [contributions.total, found.logit])
    parts = {part.name: part for parts in found.stacks.values() for part in parts}
    boxes = view.locator("[data-part]")
    assert [one.get_attribute("data-part") for one in boxes.all()] == [*parts, "logits"]
    part = parts["decoder.0.cross"]
    first = view.locator("[data-part][tabindex='0']")
    first.focus()
    open_page.page.keyboard.press("Home")  # by keyboard alone
    for _ in range(1 + list(parts).index(part.name)):
        if open_page.page.evaluate("document.activeElement.dataset.part") != part.name:
            open_page.page.keyboard.press("ArrowDown")
    open_page.page.keyboard.press("Enter")
    card = view.locator(".card")
    card.get_by_role("heading", name="decoder.0.cross").wait_for()
    norm, _, added, *rest = values(card)
    assert_near([norm, added], [float(part.vector.norm()), not_none(part.added)])
    heads = [value for name, value in contributions.parts.items() if name.startswith("decoder.0.cross.head")]
    assert_near(rest[: len(heads)], heads)
    assert_near([rest[len(heads)]], [float(part.vector[part.vector.abs().argmax()])])
    open_page.page.wait_for_url("**part=decoder.0.cross**")


def assert_near(found: list[float], wanted: list[float]) -> None:
    assert found == pytest.approx(wanted, abs=1e-5)


def test_two_texts_are_patched_and_every_layer_is_a_row_of_a_map(address, open_page, models):
    other = "the white cat ate the mouse"
    trace = trace_model(models["translate"], CAT)
    second = trace_model(models["translate"], other, target=trace.output_text)
    best = [[one.predictions.best(n, 1)[0][0] for n in range(len(trace.predictions.rows))] for one in (trace, second)]
    row = next(n for n, (here, there) in enumerate(zip(*best, strict=True)) if here != there)
    asked = f'~{{"method":"patching","row":{row},"other":"{other}","part":"residual"}}'
    page = open_page.page
    page.goto(address + state(model="translate", text=CAT, view="explain", explain=asked, **CROSS))
    view, found = open_page.painted("explain"), patch_activations(trace, second, row)
    assert_near(values(view)[:2], [found.clean, found.other])
    maps = view.locator("canvas.over")
    assert maps.count() == 2  # of the encoder's positions and of the decoder's
    assert "[object" not in page.locator("#panel").inner_text()
    maps.last.focus()
    page.keyboard.press("Home")
    assert maps.last.get_attribute("aria-label").endswith("recovered")


def test_heads_are_sorted_by_their_effect_one_way_and_the_other(address, open_page, models):
    asked = '~{"method":"heads","row":1}'
    open_page.page.goto(address + state(model="translate", text=CAT, view="explain", explain=asked, **CROSS))
    view, ranked = open_page.painted("explain"), ablate_heads(trace_model(models["translate"], CAT), 1).ranked()
    card = view.locator(".card")
    assert_near(values(card), [effect for _, _, effect in ranked])
    card.get_by_role("button", name="Most needed first").click()
    assert_near(values(card), [effect for _, _, effect in reversed(ranked)])
    assert open_page.page.evaluate("document.activeElement.textContent") == "Least needed first"


REDRAWN = """() => new Promise((done) => {
  const slider = document.querySelector("regard-generation input[type=range]");
  const before = document.querySelector("regard-generation").dataset.painted;
  const from = performance.now();
  slider.value = "2";
  slider.dispatchEvent(new Event("input"));
  const look = () => document.querySelector("regard-generation").dataset.painted === before
    ? setTimeout(look, 1) : requestAnimationFrame(() => done(performance.now() - from));
  look();
})"""


def test_the_distribution_follows_the_temperature_at_once_and_every_view_what_is_drawn(address, open_page, models):
    page = open_page.page
    page.goto(address + state(model="translate", text=CAT, view="generation", step="~1"))
    view = open_page.painted("generation")
    taken = page.evaluate(REDRAWN)
    print(f"redrawn after {taken:.0f} ms")
    assert taken < 100 * SHARED
    own = trace_model(models["translate"], CAT)
    wanted = own.next_token_probabilities(1, Sampling(2.0)).sort(descending=True).values[:20].tolist()
    shown = [float(one.get_attribute("value")) for one in view.locator(".options li button > data").all()]
    assert_near(shown, wanted)
    view.locator("input[type=number]").last.fill("7")
    view.get_by_role("button", name="Draw the output").click()
    drawn = trace_model(models["translate"], CAT, sampling=Sampling(2.0, seed=7))
    page.locator("#output .changed", has_text="drawn: temperature 2, top-p 1, seed 7").wait_for()
    assert page.locator("#output .what").get_attribute("title") == drawn.output_text
    word = drawn.predictions.best(1, 2)[1][0]
    view.get_by_label("Token to go on with").fill(word)
    view.get_by_role("button", name="Go on with it").click()
    page.locator("#output .changed", has_text="branch").wait_for()
    open_tab(page, "beam")  # every view is of the branch
    open_page.painted("beam")
    assert page.locator("#output .what").get_attribute("title") == drawn.branch(1, word).output_text
    open_tab(page, "generation")
    page.get_by_role("button", name="Search again").click()
    page.locator("#output .changed", has_text="drawn").wait_for(state="detached")
    assert page.locator("#output .what").get_attribute("title") == own.output_text


def test_no_text_runs_as_a_script(address, open_page):
    for view in ("matrix", "lines", "generation"):
        open_page.page.goto("about:blank")
        open_page.page.goto(address + state(model="translate", text=EVIL, view=view))
        open_page.painted(view)
        assert open_page.page.evaluate("window.evil") is None
    assert open_page.page.locator("#text").input_value() == EVIL


# --- without a server ---


def test_a_page_in_a_file_asks_nobody(open_page, models, tmp_path):
    trace = trace_model(models["translate"], CAT)
    path = Path(tmp_path / "copy.html")
    path.write_text(show(trace, site="decoder.0.cross", head=1).html, encoding="utf-8")
    open_page.page.goto(path.as_uri())
    view = open_page.painted("matrix")
    weights = trace.site("decoder.0.cross").head(1).weights
    view.locator("data").first.wait_for()
    time.sleep(0.3)
    assert_holds(view, float(weights[0, 0]))
    for name in ("overview", "lines", "alignment", "pair", "generation", "beam"):
        open_tab(open_page.page, name)
        open_page.painted(name)
        assert not open_page.page.locator("#problem").is_visible()
    assert open_page.page.locator("#tab-lecture").count() == 0
    open_page.page.locator("#text").fill("another text")
    open_page.page.locator("#run").click()
    open_page.page.locator("#problem").wait_for()
    assert "export of one trace" in open_page.page.locator("#problem").inner_text()
    assert [url for url in open_page.requested if not url.startswith("data:")] == [path.as_uri()]
    open_page.wrong.clear()  # Chromium notes each refusal


def test_weights_of_a_state_are_coloured_to_both_sides_of_0(open_page, tmp_path):
    """In the pictures of all heads, in a matrix, and in the legend of each."""
    recipe = "score = 'Cosine(1.0)'\nnormaliser = 'Unnormalised()'\ngate = 'GatedDelta()'"
    trace = trace_model(generator(recipe=recipe), CAT)
    assert trace.site("blocks.0").weights(0).min() < -0.01
    path = Path(tmp_path / "copy.html")
    path.write_text(show(trace, site="blocks.0", head=0).html, encoding="utf-8")
    open_page.page.goto(path.as_uri())
    for name in ("matrix", "overview"):
        open_tab(open_page.page, name)
        view = open_page.painted(name)
        assert "−1" in view.locator(".legend-scale").first.inner_text()
        pixels = np.asarray(Image.open(BytesIO(view.locator("canvas").first.screenshot())).convert("RGB")).astype(int)
        for more, less in ((0, 2), (2, 0)):  # orange has more red than blue
            assert (pixels[..., more] - pixels[..., less] > 40).sum() > 100
        assert "distance" not in view.inner_text().partition("blocks.0, head 0")[2]  # no shares of a whole


def test_a_notebook_s_frame_works_though_it_may_keep_nothing(open_page, models, tmp_path):
    path = tmp_path / "notebook.html"
    frame = show(models["translate"], EVIL, site="encoder.0", head=2)._repr_html_()
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{frame}", encoding="utf-8")
    open_page.page.goto(path.as_uri())
    inside = open_page.page.frame_locator("iframe")
    open_page.painted("overview" if not inside.locator("regard-matrix").count() else "matrix", inside)
    open_tab(inside, "pair")
    open_page.painted("pair", inside)
    assert open_page.page.frames[1].evaluate("window.evil") is None
    assert [url for url in open_page.requested if not url.startswith(("data:", "about:"))] == [path.as_uri()]
