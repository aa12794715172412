"""A text and what each of its words counted for in; the words on their shades, under the label they led to, out."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.see.alignment import assert_weights, plain, words
from regard.see.panel import Row, Scale, Strip, View

MOST = 400  # words of a text that are shown


def weighed(
    text: Sequence[str],
    weights: Float[Tensor, " words"],
    title: str = "",
    *,
    visible: Bool[Tensor, " words"] | None = None,
) -> View:
    """How much each word counts: by TF-IDF, by learned weights, by attention. A long text wraps.

    A word that is not `visible` has no weight, because the model does not know it: that is not a weight of 0.
    """
    shown = one_each(text, weights, visible)
    known = plain(weights) if visible is None else plain(weights).where(visible.cpu(), 0.0)
    assert_weights(known)
    return View((Row((panel(text, known, Scale.of(known, "weight"), visible),), heading=title),), notes=cut(shown))


def contributions(
    text: Sequence[str],
    parts: Float[Tensor, " words"],
    title: str = "",
    *,
    label: str = "the label",
    other: str = "against it",
    visible: Bool[Tensor, " words"] | None = None,
) -> View:
    """What each word adds to a label's score or, below 0, takes from it: blue and orange.

    weighed and contributions both take `verdict(...)` as title.
    """
    shown = one_each(text, parts, visible)
    known = plain(parts) if visible is None else plain(parts).where(visible.cpu(), 0.0)
    if not torch.isfinite(known).all():
        raise ValueError(f"what words add must be finite, but {float(known[~known.isfinite()][0]):g} is among it")
    most = float(known.abs().max()) or 1.0
    strip = panel(text, known, Scale("signed", -most, most, "added"), visible)
    total = f"above 0 speaks for {label}, below 0 {other}; together the words add {float(known.sum()):+.2f}"
    return View((Row((strip,), heading=title),), notes=(("", total.replace("-", "−")), *cut(shown)))


def verdict(label: str, probability: float, gold: str | None = None) -> str:
    """What a text was taken for: a title."""
    if not 0 <= probability <= 1:
        raise ValueError(f"a probability lies between 0 and 1, not at {probability:g}")
    found = f"{label}, {100 * probability:.0f} %"
    return found if gold is None else f"{found}, rightly" if gold == label else f"{found}, wrongly: it is {gold}"


# --- what comes in ---


def panel(text: Sequence[str], numbers: Tensor, scale: Scale, visible: Tensor | None) -> Strip:
    shown = words(text, "the text")[:MOST]
    seen = None if visible is None else visible.cpu()[:MOST]
    return Strip("", shown, numbers[:MOST], scale, visible=seen, absent="unknown")


def one_each(text: Sequence[str], numbers: Tensor, visible: Tensor | None) -> int:
    """How many words there are, once each is known to have its number."""
    count = len(words(text, "the text"))
    if tuple(numbers.shape) != (count,):
        raise ValueError(f"{count} words need a number each, shape ({count},), not {tuple(numbers.shape)}")
    if visible is not None and tuple(visible.shape) != (count,):
        raise ValueError(f"{count} words are visible or not, shape ({count},), not {tuple(visible.shape)}")
    return count


def cut(count: int) -> tuple[tuple[str, str], ...]:
    return (("", f"the first {MOST} of {count:,} words"),) if count > MOST else ()
