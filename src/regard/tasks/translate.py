"""Sentence pairs in; a trained translator out, and texts to translations with it."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch
from einops import repeat
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.models.building import build_model
from regard.models.seq2seq import Seq2Seq
from regard.models.weights import load_weights, note_of, tensors_of, write_weights
from regard.tasks.job import Job
from regard.tasks.settings import Settings, TextSettings, TrainSettings
from regard.text.batches import Batch, Batches, Example, Long, collate, lengths_of
from regard.text.corpus import Pair
from regard.text.files import make_folder, write_whole
from regard.text.normal import Normal
from regard.text.saved import load_tokeniser
from regard.text.subwords import Subwords
from regard.text.vocabulary import PAD, Characters, Tokeniser, Words


@dataclass(frozen=True, eq=False)
class Corpus:
    """Training examples as ids; a step's batches by epoch and index."""

    examples: Sequence[Example] = field(repr=False)
    batches: Batches
    accumulate: int = 1
    device: str = "cpu"

    @staticmethod
    def of(examples: Sequence[Example], settings: Settings, device: str = "cpu") -> "Corpus":
        train = settings.train
        batches = Batches(
            lengths_of(examples), tokens=train.tokens, limit=train.longest, long=Long.DROP, seed=train.seed
        )
        if not len(batches):
            raise ValueError(f"all {len(examples)} pairs are longer than train.longest = {train.longest}; raise it")
        return Corpus(examples, batches, train.accumulate, device)

    def steps(self, epoch: int) -> int:
        return -(-len(self.batches) // self.accumulate)

    def at(self, epoch: int, index: int) -> list[tuple[Batch, int]]:
        rows = epoch_of(self.batches, epoch)[index * self.accumulate : (index + 1) * self.accumulate]
        made = [collate([self.examples[row] for row in part]) for part in rows]
        return [(batch.to(self.device), batch.tokens) for batch in made]


@lru_cache(maxsize=2)
def epoch_of(batches: Batches, epoch: int) -> list[list[int]]:
    return batches.epoch(epoch)


def precise(logits: Tensor) -> Tensor:
    """At least float32: a softmax over a vocabulary needs it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@dataclass(frozen=True)
class Smoothed:
    """Cross-entropy summed over the target tokens, a share `smoothing` of it against the uniform distribution."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[Batch, int]) -> tuple[Tensor, int]:
        given, tokens = batch
        logits = model(given.source, given.source_lengths, given.target[:, :-1])
        wanted = given.target[:, 1:].flatten()
        summed = cross_entropy(
            precise(logits).flatten(0, 1), wanted, ignore_index=PAD, reduction="sum", label_smoothing=self.smoothing
        )
        return summed, tokens


@dataclass(frozen=True)
class Consistent:
    """The loss of two passes under different dropout, and how far they disagree (R-Drop, Liang et al. 2021).

    Per token: the mean of both cross-entropies + weight · ½ (KL(p ‖ q) + KL(q ‖ p)). Small corpora gain most.
    """

    smoothing: float
    weight: float

    def __call__(self, model: nn.Module, batch: tuple[Batch, int]) -> tuple[Tensor, int]:
        given, tokens = batch
        source, lengths, target = (
            repeat(part, "b ... -> (two b) ...", two=2) for part in (given.source, given.source_lengths, given.target)
        )
        logits = precise(model(source, lengths, target[:, :-1]))
        wanted = target[:, 1:]
        summed = cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, reduction="sum", label_smoothing=self.smoothing
        )
        p, q = logits.log_softmax(-1).chunk(2)
        apart = ((p.exp() - q.exp()) * (p - q)).sum(-1)  # both directions of the divergence at once
        real = wanted.chunk(2)[0] != PAD
        return summed / 2 + self.weight * (apart * real).sum() / 2, tokens


def loss_of(settings: TrainSettings) -> Smoothed | Consistent:
    if settings.consistency:
        return Consistent(settings.smoothing, settings.consistency)
    return Smoothed(settings.smoothing)


def validation(
    model: nn.Module, examples: Sequence[Example], *, tokens: int = 8192, device: str = "cpu"
) -> dict[str, float]:
    """The mean negative log-probability of a held-out target token."""
    batches = Batches(lengths_of(examples), tokens=tokens, long=Long.ALONE)
    total, count = 0.0, 0
    for rows in batches.epoch(0):
        batch = collate([examples[row] for row in rows])
        summed, _ = Smoothed()(model, (batch.to(device), batch.tokens))
        total, count = total + summed.item(), count + batch.tokens
    return {"loss": total / count}


def tokenisers(pairs: Sequence[Pair], settings: TextSettings) -> tuple[Tokeniser, Tokeniser]:
    """One for each side; joint ones share their vocabulary."""
    normals = [
        Normal(lower=settings.lower, language=language or None)
        for language in (settings.source_language, settings.target_language)
    ]
    if settings.joint:
        texts = [
            normal.apply(text)
            for pair in pairs
            for normal, text in zip(normals, (pair.source, pair.target), strict=True)
        ]
        shared = learnt(texts, settings, Normal())
        source, target = (under(shared, normal) for normal in normals)
        return source, target
    source, target = (
        learnt([getattr(pair, side) for pair in pairs], settings, normal)
        for side, normal in zip(("source", "target"), normals, strict=True)
    )
    return source, target


def learnt(texts: Iterable[str], settings: TextSettings, normal: Normal) -> Tokeniser:
    match settings.kind:
        case "bpe":
            return Subwords.bpe(texts, size=settings.size, normal=normal)
        case "unigram":
            return Subwords.unigram(texts, size=settings.size, normal=normal)
        case "words":
            return Words.train(texts, size=settings.size, normal=normal)
        case _:
            return Characters.train(texts, normal=normal)


def under(tokeniser: Tokeniser, normal: Normal) -> Tokeniser:
    """The same vocabulary, reading through another normal form."""
    return replace(tokeniser, normal=normal)  # type: ignore[type-var]


def vocabularies(folder: Path) -> str:
    """A checksum of both tokenisers: others of the same size would fit the weights, and write nonsense."""
    both = ((folder / f"{side}.json").read_bytes() for side in ("source", "target"))
    return hashlib.sha256(b"".join(both)).hexdigest()


@dataclass(frozen=True, eq=False)
class Translator:
    """A model with what it needs to read and write text."""

    model: Seq2Seq
    source: Tokeniser
    target: Tokeniser
    settings: Settings

    @staticmethod
    def fresh(pairs: Sequence[Pair], settings: Settings) -> "Translator":
        """Vocabularies learnt from the pairs, and a model with new weights."""
        source, target = tokenisers(pairs, settings.text)
        torch.manual_seed(settings.train.seed)
        return Translator(build_model(settings.model, source.size, target.size), source, target, settings)

    def examples(self, pairs: Sequence[Pair]) -> list[Example]:
        sources = self.source.encode_all([pair.source for pair in pairs])
        targets = self.target.encode_all([pair.target for pair in pairs])
        return list(zip(sources, targets, strict=True))

    def text(self, ids: Iterable[int]) -> str:
        """What the model wrote, as people write it."""
        return self.target.normal.restore(self.target.decode(ids))

    def job(self, pairs: Sequence[Pair], held_out: Sequence[Pair], device: str = "cpu") -> Job:
        """The training of this translator on these pairs."""
        train = self.settings.train
        corpus = Corpus.of(self.examples(pairs), self.settings, device)
        kept = [example for example in self.examples(held_out) if max(map(len, example)) <= train.longest]
        if not kept:
            raise ValueError(
                f"of {len(held_out)} held-out pairs none is within train.longest = {train.longest}; raise it"
            )
        return Job(
            self.model.to(device),
            corpus,
            loss_of(train),
            lambda model: validation(model, kept, device=device),
            train,
            self.settings.model.model,
            self.describe,
            len(corpus.batches.dropped) + len(held_out) - len(kept),
        )

    def describe(self, folder: Path) -> str:
        """All but the weights: settings.toml and both tokenisers, whose checksum is what the weights note."""
        make_folder(folder)
        self.source.save(folder / "source.json")
        self.target.save(folder / "target.json")
        write_whole(folder / "settings.toml", self.settings.to_toml())  # last: what it describes is all there
        return vocabularies(folder)

    def save(self, folder: Path) -> None:
        note = self.describe(folder)
        write_weights(tensors_of(self.model), folder / "model.safetensors", note)

    @staticmethod
    def load(folder: Path, device: str = "cpu") -> "Translator":
        translator = Translator.described(folder)
        if not (folder / "model.safetensors").exists():
            raise ValueError(f"{folder} is not trained to the end; go on with it: regard train --out {folder}")
        load_weights(translator.model, folder / "model.safetensors")
        if note_of(folder / "model.safetensors") not in ("", vocabularies(folder)):
            raise ValueError(
                f"{folder}: source.json or target.json is not what the weights were trained with; put it back"
            )
        translator.model.to(device).eval()
        return translator

    @staticmethod
    def described(folder: Path) -> "Translator":
        """What `describe` wrote, with new weights."""
        if not (folder / "settings.toml").exists():
            raise ValueError(f"{folder} holds no translator: settings.toml is missing; train one with regard train")
        settings = Settings.load(folder / "settings.toml")
        source, target = (load_tokeniser(folder / f"{side}.json") for side in ("source", "target"))
        torch.manual_seed(settings.train.seed)
        return Translator(build_model(settings.model, source.size, target.size), source, target, settings)
