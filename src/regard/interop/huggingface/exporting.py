"""Hugging Face export: a run as a folder of transformers, of the class whose configuration is that of our network."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.attention import Recipe, Rotary, Sinusoidal
from regard.attention.parts import format_part
from regard.attention.position import PositionSum
from regard.data.tokenizers.base import BOS, EOS, PAD, UNK, Tokenizer
from regard.data.tokenizers.pretrained import ABSENT, PretrainedTokenizer, TokenizersEngine
from regard.interop.export_format import (
    CONTINUATION,
    Check,
    Engine,
    ExportFormat,
    GenerationEngine,
    Ids,
    LabelEngine,
    Output,
    TranslationEngine,
    compare_engines,
    export_pretrained,
    export_tokenizer,
    frame_ids,
    group_by_length,
    input_tokenizer,
    prompt_opening,
    quote_text,
    sentencepiece_engine,
    token_names,
    translation_limit,
)
from regard.interop.huggingface.checkpoint import hidden_progress_bar
from regard.interop.huggingface.families import (
    FAMILIES,
    SINUSOIDS,
    CheckpointConfig,
    Family,
    feature_order,
    max_positions,
    place_recipes,
)
from regard.interop.huggingface.importing import DESCRIPTION, axis_orders
from regard.interop.huggingface.weights import ABSENT_LOGIT, AxisOrder, WeightLayout, convert_to_theirs, tensor_rows
from regard.interop.onnx import OwnLabels
from regard.models.config import TextModelConfig, WordEmbeddingConfig
from regard.models.config_base import ConfigBase
from regard.models.encoder import MaskedLanguageModel
from regard.models.safetensors_io import named_tensors, save_tensors
from regard.tasks.image_classification.task import ImageClassifier
from regard.tasks.language_modeling.task import TextGenerator
from regard.tasks.masked_language_modeling.task import TextEncoder
from regard.tasks.sequence_classification.task import TextClassifier
from regard.tasks.translation.task import Translator

AUTO_CLASSES = {
    "translation": "AutoModelForSeq2SeqLM",
    "language_modeling": "AutoModelForCausalLM",
    "masked_language_modeling": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "image_classification": "AutoModelForImageClassification",
}
TARGET_TOKENIZER = "target_tokenizer"  # the folder of a second tokenizer, where the target has another than the source
WEIGHTS = "model.safetensors"
MAX_LENGTH, BEAM = 512, 4  # of a translation, where nobody says otherwise
BATCH = 32  # sentences
BILINEAR = 2  # as Pillow numbers it
# what training alone needs
DROPOUTS = {f"{name}dropout" for name in ("", "attention_", "input_", "output_", "word_", "weight_")}


# --- which class ---


def config_values(model: ConfigBase) -> dict[str, str]:
    """A configuration as what its network computes: defaults filled in, and each part of its recipes by itself."""
    found: dict[str, Any] = {name: value for name, value in vars(model).items() if name not in DROPOUTS}
    if isinstance(model, TextModelConfig):
        found |= {"groups": model.groups or model.heads, "head": model.head_width}
    if "decoder_layers" in found:
        found["decoder_layers"] = found["decoder_layers"] or found["layers"]
    named = {
        name: repr(value) for name, value in found.items() if name not in ("recipe", "encoder", "decoder", "cross")
    }
    for place, recipes in place_recipes(model).items():
        for part in (one.name for one in fields(Recipe)):
            written = (format_part(their_pairs(model, getattr(recipe, part))) for recipe in recipes)
            named[f"the {part} of {place}"] = " and ".join(dict.fromkeys(written))
    return named


def their_pairs(model: ConfigBase, part: Any) -> Any:
    """A position whose features are in the order of the classes, which is that of two halves."""
    if isinstance(part, PositionSum):
        return PositionSum(tuple(their_pairs(model, one) for one in part.schemes))
    if isinstance(part, Sinusoidal) and feature_order(model):
        return replace(part, pairs="halves")
    return replace(part, pairs="halves") if isinstance(part, Rotary) else part


def differences(task_model: Any, values: dict[str, str], architecture: str) -> list[str]:
    """How our network, of these values, is not the one that a class has; none if it is."""
    model, family = task_model.settings.model, FAMILIES[architecture]
    ours = named_tensors(task_model.model)
    tensors = frozenset(row.theirs[0] for row in family.table(model) if row.ours[0] in ours)
    theirs = family.model(CheckpointConfig(family.config(model), tensors))
    here = values | {"mask.head": "True", "pooling.kind": "'class'"}
    there = here | config_values(theirs)
    if isinstance(task_model, TextEncoder):
        here["mask.head"] = str(task_model.settings.mask.head)
        there["mask.head"] = str(architecture != "BertModel")
    if isinstance(task_model, TextClassifier):
        here["pooling.kind"] = repr(task_model.settings.pooling.kind)
    if there.get("tie") == "'none'":  # three tables hold whatever two or one do
        there["tie"] = here["tie"]
    if there.get("output_bias") == "True":  # which may be 0
        there["output_bias"] = here["output_bias"]
    return [f"{name} is {there[name]}, not {value}" for name, value in here.items() if there[name] != value]


def find_class(task_model: Any) -> tuple[str, list[str]]:
    """The first class that our network is one of, or the nearest, and how it differs."""
    task, values = task_model.settings.task, config_values(task_model.settings.model)
    found = {
        name: differences(task_model, values, name)
        for name, family in FAMILIES.items()
        if family.task == task and name.isidentifier()
    }
    return min(found.items(), key=lambda pair: len(pair[1]))


# --- tokenizers ---


def special_ids(tokenizer: Tokenizer) -> tuple[int | None, ...]:
    """PAD, BOS, EOS and UNK in the ids of the written tokenizer."""
    return tokenizer.special if isinstance(tokenizer, PretrainedTokenizer) else (PAD, BOS, EOS, UNK)


def write_tokenizer(tokenizer: Tokenizer, folder: Path, task_model: Any, longest: int) -> None:
    from transformers import PreTrainedTokenizerFast

    before, after = frame_ids(task_model, tokenizer)
    if isinstance(tokenizer, PretrainedTokenizer):
        engine = export_pretrained(tokenizer, before=before, after=after, own_ids=True)
        names = [None if one is None else tokenizer.engine.piece(one) for one in tokenizer.special]
        markup = isinstance(tokenizer.engine, TokenizersEngine) and tokenizer.engine.markup
    else:
        opening = prompt_opening(tokenizer)[1] if isinstance(task_model, TextGenerator) else ""
        engine = export_tokenizer(tokenizer, before=before, after=after, opening=opening)
        names, markup = token_names(tokenizer)[: UNK + 1], False
    special = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), names, strict=True))
    made = PreTrainedTokenizerFast(
        tokenizer_object=engine,
        split_special_tokens=not markup,  # a text that holds "<s>" means these three signs
        clean_up_tokenization_spaces=False,
        model_max_length=longest,
        **{name: token for name, token in special.items() if token is not None},
    )
    made.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_marian_tokenizer(translator: Translator, folder: Path, longest: int) -> None:
    """Two models of SentencePiece, and the ids of their pieces; transformers' class reads a target by the second."""
    engines = [sentencepiece_engine(part) for part in (translator.source, translator.target)]
    (source, target), (pad, _, end, unknown) = (one for one in engines if one), special_ids(translator.source)
    files: dict[str, Mapping[str, Any]] = {"vocab.json": source.ids}
    files |= {"target_vocab.json": target.ids} if source.ids != target.ids else {}
    names = {"pad_token": pad, "eos_token": end, "unk_token": unknown}
    files["tokenizer_config.json"] = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": "target_vocab.json" in files,
        "model_max_length": longest,
        **{name: source.piece(one) for name, one in names.items() if one is not None},
    }
    for side, engine in (("source", source), ("target", target)):
        (folder / f"{side}.spm").write_bytes(base64.b64decode(engine.model))
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def two_tokenizers(translator: Translator) -> bool:
    one, other = ((part.kind, part.normalizer, part.to_dict()) for part in (translator.source, translator.target))
    return one != other


# --- weights ---


def shared_rows(task_model: Any, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With one vector for what is one token there: that of BOS where PAD is the other, which nobody reads."""
    found = dict(weights)
    for axis, order in axis_orders(parts_of(task_model), task_model.settings.model).items():
        for name in input_tables(task_model, axis) if order.second else ():
            for second in order.second:
                first = order.predicted[order.to_foreign[second]]
                if first == PAD:
                    found[name] = found[name].clone()
                    found[name][PAD] = found[name][second]
                elif not found[name][first].equal(found[name][second]):
                    raise ValueError(
                        f"tokens {first} and {second} are one there, and have had different vectors since the model "
                        "was trained on; export it to ctranslate2 or onnx"
                    )
    return found


def input_tables(task_model: Any, axis: str) -> list[str]:
    """The embeddings that tokens are read by."""
    names = ("embedding.weight", "encoder.embedding.weight", f"embeddings.tables.{axis}.weight")
    return [name for name in names if name in named_tensors(task_model.model)]


def parts_of(task_model: Any) -> dict[str, Any]:
    return {name: getattr(task_model, name) for name in task_model.part_files}


def foreign_tensors(task_model: Any, family: Family, config: Any) -> dict[str, Tensor]:
    """Our weights as theirs; of a class whose tables are several, also copies of what is one here."""
    model, ours = task_model.settings.model, named_tensors(task_model.model)
    orders, sizes = axis_orders(parts_of(task_model), model), vocabulary_sizes(task_model, config.architectures[0])
    if isinstance(task_model, Translator):
        rows = {"source": sizes["vocab_size"], "target": sizes.get("decoder_vocab_size", sizes["vocab_size"])}
        orders |= {axis: replace(orders[axis], size=size) for axis, size in rows.items()}
    layout = WeightLayout(family.sizes(model), orders)
    found = convert_to_theirs(tensor_rows(family.table(model), ours), layout, shared_rows(task_model, ours))
    while copies := {
        copy: found[original].clone()
        for copy, original in family.tied.items()
        if not config.tie_word_embeddings and original in found and copy not in found
    }:
        found |= copies
    return found


# --- the engines ---


def suppressed_ids(order: AxisOrder) -> list[int] | None:
    """What our searches never produce, in their ids: PAD and BOS, where these are no other token; None if nothing."""
    ours = [one for one in (PAD, BOS) if one not in order.second]
    return sorted({order.to_foreign[one] for one in ours} - {ABSENT}) or None


def search_options(beam: int, max_length: int, order: AxisOrder) -> dict[str, Any]:
    """Of `generate`: a beam that is refilled, without a penalty of length."""
    beams = {"length_penalty": 0.0, "early_stopping": False} if beam > 1 else {}
    limits = {"max_new_tokens": max_length, "max_length": None}
    return {"num_beams": beam, "do_sample": False, "suppress_tokens": suppressed_ids(order), **beams, **limits}


@dataclass(frozen=True, eq=False)
class TransformersEngine(Engine):
    """Abstract: a model of transformers behind our ids.

    Args:
        model: as its Auto class loaded it.
        source, target: the orders of their tokens.
    """

    model: Any
    source: AxisOrder
    target: AxisOrder

    def own_ids(self, theirs: Iterable[int]) -> Ids:
        return tuple(self.target.predicted[one] for one in theirs)


@dataclass(frozen=True, eq=False)
class TransformersTranslation(TransformersEngine):
    """A sequence-to-sequence model; a target text begins with `prefix`, the tag of its language."""

    prefix: Ids = ()

    @staticmethod
    def load(folder: Path, translator: Translator) -> "TransformersTranslation":
        orders = axis_orders(parts_of(translator), translator.settings.model)
        model = load_model(folder, translator)
        return TransformersTranslation(model, orders["source"], orders["target"], translator.target.first_ids)

    def encoded(self, inputs: Sequence[Ids]) -> dict[str, Tensor]:
        rows = [torch.tensor([self.source.to_foreign[one] for one in (*row, EOS)]) for row in inputs]
        lengths = torch.tensor([len(row) for row in rows])
        ids = pad_sequence(rows, batch_first=True, padding_value=max(0, self.source.to_foreign[PAD]))
        return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}

    def search(self, inputs, beam, max_length):
        found = list[Output]()
        for first in range(0, len(inputs), BATCH):
            found += self.search_batch(inputs[first : first + BATCH], beam, max_length)
        return found

    def search_batch(self, inputs: Sequence[Ids], beam: int, max_length: int) -> list[Output]:
        end, tag = self.target.to_foreign[EOS], [self.target.to_foreign[one] for one in self.prefix]
        made = self.model.generate(
            **self.encoded(inputs),
            num_return_sequences=beam,
            **search_options(beam, max_length, self.target),
            forced_bos_token_id=tag[0] if tag else None,
        )
        texts = [row[1:] for row in made.tolist()]  # without what starts the decoder
        found = []
        for first in range(0, len(texts), beam):
            # what met the limit competes there with what has ended, which we rank before it
            ended = [text[: text.index(end)] for text in texts[first : first + beam] if end in text]
            best = ended[0] if ended else texts[first][:max_length]
            found.append(Output(self.own_ids(best), 0.0))
        return found

    def score(self, inputs, outputs):
        start, end = self.target.to_foreign[BOS], self.target.to_foreign[EOS]
        found = list[list[float]]()
        for first in range(0, len(inputs), BATCH):
            some = outputs[first : first + BATCH]
            texts = [[self.target.to_foreign[one] for one in row] for row in some]
            read = pad_sequence([torch.tensor([start, *row]) for row in texts], batch_first=True)
            with torch.no_grad():
                logits = self.model(**self.encoded(inputs[first : first + BATCH]), decoder_input_ids=read).logits
            for row, scores in zip(texts, logits.log_softmax(-1), strict=True):
                wanted = torch.tensor([*row, end])
                found.append(scores[: len(wanted)].gather(1, wanted[:, None])[:, 0].tolist())
        return found


@dataclass(frozen=True, eq=False)
class TransformersGeneration(TransformersEngine):
    """A language model; no token ends a text."""

    @staticmethod
    def load(folder: Path, generator: TextGenerator) -> "TransformersGeneration":
        order = AxisOrder.of(generator.tokenizer)
        return TransformersGeneration(load_model(folder, generator), order, order)

    def foreign(self, rows: Iterable[Ids]) -> Int[Tensor, "b t"]:
        return torch.tensor([[self.source.to_foreign[one] for one in row] for row in rows])

    def search(self, inputs, beam, max_length):
        found: dict[int, Output] = {}
        for rows in group_by_length(inputs):
            ids = self.foreign(inputs[row] for row in rows)
            made = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                **search_options(beam, max_length, self.target),
                eos_token_id=None,
                pad_token_id=0,  # of no text, since all end together
            )
            texts = made[:, ids.shape[1] :].tolist()
            found |= {row: Output(self.own_ids(text), 0.0) for row, text in zip(rows, texts, strict=True)}
        return [found[row] for row in range(len(inputs))]

    def score(self, inputs, outputs):
        found: dict[int, list[float]] = {}
        for rows in group_by_length([(*row, *more) for row, more in zip(inputs, outputs, strict=True)]):
            ids = self.foreign((*inputs[row], *outputs[row]) for row in rows)
            with torch.no_grad():
                scores = self.model(input_ids=ids).logits[:, :-1].log_softmax(-1)
            each = scores.gather(2, ids[:, 1:, None])[..., 0].tolist()
            found |= {row: one[len(inputs[row]) - 1 :] for row, one in zip(rows, each, strict=True)}
        return [found[row] for row in range(len(inputs))]


@dataclass(frozen=True, eq=False)
class TransformersLabels(LabelEngine):
    """A classifier of texts, or a masked language model, whose labels are tokens."""

    model: Any
    order: AxisOrder

    def logits(self, tokens: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]) -> Float[Tensor, "b n labels"]:
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]
        ids = torch.tensor(self.order.to_foreign)[tokens].clamp(min=0)
        with torch.no_grad():
            found = self.model(input_ids=ids, attention_mask=mask.long())
        if "last_hidden_state" in found:
            return found.last_hidden_state
        if found.logits.dim() == 2:
            return found.logits[:, None]
        predicted = torch.zeros(len(self.order.to_foreign), dtype=torch.bool)
        predicted[list(self.order.predicted)] = True
        return self.order.select(found.logits, 2).where(predicted, ABSENT_LOGIT)


@dataclass(frozen=True, eq=False)
class TransformersImages(LabelEngine):
    """A classifier of images, each of which is the number that its pixels are drawn by."""

    model: Any
    processor: Any
    shape: tuple[int, int, int]

    def logits(self, tokens: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]) -> Float[Tensor, "b n labels"]:
        given = self.processor(list(draw_images(tokens[:, 0], self.shape)), return_tensors="pt")
        with torch.no_grad():
            return self.model(pixel_values=given["pixel_values"]).logits[:, None]


def draw_images(seeds: Int[Tensor, " b"], shape: tuple[int, int, int]) -> UInt8[Tensor, "b c h w"]:
    generator = torch.Generator()
    pixels = [torch.randint(256, shape, generator=generator.manual_seed(seed)) for seed in seeds.tolist()]
    return torch.stack(pixels).to(torch.uint8)


@dataclass(frozen=True, eq=False)
class OwnImages(LabelEngine):
    """Our own classifier of the same images."""

    classifier: ImageClassifier

    def logits(self, tokens: Int[Tensor, "b t"], lengths: Int[Tensor, " b"]) -> Float[Tensor, "b n labels"]:
        preprocessor = self.classifier.preprocessor
        with torch.no_grad():
            return self.classifier.model(preprocessor.normalize(draw_images(tokens[:, 0], preprocessor.shape)))[:, None]


def load_model(folder: Path, task_model: Any) -> Any:
    """By the Auto class of the task; every weight of the file must be one of the model, and the reverse."""
    import transformers

    architecture, _ = find_class(task_model)
    auto = getattr(transformers, auto_class(task_model))
    with hidden_progress_bar():
        model, found = auto.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    family = FAMILIES[architecture]
    ignored = {*family.ignored, *(name.removeprefix(family.base) for name in family.ignored)}
    missing = [name for name in found["missing_keys"] if name not in ignored]
    if wrong := [*missing, *found["unexpected_keys"], *found["mismatched_keys"]]:
        raise ValueError(f"the model written for transformers lacks {wrong[0]!r}, or has it besides; nothing is kept")
    return model.eval()


def auto_class(task_model: Any) -> str:
    if isinstance(task_model, TextEncoder) and not task_model.settings.mask.head:
        return "AutoModel"
    return AUTO_CLASSES[task_model.settings.task]


# --- the format ---


class HuggingFaceFormat(ExportFormat):
    """config.json, model.safetensors, generation_config.json, tokenizer or image processor; and what `regard import`
    restores the run from, bit by bit."""

    title = "transformers"
    packages = ("transformers", "tokenizers")

    def objections(self, task_model):
        settings = task_model.settings
        if settings.task not in AUTO_CLASSES:
            return [f"the task {settings.task!r} has no class there that is known here; {', '.join(AUTO_CLASSES)} have"]
        if settings.model.kind not in ("transformer", "vit"):
            return [f"the model {settings.model.kind!r} is none of its classes, which are Transformers"]
        architecture, found = find_class(task_model)
        if isinstance(task_model, ImageClassifier) and not found:
            channels, height, width = task_model.preprocessor.shape
            found = [f"images are 3 x n x n, not {channels} x {height} x {width}"] * ((channels, height) != (3, width))
        if not found:
            return tokenizer_objections(task_model, architecture)
        known = (name for name, family in FAMILIES.items() if family.task == settings.task and name.isidentifier())
        return [f"in the nearest of its classes ({', '.join(known)}), {architecture}, {', '.join(found)}"]

    def write(self, task_model, folder, precision):
        import transformers

        (architecture, _), settings = find_class(task_model), task_model.settings
        kind, family = getattr(transformers, architecture), FAMILIES[architecture]
        longest = max_positions(settings.model)
        ids = vocabulary_sizes(task_model, architecture) | config_ids(task_model)
        values = family.config(settings.model) | ids | label_names(task_model)
        config = kind.config_class(**values, architectures=[architecture], dtype="float32")
        config.save_pretrained(folder)
        tensors = foreign_tensors(task_model, family, config)
        if family.ignored == SINUSOIDS and not kind._keys_to_ignore_on_save:
            table = Sinusoidal(pairs="halves").table(torch.arange(longest), settings.model.model).float()
            tensors |= {name: table.clone() for name in SINUSOIDS}
        save_tensors(tensors, folder / WEIGHTS, {"format": "pt"})
        if generation := generation_values(task_model):
            transformers.GenerationConfig(**generation, use_cache=config.use_cache).save_pretrained(folder)
        if isinstance(task_model, ImageClassifier):
            write_image_processor(task_model, folder)
        elif isinstance(task_model, Translator) and sentencepiece_engine(task_model.source):
            write_marian_tokenizer(task_model, folder, longest)
        else:
            write_tokenizer(input_tokenizer(task_model), folder, task_model, longest)
            if isinstance(task_model, Translator) and two_tokenizers(task_model):
                write_tokenizer(task_model.target, folder / TARGET_TOKENIZER, task_model, longest)
        replace(task_model, settings=without_paths(settings)).describe(folder / DESCRIPTION)

    def encode(self, task_model, folder, texts):
        from transformers import AutoTokenizer

        tokenizer, order = AutoTokenizer.from_pretrained(folder), AxisOrder.of(input_tokenizer(task_model))
        found = [[order.predicted[one] for one in tokenizer(text)["input_ids"]] for text in texts]
        if isinstance(task_model, Translator):
            assert all(row[-1] == EOS for row in found), "a source ends with EOS"
            return [row[:-1] for row in found]
        before, _ = frame_ids(task_model, task_model.tokenizer)
        if BOS in before:  # which may be another token as well
            return [[*before, *row[len(before) :]] for row in found]
        return found

    def prove(self, task_model, folder, inputs, precision):
        if isinstance(task_model, Translator):
            own = TranslationEngine(task_model.model, task_model.target.first_ids)
            other = TransformersTranslation.load(folder, task_model)
            return compare_engines(own, other, inputs.ids, translation_limit(task_model, inputs))
        if isinstance(task_model, TextGenerator):
            own, other = GenerationEngine(task_model.model), TransformersGeneration.load(folder, task_model)
            return compare_engines(own, other, inputs.ids, CONTINUATION)
        model = load_model(folder, task_model)
        if isinstance(task_model, ImageClassifier):
            from transformers import AutoImageProcessor

            processor = AutoImageProcessor.from_pretrained(folder)
            other = TransformersImages(model, processor, task_model.preprocessor.shape)
            return label_checks(OwnImages(task_model), other, inputs.ids)
        other = TransformersLabels(model, AxisOrder.of(task_model.tokenizer))
        if isinstance(task_model.model, MaskedLanguageModel) and not task_model.settings.mask.head:
            return [compare_states(task_model.model, other, inputs.ids)]
        return label_checks(OwnLabels(task_model.model), other, inputs.ids)

    def usage(self, task_model, folder, text):
        if isinstance(task_model, ImageClassifier):
            return IMAGES.format(folder=folder)
        text, imports = quote_text(task_model, text)
        two = isinstance(task_model, Translator) and two_tokenizers(task_model)
        two &= not sentencepiece_engine(input_tokenizer(task_model))
        target = f'{folder}", subfolder="{TARGET_TOKENIZER}' if two else folder
        code = {Translator: TRANSLATION, TextGenerator: GENERATION, TextClassifier: LABELS, TextEncoder: MASKS}
        form = VECTORS if auto_class(task_model) == "AutoModel" else code[type(task_model)]
        return form.format(imports=imports, folder=folder, target=target, text=text)


def tokenizer_objections(task_model: Any, architecture: str) -> list[str]:
    if isinstance(task_model, ImageClassifier) or not sentencepiece_engine(tokenizer := input_tokenizer(task_model)):
        return []
    if architecture != "MarianMTModel" or tokenizer.first_ids:
        return ["the tokenizer is a model of SentencePiece, which is written for Marian of one language alone"]
    return []


def label_checks(own: Engine, other: Engine, inputs: Sequence[Ids]) -> list[Check]:
    return [replace(check, name="labels") for check in compare_engines(own, other, inputs, 1, beams=(1,))]


def compare_states(model: MaskedLanguageModel, other: TransformersLabels, inputs: Sequence[Ids]) -> Check:
    """The hidden states of every token, of an encoder that predicts nothing."""
    largest = 0.0
    for row in inputs:
        tokens, lengths = torch.tensor([row]), torch.tensor([len(row)])
        with torch.no_grad():
            difference = model.encoder(tokens, lengths) - other.logits(tokens, lengths)
        largest = max(largest, float(difference.abs().max()))
    return Check("hidden states", len(inputs), len(inputs), sum(map(len, inputs)), largest_difference=largest)


# --- the files beside the weights ---


def vocabulary_sizes(task_model: Any, architecture: str) -> dict[str, int]:
    if isinstance(task_model, ImageClassifier):
        return {}
    if not isinstance(task_model, Translator):
        return {"vocab_size": foreign_size(task_model.tokenizer)}
    source, target = map(foreign_size, (task_model.source, task_model.target))
    if architecture == "MarianMTModel":
        return {"vocab_size": source, "decoder_vocab_size": target}
    return {"vocab_size": max(source, target)}


def foreign_size(tokenizer: Tokenizer) -> int:
    return tokenizer.vocabulary if isinstance(tokenizer, PretrainedTokenizer) else tokenizer.size


def config_ids(task_model: Any) -> dict[str, int | None]:
    """Which ids begin, end and fill up a text."""
    if isinstance(task_model, ImageClassifier):
        return {}
    if isinstance(task_model, Translator):
        pad, start, end, _ = special_ids(task_model.target)
        return {"pad_token_id": pad, "eos_token_id": end, "bos_token_id": start, "decoder_start_token_id": start}
    pad, start, end, _ = special_ids(task_model.tokenizer)
    if not isinstance(task_model, TextGenerator):
        return {"pad_token_id": pad}
    return {"pad_token_id": pad, "bos_token_id": start, "eos_token_id": end}


def generation_values(task_model: Any) -> dict[str, Any]:
    """How texts are generated where nobody says otherwise: by a beam, or greedily, as our own searches do it."""
    if not isinstance(task_model, Translator | TextGenerator):
        return {}
    written = task_model.target if isinstance(task_model, Translator) else task_model.tokenizer
    order = AxisOrder.of(written)
    found = {name: one for name, one in config_ids(task_model).items() if one is not None}
    longest = min(MAX_LENGTH, max_positions(task_model.settings.model))
    if isinstance(task_model, TextGenerator):
        if not isinstance(written, PretrainedTokenizer):
            del found["eos_token_id"]  # the end of a line, or nothing
        return found | {"max_new_tokens": min(MAX_LENGTH, longest // 2), "suppress_tokens": suppressed_ids(order)}
    found |= {"num_beams": BEAM, "length_penalty": 0.0, "max_length": longest, "suppress_tokens": suppressed_ids(order)}
    return found | ({"forced_bos_token_id": order.to_foreign[written.first_ids[0]]} if written.first_ids else {})


def label_names(task_model: Any) -> dict[str, Any]:
    if not isinstance(task_model, TextClassifier | ImageClassifier):
        return {}
    names = task_model.labels.names
    return {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}


def write_image_processor(classifier: ImageClassifier, folder: Path) -> None:
    _, height, width = classifier.preprocessor.shape
    scale = classifier.preprocessor.scale
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": height, "width": width},
        "resample": BILINEAR,
        "image_mean": list(scale.mean),
        "image_std": list(scale.spread),
        **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True),
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def without_paths(settings: Any) -> Any:
    """Settings without the files that a run was trained on, which concern nobody else."""
    tables = {name: getattr(settings, name) for name in settings.table_names()}
    changed = {
        name: replace(table, file=Path(table.file).name)
        for name, table in tables.items()
        if isinstance(table, WordEmbeddingConfig)
    }
    return replace(settings, data=replace(settings.data, train=(), valid=(), test=()), **changed)


# --- how they are used, without Regard ---

TRANSLATION = """{imports}from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("{folder}")
source, target = AutoTokenizer.from_pretrained("{folder}"), AutoTokenizer.from_pretrained("{target}")
found = model.generate(**source({text}, return_tensors="pt"))
print(target.decode(found[0], skip_special_tokens=True))
"""
GENERATION = """{imports}from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("{folder}"), AutoTokenizer.from_pretrained("{folder}")
found = model.generate(**tokenizer({text}, return_tensors="pt"), max_new_tokens=20)
print(tokenizer.decode(found[0], skip_special_tokens=True))
"""
LABELS = """{imports}from transformers import AutoModelForSequenceClassification, AutoTokenizer

model = AutoModelForSequenceClassification.from_pretrained("{folder}")
tokenizer = AutoTokenizer.from_pretrained("{folder}")
logits = model(**tokenizer({text}, return_tensors="pt")).logits
print(model.config.id2label[int(logits.argmax())])
"""
MASKS = """{imports}from transformers import AutoModelForMaskedLM, AutoTokenizer

model, tokenizer = AutoModelForMaskedLM.from_pretrained("{folder}"), AutoTokenizer.from_pretrained("{folder}")
logits = model(**tokenizer({text}, return_tensors="pt")).logits
print(tokenizer.decode(logits[0].argmax(-1)))
"""
VECTORS = """{imports}from transformers import AutoModel, AutoTokenizer

model, tokenizer = AutoModel.from_pretrained("{folder}"), AutoTokenizer.from_pretrained("{folder}")
print(model(**tokenizer({text}, return_tensors="pt")).last_hidden_state.mean(1))
"""
IMAGES = """import torch
from transformers import AutoImageProcessor, AutoModelForImageClassification

model = AutoModelForImageClassification.from_pretrained("{folder}")
processor = AutoImageProcessor.from_pretrained("{folder}")
image = torch.randint(256, (3, 300, 200), dtype=torch.uint8)  # yours: PIL.Image.open(...)
logits = model(**processor(image, return_tensors="pt")).logits
print(model.config.id2label[int(logits.argmax())])
"""
