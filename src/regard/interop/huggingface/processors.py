"""Processors of Hugging Face models: tokenizers, pictures and sounds as the models read them, and names of tokens."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from regard.data.audio import read_wav
from regard.data.images import read_image
from regard.data.tokenizers.base import EOS
from regard.data.tokenizers.normalization import TextNormalizer
from regard.data.tokenizers.pretrained import ForeignTokenizer, foreign_order
from regard.tasks.image_batches import grid_axis
from regard.tasks.protocol import TaskInput, TokenAxis

# --- tokenizers: the ids of a model are mapped to our order on the way in, and its logits on the way out ---


@dataclass(frozen=True, eq=False)
class HuggingFaceTokenizer(ForeignTokenizer):
    """A tokenizer of transformers.

    Args:
        own: the tokenizer.
        to_foreign: of each id here the id there; -1 for a special one that the model does not have.
        from_foreign: the reverse.
        side: which of its texts it reads: a source's (text), or a target's, whose pieces or language may be others.
    """

    own: Any = field(repr=False)
    to_foreign: tuple[int, ...] = field(repr=False)
    from_foreign: dict[int, int] = field(repr=False)
    side: Literal["text", "text_target"] = "text"
    normalizer: TextNormalizer = TextNormalizer()
    kind = "huggingface"

    @staticmethod
    def of(own: Any, vocabulary: int, start: int | None, end: int | None) -> "HuggingFaceTokenizer":
        """For a model with so many logits, whose texts begin and end with these ids of its own."""
        to_foreign, from_foreign = foreign_order(vocabulary, (own.pad_token_id, start, end, own.unk_token_id))
        return HuggingFaceTokenizer(own, to_foreign, from_foreign)

    def encode(self, text):
        return [self.from_foreign[one] for one in self.foreign_ids(text)]

    def foreign_ids(self, text: str) -> list[int]:
        """The model's own ids of a text with all that its tokenizer adds, but for the end, which a search appends."""
        ids = list(self.own(**{self.side: text})["input_ids"])
        return ids[:-1] if ids and self.from_foreign[ids[-1]] == EOS else ids

    def foreign_piece(self, one):
        found = self.own.convert_ids_to_tokens(one)
        return found if isinstance(found, str) else None

    def foreign_text(self, ids, *, skip_special):
        return self.own.decode(list(ids), skip_special_tokens=skip_special)

    def is_foreign_special(self, one):
        return one in self.own.all_special_ids

    def to_dict(self):
        raise ValueError("a Hugging Face tokenizer is saved by itself: tokenizer.save_pretrained(folder)")

    def written(self, ids: Iterable[int]) -> str:
        """The text of what a model wrote, without its special tokens."""
        return self.own.decode([self.to_foreign[one] for one in ids], skip_special_tokens=True).strip()


# --- pictures and sounds ---


# tokens that stand before the patches, by the parameters that they are
TOKENS_BEFORE = {
    "cls_token": "class",
    "class_embedding": "class",
    "distillation_token": "distillation",
    "register_tokens": "register",
}


def part_of(processor: Any, name: str) -> Any:
    """The part of a processor (its image_processor, its tokenizer), or the processor where it is that part itself."""
    return vars(processor).get(name, processor)


# --- pictures ---


@dataclass(frozen=True, eq=False)
class PictureReader:
    """An image processor of transformers."""

    processor: Any

    @staticmethod
    def of(processor: Any, model: Any) -> "PictureReader":
        from transformers.image_processing_utils import BaseImageProcessor

        found = part_of(processor, "image_processor")
        if not isinstance(found, BaseImageProcessor):
            raise ValueError(
                f"{type(model).__name__} reads pictures, and {type(processor).__name__} is no image processor; give "
                "one: regard.trace(model, image_processor, picture)"
            )
        return PictureReader(found)

    def read(self, given: TaskInput) -> Float[Tensor, "1 c h w"]:
        """Resized and normalised as the model wants it."""
        image = Image.fromarray(rearrange(read_image(given.media), "c h w -> h w c").numpy())
        return self.processor(images=image, return_tensors="pt")["pixel_values"].float()

    def shown(self, pixels: Float[Tensor, "1 c h w"]) -> UInt8[Tensor, "c h w"]:
        """What the model reads, as a picture again."""
        found, shape = pixels[0].cpu(), (-1, 1, 1)
        if self.processor.do_normalize:
            mean, std = (torch.tensor(one).view(shape) for one in (self.processor.image_mean, self.processor.image_std))
            found = found * std + mean
        found = found / self.processor.rescale_factor if self.processor.do_rescale else found
        return found.round().clamp(0, 255).to(torch.uint8)


def patch_axis(model: Any, pixels: Float[Tensor, "1 c h w"]) -> TokenAxis:
    """The tokens that a model makes of a picture."""
    config = model.config
    found = vars(config).get("patch_size") or vars(vars(config).get("vision_config") or config).get("patch_size")
    if found is None:
        raise ValueError(
            f"the configuration of {type(model).__name__} names no patch_size; watch it: regard.watch(model)"
        )
    high, wide = (found, found) if isinstance(found, int) else found
    before = []
    for path, weight in model.named_parameters():
        if name := TOKENS_BEFORE.get(path.rpartition(".")[2]):
            count = weight.shape[1] if weight.dim() == 3 else 1
            before += [name] if count == 1 else [f"{name} {n}" for n in range(count)]
    return grid_axis((pixels.shape[2] // high, pixels.shape[3] // wide), before)


# --- sounds ---


@dataclass(frozen=True, eq=False)
class SoundReader:
    """A feature extractor of transformers."""

    extractor: Any

    @staticmethod
    def of(processor: Any, model: Any) -> "SoundReader":
        from transformers import SequenceFeatureExtractor

        found = part_of(processor, "feature_extractor")
        if not isinstance(found, SequenceFeatureExtractor) or part_of(processor, "tokenizer") is processor:
            raise ValueError(
                f"{type(model).__name__} reads sounds, and {type(processor).__name__} holds no feature extractor and "
                "tokenizer; give its processor: regard.trace(model, processor, sound)"
            )
        return SoundReader(found)

    @property
    def rate(self) -> int:
        return self.extractor.sampling_rate

    def read(self, given: TaskInput) -> Float[Tensor, "1 bins t"]:
        """The features of a .wav file, of samples at the extractor's own rate, or those that are given."""
        if given.array is None:
            samples = read_wav(given.text, self.rate)
        else:
            samples = np.asarray(given.array, np.float32)
            if samples.ndim == 3 and len(samples) == 1:
                samples = samples[0]
            if samples.ndim == 2 and len(samples) == self.extractor.feature_size:
                return torch.from_numpy(samples)[None]
            if samples.ndim != 1 or not len(samples):
                raise ValueError(
                    f"a sound is samples, shape (n,), or {self.extractor.feature_size} features of each frame, shape "
                    f"({self.extractor.feature_size}, frames), not {samples.shape}"
                )
        seconds, most = len(samples) / self.rate, self.extractor.n_samples / self.rate
        if seconds > most:
            raise ValueError(f"a sound of {seconds:.1f} s is longer than the {most:g} s that the model reads; cut it")
        return self.extractor(samples, sampling_rate=self.rate, return_tensors="pt")["input_features"].float()

    def axis(self, frames: int, positions: int) -> TokenAxis:
        """What an encoder makes of so many frames: the second at which each of its positions begins."""
        seconds = frames * self.extractor.hop_length / self.rate / positions
        return TokenAxis(tuple(f"{n * seconds:.2f} s" for n in range(positions)))
