"""Cleaning: rules that remove sentence pairs, each with its count; duplicates and test sets by hash; language identity.

Everything is streaming and deterministic: a pair is kept or removed by what stands before it, and the first rule that
objects counts it.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.parallel import SentencePair

CLEANING_CHUNK = 4096  # pairs that are looked at together
SIDES = ("source", "target")
NOT_WORDS = re.compile(r"[\W_]+")
RATIO_SLACK = 10  # characters, so that short sentences may differ more
NGRAMS = (1, 2, 3, 4)  # bytes of the n-grams that identify a language
NGRAM_BUCKETS = 2**16
NGRAM_BLOCK = 512  # texts whose n-grams are counted together
IDENTIFIER_TEXTS = 100_000  # texts of each language that an identifier learns from
MIN_LOG_ODDS = 30.0  # nats by which another language must be more likely; n-grams overlap, so chance alone makes ten
RULES = ("empty", "test overlap", "duplicate", "short", "long", "ratio", "identical", "letters", "language")
"""The rules, in the order in which they are asked.

Examples:
    >>> RULES[:3]
    ('empty', 'test overlap', 'duplicate')
"""


@dataclass(frozen=True, kw_only=True)
class CleaningRules:
    """What a pair must be like to be kept.

    Args:
        min_words, max_words: words between spaces on a side.
        max_ratio: how many times as long one side may be, in characters, with ten added to both.
        min_letters: the share of letters among the characters of a side that are no spaces.
        identical: remove pairs whose sides are the same text.
        language: remove pairs with a side that is more like another language of the corpora.
        duplicates: keep the first of pairs that are the same but for case, punctuation and spaces.

    Examples:
        >>> rules = CleaningRules(max_words=5)
        >>> rules.objection(SentencePair("the cat", "le chat")), rules.objection(SentencePair("a b c d e f", "un"))
        (None, 'long')
    """

    min_words: int = 1
    max_words: int = 200
    max_ratio: float = 3.0
    min_letters: float = 0.5
    identical: bool = True
    language: bool = True
    duplicates: bool = True

    def __post_init__(self):
        if not 1 <= self.min_words <= self.max_words:
            raise ValueError(f"min_words={self.min_words} lies in 1 to max_words={self.max_words}")
        if self.max_ratio < 1 or not 0 <= self.min_letters <= 1:
            raise ValueError(
                f"max_ratio={self.max_ratio} is at least 1, and min_letters={self.min_letters} lies in 0 to 1"
            )

    def objection(self, pair: SentencePair) -> str | None:
        """The first rule that a pair by itself breaks."""
        sides = pair.source.strip(), pair.target.strip()
        words = [len(side.split()) for side in sides]
        if min(words) < self.min_words:
            return "short"
        if max(words) > self.max_words:
            return "long"
        shorter, longer = sorted(len(side) + RATIO_SLACK for side in sides)
        if longer > self.max_ratio * shorter:
            return "ratio"
        if self.identical and sides[0] == sides[1]:
            return "identical"
        if self.min_letters and min(map(letter_share, sides)) < self.min_letters:
            return "letters"
        return None


KEEP_ALL = CleaningRules(
    max_words=10**9, max_ratio=1e9, min_letters=0.0, identical=False, language=False, duplicates=False
)
"""Rules that remove nothing but pairs with an empty side.

Examples:
    >>> KEEP_ALL.objection(SentencePair("?", "?")) is None
    True
"""


def letter_share(text: str) -> float:
    visible = "".join(text.split())
    return sum(map(str.isalpha, visible)) / max(len(visible), 1)


# --- duplicates and test sets ---


def normalize_key(text: str) -> str:
    """A text without case, punctuation and spaces; one that has nothing else stays as it is.

    Examples:
        >>> normalize_key("Où es-tu ?"), normalize_key("où es tu"), normalize_key("?!")
        ('oùestu', 'oùestu', '?!')
    """
    return NOT_WORDS.sub("", unicodedata.normalize("NFKC", text).casefold()) or text


def hash_key(*texts: str) -> int:
    """64 bits of the normalised texts; among 100 million texts two share theirs with a probability of 0.0003."""
    return int.from_bytes(blake2b("\n".join(map(normalize_key, texts)).encode(), digest_size=8).digest(), "little")


@dataclass(eq=False)
class HashSet:
    """A set of 64-bit hashes, in 8 bytes each: sorted arrays, the next at most half as long.

    Examples:
        >>> import numpy as np
        >>> seen = HashSet()
        >>> seen.add(np.array([5, 7, 5], np.uint64)), seen.add(np.array([7, 8], np.uint64))
        (array([ True,  True, False]), array([False,  True]))
        >>> len(seen)
        3
    """

    runs: list[NDArray[np.uint64]] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def contains(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        found = np.zeros(len(hashes), bool)
        for run in self.runs:
            at = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            found |= run[at] == hashes
        return found

    def add(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of them are new: not in the set, and not before in the array."""
        first = np.zeros(len(hashes), bool)
        first[np.unique(hashes, return_index=True)[1]] = True
        new = first & ~self.contains(hashes)
        if new.any():
            self.runs.append(np.sort(hashes[new]))
        while len(self.runs) > 1 and len(self.runs[-2]) < 2 * len(self.runs[-1]):
            last, before = self.runs.pop(), self.runs.pop()
            self.runs.append(np.sort(np.concatenate((before, last))))
        return new

    def update(self, texts: Iterable[str]) -> "HashSet":
        """With the hashes of these texts."""
        rest = iter(texts)
        while some := list(islice(rest, CLEANING_CHUNK)):
            self.add(np.array([hash_key(text) for text in some], np.uint64))
        return self


# --- language identity ---


def hash_ngrams(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The buckets of all n-grams of bytes, and the text that each belongs to; a space stands at both ends of a text."""
    raw = [f" {text.strip().lower()} ".encode() for text in texts]
    rows = np.repeat(np.arange(len(raw)), [len(one) for one in raw])
    codes = np.frombuffer(b"".join(raw), np.uint8).astype(np.uint64)
    buckets, owners = [], []
    mixed = np.zeros(len(codes) + 1, np.uint64)
    for length in range(1, max(NGRAMS) + 1):
        mixed = mixed[:-1] * np.uint64(0x100000001B3) + codes[length - 1 :] + np.uint64(1)
        inside = rows[: len(mixed)] == rows[length - 1 :]
        if length in NGRAMS:
            hashed = (mixed[inside] * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)
            buckets.append(hashed.astype(np.int64) % NGRAM_BUCKETS)
            owners.append(rows[: len(mixed)][inside])
    return np.concatenate(buckets), np.concatenate(owners)


@dataclass(frozen=True, eq=False)
class LanguageIdentifier:
    """Naive Bayes over hashed n-grams of bytes: which of some languages a text is most like.

    It learns from the corpora at hand, each side of which is nearly all in its language; a few that are not do no harm.

    Examples:
        >>> identifier = LanguageIdentifier.train({"en": ["the cat sleeps"] * 9, "fr": ["le chat dort"] * 9})
        >>> identifier.identify(["the dog sleeps", "le chien dort"])
        ['en', 'fr']
    """

    languages: tuple[str, ...]
    log_probabilities: NDArray[np.float32] = field(repr=False)

    @staticmethod
    def train(texts: Mapping[str, Iterable[str]]) -> "LanguageIdentifier":
        """Of some texts of each language; the first 100,000 are read."""
        counts = np.ones((len(texts), NGRAM_BUCKETS))
        for row, some in zip(counts, texts.values(), strict=True):
            rest = islice(some, IDENTIFIER_TEXTS)
            while block := list(islice(rest, NGRAM_BLOCK)):
                row += np.bincount(hash_ngrams(block)[0], minlength=NGRAM_BUCKETS)
        return LanguageIdentifier(tuple(texts), np.log(counts / counts.sum(1, keepdims=True)).astype(np.float32))

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """The log-probability of the n-grams of each text (rows) in each language (columns)."""
        parts: list[NDArray[np.float64]] = [np.zeros((0, len(self.languages)))]
        for first in range(0, len(texts), NGRAM_BLOCK):
            block = texts[first : first + NGRAM_BLOCK]
            buckets, owners = hash_ngrams(block)
            sums = [np.bincount(owners, row[buckets], len(block)) for row in self.log_probabilities]
            parts.append(np.stack(sums, 1).astype(np.float64))
        return np.concatenate(parts)

    def identify(self, texts: Sequence[str]) -> list[str]:
        return [self.languages[best] for best in self.score(texts).argmax(1)]

    def other_language(self, texts: Sequence[str], language: str) -> NDArray[np.bool_]:
        """Which texts are clearly more like another language; of one language alone, none is."""
        if len(self.languages) < 2:
            return np.zeros(len(texts), bool)
        scores, own = self.score(texts), self.languages.index(language)
        return np.delete(scores, own, 1).max(1) > scores[:, own] + MIN_LOG_ODDS


# --- a whole corpus ---


@dataclass(frozen=True)
class CleaningReport:
    """How many pairs were read, and removed by each rule.

    Examples:
        >>> report = CleaningReport(10, {"long": 2, "ratio": 1})
        >>> report.kept, report.to_dict()["removed"]
        (7, {'long': 2, 'ratio': 1})
    """

    read: int = 0
    removed: Mapping[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        return self.read - sum(self.removed.values())

    def __add__(self, other: "CleaningReport") -> "CleaningReport":
        both = Counter(self.removed) + Counter(other.removed)
        return CleaningReport(self.read + other.read, {rule: both[rule] for rule in RULES if both[rule]})

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> "CleaningReport":
        return CleaningReport(saved["read"], saved["removed"])

    def to_dict(self) -> dict[str, Any]:
        return {"read": self.read, "removed": dict(self.removed), "kept": self.kept}


@dataclass(frozen=True, eq=False)
class SeenFilter:
    """The rules that look beyond an example: empty sides, test sets, and what was read before."""

    duplicates: bool = True
    test: HashSet = field(default_factory=HashSet)
    seen: HashSet = field(default_factory=HashSet)

    def objections(self, examples: Sequence[tuple[str, ...]]) -> list[str | None]:
        """Of each example, of its sides, the rule that removes it; those that pass are remembered."""
        found: list[str | None] = [None if all(map(str.strip, sides)) else "empty" for sides in examples]
        if len(self.test):
            for texts in zip(*examples, strict=True):
                hashes = np.array([hash_key(text) for text in texts], np.uint64)
                for row in np.flatnonzero(self.test.contains(hashes)):
                    found[row] = found[row] or "test overlap"
        if self.duplicates:
            rest = [row for row, why in enumerate(found) if why is None]
            hashes = np.array([hash_key(*examples[row]) for row in rest], np.uint64)
            for row, new in zip(rest, self.seen.add(hashes), strict=True):
                found[row] = None if new else "duplicate"
        return found


def pair_objections(
    pairs: Sequence[SentencePair],
    rules: CleaningRules,
    identifier: LanguageIdentifier | None = None,
    languages: tuple[str, str] = ("source", "target"),
) -> list[str | None]:
    """Of each pair by itself the rule that removes it."""
    found = [rules.objection(pair) for pair in pairs]
    if rules.language and identifier:
        for side, language in zip(SIDES, languages, strict=True):
            other = identifier.other_language([getattr(pair, side) for pair in pairs], language)
            for row in np.flatnonzero(other):
                found[row] = found[row] or "language"
    return found


def clean_pairs(
    pairs: Iterable[SentencePair],
    rules: CleaningRules = CleaningRules(),
    *,
    test: HashSet | None = None,
    identifier: LanguageIdentifier | None = None,
    languages: tuple[str, str] = ("source", "target"),
) -> Iterator[tuple[SentencePair, str | None]]:
    """Every pair in its order, and the rule that removes it.

    Examples:
        >>> pairs = [("the cat", "le chat"), ("The cat!", "Le chat !"), ("a", "b " * 30)]
        >>> [why for _, why in clean_pairs(SentencePair(*pair) for pair in pairs)]
        [None, 'duplicate', 'ratio']
    """
    before, rest = SeenFilter(rules.duplicates, test or HashSet()), iter(pairs)
    while some := list(islice(rest, CLEANING_CHUNK)):
        first = before.objections([(pair.source, pair.target) for pair in some])
        second = pair_objections(some, rules, identifier, languages)
        yield from ((pair, one or two) for pair, one, two in zip(some, first, second, strict=True))
