"""Hostile checkpoints: pickles, code, paths, links and sizes in the files of others are refused in a line, at every
door, before memory is taken, and leave nothing behind."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.interop import import_model
from regard.interop.huggingface.checkpoint import load_folder
from regard.interop.onnx import OnnxLanguageModel
from tests.cli.commands import assert_refused
from tests.cli.commands import regard as command
from tests.hostile.bounds import bounded
from tests.interop.checkpoints import CHECKPOINTS, SENTENCES, save_gguf, train_sentencepiece, write_json

Change = Callable[[Path], Any]
SPRUNG = "sprung"  # the file that a trap makes


class Trap:
    def __reduce__(self):
        return os.mkdir, (SPRUNG,)


PICKLE = pickle.dumps(Trap())
CODE = f"import os\nos.mkdir({SPRUNG!r})\nclass Evil: pass\n"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FIRST = "transformer.wte.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Callable[[str], Path]:
    """A family's small checkpoint, made once."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("checkpoint") / "folder"
            CHECKPOINTS[name].save(made[name])
        return made[name]

    return get


@pytest.fixture
def assert_spoilt_is_refused(folders, tmp_path, monkeypatch):
    """Imports a family's checkpoint that somebody changed, and loads it for look and serve; both must refuse it."""
    monkeypatch.chdir(tmp_path)

    def attempt(
        change: Change, message: str, family: str = "GPT-2", doors: tuple[str, ...] = ("import", "load")
    ) -> None:
        shutil.copytree(folders(family), "folder")
        change(Path("folder"))
        for door in doors:
            with bounded(), pytest.raises(ValueError, match=message) as refused:
                import_model("folder", "run") if door == "import" else load_folder(Path("folder"))
            assert "\n" not in str(refused.value)
        assert not Path(SPRUNG).exists()
        assert not Path("run").exists()

    return attempt


def write(name: str, data: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(data)


def configure(name: str = "config.json", **changes: Any) -> Change:
    def change(folder: Path) -> None:
        values = json.loads((folder / name).read_text())
        write_json(folder / name, values | changes)

    return change


def in_shards(*names: str) -> Change:
    """The weights in a file that is called otherwise, and an index of these names."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "whole.safetensors")
        write_json(folder / INDEX, {"metadata": {}, "weight_map": dict.fromkeys([FIRST], *names)})

    return change


def together(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


# --- pickles ---


JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", INDEX)


@pytest.mark.parametrize("name", [*JSON_FILES, "special_tokens_map.json", WEIGHTS])
def test_a_pickle_in_the_place_of_a_file_is_not_opened(assert_spoilt_is_refused, name):
    assert_spoilt_is_refused(write(name, PICKLE), r"folder/|folder cannot be loaded")


def test_weights_that_are_a_pickle_are_refused_by_their_name(assert_spoilt_is_refused):
    def change(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / "pytorch_model.bin").write_bytes(PICKLE)

    assert_spoilt_is_refused(change, "pytorch_model.bin is a pickle, which can run code, and is not read")


@pytest.mark.parametrize("name", ["a.bin", "a.safetensors"])
def test_a_pickle_in_the_place_of_a_part_of_the_weights_is_not_opened(assert_spoilt_is_refused, name):
    assert_spoilt_is_refused(
        together(in_shards(name), write(name, PICKLE)), f"{name} is damaged or no safetensors file"
    )


def test_a_pickle_in_the_place_of_a_sentencepiece_model_is_not_opened(assert_spoilt_is_refused):
    def change(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        (folder / "source.spm").write_bytes(PICKLE)
        write_json(folder / "vocab.json", {"<unk>": 0})

    assert_spoilt_is_refused(change, "the tokenizer is no model of SentencePiece", "Marian", ("import",))


def test_a_pickle_in_the_place_of_a_vocabulary_is_not_opened(assert_spoilt_is_refused):
    def change(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        train_sentencepiece(folder, SENTENCES * 3, "source.spm")
        (folder / "vocab.json").write_bytes(PICKLE)

    assert_spoilt_is_refused(change, "vocab.json is not JSON", "Marian", ("import",))


def test_a_pickle_in_the_place_of_what_prepares_images_is_not_opened(assert_spoilt_is_refused):
    assert_spoilt_is_refused(write("preprocessor_config.json", PICKLE), "preprocessor_config.json is not JSON", "ViT")


@pytest.mark.parametrize("data", [PICKLE, b"", None], ids=["pickle", "empty", "missing"])
def test_a_pickle_in_the_place_of_an_onnx_model_is_not_opened(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if data is not None:
        Path("decoder.onnx").write_bytes(data)
    with pytest.raises(ValueError, match="is damaged or no ONNX model") as refused:
        OnnxLanguageModel.load(Path())
    assert "\n" not in str(refused.value)
    assert not Path(SPRUNG).exists()


# --- code ---


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_of_a_checkpoint_is_not_run(assert_spoilt_is_refused, name):
    names = {"AutoModelForCausalLM": "evil.Evil", "AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    change = together(write("evil.py", CODE.encode()), configure(name, auto_map=names))
    assert_spoilt_is_refused(change, rf"{name} names code of its own \(auto_map\), which is not run")


def test_an_architecture_of_its_own_is_unknown(assert_spoilt_is_refused):
    change = together(write("evil.py", CODE.encode()), configure(architectures=["evil.Evil"]))
    assert_spoilt_is_refused(change, "'evil.Evil'")


# --- paths ---


@pytest.mark.parametrize("name", ["../whole.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""])
def test_an_index_names_files_of_the_folder_alone(assert_spoilt_is_refused, name):
    assert_spoilt_is_refused(in_shards(name), "is no name of a file in the folder; it is not read")


def test_an_index_of_parts_that_are_missing(assert_spoilt_is_refused):
    assert_spoilt_is_refused(
        in_shards("gone.safetensors"), "gone.safetensors is damaged or no safetensors file: No such file"
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json", WEIGHTS])
def test_a_link_out_of_the_folder_is_not_followed(assert_spoilt_is_refused, name):
    def change(folder: Path) -> None:
        (folder / name).rename(f"outside-{name}")
        (folder / name).symlink_to(Path(f"outside-{name}").absolute())

    assert_spoilt_is_refused(change, f"{name} is a link that leads out of the folder, and is not read")


@pytest.mark.parametrize("name", ["tokenizer.json", WEIGHTS])
def test_a_link_to_itself(assert_spoilt_is_refused, name):
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(name)

    assert_spoilt_is_refused(change, f"{name} points to nothing")


def test_links_to_the_blobs_of_a_hub_cache_are_followed(folders, tmp_path):
    cache = tmp_path / "models--me--small"
    (cache / "snapshots").mkdir(parents=True)
    shutil.copytree(folders("GPT-2"), cache / "blobs")
    (cache / "snapshots" / "abc").mkdir()
    for path in (cache / "blobs").iterdir():
        (cache / "snapshots" / "abc" / path.name).symlink_to(f"../../blobs/{path.name}")
    assert regard.load(import_model(cache, tmp_path / "run")).task.verb == "generate"
    model, _ = load_folder(cache / "snapshots" / "abc")
    assert type(model).__name__ == "GPT2LMHeadModel"


# --- sizes ---


def test_files_with_holes(assert_spoilt_is_refused):
    assert_spoilt_is_refused(lambda folder: os.truncate(folder / "tokenizer.json", 2**40), "bytes, more than the")


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1])
def test_weights_that_end_early(assert_spoilt_is_refused, kept):
    def change(folder: Path) -> None:
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:kept])

    assert_spoilt_is_refused(change, f"{WEIGHTS} is damaged or no safetensors file")


@pytest.mark.parametrize(
    "claim",
    [{"shape": [10**9, 10**9]}, {"shape": [-1, 24]}, {"data_offsets": [0, 10**15]}, {"dtype": "I64"}, {"dtype": "PY"}],
    ids=str,
)
def test_a_header_of_weights_that_does_not_fit_them(assert_spoilt_is_refused, claim):
    def change(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:start])
        header[FIRST] |= claim
        written = json.dumps(header).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(written)) + written + data[start:])

    assert_spoilt_is_refused(change, f"{WEIGHTS} is damaged or no safetensors file")


def test_a_header_longer_than_its_file(assert_spoilt_is_refused):
    assert_spoilt_is_refused(write(WEIGHTS, struct.pack("<Q", 2**62) + b"{}"), "header too large")


def test_weights_that_are_not_numbers(assert_spoilt_is_refused):
    def change(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        (folder / WEIGHTS).write_bytes(data[:start] + b"\xff" * (len(data) - start))

    assert_spoilt_is_refused(change, "holds NaN", doors=("import",))


@pytest.mark.parametrize("value", [10**9, 10**30, float("nan"), float("inf"), "many", [1], -1], ids=str)
@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("n_embd", "GPT-2"),
        ("n_layer", "GPT-2"),
        ("n_positions", "GPT-2"),
        ("n_inner", "GPT-2"),
        ("num_hidden_layers", "Llama"),
        ("d_model", "Marian"),
        ("image_size", "ViT"),
        ("relative_attention_num_buckets", "T5"),
    ],
)
def test_a_size_that_no_model_has_is_refused_before_it_is_built(assert_spoilt_is_refused, name, family, value):
    assert_spoilt_is_refused(configure(**{name: value}), "folder", family, ("import",))


@pytest.mark.parametrize(
    ("changes", "family"),
    [
        ({"n_embd": 10**9}, "GPT-2"),
        ({"n_layer": 10**6}, "GPT-2"),
        ({"n_embd": 2**20, "vocab_size": 2**20}, "GPT-2"),
        ({"layer_norm_epsilon": float("nan")}, "GPT-2"),
        ({"vocab_size": "many"}, "GPT-2"),
        ({"max_position_embeddings": 2**23}, "Marian"),
        ({"num_labels": 2**22}, "ViT"),
    ],
    ids=str,
)
def test_sizes_are_refused_where_transformers_builds_the_model_too(assert_spoilt_is_refused, changes, family):
    assert_spoilt_is_refused(configure(**changes), "folder", family, ("load",))


@pytest.mark.parametrize(
    "words", [("look", "folder", "a cat"), ("serve", "folder"), ("import", "folder", "--out", "run")]
)
def test_every_command_says_so_in_a_line(words, folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders("GPT-2"), "folder")
    in_shards("../whole.safetensors")(Path("folder"))
    assert_refused(command(*words), "folder/model.safetensors.index.json: '../whole.safetensors' is no name of a file")
    assert not Path("run").exists()


# --- GGUF ---


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    save_gguf(path)
    return path.read_bytes()


def assert_gguf_is_refused(data: bytes, path: Path, message: str = "small.gguf is damaged or no GGUF file") -> None:
    path.write_bytes(data)
    with bounded(), pytest.raises(ValueError, match=message) as refused:
        import_model(path, path.with_name("run"))
    assert "\n" not in str(refused.value)
    assert not path.with_name("run").exists()


def test_a_pickle_is_no_gguf_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_gguf_is_refused(PICKLE, Path("small.gguf"), "it does not begin with GGUF")
    assert_gguf_is_refused(b"GGUF" + PICKLE, Path("small.gguf"))
    assert not Path(SPRUNG).exists()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.2, 0.6, 0.999])
def test_a_gguf_file_that_ends_early(gguf_bytes, tmp_path, share):
    assert_gguf_is_refused(gguf_bytes[: max(4, int(share * len(gguf_bytes)))], tmp_path / "small.gguf", "small.gguf")


@pytest.mark.parametrize("at", [4, 8, 16, 24], ids=["version", "tensors", "values", "length of a key"])
@pytest.mark.parametrize("number", [2**31 - 1, 2**62])
def test_a_gguf_file_that_counts_more_than_it_holds(gguf_bytes, tmp_path, at, number):
    size = 4 if at == 4 else 8
    claim = (number % 2 ** (8 * size)).to_bytes(size, "little")
    assert_gguf_is_refused(gguf_bytes[:at] + claim + gguf_bytes[at + size :], tmp_path / "small.gguf")


def test_a_list_and_a_tensor_of_a_gguf_file_that_are_longer_than_it(gguf_bytes, tmp_path):
    tokens = gguf_bytes.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8  # its types
    huge = (2**60).to_bytes(8, "little")
    assert_gguf_is_refused(gguf_bytes[:tokens] + huge + gguf_bytes[tokens + 8 :], tmp_path / "small.gguf")
    rows = gguf_bytes.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4  # its number of dimensions
    assert_gguf_is_refused(
        gguf_bytes[:rows] + huge + gguf_bytes[rows + 8 :], tmp_path / "small.gguf", "its tensors have"
    )


@pytest.mark.parametrize("key", [b"tokenizer.ggml.tokens", b"tokenizer.ggml.merges", b"llama.embedding_length"])
def test_a_gguf_file_that_lacks_what_it_needs(gguf_bytes, tmp_path, key):
    assert_gguf_is_refused(gguf_bytes.replace(key, key[:-1] + b"_"), tmp_path / "small.gguf", "small.gguf")
