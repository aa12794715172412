"""Charts: curves over lengths and steps, neighbours, senses and latents; and what explanation methods find."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.graphs import Graph
from regard.models.graph import EdgeWeights
from regard.see.methods import (
    Explanation,
    HeadEffects,
    LogitContributions,
    LogitLens,
    NextTokens,
    ResidualStream,
    TokenMatrices,
    TokenScores,
    explain,
)
from regard.see.plots.attention_maps import assert_weights, to_cpu_double, word_labels
from regard.see.plots.panels import (
    Axis,
    BarList,
    ColourScale,
    Curves,
    NeighbourPlot,
    Panel,
    PanelRow,
    ScatterPlot,
    Series,
    View,
    format_number,
    grid,
    truncate_label,
    visible_text,
)
from regard.see.plots.text_views import text_strip
from regard.see.trace import Trace
from regard.tasks.protocol import ProgressBar, TokenAxis

MAX_MODEL_NAME_CELLS = 32  # terminal cells of a model's name
MAX_SCORE = 100.0

Point = tuple[float, float, int]  # length in words, score, how many sentences


@dataclass(frozen=True)
class LengthCurves:
    """For each model (name, points); a point is (length in words, score from 0 to 100, how many sentences).

    Examples:
        >>> gru, transformer = ((5, 40.0, 90), (10, 30.0, 40)), ((5, 42.0, 90), (10, 41.0, 40))
        >>> print(ascii(LengthCurves((("GRU", gru), ("Transformer", transformer)))))
        BLEU by sentence length in words; a full bar is 50
        <BLANKLINE>
            sentences  GRU                              Transformer
         5         90   40.0 ████████████████████        42.0 █████████████████████
        10         40   30.0 ███████████████             41.0 ████████████████████▌
    """

    curves: tuple[tuple[str, tuple[Point, ...]], ...]
    score: str = "BLEU"

    def __post_init__(self):
        if isinstance(self.curves, dict):
            raise ValueError("curves must be a tuple of (name, points), not a dict; use tuple(curves.items())")
        if not self.curves:
            raise ValueError("there are no curves to draw; give at least one (name, points)")
        names = [name for name, _ in self.curves]
        if len(set(names)) < len(names):
            raise ValueError(f"every curve needs a name of its own, not {', '.join(names)}")
        for name, points in self.curves:
            check_curve(name, points)


def check_curve(name: str, points: tuple[Point, ...]) -> None:
    if not points:
        raise ValueError(f"the curve {name!r} has no points; leave it out, or give (length, score, count) for each")
    for length, score, count in points:
        if not (isfinite(score) and 0 <= score <= MAX_SCORE):
            raise ValueError(
                f"{name!r} scores {score:g} at length {length:g}; a score lies between 0 and {MAX_SCORE:g}"
            )
        if count < 1:
            raise ValueError(f"{name!r} has {count} sentences of length {length:g}; leave a length without any out")
    lengths = [length for length, _, _ in points]
    if any(after <= before for before, after in pairwise(lengths)):
        raise ValueError(f"the lengths of {name!r} must rise, not {', '.join(f'{length:g}' for length in lengths)}")


def lengths_view(lengths: LengthCurves, *, title: str = "") -> View:
    """One line per model, and below each length how many sentences there are."""
    series = tuple(
        Series(truncate_label(visible_text(name), MAX_MODEL_NAME_CELLS), *map(tuple, zip(*points, strict=True)))
        for name, points in lengths.curves
    )
    curves = Curves(series, "sentence length in words", lengths.score, MAX_SCORE, "sentences")
    return View((PanelRow((curves,), heading=title),))


# --- validation curves ---


CURVE_MARGIN = 0.05  # of the range of values, above and below


def validation_view(metric: str, curves: Sequence[tuple[str, Sequence[tuple[int, float]]]], *, title: str = "") -> View:
    """One line per run through its validations: (name, ((step, value), ...)).

    Examples:
        >>> small, large = [(500, 2.4), (1000, 2.1)], [(500, 2.3), (1000, 1.8)]
        >>> view = validation_view("valid loss", [("small", small), ("large", large)])
        >>> view.rows[0].panels[0].series[1].y
        (2.3, 1.8)
    """
    for name, points in curves:
        if not points or not all(isfinite(value) for _, value in points):
            raise ValueError(f"the curve {name!r} needs at least one (step, value), all of them finite")
    values = [value for _, points in curves for _, value in points]
    margin = CURVE_MARGIN * ((max(values) - min(values)) or abs(max(values)) or 1.0)
    series = tuple(
        Series(truncate_label(visible_text(name), MAX_MODEL_NAME_CELLS), *map(tuple, zip(*points, strict=True)))
        for name, points in curves
    )
    chart = Curves(series, "step", metric, max(values) + margin, y_min=min(values) - margin)
    return View((PanelRow((chart,), heading=title),))


# --- nearest neighbours ---


MAX_NEIGHBOUR_CELLS = 20  # terminal cells of a neighbour
MAX_TITLE_CELLS = 44  # and of the sentence it was found in

Near = Sequence[tuple[str, float]]  # words and their likeness, the nearest first


def nearest_neighbours_view(
    static: Sequence[tuple[str, Near]], contextual: Sequence[tuple[str, Near]] = (), *, title: str = ""
) -> View:
    """Lists side by side, each under its title: a word before context, the sentences it stands in after.

    Examples:
        >>> near, in_context = [("lamp", 0.8), ("heavy", 0.7)], [("lamp", 0.9)]
        >>> print(ascii(nearest_neighbours_view([("light", near)], [("turn off the light", in_context)])))
        before context
        <BLANKLINE>
        light
         lamp 0.80 ████████████▊
        heavy 0.70 ███████████▎
        <BLANKLINE>
        in context
        <BLANKLINE>
        turn off the light
        lamp 0.90 ██████████████▍
    """
    if not static:
        raise ValueError("there are no neighbours to show; give at least one (title, [(word, likeness), ...])")
    heading = ": ".join(part for part in (title, "before context" if contextual else "") if part)
    rows = [PanelRow(tuple(map(neighbour_list, static)), heading=heading)]
    if contextual:
        rows.append(PanelRow(tuple(map(neighbour_list, contextual)), heading="in context"))
    return View(tuple(rows))


def neighbour_list(column: tuple[str, Near]) -> BarList:
    title, near = column
    if not near:
        raise ValueError(f"{title!r} has no neighbours; leave it out, or give (word, likeness) for each")
    for word, likeness in near:
        if not -1.001 <= likeness <= 1.001:
            raise ValueError(f"{word!r} is like {title!r} by {likeness:g}; a cosine lies between -1 and 1")
    names = tuple(truncate_label(visible_text(word), MAX_NEIGHBOUR_CELLS) for word, _ in near)
    return BarList(
        truncate_label(visible_text(title), MAX_TITLE_CELLS), names, tuple(float(likeness) for _, likeness in near)
    )


def senses_view(vectors: Float[Tensor, "n width"], meanings: Sequence[str], *, title: str = "") -> View:
    """The vectors of a word's occurrences on the two axes along which they differ most, coloured by what was meant.

    Examples:
        >>> vectors = torch.tensor([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.0], [-0.9, -0.1]])
        >>> view = senses_view(vectors, ["lamp", "lamp", "not heavy", "not heavy"], title="light")
        >>> view.rows[0].panels[0].names, view.rows[0].panels[0].x_label
        (('lamp (2)', 'not heavy (2)'), 'component 1: 100 % of the variance')
    """
    if isinstance(meanings, str) or len(meanings) != len(vectors):
        raise ValueError(f"{len(vectors)} occurrences need a meaning each, not {len(meanings)}")
    at, shares = principal_components(vectors)
    names = list(dict.fromkeys(meanings))
    across, up = (f"component {n + 1}: {100 * share:.0f} % of the variance" for n, share in enumerate(shares))
    labels = tuple(
        f"{truncate_label(visible_text(name), MAX_NEIGHBOUR_CELLS)} ({list(meanings).count(name)})" for name in names
    )
    return View(
        (
            PanelRow(
                (ScatterPlot("", at, tuple(names.index(meaning) for meaning in meanings), labels, across, up),), title
            ),
        )
    )


def principal_components(vectors: Float[Tensor, "n width"]) -> tuple[Float[Tensor, "n 2"], tuple[float, float]]:
    """Places on the first two principal components, and the share of the variance along each.

    An axis may point either way; its largest entry is made positive, so that a picture is always the same.
    """
    if vectors.dim() != 2 or min(vectors.shape) < 2:
        raise ValueError(f"a plane needs 2 vectors of width 2 or more, shape (n, width), not {tuple(vectors.shape)}")
    if not torch.isfinite(vectors).all():
        raise ValueError("vectors must be finite; nan or inf is among them")
    centred = to_cpu_double(vectors) - to_cpu_double(vectors).mean(0)
    _, spread, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * axes[:2].gather(1, axes[:2].abs().argmax(1, keepdim=True)).sign()
    variance = spread.square() / (float(spread.square().sum()) or 1.0)
    return centred @ axes.T, (float(variance[0]), float(variance[1]))


# --- latents ---


MAX_SENTENCE_CELLS = 44  # terminal cells of a sentence, and of a group's name
MAX_GROUPS = 7  # that a colour-blind reader can tell apart
LATENT_PLOT_SIDE = 3.4  # inches


def latents_view(
    vectors: Float[Tensor, "n ..."],
    labels: Sequence[str],
    texts: Sequence[str] = (),
    *,
    annotate: int = 8,
    title: str = "",
) -> View:
    """One point for each sentence, where its latent lies on the two axes along which they differ most.

    latents_view(encode_latents(model, sources), ["past", "present", ...], sentences)

    Args:
        vectors: a latent of any shape to a row.
        labels: by which points are coloured.
        texts: the sentences; so many of them as `annotate`, which lie far from each other, stand beside their points.
    """
    return plane_view(*principal_components(vectors.detach().flatten(1)), labels, texts, annotate=annotate, title=title)


def plane_view(
    points: Float[Tensor, "n 2"],
    shares: tuple[float, float],
    labels: Sequence[str],
    texts: Sequence[str] = (),
    *,
    annotate: int = 8,
    title: str = "",
) -> View:
    """As `latents_view`, from points that `principal_components` found, and the variance along each axis as a share."""
    for name, given in (("labels", labels), ("texts", texts)):
        missing = name == "texts" and not given
        if isinstance(given, str) or (len(given) != len(points) and not missing):
            raise ValueError(f"{len(points)} latents need as many {name}, a list of them, not {len(given)}")
    names = sorted(set(labels))
    if len(names) > MAX_GROUPS:
        raise ValueError(
            f"{len(names)} labels cannot be told apart by colour; put them into {MAX_GROUPS} groups or fewer"
        )
    shown = tuple(truncate_label(visible_text(name), MAX_SENTENCE_CELLS) for name in names)
    beside = tuple(
        (n, truncate_label(visible_text(texts[n]), MAX_SENTENCE_CELLS))
        for n in farthest_points(points, annotate if texts else 0)
    )
    across, up = (f"component {n + 1}: {100 * share:.0f} % of the variance" for n, share in enumerate(shares))
    groups = tuple(names.index(label) for label in labels)
    return View(
        (PanelRow((ScatterPlot("", points, groups, shown, across, up, beside),), heading=title),), side=LATENT_PLOT_SIDE
    )


def farthest_points(points: Float[Tensor, "n 2"], count: int) -> list[int]:
    """So many points that lie far from each other: first the one farthest out, then always the farthest from all."""
    away, found = (points - points.mean(0)).norm(dim=1), []
    for _ in range(min(count, len(points))):
        found.append(int(away.argmax()))
        near = (points - points[found[-1]]).norm(dim=1)
        away = near if len(found) == 1 else torch.minimum(away, near)
    return found


# --- neighbourhood of a graph node ---


MAX_NEIGHBOURS = 24  # neighbours that have room around a node
MAX_NODE_CELLS = 16  # terminal cells of a name, and of a label
PLOTS_PER_ROW = 2  # heads in a row


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """How much a node attended to whom, itself among them or not, in each head; and their labels, where known.

    Examples:
        >>> names, labels = ("Anna", "Ben", "Eva"), ("tennis", "chess", None)
        >>> print(ascii(Neighbourhood("Anna", names, torch.tensor([[0.2, 0.5, 0.3]]), labels)))
        Anna, tennis 0.20 ██████▍
                 Eva 0.30 █████████▋
          Ben, chess 0.50 ████████████████
    """

    name: str
    neighbours: tuple[str, ...]
    weights: Float[Tensor, "h seen"]
    labels: tuple[str | None, ...]

    def __post_init__(self):
        word_labels(self.neighbours, "seen")
        if self.weights.dim() != 2 or self.weights.shape[1] != len(self.neighbours) or not len(self.weights):
            raise ValueError(
                f"{len(self.neighbours)} neighbours need weights of shape (heads, {len(self.neighbours)}), "
                f"not {tuple(self.weights.shape)}"
            )
        if len(self.labels) != len(self.neighbours):
            raise ValueError(
                f"{len(self.labels)} labels for {len(self.neighbours)} nodes; give one each, None if unknown"
            )
        assert_weights(self.weights)

    @staticmethod
    def of(graph: Graph, attention: EdgeWeights, name: str, layer: str) -> "Neighbourhood":
        """Of one node, in one layer of a model."""
        around = attention.weights_of_node(graph.index(name))
        if layer not in around:
            there = ", ".join(around) or "none: the model has no graph attention"
            raise ValueError(f"no layer is called {layer!r}; there are {there}")
        numbers, weights = around[layer]
        seen = [graph.nodes[number] for number in numbers.tolist()]
        return Neighbourhood(name, tuple(n.name for n in seen), weights, tuple(n.label for n in seen))


def neighbourhood_view(hood: Neighbourhood, *, title: str = "") -> View:
    """One plot for each head, the same nodes at the same positions; beyond MAX_NEIGHBOURS the lightest are left out."""
    weights = to_cpu_double(hood.weights)
    ranked = sorted(range(len(hood.neighbours)), key=lambda n: -float(weights[:, n].sum()))
    others = [n for n in ranked if hood.neighbours[n] != hood.name]
    shown = sorted(others[:MAX_NEIGHBOURS], key=lambda n: (hood.labels[n] or "", others.index(n)))
    kinds = {label: number for number, label in enumerate(sorted({label or "" for label in hood.labels}))}
    own = next((n for n in ranked if hood.neighbours[n] == hood.name), None)
    centre = node_label(hood.name, None if own is None else hood.labels[own])
    plots = [
        NeighbourPlot(
            f"head {number}" if len(weights) > 1 else "",
            centre,
            tuple(node_label(hood.neighbours[n], hood.labels[n]) for n in shown),
            tuple(float(head[n]) for n in shown),
            (0 if own is None else kinds[hood.labels[own] or ""], *(kinds[hood.labels[n] or ""] for n in shown)),
            0.0 if own is None else float(head[own]),
            float(weights.max()) or 1.0,
        )
        for number, head in enumerate(weights)
    ]
    rows = grid(plots, PLOTS_PER_ROW)
    rest = weights[:, others[MAX_NEIGHBOURS:]].sum(1).mean()
    count, weight = len(others) - MAX_NEIGHBOURS, format_number(float(rest))
    left = f"{count} more neighbours weigh {weight} together, in the mean of the heads"
    return View(
        (PanelRow(rows[0].panels, heading=title), *rows[1:]), notes=(("", left),) * (len(others) > MAX_NEIGHBOURS)
    )


def node_label(name: str, label: str | None) -> str:
    name = truncate_label(visible_text(name), MAX_NODE_CELLS)
    return name if label is None else f"{name}, {truncate_label(visible_text(label), MAX_NODE_CELLS)}"


# --- explanation methods ---


MAX_PARTS = 24  # of what adds up to a logit, the largest


def token_scores_view(trace: Trace, found: TokenScores, what: str) -> View:
    """The tokens of each axis, on the shade of what they do to the prediction."""
    largest = max(float(each.abs().max()) for each in found.scores.values()) or 1.0
    scale = ColourScale("signed", -largest, largest, "added")
    rows = [
        PanelRow((text_strip(labels_of(trace, axis, len(scores)), to_cpu_double(scores), scale, None),), heading=axis)
        for axis, scores in found.scores.items()
    ]
    note = f"{what} {target_name(trace, found)}; together {found.total:+.3f}"
    if found.difference is not None:
        note += f", which is to be {found.difference:+.3f}"
    return View(tuple(rows), notes=(("", note),))


def target_name(trace: Trace, found: TokenScores | HeadEffects | LogitContributions | ResidualStream) -> str:
    target = found.target
    row = trace.predictions.rows[target.row]
    return f"{visible_text(target.name)!r}" + (f" at {visible_text(row)!r}" if row != target.name else "")


def labels_of(trace: Trace, axis: str, count: int) -> tuple[str, ...]:
    labels = trace.axes[axis].labels if axis in trace.axes else TokenAxis(tuple(map(str, range(count)))).labels
    return tuple(visible_text(label) for label in labels)


def head_effects_view(trace: Trace, found: HeadEffects, how: str) -> View:
    """A row for each attention, a column for each head."""
    width = max(len(each) for each in found.effects.values())
    values = torch.full((len(found.effects), width), torch.nan, dtype=torch.float64)
    for row, each in zip(values, found.effects.values(), strict=True):
        row[: len(each)] = each.double()
    there = ~values.isnan()
    axes = Axis("attention", tuple(truncate_label(name, 20) for name in found.effects)), Axis("head")
    panel = Panel("", values.nan_to_num(), ColourScale.of(values[there], "lost"), there, *axes)
    note = f"the log-probability of {target_name(trace, found)}, {found.log_probability:.3f} nats, loses this much"
    return View((PanelRow((panel,)),), notes=(("", f"{note} {how}"),))


def matrices_view(trace: Trace, found: TokenMatrices, note: str) -> View:
    """Matrices between tokens: shares of a row, or numbers about 0."""
    rows = []
    for name, values in found.matrices.items():
        total = to_cpu_double(values)
        down, across = (
            Axis(title, word_labels(labels_of(trace, axis, count), name))
            for title, axis, count in zip(("query", "key"), found.axes[name], total.shape, strict=True)
        )
        shares = bool((total >= 0).all()) and float(total.max()) <= 1 + 1e-6
        scale = ColourScale("weights", 0.0, 1.0, "share") if shares else ColourScale.of(total, "sum")
        rows.append(PanelRow((Panel("", total, scale, None, down, across),), heading=name))
    return View(tuple(rows), notes=(("", note),))


def lens_view(trace: Trace, lens: LogitLens, note: str) -> View:
    """A row for each layer, a column for each prediction: how probable what the model gives in the end was by then."""
    shares = lens.logits.double().softmax(-1)
    final = shares[-1].argmax(-1)
    values = shares[:, torch.arange(len(final)), final]
    first = [shares[n].argmax(-1).tolist() for n in range(len(lens.layers))]
    names = [" ".join(visible_text(trace.predictions.option_name(one)) for one in row) for row in first]
    down = Axis("layer", tuple(truncate_label(name, 20) for name in lens.layers))
    across = Axis("predicted", word_labels([visible_text(row) for row in trace.predictions.rows], "rows"))
    panel = Panel("", values, ColourScale("weights", 0.0, 1.0, "probability"), None, down, across)
    notes = [(layer, text) for layer, text in zip(lens.layers, names, strict=True)]
    return View((PanelRow((panel,)),), notes=(*notes, ("", note)))


def contributions_view(trace: Trace, found: LogitContributions) -> View:
    """What adds up to a logit, the largest parts first."""
    ranked = sorted(found.parts.items(), key=lambda part: -abs(part[1]))[:MAX_PARTS]
    values = torch.tensor([[value] for _, value in ranked], dtype=torch.float64)
    down = Axis("part", tuple(truncate_label(name, 30) for name, _ in ranked))
    panel = Panel("", values, ColourScale.of(values, "added"), None, down, Axis("added", ("",)))
    note = f"{len(ranked)} of {len(found.parts)} parts; all add up to {found.total:.3f}, the logit of "
    return View((PanelRow((panel,)),), notes=(("", f"{note}{target_name(trace, found)} is {found.logit:.3f}"),))


def next_tokens_view(trace: Trace, found: NextTokens, note: str) -> View:
    """The most probable tokens, with what the model gives them and what they are drawn with."""
    names = tuple(visible_text(name) for name, _, _ in found.tokens)
    rows = [BarList("the model's probability", names, tuple(share for _, share, _ in found.tokens))]
    if trace.request.sampling is not None:
        rows.append(BarList("drawn with", names, tuple(share for _, _, share in found.tokens)))
    where = visible_text(trace.predictions.rows[found.row])
    end = f"{note} at {where!r}; {found.kept} tokens can be drawn, entropy {found.entropy:.4f} nats"
    return View(tuple(PanelRow((row,)) for row in rows), notes=(("", end),))


def residual_stream_view(trace: Trace, found: ResidualStream, note: str) -> View:
    """The parts of each stack in their order: the norm of what each gave, and what it added to the logit."""
    rows = []
    for name, parts in found.stacks.items():
        down = Axis("part", tuple(truncate_label(part.name.removeprefix(f"{name}."), 30) for part in parts))
        norms = torch.tensor([[float(part.vector.norm())] for part in parts], dtype=torch.float64)
        panels = [
            Panel(
                "norm", norms, ColourScale("weights", 0.0, float(norms.max()), "norm"), None, down, Axis("norm", ("",))
            )
        ]
        added = torch.tensor([[part.added or 0.0] for part in parts], dtype=torch.float64)
        there = torch.tensor([[part.added is not None] for part in parts])
        if there.any():
            panels.append(
                Panel("added", added, ColourScale.of(added[there], "added"), there, down, Axis("added", ("",)))
            )
        rows.append(PanelRow(tuple(panels), heading=f"{name} at position {found.positions[name]}"))
    lines = [
        (part.name, f"{float(part.vector.norm()):.4g}" + ("" if part.added is None else f", added {part.added:+.4f}"))
        for parts in found.stacks.values()
        for part in parts
    ]
    total = "" if found.contributions is None else f"; with biases all add up to {found.contributions.total:.3f}"
    why = f"; {found.note}" if found.note else ""
    end = f"{note}; the logit of {target_name(trace, found)} is {found.logit:.3f}{total}{why}"
    return View(tuple(rows), notes=(*lines, ("", end)))


METHOD_NOTES = {
    "heads": "without each head",
    "mean-heads": "where each head gives its mean over the queries",
    "integrated-gradients": "what each token adds to the logit of",
    "gradient-input": "to first order, what each token adds to the logit of",
    "leave-one-out": "without each token, what is lost of the log-probability of",
    "rollout": "attention of all layers, rolled out; rows sum to 1",
    "flow": "the largest flow through the attention of all layers",
    "value-zeroing": "how much a row's state depends on the value of a column; rows sum to 1",
    "value-norms": "the norm of what arrives of each value, all heads",
    "attention-gradient": "to first order, what each weight adds to the logit, all heads",
    "lens": "what each layer would have predicted, were it the last",
    "contributions": "what each part adds to the logit",
    "next-tokens": "the most probable tokens",
    "residual-stream": "the norm of what each part gave, and what it added to the logit",
}
"""What the numbers of each method are, by its name in `regard.see.methods.METHODS`.

Examples:
    >>> METHOD_NOTES["rollout"]
    'attention of all layers, rolled out; rows sum to 1'
"""


def method_view(trace: Trace, method: str, row: int, progress: ProgressBar) -> View:
    """What a method, by name, finds of a trace's prediction."""
    return explanation_view(trace, method, explain(trace, method, row, progress))


def explanation_view(trace: Trace, method: str, found: Explanation) -> View:
    """What a method, by name, has found."""
    note = METHOD_NOTES[method]
    match found:
        case HeadEffects():
            return head_effects_view(trace, found, note)
        case TokenScores():
            return token_scores_view(trace, found, note)
        case TokenMatrices():
            return matrices_view(trace, found, note)
        case LogitLens():
            return lens_view(trace, found, note)
        case LogitContributions():
            return contributions_view(trace, found)
        case NextTokens():
            return next_tokens_view(trace, found, note)
        case ResidualStream():
            return residual_stream_view(trace, found, note)
