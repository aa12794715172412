"""Texts to translate in; the same out: what cannot be translated is refused, what can only be guessed is said."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import typer

from regard.decode.texts import WINDOW, unknown
from regard.tasks.translate import Translator
from regard.text.files import chunks
from regard.text.vocabulary import UNK

SHOWN = 3  # lines whose unknown words are named
WIDE = 40  # characters of a word that are shown


def refuse_long(encoded: Iterable[Sequence[int]], where: Callable[[int], str], longest: int, first: int = 1) -> None:
    """`where` says where the text of a number stands; they are counted from `first`."""
    for number, ids in enumerate(encoded, first):
        if len(ids) > longest:
            raise ValueError(f"{where(number)}: {len(ids):,} tokens; split it, or allow it with --longest {len(ids)}")


def checked(
    translator: Translator, texts: Iterable[str], where: Callable[[int], str], *, longest: int, strict: bool = False
) -> Iterator[str]:
    """The same texts, window by window: what stands in one is looked at before the first of it is passed on."""
    first, guessed = 1, 0
    for some in chunks(texts, WINDOW):
        encoded = translator.source.encode_all(some)
        refuse_long(encoded, where, longest, first)
        if strict and [] in encoded:
            empty = where(first + encoded.index([]))
            raise ValueError(f"{empty}: the line is empty; remove it, or leave out --strict to keep it empty")
        for number, (text, ids) in enumerate(zip(some, encoded, strict=True), first):
            if UNK not in ids:
                continue
            guessed += 1
            if guessed <= SHOWN:
                say_unknown(unknown(translator, text)[0], where(number), strict=strict)
        yield from some
        first += len(some)
    if guessed > SHOWN:
        typer.echo(f"regard: and {guessed - SHOWN:,} more with unknown words", err=True)


def say_unknown(word: str, where: str, *, strict: bool) -> None:
    what = f"{where}: {word if len(word) <= WIDE else f'{word[:WIDE]}…'!r} is unknown to the model"
    if strict:
        raise ValueError(f"{what}; write it otherwise, or leave out --strict to have it guessed")
    typer.echo(f"regard: {what}; its translation is a guess", err=True)


def check(translator: Translator, text: str, where: str, *, longest: int) -> None:
    """The same of one text."""
    for _ in checked(translator, [text], lambda _: where, longest=longest):
        pass
