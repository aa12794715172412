"""A seed and a range of lengths in, endless sentences out, each a function of its number alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from regard.world.chance import Chance
from regard.world.derive import sentence
from regard.world.grammar import SHORTEST, Grammar, Stuck
from regard.world.lexicon import SPLITS, Split, split_of
from regard.world.sentence import LANGUAGES, Sentence

ATTEMPTS = 10_000
LONGEST = 10_000  # words: a sentence is derived at once, and a larger number is a slip


@dataclass(frozen=True)
class World:
    """Sentences of `shortest` to `longest` English words, every length equally often.

    The compositions (adjective, noun) and (verb, object) are divided once, in every world alike: train never shows
    those held out; every test sentence has one that occurs in test alone, every valid sentence one of valid alone.
    """

    seed: int = 0
    shortest: int = SHORTEST
    longest: int = 12

    def __post_init__(self):
        if not SHORTEST <= self.shortest <= self.longest <= LONGEST:
            raise ValueError(
                f"shortest = {self.shortest} and longest = {self.longest} cannot be: the world's sentences have "
                f"{SHORTEST} to {LONGEST:,} words, and shortest is at most longest"
            )

    def sentence(self, number: int, split: Split = "train") -> Sentence:
        """The sentence with this number, at random access."""
        if split not in SPLITS:
            raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {split!r}")
        if number < 0:
            raise ValueError(f"sentences are counted from 0, not from {number}")
        lengths = self.longest - self.shortest + 1
        origin = (self.seed, SPLITS.index(split), number)
        size = self.shortest + Chance(*origin).below(lengths)
        for attempt in range(ATTEMPTS):
            try:
                found = sentence(Grammar(Chance(*origin, 1 + attempt), split).whole(size))
            except Stuck:
                continue
            if split == "train" or any(split_of(*pair) == split for pair in found.compositions):
                return found
        raise AssertionError(f"no sentence of {size} words in {ATTEMPTS} attempts")


def pairs(world: World, language: str, count: int, split: Split = "train", start: int = 0) -> Iterator[tuple[str, str]]:
    """English and the other language, words joined by spaces: the sentences numbered from `start`."""
    if language not in LANGUAGES:
        raise ValueError(f"the world translates into {' and '.join(LANGUAGES)}, not into {language!r}")
    for number in range(start, start + count):
        found = world.sentence(number, split)
        yield " ".join(found.words), " ".join(found.into[language].words)
