"""Tasks of Hugging Face models: what a trace, the page and `regard look` do with them, by what their heads predict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data.tokenizers.base import Tokenizer
from regard.interop.huggingface.decoding import CausalLM, Seq2SeqLM
from regard.interop.huggingface.folder import load_folder
from regard.interop.huggingface.model import HuggingFaceModel
from regard.interop.huggingface.tokenizer import HuggingFaceTokenizer
from regard.tasks.config import RunSettings
from regard.tasks.language_modeling.task import LanguageModelingTask
from regard.tasks.own_parts import OwnParts
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import (
    EXAMPLE_SENTENCE,
    EncodedInput,
    GenerationInput,
    Predictions,
    Task,
    TaskInput,
    TokenAxis,
)
from regard.tasks.registry import FOREIGN_TASKS
from regard.tasks.seq2seq import Seq2SeqTask

NOT_TRAINED_HERE = "a Hugging Face model is neither trained nor evaluated here; train it with transformers"
CAUSAL, SEQ2SEQ, ENCODER = FOREIGN_TASKS


# --- the model of a task ---


@dataclass(frozen=True)
class HuggingFaceKind:
    """The kind of a model: its class in transformers."""

    kind: str


@dataclass(frozen=True)
class HuggingFaceSettings(RunSettings):
    """What a trace must know of a model that was not trained here."""

    model: HuggingFaceKind
    task: str = ENCODER  # type: ignore[misc]

    @property
    def data(self) -> Any:  # type: ignore[override]
        raise ValueError(NOT_TRAINED_HERE)

    @property
    def train(self) -> Any:  # type: ignore[override]
        raise ValueError(NOT_TRAINED_HERE)

    @classmethod
    def of_world(cls):
        raise ValueError(NOT_TRAINED_HERE)


@dataclass(frozen=True, eq=False)
class HuggingFaceTaskModel(PretrainedModel):
    """A Hugging Face model with its tokenizer.

    Args:
        model: with a core for each of its attentions.
        tokenizer: in our order of ids.
        settings: its task and its class.
    """

    model: Any
    tokenizer: HuggingFaceTokenizer
    settings: HuggingFaceSettings
    settings_type: ClassVar[type[RunSettings]] = HuggingFaceSettings
    part_files: ClassVar[Mapping[str, Any]] = {}

    @staticmethod
    def of(model: nn.Module, tokenizer: Any) -> "HuggingFaceTaskModel":
        """A model and a tokenizer of transformers."""
        config: Any = model.config
        task = task_of(model)
        start = config.decoder_start_token_id if task == SEQ2SEQ else config.bos_token_id
        end = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
        if task == ENCODER:
            start, end = None, None  # nothing is generated, so no token ends anything
        known = HuggingFaceTokenizer.of(tokenizer, vocabulary_of(model, tokenizer), start, end)
        face = {CAUSAL: CausalLM, SEQ2SEQ: Seq2SeqLM}.get(task)
        wrapped = HuggingFaceModel(model) if face is None else face(model, known)
        wrapped.to(next(model.parameters()).device)
        settings = HuggingFaceSettings(HuggingFaceKind(type(model).__name__), task)
        return HuggingFaceTaskModel(wrapped.eval(), known, settings)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "cpu",
        checkpoint: str | int | None = None,
        own_parts: OwnParts = OwnParts(),
    ) -> Self:
        """From a folder that `save_pretrained` wrote: config.json, safetensors and a tokenizer."""
        if checkpoint is not None:
            raise ValueError(f"{folder} is a Hugging Face model and has no checkpoint {checkpoint}; leave it out")
        model, tokenizer = load_folder(Path(folder))
        return cls.of(model.to(device), tokenizer)  # type: ignore[return-value]

    def encode_prompt(self, text: str) -> tuple[list[int], list[int]]:
        """The first token, which nothing predicts, and those after it."""
        ids = self.tokenizer.encode(text)
        if not ids:
            raise ValueError("the text has no tokens; give at least one word")
        return ids[:1], ids[1:]

    @staticmethod
    def build_model(*args: Any, **kwargs: Any) -> Any:
        raise ValueError(NOT_TRAINED_HERE)

    @staticmethod
    def from_examples(examples: Any, settings: Any, /) -> PretrainedModel:
        raise ValueError(NOT_TRAINED_HERE)

    def job(self, examples: Sequence[Any], held_out: Sequence[Any], device: str = "cpu", /):
        raise ValueError(NOT_TRAINED_HERE)


def task_of(model: Any) -> str:
    """Which of the tasks: by whether it generates, and whether from a source."""
    if model.main_input_name != "input_ids":
        raise ValueError(
            f"{type(model).__name__} reads {model.main_input_name}, and texts alone are traced; watch it with "
            "regard.watch(model)"
        )
    if not model.can_generate():
        return ENCODER
    return SEQ2SEQ if model.config.is_encoder_decoder else CAUSAL


def vocabulary_of(model: Any, tokenizer: Any) -> int:
    """How many ids there are: rows of the embeddings, which may be more than tokens, or fewer."""
    return max(model.get_input_embeddings().weight.shape[0], len(tokenizer))


# --- the tasks ---


class CausalLMTask(LanguageModelingTask):
    """A causal language model: the next token of a text, and so its continuation."""

    settings = HuggingFaceSettings
    task_model = HuggingFaceTaskModel
    verb = ""

    @property
    def name(self):
        return CAUSAL

    def evaluate(self, task_model, examples, *, search=None, progress=None):
        raise ValueError(NOT_TRAINED_HERE)

    def after_training(self, *args, **kwargs):
        raise ValueError(NOT_TRAINED_HERE)

    def example_input(self, task_model):
        return TaskInput(EXAMPLE_SENTENCE)

    def output_text(self, task_model: Any, given: TaskInput, predictions: Predictions) -> str:
        opening, ids = self.prompt(task_model, given)
        more = (given.ids or ())[len(ids) :]
        if not given.prefix and not more:
            return given.text
        text = task_model.tokenizer.text((*opening, *ids, *more))
        return text if given.prefix else given.text + text.removeprefix(task_model.tokenizer.text((*opening, *ids)))


class HuggingFaceSeq2SeqTask(Seq2SeqTask):
    """A sequence-to-sequence model: a target for a source, token by token."""

    settings = HuggingFaceSettings
    task_model = HuggingFaceTaskModel
    beam = 4

    @property
    def name(self):
        return SEQ2SEQ

    def pair(self, task_model):
        return task_model.tokenizer, task_model.tokenizer

    def generation(self, task_model: HuggingFaceTaskModel, given: TaskInput) -> GenerationInput:
        found = super().generation(task_model, given)
        forced = task_model.model.model.generation_config.forced_bos_token_id
        if forced is None or found.prefix:
            return found
        return replace(found, prefix=(task_model.tokenizer.from_foreign[forced],))

    def evaluate(self, task_model, examples, *, search=None, progress=None):
        raise ValueError(NOT_TRAINED_HERE)

    def example_input(self, task_model):
        return TaskInput(EXAMPLE_SENTENCE)

    def preferred_head(self, task_model, folder, axes):
        crossing = [site.name for site in task_model.model.attention_sites.values() if site.queries == "written"]
        return crossing[-1], 0

    def output_text(self, task_model, given, predictions):
        ids = self.target_text(task_model, given).ids
        found = task_model.tokenizer
        return found.own.decode([found.to_foreign[one] for one in ids], skip_special_tokens=True).strip()


class EncoderTask(Task):
    """An encoder: a label of the text or of each token, a masked token, or vectors alone."""

    settings = HuggingFaceSettings
    task_model = HuggingFaceTaskModel

    @property
    def name(self):
        return ENCODER

    def evaluate(self, task_model, examples, *, search=None, progress=None):
        raise ValueError(NOT_TRAINED_HERE)

    def example_input(self, task_model):
        return TaskInput(EXAMPLE_SENTENCE)

    def texts(self, task_model: HuggingFaceTaskModel, given: TaskInput) -> list[tuple[Tokenizer, str]]:
        return [(task_model.tokenizer, given.text)]

    def encode(self, task_model: HuggingFaceTaskModel, given: TaskInput) -> EncodedInput:
        tokenizer = task_model.tokenizer
        ids = tokenizer.encode(given.text)
        given.refuse_long(len(ids))
        labels, (words, word_ids) = tuple(tokenizer.label(one) for one in ids), tokenizer.group(ids)
        foreign = torch.tensor([[tokenizer.to_foreign[one] for one in ids]])
        rows = {"token": labels, "text": ("the text",)}.get(self.labelled(task_model), ())
        return EncodedInput((foreign,), {"text": TokenAxis(labels, words, word_ids)}, rows)

    def labelled(self, task_model: HuggingFaceTaskModel) -> str:
        """What the model's head gives a label: each token, the text, or nothing."""
        name = type(task_model.model.model).__name__
        if name.endswith(("ForMaskedLM", "ForTokenClassification")):
            return "token"
        return "text" if name.endswith("ForSequenceClassification") else ""

    def forward(self, model: HuggingFaceModel, encoded: EncodedInput) -> Float[Tensor, "rows options"]:
        (ids,) = encoded.model_inputs
        found = model(input_ids=ids.to(next(model.parameters()).device))
        if not encoded.rows:
            return torch.zeros(0, 1)
        return found.logits.flatten(0, -2)

    def option_name(self, task_model: HuggingFaceTaskModel, option: int) -> str:
        model = task_model.model.model
        if type(model).__name__.endswith("ForMaskedLM"):
            found = task_model.tokenizer
            return found.label(found.from_foreign[option])
        return str(model.config.id2label.get(option, option))

    def output_text(self, task_model: HuggingFaceTaskModel, given: TaskInput, predictions: Predictions) -> str:
        return super().output_text(task_model, given, predictions) if predictions.rows else given.text


TASKS = {CAUSAL: CausalLMTask(), SEQ2SEQ: HuggingFaceSeq2SeqTask(), ENCODER: EncoderTask()}
