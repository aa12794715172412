"""Autoencoding: the training job, the SentenceAutoencoder, its metrics and its task."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regard.data.batching import Example
from regard.data.tokenizers.base import UNK, Tokenizer
from regard.data.tokenizers.tokenizer_io import load_tokenizer
from regard.decode.stepwise import Greedy
from regard.decode.translate import LINE_BREAKS, translate_as_found
from regard.models.autoencoder import Autoencoder, build_autoencoder
from regard.tasks.autoencoding.data import AutoencodingSettings, read_plain_sentences
from regard.tasks.pretrained import PretrainedModel, load_settings
from regard.tasks.protocol import ProgressBar, TokenAxis, no_progress
from regard.tasks.splits import Split
from regard.tasks.tokenizers import train_text_tokenizer
from regard.tasks.translation.seq2seq import Seq2SeqTask
from regard.tasks.translation.task import seq2seq_job
from regard.train.config import TrainingJob


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


def detokenize_line(autoencoder: SentenceAutoencoder, ids: Sequence[int]) -> str:
    """What the model wrote, as people write it, on one line."""
    return autoencoder.detokenize(ids).translate(LINE_BREAKS)


@dataclass(frozen=True)
class AutoencodingMetrics:
    """How many sentences came back to the letter, by their words, and how many tokens in their places."""

    sentences: Counter[int]
    exact: Counter[int]
    tokens: int
    right: int
    outputs: tuple[str, ...] = field(repr=False)

    @property
    def exact_match(self) -> float:
        return 100 * self.exact.total() / self.sentences.total()

    @property
    def token_accuracy(self) -> float:
        return 100 * self.right / self.tokens

    def table(self) -> str:
        lines = [
            f"rebuilt exactly {self.exact_match:6.2f} %   sentences:{self.sentences.total()}",
            f"tokens in place {self.token_accuracy:6.2f} %   tokens:{self.tokens}",
            "",
            "words   sentences  exactly",
        ]
        for size, n in sorted(self.sentences.items()):
            share = 100 * self.exact[size] / n
            lines.append(f"{size:<7} {n:>9,}  {share:5.1f} %  {'█' * round(share / 4)}".rstrip())
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        by_length = [{"words": size, "sentences": n, "exact": self.exact[size]} for size, n in self.by_length]
        return {"exact": self.exact_match, "in_place": self.token_accuracy, "by_length": by_length}

    @property
    def by_length(self) -> list[tuple[int, int]]:
        return sorted(self.sentences.items())

    def lines(self) -> list[str]:
        return list(self.outputs)


def evaluate_autoencoder(
    autoencoder: SentenceAutoencoder, texts: Sequence[str], progress: ProgressBar = no_progress
) -> AutoencodingMetrics:
    """A word that the model does not know cannot come back, so it is wrong whatever is written for it."""
    sources = autoencoder.tokenizer.encode_batch(texts)
    arriving = translate_as_found(autoencoder.model, sources, Greedy())
    found = {place: these[0].ids for place, these in progress(arriving, "reconstructing", len(texts))}
    sizes, places = [len(text.split()) for text in texts], range(len(texts))
    return AutoencodingMetrics(
        Counter(sizes),
        Counter(sizes[n] for n in places if list(found[n]) == sources[n] and UNK not in sources[n]),
        sum(map(len, sources)),
        sum(a == b != UNK for n in places for a, b in zip(found[n], sources[n], strict=False)),
        tuple(detokenize_line(autoencoder, found[n]) for n in places),
    )


# --- the task ---


class AutoencodingTask(Seq2SeqTask):
    """Autoencoding: a sentence through a latent of fixed size, and back."""

    settings = AutoencodingSettings
    task_model = SentenceAutoencoder
    examples = "sentences"
    suggested_command = "autoencode"
    beam = 1

    def read(self, settings: AutoencodingSettings, split: Split, folder: Path | None = None):
        return read_plain_sentences(settings, split, folder)

    def token_ids(self, task_model: SentenceAutoencoder, examples: Sequence[str]):
        return task_model.tokenizer.encode_batch(examples)

    def evaluate(self, task_model: SentenceAutoencoder, examples: Sequence[str], *, search=None, progress=no_progress):
        return evaluate_autoencoder(task_model, examples, progress)

    def pair(self, task_model: SentenceAutoencoder) -> tuple[Tokenizer, Tokenizer]:
        return task_model.tokenizer, task_model.tokenizer

    def extra_axes(self, task_model: SentenceAutoencoder) -> dict[str, TokenAxis]:
        return {"latents": TokenAxis(tuple(f"latent {n}" for n in range(task_model.model.decoder.shape[0])))}


TASK = AutoencodingTask()
