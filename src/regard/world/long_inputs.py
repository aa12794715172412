"""Long inputs: ListOps, retrieval of facts, associative recall and stories, of exactly so many words, with answers.

ListOps (Nangia and Bowman 2018), which the Long Range Arena made long (Tay et al. 2021):

    [MAX 4 [MIN 2 3 ] 1 [SUM 9 8 ] ]        evaluates to 7: MAX of 4, 2, 1 and 9 + 8 mod 10

An operator and its bracket are one word. MED is the middle of the operands in order, of an even number the lower
middle; SUM is modulo 10.

Retrieval: a question about one fact, and stories to extract sentences from.

    where does Anna live . the tree grew . Paul lives in Rome . two wet roofs were red . Anna lives in Oslo . ...

The answer is Oslo. With two hops, Anna lives with Clara, and Clara lives in Oslo: the second sentence can only be
retrieved after the first. All other sentences are those of the miniature world, which names the same people.
"""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from regard.world.lexicon import NAMES, SPLITS, Split, check_request
from regard.world.splitmix import SplitMix64, combine_seeds, random_keys_at
from regard.world.world import World

if TYPE_CHECKING:  # the miniature world loads without numpy, in milliseconds
    import numpy as np
    from numpy.typing import NDArray

OPERATORS = ("MAX", "MIN", "MED", "SUM")
DIGITS = tuple("0123456789")
VOCABULARY = (*DIGITS, *(f"[{operator}" for operator in OPERATORS), "]")
SHORTEST = 16
MAX_OPERANDS = 10  # operands of a list that holds other lists
MIN_LIST_WORDS = 3  # the words of the shortest list: operator, operand, bracket
ATTEMPTS = 1000


@dataclass(frozen=True)
class Expression:
    """The words and the digit they evaluate to."""

    words: tuple[str, ...]
    answer: str

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class ListOps:
    """Expressions of exactly `words` words, with lists up to `depth` within each other; every answer equally often.

    The value of a list is drawn before its operands, from the outermost list inwards: otherwise the largest
    of a thousand digits would nearly always be 9. Each expression belongs to one split by its own words.
    """

    seed: int = 0
    words: int = 256
    depth: int = 3
    operators: tuple[str, ...] = OPERATORS

    def __post_init__(self):
        if self.words < SHORTEST:
            raise ValueError(f"an expression has {SHORTEST} words or more, not {self.words}")
        if self.depth < 1:
            raise ValueError(f"lists are 1 deep or more, not {self.depth}")
        if unknown := [operator for operator in self.operators if operator not in OPERATORS]:
            raise ValueError(f"no operator is called {unknown[0]!r}; there are {', '.join(OPERATORS)}")
        if not self.operators:
            raise ValueError(f"an expression needs an operator; choose from {', '.join(OPERATORS)}, not none")

    def expression(self, number: int, split: Split = "train") -> Expression:
        """The expression with this number, at random access."""
        check_request(number, split, "expressions")
        for attempt in range(ATTEMPTS):
            rng = SplitMix64(self.seed, SPLITS.index(split), number, attempt)
            words: list[str] = []
            answer = rng.randbelow(10)
            self.append_list(words, rng, self.words, self.depth, answer)
            if expression_split(expression := tuple(words)) == split:
                return Expression(expression, str(answer))
        raise AssertionError(f"none of {ATTEMPTS} expressions belongs to {split}")

    def append_list(self, words: list[str], rng: SplitMix64, size: int, depth: int, answer: int) -> None:
        """Append a list of so many words that evaluates to the answer."""
        operator = rng.choice(self.operators)
        words.append(f"[{operator}")
        sizes = [1] * (size - 2) if depth == 1 else split_operands(rng, size - 2)
        for part, value in zip(sizes, draw_operands(rng, operator, len(sizes), answer), strict=True):
            if part == 1:
                words.append(DIGITS[value])
            else:
                self.append_list(words, rng, part, depth - 1, value)
        words.append("]")


def expression_split(words: tuple[str, ...]) -> Split:
    """Where an expression may occur, for every seed alike: one in ten for each of valid and test."""
    draw = zlib.crc32(" ".join(words).encode()) % 10  # fast, and the same everywhere
    return "test" if draw == 0 else "valid" if draw == 1 else "train"


def split_operands(rng: SplitMix64, size: int) -> list[int]:
    """So many words shared out among operands: digits of one word, and lists of three or more."""
    sizes = [1] * min(size, 2 + rng.randbelow(MAX_OPERANDS - 1))
    lists = [n for n in range(len(sizes)) if rng.bernoulli(60)] or [rng.randbelow(len(sizes))]
    left = size - len(sizes)
    for n, at in enumerate(lists[:-1]):
        # an equal share on average; a list costs two words beyond the digit that it replaces
        share = rng.randbelow(2 * left // (len(lists) - n) + 1)
        if share >= MIN_LIST_WORDS - 1:
            sizes[at], left = 1 + share, left - share
    if left < MIN_LIST_WORDS - 1:
        return [*sizes, *[1] * left]
    sizes[lists[-1]] += left
    return sizes


def draw_operands(rng: SplitMix64, operator: str, count: int, answer: int) -> list[int]:
    """Digits, in random order, that the operator reduces to the answer."""
    match operator:
        case "MAX":
            values = [rng.randbelow(answer + 1) for _ in range(count - 1)]
        case "MIN":
            values = [answer + rng.randbelow(10 - answer) for _ in range(count - 1)]
        case "MED":
            below = (count - 1) // 2
            values = [rng.randbelow(answer + 1) for _ in range(below)]
            values += [answer + rng.randbelow(10 - answer) for _ in range(count - 1 - below)]
        case _:
            values = [rng.randbelow(10) for _ in range(count - 1)]
            return [*values, (answer - sum(values)) % 10]
    values.append(answer)
    for last in range(count - 1, 0, -1):  # Fisher and Yates: every order equally likely
        other = rng.randbelow(last + 1)
        values[last], values[other] = values[other], values[last]
    return values


def listops_examples(world: ListOps, count: int, split: Split = "train", start: int = 0) -> Iterator[tuple[str, str]]:
    """Texts and answers: the expressions numbered from `start`."""
    for number in range(start, start + count):
        expression = world.expression(number, split)
        yield expression.text, expression.answer


T = TypeVar("T")
ChainEnd = Literal["first", "last"]
PEOPLE = tuple(name.en[0] for name in NAMES)
TOWNS = ("Athens", "Berlin", "Lisbon", "London", "Madrid", "Oslo", "Paris", "Prague", "Rome", "Vienna")
STOP = "."
QUESTION = 5  # where does Anna live .
FACT = 5  # Anna lives in Oslo .
MIN_FILLER, MAX_FILLER = 3, 12  # words of a sentence that is not a fact
FILLER_POOL = 199  # such sentences of each length


@dataclass(frozen=True)
class RetrievalQuestion:
    """The whole text, the town that is right, and the starts of the sentences that lead to it, in the order of hops."""

    words: tuple[str, ...]
    answer: str
    evidence: tuple[int, ...]

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Retrieval:
    """Texts of exactly `words` words with `chains` facts of who lives where; the question is about one of them.

    Args:
        hops: sentences from the person in question to a town; each chain has as many, about people of its own.
        asked: whether the question stands first or last.
        questions: how many are asked, last, each about a chain drawn anew; all but the last with their answers.

    The answer and the positions of the facts are uniform. All other sentences are of the world's own split, so that
    no text of valid or test occurs in training.
    """

    seed: int = 0
    words: int = 256
    chains: int = 4
    hops: int = 1
    asked: ChainEnd = "first"
    questions: int = 1

    def __post_init__(self):
        if self.questions < 1 or (self.questions > 1 and self.asked == "first"):
            raise ValueError(
                f"{self.questions} questions cannot be asked {self.asked}: one is asked first, one or more last"
            )
        if self.chains < 1 or self.hops < 1:
            raise ValueError(f"there must be 1 chain or more of 1 hop or more, not {self.chains} of {self.hops}")
        if self.chains * self.hops > len(PEOPLE):
            raise ValueError(
                f"{self.chains} chains of {self.hops} people need {self.chains * self.hops}, and the world knows "
                f"{len(PEOPLE)}: not so many"
            )
        least = self.asked_words + FACT * self.chains * self.hops + MIN_FILLER + 1
        if self.words < least:
            raise ValueError(f"{self.chains} chains of {self.hops} hops take {least} words or more, not {self.words}")
        if self.asked not in get_args(ChainEnd):
            raise ValueError(f"a question is asked first or last, not {self.asked!r}")

    @property
    def asked_words(self) -> int:
        """The words of all questions, and of all answers but the last."""
        return (QUESTION + 1) * self.questions - 1

    def question(self, number: int, split: Split = "train") -> RetrievalQuestion:
        """The text with this number, at random access."""
        check_request(number, split, "texts")
        rng = SplitMix64(self.seed, SPLITS.index(split), number)
        people = shuffle(rng, PEOPLE)
        chains = [people[n * self.hops : (n + 1) * self.hops] for n in range(self.chains)]
        towns = [rng.choice(TOWNS) for _ in chains]
        facts = [fact for chain, town in zip(chains, towns, strict=True) for fact in state_facts(chain, town)]
        others = draw_filler(rng, self.words - self.asked_words - FACT * len(facts), split)
        order = shuffle(rng, range(len(facts) + len(others)))
        sentences = [(facts + others)[n] for n in order]
        before = QUESTION if self.asked == "first" else 0
        starts = {n: before + at for n, at in zip(order, sentence_starts(sentences), strict=True)}
        words = tuple(word for sentence in sentences for word in sentence)
        for chain in (rng.randbelow(self.chains) for _ in range(self.questions - 1)):
            words += (*ask_where(chains[chain][0]), towns[chain])
        question = ask_where(chains[0][0])
        return RetrievalQuestion(
            question + words if self.asked == "first" else words + question,
            towns[0],
            tuple(starts[n] for n in range(self.hops)),
        )


def ask_where(person: str) -> tuple[str, ...]:
    return ("where", "does", person, "live", STOP)


def state_facts(chain: tuple[str, ...], town: str) -> list[tuple[str, ...]]:
    """Anna lives with Clara . Clara lives in Oslo ."""
    links = [(one, "lives", "with", other, STOP) for one, other in pairwise(chain)]
    return [*links, (chain[-1], "lives", "in", town, STOP)]


def draw_filler(rng: SplitMix64, size: int, split: Split) -> list[tuple[str, ...]]:
    """Sentences of the world, so many words in all, each with its stop."""
    sentences = []
    while size:
        longest = min(size, MAX_FILLER + 1)
        fitting = [n for n in range(MIN_FILLER + 1, longest + 1) if size == n or size - n > MIN_FILLER]
        sentence = rng.choice(filler_sentences(rng.choice(fitting) - 1, split))
        sentences.append(sentence)
        size -= len(sentence)
    return sentences


@cache
def filler_sentences(size: int, split: Split) -> tuple[tuple[str, ...], ...]:
    """The world's first sentences of so many words; cached, since sampling takes most of the time."""
    world = World(min_length=size, max_length=size)
    return tuple((*world.sentence(number, split).words, STOP) for number in range(FILLER_POOL))


def sentence_starts(sentences: list[tuple[str, ...]]) -> Iterator[int]:
    at = 0
    for sentence in sentences:
        yield at
        at += len(sentence)


def shuffle(rng: SplitMix64, items: Iterable[T]) -> tuple[T, ...]:
    """Every order equally likely (Fisher and Yates)."""
    order = list(items)
    for last in range(len(order) - 1, 0, -1):
        other = rng.randbelow(last + 1)
        order[last], order[other] = order[other], order[last]
    return tuple(order)


def retrieval_examples(
    world: Retrieval, count: int, split: Split = "train", start: int = 0
) -> Iterator[tuple[str, str]]:
    """Texts and answers: the questions numbered from `start`."""
    for number in range(start, start + count):
        question = world.question(number, split)
        yield question.text, question.answer


# --- associative recall ---


@dataclass(frozen=True)
class RecallSequence:
    """Keys and values in turn; `answers` are the indices of the keys that came before, each followed by its value."""

    tokens: tuple[int, ...]
    answers: tuple[int, ...]


@dataclass(frozen=True)
class AssociativeRecall:
    """Multi-query associative recall (MQAR; Arora et al. 2024): which value came with a key?

        7 12 3 15 | 3 15 7 12 3 15        the pairs 7 → 12 and 3 → 15, then three questions with their answers

    Args:
        pairs: of keys and values; no key occurs twice, a value may.
        queries: how often a key is asked for, at random, after all pairs.
        keys, values: how many of each there are: tokens 0 to keys - 1, and keys to keys + values - 1.

    A state of fixed size must hold all pairs; attention looks them up.

    Examples:
        >>> recall = AssociativeRecall(pairs=2, queries=3, keys=4, values=4)
        >>> recall.sequence(0)  # 0 → 7 and 2 → 4
        RecallSequence(tokens=(0, 7, 2, 4, 0, 7, 2, 4, 0, 7), answers=(4, 6, 8))
    """

    seed: int = 0
    pairs: int = 8
    queries: int = 8
    keys: int = 32
    values: int = 32

    def __post_init__(self):
        if not 1 <= self.pairs <= self.keys or self.values < 2 or self.queries < 1:
            raise ValueError(
                f"{self.pairs} pairs need as many keys, two values and a query; not {self.keys} keys, {self.values} "
                f"values and {self.queries} queries"
            )

    @property
    def length(self) -> int:
        return 2 * (self.pairs + self.queries)

    def sequence(self, number: int, split: Split = "train") -> RecallSequence:
        """The sequence with this number, at random access."""
        tokens = self.sequences(number, 1, split)[0].tolist()
        return RecallSequence(tuple(tokens), tuple(range(2 * self.pairs, self.length, 2)))

    def sequences(self, first: int, count: int, split: Split = "train") -> "NDArray[np.int64]":
        """The tokens of so many sequences from this number on, (count, length), at once."""
        import numpy as np

        check_request(first, split, "sequences")
        each = self.keys + self.pairs + self.queries  # draws of a sequence
        seed = combine_seeds(self.seed, SPLITS.index(split))
        drawn = random_keys_at(seed, np.arange(first * each, (first + count) * each, dtype=np.uint64))
        of_keys, of_values, of_queries = np.split(drawn.reshape(count, each), [self.keys, self.keys + self.pairs], 1)
        keys = np.argsort(of_keys, 1, kind="stable")[:, : self.pairs]
        values = self.keys + (of_values % self.values).astype(np.int64)
        asked = (of_queries % self.pairs).astype(np.int64)
        pairs = np.stack((keys, values), 2)
        return np.concatenate((pairs, pairs[np.arange(count)[:, None], asked]), 1).reshape(count, self.length)


# --- stories ---


COLON = ":"
STORY_POOL = 1000  # sentences of the world in a pool
SHARED = 128  # consecutive stories that share a pool
# Sentences of 3 to 6 words, each with its stop, add up to any length.
MIN_STORY_SENTENCE, SHORT_STORY_SENTENCE = 3, 6
SentenceWords = tuple[str, ...]


@dataclass(frozen=True)
class Story:
    """The person in question, the sentences in order, and which of them name that person."""

    person: str
    sentences: tuple[SentenceWords, ...]
    evidence: tuple[int, ...]

    @property
    def source(self) -> str:
        return " ".join((self.person, COLON, join_sentences(self.sentences)))

    @property
    def target(self) -> str:
        return join_sentences(self.sentences[n] for n in self.evidence)


@dataclass(frozen=True)
class Stories:
    """Stories of exactly `words` words, of which `relevant` sentences name the person: those to extract.

    Args:
        longest: words of a sentence, without its stop.

    Sentences are those of the world's own split: each of valid and test holds a composition that training never shows.
    """

    seed: int = 0
    words: int = 256
    relevant: int = 2
    longest: int = 6

    def __post_init__(self):
        if self.relevant < 1:
            raise ValueError(f"an extract has 1 sentence or more, not {self.relevant}")
        if self.longest < SHORT_STORY_SENTENCE:
            raise ValueError(f"sentences have up to {SHORT_STORY_SENTENCE} words or more, not up to {self.longest}")
        if self.words < self.min_words:
            raise ValueError(
                f"{self.relevant + 1} sentences of up to {self.longest} words take {self.min_words} words, "
                f"not {self.words}"
            )

    @property
    def min_words(self) -> int:
        """The least words of a story."""
        return 2 + (self.relevant + 1) * (self.longest + 1)

    def story(self, number: int, split: Split = "train") -> Story:
        """The story with this number, at random access."""
        check_request(number, split, "stories")
        rng = SplitMix64(self.seed, SPLITS.index(split), number)
        person = rng.choice(PEOPLE)
        of_person, others = split_by_person(person, self.longest, split, number // SHARED)
        chosen = [rng.choice(of_person) for _ in range(self.relevant)]
        left = self.words - 2 - sum(map(len, chosen))
        while left:
            sentence = rng.choice(others)
            if len(sentence) == left or left - len(sentence) > MIN_STORY_SENTENCE:
                chosen.append(sentence)
                left -= len(sentence)
        order = shuffle(rng, range(len(chosen)))
        evidence = tuple(index for index, n in enumerate(order) if n < self.relevant)
        return Story(person, tuple(chosen[n] for n in order), evidence)


@lru_cache(maxsize=256)
def split_by_person(
    person: str, longest: int, split: Split, pool: int
) -> tuple[tuple[SentenceWords, ...], tuple[SentenceWords, ...]]:
    """The sentences of a pool that name the person, and those that do not."""
    sentences = story_sentences(longest, split, pool)
    return tuple(s for s in sentences if person in s), tuple(s for s in sentences if person not in s)


@lru_cache(maxsize=16)
def story_sentences(longest: int, split: Split, pool: int) -> tuple[SentenceWords, ...]:
    """A pool of sentences, cached: to sample thousands for every story would take too long."""
    world = World(max_length=longest)
    return tuple((*world.sentence(pool * STORY_POOL + number, split).words, STOP) for number in range(STORY_POOL))


def join_sentences(sentences: Iterable[SentenceWords]) -> str:
    return " ".join(word for sentence in sentences for word in sentence)


def story_pairs(stories: Stories, count: int, split: Split = "train", start: int = 0) -> Iterator[tuple[str, str]]:
    """Stories and extracts as pairs of source and target: those numbered from `start`."""
    for number in range(start, start + count):
        story = stories.story(number, split)
        yield story.source, story.target


def graded_story_pairs(stories: Stories, count: int, split: Split = "train") -> Iterator[tuple[str, str]]:
    """A curriculum: every other story as short as possible, every fourth twice as long, and so on up to all words.

    From long stories alone a model learns the task late or not at all.
    """
    sizes = [stories.words]
    while sizes[0] // 2 >= stories.min_words:
        sizes.insert(0, sizes[0] // 2)
    for number in range(count):
        grade = min(((number + 1) & -(number + 1)).bit_length(), len(sizes)) - 1
        story = replace(stories, words=sizes[grade]).story(number, split)
        yield story.source, story.target
