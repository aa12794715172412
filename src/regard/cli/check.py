"""Texts to translate in; nothing out: what cannot be translated is refused, what can only be guessed is said."""

from collections.abc import Callable, Sequence

import typer

from regard.decode.texts import unknown
from regard.tasks.translate import Translator
from regard.text.vocabulary import UNK

SHOWN = 3  # lines whose unknown words are named
WIDE = 40  # characters of a word that are shown


def refuse_long(encoded: Sequence[Sequence[int]], where: Callable[[int], str], longest: int) -> None:
    """`where` says where the text of a number stands, counted from 1."""
    for number, ids in enumerate(encoded, 1):
        if len(ids) > longest:
            raise ValueError(f"{where(number)}: {len(ids):,} tokens; split it, or allow it with --longest {len(ids)}")


def check(
    translator: Translator, texts: Sequence[str], where: Callable[[int], str], *, longest: int, strict: bool = False
) -> None:
    encoded = translator.source.encode_all(texts)
    refuse_long(encoded, where, longest)
    if strict and [] in encoded:
        empty = where(encoded.index([]) + 1)
        raise ValueError(f"{empty}: the line is empty; remove it, or leave out --strict to keep it empty")
    guessed = [number for number, ids in enumerate(encoded, 1) if UNK in ids]
    for number in guessed[:SHOWN]:
        word = unknown(translator, texts[number - 1])[0]
        what = f"{where(number)}: {word if len(word) <= WIDE else f'{word[:WIDE]}…'!r} is unknown to the model"
        if strict:
            raise ValueError(f"{what}; write it otherwise, or leave out --strict to have it guessed")
        typer.echo(f"regard: {what}; its translation is a guess", err=True)
    if len(guessed) > SHOWN:
        typer.echo(f"regard: and {len(guessed) - SHOWN:,} more with unknown words", err=True)
