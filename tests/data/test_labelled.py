"""Texts with labels are read from any table, labels are numbers and back, and what is wrong is named by its line."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.corpora import corpus_path
from regard.data.labelled import LabelledText, Labels, read_labelled

FILMS = [LabelledText("a warm , funny film", "1"), LabelledText("dull č\u2028 😀", "0"), LabelledText(" fine ", "1")]
IMDB = ("label", "rating", "text")


def assert_says(message: str, path: str, **choices) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        list(read_labelled(path, **choices))
    assert str(caught.value) == message


# --- what is read ---


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_every_layout_gives_the_same_texts(put, packed):
    plain = put(f"a.tsv{packed}", "".join(f"{one.text}\t{one.label}\n" for one in FILMS))
    turned = put(f"b.tsv{packed}", "".join(f"{one.label}\t{one.text}\r\n" for one in FILMS))
    rated = put(f"c.tsv{packed}", "".join(f"{one.label}\t7\t{one.text}\n" for one in FILMS))
    lines = put(f"d.jsonl{packed}", "\n".join(json.dumps({"text": x.text, "n": 1, "label": x.label}) for x in FILMS))
    assert list(read_labelled(plain)) == FILMS
    assert list(read_labelled(turned, columns=("label", "text"))) == FILMS
    assert list(read_labelled(rated, columns=IMDB)) == FILMS
    assert list(read_labelled(Path(lines))) == FILMS


def test_any_column_can_be_the_label(put):
    path = put("a.tsv", "1\t9\tgreat\n")
    assert list(read_labelled(path, columns=IMDB, fields=("text", "rating"))) == [LabelledText("great", "9")]


def test_fields_of_objects_have_any_name_and_a_label_may_be_a_number(put):
    path = put("a.jsonl", '{"review": "great", "stars": 5}\n{"review": "dull", "stars": "5"}\n')
    assert list(read_labelled(path, fields=("review", "stars"))) == [
        LabelledText("great", "5"),
        LabelledText("dull", "5"),
    ]


def test_a_heading_is_no_text(put):
    path = put("a.tsv", "sentence\tlabel\nfine\t1\nsentence\tlabel\n")
    read = [one.text for one in read_labelled(path, fields=("sentence", "label"))]
    assert read == ["fine", "sentence"], "only the first line can be a heading"
    assert len(list(read_labelled(path))) == 3, "and only if it holds the names that were asked for"


def test_blanks_around_a_label_are_no_part_of_it(put):
    assert list(read_labelled(put("a.tsv", " fine \t 1 \n"))) == [LabelledText(" fine ", "1")]


def test_texts_are_read_one_at_a_time_and_an_empty_file_has_none(put):
    assert next(read_labelled(put("a.tsv", "fine\t1\nbroken\n"))) == LabelledText("fine", "1")
    assert list(read_labelled(put("b.tsv", ""))) == list(read_labelled(put("b.jsonl.xz", ""))) == []


@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="REGARD_DATA names no folder of known corpora")
def test_the_real_reviews_are_read():
    folder = Path(os.environ["REGARD_DATA"])
    short = list(read_labelled(corpus_path("sst2", "valid", folder), labels=Labels(("0", "1"))))
    long = read_labelled(corpus_path("imdb", "train", folder), columns=IMDB, labels=Labels(("0", "1")))
    assert len(short) == 872
    assert len(next(long).text.split()) > 100


# --- what cannot be read ---


def test_an_empty_text_or_label_is_refused_by_default(put):
    remedy = "fill it in, remove the line, or skip such lines"
    assert_says(f"a.tsv:2: the text is empty; {remedy}", put("a.tsv", "fine\t1\n \t1\n"))
    assert_says(f"a.tsv:1: the label is empty; {remedy}", put("a.tsv", "fine\t\n"))
    assert_says(f"a.tsv:1: the text is empty; {remedy}", put("a.tsv", "\n"))
    assert_says(f"a.jsonl:1: the text is empty; {remedy}", put("a.jsonl", '{"text": "", "label": 0}'))


def test_empty_texts_can_be_skipped_and_counted(put):
    skipped: list[str] = []
    path = put("a.tsv", "fine\t1\n\t1\n\ndull\t0\n")
    assert [one.text for one in read_labelled(path, on_empty=skipped.append)] == ["fine", "dull"]
    assert skipped == ["a.tsv:2: the text is empty", "a.tsv:3: the text is empty"]


def test_another_number_of_columns_is_named_with_its_line(put):
    assert_says("a.tsv:2: 3 columns; a line is text, tab, label, which are 2", put("a.tsv", "x\t1\nx\ty\t1\n"))
    wanted = "a line is label, tab, rating, tab, text, which are 3"
    assert_says(f"a.tsv:1: 1 column; {wanted}", put("a.tsv", "x\n"), columns=IMDB)


def test_an_unknown_label_is_named_with_its_line_and_the_known_ones(put):
    path = put("a.tsv", "fine\tpos\ndull\tnegg\n")
    message = "the label 'negg' is not known; the known ones are neg, pos"
    assert_says(f"a.tsv:2: {message}", path, labels=Labels(("neg", "pos")))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "list instead of an object with the field 'text'"),
        ('{"text": "a"}', "no field 'label', only 'text'"),
        ('{"text": 3, "label": 1}', "the field 'text' is int, not text"),
        ('{"text": "a", "label": true}', "the field 'label' is True; a label is a text or a whole number"),
        ('{"text": "a", "label": 0.5}', "the field 'label' is 0.5; a label is a text or a whole number"),
        (r'{"text": "\ud800", "label": 1}', "a lone surrogate (U+D800, character 1); remove it"),
    ],
)
def test_an_object_that_will_not_do_is_named(put, line, message):
    assert_says(f"a.jsonl:2: {message}", put("a.jsonl", f'{{"text": "a", "label": 1}}\n{line}\n'))


def test_broken_json_is_named(put):
    with pytest.raises(ValueError, match=r"^a\.jsonl:1: not JSON \(.*\); every line is one object"):
        list(read_labelled(put("a.jsonl", "{")))


def test_columns_must_hold_the_fields(put):
    path = put("a.tsv", "x\t1\n")
    assert_says(
        "no column is called 'label', only text, stars; name the two in `fields`", path, columns=("text", "stars")
    )
    assert_says(
        "columns=('text', 'text') must be the names of all columns, without repetition", path, columns=("text", "text")
    )
    assert_says(
        "a.jsonl: a .jsonl has no columns; leave out columns=('text', 'label') and name the fields",
        put("a.jsonl", ""),
        columns=("text", "label"),
    )
    assert_says("a.csv: texts with labels end in .tsv or .jsonl, not '.csv'; rename the file", put("a.csv", ""))


# --- labels ---


def test_labels_are_numbers_and_back():
    labels = Labels.of(["pos", "neg", "pos", "neutral"])
    assert labels == Labels(("neg", "neutral", "pos"))
    assert [labels.index(name) for name in labels.names] == [0, 1, 2]
    assert [labels.name(number) for number in range(len(labels))] == ["neg", "neutral", "pos"]
    assert "pos" in labels
    assert "POS" not in labels


@given(st.sets(st.text(st.characters(exclude_categories=["Cs"])).filter(str.strip), min_size=1))
def test_any_labels_are_saved_and_loaded(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("labels") / "labels.json"
    Labels.of(names).save(path)
    assert Labels.load(path) == Labels.of(names)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Labels.of([]), "no labels; a classifier needs at least one"),
        (lambda: Labels(("a", " ")), "' ' cannot be a label; a label is a text that is not empty"),
        (lambda: Labels(("a", "b", "a")), "the label 'a' stands twice among the labels; name each once"),
        (lambda: Labels(("a", "b")).name(2), "there is no label number 2; there are 2, counted from 0"),
        (lambda: Labels(("a", "b")).name(-1), "there is no label number -1"),
        (lambda: Labels.of(map(str, range(23))).index("x"), "the label 'x' is not known; .* and 3 more$"),
    ],
)
def test_labels_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ("{", r"a\.json: damaged, or no labels at all"),
        ("[1]", r"a\.json: not the labels of this Regard, whose format is 'regard labels 1'"),
        ('{"format": "regard labels 1"}', r"a\.json: not the labels"),
        ('{"format": "regard labels 1", "names": [1]}', r"a\.json: damaged: 1 cannot be a label"),
        ('{"format": "regard labels 1", "names": [[]]}', r"a\.json: damaged: \[\] cannot be a label"),
        ('{"format": "regard labels 1", "names": []}', r"a\.json: damaged: no labels"),
    ],
)
def test_a_damaged_file_of_labels_is_named(put, held, message):
    with pytest.raises(ValueError, match=message):
        Labels.load(put("a.json", held))
