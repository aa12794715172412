"""Figures show the numbers they are given: masks, weights, steps and recipes, read back from the drawn images."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from regard.attention import Causal, Documents, Global, Padding, Recipe, Softmax, Sparsemax, Window, get_recipe, steps
from regard.attention.pattern import Pattern
from regard.see import draw
from regard.see.plots.layout import VISIBLE
from regard.see.plots.recipe_views import black_cat, example_steps
from tests.forks import run_program
from tests.see.plots.artists import image_axes, image_data, texts, tick_labels

WORDS = ["le", "chat", "noir"]


def images(figure: Figure) -> list[np.ma.MaskedArray]:
    """What the panels show."""
    return [image_data(axes.images[0]) for axes in image_axes(figure)]


# --- patterns ---


def test_a_mask_is_drawn_cell_by_cell():
    (shown,) = images(draw(Causal() & Window(3), tokens=11))
    assert shown.tolist() == [[0 <= i - j < 3 for j in range(11)] for i in range(11)]


def test_on_the_screen_every_visible_cell_is_blue_and_no_hidden_one():
    figure = draw(Causal(), tokens=5)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[::-1, :, :3] / 255
    (axes,) = image_axes(figure)
    for i in range(5):
        for j in range(5):
            x, y = axes.transData.transform((j, i)).astype(int)
            assert np.allclose(pixels[y, x], to_rgb(VISIBLE), atol=0.01) == (j <= i), (i, j)


def test_the_title_is_the_pattern():
    assert "Causal() & Window(size=3)" in texts(draw(Causal() & Window(3), tokens=20))


def test_the_block_map_stands_beside_the_mask():
    mask, blocks = images(draw(Causal(), tokens=11, block=4))
    assert mask.shape == (11, 11)
    assert blocks.tolist() == [[1, 0, 0], [2, 1, 0], [2, 2, 1]]


def test_a_mask_too_long_for_cells_is_never_formed():
    class Watched(Pattern):
        """The causal pattern, which notices when too many cells are looked at together."""

        def sees(self, b, h, i, j):
            seen = j <= i
            assert seen.numel() < 2**24
            return seen

        def count(self, rows, cols):
            return Causal().count(rows, cols)

    (blocks,) = images(draw(Watched(), tokens=100_003))
    assert blocks.shape == (98, 98)
    assert blocks[50, 49] == 2
    assert blocks[50, 50] == 1
    assert blocks[50, 51] == 0


def test_tokens_may_be_named():
    (axes,) = image_axes(draw(Causal(), tokens=WORDS))
    assert tick_labels(axes.xaxis) == WORDS
    assert tick_labels(axes.yaxis) == WORDS


def test_queries_and_keys_may_differ():
    (shown,) = images(draw(Window(2), tokens=7, queries=3))
    assert shown.tolist() == [[abs(i - j) < 2 for j in range(7)] for i in range(3)]


def test_a_pattern_that_holds_data_is_drawn_as_long_as_its_data():
    (shown,) = images(draw(Documents.from_lengths([2, 3])))
    assert shown.tolist() == [[(i < 2) == (j < 2) for j in range(5)] for i in range(5)]
    with pytest.raises(ValueError, match=r"names 5 queries and 5 keys, not 7 and 7; ask for fewer"):
        draw(Documents.from_lengths([2, 3]), tokens=7)


def test_each_sentence_of_a_batch_has_a_panel():
    shown = images(draw(Padding(torch.tensor([2, 5])), tokens=5))
    assert [one[0].tolist() for one in shown] == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]


def test_no_tokens_make_no_picture():
    with pytest.raises(ValueError, match="0 queries and 0 keys make no plot; ask for at least 1"):
        draw(Causal(), tokens=0)


# --- weights ---


def test_weights_are_drawn_with_their_tokens():
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]])
    (axes,) = image_axes(draw(weights, tokens=["black", "cat"], queries=WORDS))
    assert np.array_equal(image_data(axes.images[0]), weights)
    assert tick_labels(axes.xaxis) == ["black", "cat"]
    assert tick_labels(axes.yaxis) == WORDS
    assert texts(axes) == ["0.25", "0.75", "0.50", "0.50", "1", "0"]


def test_hidden_is_not_zero():
    weights, visible = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[True, False], [True, True]])
    (axes,) = image_axes(draw(weights, visible=visible))
    shown = image_data(axes.images[0])
    assert shown.mask.tolist() == [[False, True], [False, False]]
    colours = axes.images[0].to_rgba(shown)
    assert np.abs(colours[0, 1] - colours[1, 1]).max() > 0.04
    assert texts(axes) == ["1", "1", "0"]


def test_heads_are_small_multiples_on_one_scale():
    weights = torch.rand(1, 5, 3, 3).softmax(-1)
    axes = image_axes(draw(weights, tokens=WORDS))
    assert len(axes) == 5
    assert len({axis.images[0].get_clim() for axis in axes}) == 1
    for head, axis in enumerate(axes):
        assert np.allclose(image_data(axis.images[0]), weights[0, head])


def test_a_few_large_rows_do_not_dim_the_others():
    weights = torch.full((20, 20), 0.05)
    weights[0] = torch.eye(20)[0]
    figure = draw(weights)
    (axes,) = image_axes(figure)
    assert axes.images[0].get_clim() == pytest.approx((0, 0.05))
    assert "≥ 0.05" in [text for axis in figure.axes for text in texts(axis)]


def test_weights_of_any_kind_are_drawn_and_left_alone():
    weights = torch.rand(3, 3, dtype=torch.bfloat16, requires_grad=True)
    (shown,) = images(draw(weights))
    assert np.array_equal(shown, weights.detach().double())
    assert weights.requires_grad


@pytest.mark.parametrize(
    ("weights", "how", "message"),
    [
        (torch.ones(2, 3, 4, 4), {}, r"weights of 2 sentences; draw one at a time: weights\[0\]"),
        (torch.ones(4), {}, r"must be \(i, j\), \(h, i, j\) or \(1, h, i, j\), not \(4,\)"),
        (torch.ones(0, 4), {}, r"not \(0, 4\)"),
        (torch.ones(3, 3), {"tokens": ["a", "b"]}, "2 tokens for 3 rows or columns of weights; give one for each"),
        (torch.ones(2, 3), {"tokens": WORDS}, r"there are 2 queries; name them too: queries=\[...\]"),
        (torch.ones(3, 3), {"tokens": "abc"}, r"not the one string 'abc'; use tokens.split\(\)"),
    ],
)
def test_weights_that_cannot_be_drawn_are_refused_with_the_remedy(weights, how, message):
    with pytest.raises(ValueError, match=message):
        draw(weights, **how)


def test_something_else_is_refused():
    with pytest.raises(ValueError, match="cannot draw a list; a pattern, position, recipe, steps or a tensor"):
        draw([[0.5, 0.5]])  # type: ignore[arg-type]


# --- steps and recipes ---


def test_steps_are_drawn_in_order():
    seen, english, french = black_cat()
    axes = image_axes(draw(seen, tokens=english, queries=french))
    for axis, wanted in zip(axes, (seen.scores, seen.adjusted, seen.visible, seen.weights), strict=True):
        assert np.allclose(image_data(axis.images[0]).data, wanted[0, 0])
        assert tick_labels(axis.xaxis) == list(english)
        assert tick_labels(axis.yaxis) == list(french)


def test_the_weights_of_steps_know_what_is_hidden():
    q = torch.randn(1, 2, 5, 7)
    axes = image_axes(draw(steps(q, q, q, Recipe(pattern=Causal()))))
    assert len(axes) == 8
    assert (image_data(axes[3].images[0]).mask == ~np.tri(5, dtype=bool)).all()


def test_the_lectures_alignment_turns_black_cat_round():
    seen, english, french = black_cat()
    best = [english[j] for j in seen.weights[0, 0].argmax(-1)]
    assert list(zip(french, best, strict=True)) == [
        ("le", "the"),
        ("chat", "cat"),
        ("noir", "black"),
        ("a", "ate"),
        ("mangé", "ate"),
        ("la", "the"),
        ("souris", "mouse"),
    ]
    assert seen.weights[0, 0, 0].argmax() == 0
    assert seen.weights[0, 0, 5].argmax() == 4


def test_a_recipe_is_its_mask_its_weights_and_its_parts():
    recipe = Recipe(pattern=Window(3) | Global(1), normaliser=Sparsemax())
    figure = draw(recipe, tokens=13)
    mask, weights = images(figure)
    assert mask.tolist() == [[abs(i - j) < 3 or i < 1 or j < 1 for j in range(13)] for i in range(13)]
    assert np.allclose(weights.data, example_steps(recipe, 13).weights[0, 0])
    assert {"ScaledDot()", "NoPosition()", "Window(size=3) | Global(tokens=1)", "Sparsemax()"} <= set(texts(figure))


def test_the_example_tells_normalisers_apart():
    soft, sparse, hard = (
        example_steps(get_recipe(name), 32).weights[0, 0] for name in ("scaled dot", "sparsemax", "hard")
    )
    assert (soft > 0).all()
    assert ((sparse == 0).sum(-1) > 16).all()
    assert (sparse > 0).sum() > 40
    assert ((hard == 1).sum(-1) == 1).all()
    assert (soft.argmax(-1) == hard.argmax(-1)).all()


def test_a_recipe_with_learned_parts_gets_an_example_of_its_width():
    for name in ("bahdanau", "luong general"):
        assert len(images(draw(get_recipe(name), tokens=5))) == 2


def test_weights_of_too_many_tokens_are_refused():
    with pytest.raises(ValueError, match="weights of 2000 tokens are too many for a picture; draw the pattern"):
        draw(Recipe(normaliser=Softmax()), tokens=2000)


# --- manners ---


def test_drawing_changes_no_setting():
    before = dict(matplotlib.rcParams)
    draw(Causal(), tokens=5)
    assert dict(matplotlib.rcParams) == before


def test_drawing_needs_no_window():
    done = run_program("import regard.see, sys; sys.exit('matplotlib.pyplot' in sys.modules)")
    assert done.code == 0, done.err
