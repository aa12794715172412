"""Folders of small Hugging Face models, as save_pretrained writes them, with a tokenizer of words."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    PreTrainedTokenizerFast,
    ViTImageProcessorPil,
    WhisperFeatureExtractor,
    WhisperProcessor,
    WhisperTokenizer,
)

from .families import FAMILIES, VOCABULARY, pictures, sounds

SENTENCE = "the black cat ate the mouse"
WORDS = ["<pad>", "<s>", "</s>", "<unk>", *SENTENCE.split()[1:], "a", "dog", "big", "##s"]


def make_tokenizer(*, ends: bool = False) -> Any:
    """A tokenizer of words; a text ends with </s> if that is wanted."""
    words = dict.fromkeys(WORDS)
    vocabulary = {word: n for n, word in enumerate([*words, *(f"word{n}" for n in range(VOCABULARY - len(words)))])}
    own = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    own.pre_tokenizer, own.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    if ends:
        own.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=own, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def make_image_processor() -> Any:
    """One that needs no torchvision."""
    return ViTImageProcessorPil(size={"height": 12, "width": 12})


def make_speech_processor() -> Any:
    """Of sounds of a second, with a tokenizer of letters; texts begin and end as the configuration says."""
    first = ["!", "<|startoftranscript|>", "<|endoftext|>", "<|en|>"]
    special = [*first[1:], "<|de|>", "<|transcribe|>", "<|translate|>", "<|notimestamps|>"]
    pieces = dict.fromkeys([*first, *"abcdefghijklmnopqrstuvwxyz", "Ġ", *special])
    tokenizer = WhisperTokenizer(vocab={piece: n for n, piece in enumerate(pieces)}, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    return WhisperProcessor(WhisperFeatureExtractor(feature_size=8, chunk_length=1), tokenizer)


def make_processor(name: str) -> Any:
    """What a family reads with: a tokenizer, an image processor, or both of a speech model."""
    family = FAMILIES[name]
    if family.inputs is pictures:
        return make_image_processor()
    return (
        make_speech_processor() if family.inputs is sounds else make_tokenizer(ends="decoder.0.cross" in family.sites)
    )


def save_folder(name: str, folder: Path) -> Path:
    """A family's small model and what it reads with."""
    FAMILIES[name].build().save_pretrained(folder)
    make_processor(name).save_pretrained(folder)
    return folder
