"""The name of a task in; a small job of it out, with all the noise there is: what recordings are tried on."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from regard.models.answering import AnswerConfig
from regard.models.picture_config import PictureConfig
from regard.models.reading_config import EncoderConfig, PoolingConfig, WordsConfig, WriterConfig
from regard.tasks.answer import Answerer, AnswerSettings
from regard.tasks.classify import ClassifyData, ClassifySettings, TextClassifier, read_texts
from regard.tasks.job import Job
from regard.tasks.picture import PictureData, PictureSettings, Recogniser, read_pictures_of
from regard.tasks.questions import AnswerData, read_questions
from regard.tasks.settings import ReadingSettings, TrainSettings
from regard.tasks.shown import AugmentSettings
from regard.tasks.tag import Tagger
from regard.tasks.tag_settings import SpellingSettings, TagData, TagSettings, read_tags
from regard.tasks.write import Author, WriteData, WriteSettings

WORDS = ReadingSettings(kind="words")
TRAIN = TrainSettings(
    steps=11, tokens=13, warmup=2, rate=3e-3, capture=True, smoothing=0.1, validate_every=6, checkpoint_every=6
)
POSED = AugmentSettings(crop=2, turn=12, stretch=12, grey=0.3)
MIXED = AugmentSettings(crop=2, flip=True, hide=5, cutmix=0.4, mixup=0.3)
LINES = ["the cat sat\n", "on the mat\n", "a cat saw the mat\n", "the mat saw the cat and sat\n"] * 7


def picture(model: PictureConfig, augment: AugmentSettings, device: str, **train: Any) -> Job:
    settings = PictureSettings(
        data=PictureData(pictures=67), augment=augment, model=model, train=replace(TRAIN, **{"accumulate": 2, **train})
    )
    examples = read_pictures_of(settings, "train").examples
    return Recogniser.fresh(examples, settings).job(examples, examples[:11], device)


def answer(device: str, **train: Any) -> Job:
    settings = AnswerSettings(
        data=AnswerData(pictures=31, each=3),
        text=WORDS,
        augment=AugmentSettings(crop=1, flip=True),
        model=AnswerConfig(
            patch=8, picture_layers=1, question_layers=1, layers=1, model=16, heads=2, hidden=18, dropout=0.1
        ),
        train=replace(TRAIN, **{"tokens": 17, **train}),
    )
    examples = read_questions(settings.data, "train").examples
    return Answerer.fresh(examples, settings).job(examples, examples[:11], device)


def write(model: WriterConfig, lead: int, device: str, **train: Any) -> Job:
    settings = WriteSettings(
        data=WriteData(lead=lead),
        text=WORDS,
        model=model,
        train=replace(TRAIN, **{"tokens": 35, "longest": 7, **train}),
    )
    return Author.fresh(LINES, settings).job(LINES, LINES[:5], device)


def tag(model: EncoderConfig, spelling: SpellingSettings, device: str, **train: Any) -> Job:
    settings = TagSettings(
        data=TagData(sentences=53, longest=12),
        text=WORDS,
        spelling=spelling,
        model=model,
        train=replace(TRAIN, **{"tokens": 90, **train}),
    )
    examples = read_tags(settings, "train").examples
    return Tagger.fresh(examples, settings).job(examples, examples[:11], device)


def classify(model: EncoderConfig, words: WordsConfig, pooling: PoolingConfig, device: str, **train: Any) -> Job:
    settings = ClassifySettings(
        data=ClassifyData(sentences=71, longest=12),
        text=WORDS,
        words=words,
        model=model,
        pooling=pooling,
        train=replace(TRAIN, **{"tokens": 90, **train}),
    )
    examples = read_texts(settings, "train").examples
    return TextClassifier.fresh(examples, settings).job(examples, examples[:11], device)


VIT = PictureConfig(
    kind="vit", patch=8, stem="convolution", layers=1, model=16, heads=2, hidden=18, dropout=0.1, pool="mean"
)
CNN = PictureConfig(kind="cnn", width=4, blocks=1, norm="batch")
ATTENTIVE = WriterConfig(
    kind="transformer",
    layers=2,
    model=16,
    heads=2,
    hidden=18,
    dropout=0.2,
    attention_dropout=0.1,
    recipe='position = "Rotary()"',
)
LSTM = WriterConfig(
    kind="lstm",
    layers=2,
    model=12,
    hidden=20,
    dropout=0.2,
    input_dropout=0.1,
    output_dropout=0.1,
    word_dropout=0.1,
    weight_dropout=0.3,
)
READER = EncoderConfig(kind="transformer", layers=1, model=16, heads=2, hidden=18, dropout=0.1)
IN_TIME = EncoderConfig(kind="lstm", layers=2, directions=2, model=12, hidden=20, dropout=0.2)
ATTENTION = PoolingConfig(kind="attention")
HIDING = SpellingSettings(read=True, hide=0.15)

JOBS: dict[str, Callable[..., Job]] = {
    "vit": partial(picture, VIT, MIXED),
    "cnn": partial(picture, CNN, POSED),
    "answer": answer,
    "transformer": partial(write, ATTENTIVE, 0),
    "lstm": partial(write, LSTM, 3),
    "tag": partial(tag, IN_TIME, HIDING),
    "tag, transformer": partial(tag, READER, SpellingSettings()),
    "classify": partial(classify, IN_TIME, WordsConfig(dropout=0.3), ATTENTION, consistency=1.0),
    "classify, transformer": partial(classify, READER, WordsConfig(), PoolingConfig(), consistency=1.0),
}
