"""Masked language modeling: its settings, loss, metrics, the TextEncoder, which also embeds sentences, and its task."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from regard.data.batching import collate_inputs, pad_rows
from regard.data.files import read_lines
from regard.data.tokenizers.base import NUM_SPECIAL_TOKENS, UNK, Tokenizer
from regard.data.tokenizers.pretrained import PretrainedTokenizer
from regard.layers.pooling import token_mask
from regard.models.config import EncoderConfig
from regard.models.config_base import SHARE, Choices, Ranges, SettingsTable
from regard.models.encoder import MaskedLanguageModel
from regard.tasks.config import RunSettings, TokenizerSettings, world_encoder_run
from regard.tasks.metrics import MetricScore, TaskMetrics
from regard.tasks.pretrained import ModelOutput, TextModel, one_or_many
from regard.tasks.protocol import EncodedInput, Predictions, Task, TaskInput, TokenAxis, no_progress, token_label
from regard.tasks.registry import MAX_TEXT_TOKENS
from regard.tasks.splits import LoadedExamples, SentenceData, Split, drop_long, iterate_batches
from regard.training.config import TrainingJob, TrainSettings, to_float32
from regard.training.corpus import Corpus, to_device_async

MASKED, RANDOM = 0.8, 0.9  # of the tokens to predict: the share that is masked; up to here another stands instead
MASK_WORD = "[MASK]"


# --- settings ---


@dataclass(frozen=True, kw_only=True)
class MaskedLMData(SentenceData[str]):
    """Texts, a line each; files are plain text."""

    examples: ClassVar[str] = "lines"

    def from_world(self, split: Split, count: int | None) -> list[str]:
        return [" ".join(sentence.words) for sentence in self.world_sentences(split, count)]

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[str]:
        return LoadedExamples([line for path in paths for line in read_lines(path) if line.strip()])

    def from_corpus(self, split: Split, folder: Path | None) -> list[str]:
        raise ValueError(f"data.corpus = {self.corpus!r} is not for this task; give files of plain text")


@dataclass(frozen=True, kw_only=True)
class MaskingSettings(SettingsTable):
    """What is predicted, and what a text's vector is.

    Args:
        head: whether the model predicts tokens; an encoder that was imported without a head only gives vectors.
        rate: the share of tokens to predict: four fifths of them are masked, a tenth is replaced by another.
        pooling: a text's vector: the mean of its tokens' (mean), or the first token's (first).
        normalize: whether it is scaled to length 1.
    """

    choices: ClassVar[Choices] = {"pooling": ("mean", "first")}
    ranges: ClassVar[Ranges] = {"rate": SHARE}

    head: bool = True
    rate: float = 0.15
    pooling: str = "mean"
    normalize: bool = True


@dataclass(frozen=True, kw_only=True)
class MaskedLMSettings(RunSettings):
    """The settings of a masked language model's run: [mask] says what is predicted, and what a text's vector is."""

    task: ClassVar[str] = "masked_language_modeling"

    data: MaskedLMData = MaskedLMData()
    text: TokenizerSettings = TokenizerSettings()
    model: EncoderConfig = EncoderConfig.from_size("transformer", "tiny")
    mask: MaskingSettings = MaskingSettings()
    train: TrainSettings = TrainSettings(label_smoothing=0.0)

    @classmethod
    def of_world(cls):
        """The words of the miniature world from their context, in a minute."""
        return cls(data=MaskedLMData(sentences=40_000), **world_encoder_run())


# --- training ---


Ids = list[int]


@dataclass(frozen=True, eq=False)
class MaskedBatch:
    """Padded texts, whose tokens are masked where they are learnt."""

    ids: Int[Tensor, "b t"]
    lengths: Int[Tensor, " b"]

    def to(self, device: torch.device | str) -> "MaskedBatch":
        return MaskedBatch(to_device_async(self.ids, device), to_device_async(self.lengths, device))

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())


def collate(examples: Sequence[Ids]) -> MaskedBatch:
    return MaskedBatch(*pad_rows(examples))


def lengths_of(examples: Sequence[Ids]) -> list[tuple[int, int]]:
    return [(len(ids), 0) for ids in examples]


def mask_tokens(
    batch: MaskedBatch, rate: float, mask: int, size: int, generator: Generator | None = None
) -> tuple[Int[Tensor, "b t"], Bool[Tensor, "b t"]]:
    """What the model reads, and which tokens it has to predict: none of the special ones."""
    ids, here = batch.ids, token_mask(batch.ids, batch.lengths)
    chance, way = (torch.rand(ids.shape, device=ids.device, generator=generator) for _ in range(2))
    other = torch.randint(NUM_SPECIAL_TOKENS, size, ids.shape, device=ids.device, generator=generator)
    chosen = here & (ids >= NUM_SPECIAL_TOKENS) & (chance < rate)
    read = torch.where(chosen & (way < MASKED), mask, ids)
    return torch.where(chosen & (way >= MASKED) & (way < RANDOM), other, read), chosen


@dataclass(frozen=True)
class MaskedLMLoss:
    """Cross-entropy of the masked tokens, summed; `smoothing` of it against the uniform distribution."""

    rate: float
    mask: int
    smoothing: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[MaskedBatch, int]) -> tuple[Tensor, int]:
        assert isinstance(model, MaskedLanguageModel)
        given, _ = batch
        read, chosen = mask_tokens(given, self.rate, self.mask, len(model.encoder.embedding.weight))
        logits = to_float32(model.logits(model.encoder(read, given.lengths)[chosen]))
        summed = cross_entropy(logits, given.ids[chosen], reduction="sum", label_smoothing=self.smoothing)
        return summed, int(chosen.sum())


def measure(model: MaskedLanguageModel, examples: Sequence[Ids], rate: float, mask: int, device: str) -> "MaskedCounts":
    """The tokens of held-out texts under one mask, which is the same each time."""
    nats, right, count = 0.0, 0, 0
    generator = Generator(device).manual_seed(0)
    for _, batch, _ in iterate_batches(examples, lengths_of, collate, device=device):
        read, chosen = mask_tokens(batch, rate, mask, len(model.encoder.embedding.weight), generator)
        logits, wanted = model.logits(model.encoder(read, batch.lengths)[chosen]).float(), batch.ids[chosen]
        nats += cross_entropy(logits, wanted, reduction="sum").item()
        right, count = right + int((logits.argmax(-1) == wanted).sum()), count + len(wanted)
    return MaskedCounts(nats, right, count)


@dataclass(frozen=True)
class MaskedCounts:
    """What the masked tokens cost, how many were found, and how many there were."""

    nats: float
    right: int
    count: int

    def figures(self) -> dict[str, float]:
        return {"loss": self.nats / max(1, self.count), "accuracy": self.right / max(1, self.count)}


# --- the model with its tokenizer ---


@dataclass(frozen=True, kw_only=True)
class FillOutput(ModelOutput):
    """A text with its masks filled: `alternatives` are, for each of them, the most probable tokens."""

    alternatives: tuple[tuple[tuple[str, float], ...], ...] = ()


@dataclass(frozen=True, eq=False)
class TextEncoder(TextModel):
    """A masked language model with its vocabulary: it fills masks, and gives texts vectors."""

    settings_type = MaskedLMSettings

    model: MaskedLanguageModel
    settings: MaskedLMSettings

    @staticmethod
    def build_model(words: Tokenizer, settings: MaskedLMSettings) -> MaskedLanguageModel:
        return MaskedLanguageModel(settings.model, words.size, head=settings.mask.head)

    @property
    def mask(self) -> int:
        return self.tokenizer.mask if isinstance(self.tokenizer, PretrainedTokenizer) else UNK

    @property
    def device(self) -> str:
        return str(next(self.model.parameters()).device)

    def ids(self, text: str) -> Ids:
        """Those of a text, masks included; of one that is longer than train.max_length, the first, and what ends it."""
        parts = [self.tokenizer.encode(part) for part in text.split(MASK_WORD)]
        if isinstance(self.tokenizer, PretrainedTokenizer) and len(parts) > 1:
            first, last = len(self.tokenizer.first_ids), len(self.tokenizer.last_ids)
            parts = [
                part[0 if n == 0 else first : len(part) - (0 if n == len(parts) - 1 else last)]
                for n, part in enumerate(parts)
            ]
        ids = [one for n, part in enumerate(parts) for one in ([self.mask] if n else []) + part]
        ids, most = ids or [UNK], self.settings.train.max_length
        last = self.tokenizer.last_ids if isinstance(self.tokenizer, PretrainedTokenizer) else ()
        return ids if len(ids) <= most else [*ids[: most - len(last)], *last]

    def job(self, lines: Sequence[str], held_out: Sequence[str], device: str = "cpu", /) -> TrainingJob:
        train, mask = self.settings.train, self.settings.mask
        if not mask.head:
            raise ValueError("mask.head = false: an encoder without a head has nothing to learn by masks")
        corpus = Corpus.of([self.ids(line) for line in lines], lengths_of, collate, train, device)
        held = drop_long([self.ids(line) for line in held_out], lengths_of, train)
        return self.training_job(
            corpus,
            MaskedLMLoss(mask.rate, self.mask, train.label_smoothing),
            lambda model: measure(self.model, held, mask.rate, self.mask, device).figures(),
            device,
            left_out=corpus.left_out + len(held_out) - len(held),
            capture_objection="how many tokens are masked differs from step to step",
            figures=("loss", "accuracy"),
        )

    def fill(self, texts: str | Sequence[str], *, count: int = 5) -> Any:
        """A text with each [MASK] replaced by the most probable token, or each of a list."""
        return one_or_many(texts, lambda texts: [self.fill_one(text, count) for text in texts])

    def fill_one(self, text: str, count: int) -> FillOutput:
        if MASK_WORD not in text:
            raise ValueError(f"{text!r:.80} has nothing to fill; write {MASK_WORD} where a token is missing")
        batch = collate([self.ids(text)]).to(self.device)
        at = (batch.ids[0] == self.mask).nonzero()[:, 0]
        with torch.inference_mode():
            top = self.model(batch.ids, batch.lengths)[0, at].softmax(-1).topk(count)
        rows = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        found = tuple(
            tuple((token_label(self.tokenizer, one), share) for one, share in zip(*row, strict=True)) for row in rows
        )
        ids = batch.ids[0].clone()
        ids[at] = top.indices[:, 0]
        score = float(top.values[:, 0].log().sum())
        return FillOutput(text=self.tokenizer.decode(ids.tolist()), score=score, alternatives=found)

    def embed(self, texts: str | Sequence[str]) -> Tensor:
        """The vector of a text, or of each of a list: as [mask] pooling says, of length 1 unless normalize is off."""
        rows = [self.ids(text) for text in ([texts] if isinstance(texts, str) else texts)]
        found = torch.zeros(len(rows), self.settings.model.width)
        with torch.inference_mode():
            for where, batch, _ in iterate_batches(rows, lengths_of, collate, device=self.device) if rows else ():
                states = self.model.encoder(batch.ids, batch.lengths)
                pooled = states[:, 0] if self.settings.mask.pooling == "first" else mean_vectors(states, batch.lengths)
                found[where] = (normalize(pooled, dim=-1) if self.settings.mask.normalize else pooled).cpu()
        return found[0] if isinstance(texts, str) else found


def mean_vectors(states: Float[Tensor, "b t m"], lengths: Int[Tensor, " b"]) -> Float[Tensor, "b m"]:
    """The mean of each text's states, without those of its padding."""
    here = torch.arange(states.shape[1], device=states.device) < lengths[:, None]
    return torch.where(here[..., None], states, 0.0).sum(1) / lengths.clamp(min=1)[:, None]


# --- evaluation ---


@dataclass(frozen=True)
class MaskedLMMetrics(TaskMetrics):
    """How many masked tokens were found, and what they cost."""

    counts: MaskedCounts
    signature: str
    outputs: tuple[str, ...] = field(default=(), repr=False)

    @property
    def scores(self) -> Sequence[MetricScore]:
        figures = self.counts.figures()
        return [
            MetricScore("accuracy", 100 * figures["accuracy"], self.signature),
            MetricScore("perplexity", math.exp(min(figures["loss"], 100.0)), self.signature),
        ]

    def table(self) -> str:
        return "\n".join([*(f"{one.name:<12} {one.value:10.4f}" for one in self.scores), "", self.signature])

    def to_json(self) -> dict[str, Any]:
        return {**self.counts.figures(), "tokens": self.counts.count, "signature": self.signature}

    def lines(self) -> list[str]:
        return list(self.outputs)


# --- the task ---


class MaskedLanguageModelingTask(Task):
    """Masked language modeling: the tokens that are missing in a text."""

    settings = MaskedLMSettings
    task_model = TextEncoder
    verb = "embed"
    takes_batches = True
    max_tokens = MAX_TEXT_TOKENS
    suggested_command = "embed"

    def token_ids(self, task_model: TextEncoder, examples: Sequence[str]):
        return map(task_model.ids, examples)

    def evaluate(self, task_model: TextEncoder, examples: Sequence[str], *, search=None, progress=no_progress):
        rate = task_model.settings.mask.rate
        with torch.inference_mode():
            ids = list(map(task_model.ids, examples))
            counts = measure(task_model.model, ids, rate, task_model.mask, task_model.device)
        return MaskedLMMetrics(counts, f"lines:{len(examples)}|tokens:{counts.count}|masked:{rate:g}")

    def texts(self, task_model: TextEncoder, given: TaskInput):
        return [(task_model.tokenizer, given.text)]

    def normalize(self, task_model: TextEncoder, text: str) -> str:
        return task_model.tokenizer.normalizer.apply(text)

    def encode(self, task_model: TextEncoder, given: TaskInput) -> EncodedInput:
        ids = task_model.ids(given.text)
        given.refuse_long(len(ids))
        batch = collate([ids]).to(task_model.device)
        axis = TokenAxis.of(task_model.tokenizer, ids)
        rows = axis.labels if task_model.settings.mask.head else ()
        return EncodedInput((batch.ids, batch.lengths), {"text": axis}, rows)

    def forward_batch(self, model: Any, encoded: Sequence[EncodedInput]) -> list[Float[Tensor, "rows options"]]:
        inputs = collate_inputs([one.model_inputs for one in encoded])
        if not encoded[0].rows:
            model.encoder(*inputs)
            return [torch.zeros(0, 1)] * len(encoded)
        return [x[: len(one.rows)] for x, one in zip(model(*inputs), encoded, strict=True)]

    def option_name(self, task_model: TextEncoder, option: int) -> str:
        return token_label(task_model.tokenizer, option)

    def output_text(self, task_model: TextEncoder, given: TaskInput, predictions: Predictions) -> str:
        return super().output_text(task_model, given, predictions) if predictions.rows else given.text


TASK = MaskedLanguageModelingTask()
