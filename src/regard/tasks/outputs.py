"""Model outputs: what a model returns for an input, as values that print as text and show as tables in a notebook."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, TypeVar, overload

from jaxtyping import Float
from torch import Tensor

Given = TypeVar("Given")
Output = TypeVar("Output")


@dataclass(frozen=True, kw_only=True)
class ModelOutput:
    """What a model returns for one input.

    Args:
        text: of the output: a translation, a label, an answer.
        score: the model's own log-probability of it, or the probability of a label.

    >>> output = ModelOutput(text="le chat dort", score=-0.25)
    >>> print(output)
    le chat dort
    """

    text: str
    score: float

    def __str__(self) -> str:
        return self.text

    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table that a notebook shows."""
        return [(self.text, f"{self.score:.3f}")]

    def _repr_html_(self) -> str:
        return html_table(self.rows())


@dataclass(frozen=True, kw_only=True)
class LabelOutput(ModelOutput):
    """A label: `score` is its probability.

    Args:
        probabilities: of every label, the most probable first.

    >>> print(LabelOutput.of(["good", "bad"], [0.25, 0.75]))
    bad
    """

    probabilities: Mapping[str, float]

    @staticmethod
    def of(names: Sequence[str], probabilities: Sequence[float]) -> "LabelOutput":
        """Of the probabilities of all labels, in the order of their names."""
        found = dict(sorted(zip(names, probabilities, strict=True), key=lambda pair: -pair[1]))
        best, probability = next(iter(found.items()))
        return LabelOutput(text=best, score=probability, probabilities=found)

    def rows(self) -> list[tuple[str, ...]]:
        return [(name, f"{100 * probability:.1f} %") for name, probability in self.probabilities.items()]


@dataclass(frozen=True, eq=False)
class WordAlignment:
    """Which source words each word of a translation attended to.

    Args:
        source, target: the words.
        weights: of each target word to each source word; the last column is the end of the sentence.
        links: (source word, target word), counted from 0: where each target word attended most.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Float[Tensor, "target source_and_end"] = field(repr=False)
    links: frozenset[tuple[int, int]]

    def __str__(self) -> str:
        """In Pharaoh format: source-target, as in 0-0 1-2 2-1."""
        return " ".join(f"{source}-{target}" for source, target in sorted(self.links))

    def _repr_html_(self) -> str:
        weights = self.weights[:, : len(self.source)].tolist()
        rows = [(word, *(f"{weight:.2f}" for weight in row)) for word, row in zip(self.target, weights, strict=True)]
        return html_table(rows, ("", *self.source), [(0.0, *row) for row in weights])


def html_table(
    rows: Iterable[Sequence[str]], header: Sequence[str] = (), shades: Sequence[Sequence[float]] | None = None
) -> str:
    """An HTML table, its cells shaded by numbers from 0 to 1, if given."""

    def cell(text: str, shade: float) -> str:
        # from white to the dark blue of the plots; the ink turns white where black would be hard to read
        color = f' style="background: rgba(8, 48, 107, {shade:.3f}); color: {"white" if shade > 0.5 else "black"}"'
        return f"<td{color if shade > 0 else ''}>{escape(text)}</td>"

    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in header)}</tr>" if header else ""
    lines = [
        "".join(cell(text, shades[n][m] if shades else 0.0) for m, text in enumerate(row)) for n, row in enumerate(rows)
    ]
    return f"<table>{head}{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


@overload
def one_or_many(inputs: str | Path, run: Callable[[Sequence[Any]], list[Output]]) -> Output: ...
@overload
def one_or_many(inputs: Sequence[Any], run: Callable[[Sequence[Any]], list[Output]]) -> list[Output]: ...
def one_or_many(inputs: Any, run: Callable[[Sequence[Any]], list[Output]]) -> Output | list[Output]:
    """Of a single input its output, of several a list of theirs, in their order."""
    return run([inputs])[0] if isinstance(inputs, str | Path) else run(list(inputs))
