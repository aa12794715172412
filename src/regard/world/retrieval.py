"""A seed and a length in; endless texts of exactly so many words out, each with a question that one place answers.

    where does Anna live . the tree grew . Paul lives in Rome . two wet roofs were red . Anna lives in Oslo . ...

The answer is Oslo. With two hops, Anna lives with Clara, and Clara lives in Oslo: the second sentence can only be
looked for once the first was found. All other sentences are those of the miniature world, which names the same people.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal, TypeVar, get_args

from regard.world.chance import Chance
from regard.world.lexicon import SPLITS, Split
from regard.world.small import NAMES
from regard.world.world import World

T = TypeVar("T")
Asked = Literal["first", "last"]
PEOPLE = tuple(name.en[0] for name in NAMES)
TOWNS = ("Athens", "Berlin", "Lisbon", "London", "Madrid", "Oslo", "Paris", "Prague", "Rome", "Vienna")
STOP = "."
QUESTION = 5  # where does Anna live .
FACT = 5  # Anna lives in Oslo .
SHORTEST, LONGEST = 3, 12  # words of a sentence that tells nothing to the purpose
POOL = 199  # such sentences of each length


@dataclass(frozen=True)
class Question:
    """The whole text, the town that is right, and where the sentences that lead to it begin, in the order of hops."""

    words: tuple[str, ...]
    answer: str
    matters: tuple[int, ...]

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Retrieval:
    """Texts of exactly `words` words in which `chains` people are said to live somewhere; one is asked about.

    Args:
        hops: sentences from the person asked about to a town; each chain has as many, about people of its own.
        asked: does the question stand first or last?

    The answer and the places of the facts are drawn evenly. All other sentences are of the world's own split, so that
    no text of valid or test occurs in training.
    """

    seed: int = 0
    words: int = 256
    chains: int = 4
    hops: int = 1
    asked: Asked = "first"

    def __post_init__(self):
        if self.chains < 1 or self.hops < 1:
            raise ValueError(f"there must be 1 chain or more of 1 hop or more, not {self.chains} of {self.hops}")
        if self.chains * self.hops > len(PEOPLE):
            raise ValueError(
                f"{self.chains} chains of {self.hops} people need {self.chains * self.hops}, and the world knows "
                f"{len(PEOPLE)}: not so many"
            )
        least = QUESTION + FACT * self.chains * self.hops + SHORTEST + 1
        if self.words < least:
            raise ValueError(f"{self.chains} chains of {self.hops} hops take {least} words or more, not {self.words}")
        if self.asked not in get_args(Asked):
            raise ValueError(f"a question is asked first or last, not {self.asked!r}")

    def question(self, number: int, split: Split = "train") -> Question:
        """The text with this number, at random access."""
        if split not in SPLITS:
            raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {split!r}")
        if number < 0:
            raise ValueError(f"texts are counted from 0, not from {number}")
        chance = Chance(self.seed, SPLITS.index(split), number)
        people = shuffled(chance, PEOPLE)
        chains = [people[n * self.hops : (n + 1) * self.hops] for n in range(self.chains)]
        towns = [chance.pick(TOWNS) for _ in chains]
        facts = [fact for chain, town in zip(chains, towns, strict=True) for fact in told(chain, town)]
        asked = ("where", "does", chains[0][0], "live", STOP)
        others = filler(chance, self.words - QUESTION - FACT * len(facts), split)
        order = shuffled(chance, range(len(facts) + len(others)))
        sentences = [(facts + others)[n] for n in order]
        before = QUESTION if self.asked == "first" else 0
        starts = {n: before + at for n, at in zip(order, beginnings(sentences), strict=True)}
        words = tuple(word for sentence in sentences for word in sentence)
        return Question(
            asked + words if self.asked == "first" else words + asked,
            towns[0],
            tuple(starts[n] for n in range(self.hops)),
        )


def told(chain: tuple[str, ...], town: str) -> list[tuple[str, ...]]:
    """Anna lives with Clara . Clara lives in Oslo ."""
    links = [(one, "lives", "with", other, STOP) for one, other in pairwise(chain)]
    return [*links, (chain[-1], "lives", "in", town, STOP)]


def filler(chance: Chance, size: int, split: Split) -> list[tuple[str, ...]]:
    """Sentences of the world, so many words in all, each with its stop."""
    found = []
    while size:
        longest = min(size, LONGEST + 1)
        fitting = [n for n in range(SHORTEST + 1, longest + 1) if size == n or size - n > SHORTEST]
        sentence = chance.pick(sentences_of(chance.pick(fitting) - 1, split))
        found.append(sentence)
        size -= len(sentence)
    return found


@cache
def sentences_of(size: int, split: Split) -> tuple[tuple[str, ...], ...]:
    """The world's first sentences of so many words; to draw them anew for every text would take most of the time."""
    world = World(shortest=size, longest=size)
    return tuple((*world.sentence(number, split).words, STOP) for number in range(POOL))


def beginnings(sentences: list[tuple[str, ...]]) -> Iterator[int]:
    at = 0
    for sentence in sentences:
        yield at
        at += len(sentence)


def shuffled(chance: Chance, things: Iterable[T]) -> tuple[T, ...]:
    """Every order equally likely (Fisher and Yates)."""
    order = list(things)
    for last in range(len(order) - 1, 0, -1):
        other = chance.below(last + 1)
        order[last], order[other] = order[other], order[last]
    return tuple(order)


def examples(world: Retrieval, count: int, split: Split = "train", start: int = 0) -> Iterator[tuple[str, str]]:
    """Texts and answers: the questions numbered from `start`."""
    for number in range(start, start + count):
        found = world.question(number, split)
        yield found.text, found.answer
