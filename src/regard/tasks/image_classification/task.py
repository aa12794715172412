"""Image classification: its settings and images, mixup, metrics, the ImageClassifier and its task."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.data.corpora import find_corpus, find_file
from regard.data.files import split_archive_path
from regard.data.images import (
    LabelledImage,
    images_from_scenes,
    iter_images,
    read_idx_images,
    stack_images,
)
from regard.data.labelled import Labels
from regard.data.preprocess import ImagePreprocessor
from regard.models.vision import ChannelCNN, VisionConfig, VisionTransformer, build_vision_model
from regard.tasks.config import RunSettings, world_training
from regard.tasks.image_batches import (
    EXAMPLE_IMAGES,
    AugmentedImages,
    AugmentSettings,
    ImageData,
    ImageDraws,
    OnDeviceLoss,
    ShuffledIndices,
    load_image,
    patch_axis,
    refuse_rdrop,
)
from regard.tasks.metrics import LABEL_FIGURES, LabelMetrics, loss_and_accuracy
from regard.tasks.pretrained import LabelOutput, PretrainedModel, one_or_many
from regard.tasks.protocol import EncodedInput, InputSpec, ProgressBar, Task, TaskInput, no_progress
from regard.tasks.splits import LoadedExamples, Split, split_held_out
from regard.training.config import TrainingJob, TrainSettings
from regard.world.shapes import ShapeWorld

# --- settings and data ---

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


# --- training ---

AT_ONCE = 500  # pictures, when nothing is learnt


class ImageBatch(NamedTuple):
    """Images as the model reads them, mixed in pairs by mixup or CutMix.

    Args:
        labels: of the images themselves.
        mixed_labels: of the images that were mixed in.
        weight: the share of an image that is its own.
    """

    pixels: Float[Tensor, "b c h w"]
    labels: Int[Tensor, " b"]
    mixed_labels: Int[Tensor, " b"]
    weight: Float[Tensor, " b"]


@dataclass(frozen=True, eq=False)
class ImageBatches:
    """The batches of every step: what is drawn on the CPU, and the batch that the device makes of it."""

    images: AugmentedImages
    labels: Int[Tensor, " n"]
    rows: ShuffledIndices

    def steps(self, epoch: int) -> int:
        return self.rows.steps(epoch)

    def at(self, epoch: int, index: int) -> list[tuple[ImageDraws, int]]:
        return [(self.images.draw_batch(rows, epoch), len(rows)) for rows in self.rows.at(epoch, index)]

    def materialize(self, draws: ImageDraws) -> ImageBatch:
        pixels, others, share = self.images.mixed_pixels(draws)
        return ImageBatch(pixels, self.labels[draws[:, 0]], self.labels[others], share)


def mixup_loss(smoothing: float):
    """Cross-entropy summed over the pictures; of a mixture, that of each part by its share."""

    def loss(model: nn.Module, batch: tuple[ImageBatch, int]) -> tuple[Tensor, int]:
        given, count = batch
        logits = model(given.pixels).float()
        own, rest = (
            cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
            for labels in (given.labels, given.mixed_labels)
        )
        return (given.weight * own + (1 - given.weight) * rest).sum(), count

    return loss


@dataclass(frozen=True, eq=False)
class ImageClassifier(PretrainedModel):
    """A model with how it sees and the classes it knows."""

    settings_type = ImageClassificationSettings
    part_files: ClassVar = {"preprocessor": ("preprocessor", ImagePreprocessor.load), "labels": ("labels", Labels.load)}

    model: VisionTransformer | ChannelCNN
    preprocessor: ImagePreprocessor
    labels: Labels
    settings: ImageClassificationSettings

    @classmethod
    def from_examples(
        cls, pictures: Sequence[LabelledImage], settings: ImageClassificationSettings
    ) -> "ImageClassifier":
        """Size, scale and classes from the pictures, and a model with new weights."""
        labels = Labels.of(one.label for one in pictures)
        if len(labels) < 2:
            raise ValueError(f"all {len(pictures)} pictures are {labels.names[0]!r}; give pictures of two classes")
        return cls.from_parts(
            ImagePreprocessor.of(stack_images((one.name, one.pixels) for one in pictures)), labels, settings=settings
        )

    @staticmethod
    def build_model(
        preprocessor: ImagePreprocessor, labels: Labels, settings: ImageClassificationSettings
    ) -> VisionTransformer | ChannelCNN:
        return build_vision_model(settings.model, preprocessor.shape, len(labels))

    def job(
        self, pictures: Sequence[LabelledImage], held_out: Sequence[LabelledImage], device: str = "cpu", /
    ) -> TrainingJob:
        train, augment = self.settings.train, self.settings.augment
        shown = AugmentedImages(
            self.preprocessor.stack_exact(pictures).to(device), self.preprocessor, augment, train.seed
        )
        data = ImageBatches(shown, self.label_ids(pictures).to(device), ShuffledIndices.of(len(pictures), train))
        held, labels = self.preprocessor.stack_exact(held_out).to(device), self.label_ids(held_out).to(device)
        return self.training_job(
            data,
            OnDeviceLoss(data.materialize, mixup_loss(train.label_smoothing)),
            lambda model: validation(model, self.preprocessor, held, labels),
            device,
            width=self.settings.model.model if self.settings.model.kind == "vit" else self.settings.model.width,
            capture_objection="",
            figures=LABEL_FIGURES,
        )

    def label_ids(self, pictures: Sequence[LabelledImage]) -> Int[Tensor, " n"]:
        return torch.tensor([self.labels.index(one.label, one.name) for one in pictures])

    def classify(self, images: str | Path | Sequence[str | Path]) -> Any:
        """The class of an image file, or of each of a list."""

        def run(paths: Sequence[str | Path]) -> list[LabelOutput]:
            found = self.probabilities([load_image(self.preprocessor, path) for path in paths])
            return [LabelOutput.of(self.labels.names, row) for row in found.tolist()]

        return one_or_many(images, run)

    def probabilities(self, pictures: Sequence[UInt8[Tensor, "c h w"]]) -> Float[Tensor, "n classes"]:
        """Of every class, for images of any size; with flip_at_test the mean of a picture's and its mirror image's."""
        return torch.cat([*self.iterate_probabilities(pictures), torch.zeros(0, len(self.labels))])

    def iterate_probabilities(self, pictures: Sequence[UInt8[Tensor, "c h w"]]) -> Iterator[Float[Tensor, "n classes"]]:
        device = next(self.model.parameters()).device
        for first in range(0, len(pictures), AT_ONCE):
            some = torch.stack([self.preprocessor.fit(one) for one in pictures[first : first + AT_ONCE]])
            x = self.preprocessor.normalize(some.to(device))
            with torch.inference_mode():
                ways = (x, x.flip(-1)) if self.settings.augment.flip_at_test else (x,)
                yield torch.stack([self.model(way).double().softmax(-1) for way in ways]).mean(0).float().cpu()


def validation(
    model: nn.Module, preprocessor: ImagePreprocessor, pixels: UInt8[Tensor, "n c h w"], labels: Int[Tensor, " n"]
) -> dict[str, float]:
    logits = torch.cat([model(preprocessor.normalize(some)).float() for some in pixels.split(AT_ONCE)])
    return loss_and_accuracy(logits, labels)


def evaluate_image_classifier(
    classifier: ImageClassifier, images: Sequence[LabelledImage], progress: ProgressBar = no_progress
) -> LabelMetrics:
    for one in images:
        classifier.labels.index(one.label, one.name)
    batches = classifier.iterate_probabilities([one.pixels for one in images])
    found = torch.cat(list(progress(batches, "classifying", -(-len(images) // AT_ONCE))))
    predicted = tuple(classifier.labels.name(n) for n in found.argmax(-1).tolist())
    seen = "as it is and mirrored" if classifier.settings.augment.flip_at_test else "as it is"
    return LabelMetrics(
        labels=classifier.labels.names,
        wanted=tuple(one.label for one in images),
        found=predicted,
        unit="pictures",
        signature=f"pictures:{len(images)}|seen:{seen}",
        outputs=predicted,
    )


# --- the task ---


class ImageClassificationTask(Task):
    """Image classification: one label for an image."""

    settings = ImageClassificationSettings
    task_model = ImageClassifier
    takes_batches = True
    verb = "classify"
    batch_unit = "pictures"
    inputs = InputSpec("the file of a picture", "image", "an image")

    def evaluate(
        self, task_model: ImageClassifier, examples: Sequence[LabelledImage], *, search=None, progress=no_progress
    ):
        return evaluate_image_classifier(task_model, examples, progress)

    def example_input(self, task_model: ImageClassifier) -> TaskInput:
        return TaskInput(EXAMPLE_IMAGES[0])

    def encode(self, task_model: ImageClassifier, given: TaskInput) -> EncodedInput:
        """The image as it is; its mirror image, which some models classify as well, is not traced."""
        pixels, model = load_image(task_model.preprocessor, given.media), task_model.model
        x = task_model.preprocessor.normalize(pixels[None].to(next(model.parameters()).device))
        axes = {"patches": patch_axis(model.encoder)} if isinstance(model, VisionTransformer) else {}
        return EncodedInput((x,), axes, ("class",), image=pixels)

    def option_name(self, task_model: ImageClassifier, option: int) -> str:
        return task_model.labels.name(option)


TASK = ImageClassificationTask()
