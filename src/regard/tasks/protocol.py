"""Task protocol: what the folder of a task provides to training, evaluation, tracing, the page and the command line.

A task is one final subclass of `Task`, whose instance `TASK` stands in the task.py of its folder; registry.py lists the
folders. All that a task knows of a trace (axes, model inputs, row labels, names of options) are plain values here, so
that regard.see can trace any task without naming one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from jaxtyping import Float, UInt8
from torch import Tensor

from regard.data.batching import collate_inputs
from regard.data.tokenizers.base import NUM_SPECIAL_TOKENS, SPECIAL_LABELS, LosslessTokenizer, Tokenizer, format_piece
from regard.tasks.config import RunSettings
from regard.tasks.metrics import TaskMetrics
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.registry import MAX_SENTENCE_TOKENS
from regard.tasks.splits import LoadedExamples, Split

T = TypeVar("T")
EXAMPLE_SENTENCE = "the black cat ate the mouse"

# --- progress ---


class ProgressBar(Protocol):
    """Iterates, and may show how far it is: what is done, and of how many items."""

    def __call__(self, items: Iterable[T], what: str, total: int | None = None, /) -> Iterable[T]: ...


def no_progress(items: Iterable[T], what: str, total: int | None = None, /) -> Iterable[T]:
    return items


# --- inputs ---


@dataclass(frozen=True)
class InputSpec:
    """What the models of a task are given.

    Args:
        description: of the input, in messages.
        kind: what `TaskInput.text` holds: a text, the path of an image or of a sound, or the name of a node.
        container: what a word cannot be swapped in, where the input is no text.
        options: which further fields of `TaskInput` mean something: question, target, beam, more.
    """

    description: str = "a sentence"
    kind: Literal["text", "image", "audio", "node"] = "text"
    container: str = ""
    options: tuple[Literal["question", "target", "beam", "more"], ...] = ()

    @property
    def swappable(self) -> Literal["text", "question"] | None:
        """Whose words can be swapped."""
        return "question" if "question" in self.options else "text" if self.kind == "text" else None


@dataclass(frozen=True)
class TaskInput:
    """One input of a model.

    Args:
        text: a sentence; the path of an image or of a sound; the name of a node.
        question: about the image.
        target: the output to score; without one, the model's own.
        beam: hypotheses of the search; None is the task's own choice.
        more: how many tokens a language model generates after the text.
        max_tokens: an input of more tokens is refused.
        prefix: ids that the generated text must begin with; of a language model, of its prompt as well.
        ids: of the whole generated text, once it is known; of a language model, with its prompt.
        searched: whether a search has found them.
        finished: whether the generated text came to its end.
        array: an image or a sound that is in memory already; then `text` is but its name.
    """

    text: str
    question: str | None = None
    target: str | None = None
    beam: int | None = None
    more: int = 0
    max_tokens: int = 16_384
    prefix: tuple[int, ...] = ()
    ids: tuple[int, ...] | None = None
    searched: bool = False
    finished: bool = True
    array: Any = None

    @property
    def media(self) -> Any:
        """The image or the sound: its path, or itself."""
        return self.text if self.array is None else self.array

    def refuse_long(self, tokens: int) -> None:
        if tokens > self.max_tokens:
            raise ValueError(
                f"{tokens:,} tokens are too many to trace; shorten the input, or allow them: longest={tokens}"
            )


@dataclass(frozen=True)
class TokenAxis:
    """One side of a site's matrices: a label for each position, and the words that positions belong to.

    Examples:
        >>> axis = TokenAxis(("the", "cat", "s", "</s>"), words=("the", "cats"), word_ids=(0, 1, 1, None))
        >>> axis.word_groups
        [('the', [0]), ('cats', [1, 2]), ('</s>', [3])]
    """

    labels: tuple[str, ...]
    words: tuple[str, ...] = ()
    word_ids: tuple[int | None, ...] = ()  # None: no word, as the end of a sentence; empty: there are no words
    grid: tuple[int, int] | None = None  # rows and columns of an image's patches, which are the last positions

    @staticmethod
    def of(tokenizer: Tokenizer, ids: Sequence[int]) -> "TokenAxis":
        """The tokens with these ids, and the words that they spell."""
        return TokenAxis(tuple(token_label(tokenizer, one) for one in ids), *group_into_words(tokenizer, ids))

    @property
    def word_groups(self) -> list[tuple[str, list[int]]]:
        """Each word with its positions, in their order; what is no word stands for itself."""
        found: dict[object, tuple[str, list[int]]] = {}
        for position, label in enumerate(self.labels):
            word = self.word_ids[position] if self.word_ids else None
            key, name = (("position", position), label) if word is None else (word, self.words[word])
            found.setdefault(key, (name, []))[1].append(position)
        return list(found.values())


@dataclass(frozen=True, eq=False)
class EncodedInput:
    """An input as the model reads it, a batch of one, and what its parts are called.

    Args:
        model_inputs: the arguments of the one call of the model (`Task.forward`).
        axes: by the names that attention sites refer to.
        rows: what is predicted: a label for each row of logits.
        image: as the model is given it.
        output_ids: of the text that was generated, or read to be gone on with; None where nothing is generated.
        forced_steps: steps whose tokens were not chosen: a prompt's, or a target's.
        max_queries: of axes whose text is still being generated, how far edits may reach.
        gold_alignment: (source word, target word), where the miniature world knows them.
    """

    model_inputs: tuple[Any, ...]
    axes: Mapping[str, TokenAxis]
    rows: tuple[str, ...]
    image: UInt8[Tensor, "c h w"] | None = None
    output_ids: tuple[int, ...] | None = None
    forced_steps: int = 0
    max_queries: Mapping[str, int] = field(default_factory=dict)
    gold_alignment: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, eq=False)
class GenerationInput:
    """What a search is given to generate a text.

    Args:
        model: what is searched: the model itself, or one that holds what its encoder reads, such as a sound.
        tokenizer: of the generated text.
        source: ids that an encoder reads; None for a language model, which goes on with its prefix.
        prefix: ids that the text begins with; of a language model, its prompt and what is read before it.
        max_tokens: how many are generated at most.
        beam: hypotheses of the search.
        tree_beam: hypotheses of the search whose tree is shown.
        first_step: the step of the first generated token.
        axis: whose attention is that of the generated tokens.
    """

    model: Any
    tokenizer: Tokenizer
    source: tuple[int, ...] | None
    prefix: tuple[int, ...]
    max_tokens: int
    beam: int
    tree_beam: int
    first_step: int
    axis: str


@dataclass(frozen=True, eq=False)
class Predictions:
    """What the model chose from: for each row (a label, a word's tag, a generated token) a score for each option.

    Examples:
        >>> predictions = trace_model("run", "the cat sleeps", target="le chat dort").predictions
        >>> predictions.rows, predictions.logits.shape
        (('le', 'chat', 'dort', '</s>'), torch.Size([4, 14]))
        >>> len(predictions.best(row=0, count=3)), round(predictions.probabilities(0).sum().item(), 4)
        (3, 1.0)
    """

    rows: tuple[str, ...]
    logits: Float[Tensor, "rows options"]
    option_name: Callable[[int], str] = field(repr=False)  # of an option

    def probabilities(self, row: int) -> Float[Tensor, " options"]:
        if not 0 <= row < len(self.rows):
            raise ValueError(f"there is no step {row}; they are counted from 0 to {len(self.rows) - 1}")
        return self.logits[row].double().softmax(-1).float()

    def best(self, row: int, count: int = 5) -> list[tuple[str, float]]:
        """The options that are most probable."""
        found = self.probabilities(row)
        top = found.topk(min(count, len(found)))
        return [(self.option_name(n), p) for n, p in zip(top.indices.tolist(), top.values.tolist(), strict=True)]

    def best_options(self) -> list[str]:
        """The most probable option of each row."""
        return [self.option_name(n) for n in self.logits.argmax(-1).tolist()]


# --- labels of tokens ---


FREQUENT_IDS = 1000  # ids from which the words of an example are taken: vocabularies are sorted by frequency


def token_label(tokenizer: Tokenizer, one: int) -> str:
    """A token by itself, its spaces made visible."""
    if one < NUM_SPECIAL_TOKENS:
        return SPECIAL_LABELS[one]
    return (
        format_piece(tokenizer.pieces[one - NUM_SPECIAL_TOKENS])
        if isinstance(tokenizer, LosslessTokenizer)
        else tokenizer.decode([one])
    )


def token_id(tokenizer: Tokenizer, token: int | str) -> int:
    """A token by its number or its name."""
    if isinstance(token, str):
        # of a character and a byte that look the same, the character, as `encode` would
        names = {token_label(tokenizer, one): one for one in range(tokenizer.size)} | {
            SPECIAL_LABELS[one]: one for one in SPECIAL_LABELS
        }
        if token in names:
            return names[token]
        raise ValueError(f"there is no token {token!r:.80} in the vocabulary of {tokenizer.size}")
    return tokenizer.validate_ids([token])[0]


@runtime_checkable
class GroupsWords(Protocol):
    """A tokenizer that knows by itself which ids make a word."""

    def group(self, ids: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]: ...


def group_into_words(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The words that ids spell, and the word of each: also of ids that no tokenizer would give for that text.

    A space belongs to the word after it.
    """
    if isinstance(tokenizer, GroupsWords):
        return tokenizer.group(ids)
    if not isinstance(tokenizer, LosslessTokenizer):
        return tuple(token_label(tokenizer, one) for one in ids), tuple(range(len(ids)))
    word_ids: list[int] = []
    spelt: list[bytes] = []
    for one in ids:
        piece = b"" if one < NUM_SPECIAL_TOKENS else tokenizer.pieces[one - NUM_SPECIAL_TOKENS]
        if not spelt or (piece[:1].isspace() and spelt[-1].strip()):
            spelt.append(b"")
        spelt[-1] += piece
        word_ids.append(len(spelt) - 1)
    return tuple(word.strip().decode(errors="replace") for word in spelt), tuple(word_ids)


def frequent_words(tokenizer: Tokenizer, count: int = 6) -> str:
    """Some of the most frequent words of the vocabulary; "" if it has none."""
    ids = range(NUM_SPECIAL_TOKENS, min(tokenizer.size, FREQUENT_IDS))
    known = dict.fromkeys(word for id in ids if (word := tokenizer.decode([id]).strip()).isalpha())
    longer = [word for word in known if len(word) > 1] or list(known)  # a character vocabulary has letters only
    return " ".join(longer[:count])


# --- the task ---


class Task(ABC):
    """Abstract: one kind of model, with its data, metrics, inputs and outputs.

    `task_model` is always an instance of the class of that name.
    """

    settings: ClassVar[type[RunSettings]]  # the tables of its runs; its name is theirs
    task_model: ClassVar[type[PretrainedModel]]
    verb: ClassVar[str] = ""  # the method of its model that runs it on inputs
    batch_unit: ClassVar[str] = "tokens"  # what `train.batch_size` counts; "" where a batch is everything
    max_tokens: ClassVar[int] = MAX_SENTENCE_TOKENS  # of an example, when a model is evaluated
    inputs: ClassVar[InputSpec] = InputSpec()
    batching: ClassVar[Literal["call", "search", "generation"]] = "call"  # what a server runs for many inputs
    searches: ClassVar[bool] = False  # whether `evaluate` decodes with a search that can be chosen
    takes_batches: ClassVar[bool] = (
        False  # whether `forward_batch` takes several inputs, each with the logits it has alone
    )
    suggested_command: ClassVar[str] = "evaluate"  # to try on a trained model

    @property
    def name(self) -> str:
        return self.settings.task

    # --- data, training and evaluation ---

    @property
    def examples(self) -> str:
        """What they are called, in the plural."""
        return self.settings().data.examples

    def read(self, settings: Any, split: Split, folder: Path | None = None) -> LoadedExamples[Any]:
        """The examples of a split; the folder holds known corpora."""
        return settings.data.read(split, folder)

    def fit_settings(self, settings: Any, examples: Sequence[Any], given: Collection[str]) -> Any:
        """The settings with what the training examples say; `given` are the keys that the user has set."""
        return settings

    def token_ids(self, task_model: Any, examples: Sequence[Any]) -> Iterable[Sequence[int]]:
        """Those that the model reads at once; none if it reads images, or a text in windows."""
        return ()

    @abstractmethod
    def evaluate(
        self, task_model: Any, examples: Sequence[Any], *, search: Any = None, progress: ProgressBar = no_progress
    ) -> TaskMetrics:
        """The metrics of a trained model; `search` is the task's own unless it is given."""

    def after_training(  # noqa: B027  (most save nothing)
        self, task_model: Any, held_out: Sequence[Any], folder: Path, *, progress: ProgressBar = no_progress
    ) -> None:
        """Saves what is chosen on held-out examples beside a trained model."""

    # --- descriptions and examples ---

    def describe(self, task_model: Any) -> str:
        """What the name of the task does not say, as the languages of a translator."""
        return ""

    def example_input(self, task_model: Any) -> TaskInput:
        """An input to begin with: the training data may not be available."""
        if task_model.settings.data.corpus == "world":
            return TaskInput(EXAMPLE_SENTENCE)
        tokenizers = [tokenizer for tokenizer, _ in self.texts(task_model, TaskInput(""))]
        return TaskInput(frequent_words(tokenizers[0]) or EXAMPLE_SENTENCE)

    def example_text(self, example: Any) -> str:
        """The text of an example, for the page to begin with; "" if it is none."""
        return example if isinstance(example, str) else ""

    # --- one input, for a trace ---

    def texts(self, task_model: Any, given: TaskInput) -> list[tuple[Tokenizer, str]]:
        """What is tokenised, with what: the input first, then a target."""
        return []

    def normalize(self, task_model: Any, text: str) -> str:
        """The text whose words are counted, when one is swapped."""
        return text

    def generation(self, task_model: Any, given: TaskInput) -> GenerationInput:
        """What a search is given; of tasks that generate."""
        raise ValueError(f"a model for the task {self.name!r} generates nothing step by step")

    @abstractmethod
    def encode(self, task_model: Any, given: TaskInput) -> EncodedInput:
        """An input as the model reads it; what it cannot read is refused."""

    def forward(self, model: Any, encoded: EncodedInput) -> Float[Tensor, "rows options"]:
        """The one call of the model; `model` may stand for it, and record or edit its attention."""
        return self.forward_batch(model, [encoded])[0] if self.takes_batches else model(*encoded.model_inputs)

    def forward_batch(self, model: Any, encoded: Sequence[EncodedInput]) -> list[Float[Tensor, "rows options"]]:
        """The same for several inputs, by one call if the task takes batches."""
        if not self.takes_batches:
            return [self.forward(model, one) for one in encoded]
        logits = model(*collate_inputs([one.model_inputs for one in encoded]))
        return [x[None] if x.dim() == 1 else x[: len(one.rows)] for x, one in zip(logits, encoded, strict=True)]

    @abstractmethod
    def option_name(self, task_model: Any, option: int) -> str:
        """What a column of the logits stands for."""

    def output_text(self, task_model: Any, given: TaskInput, predictions: Predictions) -> str:
        """The model's output; by default its most probable options."""
        return " ".join(predictions.best_options())

    def preferred_head(
        self, task_model: Any, folder: Path | None, axes: Mapping[str, TokenAxis]
    ) -> tuple[str, int] | None:
        """The site and head at which the page opens; None is the most confident. The axes are those of attention."""
        return None
