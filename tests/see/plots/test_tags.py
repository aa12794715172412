"""Under each word stands its tag, and where the tag is wrong the right one, in figures and in a terminal."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import PathPatch
from rich.cells import cell_len

from regard.see import ascii, draw, save, tag_view
from regard.see.plots.layout import BLUES, INK, MUTED
from regard.see.plots.mpl_figure import OUTLINE_COLOUR
from tests.see.plots.artists import face_colours, rectangles, strip_axes, texts

WORDS = ("turn", "off", "the", "light")
TAGS = ("VERB", "ADP", "DET", "ADJ")
GOLD = ("VERB", "ADP", "DET", "NOUN")


def test_each_tag_stands_below_its_word():
    (axes,) = strip_axes(draw(tag_view(WORDS, TAGS)))
    assert texts(axes) == [text for pair in zip(WORDS, TAGS, strict=True) for text in pair]
    for word, tag in zip(axes.texts[::2], axes.texts[1::2], strict=True):
        (x, y), (under_x, under_y) = word.get_position(), tag.get_position()
        assert x == under_x
        assert y < under_y  # the axes run downwards
        assert tag.get_color() == MUTED


def test_a_wrong_tag_is_marked_by_sign_and_colour_and_the_right_one_stands_below_it():
    figure = draw(tag_view(WORDS, TAGS, gold=GOLD))
    (axes,) = strip_axes(figure)
    light, wrong, right = axes.texts[-3:]
    assert [text.get_text() for text in (light, wrong, right)] == ["light", "✗ ADJ", "NOUN"]
    assert [text.get_color() for text in (wrong, right)] == [OUTLINE_COLOUR, INK]
    assert light.get_position()[1] < wrong.get_position()[1] < right.get_position()[1]
    assert "3 of 4 tags are right; the gold tag stands below each wrong one" in texts(figure)


def test_where_all_is_right_nothing_is_marked():
    figure = draw(tag_view(WORDS, GOLD, gold=GOLD))
    assert not any("✗" in text for text in texts(strip_axes(figure)[0]))
    assert [text.get_text() for text in figure.texts if text.get_text()] == ["4 of 4 tags are right"]


def test_without_probabilities_there_are_no_shades_and_no_legend():
    figure = draw(tag_view(WORDS, TAGS))
    assert len(figure.axes) == 1
    assert {alpha for *_, alpha in face_colours(rectangles(figure.axes[0]))} == {0.0}


def test_a_word_is_shaded_by_the_probability_of_its_tag():
    figure = draw(tag_view(WORDS, TAGS, probabilities=torch.tensor([1.0, 0.5, 0.0, 0.25])))
    shades = face_colours(rectangles(figure.axes[0]))
    assert np.allclose(shades, [BLUES(share) for share in (1.0, 0.5, 0.0, 0.25)])
    assert texts(figure.axes[1]) == ["0", "1", "probability"]


def test_a_chosen_word_shows_where_it_looked():
    weights = torch.tensor([0.5, 0.25, 0.25, 0.0])
    figure = draw(tag_view(WORDS, TAGS, attention={3: weights}))
    _, strip = strip_axes(figure)
    assert "attention when tagging “light” as ADJ" in texts(figure)
    shades = face_colours(rectangles(strip))
    assert np.allclose(shades, [BLUES(share) for share in (1.0, 0.5, 0.5, 0.0)])
    assert any(isinstance(p, PathPatch) and p.get_edgecolor()[:3] == to_rgb(OUTLINE_COLOUR) for p in strip.patches)


def test_a_long_sentence_wraps_and_no_two_words_overlap():
    count = 37
    figure = draw(tag_view(("word",) * count, ("PROPN",) * count, gold=("X",) + ("PROPN",) * (count - 1)))
    boxes = [box.get_bbox() for box in rectangles(figure.axes[0])]
    assert len({box.y0 for box in boxes}) > 2
    for before, after in pairwise(boxes):
        assert after.x0 >= before.x1 or after.y0 >= before.y1
    assert figure.get_figwidth() < 8


def test_only_lines_with_a_wrong_tag_are_deeper():
    tops = []
    for wrong in (0, 1):
        gold = ("X",) * wrong + ("PROPN",) * (37 - wrong)
        figure = draw(tag_view(("word",) * 37, ("PROPN",) * 37, gold=gold))
        boxes = [box.get_bbox() for box in rectangles(figure.axes[0])]
        tops.append(sorted({box.y0 for box in boxes}))
    plain, marked = (np.diff(rows) for rows in tops)
    assert marked[0] > plain[0]
    assert np.allclose(marked[1:], plain[1:])


def test_as_text_the_lines_stand_below_each_other():
    assert ascii(tag_view(WORDS, TAGS, gold=GOLD, title="tags")).split("\n") == [
        "tags",
        "",
        "turn off the light",
        "VERB ADP DET ✗ ADJ",
        "             NOUN",
        "",
        "3 of 4 tags are right; the gold tag stands below each wrong one",
    ]


def test_as_text_shades_and_numbers_stand_between_word_and_tag():
    view = tag_view(("a", "b"), ("X", "Y"), probabilities=torch.tensor([1.0, 0.5]))
    assert ascii(view).split("\n") == ["a b", "█ ▒", "X Y"]
    assert ascii(view, numbers=True).split("\n") == ["a    b", "████ ▒▒▒▒", "1    0.50", "X    Y"]


def test_as_text_in_colour_the_word_stands_on_its_shade():
    lines = ascii(tag_view(("a", "b"), ("X", "Y"), probabilities=torch.tensor([1.0, 0.0])), colour=True).split("\n")
    dark, light = (";".join(str(round(255 * part)) for part in BLUES(share)[:3]) for share in (1.0, 0.0))
    assert lines[0] == f"\x1b[38;2;255;255;255;48;2;{dark}ma\x1b[0m \x1b[38;2;0;0;0;48;2;{light}mb\x1b[0m"
    assert lines[1] == "X Y"
    assert ascii(tag_view(("a",), ("X",)), colour=True) == "a\nX"


def test_every_script_stands_in_line_and_fits_a_window():
    words = ("黑猫", "e\u0301", "👩\u200d👧", "שלום", "[bold]x[/bold]", "Donaudampfschifffahrtsgesellschaft") * 5
    lines = ascii(tag_view(words, ("NOUN",) * 30, gold=("VERB",) * 30)).split("\n")
    assert max(map(cell_len, lines)) <= 80
    assert sum(line.count("[bold]x[/bold]") for line in lines) == 5
    assert sum(line.count("✗ NOUN") for line in lines) == 30
    for word, tag in zip(lines[0::3], lines[1::3], strict=False):
        if "שלום" in word:
            assert cell_len(word[: word.index("שלום")]) in [n for n in range(80) if tag[n : n + 1] == "✗"]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_every_script_can_be_drawn(tmp_path, suffix):
    words = ("<b>&", "$x$", "中文", "🐱", "مرحبا", "\n", "", "\ud800")
    path = save(draw(tag_view(words, ("$X_1$",) * 8, gold=("<i>",) * 8)), tmp_path / f"a.{suffix}")
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tag_view(WORDS, TAGS[:3]), "4 words need a tag each, not 3 tags"),
        (lambda: tag_view(WORDS, "VERB"), "4 words need a tag each, not 4 tags: 'VERB'"),
        (lambda: tag_view(WORDS, TAGS, gold=("X",)), "4 words need a tag each, not 1 gold tags"),
        (lambda: tag_view("turn", TAGS), "not the one string 'turn'"),
        (lambda: tag_view((), ()), "words is empty"),
        (lambda: tag_view(WORDS, TAGS, probabilities=torch.ones(3)), r"a probability each, shape \(4,\), not \(3,\)"),
        (lambda: tag_view(WORDS, TAGS, probabilities=torch.full((4,), 1.5)), "between 0 and 1, but 1.5"),
        (lambda: tag_view(WORDS, TAGS, probabilities=torch.full((4,), torch.nan)), "between 0 and 1, but nan"),
        (lambda: tag_view(WORDS, TAGS, attention={4: torch.ones(4)}), "there is no word 4 in a sentence of 4"),
        (lambda: tag_view(WORDS, TAGS, attention={0: torch.ones(3)}), "4 words need a weight each"),
    ],
)
def test_what_is_no_tagged_sentence_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
