"""Losses of hard attention: REINFORCE, the exact expectation, plain cross-entropy; and the noise of their gradients.

    CrossEntropyLoss()   soft attention, and Hard(StraightThrough()), which differentiates as if it were soft
    ReinforceLoss()      Hard(Sampled()): the word drawn becomes likelier if it did better than the baseline guessed
    ExpectedLoss()       the sum over every word that could be drawn: what the others estimate, where it is affordable

Each is a `Loss` for the training loop. Their value is the cross-entropy of the labels; what else there is to learn
comes by its gradient alone. After training, `model.eval()` takes the best word, the same every time.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.attention import Softmax, record_steps, reinforce, steps
from regard.data.batching import Ids, pad_rows
from regard.layers.pooling import AttentionPooling, MeanPooling, Weights
from regard.models.encoder import Lengths, SequenceClassifier, Tokens, X
from regard.training.config import Loss, to_float32

Logits = Float[Tensor, "b labels"]
Example = tuple[Ids, int]  # a text and the number of its label


@dataclass(frozen=True, eq=False)
class LabelledBatch:
    """A batch: text b ends after lengths[b] pieces, and labels[b] is the number of its label."""

    pieces: Tokens
    lengths: Lengths
    labels: Int[Tensor, " b"]

    def __post_init__(self):
        if not len(self.pieces) == len(self.lengths) == len(self.labels):
            raise ValueError(
                f"{len(self.pieces)} texts, {len(self.lengths)} lengths and {len(self.labels)} labels; "
                "every text needs one of each"
            )

    def to(self, device: torch.device | str) -> "LabelledBatch":
        return LabelledBatch(*(part.to(device) for part in (self.pieces, self.lengths, self.labels)))

    @property
    def tokens(self) -> int:
        """How many predictions it asks for: a label for each text."""
        return len(self.labels)


def collate(examples: Sequence[Example]) -> LabelledBatch:
    return LabelledBatch(*pad_rows([ids for ids, _ in examples]), torch.tensor([label for _, label in examples]))


def lengths_of(examples: Sequence[Example]) -> list[tuple[int, int]]:
    return [(len(ids), 0) for ids, _ in examples]


# --- what is trained ---


class Baseline(nn.Module, ABC):
    """Abstract: guesses how well a text will go, for every label that could be the right one.

    It may know all but the word drawn: whatever does not depend on the draw leaves the gradient's mean as it is.
    """

    @abstractmethod
    def forward(self, x: X, tokens: Tokens, lengths: Lengths) -> Logits:
        """The reward expected, from the vectors of all words."""


class NoBaseline(Baseline):
    """Always 0, so that every draw that did anything but perfectly is made rarer."""

    def __init__(self, labels: int):
        super().__init__()
        self.labels = labels

    def forward(self, x, tokens, lengths):
        return x.new_zeros(len(x), self.labels)


class LearnedBaseline(Baseline):
    """A small network on the mean of the words' vectors."""

    def __init__(self, width: int, *, labels: int, hidden: int = 32):
        super().__init__()
        self.mean = MeanPooling()
        self.guess = nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, labels))

    def forward(self, x, tokens, lengths):
        return self.guess(self.mean(x, tokens, lengths))


class HardAttentionClassifier(nn.Module):
    """A classifier, and beside it the baseline that training needs. It labels as the classifier alone does."""

    def __init__(self, classifier: SequenceClassifier, baseline: Baseline):
        super().__init__()
        self.classifier, self.baseline = classifier, baseline

    def forward(self, tokens: Tokens, lengths: Lengths) -> Logits:
        return self.classifier(tokens, lengths)


# --- the losses ---


@dataclass(frozen=True)
class CrossEntropyLoss:
    """-log p(label), whatever the model attended to."""

    def __call__(self, model: nn.Module, batch: tuple[LabelledBatch, int]) -> tuple[Tensor, int]:
        texts, count = batch
        return label_nll(model(texts.pieces, texts.lengths), texts.labels).sum(), count


@dataclass(frozen=True)
class ReinforceLoss:
    """A word is drawn, and its reward is log p(label) (Williams 1992; for attention, Xu et al. 2015).

    The gradient is that of -log p(label) for the word drawn, and of -(reward - baseline) log p(word). The baseline
    learns to guess the reward by its squared error, and from nothing else.

    Args:
        entropy: rewards an open mind: so much for each nat of entropy of the words' chances, lest a word that was lucky
            once be chosen for ever. It is a reward of its own, so the gradient is no longer of log p(label) alone.
    """

    entropy: float = 0.0

    def __post_init__(self):
        if self.entropy < 0:
            raise ValueError(f"entropy={self.entropy} would reward a closed mind; it must be 0 or more")

    def __call__(self, model: nn.Module, batch: tuple[LabelledBatch, int]) -> tuple[Tensor, int]:
        if not isinstance(model, HardAttentionClassifier):
            raise ValueError(
                f"REINFORCE needs a baseline, which a {type(model).__name__} has not; "
                "wrap it in a HardAttentionClassifier"
            )
        texts, count = batch
        classifier, where = model.classifier, (texts.pieces, texts.lengths)
        x = classifier.encoder(*where)
        with record_steps(classifier) as record:
            vector = classifier.pooling(x, *where)
        drawn = record.log_probability("pooling") if isinstance(classifier.pooling, AttentionPooling) else None
        if drawn is None:
            raise ValueError(
                "no word was drawn: REINFORCE trains an AttentionPooling whose normaliser is Hard(Sampled()), after "
                "model.train(); to measure a model, use CrossEntropyLoss()"
            )
        cost = label_nll(classifier.output(vector), texts.labels)
        guess = model.baseline(x.detach(), *where).gather(1, texts.labels[:, None])[:, 0]
        unseen = (
            len(cost) * reinforce(rearrange(drawn, "b 1 1 -> b"), -cost, guess) + (guess + cost.detach()).square().sum()
        )
        if self.entropy:
            unseen = unseen - self.entropy * entropy(word_probabilities(classifier, x, texts.lengths)).sum()
        return cost.sum() + unseen - unseen.detach(), count


@dataclass(frozen=True)
class ExpectedLoss:
    """Σ_words p(word) · -log p(label | word): no draw, no noise, and a label to be guessed for every word."""

    def __call__(self, model: nn.Module, batch: tuple[LabelledBatch, int]) -> tuple[Tensor, int]:
        classifier = model.classifier if isinstance(model, HardAttentionClassifier) else model
        if not isinstance(classifier, SequenceClassifier):
            raise ValueError(
                f"only a SequenceClassifier or a HardAttentionClassifier chooses words, not a {type(model).__name__}"
            )
        texts, count = batch
        x = classifier.encoder(texts.pieces, texts.lengths)
        # of every word, as if it alone had been attended to
        logits = rearrange(classifier.output(x), "b t labels -> (b t) labels")
        cost = label_nll(logits, repeat(texts.labels, "b -> (b t)", t=x.shape[1]))
        cost = rearrange(cost, "(b t) -> b t", b=len(x))
        return (word_probabilities(classifier, x, texts.lengths) * cost).sum(), count


def label_nll(logits: Logits, labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    return cross_entropy(to_float32(logits), labels, reduction="none")


def word_probabilities(classifier: SequenceClassifier, x: X, lengths: Lengths) -> Weights:
    """With what probability each word is drawn: its soft weight."""
    pooling = classifier.pooling
    if not isinstance(pooling, AttentionPooling):
        raise ValueError(f"{type(pooling).__name__} draws no word; use AttentionPooling")
    soft = replace(pooling.effective_recipe(lengths), normaliser=Softmax())
    return rearrange(steps(*pooling.query_keys_values(x), soft).weights, "b 1 1 t -> b t")


def entropy(chances: Weights) -> Float[Tensor, " b"]:
    """Of each row, in nats; a chance of 0 adds nothing, and no gradient that is not a number."""
    return -(chances * chances.clamp(min=torch.finfo(chances.dtype).tiny).log()).sum(-1)


# --- the noise of a gradient estimate ---


@dataclass(frozen=True)
class GradientNoise:
    """Of a gradient estimated many times at the same weights on the same batch.

    Args:
        norm: of the mean gradient.
        variance: the mean squared distance of an estimate from the mean: the trace of the covariance.
        bias: the distance of the mean from the true gradient, divided by the true one's norm.
        bias_error: the `bias` expected of an unbiased estimate, because the draws are finite.
        cosine: between the mean and the true gradient.
    """

    norm: float
    variance: float
    bias: float
    bias_error: float
    cosine: float

    @property
    def relative(self) -> float:
        """The variance in units of the squared mean: at 1 a step is as much noise as signal."""
        return self.variance / self.norm**2 if self.norm else inf

    @staticmethod
    def of(estimates: Float[Tensor, "draws weights"], true: Float[Tensor, " weights"]) -> "GradientNoise":
        if len(estimates) < 2:
            raise ValueError(f"{len(estimates)} draws have no variance; draw at least 2")
        estimates, true = estimates.double(), true.double()
        mean = estimates.mean(0)
        variance = (estimates - mean).square().sum() / (len(estimates) - 1)
        # the squared norm of a noisy mean is too large by the variance of the mean
        norm = (mean.square().sum() - variance / len(estimates)).clamp(min=0).sqrt()
        return GradientNoise(
            norm=norm.item(),
            variance=variance.item(),
            bias=((mean - true).norm() / true.norm()).item(),
            bias_error=((variance / len(estimates)).sqrt() / true.norm()).item(),
            cosine=torch.cosine_similarity(mean, true, dim=0).item(),
        )


def compute_gradient(
    model: nn.Module, loss: Loss, batch: Any, weights: Sequence[nn.Parameter]
) -> Float[Tensor, " weights"]:
    """Of the mean loss, for these weights, in one row; those the loss does not touch have 0."""
    summed, count = loss(model, batch)
    parts = torch.autograd.grad(summed / count, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def draw_gradients(
    model: nn.Module, loss: Loss, batch: Any, weights: Sequence[nn.Parameter], *, draws: int
) -> Float[Tensor, "draws weights"]:
    """So many estimates, in the model's current mode."""
    return torch.stack([compute_gradient(model, loss, batch, weights) for _ in range(draws)])
