"""The rows of a work in; a picture of how fast everybody was, a panel for each case, out."""

from typing import TYPE_CHECKING

from regard.cli.benches.measuring import Row, brief
from regard.cli.benches.work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, BAR, HEAD = 7.5, 0.34, 0.75  # inches


def plot(work: Work, rows: list[Row]) -> "Figure":
    from matplotlib.figure import Figure

    from regard.see.style import FRAME, INK, MUTED, SEEN, WORDS

    cases = list(dict.fromkeys(row.case for row in rows))
    shown = {case: [row for row in rows if row.case == case and row.speed is not None] for case in cases}
    heights = [HEAD + BAR * max(1, len(shown[case])) for case in cases]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.3), layout="constrained")
    panels = figure.subplots(len(cases), squeeze=False, height_ratios=heights)[:, 0]
    for axes, case in zip(panels, cases, strict=True):
        for place, row in enumerate(shown[case]):
            figure_, *ends = (work.figure(speed or 0.0) for speed in (row.speed, row.slowest, row.fastest))
            colour = SEEN if row.ours else FRAME if row.state == "right" else "none"
            error = [[max(0.0, figure_ - min(ends))], [max(0.0, max(ends) - figure_)]]
            axes.barh(place, figure_, 0.7, xerr=error, color=colour, edgecolor=FRAME, ecolor=MUTED)
            note = "WRONG" if row.state == "wrong" else f"we are {row.ratio:.2f}× as fast" if row.ratio else ""
            axes.text(max(ends), place, f"  {brief(figure_)}  {note}", va="center", color=INK, fontsize=8, family=WORDS)
        axes.set_yticks(range(len(shown[case])), [row.way for row in shown[case]], fontsize=8, family=WORDS)
        axes.invert_yaxis()
        axes.margins(x=0.3)
        axes.set_title(case, loc="left", fontsize=9, family=WORDS, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, colors=MUTED)
    better = "less is better" if work.unit == "ms" else "more is better"
    panels[-1].set_xlabel(f"{work.unit} ({better})", fontsize=8, family=WORDS, color=MUTED)
    return figure
