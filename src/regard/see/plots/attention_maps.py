"""Attention maps: alignment matrices, maps of heads, sentences shaded by their weights, and heads of a trace.

The matrix is figure 3 of Bahdanau, Cho & Bengio (2015): the source across the top, the translation down the side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from regard.decode.alignment import Links, aer, argmax_links
from regard.see.plots.panels import (
    Axis,
    ColourScale,
    Outline,
    Panel,
    PanelRow,
    Strip,
    View,
    grid,
    truncate_label,
    visible_text,
)
from regard.see.trace.sites import AttentionSite
from regard.see.trace.trace import Trace, select_initial

END = "</s>"
MAX_WORD_CELLS = 20  # terminal cells of a word; German ones are long
MIN_ANNOTATED_WEIGHT = (
    0.05  # smaller weights are not written into their cells: the many noughts would hide the few numbers
)


@dataclass(frozen=True, eq=False)
class Alignment:
    """How much each target word attended to each source word, and to the source's end if that is the last column.

    `gold` holds links (source word, target word), both counted from 0, where they are known.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Float[Tensor, "target source"]
    gold: Links = frozenset()

    def __post_init__(self):
        word_labels(self.source, "source")
        word_labels(self.target, "target")
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
    def has_end(self) -> bool:
        """Is the source's end the last column?"""
        return self.weights.shape[1] > len(self.source)

    @property
    def error_rate(self) -> float:
        """The alignment error rate of the words attended to most."""
        weights = to_cpu_double(self.weights)
        return aer(self.gold, frozenset(), argmax_links(weights if self.has_end else pad(weights, (0, 1))))


def alignment_view(alignment: Alignment, *, title: str = "") -> View:
    """The matrix, with the gold links outlined and the error rate below where they are known."""
    weights = to_cpu_double(alignment.weights)
    end = (END,) if alignment.has_end else ()
    gold = torch.zeros(weights.shape, dtype=torch.bool)
    for s, t in alignment.gold:
        gold[t, s] = True
    panel = Panel(
        "",
        weights,
        ColourScale("weights", 0.0, max(1.0, float(weights.max())), "weight"),
        down=Axis("target", word_labels(alignment.target, "target")),
        across=Axis("source", word_labels(alignment.source, "source") + end),
        outline=Outline(gold, "gold link") if alignment.gold else None,
        annotate_from=MIN_ANNOTATED_WEIGHT,
    )
    notes = (("", f"AER {alignment.error_rate:.2f} against the gold alignment"),) if alignment.gold else ()
    return View((PanelRow((panel,), heading=title),), notes=notes)


def strip(
    sentence: Sequence[str], weights: Float[Tensor, " word_labels"], title: str = "", *, highlight: int | None = None
) -> View:
    """A sentence with the shade of its weight behind each word; the word `at`, which attended, is outlined."""
    shown = word_labels(sentence, "words")
    if tuple(weights.shape) != (len(shown),):
        raise ValueError(f"{len(shown)} words need a weight each, shape ({len(shown)},), not {tuple(weights.shape)}")
    assert_weights(weights)
    if highlight is not None and not 0 <= highlight < len(shown):
        raise ValueError(f"there is no word {highlight} in a sentence of {len(shown)}; words are counted from 0")
    return View(
        (
            PanelRow(
                (
                    Strip(
                        title,
                        shown,
                        to_cpu_double(weights),
                        ColourScale.of(to_cpu_double(weights), "weight"),
                        highlight,
                    ),
                )
            ),
        )
    )


def stack(*strips: View) -> View:
    """Strips one below the other, their shades on one scale."""
    panels = [panel for view in strips for panel in view.panels()]
    shown = [panel for panel in panels if isinstance(panel, Strip)]
    if not shown or len(shown) < len(panels):
        raise ValueError(f"{len(shown)} of {len(panels)} pictures are strips; stack at least one, and strips alone")
    scale = max((panel.scale for panel in shown), key=lambda scale: scale.high)
    return View(tuple(PanelRow((replace(panel, scale=scale),)) for panel in shown))


# --- checks ---


def word_labels(given: Sequence[str], name: str) -> tuple[str, ...]:
    """The words as labels."""
    if isinstance(given, str):
        raise ValueError(f"{name} must be a tuple of words, not the one string {given!r}; use tuple({name}.split())")
    if not given:
        raise ValueError(f"{name} is empty; it must hold at least one word")
    return tuple(truncate_label(visible_text(word), MAX_WORD_CELLS) for word in given)


def assert_weights(weights: Tensor) -> None:
    wrong = weights[~(torch.isfinite(weights) & (weights >= 0))]
    if len(wrong):
        raise ValueError(f"weights must be finite and not negative, but {float(wrong[0]):g} is among them")


def to_cpu_double(weights: Tensor) -> Tensor:
    return weights.detach().cpu().double()


# --- maps of heads ---


HEADS_PER_ROW = 4  # heads in a row


def head_maps(source: Sequence[str], target: Sequence[str], layers: Mapping[str, Sequence[Tensor]]) -> View:
    """Each weight matrix is (target, source) or (target, source and its end); all on one scale from 0 to 1."""
    if not any(layers.values()):
        raise ValueError("there is no head to show; a model without attention has none")
    across, down = word_labels(source, "source"), Axis("target", word_labels(target, "target"))
    rows = []
    for layer, heads in layers.items():
        panels = []
        for number, weights in enumerate(heads):
            end = (END,) if weights.shape[1] > len(across) else ()
            scale = ColourScale("weights", 0.0, 1.0, "weight")
            panels.append(
                Panel(f"head {number}", to_cpu_double(weights), scale, down=down, across=Axis("source", across + end))
            )
        rows.append(PanelRow(tuple(panels), heading=layer))
    return View(tuple(rows))


def self_attention_maps(
    sentence: Sequence[str],
    layers: Mapping[str, Sequence[Float[Tensor, "t t"]]],
    *,
    causal: bool = False,
    visible: Bool[Tensor, "t t"] | None = None,
) -> View:
    """What each word of a sentence attended to among its words. What is hidden (later words if `causal`) is not 0."""
    if not any(len(heads) for heads in layers.values()):
        raise ValueError("there is no head to show; a model without attention has none")
    labels = word_labels(sentence, "words")
    count = len(labels)
    seen = torch.ones(count, count, dtype=torch.bool) if visible is None else visible.cpu().bool()
    if tuple(seen.shape) != (count, count):
        raise ValueError(f"{count} words see each other or not, shape {(count, count)}, not {tuple(seen.shape)}")
    seen = seen.tril() if causal else seen
    rows = []
    for layer, heads in layers.items():
        panels = [
            Panel(
                f"head {number}",
                to_cpu_double(check_self_weights(weights, seen, f"{layer}, head {number}")),
                ColourScale("weights", 0.0, 1.0, "weight"),
                None if seen.all() else seen,
                Axis("looks", labels),
                Axis("at", labels),
                annotate_from=MIN_ANNOTATED_WEIGHT,
            )
            for number, weights in enumerate(heads)
        ]
        for n, row in enumerate(grid(panels, HEADS_PER_ROW) if panels else ()):
            rows.append(PanelRow(row.panels, heading="" if n else layer))
    return View(tuple(rows))


def check_self_weights(weights: Tensor, seen: Tensor, name: str) -> Tensor:
    """Weights of words on words, none of them on what is hidden."""
    if weights.shape != seen.shape:
        raise ValueError(f"{name}: {len(seen)} words need weights {tuple(seen.shape)}, not {tuple(weights.shape)}")
    assert_weights(weights)
    wrong = (~seen & (weights.cpu() > 0)).nonzero().tolist()
    if wrong:
        i, j = wrong[0]
        raise ValueError(
            f"{name}: word {i} attended to word {j}, which was to be hidden from it; show it, or correct it"
        )
    return weights


# --- attention maps of a trace ---


MAX_OPTIONS = 12  # columns of a model without attention: its most probable options


def view_trace(
    trace: Trace, folder: Path | None = None, head: str | None = None, *, all_heads: bool = False
) -> tuple[str, View]:
    """The output, and the weights of the head LAYER:HEAD, of the one at which the page opens, or of all; without
    attention, the probabilities."""
    sites = {name: site.heads for name, site in trace.sites.items() if isinstance(site, AttentionSite)}
    if head is not None:
        name, _, number = head.rpartition(":")
        if name not in sites or not number.isdecimal() or int(number) >= sites[name]:
            names = ", ".join(f"{name}:0 to {heads - 1}" for name, heads in sites.items())
            raise ValueError(f"--head {head}: write LAYER:HEAD, one of {names or 'none: there is no attention'}")
        return trace.output_text, View((PanelRow((head_panel(trace, name, int(number), ""),), heading=head),))
    if all_heads and sites:
        rows = []
        for name, heads in sites.items():
            panels = [head_panel(trace, name, number, f"head {number}") for number in range(heads)]
            for n, row in enumerate(grid(panels, HEADS_PER_ROW)):
                rows.append(PanelRow(row.panels, heading="" if n else name))
        return trace.output_text, View(tuple(rows))
    if (first := select_initial(trace, folder)) is None:
        return trace.output_text, View((PanelRow((probability_panel(trace),)),))
    panel = head_panel(trace, first.site, first.head, "")
    return trace.output_text, View((PanelRow((panel,), heading=f"{first.site}:{first.head}"),))


def head_panel(trace: Trace, site: str, head: int, title: str) -> Panel:
    spot, weights = trace.site(site).site_name, trace.word_weights(site, head)
    down, across = (
        Axis(name, word_labels([word for word, _ in axis.word_groups], name))
        for name, axis in zip((spot.queries, spot.keys), trace.axes_of(site), strict=True)
    )
    return Panel(title, to_cpu_double(weights), ColourScale("weights", 0.0, 1.0, "weight"), down=down, across=across)


def probability_panel(trace: Trace) -> Panel:
    """Rows are what is predicted, columns the options that are most probable."""
    shares = trace.predictions.logits.double().softmax(-1)
    best = shares.sum(0).topk(min(MAX_OPTIONS, shares.shape[1])).indices
    names = [trace.predictions.option_name(one) for one in best.tolist()]
    down = Axis("predicted", word_labels(trace.predictions.rows, "rows"))
    scale = ColourScale("weights", 0.0, 1.0, "probability")
    return Panel("probability", to_cpu_double(shares[:, best]), scale, down=down, across=Axis("option", tuple(names)))
