"""The alignment matrix and the shaded sentence show the numbers they are given, as figures and as text."""

from collections.abc import Set

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from rich.cells import cell_len
from torch import Tensor

from regard.attention import Causal
from regard.see import ascii, draw, save
from regard.see.plots.attention_maps import Alignment, stack, strip
from regard.see.plots.draw import build_view
from regard.see.plots.layout import BLUES, PAPER
from regard.see.plots.mpl_figure import OUTLINE_COLOUR
from tests.see.plots.artists import (
    face_colours,
    image_axes,
    image_data,
    rectangles,
    strip_axes,
    texts,
    tick_labels,
)

ENGLISH = ("the", "black", "cat", "ate", "the", "mouse")
FRENCH = ("le", "chat", "noir", "a", "mangé", "la", "souris")
GOLD = frozenset({(0, 0), (2, 1), (1, 2), (3, 3), (3, 4), (4, 5), (5, 6)})
LIGHT = ("turn", "off", "the", "light")


def aligned(links: Set[tuple[int, int]] = GOLD, *, end: bool = False, sure: float = 0.8) -> Tensor:
    """Each target word gives `sure` to its link, and the rest evenly to all columns."""
    columns = len(ENGLISH) + end
    weights = torch.full((len(FRENCH), columns), (1 - sure) / columns)
    for source, target in links:
        weights[target, source] += sure
    return weights


def panel(figure: Figure) -> Axes:
    (axes,) = image_axes(figure)
    return axes


def all_texts(figure: Figure) -> list[str]:
    return texts(figure) + [text for axes in figure.axes for text in texts(axes)]


def outlined_cells(axes: Axes) -> set[tuple[int, ...]]:
    """The cells (target, source) around whose middles a coloured line runs."""
    (patch,) = (p for p in axes.patches if isinstance(p, PathPatch) and p.get_edgecolor()[:3] == to_rgb(OUTLINE_COLOUR))
    boxes = np.asarray(patch.get_path().vertices).reshape(-1, 5, 2)
    return {tuple(np.rint(box[:4].mean(0)).astype(int).tolist())[::-1] for box in boxes}


# --- the matrix ---


def test_the_source_runs_across_and_the_target_down():
    weights = aligned()
    axes = panel(draw(Alignment(ENGLISH, FRENCH, weights)))
    assert tick_labels(axes.xaxis) == list(ENGLISH)
    assert tick_labels(axes.yaxis) == list(FRENCH)
    assert np.allclose(image_data(axes.images[0]), weights)
    assert axes.xaxis.get_label_position() == "top"


def test_nothing_is_white_and_all_is_dark():
    axes = panel(draw(Alignment(("a", "b"), ("c",), torch.tensor([[0.0, 0.4]]))))
    assert axes.images[0].get_clim() == (0, 1)
    light, middle, dark = (axes.images[0].cmap(x)[:3] for x in (0.0, 0.4, 1.0))
    assert min(light) > 0.95 > sum(middle) / 3 > 0.5 > max(dark)


def test_weights_that_sum_to_more_than_one_have_a_longer_scale():
    axes = panel(draw(Alignment(("a", "b"), ("c",), torch.tensor([[3.0, 2.0]]))))
    assert axes.images[0].get_clim() == (0, 3)


def test_the_end_is_shown_only_if_it_is_given():
    assert tick_labels(panel(draw(Alignment(ENGLISH, FRENCH, aligned(end=True)))).xaxis) == [*ENGLISH, "</s>"]
    assert "</s>" in ascii(Alignment(ENGLISH, FRENCH, aligned(end=True)))
    assert "</s>" not in ascii(Alignment(ENGLISH, FRENCH, aligned()))


def test_gold_links_are_outlined_whether_found_or_not():
    figure = draw(Alignment(ENGLISH, FRENCH, aligned(sure=0.0), GOLD))
    axes = panel(figure)
    assert outlined_cells(axes) == {(target, source) for source, target in GOLD}
    assert "gold link" in all_texts(figure)


def test_without_gold_there_is_neither_outline_nor_error():
    figure = draw(Alignment(ENGLISH, FRENCH, aligned()))
    assert not any(p.get_edgecolor()[:3] == to_rgb(OUTLINE_COLOUR) for axes in figure.axes for p in axes.patches)
    assert not any("gold" in text for text in all_texts(figure))
    assert "gold" not in ascii(Alignment(ENGLISH, FRENCH, aligned()))


@pytest.mark.parametrize("share", np.linspace(0, 1, 11).tolist())
def test_an_outline_shows_on_every_shade_even_in_grey(share):
    """Next to the shade lies the line or, inside it, paper; one of them is much lighter or darker."""
    grey = np.array([0.299, 0.587, 0.114])
    under, line, paper = (float(grey @ to_rgb(colour)) for colour in (BLUES(share), OUTLINE_COLOUR, PAPER))
    assert max(abs(under - line), abs(under - paper)) > 0.3
    assert abs(line - paper) > 0.3


def test_the_error_rate_stands_below():
    """Of seven links one is wrong: 1 - (6 + 6) / (7 + 7)."""
    wrong = GOLD - {(1, 2)} | {(2, 2)}
    for end in (False, True):
        assert "AER 0.00 against the gold alignment" in texts(draw(Alignment(ENGLISH, FRENCH, aligned(end=end), GOLD)))
        missed = Alignment(ENGLISH, FRENCH, aligned(wrong, end=end), GOLD)
        assert missed.error_rate == pytest.approx(1 / 7)
        assert "AER 0.14 against the gold alignment" in texts(draw(missed))
        assert ascii(missed).endswith("\n\nAER 0.14 against the gold alignment")


def test_a_look_at_the_end_is_no_link():
    weights = torch.tensor([[0.3, 0.1, 0.6], [0.1, 0.9, 0.0]])
    assert Alignment(("a", "b"), ("c", "d"), weights, frozenset({(0, 0), (1, 1)})).error_rate == 0


def test_numbers_are_written_where_there_is_something_to_read():
    axes = panel(draw(Alignment(("a", "b", "c"), ("d",), torch.tensor([[0.9, 0.06, 0.04]]))))
    assert texts(axes) == ["0.90", "0.06"]
    assert [text.get_color() for text in axes.texts] == [PAPER, "#000000"]


def test_a_title_may_stand_above():
    alignment = Alignment(ENGLISH, FRENCH, aligned())
    title = "the second layer's third head, which is the one that aligns best"
    figure = draw(alignment, title=title)
    (text,) = (text for text in figure.texts if text.get_text() == title)
    assert text.get_window_extent().x1 < figure.bbox.x1
    assert ascii(alignment, title=title).startswith(f"{title}\n\n")


def test_long_words_are_cut_later_than_tokens():
    axes = panel(draw(Alignment(("Bundesregierung", "Rindfleischetikettierungsgesetz"), ("a",), torch.ones(1, 2))))
    assert tick_labels(axes.xaxis) == ["Bundesregierung", "Rindfleischetiketti…"]


def test_weights_of_any_kind_are_drawn_and_left_alone():
    weights = torch.full((1, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    image = panel(draw(Alignment(("a", "b"), ("c",), weights))).images[0]
    assert image_data(image).tolist() == [[0.5, 0.5]]
    assert weights.requires_grad


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_long_sentence_in_every_script_gives_the_same_bytes(tmp_path, suffix):
    source = ("القط", "שלום", "🐱", "👩‍👩‍👧", "中文", "$x$", "<b>&") + ("Donaudampfschifffahrt",) * 23
    target = ("mangé",) * 37
    pair = Alignment(source, target, torch.eye(37)[:, :30], frozenset((n, n) for n in range(30)))
    one, two = (save(draw(pair), tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two
    assert len(one) > 5000


@pytest.mark.parametrize(
    ("source", "target", "weights", "gold", "message"),
    [
        (ENGLISH, FRENCH, torch.ones(6, 7), (), r"7 target and 6 source words need weights of shape \(7, 6\), or \(7,"),
        (ENGLISH, FRENCH, torch.ones(7, 8), (), r"\(7, 7\) with the source's end, not \(7, 8\)"),
        (ENGLISH, FRENCH, torch.ones(7), (), r"not \(7,\)"),
        (ENGLISH, FRENCH, torch.ones(7, 6), {(6, 0)}, r"gold link \(6, 0\) lies outside 6 source and 7 target words"),
        (ENGLISH, FRENCH, torch.ones(7, 7), {(6, 0)}, r"gold link \(6, 0\) lies outside 6 source"),
        (ENGLISH, FRENCH, torch.ones(7, 6), {(0, -1)}, r"links are \(source, target\), counted from 0"),
        (ENGLISH, FRENCH, torch.full((7, 6), torch.nan), (), "weights must be finite, but nan is among them"),
        (ENGLISH, FRENCH, torch.full((7, 6), -torch.inf), (), "but -inf is among them"),
        ("the cat", FRENCH, torch.ones(7, 7), (), r"not the one string 'the cat'; use tuple\(source.split\(\)\)"),
        (ENGLISH, (), torch.ones(0, 6), (), "target is empty; it must hold at least one word"),
    ],
)
def test_what_is_no_alignment_is_refused_in_one_line(source, target, weights, gold, message):
    with pytest.raises(ValueError, match=message) as refused:
        Alignment(source, target, weights, frozenset(gold))
    assert "\n" not in str(refused.value)


# --- the matrix as text ---


def test_gold_links_stand_in_brackets():
    pair = Alignment(
        ("black", "cat"), ("chat", "noir"), torch.tensor([[0.2, 0.8], [0.3, 0.7]]), frozenset({(1, 0), (0, 1)})
    )
    assert ascii(pair).split("\n") == [
        "      black  cat",
        "chat  ░░░░░ [▓▓▓▓▓]",
        "noir [░░░░░] ▓▓▓▓▓",
        "",
        "[ ] gold link",
        "",
        "AER 0.50 against the gold alignment",
    ]


def test_the_black_cat_fits_a_window():
    lines = ascii(Alignment(ENGLISH, FRENCH, aligned(end=True), GOLD)).split("\n")
    assert max(map(cell_len, lines)) <= 80
    assert lines[0].split() == [*ENGLISH, "</s>"]
    for target, line in enumerate(lines[1:8]):
        opened = [at for at, sign in enumerate(line) if sign == "["]
        linked = [source for source, other in GOLD if other == target]
        columns = [at for at, sign in enumerate(lines[0]) if sign != " " and lines[0][at - 1] == " "]
        assert opened == [columns[source] - 1 for source in linked]
        assert line.lstrip().startswith(FRENCH[target])


def test_columns_are_as_narrow_as_their_words_before_words_are_cut():
    source = ("the", "federal", "government's", "beef", "labelling", "supervision", "act")
    lines = ascii(Alignment(source, ("Rindfleischetikettierung",), torch.ones(1, 7))).split("\n")
    assert lines[0].split() == list(source)
    assert lines[1].startswith("Rindfleisch…  ███  ███████  ████")


def test_a_long_sentence_is_written_downwards():
    source, target = ("né", "a", "the") * 11, ("Bundesregierung",) * 35
    pair = Alignment(source, target, torch.eye(35)[:, :33], frozenset({(0, 0), (2, 0)}))
    lines = ascii(pair).split("\n")
    assert max(map(cell_len, lines)) <= 80
    head, body = lines[:3], lines[3:38]
    assert [line.split()[:3] for line in head] == [["t", "t", "t"], ["n", "h", "n"], ["é", "a", "e"]]
    assert body[0].rstrip() == "Bundesregie… █●   ●"
    assert [line.index("█") - line.index("…") for line in body[:33]] == [2 + 2 * n for n in range(33)]
    assert lines[39] == "● gold link"


def test_wide_letters_accents_and_parts_of_an_emoji_keep_their_column_downwards():
    many = ("e\u0301a", "👩\u200d👧", "中") * 11
    head, foot, row = ascii(Alignment(many, ("x",), torch.ones(1, 33))).split("\n")
    assert head == "  " + "     ".join(["e\u0301"] * 11)
    assert foot == "  " + "a 👩\u200d👧中" * 11
    assert cell_len(foot) == cell_len(row) == 2 + 2 * 33


def test_numbers_stand_beside_the_brackets():
    text = ascii(Alignment(("a", "b"), ("c",), torch.tensor([[0.25, 0.75]]), frozenset({(1, 0)})), numbers=True)
    assert text.split("\n")[1] == "c  ░░ 0.25 [▓▓ 0.75]"


# --- one row of weights ---


def test_one_row_is_a_strip_with_its_words_and_needs_no_name():
    axes = panel(draw(torch.tensor([[0.1, 0.6, 0.1, 0.2]]), tokens=LIGHT))
    assert tick_labels(axes.xaxis) == list(LIGHT)
    assert tick_labels(axes.yaxis) == [""]
    assert texts(axes) == ["0.10", "0.60", "0.10", "0.20"]
    assert ascii(torch.tensor([[0.1, 0.6, 0.1, 0.2]]), tokens=LIGHT).split("\n") == [
        "  turn   off    the    light",
        "  ░░░░░  █████  ░░░░░  ░░░░░",
    ]


def test_a_long_row_is_broad_and_rows_of_heads_stand_below_each_other():
    figure = draw(torch.rand(3, 1, 29), tokens=["word"] * 29)
    places = [axes.get_position() for axes in figure.axes if axes.images and axes.axison]
    assert len({place.x0 for place in places}) == 1
    assert len({place.y0 for place in places}) == 3
    assert 6.5 < places[0].width * figure.get_figwidth() < 7.5


# --- shaded sentences ---


def shades(axes: Axes) -> list[tuple[float, float, float, float]]:
    return face_colours(rectangles(axes))


def test_each_word_stands_on_its_shade():
    figure = draw(strip(LIGHT, torch.tensor([0.2, 0.5, 0.0, 0.3]), "light → lumière"))
    (axes,) = strip_axes(figure)
    assert texts(axes) == list(LIGHT)
    assert np.allclose(shades(axes), [BLUES(share) for share in (0.4, 1.0, 0.0, 0.6)])
    assert [text.get_color() for text in axes.texts] == ["#000000", PAPER, "#000000", PAPER]
    for text, box in zip(axes.texts, rectangles(axes), strict=True):
        (left, top), (right, bottom) = box.get_bbox().min, box.get_bbox().max
        assert left < text.get_position()[0] < right
        assert top < text.get_position()[1] < bottom
    assert "light → lumière" in texts(figure)


def test_the_word_that_looked_is_outlined():
    (axes,) = strip_axes(draw(strip(LIGHT, torch.ones(4), highlight=3)))
    (line,) = (p for p in axes.patches if isinstance(p, PathPatch) and p.get_edgecolor()[:3] == to_rgb(OUTLINE_COLOUR))
    box = rectangles(axes)[3].get_bbox()
    assert np.allclose(line.get_path().get_extents().get_points(), box.get_points(), atol=0.02)


def test_a_long_sentence_goes_on_in_the_next_line():
    words = tuple(f"word{n}" for n in range(31))
    figure = draw(strip(words, torch.rand(31)))
    (axes,) = strip_axes(figure)
    heights = [text.get_position()[1] for text in axes.texts]
    assert heights == sorted(heights)
    assert len(set(heights)) == 3
    assert figure.get_figwidth() < 8


def test_stacked_strips_share_one_scale_and_one_legend():
    one, two = strip(("a", "b"), torch.tensor([0.1, 0.2]), "one"), strip(("c",), torch.tensor([0.8]), "two")
    figure = draw(stack(one, two))
    first, second = strip_axes(figure)
    assert np.allclose(shades(first), [BLUES(0.125), BLUES(0.25)])
    assert np.allclose(shades(second), [BLUES(1.0)])
    assert first.get_position().y0 > second.get_position().y1
    assert len(figure.axes) == 3
    assert {"one", "two"} <= set(texts(figure))


def test_a_title_longer_than_the_sentence_is_not_cut():
    title = "which words decided that this is a light"
    figure = draw(strip(("a",), torch.ones(1), title))
    (text,) = (text for text in figure.texts if text.get_text() == title)
    assert text.get_window_extent().x1 < figure.bbox.x1


def test_as_text_the_shades_lie_under_the_words():
    view = stack(
        strip(LIGHT, torch.tensor([0.25, 0.5, 0.0, 0.25]), "lumière", highlight=3),
        strip(("x",), torch.tensor([1.0]), "y"),
    )
    assert ascii(view) == "lumière\nturn off the [light]\n░░░░ ▒▒▒     ░░░░░░░\n\ny\nx\n█"
    assert ascii(strip(LIGHT, torch.tensor([0.25, 0.5, 0.0, 0.25])), numbers=True).split("\n") == [
        "turn off  the  light",
        "▒▒▒▒ ████      ▒▒▒▒▒",
        "0.25 0.50 0    0.25",
    ]


def test_as_text_a_long_sentence_fits_a_window():
    lines = ascii(strip(("word",) * 37, torch.ones(37), "title")).split("\n")
    assert max(map(cell_len, lines)) <= 80
    assert sum(line.count("word") for line in lines) == 37
    assert sum(line.count("████") for line in lines) == 37


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: strip(LIGHT, torch.ones(3)), r"4 words need a weight each, shape \(4,\), not \(3,\)"),
        (lambda: strip(LIGHT, torch.ones(1, 4)), r"not \(1, 4\)"),
        (
            lambda: strip(LIGHT, torch.ones(4), highlight=4),
            "there is no word 4 in a sentence of 4; words are counted from 0",
        ),
        (lambda: strip("light", torch.ones(5)), "not the one string 'light'"),
        (lambda: strip((), torch.ones(0)), "words is empty"),
        (lambda: strip(LIGHT, torch.full((4,), torch.inf)), "but inf is among them"),
        (lambda: stack(), "0 of 0 pictures are strips; stack at least one"),
        (lambda: stack(strip(LIGHT, torch.ones(4)), build_view(Causal(), tokens=3)), "1 of 2 pictures are strips"),
    ],
)
def test_what_is_no_sentence_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
