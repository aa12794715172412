"""Scores by sentence length in; the picture that showed what attention is for out.

Figure 2 of Bahdanau, Cho & Bengio (2015): without attention, translations of long sentences fall apart.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from regard.see.labels import readable, short
from regard.see.panel import Curves, Row, Series, View

LONGEST = 32  # terminal cells of a model's name
MOST = 100.0

Point = tuple[float, float, int]  # length in words, score, how many sentences


@dataclass(frozen=True)
class Lengths:
    """For each model (name, points); a point is (length in words, score from 0 to 100, how many sentences)."""

    curves: tuple[tuple[str, tuple[Point, ...]], ...]
    score: str = "BLEU"

    def __post_init__(self):
        if isinstance(self.curves, dict):
            raise ValueError("curves must be a tuple of (name, points), not a dict; use tuple(curves.items())")
        if not self.curves:
            raise ValueError("there are no curves to draw; give at least one (name, points)")
        names = [name for name, _ in self.curves]
        if len(set(names)) < len(names):
            raise ValueError(f"every curve needs a name of its own, not {', '.join(names)}")
        for name, points in self.curves:
            assert_curve(name, points)


def assert_curve(name: str, points: tuple[Point, ...]) -> None:
    if not points:
        raise ValueError(f"the curve {name!r} has no points; leave it out, or give (length, score, count) for each")
    for length, score, count in points:
        if not (isfinite(score) and 0 <= score <= MOST):
            raise ValueError(f"{name!r} scores {score:g} at length {length:g}; a score lies between 0 and {MOST:g}")
        if count < 1:
            raise ValueError(f"{name!r} has {count} sentences of length {length:g}; leave a length without any out")
    lengths = [length for length, _, _ in points]
    if any(after <= before for before, after in pairwise(lengths)):
        raise ValueError(f"the lengths of {name!r} must rise, not {', '.join(f'{length:g}' for length in lengths)}")


def lengths_view(lengths: Lengths, *, title: str = "") -> View:
    """One line per model, and below each length how many sentences there are."""
    series = tuple(
        Series(short(readable(name), LONGEST), *map(tuple, zip(*points, strict=True)))
        for name, points in lengths.curves
    )
    curves = Curves(series, "sentence length in words", lengths.score, MOST, "sentences")
    return View((Row((curves,), heading=title),))
