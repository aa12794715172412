"""Every python block of the README and the lessons runs, page by page, and prints what the page says it prints."""

import doctest
import re
import tomllib
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from regard.attention.parts import PARTS
from regard.cli import app

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,})\s*([\w+-]*)")
LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """The code between two fences, and the line of the page on which it begins."""

    language: str
    code: str
    line: int


def blocks(text: str) -> list[Block]:
    found, opened, lines = [], None, []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened, lines = (fence, number + 1), []
        elif opened is not None and fence and fence[2].startswith(opened[0][2]) and not fence[3]:
            found.append(Block(opened[0][3], "".join(f"{line}\n" for line in lines), opened[1]))
            opened = None
        elif opened is not None:
            lines.append(line.removeprefix(opened[0][1]))
    assert opened is None, f"the block that begins on line {opened and opened[1]} never ends"
    return found


def check_page(text: str, name: str) -> dict[str, Any]:
    """All python blocks in order, in one namespace: those with >>> as a dialogue, the others as a script."""
    shared: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(text):
        if block.language != "python":
            continue
        if re.search(r"^\s*>>> ", block.code, re.MULTILINE):
            converse(block, shared, name)
        else:
            script(block, shared, name)
    return shared


def converse(block: Block, shared: dict[str, Any], name: str) -> None:
    test = doctest.DocTestParser().get_doctest(block.code, {}, name, name, block.line - 1)
    test.globs = shared
    try:
        doctest.DebugRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
    except doctest.DocTestFailure as wrong:
        where = f"{name}:{block.line + wrong.example.lineno}"
        pytest.fail(
            f"{where}: {wrong.example.source}the page says\n{wrong.example.want}but it is\n{wrong.got}", pytrace=False
        )
    except doctest.UnexpectedException as wrong:
        where = f"{name}:{block.line + wrong.example.lineno}"
        error = "".join(traceback.format_exception(*wrong.exc_info))
        pytest.fail(f"{where}: {wrong.example.source}raises\n{error}", pytrace=False)


def script(block: Block, shared: dict[str, Any], name: str) -> None:
    try:
        # the empty lines make the traceback count as the page does
        exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), shared)
    except Exception as wrong:
        here = [frame.lineno for frame in traceback.extract_tb(wrong.__traceback__) if frame.filename == name]
        line = wrong.lineno if isinstance(wrong, SyntaxError) and not here else here[0]
        pytest.fail(f"{name}:{line}: {traceback.format_exc()}", pytrace=False)


# --- the pages ---


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES[1:], ids=title)
def test_the_page_says_what_is_true(page):
    check_page(page.read_text(), title(page))


def test_the_readme_trains_translates_looks_and_draws_in_twelve_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = README.read_text()
    first = next(block.code for block in blocks(text) if block.language == "python")
    assert len(first.splitlines()) <= 12
    assert re.findall(r"^(?:import|from) .*$", first, re.MULTILINE) == ["import regard"]
    shared = check_page(text, title(README))
    assert shared["model"].translate("the fox sings").text == "le renard chante"
    assert (tmp_path / "alignment.png").read_bytes().startswith(b"\x89PNG")


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 130


COMMAND = re.compile(r"(?:^|`|: )(regard [a-z].*?)(?=`|  |$)", re.MULTILINE)


def test_every_command_of_the_readme_and_the_guides_has_options_that_exist():
    """Files and folders are the reader's own, but commands and their options must be there."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    found = 0
    for page in (README, *sorted((ROOT / "docs" / "howto").glob("*.md"))):
        for line in COMMAND.findall(page.read_text()):
            name, *words = line.split()[1:]
            assert name in commands, f"{title(page)}: {line}"
            options = {flag for option in commands[name].params for flag in option.opts}
            groups = getattr(commands[name], "commands", {})
            options |= {flag for one in groups.values() for option in one.params for flag in option.opts}
            for word in words:
                assert not word.startswith("--") or word.rstrip(",;") in options, f"{title(page)}: {line}"
            found += 1
    assert found > 30


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_block_says_what_it_is(page):
    """A block of code without a language, or with one misspelt, would not be run by anyone."""
    for block in blocks(page.read_text()):
        assert block.language in ("python", "bash", "toml", "json", "yaml", "text"), f"{title(page)}:{block.line - 1}"
        assert block.language == "python" or ">>> " not in block.code, f"{title(page)}:{block.line - 1}"
        assert block.language != "toml" or tomllib.loads(block.code), f"{title(page)}:{block.line - 1}"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_within_the_house_lead_somewhere(page):
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for target in LINK.findall(line):
            if not target.startswith(("http", "#", "mailto:")):
                assert (page.parent / target.split("#")[0]).exists(), f"{title(page)}:{number} leads to {target}"


def test_the_index_leads_to_every_page():
    docs = ROOT / "docs"
    linked = {target.split("#")[0] for target in LINK.findall((docs / "index.md").read_text())}
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    assert pages - linked == {"index.md"}


def test_the_lessons_hold_code_and_the_log_holds_none():
    for number in range(1, 8):
        (lesson,) = (ROOT / "docs").glob(f"{number}-*.md")
        assert sum(">>> " in block.code for block in blocks(lesson.read_text())) >= 5, lesson
    assert not blocks((ROOT / "docs" / "log.md").read_text())


def test_the_table_of_parts_is_complete():
    page = (ROOT / "docs" / "2-recipes.md").read_text()
    missing = [part for part in (*PARTS, "Padding", "Documents", "Edges") if f"`{part}(" not in page]
    assert not missing


# --- the tester, tested ---

RIGHT = """
# A page

```python
>>> x = 2
>>> x + 2
4
>>> print("one\\ntwo\\nthree")
one
...
three
>>> int("two")
Traceback (most recent call last):
    ...
ValueError: invalid literal for int() with base 10: 'two'

```

```bash
exit 1
```

- in a list

  ```python
  assert x == 2
  y = x + 1
  ```

```python
>>> y
3
```
"""


def test_a_true_page_passes():
    check_page(RIGHT, "page.md")


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("\n4\n", "\n4.0\n", r"page\.md:6: x \+ 2\nthe page says\n4\.0\nbut it is\n4\n"),
        ("\n4\n", "\n", r"page\.md:6: x \+ 2"),
        ("\nthree\n>>>", "\nfour\n>>>", r"page\.md:8: "),
        ("'two'\n\n", "'too'\n\n", r"page\.md:12: "),
        ('int("two")', 'int("2")', r"page\.md:12: "),
        ("assert x == 2", "assert x == 3", r"page\.md:26: (.|\n)*AssertionError"),
        ("y = x + 1", "y = x +", r"page\.md:27: (.|\n)*SyntaxError"),
        ("y = x + 1", "y = int('two')", r"page\.md:27: "),
        (">>> y\n", ">>> z\n", r"page\.md:31: z\nraises\n(.|\n)*NameError"),
        ("\n3\n", "\n3 \n", r"page\.md:31: "),
    ],
)
def test_a_page_with_an_error_fails_and_says_where(right, wrong, message):
    assert RIGHT.count(right) == 1
    with pytest.raises(pytest.fail.Exception, match=message):
        check_page(RIGHT.replace(right, wrong), "page.md")


def test_a_wrong_number_in_a_true_lesson_is_found():
    lesson = (ROOT / "docs" / "1-attention.md").read_text()
    weight = " 0.0634  0.4683  0.4683\n"
    assert lesson.count(weight) == 1
    with pytest.raises(
        pytest.fail.Exception, match=r"lesson:\d+: show\(seen.weights\)\nthe page says\n 0.0634  0.4683  0.4684"
    ):
        check_page(lesson.replace(weight, " 0.0634  0.4683  0.4684\n"), "lesson")


def test_a_block_that_never_ends_is_found():
    with pytest.raises(AssertionError, match="line 2 never ends"):
        blocks("```python\n>>> 1\n1\n")


def test_pages_share_nothing():
    check_page("```python\nx = 1\n```", "one")
    with pytest.raises(pytest.fail.Exception, match="NameError"):
        check_page("```python\nassert x == 1\n```", "other")
