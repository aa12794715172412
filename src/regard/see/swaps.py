"""A text and edits in; the text with its words swapped, as a model is to read it, out."""

import re
from dataclasses import replace

from regard.see.edits import Edits


def swapped(text: str, edits: Edits) -> str:
    """The text with its words swapped; the blanks between them stay."""
    spans = [found.span() for found in re.finditer(r"\S+", text)]
    for one in sorted(edits.swaps, key=lambda swap: -swap.word):
        if one.word >= len(spans):
            raise ValueError(f"there is no word {one.word} to swap; words are counted from 0 to {len(spans) - 1}")
        start, stop = spans[one.word]
        text = text[:start] + one.to + text[stop:]
    return text


def refuse_swaps(edits: Edits, what: str) -> None:
    if edits.swaps:
        raise ValueError(f"{edits.swaps[0]}: {what} has no words to swap; leave it out")


def without_swaps(edits: Edits) -> Edits:
    """The same once the words are swapped."""
    return replace(edits, swaps=())
