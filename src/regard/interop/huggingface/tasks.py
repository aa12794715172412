"""Tasks of Hugging Face models: what a trace, the page and `regard look` do with them, by what their heads predict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data.batching import collate_inputs
from regard.data.preprocess import EXAMPLE_SOUND
from regard.data.tokenizers.base import Tokenizer
from regard.interop.huggingface.checkpoint import load_folder, task_of
from regard.interop.huggingface.model import (
    CausalLM,
    HeardSpeech,
    HuggingFaceModel,
    HuggingFaceTokenizer,
    PictureReader,
    Seq2SeqLM,
    SoundReader,
    SpeechSeq2SeqLM,
    part_of,
    patch_axis,
)
from regard.models.seq2seq import decoder_inputs
from regard.tasks.config import RunSettings
from regard.tasks.image_batches import EXAMPLE_IMAGES
from regard.tasks.language_modeling.task import TREE_BEAM, LanguageModelingTask
from regard.tasks.own_parts import OwnParts
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.protocol import (
    EXAMPLE_SENTENCE,
    EncodedInput,
    GenerationInput,
    InputSpec,
    Predictions,
    Task,
    TaskInput,
    TokenAxis,
    token_label,
)
from regard.tasks.registry import FOREIGN_TASKS
from regard.tasks.seq2seq import Seq2SeqTask, TargetText

NOT_TRAINED_HERE = "a Hugging Face model is neither trained nor evaluated here; train it with transformers"
CAUSAL, SEQ2SEQ, ENCODER, IMAGE, SPEECH = FOREIGN_TASKS


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
    """Abstract: a Hugging Face model, with what turns its inputs into tensors.

    Args:
        model: with a core for each of its attentions.
        settings: its task and its class.
    """

    model: Any
    settings: HuggingFaceSettings
    settings_type: ClassVar[type[RunSettings]] = HuggingFaceSettings
    part_files: ClassVar[Mapping[str, Any]] = {}

    @staticmethod
    def of(model: nn.Module, processor: Any) -> "HuggingFaceTaskModel":
        """A model of transformers with its tokenizer, its image processor, or the processor that holds both kinds."""
        own: Any = model
        task, device = (
            task_of(type(own), is_encoder_decoder=own.config.is_encoder_decoder),
            next(own.parameters()).device,
        )
        settings = HuggingFaceSettings(HuggingFaceKind(type(own).__name__), task)
        if task == IMAGE:
            return VisionTaskModel(HuggingFaceModel(own).eval(), settings, PictureReader.of(processor, own))
        tokenizer = read_tokenizer(task, own, part_of(processor, "tokenizer"))
        if task == SPEECH:
            speech = SpeechSeq2SeqLM(own, tokenizer).to(device)
            return SpeechTaskModel(speech.eval(), settings, tokenizer, SoundReader.of(processor, own))
        face = {CAUSAL: CausalLM, SEQ2SEQ: Seq2SeqLM}.get(task)
        text = HuggingFaceModel(own) if face is None else face(own, tokenizer).to(device)
        return TextTaskModel(text.eval(), settings, tokenizer)

    @classmethod
    def load(cls, folder, device="cpu", checkpoint=None, own_parts=OwnParts()):
        """From a folder that `save_pretrained` wrote: config.json, safetensors, and a tokenizer or a processor."""
        if checkpoint is not None:
            raise ValueError(f"{folder} is a Hugging Face model and has no checkpoint {checkpoint}; leave it out")
        model, processor = load_folder(Path(folder))
        return cls.of(model.to(device), processor)  # type: ignore[return-value]

    @staticmethod
    def build_model(*args: Any, **kwargs: Any) -> Any:
        raise ValueError(NOT_TRAINED_HERE)

    @classmethod
    def from_examples(cls, examples: Any, settings: Any, /) -> PretrainedModel:
        raise ValueError(NOT_TRAINED_HERE)

    def job(self, examples: Sequence[Any], held_out: Sequence[Any], device: str = "cpu", /):
        raise ValueError(NOT_TRAINED_HERE)


@dataclass(frozen=True, eq=False)
class TextTaskModel(HuggingFaceTaskModel):
    """A model that reads texts, with its tokenizer in our order of ids."""

    tokenizer: HuggingFaceTokenizer

    def encode_prompt(self, text: str) -> tuple[list[int], list[int]]:
        """The first token, which nothing predicts, and those after it."""
        ids = self.tokenizer.encode(text)
        if not ids:
            raise ValueError("the text has no tokens; give at least one word")
        return ids[:1], ids[1:]


@dataclass(frozen=True, eq=False)
class VisionTaskModel(HuggingFaceTaskModel):
    """A model that reads pictures, with its image processor."""

    reader: PictureReader


@dataclass(frozen=True, eq=False)
class SpeechTaskModel(HuggingFaceTaskModel):
    """A model that reads sounds and writes texts, with its tokenizer in our order of ids and its feature extractor."""

    tokenizer: HuggingFaceTokenizer
    reader: SoundReader


def read_tokenizer(task: str, model: Any, own: Any) -> HuggingFaceTokenizer:
    """The tokenizer of a model in our order of ids, with what begins and ends its texts."""
    from transformers import PreTrainedTokenizerBase

    if not isinstance(own, PreTrainedTokenizerBase):
        raise ValueError(
            f"{type(model).__name__} reads texts, and {type(own).__name__} is no tokenizer; give one: "
            "regard.trace(model, tokenizer, text)"
        )
    start = end = None  # an encoder generates nothing, so no token begins or ends anything
    if task != ENCODER:
        config = model.config
        start = config.bos_token_id if task == CAUSAL else config.decoder_start_token_id
        end = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
    return HuggingFaceTokenizer.of(own, vocabulary_of(model, own), start, end)


POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe")


def position_limit(model: Any) -> float:
    """How many tokens a model reads at most: one that looks positions up has as many rows as it reads tokens."""
    limit = inf
    for path, table in model.named_modules():
        if isinstance(table, nn.Embedding) and path.rpartition(".")[2] in POSITION_TABLES:
            # RoBERTa's positions begin behind the row of padding, BART's behind its offset
            before = 0 if table.padding_idx is None else table.padding_idx + 1
            limit = min(limit, table.num_embeddings - vars(table).get("offset", before))
    return limit


def refuse_beyond_positions(model: Any, tokens: int) -> None:
    if tokens > (most := position_limit(model)):
        raise ValueError(
            f"{tokens:,} tokens are more than the {most:,} that {type(model).__name__} has positions for; shorten the "
            "text"
        )


def vocabulary_of(model: Any, tokenizer: Any) -> int:
    """How many ids there are: rows of the embeddings, which may be more than tokens, or fewer."""
    return max(model.get_input_embeddings().weight.shape[0], len(tokenizer))


# --- the tasks ---


class HuggingFaceTask(Task):
    """Abstract: a task of models that were trained elsewhere; here they are looked at."""

    settings = HuggingFaceSettings
    task_model = TextTaskModel
    task: ClassVar[str]

    @property
    def name(self):
        return self.task

    def evaluate(self, task_model, examples, *, search=None, progress=None):
        raise ValueError(NOT_TRAINED_HERE)

    def example_input(self, task_model):
        return TaskInput(EXAMPLE_SENTENCE)


class CausalLMTask(HuggingFaceTask, LanguageModelingTask):
    """A causal language model: the next token of a text, and so its continuation."""

    task = CAUSAL
    verb = ""

    def after_training(self, *args, **kwargs):
        raise ValueError(NOT_TRAINED_HERE)

    def prompt(self, task_model: Any, given: TaskInput) -> tuple[list[int], list[int]]:
        opening, ids = super().prompt(task_model, given)
        refuse_beyond_positions(task_model.model.model, len(opening) + len(ids) + given.more)
        return opening, ids

    def output_text(self, task_model: Any, given: TaskInput, predictions: Predictions) -> str:
        opening, ids = self.prompt(task_model, given)
        more = (given.ids or ())[len(ids) :]
        if not given.prefix and not more:
            return given.text
        text = task_model.tokenizer.text((*opening, *ids, *more))
        return text if given.prefix else given.text + text.removeprefix(task_model.tokenizer.text((*opening, *ids)))


class HuggingFaceSeq2SeqTask(HuggingFaceTask, Seq2SeqTask):
    """A sequence-to-sequence model: a target for a source, token by token."""

    task = SEQ2SEQ
    beam = 4

    def pair(self, task_model):
        return task_model.tokenizer, replace(task_model.tokenizer, side="text_target")

    def generation(self, task_model: TextTaskModel, given: TaskInput) -> GenerationInput:
        found, most = super().generation(task_model, given), position_limit(task_model.model.model)
        refuse_beyond_positions(task_model.model.model, 1 + max(len(found.source or ()), len(found.prefix)))
        found = replace(found, max_tokens=int(min(found.max_tokens, most - 1)))
        forced = task_model.model.model.generation_config.forced_bos_token_id
        if forced is None or found.prefix:
            return found
        return replace(found, prefix=(task_model.tokenizer.from_foreign[forced],))

    def encode(self, task_model: TextTaskModel, given: TaskInput) -> EncodedInput:
        found = super().encode(task_model, given)
        longest = max(len(found.axes[axis].labels) for axis in ("source", "read"))
        refuse_beyond_positions(task_model.model.model, longest)
        return found

    def preferred_head(self, task_model, folder, axes):
        return last_cross_attention(task_model)

    def output_text(self, task_model, given, predictions):
        return task_model.tokenizer.written(self.target_text(task_model, given).ids)


def last_cross_attention(task_model: HuggingFaceTaskModel) -> tuple[str, int]:
    """Its first head: where the page of a model that writes opens."""
    crossing = [site.name for site in task_model.model.attention_sites.values() if site.queries == "written"]
    return crossing[-1], 0


class EncoderTask(HuggingFaceTask):
    """An encoder: a label of the text or of each token, a masked token, or vectors alone."""

    task = ENCODER
    takes_batches = True

    def texts(self, task_model: TextTaskModel, given: TaskInput) -> list[tuple[Tokenizer, str]]:
        return [(task_model.tokenizer, given.text)]

    def encode(self, task_model: TextTaskModel, given: TaskInput) -> EncodedInput:
        tokenizer = task_model.tokenizer
        ids = tokenizer.encode(given.text)
        given.refuse_long(len(ids))
        refuse_beyond_positions(task_model.model.model, len(ids))
        labels, (words, word_ids) = tuple(tokenizer.label(one) for one in ids), tokenizer.group(ids)
        foreign = torch.tensor([[tokenizer.to_foreign[one] for one in ids]])
        rows = {"token": labels, "text": ("the text",)}.get(self.labelled(task_model), ())
        return EncodedInput((foreign,), {"text": TokenAxis(labels, words, word_ids)}, rows)

    def labelled(self, task_model: TextTaskModel) -> str:
        """What the model's head gives a label: each token, the text, or nothing."""
        name = type(task_model.model.model).__name__
        if name.endswith(("ForMaskedLM", "ForTokenClassification")):
            return "token"
        return "text" if name.endswith("ForSequenceClassification") else ""

    def forward_batch(
        self, model: HuggingFaceModel, encoded: Sequence[EncodedInput]
    ) -> list[Float[Tensor, "rows options"]]:
        device, lengths = next(model.parameters()).device, [one.model_inputs[0].shape[1] for one in encoded]
        (ids,) = collate_inputs([one.model_inputs for one in encoded])
        assert ids is not None
        mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
        masked = {} if min(lengths) == max(lengths) else {"attention_mask": mask.to(device)}
        found = model(input_ids=ids.to(device), **masked)
        if not encoded[0].rows:
            return [torch.zeros(0, 1)] * len(encoded)
        return [x.reshape(-1, x.shape[-1])[: len(one.rows)] for x, one in zip(found.logits, encoded, strict=True)]

    def option_name(self, task_model: TextTaskModel, option: int) -> str:
        model = task_model.model.model
        if type(model).__name__.endswith("ForMaskedLM"):
            found = task_model.tokenizer
            return found.label(found.from_foreign[option])
        return str(model.config.id2label.get(option, option))

    def output_text(self, task_model: TextTaskModel, given: TaskInput, predictions: Predictions) -> str:
        return super().output_text(task_model, given, predictions) if predictions.rows else given.text


class ImageEncoderTask(HuggingFaceTask):
    """A vision model: a label of the picture, or vectors of its patches alone."""

    task = IMAGE
    task_model = VisionTaskModel
    inputs = InputSpec("the file of a picture", "image", "an image")

    def example_input(self, task_model):
        return TaskInput(EXAMPLE_IMAGES[0])

    def encode(self, task_model: VisionTaskModel, given: TaskInput) -> EncodedInput:
        reader, model = task_model.reader, task_model.model.model
        pixels = reader.read(given)
        axes = {"patches": patch_axis(model, pixels)}
        rows = ("class",) if type(model).__name__.endswith("ForImageClassification") else ()
        return EncodedInput((pixels,), axes, rows, image=reader.shown(pixels))

    def forward(self, model: HuggingFaceModel, encoded: EncodedInput) -> Float[Tensor, "rows options"]:
        (pixels,) = encoded.model_inputs
        found = model(pixel_values=pixels.to(next(model.parameters())))
        return found.logits if encoded.rows else torch.zeros(0, 1)

    def option_name(self, task_model: VisionTaskModel, option: int) -> str:
        return str(task_model.model.model.config.id2label.get(option, option))

    def output_text(self, task_model: VisionTaskModel, given: TaskInput, predictions: Predictions) -> str:
        return super().output_text(task_model, given, predictions) if predictions.rows else Path(given.text).name


class SpeechTask(HuggingFaceTask):
    """A speech model: a text for a sound, token by token."""

    task = SPEECH
    task_model = SpeechTaskModel
    inputs = InputSpec("a sound, a .wav file", "audio", "a sound", ("target", "beam"))
    beam = 1  # as transformers decodes by default

    def example_input(self, task_model):
        return TaskInput(EXAMPLE_SOUND)

    def generation(self, task_model: SpeechTaskModel, given: TaskInput) -> GenerationInput:
        heard, prompt = self.hear(task_model, given)
        model, prefix = task_model.model.model, given.prefix or prompt
        refuse_beyond_positions(model, 1 + len(prefix))
        beam, most = self.beam if given.beam is None else given.beam, model.config.max_target_positions - 1
        tree_beam = TREE_BEAM if given.beam is None else beam
        return GenerationInput(heard, task_model.tokenizer, (), prefix, most, beam, tree_beam, 0, "written")

    def hear(self, task_model: SpeechTaskModel, given: TaskInput) -> tuple[HeardSpeech, tuple[int, ...]]:
        """The model with its sound, and the ids that its text begins with: language, task, no timestamps."""
        tokenizer, model = task_model.tokenizer, task_model.model
        features = task_model.reader.read(given).to(model.embedding.weight)
        known = model.model.generation_config
        prompt, suppressed, not_first = (
            tuple(tokenizer.from_foreign[one] for one in ids or ())
            for ids in (speech_prompt(model.model, features), known.suppress_tokens, known.begin_suppress_tokens)
        )
        forced = max(len(prompt), len(given.prefix))
        return HeardSpeech(model, features, forced, suppressed, not_first), prompt

    def encode(self, task_model: SpeechTaskModel, given: TaskInput) -> EncodedInput:
        """One forward pass over the text that is given, or that a search has found."""
        heard, prompt = self.hear(task_model, given)
        text = self.target_text(task_model, given, prompt)
        config = task_model.model.model.config
        refuse_beyond_positions(task_model.model.model, 1 + len(text.ids))
        axes = {
            "frames": task_model.reader.axis(heard.features.shape[-1], config.max_source_positions),
            "read": TokenAxis(("<s>", *text.labels), text.words, (None, *text.word_ids)),
            "written": TokenAxis((*text.labels, text.end), text.words, (*text.word_ids, None)),
        }
        longest, rows = config.max_target_positions - 1, axes["written"].labels
        return EncodedInput(
            (heard, decoder_inputs([text.ids])),
            axes,
            rows,
            output_ids=text.ids,
            forced_steps=len(prompt) if given.target is None else len(rows),
            max_queries={"read": longest, "written": longest} if given.searched else {},
        )

    def target_text(self, task_model: SpeechTaskModel, given: TaskInput, prompt: tuple[int, ...]) -> TargetText:
        tokenizer = task_model.tokenizer
        if given.target is not None:
            plain = tokenizer.own(given.target, add_special_tokens=False)["input_ids"]
            ids = (*prompt, *(tokenizer.from_foreign[one] for one in plain))
        else:
            assert given.ids is not None, "a search finds the text before it is encoded"
            ids = given.ids
        labels = tuple(token_label(tokenizer, one) for one in ids)
        return TargetText(ids, labels, *tokenizer.group(ids), "</s>" if given.finished else "…")

    def forward(self, model: Any, encoded: EncodedInput) -> Float[Tensor, "rows options"]:
        heard, inputs = encoded.model_inputs
        inputs = inputs.to(heard.features.device)
        memory = heard.encode(inputs, inputs)
        logits, _ = heard.step(inputs, heard.start(memory), memory)
        return logits[0]

    def option_name(self, task_model: SpeechTaskModel, option: int) -> str:
        return token_label(task_model.tokenizer, option)

    def preferred_head(self, task_model, folder, axes):
        return last_cross_attention(task_model)

    def output_text(self, task_model: SpeechTaskModel, given: TaskInput, predictions: Predictions) -> str:
        if given.target is not None:
            return given.target
        return task_model.tokenizer.written(given.ids or ())


def speech_prompt(model: Any, features: Float[Tensor, "1 bins t"]) -> list[int]:
    """What a text of Whisper begins with after the token that starts it, in its own ids: the language that the
    generation configuration names, or that the model hears; to transcribe; and no timestamps. A model whose
    configuration knows none of these begins with none."""
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    known, found = vars(model.generation_config), list[int]()
    if languages := known.get("lang_to_id"):
        if name := known.get("language"):
            code = TO_LANGUAGE_CODE.get(str(name).lower()) or str(name)
            found.append(languages[f"<|{code.strip('<|>')}|>"])
        else:
            heard = model.detect_language(input_features=features, num_segment_frames=features.shape[-1])
            found.append(int(heard[0]))
        found.append(known["task_to_id"][known.get("task") or "transcribe"])
    if (one := known.get("no_timestamps_token_id")) is not None:
        found.append(one)
    return found


TASKS = {
    CAUSAL: CausalLMTask(),
    SEQ2SEQ: HuggingFaceSeq2SeqTask(),
    ENCODER: EncoderTask(),
    IMAGE: ImageEncoderTask(),
    SPEECH: SpeechTask(),
}
