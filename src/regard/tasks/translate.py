"""Sentence pairs in; a trained translator out, and texts to translations with it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.models.building import build_model
from regard.models.seq2seq import Seq2Seq
from regard.models.weights import load_weights, tensors_of
from regard.tasks.settings import Settings, TextSettings
from regard.text.batches import Batch, Batches, Example, Long, collate, lengths_of
from regard.text.corpus import Pair
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


@dataclass(frozen=True)
class Smoothed:
    """Cross-entropy summed over the target tokens, a share `smoothing` of it against the uniform distribution."""

    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[Batch, int]) -> tuple[Tensor, int]:
        given, tokens = batch
        logits = model(given.source, given.source_lengths, given.target[:, :-1])
        wanted = given.target[:, 1:].flatten()
        summed = cross_entropy(
            logits.flatten(0, 1).float(), wanted, ignore_index=PAD, reduction="sum", label_smoothing=self.smoothing
        )
        return summed, tokens


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

    def describe(self, folder: Path) -> None:
        """All but the weights: settings.toml and both tokenisers."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "settings.toml").write_text(self.settings.to_toml(), encoding="utf-8")
        self.source.save(folder / "source.json")
        self.target.save(folder / "target.json")

    def save(self, folder: Path) -> None:
        self.describe(folder)
        save_file(tensors_of(self.model), folder / "model.safetensors")

    @staticmethod
    def load(folder: Path, device: str = "cpu") -> "Translator":
        translator = Translator.described(folder)
        load_weights(translator.model, folder / "model.safetensors")
        translator.model.to(device).eval()
        return translator

    @staticmethod
    def described(folder: Path) -> "Translator":
        """What `describe` wrote, with new weights."""
        if not (folder / "settings.toml").exists():
            raise ValueError(f"{folder} holds no translator: settings.toml is missing; train one with regard train")
        settings = Settings.from_toml((folder / "settings.toml").read_text(encoding="utf-8"))
        source, target = (load_tokeniser(folder / f"{side}.json") for side in ("source", "target"))
        torch.manual_seed(settings.train.seed)
        return Translator(build_model(settings.model, source.size, target.size), source, target, settings)
