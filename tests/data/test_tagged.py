"""Tagged sentences are read and written back without a loss, and whatever is no sentence is named by its line."""

import gzip
import lzma
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.corpora import corpus_path, sha256_digest
from regard.data.labelled import TaggedSentence, read_columns, read_conllu, read_tagged, write_columns, write_conllu

UNPACKED = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress}
CONLLU = """# sent_id = 1
# text = Don't touch #5 or 10 000!
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\tMood=Imp\t3\taux\t3:aux\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t3:advmod\tGloss=x y
3\ttouch\ttouch\tVERB\tVB\t_\t0\troot\t0:root\t_
4\t#\t#\tSYM\tNN\t_\t3\tobj\t3:obj\tSpaceAfter=No
5\t5\t5\tNUM\tCD\t_\t4\tnummod\t4:nummod\t_
6\tor\tor\tCCONJ\tCC\t_\t7\tcc\t7:cc\t_
7\t10 000\t10000\tNUM\tCD\t_\t4\tconj\t4:conj\tSpaceAfter=No
7.1\ttouch\ttouch\tVERB\t_\t_\t_\t_\t3:conj\tCopyOf=3
8\t!\t!\tPUNCT\t.\t_\t3\tpunct\t3:punct\t_

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t0:root\t_

"""
WORDS = ("Do", "n't", "touch", "#", "5", "or", "10 000", "!")
TAGS = ("AUX", "PART", "VERB", "SYM", "NUM", "CCONJ", "NUM", "PUNCT")
HEADS = (3, 3, 0, 3, 4, 7, 4, 3)


def assert_says(message: str, path: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 the whole message is compared
        list(read_tagged(path))
    assert str(caught.value) == message


def with_heads(*heads: object) -> str:
    return "".join(f"{at}\tw\t_\tX\t_\t_\t{head}\t_\t_\t_\n" for at, head in enumerate(heads, 1))


# --- CoNLL-U ---


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_words_tags_and_heads_are_those_of_the_numbered_lines(put, packed):
    first, second = read_tagged(put(f"a.conllu{packed}", CONLLU))
    assert (first.words, first.tags, first.governors) == (WORDS, TAGS, HEADS)
    assert first.comments == ("# sent_id = 1", "# text = Don't touch #5 or 10 000!")
    assert (second.words, second.tags, second.governors, second.comments) == (("Yes",), ("INTJ",), (0,), ())


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_what_is_written_back_is_the_same_to_the_byte(put, packed):
    sentences = list(read_conllu(put("a.conllu", CONLLU)))
    assert write_conllu(sentences, f"new/b.conllu{packed}") == 2
    assert UNPACKED[packed](Path(f"new/b.conllu{packed}").read_bytes()) == CONLLU.encode()
    assert list(read_conllu(f"new/b.conllu{packed}")) == sentences


def test_new_tags_change_the_tag_column_of_the_words_and_nothing_else(put):
    first, second = read_conllu(put("a.conllu", CONLLU))
    write_conllu([first.with_tags("abcdefgh"), second.with_tags(["UH"])], "b.conllu")
    old, new = (
        [line.split("\t") for line in text.split("\n")] for text in (CONLLU, Path("b.conllu").read_text("utf-8"))
    )
    changed = [(a[0], b[3]) for a, b in zip(old, new, strict=True) if a != b]
    assert changed == [*zip("12345678", "abcdefgh", strict=True), ("1", "UH")]
    assert [[*a[:3], *a[4:]] for a in old] == [[*b[:3], *b[4:]] for b in new]


def test_windows_line_ends_a_byte_order_mark_and_a_missing_last_blank_line_do_no_harm(put):
    plain = list(read_conllu(put("a.conllu", CONLLU)))
    assert list(read_conllu(put("b.conllu", "\ufeff" + CONLLU.replace("\n", "\r\n")))) == plain
    assert list(read_conllu(put("c.conllu", "\n\n" + CONLLU.replace("\n\n", "\n \n\n").rstrip()))) == plain
    assert list(read_conllu(put("d.conllu", ""))) == list(read_columns(put("d.tsv", "\n"))) == []


def test_sentences_are_read_one_at_a_time(put):
    sentences = read_conllu(put("a.conllu", CONLLU + "broken\n"))
    assert next(sentences).words == WORDS


def test_a_sentence_without_heads_has_none(put):
    (sentence,) = read_conllu(put("a.conllu", with_heads("_", "_")))
    assert sentence.governors is None
    assert sentence.words == ("w", "w")


def test_a_sentence_of_our_own_can_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours = [TaggedSentence(("a", "b"), ("X", "_"), (2, 0), comments=("# ours",)), TaggedSentence(("c",), ("Y",))]
    write_conllu(ours, "a.conllu")
    assert Path("a.conllu").read_text() == (
        "# ours\n1\ta\t_\tX\t_\t_\t2\t_\t_\t_\n2\tb\t_\t_\t_\t_\t0\t_\t_\t_\n\n1\tc\t_\tY\t_\t_\t_\t_\t_\t_\n\n"
    )
    assert [(one.words, one.tags, one.governors) for one in read_conllu("a.conllu")] == [
        (one.words, one.tags, one.governors) for one in ours
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1\ta\ta\tX\t_\t_\t0\troot\t_\n",
            "a.conllu:1: 9 columns; CoNLL-U has 10, with one tab between: "
            "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC",
        ),
        (
            "# x\n1 a a X _ _ 0 root _ _\n",
            "a.conllu:2: 1 column; CoNLL-U has 10, with one tab between: "
            "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC",
        ),
        (
            with_heads(0).replace("X", ""),
            "a.conllu:1: the column UPOS is empty; write _ where there is nothing",
        ),
        (
            with_heads(0).replace("X", "N N"),
            "a.conllu:1: 'N N' cannot be a tag; it is not empty and has no spaces (write _ where there is none)",
        ),
        (
            with_heads(0) * 2,
            "a.conllu:2: the number '1' where 2 is expected; number the words of a sentence 1, 2, 3 ..., "
            "and end it with a blank line",
        ),
        (
            with_heads(0) + "# x\n",
            "a.conllu:2: a comment inside a sentence; move it before the first word",
        ),
        (
            with_heads(0) + "\n# newdoc\n\n",
            "a.conllu:3: no word before the next blank line; remove that line, or these",
        ),
    ],
)
def test_a_line_that_is_none_is_named(put, text, message):
    assert_says(message, put("a.conllu", text))


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (
            (0, "_"),
            "2: the governor '_' is no whole number; write the number of a word, 0 for the root, or _ for every word "
            "of the sentence",
        ),
        (
            ("1.5", 0),
            "1: the governor '1.5' is no whole number; write the number of a word, 0 for the root, or _ for every word "
            "of the sentence",
        ),
        ((2, 0, 4), "3: the governor 4 is not in the sentence; choose from 1 to 3, or 0 for the root"),
        ((2, 1), "1: no word of this sentence has the governor 0; give it to the root"),
        ((0, 1, 0), "3: a second root, after word 1; only one word of a sentence has the governor 0"),
        ((0, 2), "2: the governors form a cycle (2 → 2) that never reaches the root; correct one of them"),
        (
            (0, 3, 4, 5, 3),
            "3: the governors form a cycle (3 → 4 → 5 → 3) that never reaches the root; correct one of them",
        ),
    ],
)
def test_heads_that_are_no_tree_are_named_by_their_line(put, heads, message):
    assert_says(f"a.conllu:{message}", put("a.conllu", with_heads(*heads)))


# --- two columns ---


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_two_columns_are_parted_by_a_tab_or_by_blanks(put, packed):
    wanted = [TaggedSentence(("10 000", "cats"), ("NUM", "NOUN")), TaggedSentence(("#",), ("SYM",))]
    assert list(read_tagged(put(f"a.tsv{packed}", "10 000\tNUM\ncats   NOUN\n\n\n#\tSYM"))) == wanted
    assert write_columns(wanted, f"b.txt{packed}") == 2
    assert list(read_tagged(f"b.txt{packed}")) == wanted


def test_another_number_of_columns_is_named_with_its_line(put):
    remedy = "a line is a word, a tab or spaces, and its tag"
    assert_says(f"a.tsv:2: 3 columns; {remedy}", put("a.tsv", "a X\na X Y\n"))
    assert_says(f"a.txt:1: 1 column; {remedy}", put("a.txt", "alone\n"))
    assert_says("b.tsv:1: '' cannot be a word; it is not empty and has no tab or line end", put("b.tsv", "\tX\n"))


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r\0\ufeff"), min_size=1),
                st.sampled_from(["NOUN", "_", "名"]),
            ),
            min_size=1,
        ),
        max_size=3,
    )
)
def test_any_words_come_back_from_both_kinds_of_file(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("any")
    sentences = [TaggedSentence(tuple(word for word, _ in row), tuple(tag for _, tag in row)) for row in rows]
    write_columns(sentences, folder / "a.tsv")
    write_conllu(sentences, folder / "a.conllu")
    assert list(read_tagged(folder / "a.tsv")) == sentences
    assert [one.words for one in read_tagged(folder / "a.conllu")] == [one.words for one in sentences]


# --- what cannot be ---


def test_the_ending_says_how_a_file_is_laid_out(put):
    assert_says("a.csv: tagged words end in .conllu, .tsv or .txt, not '.csv'; rename the file", put("a.csv", ""))
    with pytest.raises(ValueError, match=r"a\.conllu: no such file; but there is a\.conllu\.xz"):
        read_tagged(put("a.conllu.xz", CONLLU).removesuffix(".xz"))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((("a", "b"), ("X",)), "2 and 1 words, tags and governors; every word has one of each"),
        ((("a",), ("X",), (0, 1)), "1 and 1 and 2 words, tags and governors; every word has one of each"),
        (((), ()), "word 1: missing; a sentence has at least one word"),
        ((("a", "b\tc"), ("X", "Y")), r"word 2: 'b\\tc' cannot be a word"),
        ((("a", "b"), ("X", "")), "word 2: '' cannot be a tag"),
        ((("a", "b"), ("X", "Y"), (0, 0)), "word 2: a second root, after word 1"),
        ((("a",), ("X",), None, ("ours",)), "'ours' is no comment; a comment is one line that begins with #"),
    ],
)
def test_a_sentence_that_could_not_be_written_cannot_be_made(parts, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        TaggedSentence(*parts)


def test_lines_that_tell_of_other_words_are_not_written_and_nothing_is_left(put):
    (sentence,) = read_conllu(put("a.conllu", with_heads(0, 1)))
    other = TaggedSentence(("w", "v"), sentence.tags, sentence.governors, lines=sentence.lines)
    with pytest.raises(ValueError, match=r"^sentence 2: its lines have other words or governors; leave out `lines`"):
        write_conllu([sentence, other], "b.conllu")
    with pytest.raises(ValueError, match=r"^sentence 1: a NUL character"):
        write_columns([TaggedSentence(("\0",), ("X",))], "b.tsv")
    assert os.listdir() == ["a.conllu"]


@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="REGARD_DATA names no folder of known corpora")
def test_the_real_treebank_is_written_back_to_the_byte(tmp_path):
    path = corpus_path("ud_english_ewt", "valid", Path(os.environ["REGARD_DATA"]))
    sentences = list(read_tagged(path))
    assert write_conllu(sentences, tmp_path / "a.conllu") == 2001
    assert sha256_digest(tmp_path / "a.conllu") == sha256_digest(path)
    assert sum(len(one.words) for one in sentences) == 25_147
