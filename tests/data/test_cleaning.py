"""Cleaning: every rule has an example, hashes make a set, and a language is known by its n-grams."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import SentencePair
from regard.data.cleaning import (
    KEEP_ALL,
    RULES,
    CleaningReport,
    CleaningRules,
    HashSet,
    LanguageIdentifier,
    clean_pairs,
    hash_key,
    pair_objections,
)
from regard.world import World, translation_pairs

EXAMPLES = {
    "empty": ("the cat", " "),
    "test overlap": ("Where is it?", "Où se trouve-t-il ?"),
    "duplicate": ("The cat sleeps!", "le chat dort"),
    "short": ("cat", "un chat"),
    "long": ("a b c d e f g h i", "un deux"),
    "ratio": ("the cat", "le chat " * 9),
    "identical": ("Tom et Anne", "Tom et Anne"),
    "letters": ("1 2 3 4 5 a", "un deux trois"),
}


@pytest.fixture(scope="module")
def identifier():
    pairs = list(translation_pairs(World(), "fr", 400))
    return LanguageIdentifier.train({"en": [one for one, _ in pairs], "fr": [other for _, other in pairs]})


@pytest.mark.parametrize("rule", EXAMPLES)
def test_each_rule_removes_its_example(rule):
    rules = CleaningRules(min_words=2, max_words=8 if rule == "long" else 200)
    test = HashSet().update(["where is it", "ou se trouve"])
    pairs = [SentencePair("the cat sleeps", "le chat dort"), SentencePair(*EXAMPLES[rule])]
    assert [why for _, why in clean_pairs(pairs, rules, test=test)] == [None, rule]
    assert set(EXAMPLES) | {"language"} == set(RULES)


def test_rules_that_keep_all_remove_empty_sides_alone():
    found = [why for _, why in clean_pairs([SentencePair(*one) for one in EXAMPLES.values()] * 2, KEEP_ALL)]
    assert found == (["empty"] + [None] * (len(EXAMPLES) - 1)) * 2


def test_a_test_sentence_is_removed_from_either_side_whatever_its_case():
    test = HashSet().update(["The CAT sleeps."])
    pairs = [("the cat, sleeps", "x"), ("x", "the cat sleeps"), ("the cats sleep", "x")]
    found = [why for _, why in clean_pairs([SentencePair(*one) for one in pairs], CleaningRules(), test=test)]
    assert found == ["test overlap", "test overlap", None]


@given(st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=20))
def test_a_hash_set_is_a_set(batches):
    ours, theirs = HashSet(), set[int]()
    for batch in batches:
        wanted = [one not in theirs and one not in batch[:at] for at, one in enumerate(batch)]
        assert ours.add(np.array(batch, np.uint64)).tolist() == wanted
        theirs.update(batch)
        assert len(ours) == len(theirs)
        assert all(len(one) >= 2 * len(other) for one, other in zip(ours.runs, ours.runs[1:], strict=False))
    assert ours.contains(np.arange(41, dtype=np.uint64)).tolist() == [one in theirs for one in range(41)]


def test_hashes_are_the_same_in_every_process():
    assert hash_key("Le chat !") == hash_key("le  chat") == 11392207448388097322
    assert hash_key("a b", "c") != hash_key("a", "bc")


def test_a_language_is_known_by_its_ngrams(identifier):
    unseen = list(translation_pairs(World(seed=1), "fr", 100))
    assert identifier.identify([one for one, _ in unseen]).count("en") >= 98
    assert identifier.identify([other for _, other in unseen]).count("fr") >= 98


def test_what_a_text_is_like_does_not_depend_on_the_texts_beside_it(identifier):
    texts = ["the cat sleeps", "le chat", "où", "x"]
    assert np.allclose(identifier.score(texts), np.concatenate([identifier.score([text]) for text in texts]))


def test_pairs_in_the_wrong_language_are_removed_and_short_ones_are_not(identifier):
    right = SentencePair("the small cat sleeps in the garden", "le petit chat dort dans le jardin")
    wrong = SentencePair(right.source, "the old dog sleeps in the small house")
    short = SentencePair("Paul", "Paul .")
    found = pair_objections([right, wrong, right.swapped(), short], CleaningRules(), identifier, ("en", "fr"))
    assert found == [None, "language", "language", None]


def test_reports_add_up_in_the_order_of_the_rules():
    total = CleaningReport(5, {"ratio": 1}) + CleaningReport(4, {"duplicate": 1, "ratio": 1})
    assert total.to_dict() == {"read": 9, "removed": {"duplicate": 1, "ratio": 2}, "kept": 6}
    assert list(total.removed) == ["duplicate", "ratio"]
    assert CleaningReport.from_dict(total.to_dict()) == total


@pytest.mark.parametrize("values", [{"min_words": 0}, {"min_words": 9, "max_words": 8}, {"max_ratio": 0.5}])
def test_rules_that_make_no_sense_are_refused(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        CleaningRules(**values)
