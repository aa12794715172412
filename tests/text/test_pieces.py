"""Words become pieces and come back: as many as there were, whatever a tokeniser makes of them."""

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.tree import Tree
from regard.text import UNK, Characters, Normal, Subwords, Tokeniser, Words
from regard.text.bytewise import Bytes
from regard.text.pieces import Pieces, first_pieces

TEXTS = ["the black cat ate the mouse", "the light box stood by the lamp", "light, lighter, lightest"]
EVERY = ["words", "characters", "bytes", "bpe", "unigram"]
EMPTYING = Normal(squeeze=True, lower=True, form="NFKC", language="en")


@cache
def trained() -> dict[str, Tokeniser]:
    return {
        "words": Words.train(TEXTS),
        "characters": Characters.train(TEXTS),
        "bytes": Bytes(),
        "bpe": Subwords.bpe(TEXTS, size=307),
        "unigram": Subwords.unigram(TEXTS, size=293),
    }


@cache
def normalising() -> dict[str, Tokeniser]:
    return {
        "words": Words.train(TEXTS, normal=EMPTYING),
        "characters": Characters.train(TEXTS, normal=EMPTYING),
        "bytes": Bytes(EMPTYING),
        "bpe": Subwords.bpe(TEXTS, size=307, normal=EMPTYING),
        "unigram": Subwords.unigram(TEXTS, size=293, normal=EMPTYING),
    }


@pytest.mark.parametrize("name", EVERY)
def test_ordinary_words_give_the_ids_of_their_sentence(name):
    tokeniser = trained()[name]
    words = ["the", "lightest", "mouse", "ate", "17", "lamps", "!"]
    pieces = first_pieces(tokeniser, words)
    assert pieces.ids == tokeniser.encode(" ".join(words))
    assert pieces.word_of == tokeniser.word_of(" ".join(words))


@pytest.mark.parametrize("name", EVERY)
@given(words=st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_every_word_has_a_piece_whatever_it_is_made_of(name, words):
    for tokeniser in (trained()[name], normalising()[name]):
        pieces = first_pieces(tokeniser, words)
        assert len(pieces.firsts) == len(words)
        assert all(stop > start for start, stop in pieces.spans)
        assert sorted(set(pieces.word_of)) == list(range(len(words)))
        assert len(pieces.word_of) == len(pieces.ids)
        assert pieces.per_word(pieces.word_of) == list(range(len(words)))
        assert pieces.per_word(range(len(pieces.ids))) == pieces.firsts


@pytest.mark.parametrize("name", EVERY[1:])
def test_the_pieces_of_a_word_spell_it(name):
    tokeniser, words = trained()[name], ["light", "10 000", "日本", "!"]
    pieces = first_pieces(tokeniser, words)
    assert [tokeniser.decode(pieces.ids[start:stop]).strip() for start, stop in pieces.spans] == words


@pytest.mark.parametrize("name", EVERY)
def test_an_unknown_piece_stands_for_a_word_that_vanishes(name):
    tokeniser = normalising()[name]
    pieces = first_pieces(tokeniser, ["cat", " ", "mouse"])
    start, stop = pieces.spans[1]
    assert pieces.ids[stop - 1] == UNK
    assert pieces.ids[:start] == tokeniser.encode("cat")
    assert tokeniser.encode("mouse") == pieces.ids[-len(tokeniser.encode("mouse")) :]


def test_characters_on_paper():
    tokeniser = Characters("abc ")
    a, b, c, blank = (tokeniser.encode(one)[0] for one in "abc ")
    ids, firsts = first_pieces(tokeniser, ["ab", "c", "ba"])
    assert ids == [a, b, blank, c, blank, b, a]
    assert firsts == [0, 2, 4]
    assert Pieces(ids, firsts).spans == [(0, 2), (2, 4), (4, 7)]
    assert Pieces(ids, firsts).word_of == [0, 0, 1, 1, 2, 2, 2]


def test_no_words_are_no_pieces():
    assert first_pieces(trained()["bpe"], []) == ([], [])


def test_a_tree_of_words_becomes_a_tree_of_pieces():
    # the (1) mouse (2: mou, se) ran (3: r, a, n), with heads 2, 3, 0
    pieces = Pieces([11, 12, 13, 14, 15, 16], [0, 1, 3])
    heads = pieces.heads([2, 3, 0])
    assert heads == [2, 4, 2, 0, 4, 4]
    assert Tree.of_heads(torch.tensor([heads])).depth().tolist() == [[2, 1, 2, 0, 1, 1]]
    assert Pieces([11, 12, 13], [0, 1, 2]).heads([2, 3, 0]) == [2, 3, 0]


def test_numbers_that_do_not_match_are_refused():
    pieces = Pieces([11, 12, 13], [0, 1])
    with pytest.raises(ValueError, match="2 values for 3 pieces; every piece has one"):
        pieces.per_word("ab")
    with pytest.raises(ValueError, match="3 heads for 2 words; every word has one"):
        pieces.heads([0, 1, 1])
    with pytest.raises(ValueError, match="a list, not the one string 'the cat'; split it first"):
        first_pieces(trained()["words"], "the cat")
