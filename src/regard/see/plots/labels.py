"""Labels: tokens and numbers as short, printable text."""

import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

MAX_LABEL_CELLS = 14  # cells of a terminal; longer labels end in an ellipsis
NEWLINE_SIGN = "⏎"
VISIBLE_CONTROLS = {"\n": NEWLINE_SIGN, "\r": NEWLINE_SIGN, "\t": "⇥"}


def visible_text(token: str) -> str:
    """What a token looks like when even its blanks must be seen. Never a line break, never an invalid character."""
    if not token.strip(" "):
        return "␣" * len(token) or "∅"
    return "".join(VISIBLE_CONTROLS.get(sign, "\ufffd" if is_unprintable(sign) else sign) for sign in token)


def is_unprintable(sign: str) -> bool:
    """Control characters and halves of surrogate pairs, which no file of text may hold, and noncharacters."""
    return unicodedata.category(sign) in ("Cc", "Cs") or ord(sign) & 0xFFFE == 0xFFFE


def truncate_label(label: str, cells: int = MAX_LABEL_CELLS) -> str:
    return label if cell_len(label) <= cells else set_cell_size(label, cells - 1).rstrip() + "…"


def make_labels(tokens: Sequence[str], *, wanted: int, name: str) -> tuple[str, ...]:
    """One short label for each of `wanted` tokens."""
    if isinstance(tokens, str):
        raise ValueError(f"{name} must be a list of strings, not the one string {tokens!r}; use {name}.split()")
    if len(tokens) != wanted:
        raise ValueError(f"{len(tokens)} {name} for {wanted} rows or columns of weights; give one for each")
    return tuple(truncate_label(visible_text(str(token))) for token in tokens)


# --- numbers ---


def format_number(value: float) -> str:
    """Two digits after the point, and none where the number is whole: 0 is exactly 0, what is almost 0 is <.01."""
    if value == 0:
        return "0"
    if abs(value) < 0.005:
        return "<.01" if value > 0 else ">-.01"
    if value == round(value) and abs(value) < 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.3g}"
