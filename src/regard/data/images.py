"""Images: labelled ones, and those with questions (VQA), from folders, archives, IDX files and the miniature world.

    read_visual_questions("easy_vqa.tar.xz", inside="easy_vqa/train")      laid out as easy-VQA is
    read_question_list("train.tsv")                                        picture<TAB>question<TAB>answer
    make_world_questions(ShapeWorld(seed=0), 1000)

easy-VQA's layout: images/0.png, images/1.png ... and questions.json, a list of [question, answer, image number].
"""

import json
import lzma
import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from regard.data.files import (
    FileBytes,
    check_text,
    file_format,
    iter_files,
    open_decompressed,
    read_file_bytes,
    read_json_objects,
    read_lines,
    require_file,
)
from regard.world.lexicon import Split
from regard.world.shapes import SHAPES, Scene, ShapeWorld, draw_question


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """Pixels from 0 to 255, the class, and the name of the file."""

    pixels: UInt8[Tensor, "c h w"]
    label: str
    name: str


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Many images of one size; labels are indices into the classes."""

    pixels: UInt8[Tensor, "n c h w"]
    labels: Int[Tensor, " n"]
    classes: tuple[str, ...]
    names: tuple[str, ...]

    def __post_init__(self):
        if self.pixels.dtype != torch.uint8 or self.pixels.dim() != 4:
            raise ValueError(
                "pixels are whole numbers from 0 to 255 (torch.uint8) shaped (images, channels, rows, columns), "
                f"not {self.pixels.dtype} shaped {tuple(self.pixels.shape)}"
            )
        if not len(self.pixels) == len(self.labels) == len(self.names):
            raise ValueError(
                f"every image has one label and one name: there are {len(self.pixels)} images, "
                f"{len(self.labels)} labels and {len(self.names)} names"
            )
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise ValueError(
                f"labels run from {int(self.labels.min())} to {int(self.labels.max())}, "
                f"but the {len(self.classes)} classes are numbered from 0: {', '.join(self.classes)}"
            )

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, n: int) -> LabelledImage:
        return LabelledImage(self.pixels[n], self.classes[int(self.labels[n])], self.names[n])

    def __iter__(self) -> Iterator[LabelledImage]:
        for pixels, label, name in zip(self.pixels.unbind(), self.labels.tolist(), self.names, strict=True):
            yield LabelledImage(pixels, self.classes[label], name)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of each."""
        channels, rows, columns = self.pixels.shape[1:]
        return channels, rows, columns

    def select(self, rows: Sequence[int]) -> "ImageSet":
        """These images, in this order."""
        at = torch.as_tensor(rows, dtype=torch.int64, device=self.pixels.device)
        names = tuple(self.names[n] for n in rows)
        return replace(self, pixels=self.pixels[at], labels=self.labels[at], names=names)

    def to(self, device: torch.device | str) -> "ImageSet":
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


def images_from_scenes(
    scenes: Sequence[Scene],
    label: Callable[[Scene], str] = lambda scene: scene.shapes[0].shape,
    classes: tuple[str, ...] = SHAPES,
) -> ImageSet:
    """Images of the miniature world, labelled by `label`: by default the leftmost shape."""
    if not scenes:
        raise ValueError("there is no scene to draw; give at least one, such as ShapeWorld().scene(0)")
    labels = [label(scene) for scene in scenes]
    if unknown := sorted(set(labels) - set(classes)):
        raise ValueError(f"label {unknown[0]!r} is no class; the classes are {', '.join(classes)}")
    pixels = rearrange(torch.from_numpy(np.stack([scene.pixels() for scene in scenes])), "n h w c -> n c h w")
    numbers = torch.tensor([classes.index(name) for name in labels])
    return ImageSet(pixels.contiguous(), numbers, classes, tuple(f"scene {n}" for n in range(len(scenes))))


@dataclass(frozen=True)
class PixelScaling:
    """(pixel / 255 - mean) / spread per channel; `spread` is the standard deviation of the training images."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    def __post_init__(self):
        if len(self.mean) != len(self.spread) or not all(spread > 0 for spread in self.spread):
            raise ValueError(
                f"every channel has a mean and a spread above 0, not means {self.mean} and spreads {self.spread}"
            )

    @staticmethod
    def of(pixels: UInt8[Tensor, "n c h w"]) -> "PixelScaling":
        """From the histogram of each channel: exact, and the same on every machine."""
        if not pixels.numel():
            raise ValueError("no images to measure a scale on; give at least one")
        counts = [np.bincount(channel.flatten().cpu().numpy(), minlength=256) for channel in pixels.unbind(1)]
        levels = np.arange(256)
        means = [int(count @ levels) / int(count.sum()) for count in counts]
        squares = [int(count @ levels**2) / int(count.sum()) for count in counts]
        spreads = [max(square - mean**2, 0.0) ** 0.5 for mean, square in zip(means, squares, strict=True)]
        # a constant channel carries no information, whatever the spread
        return PixelScaling(tuple(mean / 255 for mean in means), tuple(spread / 255 or 1.0 for spread in spreads))

    def apply(self, pixels: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        if pixels.shape[1] != len(self.mean):
            raise ValueError(
                f"a scale of {len(self.mean)} channels cannot be applied to {pixels.shape[1]}; measure another"
            )
        mean, spread = (  # filled on the device: a copy would synchronise a GPU
            torch.cat([torch.full((1, 1, 1), value, device=pixels.device) for value in part])
            for part in (self.mean, self.spread)
        )
        return (pixels / 255 - mean) / spread


# --- image files ---


IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
IMAGE_FORMATS = ("PNG", "JPEG")
IMAGE_MODES = ("RGB", "L")
MAX_PIXELS = 2**26  # a file of a few kilobytes can claim to be an image that fills the memory
Size = tuple[int, int]


def read_images(
    path: str | Path,
    *,
    inside: str = "",
    mode: str = "RGB",
    size: Size | None = None,
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """Every image below a folder or in an archive; its class is the name of its folder.

    Args:
        path: a folder, or a .tar, .tar.gz or .tar.xz.
        inside: the folder in it that holds the classes, such as "train".
        mode: RGB, or L for grey.
        size: rows and columns to resize to; by default all must be of one size.
        classes: the allowed ones, in the order of their labels; by default those that occur, sorted.
    """
    images = iter_images(path, inside=inside, mode=mode, size=size, classes=classes)
    known = tuple(sorted({one.label for one in images})) if classes is None else tuple(classes)
    numbers = {name: n for n, name in enumerate(known)}
    labels = torch.tensor([numbers[one.label] for one in images])
    pixels = stack_images((f"{path}: {one.name}", one.pixels) for one in images)
    return ImageSet(pixels, labels, known, tuple(one.name for one in images))


def iter_images(
    path: str | Path,
    *,
    inside: str = "",
    mode: str = "RGB",
    size: Size | None = None,
    classes: Sequence[str] | None = None,
) -> list[LabelledImage]:
    """The same as a list, each of its own size, sorted by name."""
    check_mode_and_size(mode, size)
    images = [
        LabelledImage(
            image_to_tensor(decode_image(one.bytes, one.where, mode=mode, size=size)),
            _class_of(one, classes),
            str(one.path),
        )
        for one in iter_files(path, inside=inside, endings=IMAGE_SUFFIXES)
    ]
    if not images:
        location = f"{path}:{inside}" if inside else path
        raise ValueError(
            f"{location}: no images; they lie in one folder for each class and end in {', '.join(IMAGE_SUFFIXES)}"
        )
    return sorted(images, key=lambda one: one.name)


def read_image(image: Any, *, mode: str = "RGB", size: Size | None = None) -> UInt8[Tensor, "c h w"]:
    """One image, as it is or resized.

    Args:
        image: the path of a file; or one in memory: Pillow's, an array of rows, columns and channels, or a tensor with
            channels first, both in bytes.
        mode: RGB, or L for grey.
        size: rows and columns to resize to.
    """
    check_mode_and_size(mode, size)
    if isinstance(image, str | Path):
        return image_to_tensor(decode_image(read_file_bytes(require_file(image)), str(image), mode=mode, size=size))
    upright = image if isinstance(image, Image.Image) else Image.fromarray(image_array(image))
    upright = _flatten_alpha(upright, mode)
    resized = upright if size is None else upright.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return image_to_tensor(rearrange(np.array(resized), "h w ... -> h w (...)"))


def image_array(image: Any) -> NDArray[np.uint8]:
    """An image in memory as rows, columns and 3 channels, or as rows and columns."""
    array = rearrange(image, "c h w -> h w c").cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if (
        array.dtype != np.uint8
        or not array.size
        or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3)))
    ):
        raise ValueError(
            "an image in memory is Pillow's, or bytes (uint8) of 1 or 3 channels, which are last in numpy and first in "
            f"torch, not {array.dtype} shaped {tuple(np.shape(image))}"
        )
    return array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array


def check_mode_and_size(mode: str, size: Size | None) -> None:
    if mode not in IMAGE_MODES:
        raise ValueError(f"an image is read as one of {', '.join(IMAGE_MODES)}, not {mode!r}")
    if size is not None and (min(size) < 1 or size[0] * size[1] > MAX_PIXELS):
        raise ValueError(
            f"images cannot be resized to {size[0]} rows of {size[1]} pixels; choose a smaller size from 1"
        )


def decode_image(
    encoded: bytes, where: str, *, mode: str = "RGB", size: Size | None = None, most_pixels: int = MAX_PIXELS
) -> NDArray[np.uint8]:
    """A PNG or JPEG as an array of rows, columns and channels, upright, transparency laid on white."""
    try:
        with warnings.catch_warnings(action="ignore"):  # only errors of Pillow matter
            with Image.open(BytesIO(encoded), formats=IMAGE_FORMATS) as image:
                if image.width * image.height > most_pixels:
                    raise ValueError(
                        f"{image.width} x {image.height} pixels are more than the {most_pixels} that are read"
                    )
                upright = _flatten_alpha(ImageOps.exif_transpose(image), mode)
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
        # for bytes that are no image at all Pillow names only the object they were in
        strange = "no PNG or JPEG begins like this" if isinstance(error, UnidentifiedImageError) else str(error)
        why = "it is empty" if not encoded else strange.replace("\n", " ")
        raise ValueError(f"{where}: not a complete PNG or JPEG image ({why}); replace or remove the file") from None


def _flatten_alpha(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey: the upper 8 bits
        image = Image.fromarray((np.array(image) // 256).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        above = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)
    return image.convert(mode)


def image_to_tensor(array: NDArray[np.uint8]) -> UInt8[Tensor, "c h w"]:
    return rearrange(torch.from_numpy(array), "h w c -> c h w").contiguous()


def stack_images(named: Iterable[tuple[str, UInt8[Tensor, "c h w"]]]) -> UInt8[Tensor, "n c h w"]:
    """All of them as one tensor; they must be of one size."""
    stacked: list[Tensor] = []
    for where, pixels in named:
        stacked.append(pixels)
        if pixels.shape != stacked[0].shape:
            here, there = (format_shape(one) for one in (pixels, stacked[0]))
            rows, columns = stacked[0].shape[1:]
            raise ValueError(
                f"{where} has {here} pixels, those before it {there}; resize them: --set data.height={rows} "
                f"--set data.width={columns}, in Python size=({rows}, {columns})"
            )
    return torch.stack(stacked)


def format_shape(pixels: UInt8[Tensor, "c h w"]) -> str:
    channels, rows, columns = pixels.shape
    return f"{rows} x {columns}{' grey' if channels == 1 else ''}"


def _class_of(file: FileBytes, classes: Sequence[str] | None) -> str:
    if len(file.path.parts) < 2:
        raise ValueError(f"{file.where}: is in no class folder; move it to a folder that is named after its class")
    label = file.path.parts[0]
    if classes is not None and label not in classes:
        raise ValueError(f"{file.where}: class {label!r} is unknown; the classes are {', '.join(classes)}")
    return label


# --- IDX files (MNIST) ---


IDX_UINT8 = 0x08  # the type code of unsigned bytes
IDX_CHUNK = 2**20


def read_idx(path: str | Path) -> UInt8[Tensor, "..."]:
    """The array of an IDX file: 0, 0, the type code, the number of axes, the length of each, then the data."""
    path = require_file(path)
    try:
        with open_decompressed(path) as file:
            return _read_array(file, path)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{path}: cannot be read to its end ({error}); fetch or pack the file again") from None


def read_idx_images(images: str | Path, labels: str | Path, *, classes: Sequence[str] | None = None) -> ImageSet:
    """Grey images and the class of each; classes are named by their numbers unless `classes` names them."""
    pixels, numbers = read_idx(images), read_idx(labels)
    for path, array, axes in ((images, pixels, 3), (labels, numbers, 1)):
        if array.dim() != axes:
            raise ValueError(
                f"{path}: holds an array of {array.dim()} axes, not {axes}; give the file of images (idx3) first "
                "and the file of labels (idx1) second"
            )
    if len(pixels) != len(numbers):
        raise ValueError(f"{images} holds {len(pixels)} images, {labels} {len(numbers)} labels; give two that match")
    if not len(numbers):
        raise ValueError(f"{images}: holds no images; fetch the file again")
    count = int(numbers.max()) + 1
    names = tuple(map(str, range(count))) if classes is None else tuple(classes)
    if count > len(names):
        at = int((numbers >= len(names)).nonzero()[0])
        raise ValueError(f"{labels}: label {int(numbers[at])} (number {at}) is none of the {len(names)} classes given")
    image_names = tuple(f"{Path(images).name}:{n}" for n in range(len(pixels)))
    return ImageSet(rearrange(pixels, "n h w -> n 1 h w"), numbers.long(), names, image_names)


def _read_array(file: IO[bytes], path: Path) -> UInt8[Tensor, "..."]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or not 1 <= magic[3] <= 4:
        raise ValueError(f"{path}: starts with {magic.hex() or 'nothing'}, no IDX file does; check which file this is")
    if magic[2] != IDX_UINT8:
        raise ValueError(
            f"{path}: holds numbers of type 0x{magic[2]:02x}; only unsigned bytes (0x{IDX_UINT8:02x}) are supported"
        )
    header = file.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise ValueError(f"{path}: ends within its header; fetch the file again")
    lengths = struct.unpack(f">{magic[3]}I", header)
    expected, data = prod(lengths), bytearray()
    # in chunks: the header of a damaged file may claim more than there is memory
    while len(data) <= expected and (chunk := file.read(IDX_CHUNK)):
        data += chunk
    if len(data) != expected:
        more = "more" if len(data) > expected else f"{len(data)}"
        shape = " x ".join(map(str, lengths))
        raise ValueError(f"{path}: promises {shape} = {expected} bytes and holds {more}; fetch the file again")
    return (
        torch.frombuffer(data, dtype=torch.uint8).reshape(lengths) if data else torch.empty(lengths, dtype=torch.uint8)
    )


# --- visual questions ---


QUESTIONS_FILE = "questions.json"
COLUMNS = ("picture", "question", "answer")


@dataclass(frozen=True)
class VisualQuestion:
    """A question about image number `image_index` of its set.

    `boxes` are the bounding boxes of the evidence, and `kind` is the kind of question, if known.
    """

    text: str
    answer: str
    image_index: int
    boxes: tuple[tuple[int, int, int, int], ...] = ()
    kind: str = ""


@dataclass(frozen=True, eq=False)
class VisualQuestionSet:
    """Images, and the questions about them."""

    images: ImageSet
    questions: tuple[VisualQuestion, ...]

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def answers(self) -> tuple[str, ...]:
        """Every answer that occurs, sorted."""
        return tuple(sorted({question.answer for question in self.questions}))


def read_visual_questions(
    path: str | Path, *, inside: str = "", mode: str = "RGB", size: Size | None = None
) -> VisualQuestionSet:
    """From a folder or an archive, `inside` naming the folder in it that holds images and questions.json."""
    check_mode_and_size(mode, size)
    numbered, listed = {}, None
    for file in iter_files(path, inside=inside, endings=(*IMAGE_SUFFIXES, QUESTIONS_FILE)):
        if str(file.path) == QUESTIONS_FILE:
            listed = file
        elif len(file.path.parts) == 2 and file.path.parts[0] == "images":
            pixels = image_to_tensor(decode_image(file.bytes, file.where, mode=mode, size=size))
            numbered[_number(file, numbered)] = file.where, pixels
    location = f"{path}:{inside}" if inside else path
    if listed is None:
        raise ValueError(
            f"{location}: no {QUESTIONS_FILE}; it lies beside the folder images, or name its folder with inside=..."
        )
    if not numbered:
        raise ValueError(f"{location}: no images; they are called images/0.png, images/1.png and so on")
    order = sorted(numbered)
    rows = {number: row for row, number in enumerate(order)}
    pixels = stack_images(numbered[number] for number in order)
    return VisualQuestionSet(
        unlabelled_images(pixels, [f"images/{number}" for number in order]), _questions(listed, rows)
    )


def read_question_list(path: str | Path, *, mode: str = "RGB", size: Size | None = None) -> VisualQuestionSet:
    """From a .tsv (picture, tab, question, tab, answer) or a .jsonl with these fields; paths are relative to it."""
    check_mode_and_size(mode, size)
    path = require_file(path)
    entries = [(where, *_parse_row(cells, where)) for where, cells in _lines(path)]
    if not entries:
        raise ValueError(f"{path}: no questions; a line is {', tab, '.join(COLUMNS)}")
    order = {name: row for row, name in enumerate(dict.fromkeys(name for _, name, _, _ in entries))}
    first_mention = {name: where for where, name, _, _ in reversed(entries)}
    pixels = stack_images((name, _read_listed_image(path, name, first_mention[name], mode, size)) for name in order)
    questions = tuple(VisualQuestion(text, answer, order[name]) for _, name, text, answer in entries)
    return VisualQuestionSet(unlabelled_images(pixels, list(order)), questions)


def unlabelled_images(pixels: UInt8[Tensor, "n c h w"], names: list[str]) -> ImageSet:
    return ImageSet(pixels, torch.zeros(len(names), dtype=torch.int64), ("picture",), tuple(names))


def make_world_questions(
    world: ShapeWorld, count: int, split: Split = "train", start: int = 0, questions_per_image: int = 1
) -> VisualQuestionSet:
    """`count` images of the miniature world, those numbered from `start`, and questions about each."""
    drawn = [
        [draw_question(world, number, split, turn) for turn in range(questions_per_image)]
        for number in range(start, start + count)
    ]
    questions = tuple(
        VisualQuestion(one.question.text, one.question.answer, row, one.boxes, one.question.kind)
        for row, several in enumerate(drawn)
        for one in several
    )
    return VisualQuestionSet(images_from_scenes([several[0].scene for several in drawn]), questions)


def _number(file: FileBytes, taken: dict[int, Any]) -> int:
    stem = file.path.stem
    if not (stem.isascii() and stem.isdecimal()):
        raise ValueError(f"{file.where}: an image is named by its number, such as 17.png, not {file.path.name!r}")
    if int(stem) in taken:
        raise ValueError(f"{file.where}: a second image with number {int(stem)}; remove one of the two")
    return int(stem)


def _questions(listed: FileBytes, rows: dict[int, int]) -> tuple[VisualQuestion, ...]:
    try:
        entries = json.loads(listed.bytes)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{listed.where}: not JSON ({error}); write or fetch the file again") from None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{listed.where}: holds no list of questions; it is [[question, answer, image number], ...]")
    return tuple(_question(entry, f"{listed.where}: entry {n}", rows) for n, entry in enumerate(entries))


def _question(entry: Any, where: str, rows: dict[int, int]) -> VisualQuestion:
    match entry:
        case [str() as text, str() as answer, int() as number] if not isinstance(number, bool):
            if not text.strip() or not answer.strip():
                raise ValueError(f"{where}: the {'answer' if text.strip() else 'question'} is empty; fill it in")
            if number not in rows:
                raise ValueError(f"{where}: asks about image {number}, and images/ has none of that number; add it")
            return VisualQuestion(check_text(text, where), check_text(answer, where), rows[number])
    raise ValueError(f"{where}: {json.dumps(entry)[:80]} is not [question, answer, image number]; correct it")


# --- question lists ---


def _lines(path: Path) -> Iterator[tuple[str, list[Any]]]:
    match file_format(path):
        case ".tsv":
            for number, line in enumerate(read_lines(path), 1):
                cells = line.split("\t")
                if line.strip() and not (number == 1 and tuple(cells) == COLUMNS):
                    yield f"{path}:{number}", list(cells)
        case ".jsonl":
            for where, row in read_json_objects(path, COLUMNS):
                if row is not None:
                    yield where, [row[name] for name in COLUMNS]
        case ending:
            raise ValueError(f"{path}: a list of questions ends in .tsv or .jsonl, not {ending!r}; rename the file")


def _parse_row(cells: list[Any], where: str) -> tuple[str, str, str]:
    if len(cells) != len(COLUMNS):
        count = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
        raise ValueError(f"{where}: {count}; a line is {', tab, '.join(COLUMNS)}, which are {len(COLUMNS)}")
    for name, cell in zip(COLUMNS, cells, strict=True):
        if not isinstance(cell, str):
            raise ValueError(f"{where}: the {name} is {type(cell).__name__}, not text")
        if not cell.strip():
            raise ValueError(f"{where}: the {name} is empty; fill it in, or remove the line")
    name, text, answer = (check_text(cell.strip(), where) for cell in cells)
    return name, text, answer


def _read_listed_image(path: Path, name: str, where: str, mode: str, size: Size | None) -> UInt8[Tensor, "c h w"]:
    image = path.parent / name
    if not image.is_file():
        raise ValueError(f"{where}: there is no image {image}; check the name, relative to the list's folder")
    return read_image(image, mode=mode, size=size)
