"""Small training jobs of every task, with dropout: what CUDA graphs are tested on."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from regard.models.config import EncoderConfig, LanguageModelConfig, PoolingConfig, WordEmbeddingConfig
from regard.models.vision import VisionConfig, VQAConfig
from regard.tasks.config import RunSettings, TokenizerSettings
from regard.tasks.image_batches import AugmentSettings
from regard.tasks.image_classification.task import (
    ImageClassificationData,
    ImageClassificationSettings,
    ImageClassifier,
)
from regard.tasks.language_modeling.task import LanguageModelingData, LanguageModelingSettings, TextGenerator
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.sequence_classification.task import ClassificationData, ClassificationSettings, TextClassifier
from regard.tasks.tagging.task import CharacterSettings, Tagger, TaggingData, TaggingSettings
from regard.tasks.vqa.task import QuestionAnswerer, VQAData, VQASettings
from regard.training.config import TrainingJob, TrainSettings
from regard.training.run import TrainingRun

Model = TypeVar("Model", bound=PretrainedModel)
WORDS = TokenizerSettings(kind="words")
TRAIN = TrainSettings(
    steps=11,
    batch_size=13,
    warmup_steps=2,
    learning_rate=3e-3,
    cuda_graph=True,
    validate_every=6,
    checkpoint_every=6,
)
POSED = AugmentSettings(crop=2, rotation=12, scale=12, grayscale=0.3)
MIXED = AugmentSettings(crop=2, flip=True, cutout=5, cutmix=0.4, mixup=0.3)
LINES = ["the cat sat\n", "on the mat\n", "a cat saw the mat\n", "the mat saw the cat and sat\n"] * 7


def train_on_world(kind: type[Model], folder: Path) -> tuple[Model, Sequence[Any]]:
    """A model that a task's run on the miniature world leaves in this folder, and the examples of test."""
    world: Any = kind.settings_type.of_world()
    train, valid, test = (world.data.read(split).examples for split in ("train", "valid", "test"))
    model: Any = kind.from_examples(train, world)
    for _ in TrainingRun(model.job(train, valid), folder).steps():
        pass
    return model, test


def job_of(kind: type[PretrainedModel], settings: RunSettings, device: str) -> TrainingJob:
    examples = settings.data.read("train").examples
    return kind.from_examples(examples, settings).job(examples, examples[:11], device)


def picture(model: VisionConfig, augment: AugmentSettings, device: str, **train: Any) -> TrainingJob:
    settings = ImageClassificationSettings(
        data=ImageClassificationData(images=67),
        augment=augment,
        model=model,
        train=replace(TRAIN, **{"gradient_accumulation": 2, **train}),
    )
    return job_of(ImageClassifier, settings, device)


def answer(device: str, **train: Any) -> TrainingJob:
    settings = VQASettings(
        data=VQAData(images=31, each=3),
        text=WORDS,
        augment=AugmentSettings(crop=1, flip=True),
        model=VQAConfig(
            patch=8, image_layers=1, question_layers=1, layers=1, model=16, heads=2, hidden=18, dropout=0.1
        ),
        train=replace(TRAIN, **{"batch_size": 17, **train}),
    )
    return job_of(QuestionAnswerer, settings, device)


def write(model: LanguageModelConfig, lead: int, device: str, **train: Any) -> TrainingJob:
    settings = LanguageModelingSettings(
        data=LanguageModelingData(lead=lead),
        text=WORDS,
        model=model,
        train=replace(TRAIN, **{"batch_size": 35, "max_length": 7, **train}),
    )
    return TextGenerator.from_examples(LINES, settings).job(LINES, LINES[:5], device)


def tag(model: EncoderConfig, spelling: CharacterSettings, device: str, **train: Any) -> TrainingJob:
    settings = TaggingSettings(
        data=TaggingData(sentences=53, max_length=12),
        text=WORDS,
        spelling=spelling,
        model=model,
        train=replace(TRAIN, **{"batch_size": 90, **train}),
    )
    return job_of(Tagger, settings, device)


def classify(
    model: EncoderConfig, words: WordEmbeddingConfig, pooling: PoolingConfig, device: str, **train: Any
) -> TrainingJob:
    settings = ClassificationSettings(
        data=ClassificationData(sentences=71, max_length=12),
        text=WORDS,
        words=words,
        model=model,
        pooling=pooling,
        train=replace(TRAIN, **{"batch_size": 90, **train}),
    )
    return job_of(TextClassifier, settings, device)


VIT = VisionConfig(
    kind="vit", patch=8, stem="convolution", layers=1, model=16, heads=2, hidden=18, dropout=0.1, pool="mean"
)
CNN = VisionConfig(kind="cnn", width=4, blocks=1, norm="batch")
ROTARY = 'position = "Rotary()"'
TRANSFORMER_LM = LanguageModelConfig(
    kind="transformer", layers=2, model=16, heads=2, hidden=18, dropout=0.2, attention_dropout=0.1, recipe=ROTARY
)
TOKEN_DROPOUT: Any = dict.fromkeys(("input_dropout", "output_dropout", "word_dropout"), 0.1)
LSTM = LanguageModelConfig(kind="lstm", layers=2, model=12, hidden=20, dropout=0.2, weight_dropout=0.3, **TOKEN_DROPOUT)
READER = EncoderConfig(kind="transformer", layers=1, model=16, heads=2, hidden=18, dropout=0.1)
IN_TIME = EncoderConfig(kind="lstm", layers=2, directions=2, model=12, hidden=20, dropout=0.2)
ATTENTION = PoolingConfig(kind="attention")
HIDING = CharacterSettings(read=True, hide=0.15)

JOBS: dict[str, Callable[..., TrainingJob]] = {
    "vit": partial(picture, VIT, MIXED),
    "cnn": partial(picture, CNN, POSED),
    "answer": answer,
    "transformer": partial(write, TRANSFORMER_LM, 0),
    "lstm": partial(write, LSTM, 3),
    "tag": partial(tag, IN_TIME, HIDING),
    "tag, transformer": partial(tag, READER, CharacterSettings()),
    "classify": partial(classify, IN_TIME, WordEmbeddingConfig(dropout=0.3), ATTENTION, rdrop=1.0),
    "classify, transformer": partial(classify, READER, WordEmbeddingConfig(), PoolingConfig(), rdrop=1.0),
}
