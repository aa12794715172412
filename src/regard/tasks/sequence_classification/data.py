"""Sequence classification data: the settings of a run, and its labelled texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from regard.data.corpora.download import corpus_path
from regard.data.labelled import LabelledText, raise_on_empty, read_labelled
from regard.models.config import EncoderConfig, PoolingConfig, WordEmbeddingConfig
from regard.models.encoder import check_combination
from regard.tasks.config import DataSettings, RunSettings, TokenizerSettings
from regard.tasks.splits import ExampleReaders, LoadedExamples, Split, read_examples, split_held_out
from regard.train.config import TrainSettings
from regard.world import World

SENTIMENTS = {-1: "negative", 0: "neutral", 1: "positive"}
KNOWN = {"sst2": ("text", "label"), "imdb": ("label", "rating", "text")}  # corpora with labels, and their columns
HELD_OUT = {"imdb": 12}  # where no texts are set aside to validate on, every twelfth is


@dataclass(frozen=True, kw_only=True)
class ClassificationData(DataSettings):
    """Texts with labels; files are .tsv or .jsonl."""

    text: str = "text"  # the names of the two columns, or of the fields of a .jsonl
    label: str = "label"
    columns: tuple[str, ...] = ()  # of a .tsv, all in their order; left out, the text and then the label
    phrases: bool = False  # for sst2: train on labelled parts of the sentences as well
    max_tokens: int = 0  # ids of a text that are read: the first quarter of them, then the end of the text; 0 reads all
    sentences: int = 20_000  # for the world: how many, and of how many words
    min_length: int = 3
    max_length: int = 12


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(RunSettings):
    """Of classification."""

    task: ClassVar[str] = "sequence_classification"

    data: ClassificationData = field(default_factory=ClassificationData)
    text: TokenizerSettings = field(default_factory=TokenizerSettings)
    words: WordEmbeddingConfig = field(default_factory=WordEmbeddingConfig)
    model: EncoderConfig = field(default_factory=lambda: EncoderConfig.from_size("transformer", "tiny"))
    pooling: PoolingConfig = field(default_factory=PoolingConfig)
    train: TrainSettings = field(default_factory=lambda: TrainSettings(label_smoothing=0.0))

    def __post_init__(self):
        check_combination(self.words, self.model, self.pooling)

    @classmethod
    def of_world(cls):
        """Is a sentence of the miniature world kind, unkind or neither? In a minute."""
        rotary = 'position = "Rotary()"'
        return cls(
            data=ClassificationData(sentences=40_000),
            text=TokenizerSettings(kind="words"),
            model=EncoderConfig(
                kind="transformer", layers=2, model=64, heads=4, hidden=128, dropout=0.0, recipe=rotary
            ),
            train=TrainSettings(
                steps=2000,
                batch_size=512,
                learning_rate=3e-3,
                warmup_steps=100,
                label_smoothing=0.0,
                validate_every=400,
            ),
        )


def read_labelled_texts(
    settings: ClassificationSettings, split: Split, folder: Path | None = None
) -> LoadedExamples[LabelledText]:
    """The texts of a split."""
    data = settings.data

    def of_world(split: Split, count: int | None) -> list[LabelledText]:
        world = World(min_length=data.min_length, max_length=data.max_length)
        sentences = (world.sentence(number, split) for number in range(count or data.sentences))
        return [LabelledText(" ".join(one.words), SENTIMENTS[one.sentiment]) for one in sentences]

    def of_files(paths: Sequence[str]) -> LoadedExamples[LabelledText]:
        skipped: list[str] = []
        blank: Callable[[str], object] = skipped.append if data.skip_empty else raise_on_empty
        fields, columns = (data.text, data.label), data.columns or None
        texts = (read_labelled(path, fields=fields, columns=columns, on_empty=blank) for path in paths)
        return LoadedExamples([one for some in texts for one in some], tuple(skipped))

    sources = ExampleReaders(
        world=of_world,
        files=of_files,
        known=lambda name, split, folder: read_known_texts(data, name, split, folder),
        examples="texts",
        files_hint=lambda split: f'{split} = ["{split}.tsv"], or on the command line --{split} {split}.tsv',
    )
    return read_examples(sources, data, split, folder)


def read_known_texts(data: ClassificationData, name: str, split: Split, folder: Path | None) -> list[LabelledText]:
    if name not in KNOWN:
        raise ValueError(f"{name!r} is no known corpus of texts with labels; choose from {', '.join(KNOWN)}")
    every = None if split == "test" else HELD_OUT.get(name)
    files = ["train" if every else split] + (["phrases"] if data.phrases and split == "train" else [])
    paths = [corpus_path(name, file, folder) for file in files]
    texts = [one for path in paths for one in read_labelled(path, columns=KNOWN[name])]
    return split_held_out(texts, split, every) if every else texts
