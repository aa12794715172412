"""The pictures of the microscope in the docs: `pytest -m slow tests/serve/test_docs_screenshots.py` makes them anew."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .real_models import benchmark

Image = pytest.importorskip("PIL.Image")
ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
SCHEMES = ("", "-dark")
MOST = 200_000  # bytes of one picture


@pytest.fixture(scope="module")
def shots() -> Iterator[Any]:
    with benchmark():
        import microscope_shots

        yield microscope_shots


def views() -> list[str]:
    return re.findall(r'name: "(\w+)"', (ROOT / "src/regard/serve/page/js/views/index.js").read_text())


def test_every_view_has_a_picture_in_the_docs(shots):
    assert sorted(views()) == sorted(shots.VIEWS)
    pages = "".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    for view in views():
        assert f"microscope-{view}.png" in pages, view
        for scheme in SCHEMES:
            assert_a_picture_of_a_view(PICTURES / f"microscope-{view}{scheme}.png", dark=bool(scheme))


@pytest.mark.slow
def test_the_pictures_in_the_docs_are_made_here(shots, browser):
    with benchmark() as microscope, microscope.served(shots.shelf_of_runs(ROOT / "out" / "microscope")) as address:
        made = list(shots.shoot(browser, address, PICTURES))
    assert sorted(path.name for path in made) == sorted(f"microscope-{v}{s}.png" for v in views() for s in SCHEMES)


def assert_a_picture_of_a_view(path: Path, *, dark: bool) -> None:
    picture = Image.open(path)
    assert picture.size == (2560, 1600), path
    assert path.stat().st_size <= MOST, path
    grey = picture.convert("L").histogram()
    assert (sum(grey[:128]) > sum(grey[128:])) == dark, path
    assert sum(count > 50 for count in grey) > 12, path  # something is drawn
