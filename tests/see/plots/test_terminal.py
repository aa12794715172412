"""Text for a terminal: exact lines, and columns that stand in line whatever the letters' width."""

import pytest
import torch
from rich.cells import cell_len

from regard.attention import Alibi, Causal, Clipped, RelativeVectors, Rotary, Sinusoidal, Window, get_recipe
from regard.see import ascii
from regard.see.plots.attention_maps import share_scale
from regard.see.plots.panels import ColourScale, Panel, PanelRow, View
from regard.see.plots.terminal import render_view


def test_a_mask_is_three_lines_for_three_tokens():
    assert ascii(Causal(), tokens=3) == "■ · ·\n■ ■ ·\n■ ■ ■"


def test_a_wide_mask_stands_closer():
    lines = ascii(Window(2), tokens=41).split("\n")
    assert lines[0] == "■■" + "·" * 39
    assert {len(line) for line in lines} == {41}


def test_a_mask_with_names():
    assert ascii(Causal(), tokens=["I", "am"]).split("\n") == [
        "    I   am",
        " I  ■   · ",
        "am  ■   ■ ",
    ]


def test_blocks_are_empty_mixed_or_full():
    assert ascii(Causal(), tokens=6, block=2).endswith("blocks of 2\n▒ · ·\n■ ▒ ·\n■ ■ ▒")


def test_weights_are_shades_of_the_largest():
    weights = torch.tensor([[0.0, 0.2, 0.4, 0.6, 0.8]])
    assert ascii(weights) == "  ░░▒▒▓▓██"


def test_hidden_is_not_zero():
    weights, visible = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[True, False, True]])
    assert ascii(weights, visible=visible) == "  ··██"


def test_numbers_stand_beside_the_shades():
    weights = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    assert ascii(weights, tokens=["a", "b"], numbers=True).split("\n") == [
        "   a        b",
        "a  ░░ 0.25  ▓▓ 0.75",
        "b  ██ 1        0   ",
    ]


def test_wide_letters_stand_in_line():
    text = ascii(torch.eye(3), tokens=["黑猫", "吃", "mouse"], queries=["🐱", "ate", "老鼠"])
    head, *body = text.split("\n")
    assert {cell_len(line) for line in body} == {4 + 3 * (2 + 5)}
    assert cell_len(body[1][: body[1].index("█")]) == cell_len(head[: head.index("吃")])
    assert cell_len(body[2][: body[2].index("█")]) == cell_len(head[: head.index("mouse")])


def test_several_heads_stand_below_each_other():
    text = ascii(torch.eye(2).expand(3, 2, 2))
    assert text == "\n\n".join(f"head {h}\n██  \n  ██" for h in (1, 2, 3))


def test_stripes_are_shades_from_minus_one_to_one():
    assert ascii(Sinusoidal(), tokens=1, width=4) == "▒█▒█"
    lines = ascii(Sinusoidal(), tokens=5, width=8).split("\n")
    assert [line[0] for line in lines] == ["▒", "█", "█", "▒", " "]


def test_a_bias_is_shaded_by_what_it_leaves():
    """exp(-|i - j| / 256) stays dark, exp(-|i - j| / 16) fades."""
    text = ascii(Alibi(2), tokens=30)
    first, second = text.split("\n\n")
    assert first.split("\n")[1].startswith("██")
    assert first.split("\n")[1].endswith("░░")
    assert set(second.split("\n")[1]) == {"█"}


def test_relations_are_numbers():
    assert ascii(RelativeVectors(Clipped(1), head=4), tokens=3) == "1 2 2\n0 1 2\n0 0 1"


def test_a_curve_is_a_line_of_bars():
    bars = ascii(Rotary(), tokens=9, width=4).split("\n")[-1]
    assert bars.startswith("█")
    assert bars.endswith("to 4")


def test_a_recipe_ends_with_its_parts():
    text = ascii(get_recipe("top-k"), tokens=7)
    assert text.endswith("pattern     Full()\nnormaliser  TopK(k=3, then=Softmax())")
    assert "■ ■ ■ ■ ■ ■ ■" in text


def test_a_number_that_is_none_is_marked():
    assert ascii(torch.tensor([[1.0, float("nan")]])) == "██??"


def test_mistakes_are_those_of_draw():
    with pytest.raises(ValueError, match="weights of 2 sentences"):
        ascii(torch.ones(2, 1, 3, 3))


def test_weights_below_0_are_told_from_those_above():
    """A state's weights are no shares: as dark as they reach, each sign by marks of its own, and 0 is empty."""
    weights = torch.tensor([[-0.25, 0.0], [0.25, -0.125]])
    assert share_scale(weights) == ColourScale("signed", -0.25, 0.25, "weight")
    panel = Panel("", weights, share_scale(weights))
    shown = render_view(View((PanelRow((panel,)),)))
    assert [line.rstrip() for line in shown.splitlines() if line.strip()] == ["≣≣", "██=="]
    assert share_scale(torch.tensor([[0.5, 0.1]])) == ColourScale("weights", 0.0, 1.0, "weight")
    torn = torch.tensor([[0.5, float("nan")]])
    assert share_scale(torn) == ColourScale("weights", 0.0, 1.0, "weight")
    shown = render_view(View((PanelRow((Panel("", -torn, share_scale(-torn)),)),)))
    assert shown.strip() == "≣≣??"
