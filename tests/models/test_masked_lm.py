"""Masked language model: a mask that only the neighbours can fill, and two meanings of one word."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from regard.data.tokenizers.base import PAD
from regard.models.config import EncoderConfig
from regard.models.encoder import Encoder, MaskedLMConfig, Occurrences, TokenClassifier, train_masked_lm, train_step

SMALL = EncoderConfig(kind="gru", layers=1, model=11, hidden=14, directions=2, dropout=0.0)
NOUN = [["turn", "off", "the", word, end] for word, end in product(("light", "lamp"), ("now", "please"))]
ADJECTIVE = [["a", "very", word, noun] for word, noun in product(("light", "heavy"), ("box", "bag", "bed"))]


@pytest.fixture(scope="module")
def reader():
    return train_masked_lm((NOUN + ADJECTIVE) * 3, MaskedLMConfig(encoder=SMALL, steps=120, batch=16, rate=0.02))


def test_light_has_a_vector_for_each_meaning(reader):
    """The nearest other occurrence of light is one that means the same."""
    sentences = NOUN + ADJECTIVE
    seen = reader.read(sentences)
    for one, other in seen.nearest_same_word("light"):
        assert seen.words[one] == seen.words[other] == "light"
        assert (seen.positions[one][0] < len(NOUN)) == (seen.positions[other][0] < len(NOUN))


def test_padding_is_never_masked():
    """What is never the answer becomes less likely at once: its bias falls by its probability."""
    model, lengths = TokenClassifier(Encoder(SMALL, 11), labels=11), (1, 9)
    before = model.output.bias[PAD].item()
    train_step(model, [[5] * n for n in lengths], 0.9, torch.optim.SGD(model.parameters(), lr=1.0), torch.Generator())
    assert model.output.bias[PAD].item() < before


def test_every_word_of_every_sentence_has_its_vector(reader):
    seen = reader.read(NOUN + ADJECTIVE)
    assert seen.vectors.shape == (sum(map(len, NOUN + ADJECTIVE)), 14)
    assert seen.positions[5] == (1, 0)
    assert seen.of("box") == [23, 35]
    assert [seen.positions[row] for row in seen.of("box")] == [(4, 3), (7, 3)]


def test_a_sentence_is_encoded_alike_in_any_batch(reader):
    alone, among = reader.read([ADJECTIVE[2]]), reader.read(NOUN + ADJECTIVE)
    start = among.positions.index((len(NOUN) + 2, 0))
    assert_close(among.vectors[start : start + 4], alone.vectors, rtol=1e-5, atol=1e-6)


def test_the_same_sentences_give_the_same_reader():
    torch.manual_seed(1)
    how = MaskedLMConfig(encoder=SMALL, steps=3, batch=5)
    one = train_masked_lm(NOUN, how).read(NOUN)
    torch.manual_seed(2)
    other = train_masked_lm(NOUN, how).read(NOUN)
    assert torch.equal(one.vectors, other.vectors)


def test_neighbours_on_paper():
    """b points the same way as a, c stands at a right angle; a itself and d, which is unknown, are no neighbours."""
    vectors = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [3.0, 4.0], [0.0, 1.0], [1.0, 0.0]])
    places = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))
    seen = Occurrences(("a", "b", "c", "a", "b", "d"), places, vectors, frozenset("abc"))
    assert seen.neighbours(0, 5) == [("b", 1.0), ("c", 0.0)]
    near = dict(seen.neighbours(3, 1))
    assert near.keys() == {"c"}
    assert near["c"] == pytest.approx(0.8)
    assert seen.nearest_same_word("a") == [(0, 3), (3, 0)]


def test_masking_that_is_impossible():
    seen = Occurrences(("a", "b"), ((0, 0), (0, 1)), torch.eye(2), frozenset("ab"))
    with pytest.raises(ValueError, match="'c' occurs in none of these sentences"):
        seen.of("c")
    with pytest.raises(ValueError, match="'a' occurs only once"):
        seen.nearest_same_word("a")
    with pytest.raises(ValueError, match="mask_rate = 1 should lie between 0 and 1"):
        MaskedLMConfig(mask_rate=1)
    with pytest.raises(ValueError, match="steps = 0 should be at least 1"):
        MaskedLMConfig(steps=0)
