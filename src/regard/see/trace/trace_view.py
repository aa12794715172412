"""Trace view: the attention weights of a trace between words, of one head or of all, for any task."""

from pathlib import Path

from regard.see.plots.attention_maps import HEADS_PER_ROW, to_cpu_double, word_labels
from regard.see.plots.panels import Axis, ColourScale, Panel, PanelRow, View, grid
from regard.see.trace.sites import AttentionSite
from regard.see.trace.trace import Trace, select_initial

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
