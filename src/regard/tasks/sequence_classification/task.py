"""Sequence classification: its settings and texts, batches, the loss, the TextClassifier, its task, and hard attention.

Losses of hard attention, and the noise of their gradients:

    CrossEntropyLoss()   soft attention, and Hard(StraightThrough()), which differentiates as if it were soft
    ReinforceLoss()      Hard(Sampled()): the word drawn becomes likelier if it did better than the baseline guessed
    ExpectedLoss()       the sum over every word that could be drawn: what the others estimate, where it is affordable

Each is a `Loss` for the training loop. Their value is the cross-entropy of the labels; what else there is to learn
comes by its gradient alone. After training, `model.eval()` takes the best word, the same every time.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from regard.attention import Softmax, record_steps, reinforce, steps
from regard.data.batching import pad_rows
from regard.data.corpora import corpus_path
from regard.data.labelled import LabelledText, Labels, read_labelled
from regard.data.tokenizers.base import UNK, Tokenizer
from regard.data.tokenizers.subwords import Ids, Ngrams, load_tokenizer
from regard.layers.pooling import AttentionPooling, MeanPooling, Weights
from regard.layers.rnn import disable_host_sync
from regard.models.baselines import BagOfWordsClassifier
from regard.models.config import EncoderConfig, PoolingConfig, WordEmbeddingConfig
from regard.models.encoder import (
    Lengths,
    SequenceClassifier,
    Tokens,
    X,
    build_classifier,
    check_combination,
    initialise,
)
from regard.tasks.config import RunSettings, TokenizerSettings, world_encoder_run
from regard.tasks.metrics import LABEL_FIGURES, LabelMetrics
from regard.tasks.pretrained import (
    LabelOutput,
    PretrainedModel,
    one_or_many,
    token_strings,
    train_tokenizer_with_vectors,
)
from regard.tasks.protocol import EncodedInput, Task, TaskInput, TokenAxis, no_progress
from regard.tasks.registry import MAX_TEXT_TOKENS
from regard.tasks.splits import LoadedExamples, SentenceData, Split, drop_long, iterate_batches, split_held_out
from regard.training.config import Loss, TrainingJob, TrainSettings, to_float32
from regard.training.corpus import Corpus, to_device_async
from regard.world.world import SENTIMENTS

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
        return cls(data=ClassificationData(sentences=40_000), **world_encoder_run())


# --- the model ---

Example = tuple[Ids | Sequence[int], int]  # the terms of a text, and its label
UNLABELLED = -100  # as in torch: nothing is learnt of such a text


@dataclass(frozen=True, eq=False)
class LabelledBatch:
    """Padded texts and their labels."""

    terms: Int[Tensor, "b t"]
    lengths: Int[Tensor, " b"]
    labels: Int[Tensor, " b"]

    def __post_init__(self):
        if not len(self.terms) == len(self.lengths) == len(self.labels):
            raise ValueError(
                f"{len(self.terms)} texts, {len(self.lengths)} lengths and {len(self.labels)} labels; "
                "every text needs one of each"
            )

    def to(self, device: torch.device | str) -> "LabelledBatch":
        return LabelledBatch(*(to_device_async(part, device) for part in (self.terms, self.lengths, self.labels)))

    @property
    def tokens(self) -> int:
        return int((self.labels != UNLABELLED).sum())


def collate(examples: Sequence[Example]) -> LabelledBatch:
    return LabelledBatch(*pad_rows([terms for terms, _ in examples]), torch.tensor([label for _, label in examples]))  # type: ignore[arg-type]


def filler(length: int) -> Example:
    """A text that has no label."""
    return np.full(length, UNK), UNLABELLED


def lengths_of(examples: Sequence[Example]) -> list[tuple[int, int]]:
    return [(len(terms), 0) for terms, _ in examples]


@dataclass(frozen=True)
class ClassificationLoss:
    """Cross-entropy of labels, summed over texts, some words of which are left out (`dropout`).

    With `rdrop`, two passes under different dropout must agree as well (R-Drop, Liang et al. 2021).
    """

    smoothing: float = 0.0
    rdrop: float = 0.0
    dropout: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[LabelledBatch, int]) -> tuple[Tensor, int]:
        given, texts = batch
        passes = 2 if self.rdrop else 1
        terms, lengths, labels = (
            repeat(part, "b ... -> (passes b) ...", passes=passes)
            for part in (given.terms, given.lengths, given.labels)
        )
        if self.dropout:
            terms = terms.masked_fill(torch.rand(terms.shape, device=terms.device) < self.dropout, UNK)
        logits = to_float32(model(terms, lengths))
        summed = cross_entropy(logits, labels, reduction="sum", label_smoothing=self.smoothing) / passes
        if self.rdrop:
            apart = symmetric_kl(logits).where(given.labels != UNLABELLED, 0.0)
            summed = summed + self.rdrop * apart.sum() / 2
        return summed, texts


def symmetric_kl(logits: Float[Tensor, "two_b labels"]) -> Float[Tensor, " b"]:
    """How far two passes under different dropout disagree, the first half of the batch against the second.

    KL(p ‖ q) + KL(q ‖ p) = Σ (p − q)(log p − log q) (R-Drop, Liang et al. 2021).
    """
    p, q = logits.log_softmax(-1).chunk(2)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1)


@dataclass(frozen=True)
class Classification:
    """A text's label, and how probable each label is, in the order of their names."""

    label: str
    probabilities: tuple[float, ...]

    @property
    def probability(self) -> float:
        return max(self.probabilities)


@dataclass(frozen=True, eq=False)
class TextClassifier(PretrainedModel):
    """A model with the vocabulary it reads and the labels it knows."""

    settings_type = ClassificationSettings
    part_files: ClassVar = {"tokenizer": ("tokenizer", load_tokenizer), "labels": ("labels", Labels.load)}

    model: SequenceClassifier | BagOfWordsClassifier
    tokenizer: Tokenizer
    labels: Labels
    settings: ClassificationSettings

    @classmethod
    def from_examples(cls, texts: Sequence[LabelledText], settings: ClassificationSettings) -> "TextClassifier":
        """A vocabulary and labels from the texts, and a model with new weights."""
        words = train_tokenizer_with_vectors((one.text for one in texts), settings.text, settings.words)
        return cls.from_parts(words, Labels.of(one.label for one in texts), settings=settings)

    @staticmethod
    def build_model(
        words: Tokenizer, labels: Labels, settings: ClassificationSettings
    ) -> SequenceClassifier | BagOfWordsClassifier:
        size = build_ngrams(words, settings.words).size
        return build_classifier(settings.words, settings.model, settings.pooling, size=size, labels=len(labels))

    def ids(self, text: str) -> list[int]:
        """Those of the text that are read; of a text without any, an unknown one."""
        ids = self.tokenizer.encode(text) or [UNK]
        return [ids[place] for place in self.kept_indices(len(ids))]

    def kept_indices(self, count: int) -> list[int]:
        """Which of so many ids are read."""
        most = self.settings.data.max_tokens
        return [*range(most // 4), *range(count + most // 4 - most, count)] if 0 < most < count else [*range(count)]

    def terms(self, text: str) -> Ids:
        return build_ngrams(self.tokenizer, self.settings.words).terms(self.ids(text))

    def examples(self, texts: Iterable[LabelledText]) -> list[Example]:
        """A label that the model does not know is refused."""
        return [
            (self.terms(one.text), self.labels.index(one.label, f"text {number}"))
            for number, one in enumerate(texts, 1)
        ]

    def job(
        self, texts: Sequence[LabelledText], held_out: Sequence[LabelledText], device: str = "cpu", /
    ) -> TrainingJob:
        train, examples = self.settings.train, self.examples(texts)
        corpus = Corpus.of(examples, lengths_of, collate, train, device, filler=filler)
        held, one_hot = (
            drop_long(self.examples(held_out), lengths_of, train),
            isinstance(self.model, BagOfWordsClassifier),
        )
        # every time anew: a run that was killed before its first checkpoint has nothing else to start from
        terms, labels = zip(*examples, strict=True)
        initialise(
            self.model, self.settings.words, terms, labels, vocabulary=token_strings(self.tokenizer), seed=train.seed
        )
        if corpus.filler:
            disable_host_sync(self.model)
        return self.training_job(
            corpus,
            ClassificationLoss(train.label_smoothing, train.rdrop, self.settings.words.dropout),
            lambda model: validation(model, held, device),
            device,
            left_out=corpus.left_out + len(held_out) - len(held),
            capture_objection="words.kind = 'one-hot' launches but a few kernels" if one_hot else "",
            figures=LABEL_FIGURES,
        )

    def classify(self, texts: str | Sequence[str]) -> Any:
        """The label of a text, or of each of a list."""
        return one_or_many(
            texts,
            lambda texts: [
                LabelOutput.of(self.labels.names, one.probabilities) for one in self.predict(texts, self.device)
            ],
        )

    def predict(self, texts: Sequence[str], device: str = "cpu") -> list[Classification]:
        """What each text is, and how surely."""
        examples, found = [(self.terms(text), 0) for text in texts], list[Classification | None]([None]) * len(texts)
        if not texts:
            return []
        with torch.inference_mode():
            for rows, batch, _ in iterate_batches(examples, lengths_of, collate, device=device):
                for row, sure in zip(rows, self.model(batch.terms, batch.lengths).softmax(-1).tolist(), strict=True):
                    found[row] = Classification(self.labels.name(sure.index(max(sure))), tuple(sure))
        return [one for one in found if one is not None]

    @property
    def device(self) -> str:
        return str(next(self.model.parameters()).device)


def build_ngrams(words: Tokenizer, config: WordEmbeddingConfig) -> Ngrams:
    return Ngrams(words.size, config.ngrams, config.buckets)


def validation(model: nn.Module, examples: Sequence[Example], device: str = "cpu") -> dict[str, float]:
    """The mean negative log-probability of a held-out label, and the share of texts whose label is found."""
    total, right = 0.0, 0
    for _, batch, _ in iterate_batches(examples, lengths_of, collate, device=device):
        logits = model(batch.terms, batch.lengths).float()
        total += cross_entropy(logits, batch.labels, reduction="sum").item()
        right += int((logits.argmax(-1) == batch.labels).sum())
    return {"loss": total / len(examples), "accuracy": right / len(examples)}


def evaluate_classifier(classifier: TextClassifier, texts: Sequence[LabelledText]) -> LabelMetrics:
    for number, one in enumerate(texts, 1):
        classifier.labels.index(one.label, f"text {number}")
    found = classifier.predict([one.text for one in texts], classifier.device)
    return LabelMetrics(
        labels=classifier.labels.names,
        wanted=tuple(one.label for one in texts),
        found=tuple(one.label for one in found),
        unit="texts",
        signature=f"texts:{len(texts)}|labels:{len(classifier.labels)}",
        outputs=tuple(f"{one.label}\t{one.probability:.4f}" for one in found),
    )


# --- the task ---


def term_axis(classifier: TextClassifier, text: str) -> TokenAxis:
    """The words of a text and, where they are read too, runs of several, which belong to no single word."""
    pieces, (words, owners) = classifier.tokenizer.tokens(text) or ["<unk>"], classifier.tokenizer.words(text)
    kept = classifier.kept_indices(len(pieces))
    labels, word_ids = [], []
    for run in build_ngrams(classifier.tokenizer, classifier.settings.words).word_indices(len(kept)):
        labels.append(" ".join(pieces[kept[one]] for one in run))
        word_ids.append(owners[kept[run.start]] if len(run) == 1 and owners else None)
    return TokenAxis(tuple(labels), words, tuple(word_ids))


class SequenceClassificationTask(Task):
    """Sequence classification: one label for a text."""

    settings = ClassificationSettings
    task_model = TextClassifier
    takes_batches = True
    verb = "classify"
    max_tokens = MAX_TEXT_TOKENS
    suggested_command = "classify"

    def token_ids(self, task_model: TextClassifier, examples: Sequence[LabelledText]):
        return task_model.tokenizer.encode_batch(one.text for one in examples)

    def evaluate(
        self, task_model: TextClassifier, examples: Sequence[LabelledText], *, search=None, progress=no_progress
    ):
        return evaluate_classifier(task_model, examples)

    def texts(self, task_model: TextClassifier, given: TaskInput):
        return [(task_model.tokenizer, given.text)]

    def example_text(self, example: LabelledText) -> str:
        return example.text

    def normalize(self, task_model: TextClassifier, text: str) -> str:
        return task_model.tokenizer.normalizer.apply(text)

    def encode(self, task_model: TextClassifier, given: TaskInput) -> EncodedInput:
        given.refuse_long(len(terms := task_model.terms(given.text)))
        batch = collate([(terms, 0)]).to(task_model.device)
        return EncodedInput((batch.terms, batch.lengths), {"text": term_axis(task_model, given.text)}, ("label",))

    def option_name(self, task_model: TextClassifier, option: int) -> str:
        return task_model.labels.name(option)


TASK = SequenceClassificationTask()


# --- hard attention ---

Logits = Float[Tensor, "b labels"]


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
        return label_nll(model(texts.terms, texts.lengths), texts.labels).sum(), count


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
        classifier, where = model.classifier, (texts.terms, texts.lengths)
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
        x = classifier.encoder(texts.terms, texts.lengths)
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
