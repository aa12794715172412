"""Autoencoding: its settings and sentences, the SentenceAutoencoder, its latents, metrics and task."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.batching import Example, pad_rows
from regard.data.files import chunks, read_lines
from regard.data.tokenizers.base import EOS, UNK, Tokenizer
from regard.decode.search import Constraints, Hypothesis, LengthLimit, Search, make_requests
from regard.decode.stepwise import Greedy
from regard.decode.translation import LINE_BREAKS, WINDOW, batch_by_tokens, translate_all, translate_as_found
from regard.models.autoencoder import Autoencoder, AutoencoderConfig, build_autoencoder
from regard.models.seq2seq import device_of, inference_mode
from regard.tasks.config import RunSettings, TokenizerSettings, world_training
from regard.tasks.metrics import MetricScore, PairedResult, TaskMetrics, paired_bootstrap
from regard.tasks.pretrained import ModelOutput, TextModel, one_or_many
from regard.tasks.protocol import ProgressBar, TokenAxis, no_progress
from regard.tasks.seq2seq import Seq2SeqTask, seq2seq_job
from regard.tasks.splits import LoadedExamples, SentenceData, Split
from regard.training.config import TrainingJob, TrainSettings

# --- settings and data ---


@dataclass(frozen=True, kw_only=True)
class AutoencodingData(SentenceData[str]):
    """Sentences; files are plain text, a sentence a line."""

    examples: ClassVar[str] = "sentences"

    max_length: int = 8

    def from_world(self, split: Split, count: int | None) -> list[str]:
        return [" ".join(sentence.words) for sentence in self.world_sentences(split, count)]

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[str]:
        return self.read_nonempty(lambda on_empty: nonblank_lines(paths, on_empty))

    def from_corpus(self, split: Split, folder: Path | None) -> list[str]:
        raise ValueError(f"data.corpus = {self.corpus!r} is not for autoencoding; give text files: --train train.txt")


def nonblank_lines(paths: Iterable[str], on_empty: Callable[[str], object]) -> Iterator[str]:
    for path in paths:
        for number, line in enumerate(read_lines(path), 1):
            if line.strip():
                yield line
            else:
                on_empty(f"{path}:{number}: an empty line")


@dataclass(frozen=True, kw_only=True)
class AutoencodingSettings(RunSettings):
    """The settings of an autoencoder's run: one tokenizer for both ends, an encoder, a bottleneck and a decoder."""

    task: ClassVar[str] = "autoencoding"

    data: AutoencodingData = AutoencodingData()
    text: TokenizerSettings = TokenizerSettings()
    model: AutoencoderConfig = AutoencoderConfig.from_size("transformer", "tiny")
    train: TrainSettings = TrainSettings(label_smoothing=0.0)

    @classmethod
    def of_world(cls):
        """Sentences of the miniature world, in a minute."""
        return cls(
            text=TokenizerSettings(kind="words"),
            model=AutoencoderConfig(kind="gru", latents=8, latent=32, layers=1, model=64, hidden=128, dropout=0.0),
            # small batches: where nothing is ambiguous, many steps teach more than exact ones
            train=world_training(
                steps=2400,
                batch_size=256,
                learning_rate=3e-3,
                warmup_steps=100,
                validate_every=800,
                checkpoint_every=800,
            ),
        )


Ids = Sequence[int]
Latents = Float[Tensor, "n k m"]
# --- the model ---

USUAL = Greedy(LengthLimit(0, 100))  # a latent does not say how long its sentence is, so the limit is absolute


@dataclass(frozen=True, eq=False)
class SentenceAutoencoder(TextModel):
    """A model with the vocabulary in which it reads and writes."""

    settings_type = AutoencodingSettings

    model: Autoencoder
    settings: AutoencodingSettings

    @staticmethod
    def build_model(words: Tokenizer, settings: AutoencodingSettings) -> Autoencoder:
        return build_autoencoder(settings.model, words.size)

    def examples(self, sentences: Sequence[str]) -> list[Example]:
        """Each is its own target."""
        return [(ids, ids) for ids in self.tokenizer.encode_batch(sentences)]

    def detokenize(self, ids: Iterable[int]) -> str:
        """What the model wrote, as people write it."""
        return self.tokenizer.normalizer.detokenize(self.tokenizer.decode(ids))

    def reconstruct(self, texts: str | Sequence[str]) -> Any:
        """What the latent of a text decodes to, or of each of a list; `score` is its log-probability."""

        def run(texts: Sequence[str]) -> list[ModelOutput]:
            sources = self.tokenizer.encode_batch(texts)
            if not all(sources):
                raise ValueError("an empty text has no latent; give at least one word")
            return [
                ModelOutput(text=detokenize_line(self, best.ids), score=best.log_probability)
                for best, *_ in translate_all(self.model, sources, Greedy())
            ]

        return one_or_many(texts, run)

    def job(self, sentences: Sequence[str], held_out: Sequence[str], device: str = "cpu", /) -> TrainingJob:
        return seq2seq_job(self, self.examples(sentences), self.examples(held_out), device)


def detokenize_line(autoencoder: SentenceAutoencoder, ids: Sequence[int]) -> str:
    """What the model wrote, as people write it, on one line."""
    return autoencoder.detokenize(ids).translate(LINE_BREAKS)


# --- latents ---


def encode_latents(model: Autoencoder, sources: Sequence[Ids], *, tokens: int = 4096) -> Latents:
    """The latent of every sentence, in order; batches of at most `tokens` tokens change no result."""
    if not sources:
        raise ValueError("there is no sentence to take the latent of; give at least one")
    found: dict[int, Tensor] = {}
    for batch in batch_by_tokens([len(source) + 1 for source in sources], tokens):
        words, lengths = pad_rows([[*sources[index], EOS] for index in batch])
        with inference_mode(model):
            made = model.encode_latent(words.to(device_of(model)), lengths.to(device_of(model)))
        found |= dict(zip(batch, made, strict=True))
    return torch.stack([found[index] for index in range(len(sources))])


def decode_latents(model: Autoencoder, latents: Latents, search: Search = USUAL) -> list[list[Hypothesis]]:
    """What the model writes from each latent: its sentences, best first."""
    with inference_mode(model):
        return (
            search.run(FromLatents(model, latents), make_requests([()] * len(latents)), Constraints())
            if len(latents)
            else []
        )


def interpolate_latents(one: Float[Tensor, "k m"], other: Float[Tensor, "k m"], points: int = 5) -> Latents:
    """So many points of the straight line from one latent to another, both ends included."""
    if points < 2:
        raise ValueError(f"a line has two ends, so at least 2 points, not {points}")
    share = torch.linspace(0, 1, points, dtype=one.dtype, device=one.device)[:, None, None]
    return torch.lerp(one[None], other[None], share)


@dataclass(frozen=True, eq=False)
class FromLatents:
    """An autoencoder that decodes given latents instead of encoding sentences; a DecodableModel."""

    model: Autoencoder
    latents: Latents

    def encode(self, source: Tensor, lengths: Tensor) -> Any:
        return self.model.memory_from_latent(self.latents.to(device_of(self.model)))

    def start(self, memory: Any) -> Any:
        return self.model.start(memory)

    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, Any]:
        return self.model.step(tokens, state, memory)

    def eval(self) -> Any:
        return self.model.eval()

    def modules(self) -> Any:
        return self.model.modules()

    def named_modules(self) -> Any:
        return self.model.named_modules()

    def parameters(self, recurse: bool = True) -> Any:  # noqa: FBT001, FBT002  (torch's own)
        return self.model.parameters(recurse)


def reconstruct(autoencoder: SentenceAutoencoder, texts: Iterable[str], *, tokens: int = 4096) -> Iterator[str]:
    """A line for a line, in their order; an empty one stays empty."""
    for some in chunks(texts, WINDOW):
        sources = autoencoder.tokenizer.encode_batch(some)
        found = iter(translate_all(autoencoder.model, list(filter(None, sources)), Greedy(), tokens=tokens))
        for source in sources:
            yield detokenize_line(autoencoder, next(found)[0].ids) if source else ""


def interpolate_sentences(autoencoder: SentenceAutoencoder, one: str, other: str, points: int = 5) -> list[str]:
    """The sentences that points of the line between two latents decode to, both ends included."""
    sources = autoencoder.tokenizer.encode_batch((one, other))
    if not all(sources):
        raise ValueError("there is no way from or to an empty sentence; give two sentences")
    search = Greedy(LengthLimit(0, LengthLimit().of(max(map(len, sources)))))
    ends = encode_latents(autoencoder.model, sources)
    found = decode_latents(autoencoder.model, interpolate_latents(ends[0], ends[1], points), search)
    return [detokenize_line(autoencoder, these[0].ids) for these in found]


# --- evaluation ---


@dataclass(frozen=True)
class AutoencodingMetrics(TaskMetrics):
    """Which sentences came back to the letter, and how many tokens in their places.

    Args:
        sizes: words of each sentence.
        exact: which sentences came back to the letter.
        tokens, right: of all sentences, and those of them that are in their places.
    """

    sizes: tuple[int, ...] = field(repr=False)
    exact: tuple[bool, ...] = field(repr=False)
    tokens: int
    right: int
    outputs: tuple[str, ...] = field(repr=False)

    @property
    def exact_match(self) -> float:
        return 100 * sum(self.exact) / len(self.exact)

    @property
    def token_accuracy(self) -> float:
        return 100 * self.right / self.tokens

    @property
    def scores(self) -> Sequence[MetricScore]:
        return (
            MetricScore("exact match", self.exact_match, f"sentences:{len(self.exact)}"),
            MetricScore("tokens in place", self.token_accuracy, f"tokens:{self.tokens}"),
        )

    def table(self) -> str:
        lines = [
            f"rebuilt exactly {self.exact_match:6.2f} %   sentences:{len(self.exact)}",
            f"tokens in place {self.token_accuracy:6.2f} %   tokens:{self.tokens}",
            "",
            "words   sentences  exactly",
        ]
        for size, n, exact in self.by_length:
            share = 100 * exact / n
            lines.append(f"{size:<7} {n:>9,}  {share:5.1f} %  {'█' * round(share / 4)}".rstrip())
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        by_length = [{"words": size, "sentences": n, "exact": exact} for size, n, exact in self.by_length]
        return {"exact": self.exact_match, "in_place": self.token_accuracy, "by_length": by_length}

    @property
    def by_length(self) -> list[tuple[int, int, int]]:
        """Words, how many sentences have so many, and how many of them came back."""
        exact = Counter(size for size, same in zip(self.sizes, self.exact, strict=True) if same)
        return [(size, n, exact[size]) for size, n in sorted(Counter(self.sizes).items())]

    def compare(self, other: "AutoencodingMetrics") -> dict[str, PairedResult]:
        exact = np.array([self.exact, other.exact])
        counts, what = np.ones(len(self.exact)), f"sentences:{len(self.exact)}"
        return {"exact match": paired_bootstrap(exact[0], exact[1], counts, what=what)}

    def lines(self) -> list[str]:
        return list(self.outputs)


def evaluate_autoencoder(
    autoencoder: SentenceAutoencoder, texts: Sequence[str], progress: ProgressBar = no_progress
) -> AutoencodingMetrics:
    """A word that the model does not know cannot come back, so it is wrong whatever is written for it."""
    sources = autoencoder.tokenizer.encode_batch(texts)
    arriving = translate_as_found(autoencoder.model, sources, Greedy())
    found = {place: these[0].ids for place, these in progress(arriving, "reconstructing", len(texts))}
    places = range(len(texts))
    return AutoencodingMetrics(
        tuple(len(text.split()) for text in texts),
        tuple(list(found[n]) == sources[n] and UNK not in sources[n] for n in places),
        sum(map(len, sources)),
        sum(a == b != UNK for n in places for a, b in zip(found[n], sources[n], strict=False)),
        tuple(detokenize_line(autoencoder, found[n]) for n in places),
    )


# --- the task ---


class AutoencodingTask(Seq2SeqTask):
    """Autoencoding: a sentence through a latent of fixed size, and back."""

    settings = AutoencodingSettings
    task_model = SentenceAutoencoder
    verb = "reconstruct"
    suggested_command = "autoencode"
    beam = 1

    def token_ids(self, task_model: SentenceAutoencoder, examples: Sequence[str]):
        return task_model.tokenizer.encode_batch(examples)

    def evaluate(self, task_model: SentenceAutoencoder, examples: Sequence[str], *, search=None, progress=no_progress):
        return evaluate_autoencoder(task_model, examples, progress)

    def pair(self, task_model: SentenceAutoencoder) -> tuple[Tokenizer, Tokenizer]:
        return task_model.tokenizer, task_model.tokenizer

    def extra_axes(self, task_model: SentenceAutoencoder) -> dict[str, TokenAxis]:
        return {"latents": TokenAxis(tuple(f"latent {n}" for n in range(task_model.model.decoder.shape[0])))}


TASK = AutoencodingTask()
