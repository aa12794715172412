"""Lines of a file, of a pipe or typed one by one in; their translations out, a line for a line."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, islice, tee
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    LONGEST,
    BeamSize,
    Checkpoint,
    CoveragePenalty,
    Device,
    LengthPenalty,
    Longest,
    Model,
    Out,
    Texts,
    device_of,
    files_for,
    search_of,
    texts_in,
    tracked,
)

if TYPE_CHECKING:
    from regard.decode.alignment import Head
    from regard.decode.model import Model as Prepared
    from regard.decode.search import Search
    from regard.decode.texts import Translation
    from regard.decode.walk import Walker
    from regard.tasks.translate import Translator


def translate(
    model: Model,
    file: Texts = None,
    out: Out = None,
    beam: BeamSize = 5,
    length_penalty: LengthPenalty = 1.0,
    coverage_penalty: CoveragePenalty = 0.0,
    best: Annotated[int, typer.Option(min=1, help="So many translations of each line, each with its score.")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Draw translations instead of searching for them.")] = False,  # noqa: FBT002
    temperature: Annotated[float | None, typer.Option(help="For --sample: below 1 is tamer, above 1 wilder.")] = None,
    top_k: Annotated[int | None, typer.Option(help="For --sample: only so many tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="For --sample: only tokens up to this probability.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="For --sample.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write each log-probability before its text.")] = False,  # noqa: FBT002
    align: Annotated[
        Path | None, typer.Option(help="Write here which word was translated by which, as 0-0 1-2 on every line.")
    ] = None,
    longest: Longest = LONGEST,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse empty lines and unknown words.")] = False,  # noqa: FBT002
    precision: Annotated[
        str,
        typer.Option(
            help="float32; faster: bfloat16 on a GPU, int8 on a CPU. A word in a hundred may differ; in int8, beside "
            "other lines, a score by up to 0.1."
        ),
    ] = "float32",
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Translate a file line by line; without one, what you type (with --beam 1 or --sample word by word).

    Example: `regard translate run text.en --out text.de`

    Example: `echo "the black cat ate the mouse" | regard translate run -`

    Example: `regard translate run "the black cat ate the mouse"`

    Example: `regard translate run text.en --best 3 --scores`

    Example: `regard translate run text.en --out text.de --align text.links`

    Example: `regard translate run --sample --temperature 0.7`
    """
    from regard.decode import prepare
    from regard.tasks.translate import Translator

    out, align = files_for(out=out, align=align)
    if align and (best > 1 or file is None):
        raise ValueError("--align is for a file with one translation of each line; leave out --best, or give a file")
    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    search = drawing(drawn, best) if sample else search_of(beam, length_penalty, coverage_penalty, best)
    if stray := [name for name, value in drawn.items() if value is not None and not sample]:
        raise ValueError(f"--{stray[0].replace('_', '-')} is for drawing translations; add --sample")
    scores = scores or best > 1
    if best > 1 and not sample and (length_penalty or coverage_penalty):
        typer.echo(
            "regard: the best come first by log-probability and penalties; the log-probabilities before them may be in "
            "another order, and are in this one with --length-penalty 0",
            err=True,
        )
    if file is None and sys.stdin.isatty():
        converse(
            Translator.load(model, device_of(device), checkpoint), search, longest, scores=scores, precision=precision
        )
        return
    from regard.cli.check import checked
    from regard.text.files import whole

    given = texts_in(file)
    translator = Translator.load(model, device_of(device), checkpoint)
    texts = checked(translator, given.texts, given.where, longest=longest, strict=strict)
    prepared = prepare(translator.model, precision)

    def search_in(texts: Iterable[str]) -> "Iterator[list[Translation]]":
        return in_order(translator, texts, search, prepared)

    with whole(align) if align else nullcontext() as links:
        found = aligned(translator, model, texts, search_in, links) if links else search_in(texts)
        lines = (said(one, scores=scores) for these in found for one in (these * best)[:best])  # an empty one has one
        if out or not sys.stdout.isatty():  # on a terminal the lines themselves show how far it is
            lines = tracked(lines, "translating", lambda: (given.count() or 0) * best or None)
        write(lines, out)


def aligned(
    translator: "Translator",
    model: Path,
    texts: Iterator[str],
    search_in: "Callable[[Iterator[str]], Iterator[list[Translation]]]",
    file: IO[bytes],
) -> "Iterator[list[Translation]]":
    """The translations; which word was translated by which is written down as they pass."""
    from regard.decode.reading import links

    heads, texts = heads_for(translator, model, texts)
    read, again = tee(texts)  # it holds what one has read and the other has not: a window
    for text, these in zip(again, search_in(read), strict=True):
        file.write(f"{links(translator, text, these[0].text, heads)}\n".encode())
        yield these


def heads_for(translator: "Translator", model: Path, texts: Iterator[str]) -> "tuple[Sequence[Head], Iterator[str]]":
    """The heads that align, and the texts again, of which the first may have been read to tell."""
    from regard.cli.heads import heads_by_texts
    from regard.decode.reading import kept_heads
    from regard.decode.texts import WINDOW

    if heads := kept_heads(model):
        return heads, texts
    first = list(islice(texts, WINDOW))
    if not (heads := heads_by_texts(translator, first)):
        raise ValueError(f"--align: {model} names no heads that align; a model without attention has none")
    return heads, chain(first, texts)


def write(lines: Iterable[str], out: Path | None, done: str = "translated") -> None:
    from regard.text.files import whole

    if out is None:
        stdout = sys.stdout  # a progress bar, once it is begun, takes its place
        for line in lines:
            typer.echo(line, file=stdout)
        return
    with whole(out) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
    typer.echo(f"{done}: {out}", err=True)


def drawing(given: dict[str, Any], draws: int) -> "Search":
    from regard.decode import Sample

    return Sample(draws=draws, **{name: value for name, value in given.items() if value is not None})


def in_order(
    translator: "Translator", texts: Iterable[str], search: "Search", model: "Prepared"
) -> "Iterator[list[Translation]]":
    """The translations in the order of the texts, each as soon as all before it are there."""
    from regard.decode.texts import translations

    found: dict[int, list[Translation]] = {}
    due = 0
    for place, these in translations(translator, texts, search, model=model):
        found[place] = these
        while due in found:
            yield found.pop(due)
            due += 1


def said(one: "Translation", *, scores: bool) -> str:
    return f"{one.found.log_probability:.4f}\t{one.text}" if scores else one.text


# --- what is typed ---


def converse(
    translator: "Translator", search: "Search", longest: int, *, scores: bool, precision: str = "float32"
) -> None:
    """A prompt; a mistake is said, and the next line is asked for."""
    from regard.cli.check import check
    from regard.decode import prepare
    from regard.decode.walk import Walker

    model, exact = prepare(translator.model, precision), precision == "float32"

    typer.echo("Type a sentence; an empty line or Ctrl-D leaves.", err=True)
    while line := ask():
        try:
            check(translator, line, "this line", longest=longest)
            if isinstance(search, Walker) and search.width == 1 and not scores and exact:
                word_by_word(translator, line, search)
                continue
            for these in in_order(translator, [line], search, model):
                for one in these:
                    typer.echo(said(one, scores=scores))
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)


def word_by_word(translator: "Translator", line: str, search: "Walker") -> None:
    """A word is shown when the next one has begun: until then a mark, or the rest of a letter, may join it."""
    from regard.decode import stream
    from regard.decode.texts import written

    shown, ids = "", []
    for id in stream(translator.model, translator.source.encode(line), search):
        ids.append(id)
        settled = written(translator, ids).rpartition(" ")[0]
        if settled.startswith(shown):
            typer.echo(settled[len(shown) :], nl=False)
            shown = settled
    text = written(translator, ids)
    typer.echo(text[len(shown) :] if text.startswith(shown) else f"\n{text}")


def ask() -> str:
    typer.echo("> ", nl=False, err=True)  # not by input(), whose prompt would stand among redirected translations
    try:
        return input().strip()
    except EOFError:
        return ""
