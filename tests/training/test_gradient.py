"""Gradient invariance through corpus, loss and step, for a model of each kind."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from torch import Tensor
from torch.nn.functional import pad
from torch.testing import assert_close

from regard.data import Batch, SentencePair, collate
from regard.data.batching import pair_lengths
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.seq2seq import LabelSmoothingLoss
from regard.tasks.translation.task import TranslationSettings, Translator
from regard.training import ConstantSchedule, TrainConfig, TrainingData, train
from regard.training.config import TrainSettings
from regard.training.corpus import Corpus
from regard.world import World, translation_pairs

TOLERANCE = 1e-7  # the loss itself is taken in float32
SENTENCES = [SentencePair(*each) for each in translation_pairs(World(max_length=9), "fr", 53)]
MODELS = {
    "transformer": ModelConfig(kind="transformer", layers=2, model=12, heads=3, hidden=14, dropout=0.0, tie="target"),
    "bahdanau": ModelConfig(kind="bahdanau", layers=2, model=12, hidden=10, dropout=0.0),
    "gru": ModelConfig(kind="gru", layers=2, model=12, hidden=10, directions=2, dropout=0.0),
}


@dataclass(frozen=True)
class Regrouped:
    """The sentences of each of a corpus's steps, dealt out to another number of batches, with more padding."""

    corpus: Corpus
    batches: int
    padding: int = 0

    def steps(self, epoch: int) -> int:
        return self.corpus.steps(epoch)

    def at(self, epoch: int, index: int) -> list[tuple[Batch, int]]:
        sentences = [sentence for batch, _ in self.corpus.at(epoch, index) for sentence in sentences_of(batch)]
        made = [collate(sentences[first :: self.batches]) for first in range(self.batches)]
        return [(padded(batch, self.padding), batch.tokens) for batch in made]


def sentences_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The ids without beginning and end, as `collate` wants them."""
    rows = zip(batch.source, batch.source_lengths, batch.target, batch.target_lengths, strict=True)
    return [(source[: s - 1].tolist(), target[1 : t - 1].tolist()) for source, s, target, t in rows]


def padded(batch: Batch, more: int) -> Batch:
    return Batch(pad(batch.source, (0, more)), batch.source_lengths, pad(batch.target, (0, more)), batch.target_lengths)


def translator(model: ModelConfig) -> Translator:
    train = TrainSettings(batch_size=53, gradient_accumulation=4)
    return Translator.from_examples(
        SENTENCES, TranslationSettings(text=PairTokenizerSettings(kind="words", joint=False), model=model, train=train)
    )


def gradient(made: Translator, data: TrainingData, folder: Path) -> dict[str, Tensor]:
    """Of the second step, whose weights depend on the first one's."""
    model = made.model.double()
    list(train(model, data, LabelSmoothingLoss(0.1), TrainConfig(ConstantSchedule(1e-3), 2, clip=0.0), folder))
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", MODELS)
def test_batches_accumulation_and_padding_change_no_gradient(tmp_path, model):
    made = translator(MODELS[model])
    corpus = Corpus.of(made.examples(SENTENCES), pair_lengths, collate, made.settings.train)
    assert [len(corpus.at(0, index)) for index in (0, 1)] == [4, 4]
    wanted = gradient(made, corpus, tmp_path / "corpus")
    assert len(wanted) == len(list(made.model.parameters()))
    assert max(float(each.abs().max()) for each in wanted.values()) > 1e-3
    for batches, padding in ((1, 0), (2, 0), (4, 5), (1, 3), (11, 0)):
        other = Regrouped(corpus, batches, padding)
        found = gradient(translator(MODELS[model]), other, tmp_path / f"{batches} {padding}")
        assert_close(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)
