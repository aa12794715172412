"""A seed in, endless small pictures of coloured shapes out, each a function of its number alone, with all about them.

world = ShapeWorld(seed=0)
scene = world.scene(17)            a value: what is drawn, how large and where
scene.pixels()                     32 x 32 x 3 whole numbers from 0 to 255, the same on every machine
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from einops import reduce
from numpy.typing import NDArray

from regard.world.chance import Chance
from regard.world.lexicon import SPLITS, Split, hashed_split

ATTEMPTS = 10_000
SMALLEST = 24  # below, a small circle and a small square are the same few pixels
MOST = 6
SAMPLES = 4  # along each side of a pixel: an edge is shaded in 16 steps
UNIT = 2 * SAMPLES  # places are counted in half-samples, so that the middle of every sample is a whole number

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
# One in ten for each of valid and test. Every colour is kept for training with two shapes or three, every shape with
# eight colours: where a colour said too much about a shape, a model would learn to look at nothing else.
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


def split_of(colour: str, shape: str) -> Split:
    """Where a composition may occur, in every world alike."""
    return HELD_OUT.get((colour, shape), "train")


def check(number: int, split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {split!r}")
    if number < 0:
        raise ValueError(f"pictures are counted from 0, not from {number}")


@dataclass(frozen=True)
class Thing:
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
        """Where it may occur, in every world alike, if pictures are held out."""
        return hashed_split(f"{self.colour} {self.shape} {self.x} {self.y} {self.radius}")

    def apart(self, other: "Thing") -> bool:
        """Is there a pixel's width between the two?"""
        return max(abs(self.x - other.x), abs(self.y - other.y)) > self.radius + other.radius

    def covers(self, size: int) -> NDArray[np.int64]:
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
    """What a picture shows: things from left to right, none touching another, on a light ground."""

    size: int
    ground: int
    things: tuple[Thing, ...]

    def pixels(self) -> NDArray[np.uint8]:
        """Rows, columns, and red, green and blue."""
        picture = np.full((self.size, self.size, 3), self.ground, dtype=np.int64)
        whole = SAMPLES**2
        for thing in self.things:
            covered = thing.covers(self.size)[..., None]
            picture = (picture * (whole - covered) + np.array(COLOURS[thing.colour]) * covered + whole // 2) // whole
        return picture.astype(np.uint8)


@dataclass(frozen=True)
class ShapeWorld:
    """Square pictures of `fewest` to `most` things, every number of them equally often.

    What is held out is divided once, in every world alike: train never shows it; every test picture has something that
    occurs in test alone, every valid picture something of valid alone. That is a composition (colour, shape), or, where
    `held_out` is "pictures", merely a thing of its size in its place, and every split shows all compositions.
    """

    seed: int = 0
    size: int = 32
    fewest: int = 1
    most: int = 4
    held_out: str = "compositions"

    def __post_init__(self):
        if self.held_out not in HOLD_OUTS:
            raise ValueError(f"what is held out is one of {', '.join(HOLD_OUTS)}, not {self.held_out!r}")
        if self.size < SMALLEST:
            raise ValueError(f"a picture of shapes has {SMALLEST} pixels a side or more, not {self.size}")
        if not 1 <= self.fewest <= self.most <= MOST:
            raise ValueError(
                f"a picture shows 1 to {MOST} things, fewest before most, not {self.fewest} to {self.most}"
            )

    @property
    def radii(self) -> tuple[int, int]:
        """Of small things and of large ones."""
        return self.size * 3 // 32, self.size * 5 // 32

    def scene(self, number: int, split: Split = "train") -> Scene:
        """What the picture with this number shows, at random access."""
        check(number, split)
        origin = (self.seed, SPLITS.index(split), number)
        count = self.fewest + Chance(*origin).below(self.most - self.fewest + 1)
        for attempt in range(ATTEMPTS):
            if scene := self._tried(Chance(*origin, 1 + attempt), count, split):
                return scene
        raise AssertionError(f"no room for {count} things in {ATTEMPTS} attempts")

    def _tried(self, chance: Chance, count: int, split: Split) -> Scene | None:
        """A scene, unless its things come too near each other. The first thing is of the split itself."""
        ground, things = 224 + chance.below(32), []
        for n in range(count):
            things.append(self._thing(chance, (split,) if n == 0 else ("train", split)))
            if not all(things[-1].apart(other) for other in things[:-1]):
                return None
        return Scene(self.size, ground, tuple(sorted(things, key=lambda thing: (thing.x, thing.y))))

    def _thing(self, chance: Chance, allowed: tuple[Split, ...]) -> Thing:
        """The first drawn that belongs to one of these splits."""
        by_composition = self.held_out == "compositions"
        pairs = [pair for pair in COMPOSITIONS if split_of(*pair) in allowed] if by_composition else COMPOSITIONS
        while True:
            colour, shape = chance.pick(pairs)
            radius = chance.pick(self.radii)
            x, y = (radius + chance.below(self.size - 2 * radius + 1) for _ in range(2))
            thing = Thing(shape, colour, x, y, radius)
            if by_composition or thing.split in allowed:
                return thing
