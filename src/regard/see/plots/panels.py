"""Panels: the matrices, curves, strips and images that a view is made of, and their labels."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import cos, exp, pi, sin, sqrt
from typing import Literal

import torch
from rich.cells import cell_len, set_cell_size
from torch import Tensor

# --- labels of tokens and numbers ---


MAX_LABEL_CELLS = 14  # cells of a terminal; longer labels end in an ellipsis
NEWLINE_SIGN = "⏎"
VISIBLE_CONTROLS = {"\n": NEWLINE_SIGN, "\r": NEWLINE_SIGN, "\t": "⇥"}


def visible_text(token: str) -> str:
    """What a token looks like when even its blanks must be seen. Never a line break, never an invalid character."""
    if not token.strip(" "):
        return "␣" * len(token) or "∅"
    return "".join(VISIBLE_CONTROLS.get(sign, "\ufffd" if is_unprintable(sign) else sign) for sign in token)


def is_unprintable(sign: str) -> bool:
    """Control characters and halves of surrogate pairs, which no file of text may hold, and noncharacters."""
    return unicodedata.category(sign) in ("Cc", "Cs") or ord(sign) & 0xFFFE == 0xFFFE


def truncate_label(label: str, cells: int = MAX_LABEL_CELLS) -> str:
    return label if cell_len(label) <= cells else set_cell_size(label, cells - 1).rstrip() + "…"


def make_labels(tokens: Sequence[str], *, wanted: int, name: str) -> tuple[str, ...]:
    """One short label for each of `wanted` tokens."""
    if isinstance(tokens, str):
        raise ValueError(f"{name} must be a list of strings, not the one string {tokens!r}; use {name}.split()")
    if len(tokens) != wanted:
        raise ValueError(f"{len(tokens)} {name} for {wanted} rows or columns of weights; give one for each")
    return tuple(truncate_label(visible_text(str(token))) for token in tokens)


def format_number(value: float) -> str:
    """Two digits after the point, and none where the number is whole: 0 is exactly 0, what is almost 0 is <.01."""
    if value == 0:
        return "0"
    if abs(value) < 0.005:
        return "<.01" if value > 0 else ">-.01"
    if value == round(value) and abs(value) < 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.3g}"


# --- panels ---


RADIUS = 1.05  # inches, of the circle on which the nodes of a NeighbourPlot stand
VERTICAL_MARGIN = 0.3  # above and below it


@dataclass(frozen=True)
class NeighbourPlot:
    """A node in the middle and its neighbours around it, each with its weight and its kind.

    `self_weight` is that of the node itself. Weights are shown as shares of `max_weight`.
    """

    title: str
    centre: str
    names: tuple[str, ...]
    weights: tuple[float, ...]
    kinds: tuple[int, ...]  # the centre's, then those of the others
    self_weight: float
    max_weight: float = 1.0

    def __post_init__(self):
        assert len(self.names) == len(self.weights) == len(self.kinds) - 1

    def positions(self) -> list[tuple[float, float]]:
        """Where the neighbours stand, in inches from the middle, clockwise from the top."""
        turns = (2 * pi * n / len(self.names) for n in range(len(self.names)))
        return [(RADIUS * sin(turn), RADIUS * cos(turn)) for turn in turns]


# --- matrices, curves, text and images ---


@dataclass(frozen=True)
class ColourScale:
    """The meaning of a colour. Panels with equal scales share one legend.

    mask      True or False             weights  from 0 upwards
    roots     weights, coloured by their square roots, as the page does: small ones are seen as well
    blocks    empty, mixed or full      signed   to both sides of 0
    kinds     numbers that only name    dimming  what is added to a score, coloured by what it does: exp(bias)
    glow      weights that let an image show through where they are small
    """

    kind: Literal["mask", "blocks", "kinds", "weights", "roots", "signed", "dimming", "glow"]
    low: float = 0.0
    high: float = 1.0
    name: str = ""
    extends_above: bool = False  # some values are larger than `high`

    def fraction(self, value: float) -> float:
        """How far up the scale a value stands, from 0 to 1."""
        if self.kind == "dimming":
            return exp(min(value, self.high))
        share = min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        return sqrt(share) if self.kind == "roots" else share

    @staticmethod
    def of(values: Tensor, name: str = "") -> "ColourScale":
        """From 0 to the largest value; from -x to x if some are negative."""
        finite = values[torch.isfinite(values)]
        least, most = (float(f(finite)) if len(finite) else 0.0 for f in (torch.min, torch.max))
        if least < 0:
            return ColourScale("signed", -max(-least, most), max(-least, most), name)
        return ColourScale("weights", 0.0, most or 1.0, name)

    @staticmethod
    def robust_of_rows(weights: Tensor, name: str = "") -> "ColourScale":
        """As `of`, but a few rows with a large weight (the first ones, which see little) do not dim the others."""
        scale = ColourScale.of(weights, name)
        usual = float(weights.nan_to_num().flatten(0, -2).amax(-1).quantile(0.8))
        if weights.shape[-2] < 16 or scale.kind == "signed" or not 0 < usual < scale.high:
            return scale
        return replace(scale, high=usual, extends_above=True)


@dataclass(frozen=True)
class Axis:
    """What runs along a side of a panel; numbers from 0 where no labels are given."""

    name: str
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class Outline:
    """Cells that stand out from the others, and what they are."""

    cells: Tensor
    meaning: str


@dataclass(frozen=True, eq=False)
class Panel:
    """A matrix. Where `visible` is False the cell is hidden, which is not the same as 0."""

    title: str
    values: Tensor
    scale: ColourScale
    visible: Tensor | None = None
    down: Axis = Axis("query")
    across: Axis = Axis("key")
    outline: Outline | None = None
    annotate_from: float = 0.0  # numbers nearer to 0 are not written into their cells

    def __post_init__(self):
        assert self.values.dim() == 2, self.values.shape
        assert self.visible is None or self.visible.shape == self.values.shape
        assert self.outline is None or self.outline.cells.shape == self.values.shape

    @property
    def all_visible(self) -> bool:
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
    x_label: str
    y_label: str


@dataclass(frozen=True, eq=False)
class Series:
    """One line among several: its points, and how many cases each of them rests on, where that is known."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Curves:
    """Several lines in one plot, from `y_min` to `y_max`."""

    series: tuple[Series, ...]
    x_label: str
    y_label: str
    y_max: float
    count_label: str = ""  # what the counts count; "" where there are none
    title: str = ""
    y_min: float = 0.0

    def counts_by_x(self) -> dict[float, str]:
        """How many cases there are at each x; where the lines differ, from the fewest to the most."""
        at: dict[float, list[int]] = {}
        for line in self.series:
            for x, count in zip(line.x, line.counts, strict=True):
                at.setdefault(x, []).append(count)
        return {x: "–".join(map(str, sorted({min(n), max(n)}))) for x, n in sorted(at.items())}


@dataclass(frozen=True, eq=False)
class Strip:
    """Words in lines, each on its shade; the word `highlight` is outlined.

    Where `visible` is False a word has no weight, which is not the same as 0. `rows_below` are rows of small text,
    one for each word; the first of them is marked at the words in `errors`. With `keeps_spaces` words hold their own
    spaces, as pieces of a text do.
    """

    title: str
    words: tuple[str, ...]
    weights: Tensor
    scale: ColourScale
    highlight: int | None = None
    visible: Tensor | None = None
    rows_below: tuple[tuple[str, ...], ...] = ()
    errors: frozenset[int] = frozenset()
    keeps_spaces: bool = False
    missing_label: str = "hidden"  # what a word without a weight is

    def __post_init__(self):
        assert self.weights.shape == (len(self.words),), self.weights.shape
        assert self.visible is None or self.visible.shape == self.weights.shape
        assert all(len(row) == len(self.words) for row in self.rows_below)

    def has_weight(self, index: int) -> bool:
        return self.visible is None or bool(self.visible[index])

    def texts_below(self, index: int) -> list[str]:
        """What stands below a word."""
        mark = "✗ " if index in self.errors else ""
        return [(mark if n == 0 else "") + row[index] for n, row in enumerate(self.rows_below)]

    @property
    def has_weights(self) -> bool:
        return self.visible is None or bool(self.visible.any())

    @property
    def all_visible(self) -> bool:
        return self.visible is None or bool(self.visible.all())


@dataclass(frozen=True, eq=False)
class PatchOverlay:
    """The weight of each patch of an image, to be laid over it."""

    weights: Tensor
    scale: ColourScale
    smooth: bool = False

    def __post_init__(self):
        assert self.weights.dim() == 2, self.weights.shape


@dataclass(frozen=True, eq=False)
class ImagePanel:
    """Pixels (c, h, w) from 0 to 1, one channel for grey or three for colour, and what is laid over them."""

    title: str
    pixels: Tensor
    overlay: PatchOverlay | None = None

    def __post_init__(self):
        assert self.pixels.dim() == 3, self.pixels.shape
        assert self.pixels.shape[0] in (1, 3), self.pixels.shape


@dataclass(frozen=True, eq=False)
class BarChart:
    """Many numbers without names, from 0 to `max_value`: one bar each, in their order."""

    title: str
    values: Tensor
    x_label: str
    max_value: float = 1.0

    def __post_init__(self):
        assert self.values.dim() == 1, self.values.shape


@dataclass(frozen=True, eq=False)
class BarList:
    """A few names, each with its number and a bar as long as that number's share of `max_value`."""

    title: str
    names: tuple[str, ...]
    values: tuple[float, ...]
    max_value: float = 1.0

    def __post_init__(self):
        assert len(self.names) == len(self.values)


@dataclass(frozen=True, eq=False)
class ScatterPlot:
    """Points in a plane (n, 2), coloured by the group each belongs to; `groups` are named in the order of `names`."""

    title: str
    points: Tensor
    groups: tuple[int, ...]
    names: tuple[str, ...]
    x_label: str
    y_label: str
    annotations: tuple[tuple[int, str], ...] = ()  # of some points, a text that stands beside them

    def __post_init__(self):
        assert self.points.shape == (len(self.groups), 2), self.points.shape
        assert all(0 <= group < len(self.names) for group in self.groups)


AnyPanel = Panel | Curve | Curves | Strip | ImagePanel | BarChart | BarList | ScatterPlot | NeighbourPlot


def scale_of(panel: AnyPanel) -> ColourScale | None:
    """What the colours of a panel mean, where it has any."""
    match panel:
        case Panel():
            return panel.scale
        case Strip():
            return panel.scale if panel.has_weights else None
        case ImagePanel():
            return panel.overlay.scale if panel.overlay else None
        case _:
            return None


@dataclass(frozen=True)
class PanelRow:
    panels: tuple[AnyPanel, ...]
    heading: str = ""


@dataclass(frozen=True)
class View:
    """Rows of panels, a title (as code) above and lines of (name, code) below; a line without a name is a sentence."""

    rows: tuple[PanelRow, ...]
    title: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    side: float | None = None  # inches; by default as large as the contents ask for

    def panels(self) -> tuple[AnyPanel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def grid(panels: Sequence[AnyPanel], most: int = 4) -> tuple[PanelRow, ...]:
    """Small multiples in rows of nearly equal length."""
    per_row = -(-len(panels) // -(-len(panels) // most))
    return tuple(PanelRow(tuple(panels[n : n + per_row])) for n in range(0, len(panels), per_row))
