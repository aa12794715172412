"""Export formats: the interface of those that a run can be exported to, and why a model has no counterpart there."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import tokenizers as library
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import Causal, Dot, Full, Learned, MultiHeadAttention, Rotary, ScaledDot, Sinusoidal, Softmax
from regard.data.tokenizers.base import BOS, EOS, CharTokenizer, Tokenizer, WordTokenizer
from regard.interop.proof import Check, ProofInputs
from regard.interop.tokenizer_json import export_tokenizer
from regard.layers.embedding import PositionalEmbedding
from regard.layers.sublayers import ACTIVATIONS, PostNorm, PreNorm
from regard.models.transformer import DecoderLayer, EncoderLayer
from regard.tasks.language_modeling.task import TextGenerator
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.registry import get_task
from regard.tasks.sequence_classification.task import TextClassifier
from regard.tasks.tagging.task import Tagger
from regard.tasks.translation.task import Translator

INNER_PRODUCTS = (ScaledDot, Dot)
MAX_POSITIONS = 1024  # rows of a table of positions, where a model itself has no limit


class ExportFormat(ABC):
    """Abstract: a folder that another engine loads. `task_model` is a `PretrainedModel`.

    Attributes:
        title: the engine's name.
        packages: that write and run it.
        precisions: of its weights.
    """

    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    precisions: ClassVar[tuple[str, ...]] = ("float32",)

    @abstractmethod
    def objections(self, task_model: Any) -> list[str]:
        """Why a model cannot be written: clauses that name the part; none means that it can."""

    @abstractmethod
    def write(self, task_model: Any, folder: Path, precision: str) -> None:
        """All that the engine reads, into a folder that is empty."""

    @abstractmethod
    def prove(self, task_model: Any, folder: Path, inputs: ProofInputs, precision: str) -> Sequence[Check]:
        """The same inputs through the model and through what was written."""

    @abstractmethod
    def usage(self, task_model: Any, folder: str) -> str:
        """Python that loads the folder, runs the model on a text and prints its output."""

    def encode(self, task_model: Any, folder: Path, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, by the tokenizer that was written; those of the input alone."""
        name = next(iter(text_tokenizers(task_model)))
        found = library.Tokenizer.from_file(str(folder / name))
        return [one.ids for one in found.encode_batch(list(texts))]

    def require_packages(self) -> None:
        """One line that says how to get what is missing."""
        if missing := [name for name in self.packages if find_spec(name) is None]:
            raise ValueError(f"an export to {self.title} needs {missing[0]}; pip install 'regard[interop]'")


# --- the tokenizers of a task ---


def text_tokenizers(task_model: PretrainedModel) -> dict[str, library.Tokenizer]:
    """tokenizer.json by the name of its file, that of the input first."""
    if isinstance(task_model, Translator):
        return {
            "source_tokenizer.json": export_tokenizer(task_model.source),
            "target_tokenizer.json": export_tokenizer(task_model.target),
        }
    if isinstance(task_model, TextGenerator):
        before, opening = prompt_opening(task_model.tokenizer)
        return {"tokenizer.json": export_tokenizer(task_model.tokenizer, before=before, opening=opening)}
    assert isinstance(task_model, TextClassifier | Tagger)
    return {"tokenizer.json": export_tokenizer(task_model.tokenizer)}


def prompt_opening(tokenizer: Tokenizer) -> tuple[tuple[int, ...], str]:
    """The special ids and the text that stand before a prompt: see `TextGenerator.encode_prompt`."""
    if isinstance(tokenizer, WordTokenizer):
        return (EOS,), ""
    if isinstance(tokenizer, CharTokenizer) and "\n" not in tokenizer.vocabulary:
        return (BOS,), ""
    return (), "\n"


def input_tokenizer(task_model: Any) -> Tokenizer:
    return task_model.source if isinstance(task_model, Translator) else task_model.tokenizer


def encode_text(task_model: PretrainedModel, text: str) -> tuple[int, ...]:
    """A text as the model reads it, without the EOS that follows a source."""
    if isinstance(task_model, TextGenerator):
        opening, ids = task_model.encode_prompt(text)
        return (*opening, *ids)
    return tuple(input_tokenizer(task_model).encode(text))


def write_tokenizers(task_model: PretrainedModel, folder: Path) -> None:
    for name, tokenizer in text_tokenizers(task_model).items():
        tokenizer.save(str(folder / name))


def quote_text(task_model: Any) -> tuple[str, str]:
    """Python for a text as tokenizer.json is given it, and the import that it needs."""
    text = get_task(task_model.settings.task).example_input(task_model).text
    if language := input_tokenizer(task_model).normalizer.language:
        return (
            f"word_tokenize({text!r}, {language!r})",
            "from regard.data.tokenizers.normalization import word_tokenize\n",
        )
    return repr(text), ""


# --- what a model is made of ---


def attentions_of(layers: Iterable[nn.Module]) -> dict[str, list[MultiHeadAttention]]:
    """The attentions of layers of an encoder, a decoder or a language model, by what they attend to."""
    found: dict[str, list[MultiHeadAttention]] = {}
    for layer in layers:
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        found.setdefault("self-attention", []).append(layer.attention)
        if isinstance(layer, DecoderLayer):
            found.setdefault("cross-attention", []).append(layer.cross)
    return found


def stack_objections(
    layers: Sequence[nn.Module],
    engine: str,
    *,
    causal: bool,
    activations: Iterable[str],
    rotary: bool = False,
    scores: tuple[type, ...] = (ScaledDot,),
) -> list[str]:
    """Why layers are not those of a plain Transformer: softmax(q kᵀ / √d) v of everybody, or of everybody before."""
    found, first = [], layers[0]
    assert isinstance(first, EncoderLayer | DecoderLayer)
    if type(norm := first.residual_attention) not in (PreNorm, PostNorm):
        found.append(f"the residual connection {type(norm).__name__} is none of {engine}, which has pre and post norm")
    if (activation := activation_name(first)) not in activations:
        found.append(f"the activation {activation or 'of your own'} is none of {engine}")
    for place, attentions in attentions_of(layers).items():
        pattern = Causal() if causal and place == "self-attention" else Full()
        for part in attentions:
            recipe, turns = part.recipe, rotary and place == "self-attention"
            if type(recipe.score) not in scores:
                found.append(f"the score {recipe.score} of {place} is none of {engine}")
            if recipe.normaliser != Softmax():
                found.append(f"the normaliser {recipe.normaliser} of {place} is none of {engine}, which has softmax")
            if recipe.pattern != pattern:
                found.append(f"the pattern {recipe.pattern} of {place} is none of {engine}, which has {pattern}")
            strange = [one for one in recipe.query_key_positions if not (turns and isinstance(one, Rotary))]
            found += [
                f"the position {one} of {place} is none of {engine}" for one in (*strange, *recipe.score_positions)
            ]
            if part.compress is not None:
                found.append(f"{part.compress} mixes keys, which {engine} does not")
        if len({one.recipe.query_key_positions for one in attentions}) > 1:
            found.append(f"the layers differ in their rotary positions, and those of {engine} do not")
    return list(dict.fromkeys(found))


def activation_name(layer: EncoderLayer | DecoderLayer) -> str:
    """Its name; "" for a function of a user's own."""
    return next((name for name, function in ACTIVATIONS.items() if function is layer.feed_forward.activation), "")


def position_objections(positions: PositionalEmbedding, engine: str) -> list[str]:
    """Why what is added to embeddings is no table of positions."""
    schemes = positions.recipe.embedding_positions
    return [f"the position {one} is none of {engine}" for one in schemes if not isinstance(one, Sinusoidal | Learned)]


def position_table(positions: PositionalEmbedding, like: Float[Tensor, "size width"]) -> Float[Tensor, "length width"]:
    """What is added at each position, as many as the learned ones are."""
    schemes = positions.recipe.embedding_positions
    length = min((one.max_length for one in schemes if isinstance(one, Learned)), default=MAX_POSITIONS)
    with torch.no_grad():
        return positions.table(length, like).to(like.dtype)


def position_limit(task_model: Any) -> int:
    """How many tokens a text may have: as many as there are learned positions, or rows of a written table."""
    learned = [part.max_length for part in task_model.model.modules() if isinstance(part, Learned)]
    return min([*learned, MAX_POSITIONS])


def translation_limit(task_model: Any, inputs: ProofInputs) -> int:
    """How many tokens a translation may have in a proof."""
    return min(2 * max(map(len, inputs.ids)) + 10, position_limit(task_model) - 1)
