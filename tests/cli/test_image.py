"""regard picture, and train, evaluate and look for pictures: files, folders, pipes; and what they refuse."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.world.shapes import ShapeWorld

from .commands import assert_done, assert_plain, assert_refused, regard

SMALL = ["--tokens", 16, "--set", "data.images=60", "--set", "train.warmup_steps=1"]
LITTLE_VIT = ["--set", "model.patch=8", "--set", "model.layers=2", "--set", "model.model=12", "--set", "model.heads=2"]


@pytest.fixture(scope="module")
def vit(train) -> Path:
    return train("--task", "image_classification", *SMALL, *LITTLE_VIT, "--steps", 3)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    """Pictures of the world in folders by what they show, in colours that training never shows."""
    folder, world = tmp_path_factory.mktemp("drawn"), ShapeWorld(fewest=1, most=1)
    for number in range(7):
        scene = world.scene(number, "test")
        place = folder / scene.shapes[0].shape / f"{number}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(scene.pixels()).save(place)
    return folder


def names(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.rglob("*.png"))]


def test_each_picture_gets_a_class_and_its_probability(vit, drawn):
    answer = regard("image", vit, drawn)
    assert_plain(answer.output)
    rows = [line.split("\t") for line in assert_done(answer).splitlines()]
    assert [row[0] for row in rows] == names(drawn)
    assert {row[1] for row in rows} <= {"circle", "square", "triangle"}
    assert all(1 / 3 <= float(row[2]) <= 1 for row in rows)
    piped = assert_done(regard("image", vit, "-", typed="\n".join(names(drawn)) + "\n"))
    assert piped == assert_done(regard("image", vit, *names(drawn))) == answer.stdout


def test_several_classes_to_a_file(vit, drawn):
    assert_done(regard("image", vit, names(drawn)[0], "--top-k", 9, "--out", "classes.tsv"))
    (cells,) = [line.split("\t")[1:] for line in Path("classes.tsv").read_text().splitlines()]
    assert sorted(cells[::2]) == ["circle", "square", "triangle"]
    chances = [float(cell) for cell in cells[1::2]]
    assert chances == sorted(chances, reverse=True)
    assert abs(sum(chances) - 1) < 1e-3


def test_another_size_is_resized_or_refused(vit):
    Image.fromarray(np.zeros((64, 48, 3), dtype=np.uint8)).save("large.png")
    answer = regard("image", vit, "large.png")
    assert_done(answer)
    assert answer.stderr == "resized: 1 of 1 images, to 32 x 32 pixels\n"
    assert_refused(regard("image", vit, "large.png", "--strict"), "large.png: not 32 x 32 pixels; resize it")


def test_pictures_that_cannot_be_read_are_named(vit):
    Path("torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    Path("empty").mkdir()
    assert_refused(regard("image", vit, "torn.png"), "torn.png: not a complete PNG or JPEG image")
    assert_refused(regard("image", vit, "absent.png"), "absent.png: no such file; check the name")
    assert_refused(regard("image", vit, "empty"), "empty: no images; they end in .png")
    assert_refused(regard("image", vit, "-", typed=""), "no image given; name a file")
    assert_refused(regard("image", "nowhere", "torn.png"), "nowhere holds no model")


def test_it_is_measured_with_its_confusions(vit, drawn):
    output = assert_done(regard("evaluate", vit, "--on", drawn, "--save", "figures.json", "--outputs", "said.txt"))
    assert "pictures:7|seen:as it is" in output
    figures = json.loads(Path("figures.json").read_text())
    assert sum(n for row in figures["confusion_matrix"].values() for n in row.values()) == 7
    right = sum(row.get(name, 0) for name, row in figures["confusion_matrix"].items())
    assert figures["accuracy"] == pytest.approx(100 * right / 7)
    assert Path("said.txt").read_text().splitlines() == [
        line.split("\t")[1] for line in assert_done(regard("image", vit, drawn)).splitlines()
    ]
    (drawn.parent / "others" / "star").mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(drawn.parent / "others" / "star" / "a.png")
    refused = regard("evaluate", vit, "--on", drawn.parent / "others")
    assert_refused(refused, "star/a.png: the label 'star' is not known; the known ones are circle, square, triangle")
    assert_refused(regard("evaluate", vit, "--on", drawn, "--beam", 3), "--beam and penalties are for translations")


def test_where_a_transformer_looked(vit, drawn):
    picture = names(drawn)[0]
    answer = regard("look", vit, picture, "--save", "look.png")
    output = assert_done(answer)
    assert output.startswith(f"{picture}: ")
    assert "last layer" in output
    assert "all layers" in output
    assert Path("look.png").read_bytes().startswith(b"\x89PNG")
    assert "blocks.1" in assert_done(regard("look", vit, picture, "--every"))
    assert "layer 1, head 0" in assert_done(regard("look", vit, picture, "--head", "1:0"))
    assert_refused(regard("look", vit, picture, "--head", "2:0"), "--head 2:0: write LAYER:HEAD, counted from 0")
    assert_refused(regard("look", vit, picture, "--word", "cat"), "--word means nothing to a picture")
    assert_refused(
        regard("look", vit, picture, "what is it"), f"{vit} is for the task 'image_classification', and answers no"
    )
    assert_refused(regard("look", vit, "absent.png"), "absent.png: no such file")


@pytest.mark.parametrize(("attention", "shows"), [("channel", "stage.2.0"), ("spatial", "stage.2.0"), ("none", "")])
def test_what_a_convolutional_network_lets_through(attention, shows, drawn, tmp_path):
    little = ["--model", "cnn", "--set", "model.width=4", "--set", f"model.attention={attention}"]
    assert_done(regard("train", "--task", "image_classification", *SMALL, *little, "--steps", 1, "--out", "cnn"))
    answer = regard("look", "cnn", names(drawn)[0])
    if attention == "none":
        assert_refused(answer, "this network was trained with attention = 'none'")
    else:
        assert shows in assert_done(answer)
        assert "stage.0.0" in assert_done(regard("look", "cnn", names(drawn)[0], "--every"))
        assert_refused(regard("look", "cnn", names(drawn)[0], "--head", "0:0"), "--head 0:0: a convolutional network")


def test_folders_of_ones_own_are_trained_on(drawn):
    answer = regard(
        "train", "--task", "image_classification", "--train", drawn, *LITTLE_VIT, "--steps", 1, "--out", "own"
    )
    assert "6 pictures, 1 for validation" in answer.stderr
    assert_done(answer)
    refused = regard("train", "--task", "image_classification", "--train", "nowhere", "--steps", 1, "--out", "none")
    assert_refused(refused, f"{Path.cwd() / 'nowhere'}: no such folder or archive")
    Path("void").mkdir()
    refused = regard("train", "--task", "image_classification", "--train", "void", "--steps", 1, "--out", "none")
    assert_refused(refused, f"{Path.cwd() / 'void'}: no images; they lie in one folder for each class")
