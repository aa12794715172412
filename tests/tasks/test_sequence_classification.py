"""Classification as a task: settings, reading, learning, exact resume, and the same label in any company."""

import lzma
from collections.abc import Sequence
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from regard.data.labelled import LabelledText
from regard.data.tokenizers.base import NUM_SPECIAL_TOKENS, UNK, WordTokenizer
from regard.models.config import EncoderConfig, PoolingConfig, WordEmbeddingConfig
from regard.tasks.config import TokenizerSettings
from regard.tasks.sequence_classification.task import (
    ClassificationData,
    ClassificationLoss,
    ClassificationSettings,
    TextClassifier,
    collate,
)
from regard.training.config import TrainSettings
from regard.training.run import TrainingRun
from tests.narrowing import assert_is_instance

EMBED = EncoderConfig(kind="embed", model=10, dropout=0.0)
RUNGS = {
    "tf-idf": (WordEmbeddingConfig(kind="one-hot"), EMBED, PoolingConfig(kind="tf-idf")),
    "pairs": (WordEmbeddingConfig(kind="one-hot", ngrams=2, buckets=101), EMBED, PoolingConfig(kind="log-ratio")),
    "weights": (WordEmbeddingConfig(kind="one-hot"), EMBED, PoolingConfig(kind="weights")),
    "skip-gram": (WordEmbeddingConfig(kind="skip-gram", epochs=1), EMBED, PoolingConfig(kind="mean")),
    "attention": (WordEmbeddingConfig(), EMBED, PoolingConfig(kind="attention")),
    "gru": (
        WordEmbeddingConfig(dropout=0.1),
        EncoderConfig(kind="gru", layers=1, model=7, hidden=10, directions=2),
        PoolingConfig(),
    ),
    "transformer": (
        WordEmbeddingConfig(),
        EncoderConfig(kind="transformer", layers=1, model=12, heads=2, hidden=14),
        PoolingConfig(),
    ),
}


def settings_of(rung: str, **train) -> ClassificationSettings:
    words, model, pooling = RUNGS[rung]
    return ClassificationSettings(
        data=ClassificationData(sentences=97, max_length=6),
        text=TokenizerSettings(kind="words"),
        words=words,
        model=model,
        pooling=pooling,
        train=TrainSettings(
            **{"steps": 11, "batch_size": 130, "learning_rate": 0.01, "warmup_steps": 3, "validate_every": 4, **train}
        ),
    )


def texts_of(settings: ClassificationSettings) -> tuple[Sequence[LabelledText], Sequence[LabelledText]]:
    train = settings.data.read("train").examples
    return train, train[:23]


# --- settings ---


@pytest.mark.parametrize("rung", RUNGS)
def test_settings_come_back_from_their_file(rung):
    settings = settings_of(rung)
    assert ClassificationSettings.from_toml(settings.to_toml()) == settings


# --- reading ---


def test_the_world_says_how_it_feels():
    found = settings_of("tf-idf").data.read("train").examples
    assert len(found) == 97
    assert {one.label for one in found} == {"positive", "negative", "neutral"}


@pytest.fixture
def corpora(tmp_path) -> Path:
    def written(name: str, lines: list[str]) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(lzma.compress("".join(f"{line}\n" for line in lines).encode()))

    written("sst2/train.tsv.xz", ["a fine film\t1", "a dull film\t0"])
    written("sst2/train_phrases.tsv.xz", ["fine\t1"])
    written("sst2/dev.tsv.xz", ["dull\t0"])
    written("imdb/train.tsv.xz", [f"{n % 2}\t7\treview {n}" for n in range(25)])
    return tmp_path


def test_sst2_with_and_without_its_phrases(corpora):
    plain = ClassificationSettings(data=ClassificationData(corpus="sst2"))
    assert [one.text for one in plain.data.read("train", corpora).examples] == ["a fine film", "a dull film"]
    more = replace(plain, data=replace(plain.data, phrases=True))
    assert [one.text for one in more.data.read("train", corpora).examples][2:] == ["fine"]
    assert more.data.read("valid", corpora).examples == [LabelledText("dull", "0")]


def test_of_imdb_every_twelfth_review_is_held_out(corpora):
    settings = ClassificationSettings(data=ClassificationData(corpus="imdb"))
    train, valid = (settings.data.read(split, corpora).examples for split in ("train", "valid"))
    assert [one.text for one in valid] == ["review 11", "review 23"]
    assert len(train) == 23
    assert train[0] == LabelledText("review 0", "0")


def test_a_corpus_without_labels_is_refused(corpora):
    with pytest.raises(ValueError, match="'wikitext2' is no known corpus of texts with labels; choose from sst2, imdb"):
        ClassificationSettings(data=ClassificationData(corpus="wikitext2")).data.read("train", corpora)
    with pytest.raises(ValueError, match="imdb has no split 'phrases'"):
        ClassificationSettings(data=ClassificationData(corpus="imdb", phrases=True)).data.read("train", corpora)


def test_files_with_columns_of_any_name(tmp_path):
    table, lines = tmp_path / "a.tsv", tmp_path / "b.jsonl"
    table.write_text("5\tgood\tso good\n1\tbad\tso bad\n")
    lines.write_text('{"said": "well", "is": "good"}\n')
    data = ClassificationData(corpus="files", columns=("stars", "is", "said"), text="said", label="is")
    settings = ClassificationSettings(data=replace(data, train=(str(table),), valid=(str(table),)))
    assert settings.data.read("train").examples == [
        LabelledText("so good", "good"),
        LabelledText("so bad", "bad"),
    ]
    settings = ClassificationSettings(data=replace(data, columns=(), train=(str(lines),), valid=(str(lines),)))
    assert settings.data.read("valid").examples == [LabelledText("well", "good")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("so\tgood\tfilm", r"a\.tsv:2: 3 columns; a line is text, tab, label"),
        ("\tgood", r"a\.tsv:2: the text is empty; fill it in"),
        ("so good\t", r"a\.tsv:2: the label is empty"),
    ],
)
def test_a_wrong_line_is_named(line, message, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(f"fine\tgood\n{line}\n")
    settings = ClassificationSettings(data=ClassificationData(corpus="files", train=(str(path),), valid=(str(path),)))
    with pytest.raises(ValueError, match=message):
        settings.data.read("train")


def test_empty_texts_are_left_out_on_request(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("fine\tgood\n\tbad\n")
    data = ClassificationData(corpus="files", train=(str(path),), valid=(str(path),), skip_empty=True)
    found = ClassificationSettings(data=data).data.read("train")
    assert found.examples == [LabelledText("fine", "good")]
    assert found.skipped == (f"{path}:2: the text is empty",)


def test_of_a_long_text_the_beginning_and_the_end_are_read():
    classifier = TextClassifier.from_examples(
        [LabelledText("a b c d e f g h i j", "x"), LabelledText("a", "y")], settings_of("tf-idf")
    )
    short = replace(classifier, settings=replace(classifier.settings, data=ClassificationData(max_tokens=4)))
    assert short.ids("a b c d e f g h i j") == short.tokenizer.encode("a h i j")
    assert short.ids("a b c d") == short.tokenizer.encode("a b c d")
    assert classifier.ids("a b c d e") == classifier.tokenizer.encode("a b c d e")
    assert classifier.ids("") == [UNK]


# --- loss ---


class Fixed(torch.nn.Module):
    """3 to 1 for the first label in the first half of the texts, 1 to 1 in the second."""

    def forward(self, terms, lengths):
        logits = torch.zeros(len(terms), 2)
        logits[: (len(terms) + 1) // 2, 0] = log(3)
        return logits


def test_the_loss_on_paper():
    """Two texts of the first label: −log 3/4 − log 1/2 = log 8/3. With R-Drop, of one: both passes are averaged, and
    half of (3/4 − 1/2) log 3/2 + (1/4 − 1/2) log 1/2 = ¼ log 3 is added."""
    batch = collate([(np.array([4]), 0), (np.array([5]), 0)])
    summed, texts = ClassificationLoss()(Fixed(), (batch, batch.tokens))
    assert texts == 2
    assert_close(summed.item(), log(8 / 3), rtol=1e-6, atol=1e-6)
    one = collate([(np.array([4]), 0)])
    summed, texts = ClassificationLoss(rdrop=5.0)(Fixed(), (one, one.tokens))
    assert texts == 1
    assert_close(summed.item(), log(8 / 3) / 2 + 5 * log(3) / 4 / 2, rtol=1e-6, atol=1e-6)


def test_left_out_words_become_unknown():
    class Spy(torch.nn.Module):
        def forward(self, terms, lengths):
            self.share = (terms == UNK).float().mean()
            return torch.zeros(len(terms), 2)

    spy, batch = Spy(), collate([(np.full(50, 7), 0)] * 40)
    ClassificationLoss(dropout=0.3)(spy, (batch, 40))
    assert 0.25 < spy.share < 0.35


@pytest.mark.parametrize("rung", RUNGS)
def test_the_gradient_does_not_depend_on_how_texts_are_batched(rung):
    settings = settings_of(rung)
    train, held_out = texts_of(settings)
    classifier = TextClassifier.from_examples(train, settings)
    classifier.job(train, held_out)
    model, examples, grads = classifier.model.double().eval(), classifier.examples(train[:9]), []
    for parts in ([examples], [examples[:4], examples[4:]], [[one] for one in examples]):
        model.zero_grad()
        for part in parts:
            batch = collate(part)
            ClassificationLoss(smoothing=0.1)(model, (batch, batch.tokens))[0].backward()
        grads.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
    assert grads[0]
    for other in grads[1:]:
        assert_close(other, grads[0])


# --- classifiers ---


@pytest.mark.parametrize("rung", RUNGS)
def test_training_resumes_to_the_bit_and_a_label_is_the_same_in_any_company(rung, tmp_path):
    settings = settings_of(rung)
    train, held_out = texts_of(settings)
    straight = TextClassifier.from_examples(train, settings)
    list(TrainingRun(straight.job(train, held_out), tmp_path / "a").steps())

    started = TrainingRun(TextClassifier.from_examples(train, settings).job(train, held_out), tmp_path / "b")
    started.job.describe(tmp_path / "b")  # killed before the first checkpoint
    steps = TrainingRun(TextClassifier.from_description(tmp_path / "b").job(train, held_out), tmp_path / "b").steps()
    for report in steps:
        if report.step == 6:
            steps.close()  # and again
    list(TrainingRun(TextClassifier.from_description(tmp_path / "b").job(train, held_out), tmp_path / "b").steps())

    one, other = TextClassifier.load(tmp_path / "a"), TextClassifier.load(tmp_path / "b")
    assert_close(dict(one.model.state_dict()), dict(other.model.state_dict()), rtol=0, atol=0)

    texts = [one.text for one in train[:17]]
    together = one.predict(texts)
    for text, found in zip(texts, together, strict=True):
        (alone,) = one.predict([text])
        assert alone.label == found.label
        assert_close(alone.probabilities, found.probabilities, rtol=1e-5, atol=1e-6)
    assert [found.label for found in one.predict(texts[::-1])] == [found.label for found in together[::-1]]


def test_learned_weights_find_out_which_words_matter(tmp_path):
    """good and bad decide; a film is a film."""
    known = [LabelledText(f"the {word} film {n % 7}", word) for n in range(40) for word in ("good", "bad")]
    settings = settings_of("weights", steps=120, learning_rate=0.05)
    classifier = TextClassifier.from_examples(known, settings)
    list(TrainingRun(classifier.job(known, known[:9]), tmp_path).steps())
    assert [one.label for one in classifier.predict(["a bad thing", "the good one"])] == ["bad", "good"]
    words = assert_is_instance(classifier.tokenizer, WordTokenizer).vocabulary
    weights = classifier.model.get_parameter("weigh.importance")[NUM_SPECIAL_TOKENS:].tolist()
    importance = dict(zip(words, weights, strict=True))
    assert min(importance["good"], importance["bad"]) > max(importance["film"], importance["the"])


def test_an_unknown_label_is_refused():
    settings = settings_of("weights")
    train, _ = texts_of(settings)
    classifier = TextClassifier.from_examples(train, settings)
    with pytest.raises(ValueError, match="text 2: the label 'splendid' is not known; the known ones are negative"):
        classifier.job(train, [train[0], LabelledText("so", "splendid")])


def test_no_text_has_no_label():
    settings = settings_of("weights")
    assert TextClassifier.from_examples(texts_of(settings)[0], settings).predict([]) == []


def test_weights_of_other_labels_are_refused(tmp_path):
    settings = settings_of("weights")
    train, _ = texts_of(settings)
    TextClassifier.from_examples(train, settings).save(tmp_path)
    held = (tmp_path / "labels.json").read_text()
    (tmp_path / "labels.json").write_text(held.replace("negative", "negatory"))
    with pytest.raises(ValueError, match=r"labels\.json is not what the weights were trained with; put it back"):
        TextClassifier.load(tmp_path)
