"""Artists of matplotlib, read back from a drawn figure: its texts, images, boxes and lines."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from tests.narrowing import not_none


def texts(artist: Figure | Axes) -> list[str]:
    return [text.get_text() for text in artist.texts]


def tick_labels(axis: Axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def image_axes(figure: Figure) -> list[Axes]:
    """The panels that hold images, without the ramps of the legends, which have no frame."""
    return [axes for axes in figure.axes if axes.images and axes.axison]


def strip_axes(figure: Figure) -> list[Axes]:
    """The axes of words on their shades, without the legend, which begins with an image."""
    return [axes for axes in figure.axes if not axes.images]


def image_data(image: AxesImage) -> np.ma.MaskedArray:
    """What it shows, hidden cells masked."""
    return np.ma.asarray(not_none(image.get_array()))


def line_points(line: Line2D) -> np.ndarray:
    """x and y of each point."""
    return np.asarray(line.get_xydata())


def rectangles(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def face_colours(boxes: Sequence[Rectangle]) -> list[tuple[float, float, float, float]]:
    return [to_rgba(box.get_facecolor()) for box in boxes]
