"""Position views hold the numbers of their formulas."""

import math

import numpy as np
import pytest
import torch

from regard.attention import (
    Alibi,
    Clipped,
    DependencyTree,
    Learned,
    LogBuckets,
    NoPosition,
    RelativeBias,
    RelativeVectors,
    Rotary,
    Sinusoidal,
    TreeDepth,
    TreePath,
)
from regard.see import draw
from tests.see.plots.artists import image_axes, image_data, line_points, texts
from tests.see.plots.test_mpl_draw import images


def test_the_stripes_are_the_waves_of_the_formula():
    (shown,) = images(draw(Sinusoidal(), tokens=11, width=6))
    angle = [[pos / 10_000 ** (2 * (f // 2) / 6) for f in range(6)] for pos in range(11)]
    wanted = [[math.cos(a) if f % 2 else math.sin(a) for f, a in enumerate(row)] for row in angle]
    assert np.allclose(shown, wanted)


def test_positions_run_down_and_features_across():
    (axes,) = image_axes(draw(Sinusoidal(), tokens=11, width=6))
    assert axes.get_ylabel() == "position"
    assert axes.get_xlabel() == "feature"
    assert axes.images[0].get_clim() == pytest.approx((-1, 1))


def test_learned_places_are_shown_as_they_are():
    scheme = Learned(7, model=5)
    (shown,) = images(draw(scheme))
    assert np.allclose(shown, scheme.weight.detach())
    with pytest.raises(ValueError, match="cannot show 8 positions; ask for 1 to 7"):
        draw(scheme, tokens=8)


def test_rotary_falls_with_the_distance_as_the_sum_of_cosines():
    figure = draw(Rotary(), tokens=13, width=6)
    (curve,) = [axes.lines[-1] for axes in figure.axes if axes.lines]
    wanted = [sum(2 * math.cos(d * 10_000 ** (-2 * f / 6)) for f in range(3)) for d in range(13)]
    assert np.allclose(line_points(curve)[:, 1], wanted)
    (turned,) = images(figure)
    assert np.allclose(turned[5, :2], [math.cos(5) - math.sin(5), math.sin(5) + math.cos(5)])


def test_alibi_has_a_matrix_for_each_head():
    shown = images(draw(Alibi(4), tokens=7))
    assert len(shown) == 4
    for slope, matrix in zip((1 / 4, 1 / 16, 1 / 64, 1 / 256), shown, strict=True):
        assert np.allclose(matrix, [[-slope * abs(i - j) for j in range(7)] for i in range(7)])
    assert "head 1, slope 0.25" in texts(draw(Alibi(4), tokens=7))


def test_a_relative_bias_shows_its_learned_numbers():
    scheme = RelativeBias(LogBuckets(), heads=3)
    shown, learned = images(draw(scheme, tokens=5)), scheme.weight.detach()
    for head, matrix in enumerate(shown):
        assert matrix[2, 2] == pytest.approx(float(learned[head, 0]))
        assert matrix[4, 1] == pytest.approx(float(learned[head, 3]))
        assert matrix[1, 4] == pytest.approx(float(learned[head, 16 + 3]))


def test_relative_vectors_show_which_vector_a_pair_reads():
    (axes,) = image_axes(draw(RelativeVectors(Clipped(2), head=4), tokens=5))
    wanted = [[2, 3, 4, 4, 4], [1, 2, 3, 4, 4], [0, 1, 2, 3, 4], [0, 0, 1, 2, 3], [0, 0, 0, 1, 2]]
    assert image_data(axes.images[0]).tolist() == wanted
    assert [text.get_text() for text in axes.texts[:5]] == ["2", "3", "4", "4", "4"]


def test_schemes_together_are_drawn_one_below_the_other():
    figure = draw(Sinusoidal() + Alibi(2), tokens=5, width=4)
    assert [image.shape for image in images(figure)] == [(5, 4), (5, 5), (5, 5)]
    first, second, _ = image_axes(figure)
    assert first.get_position().y0 > second.get_position().y1
    assert {"Sinusoidal(theta=10000.0)", "Alibi(heads=2)"} <= set(texts(figure))
    assert "Sinusoidal(theta=10000.0) + Alibi(heads=2)" in " ".join(texts(figure))


def test_no_position_adds_nothing():
    (shown,) = images(draw(NoPosition()))
    assert not shown.any()


def test_places_in_a_tree_are_drawn_once_the_tree_is_given():
    """The root is the second of three tokens; its depth is 0, that of the others 1."""
    tree = DependencyTree.from_governors(torch.tensor([[2, 0, 2]]))
    (depths,) = images(draw(TreeDepth().with_tree(tree), width=4))
    assert np.allclose(depths, images(draw(Sinusoidal(), tokens=2, width=4))[0][[1, 0, 1]])
    (paths,) = images(draw(RelativeVectors(TreePath(2), head=4).with_tree(tree)))
    assert paths.shape == (3, 3)
    assert paths[1, 1] == 2
    with pytest.raises(ValueError, match=r"needs the sentences' trees: use recipe\.with_tree"):
        draw(TreeDepth())
    with pytest.raises(ValueError, match="cannot show 4 positions; ask for 1 to 3"):
        draw(TreeDepth().with_tree(tree), tokens=4)
