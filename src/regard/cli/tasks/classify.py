"""Classification, as the commands see it: how a classifier is trained, measured and looked into."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import see
from regard.cli.check import refuse_long
from regard.cli.options import LONGEST_TEXT
from regard.cli.tasks import Looking, Task
from regard.models.counting import OneHot
from regard.see.panel import View
from regard.tasks.classify import ClassifySettings, Judged, TextClassifier, collate, read_texts, terms_of
from regard.text.labelled import Labelled
from regard.text.vocabulary import UNK


@dataclass(frozen=True)
class Score:
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
class Measured:
    """Which texts were given the right label."""

    labels: tuple[str, ...]
    wanted: tuple[str, ...] = field(repr=False)
    found: tuple[Judged, ...] = field(repr=False)

    @property
    def right(self) -> int:
        return sum(one.label == label for one, label in zip(self.found, self.wanted, strict=True))

    @property
    def accuracy(self) -> float:
        return 100 * self.right / len(self.wanted)

    @property
    def by_label(self) -> dict[str, Score]:
        wanted, found = Counter(self.wanted), Counter(one.label for one in self.found)
        both = zip(self.found, self.wanted, strict=True)
        right = Counter(label for one, label in both if one.label == label)
        return {name: Score(wanted[name], found[name], right[name]) for name in self.labels}

    def table(self) -> str:
        counts = f"right:{self.right}|texts:{len(self.wanted)}|labels:{len(self.labels)}"
        wide = max(8, *map(len, self.labels))
        lines = [f"accuracy {self.accuracy:.2f} %   {counts}", ""]
        lines.append(f"{'label':<{wide}} precision  recall      F1   texts")
        for name, one in self.by_label.items():
            lines.append(f"{name:<{wide}} {one.precision:9.2f} {one.recall:7.2f} {one.f1:7.2f} {one.wanted:7,}")
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        scores = {
            name: {"texts": one.wanted, "precision": one.precision, "recall": one.recall, "f1": one.f1}
            for name, one in self.by_label.items()
        }
        return {"accuracy": self.accuracy, "texts": len(self.wanted), "right": self.right, "by_label": scores}

    def lines(self) -> list[str]:
        return [f"{one.label}\t{one.probability:.4f}" for one in self.found]


def measured(classifier: TextClassifier, texts: Sequence[Labelled]) -> Measured:
    for number, one in enumerate(texts, 1):
        classifier.labels.index(one.label, f"text {number}")
    found = classifier.judge([one.text for one in texts], device_of(classifier))
    return Measured(classifier.labels.names, tuple(one.label for one in texts), tuple(found))


def device_of(classifier: TextClassifier) -> str:
    return str(next(classifier.model.parameters()).device)


# --- look ---


def look(classifier: TextClassifier, folder: Path, text: str, asked: Looking) -> tuple[str, View]:
    """What each word weighed; of words that are only counted, what each said for the label."""
    for name, given in (("head", asked.head), ("word", asked.word), ("target", asked.target)):
        if given is not None:
            raise ValueError(f"--{name} is for translations; a classifier weighs all words for one label: leave it out")
    refuse_long([classifier.words.encode(text)], lambda _: "the text", asked.longest)
    (judged,) = classifier.judge([text], device_of(classifier))
    if asked.every:
        return f"{text}\n{see.verdict(judged.label, judged.probability)}", every_head(classifier, text)
    return text, weighed(classifier, text, judged)


def weighed(classifier: TextClassifier, text: str, judged: Judged) -> View:
    shown, known = shown_words(classifier, text)
    title = see.verdict(judged.label, judged.probability)
    batch = collate([(classifier.terms(text), 0)]).to(device_of(classifier))
    model = classifier.model
    with torch.inference_mode():
        if not isinstance(model, OneHot):
            (_, looked) = model.look(batch.terms, batch.lengths)
            weights = by_word(classifier, text, looked.weights["pooling"][0, 0, 0].cpu())
            return see.weighed(shown, weights, title, visible=known)
        parts = model.said(batch.terms, batch.lengths)[0].double().cpu()
        label = classifier.labels.index(judged.label)
        others = [n for n in range(len(classifier.labels)) if n != label]
        added = by_word(classifier, text, parts[:, label] - parts[:, others].mean(1))
        return see.contributions(shown, added, title, label=judged.label, visible=known)


def every_head(classifier: TextClassifier, text: str) -> View:
    """Where each word looked, layer by layer."""
    model, batch = classifier.model, collate([(classifier.terms(text), 0)]).to(device_of(classifier))
    with torch.inference_mode():
        (_, looked) = model.look(batch.terms, batch.lengths)
    layers = {name: list(weights[0].cpu()) for name, weights in looked.weights.items() if name.startswith("encoder")}
    pieces = classifier.words.tokens(text)
    return see.self_view([pieces[place] for place in classifier.places(len(pieces))], layers)


def shown_words(classifier: TextClassifier, text: str) -> tuple[list[str], Tensor]:
    """The words as they are read, and which of them the model knows."""
    ids, owners = classifier.words.encode(text), classifier.words.word_of(text)
    unknown = {owner for one, owner in zip(ids, owners, strict=True) if one == UNK}
    words = classifier.words.normal.apply(text).split()
    return words, torch.tensor([place not in unknown for place in range(len(words))])


def by_word(classifier: TextClassifier, text: str, parts: Tensor) -> Tensor:
    """What stands at the terms, added up for the words they are made of; one of several words is shared by them."""
    owners = classifier.words.word_of(text)
    kept = classifier.places(len(owners))
    total = torch.zeros(max(owners) + 1, dtype=torch.double)
    places = terms_of(classifier.words, classifier.settings.words).places(len(kept))
    for part, place in zip(parts.tolist(), places, strict=True):
        for one in place:
            total[owners[kept[one]]] += part / len(place)
    return total


CLASSIFY = Task(
    settings=ClassifySettings,
    examples="texts",
    read=read_texts,
    fresh=TextClassifier.fresh,
    described=TextClassifier.described,
    load=TextClassifier.load,
    ids=lambda classifier, texts: classifier.words.encode_all(one.text for one in texts),
    longest=LONGEST_TEXT,
    measure=measured,
    look=look,
    tries=lambda folder: ("classify", folder),
)
