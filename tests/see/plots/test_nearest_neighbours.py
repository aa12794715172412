"""Neighbours are listed with their likeness; occurrences lie where their principal components put them."""

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.cells import cell_len

from regard.see import ascii, draw, nearest_neighbours_view, save, senses_view
from regard.see.plots.charts import principal_components
from tests.see.plots.artists import rectangles, texts

STATIC = [("light", [("lamp", 0.75), ("heavy", 0.5)])]
CONTEXT = [
    ("turn off the light", [("lamp", 1.0), ("candle", 0.25)]),
    ("the light box", [("heavy", 0.5), ("big", -0.5)]),
]
# two senses far apart along the first axis, and occurrences that differ a little along the second
PLACES = torch.tensor([[4.0, 1.0, 0.0], [4.0, -1.0, 0.0], [-4.0, 1.0, 0.0], [-4.0, -1.0, 0.0]])


def lists(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.patches]


# --- lists ---


def test_a_bar_is_as_long_as_the_likeness():
    (axes,) = lists(draw(nearest_neighbours_view(STATIC)))
    first, second = (box.get_width() for box in rectangles(axes))
    assert first / second == pytest.approx(0.75 / 0.5)
    assert texts(axes) == ["lamp", "0.75", "heavy", "0.50"]


def test_before_context_there_is_one_list_and_in_context_one_for_each_sentence():
    figure = draw(nearest_neighbours_view(STATIC, CONTEXT, title="light"))
    assert texts(figure) == ["light: before context", "in context", "light", "turn off the light", "the light box"]
    before, one, two = (axes.get_position() for axes in lists(figure))
    assert before.y0 > one.y1
    assert one.y0 == pytest.approx(two.y0)
    assert one.x1 < two.x0


def test_what_is_unlike_has_its_number_and_no_bar():
    axes = lists(draw(nearest_neighbours_view(STATIC, CONTEXT)))[-1]
    assert [box.get_width() for box in rectangles(axes)][1] == 0
    assert axes.texts[-1].get_text() == "−0.50"


def test_no_title_runs_into_the_next_list_or_out_of_the_figure():
    wide = [(f"a long sentence with number {n} and a light", [("x", 0.5)]) for n in range(2)]
    figure = draw(nearest_neighbours_view(STATIC, wide))
    one, two = (text.get_window_extent() for text in figure.texts if "long sentence" in text.get_text())
    assert one.x1 < two.x0
    assert two.x1 < figure.bbox.x1


def test_as_text_lists_stand_side_by_side():
    assert ascii(nearest_neighbours_view(STATIC, CONTEXT)).split("\n") == [
        "before context",
        "",
        "light",
        " lamp 0.75 ████████████",
        "heavy 0.50 ████████",
        "",
        "in context",
        "",
        "turn off the light             the light box",
        "  lamp    1 ████████████████   heavy  0.50 ████████",
        "candle 0.25 ████                 big -0.50",
    ]


def test_as_text_wide_letters_keep_the_columns():
    lines = ascii(
        nearest_neighbours_view([("猫", [("黑猫", 0.5), ("🐱", 0.5), ("e\u0301", 0.5), ("שלום", 0.5)])])
    ).split("\n")
    assert {cell_len(line[: line.index("0.50")]) for line in lines[1:]} == {5}


def test_many_lists_fit_a_window():
    lines = ascii(nearest_neighbours_view([(f"sentence {n}", [("neighbour", 0.5)] * 3) for n in range(5)])).split("\n")
    assert max(map(cell_len, lines)) <= 80
    assert sum(line.count("neighbour") for line in lines) == 15


# --- occurrences ---


def test_the_first_components_are_those_along_which_vectors_differ_most():
    """Variances 16 and 1: of 17, the first axis has 16."""
    at, shares = principal_components(PLACES + torch.tensor([7.0, 5.0, 3.0]))
    assert torch.allclose(at, PLACES[:, :2].double())
    assert shares == pytest.approx((16 / 17, 1 / 17))


def test_a_picture_is_the_same_however_the_vectors_are_turned():
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(5)))[0]
    at, shares = principal_components(PLACES @ turn)
    assert torch.allclose(at.abs(), PLACES[:, :2].double().abs(), atol=1e-5)
    assert shares == pytest.approx((16 / 17, 1 / 17))


def test_each_occurrence_lies_at_its_place_in_the_colour_of_its_sense():
    figure = draw(senses_view(PLACES, ["lamp", "lamp", "not heavy", "not heavy"], title="light"))
    (axes,) = figure.axes
    lamp, _, heavy, _ = axes.lines  # after each group its sign in the legend
    assert np.allclose(lamp.get_xydata(), [[4, 1], [4, -1]])
    assert np.allclose(heavy.get_xydata(), [[-4, 1], [-4, -1]])
    assert lamp.get_color() != heavy.get_color()
    assert lamp.get_marker() != heavy.get_marker()
    assert texts(axes) == ["lamp (2)", "not heavy (2)"]
    assert axes.get_xlabel() == "component 1: 94 % of the variance"
    assert axes.texts[-1].get_window_extent().x1 < figure.bbox.x1


def test_as_text_each_sense_has_its_sign():
    lines = ascii(senses_view(PLACES, ["lamp", "lamp", "not heavy", "not heavy"])).split("\n")
    assert lines[0] == "│x" + " " * 46 + "o"
    assert lines[0] == lines[16]
    assert lines[-2:] == ["o lamp (2)", "x not heavy (2)"]


def test_as_text_senses_that_meet_are_not_told_apart_falsely():
    lines = ascii(senses_view(torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), ["a", "b", "b"])).split("\n")
    assert lines[-1] == "? several"
    assert sum(line.count("?") for line in lines[:17]) == 1
    assert sum(line.count("x") for line in lines[:17]) == 1


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_every_script_can_be_drawn(tmp_path, suffix):
    words = ["<b>&", "$x$", "中文", "🐱", "مرحبا", "\n", "", "\ud800", "x" * 99]
    view = nearest_neighbours_view(
        [(word, [(word, 0.5)]) for word in words[:3]], [(word, [(word, 0.5)]) for word in words[3:]]
    )
    assert save(draw(view), tmp_path / f"a.{suffix}").stat().st_size > 1000
    assert save(draw(senses_view(torch.eye(9), words)), tmp_path / f"b.{suffix}").stat().st_size > 1000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nearest_neighbours_view([]), "there are no neighbours to show"),
        (lambda: nearest_neighbours_view([("light", [])]), "'light' has no neighbours"),
        (
            lambda: nearest_neighbours_view([("light", [("lamp", 7.0)])]),
            "'lamp' is like 'light' by 7; a cosine lies between -1 and 1",
        ),
        (lambda: nearest_neighbours_view([("light", [("lamp", float("nan"))])]), "by nan"),
        (lambda: senses_view(PLACES, ["a"]), "4 occurrences need a meaning each, not 1"),
        (lambda: senses_view(PLACES, "abcd"), "4 occurrences need a meaning each"),
        (lambda: senses_view(PLACES[:1], ["a"]), r"2 vectors of width 2 or more, shape \(n, width\), not \(1, 3\)"),
        (lambda: senses_view(PLACES * torch.nan, ["a"] * 4), "vectors must be finite"),
    ],
)
def test_what_has_no_neighbours_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
