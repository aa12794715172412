"""`regard autoencode`: reconstructs sentences from their latents, interpolates, or plots the latents."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    CheckpointOption,
    DeviceOption,
    MaxLength,
    ModelArgument,
    OutOption,
    TextArgument,
    read_input,
    resolve_device,
    with_progress,
    writable_files,
)
from regard.cli.translate import read_line, write_lines
from regard.tasks.registry import MAX_SENTENCE_TOKENS

if TYPE_CHECKING:
    from regard.tasks.autoencoding.task import SentenceAutoencoder


def autoencode(
    model: ModelArgument,
    file: TextArgument = None,
    out: OutOption = None,
    interpolate: Annotated[
        tuple[str, str] | None,
        typer.Option("--interpolate", "--between", help="Two sentences: decode latents interpolated between them."),
    ] = None,
    points: Annotated[
        int | None, typer.Option(min=2, help="Number of interpolation points with --interpolate; default 5.")
    ] = None,
    latents: Annotated[Path | None, typer.Option(help="Plot the latents of the lines here (.png, .svg, .pdf).")] = None,
    max_length: MaxLength = MAX_SENTENCE_TOKENS,
    checkpoint: CheckpointOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Encode sentences into fixed-size latents and decode them again; without a file, what you type.

    Example: `regard autoencode run text.txt --out reconstructed.txt`

    Example: `echo "the black cat ate the mouse" | regard autoencode run -`

    Example: `regard autoencode run --interpolate "she sold a book" "the old man will sleep" --points 7`

    Example: `regard autoencode run text.txt --latents latents.png`
    """
    from regard.tasks.autoencoding.latents import interpolate_sentences, reconstruct
    from regard.tasks.autoencoding.task import SentenceAutoencoder

    out, latents = writable_files(out=out, latents=latents)
    if interpolate and (file or latents):
        raise ValueError("--interpolate takes two sentences; leave out the file and --latents")
    if points and not interpolate:
        raise ValueError(f"--points {points} needs two sentences; add --interpolate ONE OTHER")
    autoencoder = SentenceAutoencoder.load(model, resolve_device(device), checkpoint)
    if interpolate:
        one, other = check_sentences(autoencoder, interpolate, lambda number: f"sentence {number}", max_length)
        write_lines(interpolate_sentences(autoencoder, one, other, points or 5), out, "written")
        return
    if file is None and sys.stdin.isatty() and not latents:
        prompt_loop(autoencoder, max_length)
        return
    inputs = read_input(file)
    texts = check_sentences(autoencoder, inputs.texts, inputs.location, max_length)
    if latents:
        name = "stdin" if file in (None, "-") else file
        texts = list(texts)  # all of them are plotted
        typer.echo(f"drawn: {latent_map(autoencoder, texts, name, latents)}", err=True)
    write_lines(with_progress(reconstruct(autoencoder, texts), "reconstructing", inputs.count), out, "reconstructed")


def check_sentences(
    autoencoder: "SentenceAutoencoder", texts: Iterable[str], where: Callable[[int], str], max_length: int
) -> Iterator[str]:
    """The same texts: refuses those that are too long, warns of the first with out-of-vocabulary words."""
    from regard.cli.input_checks import refuse_long
    from regard.data.tokenizers.base import UNK

    number = first = unknown = 0
    for number, text in enumerate(texts, 1):
        ids = autoencoder.tokenizer.encode(text)
        refuse_long([ids], where, max_length, number)
        if UNK in ids:
            first, unknown = first or number, unknown + 1
        yield text
    if unknown:
        what, count = "out-of-vocabulary words, which cannot be reconstructed", f"{unknown:,} of {number:,}"
        typer.echo(f"regard: {where(first)}: {what}; in {count} in all", err=True)


def latent_map(autoencoder: "SentenceAutoencoder", texts: list[str], name: str, path: Path) -> Path:
    """The latents on their two principal components, coloured by sentence length."""
    from regard import see
    from regard.see.plots.charts import latents_view
    from regard.tasks.autoencoding.latents import encode_latents

    full = [text for text in texts if text.strip()]
    if len(full) < 2:
        raise ValueError(f"{name}: a plot of latents needs 2 sentences or more, not {len(full)}; leave out --latents")
    view = latents_view(
        encode_latents(autoencoder.model, autoencoder.tokenizer.encode_batch(full)), length_groups(full), full
    )
    return see.save(see.draw(view), path)


def length_groups(texts: Sequence[str]) -> list[str]:
    """The length group of each sentence: about a third of them are in each."""
    sizes = [len(text.split()) for text in texts]
    low, high = (sorted(sizes)[len(sizes) * n // 3] for n in (1, 2))
    return [
        f"up to {low} words" if size <= low else f"up to {high} words" if size <= high else f"over {high} words"
        for size in sizes
    ]


def prompt_loop(autoencoder: "SentenceAutoencoder", max_length: int) -> None:
    """Reads lines at a prompt; an error is printed, and the loop continues."""
    from regard.tasks.autoencoding.latents import reconstruct

    typer.echo("Type a sentence; an empty line or Ctrl-D exits.", err=True)
    while line := read_line():
        try:
            typer.echo(
                next(
                    reconstruct(
                        autoencoder, list(check_sentences(autoencoder, [line], lambda _: "this line", max_length))
                    )
                )
            )
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)
