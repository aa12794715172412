"""Five newcomers' tasks on the microscope, walked in a browser: clicks, wrong turns, and the page's own seconds.

    python benchmarks/newcomers.py --run out/microscope/transformer
    git archive 43d02b8^ src | tar x -C before                                       the page before it was redesigned
    PYTHONPATH=before/src python benchmarks/newcomers.py --run out/microscope/transformer --before

The tasks were written down first. A walk repeats the clicks of somebody who goes by what the screen says alone: we
walked them ourselves, in a browser, and a turn is wrong where what we opened did not help and we went back. A click
counts, so do a choice in a list and a text that is typed; nobody's thinking is in the seconds. A walk ends where the
answer can be read on the screen (it is looked for there), or where nothing more can be done. Writes
results/newcomers.json.
"""

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from browsing import chromium, served
from machine import write
from regard.serve.model_store import ModelStore

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
DECIDING = "the man carries the light box"
RESULTS = Path(__file__).parent / "results" / "newcomers.json"


@dataclass(eq=False)
class Newcomer:
    """Who walks through the page, and what was counted."""

    page: Any
    clicks: int = 0
    wrong: int = 0
    seen: list[str] = field(default_factory=list)

    def click(self, what: str, role: str = "button") -> None:
        self.clicks += 1
        found = self.page.get_by_role(role, name=what, exact=True).first
        found.click()

    def press(self, selector: str) -> None:
        self.clicks += 1
        self.page.locator(selector).first.click(force=True)  # a radio button lies over its own text

    def choose(self, label: str, option: str) -> None:
        self.clicks += 1
        self.list_of(label).select_option(label=option)

    def list_of(self, label: str) -> Any:
        return self.page.locator(f"#panel label:has(span:text-is('{label}')) select").first

    def type(self, label: str, text: str) -> None:
        self.clicks += 1
        self.page.get_by_label(label, exact=True).first.fill(text)

    def back_from(self, what: str, role: str = "tab") -> None:
        """A view that did not help."""
        self.click(what, role)
        self.page.wait_for_timeout(300)
        self.wrong += 1

    def read(self, selector: str, text: str = "", seconds: float = 60) -> str:
        """What stands there, once it does."""
        found = self.page.locator(selector, has_text=text or None).first
        found.wait_for(timeout=1000 * seconds)
        self.seen.append(" ".join(found.inner_text().split())[:160])
        return self.seen[-1]


Walk = Callable[[Newcomer], bool]  # whether the task was solved


# --- the page now ---


def one_cell(person: Newcomer) -> bool:
    return "of its attention to" in person.read("regard-start .lead", "attention")


def aligning_head(person: Newcomer) -> bool:
    person.click("Heads", "tab")
    person.page.locator("regard-overview[data-painted]").wait_for()
    person.press("text=alignment error")
    person.click("over many sentences")
    person.click("Compute")
    return "decoder" in person.read("regard-corpus tbody tr")


def deciding_word(person: Newcomer) -> bool:
    person.type("Text", DECIDING)
    person.click("Run")
    person.read("#output .what", "porte")
    person.click("Explain")
    person.press("text=Which words decided?")
    person.choose("Prediction", prediction_of(person, "lumière", "légère", "léger"))
    person.read("regard-explain .moved tbody")  # the word itself, then box: legère, and not a lamp
    return re.findall(r"(\S+) source", person.seen[-1])[:2] == ["light", "box"]


def prediction_of(person: Newcomer, *words: str) -> str:
    select = person.list_of("Prediction")
    select.locator("option").first.wait_for(state="attached")
    return next(one for one in select.locator("option").all_inner_texts() if one.split()[-1] in words)


def useless_head(person: Newcomer) -> bool:
    person.click("Explain")
    return "change it by less than 0.01 nats" in person.read("regard-explain .explained p.small", "heads change")


def two_checkpoints(person: Newcomer) -> bool:
    person.click("Compare")
    person.click("Compare", "tab")
    person.page.locator("regard-comparison[data-painted]").wait_for()
    person.choose("Checkpoint", person.list_of("Checkpoint").locator("option").nth(1).inner_text())
    person.press("text=force this output (teacher forcing)")
    return "Δ" in person.read("regard-comparison section:nth-child(3) h3", "Δ")


# --- the page before ---


def one_cell_before(person: Newcomer) -> bool:
    heads = person.page.locator("regard-overview canvas[role=application]")
    person.clicks += 1
    heads.click(position={"x": heads.bounding_box()["width"] / 3, "y": 60})  # one of the pictures
    return "attends to" in person.read("regard-matrix .card", "attends")


def aligning_head_before(person: Newcomer) -> bool:
    person.back_from("Alignment")  # it has the error rate of one head
    person.click("Overview", "tab")
    person.press("text=alignment")
    person.page.wait_for_timeout(500)
    person.seen.append("several heads are at 0 % on this sentence, and no view has more sentences")
    return False


def deciding_word_before(person: Newcomer) -> bool:
    person.type("Text", DECIDING)
    person.click("Run")
    person.page.wait_for_timeout(500)
    person.back_from("Alignment")  # whom the head attends to, not what decided
    person.click("Interventions", "tab")
    person.press("text=Replace a word")
    person.seen.append("each word must be replaced by hand, one after the other, and the changes compared")
    return False


def useless_head_before(person: Newcomer) -> bool:
    person.click("Interventions", "tab")
    person.page.locator("regard-whatif[data-painted]").wait_for()
    person.click("Add")
    person.read("regard-whatif", "Largest probability changes")  # of the one head that was chosen
    return True


def two_checkpoints_before(person: Newcomer) -> bool:
    person.back_from("Compare")  # other models and heads, no checkpoints
    person.click("Training", "tab")
    person.press("regard-training .frame")
    person.page.wait_for_timeout(500)
    person.seen.append("one checkpoint at a time; no difference cell by cell")
    return False


TASKS: list[tuple[str, dict[str, int], Walk, Walk]] = [
    ("a student says what one cell means", WIDE, one_cell, one_cell_before),
    ("a teacher finds the head that aligns", WIDE, aligning_head, aligning_head_before),
    ("an engineer finds which word decided the translation of light", WIDE, deciding_word, deciding_word_before),
    ("a researcher shows that a head does not matter", WIDE, useless_head, useless_head_before),
    ("a researcher compares two checkpoints cell by cell", WIDE, two_checkpoints, two_checkpoints_before),
    ("the student's task on a phone", PHONE, one_cell, one_cell_before),
]


def walked(browser: Any, address: str, size: dict[str, int], walk: Walk) -> dict[str, Any]:
    context = browser.new_context(viewport=size)
    person = Newcomer(context.new_page())
    start = time.perf_counter()
    person.page.goto(address)
    person.page.locator("#output .what").wait_for()
    solved = walk(person)
    found = {"seconds": round(time.perf_counter() - start, 1), "clicks": person.clicks, "wrong_turns": person.wrong}
    context.close()
    return found | {"solved": solved, "read": person.seen[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--before", action="store_true", help="the page before it was redesigned; see above")
    options = parser.parse_args()
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    rows = {row["task"]: row for row in known}
    with chromium() as browser, served(ModelStore.from_folders([options.run])) as address:
        for task, size, walk, before in TASKS:
            found = walked(browser, address, size, before if options.before else walk)
            print(f"{task:64} {found}", flush=True)
            rows.setdefault(task, {"task": task, "width": size["width"]})["before" if options.before else "now"] = found
    command = f"python benchmarks/newcomers.py {shlex.join(sys.argv[1:])}"
    print(write("newcomers", command, [rows[task] for task, *_ in TASKS]))


if __name__ == "__main__":
    main()
