"""Folders or archives of PNG and JPEG files in, one folder to a class; pictures of one size out.

    read_pictures("photos")                                       photos/cat/1.png, photos/dog/2.jpg ...
    read_pictures("cifar10.tar.xz", inside="train")               train/cat/1.jpg ... in the archive
    read_pictures("photos", mode="L", size=(32, 32))              grey, 32 rows of 32 pixels

A file that cannot be read is a ValueError that names it.
"""

import struct
import warnings
import zlib
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from regard.text.files import existing
from regard.text.pictures import Picture, Pictures
from regard.text.trees import Found, bytes_of, files_under

ENDINGS = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")
MODES = ("RGB", "L")
MOST_PIXELS = 2**26  # a few kilobytes can claim to be a picture that fills the memory
Size = tuple[int, int]


def read_pictures(
    path: str | Path,
    *,
    inside: str = "",
    mode: str = "RGB",
    size: Size | None = None,
    classes: Sequence[str] | None = None,
) -> Pictures:
    """Every picture below a folder or in an archive; its class is the name of the folder it lies in.

    Args:
        path: a folder, or a .tar, .tar.gz or .tar.xz.
        inside: the folder in it that holds the classes, such as "train".
        mode: RGB, or L for grey.
        size: rows and columns to resize to; left out, all must be of one size as they are.
        classes: those that may occur, in the order of their labels; left out, those that do, sorted.
    """
    found = each_picture(path, inside=inside, mode=mode, size=size, classes=classes)
    known = tuple(sorted({one.label for one in found})) if classes is None else tuple(classes)
    numbers = {name: n for n, name in enumerate(known)}
    labels = torch.tensor([numbers[one.label] for one in found])
    pixels = stacked((f"{path}: {one.name}", one.pixels) for one in found)
    return Pictures(pixels, labels, known, tuple(one.name for one in found))


def each_picture(
    path: str | Path,
    *,
    inside: str = "",
    mode: str = "RGB",
    size: Size | None = None,
    classes: Sequence[str] | None = None,
) -> list[Picture]:
    """The same one by one, each of its own size, in the order of their names."""
    check(mode, size)
    found = [
        Picture(tensor_of(decode(one.bytes, one.where, mode=mode, size=size)), _class_of(one, classes), str(one.path))
        for one in files_under(path, inside=inside, endings=ENDINGS)
    ]
    if not found:
        place = f"{path}:{inside}" if inside else path
        raise ValueError(f"{place}: no pictures; they lie in one folder for each class and end in {', '.join(ENDINGS)}")
    return sorted(found, key=lambda one: one.name)


def read_picture(path: str | Path, *, mode: str = "RGB", size: Size | None = None) -> UInt8[Tensor, "c h w"]:
    """One file, as it is or resized."""
    check(mode, size)
    return tensor_of(decode(bytes_of(existing(path)), str(path), mode=mode, size=size))


def check(mode: str, size: Size | None) -> None:
    if mode not in MODES:
        raise ValueError(f"a picture is read as one of {', '.join(MODES)}, not {mode!r}")
    if size is not None and (min(size) < 1 or size[0] * size[1] > MOST_PIXELS):
        raise ValueError(
            f"pictures cannot be resized to {size[0]} rows of {size[1]} pixels; choose a smaller size from 1"
        )


def decode(
    encoded: bytes, where: str, *, mode: str = "RGB", size: Size | None = None, most_pixels: int = MOST_PIXELS
) -> NDArray[np.uint8]:
    """A PNG or JPEG as an array of rows, columns and channels, upright, transparency laid on white."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of what Pillow doubts, only what stops it matters
            with Image.open(BytesIO(encoded), formats=FORMATS) as image:
                if image.width * image.height > most_pixels:
                    raise ValueError(
                        f"{image.width} x {image.height} pixels are more than the {most_pixels} that are read"
                    )
                upright = _plain(ImageOps.exif_transpose(image), mode)
            if size is not None and (upright.height, upright.width) != size:
                upright = upright.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            return rearrange(np.array(upright), "h w ... -> h w (...)")
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        # of bytes that are no picture at all Pillow says only which object they were in
        strange = "no PNG or JPEG begins like this" if isinstance(error, UnidentifiedImageError) else str(error)
        why = "it is empty" if not encoded else strange.replace("\n", " ")
        raise ValueError(f"{where}: not a whole PNG or JPEG picture ({why}); replace or remove the file") from None


def _plain(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits of grey, of which the upper 8 are kept
        image = Image.fromarray((np.array(image) // 256).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        above = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)
    return image.convert(mode)


def tensor_of(array: NDArray[np.uint8]) -> UInt8[Tensor, "c h w"]:
    return rearrange(torch.from_numpy(array), "h w c -> c h w").contiguous()


def stacked(named: Iterable[tuple[str, UInt8[Tensor, "c h w"]]]) -> UInt8[Tensor, "n c h w"]:
    """All of them as one tensor; they must be of one size."""
    kept: list[Tensor] = []
    for where, pixels in named:
        kept.append(pixels)
        if pixels.shape != kept[0].shape:
            here, there = (shape_of(one) for one in (pixels, kept[0]))
            raise ValueError(
                f"{where} has {here} pixels, those before it {there}; resize them: --set data.rows={kept[0].shape[1]} "
                f"--set data.columns={kept[0].shape[2]}, in Python size=({kept[0].shape[1]}, {kept[0].shape[2]})"
            )
    return torch.stack(kept)


def shape_of(pixels: UInt8[Tensor, "c h w"]) -> str:
    channels, rows, columns = pixels.shape
    return f"{rows} x {columns}{' grey' if channels == 1 else ''}"


def _class_of(found: Found, classes: Sequence[str] | None) -> str:
    if len(found.path.parts) < 2:
        raise ValueError(
            f"{found.where}: lies in no folder of a class; put it in one that is named after what it shows"
        )
    label = found.path.parts[0]
    if classes is not None and label not in classes:
        raise ValueError(f"{found.where}: class {label!r} is unknown; the classes are {', '.join(classes)}")
    return label
