"""Checkpoints: Hugging Face folders and GGUF files, read without running anything of them, and the models in them.

Files come from strangers. Only JSON, safetensors and the files of tokenizers are read, only such as are in the folder
(or in the hub cache that it is part of), and what they say of sizes is checked before memory is taken. A GGUF file, the
quantised checkpoint of llama.cpp, is dequantised to float32 and imported like any other.
"""

import base64
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from math import isfinite
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

from regard.data.files import require_file, require_small_file
from regard.data.tokenizers.pretrained import SentencePieceEngine, TokenizerEngine, TokenizersEngine
from regard.interop.huggingface.weights import LARGEST_SIZE, Shape
from regard.models.safetensors_io import shapes_only
from regard.tasks.registry import FOREIGN_TASKS

# --- what is safe, and the model of transformers ---


CONFIG = "config.json"
# what else transformers reads of a folder, besides weights and the files of tokenizers
OTHER_CONFIGS = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "preprocessor_config.json",
    "processor_config.json",
    "model.safetensors.index.json",
)
SMALL_FILES = (".json", ".txt", ".model", ".spm", ".jinja")
DEPTHS = {
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
    "num_encoder_layers",
}
SMALL_MODEL = 2**24  # weights that a file may lack in any case
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")


def require_transformers() -> None:
    """One line that says how to get it."""
    if find_spec("transformers") is None:
        raise ValueError("a Hugging Face model needs transformers; pip install 'regard[huggingface]'")


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    require_small_file(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({' '.join(str(error).split())}); save the model again") from None
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        raise ValueError(f"{path} names no model_type; save the model with save_pretrained")
    return found


def refuse_unsafe(folder: Path) -> None:
    """Weights that are pickles can run code, and so can a checkpoint that brings its own modules."""
    if not list(folder.glob("*.safetensors")):
        pickles = sorted(path.name for kind in PICKLES for path in folder.glob(kind))
        remedy = 'load it where you trust it and save it again: model.save_pretrained("folder")'
        if pickles:
            raise ValueError(f"{folder / pickles[0]} is a pickle, which can run code, and is not read; {remedy}")
        raise ValueError(f"{folder} holds no weights: model.safetensors is missing; {remedy}")
    read_config(folder)
    checkpoint = Checkpoint(folder)
    for path in sorted(folder.iterdir()):
        if path.suffix in (*SMALL_FILES, ".safetensors"):
            checkpoint.path(path.name)
            if path.is_symlink() and not path.exists():
                raise ValueError(f"{path} points to nothing; copy the file")
        if path.suffix in SMALL_FILES and path.is_file():
            require_small_file(path)
    for name in (CONFIG, *OTHER_CONFIGS):
        if "auto_map" in checkpoint.json(name):
            raise ValueError(
                f"{folder / name} names code of its own (auto_map), which is not run; use a model of transformers"
            )
    refuse_sizes(checkpoint)


def refuse_sizes(checkpoint: "Checkpoint") -> None:
    """Sizes that no model of these files can have, before anything is built."""
    tensors = len(checkpoint.headers)
    rows = max((size for _, shape in checkpoint.headers.values() for size in shape), default=0)
    for name, value in numbers_of(checkpoint.config):
        if value > LARGEST_SIZE if isinstance(value, int) else not isfinite(value):
            raise ValueError(f"{checkpoint.folder / CONFIG}: {name} = {value!r:.80} is no size of a model")
        if name in DEPTHS and value > tensors:
            raise ValueError(f"{checkpoint.folder / CONFIG} asks for {value} layers, and there are {tensors} tensors")
        if name == "num_labels" and value > rows:  # for each of which transformers makes a name
            raise ValueError(
                f"{checkpoint.folder / CONFIG} asks for {value} labels, and tensors have {rows} rows at most"
            )


def numbers_of(config: Mapping[str, Any]) -> Iterator[tuple[str, int | float]]:
    """All numbers of a configuration and of those inside of it, by their names."""
    waiting = list(config.items())
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, int | float):
            yield name, value


def refuse_memory(folder: Path, kind: Any) -> None:
    """A model much larger than its files, before memory is taken for what they lack."""
    from transformers import AutoConfig

    with shapes_only():
        model = kind(AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False))
    wanted = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    held = sum(path.stat().st_size for path in Checkpoint(folder).files)
    if wanted > 2 * held + SMALL_MODEL:  # two numbers a byte, as 4 bits have
        raise ValueError(
            f"{folder / CONFIG} asks for {wanted:,} weights, and its files hold {held:,} bytes: they are no pair"
        )


def model_class(folder: Path) -> Any:
    """The class of transformers that the configuration names."""
    import transformers

    names = read_config(folder).get("architectures") or []
    if not names or not isinstance(names[0], str):
        raise ValueError(f"{folder / CONFIG} names no architecture; save the model with save_pretrained")
    found = getattr(transformers, names[0], None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise ValueError(f"{folder / CONFIG}: transformers {transformers.__version__} has no model {names[0]!r:.80}")
    return found


def task_name(folder: Path) -> str:
    """The task of a folder's model, without its weights."""
    require_transformers()
    refuse_unsafe(folder)
    return task_of(model_class(folder), is_encoder_decoder=bool(read_config(folder).get("is_encoder_decoder")))


def task_of(kind: Any, *, is_encoder_decoder: bool) -> str:
    """Which of the tasks a class of transformers is for: by what it reads, and whether it generates."""
    causal, pair, encoder, image, speech = FOREIGN_TASKS
    match kind.main_input_name, bool(kind.can_generate()):
        case "input_ids", False:
            return encoder
        case "input_ids", True:
            return pair if is_encoder_decoder else causal
        case "pixel_values", False:
            return image
        case "input_features", True:
            return speech
    raise ValueError(
        f"{kind.__name__} reads {kind.main_input_name}; what is traced are texts, pictures of vision models, and "
        "sounds of models that write a text; watch it: regard.watch(model)"
    )


def load_folder(folder: Path) -> tuple[nn.Module, Any]:
    """The model, and its tokenizer, image processor or processor; nothing is downloaded."""
    require_transformers()
    refuse_unsafe(folder)
    from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer

    _, _, _, image, speech = FOREIGN_TASKS
    auto = {image: AutoImageProcessor, speech: AutoProcessor}.get(task_name(folder), AutoTokenizer)
    try:
        with hidden_progress_bar():
            refuse_memory(folder, model_class(folder))
            model = model_class(folder).from_pretrained(
                folder, use_safetensors=True, local_files_only=True, trust_remote_code=False
            )
            processor = auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and what it is made of raise whatever they meet
        raise ValueError(f"{folder} cannot be loaded: {' '.join(str(error).split())[:300]}; save it again") from None
    return model.eval(), processor


@contextmanager
def hidden_progress_bar() -> Iterator[None]:
    """Without that of transformers, for models that are loaded in a moment."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


# --- the files ---


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
        path = self.folder / name
        roots = [self.folder.resolve()]
        if self.folder.parent.name == "snapshots":  # whose files are links to the blobs of the hub cache
            roots.append((self.folder.parent.parent / "blobs").resolve())
        # realpath follows a link to itself as far as it goes, where `resolve` fails
        if not any(Path(os.path.realpath(path)).is_relative_to(root) for root in roots):
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
        for name in shards.values():
            if name != Path(name).name or name in ("", ".", ".."):
                raise ValueError(
                    f"{self.folder / INDEX}: {name!r:.80} is no name of a file in the folder; it is not read"
                )
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
            except (SafetensorError, OSError, MemoryError) as error:
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
                ("tokenizer.model", ""),
            ):
                if self.has(model):
                    return self.sentencepiece(model, pieces)
        except UnicodeDecodeError:
            raise ValueError(f"{self.folder / 'tokenizer.json'} is no text; save the tokenizer again") from None
        except ValueError as error:
            raise ValueError(f"{self.folder}: {error}") from None
        raise ValueError(
            f"{self.folder} holds no tokenizer that is known here: tokenizer.json, or a model of SentencePiece "
            "(source.spm, sentencepiece.bpe.model, spiece.model, tokenizer.model); save it again: "
            "tokenizer.save_pretrained(folder)"
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


# --- GGUF files ---


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
