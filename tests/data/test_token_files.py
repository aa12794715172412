"""Token files: what is written is read back in the order of lengths; what is torn or foreign is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import token_files
from regard.data.token_files import (
    CORPUS_FILE,
    CorpusMixture,
    TextMixture,
    TokenCorpus,
    TokenShard,
    all_prepared,
    corpus_folders,
    is_prepared,
    write_shard,
)
from regard.data.tokenizers.base import BOS

from .prepared import write_examples, write_stream

EXAMPLES = [([5, 6, 7], [8]), ([9], [10, 11]), ([12], [13]), ([4], [65_535])]
IDS = st.lists(st.integers(4, 2**16 - 1), min_size=1, max_size=9)


def test_a_shard_holds_its_pairs_in_the_order_of_their_lengths(tmp_path):
    corpus = write_examples(tmp_path / "one", [EXAMPLES])
    assert list(corpus) == [([12], [13]), ([4], [65_535]), ([9], [10, 11]), ([5, 6, 7], [8])]
    assert corpus.shards[0].path.read_bytes()[:12] == b"REGARDTK\x01\0\0\0"
    source, target, first, size = corpus.shards[0].length_runs()
    assert [source.tolist(), target.tolist()] == [[1, 1, 3], [1, 2, 1]]
    assert [first.tolist(), size.tolist()] == [[0, 2, 3], [2, 1, 1]]


@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=200))
def test_whatever_is_written_is_read_back(tmp_path_factory, examples):
    corpus = write_examples(tmp_path_factory.mktemp("law") / "one", [examples])
    assert sorted(corpus) == sorted(examples)
    widths = [(max(len(source) + 1, len(target) + 2), len(source) - len(target)) for source, target in corpus]
    assert widths == sorted(widths)
    assert corpus[3:5] == [corpus[n] for n in range(3, min(5, len(corpus)))]


@pytest.mark.parametrize("loaded", [True, False])
@given(examples=st.lists(st.tuples(IDS, IDS), min_size=1, max_size=200), data=st.data())
def test_pairs_that_are_read_together_are_those_that_are_read_one_by_one(tmp_path_factory, loaded, examples, data):
    """Whether all are in memory, or read from their shards."""
    folder = tmp_path_factory.mktemp("law")
    corpora = [write_examples(folder / name, [examples, examples[:3]]) for name in "ab"]
    mixture = CorpusMixture(tuple(corpora))
    rows = data.draw(st.lists(st.integers(0, len(mixture) - 1), min_size=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_files, "LOADED_BYTES", 2**20 if loaded else 0)
        assert (mixture.loaded is not None) is loaded
        found = [np.split(side.ids, np.cumsum(side.sizes)[:-1]) for side in mixture.sides(np.array(rows))]
    pairs = [(source.tolist(), target.tolist()) for source, target in zip(*found, strict=True)]
    assert pairs == [mixture[row] for row in rows]
    assert mixture.loaded is None or [mixture.loaded[row] for row in rows] == pairs


def test_a_pair_of_68_ids_takes_140_bytes(tmp_path):
    pairs = 10_007
    made = write_shard(tmp_path / "x.tokens", np.full((pairs, 2), 34), np.full(68 * pairs, 7), id_bytes=2)
    assert 140 < made.bytes / pairs < 140.2
    assert len(TokenShard.open(tmp_path / "x.tokens")[pairs - 1][1]) == 34


def test_a_vocabulary_beyond_16_bits_takes_4_bytes_an_id(tmp_path):
    lengths, ids = np.array([[1, 1]]), np.array([70_000, 5])
    with pytest.raises(ValueError, match="the id 70000 does not fit into 2 bytes; write 4"):
        write_shard(tmp_path / "x.tokens", lengths, ids, id_bytes=2)
    write_shard(tmp_path / "x.tokens", lengths, ids, id_bytes=4)
    assert TokenShard.open(tmp_path / "x.tokens")[0] == ([70_000], [5])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-8], "it is torn; prepare the corpus again"),
        (lambda raw: raw + bytes(8), "it is torn"),
        (lambda raw: raw[:20], "not a file of tokens; make it by regard data prepare"),
        (lambda raw: b"a text" * 20, "not a file of tokens"),
        (lambda raw: raw[:8] + b"\x02" + raw[9:], "version 2 of the format, not 1; prepare the corpus again"),
        (lambda raw: raw[:16] + b"\x05" + raw[17:], "its header is damaged"),
        (lambda raw: raw[:-16] + bytes([raw[-16] ^ 1]) + raw[-15:], "its checksum is another"),
    ],
    ids=["short", "long", "a beginning", "foreign", "newer", "header", "one bit"],
)
def test_a_torn_or_foreign_shard_is_refused(tmp_path, change, message):
    corpus = write_examples(tmp_path / "one", [EXAMPLES])
    path = corpus.shards[0].path
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=message) as refused:
        TokenCorpus.open(tmp_path / "one").verify()
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "regard tokens 2"}, "its format is 'regard tokens 2'"),
        ({"shards": [{"name": "../x", "pairs": 1, "ids": 1, "bytes": 1, "crc32": 1}]}, "lies outside of the folder"),
        ({"shards": [{"name": "x"}]}, "damaged or foreign"),
        ({"vocabulary": 7}, "another type"),
    ],
)
def test_a_damaged_description_is_refused(tmp_path, change, message):
    write_examples(tmp_path / "one", [EXAMPLES])
    path = tmp_path / "one" / CORPUS_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=message):
        TokenCorpus.open(tmp_path / "one")


def test_a_shard_of_another_corpus_is_refused(tmp_path):
    write_examples(tmp_path / "one", [EXAMPLES])
    other = write_examples(tmp_path / "other", [EXAMPLES[:2]])
    (tmp_path / "one" / "00000.tokens").write_bytes(other.shards[0].path.read_bytes())
    with pytest.raises(ValueError, match=r"not the shard that .*corpus.json lists"):
        TokenCorpus.open(tmp_path / "one")


def test_an_unfinished_preparation_is_no_corpus(tmp_path):
    write_examples(tmp_path / "one", [EXAMPLES])
    (tmp_path / "one" / CORPUS_FILE).unlink()
    with pytest.raises(ValueError, match="let that finish by the same command"):
        TokenCorpus.open(tmp_path / "one")


# --- several corpora ---


def test_a_folder_stands_for_the_corpora_in_it_and_weights_for_proportions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_examples(Path("all/a"), [EXAMPLES, EXAMPLES[:1]])
    write_examples(Path("all/b"), [EXAMPLES[:2]])
    assert corpus_folders("all") == [Path("all/a"), Path("all/b")]
    assert [is_prepared(name) for name in ("all", "all/a:3", "all/b", "nothing", ".")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    mixture = CorpusMixture.open(["all"])
    assert [len(mixture), mixture[5], mixture.weights] == [7, ([9], [10, 11]), None]
    weighted = CorpusMixture.open(["all/a:1", "all/b:4"])
    assert weighted.repeats([5, 2]) == [1.0, 10.0]  # 5 pairs of a, and 20 = 4 · 5 of b
    with pytest.raises(ValueError, match=r"all/b has no weight, but all/a has; give one to each, as in all/b:1"):
        CorpusMixture.open(["all/a:1", "all/b"])
    with pytest.raises(ValueError, match="a weight is a number above 0, not 0"):
        CorpusMixture.open(["all/a:0", "all/b:1"])


def test_corpora_of_other_vocabularies_do_not_mix(tmp_path):
    a, b = write_examples(tmp_path / "a", [EXAMPLES]), write_examples(tmp_path / "b", [EXAMPLES], "two")
    with pytest.raises(ValueError, match="other vocabularies; prepare them by one command"):
        CorpusMixture((a, b))


# --- running text ---


@given(
    st.lists(st.lists(st.lists(st.integers(4, 2**16 - 1), max_size=9), min_size=1, max_size=4), min_size=1, max_size=3)
)
def test_running_text_is_read_by_its_place_across_shards(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("law")
    corpora = [write_stream(folder / str(number), [[7], *pieces]) for number, pieces in enumerate(texts)]
    stream = TextMixture(tuple(corpora)).stream
    plain = [one for pieces in texts for piece in ([BOS], [7], *pieces) for one in piece]
    places = np.arange(len(plain))[::-1].copy()
    assert stream[places].tolist() == plain[::-1]
    assert len(stream) == len(plain)
    assert all(plain[start] == BOS for start in stream.text_starts)
    assert [corpus.ids for corpus in corpora] == [1 + sum(map(len, pieces)) for pieces in texts]


def test_text_and_pairs_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_examples(Path("pairs"), [EXAMPLES])
    write_stream(Path("text"), [[5, 6, 7]])
    with pytest.raises(ValueError, match="text is running text, without pairs; train on it with --task language_model"):
        CorpusMixture.open(["text"])
    with pytest.raises(ValueError, match="pairs holds pairs, not running text; train a translator on it"):
        TextMixture.open(["pairs"])
    with pytest.raises(ValueError, match="the id 65536 does not fit into 2 bytes; write 4"):
        write_stream(Path("wide"), [[65_536]])
    write_stream(Path("more"), [[5] * 6])
    assert TextMixture.open(["text:1", "more:4"]).repeats == [1.0, 2.0]  # 3 tokens, and 12 = 4 · 3 of 6
    with pytest.raises(ValueError, match=r"nothing is no prepared corpus, but text is; prepare both"):
        all_prepared(["text", "nothing"])
