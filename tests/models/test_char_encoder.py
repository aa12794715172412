"""Character encoder: padding changes nothing, and the same word has the same vector everywhere."""

import pytest
import torch
from torch.testing import assert_close

from regard.models.encoder import CharEncoder

LETTERS = 11


@pytest.fixture
def spelling() -> CharEncoder:
    torch.manual_seed(0)
    return CharEncoder(LETTERS, 6).double()


def test_a_word_has_the_same_vector_alone_and_in_a_batch(spelling):
    alone = spelling(torch.tensor([[[5, 6, 7]]]))
    among = spelling(torch.tensor([[[8, 9, 10, 4, 4], [5, 6, 7, 0, 0]], [[5, 6, 7, 0, 0], [0, 0, 0, 0, 0]]]))
    assert_close(among[0, 1], alone[0, 0])
    assert torch.equal(among[0, 1], among[1, 0])
    assert not torch.allclose(among[0, 0], among[0, 1])


def test_a_word_without_letters_is_nothing(spelling):
    assert not spelling(torch.zeros(1, 2, 3, dtype=torch.long)).any()


def test_the_order_of_letters_counts(spelling):
    one, other = spelling(torch.tensor([[[5, 6, 7], [7, 6, 5]]]))[0]
    assert not torch.allclose(one, other)


def test_it_is_what_two_readers_end_with(spelling):
    """Forwards and backwards, each with the equations of the cell in the open."""
    word = torch.tensor([[5, 6, 7]])
    _, (last,) = spelling.rnn.forward_unrolled(spelling.embedding.embed(word))
    assert_close(spelling(word[None])[0, 0], torch.cat([last[0, 0], last[0, 1]]))


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="a width of 7; make it even"):
        CharEncoder(LETTERS, 7)
