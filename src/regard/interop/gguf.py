"""GGUF files: the quantised checkpoints of llama.cpp, dequantised to float32 and imported like any other."""

import json
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from regard.data.files import require_file
from regard.data.tokenizers.pretrained import TokenizersEngine
from regard.interop.huggingface.weights import Shape

SUFFIX = ".gguf"
ARCHITECTURE = "GGUF llama"
CONTROL = 3  # the type of tokens that stand for no text
# their keys of a Llama, by the keys of config.json
KEYS = {
    "num_hidden_layers": "llama.block_count",
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
    "rope_theta": "llama.rope.freq_base",
    "max_position_embeddings": "llama.context_length",
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
}
# what a text is cut into before its pieces are found, by the name that the file gives it
PRETOKENIZERS: dict[str, tuple[Any, ...]] = {
    "gpt-2": (pre_tokenizers.ByteLevel(add_prefix_space=False),),
    "smollm": (pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama-bpe": (
        pre_tokenizers.Split(
            Regex(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            "isolated",
        ),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ),
}


@dataclass(frozen=True)
class GGUFCheckpoint:
    """One file: weights, configuration and tokenizer; it is asked as a `Checkpoint` of a folder is."""

    folder: Path  # the file

    @staticmethod
    def of(path: Path) -> "GGUFCheckpoint":
        if find_spec("gguf") is None:
            raise ValueError(f"{path} needs the package gguf; pip install 'regard[interop]'")
        found = GGUFCheckpoint(require_file(path))
        if (kind := found.fields.get("general.architecture")) != "llama":
            raise ValueError(f"{path}: a model of the kind {kind!r:.80} is not imported; llama is")
        if found.fields.get("llama.rope.scaling.type", "none") != "none":
            raise ValueError(f"{path}: its rotary positions are scaled in a way that is not known here")
        return found

    @cached_property
    def reader(self) -> Any:
        from gguf import GGUFReader

        try:
            return GGUFReader(self.folder)
        except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"{self.folder} is damaged or no GGUF file: {str(error)[:200]}") from None

    @cached_property
    def fields(self) -> dict[str, Any]:
        try:
            return {name: field.contents() for name, field in self.reader.fields.items()}
        except (ValueError, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"{self.folder} is damaged: {str(error)[:200]}") from None

    @property
    def architecture(self) -> str:
        return ARCHITECTURE

    @cached_property
    def config(self) -> dict[str, Any]:
        known = {name: self.fields[key] for name, key in KEYS.items() if key in self.fields}
        return known | {"tie_word_embeddings": "output.weight" not in self.headers}

    def json(self, name: str) -> dict[str, Any]:
        """There are no files beside it."""
        return {}

    def special_token(self, name: str) -> str | None:
        return None

    # --- weights ---

    @cached_property
    def headers(self) -> dict[str, tuple[Path, Shape]]:
        return {one.name: (self.folder, tuple(int(n) for n in reversed(one.shape))) for one in self.reader.tensors}

    def read(self, name: str) -> Tensor:
        from gguf import dequantize

        (one,) = (one for one in self.reader.tensors if one.name == name)
        return torch.tensor(dequantize(one.data, one.tensor_type)).float().view(self.headers[name][1])

    # --- the tokenizer ---

    def engine(self, *, target: bool = False, markup: bool = False) -> TokenizersEngine:
        """Byte-level BPE, as the file lists its pieces and merges."""
        kind, cut = (self.fields.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
        if kind != "gpt2" or cut not in PRETOKENIZERS:
            raise ValueError(
                f"{self.folder}: a tokenizer {kind!r:.80} that cuts texts by {cut!r:.80} is not known here; "
                f"byte-level BPE with {', '.join(PRETOKENIZERS)} is"
            )
        pieces, types = (self.fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
        merges = [tuple(one.split(" ")) for one in self.fields["tokenizer.ggml.merges"]]
        made = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, merges))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence(list(PRETOKENIZERS[cut])), decoders.ByteLevel()
        special = [piece for piece, one in zip(pieces, types, strict=True) if one == CONTROL]
        made.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
        return TokenizersEngine(json.dumps(json.loads(made.to_str()), ensure_ascii=False), markup=markup)

    @property
    def adds_bos(self) -> bool:
        return bool(self.fields.get("tokenizer.ggml.add_bos_token", False))
