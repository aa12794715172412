"""Pictures of any size and colour in; what a model was made to read out: channels, rows, columns, at a scale."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from regard.text.files import small, write_whole
from regard.text.images import shape_of, stacked, tensor_of
from regard.text.pictures import Picture, Scale

FORMAT = "regard sight 1"


@dataclass(frozen=True)
class Sight:
    """How a model sees: grey (1 channel) or colours (3), so many rows and columns, and the scale of brightness."""

    channels: int
    rows: int
    columns: int
    scale: Scale

    def __post_init__(self):
        if self.channels not in (1, 3) or self.channels != len(self.scale.mean) or min(self.rows, self.columns) < 1:
            raise ValueError(
                f"a picture has 1 channel or 3, each with its scale, and rows and columns, not {self.channels} "
                f"channels with {len(self.scale.mean)} scales, {self.rows} rows and {self.columns} columns"
            )

    @staticmethod
    def of(pixels: UInt8[Tensor, "n c h w"]) -> "Sight":
        """As these pictures are."""
        _, channels, rows, columns = pixels.shape
        return Sight(channels, rows, columns, Scale.of(pixels))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.rows, self.columns

    def reads(self, pixels: UInt8[Tensor, "c h w"]) -> bool:
        """As it is, without any change."""
        return tuple(pixels.shape) == self.shape

    def strictly(self, pictures: Sequence[Picture]) -> UInt8[Tensor, "n c h w"]:
        """Pictures that are as they should be; others are refused."""
        for one in pictures:
            if not self.reads(one.pixels):
                wanted = shape_of(torch.empty(self.shape, dtype=torch.uint8))
                raise ValueError(
                    f"{one.name} has {shape_of(one.pixels)} pixels, not {wanted} as those to train on; resize them: "
                    f"data.rows = {self.rows} and data.columns = {self.columns}"
                )
        return stacked((one.name, one.pixels) for one in pictures)

    def fitted(self, pixels: UInt8[Tensor, "c h w"]) -> UInt8[Tensor, "c h w"]:
        """Made grey or coloured, and resized, if need be."""
        if self.reads(pixels):
            return pixels
        array = pixels[0] if len(pixels) == 1 else rearrange(pixels, "c h w -> h w c")
        image = Image.fromarray(array.numpy()).convert("L" if self.channels == 1 else "RGB")
        if image.size != (self.columns, self.rows):
            image = image.resize((self.columns, self.rows), Image.Resampling.BILINEAR)
        return tensor_of(rearrange(np.array(image), "h w ... -> h w (...)"))

    def scaled(self, pixels: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        return self.scale.apply(pixels)

    def save(self, path: str | Path) -> None:
        write_whole(path, json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> "Sight":
        path = small(path)
        try:
            held = json.loads(path.read_bytes().decode("utf-8"))
            if held.pop("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT!r}")
            scale = Scale(*(tuple(map(float, held["scale"][name])) for name in ("mean", "spread")))
            return Sight(int(held["channels"]), int(held["rows"]), int(held["columns"]), scale)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path}: damaged, or of another Regard ({error}); save the model again") from None
