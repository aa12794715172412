"""Small untrained models of all eight tasks, and something for each to read: what the tests of scenes share."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from regard.models import ModelConfig
from regard.models.answering import AnswerConfig
from regard.models.autoencoder import AutoencoderConfig
from regard.models.graph import GraphConfig
from regard.models.picture_config import PictureConfig
from regard.models.reading_config import EncoderConfig, WriterConfig
from regard.tasks.answer import Answerer, AnswerSettings
from regard.tasks.classify import ClassifyData, ClassifySettings, TextClassifier
from regard.tasks.classify import read_texts as labelled_texts
from regard.tasks.graph import GraphData, GraphSettings, Labeller, read_nodes
from regard.tasks.kept import Kept
from regard.tasks.picture import PictureData, PictureSettings, Recogniser, read_pictures_of
from regard.tasks.questions import AnswerData, read_questions
from regard.tasks.rebuild import RebuildData, Rebuilder, RebuildSettings, read_sentences
from regard.tasks.settings import DataSettings, ReadingSettings, Settings, TextSettings
from regard.tasks.tag import Tagger
from regard.tasks.tag_settings import TagData, TagSettings, read_tags
from regard.tasks.texts import WriteData
from regard.tasks.texts import read_texts as running_texts
from regard.tasks.translate import Translator
from regard.tasks.write import Author, WriteSettings
from regard.text.corpus import Pair
from regard.text.labelled import Labelled
from regard.world import World, pairs

CAT = "the black cat ate the mouse"
WORDS = ReadingSettings(kind="words")
READER = EncoderConfig(kind="transformer", layers=1, model=12, heads=3, hidden=17, dropout=0.1)


def translator(kind: str = "transformer", text: str = "words", **changes) -> Translator:
    sizes = {"layers": 1, "model": 12, "hidden": 14} | ({"heads": 3} if kind == "transformer" else {})
    settings = Settings(
        data=DataSettings(corpus="world", sentences=97),
        text=TextSettings(kind=text, size=997),
        model=ModelConfig(kind=kind, **sizes | changes),
    )
    some = [Pair(*pair) for pair in pairs(World(longest=6), "fr", 97, "train")]
    return Translator.fresh([*some, Pair(CAT, "le chat noir a mangé la souris")], settings)


def tagger() -> Tagger:
    settings = TagSettings(data=TagData(sentences=97), text=ReadingSettings(kind="bpe", size=301), model=READER)
    return Tagger.fresh(read_tags(settings, "train").examples, settings)


def classifier() -> TextClassifier:
    settings = ClassifySettings(data=ClassifyData(sentences=97), text=WORDS, model=READER)
    return TextClassifier.fresh([*labelled_texts(settings, "train").examples, Labelled(CAT, "neutral")], settings)


def author(text: str = "words", recipe: str = 'position = "Rotary()"') -> Author:
    model = WriterConfig(kind="transformer", layers=1, model=12, heads=3, hidden=17, recipe=recipe)
    settings = WriteSettings(data=WriteData(sentences=97), text=ReadingSettings(kind=text), model=model)
    return Author.fresh([*running_texts(settings.data, "train", None).examples, f"{CAT}\n"], settings)


def recogniser(kind: str = "vit", attention: str = "channel") -> Recogniser:
    vit = PictureConfig(kind="vit", patch=8, layers=1, model=12, heads=3, hidden=17, pool="class")
    model = vit if kind == "vit" else PictureConfig(kind="cnn", width=8, blocks=1, attention=attention)
    settings = PictureSettings(data=PictureData(pictures=29), model=model)
    return Recogniser.fresh(read_pictures_of(settings, "train").examples, settings)


def answerer() -> Answerer:
    model = AnswerConfig(patch=8, picture_layers=1, question_layers=1, layers=1, model=12, heads=3, hidden=17)
    settings = AnswerSettings(data=AnswerData(pictures=29, each=1), text=WORDS, model=model)
    return Answerer.fresh(read_questions(settings.data, "train").examples, settings)


def labeller() -> Labeller:
    settings = GraphSettings(
        data=GraphData(people=97), model=GraphConfig(kind="attention", layers=1, model=12, heads=2, hidden=14)
    )
    return Labeller.fresh(read_nodes(settings, "train").examples, settings)


def rebuilder(kind: str = "transformer") -> Rebuilder:
    settings = RebuildSettings(
        data=RebuildData(sentences=97),
        text=WORDS,
        model=AutoencoderConfig(kind=kind, latents=3, latent=5, layers=1, model=12, hidden=14, heads=2),
    )
    return Rebuilder.fresh([*read_sentences(settings, "train").examples, CAT], settings)


LEARNERS: dict[str, Callable[[], Kept]] = {
    "translate": translator,
    "tag": tagger,
    "classify": classifier,
    "write": author,
    "picture": recogniser,
    "answer": answerer,
    "graph": labeller,
    "rebuild": rebuilder,
}


def asked(task: str, learner: Kept, folder: Path) -> tuple[str, dict[str, str]]:
    """What each is given to read."""
    if task == "graph":
        from regard.tasks.graph import trained_on

        return trained_on(learner.settings.data).nodes[0].name, {}
    if task in ("picture", "answer"):
        path = folder / "picture.png"
        Image.fromarray((np.arange(64 * 64 * 3) % 251).reshape(64, 64, 3).astype(np.uint8)).save(path)
        return str(path), {"question": "what colour is the circle"} if task == "answer" else {}
    return CAT, {}
