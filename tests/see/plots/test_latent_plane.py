"""The latent plane: principal components, always the same way up, and sentences beside their points."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from torch.testing import assert_close

from regard.see import ascii, draw, save
from regard.see.plots.charts import farthest_points, latents_view, plane_view
from regard.see.plots.panels import ScatterPlot, View
from tests.narrowing import assert_is_instance
from tests.see.plots.artists import line_points

FIVE = ["one", "two words", "three", "four", "five"]
LABELS = ["short", "long", "short", "short", "short"]


def scatter_plot(view: View) -> ScatterPlot:
    (panel,) = view.panels()
    return assert_is_instance(panel, ScatterPlot)


def test_a_plane_on_paper():
    """Four points of a 6 × 2 rectangle: 9/10 of the variance lies along its long side, 1/10 along the short one."""
    shape = torch.tensor([[[0.0, 0.0], [0.0, 5.0]], [[6.0, 0.0], [0.0, 5.0]], [[0.0, 2.0], [0.0, 5.0]]])
    corners = torch.cat((shape, torch.tensor([[[6.0, 2.0], [0.0, 5.0]]])))  # latents of 2 × 2, half of them constant
    panel = scatter_plot(latents_view(corners, list("aabb")))
    assert_close(panel.points, torch.tensor([[-3.0, -1.0], [3.0, -1.0], [-3.0, 1.0], [3.0, 1.0]]).double())
    assert (panel.x_label, panel.y_label) == ("component 1: 90 % of the variance", "component 2: 10 % of the variance")
    assert (panel.groups, panel.names) == ((0, 0, 1, 1), ("a", "b"))


def test_the_picture_is_the_same_way_up_whatever_is_added_to_the_latents():
    vectors = torch.randn(11, 3, 5)
    first, moved = (scatter_plot(latents_view(some, ["a"] * 11)).points for some in (vectors, vectors + 7))
    assert_close(first, moved, rtol=0, atol=1e-4)


def test_sentences_that_are_written_lie_far_apart():
    """The farthest out comes first, then the farthest from it, then from both."""
    line = torch.tensor([[0.0, 0.0], [1.0, 0.0], [10.0, 0.0], [5.0, 0.0], [6.0, 0.0]])
    assert farthest_points(line, 3) == [2, 0, 3]
    assert farthest_points(line, 0) == []
    assert sorted(farthest_points(line, 99)) == [0, 1, 2, 3, 4]


def drawn(**how: Any) -> View:
    return latents_view(torch.eye(5).cumsum(0).cumsum(1), LABELS, FIVE, **how)


def test_every_written_sentence_stands_beside_the_plane_at_the_end_of_a_line():
    figure = draw(drawn(annotate=3, title="five"))
    (axes,) = figure.axes
    texts = [text for text in axes.texts if text.get_text() in FIVE]
    assert len(texts) == 3
    panel = scatter_plot(drawn(annotate=3))
    ends = [points for points in map(line_points, axes.lines) if len(points) == 3]
    for (n, sentence), text, end in zip(panel.annotations, texts, ends, strict=True):
        assert text.get_text() == sentence == FIVE[n]
        assert end[-1, 1] == text.get_position()[1]
        shown = axes.transData.transform(panel.points[n].tolist())
        assert_close(torch.tensor(axes.transAxes.transform(end[0])), torch.tensor(shown), rtol=0, atol=0.5)
    boxes = sorted((text.get_window_extent() for text in texts), key=lambda box: box.y0)
    assert all(below.y1 < above.y0 for below, above in pairwise(boxes))
    assert max(box.x1 for box in boxes) < figure.bbox.x1


def test_a_terminal_numbers_the_points_and_lists_their_sentences():
    lines = ascii(drawn(annotate=2)).split("\n")
    assert max(map(cell_len, lines)) <= 80
    numbered = lines[-2:]
    for n, line in enumerate(numbered, 1):
        number, sentence = line.split(" ", 1)
        assert number == str(n)
        assert sentence in FIVE
    field = "".join(lines[: lines.index(next(line for line in lines if line.startswith("└")))])
    assert field.count("1") == field.count("2") == 1
    assert sum(field.count(sign) for sign in "ox?") <= 3
    assert {"o long", "x short"} <= set(lines)


def test_nothing_is_written_where_there_are_no_sentences(tmp_path):
    view = latents_view(torch.randn(4, 3), list("abca"))
    assert scatter_plot(view).annotations == ()
    one, two = (save(draw(view), tmp_path / f"{n}.png").read_bytes() for n in range(2))
    assert one == two


@pytest.mark.parametrize(
    ("labels", "texts", "message"),
    [
        (["a"] * 4, FIVE, "5 latents need as many labels, a list of them, not 4"),
        ("short", FIVE, "5 latents need as many labels, a list of them"),
        (LABELS, ["a"], "5 latents need as many texts, a list of them, not 1"),
    ],
)
def test_labels_and_texts_must_be_one_each(labels, texts, message):
    with pytest.raises(ValueError, match=message):
        latents_view(torch.randn(5, 3), labels, texts)


def test_what_cannot_be_told_apart_or_is_no_number_is_refused():
    with pytest.raises(ValueError, match="8 labels cannot be told apart by colour; put them into 7 groups or fewer"):
        plane_view(torch.zeros(8, 2), (0.5, 0.5), list("abcdefgh"))
    with pytest.raises(ValueError, match="must be finite"):
        latents_view(torch.full((3, 2), torch.nan), list("aab"))
    with pytest.raises(ValueError, match="a plane needs 2 vectors"):
        latents_view(torch.zeros(1, 2, 2), ["a"])
