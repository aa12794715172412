"""The gallery names everything, shows what it names, stays small, and is the same every time."""

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from regard.attention import CONTENT_RECIPES, GATED_RECIPES, POSITIONS, RECIPES, Recipe
from regard.see import gallery
from regard.see.gallery import LAYER_CAPTIONS, POSITION_CAPTIONS, RECIPE_CAPTIONS, caption_for, slug, write_gallery

DOCS = Path(__file__).parents[2] / "docs"


def draw_some(patch: pytest.MonkeyPatch, every: int) -> set[str]:
    """From now on every n-th picture is drawn, and named here; the published ones stand in for the others."""
    track, save, drawn = gallery.track, gallery.save_small_png, set()

    def choose(pictures: Any, *more: Any, **options: Any) -> Any:
        for n, (name, make) in enumerate(track(pictures, *more, **options)):
            chosen = n % every <= (every > 1)
            drawn.update([f"{name}.png"] if chosen else [])
            yield name, make if chosen else lambda: None

    def save_or_copy(figure: Any, path: Path) -> int:
        if figure is not None:
            return save(figure, path)
        shutil.copy(DOCS / "gallery" / path.name, path)
        with Image.open(path) as picture:
            return picture.width

    patch.setattr(gallery, "track", choose)
    patch.setattr(gallery, "save_small_png", save_or_copy)
    return drawn


@pytest.fixture(scope="module", params=[4, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
def drawn(request, tmp_path_factory) -> tuple[Path, set[str]]:
    """The page, and which of its pictures are new."""
    with pytest.MonkeyPatch.context() as patch:
        names = draw_some(patch, request.param)
        return write_gallery(tmp_path_factory.mktemp("gallery")), names


@pytest.fixture
def page(drawn) -> Path:
    return drawn[0]


def test_every_recipe_and_position_is_named_and_described(page):
    text = page.read_text()
    for name in RECIPES | GATED_RECIPES | CONTENT_RECIPES:
        assert f"\n### {name}\n\n{RECIPE_CAPTIONS[name]}\n" in text
    for name in POSITIONS:
        assert f"\n### {name} position\n\n{POSITION_CAPTIONS[name]}\n" in text
    for name, caption in LAYER_CAPTIONS.items():
        assert f"\n### {name}\n\n{caption}\n" in text
    with pytest.raises(ValueError, match="'new' has no caption; add its line"):
        caption_for("new", RECIPE_CAPTIONS)


def test_every_picture_is_shown_and_every_shown_picture_exists(page):
    shown = re.findall(r'src="(gallery/[^"]+)"', page.read_text())
    files = [f"gallery/{path.name}" for path in (page.parent / "gallery").iterdir()]
    assert sorted(shown) == sorted(files)
    gated = len(GATED_RECIPES | CONTENT_RECIPES)
    assert len(shown) == 1 + len(RECIPES) + gated + len(LAYER_CAPTIONS) + len(POSITIONS) - 1
    for name in shown:
        with Image.open(page.parent / name) as picture:
            assert len(picture.convert("RGB").getcolors(2**20) or []) > 20, name


def test_every_link_leads_to_a_heading(page):
    text = page.read_text()
    anchors = {slug(heading) for heading in re.findall(r"^### (.+)$", text, re.MULTILINE)}
    links = set(re.findall(r"\(#([^)]+)\)", text))
    assert links == anchors


def test_the_files_it_shows_can_be_read_back(page):
    blocks = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == len(RECIPES) - 1 + len(GATED_RECIPES | CONTENT_RECIPES) + len(POSITIONS)
    for block in blocks:
        assert tomllib.loads(block)
        assert isinstance(Recipe.from_toml(block), Recipe)


def test_what_each_row_sees_is_said(page):
    text = page.read_text()
    assert "Each of 64 rows sees 1 to 64 keys, 51% of all pairs; 120 of 256 blocks of 4 are empty." in text
    assert "Each of 64 rows sees 63 keys, 98% of all pairs." in text
    assert "On this example each of 64 rows chooses 1 to 8 keys" in text  # two blocks of four


def test_the_gallery_is_small(page):
    files = [page, *(page.parent / "gallery").iterdir()]
    assert sum(path.stat().st_size for path in files) < 15_000 * len(files)


def test_made_twice_it_is_the_same_and_touches_no_random_numbers(drawn, tmp_path, monkeypatch):
    """In the short form of what was drawn every third picture."""
    page, names = drawn
    again = draw_some(monkeypatch, 12 if len(names) < len(POSITIONS | RECIPES) else 1)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    new = write_gallery(tmp_path / "new" / "folder")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert new.read_bytes() == page.read_bytes()
    assert again <= names
    assert len(again) > len(names) / 4
    for name in again:
        assert (page.parent / "gallery" / name).read_bytes() == (new.parent / "gallery" / name).read_bytes(), name


def test_the_published_page_is_this_one(page):
    assert (DOCS / "gallery.md").read_text() == page.read_text(), "the catalogue has changed: run `make gallery`"
    assert {p.name for p in (DOCS / "gallery").iterdir()} == {p.name for p in (page.parent / "gallery").iterdir()}
