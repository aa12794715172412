"""Tagging data: the settings of a run, and its tagged sentences from the world, files or a known corpus."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.data.corpora import corpus_path
from regard.data.tagged import TaggedSentence, read_tagged
from regard.models.config import EncoderConfig, WordEmbeddingConfig
from regard.models.config_base import FRACTION, Ranges, SettingsTable
from regard.tasks.config import RunSettings, TokenizerSettings, world_training
from regard.tasks.splits import LoadedExamples, SentenceData, Split
from regard.training.config import TrainSettings


@dataclass(frozen=True, kw_only=True)
class TaggingData(SentenceData[TaggedSentence]):
    """Tagged sentences; files are .conllu, or two columns in a .tsv or .txt."""

    examples: ClassVar[str] = "sentences"
    files_hint: ClassVar[str] = '{split} = ["{split}.conllu"], or on the command line --{split} {split}.conllu'

    def from_world(self, split: Split, count: int | None) -> list[TaggedSentence]:
        return [TaggedSentence(one.words, one.tags, one.governors) for one in self.world_sentences(split, count)]

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[TaggedSentence]:
        return LoadedExamples([sentence for path in paths for sentence in read_tagged(path)])

    def from_corpus(self, split: Split, folder: Path | None) -> list[TaggedSentence]:
        return list(read_tagged(corpus_path(self.corpus, split, folder)))


@dataclass(frozen=True, kw_only=True)
class CharacterSettings(SettingsTable):
    """Whether words are also read letter by letter, which tells of words that were never seen.

    Args:
        read: the letters of a word are read as well.
        hide: how often, while training, a known word is hidden, so that its letters must tell.
    """

    ranges: ClassVar[Ranges] = {"hide": FRACTION}

    read: bool = False
    hide: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(RunSettings):
    """The settings of a tagger's run.

    [words] says what a word's vector begins with, [spelling] whether its characters are read as well,
    and how often a word is hidden so that they must be.
    The label of a word is predicted at its first subword.
    """

    task: ClassVar[str] = "tagging"

    data: TaggingData = TaggingData()
    text: TokenizerSettings = TokenizerSettings()
    words: WordEmbeddingConfig = WordEmbeddingConfig()
    spelling: CharacterSettings = CharacterSettings()
    model: EncoderConfig = EncoderConfig.from_size("transformer", "tiny")
    train: TrainSettings = TrainSettings(label_smoothing=0.0)

    def __post_init__(self):
        if self.spelling.read and self.text.kind != "words":
            raise ValueError(f"spelling.read = true is for whole words, not text.kind = {self.text.kind!r}; use words")
        if self.words.kind == "one-hot":
            raise ValueError("words.kind = 'one-hot' is for texts with one label; a tagger's words have vectors")
        if self.words.dropout:
            raise ValueError("a tagger hides words by spelling.hide, not by words.dropout; set that")

    @classmethod
    def of_world(cls):
        """Parts of speech in the miniature world, in a minute."""
        return cls(
            text=TokenizerSettings(kind="words"),
            model=EncoderConfig(kind="transformer", layers=2, model=64, heads=4, hidden=128),
            train=world_training(steps=800, batch_size=1024, learning_rate=3e-3, warmup_steps=50, validate_every=200),
        )
