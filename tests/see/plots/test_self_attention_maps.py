"""The attention of a sentence to itself: words by words, and what lies ahead is hidden, not 0."""

import numpy as np
import pytest
import torch

from regard.attention import SiteName
from regard.see import ascii, draw, head_maps, self_attention_maps
from regard.see.plots.attention_maps import site_maps
from tests.see.plots.artists import image_axes, image_data, tick_labels

WORDS = ("turn", "off", "the", "light", "now")
CAUSAL = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]


def test_the_words_stand_on_both_sides_and_the_cells_hold_the_weights():
    weights = torch.rand(2, 5, 5)
    first, second = image_axes(draw(self_attention_maps(WORDS, {"layer 0": list(weights)})))
    for axes, expected in ((first, weights[0]), (second, weights[1])):
        for axis in (axes.xaxis, axes.yaxis):
            assert tick_labels(axis) == list(WORDS)
        assert np.allclose(image_data(axes.images[0]), expected)
        assert axes.images[0].get_clim() == (0, 1)


def test_what_lies_ahead_is_hidden_and_not_0():
    plain, hidden = (
        image_axes(draw(self_attention_maps(WORDS, {"layer 0": [CAUSAL]}, causal=c)))[0] for c in (False, True)
    )
    assert not np.ma.getmaskarray(image_data(plain.images[0])).any()
    assert np.array_equal(np.ma.getmaskarray(image_data(hidden.images[0])), np.triu(np.ones((5, 5)), 1))
    assert "·" not in ascii(self_attention_maps(WORDS, {"layer 0": [CAUSAL]}))
    lines = ascii(
        self_attention_maps(("a", "b"), {"layer 0": [torch.tensor([[1.0, 0.0], [1.0, 0.0]])]}, causal=True)
    ).split("\n")
    assert [line.rstrip() for line in lines[-2:]] == ["a  ██  ·", "b  ██"]


def test_a_window_may_be_hidden_too():
    near = (torch.arange(5)[:, None] - torch.arange(5)).abs() < 2
    weights = near / near.sum(1, keepdim=True)
    (axes,) = image_axes(draw(self_attention_maps(WORDS, {"layer 0": [weights]}, visible=near)))
    assert np.array_equal(np.ma.getmaskarray(image_data(axes.images[0])), ~near)
    (both,) = image_axes(draw(self_attention_maps(WORDS, {"layer 0": [weights.tril()]}, visible=near, causal=True)))
    assert np.array_equal(np.ma.getmaskarray(image_data(both.images[0])), ~near.tril())


def test_weights_below_0_have_a_scale_to_both_sides_and_their_numbers():
    """Those of a state, or of a difference of two maps."""
    weights = torch.tensor([[0.5, 0.0], [-2.0, 1.5]])
    (axes,) = image_axes(draw(self_attention_maps(("a", "b"), {"layer 0": [weights]}, causal=True)))
    assert axes.images[0].get_clim() == (-2, 2)
    assert [text.get_text() for text in axes.texts] == ["0.50", "−2", "1.50"]
    lines = ascii(self_attention_maps(("a", "b"), {"layer 0": [weights]}, causal=True)).split("\n")
    assert [line.rstrip() for line in lines[-4:]] == [
        "a  ░░  ·",
        "b  ≣≣  ▓▓",
        "",
        "░▒▓█ above 0 to 2, -=≡≣ below 0 to -2",
    ]


def test_what_stands_in_place_of_the_words_is_numbered():
    """Also where there are as many points as words."""
    text, points = (SiteName("layer 0", "text", keys) for keys in ("text", "points"))
    whole, few = image_axes(draw(site_maps(("a", "b"), "text", {text: [torch.eye(2)], points: [torch.eye(2)]})))
    assert tick_labels(whole.xaxis) == tick_labels(whole.yaxis) == tick_labels(few.yaxis) == ["a", "b"]
    assert tick_labels(few.xaxis) == ["points 0", "points 1"]
    with pytest.raises(ValueError, match="there is no head to show"):
        site_maps(("a", "b"), "text", {points: []})


def test_layers_have_rows_and_many_heads_more_than_one():
    figure = draw(self_attention_maps(WORDS, {"layer 0": [CAUSAL] * 6, "layer 1": [CAUSAL] * 2}, causal=True))
    assert len(image_axes(figure)) == 8
    assert [t.get_text() for t in figure.texts if "layer" in t.get_text()] == ["layer 0", "layer 1"]
    assert len({round(axes.get_position().y0, 4) for axes in image_axes(figure)}) == 3
    assert len([axes for axes in figure.axes if axes.images and not axes.axison]) == 1


def test_heads_of_cross_attention_still_have_two_kinds_of_words():
    (axes,) = image_axes(draw(head_maps(("a", "b", "c"), ("x", "y"), {"layer 0": [torch.rand(2, 3)]})))
    assert tick_labels(axes.xaxis) == ["a", "b", "c"]
    assert tick_labels(axes.yaxis) == ["x", "y"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: self_attention_maps(WORDS, {}), "there is no head to show"),
        (lambda: self_attention_maps(WORDS, {"layer 0": []}), "there is no head to show"),
        (
            lambda: self_attention_maps(WORDS, {"l": [torch.ones(5, 4)]}),
            r"l, head 0: 5 words need weights \(5, 5\), not \(5, 4\)",
        ),
        (
            lambda: self_attention_maps(WORDS, {"l": [torch.eye(5).flip(0)]}, causal=True),
            "word 0 attended to word 4, which was to be",
        ),
        (lambda: self_attention_maps(WORDS, {"l": [torch.full((5, 5), torch.nan)]}), "must be finite, but nan"),
        (lambda: self_attention_maps(WORDS, {"l": [-torch.eye(5).flip(0)]}, causal=True), "word 0 attended to word 4"),
        (
            lambda: self_attention_maps(WORDS, {"l": [torch.eye(5)]}, visible=torch.ones(4).bool()),
            r"shape \(5, 5\), not \(4,\)",
        ),
        (lambda: self_attention_maps("light", {"l": [torch.eye(5)]}), "not the one string 'light'"),
    ],
)
def test_what_is_no_self_attention_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
