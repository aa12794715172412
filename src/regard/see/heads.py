"""The weights of every layer and head in; small pictures of them, a row for each layer, out."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from regard.see.alignment import END, plain, words
from regard.see.panel import Axis, Panel, Row, Scale, View


def heads_view(source: Sequence[str], target: Sequence[str], layers: Mapping[str, Sequence[Tensor]]) -> View:
    """Each weight matrix is (target, source) or (target, source and its end); all on one scale from 0 to 1."""
    if not any(layers.values()):
        raise ValueError("there is no head to show; a model without attention has none")
    across, down = words(source, "source"), Axis("target", words(target, "target"))
    rows = []
    for layer, heads in layers.items():
        panels = []
        for number, weights in enumerate(heads):
            end = (END,) if weights.shape[1] > len(across) else ()
            scale = Scale("weights", 0.0, 1.0, "weight")
            panels.append(
                Panel(f"head {number}", plain(weights), scale, down=down, across=Axis("source", across + end))
            )
        rows.append(Row(tuple(panels), heading=layer))
    return View(tuple(rows))
