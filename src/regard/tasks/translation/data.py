"""Translation data: the settings of a run, and its sentence pairs from the world, files or a known corpus."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.data.corpora import read_corpus_pairs
from regard.data.files import file_format
from regard.data.parallel import SentencePair, read_pairs
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings, RunSettings, world_training
from regard.tasks.splits import LoadedExamples, SentenceData, Split
from regard.training.config import TrainSettings
from regard.world.retrieval import Stories, graded_story_pairs, story_pairs
from regard.world.world import World, translation_pairs


@dataclass(frozen=True, kw_only=True)
class TranslationData(SentenceData[SentencePair]):
    """Sentence pairs; files are one .tsv or .jsonl, or two text files.

    The corpus `stories` has English on both sides: stories of `max_length` words, and what they tell of one person; to
    train on, also of half as many words, of a quarter and so on.

    Args:
        source: the language to translate from: of the miniature world, a known corpus, or a field of a .jsonl.
        target: the language to translate into.
    """

    examples: ClassVar[str] = "pairs"
    files_hint: ClassVar[str] = (
        '{split} = ["{split}.en", "{split}.de"] or ["{split}.tsv"], '
        "or on the command line --{split} {split}.en --{split} {split}.de"
    )
    generated: ClassVar[tuple[str, ...]] = ("world", "stories")

    source: str = "en"
    target: str = "fr"
    sentences: int = 60_000

    def from_world(self, split: Split, count: int | None) -> list[SentencePair]:
        count = self.sentences if count is None else count
        if self.corpus == "stories":
            make_pairs = graded_story_pairs if split == "train" else story_pairs
            return [
                SentencePair(*pair) for pair in make_pairs(Stories(words=self.max_length, relevant=1), count, split)
            ]
        world = World(min_length=self.min_length, max_length=self.max_length)
        if self.source == "en":
            return [SentencePair(*pair) for pair in translation_pairs(world, self.target, count, split)]
        if self.target == "en":
            return [SentencePair(*pair).swapped() for pair in translation_pairs(world, self.source, count, split)]
        raise ValueError(f"the world translates from or into en, not from {self.source!r} into {self.target!r}")

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[SentencePair]:
        """The pairs of one .tsv, of one .jsonl, whose fields are the languages, or of two text files."""
        if len(paths) > 1 and (tables := [path for path in paths if file_format(Path(path)) in (".tsv", ".jsonl")]):
            raise ValueError(f"{tables[0]} holds both sides already; give it alone, or two files of plain text")
        fields = (self.source, self.target)
        return self.read_nonempty(lambda on_empty: read_pairs(paths, fields=fields, on_empty=on_empty))

    def from_corpus(self, split: Split, folder: Path | None) -> list[SentencePair]:
        return read_corpus_pairs(self.corpus, split, self.source, self.target, folder)


@dataclass(frozen=True, kw_only=True)
class TranslationSettings(RunSettings):
    task: ClassVar[str] = "translation"

    data: TranslationData = TranslationData()
    text: PairTokenizerSettings = PairTokenizerSettings()
    model: ModelConfig = ModelConfig.from_size("transformer", "tiny")
    train: TrainSettings = TrainSettings()

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
            train=world_training(
                steps=3300,
                batch_size=384,
                learning_rate=8e-3,
                warmup_steps=100,
                weight_decay=0.1,
                validate_every=825,
            ),
        )
