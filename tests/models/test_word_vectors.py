"""Skip-gram vectors: the loss on paper, the pairs by hand, and colours near colours."""

from functools import cache
from math import log

import pytest
import torch
from torch import Generator
from torch.testing import assert_close

from regard.layers.embedding import Embedding
from regard.models.baselines import (
    SkipGram,
    WordVectors,
    context_pairs,
    nearest_rows,
    pair_loss,
    sample_negatives,
    train_vectors,
)
from regard.world.world import World

COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "grey")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "ten")
NAMES = ("Nina", "Oscar", "Emma", "Max", "Anna", "Thomas", "Felix", "Julia", "Simon", "Marie")
SMALL = SkipGram(width=7, window=2, epochs=2, batch=64)


@cache
def sentences(count: int) -> list[tuple[str, ...]]:
    return [World().sentence(n).words for n in range(count)]


def test_the_loss_on_paper():
    """u · v = log 3, so σ = ¾; both drawn words score −log 3 and 0, so σ(−·) is ¾ and ½."""
    v, u = torch.tensor([[1.0, 0.0]]), torch.tensor([[log(3), 5.0]])
    drawn = torch.tensor([[[-log(3), 1.0], [0.0, 7.0]]])
    assert_close(pair_loss(v, u, drawn), torch.tensor([-log(3 / 4) - log(3 / 4) - log(1 / 2)]))


def test_pairs_by_hand():
    """Two sentences, 5 6 7 and 8 9: with a window of one, neighbours; nobody looks into another sentence."""
    ids, of = torch.tensor([5, 6, 7, 8, 9]), torch.tensor([0, 0, 0, 1, 1])
    pairs = {tuple(pair) for pair in context_pairs(ids, of, 1, Generator()).tolist()}
    assert pairs == {(5, 6), (6, 5), (6, 7), (7, 6), (8, 9), (9, 8)}


def test_the_nearest_words_count_most():
    """Of windows from 1 to 2, every place uses 1 and half of them 2."""
    ids = torch.arange(4001)
    pairs = context_pairs(ids, torch.zeros_like(ids), 2, Generator().manual_seed(0))
    apart = (pairs[:, 0] - pairs[:, 1]).abs()
    assert set(apart.tolist()) == {1, 2}
    assert_close((apart == 2).sum() / (apart == 1).sum(), torch.tensor(0.5), rtol=0, atol=0.05)


def test_frequent_words_are_drawn_more_often_but_not_as_often_as_they_occur():
    """Sixteen times as frequent, eight times as often: 16 to the power of 3/4."""
    drawn = sample_negatives(torch.tensor([16.0, 1.0]), 3001, 3, Generator().manual_seed(0))
    assert drawn.shape == (3001, 3)
    assert_close(drawn.float().mean(), torch.tensor(1 / 9), rtol=0, atol=0.015)


def test_the_rate_falls_to_nothing():
    assert [SkipGram(rate=0.5).rate_at(done) for done in (0, 0.5, 1)] == [0.5, 0.25, 0.0]


def test_neighbours_by_hand():
    vectors = WordVectors(("east", "north-east", "north", "west"), torch.tensor([[2.0, 0], [1, 1], [0, 3], [-1, 0]]))
    assert [word for word, _ in vectors.neighbours("east", 3)] == ["north-east", "north", "west"]
    assert_close([cosine for _, cosine in vectors.neighbours("east", 3)], [0.5**0.5, 0.0, -1.0])
    with pytest.raises(ValueError, match="'up' has no vector among these 4"):
        vectors.neighbours("up")
    with pytest.raises(ValueError, match="4 neighbours cannot be found among 4 vectors; ask for 1 to 3"):
        nearest_rows(vectors.vectors, 0, 4)


@pytest.mark.parametrize(("kind", "share"), [(COLOURS, 0.1), (NUMBERS, 0.03), (NAMES, 0.03)])
def test_words_of_a_kind_are_near_each_other(kind, share):
    """Among all the words of the world, the others of its kind stand among the nearest, on the average."""
    vectors = world_vectors()
    ranks = []
    for word in kind:
        order = [other for other, _ in vectors.neighbours(word, len(vectors.words) - 1)]
        ranks += [order.index(other) for other in kind if other != word]
    assert sum(ranks) / len(ranks) < share * len(vectors.words)


@cache
def world_vectors() -> WordVectors:
    return train_vectors(sentences(6000), SkipGram(width=32, window=2, epochs=10, batch=512))


def test_the_same_seed_gives_the_same_vectors_and_another_gives_others():
    once, twice = (train_vectors(sentences(100), SMALL) for _ in range(2))
    assert once.words == twice.words
    assert torch.equal(once.vectors, twice.vectors)
    other = train_vectors(sentences(100), SkipGram(width=7, window=2, epochs=2, batch=64, seed=1))
    assert not torch.equal(once.vectors, other.vectors)


def test_rare_words_have_no_vector():
    vectors = train_vectors([["a", "b", "a"], ["b", "c"]], SkipGram(width=3, min_count=2, epochs=1))
    assert vectors.words == ("a", "b")


def test_vectors_come_back_from_their_file(tmp_path):
    vectors = train_vectors(sentences(50), SMALL)
    vectors.save(tmp_path / "vectors.txt")
    again = WordVectors.load(tmp_path / "vectors.txt")
    assert again.words == vectors.words
    assert torch.equal(again.vectors, vectors.vectors)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cat 1 2\n", "file:1: should say how many"),
        ("2 2\ncat 1 2\ndog 1\n", "file:3: 'dog' has 1 numbers, not 2"),
        ("1 2\ncat 1 x\n", "file:2: 'cat 1 x' should be a word and 2 numbers"),
        ("2 2\ncat 1 2\n", "promises 2 vectors, but there are 1"),
        ("2 2\ncat 1 2\ndog 1 nan\n", "file:3: 'dog' has 'nan' among its numbers; remove the line"),
        ("1 2\ncat -1e39 2\n", "file:2: 'cat' has '-1e39' among its numbers"),
        ("3 1\ncat 1\ndog 2\ncat 3\n", "file:4: 'cat' has a vector in line 2 already; remove one"),
    ],
)
def test_damaged_files_are_named_with_their_line(tmp_path, text, complaint):
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        WordVectors.load(tmp_path / "file")


def test_a_table_starts_from_the_vectors():
    """Known words point where their vectors do, as large as the table's own; unknown ones stay."""
    vectors = WordVectors(("cat", "dog"), torch.tensor([[3.0, 4.0], [0.0, 5.0]]))
    table = Embedding(3, 2)
    before = table.weight.detach().clone()
    assert vectors.initialise(table, ["<pad>", "dog", "cat"]) == 2
    assert torch.equal(table.weight[0], before[0])
    assert_close(table.embed(torch.tensor([[1, 2]]))[0].square().mean(), torch.tensor(1.0))
    assert_close(table.weight[1] / table.weight[1].norm(), torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match="2 words and vectors of width 2 cannot initialise an embedding of"):
        vectors.initialise(table, ["cat", "dog"])


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="window = 0 should be at least 1"):
        SkipGram(window=0)
    with pytest.raises(ValueError, match="1 words occur 1 times or more"):
        train_vectors([["alone", "alone"]])
    with pytest.raises(ValueError, match="'a b' is empty or holds a blank"):
        WordVectors(("a b",), torch.zeros(1, 2)).save("nowhere")
