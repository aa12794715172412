"""A node among its neighbours: lines as wide as the weights, nobody lost, readable without colour and in a terminal."""

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from rich.cells import cell_len

from regard.data.graphs import Graph, GraphNode
from regard.models.graph import EdgeWeights
from regard.see import Neighbourhood, ascii, draw, save
from regard.see.plots.charts import MAX_NEIGHBOURS
from regard.see.plots.layout import VISIBLE
from regard.see.plots.mpl_figure import MAX_EDGE_WIDTH
from tests.see.plots.artists import line_points, texts

ANNA = Neighbourhood(
    "Anna",
    ("Anna", "Paul", "Nina", "Max"),
    torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.0, 0.125, 0.0, 0.875]]),
    ("baker", "smith", "baker", None),
)


def widths(axes: Axes) -> dict[tuple[float, float], float]:
    """The widths of the lines, by where they end."""
    ends = {line: line_points(line) for line in axes.lines if to_hex(line.get_color()) == VISIBLE}
    return {
        (round(points[1, 0], 6), round(points[1, 1], 6)): line.get_linewidth()
        for line, points in ends.items()
        if len(points) == 2
    }


def place_of(axes: Axes, name: str) -> tuple[float, float]:
    """Of the neighbour whose name this is: the nearest end of a line."""
    (text,) = (text for text in axes.texts if text.get_text() == name)
    x, y = text.get_position()
    return min(widths(axes), key=lambda end: (end[0] - x) ** 2 + (end[1] - y) ** 2)


# --- the figure ---


def test_every_head_is_a_star_and_a_line_is_as_wide_as_its_weight():
    first, second = draw(ANNA).axes
    for axes, paul, nina, other in ((first, 0.25, 0.25, 0.0), (second, 0.125, 0.0, 0.875)):
        found = widths(axes)
        assert found[place_of(axes, "Paul, smith")] == pytest.approx(MAX_EDGE_WIDTH * paul / 0.875)
        assert found[place_of(axes, "Nina, baker")] == pytest.approx(MAX_EDGE_WIDTH * nina / 0.875)
        assert found[place_of(axes, "Max")] == pytest.approx(MAX_EDGE_WIDTH * other / 0.875)


def test_the_node_stands_in_the_middle_and_keeps_a_ring_for_itself():
    first, second = draw(ANNA).axes
    assert [axes.patches[0].get_linewidth() for axes in (first, second)] == pytest.approx(
        [MAX_EDGE_WIDTH * 0.5 / 0.875, 0]
    )
    assert "Anna, baker\n0.50 itself" in texts(first)
    assert "Anna, baker" in texts(second)


def test_numbers_stand_on_the_lines_that_matter():
    first, second = draw(ANNA).axes
    assert sorted(text for text in texts(first) if text[0].isdigit()) == ["0.25", "0.25"]
    assert sorted(text for text in texts(second) if text[0].isdigit()) == ["0.12", "0.88"]


def test_kinds_differ_in_colour_and_sign():
    axes = draw(ANNA).axes[0]
    dots = [(str(line.get_marker()), line.get_color()) for line in axes.lines if len(line_points(line)) == 1]
    assert len(dots) == 4
    assert len({sign for sign, _ in dots}) == len({colour for _, colour in dots}) == 3


def test_a_node_without_neighbours_is_drawn():
    axes = draw(Neighbourhood("a", ("a",), torch.ones(1, 1), ("x",))).axes[0]
    assert texts(axes) == ["a, x\n1 itself"]


def test_names_stay_inside_and_apart():
    many = Neighbourhood(
        "me",
        tuple(f"a long name {n}" for n in range(MAX_NEIGHBOURS)),
        torch.full((1, MAX_NEIGHBOURS), 1 / MAX_NEIGHBOURS),
        ("a label",) * MAX_NEIGHBOURS,
    )
    figure = draw(many, title="a title")
    boxes = [text.get_window_extent() for text in figure.axes[0].texts if "long" in text.get_text()]
    assert len(boxes) == MAX_NEIGHBOURS
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in boxes)
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[:n])


def test_beyond_the_room_the_lightest_are_left_out_and_told():
    count = MAX_NEIGHBOURS + 3
    head = torch.arange(count, 0, -1).double() / 1024
    weights = torch.stack((head, 3 * head))
    text = ascii(Neighbourhood("me", tuple(f"n{n}" for n in range(count)), weights, (None,) * count))
    assert f"n{MAX_NEIGHBOURS - 1} " in text
    assert f"n{MAX_NEIGHBOURS} " not in text
    assert text.endswith(f"3 more neighbours weigh {(1 + 2 + 3) / 512:.2f} together, in the mean of the heads")


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_neighbourhood_gives_the_same_bytes(tmp_path, suffix):
    odd = Neighbourhood("$x$\t🐱", ("מודל", "$x$\t🐱"), torch.tensor([[0.3, 0.7]]), (None, "_"))
    one, two = (save(draw(odd), tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two


# --- as text ---


def test_in_a_terminal_neighbours_are_bars():
    lines = ascii(ANNA).split("\n")
    assert [line.split()[:3] for line in lines if "0.25" in line] == [
        ["Nina,", "baker", "0.25"],
        ["Paul,", "smith", "0.25"],
    ]
    assert lines[0] == "head 0"
    assert lines[1].startswith("Anna, baker 0.50 ██")
    assert max(map(cell_len, lines)) <= 80


# --- from a model ---


GRAPH = Graph((GraphNode("a", (), "x"), GraphNode("b", (), "y"), GraphNode("c", ())), ((0, 1), (1, 2)))
PAIRS = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 1, 2]])
LOOKED = EdgeWeights(PAIRS, {"blocks.0": torch.tensor([[0.4, 0.6, 0.2, 0.3, 0.5, 0.9, 0.1]])})


def test_a_node_is_seen_as_the_model_looked():
    found = Neighbourhood.of(GRAPH, LOOKED, "b", "blocks.0")
    assert (found.name, found.neighbours, found.labels) == ("b", ("a", "b", "c"), ("x", "y", None))
    assert found.weights.tolist() == [pytest.approx([0.2, 0.3, 0.5])]


def test_what_is_not_there_is_told():
    with pytest.raises(ValueError, match=r"no layer is called 'blocks\.1'; there are blocks\.0"):
        Neighbourhood.of(GRAPH, LOOKED, "b", "blocks.1")
    with pytest.raises(ValueError, match="there are none: the model has no graph attention"):
        Neighbourhood.of(GRAPH, EdgeWeights(PAIRS, {}), "b", "blocks.0")
    with pytest.raises(ValueError, match="no node is called 'd'"):
        Neighbourhood.of(GRAPH, LOOKED, "d", "blocks.0")


@pytest.mark.parametrize(
    ("seen", "weights", "labels", "message"),
    [
        ((), torch.zeros(1, 0), (), "seen is empty"),
        (("a", "b"), torch.ones(2), (None, None), r"need weights of shape \(heads, 2\), not \(2,\)"),
        (("a", "b"), torch.ones(1, 3), (None, None), r"not \(1, 3\)"),
        (("a", "b"), torch.ones(1, 2), (None,), "1 labels for 2 nodes"),
        (("a", "b"), torch.tensor([[0.5, -0.5]]), (None, None), "weights must be finite and not negative"),
    ],
)
def test_a_neighbourhood_that_cannot_be_is_refused(seen, weights, labels, message):
    with pytest.raises(ValueError, match=message):
        Neighbourhood("a", seen, weights, labels)
