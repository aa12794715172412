"""Autoencoding data: the settings of a run, and its sentences from the world or files."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from regard.data.files import read_lines
from regard.models.autoencoder import AutoencoderConfig
from regard.tasks.config import DataSettings, RunSettings, TokenizerSettings
from regard.tasks.splits import ExampleReaders, LoadedExamples, Split, read_examples, refuse_blank
from regard.train.config import TrainSettings
from regard.world import World


@dataclass(frozen=True, kw_only=True)
class AutoencodingData(DataSettings):
    """Sentences; files are plain text, a sentence a line."""

    sentences: int = 20_000  # for the world: how many, and of how many words
    min_length: int = 3
    max_length: int = 8


@dataclass(frozen=True, kw_only=True)
class AutoencodingSettings(RunSettings):
    """Of rebuilding sentences."""

    task: ClassVar[str] = "autoencoding"

    data: AutoencodingData = field(default_factory=AutoencodingData)
    text: TokenizerSettings = field(default_factory=TokenizerSettings)
    model: AutoencoderConfig = field(default_factory=lambda: AutoencoderConfig.from_size("transformer", "tiny"))
    train: TrainSettings = field(default_factory=lambda: TrainSettings(label_smoothing=0.0))

    @classmethod
    def of_world(cls):
        """Sentences of the miniature world, in a minute."""
        return cls(
            text=TokenizerSettings(kind="words"),
            model=AutoencoderConfig(kind="gru", latents=8, latent=32, layers=1, model=64, hidden=128, dropout=0.0),
            # small batches: where nothing is ambiguous, many steps teach more than exact ones
            train=TrainSettings(
                steps=2400,
                batch_size=256,
                learning_rate=3e-3,
                warmup_steps=100,
                label_smoothing=0.0,
                validate_every=800,
                checkpoint_every=800,
            ),
        )


def read_plain_sentences(
    settings: AutoencodingSettings, split: Split, folder: Path | None = None
) -> LoadedExamples[str]:
    """The sentences of a split."""
    data, world = settings.data, World(min_length=settings.data.min_length, max_length=settings.data.max_length)

    def of_files(paths: Sequence[str]) -> LoadedExamples[str]:
        skipped: list[str] = []
        blank: Callable[[str], object] = skipped.append if data.skip_empty else refuse_blank
        return LoadedExamples([line for path in paths for line in nonblank_lines(path, blank)], tuple(skipped))

    def of_known(name: str, split: Split, folder: Path | None) -> list[str]:
        raise ValueError(f"data.corpus = {name!r} is not for rebuilding; give files of text: --train train.txt")

    sources = ExampleReaders(
        world=lambda split, count: [
            " ".join(world.sentence(number, split).words) for number in range(count or data.sentences)
        ],
        files=of_files,
        known=of_known,
        examples="sentences",
        files_hint=lambda split: f'{split} = ["{split}.txt"], or on the command line --{split} {split}.txt',
    )
    return read_examples(sources, data, split, folder)


def nonblank_lines(path: str, blank: Callable[[str], object]) -> Iterable[str]:
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield line
        else:
            blank(f"{path}:{number}: an empty line")
