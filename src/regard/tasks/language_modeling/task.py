"""Language modeling: its settings and text, blocks, the loss, metrics, the TextGenerator and its task."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.data.batching import collate_inputs
from regard.data.corpora import corpus_path, find_corpus
from regard.data.lm_blocks import (
    LMBlock,
    LMBlocks,
    MixtureBlocks,
    TrainingBlocks,
    bits_per_byte,
    count_words,
    encode_stream,
    perplexity_per_word,
    read_text,
    split_lines,
)
from regard.data.sources import WHOLE, read_part
from regard.data.token_files import HELD_OUT_TEXT, TextMixture, all_prepared
from regard.data.tokenizers.base import BOS, EOS, UNK, CharTokenizer, LosslessTokenizer, Tokenizer, WordTokenizer
from regard.data.tokenizers.pretrained import PretrainedTokenizer
from regard.decode.stepwise import Greedy, Sampling, StepwiseSearch
from regard.decode.text_generation import GeneratedToken, generate_all, stream_text, text_constraints
from regard.models.config import RNN_KINDS, LanguageModelConfig
from regard.models.config_base import SettingsTable
from regard.models.language_model import LanguageModel
from regard.models.seq2seq import Tokens, map_tensors, output_loss
from regard.tasks.config import RunSettings, TokenizerSettings, require_unchanged, world_training
from regard.tasks.language_modeling.token_nll import (
    EvaluationContext,
    NeuralCache,
    RecurrentContext,
    SlidingWindows,
    TokenNLL,
    total_nats,
    tune_cache,
)
from regard.tasks.metrics import MetricScore, TaskMetrics
from regard.tasks.pretrained import ModelOutput, TextModel, one_or_many
from regard.tasks.protocol import (
    EncodedInput,
    GenerationInput,
    InputSpec,
    Predictions,
    ProgressBar,
    Task,
    TaskInput,
    TokenAxis,
    no_progress,
    token_label,
)
from regard.tasks.splits import HELD_OUT, LoadedExamples, SentenceData, Split
from regard.training.config import TrainingJob, TrainSettings
from regard.training.corpus import to_device_async

# --- settings and text ---


@dataclass(frozen=True, kw_only=True)
class LanguageModelingData(SentenceData[str]):
    """Running text; files are plain text. It is learnt in blocks of train.max_length tokens.

    The examples are lines, each with its end: together they are the text, letter by letter.

    Args:
        lead: tokens before each block that are read for their context, and not learnt.
    """

    examples: ClassVar[str] = "lines"

    lead: int = 0

    def from_world(self, split: Split, count: int | None) -> list[str]:
        return [f"{' '.join(sentence.words)}\n" for sentence in self.world_sentences(split, count)]

    def from_files(self, paths: Sequence[str], split: Split) -> LoadedExamples[str]:
        return LoadedExamples(split_lines(read_texts(paths)))

    def read_files(self, split: Split) -> LoadedExamples[Any]:
        """Token files of `regard data prepare` are mapped; the text that it held out is to validate on."""
        if split != "test" and not (split == "valid" and self.valid) and all_prepared(self.train):
            mixture: Any = TextMixture.open(self.train)
            if split == "train":
                return LoadedExamples(mixture)
            paths = [corpus.folder / HELD_OUT_TEXT for corpus in mixture.corpora]
            if not (lines := [line for path in paths for line in split_lines(read_text(path))]):
                raise ValueError(
                    f"{self.train[0]} was prepared without held-out text; give a file of its own: --valid valid.txt"
                )
            return LoadedExamples(lines)
        if split == "test" or self.valid or not self.train:
            return super().read_files(split)
        # a text is cut once: of every hundredth line nothing would stand before it
        return LoadedExamples(split_lines(split_text(read_texts(self.train), split)))

    def from_corpus(self, split: Split, folder: Path | None) -> list[str]:
        if WHOLE in find_corpus(self.corpus).splits:
            return split_lines(read_part(self.corpus, split, folder))
        return split_lines(read_text(corpus_path(self.corpus, split, folder)))


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(SettingsTable):
    """How a text is read to be measured.

    Args:
        stride: tokens from window to window of train.max_length; 0 is half a window. Recurrent models need none.
        cache: words that a continuous cache remembers; its weight is chosen on held-out text at the end of training.
    """

    stride: int = 0
    cache: int = 0


@dataclass(frozen=True, kw_only=True)
class LanguageModelingSettings(RunSettings):
    """The settings of a language model's run.

    [measure] says how a text is evaluated: by which stride of a sliding window, and with how large a cache.
    """

    task: ClassVar[str] = "language_modeling"

    data: LanguageModelingData = LanguageModelingData()
    text: TokenizerSettings = TokenizerSettings()
    model: LanguageModelConfig = LanguageModelConfig.from_size("transformer", "tiny")
    train: TrainSettings = TrainSettings(label_smoothing=0.0)
    measure: EvaluationSettings = EvaluationSettings()

    def __post_init__(self):
        if self.text.language and self.text.kind != "words":
            raise ValueError(
                f"text.language = {self.text.language!r} takes the blanks and line ends out of a text, and a model of "
                f"{self.text.kind} would never write one; leave it out, or use text.kind = 'words'"
            )
        if self.train.batch_size < self.train.max_length:
            raise ValueError(
                f"train.batch_size = {self.train.batch_size} is too small for a block of train.max_length = "
                f"{self.train.max_length} tokens; make the block shorter, or the batch larger"
            )
        if self.measure.stride > self.train.max_length:
            raise ValueError(
                f"measure.stride = {self.measure.stride} would leave tokens out between windows of train.max_length = "
                f"{self.train.max_length}; choose at most that"
            )

    @classmethod
    def of_world(cls):
        """Sentences of the miniature world, in a minute."""
        return cls(
            data=LanguageModelingData(sentences=40_000),
            text=TokenizerSettings(kind="words"),
            model=LanguageModelConfig(
                kind="transformer", layers=2, model=64, heads=4, hidden=128, dropout=0.0, recipe='position = "Rotary()"'
            ),
            train=world_training(
                steps=1500,
                batch_size=512,
                max_length=64,
                learning_rate=6e-3,
                warmup_steps=50,
                weight_decay=0.1,
                validate_every=500,
            ),
        )


def read_texts(paths: Sequence[str]) -> str:
    """The files as one text."""
    text = "".join(with_final_newline(read_text(path)) for path in paths)
    if not text.strip():
        raise ValueError(f"{' and '.join(paths)}: there is no text; give at least one word")
    return text


def with_final_newline(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"


def split_text(text: str, split: Split) -> str:
    """Of a text without one to validate on the last hundredth is held out, from the beginning of a word."""
    at = len(text) - max(1, len(text) // HELD_OUT)
    at = 1 + max(text.rfind(blank, 0, at) for blank in " \n")
    found = text[:at] if split == "train" else text[at:]
    if not found.strip():
        raise ValueError(f"no text is left for {split}; give more, or files of its own: --valid valid.txt")
    return found


# --- learning ---

UNSCORED = -100
ROWS = 64  # parts of a held-out text that a recurrent model reads at once while it is trained
LEAST = 1000  # tokens of each


@dataclass(frozen=True, eq=False)
class BlockStream:
    """The blocks of a text, for every step; with each the number of its targets and of the columns that only lead."""

    blocks: TrainingBlocks
    device: str = "cpu"

    def steps(self, epoch: int) -> int:
        return self.blocks.steps(epoch)

    def at(self, epoch: int, index: int) -> list[tuple[LMBlock, int, int]]:
        blocks = self.blocks.at(epoch, index)
        return [
            (map_tensors(lambda part: to_device_async(part, self.device), one), one.tokens, one.context_length)
            for one in blocks
        ]


@dataclass(frozen=True)
class LanguageModelingLoss:
    """Cross-entropy summed over the targets that count, a share `smoothing` of it against the uniform distribution.

    With `rdrop`, of two passes under different dropout, and how far they disagree: as in translation.
    """

    smoothing: float = 0.0
    rdrop: float = 0.0

    def __call__(self, model: nn.Module, batch: tuple[LMBlock, int, int]) -> tuple[Tensor, int]:
        assert isinstance(model, LanguageModel)
        block, tokens, lead = batch
        inputs, wanted = block.inputs, block.targets.masked_fill(~block.loss_mask, UNSCORED)[:, lead:]
        if self.rdrop:
            inputs, wanted = (repeat(each, "b t -> (two b) t", two=2) for each in (inputs, wanted))
        table, x = model.output or model.embedding, hidden_after_context(model, inputs, lead)
        agree = self.rdrop or None
        loss = output_loss(x, table, model.bias, wanted, smoothing=self.smoothing, ignore_index=UNSCORED, rdrop=agree)
        return loss, tokens


def hidden_after_context(model: LanguageModel, inputs: Tokens, lead: int) -> Float[Tensor, "b rest model"]:
    """The hidden states behind the first `lead` tokens, which give context and no loss.

    A state carried over from the step before would come of older weights, and could not be had again after an
    interruption; this one is a function of the step.
    """
    state = model.start(len(inputs))
    if lead:
        # not under no_grad: autocast would keep the weights it casts there, and no gradient would pass them later
        state = model.decode_hidden(inputs[:, :lead], state)[1].detach()
    return model.decode_hidden(inputs[:, lead:], state)[0]


@dataclass(frozen=True, eq=False)
class TextGenerator(TextModel):
    """A language model with the vocabulary it reads and writes, and a cache if one was chosen for it."""

    settings_type = LanguageModelingSettings

    model: LanguageModel
    settings: LanguageModelingSettings
    neural_cache: NeuralCache | None = None

    @staticmethod
    def build_model(words: Tokenizer, settings: LanguageModelingSettings) -> LanguageModel:
        return LanguageModel(settings.model, words.size)

    def ids(self, lines: Sequence[str]) -> Int[Tensor, " n"]:
        """The text as a stream; a model of words reads an end behind every line."""
        return encode_stream(self.tokenizer, lines)

    def encode_prompt(self, text: str) -> tuple[list[int], list[int]]:
        """What is read before a text that is to be gone on with, and its ids; its last line has no end yet.

        Before it stands the end of a line: the beginning of all text is seen once in an epoch, and hardly learnt.
        """
        if isinstance(self.tokenizer, PretrainedTokenizer):  # the first token is the one that nothing predicts
            ids = self.tokenizer.encode(text)
            return ([BOS], ids) if self.tokenizer.starts or not ids else (ids[:1], ids[1:])
        if isinstance(self.tokenizer, WordTokenizer):
            *lines, rest = text.split("\n")
            return [EOS], [*self.ids(lines).tolist(), *self.tokenizer.encode(rest)]
        if (
            isinstance(self.tokenizer, CharTokenizer) and "\n" not in self.tokenizer.vocabulary
        ):  # the text had but one line
            return [BOS], self.tokenizer.encode(text)
        assert isinstance(self.tokenizer, LosslessTokenizer)
        ids = self.tokenizer.encode(f"\n{text}")
        ends = accumulate(map(len, self.tokenizer.ids_to_bytes(ids)))
        opening = 1 + sum(end < len(self.tokenizer.prefix) + 1 for end in ends)
        return ids[:opening], ids[opening:]

    def generate(
        self,
        prompts: str | Sequence[str] = "",
        *,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Any:
        """So many tokens after a prompt, or after each of a list; temperature 0 takes the most probable one each time.

        Args:
            top_k, top_p: sample from the k most probable tokens, or from those that hold this share of probability.
        """
        search = (
            Greedy() if temperature == 0 else Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        )
        return one_or_many(prompts, lambda prompts: self.continue_prompts(prompts, search, tokens))

    def continue_prompts(self, prompts: Sequence[str], search: StepwiseSearch, tokens: int) -> list["GenerationOutput"]:
        """All of them together; each text is the one that its prompt alone would get."""
        encoded = [[*opening, *ids] for opening, ids in map(self.encode_prompt, prompts)]
        found = generate_all(
            self.model,
            encoded,
            search,
            tokens=tokens,
            constraints=text_constraints(self.tokenizer),
            context=max(2, self.context_length),
        )
        return [self.generation_output(*each) for each in zip(prompts, encoded, found, strict=True)]

    def generation_output(self, prompt: str, ids: Sequence[int], found: Sequence[GeneratedToken]) -> "GenerationOutput":
        text = "".join(stream_text(self.tokenizer, (token.id for token in found), ids))
        score = sum(token.log_probability for token in found)
        return GenerationOutput(text=prompt + text, score=score, prompt=prompt, generated=text)

    def job(self, lines: Sequence[str] | TextMixture, held_out: Sequence[str], device: str = "cpu", /) -> TrainingJob:
        train, held = self.settings.train, self.ids(held_out)
        rows = train.batch_size // train.max_length
        sizes: dict[str, Any] = {
            "rows": rows * train.gradient_accumulation,
            "micro_batch_rows": rows,
            "seed": train.seed,
            "context_length": self.settings.data.lead,
        }
        if isinstance(lines, TextMixture):
            self.require_own_ids(lines)
            blocks = MixtureBlocks(lines, train.max_length, **sizes)
        else:
            blocks = LMBlocks(self.ids(lines), train.max_length, **sizes)
        return self.training_job(
            BlockStream(blocks, device),
            LanguageModelingLoss(train.label_smoothing, train.rdrop),
            lambda model: validation(model, held, self.validation_context(len(held))),
            device,
            capture_objection="",
        )

    # --- measuring ---

    @property
    def context_length(self) -> int:
        """How many tokens a block and its lead have: more of a text it never learnt from at once."""
        return self.settings.data.lead + self.settings.train.max_length

    @property
    def evaluation_context(self) -> EvaluationContext:
        """How a text is measured."""
        stride = self.settings.measure.stride or max(1, self.context_length // 2)
        return RecurrentContext() if self.recurrent else SlidingWindows(self.context_length, stride)

    def validation_context(self, tokens: int) -> EvaluationContext:
        """How it is measured again and again while the model is trained: a little dearer, since less stands before."""
        rows = max(1, min(ROWS, tokens // LEAST))
        return (
            RecurrentContext(rows)
            if self.recurrent
            else SlidingWindows(self.context_length, self.settings.train.max_length)
        )

    @property
    def recurrent(self) -> bool:
        return self.settings.model.kind in RNN_KINDS

    # --- keeping ---

    def with_extras(self, run):
        return replace(self, neural_cache=NeuralCache.load(run))


@dataclass(frozen=True, kw_only=True)
class GenerationOutput(ModelOutput):
    """A generated text: `text` begins with the prompt, `score` is the log-probability of what was generated."""

    prompt: str
    generated: str


def validation(model: nn.Module, ids: Int[Tensor, " n"], context: EvaluationContext) -> dict[str, float]:
    """The mean cost of a held-out token in nats, and its perplexity."""
    assert isinstance(model, LanguageModel)
    loss = total_nats(context.token_nlls(model, ids)) / len(ids)
    return {"loss": loss, "perplexity": math.exp(min(loss, 100.0))}


# --- evaluation ---


@dataclass(frozen=True)
class LanguageModelingMetrics(TaskMetrics):
    """What a text cost a model in nats, with a cache beside it and in blocks side by side where there are such.

    Args:
        unknown: tokens that stand for a word outside of the vocabulary; they make the text easier than it is.
        signature: what the figures depend on besides the model.
        costs: of each token, in bits, and the token.
    """

    nats: float
    tokens: int
    words: int
    characters: int
    bytes: int
    unknown: int
    signature: str
    cached: float | None = None
    cache: str = ""
    in_blocks: float | None = None
    costs: tuple[tuple[float, str], ...] = field(default=(), repr=False)

    def metrics_of(self, nats: float) -> dict[str, float]:
        """The figures of one sum of nats. What has unknown words was not spelt, so its letters have no cost."""
        figures = {"loss": nats / self.tokens, "perplexity_per_word": perplexity_per_word(nats, self.words)}
        if self.unknown:
            return figures
        return figures | {
            "nats_per_character": nats / self.characters,
            "bits_per_character": nats / self.characters / math.log(2),
            "bits_per_byte": bits_per_byte(nats, self.bytes),
        }

    @property
    def scores(self) -> Sequence[MetricScore]:
        return [
            MetricScore(" ".join((figure, name)).strip().replace("_", " "), value, self.signature)
            for name, nats in self.totals().items()
            for figure, value in self.metrics_of(nats).items()
        ]

    def totals(self) -> dict[str, float]:
        found = {"": self.nats, "with_cache": self.cached, "in_blocks": self.in_blocks}
        return {name: nats for name, nats in found.items() if nats is not None}

    def table(self) -> str:
        lines = []
        for name, nats in self.totals().items():
            each = self.metrics_of(nats)
            lines += [name.replace("_", " ")] if name else []
            lines += [f"{figure.replace('_', ' '):<20} {value:10.4f}" for figure, value in each.items()]
        notes = [f"{self.unknown:,} words are unknown to the model: not comparable with others"] * bool(self.unknown)
        return "\n".join([*lines, *notes, "", self.signature + (f"|{self.cache}" if self.cache else "")])

    def to_json(self) -> dict[str, Any]:
        counted = {name: getattr(self, name) for name in ("tokens", "words", "characters", "bytes", "unknown")}
        found = {
            f"{figure}_{name}" if name else figure: value
            for name, nats in self.totals().items()
            for figure, value in self.metrics_of(nats).items()
        }
        return {**found, **counted, "signature": self.signature, "cache": self.cache}

    def lines(self) -> list[str]:
        return [f"{bits:.3f}\t{token}" for bits, token in self.costs]


def evaluate_language_model(
    generator: TextGenerator, lines: Sequence[str], progress: ProgressBar = no_progress
) -> LanguageModelingMetrics:
    ids, words, each = generator.ids(lines), generator.tokenizer, list[Tensor]()

    def token_nlls() -> Iterator[TokenNLL]:
        """The vectors of a long text would fill the memory, so they pass by."""
        for some in progress(generator.evaluation_context.token_nlls(generator.model, ids), "measuring"):
            each.append(some.nats.cpu())
            yield some

    cached = blocks = None
    with torch.no_grad():
        if generator.neural_cache:
            cached = float(sum(nats.sum() for nats in generator.neural_cache.token_nats(token_nlls())))
        else:
            total_nats(token_nlls())
        if isinstance(generator.evaluation_context, SlidingWindows):
            blocks = total_nats(
                replace(generator.evaluation_context, stride=generator.evaluation_context.length).token_nlls(
                    generator.model, ids
                )
            )
    nats, text = torch.cat(each), normalized_text(words, lines)
    return LanguageModelingMetrics(
        nats=float(nats.sum(dtype=torch.float64)),
        tokens=len(ids),
        words=count_words(lines),
        characters=len(text),
        bytes=len(text.encode()),
        unknown=int((ids == UNK).sum()),
        signature=evaluation_signature(generator, len(ids), count_words(lines)),
        cached=cached,
        cache=generator.neural_cache.signature if generator.neural_cache else "",
        in_blocks=blocks,
        costs=tuple(zip((nats / math.log(2)).tolist(), (token_label(words, one) for one in ids.tolist()), strict=True)),
    )


def normalized_text(words: Tokenizer, lines: Sequence[str]) -> str:
    """The text that the model is charged for: of words, with one blank between them and one end to a line."""
    if isinstance(words, WordTokenizer):
        return "".join(" ".join(words.normalizer.apply(line).split()) + "\n" for line in lines)
    return words.normalizer.apply("".join(lines))


def evaluation_signature(generator: TextGenerator, tokens: int, words: int) -> str:
    normal = generator.tokenizer.normalizer
    end = ",one <eos> a line" if isinstance(generator.tokenizer, WordTokenizer) else ""
    return "|".join(
        [
            f"tokens:{tokens}",
            f"words:{words}, what stands between blanks and every line's end",
            f"text:{generator.tokenizer.kind}{end}",
            f"lower:{'yes' if normal.lower else 'no'}",
            f"context:{generator.evaluation_context.description}",
        ]
    )


# --- the task ---

TREE_BEAM = 4  # hypotheses shown of a language model that decoded greedily
MAX_LOGITS = 2**28  # of a text: tokens × vocabulary


class LanguageModelingTask(Task):
    """Language modeling: the next token of a text, and so its continuation."""

    settings = LanguageModelingSettings
    task_model = TextGenerator
    verb = "generate"
    batching = "generation"
    takes_batches = True
    inputs = InputSpec(options=("beam", "more"))
    suggested_command = "generate"

    def fit_settings(self, settings: LanguageModelingSettings, examples: Any, given: Collection[str]):
        """Prepared corpora bring their vocabulary."""
        if not isinstance(examples, TextMixture):
            return settings
        text = TokenizerSettings(**examples.corpora[0].description["text"])
        return require_unchanged(settings, replace(settings, text=text), given)

    def evaluate(self, task_model: TextGenerator, examples: Sequence[str], *, search=None, progress=no_progress):
        return evaluate_language_model(task_model, examples, progress)

    def after_training(
        self, task_model: TextGenerator, held_out: Sequence[str], folder: Path, *, progress=no_progress
    ) -> None:
        """The best cache of the size that the settings ask for, beside the weights."""
        if size := task_model.settings.measure.cache:
            with torch.no_grad():
                found = task_model.evaluation_context.token_nlls(task_model.model, task_model.ids(held_out))
                tune_cache(progress(found, "choosing a cache"), size).save(folder)

    def texts(self, task_model: TextGenerator, given: TaskInput):
        return [(task_model.tokenizer, given.text)]

    def prompt(self, task_model: TextGenerator, given: TaskInput) -> tuple[list[int], list[int]]:
        """What is read before the text, and the ids that are gone on with."""
        opening, ids = task_model.encode_prompt(given.text)
        ids, size = list(given.prefix) or ids, task_model.tokenizer.size
        given.refuse_long(tokens := len(ids) + given.more)
        if tokens * size > MAX_LOGITS:
            raise ValueError(
                f"{tokens:,} tokens with {size:,} logits each are too many to keep; "
                f"shorten the text to {MAX_LOGITS // size:,}"
            )
        return opening, ids

    def generation(self, task_model: TextGenerator, given: TaskInput) -> GenerationInput:
        opening, ids = self.prompt(task_model, given)
        beam, tree_beam = (usual if given.beam is None else given.beam for usual in (1, TREE_BEAM))
        if beam < 1:
            raise ValueError(f"a beam of size {beam} keeps nothing; choose 1 or more")
        tokens = (*opening, *ids)
        return GenerationInput(
            task_model.model, task_model.tokenizer, None, tokens, given.more, beam, tree_beam, len(ids), "text"
        )

    def encode(self, task_model: TextGenerator, given: TaskInput) -> EncodedInput:
        opening, ids = self.prompt(task_model, given)
        forced = len(task_model.encode_prompt(given.text)[1])
        if given.prefix:
            forced = min(forced, len(given.prefix) - 1)  # the last of a prefix was chosen
        ids = ids if given.ids is None else list(given.ids)
        everything, tokenizer = opening + ids, task_model.tokenizer
        before, axis = [token_label(tokenizer, one) for one in opening], TokenAxis.of(tokenizer, ids)
        tokens = torch.tensor([everything], device=task_model.model.embedding.weight.device)
        return EncodedInput(
            (tokens, len(opening)),
            {"text": TokenAxis((*before, *axis.labels), axis.words, (*[None] * len(opening), *axis.word_ids))},
            (*axis.labels, "…"),
            output_ids=tuple(ids),
            forced_steps=forced,
            max_queries={"text": len(everything) + given.more},
        )

    def forward_batch(self, model: Any, encoded: Sequence[EncodedInput]) -> list[Float[Tensor, "rows options"]]:
        (tokens,) = collate_inputs([one.model_inputs[:1] for one in encoded])
        x, _ = model.decode_hidden(tokens, model.start(len(encoded)))
        starts = [one.model_inputs[1] - 1 for one in encoded]
        rows = (slice(start, start + len(one.rows)) for start, one in zip(starts, encoded, strict=True))
        return [model.logits(x[n : n + 1, some])[0] for n, some in enumerate(rows)]

    def option_name(self, task_model: TextGenerator, option: int) -> str:
        return token_label(task_model.tokenizer, option)

    def output_text(self, task_model: TextGenerator, given: TaskInput, predictions: Predictions) -> str:
        (opening, ids), tokenizer = self.prompt(task_model, given), task_model.tokenizer
        text = tokenizer.normalizer.detokenize(tokenizer.decode(ids)) if given.prefix else given.text
        return text + "".join(stream_text(tokenizer, (given.ids or ())[len(ids) :], opening + ids))


TASK = LanguageModelingTask()
