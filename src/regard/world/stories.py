"""A seed and a length in; endless stories out, each with its extract: what is told of one person, word for word.

    Anna : the tree grew . Anna met a thief . Paul slept . my cook saw Anna .
    Anna met a thief . my cook saw Anna .

The person stands before the colon. An extract is the shortest summary that can be known exactly: the sentences in which
the person occurs, in their order. A story may be a thousand times longer than its extract.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from regard.world.chance import Chance
from regard.world.lexicon import SPLITS, Split
from regard.world.retrieval import PEOPLE, STOP, shuffled
from regard.world.world import World

COLON = ":"
POOL = 1000  # sentences of the world, of which so many stories in a row are made:
SHARED = 128
SHORTEST, SHORT = 3, 6  # of sentences of 3 to 6 words, each with its stop, a text of any length can be made
Words = tuple[str, ...]


@dataclass(frozen=True)
class Story:
    """Whom it is asked about, its sentences in order, and which of them tell of that person."""

    person: str
    sentences: tuple[Words, ...]
    matters: tuple[int, ...]

    @property
    def source(self) -> str:
        return " ".join((self.person, COLON, joined(self.sentences)))

    @property
    def target(self) -> str:
        return joined(self.sentences[n] for n in self.matters)


@dataclass(frozen=True)
class Stories:
    """Stories of exactly `words` words, of which `told` sentences name the person: all that are to be extracted.

    Args:
        longest: words of a sentence, without its stop.

    Sentences are those of the world's own split: each of valid and test holds a composition that training never shows.
    """

    seed: int = 0
    words: int = 256
    told: int = 2
    longest: int = 6

    def __post_init__(self):
        if self.told < 1:
            raise ValueError(f"an extract has 1 sentence or more, not {self.told}")
        if self.longest < SHORT:
            raise ValueError(f"sentences have up to {SHORT} words or more, not up to {self.longest}")
        if self.words < self.least:
            raise ValueError(
                f"{self.told + 1} sentences of up to {self.longest} words take {self.least} words, not {self.words}"
            )

    @property
    def least(self) -> int:
        """Words that any story needs."""
        return 2 + (self.told + 1) * (self.longest + 1)

    def story(self, number: int, split: Split = "train") -> Story:
        """The story with this number, at random access."""
        if split not in SPLITS:
            raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {split!r}")
        if number < 0:
            raise ValueError(f"stories are counted from 0, not from {number}")
        chance = Chance(self.seed, SPLITS.index(split), number)
        person = chance.pick(PEOPLE)
        of_person, others = about(person, self.longest, split, number // SHARED)
        chosen = [chance.pick(of_person) for _ in range(self.told)]
        left = self.words - 2 - sum(map(len, chosen))
        while left:
            sentence = chance.pick(others)
            if len(sentence) == left or left - len(sentence) > SHORTEST:
                chosen.append(sentence)
                left -= len(sentence)
        order = shuffled(chance, range(len(chosen)))
        matters = tuple(place for place, n in enumerate(order) if n < self.told)
        return Story(person, tuple(chosen[n] for n in order), matters)


@lru_cache(maxsize=256)
def about(person: str, longest: int, split: Split, pool: int) -> tuple[tuple[Words, ...], tuple[Words, ...]]:
    """The sentences of a pool that name the person, and those that do not."""
    sentences = sentences_of(longest, split, pool)
    return tuple(s for s in sentences if person in s), tuple(s for s in sentences if person not in s)


@lru_cache(maxsize=16)
def sentences_of(longest: int, split: Split, pool: int) -> tuple[Words, ...]:
    """A pool, since to draw thousands of sentences anew for every story would take all the time."""
    world = World(longest=longest)
    return tuple((*world.sentence(pool * POOL + number, split).words, STOP) for number in range(POOL))


def joined(sentences: Iterable[Words]) -> str:
    return " ".join(word for sentence in sentences for word in sentence)


def pairs(stories: Stories, count: int, split: Split = "train", start: int = 0) -> Iterator[tuple[str, str]]:
    """Stories and extracts, as a translator is trained on: those numbered from `start`."""
    for number in range(start, start + count):
        found = stories.story(number, split)
        yield found.source, found.target


def graded(stories: Stories, count: int, split: Split = "train") -> Iterator[tuple[str, str]]:
    """The same to learn from: every other one as short as can be, every fourth twice as long, and so on up to all
    words, so that each length has about as many of them.

    Of long stories alone nobody learns what is asked, at least not soon; of short ones it is soon plain.
    """
    sizes = [stories.words]
    while sizes[0] // 2 >= stories.least:
        sizes.insert(0, sizes[0] // 2)
    for number in range(count):
        grade = min(((number + 1) & -(number + 1)).bit_length(), len(sizes)) - 1
        found = replace(stories, words=sizes[grade]).story(number, split)
        yield found.source, found.target
