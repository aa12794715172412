"""Translation data: the settings of a run, and its sentence pairs from the world, files or a known corpus."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from regard.data.corpora.download import read_corpus_pairs
from regard.data.files import file_format
from regard.data.parallel import SentencePair, read_pairs
from regard.models.config import ModelConfig
from regard.tasks.config import DataSettings, PairTokenizerSettings, RunSettings
from regard.tasks.splits import ExampleReaders, LoadedExamples, Split, read_examples, refuse_blank
from regard.train.config import TrainSettings
from regard.world.retrieval import Stories, graded_story_pairs, story_pairs
from regard.world.world import World, translation_pairs


@dataclass(frozen=True, kw_only=True)
class TranslationData(DataSettings):
    """Sentence pairs; files are one .tsv or .jsonl, or two text files.

    The corpus `stories` has English on both sides: stories of `max_length` words, and what they tell of one person; to
    train on, also of half as many words, of a quarter and so on.
    """

    source: str = "en"
    target: str = "fr"
    sentences: int = 60_000  # for the world: how many, and of how many words
    min_length: int = 3
    max_length: int = 12


@dataclass(frozen=True, kw_only=True)
class TranslationSettings(RunSettings):
    """Of translation."""

    task: ClassVar[str] = "translation"

    data: TranslationData = field(default_factory=TranslationData)
    text: PairTokenizerSettings = field(default_factory=PairTokenizerSettings)
    model: ModelConfig = field(default_factory=lambda: ModelConfig.from_size("transformer", "tiny"))
    train: TrainSettings = field(default_factory=TrainSettings)

    def __post_init__(self):
        if self.train.cuda_graph and not self.train.packed:
            raise ValueError("train.cuda_graph = true wants batches of one shape; say packed = true as well")

    @classmethod
    def of_world(cls):
        """French, as the miniature world speaks it, in a minute."""
        rotary = 'position = "Rotary()"'
        return cls(
            data=TranslationData(sentences=40_000, max_length=7),
            text=PairTokenizerSettings(kind="words", joint=False),
            model=ModelConfig(
                kind="transformer", layers=2, model=64, heads=4, hidden=128, dropout=0.0, encoder=rotary, decoder=rotary
            ),
            # small batches: where nothing is ambiguous for long, many steps teach more than exact ones
            train=TrainSettings(
                steps=3300,
                batch_size=384,
                learning_rate=8e-3,
                warmup_steps=100,
                label_smoothing=0.0,
                weight_decay=0.1,
                validate_every=825,
            ),
        )


def read_translation_pairs(
    data: TranslationData, split: Split, folder: Path | None = None
) -> LoadedExamples[SentencePair]:
    """The sentence pairs of a split."""
    sources = ExampleReaders(
        world=lambda split, count: world_pairs(data, split, data.sentences if count is None else count),
        files=lambda paths: read_pair_files(paths, data),
        known=lambda name, split, folder: read_corpus_pairs(name, split, data.source, data.target, folder),
        examples="pairs",
        files_hint=lambda split: (
            f'{split} = ["{split}.en", "{split}.de"] or ["{split}.tsv"], '
            f"or on the command line --{split} {split}.en --{split} {split}.de"
        ),
        generated=("world", "stories"),
    )
    return read_examples(sources, data, split, folder)


def world_pairs(data: TranslationData, split: Split, count: int) -> list[SentencePair]:
    if data.corpus == "stories":
        make_pairs = graded_story_pairs if split == "train" else story_pairs
        return [SentencePair(*pair) for pair in make_pairs(Stories(words=data.max_length, relevant=1), count, split)]
    world = World(min_length=data.min_length, max_length=data.max_length)
    if data.source == "en":
        return [SentencePair(*pair) for pair in translation_pairs(world, data.target, count, split)]
    if data.target == "en":
        return [SentencePair(*pair).swapped() for pair in translation_pairs(world, data.source, count, split)]
    raise ValueError(f"the world translates from or into en, not from {data.source!r} into {data.target!r}")


def read_pair_files(paths: Sequence[str], data: TranslationData) -> LoadedExamples[SentencePair]:
    """The pairs of one .tsv, of one .jsonl, whose fields are the languages, or of two text files."""
    if len(paths) > 1 and (tables := [path for path in paths if file_format(Path(path)) in (".tsv", ".jsonl")]):
        raise ValueError(f"{tables[0]} holds both sides already; give it alone, or two files of plain text")
    skipped: list[str] = []
    blank: Callable[[str], object] = skipped.append if data.skip_empty else refuse_blank
    return LoadedExamples(list(read_pairs(paths, fields=(data.source, data.target), on_empty=blank)), tuple(skipped))
