"""What somebody typed into the worked example in; matrices that fit together, or a sentence with the remedy, out."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from regard.attention.pattern import Before, Causal, Full, Pattern
from regard.attention.places import Places
from regard.attention.worked import W_KEY, W_QUERY, W_VALUE, Matrix, X, tensor

LARGEST = 1000.0  # a number; products of three stay readable, and far from overflow
WIDEST = 8  # rows and columns

PATTERNS: dict[str, Pattern] = {"full": Full(), "causal": Causal(), "before": Before()}

# The lectures give x and one head. The second head is ours: the same with the keys' sign turned, so that it likes what
# the first dislikes. The output matrix keeps the first head as it is and sums up the second in the last column.
GIVEN: dict[str, Matrix] = {
    "x": X,
    "wq": W_QUERY,
    "wk": W_KEY,
    "wv": W_VALUE,
    "wq2": W_QUERY,
    "wk2": [[-float(number) for number in row] for row in W_KEY],
    "wv2": W_VALUE,
    "wo": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 1]],
    "wg": [[1, 0, 0], [0, 0, 1], [0, 1, 0]],
    "wa": [[0.5, 0, 0], [0, 0.5, 0], [0, 0, 0.5]],
    "ua": [[0.5, -0.5, 0], [0, 0.5, -0.5], [-0.5, 0, 0.5]],
    "va": [[2, 1, 1]],
}


@dataclass(frozen=True, eq=False)
class Given:
    """The inputs of the example, each as the lectures have it unless it was changed."""

    matrices: dict[str, Tensor]
    visible: Tensor
    mask: str  # the name of a pattern, or "own"
    scaled: bool

    def __getitem__(self, name: str) -> Tensor:
        return self.matrices[name]


def given(asked: object) -> Given:
    if not isinstance(asked, Mapping):
        raise ValueError(
            f"the example takes names with their numbers, such as {{'x': [[1, 0], [0, 2]]}}, not {kind(asked)}"
        )
    known = (*GIVEN, "mask", "scaled")
    if unknown := [name for name in asked if name not in known]:
        raise ValueError(f"the example has no {unknown[0]!r:.40}; it has {', '.join(known)}")
    matrices = {name: read(name, asked.get(name, default)) for name, default in GIVEN.items()}
    refuse_misfits(matrices)
    if not isinstance(scaled := asked.get("scaled", True), bool):
        raise ValueError(f"scaled is {scaled!r:.40}; it is true (divide by √d) or false (as the second lecture does)")
    visible, mask = sight(asked.get("mask", "full"), len(matrices["x"]))
    return Given(matrices, visible, mask, scaled)


def read(name: str, rows: Any) -> Tensor:
    """Numbers in rows of one length."""
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise ValueError(f"{name} is {kind(rows)}; write it as rows of numbers, such as [[1, 0], [0, 2]]")
    widths = [len(row) for row in rows]
    if not rows or not min(widths):
        raise ValueError(f"{name} is empty; it needs at least one row with one number")
    if len(set(widths)) > 1:
        raise ValueError(f"the rows of {name} have {', '.join(map(str, widths[:WIDEST]))} numbers; give each as many")
    tallest = 2 * WIDEST if name == "wo" else WIDEST  # it takes two heads
    if len(rows) > tallest or widths[0] > WIDEST:
        raise ValueError(
            f"{name} is {len(rows)} × {widths[0]}; at most {tallest} × {WIDEST} can be followed by eye: give fewer"
        )
    for i, row in enumerate(rows, 1):
        for j, number in enumerate(row, 1):
            refuse_strange(f"{name}, row {i}, column {j}", number)
    return tensor(rows)


def refuse_strange(where: str, number: Any) -> None:
    if isinstance(number, str) and not number.strip():
        raise ValueError(f"{where} is empty; write a number such as 0.5")
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError(f"{where} is {number!r:.40}, which is no number; write one such as 0.5")
    if isinstance(number, float) and not isfinite(number):
        raise ValueError(f"{where} is {number}; write a finite number such as 0.5")
    if abs(number) > LARGEST:
        shown = f"{number:.6g}" if abs(number) < 1e300 else "far too large"
        raise ValueError(f"{where} is {shown}; keep to numbers from -{LARGEST:.0f} to {LARGEST:.0f}")


def refuse_misfits(matrices: dict[str, Tensor]) -> None:
    """Every matrix must have the rows and columns that x, wq and wa ask for."""
    model, head = matrices["x"].shape[1], matrices["wq"].shape[1]
    hidden = matrices["wa"].shape[0]
    each = dict.fromkeys(("wq", "wk", "wv", "wq2", "wk2", "wv2"), (model, head))
    each |= {"wo": (2 * head, model), "wg": (head, head), "wa": (hidden, head), "ua": (hidden, head), "va": (1, hidden)}
    for name, shape in each.items():
        if (found := tuple(matrices[name].shape)) != shape:
            raise ValueError(
                f"{name} is {found[0]} × {found[1]} and should be {shape[0]} × {shape[1]}: "
                f"x has {model} columns, wq {head}, wa {hidden} rows; change them together"
            )


def sight(mask: Any, tokens: int) -> tuple[Tensor, str]:
    """Who may look at whom: by the name of a pattern, or cell by cell, 1 = may look."""
    if isinstance(mask, str):
        if mask not in PATTERNS:
            raise ValueError(f"no mask is called {mask!r:.40}; there are {', '.join(PATTERNS)}, or rows of 1 and 0")
        at = torch.arange(tokens)
        return Places(at, at, 0).cells(1, 1).visible(PATTERNS[mask])[0, 0], mask
    whole = isinstance(mask, list | tuple) and len(mask) == tokens
    if not whole or not all(isinstance(row, list | tuple) and len(row) == tokens for row in mask):
        raise ValueError(
            f"the mask must be {tokens} rows of {tokens}, one for each token of x; 1 = may look, 0 = hidden"
        )
    if strange := [cell for row in mask for cell in row if cell not in (0, 1)]:
        raise ValueError(f"the mask holds {strange[0]!r:.40}; 1 = may look, 0 = hidden")
    return torch.tensor([[bool(cell) for cell in row] for row in mask]), "own"


def kind(thing: object) -> str:
    """For a sentence: what it is, without repeating all of it."""
    return "nothing" if thing is None else f"{thing!r:.40}"
