"""Sequence classification data: the settings of a run, and its labelled texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.data.corpora import corpus_path
from regard.data.labelled import LabelledText, read_labelled
from regard.models.config import EncoderConfig, PoolingConfig, WordEmbeddingConfig
from regard.models.encoder import check_combination
from regard.tasks.config import RunSettings, TokenizerSettings, world_training
from regard.tasks.splits import LoadedExamples, SentenceData, Split, split_held_out
from regard.training.config import TrainSettings

SENTIMENTS = {-1: "negative", 0: "neutral", 1: "positive"}
KNOWN = {"sst2": ("text", "label"), "imdb": ("label", "rating", "text")}  # corpora with labels, and their columns
HELD_OUT = {"imdb": 12}  # where no texts are set aside to validate on, every twelfth is


@dataclass(frozen=True, kw_only=True)
class ClassificationData(SentenceData[LabelledText]):
    """Texts with labels; files are .tsv or .jsonl.

    Args:
        text: the name of the column of texts, or of the field of a .jsonl.
        label: the name of the column of labels, or of the field.
        columns: of a .tsv, the names of all in their order; left out, the text and then the label.
        phrases: of sst2, to train on labelled parts of the sentences as well.
        max_tokens: how many of a text are read: the first quarter of them, then the end of the text; 0 reads all.
    """

    examples: ClassVar[str] = "texts"
    files_hint: ClassVar[str] = '{split} = ["{split}.tsv"], or on the command line --{split} {split}.tsv'

    text: str = "text"
    label: str = "label"
    columns: tuple[str, ...] = ()
    phrases: bool = False
    max_tokens: int = 0

    def from_world(self, split: Split, count: int | None) -> list[LabelledText]:
        return [
            LabelledText(" ".join(one.words), SENTIMENTS[one.sentiment]) for one in self.world_sentences(split, count)
        ]

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[LabelledText]:
        fields, columns = (self.text, self.label), self.columns or None
        return self.read_nonempty(
            lambda on_empty: (
                one for path in paths for one in read_labelled(path, fields=fields, columns=columns, on_empty=on_empty)
            )
        )

    def from_corpus(self, split: Split, folder: Path | None) -> list[LabelledText]:
        if self.corpus not in KNOWN:
            raise ValueError(f"{self.corpus!r} is no known corpus of texts with labels; choose from {', '.join(KNOWN)}")
        every = None if split == "test" else HELD_OUT.get(self.corpus)
        files = ["train" if every else split] + (["phrases"] if self.phrases and split == "train" else [])
        paths = [corpus_path(self.corpus, file, folder) for file in files]
        texts = [one for path in paths for one in read_labelled(path, columns=KNOWN[self.corpus])]
        return split_held_out(texts, split, every) if every else texts


@dataclass(frozen=True, kw_only=True)
class ClassificationSettings(RunSettings):
    task: ClassVar[str] = "sequence_classification"

    data: ClassificationData = ClassificationData()
    text: TokenizerSettings = TokenizerSettings()
    words: WordEmbeddingConfig = WordEmbeddingConfig()
    model: EncoderConfig = EncoderConfig.from_size("transformer", "tiny")
    pooling: PoolingConfig = PoolingConfig()
    train: TrainSettings = TrainSettings(label_smoothing=0.0)

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
            train=world_training(steps=2000, batch_size=512, learning_rate=3e-3, warmup_steps=100, validate_every=400),
        )
