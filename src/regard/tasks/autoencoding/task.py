"""Autoencoding: the training job, and the SentenceAutoencoder, which reconstructs sentences from a latent."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from regard.data.batching import Example
from regard.data.tokenizers.base import Tokenizer
from regard.data.tokenizers.tokenizer_io import load_tokenizer
from regard.models.autoencoder import Autoencoder, build_autoencoder
from regard.tasks.autoencoding.data import AutoencodingSettings
from regard.tasks.pretrained import PretrainedModel, load_settings
from regard.tasks.protocol import TrainingJob
from regard.tasks.tokenizer_training import train_text_tokenizer
from regard.tasks.translation.task import seq2seq_job


@dataclass(frozen=True, eq=False)
class SentenceAutoencoder(PretrainedModel):
    """A model with the vocabulary in which it reads and writes."""

    model: Autoencoder
    tokenizer: Tokenizer
    settings: AutoencodingSettings

    @staticmethod
    def from_examples(sentences: Sequence[str], settings: AutoencodingSettings) -> "SentenceAutoencoder":
        """A vocabulary learnt from the sentences, and a model with new weights."""
        return SentenceAutoencoder.of(train_text_tokenizer(sentences, settings.text), settings)

    @staticmethod
    def of(words: Tokenizer, settings: AutoencodingSettings) -> "SentenceAutoencoder":
        torch.manual_seed(settings.train.seed)
        return SentenceAutoencoder(build_autoencoder(settings.model, words.size), words, settings)

    def examples(self, sentences: Sequence[str]) -> list[Example]:
        """Each is its own target."""
        return [(ids, ids) for ids in self.tokenizer.encode_batch(sentences)]

    def detokenize(self, ids: Iterable[int]) -> str:
        """What the model wrote, as people write it."""
        return self.tokenizer.normalizer.detokenize(self.tokenizer.decode(ids))

    def job(self, sentences: Sequence[str], held_out: Sequence[str], device: str = "cpu", /) -> TrainingJob:
        return seq2seq_job(self, self.examples(sentences), self.examples(held_out), device)

    @property
    def parts(self) -> dict[str, Tokenizer]:
        return {"words": self.tokenizer}

    @classmethod
    def from_description(cls, folder):
        return SentenceAutoencoder.of(
            load_tokenizer(folder / "words.json"), load_settings(folder, AutoencodingSettings)
        )
