"""The idx files of MNIST and its relatives, plain, .gz or .xz, in; pictures out. Torn or foreign files are named.

read_idx_pictures("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
"""

import lzma
import struct
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import IO

import torch
from einops import rearrange
from jaxtyping import UInt8
from torch import Tensor

from regard.text.files import existing, opened
from regard.text.pictures import Pictures

BYTES = 0x08  # the kind of number: whole, from 0 to 255
CHUNK = 2**20


def read_idx(path: str | Path) -> UInt8[Tensor, "..."]:
    """The array in an idx file: 0, 0, the kind of number, how many axes, the length of each, then the numbers."""
    path = existing(path)
    try:
        with opened(path) as file:
            return _array(file, path)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: cannot be read to its end ({error}); fetch or pack the file again") from None


def read_idx_pictures(images: str | Path, labels: str | Path, *, classes: Sequence[str] | None = None) -> Pictures:
    """Grey pictures and the class of each; classes are called by their numbers unless they are given names."""
    pixels, numbers = read_idx(images), read_idx(labels)
    for path, array, axes in ((images, pixels, 3), (labels, numbers, 1)):
        if array.dim() != axes:
            raise ValueError(
                f"{path}: holds an array of {array.dim()} axes, not {axes}; give the file of pictures (idx3) first "
                "and the file of labels (idx1) second"
            )
    if len(pixels) != len(numbers):
        raise ValueError(f"{images} holds {len(pixels)} pictures, {labels} {len(numbers)} labels; give two that match")
    if not len(numbers):
        raise ValueError(f"{images}: holds no pictures; fetch the file again")
    count = int(numbers.max()) + 1
    names = tuple(map(str, range(count))) if classes is None else tuple(classes)
    if count > len(names):
        at = int((numbers >= len(names)).nonzero()[0])
        raise ValueError(f"{labels}: label {int(numbers[at])} (number {at}) is none of the {len(names)} classes given")
    called = tuple(f"{Path(images).name}:{n}" for n in range(len(pixels)))
    return Pictures(rearrange(pixels, "n h w -> n 1 h w"), numbers.long(), names, called)


def _array(file: IO[bytes], path: Path) -> UInt8[Tensor, "..."]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or not 1 <= magic[3] <= 4:
        raise ValueError(f"{path}: starts with {magic.hex() or 'nothing'}, no idx file does; check which file this is")
    if magic[2] != BYTES:
        raise ValueError(f"{path}: holds numbers of kind 0x{magic[2]:02x}; only bytes (0x{BYTES:02x}) are read here")
    header = file.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise ValueError(f"{path}: ends within its header; fetch the file again")
    lengths = struct.unpack(f">{magic[3]}I", header)
    promised, held = prod(lengths), bytearray()
    # by pieces: the header of a damaged file may promise more than there is memory
    while len(held) <= promised and (piece := file.read(CHUNK)):
        held += piece
    if len(held) != promised:
        more = "more" if len(held) > promised else f"{len(held)}"
        shape = " x ".join(map(str, lengths))
        raise ValueError(f"{path}: promises {shape} = {promised} bytes and holds {more}; fetch the file again")
    return (
        torch.frombuffer(held, dtype=torch.uint8).reshape(lengths) if held else torch.empty(lengths, dtype=torch.uint8)
    )
