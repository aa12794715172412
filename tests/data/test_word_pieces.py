"""Words become pieces and come back: as many as there were, whatever a tokeniser makes of them."""

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.position_variants import DependencyTree
from regard.data import UNK, CharTokenizer, SubwordTokenizer, TextNormalizer, Tokenizer, WordTokenizer
from regard.data.labelled import WordPieces, encode_words
from regard.data.tokenizers.base import ByteTokenizer

TEXTS = ["the black cat ate the mouse", "the light box stood by the lamp", "light, lighter, lightest"]
EVERY = ["words", "characters", "bytes", "bpe", "unigram"]
EMPTYING = TextNormalizer(squeeze=True, lower=True, form="NFKC", language="en")


@cache
def trained() -> dict[str, Tokenizer]:
    return {
        "words": WordTokenizer.train(TEXTS),
        "characters": CharTokenizer.train(TEXTS),
        "bytes": ByteTokenizer(),
        "bpe": SubwordTokenizer.bpe(TEXTS, size=307),
        "unigram": SubwordTokenizer.unigram(TEXTS, size=293),
    }


@cache
def normalising() -> dict[str, Tokenizer]:
    return {
        "words": WordTokenizer.train(TEXTS, normalizer=EMPTYING),
        "characters": CharTokenizer.train(TEXTS, normalizer=EMPTYING),
        "bytes": ByteTokenizer(EMPTYING),
        "bpe": SubwordTokenizer.bpe(TEXTS, size=307, normalizer=EMPTYING),
        "unigram": SubwordTokenizer.unigram(TEXTS, size=293, normalizer=EMPTYING),
    }


@pytest.mark.parametrize("name", EVERY)
def test_ordinary_words_give_the_ids_of_their_sentence(name):
    tokenizer = trained()[name]
    words = ["the", "lightest", "mouse", "ate", "17", "lamps", "!"]
    pieces = encode_words(tokenizer, words)
    assert pieces.ids == tokenizer.encode(" ".join(words))
    assert pieces.word_ids == tokenizer.word_ids(" ".join(words))


@pytest.mark.parametrize("name", EVERY)
@given(words=st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_every_word_has_a_piece_whatever_it_is_made_of(name, words):
    for tokenizer in (trained()[name], normalising()[name]):
        pieces = encode_words(tokenizer, words)
        assert len(pieces.first_indices) == len(words)
        assert all(stop > start for start, stop in pieces.spans)
        assert sorted(set(pieces.word_ids)) == list(range(len(words)))
        assert len(pieces.word_ids) == len(pieces.ids)
        assert pieces.per_word(pieces.word_ids) == list(range(len(words)))
        assert pieces.per_word(range(len(pieces.ids))) == pieces.first_indices


@pytest.mark.parametrize("name", EVERY[1:])
def test_the_pieces_of_a_word_spell_it(name):
    tokenizer, words = trained()[name], ["light", "10 000", "日本", "!"]
    pieces = encode_words(tokenizer, words)
    assert [tokenizer.decode(pieces.ids[start:stop]).strip() for start, stop in pieces.spans] == words


@pytest.mark.parametrize("name", EVERY)
def test_an_unknown_piece_stands_for_a_word_that_vanishes(name):
    tokenizer = normalising()[name]
    pieces = encode_words(tokenizer, ["cat", " ", "mouse"])
    start, stop = pieces.spans[1]
    assert pieces.ids[stop - 1] == UNK
    assert pieces.ids[:start] == tokenizer.encode("cat")
    assert tokenizer.encode("mouse") == pieces.ids[-len(tokenizer.encode("mouse")) :]


def test_characters_on_paper():
    tokenizer = CharTokenizer("abc ")
    a, b, c, blank = (tokenizer.encode(one)[0] for one in "abc ")
    ids, firsts = encode_words(tokenizer, ["ab", "c", "ba"])
    assert ids == [a, b, blank, c, blank, b, a]
    assert firsts == [0, 2, 4]
    assert WordPieces(ids, firsts).spans == [(0, 2), (2, 4), (4, 7)]
    assert WordPieces(ids, firsts).word_ids == [0, 0, 1, 1, 2, 2, 2]


def test_no_words_are_no_pieces():
    assert encode_words(trained()["bpe"], []) == ([], [])


def test_a_tree_of_words_becomes_a_tree_of_pieces():
    # the (1) mouse (2: mou, se) ran (3: r, a, n), with heads 2, 3, 0
    pieces = WordPieces([11, 12, 13, 14, 15, 16], [0, 1, 3])
    heads = pieces.governors([2, 3, 0])
    assert heads == [2, 4, 2, 0, 4, 4]
    assert DependencyTree.from_governors(torch.tensor([heads])).depth().tolist() == [[2, 1, 2, 0, 1, 1]]
    assert WordPieces([11, 12, 13], [0, 1, 2]).governors([2, 3, 0]) == [2, 3, 0]


def test_numbers_that_do_not_match_are_refused():
    pieces = WordPieces([11, 12, 13], [0, 1])
    with pytest.raises(ValueError, match="2 values for 3 pieces; every piece has one"):
        pieces.per_word("ab")
    with pytest.raises(ValueError, match="3 governors for 2 words; every word has one"):
        pieces.governors([0, 1, 1])
    with pytest.raises(ValueError, match="a list, not the one string 'the cat'; split it first"):
        encode_words(trained()["words"], "the cat")
