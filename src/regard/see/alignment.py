"""Words and the weights between them in; the alignment matrix, or a sentence on its shades, out.

The matrix is figure 3 of Bahdanau, Cho & Bengio (2015): the source across the top, the translation down the side.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from regard.decode.agreement import aer
from regard.decode.alignment import Links, hard
from regard.see.labels import readable, short
from regard.see.panel import Axis, Outlined, Panel, Row, Scale, Strip, View

END = "</s>"
LONGEST = 20  # terminal cells of a word; German ones are long
WRITTEN = 0.05  # smaller weights are not written into their cells: the many noughts would hide the few numbers


@dataclass(frozen=True, eq=False)
class Alignment:
    """How much each target word looked at each source word, and at the source's end if that is the last column.

    `gold` holds links (source word, target word), both counted from 0, where they are known.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Float[Tensor, "target source"]
    gold: Links = frozenset()

    def __post_init__(self):
        words(self.source, "source")
        words(self.target, "target")
        t, s = len(self.target), len(self.source)
        if tuple(self.weights.shape) not in ((t, s), (t, s + 1)):
            raise ValueError(
                f"{t} target and {s} source words need weights of shape {(t, s)}, or {(t, s + 1)} with the source's "
                f"end, not {tuple(self.weights.shape)}"
            )
        assert_weights(self.weights)
        for link in sorted(self.gold):
            if not (0 <= link[0] < s and 0 <= link[1] < t):
                raise ValueError(
                    f"the gold link {link} lies outside {s} source and {t} target words; links are (source, target), "
                    "counted from 0"
                )

    @property
    def ended(self) -> bool:
        """Is the source's end the last column?"""
        return self.weights.shape[1] > len(self.source)

    @property
    def error(self) -> float:
        """The alignment error rate of the words looked at most."""
        weights = plain(self.weights)
        return aer(self.gold, frozenset(), hard(weights if self.ended else pad(weights, (0, 1))))


def alignment_view(alignment: Alignment, *, title: str = "") -> View:
    """The matrix, with the gold links outlined and the error rate below where they are known."""
    weights = plain(alignment.weights)
    end = (END,) if alignment.ended else ()
    gold = torch.zeros(weights.shape, dtype=torch.bool)
    for s, t in alignment.gold:
        gold[t, s] = True
    panel = Panel(
        "",
        weights,
        Scale("weights", 0.0, max(1.0, float(weights.max())), "weight"),
        down=Axis("target", words(alignment.target, "target")),
        across=Axis("source", words(alignment.source, "source") + end),
        outlined=Outlined(gold, "gold link") if alignment.gold else None,
        least=WRITTEN,
    )
    notes = (("", f"AER {alignment.error:.2f} against the gold alignment"),) if alignment.gold else ()
    return View((Row((panel,), heading=title),), notes=notes)


def strip(sentence: Sequence[str], weights: Float[Tensor, " words"], title: str = "", *, at: int | None = None) -> View:
    """A sentence with the shade of its weight behind each word; the word `at`, which looked, is outlined."""
    shown = words(sentence, "words")
    if tuple(weights.shape) != (len(shown),):
        raise ValueError(f"{len(shown)} words need a weight each, shape ({len(shown)},), not {tuple(weights.shape)}")
    assert_weights(weights)
    if at is not None and not 0 <= at < len(shown):
        raise ValueError(f"there is no word {at} in a sentence of {len(shown)}; words are counted from 0")
    return View((Row((Strip(title, shown, plain(weights), Scale.of(plain(weights), "weight"), at),)),))


def stack(*strips: View) -> View:
    """Strips one below the other, their shades on one scale."""
    panels = [panel for view in strips for panel in view.panels()]
    shown = [panel for panel in panels if isinstance(panel, Strip)]
    if not shown or len(shown) < len(panels):
        raise ValueError(f"{len(shown)} of {len(panels)} pictures are strips; stack at least one, and strips alone")
    scale = max((panel.scale for panel in shown), key=lambda scale: scale.high)
    return View(tuple(Row((replace(panel, scale=scale),)) for panel in shown))


# --- what comes in ---


def words(given: Sequence[str], name: str) -> tuple[str, ...]:
    """The words as labels."""
    if isinstance(given, str):
        raise ValueError(f"{name} must be a tuple of words, not the one string {given!r}; use tuple({name}.split())")
    if not given:
        raise ValueError(f"{name} is empty; it must hold at least one word")
    return tuple(short(readable(word), LONGEST) for word in given)


def assert_weights(weights: Tensor) -> None:
    wrong = weights[~(torch.isfinite(weights) & (weights >= 0))]
    if len(wrong):
        raise ValueError(f"weights must be finite and not negative, but {float(wrong[0]):g} is among them")


def plain(weights: Tensor) -> Tensor:
    return weights.detach().cpu().double()
