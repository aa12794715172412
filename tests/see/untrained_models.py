"""Small untrained models of all eight tasks, and an input for each: what the tests of traces share."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from regard.data.labelled import LabelledText
from regard.data.parallel import SentencePair
from regard.models import ModelConfig
from regard.models.autoencoder import AutoencoderConfig
from regard.models.config import EncoderConfig, LanguageModelConfig
from regard.models.graph import GraphConfig
from regard.models.vision import VisionConfig, VQAConfig
from regard.tasks.autoencoding.task import AutoencodingData, AutoencodingSettings, SentenceAutoencoder
from regard.tasks.config import PairTokenizerSettings, TokenizerSettings
from regard.tasks.image_classification.task import (
    ImageClassificationData,
    ImageClassificationSettings,
    ImageClassifier,
)
from regard.tasks.language_modeling.task import LanguageModelingData, LanguageModelingSettings, TextGenerator
from regard.tasks.node_classification.task import (
    NodeClassificationData,
    NodeClassificationSettings,
    NodeClassifier,
)
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.sequence_classification.task import ClassificationData, ClassificationSettings, TextClassifier
from regard.tasks.tagging.task import Tagger, TaggingData, TaggingSettings
from regard.tasks.translation.task import TranslationData, TranslationSettings, Translator
from regard.tasks.vqa.task import QuestionAnswerer, VQAData, VQASettings
from regard.world import World, translation_pairs

CAT = "the black cat ate the mouse"
WORDS = TokenizerSettings(kind="words")
READER = EncoderConfig(kind="transformer", layers=1, model=12, heads=3, hidden=17, dropout=0.1)


def translator(kind: str = "transformer", text: str = "words", **changes: Any) -> Translator:
    heads = 3 if kind == "transformer" else ModelConfig.heads
    model = ModelConfig(kind=kind, layers=1, model=12, hidden=14, heads=heads)
    settings = TranslationSettings(
        data=TranslationData(corpus="world", sentences=97),
        text=PairTokenizerSettings(kind=text, vocab_size=997),
        model=replace(model, **changes),
    )
    some = [SentencePair(*pair) for pair in translation_pairs(World(max_length=6), "fr", 97, "train")]
    return Translator.from_examples([*some, SentencePair(CAT, "le chat noir a mangé la souris")], settings)


def tagger() -> Tagger:
    settings = TaggingSettings(
        data=TaggingData(sentences=97), text=TokenizerSettings(kind="bpe", vocab_size=301), model=READER
    )
    return Tagger.from_examples(settings.data.read("train").examples, settings)


def classifier() -> TextClassifier:
    settings = ClassificationSettings(data=ClassificationData(sentences=97), text=WORDS, model=READER)
    return TextClassifier.from_examples([*settings.data.read("train").examples, LabelledText(CAT, "neutral")], settings)


def generator(text: str = "words", recipe: str = 'position = "Rotary()"') -> TextGenerator:
    model = LanguageModelConfig(kind="transformer", layers=1, model=12, heads=3, hidden=17, recipe=recipe)
    settings = LanguageModelingSettings(
        data=LanguageModelingData(sentences=97), text=TokenizerSettings(kind=text), model=model
    )
    return TextGenerator.from_examples([*settings.data.read("train", None).examples, f"{CAT}\n"], settings)


def image_classifier(kind: str = "vit", attention: str = "channel") -> ImageClassifier:
    vit = VisionConfig(kind="vit", patch=8, layers=1, model=12, heads=3, hidden=17, pool="class")
    model = vit if kind == "vit" else VisionConfig(kind="cnn", width=8, blocks=1, attention=attention)
    settings = ImageClassificationSettings(data=ImageClassificationData(images=29), model=model)
    return ImageClassifier.from_examples(settings.data.read("train").examples, settings)


def answerer() -> QuestionAnswerer:
    model = VQAConfig(patch=8, image_layers=1, question_layers=1, layers=1, model=12, heads=3, hidden=17)
    settings = VQASettings(data=VQAData(images=29, each=1), text=WORDS, model=model)
    return QuestionAnswerer.from_examples(settings.data.read("train").examples, settings)


def node_classifier() -> NodeClassifier:
    settings = NodeClassificationSettings(
        data=NodeClassificationData(people=97),
        model=GraphConfig(kind="attention", layers=1, model=12, heads=2, hidden=14),
    )
    return NodeClassifier.from_examples(settings.data.read("train").examples, settings)


def sentence_autoencoder(kind: str = "transformer") -> SentenceAutoencoder:
    settings = AutoencodingSettings(
        data=AutoencodingData(sentences=97),
        text=WORDS,
        model=AutoencoderConfig(kind=kind, latents=3, latent=5, layers=1, model=12, hidden=14, heads=2),
    )
    return SentenceAutoencoder.from_examples([*settings.data.read("train").examples, CAT], settings)


LEARNERS: dict[str, Callable[[], PretrainedModel]] = {
    "translate": translator,
    "tag": tagger,
    "classify": classifier,
    "write": generator,
    "picture": image_classifier,
    "answer": answerer,
    "graph": node_classifier,
    "rebuild": sentence_autoencoder,
}


def example_input(task: str, learner: PretrainedModel, folder: Path) -> tuple[str, str | None]:
    """What each is given to read, and the question about it."""
    if task == "graph":
        from regard.tasks.node_classification.task import training_graph

        return training_graph(learner.settings.data).nodes[0].name, None
    if task in ("picture", "answer"):
        path = folder / "picture.png"
        Image.fromarray((np.arange(64 * 64 * 3) % 251).reshape(64, 64, 3).astype(np.uint8)).save(path)
        return str(path), "what colour is the circle" if task == "answer" else None
    return CAT, None
