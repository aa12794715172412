"""`regard embed` and `regard fill`: the vectors of texts, and the tokens that are missing in them."""

from typing import Annotated

import typer

from regard.cli import options


@options.with_option_groups
def embed(
    model: options.ModelArgument,
    files: options.TextFiles = options.TextFiles(),
    load: options.LoadOptions = options.LoadOptions(),
) -> None:
    """The vector of each line of a file, its numbers separated by blanks: texts that mean the same lie close together.

    Example: `regard embed minilm sentences.txt --out vectors.txt`

    Example: `echo "the cat sleeps" | regard embed minilm -`
    """
    from regard.data.files import chunks
    from regard.tasks.masked_language_modeling.task import TextEncoder

    out, inputs = files.writable_out(), files.read()
    encoder = load.load(TextEncoder, model)
    lines = (
        " ".join(f"{number:.7g}" for number in row)
        for some in chunks(inputs.texts, options.BATCH_LINES)
        for row in encoder.embed(some).tolist()
    )
    options.write_lines(lines, out, "embedded")


@options.with_option_groups
def fill(
    model: options.ModelArgument,
    text: Annotated[str, typer.Argument(help="A text with [MASK] where a token is missing.")],
    count: Annotated[int, typer.Option(min=1, help="How many tokens are shown for each mask.")] = 5,
    load: options.LoadOptions = options.LoadOptions(),
) -> None:
    """Fill each [MASK] of a text with the most probable token, and show the next best ones.

    Example: `regard fill bert "the cat [MASK] on the mat."`
    """
    from regard.tasks.masked_language_modeling.task import TextEncoder

    encoder: TextEncoder = load.load(TextEncoder, model)
    found = encoder.fill(text, count=count)
    typer.echo(found.text)
    for row in found.alternatives:
        typer.echo("  ".join(f"{token} {share:.3f}" for token, share in row))


COMMANDS = {"embed": embed, "fill": fill}
