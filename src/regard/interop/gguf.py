"""GGUF files: the quantised checkpoints of llama.cpp, dequantised to float32 and imported like any other."""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from mmap import ACCESS_READ, mmap
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


# --- the header: what the package gguf would read on and on, or take memory for, is refused before ---


MAGIC, VERSIONS, STRING, ARRAY = b"GGUF", (2, 3), 8, 9
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # by the number of their type
MAX_DIMENSIONS = 4
WEIGHTS_PER_BYTE = 8  # at most, in every quantisation there is


@dataclass
class HeaderReader:
    """Steps through a header; whatever leads beyond the end of the file is refused."""

    data: Any
    at: int = 0

    def skip(self, count: int) -> int:
        """Over so many bytes; where they begin."""
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise ValueError("it ends early, or counts more than it holds")
        return start

    def number(self, size: int) -> int:
        start = self.skip(size)
        return int.from_bytes(self.data[start : start + size], "little")

    def skip_string(self) -> None:
        self.skip(self.number(8))

    def skip_value(self) -> None:
        kind, count = self.number(4), 1
        if kind == ARRAY:
            kind, count = self.number(4), self.number(8)
        if kind in SCALAR_BYTES:
            self.skip(count * SCALAR_BYTES[kind])
        elif kind == STRING:
            for _ in range(count):
                self.skip_string()
        else:
            raise ValueError(f"it holds a value of the unknown type {kind}")

    def weights(self) -> int:
        """Of the next tensor."""
        self.skip_string()
        count = self.number(4)
        if count > MAX_DIMENSIONS:
            raise ValueError(f"a tensor has {count} dimensions")
        found = math.prod(self.number(8) for _ in range(count))
        self.skip(4 + 8)  # its type, and where its data begin
        return found


def check_header(path: Path) -> None:
    """Whether all that the header counts is there, and its tensors are no larger than the file can hold."""
    with path.open("rb") as file:
        try:
            if file.read(4) != MAGIC:
                raise ValueError("it does not begin with GGUF")
            header = HeaderReader(mmap(file.fileno(), 0, access=ACCESS_READ), len(MAGIC))
            if (version := header.number(4)) not in VERSIONS:
                raise ValueError(f"its version is {version}; 2 and 3 are read")
            tensors, values = header.number(8), header.number(8)
            for _ in range(values):
                header.skip_string()
                header.skip_value()
            weights = sum(header.weights() for _ in range(tensors))
            if weights > WEIGHTS_PER_BYTE * len(header.data):
                raise ValueError(f"its tensors have {weights:,} weights, and it has {len(header.data):,} bytes")
        except ValueError as error:
            raise ValueError(f"{path} is damaged or no GGUF file: {error}") from None


# --- the checkpoint ---


@dataclass(frozen=True)
class GGUFCheckpoint:
    """One file: weights, configuration and tokenizer; it is asked as a `Checkpoint` of a folder is."""

    folder: Path  # the file

    @staticmethod
    def of(path: Path) -> "GGUFCheckpoint":
        if find_spec("gguf") is None:
            raise ValueError(f"{path} needs the package gguf; pip install 'regard[interop]'")
        check_header(require_file(path))
        found = GGUFCheckpoint(path)
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
        lists: list[Any] = [self.fields.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type", "merges")]
        pieces, types, merges = lists
        if not all(isinstance(one, list) for one in lists) or len(pieces) != len(types):
            raise ValueError(f"{self.folder} lacks the tokens, their types or the merges of its tokenizer")
        try:
            vocabulary = {piece: n for n, piece in enumerate(pieces)}
            made = Tokenizer(models.BPE(vocabulary, [tuple(one.split(" ")) for one in merges]))
        except Exception as error:  # the library raises nothing more special
            raise ValueError(f"{self.folder}: its tokens and merges are no byte-level BPE: {error}") from None
        made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence(list(PRETOKENIZERS[cut])), decoders.ByteLevel()
        special = [piece for piece, one in zip(pieces, types, strict=True) if one == CONTROL]
        made.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
        return TokenizersEngine(json.dumps(json.loads(made.to_str()), ensure_ascii=False), markup=markup)

    @property
    def adds_bos(self) -> bool:
        return bool(self.fields.get("tokenizer.ggml.add_bos_token", False))
