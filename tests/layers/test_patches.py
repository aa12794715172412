"""Patches: an image cut by hand, the inverse, and positions in a grid."""

import pytest
import torch
from torch.testing import assert_close

from regard.attention import Recipe
from regard.models.vision import LearnedGridPosition, Patches, grid_of, overlay, patch, unpatch

SIXTEEN = torch.arange(16.0).view(1, 1, 4, 4)


def test_a_picture_of_four_by_four_has_four_patches():
    """0 1 | 2 3 over 4 5 | 6 7, then 8 9 | 10 11 over 12 13 | 14 15: read row by row, within a patch as well."""
    assert patch(SIXTEEN, 2)[0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


def test_a_token_is_the_linear_map_of_its_patch():
    """A weight of 1 for each pixel and a bias of 100: the sums 10, 18, 42 and 50, and 100 more."""
    layer = Patches(2, 1, channels=1)
    torch.nn.init.ones_(layer.project.weight)
    torch.nn.init.constant_(layer.project.bias, 100.0)
    assert layer(SIXTEEN)[0, :, 0].tolist() == [110, 118, 142, 150]


def test_the_channels_of_a_pixel_stay_together():
    colours = torch.stack((SIXTEEN[0, 0], SIXTEEN[0, 0] + 100))[None]
    assert patch(colours, 2)[0, 1].tolist() == [2, 102, 3, 103, 6, 106, 7, 107]


def test_tokens_are_those_of_a_convolution_with_strides():
    layer = Patches(3, 7).double()
    x = torch.randn(2, 3, 6, 15, dtype=torch.double)
    weight = layer.project.weight.view(7, 3, 3, 3).permute(0, 3, 1, 2)
    convolved = torch.nn.functional.conv2d(x, weight, layer.project.bias, stride=3)
    assert_close(layer(x), convolved.flatten(2).transpose(1, 2))


def test_unpatch_undoes_patch():
    x = torch.randn(2, 3, 10, 35)
    assert torch.equal(unpatch(patch(x, 5), 5, grid_of(10, 35, 5)), x)


def test_an_overlay_lies_on_the_pixels_of_each_patch():
    assert overlay(torch.tensor([1, 2, 3, 4]), 2, (2, 2)).tolist() == [
        [1, 1, 2, 2],
        [1, 1, 2, 2],
        [3, 3, 4, 4],
        [3, 3, 4, 4],
    ]
    weights = torch.rand(2, 3, 10)
    assert torch.equal(overlay(weights, 3, (2, 5))[:, :, ::3, ::3].flatten(2), weights)


def test_a_patch_is_read_by_itself():
    """What lies beside a picture changes none of its own tokens: here two columns of patches are added."""
    layer = Patches(2, 5).double()
    x, more = torch.randn(1, 3, 4, 6, dtype=torch.double), torch.randn(1, 3, 4, 4, dtype=torch.double)
    wide = layer(torch.cat((x, more), 3)).view(1, 2, 5, 5)
    assert_close(wide[:, :, :3].reshape(1, 6, 5), layer(x), rtol=0, atol=1e-12)


def test_a_place_is_its_row_and_its_column():
    """Two rows (10, 20) and three columns (1, 2, 3)."""
    grid = LearnedGridPosition(2, 3, 1)
    grid.load_state_dict({"row": torch.tensor([[10.0], [20.0]]), "column": torch.tensor([[1.0], [2.0], [3.0]])})
    placed = Recipe(position=grid).embed(torch.zeros(1, 6, 1), torch.arange(6))
    assert placed.flatten().tolist() == [11, 12, 13, 21, 22, 23]


def test_a_fresh_grid_has_weights_of_its_own_and_the_size_of_learned_places():
    grid = LearnedGridPosition(31, 37, 64)
    fresh = Recipe(position=grid).fresh().position
    assert isinstance(fresh, LearnedGridPosition)
    assert not torch.equal(fresh.row, grid.row)
    assert_close(grid.table(torch.arange(31 * 37), 64).norm(dim=1).mean().item(), 1.0, atol=0.1, rtol=0)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="patches of 3 x 3 pixels do not tile an image of 4 x 4; choose a size"):
        patch(SIXTEEN, 3)
    with pytest.raises(ValueError, match="1 pixel a side or more, not 0"):
        Patches(0, 5)
    with pytest.raises(ValueError, match=r"3 channels, rows, columns\), not \(1, 1, 4, 4\)"):
        Patches(2, 5)(SIXTEEN)
    with pytest.raises(ValueError, match="5 patches are no grid of 2 x 2; leave the class token out"):
        overlay(torch.zeros(5), 2, (2, 2))
    with pytest.raises(ValueError, match="has 6 patches, not 7"):
        LearnedGridPosition(2, 3, 5).table(torch.arange(7), 5)
    with pytest.raises(ValueError, match="at least one row"):
        LearnedGridPosition(0, 3, 5)
