"""Attention maps: alignment matrices, maps of heads, sentences and images shaded by their weights, heads of a trace.

The matrix is figure 3 of Bahdanau, Cho & Bengio (2015): the source across the top, the translation down the side. Over
an image each patch is a square of one shade, because there is one weight for it; `smooth` blurs what is known no finer.
Gates of channels are bars.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from regard.attention import SiteName
from regard.decode.alignment import Links, aer, argmax_links
from regard.models.vision import rollout
from regard.see.plots.panels import (
    Axis,
    BarChart,
    ColourScale,
    ImagePanel,
    Outline,
    Panel,
    PanelRow,
    PatchOverlay,
    Strip,
    View,
    grid,
    truncate_label,
    visible_text,
)
from regard.see.sites import AttentionSite
from regard.see.trace import Trace, select_initial, to_grid
from regard.tasks.protocol import TokenAxis

END = "</s>"
MAX_WORD_CELLS = 20  # terminal cells of a word; German ones are long
MIN_ANNOTATED_WEIGHT = (
    0.05  # smaller weights are not written into their cells: the many noughts would hide the few numbers
)


@dataclass(frozen=True, eq=False)
class Alignment:
    """How much each target word attended to each source word, and to the source's end if that is the last column.

    `gold` holds links (source word, target word), both counted from 0, where they are known.

    Examples:
        >>> weights = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.1, 0.7, 0.2]])
        >>> gold = frozenset({(0, 0), (1, 2), (2, 1)})  # source word, target word
        >>> alignment = Alignment(("the", "black", "cat"), ("le", "chat", "noir"), weights, gold)
        >>> alignment.error_rate
        0.0
        >>> print(ascii(alignment, numbers=True))
              the      black    cat
          le [▓▓ 0.80]    0.10     0.10
        chat     0.10  ░░ 0.20 [▓▓ 0.70]
        noir     0.10 [▓▓ 0.70] ░░ 0.20
        <BLANKLINE>
        [ ] gold link
        <BLANKLINE>
        AER 0.00 against the gold alignment
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
        assert_finite(self.weights)
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
        share_scale(weights),
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
    """A sentence with the shade of its weight behind each word; the word `highlight`, which attended, is outlined.

    Examples:
        >>> print(ascii(strip(["the", "black", "cat"], torch.tensor([0.1, 0.3, 0.6]), highlight=2), numbers=True))
        the  black [cat]
        ░░░░ ▒▒▒▒▒ █████
        0.10 0.30  0.60
    """
    shown = word_labels(sentence, "words")
    if tuple(weights.shape) != (len(shown),):
        raise ValueError(f"{len(shown)} words need a weight each, shape ({len(shown)},), not {tuple(weights.shape)}")
    assert_finite(weights)
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
    """Strips one below the other, their shades on one scale.

    Examples:
        >>> one = strip(["the", "black", "cat"], torch.tensor([0.1, 0.3, 0.6]), "le chat")
        >>> other = strip(["the", "black", "cat"], torch.tensor([0.0, 0.9, 0.1]), "noir")
        >>> print(ascii(stack(one, other), numbers=True))
        le chat
        the  black cat
             ░░░░░ ▓▓▓▓
        0.10 0.30  0.60
        <BLANKLINE>
        noir
        the  black cat
             █████
        0    0.90  0.10
    """
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


def assert_finite(weights: Tensor) -> None:
    """Those of a state, and of a difference of two maps, may be negative."""
    wrong = weights[~torch.isfinite(weights)]
    if len(wrong):
        raise ValueError(f"weights must be finite, but {float(wrong[0]):g} is among them")


def assert_weights(weights: Tensor) -> None:
    wrong = weights[~(torch.isfinite(weights) & (weights >= 0))]
    if len(wrong):
        raise ValueError(f"weights must be finite and not negative, but {float(wrong[0]):g} is among them")


def to_cpu_double(weights: Tensor) -> Tensor:
    return weights.detach().cpu().double()


# --- maps of heads ---


HEADS_PER_ROW = 4  # heads in a row


def head_maps(source: Sequence[str], target: Sequence[str], layers: Mapping[str, Sequence[Tensor]]) -> View:
    """Each weight matrix is (target, source) or (target, source and its end); all on one scale from 0 to 1.

    Examples:
        >>> heads = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.5, 0.5]]])
        >>> view = head_maps(["the", "cat"], ["le", "chat"], {"decoder.0.cross": list(heads)})
        >>> [(row.heading, [panel.title for panel in row.panels]) for row in view.rows]
        [('decoder.0.cross', ['head 0', 'head 1'])]
    """
    if not any(layers.values()):
        raise ValueError("there is no head to show; a model without attention has none")
    across, down = word_labels(source, "source"), Axis("target", word_labels(target, "target"))
    rows = []
    for layer, heads in layers.items():
        panels = []
        for number, weights in enumerate(heads):
            end = (END,) if weights.shape[1] > len(across) else ()
            values = to_cpu_double(weights)
            panels.append(
                Panel(f"head {number}", values, share_scale(values), down=down, across=Axis("source", across + end))
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
    """What each word of a sentence attended to among its words. What is hidden (later words if `causal`) is not 0.

    Examples:
        >>> heads = torch.tensor([[[0.6, 0.4], [0.2, 0.8]], [[0.5, 0.5], [0.5, 0.5]]])
        >>> print(ascii(self_attention_maps(["the", "cat"], {"blocks.0": heads}), numbers=True))
        blocks.0
        <BLANKLINE>
        head 0
             the      cat
        the  ▒▒ 0.60  ▒▒ 0.40
        cat  ░░ 0.20  ▓▓ 0.80
        <BLANKLINE>
        head 1
             the      cat
        the  ▒▒ 0.50  ▒▒ 0.50
        cat  ▒▒ 0.50  ▒▒ 0.50
    """
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
        panels = []
        for number, weights in enumerate(heads):
            values = to_cpu_double(check_self_weights(weights, seen, f"{layer}, head {number}"))
            panel = Panel(
                f"head {number}",
                values,
                share_scale(values),
                None if seen.all() else seen,
                Axis("looks", labels),
                Axis("at", labels),
                annotate_from=MIN_ANNOTATED_WEIGHT,
            )
            panels.append(panel)
        for n, row in enumerate(grid(panels, HEADS_PER_ROW) if panels else ()):
            rows.append(PanelRow(row.panels, heading="" if n else layer))
    return View(tuple(rows))


def site_maps(
    words: Sequence[str], axis: str, layers: Mapping[SiteName, Sequence[Float[Tensor, "i j"]]], *, causal: bool = False
) -> View:
    """As `self_attention_maps`, of attentions of which one side may be something else than the words of the `axis`: the
    blocks of native sparse attention, inducing points. These are numbered.
    """
    rows = list[PanelRow]()
    for site, heads in layers.items():
        if site.queries == axis == site.keys:
            rows += self_attention_maps(words, {site.name: heads}, causal=causal).rows
            continue
        panels = []
        for number, weights in enumerate(heads):
            assert_finite(weights)
            values = to_cpu_double(weights)
            down, across = (
                word_labels(words if of == axis else [f"{of} {n}" for n in range(count)], of)
                for of, count in zip((site.queries, site.keys), weights.shape, strict=True)
            )
            scale, sides = share_scale(values), (Axis("looks", down), Axis("at", across))
            panels.append(Panel(f"head {number}", values, scale, None, *sides))
        grouped = grid(panels, HEADS_PER_ROW) if panels else ()
        rows += [PanelRow(row.panels, heading="" if n else site.name) for n, row in enumerate(grouped)]
    if not rows:
        raise ValueError("there is no head to show; a model without attention has none")
    return View(tuple(rows))


def check_self_weights(weights: Tensor, seen: Tensor, name: str) -> Tensor:
    """Weights of words on words, none of them on what is hidden."""
    if weights.shape != seen.shape:
        raise ValueError(f"{name}: {len(seen)} words need weights {tuple(seen.shape)}, not {tuple(weights.shape)}")
    assert_finite(weights)
    wrong = (~seen & (weights.cpu() != 0)).nonzero().tolist()
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
    """The output, and the weights of the head LAYER:HEAD, of several of them with commas between, of the one at which
    the page opens, or of all; of an image, laid over it; without attention, the probabilities."""
    if trace.image is not None:
        return trace.output_text, image_trace_view(trace, head, all_heads=all_heads)
    sites = {name: site.heads for name, site in trace.sites.items() if isinstance(site, AttentionSite)}
    if head is not None and "," not in head:
        name, number = parse_head_of(head, sites)
        return trace.output_text, View((PanelRow((head_panel(trace, name, number, ""),), heading=head),))
    if head is not None:
        panels = [head_panel(trace, *parse_head_of(one, sites), one) for one in head.split(",")]
        return trace.output_text, View(tuple(PanelRow(row.panels) for row in grid(panels, HEADS_PER_ROW)))
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


def parse_head_of(head: str, sites: Mapping[str, int]) -> tuple[str, int]:
    """LAYER:HEAD, one of the attentions and the numbers of their heads."""
    name, _, number = head.rpartition(":")
    if name not in sites or not number.isdecimal() or int(number) >= sites[name]:
        names = ", ".join(f"{name}:0 to {heads - 1}" for name, heads in sites.items())
        raise ValueError(f"--head {head}: write LAYER:HEAD, one of {names or 'none: there is no attention'}")
    return name, int(number)


def head_panel(trace: Trace, site: str, head: int, title: str) -> Panel:
    spot, weights = trace.site(site).site_name, trace.word_weights(site, head)
    down, across = (
        Axis(name, word_labels([word for word, _ in axis.word_groups], name))
        for name, axis in zip((spot.queries, spot.keys), trace.axes_of(site), strict=True)
    )
    values = to_cpu_double(weights)
    return Panel(title, values, share_scale(values), down=down, across=across)


def share_scale(weights: Tensor) -> ColourScale:
    """From 0 to 1, as shares; where weights are none, as those of a state or a difference of two maps: as far as they
    reach, to both sides of 0 if some are negative."""
    beyond = bool(((weights < -1e-6) | (weights > 1 + 1e-6)).any())  # as a number that is none is not
    return ColourScale.of(weights, "weight") if beyond else ColourScale("weights", 0.0, 1.0, "weight")


def probability_panel(trace: Trace) -> Panel:
    """Rows are what is predicted, columns the options that are most probable."""
    shares = trace.predictions.logits.double().softmax(-1)
    best = shares.sum(0).topk(min(MAX_OPTIONS, shares.shape[1])).indices
    names = [trace.predictions.option_name(one) for one in best.tolist()]
    down = Axis("predicted", word_labels(trace.predictions.rows, "rows"))
    scale = ColourScale("weights", 0.0, 1.0, "probability")
    return Panel("probability", to_cpu_double(shares[:, best]), scale, down=down, across=Axis("option", tuple(names)))


# --- images ---


IMAGES_PER_ROW = 5
SMALL, LARGE = 1.2, 2.4  # inches: an image among those of many heads, and among few
MAX_IMAGE_NAME_CELLS = 24  # terminal cells of an image's name
PLAIN_IMAGE_TITLE = "the image"

Pixels = Float[Tensor, "c h w"]
Map = Float[Tensor, "y x"]


def overlay_view(
    pixels: Pixels, attention_maps: Sequence[tuple[str, Map]], *, title: str = "", smooth: bool = False
) -> View:
    """The image, then one copy for each (name, weights of its patches): a word of a question, a head, a layer.

    Examples:
        >>> pixels, weights = torch.rand(3, 8, 8), torch.rand(3, 2, 2)
        >>> view = overlay_view(pixels, list(zip(["what", "colour", "?"], weights)), title="attention of each word")
        >>> [panel.title for panel in view.panels()]
        ['the image', 'what', 'colour', '?']
    """
    base = check_pixels(pixels)
    maps = [(image_name(name), check_patches(weights, base)) for name, weights in attention_maps]
    if not maps:
        raise ValueError("there is nothing to lay over the image; give at least one (name, weights)")
    scale = shared_scale([weights for _, weights in maps])
    copies = [ImagePanel(name, base, PatchOverlay(weights, scale, smooth)) for name, weights in maps]
    rows = grid([ImagePanel(PLAIN_IMAGE_TITLE, base), *copies], IMAGES_PER_ROW)
    side = LARGE if len(maps) < IMAGES_PER_ROW // 2 + 1 else None
    return View((PanelRow(rows[0].panels, heading=title), *rows[1:]), side=side)


def overlay_heads_view(
    pixels: Pixels, layers: Mapping[str, Float[Tensor, "heads y x"]], *, title: str = "", smooth: bool = False
) -> View:
    """The image, then a row for each layer with one copy for each of its heads, all on one scale.

    Examples:
        >>> view = overlay_heads_view(torch.rand(3, 8, 8), {"blocks.0": torch.rand(4, 2, 2)})
        >>> [panel.title for panel in view.panels()]
        ['the image', 'head 0', 'head 1', 'head 2', 'head 3']
    """
    base = check_pixels(pixels)
    maps = {layer: [check_patches(weights, base) for weights in heads] for layer, heads in layers.items()}
    if not any(maps.values()):
        raise ValueError("there is no head to show; a model without attention has none")
    scale = shared_scale([weights for heads in maps.values() for weights in heads])
    rows = [PanelRow((ImagePanel(PLAIN_IMAGE_TITLE, base),), heading=title)]
    for layer, heads in maps.items():
        panels = [
            ImagePanel(f"head {n}", base, PatchOverlay(weights, scale, smooth)) for n, weights in enumerate(heads)
        ]
        first, *others = grid(panels, IMAGES_PER_ROW + 1)
        rows += [PanelRow(first.panels, heading=image_name(layer)), *others]
    return View(tuple(rows), side=SMALL)


def gates_view(
    pixels: Pixels,
    *,
    spatial: Sequence[tuple[str, Map]] = (),
    channels: Sequence[tuple[str, Float[Tensor, " _"]]] = (),
    title: str = "",
) -> View:
    """The gates of a convolutional network: of each position, laid over the image, and of each channel, as bars.

    Examples:
        >>> where, channels = [("where", torch.rand(2, 2))], [("channels", torch.tensor([0.2, 0.9]))]
        >>> view = gates_view(torch.rand(3, 8, 8), spatial=where, channels=channels)
        >>> [panel.title for panel in view.panels()]
        ['the image', 'where', 'channels']
    """
    base, scale = check_pixels(pixels), ColourScale("glow", 0.0, 1.0, "gate")
    copies = [
        ImagePanel(image_name(name), base, PatchOverlay(check_gate(name, check_patches(at, base)), scale))
        for name, at in spatial
    ]
    first, *others = grid([ImagePanel(PLAIN_IMAGE_TITLE, base), *copies], IMAGES_PER_ROW)
    rows = [PanelRow(first.panels, heading=title), *others]
    for name, weights in channels:
        if weights.dim() != 1 or not len(weights):
            raise ValueError(f"{name!r} has one weight for each channel, shape (channels,), not {tuple(weights.shape)}")
        assert_weights(weights)
        rows.append(PanelRow((BarChart(image_name(name), check_gate(name, to_cpu_double(weights)), "channel"),)))
    return View(tuple(rows))


# --- an image of a trace ---


def image_trace_view(trace: Trace, head: str | None = None, *, all_heads: bool = False) -> View:
    """By how much each patch enters the class token, or, where there is none, all patches on average: in the last
    layer and through all of them; in one head LAYER:HEAD; or in every head."""
    assert trace.image is not None
    sites = {name: trace.site(name) for name, axis in attention_over_patches(trace).items() if axis.grid is not None}
    if not sites:
        raise ValueError("no attention of this model is over the patches of the image; use --save numbers.npz")
    pixels, title = trace.image / 255, "how much each patch is attended to"
    if head is not None:
        name, number = parse_head_of(head, {name: site.heads for name, site in sites.items()})
        return overlay_view(pixels, [(head, pooled_patches(trace, name, sites[name].weights(number)))])
    if all_heads:
        layers = {
            name: torch.stack([pooled_patches(trace, name, site.weights(number)) for number in range(site.heads)])
            for name, site in sites.items()
        }
        return overlay_heads_view(pixels, layers, title=title)
    means = [torch.stack([site.weights(number) for number in range(site.heads)]).mean(0) for site in sites.values()]
    last = list(sites)[-1]
    looks = [("last layer", pooled_patches(trace, last, means[-1]))]
    if len({mean.shape for mean in means}) == 1:
        looks.append(("all layers", pooled_patches(trace, last, rollout([mean[None, None] for mean in means])[0])))
    return overlay_view(pixels, looks, title=title)


def attention_over_patches(trace: Trace) -> dict[str, TokenAxis]:
    """The attentions of patches among each other, and their axis."""
    axes = {name: trace.axes_of(name) for name, site in trace.sites.items() if isinstance(site, AttentionSite)}
    return {name: keys for name, (queries, keys) in axes.items() if queries == keys}


def pooled_patches(trace: Trace, name: str, weights: Float[Tensor, "t t"]) -> Map:
    """The weights of the patches in the class token, or their mean over all patches."""
    axis, _ = trace.axes_of(name)
    assert axis.grid is not None
    classes = len(axis.labels) > prod(axis.grid)
    return to_grid(weights[0] if classes else weights.mean(0), axis)


# --- checks ---


def check_pixels(pixels: Tensor) -> Tensor:
    if pixels.dim() != 3 or pixels.shape[0] not in (1, 3) or not pixels.numel():
        raise ValueError(
            f"an image is (1 or 3 channels, rows, columns), not {tuple(pixels.shape)}; draw one at a time: pixels[0]"
        )
    shown = to_cpu_double(pixels)
    wrong = shown[~((shown >= 0) & (shown <= 1))]
    if len(wrong):
        raise ValueError(
            f"pixels lie between 0 and 1, but {float(wrong[0]):g} is among them; undo what was done to them, "
            "such as a division by their spread, or divide by 255"
        )
    return shown


def check_patches(weights: Tensor, pixels: Tensor) -> Tensor:
    """One weight for each patch, and no more patches than pixels."""
    if weights.dim() != 2 or not weights.numel():
        raise ValueError(f"weights of patches are (rows, columns), not {tuple(weights.shape)}")
    if weights.shape[0] > pixels.shape[1] or weights.shape[1] > pixels.shape[2]:
        sizes = (" x ".join(map(str, shape)) for shape in (weights.shape, pixels.shape[1:]))
        raise ValueError("{} patches do not fit an image of {} pixels".format(*sizes))
    assert_weights(weights)
    return to_cpu_double(weights)


def check_gate(name: str, weights: Tensor) -> Tensor:
    if float(weights.max()) > 1:
        raise ValueError(f"a gate lies between 0 and 1, but {name!r} has {float(weights.max()):g}")
    return weights


def shared_scale(maps: Sequence[Tensor]) -> ColourScale:
    return ColourScale("glow", 0.0, float(torch.stack([weights.max() for weights in maps]).max()) or 1.0, "weight")


def image_name(name: str) -> str:
    return truncate_label(visible_text(name), MAX_IMAGE_NAME_CELLS)
