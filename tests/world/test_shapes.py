"""Pictures of the miniature world: drawn by whole numbers, divided by composition, and asked about."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from regard.world import SPLITS
from regard.world.lexicon import Split
from regard.world.shapes import (
    ANSWERS,
    COLOURS,
    COMPOSITIONS,
    HELD_OUT,
    HOLD_OUTS,
    KINDS,
    SHAPES,
    SIDES,
    ColouredShape,
    Scene,
    SceneQuestion,
    ShapeWorld,
    draw_question,
    possible_questions,
    shape_split,
)
from tests.world.processes import outputs_by_hash_seed

WORLD = ShapeWorld(seed=3)
UNSEEN = ShapeWorld(seed=3, most=1, held_out="pictures")


@cache
def examples():
    return {split: [draw_question(WORLD, number, split) for number in range(307)] for split in SPLITS}


@cache
def all_examples():
    return [example for some in examples().values() for example in some]


def scene_of(*things: ColouredShape) -> Scene:
    return Scene(32, 255, things)


def questions_about(scene: Scene, split: Split = "train") -> dict[str, tuple[str, tuple[int, ...]]]:
    return {question.text: (question.answer, question.evidence) for question in possible_questions(scene, split)}


# --- drawing ---


def test_a_square_is_drawn_on_its_pixels_and_nowhere_else():
    pixels = scene_of(ColouredShape("square", "red", x=5, y=7, radius=2)).pixels()
    assert pixels.shape == (32, 32, 3)
    assert pixels.dtype == np.uint8
    assert (pixels[5:9, 3:7] == COLOURS["red"]).all()
    assert (pixels == 255).all(-1).sum() == 32 * 32 - 16


def test_a_triangle_is_shaded_by_the_samples_it_covers():
    """Radius 1: of 16 samples a pixel, the upper left has 4 in the triangle, the lower left 12.

    The samples of the left half lie 1, 3, 5 and 7 eighths from the middle; a row r eighths below the tip holds those
    within r / 2: none, 1, 1, 2 of the rows 1, 3, 5, 7 of the upper pixel; 2, 3, 3, 4 of the rows 9, 11, 13, 15 below.
    """
    covered = ColouredShape("triangle", "blue", x=1, y=1, radius=1).coverage(2)
    assert covered.tolist() == [[0 + 1 + 1 + 2, 0 + 1 + 1 + 2], [2 + 3 + 3 + 4, 2 + 3 + 3 + 4]]


def test_a_circle_covers_its_area():
    covered = ColouredShape("circle", "blue", x=16, y=16, radius=11).coverage(32)
    assert abs(covered.sum() / 16 - np.pi * 11**2) < 2
    assert (covered == covered.T).all()
    assert (covered == covered[::-1]).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_box_is_the_smallest_that_holds_what_is_drawn(shape):
    for radius in (2, 3, 5):
        thing = ColouredShape(shape, "green", x=11, y=17, radius=radius)
        rows, columns = np.nonzero((scene_of(thing).pixels() != 255).any(-1))
        assert (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) == thing.box


def test_things_lie_in_the_picture_and_touch_no_other():
    for example in all_examples():
        total = np.stack([thing.coverage(32) > 0 for thing in example.scene.shapes]).sum(0)
        assert total.max() == 1
        for thing in example.scene.shapes:
            assert min(thing.box) >= 0
            assert max(thing.box) <= 32
        assert list(example.scene.shapes) == sorted(example.scene.shapes, key=lambda thing: (thing.x, thing.y))


def test_colours_are_found_in_the_pixels():
    for example in all_examples():
        pixels = example.scene.pixels()
        for thing in example.scene.shapes:
            assert tuple(pixels[thing.y, thing.x]) == COLOURS[thing.colour]


def test_the_pixels_are_the_same_everywhere():
    program = (
        "import zlib; from regard.world.shapes import ShapeWorld, draw_question;"
        "a = [draw_question(ShapeWorld(7, most=6), n, 'test') for n in range(11)];"
        "print([(x.question.text, x.question.answer, x.scene, zlib.crc32(x.scene.pixels().tobytes())) for x in a])"
    )
    assert len(outputs_by_hash_seed(program, "1", "97")) == 1
    assert draw_question(WORLD, 17, "test") == examples()["test"][17]
    assert draw_question(ShapeWorld(seed=4), 17, "test") != examples()["test"][17]


@pytest.mark.parametrize("size", [24, 37, 64])
def test_any_size_holds_as_many_as_wanted(size):
    world = ShapeWorld(size=size, fewest=5, most=5)
    assert {len(world.scene(number).shapes) for number in range(5)} == {5}
    assert world.scene(0).pixels().shape == (size, size, 3)


def test_every_number_of_things_is_equally_frequent():
    counts = Counter(len(example.scene.shapes) for example in all_examples())
    assert set(counts) == {1, 2, 3, 4}
    assert all(180 < count < 280 for count in counts.values())


# --- what is held out ---


def test_train_never_shows_what_is_held_out_and_the_others_always_do():
    for split, some in examples().items():
        for example in some:
            shown = {shape_split(*thing.composition) for thing in example.scene.shapes}
            assert shown <= {"train", split}
            assert split in shown


def test_no_question_speaks_of_what_another_split_holds():
    for split, some in examples().items():
        for example in some:
            mentioned = {shape_split(*pair) for pair in example.question.compositions}
            assert mentioned <= {"train", split}
            assert split == "train" or split in mentioned


def test_every_colour_and_shape_is_kept_for_training():
    kept = [pair for pair in COMPOSITIONS if shape_split(*pair) == "train"]
    assert set(Counter(colour for colour, _ in kept).values()) == {2, 3}
    assert Counter(shape for _, shape in kept) == dict.fromkeys(SHAPES, 8)
    assert Counter(HELD_OUT.values()) == dict.fromkeys(("valid", "test"), len(COMPOSITIONS) // 10)


def test_held_out_pictures_show_every_composition_and_a_thing_that_train_never_shows():
    for most in (1, 3):
        worlds = [ShapeWorld(seed=seed, most=most, held_out="pictures") for seed in (3, 4)]
        shown = {split: [world.scene(n, split) for world in worlds for n in range(307)] for split in SPLITS}
        trained = {thing for scene in shown["train"] for thing in scene.shapes}
        for split, scenes in shown.items():
            assert {thing.composition for scene in scenes for thing in scene.shapes} == set(COMPOSITIONS)
            for scene in scenes:
                assert split == "train" or set(scene.shapes) - trained
                assert {thing.split for thing in scene.shapes} <= {"train", split}


def test_one_thing_in_ten_is_held_out_for_each_of_valid_and_test():
    counts = Counter(thing.split for example in examples()["train"] for thing in example.scene.shapes)
    for split in ("valid", "test"):
        assert 0.08 < counts[split] / counts.total() < 0.12


@pytest.mark.parametrize("held_out", HOLD_OUTS)
def test_the_fullest_picture_of_any_split_is_found(held_out):
    world = ShapeWorld(fewest=6, most=6, held_out=held_out)
    assert {len(world.scene(number, split).shapes) for split in SPLITS for number in range(3)} == {6}


# --- questions ---


def test_a_colour_rules_a_shape_out_only_where_compositions_are_held_out():
    """Who guesses shapes by their colours gains by it where training never shows a yellow circle."""

    def answers(world: ShapeWorld) -> dict[str, set[str]]:
        texts = {f"what shape is the {colour} thing": set() for colour in COLOURS}
        for number in range(307):
            for question in possible_questions(world.scene(number), held_out=world.held_out):
                if question.kind == "shape":
                    texts[question.text].add(question.answer)
        return texts

    assert set(map(frozenset, answers(UNSEEN).values())) == {frozenset(SHAPES)}
    assert answers(ShapeWorld(seed=3, most=1))["what shape is the yellow thing"] == {"square", "triangle"}


def test_what_is_asked_of_held_out_pictures_has_every_answer():
    """Where compositions are held out and a picture shows one thing, every number asked for is one."""
    for split in SPLITS:
        questions = [draw_question(UNSEEN, number, split).question for number in range(307)]
        assert {one.answer for one in questions if one.kind == "count"} == {"zero", "one"}
        assert {one.answer for one in questions if one.kind == "presence"} == {"yes", "no"}
        assert {one.answer for one in questions if one.kind == "shape"} == set(SHAPES)
        assert {one.answer for one in questions if one.kind == "colour"} == set(COLOURS)


def test_a_scene_has_every_question_with_one_answer():
    """From left to right: a small orange circle high up, a large red square low down, another red square between."""
    shown = scene_of(
        ColouredShape("circle", "orange", x=5, y=6, radius=3),
        ColouredShape("square", "red", x=14, y=25, radius=5),
        ColouredShape("square", "red", x=26, y=15, radius=3),
    )
    found = questions_about(shown)
    assert found["what colour is the circle"] == ("orange", (0,))
    assert found["what shape is the orange thing"] == ("circle", (0,))
    assert found["is there an orange circle"] == ("yes", (0,))
    assert found["is there a red square"] == ("yes", (1, 2))
    assert found["is there a green square"] == ("no", ())
    assert found["how many squares are there"] == ("two", (1, 2))
    assert found["how many triangles are there"] == ("zero", ())
    assert found["how many red things are there"] == ("two", (1, 2))
    # which square is red, or which red thing is meant, nobody can say
    assert "what colour is the square" not in found
    assert "what shape is the red thing" not in found
    assert not [text for text in found if "the red square" in text]
    # of two squares right of the circle neither is the one
    assert not [text for text in found if "of the orange circle" in text]
    assert "is there a red triangle" not in found
    assert questions_about(shown, "test")["is there a red triangle"] == ("no", ())


def test_sides_are_those_of_the_picture():
    shown = scene_of(
        ColouredShape("circle", "blue", x=8, y=6, radius=3),
        ColouredShape("triangle", "green", x=16, y=16, radius=5),
        ColouredShape("square", "yellow", x=17, y=27, radius=3),
    )
    found = questions_about(shown)
    assert found["what is above the green triangle"] == ("circle", (0, 1))
    assert found["what is below the green triangle"] == ("square", (1, 2))
    assert "what is below the yellow square" not in found
    # the square is one pixel further right than the triangle: too little to ask about
    assert "what is left of the green triangle" not in found
    assert "what is right of the green triangle" not in found
    two = questions_about(Scene(32, 255, shown.shapes[:2]))
    assert two["what is left of the green triangle"] == ("circle", (0, 1))
    assert two["what is right of the blue circle"] == ("triangle", (0, 1))
    assert "what is right of the green triangle" not in two


def test_answers_follow_from_the_things_that_matter():
    for example in all_examples():
        question, things = example.question, example.scene.shapes
        matter = [things[n] for n in question.evidence]
        assert question.answer in ANSWERS
        match question.kind:
            case "colour":
                assert [question.answer] == [thing.colour for thing in matter]
            case "shape":
                assert [question.answer] == [thing.shape for thing in matter]
            case "presence":
                assert (question.answer == "yes") == bool(matter)
            case "count":
                assert ("zero", "one", "two", "three", "four")[len(matter)] == question.answer
            case "place":
                named = [thing for thing in matter if f"the {thing.colour} {thing.shape}" in question.text]
                others = [thing for thing in matter if thing not in named[:1]]
                assert [thing.shape for thing in others] == [question.answer]
                assert any(f"is {side} the" in question.text for side in SIDES)


def test_boxes_are_those_of_the_things_that_matter():
    shown = scene_of(
        ColouredShape("circle", "orange", x=5, y=6, radius=3), ColouredShape("square", "red", x=14, y=25, radius=5)
    )
    (count,) = [question for question in possible_questions(shown) if question.text == "how many red things are there"]
    assert SceneQuestion(shown, count).boxes == ((9, 20, 19, 30),)


def test_kinds_and_answers_are_balanced():
    for split in SPLITS:
        kinds = Counter(example.question.kind for example in examples()[split])
        assert set(kinds) == set(KINDS)
        assert all(count > 30 for count in kinds.values())
        presence = Counter(
            example.question.answer for example in examples()[split] if example.question.kind == "presence"
        )
        assert 0.3 < presence["yes"] / presence.total() < 0.7


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: ShapeWorld(size=23),
        lambda: ShapeWorld(fewest=3, most=2),
        lambda: ShapeWorld(most=7),
        lambda: ShapeWorld(held_out="colours"),
        lambda: WORLD.scene(-1),
        lambda: WORLD.scene(0, "exam"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_is_named(mistake):
    with pytest.raises(ValueError, match="not"):
        mistake()
