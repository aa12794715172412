"""The settings of a tagging run in; its tagged sentences out: of the world, of files, or of a known corpus."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from regard.models.reading_config import EncoderConfig, WordsConfig
from regard.tasks.data import Read, Sources, Split, read_from
from regard.tasks.settings import ReadingSettings, TrainSettings
from regard.tasks.tables import From, Tables
from regard.text.conllu import Tagged, read_tagged
from regard.text.known import known_path
from regard.world import World


@dataclass(frozen=True, kw_only=True)
class TagData(From):
    """Tagged sentences; files are .conllu, or two columns in a .tsv or .txt."""

    sentences: int = 20_000  # for the world: how many, and of how many words
    shortest: int = 3
    longest: int = 12


@dataclass(frozen=True, kw_only=True)
class SpellingSettings:
    """Whether words are also read letter by letter, which tells of words that were never seen."""

    read: bool = False
    hide: float = 0.0  # how often, while training, a known word is hidden, so that its letters must tell

    def __post_init__(self):
        if not 0 <= self.hide < 1:
            raise ValueError(f"spelling.hide = {self.hide} should be at least 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class TagSettings(Tables):
    """Of tagging."""

    task: ClassVar[str] = "tag"

    data: TagData = field(default_factory=TagData)
    text: ReadingSettings = field(default_factory=ReadingSettings)
    words: WordsConfig = field(default_factory=WordsConfig)
    spelling: SpellingSettings = field(default_factory=SpellingSettings)
    model: EncoderConfig = field(default_factory=lambda: EncoderConfig.named("transformer", "tiny"))
    train: TrainSettings = field(default_factory=lambda: TrainSettings(smoothing=0.0))

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
            text=ReadingSettings(kind="words"),
            model=EncoderConfig(kind="transformer", layers=2, model=64, heads=4, hidden=128),
            train=TrainSettings(steps=800, tokens=1024, rate=3e-3, warmup=50, smoothing=0.0, validate_every=200),
        )


def read_tags(settings: TagSettings, split: Split, folder: Path | None = None) -> Read[Tagged]:
    """The sentences of a split."""
    data, world = settings.data, World(shortest=settings.data.shortest, longest=settings.data.longest)

    def of_world(split: Split, count: int | None) -> list[Tagged]:
        sentences = (world.sentence(number, split) for number in range(count or data.sentences))
        return [Tagged(one.words, one.tags, one.heads) for one in sentences]

    sources = Sources(
        world=of_world,
        files=lambda paths: Read([sentence for path in paths for sentence in read_tagged(path)]),
        known=lambda name, split, folder: list(read_tagged(known_path(name, split, folder))),
        examples="sentences",
        files_called=lambda split: f'{split} = ["{split}.conllu"], or on the command line --{split} {split}.conllu',
    )
    return read_from(sources, data, split, folder)
