"""Preparation: sentence pairs or texts cleaned, tokenised, and written as token files by several processes, resumable.

    out/
      prepare.json              what was asked for, and how many pairs there are: made by a first pass
      source.json, target.json  the tokenizers, learnt in that pass from a sample; of texts, tokenizer.json
      europarl/, tatoeba/       a prepared corpus each (`regard.data.token_files`)
      cleaning.json             what each rule removed

A second pass deals the pairs out in chunks; each becomes a shard, written at once or not at all. So a preparation that
was killed goes on with the chunks that have no shard, and ends with the same bytes.
"""

import json
import os
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.cleaning import (
    CLEANING_CHUNK,
    IDENTIFIER_TEXTS,
    KEEP_ALL,
    SIDES,
    CleaningReport,
    CleaningRules,
    HashSet,
    LanguageIdentifier,
    SeenFilter,
    clean_pairs,
    pair_objections,
)
from regard.data.files import make_folder, write_text_atomic
from regard.data.lm_blocks import encode_pieces, split_lines
from regard.data.parallel import SentencePair, write_pairs
from regard.data.sources import PairSource, TextSource
from regard.data.token_files import (
    HELD_OUT_FILE,
    HELD_OUT_TEXT,
    MAX_SIDE,
    SHARD_SUFFIX,
    TEXT,
    ShardInfo,
    TokenCorpus,
    TokenShard,
    id_bytes_for,
    is_token_corpus,
    write_corpus,
    write_shard,
    write_text_shard,
)
from regard.data.tokenizers.base import Tokenizer
from regard.data.tokenizers.pretrained import language_tag
from regard.data.tokenizers.subwords import SubwordTokenizer, load_tokenizer
from regard.world.splitmix import combine_seeds, random_keys_at

PLAN_FILE, PLAN_FORMAT, REPORT_FILE = "prepare.json", "regard preparation 1", "cleaning.json"
VOCABULARY_PAIRS = 1_000_000  # a sample of so many at most is read to learn the vocabularies
VOCABULARY_CHARACTERS = 100_000_000  # or, of texts, of so many
MIN_SHARD_PAIRS, USUAL_SHARDS = 2**14, 256
MIN_CHUNK_CHARACTERS, MAX_CHUNK_CHARACTERS = 2**22, 2**26  # of texts that become a shard
PIECE_CHARACTERS, PIECES_AT_ONCE = 2**14, 64  # that are encoded by themselves, and together
HELD_OUT_SHARE, MAX_HELD_OUT = 0.01, 2000
ENCODED_PAIRS = 1024  # pairs tokenised together
SAMPLE, HOLD_OUT = 0, 1  # what a random key of a pair is drawn for

Progress = Callable[[str, int, int | None], None]


def no_report(what: str, done: int, total: int | None) -> None:
    """The default: no progress is shown."""


E = TypeVar("E")  # a sentence pair, or a text


class Preparation(ABC, Generic[E]):
    """Abstract: what is to be prepared, and how its examples are read, cleaned and encoded.

    Args:
        sources: corpora, each of which becomes a folder.
        out: the folder of these folders.
        text: how the vocabularies are made, the table [text] of a run; it is kept with the corpora.
        vocabulary: a prepared corpus, or a run, whose vocabularies are taken instead.
        excluded: sentences of test sets: what has one of them is left out.
        held_out: at most so many examples of each corpus are set aside to validate on.
        workers: processes.
    """

    sources: Sequence[Any]
    out: Path
    text: Mapping[str, Any]
    vocabulary: Path | None
    excluded: HashSet
    held_out: int
    workers: int

    parts: ClassVar[tuple[str, ...]]  # the files of the tokenizers, without .json
    one: ClassVar[str]  # what an example is called
    sampled: ClassVar[int]  # the size of the examples that vocabularies are learnt from
    duplicates: bool

    @property
    @abstractmethod
    def rule_identity(self) -> dict[str, Any]:
        """What must be the same besides, for a preparation to go on."""

    @abstractmethod
    def read(self, source: Any, on_empty: Callable[[str], object]) -> Iterator[E]: ...

    @abstractmethod
    def size(self, example: E) -> int:
        """What chunks of examples are measured by."""

    @abstractmethod
    def chunk_size(self, sizes: Sequence[int]) -> int:
        """That of a chunk, of corpora of these sizes: such that there are at most some hundreds."""

    @abstractmethod
    def sides(self, example: E) -> tuple[str, ...]:
        """Its texts."""

    @abstractmethod
    def learn_vocabularies(self, sample: Sequence[E]) -> Sequence[Tokenizer]: ...

    @abstractmethod
    def writers(self, counts: Sequence[int]) -> "Sequence[ShardWriter[E]]":
        """What writes the shards of each source, which has so many examples."""

    @abstractmethod
    def is_filtered(self, source: Any) -> bool:
        """Whether examples of a source are compared with test sets and with each other."""

    @abstractmethod
    def finish(self, source: Any, folder: Path, shards: Sequence[TokenShard]) -> dict[str, Any]:
        """Writes what was held out; and what the corpus is besides."""

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a preparation to go on."""
        hashes = np.concatenate([np.zeros(0, np.uint64), *self.excluded.runs])
        vocabulary = vocabulary_paths(self.vocabulary, self.parts) if self.vocabulary else ()
        return {
            "sources": [[one.name, *one.languages, *one.identity] for one in self.sources],
            "text": dict(self.text),
            "vocabulary": [sha256(path.read_bytes()).hexdigest() for path in vocabulary],
            "excluded": sha256(np.sort(hashes).tobytes()).hexdigest(),
            "held_out": self.held_out,
            **self.rule_identity,
        }


@dataclass(frozen=True, kw_only=True)
class PairPreparation(Preparation[SentencePair]):
    """Sentence pairs to be prepared.

    Args:
        learn: learns the two vocabularies from a sample of the pairs.
        rules: which pairs are kept; None keeps all but those with an empty side.
        tags: begin each source with its target language, as in >>fr<<; None, if there are several.
    """

    parts: ClassVar = SIDES
    one: ClassVar = "pair"
    sampled: ClassVar = VOCABULARY_PAIRS

    sources: Sequence[PairSource]
    out: Path
    text: Mapping[str, Any]
    learn: Callable[[Sequence[SentencePair]], tuple[Tokenizer, Tokenizer]]
    vocabulary: Path | None = None
    rules: CleaningRules | None = field(default_factory=CleaningRules)
    excluded: HashSet = field(default_factory=HashSet)
    held_out: int = MAX_HELD_OUT
    tags: bool | None = None
    workers: int = 1

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source.languages[1] for source in self.sources))

    @property
    def tagged(self) -> bool:
        return len(self.targets) > 1 if self.tags is None else self.tags

    @property
    def duplicates(self) -> bool:  # type: ignore[override]
        return bool(self.rules and self.rules.duplicates)

    @property
    def rule_identity(self):
        return {"rules": asdict(self.rules) if self.rules else None, "tagged": self.tagged}

    def read(self, source, on_empty):
        return source.read(on_empty)

    def size(self, example):
        return 1

    def chunk_size(self, sizes):
        return max(MIN_SHARD_PAIRS, 1 << max(-(-sum(sizes) // USUAL_SHARDS) - 1, 0).bit_length())

    def sides(self, example):
        return example.source, example.target

    def is_filtered(self, source):
        return True

    def learn_vocabularies(self, sample):
        """With a token for each target language, if sources are to begin with it."""
        source, target = self.learn(sample)
        if not self.tagged:
            return source, target
        if not isinstance(source, SubwordTokenizer) or not isinstance(target, SubwordTokenizer):
            raise ValueError(f"target languages are tokens among subwords, not {source.kind}; use bpe, or no tags")
        tags = [language_tag(language) for language in self.targets]
        # one vocabulary for both sides has them on both
        return source.with_tags(tags), target.with_tags(tags) if source.model == target.model else target

    def writers(self, counts):
        rules = self.rules or KEEP_ALL
        identifier = make_identifier(self.sources) if rules.language else None
        source, target = load_vocabularies(self.out, self.parts)
        return [
            PairShardWriter(
                (source, target), one.languages, rules, identifier, hold_out_below(n, self.held_out, count), self.tagged
            )
            for n, (one, count) in enumerate(zip(self.sources, counts, strict=True))
        ]

    def finish(self, source, folder, shards):
        held_out = [SentencePair(*sides) for shard in shards for sides in shard.info["held_out"]]
        write_pairs(held_out, folder / HELD_OUT_FILE)
        return {
            "source": source.languages[0],
            "target": source.languages[1],
            "tagged": self.tagged,
            "pairs": sum(map(len, shards)),
            "held_out": len(held_out),
        }


@dataclass(frozen=True, kw_only=True)
class TextPreparation(Preparation[str]):
    """Texts to be prepared: of running text all lines are kept, of documents the first of those that are the same.

    Args:
        learn: learns the vocabulary from a sample of the lines.
        duplicates: leave out documents that were there before, but for case, punctuation and spaces.
    """

    parts: ClassVar = ("tokenizer",)
    one: ClassVar = "text"
    sampled: ClassVar = VOCABULARY_CHARACTERS

    sources: Sequence[TextSource]
    out: Path
    text: Mapping[str, Any]
    learn: Callable[[Sequence[str]], Tokenizer]
    vocabulary: Path | None = None
    duplicates: bool = True
    excluded: HashSet = field(default_factory=HashSet)
    held_out: int = MAX_HELD_OUT
    workers: int = 1

    def __post_init__(self):
        if len(self.excluded) and (running := [one.name for one in self.sources if not one.documents]):
            raise ValueError(
                f"{running[0]} is running text, from which no line is removed; give documents (.jsonl) to exclude some"
            )

    @property
    def rule_identity(self):
        return {"content": TEXT, "duplicates": self.duplicates}

    def read(self, source, on_empty):
        return source.read()

    def size(self, example):
        return len(example)

    def chunk_size(self, sizes):
        return min(max(MIN_CHUNK_CHARACTERS, -(-sum(sizes) // USUAL_SHARDS)), MAX_CHUNK_CHARACTERS)

    def sides(self, example):
        return (example,)

    def is_filtered(self, source):
        return source.documents

    def learn_vocabularies(self, sample):
        return [self.learn([line for text in sample for line in split_lines(text)])]

    def writers(self, counts):
        (tokenizer,) = load_vocabularies(self.out, self.parts)
        return [
            TextShardWriter(tokenizer, hold_out_below(n, self.held_out, count), None if one.documents else count)
            for n, (one, count) in enumerate(zip(self.sources, counts, strict=True))
        ]

    def finish(self, source, folder, shards):
        held_out = [text for shard in shards for text in shard.info["held_out"]]
        write_text_atomic(folder / HELD_OUT_TEXT, "".join(held_out))
        texts, characters = (sum(shard.info[name] for shard in shards) for name in ("texts", "characters"))
        return {"content": TEXT, "texts": texts, "characters": characters, "held_out": len(held_out)}


def hold_out_below(number: int, most: int, count: int) -> tuple[int, int]:
    """The seed of random keys for the examples of a corpus, and the key below which one is set aside."""
    return combine_seeds(number, HOLD_OUT), int(min(HELD_OUT_SHARE, most / count) * 2**64)


def vocabulary_paths(folder: Path, parts: Sequence[str]) -> tuple[Path, ...]:
    """The tokenizers of a prepared corpus, a folder of them, or a run."""
    paths = tuple(folder / f"{part}.json" for part in parts)
    if missing := [path for path in paths if not path.is_file()]:
        raise ValueError(f"{missing[0]}: no such file; name a prepared corpus, or a run of regard train")
    return paths


def vocabulary_text(folder: Path) -> dict[str, Any] | None:
    """How the vocabularies of a prepared corpus, or of a folder of them, were made; None if it is neither."""
    if (folder / PLAN_FILE).exists():
        return json.loads((folder / PLAN_FILE).read_bytes())["request"]["text"]
    return dict(TokenCorpus.open(folder).description["text"]) if is_token_corpus(folder) else None


@dataclass(frozen=True)
class PreparationPlan:
    """What the first pass found: how many examples each corpus has, and their sizes."""

    counts: tuple[int, ...]
    sizes: tuple[int, ...]


def prepare_corpora(request: Preparation[Any], progress: Progress = no_report) -> list[TokenCorpus]:
    """Prepares all corpora of the request, or what is left to do of them."""
    make_folder(request.out)
    plan = load_plan(request) or make_plan(request, progress)
    before, writers = SeenFilter(request.duplicates, request.excluded), request.writers(plan.counts)
    with worker_pool(request.workers) as pool:
        found = [prepare_source(request, plan, n, before, writer, pool, progress) for n, writer in enumerate(writers)]
    reports = {one.folder.name: one.description["cleaning"] for one in found}
    write_text_atomic(request.out / REPORT_FILE, json.dumps(reports, ensure_ascii=False, indent=1) + "\n")
    return found


# --- the first pass: counts and vocabularies ---


def load_plan(request: Preparation[Any]) -> PreparationPlan | None:
    """That of a preparation to go on with."""
    path = request.out / PLAN_FILE
    if not path.exists():
        if any(map(is_token_corpus, [request.out, *request.out.iterdir()])):
            raise ValueError(f"{request.out} holds prepared corpora already; choose another folder")
        return None
    try:
        saved = json.loads(path.read_bytes())
        if saved["format"] != PLAN_FORMAT:
            raise ValueError(f"its format is {saved['format']!r}, not {PLAN_FORMAT!r}")
        asked, counts = saved["request"], tuple(map(int, saved["pairs"]))
        plan = PreparationPlan(counts, tuple(map(int, saved.get("sizes", counts))))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged or foreign ({error}); choose another folder") from None
    if changed := [name for name, value in request.identity.items() if asked.get(name) != value]:
        raise ValueError(
            f"{request.out} holds a preparation with other {' and '.join(changed)}; choose another folder, or remove it"
        )
    return plan


def make_plan(request: Preparation[Any], progress: Progress) -> PreparationPlan:
    """Counts the examples, and learns the vocabularies from a sample of them."""
    sample, counts, sizes = list[Any](), list[int](), list[int]()
    for number, source in enumerate(request.sources):
        drawn = Sample(request.sampled // len(request.sources), combine_seeds(number, SAMPLE), request.size)
        for example in request.read(source, str):
            drawn.add(example)
            if drawn.seen % CLEANING_CHUNK == 0:
                progress(f"reading {source.name}", drawn.seen, None)
        if not drawn.seen:
            raise ValueError(f"{source.name}: no {request.one}s in it; leave it out")
        counts.append(drawn.seen)
        sizes.append(drawn.size)
        sample += [example for _, example in drawn.held]
    progress("learning the vocabulary", 0, None)
    vocabularies = (
        load_vocabularies(request.vocabulary, request.parts)
        if request.vocabulary
        else request.learn_vocabularies(sample)
    )
    for part, tokenizer in zip(request.parts, vocabularies, strict=True):
        tokenizer.save(request.out / f"{part}.json")
    saved = {"format": PLAN_FORMAT, "request": request.identity, "pairs": counts}
    if sizes != counts:
        saved["sizes"] = sizes
    write_text_atomic(request.out / PLAN_FILE, json.dumps(saved, ensure_ascii=False, indent=1) + "\n")
    return PreparationPlan(tuple(counts), tuple(sizes))


@dataclass(eq=False)
class Sample(Generic[E]):
    """Examples of a stream, of at most so much in all, each as likely: those with the least random keys."""

    most: int
    seed: int
    measure: Callable[[E], int]
    seen: int = 0
    size: int = 0
    held_size: int = 0
    threshold: int = 2**64
    held: list[tuple[int, E]] = field(default_factory=list)

    def add(self, example: E) -> None:
        if self.seen % CLEANING_CHUNK == 0:
            self.keys = random_keys_at(
                self.seed, np.arange(self.seen, self.seen + CLEANING_CHUNK, dtype=np.uint64)
            ).tolist()
        key, size = self.keys[self.seen % CLEANING_CHUNK], self.measure(example)
        self.seen += 1
        self.size += size
        if key < self.threshold:
            self.held.append((key, example))
            self.held_size += size
        while self.held_size > self.most and len(self.held) > 1:
            self.threshold //= 2
            self.held = [one for one in self.held if one[0] < self.threshold]
            self.held_size = sum(self.measure(one) for _, one in self.held)


def load_vocabularies(folder: Path, parts: Sequence[str]) -> list[Tokenizer]:
    return [load_tokenizer(path) for path in vocabulary_paths(folder, parts)]


def make_identifier(sources: Sequence[PairSource]) -> LanguageIdentifier:
    """Learnt from the first sentences of each corpus."""
    parts: dict[str, list[Iterator[str]]] = {}
    for source in sources:
        for side, language in zip(SIDES, source.languages, strict=True):
            parts.setdefault(language, []).append(map(attrgetter(side), source.read(str)))
    return LanguageIdentifier.train(
        {
            language: chain(*(islice(side, IDENTIFIER_TEXTS // len(sides)) for side in sides))
            for language, sides in parts.items()
        }
    )


# --- cleaning alone ---


@dataclass(eq=False)
class CorpusCleaning:
    """Cleaning of corpora of one direction, whose pairs are read one at a time; `report` counts those read so far."""

    sources: Sequence[PairSource]
    rules: CleaningRules
    excluded: HashSet = field(default_factory=HashSet)
    counts: Counter[str] = field(default_factory=Counter)

    def read(self, on_empty: Callable[[str], object] = str) -> Iterator[SentencePair]:
        return chain.from_iterable(source.read(on_empty) for source in self.sources)

    def pairs(self) -> Iterator[tuple[SentencePair, str | None]]:
        """Every pair that has two sides, and the rule that removes it."""
        languages, identifier = self.sources[0].languages, None
        if self.rules.language:
            sides = zip(languages, SIDES, strict=True)
            identifier = LanguageIdentifier.train({name: map(attrgetter(side), self.read()) for name, side in sides})

        def count_empty(sentence: str) -> None:
            self.counts.update(read=1, empty=1)

        pairs = self.read(count_empty)
        for pair, why in clean_pairs(pairs, self.rules, test=self.excluded, identifier=identifier, languages=languages):
            self.counts.update(["read", why] if why else ["read"])
            yield pair, why

    @property
    def report(self) -> CleaningReport:
        removed = Counter({rule: count for rule, count in self.counts.items() if rule != "read"})
        return CleaningReport(self.counts["read"]) + CleaningReport(0, removed)


# --- the second pass: shards ---


@dataclass(frozen=True, eq=False)
class Chunk(Generic[E]):
    """Examples that were read one after the other, without those that test sets or earlier ones hold."""

    first: int  # the number of the first that was read
    numbers: list[int]
    examples: list[E]
    report: CleaningReport


def read_chunks(request: Preparation[E], source: Any, before: SeenFilter, size: int) -> Iterator[Chunk[E]]:
    """Chunks of so much as was read."""
    empty: list[str] = []
    examples, first = request.read(source, empty.append), 0
    for some in sized_chunks(examples, size, request.size):
        found: list[str | None] = [None] * len(some)
        if request.is_filtered(source):
            found = [
                why
                for at in range(0, len(some), CLEANING_CHUNK)
                for why in before.objections([request.sides(one) for one in some[at : at + CLEANING_CHUNK]])
            ]
        removed = Counter(why for why in found if why) + Counter(empty=len(empty))
        kept = [at for at, why in enumerate(found) if why is None]
        report = CleaningReport(len(some) + len(empty), removed)
        yield Chunk(first, [first + at for at in kept], [some[at] for at in kept], report)
        first += len(some)
        empty.clear()


def sized_chunks(examples: Iterable[E], size: int, measure: Callable[[E], int]) -> Iterator[list[E]]:
    """Each as small as it can be to have this size."""
    held, taken = list[E](), 0
    for one in examples:
        held.append(one)
        taken += measure(one)
        if taken >= size:
            yield held
            held, taken = [], 0
    if held:
        yield held


class ShardWriter(ABC, Generic[E]):
    """Abstract: cleans, tokenises and writes a chunk of a corpus, in whichever process."""

    @abstractmethod
    def __call__(self, chunk: Chunk[E], path: Path) -> None: ...


@dataclass(frozen=True, eq=False)
class TextShardWriter(ShardWriter[str]):
    """The shard of a chunk of texts.

    Args:
        hold_out: the seed of random keys, and the key below which a document is set aside.
        lines: how many lines running text has, of which the last are set aside; None, of documents.
    """

    tokenizer: Tokenizer
    hold_out: tuple[int, int]
    lines: int | None

    def __call__(self, chunk, path):
        seed, below = self.hold_out
        numbers = np.array(chunk.numbers, np.uint64)
        if self.lines is None:
            is_aside = random_keys_at(seed, numbers) < below
        else:  # in the middle of a text nothing would stand before it
            is_aside = numbers >= self.lines - self.lines * below // 2**64
        pieces = text_pieces(chunk.examples, is_aside.tolist())
        ids = np.fromiter(
            chain.from_iterable(
                one
                for first in range(0, len(pieces), PIECES_AT_ONCE)
                for one in encode_pieces(
                    self.tokenizer, pieces[first : first + PIECES_AT_ONCE], opening=chunk.first == first == 0
                )
            ),
            np.uint32,
        )
        info = {
            "cleaning": chunk.report.to_dict(),
            "held_out": [text for text, aside in zip(chunk.examples, is_aside, strict=True) if aside],
            "texts": int((~is_aside).sum()),
            "characters": sum(map(len, pieces)),
        }
        write_text_shard(path, ids, id_bytes=id_bytes_for(self.tokenizer.size), info=info)


def text_pieces(texts: Sequence[str], aside: Sequence[bool]) -> list[str]:
    """Those that are not set aside, as pieces of lines that are encoded by themselves."""
    lines = (line for text, away in zip(texts, aside, strict=True) if not away for line in split_lines(text))
    return ["".join(some) for some in sized_chunks(lines, PIECE_CHARACTERS, len)]


@dataclass(frozen=True, eq=False)
class PairShardWriter(ShardWriter[SentencePair]):
    """The shard of a chunk of pairs.

    Args:
        vocabularies: the tokenizers of source and target.
        hold_out: the seed of random keys, and the key below which a pair is set aside.
        tagged: whether sources begin with their target language.
    """

    vocabularies: tuple[Tokenizer, Tokenizer]
    languages: tuple[str, str]
    rules: CleaningRules
    identifier: LanguageIdentifier | None
    hold_out: tuple[int, int]
    tagged: bool

    def __call__(self, chunk, path):
        found = pair_objections(chunk.examples, self.rules, self.identifier, self.languages)
        report = chunk.report + CleaningReport(0, Counter(why for why in found if why))
        kept = [
            (n, self.tag(pair)) for n, pair, why in zip(chunk.numbers, chunk.examples, found, strict=True) if not why
        ]
        seed, below = self.hold_out
        keys = random_keys_at(seed, np.array([n for n, _ in kept], np.uint64)).tolist()
        aside = [pair for (_, pair), key in zip(kept, keys, strict=True) if key < below]
        rest = [pair for (_, pair), key in zip(kept, keys, strict=True) if key >= below]
        source, target = self.vocabularies
        lengths, ids, unfit = encode_pairs(rest, source, target)
        report += CleaningReport(0, {"empty": unfit[0], "long": unfit[1]})
        info = {"cleaning": report.to_dict(), "held_out": [[pair.source, pair.target] for pair in aside]}
        write_shard(path, lengths, ids, id_bytes=id_bytes_for(max(source.size, target.size)), info=info)

    def tag(self, pair: SentencePair) -> SentencePair:
        return replace(pair, source=f"{language_tag(self.languages[1])} {pair.source}") if self.tagged else pair


def encode_pairs(
    pairs: Sequence[SentencePair], source: Tokenizer, target: Tokenizer
) -> tuple[NDArray[np.int64], NDArray[np.uint32], tuple[int, int]]:
    """The lengths and ids of all pairs; and how many have no ids on a side, or more than a shard can hold."""
    lengths, ids, empty, long = list[tuple[int, int]](), list[NDArray[np.uint32]](), 0, 0
    for first in range(0, len(pairs), ENCODED_PAIRS):
        some = pairs[first : first + ENCODED_PAIRS]
        sides = (
            tokenizer.encode_batch([getattr(pair, side) for pair in some])
            for tokenizer, side in zip((source, target), SIDES, strict=True)
        )
        fitting: list[list[int]] = []
        for one, other in zip(*sides, strict=True):
            shorter, longer = sorted((len(one), len(other)))
            empty, long = empty + (shorter == 0), long + (shorter > 0 and longer > MAX_SIDE)
            if shorter and longer <= MAX_SIDE:
                lengths.append((len(one), len(other)))
                fitting += [one, other]
        ids.append(np.fromiter(chain.from_iterable(fitting), np.uint32))
    return np.array(lengths, np.int64).reshape(-1, 2), np.concatenate([np.zeros(0, np.uint32), *ids]), (empty, long)


def prepare_source(
    request: Preparation[E],
    plan: PreparationPlan,
    number: int,
    before: SeenFilter,
    writer: ShardWriter[E],
    pool: ProcessPoolExecutor | None,
    progress: Progress,
) -> TokenCorpus:
    """One corpus. All of its text is read even where shards are there: what comes later must not repeat it."""
    source = request.sources[number]
    folder = request.out / source.name
    make_folder(folder)
    complete = is_token_corpus(folder)
    paths: list[Path] = []

    def jobs() -> Iterator[tuple[Chunk[E], Path]]:
        for chunk in read_chunks(request, source, before, request.chunk_size(plan.sizes)):
            paths.append(folder / f"{len(paths):05d}{SHARD_SUFFIX}")
            progress(f"preparing {source.name}", chunk.first, plan.counts[number])
            if not complete and not paths[-1].exists():
                yield chunk, paths[-1]

    run_jobs(writer, jobs(), pool, 2 * request.workers)
    if not complete:
        finish_corpus(request, source, folder, paths)
    return TokenCorpus.open(folder)


def run_jobs(
    writer: ShardWriter[E], jobs: Iterator[tuple[Chunk[E], Path]], pool: ProcessPoolExecutor | None, most: int
) -> None:
    """All jobs, at most so many under way or waiting, so that memory is bounded; without a pool in this process."""
    if pool is None:
        for job in jobs:
            writer(*job)
        return
    running = deque[Future[None]]()
    for job in jobs:
        running.append(pool.submit(writer, *job))
        while len(running) > most or (running and running[0].done()):
            running.popleft().result()
    for one in running:
        one.result()


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """So many processes for all corpora, each of which imports all of this anew; none where one is enough."""
    if workers == 1:
        yield None
        return
    # a thread of the tokenizers in every process would make more threads than cores
    with (
        environment(TOKENIZERS_PARALLELISM="false"),
        ProcessPoolExecutor(workers, get_context("spawn"), exit_with_parent) as pool,
    ):
        yield pool


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """These variables for processes that are started inside."""
    saved = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def exit_with_parent() -> None:
    """Ends this process when the one that started it ends, even if that was killed."""
    parent = parent_process()
    assert parent is not None, "a worker has a parent"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def finish_corpus(request: Preparation[Any], source: Any, folder: Path, paths: Sequence[Path]) -> None:
    """Tokenizers, held-out examples and counts beside the shards of a corpus."""
    shards = [TokenShard.open(path) for path in paths]
    report = sum((CleaningReport.from_dict(shard.info["cleaning"]) for shard in shards), CleaningReport())
    if not sum(len(shard.ids) for shard in shards):
        most = max(report.removed, key=lambda rule: report.removed[rule], default="none")
        raise ValueError(
            f"{source.name}: no {request.one} is left of {report.read:,}; the rule {most!r} removed most of them"
        )
    about = request.finish(source, folder, shards)
    digest = sha256()
    for path in vocabulary_paths(request.out, request.parts):
        content = path.read_bytes()
        digest.update(content)
        write_text_atomic(folder / path.name, content.decode())
    infos = [
        ShardInfo(shard.path.name, len(shard), len(shard.ids), shard.path.stat().st_size, shard.crc32)
        for shard in shards
    ]
    description = {
        "vocabulary": digest.hexdigest(),
        "text": dict(request.text),
        "ids": sum(one.ids for one in infos),
        "cleaning": report.to_dict(),
        **about,
    }
    write_corpus(folder, infos, description)
