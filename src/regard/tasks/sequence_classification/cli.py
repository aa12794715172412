"""Sequence classification on the command line: precision, recall, F1, and views of word weights."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import see
from regard.attention import record_attention
from regard.cli.input_checks import refuse_long
from regard.data.labelled import LabelledText
from regard.data.tokenizers.base import UNK
from regard.models.tfidf import BagOfWordsClassifier
from regard.see.plots.panels import View
from regard.tasks.registry import MAX_TEXT_TOKENS, Task, ViewRequest
from regard.tasks.sequence_classification.data import ClassificationSettings, read_labelled_texts
from regard.tasks.sequence_classification.task import Classification, TextClassifier, build_ngrams, collate


@dataclass(frozen=True)
class LabelScore:
    """How one label was found: precision, recall and the harmonic mean of both, in percent."""

    wanted: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        return 100 * self.right / max(1, self.found)

    @property
    def recall(self) -> float:
        return 100 * self.right / max(1, self.wanted)

    @property
    def f1(self) -> float:
        return 200 * self.right / max(1, self.wanted + self.found)


@dataclass(frozen=True)
class ClassificationMetrics:
    """Which texts were given the right label."""

    labels: tuple[str, ...]
    wanted: tuple[str, ...] = field(repr=False)
    found: tuple[Classification, ...] = field(repr=False)

    @property
    def right(self) -> int:
        return sum(one.label == label for one, label in zip(self.found, self.wanted, strict=True))

    @property
    def accuracy(self) -> float:
        return 100 * self.right / len(self.wanted)

    @property
    def by_label(self) -> dict[str, LabelScore]:
        wanted, found = Counter(self.wanted), Counter(one.label for one in self.found)
        both = zip(self.found, self.wanted, strict=True)
        right = Counter(label for one, label in both if one.label == label)
        return {name: LabelScore(wanted[name], found[name], right[name]) for name in self.labels}

    def table(self) -> str:
        counts = f"right:{self.right}|texts:{len(self.wanted)}|labels:{len(self.labels)}"
        wide = max(8, *map(len, self.labels))
        lines = [f"accuracy {self.accuracy:.2f} %   {counts}", ""]
        lines.append(f"{'label':<{wide}} precision  recall      F1   texts")
        for name, one in self.by_label.items():
            lines.append(f"{name:<{wide}} {one.precision:9.2f} {one.recall:7.2f} {one.f1:7.2f} {one.wanted:7,}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        scores = {
            name: {"texts": one.wanted, "precision": one.precision, "recall": one.recall, "f1": one.f1}
            for name, one in self.by_label.items()
        }
        return {"accuracy": self.accuracy, "texts": len(self.wanted), "right": self.right, "by_label": scores}

    def lines(self) -> list[str]:
        return [f"{one.label}\t{one.probability:.4f}" for one in self.found]


def evaluate_classifier(classifier: TextClassifier, texts: Sequence[LabelledText]) -> ClassificationMetrics:
    for number, one in enumerate(texts, 1):
        classifier.labels.index(one.label, f"text {number}")
    found = classifier.predict([one.text for one in texts], device_of(classifier))
    return ClassificationMetrics(classifier.labels.names, tuple(one.label for one in texts), tuple(found))


def device_of(classifier: TextClassifier) -> str:
    return str(next(classifier.model.parameters()).device)


# --- look ---


def view_classification(classifier: TextClassifier, folder: Path, text: str, asked: ViewRequest) -> tuple[str, View]:
    """What each word weighed; of words that are only counted, what each said for the label."""
    for name, given in (("head", asked.head), ("word", asked.word), ("target", asked.target)):
        if given is not None:
            raise ValueError(f"--{name} is for translations; a classifier weighs all words for one label: leave it out")
    refuse_long([classifier.tokenizer.encode(text)], lambda _: "the text", asked.max_tokens)
    (judged,) = classifier.predict([text], device_of(classifier))
    if asked.all_heads:
        return f"{text}\n{see.prediction_title(judged.label, judged.probability)}", view_every_head(classifier, text)
    return text, view_weights(classifier, text, judged)


def view_weights(classifier: TextClassifier, text: str, judged: Classification) -> View:
    shown, known = words_and_known(classifier, text)
    title = see.prediction_title(judged.label, judged.probability)
    batch = collate([(classifier.terms(text), 0)]).to(device_of(classifier))
    model = classifier.model
    with torch.inference_mode():
        if not isinstance(model, BagOfWordsClassifier):
            with record_attention(model) as record:
                model(batch.terms, batch.lengths)
            weights = sum_by_word(classifier, text, record.weights("pooling")[0, 0, 0].cpu())
            return see.word_weights_view(shown, weights, title, visible=known)
        parts = model.token_contributions(batch.terms, batch.lengths)[0].double().cpu()
        label = classifier.labels.index(judged.label)
        others = [n for n in range(len(classifier.labels)) if n != label]
        added = sum_by_word(classifier, text, parts[:, label] - parts[:, others].mean(1))
        return see.word_contributions(shown, added, title, label=judged.label, visible=known)


def view_every_head(classifier: TextClassifier, text: str) -> View:
    """Where each word looked, layer by layer."""
    model, batch = classifier.model, collate([(classifier.terms(text), 0)]).to(device_of(classifier))
    with torch.inference_mode(), record_attention(model) as record:
        model(batch.terms, batch.lengths)
        names = [site.name for site in record.sites if site.name.startswith("encoder")]
        layers = {name: list(record.weights(name)[0].cpu()) for name in names}
    pieces = classifier.tokenizer.tokens(text)
    return see.self_attention_maps([pieces[place] for place in classifier.kept_indices(len(pieces))], layers)


def words_and_known(classifier: TextClassifier, text: str) -> tuple[list[str], Tensor]:
    """The words as they are read, and which of them the model knows."""
    ids, owners = classifier.tokenizer.encode(text), classifier.tokenizer.word_ids(text)
    unknown = {owner for one, owner in zip(ids, owners, strict=True) if one == UNK}
    words = classifier.tokenizer.normalizer.apply(text).split()
    return words, torch.tensor([place not in unknown for place in range(len(words))])


def sum_by_word(classifier: TextClassifier, text: str, parts: Tensor) -> Tensor:
    """What stands at the terms, added up for the words they are made of; one of several words is shared by them."""
    owners = classifier.tokenizer.word_ids(text)
    kept = classifier.kept_indices(len(owners))
    total = torch.zeros(max(owners) + 1, dtype=torch.double)
    places = build_ngrams(classifier.tokenizer, classifier.settings.words).word_indices(len(kept))
    for part, place in zip(parts.tolist(), places, strict=True):
        for one in place:
            total[owners[kept[one]]] += part / len(place)
    return total


SEQUENCE_CLASSIFICATION = Task(
    settings=ClassificationSettings,
    examples="texts",
    read=read_labelled_texts,
    from_examples=TextClassifier.from_examples,
    from_description=TextClassifier.from_description,
    load=TextClassifier.load,
    token_ids=lambda classifier, texts: classifier.tokenizer.encode_batch(one.text for one in texts),
    max_tokens=MAX_TEXT_TOKENS,
    evaluate=evaluate_classifier,
    view=view_classification,
    suggested_command=lambda folder: ("classify", folder),
)
