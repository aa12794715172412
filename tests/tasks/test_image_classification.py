"""The picture task: reading, batches by epoch and row, mixtures, loss, exact resume, saving and loading."""

import gzip
import math
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from regard.data.images import LabelledImage, PixelScaling, images_from_scenes
from regard.data.preprocess import (
    ImagePreprocessor,
    MixupCutmix,
    RandomAffine,
    RandomGrayscale,
    augment_images,
    random_draws,
)
from regard.models.vision import VisionConfig, VisionTransformer, build_vision_model
from regard.tasks.image_batches import AugmentedImages, AugmentSettings, ShuffledIndices
from regard.tasks.image_classification.task import (
    ImageBatch,
    ImageClassificationData,
    ImageClassificationSettings,
    ImageClassifier,
    mixup_loss,
    read_image_files,
    read_known_images,
    validation,
)
from regard.training.config import TrainSettings
from regard.world.shapes import ShapeWorld
from tests.recorded import call_recorded
from tests.tasks.resume_check import assert_resumes
from tests.training.jobs import train_on_world

TRAIN = TrainSettings(batch_size=7, steps=6, warmup_steps=2, learning_rate=1e-3, validate_every=2, checkpoint_every=2)
VIT = VisionConfig(kind="vit", patch=8, layers=1, model=12, heads=3, hidden=17, dropout=0.1)
CNN = VisionConfig(kind="cnn", width=4, blocks=1)
CHANGED = AugmentSettings(crop=2, flip=True, cutout=5, cutmix=0.4, mixup=0.3)


def settings(model: VisionConfig = VIT, **more) -> ImageClassificationSettings:
    return ImageClassificationSettings(
        data=ImageClassificationData(images=31), augment=CHANGED, model=model, train=replace(TRAIN, **more)
    )


def some(count: int, split: str = "train") -> list[LabelledImage]:
    world = ShapeWorld(fewest=1, most=1)
    return list(images_from_scenes([world.scene(number, split) for number in range(count)]))  # type: ignore[arg-type]


def photos(folder: Path, names: tuple[str, ...] = ("cat/a", "cat/b", "dog/a", "dog/b"), size: int = 24) -> Path:
    for n, name in enumerate(names):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((size, size, 3), 40 * n, dtype=np.uint8)).save(path)
    return folder


# --- settings and reading ---


def test_settings_survive_a_file():
    for one in (settings(), settings(CNN), ImageClassificationSettings.of_world()):
        assert ImageClassificationSettings.from_toml(one.to_toml()) == one
    changed = settings().with_changes({"model.kind": "cnn", "augment.cutout": "3"})
    assert changed.model == VisionConfig.from_size("cnn", "tiny")
    assert changed.augment.cutout == 3


def test_the_world_shows_its_splits():
    splits = {split: settings().data.read(split).examples for split in ("train", "valid", "test")}
    assert [len(one) for one in splits.values()] == [31, 1000, 1000]
    assert {one.label for one in splits["train"]} == {"circle", "square", "triangle"}
    assert splits["train"][0].pixels.shape == (3, 32, 32)


def test_folders_archives_and_idx_files_are_read(tmp_path):
    folder = photos(tmp_path / "train")
    found = read_image_files([str(folder)], ImageClassificationData())
    assert [(one.label, one.name) for one in found] == [
        ("cat", "cat/a.png"),
        ("cat", "cat/b.png"),
        ("dog", "dog/a.png"),
        ("dog", "dog/b.png"),
    ]
    with tarfile.open(tmp_path / "all.tar.xz", "w:xz") as tar:
        tar.add(folder, "train")
    packed = read_image_files([f"{tmp_path}/all.tar.xz:train"], ImageClassificationData(mode="L", height=5, width=7))
    assert [one.label for one in packed] == [one.label for one in found]
    assert packed[2].pixels.shape == (1, 5, 7)
    images = struct.pack(">4B3I", 0, 0, 8, 3, 2, 3, 5) + bytes(range(30))
    labels = struct.pack(">4BI", 0, 0, 8, 1, 2) + bytes([1, 0])
    paths = [tmp_path / "some-idx3-ubyte.gz", tmp_path / "some-idx1-ubyte.gz"]
    for path, held in zip(paths, (images, labels), strict=True):
        path.write_bytes(gzip.compress(held))
    digits = read_image_files([str(path) for path in paths], ImageClassificationData())
    assert [one.label for one in digits] == ["1", "0"]
    assert digits[1].pixels.flatten().tolist() == list(range(15, 30))


def test_a_known_corpus_holds_out_every_twelfth(tmp_path):
    read_known_images.cache_clear()
    home = tmp_path / "mnist"
    home.mkdir()
    pixels, labels = np.arange(25 * 4, dtype=np.uint8), np.arange(25, dtype=np.uint8) % 10
    for name, held in (("images-idx3", pixels), ("labels-idx1", labels)):
        axes = (25, 2, 2) if "images" in name else (25,)
        header = struct.pack(f">4B{len(axes)}I", 0, 0, 8, len(axes), *axes)
        (home / f"train-{name}-ubyte").write_bytes(header + held.tobytes())
    mnist = replace(settings(), data=ImageClassificationData(corpus="mnist"))
    train, valid = (mnist.data.read(split, tmp_path).examples for split in ("train", "valid"))
    assert [one.name.rpartition(":")[2] for one in valid] == ["11", "23"]
    assert len(train) == 23
    with pytest.raises(ValueError, match="mnist is not in"):
        mnist.data.read("test", tmp_path)
    with pytest.raises(ValueError, match="imdb holds no pictures of classes; choose from mnist"):
        replace(settings(), data=ImageClassificationData(corpus="imdb")).data.read("train", tmp_path)
    read_known_images.cache_clear()


def test_pictures_that_cannot_be_trained_on_are_named(tmp_path):
    folder = photos(tmp_path / "train")
    (folder / "dog" / "torn.png").write_bytes((folder / "dog" / "a.png").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"dog/torn.png: not a complete PNG or JPEG image"):
        read_image_files([str(folder)], ImageClassificationData())
    (folder / "dog" / "torn.png").unlink()
    photos(folder, ("dog/large",), size=32)
    with pytest.raises(ValueError, match=r"dog/large.png has 32 x 32 pixels.*resize them.*data.height"):
        ImageClassifier.from_examples(read_image_files([str(folder)], ImageClassificationData()), settings())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: no images"):
        read_image_files([str(tmp_path / "empty")], ImageClassificationData())
    with pytest.raises(ValueError, match="idx files come in twos"):
        read_image_files(["some-idx3-ubyte"], ImageClassificationData())
    with pytest.raises(ValueError, match="all 3 pictures are 'cat'"):
        ImageClassifier.from_examples([replace(one, label="cat") for one in some(3)], settings())
    image_classifier = ImageClassifier.from_examples(some(31), settings())
    with pytest.raises(ValueError, match="scene 0: the label 'star' is not known; the known ones are circle"):
        image_classifier.job(some(31), [replace(some(1)[0], label="star")])
    with pytest.raises(ValueError, match="not 32 x 32 as those to train on"):
        image_classifier.job(some(31), [replace(some(1)[0], pixels=torch.zeros(3, 8, 8, dtype=torch.uint8))])


# --- what happens to pictures ---


def test_a_quarter_turn_on_paper():
    """Turned by chance between -90 and 90 degrees: where it is nearly a quarter, the edge of a square has moved on."""
    pixels = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
    pixels[..., 0, 2] = 255  # the middle of the upper edge
    draws = torch.tensor([[2**31 - 1, 2**30]])
    turned = RandomAffine(degrees=90).apply(pixels, draws)[0, 0]
    assert turned.nonzero().tolist() in ([[2, 0]], [[2, 4]])
    still = RandomAffine(degrees=90).apply(pixels, torch.tensor([[2**30, 0]]))
    assert torch.equal(still, pixels)
    larger = RandomAffine(scale_percent=50).apply(pixels, torch.tensor([[2**30, (2**15 - 1) << 16 | (2**15 - 1)]]))
    assert larger[0, 0, 1:].max() == 0, "what stood at the edge is pushed out"


def test_colours_are_lost_by_their_mean():
    pixels = torch.tensor([3, 5, 10], dtype=torch.uint8).view(1, 3, 1, 1).expand(97, -1, -1, -1)
    seen = augment_images(pixels, range(97), by=[RandomGrayscale(0.5)], seed=0, epoch=0)[:, :, 0, 0].tolist()
    assert {tuple(one) for one in seen} == {(3, 5, 10), (6, 6, 6)}
    assert 30 < seen.count([6, 6, 6]) < 67


def test_mixtures_on_paper():
    """Share 3/4: laid over, 0.75 · 200 + 0.25 · 100 = 175; cut, half of each side, so a quarter of the picture."""
    one, other = (torch.full((1, 1, 4, 4), value, dtype=torch.uint8) for value in (200, 100))
    middle, kinds = torch.tensor([[2**30, 2**30]]), torch.tensor([[0, 3 * 2**29]])
    laid, share = MixupCutmix(mixup=1.0).apply(one, other, kinds, middle)
    assert (laid.unique().tolist(), share.item()) == ([175], 0.75)
    cut, share = MixupCutmix(cutmix=1.0).apply(one, other, kinds, middle)
    assert (cut[0, 0] == 100).nonzero().tolist() == [[1, 1], [1, 2], [2, 1], [2, 2]]
    assert share.item() == 0.75
    alone, share = MixupCutmix(mixup=0.5).apply(one, other, torch.tensor([[2**31 - 1, 0]]), middle)
    assert (alone.unique().tolist(), share.item()) == ([200], 1.0)


def test_what_a_picture_becomes_does_not_depend_on_its_batch():
    pictures = some(23)
    pixels = torch.stack([one.pixels for one in pictures])
    shown = AugmentedImages(pixels, ImagePreprocessor.of(pixels), CHANGED, seed=5)
    whole, others, share = shown.mixed_pixels(shown.draw_batch(np.arange(23), 3))
    rows = np.array([19, 3, 7])
    part, few, shares = shown.mixed_pixels(shown.draw_batch(rows, 3))
    assert_close(part, whole[torch.from_numpy(rows)])
    assert (few.tolist(), shares.tolist()) == (others[rows].tolist(), share[torch.from_numpy(rows)].tolist())
    assert not torch.equal(shown.mixed_pixels(shown.draw_batch(np.arange(23), 4))[0], whole)
    assert 0 < int((share < 1).sum()) < 23


def test_every_epoch_shows_every_picture_in_another_order():
    rows = ShuffledIndices(23, 5, 2, seed=7)
    assert rows.steps(0) == 2
    seen = [batch.tolist() for index in range(2) for batch in rows.at(0, index)]
    assert [len(batch) for batch in seen] == [5, 5, 5, 5]
    assert len({row for batch in seen for row in batch}) == 20
    assert [batch.tolist() for batch in rows.at(1, 0)] != seen[:2]
    assert ShuffledIndices.of(3, TRAIN).steps(0) == 1
    assert [len(batch) for batch in ShuffledIndices.of(3, TRAIN).at(0, 0)] == [3]


# --- loss and preprocessor ---


class Fixed(torch.nn.Module):
    def forward(self, x):
        return torch.tensor([[0.0, math.log(3.0)]]).expand(len(x), 2)


def test_the_loss_of_a_mixture_by_hand():
    """p = ¼, ¾: a picture that is three quarters the second class costs ¾ log 4/3 + ¼ log 4."""
    batch = ImageBatch(torch.zeros(1, 1, 2, 2), torch.tensor([1]), torch.tensor([0]), torch.tensor([0.75]))
    summed, count = mixup_loss(0.0)(Fixed(), (batch, 1))
    assert count == 1
    assert_close(summed.item(), 0.75 * math.log(4 / 3) + 0.25 * math.log(4), rtol=1e-6, atol=1e-6)


def test_validation_by_hand():
    preprocessor = ImagePreprocessor(1, 2, 2, PixelScaling((0.0,), (1.0,)))
    figures = validation(Fixed(), preprocessor, torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([1, 1, 0, 1]))
    assert_close(figures["loss"], (3 * math.log(4 / 3) + math.log(4)) / 4, rtol=1e-6, atol=1e-6)
    assert figures["accuracy"] == 0.75


def test_a_picture_is_fitted_to_what_a_model_reads(tmp_path):
    preprocessor = ImagePreprocessor(1, 4, 6, PixelScaling((0.5,), (0.25,)))
    grey, coloured = torch.full((1, 4, 6), 9, dtype=torch.uint8), torch.full((3, 8, 12), 100, dtype=torch.uint8)
    assert preprocessor.fit(grey) is grey
    assert preprocessor.fit(coloured).tolist() == torch.full((1, 4, 6), 100).tolist()
    assert ImagePreprocessor(3, 4, 6, PixelScaling((0.5,) * 3, (1.0,) * 3)).fit(grey).unique().tolist() == [9]
    preprocessor.save(tmp_path / "preprocessor.json")
    assert ImagePreprocessor.load(tmp_path / "preprocessor.json") == preprocessor
    (tmp_path / "preprocessor.json").write_text('{"format": "regard sight 1", "rows": 4}')
    with pytest.raises(ValueError, match=r"preprocessor.json: damaged"):
        ImagePreprocessor.load(tmp_path / "preprocessor.json")
    with pytest.raises(ValueError, match="1 channel or 3"):
        ImagePreprocessor(2, 4, 6, PixelScaling((0.5,) * 2, (1.0,) * 2))


# --- contracts ---


@pytest.mark.parametrize("model", [VIT, replace(VIT, stem="convolution", pool="class"), CNN])
def test_a_picture_is_judged_alone(model):
    image_classifier = ImageClassifier.from_examples(some(31), settings(model))
    image_classifier.model.eval()
    pixels = [one.pixels for one in some(11)]
    together = image_classifier.probabilities(pixels)
    assert_close(together.sum(-1), torch.ones(11))
    assert_close(together[3:4], image_classifier.probabilities(pixels[3:4]))
    assert image_classifier.probabilities([]).shape == (0, 3)


def test_both_ways_is_the_mean_of_two():
    one = ImageClassifier.from_examples(some(31), settings())
    one.model.eval()
    mirrored = replace(one, settings=replace(one.settings, augment=AugmentSettings(flip_at_test=True)))
    (pixels,) = (one.pixels for one in some(1))
    both = (one.probabilities([pixels]) + one.probabilities([pixels.flip(-1)])) / 2
    assert_close(mirrored.probabilities([pixels]), both)


@pytest.mark.parametrize("model", [VIT, CNN], ids=lambda model: model.kind)
def test_a_run_that_was_left_ends_with_the_same_bits(model, tmp_path):
    pictures, held_out = some(31), some(5, "valid")
    assert_resumes(
        lambda: ImageClassifier.from_examples(pictures, settings(model)), pictures, held_out, tmp_path, cut=3
    )


def test_a_model_is_kept_and_loaded_with_its_sight(tmp_path):
    image_classifier = ImageClassifier.from_examples(some(31), settings(CNN))
    image_classifier.model.eval()
    image_classifier.save(tmp_path / "run")
    again = ImageClassifier.load(tmp_path / "run")
    pixels = [one.pixels for one in some(3)]
    assert torch.equal(again.probabilities(pixels), image_classifier.probabilities(pixels))
    assert (again.preprocessor, again.labels, again.settings) == (
        image_classifier.preprocessor,
        image_classifier.labels,
        image_classifier.settings,
    )
    replace(image_classifier.preprocessor, scale=PixelScaling((0.1,) * 3, (1.0,) * 3)).save(
        tmp_path / "run" / "preprocessor.json"
    )
    with pytest.raises(ValueError, match=r"preprocessor.json or labels.json is not what the weights were trained with"):
        ImageClassifier.load(tmp_path / "run")


def test_a_recipe_may_say_who_looks_at_whom():
    near = 'pattern = "Window(2)"'
    model = build_vision_model(replace(VIT, recipe=near), (3, 16, 16), 5)
    assert isinstance(model, VisionTransformer)
    _, record = call_recorded(model.eval(), torch.zeros(1, 3, 16, 16))
    assert record.weights("blocks.0")[0, 0].nonzero().tolist() == [
        [i, j] for i in range(4) for j in range(4) if abs(i - j) < 2
    ]
    with pytest.raises(ValueError, match="patches of 8 x 8 pixels do not tile an image of 28 x 28"):
        build_vision_model(VIT, (1, 28, 28), 10)


@pytest.mark.slow
def test_shapes_in_colours_never_seen_are_learnt(tmp_path):
    image_classifier, held_out = train_on_world(ImageClassifier, tmp_path)
    chosen = image_classifier.probabilities([one.pixels for one in held_out]).argmax(-1)
    assert (chosen == image_classifier.label_ids(held_out)).double().mean() > 0.98


def test_draws_are_those_of_their_rows():
    assert torch.equal(random_draws([5, 2], 1, 2, 3), random_draws(range(7), 1, 2, 3)[[5, 2]])
    assert random_draws(range(101), 1, 2, 3).max() < 2**31
