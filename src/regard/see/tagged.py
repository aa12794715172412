"""A sentence and a tag for each of its words in; each tag under its word, and where they differ the right one, out."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.see.alignment import plain, strip, words
from regard.see.labels import readable, short
from regard.see.panel import Row, Scale, Strip, View

LONGEST = 12  # terminal cells of a tag


def tagged(
    sentence: Sequence[str],
    tags: Sequence[str],
    *,
    gold: Sequence[str] | None = None,
    sure: Float[Tensor, " words"] | None = None,
    looked: Mapping[int, Float[Tensor, " words"]] | None = None,
    title: str = "",
) -> View:
    """Words above their tags.

    Args:
        gold: the right tags; where they differ, the tag is marked and the right one stands below it.
        sure: how probable the model finds each tag, as the shade of its word.
        looked: for some words, by their places from 0: where the model looked to tag them.
    """
    shown, given = words(sentence, "words"), each(tags, len(sentence), "tags")
    right = given if gold is None else each(gold, len(sentence), "gold tags")
    wrong = frozenset(n for n in range(len(shown)) if (tags if gold is None else gold)[n] != tags[n])
    below = (given, tuple(right[n] if n in wrong else "" for n in range(len(shown)))) if wrong else (given,)
    known = torch.full((len(shown),), sure is not None)
    panel = Strip(
        "",
        shown,
        torch.zeros(len(shown)) if sure is None else probabilities(sure, len(shown)),
        Scale("weights", 0.0, 1.0, "probability"),
        visible=known,
        below=below,
        wrong=wrong,
    )
    rows = [Row((panel,), heading=title)]
    for at, weights in (looked or {}).items():
        view = strip(sentence, weights, f"where it looked to tag “{place(shown, at)}” as {given[at]}", at=at)
        rows += view.rows
    return View(tuple(rows), notes=() if gold is None else (("", tally(len(shown), len(wrong))),))


def tally(count: int, wrong: int) -> str:
    right = f"{count - wrong} of {count} tags are right"
    return f"{right}; the gold tag stands below each wrong one" if wrong else right


def each(tags: Sequence[str], count: int, name: str) -> tuple[str, ...]:
    if isinstance(tags, str) or len(tags) != count:
        raise ValueError(f"{count} words need a tag each, not {len(tags)} {name}: {tags!r}")
    return tuple(short(readable(tag), LONGEST) for tag in tags)


def place(shown: tuple[str, ...], at: int) -> str:
    if not 0 <= at < len(shown):
        raise ValueError(f"there is no word {at} in a sentence of {len(shown)}; words are counted from 0")
    return shown[at]


def probabilities(given: Tensor, count: int) -> Tensor:
    if tuple(given.shape) != (count,):
        raise ValueError(f"{count} words need a probability each, shape ({count},), not {tuple(given.shape)}")
    wrong = given[~((given >= 0) & (given <= 1))]
    if len(wrong):
        raise ValueError(f"probabilities lie between 0 and 1, but {float(wrong[0]):g} is among them")
    return plain(given)
