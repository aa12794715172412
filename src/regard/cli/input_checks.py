"""Checks of input texts: refuses those that are too long, warns of words out of the vocabulary."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import typer

from regard.data.files import chunks
from regard.data.tokenizers.base import UNK
from regard.decode.translate import WINDOW, unknown_source_words
from regard.tasks.translation.task import Translator

MAX_WARNINGS = 3  # lines whose out-of-vocabulary words are named
MAX_WORD_LETTERS = 40  # letters of a word that are shown


def refuse_long(encoded: Iterable[Sequence[int]], where: Callable[[int], str], max_length: int, first: int = 1) -> None:
    """`where` gives the location of a text by its number; texts are counted from `first`."""
    for number, ids in enumerate(encoded, first):
        if len(ids) > max_length:
            raise ValueError(
                f"{where(number)}: {len(ids):,} tokens; split it, or allow it with --max-length {len(ids)}"
            )


def check_texts(
    translator: Translator, texts: Iterable[str], where: Callable[[int], str], *, max_length: int, strict: bool = False
) -> Iterator[str]:
    """The same texts, window by window: all of a window are checked before its first is yielded."""
    first, unknown = 1, 0
    for some in chunks(texts, WINDOW):
        encoded = translator.source.encode_batch(some)
        refuse_long(encoded, where, max_length, first)
        if strict and [] in encoded:
            empty = where(first + encoded.index([]))
            raise ValueError(f"{empty}: the line is empty; remove it, or leave out --strict to keep it empty")
        for number, (text, ids) in enumerate(zip(some, encoded, strict=True), first):
            if UNK not in ids:
                continue
            unknown += 1
            if unknown <= MAX_WARNINGS:
                warn_unknown(unknown_source_words(translator, text)[0], where(number), strict=strict)
        yield from some
        first += len(some)
    if unknown > MAX_WARNINGS:
        typer.echo(f"regard: and {unknown - MAX_WARNINGS:,} more lines with out-of-vocabulary words", err=True)


def warn_unknown(word: str, where: str, *, strict: bool) -> None:
    what = f"{where}: {word if len(word) <= MAX_WORD_LETTERS else f'{word[:MAX_WORD_LETTERS]}…'!r} is out of vocabulary"
    if strict:
        raise ValueError(f"{what}; replace it, or leave out --strict to translate it as <unk>")
    typer.echo(f"regard: {what}; it is translated as <unk>", err=True)


def check_text(translator: Translator, text: str, where: str, *, max_length: int) -> None:
    """The same for one text."""
    for _ in check_texts(translator, [text], lambda _: where, max_length=max_length):
        pass
