"""Sentences whose words are tagged in; a trained tagger out, and words to tags with it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.layers.recurrent import stop_asking
from regard.models.encoder import Encoder
from regard.models.encoder import Tagger as TaggingModel
from regard.models.labelling import begin
from regard.models.seq2seq import everywhere
from regard.models.spelling import Spelling
from regard.tasks.corpus import Corpus, in_batches, sent, short
from regard.tasks.job import Job
from regard.tasks.kept import Kept, settings_in
from regard.tasks.losses import precise
from regard.tasks.tag_settings import TagSettings
from regard.tasks.vocabularies import names_of, reading_with
from regard.text.batches import padded
from regard.text.conllu import NONE, Tagged
from regard.text.labelled import Labels
from regard.text.pieces import Pieces, first_pieces
from regard.text.saved import load_tokeniser
from regard.text.vocabulary import UNK, Characters, Tokeniser

UNTAGGED = -100  # stands for a word that has no tag, and for no word at all
MOST_LETTERS = 256  # of a word that are read: a table has room for the longest word's in every word
LETTERS = 8  # a table of letters has room for a multiple of so many in each word


@dataclass(frozen=True)
class Example:
    """A sentence as numbers: its pieces, the words' labels, the heads and letters of the pieces if the model asks."""

    pieces: Pieces
    labels: Sequence[int]
    heads: Sequence[int] | None = None
    letters: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, eq=False)
class TagBatch:
    """Padded sentences: what the model reads, and what each word is."""

    pieces: Int[Tensor, "b t"]
    lengths: Int[Tensor, " b"]
    first: Int[Tensor, "b w"]
    labels: Int[Tensor, "b w"]
    heads: Int[Tensor, "b t"] | None
    letters: Int[Tensor, "b t c"] | None

    @property
    def read(self) -> tuple[Tensor | None, ...]:
        return self.pieces, self.lengths, self.first, self.heads, self.letters

    def to(self, device: torch.device | str) -> "TagBatch":
        return everywhere(lambda part: sent(part, device), self)

    @property
    def tokens(self) -> int:
        return int((self.labels != UNTAGGED).sum())


def collate(examples: Sequence[Example]) -> TagBatch:
    pieces, lengths = padded([example.pieces.ids for example in examples])
    first = filled([example.pieces.firsts for example in examples], 0)
    labels = filled([example.labels for example in examples], UNTAGGED)
    heads = [example.heads for example in examples if example.heads is not None]
    letters = [example.letters for example in examples if example.letters is not None]
    return TagBatch(
        pieces, lengths, first, labels, filled(heads, 0) if heads else None, spelt(letters) if letters else None
    )


def filled(rows: Sequence[Sequence[int]], filler: int) -> Int[Tensor, "b w"]:
    table = np.full((len(rows), max(map(len, rows))), filler)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(table)


def spelt(sentences: Sequence[Sequence[Sequence[int]]]) -> Int[Tensor, "b t c"]:
    """Room for letters comes in steps, so that few shapes do."""
    sizes = np.zeros((len(sentences), max(map(len, sentences))), dtype=np.int64)
    for row, sentence in zip(sizes, sentences, strict=True):
        row[: len(sentence)] = [len(word) for word in sentence]
    room = max(1, -(-int(sizes.max()) // LETTERS)) * LETTERS
    table = np.zeros((*sizes.shape, room), dtype=np.int64)
    table[np.arange(room) < sizes[..., None]] = [letter for some in sentences for word in some for letter in word]
    return torch.from_numpy(table)


def filler(length: int, *, heads: bool, letters: bool) -> Example:
    """A sentence of words without tags."""
    pieces = Pieces([UNK] * length, list(range(length)))
    return Example(pieces, [UNTAGGED] * length, [0] * length if heads else None, [[UNK]] * length if letters else None)


def lengths_of(examples: Sequence[Example]) -> list[tuple[int, int]]:
    return [(len(example.pieces.ids), 0) for example in examples]


@dataclass(frozen=True)
class TagLoss:
    """Cross-entropy summed over the words that have a tag; a share of the pieces is hidden (`hide`)."""

    smoothing: float = 0.0
    hide: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[TagBatch, int]) -> tuple[Tensor, int]:
        given, tagged = batch
        if self.hide:
            hidden = torch.rand(given.pieces.shape, device=given.pieces.device) < self.hide
            given = replace(given, pieces=given.pieces.masked_fill(hidden, UNK))
        wanted = given.labels.flatten()
        summed = cross_entropy(
            precise(model(*given.read)).flatten(0, 1),
            wanted,
            ignore_index=UNTAGGED,
            reduction="sum",
            label_smoothing=self.smoothing,
        )
        return summed, tagged


@dataclass(frozen=True, eq=False)
class Tagger(Kept):
    """A model with the vocabulary it reads and the tags it knows."""

    model: TaggingModel
    words: Tokeniser
    labels: Labels
    letters: Tokeniser
    settings: TagSettings

    @staticmethod
    def fresh(sentences: Sequence[Tagged], settings: TagSettings) -> "Tagger":
        """A vocabulary, letters and tags from the sentences, and a model with new weights."""
        texts = [" ".join(sentence.words) for sentence in sentences]
        labels = Labels.of(tag for sentence in sentences for tag in sentence.tags if tag != NONE)
        return Tagger.of(reading_with(texts, settings.text, settings.words), labels, Characters.train(texts), settings)

    @staticmethod
    def of(words: Tokeniser, labels: Labels, letters: Tokeniser, settings: TagSettings) -> "Tagger":
        torch.manual_seed(settings.train.seed)
        spelling = Spelling(letters.size, settings.model.model) if settings.spelling.read else None
        model = TaggingModel(Encoder(settings.model, words.size), labels=len(labels), spelling=spelling)
        model.encoder.words.weight.requires_grad_(not settings.words.stays)
        return Tagger(model, words, labels, letters, settings)

    def examples(self, sentences: Iterable[Tagged]) -> list[Example]:
        return [self.example(sentence, f"sentence {number}") for number, sentence in enumerate(sentences, 1)]

    def example(self, sentence: Tagged, where: str = "the sentence") -> Example:
        """Trees are for models whose places are in them; a tag the model does not know is refused."""
        pieces, heads = first_pieces(self.words, sentence.words), None
        if self.model.encoder.wants_heads:
            if sentence.heads is None:
                raise ValueError(
                    f"{where} has no dependency heads, and the model's places are in trees; "
                    "give a .conllu with heads, or train with a place in the row"
                )
            heads = pieces.heads(sentence.heads)
        labels = [UNTAGGED if tag == NONE else self.labels.index(tag, where) for tag in sentence.tags]
        letters = (
            self.letters.encode_all(word[:MOST_LETTERS] for word in sentence.words)
            if self.settings.spelling.read
            else None
        )
        return Example(pieces, labels, heads, letters)

    def job(self, sentences: Sequence[Tagged], held_out: Sequence[Tagged], device: str = "cpu", /) -> Job:
        train, examples = self.settings.train, self.examples(sentences)
        heads = self.model.encoder.wants_heads
        fill = partial(filler, heads=heads, letters=self.settings.spelling.read)
        corpus = Corpus.of(examples, lengths_of, collate, train, device, filler=fill)
        held = short(self.examples(held_out), lengths_of, train)
        # every time anew: a run that was killed before its first checkpoint has nothing else to start from
        read, names = (example.pieces.ids for example in examples), names_of(self.words)
        begin(self.model.encoder.words, self.settings.words, read, vocabulary=names, seed=train.seed)
        if corpus.filler:
            stop_asking(self.model)
        return Job(
            self.model.to(device),
            corpus,
            TagLoss(train.smoothing, self.settings.spelling.hide),
            lambda model: validation(model, held, device),
            train,
            self.settings.model.model,
            self.describe,
            len(corpus.batches.dropped) + len(held_out) - len(held),
            unrecorded="the model's places are in trees, which only a CPU can follow" if heads else "",
        )

    def tags(self, sentences: Sequence[Tagged]) -> list[list[str]]:
        """The tags of the words; those the sentences have already play no part."""
        examples, found = self.examples(map(untagged, sentences)), [list[str]()] * len(sentences)
        device = str(next(self.model.parameters()).device)
        with torch.inference_mode():
            for rows, batch, _ in in_batches(examples, lengths_of, collate, device=device):
                for row, tags in zip(rows, self.model(*batch.read).argmax(-1).tolist(), strict=True):
                    found[row] = [self.labels.name(tag) for tag in tags[: len(sentences[row].words)]]
        return found

    def look(self, sentence: Tagged) -> "Seen":
        """The tags of one sentence, how sure the model is of each, and where every layer looked, by piece."""
        example = self.example(untagged(sentence))
        batch = collate([example]).to(next(self.model.parameters()).device)
        with torch.inference_mode():
            logits, looked = self.model.look(*batch.read)  # type: ignore[arg-type]
        sure, tags = logits[0].float().softmax(-1).max(-1)
        names = [self.labels.name(tag) for tag in tags.tolist()]
        return Seen(example.pieces, names, sure.cpu(), {name: one[0].cpu() for name, one in looked.weights.items()})

    @property
    def parts(self) -> dict[str, Tokeniser | Labels]:
        return {"words": self.words, "labels": self.labels, "letters": self.letters}

    @classmethod
    def described(cls, folder):
        settings = settings_in(folder, TagSettings)
        words, letters = (load_tokeniser(folder / f"{name}.json") for name in ("words", "letters"))
        return Tagger.of(words, Labels.load(folder / "labels.json"), letters, settings)


def validation(model: nn.Module, examples: Sequence[Example], device: str = "cpu") -> dict[str, float]:
    """The mean negative log-probability of a held-out tag, and the share of tags that are right."""
    total, right, count = 0.0, 0, 0
    for _, batch, tagged in in_batches(examples, lengths_of, collate, device=device):
        logits = precise(model(*batch.read))
        total += cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten(), ignore_index=UNTAGGED, reduction="sum"
        ).item()
        right, count = right + int((logits.argmax(-1) == batch.labels).sum()), count + tagged
    return {"loss": total / count, "accuracy": right / count}


@dataclass(frozen=True, eq=False)
class Seen:
    """What a tagger made of a sentence, and its weights by layer, between pieces."""

    pieces: Pieces
    tags: list[str]
    sure: Float[Tensor, " w"]
    weights: dict[str, Float[Tensor, "h t t"]]

    def by_word(self, weights: Float[Tensor, "t t"]) -> Float[Tensor, "w w"]:
        """How much each word looked at each: from its first piece, whose vector is tagged, at all pieces of a word."""
        rows = weights[self.pieces.firsts]
        return torch.stack([rows[:, start:stop].sum(1) for start, stop in self.pieces.spans], 1)


def untagged(sentence: Tagged) -> Tagged:
    return sentence.retagged([NONE] * len(sentence.words))
