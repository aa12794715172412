"""Pictures as values, the scale they are read at, and changes that depend on seed, epoch and row alone."""

import pytest
import torch
from torch.testing import assert_close

from regard.data.images import ImageSet, PixelScaling, images_from_scenes, make_world_questions
from regard.data.preprocess import (
    Cutout,
    MixupCutmix,
    RandomCrop,
    RandomHorizontalFlip,
    augment_images,
    random_draws,
)
from regard.world.shapes import COLOURS, ShapeWorld


def noise(n: int = 5, c: int = 3, h: int = 7, w: int = 11) -> torch.Tensor:
    return torch.randint(1, 256, (n, c, h, w), dtype=torch.uint8)


def test_pictures_are_picked_in_any_order():
    pixels = noise()
    pictures = ImageSet(pixels, torch.tensor([0, 1, 1, 0, 1]), ("cat", "dog"), tuple("abcde"))
    assert len(pictures) == 5
    assert pictures.shape == (3, 7, 11)
    assert (pictures[2].label, pictures[2].name) == ("dog", "c")
    assert torch.equal(pictures[2].pixels, pixels[2])
    some = pictures.select([4, 0, 0])
    assert some.names == ("e", "a", "a")
    assert torch.equal(some.pixels, pixels[[4, 0, 0]])
    assert some.labels.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("pixels", "labels", "names", "why"),
    [
        (torch.zeros(2, 3, 5, 5), [0, 0], "ab", "not torch.float32"),
        (torch.zeros(3, 5, 5, dtype=torch.uint8), [0, 0, 0], "abc", r"shaped \(3, 5, 5\)"),
        (torch.zeros(2, 3, 5, 5, dtype=torch.uint8), [0], "ab", "2 images, 1 labels and 2 names"),
        (torch.zeros(2, 3, 5, 5, dtype=torch.uint8), [0, 2], "ab", "labels run from 0 to 2, but the 2 classes"),
    ],
)
def test_what_does_not_fit_together_is_refused(pixels, labels, names, why):
    with pytest.raises(ValueError, match=why):
        ImageSet(pixels, torch.tensor(labels), ("cat", "dog"), tuple(names))


def test_a_scale_is_counted_not_estimated():
    """Brightness 0, 0, 255, 255: mean 1/2 and spread 1/2; so 0 becomes -1 and 255 becomes 1."""
    pixels = torch.tensor([0, 0, 255, 255], dtype=torch.uint8).view(1, 1, 2, 2)
    scale = PixelScaling.of(pixels)
    assert scale == PixelScaling((0.5,), (0.5,))
    assert scale.apply(pixels).flatten().tolist() == [-1, -1, 1, 1]


def test_scaled_pictures_have_mean_0_and_spread_1():
    pixels = noise(31)
    scaled = PixelScaling.of(pixels).apply(pixels)
    assert_close(scaled.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    assert_close(scaled.std((0, 2, 3), unbiased=False), torch.ones(3), atol=1e-5, rtol=0)
    assert torch.equal(PixelScaling.of(pixels).apply(pixels[3:4]), scaled[3:4])
    assert PixelScaling.of(torch.full((2, 1, 3, 3), 7, dtype=torch.uint8)).spread == (1.0,)


def test_a_scale_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="3 channels cannot be applied to 1"):
        PixelScaling.of(noise()).apply(noise(c=1))
    with pytest.raises(ValueError, match="a spread above 0"):
        PixelScaling((0.5,), (0.0,))
    with pytest.raises(ValueError, match="give at least one"):
        PixelScaling.of(noise(0))


def test_scenes_become_pictures_with_the_labels_one_sees():
    scenes = [ShapeWorld(most=1).scene(number) for number in range(13)]
    pictures = images_from_scenes(scenes)
    assert pictures.shape == (3, 32, 32)
    for n, scene in enumerate(scenes):
        (thing,) = scene.shapes
        assert pictures[n].label == thing.shape
        assert tuple(pictures[n].pixels[:, thing.y, thing.x].tolist()) == COLOURS[thing.colour]
    coloured = images_from_scenes(scenes, lambda scene: scene.shapes[0].colour, tuple(COLOURS))
    assert coloured[7].label == scenes[7].shapes[0].colour
    with pytest.raises(ValueError, match="is no class; the classes are circle"):
        images_from_scenes(scenes, lambda scene: scene.shapes[0].colour)


def test_questions_of_the_world_come_with_their_pictures():
    question_set = make_world_questions(ShapeWorld(seed=5), 17, "test", start=3)
    assert len(question_set) == len(question_set.images) == 17
    assert [question.image_index for question in question_set.questions] == list(range(17))
    again = make_world_questions(ShapeWorld(seed=5), 1, "test", start=11)
    assert torch.equal(again.images.pixels[0], question_set.images.pixels[8])
    assert (again.questions[0].text, again.questions[0].boxes) == (
        question_set.questions[8].text,
        question_set.questions[8].boxes,
    )
    assert any(question.boxes for question in question_set.questions)


# --- changes ---


def test_a_crop_moves_the_picture_and_black_comes_in():
    """One pixel of padding: every move of -1, 0, 1 each way occurs, and each is a shift of the picture."""
    pixels = noise(1).expand(101, -1, -1, -1)
    moved = augment_images(pixels, range(101), by=[RandomCrop(1)], seed=0, epoch=0)
    framed = torch.nn.functional.pad(pixels[0], (1, 1, 1, 1))
    places = {(y, x): framed[:, y : y + 7, x : x + 11] for y in range(3) for x in range(3)}
    found = [[place for place, shift in places.items() if torch.equal(shift, one)] for one in moved]
    assert all(len(places) == 1 for places in found)
    assert {place for places in found for place in places} == set(places)


def test_a_mirror_shows_about_half_of_them():
    pixels = noise(211)
    seen = augment_images(pixels, range(211), by=[RandomHorizontalFlip()], seed=0, epoch=0)
    same = (seen == pixels).flatten(1).all(1)
    assert torch.equal(seen[~same], pixels[~same].flip(-1))
    assert 80 < int(same.sum()) < 130


def test_a_hidden_square_is_black_and_the_rest_is_not():
    pixels = noise(53)
    seen = augment_images(pixels, range(53), by=[Cutout(3)], seed=0, epoch=0)
    hidden = (seen == 0).all(1)
    assert torch.equal(seen, pixels.masked_fill(hidden[:, None], 0))
    areas = hidden.flatten(1).sum(1)
    assert areas.max() == 9
    assert areas.min() >= 4


def test_what_happens_depends_on_seed_epoch_and_row_alone():
    pixels, by = noise(23), (RandomCrop(2), RandomHorizontalFlip(), Cutout(2))
    whole = augment_images(pixels, range(23), by=by, seed=5, epoch=2)
    rows = [19, 3, 7]
    assert torch.equal(augment_images(pixels[rows], rows, by=by, seed=5, epoch=2), whole[rows])
    assert not torch.equal(augment_images(pixels, range(23), by=by, seed=5, epoch=3), whole)
    assert not torch.equal(augment_images(pixels, range(23), by=by, seed=6, epoch=2), whole)
    assert not torch.equal(
        augment_images(pixels, range(23), by=(RandomHorizontalFlip(), RandomHorizontalFlip()), seed=5, epoch=2), pixels
    )
    assert torch.equal(augment_images(pixels, range(23), by=(), seed=5, epoch=2), pixels)


@pytest.mark.parametrize("mix", [MixupCutmix(mixup=1.0), MixupCutmix(cutmix=1.0)], ids=["mixup", "CutMix"])
def test_the_share_is_what_is_left_of_the_picture_itself(mix):
    """All of its pixels are 200, all of the other's 0: so the share of 200 is the mean."""
    own, other = torch.full((31, 3, 7, 11), 200, dtype=torch.uint8), torch.zeros(31, 3, 7, 11, dtype=torch.uint8)
    mixed, share = mix.apply(own, other, *(random_draws(range(31), 0, 0, place) for place in range(2)))
    assert_close(mixed.float().mean((1, 2, 3)), 200 * share, atol=0.51, rtol=0)
    assert share.unique().numel() > 9


def test_impossible_changes_are_refused():
    with pytest.raises(ValueError, match="0 pixels or more"):
        RandomCrop(-1)
    with pytest.raises(ValueError, match="cuts out nothing"):
        Cutout(0)
    with pytest.raises(ValueError, match="5 images need as many rows, not 4"):
        augment_images(noise(), range(4), by=[RandomHorizontalFlip()], seed=0, epoch=0)
