"""Surprisal: minus the logarithm of each generated token's probability, in bits."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from rich.cells import cell_len

from regard.see import ascii, draw, save, surprisal_view
from regard.see.plots.layout import BLUES, HIDDEN
from tests.see.plots.artists import face_colours, rectangles, texts

# 1, 2, 0 and 4 bits
WRITTEN, CHANCES = ("the", "cat", "is", "black"), torch.tensor([0.5, 0.25, 1.0, 0.0625])
PIECES = ["First", " Cit", "izen", ":\n", "We", " are"]


def shades(figure: Figure) -> list[tuple[float, float, float, float]]:
    return face_colours(rectangles(figure.axes[0]))


def test_a_token_is_the_darker_the_more_it_surprised():
    figure = draw(surprisal_view(WRITTEN, CHANCES, title="world"))
    assert np.allclose(shades(figure), [BLUES(share) for share in (0.25, 0.5, 0.0, 1.0)])
    assert texts(figure.axes[1]) == ["0", "4", "bits"]
    assert set(texts(figure)) >= {"world", "1.75 bits a token on average, perplexity 3.36"}


def test_the_prompt_surprises_nobody_and_is_not_taken_for_what_was_certain():
    view = surprisal_view(WRITTEN, CHANCES, prompt=["<s>"])
    figure = draw(view)
    prompt, *_, certain, _ = shades(figure)
    assert to_hex(prompt) == HIDDEN
    assert np.allclose(certain, BLUES(0.0))
    assert "given" in texts(figure.axes[1])
    assert ascii(view).split("\n")[:4] == ["<s> the cat is black", "··· ░░░ ▒▒▒    █████", "", "· given"]


def test_the_numbers_are_bits():
    assert ascii(surprisal_view(WRITTEN, CHANCES), numbers=True).split("\n")[2].split() == ["1", "2", "0", "4"]


def test_the_most_surprising_tokens_come_with_what_was_expected():
    chances = torch.tensor([0.5, 0.25, 1.0, 0.0625, 0.5, 0.5, 0.5])
    expected = [[(f"a{n}", 0.5), (" b\n", 0.125)] for n in range(7)]
    view = surprisal_view((*WRITTEN, "x", "y", "z"), chances, alternatives=expected)
    assert [name for name, _ in view.notes] == ["", "the", "cat", "black", "x", "y"]
    assert view.notes[3] == ("black", "6.2 %; expected a3 50 %, ␣b⏎ 12 %")


def test_pieces_of_a_text_stand_close_and_its_lines_break_where_they_do():
    figure = draw(surprisal_view(PIECES, torch.full((6,), 0.5)))
    boxes = [box.get_bbox() for box in rectangles(figure.axes[0])]
    assert texts(figure.axes[0]) == ["First", " Cit", "izen", ":⏎", "We", " are"]
    assert [box.y0 == boxes[0].y0 for box in boxes] == [True] * 4 + [False] * 2
    for before, after in ((0, 1), (1, 2), (2, 3), (4, 5)):
        assert boxes[after].x0 == pytest.approx(boxes[before].x1)
    assert boxes[4].x0 == 0


def test_every_letter_of_pieces_is_as_wide():
    figure = draw(surprisal_view(list("iiiiWWWW now"), torch.full((12,), 0.5)))
    axes = figure.axes[0]
    assert len({round(box.get_width(), 6) for box in rectangles(axes)}) == 1
    one = draw(surprisal_view(["iiiiiiiiiiWWWWWWWWWW", " "], torch.full((2,), 0.5))).axes[0]
    reach = one.texts[0].get_window_extent().transformed(one.transData.inverted()).width
    assert reach == pytest.approx(rectangles(one)[0].get_width(), rel=0.05)


def test_as_text_pieces_are_the_text_itself():
    view = surprisal_view(PIECES, torch.tensor([0.5, 0.25, 1.0, 0.0625, 0.5, 0.5]))
    assert ascii(view).split("\n")[:4] == ["First Citizen:⏎", "░░░░░▒▒▒▒    ██", "We are", "░░░░░░"]


def test_as_text_a_long_line_of_characters_fits_a_window():
    lines = ascii(surprisal_view(list("to be or not to be " * 17), torch.full((19 * 17,), 0.5))).split("\n")
    assert max(map(cell_len, lines)) <= 80
    assert "".join(lines[0:10:2]).startswith("to be or not to be to be")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_every_script_can_be_drawn(tmp_path, suffix):
    tokens = ["<b>&", "$x$", " 中文", "🐱", "مرحبا", "\n", "", "\ud800", "x" * 99, "\x00", "   "]
    view = surprisal_view(tokens, torch.full((11,), 0.5), alternatives=[[("$y$", 0.5)]] * 11)
    one, two = (save(draw(view), tmp_path / f"{n}.{suffix}").read_bytes() for n in ("one", "two"))
    assert one == two
    assert "\x00" not in ascii(view)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: surprisal_view("the", torch.ones(3)), "not the one string 'the'"),
        (lambda: surprisal_view(WRITTEN, CHANCES, prompt="the"), "not the one string 'the'"),
        (lambda: surprisal_view([], torch.ones(0)), "there is no generated token"),
        (lambda: surprisal_view(WRITTEN, torch.ones(3)), r"4 words need a probability each, shape \(4,\), not \(3,\)"),
        (lambda: surprisal_view(WRITTEN, CHANCES * 3), "probabilities lie between 0 and 1, but 1.5"),
        (lambda: surprisal_view(WRITTEN, CHANCES.log()), "between 0 and 1, but -0.69"),
        (lambda: surprisal_view(WRITTEN, CHANCES * 0), "'the' was generated with probability 0"),
        (
            lambda: surprisal_view(WRITTEN, CHANCES, alternatives=[[("a", 0.5)]]),
            "4 tokens have alternatives each, .* not 1",
        ),
    ],
)
def test_what_is_no_written_text_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
