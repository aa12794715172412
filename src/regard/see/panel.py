"""What there is to see: matrices, curves, words, pictures and lists with their scales, for a figure or a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, sqrt
from typing import Literal

import torch
from torch import Tensor

from regard.see.star import Star


@dataclass(frozen=True)
class Scale:
    """The meaning of a colour. Panels with equal scales share one legend.

    mask      True or False             weights  from 0 upwards
    roots     weights, coloured by their square roots, as the page does: small ones are seen as well
    blocks    empty, mixed or full      signed   to both sides of 0
    kinds     numbers that only name    dimming  what is added to a score, coloured by what it does: exp(bias)
    glow      weights that let a picture show through where they are small
    """

    kind: Literal["mask", "blocks", "kinds", "weights", "roots", "signed", "dimming", "glow"]
    low: float = 0.0
    high: float = 1.0
    name: str = ""
    beyond: bool = False  # some values are larger than `high`

    def share(self, value: float) -> float:
        """How far up the scale a value stands, from 0 to 1."""
        if self.kind == "dimming":
            return exp(min(value, self.high))
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return sqrt(share) if self.kind == "roots" else share

    @staticmethod
    def of(values: Tensor, name: str = "") -> "Scale":
        """From 0 to the largest value; from -x to x if some are negative."""
        finite = values[torch.isfinite(values)]
        least, most = (float(f(finite)) if len(finite) else 0.0 for f in (torch.min, torch.max))
        if least < 0:
            return Scale("signed", -max(-least, most), max(-least, most), name)
        return Scale("weights", 0.0, most or 1.0, name)

    @staticmethod
    def of_rows(weights: Tensor, name: str = "") -> "Scale":
        """As `of`, but a few rows with a large weight (the first ones, which see little) do not dim the others."""
        scale = Scale.of(weights, name)
        usual = float(weights.nan_to_num().flatten(0, -2).amax(-1).quantile(0.8))
        if weights.shape[-2] < 16 or scale.kind == "signed" or not 0 < usual < scale.high:
            return scale
        return replace(scale, high=usual, beyond=True)


@dataclass(frozen=True)
class Axis:
    """What runs along a side of a panel; numbers from 0 where no labels are given."""

    name: str
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class Outlined:
    """Cells that stand out from the others, and what they are."""

    cells: Tensor
    meaning: str


@dataclass(frozen=True, eq=False)
class Panel:
    """A matrix to look at. Where `visible` is False the cell is hidden, which is not the same as 0."""

    title: str
    values: Tensor
    scale: Scale
    visible: Tensor | None = None
    down: Axis = Axis("query")
    across: Axis = Axis("key")
    outlined: Outlined | None = None
    least: float = -inf  # smaller numbers are not written into their cells

    def __post_init__(self):
        assert self.values.dim() == 2, self.values.shape
        assert self.visible is None or self.visible.shape == self.values.shape
        assert self.outlined is None or self.outlined.cells.shape == self.values.shape

    @property
    def whole(self) -> bool:
        return self.visible is None or bool(self.visible.all())

    @property
    def square(self) -> bool:
        """Are the cells square? Where both sides are tokens they are; a table of features may be stretched."""
        return self.across.name != "feature"


@dataclass(frozen=True, eq=False)
class Curve:
    """One number against another."""

    title: str
    x: Tensor
    y: Tensor
    across: str
    up: str


@dataclass(frozen=True, eq=False)
class Series:
    """One line among several: its points, and how many cases each of them rests on."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Curves:
    """Several lines in one picture, from 0 to `most`."""

    series: tuple[Series, ...]
    across: str
    up: str
    most: float
    counted: str  # what the counts count
    title: str = ""

    def counts(self) -> dict[float, str]:
        """How many cases there are at each x; where the lines differ, from the fewest to the most."""
        at: dict[float, list[int]] = {}
        for line in self.series:
            for x, count in zip(line.x, line.counts, strict=True):
                at.setdefault(x, []).append(count)
        return {x: "–".join(map(str, sorted({min(n), max(n)}))) for x, n in sorted(at.items())}


@dataclass(frozen=True, eq=False)
class Strip:
    """Words in lines, each on its shade; the word `at` is outlined.

    Where `visible` is False a word has no weight, which is not the same as 0. `below` holds rows of small text, one
    for each word; the first of them is marked at the places in `wrong`. `close` words hold their own blanks, as pieces
    of a text do.
    """

    title: str
    words: tuple[str, ...]
    weights: Tensor
    scale: Scale
    at: int | None = None
    visible: Tensor | None = None
    below: tuple[tuple[str, ...], ...] = ()
    wrong: frozenset[int] = frozenset()
    close: bool = False
    absent: str = "hidden"  # what a word without a weight is

    def __post_init__(self):
        assert self.weights.shape == (len(self.words),), self.weights.shape
        assert self.visible is None or self.visible.shape == self.weights.shape
        assert all(len(row) == len(self.words) for row in self.below)

    def shows(self, place: int) -> bool:
        """Has the word at a place a weight?"""
        return self.visible is None or bool(self.visible[place])

    def under(self, place: int) -> list[str]:
        """What stands below a word."""
        mark = "✗ " if place in self.wrong else ""
        return [(mark if n == 0 else "") + row[place] for n, row in enumerate(self.below)]

    @property
    def shaded(self) -> bool:
        return self.visible is None or bool(self.visible.any())

    @property
    def whole(self) -> bool:
        return self.visible is None or bool(self.visible.all())


@dataclass(frozen=True, eq=False)
class Laid:
    """How much each patch of a picture weighs, to be laid over it."""

    weights: Tensor
    scale: Scale
    smooth: bool = False

    def __post_init__(self):
        assert self.weights.dim() == 2, self.weights.shape


@dataclass(frozen=True, eq=False)
class Picture:
    """Pixels (c, h, w) from 0 to 1, one channel for grey or three for colour, and what is laid over them."""

    title: str
    pixels: Tensor
    laid: Laid | None = None

    def __post_init__(self):
        assert self.pixels.dim() == 3, self.pixels.shape
        assert self.pixels.shape[0] in (1, 3), self.pixels.shape


@dataclass(frozen=True, eq=False)
class Bars:
    """Many numbers without names, from 0 to `most`: one bar each, in their order."""

    title: str
    values: Tensor
    across: str
    most: float = 1.0

    def __post_init__(self):
        assert self.values.dim() == 1, self.values.shape


@dataclass(frozen=True, eq=False)
class Listed:
    """A few names, each with its number and a bar as long as that number's share of `most`."""

    title: str
    names: tuple[str, ...]
    values: tuple[float, ...]
    most: float = 1.0

    def __post_init__(self):
        assert len(self.names) == len(self.values)


@dataclass(frozen=True, eq=False)
class Points:
    """Places in a plane (n, 2), coloured by the group each belongs to; `groups` are named in the order of `names`."""

    title: str
    at: Tensor
    groups: tuple[int, ...]
    names: tuple[str, ...]
    across: str
    up: str
    written: tuple[tuple[int, str], ...] = ()  # of some points, a text that stands beside them

    def __post_init__(self):
        assert self.at.shape == (len(self.groups), 2), self.at.shape
        assert all(0 <= group < len(self.names) for group in self.groups)


Shown = Panel | Curve | Curves | Strip | Picture | Bars | Listed | Points | Star


def scale_of(panel: Shown) -> Scale | None:
    """What the colours of a panel mean, where it has any."""
    match panel:
        case Panel():
            return panel.scale
        case Strip():
            return panel.scale if panel.shaded else None
        case Picture():
            return panel.laid.scale if panel.laid else None
        case _:
            return None


@dataclass(frozen=True)
class Row:
    panels: tuple[Shown, ...]
    heading: str = ""


@dataclass(frozen=True)
class View:
    """Rows of panels, a title (as code) above and lines of (name, code) below; a line without a name is a sentence."""

    rows: tuple[Row, ...]
    title: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    side: float | None = None  # inches; by default as large as the contents ask for

    def panels(self) -> tuple[Shown, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def grid(panels: Sequence[Shown], most: int = 4) -> tuple[Row, ...]:
    """Small multiples in rows of nearly equal length."""
    per_row = -(-len(panels) // -(-len(panels) // most))
    return tuple(Row(tuple(panels[n : n + per_row])) for n in range(0, len(panels), per_row))
