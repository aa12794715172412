"""Shapes: images of coloured shapes by seed and number, and questions about them with their answers.

world = ShapeWorld(seed=0)
scene = world.scene(17)            what the image shows, as a value
scene.pixels()                     32 x 32 x 3 whole numbers from 0 to 255, the same on every machine
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from einops import reduce
from numpy.typing import NDArray

from regard.world.lexicon import SPLITS, Split, check_request, split_by_hash
from regard.world.splitmix import SplitMix64

ATTEMPTS = 10_000
MIN_SIZE = 24  # below, a small circle and a small square are the same few pixels
MAX_SHAPES = 6
SAMPLES = 4  # along each side of a pixel: an edge is shaded in 16 steps
UNIT = 2 * SAMPLES  # coordinates are in half-samples, so that the middle of every sample is a whole number

Composition = tuple[str, str]  # a colour and a shape
HOLD_OUTS = ("compositions", "pictures")  # what of a world is held out

SHAPES = ("circle", "square", "triangle")
COLOURS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "red": (208, 32, 36),
        "green": (36, 140, 52),
        "blue": (32, 72, 200),
        "yellow": (232, 208, 24),
        "purple": (136, 48, 168),
        "orange": (244, 132, 16),
        "pink": (244, 148, 196),
        "brown": (116, 68, 28),
        "grey": (136, 136, 136),
        "black": (20, 20, 20),
    }
)
# One in ten for each of valid and test. Training has every colour with two shapes or three, every shape with
# eight colours: otherwise a model could tell the shape by the colour alone.
HELD_OUT: Mapping[Composition, Split] = MappingProxyType(
    {
        ("yellow", "circle"): "valid",
        ("orange", "square"): "valid",
        ("purple", "triangle"): "valid",
        ("green", "circle"): "test",
        ("blue", "square"): "test",
        ("red", "triangle"): "test",
    }
)
COMPOSITIONS = tuple((colour, shape) for colour in COLOURS for shape in SHAPES)


def shape_split(colour: str, shape: str) -> Split:
    """Where a composition may occur, in every world alike."""
    return HELD_OUT.get((colour, shape), "train")


@dataclass(frozen=True)
class ColouredShape:
    """A shape that fills a square of 2 radius pixels around (x, y); x counts from the left, y from the top."""

    shape: str
    colour: str
    x: int
    y: int
    radius: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right, bottom: the pixels it touches are left <= x < right, top <= y < bottom."""
        return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius

    @property
    def composition(self) -> Composition:
        return self.colour, self.shape

    @property
    def split(self) -> Split:
        """Where it may occur, in every world alike, if images are held out."""
        return split_by_hash(f"{self.colour} {self.shape} {self.x} {self.y} {self.radius}")

    def is_apart_from(self, other: "ColouredShape") -> bool:
        """Is there a pixel's width between the two?"""
        return max(abs(self.x - other.x), abs(self.y - other.y)) > self.radius + other.radius

    def coverage(self, size: int) -> NDArray[np.int64]:
        """How many samples of each pixel it covers. Whole numbers alone, so nothing is rounded."""
        middles = np.arange(SAMPLES * size) * 2 + 1
        dx, dy, radius = middles[None] - UNIT * self.x, middles[:, None] - UNIT * self.y, UNIT * self.radius
        match self.shape:
            case "circle":
                inside = dx**2 + dy**2 <= radius**2
            case "square":
                inside = np.maximum(abs(dx), abs(dy)) <= radius
            case _:
                inside = (2 * abs(dx) <= dy + radius) & (dy <= radius)  # its tip is in the middle of the upper side
        return reduce(inside.astype(np.int64), "(y a) (x b) -> y x", "sum", a=SAMPLES, b=SAMPLES)


@dataclass(frozen=True)
class Scene:
    """What an image shows: shapes from left to right, none touching another, on a light background."""

    size: int
    background: int
    shapes: tuple[ColouredShape, ...]

    def pixels(self) -> NDArray[np.uint8]:
        """Rows, columns, and red, green and blue."""
        image = np.full((self.size, self.size, 3), self.background, dtype=np.int64)
        whole = SAMPLES**2
        for thing in self.shapes:
            covered = thing.coverage(self.size)[..., None]
            image = (image * (whole - covered) + np.array(COLOURS[thing.colour]) * covered + whole // 2) // whole
        return image.astype(np.uint8)


@dataclass(frozen=True)
class ShapeWorld:
    """Square images of `fewest` to `most` shapes, every number of them equally often.

    What is held out is divided once, in every world alike: train never shows it; every test image has something that
    occurs in test alone, every valid image something of valid alone. That is a composition (colour, shape), or, where
    `held_out` is "pictures", only a shape of that size at that position, and every split shows all compositions.
    """

    seed: int = 0
    size: int = 32
    fewest: int = 1
    most: int = 4
    held_out: str = "compositions"

    def __post_init__(self):
        if self.held_out not in HOLD_OUTS:
            raise ValueError(f"what is held out is one of {', '.join(HOLD_OUTS)}, not {self.held_out!r}")
        if self.size < MIN_SIZE:
            raise ValueError(f"an image of shapes has {MIN_SIZE} pixels a side or more, not {self.size}")
        if not 1 <= self.fewest <= self.most <= MAX_SHAPES:
            raise ValueError(
                f"an image shows 1 to {MAX_SHAPES} shapes, fewest before most, not {self.fewest} to {self.most}"
            )

    @property
    def radii(self) -> tuple[int, int]:
        """Of small shapes and of large ones."""
        return self.size * 3 // 32, self.size * 5 // 32

    def scene(self, number: int, split: Split = "train") -> Scene:
        """What the image with this number shows, at random access."""
        check_request(number, split, "images")
        origin = (self.seed, SPLITS.index(split), number)
        count = self.fewest + SplitMix64(*origin).randbelow(self.most - self.fewest + 1)
        for attempt in range(ATTEMPTS):
            if scene := self._try_scene(SplitMix64(*origin, 1 + attempt), count, split):
                return scene
        raise AssertionError(f"no room for {count} shapes in {ATTEMPTS} attempts")

    def _try_scene(self, rng: SplitMix64, count: int, split: Split) -> Scene | None:
        """A scene, unless its shapes come too near each other. The first shape is of the split itself."""
        background, shapes = 224 + rng.randbelow(32), []
        for n in range(count):
            shapes.append(self._draw_shape(rng, (split,) if n == 0 else ("train", split)))
            if not all(shapes[-1].is_apart_from(other) for other in shapes[:-1]):
                return None
        return Scene(self.size, background, tuple(sorted(shapes, key=lambda one: (one.x, one.y))))

    def _draw_shape(self, rng: SplitMix64, allowed: tuple[Split, ...]) -> ColouredShape:
        """A shape that belongs to one of these splits, by rejection."""
        by_composition = self.held_out == "compositions"
        pairs = [pair for pair in COMPOSITIONS if shape_split(*pair) in allowed] if by_composition else COMPOSITIONS
        while True:
            colour, shape = rng.choice(pairs)
            radius = rng.choice(self.radii)
            x, y = (radius + rng.randbelow(self.size - 2 * radius + 1) for _ in range(2))
            thing = ColouredShape(shape, colour, x, y, radius)
            if by_composition or thing.split in allowed:
                return thing


# --- questions ---


NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
assert len(NUMBERS) == MAX_SHAPES + 1
ANSWERS = (*COLOURS, *SHAPES, "yes", "no", *NUMBERS)
KINDS = ("colour", "shape", "presence", "count", "place")
# Steps to the right and down from a shape to what is on this side of it.
SIDES = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}


@dataclass(frozen=True)
class ShapeQuestion:
    """`evidence` are the indices of the shapes that decide the answer: none if something is not there.

    `compositions` are those the question names and those of the evidence.
    """

    text: str
    answer: str
    kind: str
    evidence: tuple[int, ...]
    compositions: frozenset[Composition]


@dataclass(frozen=True)
class SceneQuestion:
    """A scene and one question about it."""

    scene: Scene
    question: ShapeQuestion

    @property
    def boxes(self) -> tuple[tuple[int, int, int, int], ...]:
        """The bounding boxes of the evidence."""
        return tuple(self.scene.shapes[n].box for n in self.question.evidence)


def draw_question(world: ShapeWorld, number: int, split: Split = "train", turn: int = 0) -> SceneQuestion:
    """The image with this number and one question: of each kind, and within a kind of each answer, equally often.

    Another `turn` draws another question about the same image, possibly an equal one.
    """
    scene, questions = _scene_with_questions(world, number, split)
    rng = SplitMix64(world.seed, SPLITS.index(split), number, 0, *[turn] * (turn > 0))
    kind = rng.choice([kind for kind in KINDS if any(question.kind == kind for question in questions)])
    questions = [question for question in questions if question.kind == kind]
    answer = rng.choice([answer for answer in ANSWERS if any(question.answer == answer for question in questions)])
    return SceneQuestion(scene, rng.choice([question for question in questions if question.answer == answer]))


@lru_cache(maxsize=1)  # all turns of an image ask for it
def _scene_with_questions(world: ShapeWorld, number: int, split: Split) -> tuple[Scene, list[ShapeQuestion]]:
    scene = world.scene(number, split)
    return scene, possible_questions(scene, split, world.held_out)


def possible_questions(scene: Scene, split: Split = "train", held_out: str = "compositions") -> list[ShapeQuestion]:
    """All that may be asked in a split: train never names compositions held out, the others always do.

    In training, the answer to "is there a red triangle" would always be no.
    """
    return [question for question in _all_questions(scene) if held_out == "pictures" or _belongs(question, split)]


def _belongs(question: ShapeQuestion, split: Split) -> bool:
    splits = {shape_split(*pair) for pair in question.compositions}
    return splits <= {"train", split} and (split == "train" or split in splits)


def _all_questions(scene: Scene) -> Iterator[ShapeQuestion]:
    things = scene.shapes
    for shape in SHAPES:
        here = [n for n, thing in enumerate(things) if thing.shape == shape]
        if len(here) == 1:
            yield _question(scene, f"what colour is the {shape}", things[here[0]].colour, "colour", here)
        yield _question(scene, f"how many {shape}s are there", NUMBERS[len(here)], "count", here)
    for colour in COLOURS:
        here = [n for n, thing in enumerate(things) if thing.colour == colour]
        if len(here) == 1:
            yield _question(scene, f"what shape is the {colour} thing", things[here[0]].shape, "shape", here)
        yield _question(scene, f"how many {colour} things are there", NUMBERS[len(here)], "count", here)
    for pair in COMPOSITIONS:
        here = [n for n, thing in enumerate(things) if thing.composition == pair]
        text, answer = f"is there {_article(pair[0])} {' '.join(pair)}", "yes" if here else "no"
        yield _question(scene, text, answer, "presence", here, pair)
        if len(here) == 1:
            yield from _position_questions(scene, here[0])


def _position_questions(scene: Scene, n: int) -> Iterator[ShapeQuestion]:
    """What is on each side of a shape, where there is exactly one and every other is clearly elsewhere."""
    thing = scene.shapes[n]
    for side, step in SIDES.items():
        steps = {m: _offset_along(thing, other, step) for m, other in enumerate(scene.shapes) if m != n}
        there = [m for m, far in steps.items() if far > 0]
        # a pixel further left is not clearly "left"
        if len(there) == 1 and min(abs(far) for far in steps.values()) >= scene.size // 16:
            text = f"what is {side} the {thing.colour} {thing.shape}"
            yield _question(scene, text, scene.shapes[there[0]].shape, "place", [n, *there])


def _offset_along(thing: ColouredShape, other: ColouredShape, step: tuple[int, int]) -> int:
    return (other.x - thing.x) * step[0] + (other.y - thing.y) * step[1]


def _question(scene: Scene, text: str, answer: str, kind: str, here: list[int], *named: Composition) -> ShapeQuestion:
    shown = (scene.shapes[n].composition for n in here)
    return ShapeQuestion(text, answer, kind, tuple(sorted(here)), frozenset((*named, *shown)))


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"
