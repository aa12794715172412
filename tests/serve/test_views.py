"""The page's views of writing, searching, positions, masks, pictures, training and edits, in a real browser."""

import base64
from collections.abc import Iterator
from gzip import compress
from json import dumps
from math import sin
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest

from tests.serve import fake_views as fake
from tests.serve.browser_page import BrowserPage, open_tab
from tests.serve.fake_server import start

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; `pip install playwright`")

SMALL: dict[str, Any] = {"model": "small", "text": "the cat", "site": "decoder.0.cross"}
VIEWER: dict[str, Any] = {"model": "viewer", "text": "example 1", "question": "what colour is the circle"}
EDITED = {**SMALL, "edits": {"off": [{"site": "decoder.0.cross", "head": 1}]}}
VIEWS = dict.fromkeys(["generation", "beam", "training", "comparison"], SMALL)
VIEWS |= {"positions": SMALL, "masks": SMALL, "overlay": VIEWER, "whatif": EDITED}
MINE = [*VIEWS, "heat", "parts", "head", "glow", "changes", "notation"]

WRONG = {
    "Causal() & ": "At character 12: a pattern is missing here",
    "Causal() & Windw(8)": "At character 12: no pattern is called “Windw”",
    "(Causal() | Window(2)": "At character 22: a “)” is missing",
    "Causal() Window(2)": "At character 10: “&” or “|” should stand here",
    "Causal() & <b>": "At character 12: unknown symbol “<”",
    "Window(0)": "At character 1: Window(size=0): size must be",
}

# wait_for_function evaluates text in the page, which the policy forbids
UNTIL = """() => new Promise((done, give_up) => {
  const last = performance.now() + 10000;
  const look = () => {
    let found = false;
    try { found = CONDITION; } catch { /* not there yet */ }
    if (found) done();
    else if (performance.now() > last) give_up(new Error("never came true: " + TEXT));
    else setTimeout(look, 10);
  };
  look();
})"""


class PageViewer(BrowserPage):
    def open(self, view: str, **state: Any) -> Any:
        self.leave()
        self.page.goto(self.address + hashed(view, state))
        self.until(f"document.querySelector('regard-{view}').dataset.painted")
        return self.page.locator(f"regard-{view}")

    def turn(self, view: str, **state: Any) -> Any:
        """To another view without loading the page again."""
        self.page.evaluate("(hash) => void (location.hash = hash)", hashed(view, state))
        self.until(f"document.querySelector('regard-{view}').dataset.painted")
        return self.page.locator(f"regard-{view}")

    def until(self, condition: str) -> None:
        self.page.evaluate(UNTIL.replace("CONDITION", condition).replace("TEXT", dumps(condition)))

    def status(self, text: str) -> None:
        """What the status line says, which screen readers read."""
        self.until(f"document.getElementById('status').textContent.includes({dumps(text)})")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)


def hashed(view: str, state: dict[str, Any]) -> str:
    parts = [f"{name}={quote(one if isinstance(one, str) else '~' + dumps(one))}" for name, one in state.items()]
    return f"#{'&'.join([f'view={view}', *parts])}"


def numbers(node: Any) -> list[float]:
    return [float(one.get_attribute("value")) for one in node.locator("data").all()]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = start(answers=fake.Answers)
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def viewer(shared_page: Any, address: str) -> Iterator[PageViewer]:
    found = PageViewer(shared_page, address)
    yield found
    bad = found.page.evaluate("window.bad")
    found.stop()
    assert bad is None  # no token was run as a script
    assert not found.wrong
    assert {urlsplit(url).hostname for url in found.requested} <= {"127.0.0.1", None}  # data: has none


# --- what is written ---


def test_each_step_shows_its_twenty_best_tokens_and_the_entropy_of_all(viewer):
    view = viewer.open("generation", **SMALL, step=2)
    expected = fake.best(2, 20)["tokens"]
    lines = view.locator(".options li")
    assert [line.locator("bdi").get_attribute("title") for line in lines.all()] == [one["token"] for one in expected]
    assert numbers(view.locator(".options")) == pytest.approx([one["probability"] for one in expected], rel=1e-7)
    shares = fake.next_tokens(2).astype(np.float64)
    entropy = -(shares * np.log(shares)).sum()
    assert numbers(view.locator("dl.stages"))[:2] == pytest.approx([entropy, np.exp(entropy)], rel=1e-6)
    assert view.locator(".options [aria-current]").inner_text().startswith("noir")
    viewer.status("Step 3 of 9: “noir”")


def test_the_arrows_walk_through_the_steps_and_show_where_each_looked(viewer):
    view = viewer.open("generation", **SMALL)
    view.get_by_role("listbox").focus()
    viewer.press("ArrowRight", "ArrowRight", "End", "Home", "ArrowRight")
    viewer.status("Step 2 of 9: “chat”")
    row = fake.weights_of(SMALL, "decoder.0.cross", 0, (9, 8))[1]
    viewer.until(f"document.querySelector('.strongest data').value === '{float(row.max())!r}'")
    titles = [one.get_attribute("title") for one in view.locator(".weighed").all()]
    assert [float(title.split(": ")[1]) for title in titles] == pytest.approx(row.tolist(), rel=1e-7)


def test_another_token_makes_a_branch_and_back_undoes_it(viewer):
    view = viewer.open("generation", **SMALL, step=2)
    other = fake.best(2, 20)["tokens"][1]
    view.locator(".options button").first.focus()
    viewer.press("ArrowDown", "Enter")
    viewer.until("document.querySelectorAll('#written [role=option]').length === 5")
    written = [one.locator("bdi").get_attribute("title") for one in view.get_by_role("option").all()]
    assert written == ["le", "chat", other["token"], "fin", "</s>"]
    view.get_by_role("button", name="Back").press("Enter")
    viewer.until("document.querySelectorAll('#written [role=option]').length === 9")


def test_a_branch_stays_while_other_views_are_looked_at(viewer):
    view = viewer.open("generation", **SMALL, step=2)
    view.locator(".options button").first.focus()
    viewer.press("ArrowDown", "Enter")
    viewer.until("document.querySelectorAll('#written [role=option]').length === 5")
    branched = view.get_by_role("option").all_inner_texts()
    for key, other in (("9", "masks"), ("7", "beam")):
        viewer.press(key)
        viewer.until(f"document.querySelector('regard-{other}')?.dataset.painted")
        viewer.press("6")
        viewer.until("document.querySelector('regard-generation #written')")
        assert view.get_by_role("option").all_inner_texts() == branched
        assert view.get_by_role("button", name="Back").is_visible()
    viewer.until("location.hash.includes('branches=') && location.hash.includes('view=generation')")
    viewer.page.reload()  # and a link to it shows it to others
    viewer.until("document.querySelectorAll('#written [role=option]').length === 5")
    assert view.get_by_role("option").all_inner_texts() == branched
    view.get_by_role("button", name="Back").press("Enter")
    viewer.until("!location.hash.includes('branches=')")


def test_a_branch_is_what_every_view_shows(viewer):
    other = fake.best(2, 20)["tokens"][1]
    view = viewer.open("alignment", **SMALL, branches=[[2, other["id"]]])
    assert viewer.page.evaluate("document.querySelector('regard-alignment').down.length") == 5  # le chat … fin </s>
    assert viewer.page.locator("#output .what").get_attribute("title") == f"le chat {other['token']} fin"
    assert f"“{other['token']}” instead of “noir” at step 3" in viewer.page.locator("#output").inner_text()
    viewer.press("c")
    viewer.until("document.querySelector('regard-comparison')?.dataset.painted")
    assert viewer.page.evaluate("document.querySelector('regard-comparison').a.rows") == 5
    viewer.page.fill("#text", "another text")  # which has no such branch
    viewer.press("Enter")
    viewer.until("!location.hash.includes('branches=') && document.querySelector('regard-comparison').a.rows === 9")
    assert view.count() == 0


def test_bars_of_tokens_are_as_wide_as_they_are_probable(viewer):
    view = viewer.open("generation", **SMALL, step=2)
    shares = [one["probability"] for one in fake.best(2, 20)["tokens"]]
    widths = [float(one.evaluate("(bar) => parseFloat(bar.style.width)")) for one in view.locator(".bar").all()]
    assert widths == pytest.approx([100 * share for share in shares], rel=1e-4)


def test_playing_stops_at_the_end(viewer):
    view = viewer.open("generation", **SMALL, step=6)
    view.get_by_role("button", name="Play").press("Enter")
    viewer.status("Step 9 of 9")
    viewer.until("[...document.querySelectorAll('button')].some((one) => one.textContent === 'Play')")
    assert view.get_by_role("button", name="Pause").count() == 0


def test_another_model_is_not_asked_for_the_beam_of_the_last(viewer):
    view = viewer.open("beam", **SMALL)
    view.get_by_role("combobox", name="Hypotheses").select_option("3")
    viewer.until("location.hash.includes('beam=~3')")
    viewer.page.get_by_label("Model").select_option("second")
    viewer.until("!location.hash.includes('beam=~3') && location.hash.includes('second')")
    assert viewer.page.get_by_label("Model").input_value() == "second"


def test_a_text_can_be_watched_while_it_is_written(viewer):
    view = viewer.open("generation", **SMALL)
    view.get_by_role("button", name="Generate live").press("Enter")
    viewer.status("Step 9 of 9")
    assert "greedy decoding, live" in view.inner_text()
    assert view.get_by_role("option").count() == 9


def test_the_beam_is_walked_by_keys_and_tells_every_hypothesis(viewer):
    view = viewer.open("beam", **SMALL)
    tree = view.locator(".beam")
    found = {one.get_attribute("data-place"): one for one in tree.locator(".node").all()}
    assert len(found) == sum(map(len, fake.BEAM))
    titles = {place: one.locator("title").text_content() for place, one in found.items()}
    assert titles["1,1"] == "chats: log-probability -1.25"
    chosen = [place for place, one in found.items() if "chosen" in one.get_attribute("class").split()]
    assert chosen == ["0,0", "1,0", "2,0", "3,0"]
    assert "ended" in found["2,1"].get_attribute("class")
    tree.focus()
    viewer.press("Home", "ArrowDown", "ArrowRight")
    viewer.status("Step 2 of 4, 3 of 3: “souris”, log-probability −2.25 nats, open. la souris")
    viewer.press("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowDown")
    viewer.status("“</s>”, log-probability −1.875 nats, ranked by −0.625 nats per token, ended")
    assert numbers(view.locator(".beam-card")) == [-1.875, -0.625]
    assert fake.BAD in tree.locator("[data-place='0,2'] title").text_content()


def test_one_column_of_the_beam_holds_one_quantity(viewer):
    """What has ended stands beside what is open: of both the log-probability, which only falls from left to right."""
    view = viewer.open("beam", **SMALL)
    shown = {
        one.get_attribute("data-place"): float(one.locator(".score").text_content().replace("−", "-"))
        for one in view.locator(".node").all()
    }
    assert shown == {f"{n},{place}": node[1] for n, step in enumerate(fake.BEAM) for place, node in enumerate(step)}
    for n, step in enumerate(fake.BEAM[1:], 1):
        for place, node in enumerate(step):
            assert shown[f"{n},{place}"] <= shown[f"{n - 1},{node[2]}"]


# --- masks and positions ---


def test_positions_read_their_exact_values(viewer):
    view = viewer.open("positions", positions={"kind": "sinusoidal", "length": 20, "width": 8})
    view.get_by_role("application").focus()
    viewer.press("ArrowDown", "ArrowDown", "ArrowDown")
    assert numbers(view.locator("dl")) == [pytest.approx(sin(3), abs=1e-6)]
    viewer.status("sinusoidal, position 3, dimension 0: 0.14112")
    view.get_by_role("radio", name="alibi").press("Space")
    viewer.until("document.querySelector('regard-positions').dataset.painted.includes('alibi')")
    expected = fake.playground.position_table("alibi", 20, 8, 8)[0, 3, 0].item()
    view.get_by_role("application").focus()
    assert numbers(view.locator("dl")) == [pytest.approx(expected, rel=1e-6)]


def test_the_pointer_reads_a_position_and_leaves_the_cursor_where_it_was(viewer):
    view = viewer.open("positions", positions={"kind": "sinusoidal", "length": 20, "width": 8})
    box = view.get_by_role("application").bounding_box()
    viewer.page.mouse.move(box["x"] + 130, box["y"] + 200)
    viewer.until("document.querySelector('regard-positions dd').textContent !== '0'")
    place, dimension = (int(view.locator("dd").nth(n).inner_text()) for n in (0, 1))
    expected = fake.playground.position_table("sinusoidal", 20, 8, 8)[place, dimension].item()
    assert numbers(view.locator("dl")) == [pytest.approx(expected, abs=1e-6)]
    viewer.page.mouse.move(1, 1)
    viewer.until("document.querySelector('regard-positions dd').textContent === '0'")


def test_every_kind_of_position_has_a_picture(viewer):
    view = viewer.open("positions", **SMALL)
    for kind in ("rotary", "t5", "learned"):
        viewer.turn("positions", **SMALL, positions={"kind": kind, "length": 12, "width": 6, "heads": 4, "head": 2})
        viewer.until(f"document.querySelector('regard-positions').dataset.painted.includes('{kind}')")
        table = fake.playground.position_table(kind, 12, 6, 4)
        expected = table[2, 0, 0] if kind == "t5" else table[0, 0]
        assert numbers(view.locator("dl")) == [pytest.approx(expected.item(), rel=1e-6)]


def test_a_mask_shows_its_cells_cost_and_blocks(viewer):
    view = viewer.open("masks", mask={"pattern": "Causal() & Window(3)", "length": 8, "block": 4})
    expected = [21, 64, 100 * 21 / 64, pytest.approx(64 / 21), 3, 4]  # cells, share, how many fewer, blocks
    assert numbers(view.locator(".cost")) == expected
    assert "0 full, 3 mixed" in view.inner_text()
    mask, block = view.get_by_role("application").all()
    mask.focus()
    viewer.press("ArrowDown", "ArrowDown", "ArrowDown")
    viewer.status("Query 3 may not attend to key 0")
    viewer.press("ArrowRight")
    viewer.status("Query 3 may attend to key 1")
    block.focus()
    viewer.press("ArrowRight")
    viewer.status("Queries 0–3, keys 4–7: empty")


def test_a_pattern_is_put_together_by_buttons(viewer):
    view = viewer.open("masks", mask={"pattern": "Window(3)", "length": 16})
    field = view.get_by_label("Pattern")
    view.get_by_role("radio", name="| or").press("Space")
    view.get_by_role("button", name="Global(1)").press("Enter")
    assert field.input_value() == "Window(3) | Global(1)"
    view.get_by_role("radio", name="& and").press("Space")
    view.get_by_role("button", name="Causal()", exact=True).press("Enter")
    assert field.input_value() == "(Window(3) | Global(1)) & Causal()"
    viewer.until("document.querySelector('regard-masks').dataset.painted.includes('& Causal')")
    seen = fake.playground.describe_mask(fake.playground.parse_pattern(field.input_value()), 16)["cells"]
    assert numbers(view.locator(".cost"))[0] == seen
    view.get_by_role("button", name="not").press("Enter")
    viewer.until("document.querySelector('regard-masks').dataset.painted.includes('~(')")
    assert numbers(view.locator(".cost"))[0] == 16 * 16 - seen
    view.get_by_role("button", name="BigBird").press("Enter")
    viewer.until("document.querySelector('regard-masks').dataset.painted.includes('Random')")


def test_a_pattern_that_cannot_be_read_says_where(viewer):
    view = viewer.open("masks", mask={"pattern": "Causal()", "length": 8})
    field, wrong = view.get_by_label("Pattern"), view.locator(".wrong")
    for pattern, why in WRONG.items():
        field.fill(pattern)
        viewer.until(f"document.querySelector('.wrong').textContent.includes({dumps(why)})")
        assert field.get_attribute("aria-invalid") == "true"
    field.fill("Causal()")
    viewer.until("document.querySelector('.wrong').textContent === ''")
    assert field.get_attribute("aria-invalid") == "false"
    assert wrong.locator("b").count() == 0
    viewer.wrong = [line for line in viewer.wrong if "400" not in line]  # Chromium tells of every refusal


def test_a_million_tokens_are_counted_and_not_drawn(viewer):
    view = viewer.open("masks", mask={"pattern": "Causal()", "length": 1 << 20})
    cells, square, share, *_ = numbers(view.locator(".cost"))
    assert (cells, square) == (pytest.approx(2**39, rel=0.01), 2**40)
    assert share == pytest.approx(50, rel=0.01)
    assert "counted in blocks, not drawn" in view.inner_text()


def test_the_bits_of_the_picture_are_those_of_the_mask(viewer):
    viewer.open("masks", mask={"pattern": "Window(3) | Random(2, seed=0)", "length": 13})
    packed = fake.playground.describe_mask(fake.playground.parse_pattern("Window(3) | Random(2, seed=0)"), 13)["mask"]
    bits = np.unpackbits(np.frombuffer(base64.b64decode(packed), np.uint8))[: 13 * 13].reshape(13, 13)
    script = "(node) => Array.from({length: 169}, (_, n) => Number(node.sees(Math.floor(n / 13), n % 13)))"
    assert viewer.page.locator("regard-masks").evaluate(script) == bits.reshape(-1).tolist()


# --- pictures, training ---


def test_a_word_of_the_question_lays_its_weights_over_the_picture(viewer):
    view = viewer.open("overlay", **VIEWER, site="look.0.cross", head=2)
    weights = fake.weights_of({"model": "viewer"}, "look.0.cross", 2, (6, 16))
    assert numbers(view.locator("dl"))[0] == pytest.approx(float(weights[0, 0]), rel=1e-7)
    view.get_by_role("listbox").focus()
    viewer.press("ArrowRight")  # a word of two tokens: the mean of both
    viewer.until("document.querySelector('regard-overlay').dataset.painted.endsWith(' 1')")
    view.get_by_role("application").focus()
    viewer.press("ArrowDown", "ArrowRight")
    viewer.status("“colour” attends to row 1, column 1")
    assert numbers(view.locator("dl"))[0] == pytest.approx(float(weights[1:3, 5].mean()), rel=1e-6)
    view.get_by_role("radio", name="mean of all heads").press("Space")
    viewer.until("document.querySelector('regard-overlay').dataset.painted.includes('mean')")
    every = [fake.weights_of({"model": "viewer"}, "look.0.cross", head, (6, 16))[1:3, 5].mean() for head in range(4)]
    assert numbers(view.locator("dl"))[0] == pytest.approx(float(np.mean(every)), rel=1e-6)
    assert view.locator(".film figcaption").all_inner_texts()[2:] == ["the", fake.BAD, "?"]


def test_opacity_and_patches_change_the_picture(viewer):
    view = viewer.open("overlay", **VIEWER, site="look.0.cross")
    pixel = "(node) => [...node.getContext('2d').getImageData(node.width - 6, node.height - 6, 1, 1).data].slice(0, 3)"
    canvas = view.locator("[role=application]")
    laid = canvas.evaluate(pixel)
    view.get_by_label("Opacity").focus()
    viewer.press("Home")
    assert canvas.evaluate(pixel) == [40, 90, 200] != laid


def test_a_patch_that_asks_is_chosen_by_enter(viewer):
    view = viewer.open("overlay", **VIEWER, site="picture.0")
    weights = fake.weights_of({"model": "viewer"}, "picture.0", 0, (16, 16))
    view.get_by_role("application").focus()
    viewer.press("ArrowDown", "ArrowRight", "Enter")
    viewer.until("document.querySelector('regard-overlay').dataset.painted.endsWith(' 5')")
    assert numbers(view.locator("dl"))[0] == pytest.approx(float(weights[5, 5]), rel=1e-7)


def test_training_is_scrubbed_by_keys_and_shows_the_head_of_each_checkpoint(viewer):
    view = viewer.open("training", **SMALL, head=1)
    assert "The end of training" in view.inner_text()
    slider = view.get_by_role("slider")
    slider.focus()
    viewer.press("Home")
    viewer.until("document.querySelector('regard-training').dataset.painted.startsWith('Step 100')")
    weights = fake.weights_of({"model": "small", "checkpoint": 100}, "decoder.0.cross", 1, (9, 8))
    assert numbers(view.locator("dl.stages")) == [pytest.approx(float(weights[0, 0]), rel=1e-7)]
    viewer.press("ArrowRight")
    viewer.until("document.querySelector('regard-training').dataset.painted.startsWith('Step 200')")
    assert slider.get_attribute("aria-valuetext") == "Step 200"
    viewer.until("document.querySelectorAll('.seen tbody tr').length === 3")  # the others were run meanwhile
    view.get_by_role("application").focus()
    viewer.press("ArrowRight")
    viewer.status("Step 200: le attends to black")


def test_training_is_drawn_by_step_with_the_held_out_loss(viewer):
    view = viewer.open("training", **SMALL)
    viewer.until("document.querySelectorAll('.seen tbody tr').length === 3")
    assert view.locator(".film .frame").all_inner_texts() == ["100", "200", "350 (end)"]
    loss, entropy = view.get_by_role("img", name="loss"), view.get_by_role("img", name="Entropy")
    assert loss.locator("text").all_text_contents() == ["4", "0", "50", "350", "training step", "nats a token"]
    points = [tuple(map(float, one.split(","))) for one in loss.locator("polyline").get_attribute("points").split()]
    assert points == [(0, 0), (120, 75), (240, 87.5)]  # (step - 50) / 300 of the width, loss / 4 of the height
    assert entropy.locator("text").all_text_contents()[2:5] == ["100", "350", "training step"]
    middle = float(entropy.locator("polyline").get_attribute("points").split()[1].split(",")[0])
    assert middle == pytest.approx(240 * 100 / 250, abs=0.1)


def test_the_checkpoint_that_became_the_model_is_shown_once(viewer):
    response = {"checkpoints": fake.STEPS, "final": 200, "history": []}
    viewer.page.route("**/api/models/*/checkpoints", lambda route: route.fulfill(json=response))
    view = viewer.open("training", **SMALL)
    assert view.locator(".film .frame").all_inner_texts() == ["100", "200 (end)"]


# --- two at once, and what if ---


@pytest.mark.parametrize("view", ["comparison", "training"])
def test_the_cursor_is_that_of_every_view(viewer, view):
    shown = viewer.open(view, **SMALL, head=1, query=2, key=3, other={"head": 3})
    weights = fake.weights_of({"model": "small"}, "decoder.0.cross", 1, (9, 8))
    number = ".linked data" if view == "comparison" else "dl.stages data"
    viewer.until(f"Math.abs(document.querySelector('{number}').value - {float(weights[2, 3])!r}) < 1e-7")
    shown.get_by_role("application").first.focus()
    viewer.press("ArrowRight")
    viewer.until("location.hash.includes('key=~4') && location.hash.includes('query=~2')")
    viewer.until(f"Math.abs(document.querySelector('{number}').value - {float(weights[2, 4])!r}) < 1e-7")
    assert float(weights[2, 4]) != float(weights[2, 3])  # or the cursor need not have moved


def test_no_weight_is_set_in_a_head_that_is_off(viewer):
    view = viewer.open("whatif", **EDITED, head=1)
    view.get_by_role("radio", name="Set a weight").press("Space")
    view.get_by_role("button", name="Add").press("Enter")
    viewer.page.wait_for_selector("#problem:not([hidden])")
    assert "Head 1 of decoder.0.cross is ablated" in viewer.page.locator("#problem").inner_text()
    assert view.locator(".made .edits button").count() == 1


def test_two_heads_are_compared_cell_by_cell_with_one_cursor(viewer):
    view = viewer.open("comparison", **SMALL, head=1, other={"head": 3})
    a, b = (fake.weights_of({"model": "small"}, "decoder.0.cross", head, (9, 8)) for head in (1, 3))
    view.get_by_role("application").nth(2).focus()
    viewer.press("ArrowDown", "ArrowRight", "ArrowRight")
    viewer.status("chat attends to c: ")
    viewer.until("document.querySelectorAll('.linked data').length === 3")
    expected = [float(a[1, 2]), float(b[1, 2]), float(b[1, 2]) - float(a[1, 2])]
    assert numbers(view.locator(".linked")) == pytest.approx(expected, rel=1e-7)
    labels = [one.get_attribute("aria-label") for one in view.get_by_role("application").all()]
    assert len(labels) == 3
    assert len(set(labels)) == 1


def test_two_models_are_compared_on_the_same_text(viewer):
    view = viewer.open("comparison", **SMALL)
    view.get_by_label("With model").select_option("second")
    viewer.until("document.querySelector('regard-comparison').dataset.painted.includes('second')")
    weights = fake.weights_of({"model": "second"}, "decoder.0.cross", 0, (9, 8))
    viewer.until("document.querySelectorAll('.linked data').length === 3")
    assert numbers(view.locator(".linked"))[1] == pytest.approx(float(weights[0, 0]), rel=1e-7)
    assert view.locator(".otherwise").all_inner_texts() == ["noir", "<s>bleu</s>"]


def test_edits_are_added_removed_and_undone_by_keyboard(viewer):
    view = viewer.open("whatif", **SMALL)
    view.get_by_role("combobox", name="Head", exact=True).select_option("2")
    view.get_by_role("button", name="Add").press("Enter")
    viewer.until("document.querySelectorAll('.made .edits button').length === 1")
    assert "head 2 is ablated" in view.locator(".made").inner_text()
    view.get_by_role("radio", name="Temperature").press("Space")
    view.get_by_role("spinbutton", name="Temperature").fill("2.5")
    viewer.press("Enter")
    viewer.until("document.querySelectorAll('.made .edits button').length === 2")
    assert "everywhere: temperature 2.5" in view.locator(".made").inner_text()
    view.get_by_role("button", name="Remove: decoder.0.cross: head 2 is ablated").press("Enter")
    viewer.until("document.querySelectorAll('.made .edits button').length === 1")
    view.get_by_role("button", name="Undo").press("Enter")
    viewer.until("document.querySelectorAll('.made .edits button').length === 2")
    view.get_by_role("button", name="Clear all").press("Enter")
    viewer.until("document.querySelector('.made').textContent.includes('No interventions yet')")


def test_a_weight_cells_and_a_word_become_edits_of_the_trace(viewer):
    view = viewer.open("whatif", **SMALL, head=1, query=2, key=3)
    view.get_by_role("radio", name="Set a weight").press("Space")
    view.get_by_label("Weight", exact=True).fill("0.75")
    viewer.press("Enter")
    viewer.until("location.hash.includes('weights')")
    view.get_by_role("radio", name="Mask cells").press("Space")
    view.get_by_label("To key").select_option("4")
    view.get_by_role("button", name="Add").press("Enter")
    viewer.until("location.hash.includes('masks')")
    view.get_by_role("radio", name="Replace a word").press("Space")
    view.get_by_role("combobox", name="Word", exact=True).select_option("1")
    view.get_by_label("Becomes").fill("white")
    viewer.press("Enter")
    viewer.until("document.querySelectorAll('.made .edits button').length === 4")
    place = {"site": "decoder.0.cross", "head": 1, "query": 2}
    expected = {
        "weights": [{**place, "key": 3, "value": 0.75}],
        "masks": [{**place, "key": 3}, {**place, "key": 4}],
        "swaps": [{"word": 1, "to": "white"}],
    }
    viewer.until("document.querySelector('.python').textContent.includes('white')")
    assert view.locator(".python").text_content() == f"# {expected}\nfrom regard.see import trace_model\n"


def test_the_trace_is_copied_as_python(viewer):
    viewer.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    view = viewer.open("whatif", **EDITED)
    view.get_by_role("button", name="Copy as Python").press("Enter")
    viewer.status("The code is on the clipboard")
    assert viewer.page.evaluate("navigator.clipboard.readText()") == view.locator(".python").text_content()


def test_before_after_and_the_change_are_told_in_numbers(viewer):
    view = viewer.open("whatif", **EDITED)
    viewer.until("document.querySelector('table.moved')")
    rows = [numbers(row) for row in view.locator("table.moved tbody tr").all()]
    assert rows == [[a, b, b - a] for _, a, b in fake.MOVED]
    assert view.locator("table.moved th[scope=row]").all_inner_texts() == ["noir", fake.BAD, "blanc"]
    assert view.locator(".otherwise").all_inner_texts() == ["noir", "<s>bleu</s>"]
    viewer.status("Output after the edits")


# --- nothing that is over stays ---


def test_a_status_of_one_view_is_not_left_in_another(viewer):
    viewer.open("generation", **SMALL)
    viewer.status("Step 1 of 9")
    viewer.press("8")  # a view that has nothing to tell until it is pointed at
    viewer.until("document.querySelector('regard-positions')?.dataset.painted")
    viewer.until("document.getElementById('status').textContent === ''")
    assert viewer.page.locator("#status").inner_text() == ""


def test_a_server_that_is_lost_leaves_no_output_of_another_text(viewer):
    viewer.open("generation", **SMALL)
    viewer.page.route("**/api/traces", lambda route: route.abort())
    viewer.page.route("**/views/masks.js", lambda route: route.abort())
    viewer.page.fill("#text", "another text")
    viewer.press("Enter")
    viewer.page.wait_for_selector("#problem:not([hidden])")
    assert "does not answer" in viewer.page.locator("#problem").inner_text()
    viewer.until("document.getElementById('status').textContent === ''")
    assert viewer.page.locator("#output .what").count() == 0
    assert viewer.page.locator("regard-generation").count() == 0
    open_tab(viewer.page, "masks")
    viewer.until("document.querySelector('#panel .empty').textContent.includes('Masks')")
    assert "could not be loaded; is `regard serve` still running?" in viewer.page.locator("#panel").inner_text()
    viewer.page.unroute("**/api/traces")
    viewer.page.locator("#run").click()
    viewer.until("document.querySelector('#output .what')?.title.startsWith('le chat')")
    assert viewer.page.locator("#problem").is_hidden()
    viewer.wrong = [line for line in viewer.wrong if "ERR_FAILED" not in line]  # what was broken off


# --- everybody ---


@pytest.mark.slow  # in the short form test_microscope.py tests all views
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser, address, axe, scheme):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 800}, bypass_csp=True)
    viewer, found = PageViewer(context.new_page(), address), []
    for view, state in VIEWS.items():
        if viewer.page.url == "about:blank":
            viewer.open(view, **state)
            viewer.page.evaluate(axe)
        viewer.turn(view, **state)
        viewer.page.wait_for_timeout(100)
        answer = viewer.page.evaluate("axe.run({ resultTypes: ['violations'] })")
        found += [(view, one["id"], one["nodes"][0]["html"][:160]) for one in answer["violations"]]
    context.close()
    assert not found
    assert not viewer.wrong


# a phone, and 200 %
@pytest.mark.parametrize(("width", "height"), [pytest.param(360, 740, marks=pytest.mark.slow), (640, 400)])
def test_nothing_is_wider_than_a_small_window(browser, address, width, height):
    context = browser.new_context(viewport={"width": width, "height": height}, device_scale_factor=2)
    viewer = PageViewer(context.new_page(), address)
    viewer.open("masks", **SMALL)
    for view, state in VIEWS.items():
        viewer.turn(view, **state)
        viewer.page.wait_for_timeout(60)
        assert viewer.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, view
    context.close()
    assert not viewer.wrong


def test_everything_is_reached_by_tab_and_has_a_name(viewer):
    viewer.open("masks", **SMALL)
    things = "button:enabled, select, input, textarea, pre, canvas[tabindex], [role=listbox], [role=application]"
    script = """(node, things) => [...node.querySelectorAll(things)].filter((one) => one.checkVisibility())
      .map((one) => [one.tabIndex, one.ariaLabel ?? one.labels?.[0]?.textContent ?? one.textContent])"""
    for view, state in VIEWS.items():
        found = viewer.turn(view, **state).evaluate(script, things)
        assert found, view
        assert all(at == 0 for at, _ in found), view
        assert all(name.strip() for _, name in found), view


def test_an_address_with_nonsense_in_it_shows_the_usual(viewer):
    assert viewer.open("masks", **SMALL, mask={"pattern": 5, "length": "x"}).is_visible()
    assert viewer.turn("positions", **SMALL, positions=[1]).is_visible()
    assert viewer.turn("generation", **SMALL, step="abc").is_visible()
    assert viewer.turn("comparison", **SMALL, other="nobody").is_visible()


def test_these_views_are_small_and_read_no_markup():
    folder = fake.fake_server.PAGE / "js" / "views"
    sources = {name: (folder / f"{name}.js").read_text() for name in MINE}
    assert sum(len(compress(text.encode())) for text in sources.values()) < 60_000
    for text in sources.values():
        assert text.startswith("// ")
        assert not any(word in text for word in ("innerHTML", "insertAdjacentHTML", "outerHTML", "eval(", "http"))
