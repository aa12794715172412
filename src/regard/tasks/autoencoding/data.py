"""Autoencoding data: the settings of a run, and its sentences from the world or files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.data.files import read_lines
from regard.models.autoencoder import AutoencoderConfig
from regard.tasks.config import RunSettings, TokenizerSettings, world_training
from regard.tasks.splits import LoadedExamples, SentenceData, Split
from regard.training.config import TrainSettings


@dataclass(frozen=True, kw_only=True)
class AutoencodingData(SentenceData[str]):
    """Sentences; files are plain text, a sentence a line."""

    examples: ClassVar[str] = "sentences"

    max_length: int = 8

    def from_world(self, split: Split, count: int | None) -> list[str]:
        return [" ".join(sentence.words) for sentence in self.world_sentences(split, count)]

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[str]:
        return self.read_nonempty(lambda on_empty: nonblank_lines(paths, on_empty))

    def from_corpus(self, split: Split, folder: Path | None) -> list[str]:
        raise ValueError(f"data.corpus = {self.corpus!r} is not for autoencoding; give text files: --train train.txt")


def nonblank_lines(paths: Iterable[str], on_empty: Callable[[str], object]) -> Iterator[str]:
    for path in paths:
        for number, line in enumerate(read_lines(path), 1):
            if line.strip():
                yield line
            else:
                on_empty(f"{path}:{number}: an empty line")


@dataclass(frozen=True, kw_only=True)
class AutoencodingSettings(RunSettings):
    """The settings of an autoencoder's run: one tokenizer for both ends, an encoder, a bottleneck and a decoder."""

    task: ClassVar[str] = "autoencoding"

    data: AutoencodingData = AutoencodingData()
    text: TokenizerSettings = TokenizerSettings()
    model: AutoencoderConfig = AutoencoderConfig.from_size("transformer", "tiny")
    train: TrainSettings = TrainSettings(label_smoothing=0.0)

    @classmethod
    def of_world(cls):
        """Sentences of the miniature world, in a minute."""
        return cls(
            text=TokenizerSettings(kind="words"),
            model=AutoencoderConfig(kind="gru", latents=8, latent=32, layers=1, model=64, hidden=128, dropout=0.0),
            # small batches: where nothing is ambiguous, many steps teach more than exact ones
            train=world_training(
                steps=2400,
                batch_size=256,
                learning_rate=3e-3,
                warmup_steps=100,
                validate_every=800,
                checkpoint_every=800,
            ),
        )
