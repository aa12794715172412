"""Sentences in; a model that rebuilds each from a latent of fixed size out, which is its sequence autoencoder."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch

from regard.models.autoencoder import Autoencoder, AutoencoderConfig, build_autoencoder
from regard.tasks.data import Read, Sources, Split, read_from, refuse
from regard.tasks.job import Job
from regard.tasks.kept import Kept, settings_in
from regard.tasks.settings import ReadingSettings, TrainSettings
from regard.tasks.tables import From, Tables
from regard.tasks.translate import pair_job
from regard.tasks.vocabularies import reading
from regard.text.batches import Example
from regard.text.files import read_lines
from regard.text.saved import load_tokeniser
from regard.text.vocabulary import Tokeniser
from regard.world import World


@dataclass(frozen=True, kw_only=True)
class RebuildData(From):
    """Sentences; files are plain text, a sentence a line."""

    sentences: int = 20_000  # for the world: how many, and of how many words
    shortest: int = 3
    longest: int = 8


@dataclass(frozen=True, kw_only=True)
class RebuildSettings(Tables):
    """Of rebuilding sentences."""

    task: ClassVar[str] = "rebuild"

    data: RebuildData = field(default_factory=RebuildData)
    text: ReadingSettings = field(default_factory=ReadingSettings)
    model: AutoencoderConfig = field(default_factory=lambda: AutoencoderConfig.named("transformer", "tiny"))
    train: TrainSettings = field(default_factory=lambda: TrainSettings(smoothing=0.0))

    @classmethod
    def of_world(cls):
        """Sentences of the miniature world, in a minute."""
        return cls(
            text=ReadingSettings(kind="words"),
            model=AutoencoderConfig(kind="gru", latents=8, latent=32, layers=1, model=64, hidden=128, dropout=0.0),
            # small batches: where nothing is ambiguous, many steps teach more than exact ones
            train=TrainSettings(
                steps=2400, tokens=256, rate=3e-3, warmup=100, smoothing=0.0, validate_every=800, checkpoint_every=800
            ),
        )


def read_sentences(settings: RebuildSettings, split: Split, folder: Path | None = None) -> Read[str]:
    """The sentences of a split."""
    data, world = settings.data, World(shortest=settings.data.shortest, longest=settings.data.longest)

    def of_files(paths: Sequence[str]) -> Read[str]:
        skipped: list[str] = []
        blank: Callable[[str], object] = skipped.append if data.skip_empty else refuse
        return Read([line for path in paths for line in full_lines(path, blank)], tuple(skipped))

    def of_known(name: str, split: Split, folder: Path | None) -> list[str]:
        raise ValueError(f"data.corpus = {name!r} is not for rebuilding; give files of text: --train train.txt")

    sources = Sources(
        world=lambda split, count: [
            " ".join(world.sentence(number, split).words) for number in range(count or data.sentences)
        ],
        files=of_files,
        known=of_known,
        examples="sentences",
        files_called=lambda split: f'{split} = ["{split}.txt"], or on the command line --{split} {split}.txt',
    )
    return read_from(sources, data, split, folder)


def full_lines(path: str, blank: Callable[[str], object]) -> Iterable[str]:
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield line
        else:
            blank(f"{path}:{number}: an empty line")


@dataclass(frozen=True, eq=False)
class Rebuilder(Kept):
    """A model with the vocabulary in which it reads and writes."""

    model: Autoencoder
    words: Tokeniser
    settings: RebuildSettings

    @staticmethod
    def fresh(sentences: Sequence[str], settings: RebuildSettings) -> "Rebuilder":
        """A vocabulary learnt from the sentences, and a model with new weights."""
        return Rebuilder.of(reading(sentences, settings.text), settings)

    @staticmethod
    def of(words: Tokeniser, settings: RebuildSettings) -> "Rebuilder":
        torch.manual_seed(settings.train.seed)
        return Rebuilder(build_autoencoder(settings.model, words.size), words, settings)

    def examples(self, sentences: Sequence[str]) -> list[Example]:
        """Each is its own target."""
        return [(ids, ids) for ids in self.words.encode_all(sentences)]

    def text(self, ids: Iterable[int]) -> str:
        """What the model wrote, as people write it."""
        return self.words.normal.restore(self.words.decode(ids))

    def job(self, sentences: Sequence[str], held_out: Sequence[str], device: str = "cpu", /) -> Job:
        return pair_job(self, self.examples(sentences), self.examples(held_out), device)

    @property
    def parts(self) -> dict[str, Tokeniser]:
        return {"words": self.words}

    @classmethod
    def described(cls, folder):
        return Rebuilder.of(load_tokeniser(folder / "words.json"), settings_in(folder, RebuildSettings))
