"""Preprocessing: images resized, normalised and augmented, and the samples of .wav files, as models read them."""

import json
import wave
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from math import pi
from pathlib import Path

import numpy as np
import torch
from einops import rearrange, reduce
from jaxtyping import Float, Float32, Int, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from regard.data.files import read_file_bytes, require_file, require_small_file, write_text_atomic
from regard.data.images import LabelledImage, PixelScaling, format_shape, image_to_tensor, stack_images
from regard.world.splitmix import combine_seeds, random_keys_at

PREPROCESSOR_FORMAT = "regard sight 1"


@dataclass(frozen=True)
class ImagePreprocessor:
    """The input of an image model: grey (1 channel) or RGB (3), rows, columns, and the pixel normalization."""

    channels: int
    rows: int
    columns: int
    scale: PixelScaling

    def __post_init__(self):
        if self.channels not in (1, 3) or self.channels != len(self.scale.mean) or min(self.rows, self.columns) < 1:
            raise ValueError(
                f"an image has 1 channel or 3, each with its scale, and rows and columns, not {self.channels} "
                f"channels with {len(self.scale.mean)} scales, {self.rows} rows and {self.columns} columns"
            )

    @staticmethod
    def of(pixels: UInt8[Tensor, "n c h w"]) -> "ImagePreprocessor":
        """The shape and the scaling of these images."""
        _, channels, rows, columns = pixels.shape
        return ImagePreprocessor(channels, rows, columns, PixelScaling.of(pixels))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.rows, self.columns

    def accepts(self, pixels: UInt8[Tensor, "c h w"]) -> bool:
        """Whether the image has the right shape as it is."""
        return tuple(pixels.shape) == self.shape

    def stack_exact(self, images: Sequence[LabelledImage]) -> UInt8[Tensor, "n c h w"]:
        """Stack images of the right shape; others are refused."""
        for one in images:
            if not self.accepts(one.pixels):
                expected = format_shape(torch.empty(self.shape, dtype=torch.uint8))
                raise ValueError(
                    f"{one.name} has {format_shape(one.pixels)} pixels, not {expected} as those to train on; "
                    f"resize them: data.height = {self.rows} and data.width = {self.columns}"
                )
        return stack_images((one.name, one.pixels) for one in images)

    def fit(self, pixels: UInt8[Tensor, "c h w"]) -> UInt8[Tensor, "channels height width"]:
        """Converted to grey or RGB and resized, if necessary."""
        if self.accepts(pixels):
            return pixels
        array = pixels[0] if len(pixels) == 1 else rearrange(pixels, "c h w -> h w c")
        image = Image.fromarray(array.numpy()).convert("L" if self.channels == 1 else "RGB")
        if image.size != (self.columns, self.rows):
            image = image.resize((self.columns, self.rows), Image.Resampling.BILINEAR)
        return image_to_tensor(rearrange(np.array(image), "h w ... -> h w (...)"))

    def normalize(self, pixels: UInt8[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        return self.scale.apply(pixels)

    def save(self, path: str | Path) -> None:
        write_text_atomic(path, json.dumps({"format": PREPROCESSOR_FORMAT, **asdict(self)}, indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> "ImagePreprocessor":
        path = require_small_file(path)
        try:
            saved = json.loads(path.read_bytes().decode("utf-8"))
            if saved.pop("format") != PREPROCESSOR_FORMAT:
                raise ValueError(f"its format is not {PREPROCESSOR_FORMAT!r}")
            scale = PixelScaling(*(tuple(map(float, saved["scale"][name])) for name in ("mean", "spread")))
            return ImagePreprocessor(int(saved["channels"]), int(saved["rows"]), int(saved["columns"]), scale)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path}: damaged, or of another Regard ({error}); save the model again") from None


# --- augmentation ---


Pixels = UInt8[Tensor, "n c h w"]
Draws = Int[Tensor, "n 2"]
Rows = Sequence[int] | NDArray[np.int64]
BITS = 31  # each image gets two random integers of so many bits


class Augmentation(ABC):
    """Abstract: each image is transformed by its own two draws, integers below 2**31."""

    @abstractmethod
    def apply(self, pixels: Pixels, draws: Draws) -> Pixels: ...


def augment_images(pixels: Pixels, rows: Rows, *, by: Sequence[Augmentation], seed: int, epoch: int) -> Pixels:
    """The images transformed by each of `by` in turn; rows[n] is the index of image n in the whole set."""
    if len(rows) != len(pixels):
        raise ValueError(f"{len(pixels)} images need as many rows, not {len(rows)}")
    draws = [random_draws(rows, seed, epoch, purpose).to(pixels.device) for purpose in range(len(by))]
    return apply_augmentations(pixels, draws, by) if len(pixels) else pixels


def apply_augmentations(pixels: Pixels, draws: Iterable[Draws], by: Sequence[Augmentation]) -> Pixels:
    """Each of `by` in turn with its draws, all on one device, without synchronisation."""
    for augmentation, own in zip(by, draws, strict=True):
        pixels = augmentation.apply(pixels, own)
    return pixels


def random_draws(rows: Rows, seed: int, epoch: int, purpose: int) -> Draws:
    """Two integers of 31 bits for each row; `purpose` numbers the augmentation."""
    keys = random_keys_at(combine_seeds(seed, epoch, purpose), np.asarray(rows, dtype=np.uint64))
    both = np.stack((keys >> np.uint64(33), keys & np.uint64(2**BITS - 1)), 1)
    return torch.from_numpy(both.astype(np.int64))


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """Padded with black by `padding` pixels and cropped at random: shifted by up to `padding` each way."""

    padding: int

    def __post_init__(self):
        if self.padding < 0:
            raise ValueError(f"{self}: the padding is 0 pixels or more")

    def apply(self, pixels, draws):
        height, width = pixels.shape[2:]
        # x is below 2**31, so x · ways / 2**31 is below `ways`, each value equally often but for rounding
        first = (draws * (2 * self.padding + 1)) >> BITS
        down = first[:, :1] + torch.arange(height, device=pixels.device)
        right = first[:, 1:] + torch.arange(width, device=pixels.device)
        padded = pad(pixels, (self.padding,) * 4)
        n, c = (torch.arange(size, device=pixels.device) for size in pixels.shape[:2])
        rows_channels = rearrange(n, "n -> n 1 1 1"), rearrange(c, "c -> c 1 1")
        return padded[*rows_channels, rearrange(down, "n h -> n 1 h 1"), rearrange(right, "n w -> n 1 1 w")]


@dataclass(frozen=True)
class RandomHorizontalFlip(Augmentation):
    """Flipped horizontally with probability 1/2. Not for digits and letters."""

    def apply(self, pixels, draws):
        flipped = rearrange(draws[:, 0] >> (BITS - 1), "n -> n 1 1 1").bool()
        return torch.where(flipped, pixels.flip(-1), pixels)


@dataclass(frozen=True)
class Cutout(Augmentation):
    """A square of `size` pixels around any pixel is black; at the edge, what there is of it (DeVries & Taylor 2017)."""

    size: int

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"{self} cuts out nothing; use a size of at least 1, or leave it out")

    def apply(self, pixels, draws):
        inside = []
        for axis, length in enumerate(pixels.shape[2:]):
            first = ((draws[:, axis : axis + 1] * length) >> BITS) - self.size // 2
            at = torch.arange(length, device=pixels.device)
            inside.append((at >= first) & (at < first + self.size))
        cut_out = rearrange(inside[0], "n h -> n 1 h 1") & rearrange(inside[1], "n w -> n 1 1 w")
        return pixels.masked_fill(cut_out, 0)


@dataclass(frozen=True)
class RandomGrayscale(Augmentation):
    """Converted to grey with probability `share`, so that a model does not rely on colour alone."""

    share: float

    def __post_init__(self):
        if not 0 <= self.share <= 1:
            raise ValueError(f"{self}: a share of all images lies between 0 and 1")

    def apply(self, pixels, draws):
        grey = reduce(pixels.int(), "n c h w -> n 1 h w", "sum") // pixels.shape[1]
        chosen = rearrange(unit_floats(draws[:, 0]) < self.share, "n -> n 1 1 1")
        return torch.where(chosen, grey.to(torch.uint8), pixels)


@dataclass(frozen=True)
class RandomAffine(Augmentation):
    """Rotated by up to `degrees` either way, and scaled by up to `scale_percent` along each axis."""

    degrees: int = 0
    scale_percent: int = 0

    def __post_init__(self):
        if not 0 <= self.degrees <= 180 or not 0 <= self.scale_percent < 100:
            raise ValueError(f"{self}: a rotation is 0 to 180 degrees, a scaling 0 to 99 percent")

    def apply(self, pixels, draws):
        angle = (2 * unit_floats(draws[:, 0]) - 1) * (self.degrees * pi / 180)
        # one draw for two axes: its upper half and its lower
        halves = torch.stack((draws[:, 1] >> 16, (draws[:, 1] & 0x7FFF)), 1) / 2.0**15
        size = 1 + (2 * halves - 1) * (self.scale_percent / 100)
        height, width = pixels.shape[2:]
        # coordinates run from -1 to 1 along each side
        down, right = angle.sin() * (width / height), -angle.sin() * (height / width)
        rotation = torch.stack((angle.cos(), right, down, angle.cos()), 1)
        by = rearrange(rotation, "n (i j) -> n i j", i=2) / size[:, None]
        grid = affine_grid(torch.cat((by, torch.zeros_like(by[:, :, :1])), 2), list(pixels.shape), align_corners=False)
        return grid_sample(pixels.float(), grid, align_corners=False).round().to(torch.uint8)


def unit_floats(draws: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """From 0 to 1, without 1."""
    return (draws >> (BITS - 24)) / 2.0**24


@dataclass(frozen=True)
class MixupCutmix:
    """Mixup (a weighted mean of two images) and CutMix (a rectangle of another image).

    Args:
        mixup: the share of images that are averaged with another (Zhang et al. 2018).
        cutmix: the share of images with a rectangle of another (Yun et al. 2019).
    """

    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self):
        if min(self.mixup, self.cutmix) < 0 or self.mixup + self.cutmix > 1:
            raise ValueError(f"{self}: each is a share of all images, from 0 to 1, and so are the two together")

    def apply(self, pixels: Pixels, others: Pixels, kinds: Draws, centers: Draws) -> tuple[Pixels, Float[Tensor, " n"]]:
        """The mixed images, and the weight of each one's own label; draws choose kind and weight, and the centre."""
        chosen, share = unit_floats(kinds[:, 0]), unit_floats(kinds[:, 1])
        shares = rearrange(share, "n -> n 1 1 1")
        blended = (shares * pixels + (1 - shares) * others).round().to(torch.uint8)
        inside = []
        for axis, length in enumerate(pixels.shape[2:]):
            half = (1 - share).sqrt() * length / 2
            middle = unit_floats(centers[:, axis]) * length
            at = torch.arange(length, device=pixels.device) + 0.5
            inside.append((at - middle[:, None]).abs() < half[:, None])
        pasted = rearrange(inside[0], "n h -> n 1 h 1") & rearrange(inside[1], "n w -> n 1 1 w")
        own_area = 1 - pasted.float().mean((1, 2, 3))
        is_cut, is_blended = chosen < self.cutmix, (chosen >= self.cutmix) & (chosen < self.cutmix + self.mixup)
        mixed = torch.where(rearrange(is_cut, "n -> n 1 1 1") & pasted, others, pixels)
        mixed = torch.where(rearrange(is_blended, "n -> n 1 1 1"), blended, mixed)
        return mixed, torch.where(is_cut, own_area, torch.where(is_blended, share, 1.0))


# --- sounds ---


EXAMPLE_SOUND = "example sound"
SPEECH_RATE = 16_000  # samples a second that speech models read
MAX_SAMPLES = 2**26  # of all channels: an hour and more at 16 kHz
REMEDY = "convert it: ffmpeg -i sound -ar 16000 -ac 1 sound.wav"

Samples = Float32[np.ndarray, " _"]


def read_wav(path: str | Path, rate: int) -> Samples:
    """The samples of a file, from -1 to 1, resampled to so many a second; the mean of its channels."""
    return decode_wav(read_file_bytes(require_file(path)), str(path), rate)


def decode_wav(encoded: bytes, where: str, rate: int) -> Samples:
    """The same of a file's contents; what is no complete PCM file is refused."""
    try:
        with wave.open(BytesIO(encoded), "rb") as file:
            channels, width, own_rate, count = file.getparams()[:4]
            if not 1 <= own_rate <= 2**20 or not 1 <= channels <= 64:
                raise ValueError(f"{channels} channels of {own_rate} samples a second")
            if count * channels > MAX_SAMPLES:
                raise ValueError(f"{count * channels:,} samples are more than the {MAX_SAMPLES:,} that are read")
            raw = file.readframes(count)
    except (wave.Error, EOFError, ValueError) as error:
        why = "it ends too early" if isinstance(error, EOFError) else str(error)
        raise ValueError(f"{where}: not a complete .wav file of PCM samples ({why}); {REMEDY}") from None
    if not raw or len(raw) != count * channels * width:
        raise ValueError(f"{where}: holds {len(raw):,} bytes of {count * channels * width:,}; {REMEDY}")
    return resample(pcm_samples(raw, width).reshape(-1, channels).mean(1, dtype=np.float32), own_rate, rate)


def pcm_samples(raw: bytes, width: int) -> Samples:
    """Samples of 1 (unsigned), 2, 3 or 4 bytes each as numbers from -1 to 1."""
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - np.float32(128)) * np.float32(1 / 128)
    if width == 3:  # as the upper bytes of four
        four = np.zeros((len(raw) // 3, 4), np.uint8)
        four[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        raw, width = four.tobytes(), 4
    return np.frombuffer(raw, f"<i{width}").astype(np.float32) * np.float32(2.0 ** (1 - 8 * width))


def resample(samples: Samples, rate: int, to: int) -> Samples:
    """The same sound at another rate, without the frequencies that it cannot hold."""
    if rate == to or not len(samples):
        return samples.astype(np.float32)
    count = max(1, round(len(samples) * to / rate))
    spectrum = np.fft.rfft(samples)[: count // 2 + 1]
    return (np.fft.irfft(spectrum, count) * (count / len(samples))).astype(np.float32)


def example_wav(rate: int = SPEECH_RATE) -> bytes:
    """Half a second that rises from 200 to 800 Hz, as a file."""
    seconds = np.arange(rate // 2) / rate
    samples = 0.5 * np.sin(2 * np.pi * (200 * seconds + 600 * seconds**2))
    written = BytesIO()
    with wave.open(written, "wb") as file:
        file.setparams((1, 2, rate, len(samples), "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return written.getvalue()
