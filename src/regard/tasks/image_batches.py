"""Image batches: settings of images, shuffled indices, and augmented, normalised and mixed images on the device."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.images import IMAGE_MODES, read_image
from regard.data.preprocess import (
    Augmentation,
    Cutout,
    ImagePreprocessor,
    MixupCutmix,
    RandomAffine,
    RandomCrop,
    RandomGrayscale,
    RandomHorizontalFlip,
    apply_augmentations,
    random_draws,
)
from regard.models.config_base import AT_LEAST_1, SHARE, Choices, Range, Ranges, SettingsTable
from regard.models.vision import PatchEncoder
from regard.tasks.protocol import TokenAxis
from regard.tasks.splits import DataSettings
from regard.training.config import Loss, TrainSettings
from regard.training.corpus import to_device_async
from regard.world.shapes import ShapeWorld
from regard.world.splitmix import combine_seeds, random_keys

E = TypeVar("E")
B = TypeVar("B")
Rows = NDArray[np.int64]
ImageDraws = Int[Tensor, "b columns"]  # a picture's row, its draws, and those of the one it is mixed with
PARTNER, KIND, PLACE = 100, 101, 102  # what mixing draws for; changes draw for 0, 1 and so on


@dataclass(frozen=True, kw_only=True)
class AugmentSettings(SettingsTable):
    """What is done to images while training.

    Args:
        crop: an image is moved by up to so many pixels each way; what comes in is black.
        flip: every other image is mirrored; not for digits and letters.
        rotation: an image is rotated by up to so many degrees.
        scale: an image is scaled by up to so many percent along each axis.
        grayscale: this share of images lose their colours.
        cutout: a square of so many pixels a side is black.
        mixup: this share of images is laid over another, and so are their labels.
        cutmix: this share of images has a rectangle of another; with mixup at most 1.
        flip_at_test: once trained, an image's probabilities are the mean of its own and its mirror image's.
    """

    ranges: ClassVar[Ranges] = {
        "rotation": Range(0, most=180),
        "scale": Range(0, most=99),
        **dict.fromkeys(("grayscale", "mixup", "cutmix"), SHARE),
    }

    crop: int = 0
    flip: bool = False
    rotation: int = 0
    scale: int = 0
    grayscale: float = 0.0
    cutout: int = 0
    mixup: float = 0.0
    cutmix: float = 0.0
    flip_at_test: bool = False

    def __post_init__(self):
        self.check()
        self.mix()  # which refuses two shares that are more than all

    def changes(self) -> tuple[Augmentation, ...]:
        pose = [RandomAffine(self.rotation, self.scale)] if self.rotation or self.scale else []
        crop, cutout = [RandomCrop(self.crop)] if self.crop else [], [Cutout(self.cutout)] if self.cutout else []
        flip, gray = (
            [RandomHorizontalFlip()] if self.flip else [],
            [RandomGrayscale(self.grayscale)] if self.grayscale else [],
        )
        return (*pose, *crop, *flip, *gray, *cutout)

    def mix(self) -> MixupCutmix | None:
        return MixupCutmix(self.mixup, self.cutmix) if self.mixup or self.cutmix else None


@dataclass(frozen=True, kw_only=True)
class ImageData(DataSettings[E]):
    """Abstract: the table [data] of tasks with images.

    Args:
        images: how many of the miniature world to train on.
        mode: how images in files are read: RGB, or L for greyscale.
        height: in pixels, to resize images in files to; 0 leaves them as they are.
        width: the same; both are set, or neither.
    """

    choices: ClassVar[Choices] = {"mode": tuple(IMAGE_MODES)}
    ranges: ClassVar[Ranges] = {"images": AT_LEAST_1}

    images: int = 6000
    mode: str = "RGB"
    height: int = 0
    width: int = 0

    def __post_init__(self):
        self.check()
        if (self.height > 0) != (self.width > 0):
            raise ValueError(
                f"height = {self.height}, width = {self.width}: a size to resize to has both height and width"
            )

    @property
    def size(self) -> tuple[int, int] | None:
        return (self.height, self.width) if self.height else None


def refuse_rdrop(train: TrainSettings) -> None:
    if train.rdrop:
        raise ValueError(f"train.rdrop = {train.rdrop} is for texts; pictures are changed by [augment]; leave it out")


@dataclass(frozen=True, eq=False)
class ShuffledIndices:
    """Numbers from 0 to count - 1 in another order every epoch, cut into batches; what is left over comes next time."""

    count: int
    batch: int
    accumulate: int
    seed: int

    @staticmethod
    def of(count: int, train: TrainSettings) -> "ShuffledIndices":
        return ShuffledIndices(count, min(count, train.batch_size), train.gradient_accumulation, train.seed)

    def steps(self, epoch: int) -> int:
        return max(1, self.count // (self.batch * self.accumulate))

    def at(self, epoch: int, index: int) -> Iterator[Rows]:
        return self.slice_step(epoch_order(self.seed, epoch, self.count), index)

    def slice_step(self, rows: Rows, index: int) -> Iterator[Rows]:
        """Of rows in this order, the batches of step `index`."""
        for n in range(index * self.accumulate, (index + 1) * self.accumulate):
            if len(some := rows[n * self.batch : (n + 1) * self.batch]):
                yield some


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> Rows:
    return np.argsort(random_keys(combine_seeds(seed, epoch), count), kind="stable")


@dataclass(frozen=True, eq=False)
class AugmentedImages:
    """All training pictures, on the device, and what is done to them."""

    pixels: UInt8[Tensor, "n c h w"] = field(repr=False)
    preprocessor: ImagePreprocessor
    augment: AugmentSettings
    seed: int

    def draw_batch(self, rows: Rows, epoch: int) -> ImageDraws:
        """The draws from which the device builds these images as they are in this epoch."""
        draws = [self.draw_changes(rows, epoch)]
        if self.augment.mix():
            others = (random_draws(rows, self.seed, epoch, PARTNER)[:, 0] % len(self.pixels)).numpy()
            draws += [
                self.draw_changes(others, epoch),
                *(random_draws(rows, self.seed, epoch, what) for what in (KIND, PLACE)),
            ]
        return to_device_async(torch.cat(draws, 1), self.pixels.device)

    def draw_changes(self, rows: Rows, epoch: int) -> ImageDraws:
        """The rows, and two draws for each change."""
        changes = range(len(self.augment.changes()))
        return torch.cat(
            [torch.from_numpy(rows)[:, None], *(random_draws(rows, self.seed, epoch, place) for place in changes)], 1
        )

    def augment_pixels(self, table: ImageDraws) -> UInt8[Tensor, "b c h w"]:
        draws, by = table[:, 1:], self.augment.changes()
        return apply_augmentations(self.pixels[table[:, 0]], [draws[:, 2 * n : 2 * n + 2] for n in range(len(by))], by)

    def normalized_pixels(self, table: ImageDraws) -> Float[Tensor, "b c h w"]:
        """As a model reads them. There is no host synchronisation, so it may be captured."""
        return self.preprocessor.normalize(self.augment_pixels(table))

    def mixed_pixels(
        self, table: ImageDraws
    ) -> tuple[Float[Tensor, "b c h w"], Int[Tensor, " b"], Float[Tensor, " b"]]:
        """Each mixed with another, any of them all; which one, and how much of the mixture is its own."""
        own, mix = 1 + 2 * len(self.augment.changes()), self.augment.mix()
        pixels = self.augment_pixels(table[:, :own])
        if mix is None:
            return (
                self.preprocessor.normalize(pixels),
                table[:, 0],
                torch.ones(len(table), device=table.device),
            )
        others, kinds, places = table.tensor_split((own, 2 * own, 2 * own + 2), 1)[1:]
        pixels, share = mix.apply(pixels, self.augment_pixels(others), kinds, places)
        return self.preprocessor.normalize(pixels), others[:, 0], share


@dataclass(frozen=True, eq=False)
class OnDeviceLoss(Generic[B]):
    """A loss that builds its batch on the device from draws, so that this can be captured too."""

    make: Callable[[B], Any]
    loss: Loss

    def __call__(self, model: nn.Module, batch: tuple[B, int]) -> tuple[Tensor, int]:
        draws, count = batch
        with torch.autocast(next(model.parameters()).device.type, enabled=False):  # pictures are no model's products
            made = self.make(draws)
        return self.loss(model, (made, count))


# --- one image ---


EXAMPLE_IMAGES = tuple(f"example {number}" for number in range(1, 7))


def example_world() -> ShapeWorld:
    """The world whose first test scenes are the example images."""
    return ShapeWorld(fewest=1, most=1)


def load_image(preprocessor: ImagePreprocessor, image: Any) -> UInt8[Tensor, "c h w"]:
    """An image of a file, or in memory, in the size and the mode that a model reads."""
    return preprocessor.fit(read_image(image, mode="RGB" if preprocessor.channels == 3 else "L"))


def patch_axis(encoder: PatchEncoder) -> TokenAxis:
    """The pool's own token first, if it has one, then the patches."""
    return grid_axis(encoder.grid, ["class"] * encoder.pool.extra)


def grid_axis(grid: tuple[int, int], before: Sequence[str] = ()) -> TokenAxis:
    """Tokens of these names, then the patches of an image, row by row."""
    rows, columns = grid
    return TokenAxis((*before, *(f"{y},{x}" for y in range(rows) for x in range(columns))), grid=grid)
