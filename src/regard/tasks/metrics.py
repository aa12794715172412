"""Metrics: scores with signatures, precision, recall and F1 by label, confusion matrices, and paired bootstrap tests.

A task's own metrics stand in its folder; these are of several tasks.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

MAX_MATRIX_LABELS = 20  # labels whose confusion matrix is shown; of more labels, so many confusions are
WIDE_MATRIX_LABELS = 12  # labels that leave room for long names above the columns
RESAMPLES, SEED = 1000, 12345  # of a bootstrap test, as sacreBLEU has them


@dataclass(frozen=True)
class MetricScore:
    """A score and the signature that says exactly how it was computed."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


class TaskMetrics(ABC):
    """Abstract: what `regard evaluate` shows and writes, and `regard compare` compares."""

    @property
    @abstractmethod
    def scores(self) -> Sequence[MetricScore]:
        """The figures of all examples together."""

    @abstractmethod
    def table(self) -> str:
        """As text for people."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """As plain values for programs."""

    @abstractmethod
    def lines(self) -> list[str]:
        """The model's outputs, a line for an example."""

    def compare(self, other: Any) -> dict[str, "PairedResult"]:
        """Paired significance tests against another model's metrics on the same examples, by score; {} is no test."""
        return {}


LABEL_FIGURES = ("loss", "accuracy")  # what validation finds of labels


def loss_and_accuracy(logits: Float[Tensor, "n labels"], labels: Int[Tensor, " n"]) -> dict[str, float]:
    """Of held-out examples: the mean negative log-probability of the labels, and the share that is most probable."""
    right = (logits.argmax(-1) == labels).float().mean()
    return {"loss": cross_entropy(logits, labels).item(), "accuracy": right.item()}


# --- labels ---


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


@dataclass(frozen=True, kw_only=True)
class LabelMetrics(TaskMetrics):
    """Which labels were right.

    Args:
        labels: all that the model knows.
        wanted, found: of each prediction.
        unit: what a prediction is of, in the plural.
        signature: what the figures depend on besides the model.
        outputs: a line for each example.
        example_ids: the example of each prediction, where an example has several, as a sentence has words.
        kinds: of each prediction, where there are kinds of them, as of questions.
    """

    labels: tuple[str, ...]
    wanted: tuple[str, ...] = field(repr=False)
    found: tuple[str, ...] = field(repr=False)
    unit: str
    signature: str
    outputs: tuple[str, ...] = field(repr=False)
    example_ids: tuple[int, ...] = field(default=(), repr=False)
    kinds: tuple[str, ...] = field(default=(), repr=False)

    @cached_property
    def confusions(self) -> Counter[tuple[str, str]]:
        """How often a label was wanted and a label was found."""
        return Counter(zip(self.wanted, self.found, strict=True))

    @cached_property
    def by_label(self) -> dict[str, LabelScore]:
        wanted, found = Counter(self.wanted), Counter(self.found)
        return {name: LabelScore(wanted[name], found[name], self.confusions[name, name]) for name in self.labels}

    @cached_property
    def by_kind(self) -> dict[str, tuple[int, int]]:
        """Of each kind, how many predictions were right, and of how many; the most frequent kind first."""
        right = Counter(
            kind for kind, a, b in zip(self.kinds, self.wanted, self.found, strict=bool(self.kinds)) if a == b
        )
        return {kind: (right[kind], count) for kind, count in Counter(self.kinds).most_common()}

    @property
    def right(self) -> int:
        return sum(score.right for score in self.by_label.values())

    @property
    def accuracy(self) -> float:
        return 100 * self.right / max(1, len(self.wanted))

    @property
    def macro_f1(self) -> float:
        """The mean over the labels that were wanted or found."""
        scores = [score.f1 for score in self.by_label.values() if score.wanted or score.found]
        return sum(scores) / max(1, len(scores))

    @property
    def scores(self) -> Sequence[MetricScore]:
        return (
            MetricScore("accuracy", self.accuracy, self.signature),
            MetricScore("macro F1", self.macro_f1, self.signature),
        )

    def table(self) -> str:
        lines = [f"accuracy {self.accuracy:.2f} %   {self.signature}", ""]
        if self.kinds:
            wide = max(map(len, self.by_kind))
            lines += [f"{kind:<{wide}} {100 * n / of:6.2f} %  of {of:,}" for kind, (n, of) in self.by_kind.items()]
            lines.append("")
        return "\n".join([*lines, *self.label_rows(), "", *self.confusion_rows()])

    def label_rows(self) -> list[str]:
        """Precision, recall and F1 of every label that was wanted or found, and their mean."""
        used = {name: score for name, score in self.by_label.items() if score.wanted or score.found}
        wide = max(8, *map(len, used))
        rows = [f"{'label':<{wide}} precision  recall      F1 {self.unit:>9}"]
        for name, one in used.items():
            rows.append(f"{name:<{wide}} {one.precision:9.2f} {one.recall:7.2f} {one.f1:7.2f} {one.wanted:9,}")
        precision, recall = (
            sum(getattr(one, figure) for one in used.values()) / len(used) for figure in ("precision", "recall")
        )
        total = len(self.wanted)
        return [*rows, f"{'mean':<{wide}} {precision:9.2f} {recall:7.2f} {self.macro_f1:7.2f} {total:9,}"]

    def confusion_rows(self) -> list[str]:
        """The confusion matrix, or the most frequent confusions of many labels."""
        used = [name for name, score in self.by_label.items() if score.wanted or score.found]
        wide = max(map(len, used))
        if len(used) > MAX_MATRIX_LABELS:
            wrong = [(pair, n) for pair, n in self.confusions.most_common() if pair[0] != pair[1]]
            return ["most frequent confusions"] * bool(wrong) + [
                f"{one:<{wide}} taken for {other:<{wide}} {n:,} of {self.by_label[one].wanted:,}"
                for (one, other), n in wrong[:MAX_MATRIX_LABELS]
            ]
        columns = [name[: 8 if len(used) <= WIDE_MATRIX_LABELS else 5] for name in used]
        cell = max(map(len, (*columns, *(f"{n:,}" for n in self.confusions.values()))))
        rows = ["confusion matrix: rows are wanted, columns found"]
        rows.append(" " * wide + "".join(f"  {name:>{cell}}" for name in columns))
        for one in used:
            counts = (f"{n:,}" if (n := self.confusions[one, other]) else "·" for other in used)
            rows.append(f"{one:<{wide}}" + "".join(f"  {count:>{cell}}" for count in counts))
        return rows

    def to_json(self) -> dict[str, Any]:
        by_label = {
            name: {
                self.unit: one.wanted,
                "right": one.right,
                "precision": one.precision,
                "recall": one.recall,
                "f1": one.f1,
            }
            for name, one in self.by_label.items()
        }
        matrix = {one: {other: n for other in self.labels if (n := self.confusions[one, other])} for one in self.labels}
        kinds = {kind: {self.unit: count, "right": right} for kind, (right, count) in self.by_kind.items()}
        return {
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "signature": self.signature,
            self.unit: len(self.wanted),
            "right": self.right,
            **({"by_kind": kinds} if kinds else {}),
            "by_label": by_label,
            "confusion_matrix": matrix,
        }

    def lines(self) -> list[str]:
        return list(self.outputs)

    def compare(self, other: "LabelMetrics") -> dict[str, "PairedResult"]:
        """A paired bootstrap test of the accuracy, over examples."""
        examples = np.array(self.example_ids or range(len(self.wanted)))
        counts = np.bincount(examples)
        one, two = (
            np.bincount(examples, [a == b for a, b in zip(each.wanted, each.found, strict=True)])
            for each in (self, other)
        )
        return {"accuracy": paired_bootstrap(one, two, counts, what=self.signature)}


# --- significance ---


@dataclass(frozen=True)
class PairedResult:
    """A paired bootstrap test of two models on the same examples (Koehn 2004).

    Args:
        p_value: the probability of a difference as large as the one found, if the models were equally good.
        intervals: half the width of the 95 % confidence interval, of each model.
        signature: how the scores were computed, resamples and seed.
    """

    p_value: float
    intervals: tuple[float, float]
    signature: str


def paired_bootstrap(
    first: NDArray[Any], second: NDArray[Any], counts: NDArray[Any], *, what: str, resamples: int = RESAMPLES
) -> PairedResult:
    """Of percentages: of each example, how many predictions of both models are right, and of how many.

    Examples are drawn with replacement, the same for both models; the p-value is that of sacreBLEU, the share of the
    resampled differences that, less their mean, exceed the difference itself. `what` is the percentages' signature.
    """
    random = np.random.default_rng(SEED)
    right = np.stack((first, second, counts))
    draws = (right[:, random.integers(right.shape[1], size=right.shape[1])].sum(1) for _ in range(resamples))
    sampled = np.array([[100 * one / all_, 100 * two / all_] for one, two, all_ in draws])
    real = abs(float(100 * (first.sum() - second.sum()) / counts.sum()))
    differences = np.abs(sampled[:, 0] - sampled[:, 1])
    larger = float((differences - differences.mean() > real).sum())
    p_value = (larger + 1) / (resamples + 1) if real else 1.0
    low, high = np.quantile(sampled, (0.025, 0.975), axis=0)
    one, two = ((high - low) / 2).tolist()
    return PairedResult(p_value, (one, two), f"{what}|bs:{resamples}|seed:{SEED}")


def check_same_signatures(first: Mapping[str, str], second: Mapping[str, str]) -> None:
    """Refuses to compare scores that were computed otherwise, by their names and signatures."""
    for name in (*first, *second):
        one, two = (found.get(name, "not measured") for found in (first, second))
        if one != two:
            raise ValueError(
                f"the scores cannot be compared: {name} is {one} for the first and {two} for the second model; "
                "compare models whose text is read alike"
            )


def signatures(metrics: TaskMetrics) -> dict[str, str]:
    """Of all scores, by their names."""
    return {score.name: score.signature for score in metrics.scores}
