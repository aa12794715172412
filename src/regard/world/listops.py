"""ListOps: nested list operations of exactly so many words, each with the digit it evaluates to.

    [MAX 4 [MIN 2 3 ] 1 [SUM 9 8 ] ]        evaluates to 7: MAX of 4, 2, 1 and 9 + 8 mod 10

After ListOps (Nangia and Bowman 2018), which the Long Range Arena made long (Tay et al. 2021). An operator and its
bracket are one word. MED is the middle of the operands in order, of an even number the lower middle; SUM is modulo 10.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from regard.world.lexicon import SPLITS, Split, check_request
from regard.world.splitmix import SplitMix64

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
