"""The beginning of a text in, given, piped or typed; how a language model goes on with it out, as it is written."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import LONGEST_PROMPT, Checkpoint, Device, Model, device_of, tracked

if TYPE_CHECKING:
    from regard.decode.walk import Walker
    from regard.tasks.write import Author


def write(
    model: Model,
    prompt: Annotated[str | None, typer.Argument(help="How the text begins, or - for a pipe.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="So many tokens.")] = 200,
    lines: Annotated[int | None, typer.Option(min=1, help="Stop after so many lines, if they come first.")] = None,
    temperature: Annotated[
        float, typer.Option(help="Below 1 is tamer, above 1 wilder; 0 always takes the most probable token.")
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Only so many tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Only tokens up to this probability.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed writes the same text.")] = 0,
    longest: Annotated[int, typer.Option(min=1, help="Refuse a beginning of more tokens.")] = LONGEST_PROMPT,
    checkpoint: Checkpoint = None,
    device: Device = "auto",
) -> None:
    """Write on from a beginning, or from nothing. Without any, each line that you type is gone on with.

    Example: `regard write run "ROMEO:" --tokens 500`

    Example: `regard write run --lines 5 --temperature 0.5 --top-p 0.9 --seed 3`

    Example: `echo "the black cat" | regard write run - --temperature 0`
    """
    from regard.tasks.kept import described
    from regard.tasks.tables import task_in

    if (task := task_in(described(model))) != "write":
        raise ValueError(
            f"{model} is for the task {task!r}, and does not write; train one with regard train --task write"
        )
    from regard.tasks.write import Author

    walker = walker_of(temperature, top_k, top_p, seed)
    if prompt is None and sys.stdin.isatty():
        converse(Author.load(model, device_of(device), checkpoint), walker, tokens, lines, longest)
        return
    begun = piped() if prompt in (None, "-") else prompt or ""
    author = Author.load(model, device_of(device), checkpoint)
    refuse_long(author, begun, "the beginning", longest)
    stdout = sys.stdout  # a progress bar, once it is begun, takes its place
    typer.echo(begun, nl=False)
    pieces = written(author, begun, walker, tokens, lines)
    for piece in pieces if stdout.isatty() else tracked(pieces, "writing", tokens):
        typer.echo(piece, nl=False, file=stdout)
    typer.echo(file=stdout)


def walker_of(temperature: float, top_k: int | None, top_p: float, seed: int) -> "Walker":
    from regard.decode import Greedy, Sample

    return Greedy() if temperature == 0 else Sample(temperature, top_k, top_p, seed)


def piped() -> str:
    """All of it, for it is one text; a pipe without end would fill the memory."""
    from regard.text.files import CHUNK, chunks, lines_of

    text, *more = [*islice(chunks(lines_of(sys.stdin.buffer, "stdin"), CHUNK), 2)] or [[]]
    if more:
        raise ValueError(f"stdin: more than {CHUNK:,} letters; give the last lines of it: tail -n 100")
    return "\n".join(text)


def refuse_long(author: "Author", begun: str, where: str, longest: int) -> None:
    from regard.cli.check import refuse_long

    refuse_long([author.beginning(begun)[1]], lambda _: where, longest)


def written(author: "Author", begun: str, walker: "Walker", tokens: int, lines: int | None) -> Iterator[str]:
    """The text behind a beginning, piece by piece, without the end of the last line asked for."""
    from regard.decode.writing import spoken, usual
    from regard.decode.writing import write as chosen
    from regard.text.vocabulary import UNK

    opening, ids = author.beginning(begun)
    if UNK in ids:  # of words alone, whose tokens name what is unknown
        word = next(word for word in author.words.tokens(begun) if word.startswith("<unk:"))
        typer.echo(f"regard: {word.removeprefix('<unk:').removesuffix('>')!r} is unknown to the model", err=True)
    allowed, context = usual(author.words), max(2, author.span)
    found = chosen(author.model, opening + ids, walker, tokens=tokens, allowed=allowed, context=context)
    ended = 0
    for piece in spoken(author.words, (token.id for token in found), opening + ids):
        ended += piece.count("\n")
        if lines is not None and ended >= lines:
            yield piece.partition("\n")[0]
            return
        yield piece


def converse(author: "Author", walker: "Walker", tokens: int, lines: int | None, longest: int = LONGEST_PROMPT) -> None:
    """A prompt; a mistake is said, and the next beginning is asked for."""
    typer.echo("Type a beginning, or nothing for a text from nowhere; Ctrl-D leaves.", err=True)
    while True:
        typer.echo("> ", nl=False, err=True)  # not by input(), whose prompt would stand among redirected text
        try:
            begun = input()
        except EOFError:
            return
        try:
            refuse_long(author, begun, "this line", longest)
            typer.echo(begun, nl=False)
            for piece in written(author, begun, walker, tokens, lines):
                typer.echo(piece, nl=False)
            typer.echo()
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)
