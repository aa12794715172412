"""A text shows what each of its words counted for: for and against, unknown words apart from those that weigh 0."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from rich.cells import cell_len

from regard.see import ascii, draw, prediction_title, save, word_contributions, word_weights_view
from regard.see.plots.layout import BLUES, HIDDEN, SIGNED
from regard.see.plots.panels import Strip
from tests.narrowing import assert_is_instance
from tests.see.plots.artists import face_colours, rectangles, texts

FILM = ("a", "gorgeous", "but", "far", "too", "long", "film")
ADDED = torch.tensor([0.0, 2.0, -0.5, -1.0, -1.5, -2.0, 0.5])


def shades(figure: Figure) -> list[tuple[float, float, float, float]]:
    return face_colours(rectangles(figure.axes[0]))


def legend(figure: Figure) -> list[str]:
    return texts(figure.axes[-1])


# --- weights ---


def test_each_word_stands_on_the_shade_of_its_weight():
    figure = draw(word_weights_view(FILM[:4], torch.tensor([0.0, 0.8, 0.4, 0.2]), prediction_title("positive", 0.9)))
    assert np.allclose(shades(figure), [BLUES(share) for share in (0.0, 1.0, 0.5, 0.25)])
    assert texts(figure.axes[0]) == list(FILM[:4])
    assert "positive, 90 %" in texts(figure)


def test_an_unknown_word_is_not_a_word_that_weighs_nothing():
    view = word_weights_view(FILM[:3], torch.tensor([0.0, 1.0, torch.nan]), visible=torch.tensor([True, True, False]))
    figure = draw(view)
    zero, _, unknown = shades(figure)
    assert np.allclose(zero, BLUES(0.0))
    assert to_hex(unknown) == HIDDEN
    assert "unknown" in legend(figure)
    assert ascii(view) == "a gorgeous but\n  ████████ ···\n\n· unknown"
    assert ascii(view, numbers=True).split("\n")[2].split() == ["0", "1"]


def test_where_every_word_is_known_the_legend_says_nothing_of_unknown_ones():
    figure = draw(word_weights_view(FILM, ADDED.abs(), visible=torch.ones(7, dtype=torch.bool)))
    assert legend(figure) == ["0", "2", "weight"]


# --- what words add ---


def test_what_speaks_against_has_the_other_colour():
    figure = draw(word_contributions(FILM, ADDED, prediction_title("negative", 0.6, "negative"), label="positive"))
    assert np.allclose(shades(figure), [SIGNED(0.5 + float(part) / 4) for part in ADDED])
    assert legend(figure) == ["−2", "2", "added"]
    assert "above 0 speaks for positive, below 0 against it; together the words add −2.50" in texts(figure)


def test_blue_and_orange_differ_for_those_who_see_no_red_or_no_green():
    """By the blue receptors alone, and by which of red and blue is more, the two ends are far apart."""
    against, speaks = np.array(SIGNED(0.2)[:3]), np.array(SIGNED(0.8)[:3])
    assert speaks[2] - against[2] > 0.4
    assert against[0] - against[2] > 0.3
    assert speaks[2] - speaks[0] > 0.3


def test_as_text_either_side_of_0_has_its_own_signs():
    assert ascii(word_contributions(FILM, ADDED, label="positive", other="for negative")).split("\n") == [
        "a gorgeous but far too long film",
        "  ████████ --- === ≡≡≡ ≣≣≣≣ ░░░░",
        "",
        "░▒▓█ above 0 to 2, -=≡≣ below 0 to -2",
        "",
        "above 0 speaks for positive, below 0 for negative; together the words add −2.50",
    ]


def test_in_colour_no_signs_are_needed():
    text = ascii(word_contributions(("no", "yes"), torch.tensor([-1.0, 1.0])), colour=True)
    no, yes = (";".join(str(round(255 * part)) for part in SIGNED(share)[:3]) for share in (0.0, 1.0))
    assert (
        text.split("\n")[0] == f"\x1b[38;2;255;255;255;48;2;{no}mno\x1b[0m \x1b[38;2;255;255;255;48;2;{yes}myes\x1b[0m"
    )
    assert "≣" not in text


def test_a_word_that_is_not_known_adds_nothing_and_sets_no_scale():
    figure = draw(
        word_contributions(
            ("no", "xyzzy", "yes"), torch.tensor([-1.0, 7.0, 1.5]), visible=torch.tensor([True, False, True])
        )
    )
    assert legend(figure)[:2] == ["−1.5", "1.5"]
    assert any(text.endswith("together the words add +0.50") for text in texts(figure))


def test_words_that_add_nothing_at_all_can_be_shown():
    assert np.allclose(shades(draw(word_contributions(("a", "b"), torch.zeros(2)))), [SIGNED(0.5)] * 2)


# --- long texts ---


def test_a_review_of_307_words_wraps_and_no_two_words_overlap():
    words = tuple(("the", "photography", "is", ",", "I", "mean", "wonderfully")[n % 7] for n in range(307))
    figure = draw(word_weights_view(words, torch.rand(307)))
    boxes = [box.get_bbox() for box in rectangles(figure.axes[0])]
    assert len(boxes) == 307
    for n, box in enumerate(boxes[1:], 1):
        assert box.x0 >= boxes[n - 1].x1 or box.y0 >= boxes[n - 1].y1
    assert figure.get_figwidth() < 8
    assert figure.get_figheight() < 8


@pytest.mark.parametrize("words", [("wonderfully", "mediocre", "minimum"), ("WWW", "mmm", "I")])
def test_words_of_a_long_text_stay_on_their_shades(words):
    figure = draw(word_weights_view(words * 29, torch.rand(3 * 29)))
    axes = figure.axes[0]
    for text, box in zip(axes.texts, rectangles(axes), strict=True):
        reach = text.get_window_extent().transformed(axes.transData.inverted())
        assert reach.width <= box.get_width() + 0.06


def test_as_text_a_review_fits_a_window():
    lines = ascii(word_contributions(("word",) * 307, torch.rand(307) - 0.5)).split("\n")
    assert max(map(cell_len, lines)) <= 80
    assert sum(line.count("word") for line in lines) == 307 + 1  # and once in the note below


def test_of_a_very_long_text_the_beginning_is_shown_and_its_end_is_not_hushed_up():
    view = word_contributions(("word",) * 2411, torch.ones(2411))
    text = ascii(view)
    assert text.endswith("the first 400 of 2,411 words")
    assert "together the words add +2411.00" in text
    assert len(assert_is_instance(view.panels()[0], Strip).words) == 400


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_every_script_can_be_drawn(tmp_path, suffix):
    words = ("<b>&", "$x$", "中文", "🐱", "مرحبا", "שלום", "[red]", "\n", "", "\ud800", "x" * 99)
    figure = draw(word_contributions(words, torch.linspace(-1, 1, 11), "$verdict$", label="<positive>"))
    assert save(figure, tmp_path / f"a.{suffix}").stat().st_size > 1000
    assert figure.axes[0].texts[-1].get_text() == "x" * 19 + "…"
    assert "[red]" in ascii(word_weights_view(words, torch.ones(11)))


# --- titles and mistakes ---


def test_a_verdict_says_label_probability_and_whether_it_is_right():
    assert prediction_title("positive", 0.934) == "positive, 93 %"
    assert prediction_title("positive", 1.0, "positive") == "positive, 100 %, rightly"
    assert prediction_title("positive", 0.5, "negative") == "positive, 50 %, wrongly: it is negative"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: word_weights_view(FILM, torch.ones(3)), r"7 words need a number each, shape \(7,\), not \(3,\)"),
        (lambda: word_weights_view(FILM, ADDED), "finite and not negative, but -0.5"),
        (lambda: word_weights_view("a film", torch.ones(6)), "not the one string 'a film'"),
        (lambda: word_weights_view((), torch.ones(0)), "the text is empty"),
        (lambda: word_weights_view(FILM, torch.ones(7), visible=torch.ones(2).bool()), r"visible or not, shape \(7,\)"),
        (lambda: word_contributions(FILM, torch.full((7,), torch.inf)), "must be finite, but inf is among it"),
        (lambda: prediction_title("positive", 93), "a probability lies between 0 and 1, not at 93"),
    ],
)
def test_what_is_no_judged_text_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
