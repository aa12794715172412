"""TF-IDF and learned weights: documents worked by hand."""

from math import log, sqrt
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot
from torch.testing import assert_close

from regard.layers.pooling import MeanPooling, TokenWeightPooling
from regard.models.baselines import BagOfWordsClassifier, DocumentFrequencies, TfIdfPooling
from tests.recorded import call_recorded

# 1 = the, 2 = cat, 3 = mouse, 4 = sleeps, 5 is in no document
DOCUMENTS = [[1, 2, 4], [1, 3, 1, 3], [1, 2]]
SIZE = 6
EXACT: Any = {"rtol": 0.0, "atol": 1e-10}


def batch(documents):
    lengths = torch.tensor([len(document) for document in documents])
    tokens = torch.zeros(len(documents), int(lengths.max()), dtype=torch.long)
    for n, document in enumerate(documents):
        tokens[n, : len(document)] = torch.tensor(document)
    return tokens, lengths


def vectors(static, tokens, lengths):
    """Document vectors, which the classifier never forms."""
    weights = static.weights(tokens, lengths)
    return (weights[..., None] * one_hot(tokens, SIZE)).sum(1)


def test_idf_on_paper():
    """Three documents: all have the, two have cat, one each mouse and sleeps."""
    counted = DocumentFrequencies.of(DOCUMENTS, SIZE)
    assert counted.documents == 3
    assert counted.containing.tolist() == [0, 3, 2, 1, 1, 0]
    assert_close(counted.idf(), torch.tensor([0.0, 0.0, CAT, RARE, RARE, 0.0]))


CAT, RARE = log(3 / 2), log(3)  # the IDF of cat; of mouse and of sleeps
LENGTH = sqrt(CAT**2 + RARE**2)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("count", [[0, 0, CAT, 0, RARE, 0], [0, 0, 0, 2 * RARE, 0, 0], [0, 0, CAT, 0, 0, 0]]),
        ("share", [[0, 0, CAT / 3, 0, RARE / 3, 0], [0, 0, 0, 2 * RARE / 4, 0, 0], [0, 0, CAT / 2, 0, 0, 0]]),
        ("unit", [[0, 0, CAT / LENGTH, 0, RARE / LENGTH, 0], [0, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0]]),
    ],
)
def test_documents_on_paper(scale, expected):
    """mouse occurs twice in the second document: its two occurrences share TF × IDF = 2 log 3 evenly."""
    found = vectors(TfIdfPooling(DocumentFrequencies.of(DOCUMENTS, SIZE).idf(), scale=scale), *batch(DOCUMENTS))
    assert_close(found, torch.tensor(expected, dtype=torch.float))


STATIC = {
    **{scale: lambda scale=scale: TfIdfPooling(torch.rand(SIZE), scale=scale) for scale in ("count", "share", "unit")},
    "learned": lambda: TokenWeightPooling(SIZE),
    "mean": MeanPooling,
}


def classifier(name):
    model = BagOfWordsClassifier(SIZE, STATIC[name](), labels=3).double()
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    return model


@pytest.mark.parametrize("name", STATIC)
def test_the_classifier_is_linear_in_the_vector_it_never_forms(name):
    model, (tokens, lengths) = classifier(name), batch(DOCUMENTS)
    expected = vectors(model.weigh, tokens, lengths) @ model.V + model.c
    assert_close(model(tokens, lengths), expected)
    assert_close(model.token_contributions(tokens, lengths).sum(1) + model.c, expected)


@pytest.mark.parametrize("name", STATIC)
def test_batch_and_padding_change_nothing(name):
    model, (tokens, lengths) = classifier(name), batch(DOCUMENTS)
    together, record = call_recorded(model, tokens, lengths)
    assert_close(model(tokens, lengths), together, rtol=0, atol=0)
    assert record.weights("weigh").shape == (3, 1, 1, 4)
    for n, document in enumerate(DOCUMENTS):
        assert_close(model(torch.tensor([document]), lengths[n : n + 1])[0], together[n], **EXACT)
    filled = torch.cat((tokens, torch.ones(3, 2).long()), 1)
    filled[2, 2:] = 2  # even by words that the document has
    assert_close(model(filled, lengths), together, **EXACT)


def test_learned_weights_find_the_word_that_decides():
    """The label is told by one word, 2 or 3, among others drawn at random."""
    others = torch.randint(4, 30, (200, 8))
    label = torch.randint(0, 2, (200,))
    others[torch.arange(200), torch.randint(0, 8, (200,))] = label + 2
    lengths = torch.full((200,), 8)
    model = BagOfWordsClassifier(30, TokenWeightPooling(30), labels=2)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(60):
        optimiser.zero_grad()
        cross_entropy(model(others, lengths), label).backward()
        optimiser.step()
    assert (model(others, lengths).argmax(-1) == label).float().mean() > 0.99
    assert isinstance(model.weigh, TokenWeightPooling)
    assert model.weigh.importance[2:4].min() > model.weigh.importance[4:].max()


def test_the_idf_travels_with_the_weights():
    model = BagOfWordsClassifier(SIZE, TfIdfPooling(DocumentFrequencies.of(DOCUMENTS, SIZE).idf()), labels=2)
    assert_close(model.state_dict()["weigh.idf"], DocumentFrequencies.of(DOCUMENTS, SIZE).idf())


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="document 2 has token 6, but the vocabulary holds 0 to 5"):
        DocumentFrequencies.of([[1], [6]], SIZE)
    with pytest.raises(ValueError, match="no document to count"):
        DocumentFrequencies.of([], SIZE)
    with pytest.raises(ValueError, match="no scale is called 'bm25'; there are count, share, unit"):
        TfIdfPooling(torch.zeros(3), scale="bm25")
    with pytest.raises(ValueError, match="2 labels or more, not 1"):
        BagOfWordsClassifier(SIZE, MeanPooling(), labels=1)
