"""regard settings: the reference of all settings, as a table, as lines for other programs, as JSON and as a page."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from regard.cli.main import print_table
from regard.tasks.registry import TASKS, get_task
from regard.tasks.settings_reference import describe_tables

from .commands import assert_done, assert_plain, assert_refused, regard


def test_in_a_pipe_every_key_is_a_line():
    every = assert_done(regard("settings"))
    lines = [line.split("\t") for line in every.splitlines()]
    assert {len(cells) for cells in lines} == {6}
    assert list(dict.fromkeys(cells[0] for cells in lines)) == list(TASKS)
    for name in TASKS:
        keys = get_task(name).settings.keys()
        expected = {f"{table}.{key}" for table, some in keys.items() for key in some if key != "size"}
        assert expected <= {cells[1] for cells in lines if cells[0] == name}
    assert ["tagging", "train.label_smoothing", "number", "0.0", "≥ 0, < 1"] in [cells[:5] for cells in lines]
    assert assert_done(regard("settings", "vqa")) == "".join(
        f"{line}\n" for line in every.splitlines() if "vqa\t" in line
    )


def test_a_former_name_of_a_task_is_known():
    assert assert_done(regard("settings", "tag")).startswith("tagging\tdata.corpus\t")


def test_as_json():
    (tables,) = json.loads(assert_done(regard("settings", "translation", "--json"))).values()
    train = {one["key"]: one for one in next(table for table in tables if table["name"] == "train")["settings"]}
    assert (train["steps"]["default"], train["steps"]["type"]) == (10_000, "a whole number")
    assert train["warmup_steps"]["default"] is None


def test_the_page_of_the_docs_is_made_from_the_code():
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    remedy = "run: regard settings --markdown > docs/settings.md"
    assert assert_done(regard("settings", "--markdown")) == page.read_text(encoding="utf-8"), remedy


def test_as_a_page_of_one_task():
    page = assert_done(regard("settings", "node_classification", "--markdown"))
    assert "## [model] of node_classification\n" in page
    assert "] of translation" not in page.split("\n## ", 1)[1]


def test_in_a_terminal_a_sentence_stands_beside_its_key():
    """Also in a window of 80 columns, where the five columns of the page would leave it a dozen letters."""
    tables = describe_tables(get_task("node_classification").settings)
    shown = StringIO()
    for table in tables:
        print_table(Console(file=shown, width=80, markup=False, highlight=False), table)
    text = shown.getvalue()
    assert_plain(text)
    assert "[data] of node_classification: A graph" in text
    lines = [line.rstrip() for line in text.splitlines()]
    at = next(n for n, line in enumerate(lines) if line.startswith("people "))
    assert lines[at].endswith("how many live in the town, the graph of the miniature world")
    assert lines[at + 1].strip() == "whole number: ≥ 2; default 2000"
    assert any(
        line.startswith("learning_rate ") and line.endswith("the peak of the schedule; with noam its factor")
        for line in lines
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tager"], "no task is called 'tager'; did you mean tagging?"),
        (["xyz"], "no task is called 'xyz'; choose from translation, tagging,"),
        (["vqa", "--json", "--markdown"], "--json and --markdown are two forms of the same; choose one"),
    ],
)
def test_what_makes_no_sense_is_refused(words, message):
    assert_refused(regard("settings", *words), message)
