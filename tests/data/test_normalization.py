"""Sentences are split as the published text is, and come back as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizers.base import TOKENIZED_LANGUAGES, TextNormalizer, word_detokenize, word_tokenize

WORKED = [
    ("en", "The dog's bone, isn't it?", "The dog 's bone , isn 't it ?"),
    ("en", "In the 1990's, or 1990, 1,000 dogs ran...", "In the 1990 's , or 1990 , 1,000 dogs ran ..."),
    ("en", "Mr. Smith met Dr. J. Doe in the U.S. today.", "Mr. Smith met Dr. J. Doe in the U.S. today ."),
    ("en", "A T-shirt (red/blue) at 11:27 costs $5.50.", "A T-shirt ( red / blue ) at 11 : 27 costs $ 5.50 ."),
    ("en", 'He said "go." Then he left.', 'He said " go . " Then he left .'),
    ("en", "the dogs' bones", "the dogs ' bones"),
    ("en", "50% off; e\u0301a 👩‍🚀👍🏽!", "50 % off ; e\u0301a 👩‍🚀 👍🏽 !"),
    ("de", "Wie geht's am 3. Mai, z.B. Dr. Müller?", "Wie geht ' s am 3. Mai , z.B. Dr. Müller ?"),
    ("de", "Er sagt: „Komm!“", "Er sagt : „ Komm ! “"),
    ("fr", "L'homme n'a pas d'arbre aujourd'hui.", "L' homme n' a pas d' arbre aujourd' hui ."),
    ("fr", "Où est-il ? Là : « ici ».", "Où est-il ? Là : « ici » ."),
]


@pytest.mark.parametrize(("language", "text", "apart"), WORKED)
def test_sentences_are_split_as_the_rules_say(language, text, apart):
    assert word_tokenize(text, language) == apart


@pytest.mark.parametrize(("language", "text", "apart"), WORKED)
def test_ordinary_sentences_come_back(language, text, apart):
    # Whether a blank stood between two emoji is not in the split text.
    assert word_detokenize(apart, language) == text.replace("🚀👍", "🚀 👍")


def test_a_capital_tells_where_a_sentence_ends_before_it_becomes_small():
    normal = TextNormalizer(lower=True, language="en")
    assert normal.apply("J. Doe met a dog. It ran, e.g. home.") == "j. doe met a dog . it ran , e.g. home ."


@pytest.mark.parametrize("language", TOKENIZED_LANGUAGES)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_splitting_moves_blanks_and_nothing_else(language, text):
    apart = word_tokenize(text, language)
    assert "".join(apart.split()) == "".join(text.split())
    assert apart == " ".join(apart.split())
    assert "".join(word_detokenize(apart, language).split()) == "".join(text.split())


def test_other_languages_are_refused():
    with pytest.raises(ValueError, match="no tokenization rules for 'xx'; choose from en, de, fr"):
        word_tokenize("a", "xx")
