"""Classifiers built from embeddings, encoder and pooling: which combine, and their initialisation."""

from math import log

import pytest
import torch
from torch.testing import assert_close

from regard.models.baselines import BagOfWordsClassifier, LogRatioPooling
from regard.models.config import EncoderConfig, PoolingConfig, WordEmbeddingConfig
from regard.models.encoder import SequenceClassifier, build_classifier, initialise

EMBED = EncoderConfig(kind="embed", model=7, dropout=0.0)
DOCUMENTS, LABELS = [[1, 2], [1, 2, 2], [1, 3]], [0, 0, 1]
SIZE = 5


def test_log_ratios_on_paper():
    """Every count is one more than it was: 1, 3, 3, 1, 1 of nine in the first label, 1, 2, 1, 2, 1 of seven.

    Word 2 is 3/9 against 1/7, word 1 is 3/9 against 2/7, word 3 is 1/9 against 2/7; words 0 and 4 never occurred.
    """
    weigh = LogRatioPooling(SIZE)
    weigh.fit(DOCUMENTS, LABELS)
    assert_close(weigh.ratio, torch.tensor([0.0, log(7 / 6), log(7 / 3), log(18 / 7), 0.0]))


def test_a_term_counts_once_and_a_document_has_length_one():
    weigh = LogRatioPooling(SIZE)
    weigh.fit(DOCUMENTS, LABELS)
    weights = weigh.weights(torch.tensor([[1, 2, 2, 0]]), torch.tensor([3]))
    one, two = log(7 / 6), log(7 / 3)
    length = (one**2 + two**2) ** 0.5
    assert_close(weights, torch.tensor([[one, two / 2, two / 2, 0.0]]) / length)


def test_a_document_of_unknown_terms_weighs_nothing():
    weigh = LogRatioPooling(SIZE)
    weigh.fit(DOCUMENTS, LABELS)
    assert weigh.weights(torch.tensor([[4, 4]]), torch.tensor([2])).tolist() == [[0.0, 0.0]]


def test_unsmoothed_ratios_are_refused():
    with pytest.raises(ValueError, match="smooth = 0 should be above 0"):
        LogRatioPooling(SIZE, smooth=0)


@pytest.mark.parametrize("pooling", ["mean", "tf-idf", "log-ratio", "weights"])
def test_words_that_are_counted_need_no_vectors(pooling):
    made = build_classifier(
        WordEmbeddingConfig(kind="one-hot"), EMBED, PoolingConfig(kind=pooling), size=SIZE, labels=3
    )
    assert isinstance(made, BagOfWordsClassifier)
    assert made(torch.tensor([[1, 2]]), torch.tensor([2])).shape == (1, 3)


@pytest.mark.parametrize(("kind", "pooling"), [("gru", "mean"), ("embed", "attention"), ("embed", "max")])
def test_words_without_vectors_can_only_be_counted(kind, pooling):
    model = EncoderConfig(kind=kind, model=7)
    with pytest.raises(ValueError, match=r"only counted; choose model\.kind = 'embed' and pooling\.kind from mean"):
        build_classifier(WordEmbeddingConfig(kind="one-hot"), model, PoolingConfig(kind=pooling), size=SIZE, labels=2)


def test_a_text_has_no_tree():
    model = EncoderConfig(kind="transformer", recipe='position = "TreeDepth()"')
    with pytest.raises(ValueError, match="needs dependency trees, which texts do not have; use a position"):
        build_classifier(WordEmbeddingConfig(), model, PoolingConfig(), size=SIZE, labels=2)


@pytest.mark.parametrize("frozen", [True, False])
def test_skip_gram_vectors_come_from_the_texts_and_stay_if_frozen(frozen):
    words = WordEmbeddingConfig(kind="skip-gram", epochs=1, frozen=frozen)
    made = build_classifier(words, EMBED, PoolingConfig(kind="mean"), size=SIZE, labels=2)
    assert isinstance(made, SequenceClassifier)
    before = made.encoder.embedding.weight.detach().clone()
    initialise(made, words, DOCUMENTS, LABELS)
    changed = (made.encoder.embedding.weight != before).any(1)
    assert changed.tolist() == [False, True, True, True, False]  # as the words that occur
    assert made.encoder.embedding.weight.requires_grad != frozen


def test_what_is_prepared_twice_is_the_same():
    words = WordEmbeddingConfig(kind="skip-gram", epochs=1)
    tables = []
    for _ in range(2):
        torch.manual_seed(3)
        made = build_classifier(words, EMBED, PoolingConfig(kind="tf-idf"), size=SIZE, labels=2)
        initialise(made, words, DOCUMENTS, LABELS)
        tables.append(dict(made.state_dict()))
    assert_close(tables[0], tables[1], rtol=0, atol=0)
    assert tables[0]["pooling.idf"][2] > 0


def test_what_only_skip_gram_has_means_nothing_to_others():
    with pytest.raises(ValueError, match="window = 3 means nothing to the kind 'learned'"):
        WordEmbeddingConfig(window=3)
    with pytest.raises(ValueError, match="ngrams = 2 means nothing to the kind 'skip-gram'"):
        WordEmbeddingConfig(kind="skip-gram", ngrams=2)
