"""Preparation: sentence pairs cleaned, tokenised and written as token files, by several processes; it can be resumed.

    out/
      prepare.json              what was asked for, and how many pairs there are: made by a first pass
      source.json, target.json  the tokenizers, learnt in that pass from a sample
      europarl/, tatoeba/       a prepared corpus each (`regard.data.token_files`)
      cleaning.json             what each rule removed

A second pass deals the pairs out in chunks; each becomes a shard, written at once or not at all. So a preparation that
was killed goes on with the chunks that have no shard, and ends with the same bytes.
"""

import json
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from operator import attrgetter
from pathlib import Path
from typing import Any

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
from regard.data.corpora import PairSource
from regard.data.files import make_folder, write_text_atomic
from regard.data.parallel import SentencePair, write_pairs
from regard.data.token_files import (
    HELD_OUT_FILE,
    MAX_SIDE,
    SHARD_SUFFIX,
    ShardInfo,
    TokenCorpus,
    TokenShard,
    id_bytes_for,
    is_token_corpus,
    write_corpus,
    write_shard,
)
from regard.data.tokenizers.base import Tokenizer
from regard.data.tokenizers.pretrained import language_tag
from regard.data.tokenizers.subwords import SubwordTokenizer, load_tokenizer
from regard.world.splitmix import combine_seeds, random_keys_at

PLAN_FILE, PLAN_FORMAT, REPORT_FILE = "prepare.json", "regard preparation 1", "cleaning.json"
VOCABULARY_PAIRS = 1_000_000  # a sample of so many at most is read to learn the vocabularies
MIN_SHARD_PAIRS, USUAL_SHARDS = 2**14, 256
HELD_OUT_SHARE, MAX_HELD_OUT = 0.01, 2000
ENCODED_PAIRS = 1024  # pairs tokenised together
SAMPLE, HOLD_OUT = 0, 1  # what a random key of a pair is drawn for

Progress = Callable[[str, int, int | None], None]


def no_report(what: str, done: int, total: int | None) -> None:
    """The default: nobody is told how far it is."""


@dataclass(frozen=True, kw_only=True)
class PreparationRequest:
    """What is to be prepared.

    Args:
        sources: corpora, each of which becomes a folder.
        out: the folder of these folders.
        text: how the vocabularies are made, the table [text] of a run; it is kept with the corpora.
        learn: learns the two from a sample of the pairs.
        vocabulary: a prepared corpus, or a run, whose vocabularies are taken instead.
        rules: which pairs are kept; None keeps all but those with an empty side.
        excluded: sentences of test sets: pairs with one of them on a side are left out.
        held_out: at most so many pairs of each corpus are set aside to validate on.
        tags: begin each source with its target language, as in >>fr<<; None, if there are several.
        workers: processes.
    """

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

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a preparation to go on."""
        hashes = np.concatenate([np.zeros(0, np.uint64), *self.excluded.runs])
        vocabulary = vocabulary_paths(self.vocabulary) if self.vocabulary else ()
        return {
            "sources": [[one.name, *one.languages, *one.identity] for one in self.sources],
            "text": dict(self.text),
            "vocabulary": [sha256(path.read_bytes()).hexdigest() for path in vocabulary],
            "rules": asdict(self.rules) if self.rules else None,
            "excluded": sha256(np.sort(hashes).tobytes()).hexdigest(),
            "held_out": self.held_out,
            "tagged": self.tagged,
        }


def vocabulary_paths(folder: Path) -> tuple[Path, Path]:
    """The tokenizers of a prepared corpus, a folder of them, or a run."""
    paths = folder / "source.json", folder / "target.json"
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
    """What the first pass found: how many pairs each corpus has, and the sizes that follow."""

    pairs: tuple[int, ...]

    @property
    def shard_pairs(self) -> int:
        """Pairs in a chunk: a power of two, such that there are at most some hundreds."""
        return max(MIN_SHARD_PAIRS, 1 << max(-(-sum(self.pairs) // USUAL_SHARDS) - 1, 0).bit_length())


def prepare_corpora(request: PreparationRequest, progress: Progress = no_report) -> list[TokenCorpus]:
    """Prepares all corpora of the request, or what is left to do of them."""
    make_folder(request.out)
    plan = load_plan(request) or make_plan(request, progress)
    identifier = make_identifier(request) if request.rules and request.rules.language else None
    before = SeenFilter(bool(request.rules and request.rules.duplicates), request.excluded)
    found = [
        prepare_source(request, plan, number, before, identifier, progress) for number in range(len(request.sources))
    ]
    reports = {one.folder.name: one.description["cleaning"] for one in found}
    write_text_atomic(request.out / REPORT_FILE, json.dumps(reports, ensure_ascii=False, indent=1) + "\n")
    return found


# --- the first pass: counts and vocabularies ---


def load_plan(request: PreparationRequest) -> PreparationPlan | None:
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
        asked, plan = saved["request"], PreparationPlan(tuple(map(int, saved["pairs"])))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged or foreign ({error}); choose another folder") from None
    if changed := [name for name, value in request.identity.items() if asked.get(name) != value]:
        raise ValueError(
            f"{request.out} holds a preparation with other {' and '.join(changed)}; choose another folder, or remove it"
        )
    return plan


def make_plan(request: PreparationRequest, progress: Progress) -> PreparationPlan:
    """Counts the pairs, and learns the vocabularies from a sample of them."""
    sample, counts = list[SentencePair](), list[int]()
    for number, source in enumerate(request.sources):
        drawn = SampledPairs(VOCABULARY_PAIRS // len(request.sources), combine_seeds(number, SAMPLE))
        for pair in source.read(str):
            drawn.add(pair)
            if drawn.seen % CLEANING_CHUNK == 0:
                progress(f"reading {source.name}", drawn.seen, None)
        if not drawn.seen:
            raise ValueError(f"{source.name}: no pairs in it; leave it out")
        counts.append(drawn.seen)
        sample += [pair for _, pair in drawn.held]
    progress("learning the vocabulary", 0, None)
    source, target = (
        load_vocabularies(request.vocabulary) if request.vocabulary else learn_vocabularies(request, sample)
    )
    source.save(request.out / "source.json")
    target.save(request.out / "target.json")
    saved = {"format": PLAN_FORMAT, "request": request.identity, "pairs": counts}
    write_text_atomic(request.out / PLAN_FILE, json.dumps(saved, ensure_ascii=False, indent=1) + "\n")
    return PreparationPlan(tuple(counts))


@dataclass(eq=False)
class SampledPairs:
    """At most so many pairs of a stream, each as likely: those with the least random keys."""

    most: int
    seed: int
    seen: int = 0
    threshold: int = 2**64
    held: list[tuple[int, SentencePair]] = field(default_factory=list)

    def add(self, pair: SentencePair) -> None:
        if self.seen % CLEANING_CHUNK == 0:
            self.keys = random_keys_at(
                self.seed, np.arange(self.seen, self.seen + CLEANING_CHUNK, dtype=np.uint64)
            ).tolist()
        key = self.keys[self.seen % CLEANING_CHUNK]
        self.seen += 1
        if key < self.threshold:
            self.held.append((key, pair))
        while len(self.held) > self.most:
            self.threshold //= 2
            self.held = [one for one in self.held if one[0] < self.threshold]


def load_vocabularies(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    source, target = (load_tokenizer(path) for path in vocabulary_paths(folder))
    return source, target


def learn_vocabularies(request: PreparationRequest, sample: Sequence[SentencePair]) -> tuple[Tokenizer, Tokenizer]:
    """With a token for each target language, if sources are to begin with it."""
    source, target = request.learn(sample)
    if not request.tagged:
        return source, target
    if not isinstance(source, SubwordTokenizer) or not isinstance(target, SubwordTokenizer):
        raise ValueError(f"target languages are tokens among subwords, not {source.kind}; use bpe, or no tags")
    tags = [language_tag(language) for language in request.targets]
    # one vocabulary for both sides has them on both
    return source.with_tags(tags), target.with_tags(tags) if source.model == target.model else target


def make_identifier(request: PreparationRequest) -> LanguageIdentifier:
    """Learnt from the first sentences of each corpus."""
    parts: dict[str, list[Iterator[str]]] = {}
    for source in request.sources:
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
class Chunk:
    """Pairs that were read one after the other, without those that test sets or earlier pairs hold."""

    first: int  # the number of the first that was read
    numbers: list[int]
    pairs: list[SentencePair]
    report: CleaningReport


def read_chunks(source: PairSource, before: SeenFilter, size: int) -> Iterator[Chunk]:
    """Chunks of so many pairs as they were read."""
    empty: list[str] = []
    pairs, first = source.read(empty.append), 0
    while some := list(islice(pairs, size)):
        found = [
            why
            for at in range(0, len(some), CLEANING_CHUNK)
            for why in before.objections(some[at : at + CLEANING_CHUNK])
        ]
        removed = Counter(why for why in found if why) + Counter(empty=len(empty))
        kept = [at for at, why in enumerate(found) if why is None]
        report = CleaningReport(len(some) + len(empty), removed)
        yield Chunk(first, [first + at for at in kept], [some[at] for at in kept], report)
        first += len(some)
        empty.clear()


@dataclass(frozen=True, eq=False)
class ShardWriter:
    """Cleans, tokenises and writes a chunk of a corpus, in whichever process.

    Args:
        vocabularies: the tokenizers of source and target.
        hold_out: the seed of random keys, and the key below which a pair is set aside.
        tag: whether sources begin with their target language.
    """

    vocabularies: tuple[Tokenizer, Tokenizer]
    languages: tuple[str, str]
    rules: CleaningRules
    identifier: LanguageIdentifier | None
    hold_out: tuple[int, int]
    tagged: bool

    def __call__(self, chunk: Chunk, path: Path) -> None:
        found = pair_objections(chunk.pairs, self.rules, self.identifier, self.languages)
        report = chunk.report + CleaningReport(0, Counter(why for why in found if why))
        kept = [(n, self.tag(pair)) for n, pair, why in zip(chunk.numbers, chunk.pairs, found, strict=True) if not why]
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
    request: PreparationRequest,
    plan: PreparationPlan,
    number: int,
    before: SeenFilter,
    identifier: LanguageIdentifier | None,
    progress: Progress,
) -> TokenCorpus:
    """One corpus. All of its text is read even where shards are there: what comes later must not repeat it."""
    source, total = request.sources[number], plan.pairs[number]
    folder = request.out / source.name
    make_folder(folder)
    complete, below = is_token_corpus(folder), int(min(HELD_OUT_SHARE, request.held_out / total) * 2**64)
    writer = ShardWriter(
        load_vocabularies(request.out),
        source.languages,
        request.rules or KEEP_ALL,
        identifier,
        (combine_seeds(number, HOLD_OUT), below),
        request.tagged,
    )
    paths: list[Path] = []

    def jobs() -> Iterator[tuple[Chunk, Path]]:
        for chunk in read_chunks(source, before, plan.shard_pairs):
            paths.append(folder / f"{len(paths):05d}{SHARD_SUFFIX}")
            progress(f"preparing {source.name}", chunk.first, total)
            if not complete and not paths[-1].exists():
                yield chunk, paths[-1]

    run_jobs(writer, jobs(), request.workers)
    if not complete:
        finish_corpus(request, source, folder, paths)
    return TokenCorpus.open(folder)


def run_jobs(writer: ShardWriter, jobs: Iterator[tuple[Chunk, Path]], workers: int) -> None:
    """All jobs, in so many processes; as many more wait at most, so that memory is bounded."""
    if workers == 1:
        for job in jobs:
            writer(*job)
        return
    # a thread of the tokenizers in every process would make more threads than cores
    with (
        environment(TOKENIZERS_PARALLELISM="false"),
        ProcessPoolExecutor(workers, get_context("spawn"), exit_with_parent) as pool,
    ):
        running = deque[Future[None]]()
        for job in jobs:
            running.append(pool.submit(writer, *job))
            while len(running) > 2 * workers or (running and running[0].done()):
                running.popleft().result()
        for one in running:
            one.result()


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


def finish_corpus(request: PreparationRequest, source: PairSource, folder: Path, paths: Sequence[Path]) -> None:
    """Tokenizers, held-out pairs and counts beside the shards of a corpus."""
    shards = [TokenShard.open(path) for path in paths]
    report = sum((CleaningReport.from_dict(shard.info["cleaning"]) for shard in shards), CleaningReport())
    if not sum(map(len, shards)):
        most = max(report.removed, key=lambda rule: report.removed[rule], default="none")
        raise ValueError(f"{source.name}: no pair is left of {report.read:,}; the rule {most!r} removed most of them")
    held_out = [SentencePair(*sides) for shard in shards for sides in shard.info["held_out"]]
    write_pairs(held_out, folder / HELD_OUT_FILE)
    digest = sha256()
    for path in vocabulary_paths(request.out):
        content = path.read_bytes()
        digest.update(content)
        write_text_atomic(folder / path.name, content.decode())
    infos = [
        ShardInfo(shard.path.name, len(shard), len(shard.ids), shard.path.stat().st_size, shard.crc32)
        for shard in shards
    ]
    description = {
        "source": source.languages[0],
        "target": source.languages[1],
        "vocabulary": digest.hexdigest(),
        "text": dict(request.text),
        "tagged": request.tagged,
        "pairs": sum(one.pairs for one in infos),
        "ids": sum(one.ids for one in infos),
        "held_out": len(held_out),
        "cleaning": report.to_dict(),
    }
    write_corpus(folder, infos, description)
