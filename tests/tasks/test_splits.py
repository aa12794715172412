"""The [data] of a run: the world, files or a known corpus in; the pairs of each split, and what was left out, out."""

import json
import lzma
from pathlib import Path

import pytest

from regard.data import SentencePair
from regard.tasks import splits
from regard.tasks.splits import WORLD_TESTS
from regard.tasks.translation.task import TranslationData, TranslationSettings


def numbered(count: int) -> list[SentencePair]:
    return [SentencePair(f"source {n}", f"target {n}") for n in range(1, count + 1)]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes so many pairs into a .tsv and names it."""
    monkeypatch.chdir(tmp_path)

    def write(count: int, name: str = "pairs.tsv") -> tuple[str, ...]:
        Path(name).write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in numbered(count)))
        return (name,)

    return write


# --- the world ---


def test_the_world_in_both_directions():
    forward = TranslationData(sentences=7, max_length=6).read("train").examples
    backward = TranslationData(sentences=7, max_length=6, source="fr", target="en").read("train").examples
    assert len(forward) == 7
    assert backward == [pair.swapped() for pair in forward]


def test_the_world_holds_out_other_sentences():
    data = TranslationData(sentences=7, max_length=5, target="de")
    valid, test = (data.read(split).examples for split in ("valid", "test"))
    assert len(valid) == len(test) == WORLD_TESTS
    assert not set(valid) & set(test)


def test_the_world_knows_its_languages():
    with pytest.raises(ValueError, match="the world translates from or into en, not from 'fr' into 'de'"):
        TranslationData(source="fr", target="de").read("train")


# --- files ---


@pytest.mark.parametrize(
    ("count", "held_out"), [(2, [2]), (99, [99]), (100, [100]), (101, [100]), (250, [100, 200]), (300, [100, 200, 300])]
)
def test_without_files_to_validate_on_every_hundredth_pair_is_held_out(count, held_out, files):
    data = TranslationData(corpus="files", train=files(count))
    every = numbered(count)
    assert data.read("valid").examples == [every[n - 1] for n in held_out]
    assert data.read("train").examples == [pair for n, pair in enumerate(every, 1) if n not in held_out]


def test_with_files_to_validate_on_nothing_is_held_out(files):
    data = TranslationData(corpus="files", train=files(150), valid=files(3, "valid.tsv"), test=files(5, "test.tsv"))
    assert [len(data.read(split).examples) for split in ("train", "valid", "test")] == [150, 3, 5]


def test_a_jsonl_is_read_by_its_languages(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"de": "die Katze", "en": "the cat", "fr": "le chat"}) + "\n")
    data = TranslationData(corpus="files", source="de", target="en", train=(str(path),), valid=(str(path),))
    assert data.read("train").examples == [SentencePair("die Katze", "the cat")]


def test_empty_sides_are_refused_or_left_out(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\nc\t\n\te\nf\tg\n")
    with pytest.raises(
        ValueError, match=r"pairs\.tsv:2: the target is empty; fill it in, remove .* data.skip_empty=tr"
    ):
        TranslationData().from_files([str(path)], "train")
    found = TranslationData(skip_empty=True).from_files([str(path)], "train")
    assert found.examples == [SentencePair("a", "b"), SentencePair("f", "g")]
    assert found.skipped == (f"{path}:2: the target is empty", f"{path}:3: the source is empty")


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_pairs_to_hold_one_out(count, files):
    with pytest.raises(ValueError, match=r"pairs\.tsv: no pair is left for train; give more, or files of its own"):
        TranslationData(corpus="files", train=files(count)).read("train")


def test_two_tables_are_not_the_two_sides_of_one(files):
    with pytest.raises(ValueError, match=r"b\.tsv holds both sides already; give it alone, or two files of plain text"):
        TranslationData().from_files(["a.en", *files(3, "b.tsv")], "train")


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_files_that_are_not_named(split, files):
    named = {} if split in ("train", "valid") else {"train": files(3)}
    wanted = "train" if split == "valid" else split
    with pytest.raises(ValueError, match=rf"data\.{split} names no files; e\.g\. {split} = \[|data\.{wanted} names"):
        TranslationData(corpus="files", **named).read(split)


def test_files_that_would_not_be_read_are_refused(files):
    with pytest.raises(
        ValueError, match=r"pairs\.tsv would not be read, since data\.corpus = 'world'; set it to files"
    ):
        TranslationData(valid=files(3)).read("train")


def test_a_split_by_another_name():
    with pytest.raises(ValueError, match="a split is one of train, valid, test, not 'dev'"):
        TranslationData().read("dev")  # type: ignore[arg-type]


# --- known corpora ---


def test_a_known_corpus_is_read_from_its_folder(tmp_path):
    (tmp_path / "multi30k").mkdir()
    for language, line in (("en", "a cat\n"), ("de", "eine Katze\n")):
        (tmp_path / f"multi30k/train.{language}.xz").write_bytes(lzma.compress(line.encode()))
    data = TranslationData(corpus="multi30k", source="de", target="en")
    assert data.read("train", tmp_path).examples == [SentencePair("eine Katze", "a cat")]
    with pytest.raises(ValueError, match="multi30k: its folder is not set; name it with --data FOLDER"):
        data.read("train")


# --- settings ---


def test_data_settings_survive_a_file():
    data = TranslationData(corpus="files", source="de", target="en", train=("a b.de", "é.en"), skip_empty=True)
    assert TranslationSettings.from_toml(TranslationSettings(data=data).to_toml()).data == data


def test_lists_of_files_can_be_set_on_the_command_line():
    changed = TranslationSettings().with_changes(
        {"data.train": '["a.tsv"]', "data.valid": ["b.en", "b.fr"], "data.skip_empty": "true"}
    )
    assert (changed.data.train, changed.data.valid, changed.data.skip_empty) == (("a.tsv",), ("b.en", "b.fr"), True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data]\ntrain = 'a.tsv'", "data.train = 'a.tsv' should be a list of texts"),
        ("[data]\ntrain = [1]", r"data.train = \[1\] should be a list of texts"),
        ("[data]\nskip_empty = 1", "data.skip_empty = 1 should be true or false"),
        ("[data]\nsentences = true", "data.sentences = True should be a whole number"),
        ("[data]\nfile = 'a'", r"\[data\] has no 'file'; choose from corpus, train, valid, test"),
    ],
)
def test_data_settings_that_make_no_sense(text, message):
    with pytest.raises(ValueError, match=message):
        TranslationSettings.from_toml(text)


@pytest.mark.parametrize("count", [100, pytest.param(WORLD_TESTS, marks=pytest.mark.slow)])
def test_stories_are_long_and_their_extracts_are_in_them(count, monkeypatch):
    monkeypatch.setattr(splits, "WORLD_TESTS", count)
    data = TranslationData(corpus="stories", sentences=7, max_length=61)
    found = data.read("train").examples
    assert [len(pair.source.split()) for pair in found] == [30, 61, 30, 61, 30, 61, 30]
    assert all(pair.target in pair.source for pair in found)
    tests = data.read("test").examples
    assert [len(pair.source.split()) for pair in tests] == [61] * count
