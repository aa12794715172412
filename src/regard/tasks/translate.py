"""Sentence pairs in; a trained translator out, and texts to translations with it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.layers.packed_looks import fastest
from regard.models import packed
from regard.models.building import build_model
from regard.models.packed_layers import Layers, sizes
from regard.models.seq2seq import Seq2Seq
from regard.models.transformer import Transformer
from regard.models.work import flops
from regard.tasks.corpus import Corpus, in_batches, short
from regard.tasks.job import MANY, Job
from regard.tasks.kept import Kept, settings_in
from regard.tasks.packed import Pack, PackedCorpus
from regard.tasks.settings import Settings, TextSettings, TrainSettings
from regard.tasks.vocabularies import learnt
from regard.text.batches import Batch, Example, collate, lengths_of
from regard.text.corpus import Pair
from regard.text.normal import Normal
from regard.text.saved import load_tokeniser
from regard.text.vocabulary import PAD, Tokeniser


@dataclass(frozen=True)
class Smoothed:
    """Cross-entropy summed over the target tokens, a share `smoothing` of it against the uniform distribution."""

    smoothing: float = 0.0
    layers: Layers = Layers()

    def __call__(self, model: nn.Module, batch: tuple[Batch | Pack, int]) -> tuple[Tensor, int]:
        given, tokens = batch
        assert isinstance(model, Seq2Seq)
        x, wanted = read(model, given, self.layers)
        return model.cost(x, wanted, smoothing=self.smoothing, ignored=PAD), tokens


@dataclass(frozen=True)
class Consistent:
    """The loss of two passes under different dropout, and how far they disagree (R-Drop, Liang et al. 2021).

    Per token: the mean of both cross-entropies + weight · ½ (KL(p ‖ q) + KL(q ‖ p)). Small corpora gain most.
    """

    smoothing: float
    weight: float
    layers: Layers = Layers()

    def __call__(self, model: nn.Module, batch: tuple[Batch | Pack, int]) -> tuple[Tensor, int]:
        given, tokens = batch
        assert isinstance(model, Seq2Seq)
        x, wanted = read(model, twice(given), self.layers)
        return model.cost(x, wanted, smoothing=self.smoothing, ignored=PAD, consistency=self.weight), tokens


def read(model: Seq2Seq, given: Batch | Pack, layers: Layers) -> tuple[Float[Tensor, "b t model"], Int[Tensor, "b t"]]:
    """What tells each next word, and which it should be."""
    if isinstance(given, Batch):
        return model.states(given.source, given.source_lengths, given.target[:, :-1]), given.target[:, 1:]
    assert isinstance(model, Transformer)  # or it objected
    return packed.states(model, given.source, given.target, layers), given.wanted


def twice(given: Batch | Pack) -> Batch | Pack:
    """Every sentence two times, first all of them, then all again."""
    if isinstance(given, Pack):
        return given.twice()
    parts = (given.source, given.source_lengths, given.target, given.target_lengths)
    return Batch(*(repeat(part, "b ... -> (two b) ...", two=2) for part in parts))


def loss_of(settings: TrainSettings, layers: Layers = Layers()) -> Smoothed | Consistent:
    if settings.consistency:
        return Consistent(settings.smoothing, settings.consistency, layers)
    return Smoothed(settings.smoothing, layers)


def layers_of(model: nn.Module, corpus: PackedCorpus, precision: str) -> Layers:
    """The fastest that give the same bits every time: on a GPU, by kernels of ours."""
    if torch.device(corpus.device).type == "cpu":
        return Layers()
    assert isinstance(model, Transformer)  # or it objected
    head = max(sizes(attention)[1] for _, attention in packed.attentions(model))
    return Layers.by_kernels(fastest(corpus.wanted.shape[1], head, precision))


def validation(
    model: nn.Module, examples: Sequence[Example], *, tokens: int = 8192, device: str = "cpu"
) -> dict[str, float]:
    """The mean negative log-probability of a held-out target token."""
    total, count = 0.0, 0
    for _, batch, predictions in in_batches(examples, lengths_of, collate, tokens=tokens, device=device):
        summed, _ = Smoothed()(model, (batch, predictions))
        total, count = total + summed.item(), count + predictions
    return {"loss": total / count}


def pair_job(learner: Kept, examples: Sequence[Example], held_out: Sequence[Example], device: str) -> Job:
    """The training of whatever writes a target for a source."""
    train = learner.settings.train
    if train.packed and (why := packed.objections(learner.model)):
        raise ValueError(f"train.packed = true cannot be had: {'; '.join(why)}; leave it out")
    corpus = (
        PackedCorpus.of(examples, train, device)
        if train.packed
        else Corpus.of(examples, lengths_of, collate, train, device)
    )
    layers = layers_of(learner.model, corpus, train.precision) if isinstance(corpus, PackedCorpus) else Layers()
    held = short(held_out, lengths_of, train)
    return Job(
        learner.model.to(device),
        corpus,
        loss_of(train, layers.compiled() if train.compile else layers),
        lambda model: validation(model, held, device=device),
        train,
        learner.settings.model.model,
        learner.describe,
        corpus.left_out + len(held_out) - len(held),
        asked_of(learner.model, examples, train),
        unrecorded="" if train.packed else MANY,
    )


def asked_of(model: nn.Module, examples: Sequence[Example], train: TrainSettings) -> float | None:
    """FLOPs for each target token; R-Drop passes twice."""
    if not isinstance(model, Transformer):
        return None
    lengths = [(len(source) + 1, len(target) + 1) for source, target in examples]
    return flops(model, lengths) / sum(target for _, target in lengths) * (2 if train.consistency else 1)


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


def under(tokeniser: Tokeniser, normal: Normal) -> Tokeniser:
    """The same vocabulary, reading through another normal form."""
    return replace(tokeniser, normal=normal)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class Translator(Kept):
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
        return pair_job(self, self.examples(pairs), self.examples(held_out), device)

    @property
    def parts(self) -> dict[str, Tokeniser]:
        return {"source": self.source, "target": self.target}

    @classmethod
    def described(cls, folder):
        settings = settings_in(folder, Settings)
        source, target = (load_tokeniser(folder / f"{side}.json") for side in ("source", "target"))
        torch.manual_seed(settings.train.seed)
        return Translator(build_model(settings.model, source.size, target.size), source, target, settings)
