"""The gallery names everything, shows what it names, stays small, and is the same every time."""

import re
import tomllib
from pathlib import Path

import pytest
import torch
from PIL import Image

from regard.attention import CONTENT_RECIPES, GATED_RECIPES, POSITIONS, RECIPES, Recipe
from regard.see import gallery
from regard.see.gallery import LAYER_CAPTIONS, POSITION_CAPTIONS, RECIPE_CAPTIONS, caption_for, slug, write_gallery

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_gallery(tmp_path_factory.mktemp("gallery"))


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


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_made_twice_it_is_the_same_and_touches_no_random_numbers(every, page, tmp_path, monkeypatch):
    """In the short form every fifth recipe, and of the positions those of the overview."""
    recipes, gated = (dict(list(whole.items())[::every]) for whole in (RECIPES, GATED_RECIPES))
    positions = {name: make for name, make in POSITIONS.items() if every == 1 or name in gallery.OVERVIEW_POSITIONS}
    for name, drawn in (("RECIPES", recipes), ("GATED_RECIPES", gated), ("POSITIONS", positions)):
        monkeypatch.setattr(gallery, name, drawn)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    again = write_gallery(tmp_path / "new" / "folder")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert every > 1 or again.read_bytes() == page.read_bytes()
    files = list((again.parent / "gallery").iterdir())
    others = len(gated) + len(CONTENT_RECIPES) + len(LAYER_CAPTIONS)
    assert len(files) == 1 + len(recipes) + others + len(positions) - ("none" in positions)
    for path in files:
        assert (page.parent / "gallery" / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_published_page_is_this_one(page):
    assert (DOCS / "gallery.md").read_text() == page.read_text(), "the catalogue has changed: run `make gallery`"
    assert {p.name for p in (DOCS / "gallery").iterdir()} == {p.name for p in (page.parent / "gallery").iterdir()}
