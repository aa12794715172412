"""Pixels, labels and names in; pictures out, as values: one, or many of one size. And the scale a model reads them at.

Pictures, like texts, come in here: see images.py for folders and archives, idx.py for the files of MNIST.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from regard.world.shapes import SHAPES, Scene


@dataclass(frozen=True, eq=False)
class Picture:
    """Whole numbers from 0 to 255, the class it belongs to, and what it is called."""

    pixels: UInt8[Tensor, "c h w"]
    label: str
    name: str


@dataclass(frozen=True, eq=False)
class Pictures:
    """Many pictures of one size; labels are indices into the classes."""

    pixels: UInt8[Tensor, "n c h w"]
    labels: Int[Tensor, " n"]
    classes: tuple[str, ...]
    names: tuple[str, ...]

    def __post_init__(self):
        if self.pixels.dtype != torch.uint8 or self.pixels.dim() != 4:
            raise ValueError(
                "pixels are whole numbers from 0 to 255 (torch.uint8) shaped (pictures, channels, rows, columns), "
                f"not {self.pixels.dtype} shaped {tuple(self.pixels.shape)}"
            )
        if not len(self.pixels) == len(self.labels) == len(self.names):
            raise ValueError(
                f"every picture has one label and one name: there are {len(self.pixels)} pictures, "
                f"{len(self.labels)} labels and {len(self.names)} names"
            )
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise ValueError(
                f"labels run from {int(self.labels.min())} to {int(self.labels.max())}, "
                f"but the {len(self.classes)} classes are numbered from 0: {', '.join(self.classes)}"
            )

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, n: int) -> Picture:
        return Picture(self.pixels[n], self.classes[int(self.labels[n])], self.names[n])

    def __iter__(self) -> Iterator[Picture]:
        for pixels, label, name in zip(self.pixels.unbind(), self.labels.tolist(), self.names, strict=True):
            yield Picture(pixels, self.classes[label], name)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of each."""
        channels, rows, columns = self.pixels.shape[1:]
        return channels, rows, columns

    def pick(self, rows: Sequence[int]) -> "Pictures":
        """These pictures, in this order."""
        at = torch.as_tensor(rows, dtype=torch.int64, device=self.pixels.device)
        names = tuple(self.names[n] for n in rows)
        return replace(self, pixels=self.pixels[at], labels=self.labels[at], names=names)

    def to(self, device: torch.device | str) -> "Pictures":
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


def from_scenes(
    scenes: Sequence[Scene],
    label: Callable[[Scene], str] = lambda scene: scene.things[0].shape,
    classes: tuple[str, ...] = SHAPES,
) -> Pictures:
    """Pictures of the miniature world, labelled by what `label` sees in them: the leftmost shape, if not told."""
    if not scenes:
        raise ValueError("there is no scene to draw; give at least one, such as ShapeWorld().scene(0)")
    labels = [label(scene) for scene in scenes]
    if unknown := sorted(set(labels) - set(classes)):
        raise ValueError(f"label {unknown[0]!r} is no class; the classes are {', '.join(classes)}")
    drawn = rearrange(torch.from_numpy(np.stack([scene.pixels() for scene in scenes])), "n h w c -> n c h w")
    numbers = torch.tensor([classes.index(name) for name in labels])
    return Pictures(drawn.contiguous(), numbers, classes, tuple(f"scene {n}" for n in range(len(scenes))))


@dataclass(frozen=True)
class Scale:
    """(pixel / 255 - mean) / spread, channel by channel: what a model reads. Measure it on the training pictures."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    def __post_init__(self):
        if len(self.mean) != len(self.spread) or not all(spread > 0 for spread in self.spread):
            raise ValueError(
                f"every channel has a mean and a spread above 0, not means {self.mean} and spreads {self.spread}"
            )

    @staticmethod
    def of(pixels: UInt8[Tensor, "n c h w"]) -> "Scale":
        """By counting how often each brightness occurs: exact, and the same on every machine."""
        if not pixels.numel():
            raise ValueError("the scale of no pictures is unknown; give at least one")
        counts = [np.bincount(channel.flatten().cpu().numpy(), minlength=256) for channel in pixels.unbind(1)]
        levels = np.arange(256)
        means = [int(count @ levels) / int(count.sum()) for count in counts]
        squares = [int(count @ levels**2) / int(count.sum()) for count in counts]
        spreads = [max(square - mean**2, 0.0) ** 0.5 for mean, square in zip(means, squares, strict=True)]
        # a channel of one brightness says nothing, at any spread
        return Scale(tuple(mean / 255 for mean in means), tuple(spread / 255 or 1.0 for spread in spreads))

    def apply(self, pixels: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        if pixels.shape[1] != len(self.mean):
            raise ValueError(
                f"a scale of {len(self.mean)} channels cannot be laid on {pixels.shape[1]}; measure another"
            )
        mean, spread = (  # written where the pixels are: to copy them there would make a GPU wait
            torch.cat([torch.full((1, 1, 1), value, device=pixels.device) for value in part])
            for part in (self.mean, self.spread)
        )
        return (pixels / 255 - mean) / spread
