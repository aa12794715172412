"""The weights of every layer and head in; small pictures of them, a row for each layer, out."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.see.alignment import END, WRITTEN, assert_weights, plain, words
from regard.see.panel import Axis, Panel, Row, Scale, View, grid

ABREAST = 4  # heads in a row


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


def self_view(
    sentence: Sequence[str],
    layers: Mapping[str, Sequence[Float[Tensor, "t t"]]],
    *,
    causal: bool = False,
    visible: Bool[Tensor, "t t"] | None = None,
) -> View:
    """Where each word of a sentence looked among its own words. What is hidden (later words if `causal`) is not 0."""
    if not any(len(heads) for heads in layers.values()):
        raise ValueError("there is no head to show; a model without attention has none")
    labels = words(sentence, "words")
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
                plain(self_weights(weights, seen, f"{layer}, head {number}")),
                Scale("weights", 0.0, 1.0, "weight"),
                None if seen.all() else seen,
                Axis("looks", labels),
                Axis("at", labels),
                least=WRITTEN,
            )
            for number, weights in enumerate(heads)
        ]
        for n, row in enumerate(grid(panels, ABREAST) if panels else ()):
            rows.append(Row(row.panels, heading="" if n else layer))
    return View(tuple(rows))


def self_weights(weights: Tensor, seen: Tensor, name: str) -> Tensor:
    """Weights of words on words, none of them on what is hidden."""
    if weights.shape != seen.shape:
        raise ValueError(f"{name}: {len(seen)} words need weights {tuple(seen.shape)}, not {tuple(weights.shape)}")
    assert_weights(weights)
    wrong = (~seen & (weights.cpu() > 0)).nonzero().tolist()
    if wrong:
        i, j = wrong[0]
        raise ValueError(f"{name}: word {i} looked at word {j}, which was to be hidden from it; show it, or correct it")
    return weights
