"""Image sets and visual questions from folders, archives and IDX files; what is torn, foreign or missing is named."""

import gzip
import io
import json
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.images import (
    VisualQuestion,
    decode_image,
    read_idx,
    read_idx_images,
    read_image,
    read_images,
    read_visual_questions,
)


def encoded(array: np.ndarray, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind, **options)
    return file.getvalue()


def colours(seed: int, height: int = 5, width: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


FILES = {
    "train/cat/10.png": encoded(colours(0)),
    "train/cat/9.png": encoded(colours(1)),
    "train/dog/a.PNG": encoded(colours(2)),
    "train/dog/.hidden.png": b"not a picture",
    "train/dog/notes.txt": b"not a picture either",
    "test/cat/1.png": encoded(colours(3)),
}


def folder(tmp_path: Path, files: dict[str, bytes]) -> Path:
    for name, held in files.items():
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(held)
    return tmp_path / "set"


TAR_MODES: dict[str, Literal["w:", "w:gz", "w:xz"]] = {".tar": "w:", ".tar.gz": "w:gz", ".tar.xz": "w:xz"}


def archive(tmp_path: Path, files: dict[str, bytes], *more: tarfile.TarInfo, ending: str = ".tar.xz") -> Path:
    path = tmp_path / f"set{ending}"
    with tarfile.open(path, TAR_MODES[ending]) as tar:
        for name, held in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(held)
            tar.addfile(member, io.BytesIO(held))
        for member in more:
            tar.addfile(member)
    return path


# --- folders and archives ---


@pytest.mark.parametrize("ending", ["", ".tar", ".tar.gz", ".tar.xz"])
def test_a_folder_to_a_class_in_a_folder_or_an_archive(tmp_path, ending):
    backwards = dict(reversed(FILES.items()))
    path = archive(tmp_path, backwards, ending=ending) if ending else folder(tmp_path, backwards)
    pictures = read_images(path, inside="train")
    assert pictures.names == ("cat/10.png", "cat/9.png", "dog/a.PNG")
    assert pictures.classes == ("cat", "dog")
    assert pictures.labels.tolist() == [0, 0, 1]
    for n in range(3):
        assert torch.equal(pictures.pixels[n], torch.from_numpy(colours(n)).permute(2, 0, 1))


def test_other_files_get_the_labels_of_the_first(tmp_path):
    path = folder(tmp_path, FILES)
    assert read_images(path, inside="test", classes=("dog", "cat")).labels.tolist() == [1]
    with pytest.raises(ValueError, match=r"set/train/cat/10.png: class 'cat' is unknown; the classes are dog, cow"):
        read_images(path, inside="train", classes=("dog", "cow"))


def test_grey_and_another_size_on_request(tmp_path):
    pictures = read_images(folder(tmp_path, FILES), inside="train", mode="L", size=(3, 2))
    assert pictures.shape == (1, 3, 2)
    with pytest.raises(ValueError, match="one of RGB, L, not 'CMYK'"):
        read_images(tmp_path, mode="CMYK")
    with pytest.raises(ValueError, match="cannot be resized to 0 rows"):
        read_images(tmp_path, size=(0, 3))


def test_sizes_that_differ_are_refused_unless_resized(tmp_path):
    path = folder(tmp_path, FILES | {"train/dog/b.png": encoded(colours(4, 8, 8))})
    with pytest.raises(ValueError, match=r"dog/b.png has 8 x 8 pixels, those before it 5 x 7; resize them"):
        read_images(path, inside="train")
    assert read_images(path, inside="train", size=(5, 7)).shape == (3, 5, 7)


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (b"", "it is empty"),
        (encoded(colours(0), "GIF"), "no PNG or JPEG begins like this"),
        (FILES["test/cat/1.png"][:60], "not a complete PNG or JPEG"),
        (encoded(colours(0, 64, 64), "JPEG")[:-400], "truncated"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_torn_picture_is_named(tmp_path, held, why, packed):
    files = FILES | {"train/dog/torn.png": held}
    path = archive(tmp_path, files) if packed else folder(tmp_path, files)
    with pytest.raises(ValueError, match=rf"train/dog/torn.png: .*{why}.*; replace or remove the file"):
        read_images(path, inside="train")


def test_a_picture_that_claims_to_be_huge_is_not_unpacked():
    small = bytearray(encoded(colours(0)))
    for side in (9_000, 60_000):  # from here on Pillow doubts, and from there on it refuses
        small[16:24] = struct.pack(">II", side, side)
        small[29:33] = struct.pack(">I", zlib.crc32(small[12:29]))
        with pytest.raises(ValueError, match=r"bomb.png: not a complete PNG or JPEG image \(.*pixels.*\)"):
            decode_image(bytes(small), "bomb.png")


def test_a_folder_without_images_names_what_is_expected(tmp_path):
    path = folder(tmp_path, FILES | {"flat/1.png": FILES["test/cat/1.png"], "bare/cat/readme.txt": b""})
    for inside, why in {
        "bare": "no images; they lie in one folder for each class",
        "flat": "is in no class folder",
        "gone": "no such folder",
    }.items():
        with pytest.raises(ValueError, match=why):
            read_images(path, inside=inside)
    with pytest.raises(ValueError, match="no such folder or archive"):
        read_images(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="neither a folder nor an archive"):
        read_images(path / "test" / "cat" / "1.png")


def test_an_archive_that_leads_out_or_links_is_refused(tmp_path):
    for name in ("../train/cat/1.png", "/train/cat/1.png", "train/../../x/1.png"):
        with pytest.raises(ValueError, match="points outside the archive"):
            read_images(archive(tmp_path, {name: FILES["test/cat/1.png"]}), inside="train")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
        link = tarfile.TarInfo("train/cat/link.png")
        link.type, link.linkname = kind, "/etc/passwd"
        with pytest.raises(ValueError, match=r"set.tar.xz:train/cat/link.png: a link or a device"):
            read_images(archive(tmp_path, FILES, link), inside="train")


def test_a_file_that_is_none_and_one_that_comes_twice_are_named(tmp_path):
    path = folder(tmp_path, FILES)
    (path / "train" / "cat" / "link.png").symlink_to("nowhere.png")
    with pytest.raises(ValueError, match=r"cat/link.png: a broken link"):
        read_images(path, inside="train")
    name, held = "train/cat/9.png", FILES["train/cat/9.png"]
    with pytest.raises(ValueError, match=r"set.tar.xz:./train/cat/9.png: twice in the archive"):
        read_images(archive(tmp_path, {name: held, f"./{name}": held}), inside="train")


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz"])
def test_a_torn_archive_is_named(tmp_path, ending):
    path = archive(tmp_path, {f"train/cat/{n}.png": encoded(colours(n, 31, 37)) for n in range(7)}, ending=ending)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=f"set{ending}: cannot be read to its end"):
        read_images(path, inside="train")


def test_every_mode_becomes_plain_colours_or_grey(tmp_path):
    rgba = np.zeros((3, 5, 4), dtype=np.uint8)
    rgba[:, :2] = (255, 0, 0, 255)
    (tmp_path / "see-through.png").write_bytes(encoded(rgba))
    seen = read_image(tmp_path / "see-through.png")
    assert seen[:, 0, 0].tolist() == [255, 0, 0]
    assert seen[:, 0, 4].tolist() == [255, 255, 255]  # what is transparent lies on white
    deep = np.array([[0, 256, 65535]], dtype=np.uint16)
    assert decode_image(encoded(deep), "deep", mode="L")[0, :, 0].tolist() == [0, 1, 255]
    assert decode_image(encoded(np.array([[0, 255]], dtype=np.uint8)), "grey")[0].tolist() == [[0] * 3, [255] * 3]
    palette = Image.fromarray(colours(0)).quantize(4)
    file = io.BytesIO()
    palette.save(file, "PNG")
    assert np.array_equal(decode_image(file.getvalue(), "palette"), np.array(palette.convert("RGB")))
    assert decode_image(encoded(colours(0), "JPEG"), "jpeg").shape == (5, 7, 3)


def test_a_photograph_taken_sideways_is_set_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode_image(encoded(colours(0), "JPEG", exif=exif), "sideways").shape == (7, 5, 3)


def test_a_picture_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"gone.png: no such file; check the name"):
        read_image(tmp_path / "gone.png")


# --- idx ---


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


GREY = np.random.default_rng(0).integers(0, 256, (5, 3, 7), dtype=np.uint8)


def test_idx_files_as_mnist_publishes_them(tmp_path):
    images, labels = tmp_path / "train-images-idx3-ubyte.gz", tmp_path / "train-labels-idx1-ubyte"
    images.write_bytes(gzip.compress(idx(GREY)))
    labels.write_bytes(idx(np.array([2, 0, 1, 1, 2], dtype=np.uint8)))
    pictures = read_idx_images(images, labels)
    assert torch.equal(pictures.pixels, torch.from_numpy(GREY)[:, None])
    assert pictures.labels.tolist() == [2, 0, 1, 1, 2]
    assert pictures.classes == ("0", "1", "2")
    named = read_idx_images(images, labels, classes=("shirt", "shoe", "bag"))
    assert (named[0].label, named[0].name) == ("bag", "train-images-idx3-ubyte.gz:0")
    with pytest.raises(ValueError, match=r"label 2 \(number 0\) is none of the 2 classes given"):
        read_idx_images(images, labels, classes=("shirt", "shoe"))
    with pytest.raises(ValueError, match=r"an array of 1 axes, not 3; give the file of images \(idx3\) first"):
        read_idx_images(labels, images)
    labels.write_bytes(idx(np.array([2, 0], dtype=np.uint8)))
    with pytest.raises(ValueError, match=r"holds 5 images, .* 2 labels; give two that match"):
        read_idx_images(images, labels)


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (b"", "starts with nothing"),
        (b"\x89PNG....", "starts with 89504e47, no IDX file does"),
        (b"\0\0\x0d\x01" + bytes(8), "numbers of type 0x0d"),
        (b"\0\0\x08\x03\0\0", "ends within its header"),
        (idx(GREY)[:-1], "promises 5 x 3 x 7 = 105 bytes and holds 104; fetch the file again"),
        (idx(GREY) + b"!", "holds more"),
        (b"\0\0\x08\x03" + b"\xff" * 12 + bytes(100), "and holds 100"),
    ],
)
def test_an_idx_file_that_is_not_whole_is_named(tmp_path, held, why):
    for path, raw in ((tmp_path / "idx", held), (tmp_path / "idx.gz", gzip.compress(held))):
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=rf"{path}: .*{why}"):
            read_idx(path)


def test_a_torn_gz_is_named(tmp_path):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx(GREY))[:-20])
    with pytest.raises(ValueError, match=r"images.gz: cannot be read to its end"):
        read_idx(path)
    path.write_bytes(idx(GREY))
    with pytest.raises(ValueError, match="cannot be read to its end"):
        read_idx(path)
    with pytest.raises(ValueError, match=r"but there is .*images.gz"):
        read_idx(tmp_path / "images")


# --- questions ---

ASKED = [["what is the red shape?", "circle", 10], ["is there a circle?", "yes", 2], ["is there a square?", "no", 10]]


def easy(entries: object) -> dict[str, bytes]:
    return {
        "train/images/10.png": encoded(colours(0)),
        "train/images/2.png": encoded(colours(1)),
        "train/questions.json": json.dumps(entries).encode(),
        "train/README.md": b"",
    }


@pytest.mark.parametrize("packed", [False, True])
def test_questions_point_to_their_pictures(tmp_path, packed):
    path = archive(tmp_path, easy(ASKED)) if packed else folder(tmp_path, easy(ASKED))
    read = read_visual_questions(path, inside="train")
    assert read.images.names == ("images/2", "images/10")
    assert torch.equal(read.images.pixels[1], torch.from_numpy(colours(0)).permute(2, 0, 1))
    assert [question.image_index for question in read.questions] == [1, 0, 1]
    assert read.questions[1] == VisualQuestion("is there a circle?", "yes", 0)
    assert read.answers == ("circle", "no", "yes")


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({}, "holds no list of questions"),
        ([], "holds no list of questions"),
        ([*ASKED, ["what?", "yes"]], r'entry 3: \["what\?", "yes"\] is not \[question, answer'),
        ([["what?", "yes", "2"]], "entry 0: .* is not"),
        ([["what?", "yes", True]], "entry 0: .* is not"),
        ([["what?", " ", 2]], "entry 0: the answer is empty"),
        ([["", "yes", 2]], "entry 0: the question is empty"),
        ([["what?", "yes", 3]], "entry 0: asks about image 3, and images/ has none"),
    ],
)
def test_a_bad_question_is_named(tmp_path, entries, why):
    with pytest.raises(ValueError, match=rf"questions.json: {why}"):
        read_visual_questions(folder(tmp_path, easy(entries)), inside="train")


def test_a_set_without_questions_or_with_odd_names_is_refused(tmp_path):
    files = easy(ASKED)
    torn = folder(tmp_path / "a", files | {"train/questions.json": b'[["what'})
    with pytest.raises(ValueError, match=r"questions.json: not JSON"):
        read_visual_questions(torn, inside="train")
    with pytest.raises(ValueError, match=r"no questions.json; it lies beside the folder images"):
        read_visual_questions(torn)
    odd = folder(tmp_path / "b", files | {"train/images/cat.png": FILES["test/cat/1.png"]})
    with pytest.raises(ValueError, match=r"images/cat.png: an image is named by its number"):
        read_visual_questions(odd, inside="train")
    twice = folder(tmp_path / "c", files | {"train/images/2.jpg": encoded(colours(3), "JPEG")})
    with pytest.raises(ValueError, match="a second image with number 2"):
        read_visual_questions(twice, inside="train")
