"""`regard translate`: translates lines of a file, of stdin or typed at a prompt."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, islice, tee
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    BeamSize,
    CheckpointOption,
    CoveragePenalty,
    DeviceOption,
    LengthPenalty,
    MaxLength,
    ModelArgument,
    OutOption,
    TextArgument,
    build_search,
    read_input,
    resolve_device,
    with_progress,
    writable_files,
)
from regard.tasks.registry import MAX_SENTENCE_TOKENS

if TYPE_CHECKING:
    from regard.decode.alignment import AlignmentHead
    from regard.decode.model import DecodableModel as Prepared
    from regard.decode.search import Search
    from regard.decode.stepwise import StepwiseSearch
    from regard.decode.translate import Translation
    from regard.tasks.translation.task import Translator


def translate(
    model: ModelArgument,
    file: TextArgument = None,
    out: OutOption = None,
    beam: BeamSize = 5,
    length_penalty: LengthPenalty = 1.0,
    coverage_penalty: CoveragePenalty = 0.0,
    best: Annotated[
        int,
        typer.Option("--n-best", "--best", min=1, help="Number of hypotheses per line (n-best), each with its score."),
    ] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="Sample translations instead of beam search.")] = False,  # noqa: FBT002
    temperature: Annotated[float | None, typer.Option(help="For --sample: the sampling temperature.")] = None,
    top_k: Annotated[int | None, typer.Option(help="For --sample: sample from the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="For --sample: nucleus sampling, the total probability kept.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="For --sample.")] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write each log-probability before its text.")] = False,  # noqa: FBT002
    align: Annotated[
        Path | None, typer.Option(help="Write word alignments here, in Pharaoh format (0-0 1-2) on every line.")
    ] = None,
    max_length: MaxLength = MAX_SENTENCE_TOKENS,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse empty lines and out-of-vocabulary words.")] = False,  # noqa: FBT002
    precision: Annotated[
        str,
        typer.Option(
            help="float32; faster: bfloat16 on a GPU, int8 on a CPU. A word in a hundred may differ; in int8, beside "
            "other lines, a score by up to 0.1."
        ),
    ] = "float32",
    checkpoint: CheckpointOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Translate a file line by line; without one, what you type (with --beam 1 or --sample word by word).

    Example: `regard translate run text.en --out text.de`

    Example: `echo "the black cat ate the mouse" | regard translate run -`

    Example: `regard translate run "the black cat ate the mouse"`

    Example: `regard translate run text.en --n-best 3 --scores`

    Example: `regard translate run text.en --out text.de --align text.links`

    Example: `regard translate run --sample --temperature 0.7`
    """
    from regard.decode import prepare
    from regard.tasks.translation.task import Translator

    out, align = writable_files(out=out, align=align)
    if align and (best > 1 or file is None):
        raise ValueError("--align is for a file with one translation of each line; leave out --n-best, or give a file")
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    search = build_sampling(sampling, best) if sample else build_search(beam, length_penalty, coverage_penalty, best)
    if stray := [name for name, value in sampling.items() if value is not None and not sample]:
        raise ValueError(f"--{stray[0].replace('_', '-')} needs --sample")
    scores = scores or best > 1
    if best > 1 and not sample and (length_penalty or coverage_penalty):
        typer.echo(
            "regard: n-best lists are ranked by the penalised score; the log-probabilities before them may be in "
            "another order, and are in this one with --length-penalty 0",
            err=True,
        )
    if file is None and sys.stdin.isatty():
        prompt_loop(
            Translator.load(model, resolve_device(device), checkpoint),
            search,
            max_length,
            scores=scores,
            precision=precision,
        )
        return
    from regard.cli.input_checks import check_texts
    from regard.data.files import open_atomic

    inputs = read_input(file)
    translator = Translator.load(model, resolve_device(device), checkpoint)
    texts = check_texts(translator, inputs.texts, inputs.location, max_length=max_length, strict=strict)
    prepared = prepare(translator.model, precision)

    def search_in(texts: Iterable[str]) -> "Iterator[list[Translation]]":
        return translations_in_order(translator, texts, search, prepared)

    with open_atomic(align) if align else nullcontext() as links:
        found = write_alignments(translator, model, texts, search_in, links) if links else search_in(texts)
        lines = (
            translation_line(one, scores=scores) for these in found for one in (these * best)[:best]
        )  # an empty line has one
        if out or not sys.stdout.isatty():  # on a terminal the lines themselves show the progress
            lines = with_progress(lines, "translating", lambda: (inputs.count() or 0) * best or None)
        write_lines(lines, out)


def write_alignments(
    translator: "Translator",
    model: Path,
    texts: Iterator[str],
    search_in: "Callable[[Iterator[str]], Iterator[list[Translation]]]",
    file: IO[bytes],
) -> "Iterator[list[Translation]]":
    """The translations; writes the word alignments of each on the way."""
    from regard.decode.word_alignment import format_links

    heads, texts = alignment_heads_for(translator, model, texts)
    read, again = tee(texts)  # buffers at most a window
    for text, these in zip(again, search_in(read), strict=True):
        file.write(f"{format_links(translator, text, these[0].text, heads)}\n".encode())
        yield these


def alignment_heads_for(
    translator: "Translator", model: Path, texts: Iterator[str]
) -> "tuple[Sequence[AlignmentHead], Iterator[str]]":
    """The alignment heads, and the texts again: the first may have been read to choose the heads."""
    from regard.cli.translation import alignment_heads_from_texts
    from regard.decode.translate import WINDOW
    from regard.decode.word_alignment import load_alignment_heads

    if heads := load_alignment_heads(model):
        return heads, texts
    first = list(islice(texts, WINDOW))
    if not (heads := alignment_heads_from_texts(translator, first)):
        raise ValueError(f"--align: {model} has no alignment heads; a model without attention has none")
    return heads, chain(first, texts)


def write_lines(lines: Iterable[str], out: Path | None, done: str = "translated") -> None:
    from regard.data.files import open_atomic

    if out is None:
        stdout = sys.stdout  # a progress bar, once started, replaces it
        for line in lines:
            typer.echo(line, file=stdout)
        return
    with open_atomic(out) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
    typer.echo(f"{done}: {out}", err=True)


def build_sampling(options: dict[str, Any], samples: int) -> "Search":
    from regard.decode import Sampling

    return Sampling(samples=samples, **{name: value for name, value in options.items() if value is not None})


def translations_in_order(
    translator: "Translator", texts: Iterable[str], search: "Search", model: "Prepared"
) -> "Iterator[list[Translation]]":
    """The translations in the order of the texts, each as soon as all before it have arrived."""
    from regard.decode.translate import translate_lines

    waiting: dict[int, list[Translation]] = {}
    due = 0
    for index, these in translate_lines(translator, texts, search, model=model):
        waiting[index] = these
        while due in waiting:
            yield waiting.pop(due)
            due += 1


def translation_line(one: "Translation", *, scores: bool) -> str:
    return f"{one.hypothesis.log_probability:.4f}\t{one.text}" if scores else one.text


# --- the prompt ---


def prompt_loop(
    translator: "Translator", search: "Search", max_length: int, *, scores: bool, precision: str = "float32"
) -> None:
    """Reads lines at a prompt; an error is printed, and the loop continues."""
    from regard.cli.input_checks import check_text
    from regard.decode import prepare
    from regard.decode.stepwise import StepwiseSearch

    model, exact = prepare(translator.model, precision), precision == "float32"

    typer.echo("Type a sentence; an empty line or Ctrl-D exits.", err=True)
    while line := read_line():
        try:
            check_text(translator, line, "this line", max_length=max_length)
            if isinstance(search, StepwiseSearch) and search.width == 1 and not scores and exact:
                stream_words(translator, line, search)
                continue
            for these in translations_in_order(translator, [line], search, model):
                for one in these:
                    typer.echo(translation_line(one, scores=scores))
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)


def stream_words(translator: "Translator", line: str, search: "StepwiseSearch") -> None:
    """A word is shown when the next one has begun: until then punctuation, or the rest of a letter, may join it."""
    from regard.decode import stream
    from regard.decode.translate import detokenize_line

    shown, ids = "", []
    for id in stream(translator.model, translator.source.encode(line), search):
        ids.append(id)
        settled = detokenize_line(translator, ids).rpartition(" ")[0]
        if settled.startswith(shown):
            typer.echo(settled[len(shown) :], nl=False)
            shown = settled
    text = detokenize_line(translator, ids)
    typer.echo(text[len(shown) :] if text.startswith(shown) else f"\n{text}")


def read_line() -> str:
    typer.echo("> ", nl=False, err=True)  # not by input(), whose prompt would stand among redirected translations
    try:
        return input().strip()
    except EOFError:
        return ""
