"""Pretrained models: saves and loads a model with its settings, tokenizers (which it trains) and labels; its outputs.

Outputs are values that print as text and show as tables in a notebook.
"""

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from filecmp import cmp
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, overload

import torch
from jaxtyping import Float
from torch import Tensor

from regard.data import ByteTokenizer, CharTokenizer, SubwordTokenizer, TextNormalizer, WordTokenizer
from regard.data.files import make_folder, write_text_atomic
from regard.data.preparation import load_vocabularies
from regard.data.token_files import CorpusMixture, TextMixture
from regard.data.tokenizers.base import NUM_SPECIAL_TOKENS, Tokenizer
from regard.data.tokenizers.subwords import load_tokenizer
from regard.models.baselines import WordVectors
from regard.models.config import WordEmbeddingConfig
from regard.models.safetensors_io import (
    SkipDraws,
    check_compatible,
    load_weights,
    read_note,
    saveable_tensors,
    shapes_in,
    shapes_only,
    write_weights,
)
from regard.tasks.config import PairTokenizerSettings, RunSettings, TokenizerSettings, read_depths
from regard.tasks.own_parts import OwnParts, write_copies
from regard.tasks.registry import is_huggingface_folder
from regard.training.checkpoint import SETTINGS, WEIGHTS, resolve_run, resolve_weights
from regard.training.config import Loss, TrainingData, TrainingJob, Validate, with_choice_loss

T = TypeVar("T", bound=RunSettings)
# files of parts as older runs call them
FORMER_PARTS = {"tokenizer": "words", "characters": "letters", "preprocessor": "sight", "featurizer": "reader"}


class SavedPart(Protocol):
    """A tokeniser, labels: what is saved beside the weights in a file of its own."""

    def save(self, path: Path, /) -> None: ...


class PretrainedModel(ABC):
    """Abstract: a model with its settings and the parts it reads and writes with, which a folder can hold."""

    settings_type: ClassVar[type[RunSettings]]
    # attribute: (name of its file, what reads it); in the order of `build_model`'s arguments
    part_files: ClassVar[Mapping[str, tuple[str, Callable[[Path], SavedPart]]]]

    model: Any  # an nn.Module
    settings: Any  # RunSettings

    @staticmethod
    @abstractmethod
    def build_model(*args: Any, **kwargs: Any) -> Any:
        """A model with new weights, of the parts and the settings."""

    @classmethod
    def from_parts(cls, *parts: Any, settings: Any) -> Self:
        """A model whose new weights follow from the seed; a dataclass of the model, its parts and the settings."""
        torch.manual_seed(settings.train.seed)
        named = dict(zip(cls.part_files, parts, strict=True))
        return cls(model=cls.build_model(*parts, settings), settings=settings, **named)  # type: ignore[call-arg]

    @property
    def parts(self) -> dict[str, SavedPart]:
        """By the names of their files."""
        return {name: getattr(self, attribute) for attribute, (name, _) in self.part_files.items()}

    @classmethod
    @abstractmethod
    def from_examples(cls, examples: Any, settings: Any, /) -> "PretrainedModel":
        """New weights; vocabularies and labels from training examples."""

    @classmethod
    def from_description(cls, folder: Path, own_parts: OwnParts = OwnParts()) -> Self:
        """What `describe` wrote, with new weights."""
        settings = load_settings(folder, cls.settings_type, own_parts)
        return cls.from_parts(*cls.load_parts(folder), settings=settings)

    @classmethod
    def load_parts(cls, folder: Path) -> list[SavedPart]:
        """Each part of a folder; files that are the same, as those of a joint vocabulary, are read once."""
        found: list[tuple[Any, Path, SavedPart]] = []
        for name, load in cls.part_files.values():
            path = part_path(folder, name)
            same = (
                part for by, other, part in found if by is load and path.is_file() and cmp(path, other, shallow=False)
            )
            found.append((load, path, next(same, None) or load(path)))
        return [part for _, _, part in found]

    @abstractmethod
    def job(self, examples: Sequence[Any], held_out: Sequence[Any], device: str = "cpu", /) -> TrainingJob:
        """The training of this model on these examples."""

    def training_job(
        self, data: TrainingData, loss: Loss, validate: Validate, device: torch.device | str, **more: Any
    ) -> TrainingJob:
        """This model, trained as its settings say; `more` are the other fields of the job."""
        fields = {"width": self.settings.model.model, "describe": self.describe, **more}
        loss = with_choice_loss(self.model, loss)
        return TrainingJob(self.model.to(device), data, loss, validate, self.settings.train, **fields)

    def require_own_ids(self, mixture: CorpusMixture | TextMixture) -> None:
        """Refuses prepared corpora that were encoded by other tokenizers than this model's."""
        folder = mixture.corpora[0].folder
        for own, prepared in zip(self.parts.values(), load_vocabularies(folder, tuple(self.parts)), strict=True):
            if prepared != own:
                raise ValueError(
                    f"{folder} was prepared with another vocabulary than the model's; prepare it with --vocabulary and "
                    "the folder of the model's run"
                )

    def describe(self, folder: Path) -> str:
        """All but the weights: settings.toml and each part as NAME.json, whose checksum is what the weights note."""
        make_folder(folder)
        for name, part in self.parts.items():
            part.save(folder / f"{name}.json")
        write_copies(self.settings.own_parts, folder)
        write_text_atomic(folder / SETTINGS, self.settings.to_toml())  # last: what it describes is all there
        return parts_checksum(folder, self.parts)

    def save(self, folder: Path) -> None:
        note = self.describe(folder)
        write_weights(saveable_tensors(self.model), folder / WEIGHTS, note)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "cpu",
        checkpoint: str | int | None = None,
        own_parts: OwnParts = OwnParts(),
    ) -> Self:
        """With the weights of the run as it stands (see `resolve_weights`), if they belong to the parts beside them."""
        folder = Path(folder)
        settings_path(folder)
        chosen = resolve_weights(folder, checkpoint)
        parts = cls.check_weights_match(chosen.run, chosen.file, own_parts)
        settings = load_settings(chosen.run, cls.settings_type, own_parts)
        # a part of the user's own may keep random numbers that are no weights
        with nullcontext() if own_parts.named else SkipDraws():
            found = cls.from_parts(*parts, settings=settings)
        load_weights(found.model, chosen.file)
        if read_note(chosen.file) not in ("", parts_checksum(chosen.run, found.parts)):
            files = " or ".join(f"{name}.json" for name in found.parts)
            raise ValueError(f"{folder}: {files} is not what the weights were trained with; put it back")
        if notice := chosen.stopped_notice(found.settings.train.steps):
            logging.getLogger(__name__).warning(notice)
        found.model.to(device).eval()
        return found.with_extras(chosen.run)

    def with_extras(self, run: Path) -> Self:
        """With what else a run's folder holds for it."""
        return self

    @classmethod
    def check_weights_match(cls, folder: Path, weights: Path, own_parts: OwnParts = OwnParts()) -> Sequence[SavedPart]:
        """Refuses settings that describe another model than the weights are of, before it is built: it may fill the
        memory. Returns the parts, which are the same for the model itself."""
        count = len(shapes_in(weights))
        for name, depth in read_depths(settings_path(folder)).items():
            if depth > count:  # each has at least one weight, and to shape a million of them would take hours
                raise ValueError(f"{folder / SETTINGS}: {name} = {depth}, but the weights in {weights} are of fewer")
        with shapes_only():
            settings = load_settings(folder, cls.settings_type, own_parts)
        parts = cls.load_parts(folder)
        with shapes_only():
            check_compatible(cls.from_parts(*parts, settings=settings).model, weights)
        return parts


@dataclass(frozen=True, eq=False)
class TextModel(PretrainedModel):
    """Abstract: a model of texts with the one tokenizer that it reads and writes them by."""

    part_files: ClassVar = {"tokenizer": ("tokenizer", load_tokenizer)}

    model: Any
    tokenizer: Tokenizer
    settings: Any

    @classmethod
    def from_examples(cls, texts: Sequence[str] | TextMixture, settings: Any, /) -> Self:
        """A vocabulary learnt from the texts, or that of prepared ones, and a model with new weights."""
        if isinstance(texts, TextMixture):
            (tokenizer,) = load_vocabularies(texts.corpora[0].folder, ("tokenizer",))
        else:
            tokenizer = train_text_tokenizer(texts, settings.text)
        return cls.from_parts(tokenizer, settings=settings)


def part_path(folder: Path, name: str) -> Path:
    """Where a part of a model is, in a run of an earlier version too."""
    path, former = folder / f"{name}.json", folder / f"{FORMER_PARTS.get(name, name)}.json"
    return former if former.exists() and not path.exists() else path


def parts_checksum(folder: Path, names: Iterable[str]) -> str:
    """Of the parts: others of the same size would fit the weights, and mean something else."""
    return hashlib.sha256(b"".join(part_path(folder, name).read_bytes() for name in names)).hexdigest()


def load_settings(folder: Path, kind: type[T], own_parts: OwnParts = OwnParts()) -> T:
    return kind.load(settings_path(folder), own_parts)


def settings_path(folder: Path) -> Path:
    """The file of settings in the folder of a run, or of one of its checkpoints."""
    run, _ = resolve_run(folder)
    if is_huggingface_folder(run):
        raise ValueError(
            f"{folder} is a Hugging Face model, and no run: regard look and regard serve show it, the rest is for runs"
        )
    if not (run / SETTINGS).exists():
        raise ValueError(f"{folder} holds no model: {SETTINGS} is missing; train one with regard train")
    return run / SETTINGS


# --- new tokenizers, as the settings ask for them ---


def train_tokenizer(
    texts: Iterable[str], settings: PairTokenizerSettings | TokenizerSettings, normal: TextNormalizer
) -> Tokenizer:
    match settings.kind:
        case "bpe":
            return SubwordTokenizer.bpe(texts, size=settings.vocab_size, normalizer=normal)
        case "unigram":
            return SubwordTokenizer.unigram(texts, size=settings.vocab_size, normalizer=normal)
        case "words":
            return WordTokenizer.train(texts, size=settings.vocab_size, normalizer=normal)
        case "bytes":
            return ByteTokenizer(normal)
        case "pretrained":
            raise ValueError(
                "text.kind = 'pretrained' is the tokenizer of a model imported from elsewhere; train on from its run "
                "(--start), or choose another kind"
            )
        case _:
            return CharTokenizer.train(texts, normalizer=normal)


def extend_vocabulary(words: Tokenizer, more: Iterable[str], size: int) -> WordTokenizer:
    """A vocabulary of words with others behind its own, up to `size` ids."""
    if not isinstance(words, WordTokenizer):
        raise ValueError("vectors from a file are of whole words; set text.kind = 'words'")
    known = set(words.vocabulary)
    others = [word for word in more if word not in known and word.split() == [word]]
    return WordTokenizer((*words.vocabulary, *others)[: size - NUM_SPECIAL_TOKENS], words.normalizer)


def token_strings(words: Tokenizer) -> tuple[str, ...]:
    """The word of every id, if ids are words."""
    return (*[""] * NUM_SPECIAL_TOKENS, *words.vocabulary) if isinstance(words, WordTokenizer) else ()


def train_text_tokenizer(texts: Iterable[str], settings: TokenizerSettings) -> Tokenizer:
    """For texts of one language."""
    return train_tokenizer(
        texts, settings, TextNormalizer(lower=settings.lowercase, language=settings.language or None)
    )


def train_tokenizer_with_vectors(
    texts: Iterable[str], settings: TokenizerSettings, words: WordEmbeddingConfig
) -> Tokenizer:
    """The same; it knows words that have a vector from elsewhere, too."""
    own = train_text_tokenizer(texts, settings)
    return (
        extend_vocabulary(own, WordVectors.load(words.file).words, settings.vocab_size) if words.kind == "file" else own
    )


# --- outputs ---


Given = TypeVar("Given")
Output = TypeVar("Output")


@dataclass(frozen=True, kw_only=True)
class ModelOutput:
    """What a model returns for one input.

    Args:
        text: of the output: a translation, a label, an answer.
        score: the model's own log-probability of it, or the probability of a label.

    >>> output = ModelOutput(text="le chat dort", score=-0.25)
    >>> print(output)
    le chat dort
    """

    text: str
    score: float

    def __str__(self) -> str:
        return self.text

    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table that a notebook shows."""
        return [(self.text, f"{self.score:.3f}")]

    def _repr_html_(self) -> str:
        return html_table(self.rows())


@dataclass(frozen=True, kw_only=True)
class LabelOutput(ModelOutput):
    """A label: `score` is its probability.

    Args:
        probabilities: of every label, the most probable first.

    >>> print(LabelOutput.of(["good", "bad"], [0.25, 0.75]))
    bad
    """

    probabilities: Mapping[str, float]

    @staticmethod
    def of(names: Sequence[str], probabilities: Sequence[float]) -> "LabelOutput":
        """Of the probabilities of all labels, in the order of their names."""
        found = dict(sorted(zip(names, probabilities, strict=True), key=lambda pair: -pair[1]))
        best, probability = next(iter(found.items()))
        return LabelOutput(text=best, score=probability, probabilities=found)

    def rows(self) -> list[tuple[str, ...]]:
        return [(name, f"{100 * probability:.1f} %") for name, probability in self.probabilities.items()]


@dataclass(frozen=True, eq=False)
class WordAlignment:
    """Which source words each word of a translation attended to.

    Args:
        source, target: the words.
        weights: of each target word to each source word; the last column is the end of the sentence.
        links: (source word, target word), counted from 0: where each target word attended most.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Float[Tensor, "target source_and_end"] = field(repr=False)
    links: frozenset[tuple[int, int]]

    def __str__(self) -> str:
        """In Pharaoh format: source-target, as in 0-0 1-2 2-1."""
        return " ".join(f"{source}-{target}" for source, target in sorted(self.links))

    def _repr_html_(self) -> str:
        weights = self.weights[:, : len(self.source)].tolist()
        rows = [(word, *(f"{weight:.2f}" for weight in row)) for word, row in zip(self.target, weights, strict=True)]
        return html_table(rows, ("", *self.source), [(0.0, *row) for row in weights])


def html_table(
    rows: Iterable[Sequence[str]], header: Sequence[str] = (), shades: Sequence[Sequence[float]] | None = None
) -> str:
    """An HTML table, its cells shaded by numbers from 0 to 1, if given."""

    def cell(text: str, shade: float) -> str:
        # from white to the dark blue of the plots; the ink turns white where black would be hard to read
        color = f' style="background: rgba(8, 48, 107, {shade:.3f}); color: {"white" if shade > 0.5 else "black"}"'
        return f"<td{color if shade > 0 else ''}>{escape(text)}</td>"

    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in header)}</tr>" if header else ""
    lines = [
        "".join(cell(text, shades[n][m] if shades else 0.0) for m, text in enumerate(row)) for n, row in enumerate(rows)
    ]
    return f"<table>{head}{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


@overload
def one_or_many(inputs: str | Path, run: Callable[[Sequence[Any]], list[Output]]) -> Output: ...
@overload
def one_or_many(inputs: Sequence[Any], run: Callable[[Sequence[Any]], list[Output]]) -> list[Output]: ...
def one_or_many(inputs: Any, run: Callable[[Sequence[Any]], list[Output]]) -> Output | list[Output]:
    """Of a single input its output, of several a list of theirs, in their order."""
    return run([inputs])[0] if isinstance(inputs, str | Path) else run(list(inputs))
