"""German agreement over many sentences, checked by scanning the words with the lexicon as the only oracle."""

from collections import Counter
from functools import cache
from itertools import pairwise

from regard.world import World
from regard.world.lexicon import NOUNS


@cache
def drawn_sentences():
    return [World(seed=6, max_length=17).sentence(number) for number in range(2003)]


# Written out by hand: the forms of der and ein by case and by gender (p for plural), melted or not.
ARTICLES = {
    "nominative": {"m": {"der", "ein"}, "f": {"die", "eine"}, "n": {"das", "ein"}, "p": {"die"}},
    "accusative": {"m": {"den", "einen"}, "f": {"die", "eine"}, "n": {"das", "ein"}, "p": {"die"}},
    "dative": {
        "m": {"dem", "einem", "im", "zum"},
        "f": {"der", "einer", "zur"},
        "n": {"dem", "einem", "im", "zum"},
        "p": {"den"},
    },
}


def case_of(sentence, noun):
    """The German case as the English tree shows it; None where another noun governs."""
    head = sentence.governors[noun] - 1
    prepositions = [word for word, at in zip(sentence.words, sentence.governors, strict=True) if at == noun + 1]
    if "without" in prepositions:
        return "accusative"
    if set(prepositions) & {"in", "on", "under", "behind", "beside", "with", "to", "from"}:
        return "dative"
    if sentence.tags[head] not in ("VERB", "ADJ"):
        return None
    return "nominative" if noun < head else "accusative"


def test_articles_agree_with_their_nouns_in_gender_number_and_case():
    seen = Counter()
    for sentence in drawn_sentences():
        rendering = sentence.renderings["de"]
        for index, word in enumerate(sentence.words):
            if word not in ("the", "a", "an"):
                continue
            noun = sentence.governors[index] - 1
            (article,) = [rendering.words[target] for source, target in rendering.alignment if source == index]
            (german,) = [rendering.words[target] for source, target in rendering.alignment if source == noun]
            english, case = sentence.words[noun], case_of(sentence, noun)
            for entry in NOUNS:
                many = english == entry.en[1]
                forms = {entry.de[1], entry.de[1] + "n"} if many else {entry.de[0], entry.de[2]}
                if english in entry.en and german in forms and case is not None:
                    assert article in ARTICLES[case]["p" if many else entry.de_gender], sentence.text("de")
                    seen[case] += 1
    assert min(seen.values()) > 100
    assert len(seen) == 3


def test_in_dem_and_zu_dem_melt():
    texts = [" " + " ".join(sentence.renderings["de"].words) + " " for sentence in drawn_sentences()]
    assert not any(wrong in text for text in texts for wrong in (" in dem ", " zu dem ", " zu der "))
    assert all(any(right in text for text in texts) for right in (" im ", " zum "))


def test_commas_never_meet_nor_end_nor_begin():
    for sentence in drawn_sentences():
        words = sentence.renderings["de"].words
        assert "," not in (words[0], words[-1])
        assert not any(word == follows == "," for word, follows in pairwise(words))


def test_the_verb_stands_last_behind_weil():
    finite = {"ist", "sind", "hat", "haben", "wird", "werden", "war", "waren"}
    seen = 0
    for sentence in drawn_sentences():
        words = sentence.renderings["de"].words
        if "weil" in words and "," not in words[words.index("weil") :]:
            rest = words[words.index("weil") + 1 :]
            assert not finite & set(rest[:-1]), sentence.text("de")
            seen += 1
    assert seen > 50


def test_animals_fress_and_people_ess():
    for sentence in drawn_sentences():
        for ambiguity in sentence.ambiguities:
            if ambiguity.sense.startswith("eat"):
                words = " ".join(sentence.expected_words(ambiguity, "de"))
                assert ("fress" in words or "friss" in words) == (ambiguity.sense == "eat.animal"), sentence.text("de")
