"""Documents fall into sentences and what stands between them, and whatever the text, nothing of it is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.documents import DOCUMENT_FORMATS, Prose, clause_spans, sentence_spans

SENTENCES = [
    ("en", "Mr. Smith paid $3.50. He left at 5 p.m. Then Dr. J. Doe came, etc. All of them!"),
    ("en", "See fig. 3 and No. 5. “Why?” she asked. “No.” He went… and came… Good."),
    ("en", "The U.S. economy (so they say) grew. 3 of 4 agreed. Visit www.a.org. Now!"),
    ("en", "1. It begins with a number. iPhones are small. Nobody knows why."),
    ("fr", "M. Dupont et Mme Martin sont là. « Oui. » Il part à 10 h. Est-ce vrai ? Non !"),
    ("fr", "Il a dit : « Je ne sais pas. »"),
    ("de", "Am 3. Mai kam z. B. Dr. Müller. Er ging 2013. Das ist alles usw. Ende."),
    ("de", "„Komm!“, rief er. „Nein.“ Sie blieb am 1. Platz bzw. davor."),
    ("ja", "今日は。元気です！"),
    ("en", "Your order (no. A-4471/B) was sent. Is it? No. He left. See Smith et al. 2010. Good."),
    ("en", "Monday: 8 a.m. – 6 p.m. Then we go. Open Mon. to Fri. 9 to 5."),
    ("fr", "Voir art. 3, al. 2 du code. Réf. A12. Voilà."),
    ("de", "Ihre Bestellung (Nr. A-4471/B) kam. Siehe Abb. 3, S. 120. Ende."),
]
ENDS = [
    ["Mr. Smith paid $3.50.", "He left at 5 p.m.", "Then Dr. J. Doe came, etc.", "All of them!"],
    ["See fig. 3 and No. 5.", "“Why?” she asked.", "“No.”", "He went… and came…", "Good."],
    ["The U.S. economy (so they say) grew.", "3 of 4 agreed.", "Visit www.a.org.", "Now!"],
    ["1. It begins with a number. iPhones are small.", "Nobody knows why."],
    ["M. Dupont et Mme Martin sont là.", "« Oui. »", "Il part à 10 h.", "Est-ce vrai ?", "Non !"],
    ["Il a dit : « Je ne sais pas. »"],
    ["Am 3. Mai kam z. B. Dr. Müller.", "Er ging 2013.", "Das ist alles usw.", "Ende."],
    ["„Komm!“, rief er.", "„Nein.“", "Sie blieb am 1. Platz bzw. davor."],
    ["今日は。", "元気です！"],
    ["Your order (no. A-4471/B) was sent.", "Is it?", "No.", "He left.", "See Smith et al. 2010.", "Good."],
    ["Monday: 8 a.m. – 6 p.m.", "Then we go.", "Open Mon. to Fri. 9 to 5."],
    ["Voir art. 3, al. 2 du code.", "Réf. A12.", "Voilà."],
    ["Ihre Bestellung (Nr. A-4471/B) kam.", "Siehe Abb. 3, S. 120.", "Ende."],
]


@pytest.mark.parametrize(("given_text", "sentences"), list(zip(SENTENCES, ENDS, strict=True)))
def test_sentences_end_where_a_reader_says(given_text, sentences):
    language, text = given_text
    assert [text[start:end] for start, end in sentence_spans(text, language)] == sentences


MARKS = (
    "** * _ ` `` [ ](u) ] ![ <b> </b> <br> <p> &amp; &eacute; \\* ~~ $$ <!-- --> [^1] <script> </script> {\\an8} <i>"
)
STARTS = "> |- |1. |# ||\n| --- |\n|```\n|1\n00:00:01,000 --> 00:00:02,000\n|---\n|[^1]: |    "
PIECES = [*MARKS.split(), *STARTS.split("|"), "\n", "\n\n", "\r\n", "\u2028", "\t", "   ", "a", "Bc. ", "3", "…", ": "]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=25).map("".join)


def raw(parts) -> str:
    return "".join(part if isinstance(part, str) else part.raw for part in parts)


@pytest.mark.parametrize("name", DOCUMENT_FORMATS)
@given(text=TEXTS)
def test_parts_and_their_sentences_are_the_text_again(name, text):
    parts = list(DOCUMENT_FORMATS[name].parse(text))
    assert raw(parts) == text
    for part in parts:
        if isinstance(part, Prose):
            sentences = part.sentences()
            assert raw(sentences) == part.raw
            assert all(one.text.strip() for one in sentences if isinstance(one, Prose))


@given(text=st.text() | TEXTS, language=st.sampled_from(["en", "fr", "de", "fi"]), length=st.integers(1, 9))
def test_only_white_space_lies_between_sentences_and_between_clauses(text, language, length):
    for spans in (sentence_spans(text, language), clause_spans(text, lambda clause: len(clause) <= length)):
        edges = [0, *(edge for span in spans for edge in span), len(text)]
        assert edges == sorted(edges)
        assert all(not text[start:end].strip() for start, end in zip(edges[::2], edges[1::2], strict=True))
        assert all(text[start:end].strip() == text[start:end] != "" for start, end in spans)


@given(words=st.lists(st.sampled_from(["aa", "bbb,", "and", "cccc;", "d"]), min_size=1), most=st.integers(1, 9))
def test_clauses_fit_and_break_no_word(words, most):
    text = " ".join(words)
    clauses = [text[start:end] for start, end in clause_spans(text, lambda clause: len(clause.split()) <= most)]
    assert " ".join(clauses) == text
    assert all(len(clause.split()) <= most for clause in clauses)


def test_a_long_sentence_breaks_where_a_reader_would():
    text = "we came, we saw what there was to see, and because it was late we went home; nobody spoke"
    spans = clause_spans(text, lambda clause: len(clause.split()) <= 9)
    assert [text[start:end] for start, end in spans] == [
        "we came, we saw what there was to see,",
        "and because it was late we went home;",
        "nobody spoke",
    ]
    assert clause_spans("x" * 50, lambda clause: len(clause) < 9) == [(0, 50)]


PROSE = {  # of each format, what is read of it
    "text": (
        "Dear Mr. X,\n\n- one\ta 2nd column\n(a) two\nthe cat sleeps\nthe dog\n\n"
        "A paragraph that an editor has broken at a width of about sixty\ncharacters goes on here. And ends.\n",
        "Dear Mr. X,|one|a 2nd column|two|the cat sleeps|the dog|"
        "A paragraph that an editor has broken at a width of about sixty characters goes on here.|And ends.",
    ),
    "markdown": (
        "---\ntitle: no\n---\n# A *title* #\n\n1. [ ] an item\n   of two lines\n\n> said\n> twice\n\n"
        "```sh\nno = 1\n```\n\n    no code\n\n| a | b `\\` |\n"
        "| --- | --- |\n| c | [d](no) |\n\nText with `x y`, a [link](no 'no') <br> and\n"
        "![no](no) end  \nhard.\n\n[no]: no\n\n<!-- no\nno -->\n<pre>\nno\n</pre>\n\nLast\n====\n",
        "A title|an item of two lines|said twice|a|b \\|c|d|Text with x y, a link|and|end|hard.|Last",
    ),
    "srt": (
        "1\n00:00:01,000 --> 00:00:02,000\nHello, my\nold <i>friend</i>\n\n2\n00:00:02,000 --> 00:00:03,000\n"
        "of mine. So\n\n3\n00:00:04,000 --> 00:00:05,000\n- You?\n- Yes, {\\an8}you.\n",
        "Hello, my old friend of mine.|So|You?|Yes,|you.",
    ),
    "html": (
        "<!DOCTYPE html><title>T</title><style>no</style>\n<p>One <b>big</b>\n  word. &Eacute;t&eacute;&nbsp;!</p>"
        "<pre>no</pre><li><a href='no'>link</a>.<!-- no --><img alt='no'>",
        "T|One big word.|Été !|link",
    ),
}


@pytest.mark.parametrize("name", PROSE)
def test_what_is_read_of_a_document(name):
    text, expected = PROSE[name]
    prose = [part for part in DOCUMENT_FORMATS[name].parse(text) if isinstance(part, Prose)]
    sentences = [one.text for part in prose for one in part.sentences() if isinstance(one, Prose)]
    assert sentences == expected.split("|")


def test_a_reference_behind_a_sentence_is_none_of_its_words():
    parts = list(DOCUMENT_FORMATS["markdown"].parse("It is known.[^1] So is this[^2] now."))
    assert [one if isinstance(one, str) else one.text for one in parts] == [
        "It is known.",
        "[^1]",
        " ",
        "So is this[^2] now.",
    ]


def test_only_entities_that_no_language_writes_otherwise_must_be_in_a_translation():
    (prose,) = DOCUMENT_FORMATS["html"].parse("it&rsquo;s &eacute; &ndash; a &lt; b &amp; c &copy;&nbsp;x")
    assert isinstance(prose, Prose)
    assert [prose.text[one.start : one.end] for one in prose.protected if one.required] == ["<", "&", "©"]


def test_sentences_that_share_a_mark_are_one_unless_it_holds_each_of_them():
    shared, each = (
        prose
        for text in ("Do **this. And that** now.", "**Do this. And that.** Now.")
        for prose in DOCUMENT_FORMATS["markdown"].parse(text)
        if isinstance(prose, Prose)
    )
    assert shared.sentences() == [shared]
    assert [one if isinstance(one, str) else one.text for one in each.sentences()] == (
        ["**", "Do this.", " ", "And that.", "**", " ", "Now."]
    )


def test_lines_without_an_end_are_not_taken_for_a_paragraph():
    """A file of one sentence a line, as long as they may be, stays one sentence a line."""
    lines = ["the black cat ate the mouse that was in the garden yesterday", "a dog sleeps", "the dog " * 12, "two."]
    parts = DOCUMENT_FORMATS["text"].parse("\n".join(lines))
    assert [part.text for part in parts if isinstance(part, Prose)] == [line.strip() for line in lines]
