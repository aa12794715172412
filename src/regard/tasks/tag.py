"""Sentences whose words are tagged in; a trained tagger out, and words to tags with it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.models.encoder import Encoder
from regard.models.encoder import Tagger as TaggingModel
from regard.models.reading_config import EncoderConfig
from regard.tasks import kept
from regard.tasks.corpus import Corpus, in_batches, short
from regard.tasks.data import Read, Sources, Split, read_from
from regard.tasks.job import Job
from regard.tasks.settings import ReadingSettings, TrainSettings
from regard.tasks.tables import From, Tables
from regard.tasks.vocabularies import reading
from regard.text.batches import padded
from regard.text.conllu import NONE, Tagged, read_tagged
from regard.text.known import known_path
from regard.text.labelled import Labels
from regard.text.pieces import Pieces, first_pieces
from regard.text.saved import load_tokeniser
from regard.text.vocabulary import Tokeniser
from regard.world import World

UNTAGGED = -100  # stands for a word that has no tag, and for no word at all
Example = tuple[Pieces, Sequence[int], Sequence[int]]  # pieces, the words' labels, the pieces' heads (none: empty)


@dataclass(frozen=True, kw_only=True)
class TagData(From):
    """Tagged sentences; files are .conllu, or two columns in a .tsv or .txt."""

    sentences: int = 20_000  # for the world: how many, and of how many words
    shortest: int = 3
    longest: int = 12


@dataclass(frozen=True, kw_only=True)
class TagSettings(Tables):
    """Of tagging."""

    task: ClassVar[str] = "tag"

    data: TagData = field(default_factory=TagData)
    text: ReadingSettings = field(default_factory=ReadingSettings)
    model: EncoderConfig = field(default_factory=lambda: EncoderConfig.named("transformer", "tiny"))
    train: TrainSettings = field(default_factory=lambda: TrainSettings(smoothing=0.0))

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


@dataclass(frozen=True, eq=False)
class TagBatch:
    """Padded sentences: pieces, where each word begins among them, and what it is."""

    pieces: Int[Tensor, "b t"]
    lengths: Int[Tensor, " b"]
    first: Int[Tensor, "b w"]
    labels: Int[Tensor, "b w"]
    heads: Int[Tensor, "b t"] | None

    def to(self, device: torch.device | str) -> "TagBatch":
        parts = (self.pieces, self.lengths, self.first, self.labels)
        pieces, lengths, first, labels = (part.to(device) for part in parts)
        return TagBatch(pieces, lengths, first, labels, None if self.heads is None else self.heads.to(device))

    @property
    def tokens(self) -> int:
        return int((self.labels != UNTAGGED).sum())


def collate(examples: Sequence[Example]) -> TagBatch:
    pieces, lengths = padded([pieces.ids for pieces, _, _ in examples])
    first = filled([pieces.firsts for pieces, _, _ in examples], 0)
    labels = filled([labels for _, labels, _ in examples], UNTAGGED)
    trees = [heads for _, _, heads in examples]
    return TagBatch(pieces, lengths, first, labels, filled(trees, 0) if all(trees) else None)


def filled(rows: Sequence[Sequence[int]], filler: int) -> Int[Tensor, "b w"]:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=filler)


def lengths_of(examples: Sequence[Example]) -> list[tuple[int, int]]:
    return [(len(pieces.ids), 0) for pieces, _, _ in examples]


def tag_loss(smoothing: float):
    """Cross-entropy summed over the words that have a tag."""

    def loss(model: nn.Module, batch: tuple[TagBatch, int]) -> tuple[Tensor, int]:
        given, tagged = batch
        logits = model(given.pieces, given.lengths, given.first, given.heads).float()
        wanted = given.labels.flatten()
        summed = cross_entropy(
            logits.flatten(0, 1), wanted, ignore_index=UNTAGGED, reduction="sum", label_smoothing=smoothing
        )
        return summed, tagged

    return loss


@dataclass(frozen=True, eq=False)
class Tagger:
    """A model with the vocabulary it reads and the tags it knows."""

    model: TaggingModel
    words: Tokeniser
    labels: Labels
    settings: TagSettings

    @staticmethod
    def fresh(sentences: Sequence[Tagged], settings: TagSettings) -> "Tagger":
        """A vocabulary and tags from the sentences, and a model with new weights."""
        words = reading((" ".join(sentence.words) for sentence in sentences), settings.text)
        labels = Labels.of(tag for sentence in sentences for tag in sentence.tags if tag != NONE)
        return Tagger.of(words, labels, settings)

    @staticmethod
    def of(words: Tokeniser, labels: Labels, settings: TagSettings) -> "Tagger":
        torch.manual_seed(settings.train.seed)
        return Tagger(TaggingModel(Encoder(settings.model, words.size), labels=len(labels)), words, labels, settings)

    def examples(self, sentences: Iterable[Tagged]) -> list[Example]:
        return [self.example(sentence, number) for number, sentence in enumerate(sentences, 1)]

    def example(self, sentence: Tagged, number: int = 1) -> Example:
        """Trees are for models whose places are in them; a tag the model does not know is refused."""
        pieces, heads = first_pieces(self.words, sentence.words), []
        if self.model.encoder.wants_heads:
            if sentence.heads is None:
                raise ValueError(
                    f"sentence {number} has no dependency heads, and {self.settings.model.recipe!r} wants them; "
                    "give a .conllu with heads, or train with a place in the row"
                )
            heads = pieces.heads(sentence.heads)
        where = f"sentence {number}"
        labels = [UNTAGGED if tag == NONE else self.labels.index(tag, where) for tag in sentence.tags]
        return pieces, labels, heads

    def job(self, sentences: Sequence[Tagged], held_out: Sequence[Tagged], device: str = "cpu", /) -> Job:
        train = self.settings.train
        corpus = Corpus.of(self.examples(sentences), lengths_of, collate, train, device)
        held = short(self.examples(held_out), lengths_of, train)
        return Job(
            self.model.to(device),
            corpus,
            tag_loss(train.smoothing),
            lambda model: validation(model, held, device),
            train,
            self.settings.model.model,
            self.describe,
            len(corpus.batches.dropped) + len(held_out) - len(held),
        )

    def tags(self, sentences: Sequence[Tagged], device: str = "cpu") -> list[list[str]]:
        """The tags of the words; those the sentences have already play no part."""
        untagged = [sentence.retagged([NONE] * len(sentence.words)) for sentence in sentences]
        examples, found = self.examples(untagged), [list[str]()] * len(sentences)
        with torch.inference_mode():
            for rows, batch, _ in in_batches(examples, lengths_of, collate, device=device):
                chosen = self.model(batch.pieces, batch.lengths, batch.first, batch.heads).argmax(-1).tolist()
                for row, tags in zip(rows, chosen, strict=True):
                    found[row] = [self.labels.name(tag) for tag in tags[: len(sentences[row].words)]]
        return found

    @property
    def parts(self) -> dict[str, Tokeniser | Labels]:
        return {"words": self.words, "labels": self.labels}

    def describe(self, folder: Path) -> str:
        return kept.describe(folder, self.settings, self.parts)

    def save(self, folder: Path) -> None:
        kept.save(self.model, folder, self.settings, self.parts)

    @staticmethod
    def described(folder: Path) -> "Tagger":
        """What `describe` wrote, with new weights."""
        settings = kept.settings_in(folder, TagSettings)
        return Tagger.of(load_tokeniser(folder / "words.json"), Labels.load(folder / "labels.json"), settings)

    @staticmethod
    def load(folder: Path, device: str = "cpu") -> "Tagger":
        tagger = Tagger.described(folder)
        kept.load(tagger.model, folder, tagger.parts, device)
        return tagger


def validation(model: nn.Module, examples: Sequence[Example], device: str = "cpu") -> dict[str, float]:
    """The mean negative log-probability of a held-out tag, and the share of tags that are right."""
    total, right, count = 0.0, 0, 0
    for _, batch, tagged in in_batches(examples, lengths_of, collate, device=device):
        logits = model(batch.pieces, batch.lengths, batch.first, batch.heads).float()
        total += cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten(), ignore_index=UNTAGGED, reduction="sum"
        ).item()
        right, count = right + int((logits.argmax(-1) == batch.labels).sum()), count + tagged
    return {"loss": total / count, "accuracy": right / count}
