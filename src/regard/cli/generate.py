"""`regard generate`: generates text from a prompt with a language model."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    MAX_LENGTH_NAMES,
    MAX_PROMPT_TOKENS,
    CheckpointOption,
    DeviceOption,
    ModelArgument,
    resolve_device,
    with_progress,
)

if TYPE_CHECKING:
    from regard.decode.stepwise import StepwiseSearch
    from regard.tasks.language_modeling.task import TextGenerator


def generate(
    model: ModelArgument,
    prompt: Annotated[str | None, typer.Argument(help="The prompt, or - for stdin.")] = None,
    tokens: Annotated[int, typer.Option("--max-new-tokens", "--tokens", min=1, help="Number of new tokens.")] = 200,
    lines: Annotated[int | None, typer.Option(min=1, help="Stop after this many lines, if earlier.")] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy decoding.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most probable tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling: the total probability kept.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed generates the same text.")] = 0,
    max_length: Annotated[
        int, typer.Option(*MAX_LENGTH_NAMES, min=1, help="Maximum tokens of a prompt; a longer one is refused.")
    ] = MAX_PROMPT_TOKENS,
    checkpoint: CheckpointOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Generate text from a prompt, or from nothing; without a prompt, from each line you type.

    Example: `regard generate run "ROMEO:" --max-new-tokens 500`

    Example: `regard generate run --lines 5 --temperature 0.5 --top-p 0.9 --seed 3`

    Example: `echo "the black cat" | regard generate run - --temperature 0`
    """
    from regard.tasks.config import read_task_name
    from regard.tasks.pretrained import settings_path

    if (task := read_task_name(settings_path(model))) != "language_modeling":
        raise ValueError(
            f"{model} is for the task {task!r}, not a language model; train one: regard train --task language_modeling"
        )
    from regard.tasks.language_modeling.task import TextGenerator

    sampler = build_sampler(temperature, top_k, top_p, seed)
    if prompt is None and sys.stdin.isatty():
        prompt_loop(TextGenerator.load(model, resolve_device(device), checkpoint), sampler, tokens, lines, max_length)
        return
    prompt_text = read_stdin() if prompt in (None, "-") else prompt or ""
    generator = TextGenerator.load(model, resolve_device(device), checkpoint)
    refuse_long_prompt(generator, prompt_text, "the prompt", max_length)
    stdout = sys.stdout  # a progress bar, once started, replaces it
    typer.echo(prompt_text, nl=False)
    pieces = generate_pieces(generator, prompt_text, sampler, tokens, lines)
    for piece in pieces if stdout.isatty() else with_progress(pieces, "generating", tokens):
        typer.echo(piece, nl=False, file=stdout)
    typer.echo(file=stdout)


def build_sampler(temperature: float, top_k: int | None, top_p: float, seed: int) -> "StepwiseSearch":
    from regard.decode import Greedy, Sampling

    return Greedy() if temperature == 0 else Sampling(temperature, top_k, top_p, seed)


def read_stdin() -> str:
    """All of stdin as one text, up to a bound: an endless pipe would fill the memory."""
    from regard.data.files import CHUNK, chunks, iter_lines

    text, *more = [*islice(chunks(iter_lines(sys.stdin.buffer, "stdin"), CHUNK), 2)] or [[]]
    if more:
        raise ValueError(f"stdin: more than {CHUNK:,} letters; pass only its last lines: tail -n 100")
    return "\n".join(text)


def refuse_long_prompt(generator: "TextGenerator", prompt_text: str, where: str, max_length: int) -> None:
    from regard.cli.input_checks import refuse_long

    refuse_long([generator.encode_prompt(prompt_text)[1]], lambda _: where, max_length)


def generate_pieces(
    generator: "TextGenerator", prompt_text: str, sampler: "StepwiseSearch", tokens: int, lines: int | None
) -> Iterator[str]:
    """The text after a prompt, subword by subword, without the newline that ends the last line."""
    from regard.data.tokenizers.base import UNK
    from regard.decode.generation import generate as generate_tokens
    from regard.decode.generation import stream_text, text_constraints

    opening, ids = generator.encode_prompt(prompt_text)
    if UNK in ids:  # word tokenizers only, whose tokens spell out what is unknown
        word = next(word for word in generator.tokenizer.tokens(prompt_text) if word.startswith("<unk:"))
        typer.echo(f"regard: {word.removeprefix('<unk:').removesuffix('>')!r} is out of vocabulary", err=True)
    allowed, context = text_constraints(generator.tokenizer), max(2, generator.context_length)
    tokens_found = generate_tokens(
        generator.model, opening + ids, sampler, tokens=tokens, constraints=allowed, context=context
    )
    ended = 0
    for piece in stream_text(generator.tokenizer, (token.id for token in tokens_found), opening + ids):
        ended += piece.count("\n")
        if lines is not None and ended >= lines:
            yield piece.partition("\n")[0]
            return
        yield piece


def prompt_loop(
    generator: "TextGenerator",
    sampler: "StepwiseSearch",
    tokens: int,
    lines: int | None,
    max_length: int = MAX_PROMPT_TOKENS,
) -> None:
    """Reads lines at a prompt; an error is printed, and the loop continues."""
    typer.echo("Type a prompt, or nothing for an empty one; Ctrl-D exits.", err=True)
    while True:
        typer.echo("> ", nl=False, err=True)  # not by input(), whose prompt would stand among redirected text
        try:
            prompt_text = input()
        except EOFError:
            return
        try:
            refuse_long_prompt(generator, prompt_text, "this line", max_length)
            typer.echo(prompt_text, nl=False)
            for piece in generate_pieces(generator, prompt_text, sampler, tokens, lines):
                typer.echo(piece, nl=False)
            typer.echo()
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)
