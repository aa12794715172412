"""Import: a Hugging Face checkpoint becomes a run of ours, to load, decode, train on and show as any other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from regard.data.images import PixelScaling
from regard.data.labelled import Labels
from regard.data.preprocess import ImagePreprocessor
from regard.data.tokenizers.base import Tokenizer
from regard.data.tokenizers.pretrained import PretrainedTokenizer, Special, TokenizerEngine, TokenizersEngine
from regard.interop.huggingface.checkpoint import SUFFIX, Checkpoint, GGUFCheckpoint
from regard.interop.huggingface.families import FAMILIES, CheckpointConfig, Family, feature_order
from regard.interop.huggingface.weights import (
    AxisOrder,
    WeightLayout,
    WeightRow,
    check_names,
    check_shapes,
    convert_to_ours,
    tensor_rows,
)
from regard.models.config import EncoderConfig, LanguageModelConfig, ModelConfig, PoolingConfig
from regard.models.config_base import ConfigBase
from regard.models.safetensors_io import named_tensors, shapes_only, write_weights
from regard.models.vision import VisionConfig
from regard.tasks.config import PairTokenizerSettings, TokenizerSettings, read_depths
from regard.tasks.image_classification.task import (
    ImageClassificationData,
    ImageClassificationSettings,
    ImageClassifier,
)
from regard.tasks.language_modeling.task import LanguageModelingData, LanguageModelingSettings, TextGenerator
from regard.tasks.masked_language_modeling.task import MaskedLMData, MaskedLMSettings, MaskingSettings, TextEncoder
from regard.tasks.pretrained import PretrainedModel, load_settings
from regard.tasks.registry import task_of_run
from regard.tasks.sequence_classification.task import ClassificationData, ClassificationSettings, TextClassifier
from regard.tasks.translation.task import TranslationData, TranslationSettings, Translator
from regard.training.checkpoint import SETTINGS, WEIGHTS
from regard.training.config import TrainSettings

AnyCheckpoint = Checkpoint | GGUFCheckpoint
C = TypeVar("C", bound=ConfigBase)
DESCRIPTION = "regard"  # the folder beside the files of transformers that holds what they cannot say of a run
LEARNING_RATE = 5e-5  # of training on: what was learnt should not be lost in the first steps


def import_model(
    folder: str | Path,
    out: str | Path,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
) -> Path:
    """A run of ours from a local Hugging Face folder, or a model in the hub cache; nothing is downloaded or executed.

    Args:
        folder: with config.json, safetensors and a tokenizer; or the name of a model that the hub cache holds; or a
            file .gguf of a Llama.
        out: the folder of the run, which must be new or empty.
        source_language, target_language: of a model of many languages: its tags, such as eng_Latn and fra_Latn.

    Examples:
        >>> from tokenizers import Tokenizer, models
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=3, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
        >>> GPT2LMHeadModel(config).save_pretrained("gpt2")
        >>> words = Tokenizer(models.WordLevel({"<end>": 0, "cat": 1, "dog": 2}, unk_token="<end>"))
        >>> words.save("gpt2/tokenizer.json")
        >>> regard.load(import_model("gpt2", "imported"))
        LoadedModel('imported', task='language_modeling', verb='generate')
    """
    run = Path(out)
    if run.exists() and any(run.iterdir()):
        raise ValueError(f"{run} is not empty; choose another folder")
    checkpoint = GGUFCheckpoint.of(Path(folder)) if str(folder).endswith(SUFFIX) else Checkpoint.of(folder)
    converted = convert_checkpoint(checkpoint, Languages(source_language, target_language))
    note = converted.task_model.describe(run)
    write_weights(converted.weights, run / WEIGHTS, note)
    return run


@dataclass(frozen=True)
class Languages:
    """The languages of a model of many, by their tags; None where nobody named one."""

    source: str | None = None
    target: str | None = None


@dataclass(frozen=True, eq=False)
class Converted:
    """A model of ours without memory for its weights, and its weights."""

    task_model: PretrainedModel
    weights: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class ImportedParts:
    """All of a task's model but the network.

    Args:
        kind: the class of the task's models.
        parts: tokenizers and labels, in the order of `kind.part_files`.
        settings: of the run.
        orders: of the tokens, by the axes of the weights' table.
    """

    kind: type[PretrainedModel]
    parts: tuple[Any, ...]
    settings: Any
    orders: Mapping[str, AxisOrder]


def find_family(checkpoint: AnyCheckpoint) -> Family:
    if checkpoint.architecture not in FAMILIES:
        raise ValueError(
            f"{checkpoint.folder}: {checkpoint.architecture!r:.80} is no architecture that is imported here; there are "
            f"{', '.join(FAMILIES)}. regard look and regard serve show it all the same"
        )
    return FAMILIES[checkpoint.architecture]


def convert_checkpoint(checkpoint: AnyCheckpoint, languages: Languages = Languages()) -> Converted:
    family = find_family(checkpoint)
    headers = base_names(checkpoint, family)
    if isinstance(checkpoint, Checkpoint) and checkpoint.has(f"{DESCRIPTION}/{SETTINGS}"):
        found = read_description(checkpoint, family, len(headers))
    else:
        found = read_parts(checkpoint, family, headers, languages)
    config = found.settings.model
    layout = WeightLayout(family.sizes(config), found.orders)
    with shapes_only():
        model = found.kind.build_model(*found.parts, found.settings)
    ours = {name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()}
    try:
        rows = tensor_rows(family.table(config), ours)
        weights = read_weights(checkpoint, family, headers, rows, layout, ours)
    except ValueError as error:
        raise ValueError(f"{checkpoint.folder}: {error}") from None
    named = dict(zip(found.kind.part_files, found.parts, strict=True))
    return Converted(found.kind(model=model, settings=found.settings, **named), weights)  # type: ignore[call-arg]


@dataclass(frozen=True, eq=False)
class CheckpointModel(Generic[C]):
    """A checkpoint as its task reads it.

    Args:
        config: of our model.
        vocabulary: how many tokens each side of it has.
        languages: those that the caller says.
    """

    checkpoint: AnyCheckpoint
    family: Family
    config: C
    vocabulary: Mapping[str, int]
    languages: Languages


def read_parts(
    checkpoint: AnyCheckpoint, family: Family, headers: Mapping[str, str], languages: Languages
) -> ImportedParts:
    """What the files of transformers say."""
    try:
        with shapes_only():  # of positions that are learned, which the recipe holds
            config = family.model(CheckpointConfig(checkpoint.config, frozenset(headers)))
    except ValueError as error:
        raise ValueError(f"{checkpoint.folder}: {error}") from None
    refuse_depth(checkpoint, config.to_dict(), len(headers))
    vocabulary = vocabulary_of(family, config, checkpoint, headers)
    return TASK_PARTS[family.task](CheckpointModel(checkpoint, family, config, vocabulary, languages))


def read_description(checkpoint: Checkpoint, family: Family, tensors: int) -> ImportedParts:
    """What a run of ours wrote of itself when it was exported: its own settings, tokenizers and labels."""
    folder = checkpoint.path(DESCRIPTION)
    task = task_of_run(checkpoint.path(f"{DESCRIPTION}/{SETTINGS}").parent)
    if task.name != family.task:
        raise ValueError(f"{folder} is of the task {task.name}, and {checkpoint.architecture} is for {family.task}")
    refuse_depth(checkpoint, read_depths(folder / SETTINGS), tensors)
    kind = task.task_model
    parts = {
        attribute: load(checkpoint.path(f"{DESCRIPTION}/{name}.json"))
        for attribute, (name, load) in kind.part_files.items()
    }
    with shapes_only():  # what a recipe would learn takes no memory
        settings = load_settings(folder, task.settings)
    return ImportedParts(kind, tuple(parts.values()), settings, axis_orders(parts, settings.model))


def axis_orders(parts: Mapping[str, Any], model: ConfigBase) -> dict[str, AxisOrder]:
    """Of the tokens of a task's tokenizers, and of the features of its model."""
    named = {"target" if name == "tokenizer" else name: part for name, part in parts.items()}
    tokens = {name: AxisOrder.of(part) for name, part in named.items() if isinstance(part, Tokenizer)}
    return {**tokens, **feature_order(model)}


def base_names(checkpoint: AnyCheckpoint, family: Family) -> dict[str, str]:
    """The names of their tensors as the table has them, each with its name in the file."""
    names = list(checkpoint.headers)
    if family.base and not any(name.startswith(family.base) for name in names):
        return {family.base + name: name for name in names}
    return {name: name for name in names}


def refuse_depth(checkpoint: AnyCheckpoint, sizes: Mapping[str, Any], tensors: int) -> None:
    """A depth that no file of so few tensors has, before a model of it is built."""
    for name, depth in sizes.items():
        if name.endswith("layers") and depth > tensors:
            raise ValueError(
                f"{checkpoint.folder}: config.json asks for {depth} layers, and there are {tensors} tensors"
            )


def read_weights(
    checkpoint: AnyCheckpoint,
    family: Family,
    headers: Mapping[str, str],
    rows: list[WeightRow],
    layout: WeightLayout,
    ours: Mapping[str, tuple[int, ...]],
) -> dict[str, Tensor]:
    used = {name for row in rows for name in row.theirs}
    copies = {copy: original for copy, original in family.tied.items() if copy in headers and copy not in used}
    check_names(rows, headers, (*family.ignored, *copies))
    check_shapes(rows, layout, {name: checkpoint.headers[own][1] for name, own in headers.items()}, ours)
    for copy, original in copies.items():
        one, other = (checkpoint.read(headers[name]) for name in (copy, original))
        if not one.equal(other):
            raise ValueError(f"{copy!r} differs from {original!r}, and config.json says that they are one")
    return convert_to_ours(rows, layout, lambda name: checkpoint.read(headers[name]))


# --- tokenizers ---


def vocabulary_of(
    family: Family, config: ConfigBase, checkpoint: AnyCheckpoint, headers: Mapping[str, str]
) -> dict[str, int]:
    """How many ids of its own each side has: the rows of its embedding."""
    found: dict[str, int] = {}
    for row in family.table(config):
        for axis in ("source", "target"):
            if row.sides[0].startswith(f"{axis} ") and row.theirs[0] in headers:
                found[axis] = checkpoint.headers[headers[row.theirs[0]]][1][0]
    return found


def read_special(checkpoint: AnyCheckpoint, name: str) -> int | None:
    """An id such as pad_token_id, from the configuration of the model or of its generation; the first of several."""
    for values in (checkpoint.json("generation_config.json"), checkpoint.config):
        one = values.get(name)
        one = one[0] if isinstance(one, list) and one else one
        if isinstance(one, int) and not isinstance(one, bool) and one >= 0:
            return one
    return None


def find_piece(engine: TokenizerEngine, piece: str | None, vocabulary: int) -> int | None:
    """The tokenizer's own id of a token as it is written."""
    if isinstance(engine, TokenizersEngine):
        return None if piece is None else engine.engine.token_to_id(piece)
    return next((one for one in range(vocabulary) if engine.piece(one) == piece), None)


def make_tokenizer(
    checkpoint: AnyCheckpoint, engine: TokenizerEngine, vocabulary: int, *, start: int | None, end: int | None
) -> PretrainedTokenizer:
    """For texts that begin and end with these ids of its own."""
    pad = read_special(checkpoint, "pad_token_id")
    unknown = find_piece(engine, checkpoint.special_token("unk_token"), vocabulary)
    special: Special = (pad, start, end, unknown)
    if any(one is not None and one >= vocabulary for one in special):
        raise ValueError(f"{checkpoint.folder}: a special token of {special} is beyond the vocabulary of {vocabulary}")
    return PretrainedTokenizer(engine, vocabulary, special)


def language_tag(tokenizer: PretrainedTokenizer, language: str) -> int:
    """The tag of a language: eng_Latn of NLLB, __en__ of M2M100, >>eng<< of Marian."""
    for written in (language, f"__{language}__", f">>{language}<<"):
        one = find_piece(tokenizer.engine, written, tokenizer.vocabulary)
        if one is not None:
            return tokenizer.from_foreign[one]
    raise ValueError(f"no language is called {language!r:.80} in this model's vocabulary; name one by its own tag")


# --- tasks ---


def training(config: TrainSettings = TrainSettings(), **changes: Any) -> TrainSettings:
    """How a run would be trained on, unless somebody says otherwise."""
    return replace(config, learning_rate=LEARNING_RATE, **changes)


def read_translation(model: CheckpointModel[ModelConfig]) -> ImportedParts:
    checkpoint, vocabulary, languages = model.checkpoint, model.vocabulary, model.languages
    end = read_special(checkpoint, "eos_token_id")
    start = read_special(checkpoint, "decoder_start_token_id")
    start = read_special(checkpoint, "pad_token_id") if start is None else start
    if start is None or end is None:
        raise ValueError(f"{checkpoint.folder}: config.json does not say what begins and ends a target text")
    source, target = (
        make_tokenizer(checkpoint, checkpoint.engine(target=side == "target"), size, start=start, end=end)
        for side, size in (("source", vocabulary.get("source", vocabulary["target"])), ("target", vocabulary["target"]))
    )
    source, target = with_languages(checkpoint, model.family, source, target, languages)
    names = named_languages(checkpoint, languages)
    settings = TranslationSettings(
        data=TranslationData(corpus="files", source=names["source"], target=names["target"]),
        text=PairTokenizerSettings(kind="pretrained", vocab_size=target.size, joint=source.size == target.size),
        model=model.config,
        train=training(label_smoothing=0.0),  # which would ask for tokens that the model does not have
    )
    orders = {"source": AxisOrder.of(source), "target": AxisOrder.of(target)}
    return ImportedParts(Translator, (source, target), settings, orders)


def named_languages(checkpoint: AnyCheckpoint, languages: Languages) -> dict[str, str]:
    config = checkpoint.json("tokenizer_config.json")
    found = {
        "source": languages.source or config.get("source_lang") or config.get("src_lang"),
        "target": languages.target or config.get("target_lang") or config.get("tgt_lang"),
    }
    return {side: name if isinstance(name, str) else "?" for side, name in found.items()}


def with_languages(
    checkpoint: AnyCheckpoint,
    family: Family,
    source: PretrainedTokenizer,
    target: PretrainedTokenizer,
    languages: Languages,
) -> tuple[PretrainedTokenizer, PretrainedTokenizer]:
    """With the tags that texts of these languages begin with: each its own, or Marian's source that of the target."""
    if family.tags == "source":
        if languages.target:
            source = replace(source, first_ids=(language_tag(source, f">>{languages.target}<<"),))
        return source, target
    if not family.tags:
        if languages.source or languages.target:
            raise ValueError(f"{checkpoint.folder} has no tags of languages; leave them out")
        return source, target
    tags = named_languages(checkpoint, languages)
    if "?" in tags.values():
        raise ValueError(
            f"{checkpoint.folder} translates many languages; name two: --source-language and --target-language, such "
            "as eng_Latn and fra_Latn, or en and fr"
        )
    source = replace(source, first_ids=(language_tag(source, tags["source"]),))
    return source, replace(target, first_ids=(language_tag(target, tags["target"]),))


def read_language_model(model: CheckpointModel[LanguageModelConfig]) -> ImportedParts:
    checkpoint = model.checkpoint
    end, begin = (read_special(checkpoint, name) for name in ("eos_token_id", "bos_token_id"))
    engine, size = checkpoint.engine(markup=True), model.vocabulary["target"]
    words = make_tokenizer(checkpoint, engine, size, start=end if begin is None else begin, end=end)
    if isinstance(checkpoint, GGUFCheckpoint):
        words = replace(words, starts=checkpoint.adds_bos)
    elif isinstance(engine, TokenizersEngine):
        words = replace(words, starts=engine.engine.encode("a").ids[:1] == [begin])
    else:
        words = replace(words, starts=checkpoint.json("tokenizer_config.json").get("add_bos_token") is True)
    longest = CheckpointConfig(checkpoint.config).whole(
        "n_positions", CheckpointConfig(checkpoint.config).whole("max_position_embeddings", 2048)
    )
    settings = LanguageModelingSettings(
        data=LanguageModelingData(corpus="files"),
        text=TokenizerSettings(kind="pretrained", vocab_size=words.size),
        model=model.config,
        train=training(label_smoothing=0.0, max_length=longest, batch_size=max(longest, TrainSettings().batch_size)),
    )
    return ImportedParts(TextGenerator, (words,), settings, {"target": AxisOrder.of(words)})


def read_labels(checkpoint: AnyCheckpoint, count: int) -> Labels:
    """The names of the labels; a file leaves out those that transformers gives by itself."""
    names = checkpoint.config.get("id2label") or {str(n): f"LABEL_{n}" for n in range(count)}
    if not isinstance(names, dict) or sorted(names) != sorted(map(str, range(count))):
        raise ValueError(f"{checkpoint.folder}: config.json should name {count} labels in id2label, one for each row")
    return Labels(tuple(str(names[str(n)]) for n in range(count)))


def label_rows(checkpoint: AnyCheckpoint) -> int:
    if "classifier.weight" not in checkpoint.headers:
        raise ValueError(f"{checkpoint.folder}: the checkpoint lacks 'classifier.weight'; it classifies nothing")
    return checkpoint.headers["classifier.weight"][1][0]


def encoder_tokenizer(checkpoint: AnyCheckpoint, vocabulary: int) -> PretrainedTokenizer:
    """Of texts as an encoder reads them: between [CLS] and [SEP], or whatever its tokenizer puts around them."""
    engine = checkpoint.engine()
    words = make_tokenizer(checkpoint, engine, vocabulary, start=None, end=None)
    if not isinstance(engine, TokenizersEngine):
        raise ValueError(f"{checkpoint.folder} holds no tokenizer.json; save it by tokenizer.save_pretrained(folder)")
    ids = engine.engine.encode("a").ids
    inside = engine.encode("a")
    start = next((n for n in range(len(ids)) if ids[n : n + len(inside)] == inside), 0)
    first, last = ([words.from_foreign[one] for one in some] for some in (ids[:start], ids[start + len(inside) :]))
    return replace(words, first_ids=tuple(first), last_ids=tuple(last))


def read_classifier(model: CheckpointModel[EncoderConfig]) -> ImportedParts:
    checkpoint = model.checkpoint
    kind = checkpoint.config.get("problem_type")
    if kind not in (None, "single_label_classification"):
        raise ValueError(
            f"{checkpoint.folder}: problem_type = {kind!r:.80} gives no text one label; it is not imported"
        )
    words = encoder_tokenizer(checkpoint, model.vocabulary["target"])
    longest = CheckpointConfig(checkpoint.config).whole("max_position_embeddings", 512)
    settings = ClassificationSettings(
        data=ClassificationData(corpus="files", max_tokens=longest),
        text=TokenizerSettings(kind="pretrained", vocab_size=words.size),
        model=model.config,
        pooling=PoolingConfig(kind="class"),
        train=training(label_smoothing=0.0, max_length=longest),
    )
    parts = (words, read_labels(checkpoint, label_rows(checkpoint)))
    return ImportedParts(TextClassifier, parts, settings, {"target": AxisOrder.of(words)})


def read_text_encoder(model: CheckpointModel[EncoderConfig]) -> ImportedParts:
    """A masked language model, or an encoder alone; a text's vector is what sentence-transformers makes of it."""
    checkpoint = model.checkpoint
    words = encoder_tokenizer(checkpoint, model.vocabulary["target"])
    pooling, longest = checkpoint.json("1_Pooling/config.json"), checkpoint.json("sentence_bert_config.json")
    if pooling.get("pooling_mode_max_tokens") or pooling.get("pooling_mode_mean_sqrt_len_tokens"):
        raise ValueError(f"{checkpoint.folder}: 1_Pooling/config.json asks for a pooling that is not known here")
    settings = MaskedLMSettings(
        data=MaskedLMData(corpus="files"),
        text=TokenizerSettings(kind="pretrained", vocab_size=words.size),
        model=model.config,
        mask=MaskingSettings(
            head=checkpoint.architecture != "BertModel",
            pooling="first" if pooling.get("pooling_mode_cls_token") else "mean",
        ),
        train=training(
            label_smoothing=0.0,
            max_length=CheckpointConfig(longest).whole(
                "max_seq_length", CheckpointConfig(checkpoint.config).whole("max_position_embeddings", 512)
            ),
        ),
    )
    return ImportedParts(TextEncoder, (words,), settings, {"target": AxisOrder.of(words)})


BILINEAR = 2  # as Pillow numbers it


def read_image_classifier(model: CheckpointModel[VisionConfig]) -> ImportedParts:
    checkpoint, theirs = model.checkpoint, CheckpointConfig(model.checkpoint.config)
    side, channels = theirs.whole("image_size", 224), theirs.whole("num_channels", 3)
    settings = ImageClassificationSettings(
        data=ImageClassificationData(corpus="files", height=side, width=side),
        model=model.config,
        train=training(ImageClassificationSettings().train),
    )
    parts = (read_preprocessor(checkpoint, side, channels), read_labels(checkpoint, label_rows(checkpoint)))
    return ImportedParts(ImageClassifier, parts, settings, {})


def read_preprocessor(checkpoint: AnyCheckpoint, side: int, channels: int) -> ImagePreprocessor:
    """Resized by bilinear interpolation, and scaled by a mean and a deviation, as transformers' own does by default."""
    values = checkpoint.json("preprocessor_config.json")
    wanted = {
        "do_center_crop": False,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "resample": BILINEAR,
    }
    if other := [name for name, value in wanted.items() if values.get(name, value) not in (None, value)]:
        raise ValueError(
            f"{checkpoint.folder}: preprocessor_config.json: {other[0]} = {values[other[0]]!r:.80} is not known here"
        )
    size = values.get("size", side)
    size = size if isinstance(size, dict) else {"height": size, "width": size}
    if (size.get("height"), size.get("width")) != (side, side):
        raise ValueError(f"{checkpoint.folder}: images of {size!r:.80} do not fit a model of {side} x {side} pixels")
    means, spreads = (values.get(name) or [0.5] * channels for name in ("image_mean", "image_std"))
    try:
        return ImagePreprocessor(
            channels, side, side, PixelScaling(tuple(map(float, means)), tuple(map(float, spreads)))
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{checkpoint.folder}: preprocessor_config.json: {error}") from None


TASK_PARTS: dict[str, Callable[[CheckpointModel[Any]], ImportedParts]] = {
    "translation": read_translation,
    "language_modeling": read_language_model,
    "masked_language_modeling": read_text_encoder,
    "sequence_classification": read_classifier,
    "image_classification": read_image_classifier,
}
