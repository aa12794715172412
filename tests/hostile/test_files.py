"""Bad files for every reader: each is read, or refused in one line that names it, in little time and memory.

A case is a reader, one file of those it reads, and what was done to that file. The long form draws many more cases.
"""

import gzip
import hashlib
import json
import lzma
import os
import random
import tarfile
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save
from torch import nn

from regard.attention import Recipe
from regard.data.corpora import sha256_digest
from regard.data.files import MAX_LINE_BYTES, MAX_SMALL_BYTES, MAX_UNPACK_RATIO, GzipReader, read_lines
from regard.data.graphs import BagOfWords, StandardScaler, load_featurizer, read_graph
from regard.data.images import (
    PixelScaling,
    read_idx,
    read_image,
    read_images,
    read_question_list,
    read_visual_questions,
)
from regard.data.labelled import Labels, read_labelled, read_tagged
from regard.data.lm_blocks import read_text
from regard.data.parallel import read_pairs
from regard.data.preprocess import ImagePreprocessor
from regard.data.tokenizers.base import ByteTokenizer, CharTokenizer, WordTokenizer
from regard.data.tokenizers.subwords import SubwordTokenizer, load_tokenizer
from regard.decode.alignment import load_alignment_heads
from regard.models.baselines import WordVectors
from regard.models.safetensors_io import load_weights, saveable_tensors
from regard.see.plots.draw import parse_file
from regard.tasks.language_modeling.token_nll import NeuralCache
from regard.tasks.pretrained import SavedPart
from regard.tasks.translation.task import TranslationSettings
from regard.training.checkpoint import Progress, read_checkpoint, write_checkpoint
from tests.cli.commands import assert_refused, regard
from tests.hostile.bounds import bounded
from tests.see.untrained_models import LEARNERS, translator


def assert_read_or_refused(read: Callable[[], object], file: Path) -> str:
    """What was said, if it was refused."""
    message = ""
    with bounded():
        try:
            read()
        except ValueError as refusal:
            message = str(refusal)
    if message:
        assert file.name in message, message
        assert "\n" not in message, message
        assert "object at 0x" not in message, message
    return message


# --- every reader, and files as they should be ---


@dataclass(frozen=True)
class Reader:
    """How a folder is read, and what its files hold; the last of them is spoilt."""

    read: Callable[[Path], object]
    files: dict[str, bytes]

    def write(self, folder: Path) -> Path:
        for name, held in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(held)
        return folder / list(self.files)[-1]


def picture() -> bytes:
    file = BytesIO()
    Image.fromarray(np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)).save(file, "PNG")
    return file.getvalue()


def packed_tar(files: dict[str, bytes]) -> bytes:
    file = BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, held in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(held)
            archive.addfile(member, BytesIO(held))
    return file.getvalue()


def as_json(**held: object) -> bytes:
    return json.dumps(held, ensure_ascii=False).encode()


def small_model() -> nn.Module:
    return nn.Linear(3, 2)


def checkpoint(folder: Path) -> dict[str, bytes]:
    model = small_model()
    write_checkpoint(folder, model, torch.optim.SGD(model.parameters()), Progress(step=7, history=({"loss": 1.5},)))
    names = ("model.safetensors", "optimiser.safetensors", "state.json")
    return {f"00000007/{name}": (folder / "00000007" / name).read_bytes() for name in names}


def resumed(folder: Path) -> object:
    """What no longer fits is passed over, and nothing is loaded from it."""
    model = small_model()
    return read_checkpoint(folder, model, torch.optim.SGD(model.parameters()))


TREE = "1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\tcat\tcat\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
TEXTS = ["the black cat", "a mouse"] * 20


def readers(scratch: Path) -> dict[str, Reader]:
    def saved(part: SavedPart) -> bytes:
        part.save(scratch / "part")
        return (scratch / "part").read_bytes()

    shots = {"cat/1.png": picture(), "dog/2.png": picture()}
    questions = {"images/0.png": picture(), "questions.json": json.dumps([["what is it", "a cat", 0]]).encode()}
    return {
        "lines": Reader(lambda f: list(read_lines(f / "a.txt")), {"a.txt": b"the cat\nthe dog\n"}),
        "text": Reader(lambda f: read_text(f / "a.txt"), {"a.txt": b"the cat\nthe dog\n"}),
        "parallel": Reader(
            lambda f: list(read_pairs([f / "a.en", f / "a.fr"])), {"a.en": b"the cat\n", "a.fr": b"le chat\n"}
        ),
        "tsv": Reader(lambda f: list(read_pairs(f / "a.tsv")), {"a.tsv": b"the cat\tle chat\n"}),
        "jsonl": Reader(
            lambda f: list(read_pairs(f / "a.jsonl")), {"a.jsonl": as_json(source="the cat", target="le chat") + b"\n"}
        ),
        "labelled tsv": Reader(lambda f: list(read_labelled(f / "a.tsv")), {"a.tsv": b"good\tyes\nbad\tno\n"}),
        "labelled jsonl": Reader(
            lambda f: list(read_labelled(f / "a.jsonl")), {"a.jsonl": as_json(text="good", label="yes") + b"\n"}
        ),
        "conllu": Reader(lambda f: list(read_tagged(f / "a.conllu")), {"a.conllu": TREE.encode()}),
        "columns": Reader(lambda f: list(read_tagged(f / "a.tsv")), {"a.tsv": b"the\tDET\ncat\tNOUN\n\n"}),
        "picture": Reader(lambda f: read_image(f / "a.png"), {"a.png": picture()}),
        "pictures": Reader(lambda f: read_images(f), shots),
        "archive": Reader(lambda f: read_images(f / "a.tar.gz"), {"a.tar.gz": packed_tar(shots)}),
        "idx": Reader(lambda f: read_idx(f / "a-idx1-ubyte"), {"a-idx1-ubyte": b"\0\0\x08\x01\0\0\0\x03abc"}),
        "questions": Reader(lambda f: read_visual_questions(f), questions),
        "listed questions": Reader(
            lambda f: read_question_list(f / "a.tsv"), {"1.png": picture(), "a.tsv": b"1.png\twhat is it\ta cat\n"}
        ),
        "nodes": Reader(
            lambda f: read_graph(f / "nodes.tsv", f / "edges.tsv"),
            {"edges.tsv": b"a\tb\n", "nodes.tsv": b"name\tlabel\tfeatures\na\tx\t1 2\nb\ty\t3 4\n"},
        ),
        "edges": Reader(
            lambda f: read_graph(f / "nodes.tsv", f / "edges.tsv"),
            {"nodes.tsv": b"name\tlabel\ttext\na\tx\tone\nb\ty\ttwo\n", "edges.tsv": b"a\tb\n"},
        ),
        "word vectors": Reader(lambda f: WordVectors.load(f / "v.txt"), {"v.txt": b"2 3\nthe 1 2 3\ncat 4 5 6\n"}),
        "settings": Reader(
            lambda f: TranslationSettings.load(f / "settings.toml"),
            {"settings.toml": TranslationSettings.of_world().to_toml().encode()},
        ),
        "recipe": Reader(lambda f: parse_file(f / "r.toml"), {"r.toml": Recipe().to_toml().encode()}),
        "words": Reader(lambda f: load_tokenizer(f / "w.json"), {"w.json": saved(WordTokenizer.train(TEXTS))}),
        "characters": Reader(lambda f: load_tokenizer(f / "w.json"), {"w.json": saved(CharTokenizer.train(TEXTS))}),
        "subwords": Reader(
            lambda f: load_tokenizer(f / "w.json"), {"w.json": saved(SubwordTokenizer.bpe(TEXTS, size=300))}
        ),
        "bytes": Reader(lambda f: load_tokenizer(f / "w.json"), {"w.json": saved(ByteTokenizer())}),
        "labels": Reader(lambda f: Labels.load(f / "l.json"), {"l.json": saved(Labels(("no", "yes")))}),
        "sight": Reader(
            lambda f: ImagePreprocessor.load(f / "s.json"),
            {"s.json": saved(ImagePreprocessor(1, 5, 7, PixelScaling((0.5,), (0.25,))))},
        ),
        "bag": Reader(lambda f: load_featurizer(f / "n.json"), {"n.json": saved(BagOfWords(("a", "b")))}),
        "standard": Reader(lambda f: load_featurizer(f / "n.json"), {"n.json": saved(StandardScaler((0.5,), (1.5,)))}),
        "pointer": Reader(NeuralCache.load, {"pointer.json": json.dumps(asdict(NeuralCache(10, 0.5, 0.1))).encode()}),
        "heads": Reader(load_alignment_heads, {"heads.json": b'[["decoder.0.cross", 1, 0]]'}),
        "weights": Reader(
            lambda f: load_weights(small_model(), f / "w.safetensors"),
            {"w.safetensors": save(saveable_tensors(small_model()))},
        ),
        "state": Reader(resumed, checkpoint(scratch)),
    }


@pytest.fixture(scope="module")
def every(tmp_path_factory) -> dict[str, Reader]:
    return readers(tmp_path_factory.mktemp("scratch"))


NAMES = (
    *("lines", "text", "parallel", "tsv", "jsonl", "labelled tsv", "labelled jsonl", "conllu", "columns", "picture"),
    *("pictures", "archive", "idx", "questions", "listed questions", "nodes", "edges", "word vectors", "settings"),
    *("recipe", "words", "characters", "subwords", "bytes", "labels", "sight", "bag", "standard", "pointer", "heads"),
    *("weights", "state"),
)


def test_every_reader_reads_what_is_well(every, tmp_path):
    assert tuple(every) == NAMES
    for name, reader in every.items():
        (tmp_path / name).mkdir()
        file = reader.write(tmp_path / name)
        assert assert_read_or_refused(lambda one=reader, where=tmp_path / name: one.read(where), file) == ""
    assert resumed(tmp_path / "state") is not None


# --- what can be done to a file ---


def torn(held: bytes, chance: random.Random) -> bytes:
    return held[: chance.randrange(len(held) + 1)]


def flipped(held: bytes, chance: random.Random) -> bytes:
    spoilt = bytearray(held)
    for _ in range(chance.choice((1, 2, 10))):
        spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
    return bytes(spoilt)


def inserted(held: bytes, chance: random.Random) -> bytes:
    """Signs that mean something to somebody."""
    signs = (b"\0", b"\t", b"\n", b"\r", b"\xff", b"[", b"{", b'"', b"-", b"9" * 30, b"1e999", b"\xed\xa0\x80", b"# ")
    at = chance.randrange(len(held) + 1)
    return held[:at] + chance.choice(signs) * chance.choice((1, 1, 7)) + held[at:]


def repeated(held: bytes, chance: random.Random) -> bytes:
    return held + torn(held, chance)


STRANGE = (None, True, -1, 0, 10**30, 1e308, float("inf"), float("nan"), "", "\0", "/dev/zero", [], [[]], {}, {"a": 1})


def mistyped(held: bytes, chance: random.Random) -> bytes:
    """JSON in which one value is another; for other files, what JSON would be."""
    try:
        value = json.loads(held)
    except ValueError:
        return json.dumps(chance.choice(STRANGE)).encode()
    holder, path = [value], 0
    place: tuple[list | dict, int | str] = (holder, path)
    while isinstance(here := place[0][place[1]], list | dict) and here and chance.random() < 0.8:
        place = here, chance.choice(range(len(here)) if isinstance(here, list) else list(here))
    if chance.random() < 0.2 and isinstance(place[0], dict):
        del place[0][place[1]]
    else:
        place[0][place[1]] = chance.choice(STRANGE)
    return json.dumps(holder[0]).encode()


SPOILERS = (torn, flipped, inserted, repeated, mistyped)


def assert_spoilt_files_are_told(every: dict[str, Reader], name: str, folder: Path, seeds: range) -> None:
    reader = every[name]
    file = reader.write(folder)
    held = file.read_bytes()
    for seed in seeds:
        chance = random.Random(f"{name} {seed}")
        file.write_bytes(SPOILERS[seed % len(SPOILERS)](held, chance))
        try:
            assert_read_or_refused(lambda: reader.read(folder), file)
        except BaseException as trouble:
            trouble.add_note(f"seed {seed}: {file.read_bytes()[:1000]!r}")
            raise


@pytest.mark.parametrize("name", NAMES)
def test_a_spoilt_file_is_read_or_named(every, name, tmp_path):
    assert_spoilt_files_are_told(every, name, tmp_path, range(25))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_spoilt_files_are_read_or_named(every, name, tmp_path):
    assert_spoilt_files_are_told(every, name, tmp_path, range(25, 1500))


WHOLES = {
    "nothing": b"",
    "a blank": b" ",
    "NULs": bytes(1000),
    "noise": random.Random(0).randbytes(5000),
    "UTF-16": "the cat\n".encode("utf-16"),
    "lists in lists": b"[" * 100_000,
    "objects in objects": b'{"a":' * 100_000,
    "lists in lists in TOML": b"a = " + b"[" * 1500 + b"]" * 1500,
    "a huge number": b"9" * 5000,
    "a line without end": b"a" * (MAX_LINE_BYTES + 7),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_something_else_is_read_or_named(every, name, tmp_path):
    file = every[name].write(tmp_path)
    for what, held in WHOLES.items():
        file.write_bytes(held)
        if not assert_read_or_refused(lambda: every[name].read(tmp_path), file):
            assert name in ("lines", "text", "parallel", "state") or what in ("a blank", "nothing"), what


def place_pipe(path: Path) -> None:
    os.mkfifo(path)


PLACED: dict[str, Callable[[Path], object]] = {
    "pipe": place_pipe,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("what", PLACED)
def test_what_is_no_file_is_named_and_keeps_nobody_waiting(every, what, tmp_path):
    for name, reader in every.items():
        (tmp_path / name).mkdir()
        file = reader.write(tmp_path / name)
        file.unlink()
        PLACED[what](file)
        message = assert_read_or_refused(lambda one=reader, where=tmp_path / name: one.read(where), file)
        assert message or name in ("state", "pointer", "heads", "pictures", "questions"), name


def test_a_file_with_a_hole_does_not_fill_the_memory(every, tmp_path):
    """Of 2^36 bytes, none of which is on the disk."""
    for name, reader in every.items():
        if name in ("text", "idx", "weights"):
            continue  # two are read as they are; weights are mapped
        (tmp_path / name).mkdir()
        file = reader.write(tmp_path / name)
        os.truncate(file, 2**36)
        message = assert_read_or_refused(lambda one=reader, where=tmp_path / name: one.read(where), file)
        assert message or name == "state", name


# --- bombs ---


Opener = Callable[[Any, Literal["wb"]], gzip.GzipFile | lzma.LZMAFile]
OPENERS: dict[str, Opener] = {"gz": gzip.open, "xz": lzma.open}


def bomb(unpacked: bytes, times: int, opener: Opener = gzip.open) -> bytes:
    file = BytesIO()
    with opener(file, "wb") as packing:
        for _ in range(times):
            packing.write(unpacked)
    return file.getvalue()


@pytest.fixture
def freely(monkeypatch) -> int:
    """So many bytes may be unpacked, and not more: to read 64 MiB takes seconds."""
    monkeypatch.setattr("regard.data.files.UNPACKED_ALWAYS_ALLOWED", 2**18)
    return 2**18


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("ending", "opener"), OPENERS.items())
@pytest.mark.parametrize("unit", [b"a", b"\n", b"the cat\tle chat\n"], ids=["one line", "blank lines", "lines"])
def test_a_packed_flood_is_stopped(ending, opener, unit, freely, tmp_path):
    held = bomb((unit * freely)[:freely], 2, opener)
    assert freely > MAX_UNPACK_RATIO * len(held)
    for name, read in (
        ("a.txt", lambda path: list(read_lines(path))),
        ("b.txt", read_text),
        ("c.tsv", lambda path: list(read_pairs(path, on_empty=len))),
        ("d-idx1-ubyte", read_idx),
    ):
        file = tmp_path / f"{name}.{ending}"
        file.write_bytes(held)
        message = assert_read_or_refused(lambda path=file, read=read: read(path), file)
        assert (
            "unpacks to more than" in message
            or "a line of more than" in message
            or "no IDX file" in message
            or "tab" in message
        )


def test_an_honest_packed_file_is_read_to_its_end(tmp_path):
    lines = [f"{number} sat on {number * number}" for number in range(5000)]
    for ending, opener in OPENERS.items():
        with opener(tmp_path / f"a.txt.{ending}", "wb") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        assert list(read_lines(tmp_path / f"a.txt.{ending}")) == lines


@pytest.mark.parametrize("name", ["a.txt.gz", "a.tar.gz", "a.tgz", "a-idx1-ubyte.gz"])
def test_zeros_behind_a_packed_file_keep_nobody_waiting(every: dict[str, Reader], name: str, tmp_path: Path):
    """Of 2^36 bytes, none of which is on the disk; a few are padding, behind which there may be more."""
    archived = dict.fromkeys(("a.tar.gz", "a.tgz"), every["archive"])
    held = {"a.txt.gz": b"the cat\n", "a-idx1-ubyte.gz": every["idx"].files["a-idx1-ubyte"]}
    read = {"a.txt.gz": lambda path: list(read_lines(path)), "a-idx1-ubyte.gz": read_idx}.get(name, read_images)
    file = tmp_path / name
    packed = archived[name].files["a.tar.gz"] if name in archived else gzip.compress(held[name])
    file.write_bytes(packed)
    os.truncate(file, len(packed) + 2**16)
    assert assert_read_or_refused(lambda: read(file), file) == ""
    os.truncate(file, 2**36)
    assert "zeros after its end; compress the file again" in assert_read_or_refused(lambda: read(file), file)


@pytest.mark.parametrize("size", [1, 7, 258, 2**17])
@pytest.mark.parametrize("between", [0, 1, 511, 2**17, 2**18 + 1])
def test_members_of_a_packed_file_are_read_as_gzip_reads_them(between, size, tmp_path):
    members = [b"", b"the cat\n", b"a" * 1000, random.Random(0).randbytes(300)]
    file = tmp_path / "a.gz"
    file.write_bytes(b"".join(gzip.compress(one) + bytes(between) for one in members))
    with closing(GzipReader(file)) as unpacked:
        assert b"".join(iter(lambda: unpacked.read(size), b"")) == gzip.decompress(file.read_bytes())
    for wrong in (file.read_bytes()[: -between - 9], file.read_bytes() + b"x" * 20):
        file.write_bytes(wrong)
        with closing(GzipReader(file)) as unpacked, pytest.raises((EOFError, zlib.error)):
            list(iter(lambda: unpacked.read(2**17), b""))


def test_a_sum_is_not_made_of_a_hole(tmp_path):
    file = tmp_path / "a.gz"
    file.write_bytes(gzip.compress(b"the cat\n"))
    assert sha256_digest(file) == hashlib.sha256(b"the cat\n").hexdigest()
    os.truncate(file, 2**36)
    assert "zeros after its end" in assert_read_or_refused(lambda: sha256_digest(file), file)


@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE], ids=["pax", "gnu", "file"]
)
def test_an_archive_cannot_unpack_to_more_than_it_may(kind: bytes, freely: int, tmp_path: Path):
    member = tarfile.TarInfo("cat/1.png")
    member.type, member.size = kind, 2**30
    file = tmp_path / "a.tar.gz"
    with gzip.open(file, "wb", compresslevel=1) as packing:
        packing.write(member.tobuf(tarfile.USTAR_FORMAT))
        packing.write(bytes(2 * freely))
    assert "a.tar.gz" in assert_read_or_refused(lambda: read_images(file), file)


@pytest.mark.slow
def test_a_large_flood_takes_no_more_memory_than_a_small_one(tmp_path):
    """A few hundred kilobytes that unpack to 2 GiB of one line."""
    file = tmp_path / "a.txt.xz"
    with lzma.open(file, "wb", preset=0) as packing:
        for _ in range(2048):
            packing.write(b"a" * 2**20)
    for read in (lambda: list(read_lines(file)), lambda: read_text(file)):
        assert assert_read_or_refused(read, file)


# --- state.json ---

SHAPES: dict[str, Callable[[dict], object]] = {
    "a list": lambda state: [state],
    "nothing": lambda state: None,
    "a text": lambda state: "progress",
    "no progress": lambda state: {"sums": state["sums"]},
    "no sums": lambda state: {"progress": state["progress"]},
    "sums in a list": lambda state: {**state, "sums": list(state["sums"])},
    "sums of a device": lambda state: {**state, "sums": {**state["sums"], "/dev/zero": ""}},
    "sums of another folder": lambda state: {
        **state,
        "sums": {f"../00000007/{k}": v for k, v in state["sums"].items()},
    },
    "sums of nothing": lambda state: {**state, "sums": {}},
    "sums that are numbers": lambda state: {**state, "sums": dict.fromkeys(state["sums"], 1)},
    "progress in a list": lambda state: {**state, "progress": [state["progress"]]},
    "a field nobody knows": lambda state: {**state, "progress": {**state["progress"], "colour": 1}},
    "a step that is text": lambda state: {**state, "progress": {**state["progress"], "step": "7"}},
    "another step": lambda state: {**state, "progress": {**state["progress"], "step": 8}},
    "a negative epoch": lambda state: {**state, "progress": {**state["progress"], "epoch": -1}},
    "an index of a half": lambda state: {**state, "progress": {**state["progress"], "index": 0.5}},
    "a history of numbers": lambda state: {**state, "progress": {**state["progress"], "history": [1, 2]}},
    "a history of texts": lambda state: {**state, "progress": {**state["progress"], "history": [{"loss": "low"}]}},
    "a scaler in a list": lambda state: {**state, "progress": {**state["progress"], "scaler": [1]}},
    "a best that is true": lambda state: {**state, "progress": {**state["progress"], "best": True}},
}


def state_of_an_earlier_regard(file: Path) -> dict:
    """Without a sum of its own, which tells every change."""
    return {name: held for name, held in json.loads(file.read_text()).items() if name != "sum"}


@pytest.mark.parametrize("what", SHAPES)
def test_a_state_of_another_shape_is_no_checkpoint(every, what, tmp_path):
    file = every["state"].write(tmp_path)
    assert resumed(tmp_path) is not None
    file.write_text(json.dumps(SHAPES[what](state_of_an_earlier_regard(file))))
    with bounded():
        assert resumed(tmp_path) is None


def test_a_state_of_an_earlier_regard_may_lack_fields(every, tmp_path):
    file = every["state"].write(tmp_path)
    file.write_text(json.dumps({**state_of_an_earlier_regard(file), "progress": {"step": 7}}))
    assert resumed(tmp_path) == Progress(step=7)


# --- runs ---


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    translator().save(folder)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (f"model = {10**21}", f"model = {10**21} should be at least 1 and at most 16,777,216"),
        (f"layers = {10**9}", f"settings.toml: layers = {10**9}, but the weights in"),
        ("layers = 1000", "settings.toml: layers = 1000, but the weights in"),
        ("layers = 2", "model.safetensors lacks"),
        ("model = 12000000\nheads = 3", "it belongs to another model"),
        ("hidden = 16000000", "it belongs to another model"),
        ('encoder = "position = \\"Learned(10000000000, 12)\\""', "model.safetensors lacks"),
        (f"encoder = {json.dumps('pattern = ' + json.dumps('~' * 800 + 'Full()'))}", "more than 100 parts inside"),
        ("layers = " + "[" * 1500 + "]" * 1500, "lists in lists"),
    ],
    ids=lambda value: value[:20],
)
def test_settings_that_ask_for_another_model_are_refused_before_it_is_built(run, change, message, tmp_path):
    held = (run / "settings.toml").read_text()
    names = {line.partition(" ")[0] for line in change.splitlines()}
    kept = "\n".join(line for line in held.splitlines() if line.partition(" ")[0] not in names)
    for file in run.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "settings.toml").write_text(kept.replace("[model]", f"[model]\n{change}"))
    with bounded(seconds=60):
        answer = regard("translate", tmp_path, "-", typed="the cat\n")
    assert answer.exit_code == 2, answer.output
    (line,) = answer.stderr.splitlines()
    assert line.startswith("regard: ")
    assert message in line


@pytest.mark.parametrize("task", ["translate", "classify", "answer"])
@pytest.mark.parametrize("depth", [3, 90, 300, 1500, 30_000])
def test_a_setting_of_lists_in_lists_is_one_line(task, depth, tmp_path):
    for key, value in (("model.kind", "[" * depth + "]" * depth), ("data.corpus", "{a=" * depth + "1" + "}" * depth)):
        with bounded(seconds=60):
            answer = regard("train", "--task", task, "--out", tmp_path / "run", "--set", f"{key}={value}")
        assert_refused(answer, "")
        assert key in answer.stderr or "(set by --corpus {a={a=" in answer.stderr
        assert len(answer.stderr) < 1100
        assert not (tmp_path / "run" / "settings.toml").exists()


def test_a_pipe_in_the_place_of_weights_keeps_nobody_waiting(run, tmp_path):
    for file in run.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    with bounded():
        answer = regard("translate", tmp_path, "-", typed="the cat\n")
    assert_refused(answer, f"{tmp_path}/model.safetensors: is a pipe or a device, not a file")


@pytest.mark.parametrize("task", LEARNERS)
def test_every_loader_takes_a_str(task, tmp_path):
    made = LEARNERS[task]()
    made.save(tmp_path)
    loaded = type(made).load(str(tmp_path))
    for name, weight in saveable_tensors(made.model).items():
        assert torch.equal(weight, saveable_tensors(loaded.model)[name])


def test_a_file_that_is_read_as_a_whole_has_a_bound(tmp_path):
    file = tmp_path / "settings.toml"
    file.touch()
    os.truncate(file, MAX_SMALL_BYTES + 1)
    message = assert_read_or_refused(lambda: TranslationSettings.load(file), file)
    assert f"{MAX_SMALL_BYTES + 1:,} bytes, more than" in message
