"""Words to terms: pairs and triples, on paper and for all texts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizers.subwords import Ngrams

TEXTS = st.lists(st.integers(1, 96), max_size=13)


def test_words_come_first_then_pairs_then_triples():
    ngrams = Ngrams(97, longest=3, buckets=1009)
    terms = ngrams.terms([5, 6, 5, 6]).tolist()
    assert terms[:4] == [5, 6, 5, 6]
    first, second, third = terms[4:7]
    assert first == third != second  # "5 6" occurs twice, "6 5" once
    assert len(terms) == 4 + 3 + 2
    assert all(97 <= term < 97 + 1009 for term in terms[4:])
    assert [list(place) for place in ngrams.word_indices(4)][4:] == [[0, 1], [1, 2], [2, 3], [0, 1, 2], [1, 2, 3]]


@given(TEXTS, st.integers(1, 4))
def test_every_term_has_word_indices_and_an_id(text, longest):
    ngrams = Ngrams(97, longest=longest, buckets=53)
    terms = ngrams.terms(text)
    assert len(terms) == len(ngrams.word_indices(len(text)))
    assert terms.dtype == np.int64
    assert all(0 < term < ngrams.size for term in terms)


@given(TEXTS, TEXTS)
def test_a_term_is_the_same_in_every_text(one, other):
    """Those of a text are among those of any longer text that holds it."""
    ngrams = Ngrams(97, longest=3)
    assert set(ngrams.terms(one).tolist()) <= set(ngrams.terms([*other, *one]).tolist())


def test_words_alone_are_left_as_they_are():
    assert Ngrams(97).size == 97
    assert Ngrams(97).terms([3, 1, 3]).tolist() == [3, 1, 3]


def test_order_matters_and_few_pairs_share_a_bucket():
    ngrams = Ngrams(97, longest=2, buckets=2**20)
    pairs = {ngrams.terms([a, b])[2] for a in range(1, 60) for b in range(1, 60)}
    assert len(pairs) > 0.99 * 59 * 59


@pytest.mark.parametrize("name", ["words", "longest", "buckets"])
def test_nothing_cannot_be_counted(name):
    with pytest.raises(ValueError, match=f"{name} = 0 should be at least 1"):
        Ngrams(**{"words": 5, "longest": 2, "buckets": 7, name: 0})
