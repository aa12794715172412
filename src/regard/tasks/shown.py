"""Training pictures in; those of every step out, by epoch and index, moved, mirrored, hidden or mixed as one likes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.tasks.corpus import sent
from regard.tasks.job import Loss
from regard.tasks.settings import TrainSettings
from regard.text.augment import Change, Crop, Flip, Grey, Hide, Mix, Pose, changed, drawn
from regard.text.order import keys, seeded
from regard.text.sight import Sight

Rows = NDArray[np.int64]
Told = Int[Tensor, "b columns"]  # a picture's row, its draws, and those of the one it is mixed with
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

    def told(self, rows: Rows, epoch: int) -> Told:
        """All that the device must be told of these pictures to show them as they look in this epoch."""
        draws = [self.drawn(rows, epoch)]
        if self.augment.mix():
            others = (drawn(rows, self.seed, epoch, PARTNER)[:, 0] % len(self.pixels)).numpy()
            draws += [self.drawn(others, epoch), *(drawn(rows, self.seed, epoch, what) for what in (KIND, PLACE))]
        return sent(torch.cat(draws, 1), self.pixels.device)

    def drawn(self, rows: Rows, epoch: int) -> Told:
        """The rows, and two draws for each change."""
        changes = range(len(self.augment.changes()))
        return torch.cat(
            [torch.from_numpy(rows)[:, None], *(drawn(rows, self.seed, epoch, place) for place in changes)], 1
        )

    def changed(self, told: Told) -> UInt8[Tensor, "b c h w"]:
        draws, by = told[:, 1:], self.augment.changes()
        return changed(self.pixels[told[:, 0]], [draws[:, 2 * n : 2 * n + 2] for n in range(len(by))], by)

    def scaled(self, told: Told) -> Float[Tensor, "b c h w"]:
        """As a model reads them. Nothing is asked of the device, so it may be recorded."""
        return self.sight.scaled(self.changed(told))

    def mixed(self, told: Told) -> tuple[Float[Tensor, "b c h w"], Int[Tensor, " b"], Float[Tensor, " b"]]:
        """Each mixed with another, any of them all; which one, and how much of the mixture is its own."""
        own, mix = 1 + 2 * len(self.augment.changes()), self.augment.mix()
        pixels = self.changed(told[:, :own])
        if mix is None:
            return self.sight.scaled(pixels), told[:, 0], torch.ones(len(told), device=told.device)
        others, kinds, places = told.tensor_split((own, 2 * own, 2 * own + 2), 1)[1:]
        pixels, share = mix.apply(pixels, self.changed(others), kinds, places)
        return self.sight.scaled(pixels), others[:, 0], share


B = TypeVar("B")


@dataclass(frozen=True, eq=False)
class Making(Generic[B]):
    """A loss that reads what is told of a batch, and makes the batch itself: one more thing that can be recorded."""

    make: Callable[[B], Any]
    loss: Loss

    def __call__(self, model: nn.Module, batch: tuple[B, int]) -> tuple[Tensor, int]:
        told, count = batch
        with torch.autocast(next(model.parameters()).device.type, enabled=False):  # pictures are no model's products
            made = self.make(told)
        return self.loss(model, (made, count))
