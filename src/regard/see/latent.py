"""Latents of sentences in; the plane in which they differ most out, with a few sentences beside their points."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.see.labels import readable, short
from regard.see.neighbours import principal
from regard.see.panel import Points, Row, View

LONGEST = 44  # terminal cells of a sentence, and of a group's name
GROUPS = 7  # that a colour-blind reader can tell apart
SIDE = 3.4  # inches


def latents(
    vectors: Float[Tensor, "n ..."],
    labels: Sequence[str],
    texts: Sequence[str] = (),
    *,
    written: int = 8,
    title: str = "",
) -> View:
    """One point for each sentence, where its latent lies on the two axes along which they differ most.

    latents(latents_of(model, sources), ["past", "present", ...], sentences)

    Args:
        vectors: a latent of any shape to a row.
        labels: by which points are coloured.
        texts: the sentences; so many of them as `written`, which lie far from each other, stand beside their points.
    """
    return plane(*principal(vectors.detach().flatten(1)), labels, texts, written=written, title=title)


def plane(
    points: Float[Tensor, "n 2"],
    shares: tuple[float, float],
    labels: Sequence[str],
    texts: Sequence[str] = (),
    *,
    written: int = 8,
    title: str = "",
) -> View:
    """As `latents`, from points that `principal` found, and the share of the variance along each axis."""
    for name, given in (("labels", labels), ("texts", texts)):
        missing = name == "texts" and not given
        if isinstance(given, str) or (len(given) != len(points) and not missing):
            raise ValueError(f"{len(points)} latents need as many {name}, a list of them, not {len(given)}")
    names = sorted(set(labels))
    if len(names) > GROUPS:
        raise ValueError(f"{len(names)} labels cannot be told apart by colour; put them into {GROUPS} groups or fewer")
    shown = tuple(short(readable(name), LONGEST) for name in names)
    beside = tuple((n, short(readable(texts[n]), LONGEST)) for n in apart(points, written if texts else 0))
    across, up = (f"component {n + 1}: {100 * share:.0f} % of the variance" for n, share in enumerate(shares))
    groups = tuple(names.index(label) for label in labels)
    return View((Row((Points("", points, groups, shown, across, up, beside),), heading=title),), side=SIDE)


def apart(points: Float[Tensor, "n 2"], count: int) -> list[int]:
    """So many points that lie far from each other: first the one farthest out, then always the farthest from all."""
    away, found = (points - points.mean(0)).norm(dim=1), []
    for _ in range(min(count, len(points))):
        found.append(int(away.argmax()))
        near = (points - points[found[-1]]).norm(dim=1)
        away = near if len(found) == 1 else torch.minimum(away, near)
    return found
