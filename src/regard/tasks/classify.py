"""Texts with a label each in; a trained classifier out, and texts to labels with it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from einops import repeat
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.layers.recurrent import stop_asking
from regard.models.counting import OneHot
from regard.models.encoder import Classifier
from regard.models.labelling import assert_fit, build_classifier, prepare
from regard.models.reading_config import EncoderConfig, PoolingConfig, WordsConfig
from regard.tasks.corpus import Corpus, in_batches, sent, short
from regard.tasks.data import Read, Sources, Split, divided, read_from
from regard.tasks.job import Job
from regard.tasks.kept import Kept, settings_in
from regard.tasks.losses import disagreement, precise
from regard.tasks.settings import ReadingSettings, TrainSettings
from regard.tasks.tables import From, Tables
from regard.tasks.vocabularies import names_of, reading_with
from regard.text.batches import padded
from regard.text.known import known_path
from regard.text.labelled import Labelled, Labels, read_labelled, refuse
from regard.text.ngrams import Ids, Ngrams
from regard.text.saved import load_tokeniser
from regard.text.vocabulary import UNK, Tokeniser
from regard.world import World

Example = tuple[Ids, int]  # the terms of a text, and its label
UNLABELLED = -100  # as in torch: nothing is learnt of such a text
FEELINGS = {-1: "negative", 0: "neutral", 1: "positive"}
KNOWN = {"sst2": ("text", "label"), "imdb": ("label", "rating", "text")}  # corpora with labels, and their columns
HELD_OUT = {"imdb": 12}  # where no texts are set aside to validate on, every twelfth is


@dataclass(frozen=True, kw_only=True)
class ClassifyData(From):
    """Texts with labels; files are .tsv or .jsonl."""

    text: str = "text"  # the names of the two columns, or of the fields of a .jsonl
    label: str = "label"
    columns: tuple[str, ...] = ()  # of a .tsv, all in their order; left out, the text and then the label
    phrases: bool = False  # for sst2: train on labelled parts of the sentences as well
    most: int = 0  # ids of a text that are read: the first quarter of them, then the end of the text; 0 reads all
    sentences: int = 20_000  # for the world: how many, and of how many words
    shortest: int = 3
    longest: int = 12


@dataclass(frozen=True, kw_only=True)
class ClassifySettings(Tables):
    """Of classification."""

    task: ClassVar[str] = "classify"

    data: ClassifyData = field(default_factory=ClassifyData)
    text: ReadingSettings = field(default_factory=ReadingSettings)
    words: WordsConfig = field(default_factory=WordsConfig)
    model: EncoderConfig = field(default_factory=lambda: EncoderConfig.named("transformer", "tiny"))
    pooling: PoolingConfig = field(default_factory=PoolingConfig)
    train: TrainSettings = field(default_factory=lambda: TrainSettings(smoothing=0.0))

    def __post_init__(self):
        assert_fit(self.words, self.model, self.pooling)

    @classmethod
    def of_world(cls):
        """Is a sentence of the miniature world kind, unkind or neither? In a minute."""
        rotary = 'position = "Rotary()"'
        return cls(
            data=ClassifyData(sentences=40_000),
            text=ReadingSettings(kind="words"),
            model=EncoderConfig(
                kind="transformer", layers=2, model=64, heads=4, hidden=128, dropout=0.0, recipe=rotary
            ),
            train=TrainSettings(steps=2000, tokens=512, rate=3e-3, warmup=100, smoothing=0.0, validate_every=400),
        )


def read_texts(settings: ClassifySettings, split: Split, folder: Path | None = None) -> Read[Labelled]:
    """The texts of a split."""
    data = settings.data

    def of_world(split: Split, count: int | None) -> list[Labelled]:
        world = World(shortest=data.shortest, longest=data.longest)
        sentences = (world.sentence(number, split) for number in range(count or data.sentences))
        return [Labelled(" ".join(one.words), FEELINGS[one.sentiment]) for one in sentences]

    def of_files(paths: Sequence[str]) -> Read[Labelled]:
        skipped: list[str] = []
        blank: Callable[[str], object] = skipped.append if data.skip_empty else refuse
        fields, columns = (data.text, data.label), data.columns or None
        texts = (read_labelled(path, fields=fields, columns=columns, blank=blank) for path in paths)
        return Read([one for some in texts for one in some], tuple(skipped))

    sources = Sources(
        world=of_world,
        files=of_files,
        known=lambda name, split, folder: known_texts(data, name, split, folder),
        examples="texts",
        files_called=lambda split: f'{split} = ["{split}.tsv"], or on the command line --{split} {split}.tsv',
    )
    return read_from(sources, data, split, folder)


def known_texts(data: ClassifyData, name: str, split: Split, folder: Path | None) -> list[Labelled]:
    if name not in KNOWN:
        raise ValueError(f"{name!r} is no known corpus of texts with labels; choose from {', '.join(KNOWN)}")
    every = None if split == "test" else HELD_OUT.get(name)
    files = ["train" if every else split] + (["phrases"] if data.phrases and split == "train" else [])
    paths = [known_path(name, file, folder) for file in files]
    texts = [one for path in paths for one in read_labelled(path, columns=KNOWN[name])]
    return divided(texts, split, every) if every else texts


@dataclass(frozen=True, eq=False)
class TextBatch:
    """Padded texts and their labels."""

    terms: Int[Tensor, "b t"]
    lengths: Int[Tensor, " b"]
    labels: Int[Tensor, " b"]

    def to(self, device: torch.device | str) -> "TextBatch":
        return TextBatch(*(sent(part, device) for part in (self.terms, self.lengths, self.labels)))

    @property
    def tokens(self) -> int:
        return int((self.labels != UNLABELLED).sum())


def collate(examples: Sequence[Example]) -> TextBatch:
    return TextBatch(*padded([terms for terms, _ in examples]), torch.tensor([label for _, label in examples]))  # type: ignore[arg-type]


def filler(length: int) -> Example:
    """A text that has no label."""
    return np.full(length, UNK), UNLABELLED


def lengths_of(examples: Sequence[Example]) -> list[tuple[int, int]]:
    return [(len(terms), 0) for terms, _ in examples]


@dataclass(frozen=True)
class LabelLoss:
    """Cross-entropy of labels, summed over texts, some words of which are left out (`dropout`).

    With `consistency`, two passes under different dropout must agree as well (R-Drop, Liang et al. 2021).
    """

    smoothing: float = 0.0
    consistency: float = 0.0
    dropout: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[TextBatch, int]) -> tuple[Tensor, int]:
        given, texts = batch
        passes = 2 if self.consistency else 1
        terms, lengths, labels = (
            repeat(part, "b ... -> (passes b) ...", passes=passes)
            for part in (given.terms, given.lengths, given.labels)
        )
        if self.dropout:
            terms = terms.masked_fill(torch.rand(terms.shape, device=terms.device) < self.dropout, UNK)
        logits = precise(model(terms, lengths))
        summed = cross_entropy(logits, labels, reduction="sum", label_smoothing=self.smoothing) / passes
        if self.consistency:
            apart = disagreement(logits).where(given.labels != UNLABELLED, 0.0)
            summed = summed + self.consistency * apart.sum() / 2
        return summed, texts


@dataclass(frozen=True)
class Judged:
    """A text's label, and how probable each label is, in the order of their names."""

    label: str
    probabilities: tuple[float, ...]

    @property
    def probability(self) -> float:
        return max(self.probabilities)


@dataclass(frozen=True, eq=False)
class TextClassifier(Kept):
    """A model with the vocabulary it reads and the labels it knows."""

    model: Classifier | OneHot
    words: Tokeniser
    labels: Labels
    settings: ClassifySettings

    @staticmethod
    def fresh(texts: Sequence[Labelled], settings: ClassifySettings) -> "TextClassifier":
        """A vocabulary and labels from the texts, and a model with new weights."""
        words = reading_with((one.text for one in texts), settings.text, settings.words)
        return TextClassifier.of(words, Labels.of(one.label for one in texts), settings)

    @staticmethod
    def of(words: Tokeniser, labels: Labels, settings: ClassifySettings) -> "TextClassifier":
        torch.manual_seed(settings.train.seed)
        size = terms_of(words, settings.words).size
        model = build_classifier(settings.words, settings.model, settings.pooling, size=size, labels=len(labels))
        return TextClassifier(model, words, labels, settings)

    def ids(self, text: str) -> list[int]:
        """Those of the text that are read; of a text without any, an unknown one."""
        ids = self.words.encode(text) or [UNK]
        return [ids[place] for place in self.places(len(ids))]

    def places(self, count: int) -> list[int]:
        """Which of so many ids are read."""
        most = self.settings.data.most
        return [*range(most // 4), *range(count + most // 4 - most, count)] if 0 < most < count else [*range(count)]

    def terms(self, text: str) -> Ids:
        return terms_of(self.words, self.settings.words).terms(self.ids(text))

    def examples(self, texts: Iterable[Labelled]) -> list[Example]:
        """A label that the model does not know is refused."""
        return [
            (self.terms(one.text), self.labels.index(one.label, f"text {number}"))
            for number, one in enumerate(texts, 1)
        ]

    def job(self, texts: Sequence[Labelled], held_out: Sequence[Labelled], device: str = "cpu", /) -> Job:
        train, examples = self.settings.train, self.examples(texts)
        corpus = Corpus.of(examples, lengths_of, collate, train, device, filler=filler)
        held, one_hot = short(self.examples(held_out), lengths_of, train), isinstance(self.model, OneHot)
        # every time anew: a run that was killed before its first checkpoint has nothing else to start from
        terms, labels = zip(*examples, strict=True)
        prepare(self.model, self.settings.words, terms, labels, vocabulary=names_of(self.words), seed=train.seed)
        if corpus.filler:
            stop_asking(self.model)
        return Job(
            self.model.to(device),
            corpus,
            LabelLoss(train.smoothing, train.consistency, self.settings.words.dropout),
            lambda model: validation(model, held, device),
            train,
            self.settings.model.model,
            self.describe,
            len(corpus.batches.dropped) + len(held_out) - len(held),
            unrecorded="words.kind = 'one-hot' has but a few kernels to tell" if one_hot else "",
        )

    def judge(self, texts: Sequence[str], device: str = "cpu") -> list[Judged]:
        """What each text is, and how surely."""
        examples, found = [(self.terms(text), 0) for text in texts], list[Judged | None]([None]) * len(texts)
        if not texts:
            return []
        with torch.inference_mode():
            for rows, batch, _ in in_batches(examples, lengths_of, collate, device=device):
                for row, sure in zip(rows, self.model(batch.terms, batch.lengths).softmax(-1).tolist(), strict=True):
                    found[row] = Judged(self.labels.name(sure.index(max(sure))), tuple(sure))
        return [one for one in found if one is not None]

    @property
    def parts(self) -> dict[str, Tokeniser | Labels]:
        return {"words": self.words, "labels": self.labels}

    @classmethod
    def described(cls, folder):
        settings = settings_in(folder, ClassifySettings)
        return TextClassifier.of(load_tokeniser(folder / "words.json"), Labels.load(folder / "labels.json"), settings)


def terms_of(words: Tokeniser, config: WordsConfig) -> Ngrams:
    return Ngrams(words.size, config.ngrams, config.buckets)


def validation(model: nn.Module, examples: Sequence[Example], device: str = "cpu") -> dict[str, float]:
    """The mean negative log-probability of a held-out label, and the share of texts whose label is found."""
    total, right = 0.0, 0
    for _, batch, _ in in_batches(examples, lengths_of, collate, device=device):
        logits = model(batch.terms, batch.lengths).float()
        total += cross_entropy(logits, batch.labels, reduction="sum").item()
        right += int((logits.argmax(-1) == batch.labels).sum())
    return {"loss": total / len(examples), "accuracy": right / len(examples)}
