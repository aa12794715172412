"""Files hold what was drawn, in every format, with every letter, and always the same bytes."""

import xml.etree.ElementTree as ET

import matplotlib
import pytest
import torch

from regard.attention import Causal
from regard.see import draw, save
from regard.see.plots.layout import LAST_RESORT, WORDS, fonts
from regard.see.plots.panels import truncate_label, visible_text

SVG = "{http://www.w3.org/2000/svg}"
AWKWARD = ["<b>&", "$x$", "a_b^c", "中文", "🐱", "مرحبا", "नमस्ते", "\n", "\t", " ", "", "\x00\x1b", "\ud800", "\uffff"]


def texts(path):
    return ["".join(node.itertext()) for node in ET.parse(path).iter(f"{SVG}text")]


def test_the_suffix_chooses_the_format(tmp_path):
    figure = draw(Causal(), tokens=5)
    assert save(figure, tmp_path / "new" / "folder" / "a.png").read_bytes().startswith(b"\x89PNG")
    assert save(figure, tmp_path / "a.PDF").read_bytes().startswith(b"%PDF")
    assert ET.parse(save(figure, str(tmp_path / "a.svg"))).getroot().tag == f"{SVG}svg"


@pytest.mark.parametrize("name", ["a.gif", "a", ".png"])
def test_another_suffix_is_refused_with_the_remedy(tmp_path, name):
    with pytest.raises(ValueError, match=rf"cannot write '{name}': a picture ends in .png, .svg, .pdf"):
        save(draw(Causal(), tokens=3), tmp_path / "new" / name)
    assert not (tmp_path / "new").exists()


def test_an_svg_holds_its_tokens_as_text(tmp_path):
    tokens = ["<b>&", "black", "中文", "$x$", "a_b^c"]
    found = texts(save(draw(torch.eye(5), tokens=tokens), tmp_path / "a.svg"))
    for token in tokens:
        assert found.count(token) == 2, token


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_every_letter_can_be_drawn_without_a_warning(tmp_path, suffix):
    figure = draw(torch.eye(len(AWKWARD)), tokens=AWKWARD)
    assert save(figure, tmp_path / f"a.{suffix}").stat().st_size > 1000


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_figure_gives_the_same_bytes(tmp_path, suffix):
    one, two = (
        save(draw(torch.eye(3), tokens=["a", "b", "中"], visible=torch.ones(3, 3).tril().bool()), tmp_path / name)
        for name in (f"one.{suffix}", f"two.{suffix}")
    )
    assert one.read_bytes() == two.read_bytes()


def test_a_notebook_shows_what_a_file_would_hold(tmp_path):
    """IPython shows an object by its _repr_png_; a plain Figure has none."""
    figure = draw(torch.eye(len(AWKWARD)), tokens=AWKWARD)
    assert figure._repr_png_() == save(figure, tmp_path / "a.png").read_bytes()


def test_saving_changes_no_setting(tmp_path):
    before = dict(matplotlib.rcParams)
    save(draw(Causal(), tokens=3), tmp_path / "a.svg")
    assert dict(matplotlib.rcParams) == before


# --- labels ---


def test_blanks_and_controls_are_made_visible():
    assert [visible_text(token) for token in (" ", "  ", "", "\n", "a\tb", "\x00", "\ud800", "the")] == [
        "␣",
        "␣␣",
        "∅",
        "⏎",
        "a⇥b",
        "\ufffd",
        "\ufffd",
        "the",
    ]


def test_long_labels_are_cut_by_their_width():
    assert truncate_label("attention") == "attention"
    assert truncate_label("Donaudampfschifffahrt") == "Donaudampfsch…"
    assert truncate_label("黑猫吃老鼠黑猫吃老鼠") == "黑猫吃老鼠黑…"


def test_a_long_label_is_shown_short():
    figure = draw(torch.eye(2), tokens=["Donaudampfschifffahrt", "b"])
    assert figure.axes[0].get_xticklabels()[0].get_text() == "Donaudampfsch…"


def test_letters_that_the_font_lacks_are_looked_for_elsewhere():
    assert fonts("plain") == [WORDS, "sans-serif"]
    assert LAST_RESORT in fonts("中")
