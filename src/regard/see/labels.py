"""Tokens in; labels that can be read beside a picture out, in a window or a terminal."""

import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

LONGEST = 14  # cells of a terminal; longer labels end in an ellipsis
BREAK = "⏎"
SPELLED = {"\n": BREAK, "\r": BREAK, "\t": "⇥"}


def readable(token: str) -> str:
    """What a token looks like when even its blanks must be seen. Never a line break, never an invalid character."""
    if not token.strip(" "):
        return "␣" * len(token) or "∅"
    return "".join(SPELLED.get(sign, "\ufffd" if unseen(sign) else sign) for sign in token)


def unseen(sign: str) -> bool:
    """Control characters and halves of surrogate pairs, which no file of text may hold, and noncharacters."""
    return unicodedata.category(sign) in ("Cc", "Cs") or ord(sign) & 0xFFFE == 0xFFFE


def short(label: str, cells: int = LONGEST) -> str:
    return label if cell_len(label) <= cells else set_cell_size(label, cells - 1).rstrip() + "…"


def labelled(tokens: Sequence[str], *, wanted: int, name: str) -> tuple[str, ...]:
    """One short label for each of `wanted` tokens."""
    if isinstance(tokens, str):
        raise ValueError(f"{name} must be a list of strings, not the one string {tokens!r}; use {name}.split()")
    if len(tokens) != wanted:
        raise ValueError(f"{len(tokens)} {name} for {wanted} rows or columns of weights; give one for each")
    return tuple(short(readable(str(token))) for token in tokens)
