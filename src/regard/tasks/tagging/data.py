"""Tagging data: the settings of a run, and its tagged sentences from the world, files or a known corpus."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from regard.data.corpora.download import corpus_path
from regard.data.tagged import TaggedSentence, read_tagged
from regard.models.config import EncoderConfig, WordEmbeddingConfig
from regard.tasks.config import DataSettings, RunSettings, TokenizerSettings
from regard.tasks.splits import ExampleReaders, LoadedExamples, Split, read_examples
from regard.train.config import TrainSettings
from regard.world import World


@dataclass(frozen=True, kw_only=True)
class TaggingData(DataSettings):
    """Tagged sentences; files are .conllu, or two columns in a .tsv or .txt."""

    sentences: int = 20_000  # for the world: how many, and of how many words
    min_length: int = 3
    max_length: int = 12


@dataclass(frozen=True, kw_only=True)
class CharacterSettings:
    """Whether words are also read letter by letter, which tells of words that were never seen."""

    read: bool = False
    hide: float = 0.0  # how often, while training, a known word is hidden, so that its letters must tell

    def __post_init__(self):
        if not 0 <= self.hide < 1:
            raise ValueError(f"spelling.hide = {self.hide} should be at least 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class TaggingSettings(RunSettings):
    """Of tagging."""

    task: ClassVar[str] = "tagging"

    data: TaggingData = field(default_factory=TaggingData)
    text: TokenizerSettings = field(default_factory=TokenizerSettings)
    words: WordEmbeddingConfig = field(default_factory=WordEmbeddingConfig)
    spelling: CharacterSettings = field(default_factory=CharacterSettings)
    model: EncoderConfig = field(default_factory=lambda: EncoderConfig.from_size("transformer", "tiny"))
    train: TrainSettings = field(default_factory=lambda: TrainSettings(label_smoothing=0.0))

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
            train=TrainSettings(
                steps=800, batch_size=1024, learning_rate=3e-3, warmup_steps=50, label_smoothing=0.0, validate_every=200
            ),
        )


def read_tagged_sentences(
    settings: TaggingSettings, split: Split, folder: Path | None = None
) -> LoadedExamples[TaggedSentence]:
    """The sentences of a split."""
    data, world = settings.data, World(min_length=settings.data.min_length, max_length=settings.data.max_length)

    def of_world(split: Split, count: int | None) -> list[TaggedSentence]:
        sentences = (world.sentence(number, split) for number in range(count or data.sentences))
        return [TaggedSentence(one.words, one.tags, one.governors) for one in sentences]

    sources = ExampleReaders(
        world=of_world,
        files=lambda paths: LoadedExamples([sentence for path in paths for sentence in read_tagged(path)]),
        known=lambda name, split, folder: list(read_tagged(corpus_path(name, split, folder))),
        examples="sentences",
        files_hint=lambda split: f'{split} = ["{split}.conllu"], or on the command line --{split} {split}.conllu',
    )
    return read_examples(sources, data, split, folder)
