"""Image overlays show the weights that are passed in, patch for patch, as figures and as text."""

import numpy as np
import pytest
import torch
from einops import rearrange
from rich.cells import cell_len

from regard.see import ascii, draw, gates_view, overlay_heads_view, overlay_view, save
from regard.see.plots.layout import (
    GREY_RANGE,
    OVERLAY_COLORMAP,
    blend_overlay,
    downsample,
    to_grey_pixels,
    upsample_patches,
)
from regard.see.plots.panels import ColourScale, PatchOverlay
from regard.see.plots.terminal import ANSI_ESCAPE, printed_width
from tests.see.plots.artists import image_axes, image_data, rectangles, texts

RAMP = torch.arange(12.0).view(1, 3, 4) / 11
HALVES = torch.tensor([[0.0, 0.5], [0.25, 0.25]])


# --- figures ---


def test_the_plain_picture_stands_first_and_a_copy_for_each_name():
    figure = draw(overlay_view(RAMP, [("what", HALVES), ("colour", HALVES.T)], title="what colour?"))
    assert texts(figure) == ["what colour?", "the image", "what", "colour"]
    plain, first, second = image_axes(figure)
    assert len(plain.images) == 1
    assert np.allclose(image_data(plain.images[0]), rearrange(RAMP.expand(3, 3, 4), "c h w -> h w c"))
    assert np.allclose(image_data(first.images[1]), HALVES)
    assert np.allclose(image_data(second.images[1]), HALVES.T)


def test_a_patch_is_one_square_unless_smoothness_is_asked_for():
    exact, blurred = (draw(overlay_view(RAMP, [("a", HALVES)], smooth=smooth)) for smooth in (False, True))
    assert image_axes(exact)[1].images[1].get_interpolation() == "none"
    assert image_axes(blurred)[1].images[1].get_interpolation() == "bilinear"
    assert np.allclose(image_data(image_axes(blurred)[1].images[1]), HALVES)
    for image in image_axes(exact)[1].images:
        assert image.get_extent() == [0, 4, 3, 0]


def test_all_copies_share_one_scale_and_one_legend():
    figure = draw(overlay_view(RAMP, [("a", HALVES), ("b", HALVES / 5)]))
    assert {axes.images[1].get_clim() for axes in image_axes(figure)[1:]} == {(0.0, 0.5)}
    assert len(figure.axes) == 3 + 1
    assert texts(figure.axes[-1]) == ["0", "0.5", "weight"]


def test_colours_are_kept_in_the_picture_and_left_to_the_weights_in_the_copies():
    red = torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1).expand(3, 5, 7)
    plain, copy = image_axes(draw(overlay_view(red, [("a", torch.zeros(1, 1))])))
    assert np.allclose(image_data(plain.images[0]), [1, 0, 0])
    grey = GREY_RANGE[0] + (GREY_RANGE[1] - GREY_RANGE[0]) * 0.299
    assert np.allclose(image_data(copy.images[0]), grey)


def test_what_weighs_nothing_is_not_covered_and_more_is_covered_more():
    cover = [OVERLAY_COLORMAP(share)[3] for share in np.linspace(0, 1, 11)]
    assert cover[0] == 0
    assert cover == sorted(cover)
    assert cover[-1] > 0.9


@pytest.mark.parametrize("below", GREY_RANGE)
def test_the_order_of_weights_survives_a_grey_printer(below):
    """Over light and over dark pixels alike, a larger weight is never taken for a smaller one."""
    shades = [OVERLAY_COLORMAP(share) for share in np.linspace(0, 1, 11)]
    blend = [np.array(c[:3]) * c[3] + below * (1 - c[3]) for c in shades]
    redness = [float(rgb[0] - rgb[2]) for rgb in blend]
    assert redness == sorted(redness)


def test_equal_words_each_have_their_own_copy():
    figure = draw(overlay_view(RAMP, [("is", HALVES), ("the", HALVES), ("is", HALVES.T)]))
    assert texts(figure) == ["the image", "is", "the", "is"]


def test_many_copies_go_on_in_the_next_row():
    figure = draw(overlay_view(RAMP, [(f"word {n}", HALVES) for n in range(11)]))
    rows = {round(axes.get_position().y0, 4) for axes in image_axes(figure)}
    assert len(rows) == 3
    assert figure.get_figwidth() < 10


def test_a_row_for_each_layer_and_a_copy_for_each_head():
    heads = torch.rand(2, 3, 5, 7)
    figure = draw(overlay_heads_view(torch.rand(1, 11, 13), {"layer 0": heads[0], "layer 1": heads[1]}))
    assert texts(figure) == ["layer 0", "layer 1", "the image", *["head 0", "head 1", "head 2"] * 2]
    shown = [axes.images[1] for axes in image_axes(figure)[1:]]
    assert np.allclose([image_data(image) for image in shown], heads.flatten(0, 1))
    assert {image.get_clim() for image in shown} == {(0.0, float(heads.max()))}


def test_gates_of_channels_are_bars_and_gates_of_places_lie_on_the_picture():
    at, through = torch.rand(5, 7), torch.rand(13)
    figure = draw(gates_view(torch.rand(3, 17, 19), spatial=[("block 1", at)], channels=[("block 2", through)]))
    copy = image_axes(figure)[1].images[1]
    assert np.allclose(image_data(copy), at)
    assert copy.get_clim() == (0, 1)
    (bars,) = (axes for axes in figure.axes if axes.containers)
    assert np.allclose([bar.get_height() for bar in rectangles(bars)], through)
    assert bars.get_ylim() == (0, 1)


def test_weights_of_any_kind_are_drawn_and_left_alone():
    weights = torch.full((1, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    image = image_axes(draw(overlay_view(RAMP.half(), [("a", weights)])))[1].images[1]
    assert image_data(image).tolist() == [[0.5, 0.5]]
    assert weights.requires_grad


@pytest.mark.sampled(2)
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_names_in_every_script_give_the_same_bytes(tmp_path, suffix):
    names = ["القط", "🐱", "$x$", "<b>&", "\n", "", "Donaudampfschifffahrtsgesellschaft"]
    view = overlay_view(RAMP, [(name, HALVES) for name in names], title="[red]what?[/red]")
    one, two = (save(draw(view), tmp_path / f"{n}.{suffix}").read_bytes() for n in ("one", "two"))
    assert one == two


# --- colours ---


def test_each_pixel_has_the_weight_of_the_patch_it_lies_in():
    assert upsample_patches(HALVES, 4, 6).tolist() == [[0, 0, 0, 0.5, 0.5, 0.5]] * 2 + [[0.25] * 6] * 2
    assert upsample_patches(torch.arange(3.0).view(1, 3), 1, 7)[0].tolist() == [0, 0, 1, 1, 1, 2, 2]


def test_a_blend_is_the_faded_picture_where_nothing_is_laid():
    scale = ColourScale("glow", 0.0, 1.0)
    assert torch.allclose(blend_overlay(RAMP, PatchOverlay(torch.zeros(1, 1), scale)), to_grey_pixels(RAMP).double())
    full = blend_overlay(RAMP.double(), PatchOverlay(torch.ones(1, 1), scale))
    opacity = OVERLAY_COLORMAP(1.0)[3]
    assert torch.allclose(
        full, to_grey_pixels(RAMP.double()) * (1 - opacity) + torch.tensor(OVERLAY_COLORMAP(1.0)[:3]) * opacity
    )


def test_a_large_picture_is_shrunk_by_means_of_squares():
    small = downsample(torch.arange(16.0).view(1, 4, 4), 2)
    assert small.tolist() == [[[2.5, 4.5], [10.5, 12.5]]]
    assert downsample(torch.rand(3, 7, 5), 5).shape == (3, 7, 5)
    assert downsample(torch.rand(1, 64, 97), 36).shape == (1, 21, 32)
    assert downsample(torch.rand(1, 1, 97), 36).shape == (1, 1, 32)


# --- text ---


def test_as_text_the_patches_are_shades_in_a_frame_beside_the_picture():
    picture = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]])[None]
    assert ascii(overlay_view(picture, [("look", torch.tensor([[0.0, 0.25], [0.5, 1.0]]))])).split("\n") == [
        "the image   look",
        "┌──┐        ┌──┐",
        "│ █│        │ ░│",
        "│▒▒│        │▒█│",
        "└──┘        └──┘",
    ]


def test_as_text_with_numbers_each_weight_is_written():
    text = ascii(overlay_view(torch.zeros(1, 4, 4), [("look", torch.tensor([[0.25, 0.75]]))]), numbers=True)
    assert "░░ 0.25  ██ 0.75" in text


def test_in_colour_each_half_block_holds_two_pixels():
    picture = torch.tensor([[1.0, 0.0], [0.0, 1.0]])[None]
    line = ascii(overlay_view(picture, [("a", torch.zeros(1, 1))]), colour=True).split("\n")[1]
    white, black = "255;255;255", "0;0;0"
    start = f"\x1b[38;2;{white};48;2;{black}m▀\x1b[0m\x1b[38;2;{black};48;2;{white}m▀\x1b[0m"
    assert line.startswith(start)
    faint, light = (round(255 * part) for part in GREY_RANGE)
    assert f"\x1b[38;2;{light};{light};{light};48;2;{faint};{faint};{faint}m▀" in line
    assert ANSI_ESCAPE.sub("", line).split() == ["▀▀", "▀▀"]


@pytest.mark.parametrize("colour", [False, True])
def test_as_text_two_pictures_fit_a_window(colour):
    text = ascii(overlay_view(torch.rand(3, 64, 64), [(f"word{n}", torch.rand(8, 8)) for n in range(3)]), colour=colour)
    lines = text.split("\n")
    assert max(map(printed_width, lines)) <= 80
    assert [line.split()[-1] for line in lines if "word" in line] == ["word0", "word2"]


def test_as_text_wide_names_keep_the_columns():
    text = ascii(overlay_view(torch.zeros(1, 2, 30), [("猫が見た🐱", torch.ones(1, 1))]))
    title, frame, *_ = text.split("\n")
    assert cell_len(title[: title.index("猫")]) == frame.rindex("┌")


def test_as_text_channels_are_bars_of_which_nothing_is_blank():
    text = ascii(gates_view(torch.zeros(1, 2, 2), channels=[("block 1", torch.tensor([0.0, 0.01, 0.5, 1.0]))]))
    assert "block 1\n ▁▅█\n0 to 1; a full bar is 1" in text


# --- what comes in ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: overlay_view(torch.zeros(2, 1, 3, 4), []), r"not \(2, 1, 3, 4\); draw one at a time"),
        (
            lambda: overlay_view(torch.zeros(2, 3, 4), [("a", HALVES)]),
            r"1 or 3 channels, rows, columns\), not \(2, 3, 4\)",
        ),
        (lambda: overlay_view(RAMP * 255, [("a", HALVES)]), "between 0 and 1, but 23.18.* or divide by 255"),
        (lambda: overlay_view(RAMP / 0 * 0, [("a", HALVES)]), "between 0 and 1, but nan"),
        (lambda: overlay_view(RAMP, []), "nothing to lay over the image"),
        (lambda: overlay_view(RAMP, [("a", torch.ones(4))]), r"weights of patches are \(rows, columns\), not \(4,\)"),
        (lambda: overlay_view(RAMP, [("a", torch.ones(2, 5))]), "2 x 5 patches do not fit an image of 3 x 4 pixels"),
        (lambda: overlay_view(RAMP, [("a", -HALVES)]), "finite and not negative, but -0.5"),
        (lambda: overlay_heads_view(RAMP, {"layer 0": torch.zeros(0, 2, 2)}), "there is no head to show"),
        (lambda: gates_view(RAMP, spatial=[("b", HALVES * 3)]), "a gate lies between 0 and 1, but 'b' has 1.5"),
        (lambda: gates_view(RAMP, channels=[("c", HALVES)]), r"'c' has one weight for each channel.* not \(2, 2\)"),
        (lambda: gates_view(RAMP, channels=[("c", HALVES[0] * 3)]), "a gate lies between 0 and 1, but 'c' has 1.5"),
    ],
)
def test_what_cannot_be_laid_over_a_picture_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
