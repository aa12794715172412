"""The notebooks of the course: made from the lessons, they run, and their exercises check themselves."""

import ast
import contextlib
import doctest
import io
import json
import re
import sys
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import build_notebooks  # noqa: E402  (a script beside the pages)
from build_notebooks import NOTEBOOKS, Cell, Notebook  # noqa: E402

sys.path.remove(str(ROOT / "docs"))

notebooks = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)


@cache
def read_notebook(notebook: Notebook) -> dict[str, Any]:
    return json.loads((build_notebooks.FOLDER / f"{notebook.name}.ipynb").read_text("utf-8"))


# --- the files ---


@notebooks
def test_the_notebook_is_made_from_its_lesson(notebook):
    text = build_notebooks.write(build_notebooks.convert(notebook), build_notebooks.DOCS / notebook.lesson)
    assert (build_notebooks.FOLDER / f"{notebook.name}.ipynb").read_text("utf-8") == text, "run: make notebooks"


def test_every_notebook_is_one_of_the_course_and_the_course_links_it():
    files = {path.name for path in build_notebooks.FOLDER.iterdir() if not path.name.startswith(".")}
    assert files == {f"{notebook.name}.ipynb" for notebook in NOTEBOOKS}
    for notebook in NOTEBOOKS:
        for page in ("course.md", notebook.lesson):
            assert f"](notebooks/{notebook.name}.ipynb)" in (ROOT / "docs" / page).read_text("utf-8"), page


@notebooks
def test_it_is_nbformat_4_5_and_holds_no_outputs(notebook):
    whole = read_notebook(notebook)
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    assert set(whole["metadata"]) == {"kernelspec", "language_info"}
    names = [cell["id"] for cell in whole["cells"]]
    assert len(set(names)) == len(names)
    for cell in whole["cells"]:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert set(cell["metadata"]) <= {"tags"}
        assert cell["source"]
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        assert not cell["source"][-1].endswith("\n")
        if cell["cell_type"] == "code":
            assert set(cell) == {"cell_type", "id", "metadata", "source", "execution_count", "outputs"}
            assert (cell["execution_count"], cell["outputs"]) == (None, [])
        else:
            assert set(cell) - {"attachments"} == {"cell_type", "id", "metadata", "source"}


@notebooks
def test_its_links_and_pictures_are_there(notebook):
    for cell in read_notebook(notebook)["cells"]:
        text = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
        shown = set(re.findall(r"\]\(attachment:([^)]+)\)", text))
        assert shown == set(cell.get("attachments", {}))
        for target in re.findall(r"\]\(([^)\s:]+)\)", text):
            assert (build_notebooks.FOLDER / target.split("#")[0]).exists(), target


# --- running them ---


def run_cell(source: str, shared: dict[str, Any], name: str) -> str:
    """What a notebook's cell prints, and its last line's value as IPython would show it."""
    # IPython's own commands; the one there is installs Regard where it is missing
    source = re.sub(r"^( *)%.*", r"\1raise AssertionError", source, flags=re.MULTILINE)
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), shared)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), shared)
            if value is not None:
                print(repr(value))
    return printed.getvalue()


def assert_refused(check: Cell, shared: dict[str, Any]) -> None:
    """The check fails by an assertion of its own, which says something."""
    with pytest.raises(AssertionError) as refused:
        run_cell(check.source, shared, "check")
    assert traceback.extract_tb(refused.tb)[-1].name == "<module>"
    assert traceback.extract_tb(refused.tb)[-1].filename == "check"
    assert len(str(refused.value).split()) > 3, "the check says nothing"


@notebooks
def test_it_runs_as_its_lesson_and_its_exercises_check_themselves(notebook):
    shared: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in build_notebooks.convert(notebook) if cell.kind == "code"]
    for cell, following in zip(cells, [*cells[1:], None], strict=True):
        if cell.tag == "exercise":
            assert following is not None
            assert following.tag == "check"
            open_gap, solved = dict(shared), dict(shared)  # an exercise needs no other's answer
            run_cell(cell.source, open_gap, "exercise")
            assert_refused(following, open_gap)
            run_cell(cell.solution, solved, "solution")
            assert run_cell(following.source, solved, "check").startswith("Right")
        elif not cell.tag:
            printed = run_cell(cell.source, shared, "cell")
            expected = printed if cell.output is None else cell.output
            assert doctest.OutputChecker().check_output(expected, printed, doctest.ELLIPSIS), cell.source


@notebooks
def test_it_has_three_to_five_exercises_each_with_its_solution(notebook):
    tags = [cell.tag for cell in build_notebooks.convert(notebook) if cell.tag]
    assert tags == ["exercise", "check", "solution"] * (len(tags) // 3)
    assert 3 <= len(tags) // 3 <= 5


# --- the converter, tested ---

LESSON = """# 1 A lesson

This lesson: a test.

## One

Text with a [link](2-recipes.md).

```python
>>> x = 2
>>> def double(y):
...     return 2 * y
>>> double(x)
4
>>> int("two")
Traceback (most recent call last):
    ...
ValueError: invalid literal for int() with base 10: 'two'
>>> y = 3
```

### Below

```bash
true
```

## Two

```python
y = ...
```

<details markdown="1"><summary>Solution</summary>

```python
y = 4
```

</details>

```python
assert y == 4, "not yet"
```

---

Source: nowhere.
"""


@pytest.fixture
def lesson(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(build_notebooks, "DOCS", tmp_path)
    (tmp_path / "1-lesson.md").write_text(LESSON)
    return tmp_path / "1-lesson.md"


def test_a_lesson_becomes_cells(lesson):
    opening, install, *cells = build_notebooks.convert(Notebook("1-one", "One", lesson.name, ("One", "Two")))
    assert opening.source.startswith("# One\n")
    assert "pip install" in install.source
    assert [(cell.kind, cell.source.strip(), cell.output) for cell in cells] == [
        ("markdown", "## One\n\nText with a [link](2-recipes.md).", None),
        ("code", "x = 2\n\ndef double(y):\n    return 2 * y\n\ndouble(x)", "4\n"),
        (
            "code",
            'try:\n    int("two")\nexcept ValueError as error:\n    print(error)',
            "invalid literal for int() with base 10: 'two'\n",
        ),
        ("code", "y = 3", ""),
        ("markdown", "### Below\n\n```bash\ntrue\n```", None),
        ("markdown", "## Two", None),
        ("code", "y = ...", None),
        ("code", 'assert y == 4, "not yet"', None),
        ("markdown", "<details><summary>Solution</summary>\n\n```python\ny = 4\n```\n\n</details>", None),
    ]
    assert [cell.tag for cell in cells[-3:]] == ["exercise", "check", "solution"]
    assert cells[-3].solution == "y = 4\n"


def test_a_heading_keeps_the_names_of_its_cells(lesson):
    """What is inserted under one heading changes no id under another."""

    def names(text: str) -> list[str]:
        lesson.write_text(text)
        cells = build_notebooks.convert(Notebook("1-one", "One", lesson.name, ("One", "Two")))
        return [cell["id"] for cell in json.loads(build_notebooks.write(cells, lesson))["cells"]]

    before, after = names(LESSON), names(LESSON.replace(">>> y = 3\n", ">>> y = 3\n>>> y\n3\n>>> z = 4\n"))
    assert len(after) == len(before) + 1
    assert [name for name in after if name.startswith("two")] == ["two-1", "two-2", "two-3", "two-4"]
    assert set(before) < set(after)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("## Two", "## Three", "has no section 'Two'; it has 'One', 'Three'"),
        ("</details>\n\n```python\nassert y == 4", "</details>\n\n```python \nassert y == 4", "gap, <details>"),
        ("</details>\n", "</details>\n\nAnd now:\n", "gap, <details> with the solution, check"),
        ("```python\n>>> x", "- ```python\n>>> x", "a python block that is not at the margin"),
    ],
)
def test_what_would_be_lost_is_refused(right, wrong, message, lesson):
    assert LESSON.count(right) == 1
    lesson.write_text(LESSON.replace(right, wrong))
    with pytest.raises(ValueError, match=message):
        build_notebooks.convert(Notebook("1-one", "One", lesson.name, ("One", "Two")))


@pytest.mark.parametrize(
    ("check", "message"),
    [
        ("assert False", "says nothing"),
        ("y + 1", "TypeError"),
        ("from torch.testing import assert_close\nassert_close(1, 2)", "assert"),
        ("print('Right')", "DID NOT RAISE"),
    ],
)
def test_a_check_that_does_not_explain_itself_is_found(check, message):
    with pytest.raises((AssertionError, TypeError, pytest.fail.Exception)) as found:
        assert_refused(Cell("code", check, "check"), {"y": ...})
    assert message in f"{found.type.__name__}: {found.value}"


def test_a_picture_travels_with_its_notebook(lesson):
    (lesson.parent / "pictures").mkdir()
    (lesson.parent / "pictures" / "a.png").write_bytes(b"picture")
    cell = build_notebooks.cell_json(Cell("markdown", "![A](pictures/a.png) and [b](1-lesson.md)"), "a-1", lesson)
    assert cell["attachments"] == {"a.png": {"image/png": "cGljdHVyZQ=="}}
    assert cell["source"][0].startswith("![A](attachment:a.png) and [b](")
