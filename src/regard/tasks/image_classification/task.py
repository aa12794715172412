"""Image classification: batches on the device, the mixup loss, the training job, and the ImageClassifier."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.data.images.image_preprocess import ImagePreprocessor
from regard.data.images.labelled_images import (
    LabelledImage,
    stack_images,
)
from regard.data.labelled import Labels
from regard.models.convolution import ChannelCNN
from regard.models.vision import VisionTransformer, build_vision_model
from regard.tasks.image_batches import (
    AugmentedImages,
    ImageDraws,
    OnDeviceLoss,
    ShuffledIndices,
)
from regard.tasks.image_classification.data import ImageClassificationSettings
from regard.tasks.pretrained import PretrainedModel, load_settings
from regard.tasks.protocol import TrainingJob

AT_ONCE = 500  # pictures, when nothing is learnt


# --- training ---


@dataclass(frozen=True, eq=False)
class ImageBatch:
    """Pictures as the model reads them, what they are, and what the rest of each is that is not its own."""

    pixels: Float[Tensor, "b c h w"]
    labels: Int[Tensor, " b"]
    mixed_labels: Int[Tensor, " b"]
    weight: Float[Tensor, " b"]


@dataclass(frozen=True, eq=False)
class ImageBatches:
    """The batches of every step: what is told of them, and what the device makes of that."""

    images: AugmentedImages
    labels: Int[Tensor, " n"]
    rows: ShuffledIndices

    def steps(self, epoch: int) -> int:
        return self.rows.steps(epoch)

    def at(self, epoch: int, index: int) -> list[tuple[ImageDraws, int]]:
        return [(self.images.draw_batch(rows, epoch), len(rows)) for rows in self.rows.at(epoch, index)]

    def materialize(self, told: ImageDraws) -> ImageBatch:
        pixels, others, share = self.images.mixed_pixels(told)
        return ImageBatch(pixels, self.labels[told[:, 0]], self.labels[others], share)


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

    model: VisionTransformer | ChannelCNN
    sight: ImagePreprocessor
    labels: Labels
    settings: ImageClassificationSettings

    @staticmethod
    def from_examples(pictures: Sequence[LabelledImage], settings: ImageClassificationSettings) -> "ImageClassifier":
        """Size, scale and classes from the pictures, and a model with new weights."""
        labels = Labels.of(one.label for one in pictures)
        if len(labels) < 2:
            raise ValueError(f"all {len(pictures)} pictures are {labels.names[0]!r}; give pictures of two classes")
        return ImageClassifier.of(
            ImagePreprocessor.of(stack_images((one.name, one.pixels) for one in pictures)), labels, settings
        )

    @staticmethod
    def of(sight: ImagePreprocessor, labels: Labels, settings: ImageClassificationSettings) -> "ImageClassifier":
        torch.manual_seed(settings.train.seed)
        return ImageClassifier(build_vision_model(settings.model, sight.shape, len(labels)), sight, labels, settings)

    def job(
        self, pictures: Sequence[LabelledImage], held_out: Sequence[LabelledImage], device: str = "cpu", /
    ) -> TrainingJob:
        train, augment = self.settings.train, self.settings.augment
        shown = AugmentedImages(self.sight.stack_exact(pictures).to(device), self.sight, augment, train.seed)
        data = ImageBatches(shown, self.label_ids(pictures).to(device), ShuffledIndices.of(len(pictures), train))
        held, labels = self.sight.stack_exact(held_out).to(device), self.label_ids(held_out).to(device)
        return TrainingJob(
            self.model.to(device),
            data,
            OnDeviceLoss(data.materialize, mixup_loss(train.label_smoothing)),
            lambda model: validation(model, self.sight, held, labels),
            train,
            self.settings.model.model if self.settings.model.kind == "vit" else self.settings.model.width,
            self.describe,
            capture_objection="",
        )

    def label_ids(self, pictures: Sequence[LabelledImage]) -> Int[Tensor, " n"]:
        return torch.tensor([self.labels.index(one.label, one.name) for one in pictures])

    def probabilities(self, pictures: Sequence[UInt8[Tensor, "c h w"]]) -> Float[Tensor, "n classes"]:
        """Of every class, for images of any size; with flip_at_test the mean of a picture's and its mirror image's."""
        return torch.cat([*self.iterate_probabilities(pictures), torch.zeros(0, len(self.labels))])

    def iterate_probabilities(self, pictures: Sequence[UInt8[Tensor, "c h w"]]) -> Iterator[Float[Tensor, "n classes"]]:
        device = next(self.model.parameters()).device
        for first in range(0, len(pictures), AT_ONCE):
            some = torch.stack([self.sight.fit(one) for one in pictures[first : first + AT_ONCE]])
            x = self.sight.normalize(some.to(device))
            with torch.inference_mode():
                ways = (x, x.flip(-1)) if self.settings.augment.flip_at_test else (x,)
                yield torch.stack([self.model(way).double().softmax(-1) for way in ways]).mean(0).float().cpu()

    @property
    def parts(self) -> dict[str, ImagePreprocessor | Labels]:
        return {"sight": self.sight, "labels": self.labels}

    @classmethod
    def from_description(cls, folder):
        settings = load_settings(folder, ImageClassificationSettings)
        return ImageClassifier.of(
            ImagePreprocessor.load(folder / "sight.json"), Labels.load(folder / "labels.json"), settings
        )


def validation(
    model: nn.Module, sight: ImagePreprocessor, pixels: UInt8[Tensor, "n c h w"], labels: Int[Tensor, " n"]
) -> dict[str, float]:
    """The mean negative log-probability of what a held-out picture is, and the share of pictures that are right."""
    logits = torch.cat([model(sight.normalize(some)).float() for some in pixels.split(AT_ONCE)])
    right = (logits.argmax(-1) == labels).float().mean()
    return {"loss": cross_entropy(logits, labels).item(), "accuracy": right.item()}
