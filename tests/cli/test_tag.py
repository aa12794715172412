"""regard tag, and train, evaluate and look for taggers: files in and out as they came, and what is refused."""

from pathlib import Path

import pytest

from regard.data.labelled import read_conllu, write_conllu
from regard.world import World

from .commands import assert_done, assert_plain, assert_refused, regard

LITTLE = ["--set", "model.layers=1", "--set", "model.model=16", "--set", "model.hidden=24", "--set", "model.heads=2"]
CONLLU = """# sent_id = 1
# text = the cat's mouse
1\tthe\tthe\tDET\tDT\t_\t2\tdet\t_\t_
2-3\tcat's\t_\t_\t_\t_\t_\t_\t_\t_
2\tcat\tcat\tNOUN\tNN\t_\t4\tnmod\t_\t_
3\t's\t's\tPART\tPOS\t_\t2\tcase\t_\t_
4\tmouse\tmouse\tNOUN\tNN\t_\t0\troot\t_\tSpaceAfter=No

"""


@pytest.fixture(scope="module")
def tagger(train) -> Path:
    world = ["--set", "data.sentences=300", "--set", "data.max_length=6", "--steps", "60"]
    return train("--task", "tagging", *LITTLE, *world)


def test_a_conllu_keeps_all_but_its_tags(tagger):
    Path("a.conllu").write_text(CONLLU, encoding="utf-8")
    regard("tag", tagger, "a.conllu", "--out", "b.conllu")
    before, after = (Path(name).read_text(encoding="utf-8").splitlines() for name in ("a.conllu", "b.conllu"))
    cells = [[line.split("\t") for line in lines] for lines in (before, after)]
    for one, other in zip(*cells, strict=True):
        assert one[:3] + one[4:] == other[:3] + other[4:]
    assert assert_done(regard("tag", tagger, "a.conllu")).splitlines()[:8] == after[:8]


def test_text_comes_back_as_words_with_tags(tagger):
    output = assert_done(regard("tag", tagger, "-", typed="the cat runs\n\nthe dog\n"))
    assert_plain(output)
    rows = [line.split("\t") for line in output.splitlines() if line]
    assert [row[0] for row in rows] == ["the", "cat", "runs", "the", "dog"]
    assert all(len(row) == 2 for row in rows)
    Path("a.txt").write_text("the cat runs\nthe dog\n")
    regard("tag", tagger, "a.txt", "--out", "a.tsv")
    assert Path("a.tsv").read_text().split() == output.split()


def test_accuracy_by_tag_and_its_file(tagger):
    world = World(max_length=6)
    given = [world.sentence(number, "test") for number in range(5)]
    words = sum(len(sentence.words) for sentence in given)
    rows = ["\n".join(f"{w}\t{t}" for w, t in zip(one.words, one.tags, strict=True)) for one in given]
    Path("gold.tsv").write_text("\n\n".join(rows) + "\n")
    output = assert_done(regard("evaluate", tagger, "--on", "gold.tsv", "--save", "a.json", "--outputs", "tags.txt"))
    assert f"words:{words}|sentences:5" in output
    assert len(Path("tags.txt").read_text().splitlines()) == 5
    assert_refused(regard("evaluate", tagger, "--beam", 3), "--beam and penalties are for translations")
    assert_refused(regard("evaluate", tagger, "--comet", "python"), "--comet is for translations")


def test_looking_at_words_and_heads(tagger):
    sentence = "the black cat ate the mouse"
    output = assert_done(regard("look", tagger, sentence, "--word", "cat", "--save", "a.png"))
    assert "attention when tagging “cat” as" in output
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    assert assert_done(regard("look", tagger, sentence, "--every")).count("head ") >= 2
    one, other = (
        assert_done(regard("look", tagger, sentence, "--word", "cat", "--head", f"encoder.0:{n}")) for n in (0, 1)
    )
    assert one != other
    assert_refused(regard("look", tagger, sentence, "--word", "dog"), "--word dog: not in the sentence; its words are")
    assert_refused(regard("look", tagger, sentence, "--head", "x:9", "--word", "cat"), "--head x:9: write LAYER:HEAD,")
    assert_refused(regard("look", tagger, sentence, "--target", "le chat"), "--target is a translation, and this model")


def test_two_columns_and_trees_can_be_trained_on():
    world = World(max_length=6)
    given = [world.sentence(number) for number in range(40)]
    rows = ["\n".join(f"{w}\t{t}" for w, t in zip(one.words, one.tags, strict=True)) for one in given]
    Path("a.tsv").write_text("\n\n".join(rows) + "\n")
    train = ["train", "--task", "tagging", *LITTLE, "--set", "text.kind=words", "--steps", 2, "--tokens", 300]
    assert_done(regard(*train, "--train", "a.tsv", "--out", "columns"))
    trees = ["--set", 'model.recipe=position = "TreeDepth()"']
    why = "sentence 1 has no dependency heads, and the model's places are in trees"
    assert_refused(regard(*train, *trees, "--train", "a.tsv", "--out", "trees"), why)
    lines = [
        [
            f"{n}\t{w}\t_\t{t}\t_\t_\t{h}\t_\t_\t_"
            for n, (w, t, h) in enumerate(zip(one.words, one.tags, one.governors, strict=True), 1)
        ]
        for one in given
    ]
    Path("a.conllu").write_text("\n\n".join("\n".join(each) for each in lines) + "\n")
    assert_done(regard(*train, *trees, "--train", "a.conllu", "--out", "trees"))
    sentences = list(read_conllu("a.conllu"))
    write_conllu(sentences[:2], "two.conllu")
    assert assert_done(regard("tag", "trees", "two.conllu")).count("\t") == 9 * sum(
        len(one.words) for one in sentences[:2]
    )


def test_bad_files_are_named_with_their_line(tagger):
    Path("a.conllu").write_text("1\tthe\tthe\tDET\n\n")
    assert_refused(regard("tag", tagger, "a.conllu"), "a.conllu:1: 4 columns")
    Path("b.tsv").write_text("the\tDET\ncat\tFOO\n\n")
    assert_refused(regard("evaluate", tagger, "--on", "b.tsv"), "sentence 1: the label 'FOO' is not known; the known")
    Path("c.tsv").write_text("the\tDET\ncat\n\n")
    assert_refused(regard("evaluate", tagger, "--on", "c.tsv"), "c.tsv:2: ")
    Path("d.txt").write_text("\n\n")
    assert_refused(regard("tag", tagger, "d.txt"), "d.txt: no sentence to tag; give at least one")
    assert_refused(regard("tag", tagger, "e.txt"), "e.txt: no such file; check the name")
    assert_refused(regard("look", tagger, " "), "the sentence is empty; give at least one word")


def test_each_task_has_its_own_models(tagger, trained):
    assert_refused(
        regard("tag", trained, "-", typed="a"), f"{trained}/settings.toml: the task is 'translation', not 'tagging'"
    )
    assert_refused(
        regard("translate", tagger, "-", typed="a"), f"{tagger}/settings.toml: the task is 'tagging', not 'translation'"
    )
    assert_refused(regard("train", "--task", "sing"), "no task is called 'sing'; did you mean tagging?")
    Path("a.toml").write_text('task = "tag"\n')
    why = "a.toml is a recipe for the task 'tagging', not 'translation'; leave out --task"
    assert_refused(regard("train", "a.toml", "--task", "translation"), why)


def test_a_sentence_of_too_many_tokens_is_refused(tagger):
    words = " ".join(["the"] * 1001)
    Path("a.txt").write_text(f"the cat\n{words}\n")
    assert_refused(regard("tag", tagger, "a.txt"), "a.txt: sentence 2: 1,001 tokens; split it, or allow it with --max-")
    assert assert_done(regard("tag", tagger, "a.txt", "--longest", 1001)).count("the") == 1002
    assert_refused(regard("tag", tagger, "-", typed=words), "-: sentence 1: 1,001 tokens")
    assert_refused(
        regard("look", tagger, words), "the sentence: 1,001 tokens; split it, or allow it with --max-length 10"
    )


def test_a_sentence_may_stand_on_the_command_line(tagger):
    answer = regard("tag", tagger, "the cat runs")
    assert [line.split("\t")[0] for line in assert_done(answer).split("\n") if line] == ["the", "cat", "runs"]
    assert answer.stderr == ""


def test_a_word_without_end_is_read_by_its_first_letters(tagger):
    """A table has room for the longest word's letters in every word."""
    output = assert_done(
        regard(
            "tag",
            tagger,
            "-",
            typed="the " * 99 + "x" * 100_000 + "\n",
        )
    )
    assert len([line for line in output.splitlines() if line]) == 100
