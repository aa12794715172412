"""The lecture in a real browser: the lectures' numbers read back from the page, changed, walked through by keyboard."""

import json
import re
from itertools import chain
from math import exp, tanh
from urllib.parse import quote

import pytest
import torch

from regard.attention import Dot, Recipe
from regard.attention.catalogue import EXAMPLES, K, Q, V, X, tensor
from regard.attention.functional import steps
from regard.see.trace import trace_model
from regard.serve.app import create_app
from regard.serve.model_store import ModelEntry, ModelStore
from regard.serve.playground import DEFAULTS, MAX_DIMENSIONS, MAX_KEYS, walk_through_example
from tests.see.untrained_models import CAT, translator
from tests.serve.browser_page import BrowserPage, axe_violations
from tests.serve.client import TOKEN
from tests.serve.lecture_host import app, serving

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install playwright")

CHAPTERS = 10
READ = """id => [...document.querySelectorAll(`regard-lecture table[data-id="${id}"] tbody tr`)].map(line =>
  [...line.querySelectorAll("td")].map(td => {
    const found = td.querySelector("data")?.value ?? td.querySelector("input")?.value ?? td.dataset.value;
    return found === "-Infinity" ? null : Number(found);
  }))"""
HERE = """() => ({at: store.state.lecture, now: document.querySelectorAll(".lecture-matrix td.lecture-now").length,
  cell: {...document.activeElement.dataset}, tag: document.activeElement.tagName,
  says: document.querySelector("regard-lecture [role=status]").textContent,
  sum: document.querySelector(".lecture-sum").textContent})"""

WALK = """() => {
  const found = [], here = HERE;
  while (found.at(-1)?.at !== found.at(-2)?.at || found.length < 2) {
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    found.push(here());
  }
  return found.slice(0, -1);
}""".replace("HERE", HERE)
BEYOND = "[document.querySelector('.lecture-stage')].map(one => one.scrollWidth - one.clientWidth)[0]"


@pytest.fixture(scope="module")
def trace():
    torch.manual_seed(0)
    return trace_model(translator(model=21, heads=3), CAT)


@pytest.fixture(scope="module")
def address(trace):
    with serving(app(trace)) as url:
        yield url


@pytest.fixture
def page(shared_page, address):
    """A page that must neither complain nor ask anybody else."""
    found = BrowserPage(shared_page, address)
    yield shared_page
    found.stop()
    assert [line for line in found.wrong if "400 (Bad Request)" not in line] == []
    assert [url for url in found.requested if not url.startswith((address, "data:", "about:"))] == []


def opened(page, address: str, at: str = "1.0", more: str = ""):
    if page.url != "about:blank":  # or it would not be loaded anew
        page.goto("about:blank")
    page.goto(f"{address}#lecture={at}{more}")
    page.wait_for_selector("regard-lecture table td")
    page.evaluate("async () => { window.store = (await import('/static/js/store.js')).store; }")
    return page


def turned(page, at: str) -> None:
    """To another place of the lecture without loading the page again."""
    page.evaluate("at => { store.set({ lecture: at }); }", at)
    until(page, f"location.hash.includes('lecture={at}') && document.querySelector('regard-lecture table td') !== null")


def until(page, condition: str) -> None:
    """Playwright's own waiting evaluates text in the page, which its policy forbids."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never: {condition}")


def read(page, table: str) -> list:
    found = page.evaluate(READ, table)
    assert found, f"no table {table} on the page"
    return found


def chapter(page, number: int) -> None:
    page.locator(".lecture-chapters button").nth(number - 1).click()


def assert_close(found: list, wanted, atol: float = 1e-6) -> None:
    wanted = [[None if number is None else float(number) for number in row] for row in wanted]
    assert [len(row) for row in found] == [len(row) for row in wanted]
    for one, other in zip(chain(*found), chain(*wanted), strict=True):
        assert (one is None) == (other is None)
        assert one is None or one == pytest.approx(other, abs=atol)


def case(name: str):
    return next(one for one in EXAMPLES if one.name == name)


# --- the numbers ---


def test_the_page_shows_the_lectures_own_numbers(page, address):
    opened(page, address, "2.0")
    for name, wanted in (("x", X), ("q", Q), ("k", K), ("v", V)):
        assert_close(read(page, name), wanted)
    seen, plain = (steps(*case(f"self-attention, {name}").qkv(), recipe) for name, recipe in RECIPES.items())
    chapter(page, 3)
    assert_close(read(page, "scores"), plain.scores[0, 0])
    chapter(page, 4)
    assert_close(read(page, "scaled"), seen.scores[0, 0])
    assert_close(read(page, "plain"), plain.weights[0, 0])
    assert_close(read(page, "plain"), case("self-attention, unscaled").weights, 0.51e-4)
    assert_close(read(page, "divided"), case("self-attention, scaled").weights, 0.51e-4)
    chapter(page, 5)
    assert_close(read(page, "ahead-weights"), case("look-ahead mask").weights, 0.51e-4)
    chapter(page, 6)
    assert_close(read(page, "weights"), seen.weights[0, 0])
    chapter(page, 7)
    assert_close(read(page, "z"), seen.output[0, 0])
    assert_close(read(page, "lecture"), case("self-attention, unscaled").output, 0.51e-4)
    chapter(page, 9)
    assert_close([row[:3] for row in read(page, "output")], seen.output[0, 0])
    assert page.locator("table[data-id=output] tbody td").first.inner_text() == "1.8639"  # as the lecture rounds it


RECIPES = {"scaled": Recipe(), "unscaled": Recipe(score=Dot())}


def test_undivided_scores_give_the_numbers_that_the_second_lecture_prints(page, address):
    opened(page, address, "7.0")
    page.get_by_role("button", name="no scaling").click()
    until(page, "document.querySelector('table[data-id=z] data').value.startsWith('1.93')")
    assert_close(read(page, "z"), case("self-attention, unscaled").output, 0.51e-4)
    assert_close(read(page, "z"), steps(*case("self-attention, unscaled").qkv(), Recipe(score=Dot())).output[0, 0])


def test_every_array_of_the_other_scores_is_on_the_page(page, address):
    opened(page, address, "10.0")
    for name, found in walk_through_example({})["others"].items():
        for part in ("scores", "weights", "context"):
            assert_close(read(page, f"{name}-{part}"), found[part])


def test_editing_x_changes_everything_downstream_to_what_the_reference_gives(page, address):
    opened(page, address, "1.0")
    box = page.get_by_role("textbox", name="x, input 2, column 3")
    box.fill("-1,5")  # a comma is read as a point
    box.press("Enter")
    until(page, "store.state.numbers?.x?.[1][2] === -1.5")
    x = tensor(X)
    x[1, 2] = -1.5
    heads = [[x @ tensor(DEFAULTS[f"w{part}{n}"]) for part in "qkv"] for n in ("", "2")]
    seen = [steps(q[None, None], k[None, None], v[None, None]) for q, k, v in heads]
    wanted = {
        (2, "q"): heads[0][0],
        (2, "k"): heads[0][1],
        (2, "v"): heads[0][2],
        (3, "kt"): heads[0][1].T,
        (3, "scores"): heads[0][0] @ heads[0][1].T,
        (4, "scaled"): seen[0].scores[0, 0],
        (5, "masked"): seen[0].scores[0, 0],
        (6, "weights"): seen[0].weights[0, 0],
        (7, "z"): seen[0].output[0, 0],
        (8, "weights2"): seen[1].weights[0, 0],
        (8, "z2"): seen[1].output[0, 0],
        (9, "joined"): torch.cat([one.output[0, 0] for one in seen], 1),
        (9, "output"): torch.cat([one.output[0, 0] for one in seen], 1) @ tensor(DEFAULTS["wo"]),
        (10, "dot-scores"): heads[0][0] @ heads[0][1].T,
        (10, "general-scores"): heads[0][0] @ tensor(DEFAULTS["wg"]) @ heads[0][1].T,
    }
    for (number, table), values in wanted.items():
        chapter(page, number)
        assert_close(read(page, table), values.tolist())
    until(page, "location.hash.includes('lecture=10.0')")
    page.reload()  # the numbers are in the address
    page.wait_for_selector("table[data-id=dot-scores]")
    assert_close(read(page, "dot-scores"), wanted[10, "dot-scores"].tolist())
    page.get_by_role("button", name="Reset").click()
    until(page, "!location.hash.includes('numbers')")
    assert_close(read(page, "dot-scores"), tensor(Q) @ tensor(K).T)


def test_no_edit_is_lost_while_the_server_computes(page, address):
    opened(page, address, "2.0")
    boxes = page.locator("table[data-id=x] input")
    page.route("**/api/lecture", lambda route: (page.wait_for_timeout(150), route.continue_()))
    for n in range(5):
        boxes.nth(n).fill(str(n + 3))
        boxes.nth(n).press("Tab")
    until(page, "store.state.numbers?.x?.[1][0] === 7")
    x = [[3.0, 4.0, 5.0, 6.0], [7.0, 2.0, 0.0, 2.0], [1.0, 1.0, 1.0, 1.0]]
    assert page.evaluate("store.state.numbers.x") == x
    assert_close(read(page, "q"), walk_through_example({"x": x})["heads"][0]["q"])


def test_a_matrix_of_the_second_head_and_of_bahdanau_can_be_edited_too(page, address):
    opened(page, address, "8.0")
    page.get_by_text("The second head's matrices").click()
    page.get_by_role("textbox", name="Wk2, row 2, column 1").fill("3")
    until(page, "store.state.numbers?.wk2?.[1][0] === 3")
    wk2 = [[float(n) for n in row] for row in DEFAULTS["wk2"]]
    wk2[1][0] = 3.0
    assert_close(read(page, "weights2"), walk_through_example({"wk2": wk2})["heads"][1]["weights"])
    chapter(page, 10)
    assert "numbers in Wa, Ua, va and Luong's W are ours" in page.locator(".lecture-prose").inner_text()
    page.get_by_text("Their matrices").click()
    page.get_by_role("textbox", name="va, va, column 2").fill("-4")
    until(page, "store.state.numbers?.va?.[0][1] === -4")
    assert_close(
        read(page, "bahdanau-scores"), walk_through_example({"va": [[2, -4, 1]]})["others"]["bahdanau"]["scores"]
    )


SILLY = {
    "one": "x, row 1, column 1 is 'one', not a number; write one such as 0.5",
    "1e308": "keep to numbers from -1000 to 1000",
    "NaN": "not a number; write one such as 0.5",
    "-Infinity": "not a number; write one such as 0.5",
    "1,000": "not a number; write one such as 0.5",
    "": "is empty; write a number",
    "<img src=x onerror=alert(1)>": "not a number; write one such as 0.5",
}


def test_silly_input_gets_a_sentence_and_changes_nothing(page, address):
    opened(page, address, "2.0")
    box = page.get_by_role("textbox", name="x, input 1, column 1")
    for typed, sentence in SILLY.items():
        before = read(page, "q")
        box.fill(typed)
        box.press("Enter")
        page.wait_for_selector("regard-lecture [role=alert]:not([hidden])")
        until(
            page, f"document.querySelector('regard-lecture [role=alert]').textContent.includes({json.dumps(sentence)})"
        )
        assert box.get_attribute("aria-invalid") == "true"
        assert_close(read(page, "q"), before)
        box.fill("2")
        until(page, "document.querySelector('regard-lecture [role=alert]').hidden")
        assert read(page, "q")[0] == [2, 0, 3]
        assert box.get_attribute("aria-invalid") is None


def test_hostile_numbers_in_the_address_get_a_sentence_and_the_lectures_numbers(page, address):
    opened(page, address, "2.0", f"&numbers={quote('~' + json.dumps({'x': [['<script>', 1], [2]]}))}")
    assert "rows of x have 2, 1 numbers" in page.locator("regard-lecture [role=alert]").inner_text()
    assert_close(read(page, "q"), Q)
    opened(page, address, "999.999")
    assert page.locator("h2").inner_text() == "Bahdanau and Luong"


# --- the walk ---


def said_result(message: str) -> tuple[float, float]:
    """The arithmetic that is read out, worked out again, and the result it names."""
    left, result = (side.replace("−", "-").strip() for side in re.sub(r"^[^:]*: ", "", message).rsplit("=", 1))
    left = re.sub(r"^(visible|masked): (\S+) stays$", r"\2", left)
    left = re.sub(r"^.*W\[q; k\] of \[.*\]: ", "", left).split("=")[0]
    result = "-inf" if "∞" in result else result
    assert re.fullmatch(r"[\d\s.e+\-·/()]*|.*(exp|tanh).*", left), left
    names = {"__builtins__": {}, "exp": exp, "tanh": tanh}
    return eval(left.replace("·", "*"), names), float(result)


@pytest.mark.slow
def test_arrow_keys_walk_through_every_cell_of_every_chapter(page, address):
    opened(page, address, "1.0")
    page.locator("h2").focus()
    seen: dict[str, set] = {}
    checked, places = 0, [page.evaluate("store.state.lecture") or "1.0"]
    page.keyboard.press("ArrowRight")
    for now in [page.evaluate(HERE), *page.evaluate(WALK)]:
        places.append(now["at"])
        if now["tag"] != "TD":
            continue
        cell = now["cell"]
        seen.setdefault(cell["table"], set()).add((int(cell["i"]), int(cell["j"])))
        worked, result = said_result(now["says"])
        assert worked == pytest.approx(result, abs=2e-4, rel=1e-4), now["says"]
        checked += 1
        assert now["now"] == 1
    assert {int(place.split(".")[0]) for place in places} == set(range(1, CHAPTERS + 1))
    square = {(i, j) for i in range(3) for j in range(3)}
    small = ["q", "k", "v", "scores", "scaled", "masked", "exponentials", "weights", "z", "weights2", "z2"]
    small += [f"{name}-scores" for name in ("bahdanau", "dot", "general", "concat")]
    assert seen == dict.fromkeys(small, square) | {"output": {(i, j) for i in range(3) for j in range(4)}}
    assert checked == 9 * len(small) + 12
    back = 3 + sum(place.startswith(f"{CHAPTERS}.") for place in places)  # into the chapter before the last
    for _ in range(back):
        page.keyboard.press("ArrowLeft")
    assert page.evaluate("store.state.lecture") == places[-1 - back]


def test_up_and_down_go_from_chapter_to_chapter_and_each_asks_a_question(page, address):
    opened(page, address, "1.0")
    titles, answers = [], set()
    for number in range(1, CHAPTERS + 1):
        titles.append(page.locator("h2").inner_text())
        page.keyboard.press("End")
        question = page.locator(".lecture-question")
        assert question.locator("summary").inner_text().endswith("?")
        assert not question.locator("p").is_visible()
        page.keyboard.press("Enter")
        assert question.locator("p").is_visible()
        answers.add(question.locator("p").inner_text())
        page.keyboard.press("ArrowDown")
        assert page.evaluate("store.state.lecture").startswith(f"{min(number + 1, CHAPTERS)}.")
    assert len(set(titles)) == len(answers) == CHAPTERS
    for number in range(CHAPTERS - 1, 0, -1):
        page.keyboard.press("ArrowUp")
        assert page.locator("h2").inner_text() == titles[number - 1]


def test_pointing_at_a_cell_shows_its_products_and_marks_its_operands(page, address):
    opened(page, address, "2.0")
    page.locator("table[data-id=q] td[data-i='0'][data-j='2']").hover()
    assert "1·1 + 0·0 + 1·1 + 0·1 = 2" in page.locator(".lecture-sum").inner_text()
    used = page.locator("td.lecture-used")
    assert used.count() == 8
    assert {td.get_attribute("data-table") for td in used.all()} == {"x", "wq"}
    chapter(page, 3)
    page.locator("table[data-id=kt] tbody td").first.focus()
    assert page.evaluate(HERE)["says"] == "kT, row 1, key 1: 1·0 + 0·1 + 1·0 + 0·1 = 0"
    page.keyboard.press("ArrowRight")  # a table beside the walk has a walk of its own
    assert page.evaluate(HERE)["cell"] == {"table": "kt", "i": "0", "j": "1"}


def test_the_mask_is_switched_by_keyboard_and_by_pattern(page, address):
    opened(page, address, "5.0")
    page.get_by_role("button", name="mask, query 1, key 3: visible").press("Enter")
    page.wait_for_selector("[aria-label='mask, query 1, key 3: masked']")
    assert read(page, "masked")[0][2] is None
    page.get_by_role("button", name="strictly before").click()
    until(page, "store.state.numbers?.mask === 'before'")
    chapter(page, 6)
    assert_close(read(page, "weights"), walk_through_example({"mask": "before"})["heads"][0]["weights"])
    page.locator("table[data-id=weights] tbody td").first.focus()
    assert "every key is masked" in page.evaluate(HERE)["says"]


def test_cells_can_be_hidden_until_their_step(page, address):
    opened(page, address, "3.0")
    page.keyboard.press("h")
    opacity = "n => getComputedStyle(document.querySelectorAll('table[data-id=scores] data')[n]).opacity"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert [page.evaluate(opacity, n) for n in range(4)] == ["1", "1", "0", "0"]
    page.keyboard.press("h")
    assert page.evaluate(opacity, 8) == "1"


# --- sizes, and everybody ---


def test_the_projector_fills_the_window_with_the_largest_type_that_fits(page, address):
    opened(page, address, "1.0")
    size = "() => parseFloat(getComputedStyle(document.querySelector('regard-lecture table td')).fontSize)"
    for number in range(1, CHAPTERS + 1):
        chapter(page, number)
        before = page.evaluate(size)
        page.keyboard.press("p")
        assert page.evaluate(size) >= before
        box = page.locator("regard-lecture").bounding_box()
        assert (box["width"], box["height"]) == (1280, 800)
        assert page.evaluate(BEYOND) <= 1
        assert page.evaluate("document.querySelector('header').inert")
        page.keyboard.press("Escape")
        assert not page.evaluate("document.querySelector('header').inert")
    chapter(page, 3)
    before = page.evaluate(size)
    page.keyboard.press("p")
    assert page.evaluate(size) > 1.35 * before


@pytest.mark.parametrize(("width", "height"), [(360, 740), pytest.param(640, 400, marks=pytest.mark.slow)])
def test_a_phone_and_a_zoom_of_200_percent_need_no_sideways_scrolling(page, address, width, height):
    page.set_viewport_size({"width": width, "height": height})
    opened(page, address)
    for number in range(1, CHAPTERS + 1):
        turned(page, f"{number}.1")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_matrices_are_tables_with_names_for_rows_columns_and_inputs(page, address):
    opened(page, address, "2.0")
    for table in page.locator("regard-lecture table").all():
        assert table.locator("caption").inner_text()
        assert table.locator("th[scope=col]").count() >= 3
        assert table.locator("th[scope=row]").count() >= 3
    assert page.get_by_role("table", name="q", exact=True).count() == 1
    assert page.get_by_role("textbox", name="Wq, row 1, column 3").count() == 1


@pytest.mark.parametrize(
    ("theme", "share"),
    [
        ("light", slice(0, None, 3)),
        *(pytest.param(one, slice(None), marks=pytest.mark.slow) for one in ("light", "dark")),
    ],
    ids=["some", "light", "dark"],
)
def test_axe_finds_nothing_to_object_to(page, address, axe, theme, share):
    page.emulate_media(color_scheme=theme)
    places = [*[f"{number}.1" for number in range(1, CHAPTERS + 1)], "3.2m", "6.3m", "9.1m"][share]
    opened(page, address)
    page.evaluate(axe)  # the policy of the page forbids a script from elsewhere, not the debugger's
    for at in places:
        turned(page, at)
        for details in page.locator("details").all():
            details.evaluate("node => node.open = true")
        assert axe_violations(page, "document" if at == places[0] else "'regard-lecture'") == [], at
    assert bool(page.locator(".lecture-note").inner_text()) == places[-1].endswith("m")  # of the loaded model
    page.keyboard.press("p")
    assert axe_violations(page) == []


# --- on the loaded model ---


def test_the_same_chapters_show_the_loaded_models_numbers(page, address, trace):
    opened(page, address, "3.0")
    page.get_by_role("button", name="Loaded model").click()
    page.wait_for_selector("table[data-id=dots]")
    page.get_by_role("combobox", name="Attention").select_option("decoder.0.self")
    until(page, "store.state.site === 'decoder.0.self'")
    page.get_by_role("combobox", name="Head").select_option("1")
    page.get_by_role("combobox", name="Query").select_option(index=2)
    until(page, "document.querySelector('.lecture-note').textContent.startsWith('decoder.0.self, head 1, query')")
    page.wait_for_timeout(300)
    site = trace.site("decoder.0.self")
    head = site.head(1)
    assert "the first 4 of 7 dimensions" in page.locator(".lecture-note").inner_text()
    assert_close(read(page, "q"), site.q[0, 1, 2:3, :MAX_DIMENSIONS].tolist())
    assert_close(read(page, "kt"), site.k[0, 1, :MAX_KEYS, :MAX_DIMENSIONS].T.tolist())
    assert_close(read(page, "dots"), head.products[2:3, :MAX_KEYS].tolist())
    page.locator("table[data-id=dots] tbody td").nth(1).focus()
    assert "from 3 more dimensions" in page.evaluate(HERE)["says"]
    chapter(page, 5)
    assert read(page, "masked")[0][3:] == [None, None]
    chapter(page, 6)
    assert_close(read(page, "weights"), head.weights[2:3, :MAX_KEYS].tolist())
    chapter(page, 7)
    assert_close(read(page, "z"), head.output[2:3, :MAX_DIMENSIONS].tolist())
    chapter(page, 9)
    assert_close(read(page, "layer"), site.output[0, 1, 2:3, :MAX_DIMENSIONS].tolist())
    assert page.locator(".lecture-chapters button:visible").count() == 9
    chapter(page, 2)
    layer = trace.request.task_model.model.decoder[0].attention
    x = site.projections.x[0].detach()
    assert_close(read(page, "x-query"), x[2:3, :MAX_DIMENSIONS].tolist())
    assert_close(read(page, "x-keys"), x[:MAX_KEYS, :MAX_DIMENSIONS].tolist())
    assert_close(read(page, "wq"), layer.query.weight[7 : 7 + MAX_DIMENSIONS, :MAX_DIMENSIONS].T.tolist())
    assert_close(read(page, "wv"), layer.value.weight[7 : 7 + MAX_DIMENSIONS, :MAX_DIMENSIONS].T.tolist())
    for made, wanted in (("xq", site.q[0, 1, 2:3]), ("xk", site.k[0, 1, :MAX_KEYS]), ("xv", site.v[0, 1, :MAX_KEYS])):
        assert_close(read(page, made), wanted[:, :MAX_DIMENSIONS].tolist())
    page.locator("table[data-id=xk] tbody td").nth(5).focus()
    assert "from 17 more dimensions" in page.evaluate(HERE)["says"]
    page.locator("h2").focus()
    for _ in range(12):
        page.keyboard.press("ArrowUp")
    assert page.evaluate("store.state.lecture") == "1.0m"


def test_it_is_a_view_of_the_real_page(browser, trace):
    """The same against the whole server, within the shell."""
    with serving(
        create_app(ModelStore([ModelEntry("cat", None, trace.request.task_model, "cpu")]), token=TOKEN)
    ) as url:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(
            f"{url}?token={TOKEN}#model=cat&text={quote(CAT)}&view=lecture&lecture=6.0&site=encoder.0&head=~1&query=~2"
        )
        page.wait_for_selector("table[data-id=weights]")
        assert_close(read(page, "weights"), steps(*case("self-attention, scaled").qkv()).weights[0, 0])
        page.locator("table[data-id=weights] tbody td").first.focus()
        page.keyboard.press("ArrowDown")  # the shell leaves the arrows to the lecture
        assert page.locator("h2:visible").inner_text() == "Weighted sum"
        page.keyboard.press("p")  # and, while it is open, this key too
        assert page.locator("regard-lecture").bounding_box()["height"] == 800
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Loaded model").click()
        page.wait_for_selector("regard-lecture select")
        chapter(page, 6)
        assert_close(read(page, "weights"), trace.site("encoder.0").row(1, 2)[None, :MAX_KEYS].tolist())
        answer = page.request.post(f"{url}api/lecture", data={"x": [[1, 2], [3]]})
        assert (answer.status, "rows of x have 2, 1 numbers" in answer.json()["error"]) == (400, True)
        answer = page.request.post(f"{url}api/lecture", data={"trace": "nobody's", "site": "encoder.0"})
        assert (answer.status, list(answer.json())) == (404, ["error"])
        page.close()
        assert wrong == []
