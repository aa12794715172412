"""Folders of small Hugging Face models, as save_pretrained writes them, with a tokenizer of words."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from .families import FAMILIES, VOCABULARY

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


def save_folder(name: str, folder: Path) -> Path:
    """A family's small model and its tokenizer."""
    family = FAMILIES[name]
    family.build().save_pretrained(folder)
    make_tokenizer(ends="decoder.0.cross" in family.sites).save_pretrained(folder)
    return folder
