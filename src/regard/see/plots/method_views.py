"""Views of explanation methods: what tokens, heads and layers do to a prediction, drawn; and the methods by name."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from regard.see.methods import (
    HeadEffects,
    LogitContributions,
    LogitLens,
    TokenScores,
    ablate_heads,
    attention_flow,
    attention_rollout,
    attention_times_gradient,
    attribute_tokens,
    gradient_times_input,
    leave_one_out,
    logit_contributions,
    logit_lens,
    prediction_target,
    self_attention_stack,
    value_weighted,
    value_zeroing,
)
from regard.see.plots.attention_maps import to_cpu_double, word_labels
from regard.see.plots.panels import Axis, ColourScale, Panel, PanelRow, View, truncate_label, visible_text
from regard.see.plots.text_views import text_strip
from regard.see.trace import Trace
from regard.tasks.protocol import ProgressBar, TokenAxis

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


def target_name(trace: Trace, found: TokenScores | HeadEffects | LogitContributions) -> str:
    target = found.target
    row = trace.predictions.rows[target.row]
    return f"{visible_text(target.name)!r}" + (f" at {visible_text(row)!r}" if row != target.name else "")


def labels_of(trace: Trace, axis: str, count: int) -> tuple[str, ...]:
    labels = trace.axes[axis].labels if axis in trace.axes else TokenAxis(tuple(map(str, range(count)))).labels
    return tuple(visible_text(label) for label in labels)


def head_effects_view(trace: Trace, found: HeadEffects) -> View:
    """A row for each attention, a column for each head."""
    width = max(len(each) for each in found.effects.values())
    values = torch.full((len(found.effects), width), torch.nan, dtype=torch.float64)
    for row, each in zip(values, found.effects.values(), strict=True):
        row[: len(each)] = each.double()
    there = ~values.isnan()
    axes = Axis("attention", tuple(truncate_label(name, 20) for name in found.effects)), Axis("head")
    panel = Panel("", values.nan_to_num(), ColourScale.of(values[there], "lost"), there, *axes)
    note = f"the log-probability of {target_name(trace, found)}, {found.log_probability:.3f} nats, loses this much"
    return View((PanelRow((panel,)),), notes=(("", f"{note} without each head"),))


def square_view(trace: Trace, axis: str, matrices: Mapping[str, Tensor], note: str) -> View:
    """Matrices of the tokens of an axis."""
    labels = word_labels(labels_of(trace, axis, len(next(iter(matrices.values())))), axis)
    down, across = Axis("query", labels), Axis("key", labels)
    panels = [
        Panel(title, to_cpu_double(values), ColourScale("weights", 0.0, 1.0, "share"), None, down, across)
        for title, values in matrices.items()
    ]
    return View(tuple(PanelRow((panel,)) for panel in panels), notes=(("", note),))


def site_view(trace: Trace, matrices: Mapping[str, Tensor], note: str) -> View:
    """Of each attention the sum over its heads."""
    rows = []
    for name, values in matrices.items():
        queries, keys = (word_labels([visible_text(x) for x in axis.labels], name) for axis in trace.axes_of(name))
        total = to_cpu_double(values.sum(0))
        axes = Axis("query", queries), Axis("key", keys)
        rows.append(PanelRow((Panel("", total, ColourScale.of(total, "sum"), None, *axes),), heading=name))
    return View(tuple(rows), notes=(("", note),))


def lens_view(trace: Trace, lens: LogitLens) -> View:
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
    return View((PanelRow((panel,)),), notes=(*notes, ("", "what each layer would have predicted, were it the last")))


def contributions_view(trace: Trace, found: LogitContributions) -> View:
    """What adds up to a logit, the largest parts first."""
    ranked = sorted(found.parts.items(), key=lambda part: -abs(part[1]))[:MAX_PARTS]
    values = torch.tensor([[value] for _, value in ranked], dtype=torch.float64)
    down = Axis("part", tuple(truncate_label(name, 30) for name, _ in ranked))
    panel = Panel("", values, ColourScale.of(values, "added"), None, down, Axis("added", ("",)))
    note = f"{len(ranked)} of {len(found.parts)} parts; all add up to {found.total:.3f}, the logit of "
    return View((PanelRow((panel,)),), notes=(("", f"{note}{target_name(trace, found)} is {found.logit:.3f}"),))


def axis_of(trace: Trace) -> str:
    return self_attention_stack(trace)[0].site_name.keys


def method_view(trace: Trace, method: str, row: int, progress: ProgressBar) -> View:
    """What a method, by name, finds of a trace's prediction."""
    if method not in METHODS:
        raise ValueError(f"no method is called {method!r}; there are {', '.join(METHODS)}")
    prediction_target(trace, row)
    return METHODS[method](trace, row, progress)


METHODS: dict[str, Callable[[Trace, int, ProgressBar], View]] = {
    "heads": lambda trace, row, progress: head_effects_view(trace, ablate_heads(trace, row, progress=progress)),
    "mean-heads": lambda trace, row, progress: head_effects_view(
        trace, ablate_heads(trace, row, by="mean", progress=progress)
    ),
    "integrated-gradients": lambda trace, row, progress: token_scores_view(
        trace, attribute_tokens(trace, row, progress=progress), "what each token adds to the logit of"
    ),
    "gradient-input": lambda trace, row, progress: token_scores_view(
        trace, gradient_times_input(trace, row), "to first order, what each token adds to the logit of"
    ),
    "leave-one-out": lambda trace, row, progress: token_scores_view(
        trace,
        leave_one_out(trace, row, progress=progress),
        "without each token, what is lost of the log-probability of",
    ),
    "rollout": lambda trace, row, progress: square_view(
        trace, axis_of(trace), {"": attention_rollout(trace)}, "attention of all layers, rolled out; rows sum to 1"
    ),
    "flow": lambda trace, row, progress: square_view(
        trace, axis_of(trace), {"": attention_flow(trace)}, "the largest flow through the attention of all layers"
    ),
    "value-zeroing": lambda trace, row, progress: square_view(
        trace,
        axis_of(trace),
        value_zeroing(trace, progress=progress),
        "how much a row's state depends on the value of a column; rows sum to 1",
    ),
    "value-norms": lambda trace, row, progress: site_view(
        trace,
        {name: value_weighted(trace, name) for name in trace.attention_names},
        "the norm of what arrives of each value, all heads",
    ),
    "attention-gradient": lambda trace, row, progress: site_view(
        trace, attention_times_gradient(trace, row), "to first order, what each weight adds to the logit, all heads"
    ),
    "lens": lambda trace, row, progress: lens_view(trace, logit_lens(trace, progress=progress)),
    "contributions": lambda trace, row, progress: contributions_view(trace, logit_contributions(trace, row)),
}
"""The methods that explain a prediction, by name; `regard look --method` takes one.

Examples:
    >>> view = METHODS["heads"](trace_model("run", "the cat sleeps", target="le chat dort"), 0, no_progress)
    >>> view.rows[0].panels[0].values.shape
    torch.Size([6, 4])
"""
