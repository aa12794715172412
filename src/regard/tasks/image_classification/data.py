"""Image classification data: the settings of a run, and its labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from regard.data.corpora import find_corpus, find_file
from regard.data.files import split_archive_path
from regard.data.images import (
    LabelledImage,
    images_from_scenes,
    iter_images,
    read_idx_images,
)
from regard.models.vision import VisionConfig
from regard.tasks.config import RunSettings, world_training
from regard.tasks.image_batches import AugmentSettings, ImageData, refuse_rdrop
from regard.tasks.splits import LoadedExamples, Split, split_held_out
from regard.training.config import TrainSettings
from regard.world.shapes import ShapeWorld

HELD_OUT = 12  # of a known corpus that has no pictures to validate on, every twelfth to train on
CLOTHES = "T-shirt trouser pullover dress coat sandal shirt sneaker bag boot"
IDX = {"mnist": tuple("0123456789"), "fashion_mnist": tuple(CLOTHES.split())}
CORPORA = (*IDX, "cifar10")


@dataclass(frozen=True, kw_only=True)
class ImageClassificationData(ImageData[LabelledImage]):
    """Images: a folder or archive with one folder for each class, or two idx files, of images and of labels."""

    examples: ClassVar[str] = "pictures"
    files_hint: ClassVar[str] = (
        '{split} = ["photos/{split}"], a folder that holds one for each class, or two idx files; '
        "on the command line --{split} photos/{split}"
    )

    def from_world(self, split: Split, count: int | None) -> list[LabelledImage]:
        world = ShapeWorld(fewest=1, most=1)
        return list(images_from_scenes([world.scene(number, split) for number in range(count or self.images)]))

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[LabelledImage]:
        return LoadedExamples(read_image_files(paths, self))

    def from_corpus(self, split: Split, folder: Path | None) -> list[LabelledImage]:
        part = read_known_images(self.corpus, "test" if split == "test" else "train", folder)
        return list(part) if split == "test" else split_held_out(part, split, HELD_OUT)


@dataclass(frozen=True, kw_only=True)
class ImageClassificationSettings(RunSettings):
    """The settings of an image classifier's run.

    [augment] says how training images are varied, and whether a test image is also read mirrored.
    Batches are counted in images.
    """

    task: ClassVar[str] = "image_classification"

    data: ImageClassificationData = ImageClassificationData()
    augment: AugmentSettings = AugmentSettings()
    model: VisionConfig = VisionConfig.from_size("vit", "tiny")
    train: TrainSettings = TrainSettings(batch_size=128)

    def __post_init__(self):
        refuse_rdrop(self.train)

    @classmethod
    def of_world(cls):
        """Circles, squares and triangles, in colours that training never showed them in, in a minute."""
        return cls(
            data=ImageClassificationData(images=4000),
            augment=AugmentSettings(flip=True, grayscale=0.5),
            model=VisionConfig(kind="vit", patch=4, layers=3, model=48, heads=4, hidden=96),
            train=world_training(steps=600, batch_size=48, learning_rate=3e-3, warmup_steps=100, validate_every=150),
        )


def read_image_files(paths: Sequence[str], data: ImageClassificationData) -> list[LabelledImage]:
    """Of idx files, two of them, or of folders and archives; "set.tar:train" is the folder train in an archive."""
    if all(is_idx(path) for path in paths):
        if len(paths) != 2:
            raise ValueError(f"{paths[0]}: idx files come in twos: pictures (idx3) first, then labels (idx1)")
        return list(read_idx_images(*paths))
    found = []
    for path in paths:
        if is_idx(path):
            raise ValueError(f"{path}: an idx file among folders; give two idx files, or folders and archives")
        place, inside = split_archive_path(path)
        found += iter_images(place, inside=inside, mode=data.mode, size=data.size)
    return found


def is_idx(path: str) -> bool:
    return "-idx" in Path(path).name or Path(path).name.partition(".")[2].startswith("idx")


@lru_cache(maxsize=1)  # of the same pictures some are to train on, some to validate on
def read_known_images(name: str, part: str, folder: Path | None) -> tuple[LabelledImage, ...]:
    """As published: to train on, or to test on."""
    corpus = find_corpus(name)
    if name not in CORPORA:
        raise ValueError(f"{name} holds no pictures of classes; choose from {', '.join(CORPORA)}")
    if name in IDX:
        files = [find_file(corpus, [one], folder) for one in corpus.files if one.split == part]
        return tuple(read_idx_images(*files, classes=IDX[name]))
    return tuple(iter_images(find_file(corpus, corpus.files, folder), inside=part))
