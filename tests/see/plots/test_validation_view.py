"""Validation curves of several runs: lines in a figure, signs in a terminal."""

import numpy as np
import pytest
from rich.cells import cell_len

from regard.see import ascii, draw, validation_view

CURVES = [("a", [(10, 4.0), (20, 2.0), (30, 1.0)]), ("b", [(10, 3.0), (30, 1.0)])]


def test_every_run_is_a_line_whose_name_stands_where_it_ends():
    (axes,) = draw(validation_view("valid loss", CURVES)).axes
    lines = {line.get_label(): line for line in axes.lines}
    assert np.asarray(lines["a"].get_xdata()).tolist() == [10, 20, 30]
    assert np.asarray(lines["b"].get_ydata()).tolist() == [3.0, 1.0]
    low, high = axes.get_ylim()
    assert 0 < low < 1 < 4 < high < 5
    heights = [text.get_position()[1] for text in axes.texts if text.get_text() in ("a", "b")]
    assert len(heights) == 2
    assert min(heights) >= low
    assert (axes.get_title(loc="left"), axes.get_xlabel()) == ("valid loss", "step")


def test_a_terminal_shows_signs_between_the_least_and_the_greatest():
    lines = ascii(validation_view("valid loss", CURVES, title="two runs")).splitlines()
    assert lines[0] == "two runs"
    assert lines[2] == "valid loss by step"
    field = lines[4:16]
    assert (field[0], field[-1][:3]) == ("4 │o", "1 │")
    assert field[-1].endswith("?")  # both end there
    assert sum(line.count("o") for line in field) == 2
    assert lines[17].split() == ["10", "30"]
    assert lines[18:] == ["o a", "x b", "? several"]
    assert max(map(cell_len, lines)) <= 80


def test_one_validation_is_a_point():
    assert "x b" in ascii(validation_view("valid loss", [("a", [(5, 2.0)]), ("b", [(5, 2.0)])]))
    assert draw(validation_view("accuracy", [("a", [(5, 0.0)])])).axes[0].get_ylim() == pytest.approx((-0.05, 0.05))


@pytest.mark.parametrize("points", [[], [(1, float("nan"))]])
def test_a_curve_without_numbers_is_refused(points):
    with pytest.raises(ValueError, match="the curve 'a' needs at least one"):
        validation_view("valid loss", [("a", points)])
