"""What a word is, how words are read and how they are weighed in; a model that gives a text one label out.

These three are the steps from counting to context: each is a value, and they combine.
"""

from collections.abc import Iterable, Sequence

from torch import nn

from regard.layers.pooling import Static
from regard.layers.words import Table
from regard.models.counting import ByFormula, OneHot
from regard.models.encoder import Classifier, Encoder
from regard.models.reading_config import (
    STATIC,
    EncoderConfig,
    PoolingConfig,
    WordsConfig,
    build_pooling,
    fitting,
    wants_tree,
)
from regard.models.wordvectors import SkipGram, WordVectors, train_vectors


def assert_fit(words: WordsConfig, model: EncoderConfig, pooling: PoolingConfig) -> None:
    """A list as long as the vocabulary is too long to be read by anything but a sum, and texts come without trees."""
    if model.kind == "transformer" and wants_tree(fitting(model)):
        raise ValueError(
            f"model.recipe = {model.recipe!r} wants dependency trees, which texts do not have; use a place in the "
            "row, such as Sinusoidal()"
        )
    if words.kind == "one-hot" and (model.kind != "embed" or pooling.kind not in STATIC):
        raise ValueError(
            f"words.kind = 'one-hot' cannot be read by model.kind = {model.kind!r} and pooling.kind = "
            f"{pooling.kind!r}: words without vectors are only counted; choose model.kind = 'embed' and pooling.kind "
            f"from {', '.join(STATIC)}, or words.kind = 'learned'"
        )


def build_classifier(
    words: WordsConfig, model: EncoderConfig, pooling: PoolingConfig, *, size: int, labels: int
) -> Classifier | OneHot:
    """With new weights, for a vocabulary of this size."""
    assert_fit(words, model, pooling)
    if words.kind == "one-hot":
        weigh = build_pooling(pooling, size, size)
        assert isinstance(weigh, Static)
        return OneHot(size, weigh, labels=labels)
    encoder = Encoder(model, size)
    encoder.words.weight.requires_grad_(not words.stays)
    return Classifier(encoder, build_pooling(pooling, encoder.width, size), labels=labels)


def prepare(
    model: nn.Module,
    words: WordsConfig,
    documents: Sequence[Sequence[int]],
    labels: Sequence[int],
    *,
    vocabulary: Sequence[str] = (),
    seed: int = 0,
) -> None:
    """All that is known before training: weights by a formula, word vectors of skip-gram, vectors from a file.

    `vocabulary` names every row of the words' table, for vectors from a file.
    """
    for part in model.modules():
        if isinstance(part, ByFormula):
            part.count(documents, labels)
    if isinstance(model, Classifier):
        begin(model.encoder.words, words, documents, vocabulary=vocabulary, seed=seed)


def begin(
    table: Table,
    words: WordsConfig,
    documents: Iterable[Sequence[int]],
    *,
    vocabulary: Sequence[str],
    seed: int,
) -> None:
    """Vectors that words have from before: of skip-gram, or from a file."""
    size, width = table.weight.shape
    if words.kind == "skip-gram":
        how = SkipGram(width=width, window=words.window, epochs=words.epochs, seed=seed)
        found = train_vectors(([str(one) for one in document] for document in documents), how)
        found.fill(table, [str(row) for row in range(size)])
    elif words.kind == "file":
        found = WordVectors.load(words.file)
        if found.vectors.shape[1] != width:
            raise ValueError(
                f"{words.file}: vectors of width {found.vectors.shape[1]}; set model.model to that, not to {width}"
            )
        if not found.fill(table, vocabulary):
            raise ValueError(f"{words.file}: none of its words is in the vocabulary; is it of the same language?")
