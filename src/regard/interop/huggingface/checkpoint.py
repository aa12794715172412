"""Checkpoints: the files of a Hugging Face folder, read without running anything of it.

Files come from strangers. Only JSON, safetensors and the files of tokenizers are read, only such as are in the folder
(or in the hub cache that it is part of), and what they say of sizes is checked before memory is taken.
"""

import base64
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.data.files import require_small_file
from regard.data.tokenizers.pretrained import SentencePieceEngine, TokenizerEngine, TokenizersEngine
from regard.interop.huggingface.folder import CONFIG, refuse_unsafe
from regard.interop.huggingface.weights import Shape

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HUB_FOLDER = "models--{}"


def find_folder(given: str | Path) -> Path:
    """The folder that holds config.json: itself, a model of a hub cache, or of the usual hub cache by its name."""
    folder = Path(given)
    if not folder.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(given)):
        folder = hub_cache() / HUB_FOLDER.format(str(given).replace("/", "--"))
        if not folder.exists():
            raise ValueError(
                f"{given}: there is no such folder, and {folder} neither; download it first: hf download {given}"
            )
    if (folder / "snapshots").is_dir() and not (folder / CONFIG).exists():
        folder = snapshot_of(folder)
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} holds no {CONFIG}; give the folder of a Hugging Face model")
    return folder


def hub_cache() -> Path:
    """Where huggingface_hub keeps what it downloads."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def snapshot_of(folder: Path) -> Path:
    """The snapshot that a model of a hub cache stands at, or the only one."""
    found = sorted(path for path in (folder / "snapshots").iterdir() if path.is_dir())
    if (main := folder / "refs" / "main").is_file():
        name = require_small_file(main).read_text(encoding="utf-8").strip()
        found = [path for path in found if path.name == name]
    if len(found) != 1:
        raise ValueError(f"{folder} has {len(found)} snapshots to choose from; name one of {folder / 'snapshots'}")
    return found[0]


@dataclass(frozen=True)
class Checkpoint:
    """A folder as save_pretrained writes it."""

    folder: Path

    @staticmethod
    def of(given: str | Path) -> "Checkpoint":
        folder = find_folder(given)
        refuse_unsafe(folder)
        return Checkpoint(folder)

    def path(self, name: str) -> Path:
        """A file of the folder by its name; one that leads out of it is refused."""
        if name != Path(name).name or name in ("", ".", ".."):
            raise ValueError(f"{self.folder}: {name!r:.80} is not the name of a file in the folder, and is not read")
        path = self.folder / name
        roots = [self.folder.resolve()]
        if self.folder.parent.name == "snapshots":  # whose files are links to the blobs of the hub cache
            roots.append((self.folder.parent.parent / "blobs").resolve())
        if not any(path.resolve().is_relative_to(root) for root in roots):
            raise ValueError(f"{path} is a link that leads out of the folder, and is not read; copy the file instead")
        return path

    def has(self, name: str) -> bool:
        return self.path(name).is_file()

    def bytes(self, name: str) -> bytes:
        return require_small_file(self.path(name)).read_bytes()

    def json(self, name: str) -> dict[str, Any]:
        """An object of a JSON file; {} if there is no such file."""
        if not self.has(name):
            return {}
        try:
            found = json.loads(self.bytes(name).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{self.folder / name} is not JSON ({reason}); save the model again") from None
        if not isinstance(found, dict):
            raise ValueError(f"{self.folder / name} should hold an object; save the model again")
        return found

    @cached_property
    def config(self) -> dict[str, Any]:
        return self.json(CONFIG)

    @property
    def architecture(self) -> str:
        names = self.config.get("architectures")
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise ValueError(f"{self.folder / CONFIG} names no architecture; save the model with save_pretrained")
        return names[0]

    # --- weights ---

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Those that hold the weights."""
        if self.has(WEIGHTS):
            return (self.path(WEIGHTS),)
        shards = self.json(INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise ValueError(f"{self.folder} holds neither {WEIGHTS} nor an {INDEX} that names its parts")
        return tuple(self.path(name) for name in sorted(set(shards.values())))

    @cached_property
    def headers(self) -> dict[str, tuple[Path, Shape]]:
        """The file and the shape of each tensor. A header that does not fit its file is refused by safetensors."""
        found: dict[str, tuple[Path, Shape]] = {}
        for path in self.files:
            try:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118  (no mapping)
                        found[name] = path, tuple(file.get_slice(name).get_shape())
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None
        return found

    def read(self, name: str) -> Tensor:
        path, _ = self.headers[name]
        with safe_open(path, framework="pt") as file:
            return file.get_tensor(name)

    # --- the tokenizer ---

    def special_token(self, name: str) -> str | None:
        """What a token such as unk_token is called."""
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            token = self.json(file).get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                return token
        return None

    def engine(self, *, target: bool = False, markup: bool = False) -> TokenizerEngine:
        """The tokenizer: tokenizer.json, or a model of SentencePiece; Marian has another one for the target."""
        try:
            if self.has("tokenizer.json"):
                return TokenizersEngine(self.bytes("tokenizer.json").decode("utf-8"), markup=markup)
            spm = "target.spm" if target else "source.spm"
            vocabulary = "target_vocab.json" if target and self.has("target_vocab.json") else "vocab.json"
            for model, pieces in (
                (spm, vocabulary),
                ("sentencepiece.bpe.model", "vocab.json"),
                ("spiece.model", ""),
            ):
                if self.has(model):
                    return self.sentencepiece(model, pieces)
        except UnicodeDecodeError:
            raise ValueError(f"{self.folder / 'tokenizer.json'} is no text; save the tokenizer again") from None
        except ValueError as error:
            raise ValueError(f"{self.folder}: {error}") from None
        raise ValueError(
            f"{self.folder} holds no tokenizer that is known here: tokenizer.json, or a model of SentencePiece "
            "(source.spm, sentencepiece.bpe.model, spiece.model); save it by tokenizer.save_pretrained(folder)"
        )

    def sentencepiece(self, model: str, vocabulary: str) -> SentencePieceEngine:
        """Its pieces are numbered by a file of the vocabulary, or as the model itself has them."""
        coded = base64.b64encode(self.bytes(model)).decode()
        pieces = self.json(vocabulary) if vocabulary else own_pieces(coded)
        pieces = {**pieces, **self.added_tokens(len(pieces))}
        if not all(isinstance(one, int) and 0 <= one < 2**24 for one in pieces.values()):
            raise ValueError(f"{vocabulary} should hold whole numbers, the ids of its pieces")
        by_id = {one: piece for piece, one in pieces.items()}
        size = max(by_id) + 1
        unknown = pieces.get(self.special_token("unk_token") or "<unk>")
        if len(by_id) != len(pieces) or size > 2 * len(by_id) or unknown is None:
            raise ValueError(f"{vocabulary} gives two pieces one id, or leaves ids out, or knows no <unk>")
        special = [pieces[name] for name in self.special_names(pieces) if name in pieces]
        return SentencePieceEngine(
            coded, tuple(by_id.get(one, f"<{one}>") for one in range(size)), unknown, tuple(sorted(set(special)))
        )

    def added_tokens(self, size: int) -> dict[str, int]:
        """Tokens that the vocabulary's own file does not have, such as the tags of languages, by the ids they have."""
        found: dict[str, int] = {}
        config = {**self.json("special_tokens_map.json"), **self.json("tokenizer_config.json")}
        decoder = config.get("added_tokens_decoder")
        for one, token in decoder.items() if isinstance(decoder, dict) else ():
            if isinstance(token, dict) and isinstance(token.get("content"), str) and one.isdecimal():
                found[token["content"]] = int(one)
        if not found and isinstance(more := config.get("additional_special_tokens"), list):
            found = {name: size + n for n, name in enumerate(more) if isinstance(name, str)}
        for name, one in self.json("added_tokens.json").items():
            found[name] = one
        return found

    def special_names(self, pieces: Mapping[str, int]) -> list[str]:
        known = [self.special_token(f"{name}_token") for name in ("bos", "eos", "unk", "pad", "cls", "sep", "mask")]
        return [name for name in (*known, *self.added_tokens(len(pieces)), "<s>", "</s>", "<unk>", "<pad>") if name]


def own_pieces(model: str) -> dict[str, int]:
    """The pieces of a model of SentencePiece as it numbers them."""
    engine = SentencePieceEngine(model, (), 0).engine
    return {engine.id_to_piece(n): n for n in range(engine.get_piece_size())}
