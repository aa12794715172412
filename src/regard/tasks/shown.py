"""Training pictures in; those of every step out, by epoch and index, moved, mirrored, hidden or mixed as one likes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from regard.tasks.settings import TrainSettings
from regard.text.augment import Change, Crop, Flip, Grey, Hide, Mix, Pose, augmented, drawn
from regard.text.order import keys, seeded
from regard.text.sight import Sight

Rows = NDArray[np.int64]
PARTNER, KIND, PLACE = 100, 101, 102  # what mixing draws for; changes draw for 0, 1 and so on


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """The table [augment]: what is done to pictures while training."""

    crop: int = 0  # moved by up to so many pixels each way; what comes in is black
    flip: bool = False  # every other one is mirrored; not for digits and letters
    turn: int = 0  # by up to so many degrees
    stretch: int = 0  # by up to so many percent along each axis
    grey: float = 0.0  # this share of pictures lose their colours
    hide: int = 0  # a square of so many pixels a side is black
    mixup: float = 0.0  # this share of pictures is laid over another, and so is what they are
    cutmix: float = 0.0  # this share has a rectangle of another
    both_ways: bool = False  # once trained: a picture's probabilities are the mean of its own and its mirror image's

    def __post_init__(self):
        # both refuse what cannot be
        self.changes()
        self.mix()

    def changes(self) -> tuple[Change, ...]:
        pose = [Pose(self.turn, self.stretch)] if self.turn or self.stretch else []
        crop, hide = [Crop(self.crop)] if self.crop else [], [Hide(self.hide)] if self.hide else []
        flip, grey = [Flip()] if self.flip else [], [Grey(self.grey)] if self.grey else []
        return (*pose, *crop, *flip, *grey, *hide)

    def mix(self) -> Mix | None:
        return Mix(self.mixup, self.cutmix) if self.mixup or self.cutmix else None


def refuse_consistency(train: TrainSettings) -> None:
    if train.consistency:
        raise ValueError(
            f"train.consistency = {train.consistency} is for texts; pictures are changed by [augment]; leave it out"
        )


@dataclass(frozen=True, eq=False)
class Shuffled:
    """Numbers from 0 to count - 1 in another order every epoch, cut into batches; what is left over comes next time."""

    count: int
    batch: int
    accumulate: int
    seed: int

    @staticmethod
    def of(count: int, train: TrainSettings) -> "Shuffled":
        return Shuffled(count, min(count, train.tokens), train.accumulate, train.seed)

    def steps(self, epoch: int) -> int:
        return max(1, self.count // (self.batch * self.accumulate))

    def at(self, epoch: int, index: int) -> Iterator[Rows]:
        return self.cut(order(self.seed, epoch, self.count), index)

    def cut(self, rows: Rows, index: int) -> Iterator[Rows]:
        """Of rows in this order, the batches of step `index`."""
        for n in range(index * self.accumulate, (index + 1) * self.accumulate):
            if len(some := rows[n * self.batch : (n + 1) * self.batch]):
                yield some


@lru_cache(maxsize=2)
def order(seed: int, epoch: int, count: int) -> Rows:
    return np.argsort(keys(seeded(seed, epoch), count), kind="stable")


@dataclass(frozen=True, eq=False)
class Shown:
    """All training pictures, on the device, and what is done to them."""

    pixels: UInt8[Tensor, "n c h w"] = field(repr=False)
    sight: Sight
    augment: AugmentSettings
    seed: int

    def changed(self, rows: Rows, epoch: int) -> UInt8[Tensor, "b c h w"]:
        """These pictures, as they look in this epoch."""
        some = self.pixels[torch.from_numpy(rows).to(self.pixels.device)]
        return augmented(some, rows, by=self.augment.changes(), seed=self.seed, epoch=epoch)

    def scaled(self, rows: Rows, epoch: int) -> Float[Tensor, "b c h w"]:
        return self.sight.scaled(self.changed(rows, epoch))

    def mixed(self, rows: Rows, epoch: int) -> tuple[Float[Tensor, "b c h w"], Rows, Float[Tensor, " b"]]:
        """Each mixed with another, any of them all; which one, and how much of the mixture is its own."""
        pixels, others = self.changed(rows, epoch), rows
        mix = self.augment.mix()
        if mix is None:
            return self.sight.scaled(pixels), others, torch.ones(len(rows), device=pixels.device)
        kinds, places = (drawn(rows, self.seed, epoch, what).to(pixels.device) for what in (KIND, PLACE))
        others = (drawn(rows, self.seed, epoch, PARTNER)[:, 0] % len(self.pixels)).numpy()
        pixels, share = mix.apply(pixels, self.changed(others, epoch), kinds, places)
        return self.sight.scaled(pixels), others, share
