"""A scene of shapes in; every question that has one answer out, with the answer and the things that decide it.

    asked = ask(ShapeWorld(seed=0), 17)
    asked.scene.pixels(), asked.question.text, asked.question.answer, asked.question.matters

Answers are single words, so that a model may choose among ANSWERS: what is held out is never an answer of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from regard.world.chance import Chance
from regard.world.lexicon import SPLITS, Split
from regard.world.shapes import (
    COLOURS,
    COMPOSITIONS,
    MOST,
    SHAPES,
    Composition,
    Scene,
    ShapeWorld,
    Thing,
    split_of,
)

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
assert len(NUMBERS) == MOST + 1
ANSWERS = (*COLOURS, *SHAPES, "yes", "no", *NUMBERS)
KINDS = ("colour", "shape", "presence", "count", "place")
# The steps to the right and down that lead from a thing to what is on this side of it.
SIDES = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}


@dataclass(frozen=True)
class Question:
    """`matters` are the indices of the things by which the answer is decided: none if something is not there.

    `compositions` are those the question names and those of the things that matter.
    """

    text: str
    answer: str
    kind: str
    matters: tuple[int, ...]
    compositions: frozenset[Composition]


@dataclass(frozen=True)
class Asked:
    """A scene and one question about it."""

    scene: Scene
    question: Question

    @property
    def boxes(self) -> tuple[tuple[int, int, int, int], ...]:
        """Where the answer can be seen: the box of each thing that matters."""
        return tuple(self.scene.things[n].box for n in self.question.matters)


def ask(world: ShapeWorld, number: int, split: Split = "train", turn: int = 0) -> Asked:
    """The picture with this number and one question: of each kind, and within a kind of each answer, equally often.

    At another turn, another question about the same picture, if chance wills it.
    """
    scene, found = _scene_with_questions(world, number, split)
    chance = Chance(world.seed, SPLITS.index(split), number, 0, *[turn] * (turn > 0))
    kind = chance.pick([kind for kind in KINDS if any(question.kind == kind for question in found)])
    found = [question for question in found if question.kind == kind]
    answer = chance.pick([answer for answer in ANSWERS if any(question.answer == answer for question in found)])
    return Asked(scene, chance.pick([question for question in found if question.answer == answer]))


@lru_cache(maxsize=1)  # turn after turn asks about the same picture
def _scene_with_questions(world: ShapeWorld, number: int, split: Split) -> tuple[Scene, list[Question]]:
    scene = world.scene(number, split)
    return scene, questions(scene, split, world.held_out)


def questions(scene: Scene, split: Split = "train", held_out: str = "compositions") -> list[Question]:
    """All that may be asked in a split: train never speaks of compositions held out, the others always do.

    Were "is there a red triangle" asked while training, the answer would be no each time.
    """
    return [question for question in _every(scene) if held_out == "pictures" or _belongs(question, split)]


def _belongs(question: Question, split: Split) -> bool:
    spoken = {split_of(*pair) for pair in question.compositions}
    return spoken <= {"train", split} and (split == "train" or split in spoken)


def _every(scene: Scene) -> Iterator[Question]:
    things = scene.things
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
            yield from _beside(scene, here[0])


def _beside(scene: Scene, n: int) -> Iterator[Question]:
    """What is on each side of a thing, where just one thing is and every other is clearly not."""
    thing = scene.things[n]
    for side, step in SIDES.items():
        steps = {m: _along(thing, other, step) for m, other in enumerate(scene.things) if m != n}
        there = [m for m, far in steps.items() if far > 0]
        # nobody can tell by eye whether a thing a pixel further left counts as left
        if len(there) == 1 and min(abs(far) for far in steps.values()) >= scene.size // 16:
            text = f"what is {side} the {thing.colour} {thing.shape}"
            yield _question(scene, text, scene.things[there[0]].shape, "place", [n, *there])


def _along(thing: Thing, other: Thing, step: tuple[int, int]) -> int:
    return (other.x - thing.x) * step[0] + (other.y - thing.y) * step[1]


def _question(scene: Scene, text: str, answer: str, kind: str, here: list[int], *named: Composition) -> Question:
    shown = (scene.things[n].composition for n in here)
    return Question(text, answer, kind, tuple(sorted(here)), frozenset((*named, *shown)))


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"
