"""A word's nearest neighbours and the vectors of its occurrences in; lists of words and a map of the senses out."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.see.alignment import plain
from regard.see.labels import readable, short
from regard.see.panel import Listed, Points, Row, View

LONGEST = 20  # terminal cells of a neighbour
TITLE = 44  # and of the sentence it was found in

Near = Sequence[tuple[str, float]]  # words and their likeness, the nearest first


def neighbours(
    static: Sequence[tuple[str, Near]], contextual: Sequence[tuple[str, Near]] = (), *, title: str = ""
) -> View:
    """Lists side by side, each under its title: a word before context, the sentences it stands in after.

    neighbours([("light", vectors.neighbours("light"))], [("turn off the light", [...]), ("the light box", [...])])
    """
    if not static:
        raise ValueError("there are no neighbours to show; give at least one (title, [(word, likeness), ...])")
    heading = ": ".join(part for part in (title, "before context" if contextual else "") if part)
    rows = [Row(tuple(map(listed, static)), heading=heading)]
    if contextual:
        rows.append(Row(tuple(map(listed, contextual)), heading="in context"))
    return View(tuple(rows))


def listed(column: tuple[str, Near]) -> Listed:
    title, near = column
    if not near:
        raise ValueError(f"{title!r} has no neighbours; leave it out, or give (word, likeness) for each")
    for word, likeness in near:
        if not -1.001 <= likeness <= 1.001:
            raise ValueError(f"{word!r} is like {title!r} by {likeness:g}; a cosine lies between -1 and 1")
    names = tuple(short(readable(word), LONGEST) for word, _ in near)
    return Listed(short(readable(title), TITLE), names, tuple(float(likeness) for _, likeness in near))


def senses(vectors: Float[Tensor, "n width"], meanings: Sequence[str], *, title: str = "") -> View:
    """The vectors of a word's occurrences on the two axes along which they differ most, coloured by what was meant."""
    if isinstance(meanings, str) or len(meanings) != len(vectors):
        raise ValueError(f"{len(vectors)} occurrences need a meaning each, not {len(meanings)}")
    at, shares = principal(vectors)
    names = list(dict.fromkeys(meanings))
    across, up = (f"component {n + 1}: {100 * share:.0f} % of the variance" for n, share in enumerate(shares))
    labels = tuple(f"{short(readable(name), LONGEST)} ({list(meanings).count(name)})" for name in names)
    return View(
        (Row((Points("", at, tuple(names.index(meaning) for meaning in meanings), labels, across, up),), title),)
    )


def principal(vectors: Float[Tensor, "n width"]) -> tuple[Float[Tensor, "n 2"], tuple[float, float]]:
    """Places on the first two principal components, and the share of the variance along each.

    An axis may point either way; its largest entry is made positive, so that a picture is always the same.
    """
    if vectors.dim() != 2 or min(vectors.shape) < 2:
        raise ValueError(f"a plane needs 2 vectors of width 2 or more, shape (n, width), not {tuple(vectors.shape)}")
    if not torch.isfinite(vectors).all():
        raise ValueError("vectors must be finite; nan or inf is among them")
    centred = plain(vectors) - plain(vectors).mean(0)
    _, spread, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * axes[:2].gather(1, axes[:2].abs().argmax(1, keepdim=True)).sign()
    variance = spread.square() / (float(spread.square().sum()) or 1.0)
    return centred @ axes.T, (float(variance[0]), float(variance[1]))
