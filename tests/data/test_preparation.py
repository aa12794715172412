"""Preparation: killed at any moment it goes on and ends with the same bytes, in one process or several."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from regard.data import SentencePair, preparation, read_pairs
from regard.data.cleaning import CleaningRules, HashSet
from regard.data.preparation import Sample, prepare_corpora
from regard.data.token_files import HELD_OUT_FILE, HELD_OUT_TEXT
from regard.data.tokenizers.base import EOS
from regard.data.tokenizers.subwords import load_tokenizer

from .prepared import listed_source, listed_texts, request_for, text_request, world_lines, world_source

PAIRS = 700
SHARD = 64


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(preparation, "MIN_SHARD_PAIRS", SHARD)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    """Two corpora, prepared without a break."""
    out = tmp_path_factory.mktemp("straight") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "MIN_SHARD_PAIRS", SHARD)
        prepare_corpora(request_for(out, SOURCES, CleaningRules()))
    return out


SOURCES = (world_source("a", PAIRS), world_source("b", 300, seed=1))


def test_all_pairs_are_there_held_out_or_removed(straight):
    for name, count in (("a", PAIRS), ("b", 300)):
        folder = straight / name
        described = json.loads((folder / "corpus.json").read_text())
        tokenizers = [load_tokenizer(folder / f"{side}.json") for side in ("source", "target")]
        corpus = preparation.TokenCorpus.open(folder)
        corpus.verify()
        texts = {tuple(one.decode(ids) for one, ids in zip(tokenizers, pair, strict=True)) for pair in corpus}
        aside = {(pair.source, pair.target) for pair in read_pairs(folder / HELD_OUT_FILE)}
        report = described["cleaning"]
        assert report["read"] == count
        assert len(corpus) + len(aside) == described["pairs"] + described["held_out"] == report["kept"]
        assert not texts & aside
        known = {(pair.source, pair.target) for pair in SOURCES[name == "b"].read(str)}
        assert texts | aside <= known


def test_what_an_earlier_corpus_holds_is_a_duplicate_in_a_later_one(tmp_path):
    sources = [
        world_source("a", 100),
        listed_source("b", [*world_source("x", 20).read(str), SentencePair("hm", "euh")]),
    ]
    found = prepare_corpora(request_for(tmp_path / "out", sources, CleaningRules()))
    assert found[1].description["cleaning"] == {"read": 21, "removed": {"duplicate": 20}, "kept": 1}


def test_an_interrupted_preparation_ends_with_the_same_bytes(straight, tmp_path):
    request = request_for(tmp_path / "out", SOURCES, CleaningRules())

    def stop_at(what: str, done: int, total: int | None) -> None:
        if what == "preparing a" and done >= 3 * SHARD:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_corpora(request, stop_at)
    there = list((request.out / "a").glob("*.tokens"))
    assert len(there) == 3
    before = {path: path.stat().st_mtime_ns for path in there}
    prepare_corpora(request)
    assert contents(request.out) == contents(straight)
    assert {path: path.stat().st_mtime_ns for path in there} == before, "what is done is not done again"


def test_several_processes_write_the_same_bytes(straight, tmp_path):
    prepare_corpora(replace(request_for(tmp_path / "out", SOURCES, CleaningRules()), workers=2))
    assert contents(tmp_path / "out") == contents(straight)


KILLED = """
from pathlib import Path
from regard.data import preparation
from regard.data.cleaning import CleaningRules
from tests.data.prepared import request_for, world_source
preparation.MIN_SHARD_PAIRS = {shard}

def tell(what, done, total):
    print(what, done, flush=True)

sources = (world_source("a", {pairs}), world_source("b", 300, seed=1))
preparation.prepare_corpora(request_for(Path({out!r}), sources, CleaningRules()), tell)
"""


def test_a_killed_preparation_ends_with_the_same_bytes(straight, tmp_path):
    out = tmp_path / "out"
    program = KILLED.format(shard=SHARD, pairs=PAIRS, out=str(out))
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"preparing a {2 * SHARD}"):
            os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    prepare_corpora(request_for(out, SOURCES, CleaningRules()))
    assert contents(out) == contents(straight)


def test_another_request_for_the_same_folder_is_refused(straight):
    with pytest.raises(ValueError, match="holds a preparation with other sources; choose another folder"):
        prepare_corpora(request_for(straight, SOURCES[:1], CleaningRules()))
    with pytest.raises(ValueError, match="with other rules"):
        prepare_corpora(request_for(straight, SOURCES, CleaningRules(max_words=7)))


def test_a_corpus_of_which_nothing_is_left_is_an_error(tmp_path):
    source = listed_source("x", [SentencePair("a cat", "un chat")])
    request = replace(request_for(tmp_path / "out", [source]), excluded=HashSet().update(["a cat"]))
    with pytest.raises(ValueError, match="no pair is left of 1; the rule 'test overlap' removed most of them"):
        prepare_corpora(request)


def test_sources_for_several_languages_begin_with_their_target(tmp_path):
    sources = [world_source("fr", 60), world_source("de", 60, "de")]
    for corpus, language in zip(prepare_corpora(request_for(tmp_path, sources)), ("fr", "de"), strict=True):
        tokenizer = load_tokenizer(corpus.folder / "source.json")
        assert {tokenizer.decode(source[:1]) for source, _ in corpus} == {f">>{language}<<"}
        assert corpus.description["tagged"]


def test_a_sample_is_bounded_and_takes_from_the_whole_stream():
    drawn = Sample(100, 1, lambda pair: 1)
    for number in range(10_000):
        drawn.add(SentencePair(str(number), ""))
    numbers = [int(pair.source) for _, pair in drawn.held]
    assert 50 <= len(numbers) <= 100
    assert min(numbers) < 1000
    assert max(numbers) > 9000


# --- texts ---

LINES = world_lines(600)
DOCUMENTS = ["".join(LINES[first : first + 3]) for first in range(0, 300, 3)]
TEXTS = (listed_texts("plays", LINES), listed_texts("pages", [*DOCUMENTS, "\n", DOCUMENTS[5].upper()], documents=True))


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(preparation, "MIN_CHUNK_CHARACTERS", 4000)
    monkeypatch.setattr(preparation, "PIECE_CHARACTERS", 300)


@pytest.mark.parametrize("kind", ["bpe", "characters", "words"])
def test_running_text_is_all_there_in_its_order(kind, small_chunks, tmp_path):
    plays, pages = prepare_corpora(text_request(tmp_path, TEXTS, kind=kind))
    assert len(plays.shards) > 3
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    stream = [int(one) for shard in plays.shards for one in shard.ids]
    held = (plays.folder / HELD_OUT_TEXT).read_text()
    if kind == "words":
        assert stream == [one for line in LINES[:594] for one in (*tokenizer.encode(line), EOS)]
    else:
        assert tokenizer.decode(stream) == "".join(LINES[:594])
    assert held == "".join(LINES[594:]), "the last hundredth"
    described = plays.description
    assert (described["texts"], described["held_out"]) == (594, 6)
    assert described["characters"] == sum(map(len, LINES[:594]))
    assert pages.description["cleaning"] == {"read": 102, "removed": {"empty": 1, "duplicate": 1}, "kept": 100}
    assert pages.description["texts"] + pages.description["held_out"] == 100
    aside = (pages.folder / HELD_OUT_TEXT).read_text()
    assert all(document in DOCUMENTS for document in re.findall(r"(?:.*\n){3}", aside))


def test_an_interrupted_preparation_of_texts_ends_with_the_same_bytes(small_chunks, tmp_path):
    prepare_corpora(text_request(tmp_path / "straight", TEXTS))

    def stop_at(what: str, done: int, total: int | None) -> None:
        if what == "preparing plays" and done > 200:
            raise KeyboardInterrupt

    request = text_request(tmp_path / "out", TEXTS)
    with pytest.raises(KeyboardInterrupt):
        prepare_corpora(request, stop_at)
    assert list((request.out / "plays").glob("*.tokens"))
    prepare_corpora(request)
    assert contents(request.out) == contents(tmp_path / "straight")


def test_from_running_text_nothing_is_excluded(tmp_path):
    with pytest.raises(ValueError, match=r"plays is running text, from which no line is removed; give documents"):
        text_request(tmp_path, TEXTS, excluded=HashSet().update(LINES[:1]))
    (pages,) = prepare_corpora(text_request(tmp_path, TEXTS[1:], excluded=HashSet().update(DOCUMENTS[:2])))
    assert pages.description["cleaning"]["removed"] == {"empty": 1, "test overlap": 2, "duplicate": 1}
