"""The verb of every task's model: one input or a list, with text and score, the same as the model's own figures."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.data.graphs import fit_featurizer, read_graph
from regard.data.labelled import LabelledText
from regard.models.autoencoder import AutoencoderConfig
from regard.models.config import EncoderConfig, LanguageModelConfig
from regard.models.graph import GraphConfig
from regard.models.vision import VisionConfig, VQAConfig
from regard.tasks.autoencoding.task import AutoencodingSettings, SentenceAutoencoder
from regard.tasks.config import RunSettings, TokenizerSettings
from regard.tasks.image_classification.task import ImageClassificationData, ImageClassificationSettings, ImageClassifier
from regard.tasks.language_modeling.task import LanguageModelingSettings, TextGenerator
from regard.tasks.node_classification.task import NodeClassificationSettings, NodeClassifier
from regard.tasks.registry import TASKS, get_task
from regard.tasks.sequence_classification.task import ClassificationSettings, TextClassifier
from regard.tasks.tagging.task import Tagger, TaggingData, TaggingSettings
from regard.tasks.vqa.task import QuestionAnswerer, VQAData, VQASettings

WORDS = TokenizerSettings(kind="words")
ENCODER = EncoderConfig(kind="transformer", layers=1, model=16, heads=2, hidden=24, dropout=0.0)
TEXTS = ["the cat sleeps", "a dog eats the cat"]


def some_examples(settings: RunSettings) -> Sequence[Any]:
    return get_task(settings.task).read(settings, "train").examples[:20]


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_verb(name):
    task = get_task(name)
    assert callable(getattr(task.task_model, task.verb))


def test_a_tagger_tags():
    settings = TaggingSettings(data=TaggingData(sentences=20), text=WORDS, model=ENCODER)
    tagger = Tagger.from_examples(some_examples(settings), settings)
    tagger.model.eval()
    one, (again, other) = tagger.tag(TEXTS[0]), tagger.tag(TEXTS)
    assert (one.words, len(one.tags)) == (("the", "cat", "sleeps"), 3)
    assert one.tags == again.tags
    assert one.score == pytest.approx(sum(map(math.log, again.probabilities)), abs=1e-5)
    assert other.text.split()[1] == f"dog/{other.tags[1]}"
    assert one._repr_html_().count("<tr>") == 3


def test_a_classifier_classifies():
    settings = ClassificationSettings(text=WORDS, model=ENCODER)
    classifier = TextClassifier.from_examples([LabelledText(t, n) for t, n in zip(TEXTS, "ab", strict=True)], settings)
    classifier.model.eval()
    one, many = classifier.classify(TEXTS[0]), classifier.classify(TEXTS)
    assert one.text == many[0].text == max(one.probabilities, key=lambda name: one.probabilities[name])
    assert sum(one.probabilities.values()) == pytest.approx(1.0)
    assert one.score == max(one.probabilities.values())


def test_a_generator_generates():
    settings = LanguageModelingSettings(
        text=TokenizerSettings(kind="characters"),
        model=LanguageModelConfig(kind="transformer", layers=1, model=16, heads=2, hidden=24),
    )
    generator = TextGenerator.from_examples(TEXTS, settings)
    generator.model.eval()
    one = generator.generate("the ", tokens=7, temperature=0)
    assert one.text == one.prompt + one.generated
    assert one.generated
    assert one.score < 0
    first, second = generator.generate(["the ", "a "], tokens=5, seed=3)
    assert first.text == generator.generate("the ", tokens=5, seed=3).text
    assert second.prompt == "a "


def test_an_autoencoder_reconstructs():
    settings = AutoencodingSettings(text=WORDS, model=AutoencoderConfig.from_size("gru", "tiny"))
    autoencoder = SentenceAutoencoder.from_examples(TEXTS, settings)
    autoencoder.model.eval()
    many = autoencoder.reconstruct(TEXTS)
    assert autoencoder.reconstruct(TEXTS[1]).text == many[1].text
    assert many[0].score <= 0
    with pytest.raises(ValueError, match="give at least one word"):
        autoencoder.reconstruct("")


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "square.png"
    Image.fromarray(np.full((32, 32, 3), 90, dtype=np.uint8)).save(path)
    return path


def test_an_image_classifier_classifies_files(image):
    settings = ImageClassificationSettings(
        data=ImageClassificationData(images=12),
        model=VisionConfig(kind="vit", patch=8, layers=1, model=12, heads=3, hidden=17),
    )
    classifier = ImageClassifier.from_examples(some_examples(settings), settings)
    classifier.model.eval()
    one, (again,) = classifier.classify(image), classifier.classify([str(image)])
    assert one == again
    assert set(one.probabilities) == set(classifier.labels.names)


def test_a_question_answerer_answers(image):
    settings = VQASettings(
        data=VQAData(images=12, each=1, most=2),
        text=WORDS,
        model=VQAConfig(patch=8, image_layers=1, question_layers=1, layers=1, model=12, heads=3, hidden=17),
    )
    examples = some_examples(settings)
    answerer = QuestionAnswerer.from_examples(examples, settings)
    answerer.model.eval()
    one, two = answerer.answer(image, examples[0].text), answerer.answer(image, [examples[0].text, examples[1].text])
    assert one.text == two[0].text
    assert one.score == pytest.approx(two[0].score, abs=1e-5)


def test_a_node_classifier_classifies_every_node(tmp_path):
    (tmp_path / "nodes.tsv").write_text("name\tlabel\ttext\nann\tbaker\tbread\nbob\tsmith\tiron\ncy\t_\tbread oven\n")
    (tmp_path / "edges.tsv").write_text("ann\tbob\nbob\tcy\n")
    files = tmp_path / "nodes.tsv", tmp_path / "edges.tsv"
    graph = read_graph(*files)
    settings = NodeClassificationSettings(model=GraphConfig(kind="attention", layers=1, model=12, heads=2, hidden=14))
    classifier = NodeClassifier.from_parts(fit_featurizer(graph), graph.labels(), settings=settings)
    classifier.model.eval()
    found = classifier.classify(*files)
    assert list(found) == ["ann", "bob", "cy"]
    assert found["cy"].score == max(classifier.probabilities(graph)[2].tolist())
