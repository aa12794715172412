"""Scores by sentence length: the lines hold the numbers given, are told apart without colour, and fit a window."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.cells import cell_len

from regard.see import ascii, draw, save
from regard.see.plots.charts import LengthCurves
from regard.see.plots.mpl_figure import space_labels
from tests.see.plots.artists import line_points, texts

PLAIN = ("no attention", ((5, 43.5, 213), (10, 39.0, 540), (30, 3.0, 17)))
SOFT = ("Bahdanau", ((5, 45.5, 213), (10, 45.0, 540), (30, 41.25, 17)))
FIVE = tuple(
    (f"model {n}", tuple((length, 50.0 - n - length / 7, 101) for length in range(3, 54, 5))) for n in range(5)
)


def axes_of(figure: Figure) -> Axes:
    (axes,) = figure.axes
    return axes


def lines_and_samples(axes: Axes) -> tuple[list[Line2D], list[Line2D]]:
    """Samples stand in the margin, beside the names."""
    return [line for line in axes.lines if line.get_transform() == axes.transData], [
        line for line in axes.lines if line.get_transform() != axes.transData
    ]


# --- the figure ---


def test_each_model_is_a_line_through_its_points():
    lines, _ = lines_and_samples(axes_of(draw(LengthCurves((PLAIN, SOFT)))))
    shown = {line.get_label(): line_points(line).tolist() for line in lines}
    assert shown == {name: [[x, y] for x, y, _ in points] for name, points in (PLAIN, SOFT)}


def test_scores_go_from_0_to_100_and_all_lengths_are_inside():
    axes = axes_of(draw(LengthCurves((PLAIN, SOFT), score="chrF")))
    assert axes.get_ylim() == (0, 100)
    assert axes.get_xlim()[0] < 5 < 30 < axes.get_xlim()[1]
    assert axes.get_xlabel() == "sentence length in words"
    assert axes.get_title(loc="left") == "chrF"


def test_lines_differ_in_colour_sign_and_stroke():
    lines, _ = lines_and_samples(axes_of(draw(LengthCurves(FIVE))))
    assert len({line.get_color() for line in lines}) == 5
    assert len({str(line.get_marker()) for line in lines}) == 5
    assert len({str(vars(line)["_unscaled_dash_pattern"]) for line in lines}) == 5


def test_every_name_stands_beside_a_sample_of_its_line_and_none_on_another():
    figure = draw(LengthCurves(FIVE))
    axes = axes_of(figure)
    names = [text for text in axes.texts if text.get_text().startswith("model")]
    for line, sample, name in zip(*lines_and_samples(axes), names, strict=True):
        assert line.get_label() == name.get_text()
        assert sample.get_color() == line.get_color()
        assert sample.get_marker() == line.get_marker()
        assert line_points(sample)[0, 1] == name.get_position()[1]
    boxes = sorted((text.get_window_extent() for text in names), key=lambda box: box.y0)
    assert all(below.y1 < above.y0 for below, above in pairwise(boxes))
    assert max(box.x1 for box in boxes) < figure.bbox.x1


def test_names_stand_in_the_order_in_which_lines_end():
    axes = axes_of(draw(LengthCurves((PLAIN, SOFT))))
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert heights["no attention"] == pytest.approx(3)
    assert heights["Bahdanau"] == pytest.approx(41.25)


def test_under_each_length_stands_how_many_sentences_there_are():
    axes = axes_of(draw(LengthCurves((PLAIN, ("less", ((10, 1.0, 500),))))))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["5", "10", "30"]
    counts = {text.get_position()[0]: text.get_text() for text in axes.texts if text.get_position()[0] >= 5}
    assert counts == {5: "213", 10: "500–540", 30: "17"}
    assert "sentences" in texts(axes)


def test_numbers_under_a_crowded_axis_do_not_touch():
    crowd = tuple((length, 50.0, 12345) for length in [*range(3, 60), 997])
    axes = axes_of(draw(LengthCurves((("all", crowd),))))
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text() == "12345"]
    assert len(boxes) > 1
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert len(line_points(axes.lines[0])) == 58


def test_a_single_point_is_drawn():
    axes = axes_of(draw(LengthCurves((("one", ((7, 99.5, 3),)),))))
    assert line_points(axes.lines[0]).tolist() == [[7, 99.5]]
    assert axes.get_xlim() == (6, 8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_lengths_give_the_same_bytes(tmp_path, suffix):
    lengths = LengthCurves((*FIVE, ("$x$ מודל 🐱", SOFT[1])))
    one, two = (
        save(draw(lengths, title="a title"), tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two")
    )
    assert one == two


# --- where names stand ---


@given(st.lists(st.floats(0, 100), min_size=1, max_size=13))
def test_names_keep_their_order_and_distance_and_stay_inside(heights):
    found = space_labels(heights, 7.0, 100.0)
    order = sorted(range(len(heights)), key=lambda n: heights[n])
    assert min(found) >= -1e-9
    assert max(found) <= 100 + 1e-9
    assert all(found[b] - found[a] >= 7.0 - 1e-9 for a, b in pairwise(order))


def test_names_that_have_room_stay_and_others_part_evenly():
    assert space_labels([50.0, 10.0, 90.0], 6.0, 100.0) == [50, 10, 90]
    assert space_labels([40.0, 42.0], 6.0, 100.0) == [38, 44]
    assert space_labels([0.0, 0.0, 0.0], 6.0, 100.0) == [0, 6, 12]
    assert space_labels([100.0, 100.0], 6.0, 100.0) == [94, 100]
    assert space_labels([5.0, 5.0, 5.0], 80.0, 100.0) == [0, 50, 100]


# --- as text ---


def test_lengths_run_down_and_each_model_is_a_column_of_bars():
    assert ascii(LengthCurves((("a", ((5, 50.0, 7), (10, 25.0, 11))), ("b", ((10, 37.5, 11),))))).split("\n") == [
        "BLEU by sentence length in words; a full bar is 50",
        "",
        "    sentences  a                                b",
        f" 5          7   50.0 {'█' * 25}      –",
        f"10         11   25.0 {'█' * 12}▌{' ' * 12}   37.5 {'█' * 18}▊",
    ]


def test_five_models_fit_a_window_and_no_name_is_cut():
    named = tuple((f"{name} with a window", points) for name, points in FIVE)
    lines = ascii(LengthCurves(named), title="Multi30k").split("\n")
    assert max(map(cell_len, lines)) <= 80
    assert lines[0] == "Multi30k"
    head = " ".join(" ".join(lines[4:-11]).split())
    assert all(head.count(word) >= 5 for word in ("model", "with", "window"))
    assert [line.split()[0] for line in lines[-11:]] == [str(length) for length in range(3, 54, 5)]
    assert [line.count("█") > 0 for line in lines[-11:]] == [True] * 11


def test_more_models_stand_in_further_tables():
    seven = tuple((f"model {n}", SOFT[1]) for n in range(7))
    text = ascii(LengthCurves(seven))
    first, second = text.split("BLEU by")[1:]
    assert first.count("model") == 5
    assert second.count("model") == 2
    assert max(map(cell_len, text.split("\n"))) <= 80


def test_scores_of_nought_are_no_bars():
    assert ascii(LengthCurves((("a", ((5, 0.0, 7),)),))).split("\n")[-1] == "5          7    0.0"


# --- what cannot be drawn ---


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ((), "there are no curves to draw; give at least one"),
        ({"a": ((5, 1.0, 1),)}, r"not a dict; use tuple\(curves.items\(\)\)"),
        ((("a", ()),), "the curve 'a' has no points; leave it out, or give"),
        ((("a", ((5, 100.5, 1),)),), "'a' scores 100.5 at length 5; a score lies between 0 and 100"),
        ((("a", ((5, -1.0, 1),)),), "'a' scores -1 at length 5"),
        ((("a", ((5, float("nan"), 1),)),), "'a' scores nan at length 5"),
        ((("a", ((5, 1.0, 0),)),), "'a' has 0 sentences of length 5; leave a length without any out"),
        ((("a", ((10, 1.0, 1), (5, 1.0, 1))),), "the lengths of 'a' must rise, not 10, 5"),
        ((("a", ((5, 1.0, 1), (5, 1.0, 1))),), "must rise, not 5, 5"),
        ((SOFT, SOFT), "every curve needs a name of its own, not Bahdanau, Bahdanau"),
    ],
)
def test_curves_that_cannot_be_drawn_are_refused_in_one_line(curves, message):
    with pytest.raises(ValueError, match=message) as refused:
        LengthCurves(curves)
    assert "\n" not in str(refused.value)


def test_lengths_are_values():
    assert LengthCurves((PLAIN,)) == LengthCurves((PLAIN,))
    assert hash(LengthCurves((PLAIN,))) == hash(LengthCurves((PLAIN,)))
    assert LengthCurves((PLAIN,)) != LengthCurves((PLAIN,), score="chrF")
