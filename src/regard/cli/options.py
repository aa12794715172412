"""What several commands ask for in the same words, and what they make of it: a device, a search, a place to write."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from regard.decode.search import Search

T = TypeVar("T")
NAME, SHOWN = 255, 40  # letters of a name that a system asks about, and of a sentence that is said again
FILES = "What the task reads; to translate: a .tsv, a .jsonl with fields for the languages, or (given twice) two texts."
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", envvar="REGARD_DATA", help="The folder that holds known corpora; see regard data."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes the fastest there is.")]
Model = Annotated[Path, typer.Argument(help="The folder of a run, or of one of its checkpoints.", metavar="MODEL")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        help="best, last or a step; without it the finished model, or the best so far of a run that was stopped."
    ),
]
BeamSize = Annotated[int, typer.Option("--beam", min=1, help="How many beginnings are kept; 1 is greedy search.")]
LengthPenalty = Annotated[
    float, typer.Option(min=0, max=64, help="Above 0 favours longer translations (Wu et al. 2016).")
]
CoveragePenalty = Annotated[
    float, typer.Option(min=0, max=64, help="Above 0 favours translations that looked at every source token.")
]
Longest = Annotated[int, typer.Option(min=1, help="Refuse a sentence of more tokens.")]
LONGEST, LONGEST_TEXT, LONGEST_PROMPT = 1000, 4096, 16_384  # tokens of a sentence, of a text of several, of a prompt
Out = Annotated[
    Path | None,
    typer.Option(
        help="Write here instead of the terminal, if every line can be read: on the terminal, those before a bad one "
        "may be answered."
    ),
]
Split = Literal["train", "valid", "test"]


def device_of(asked: str) -> str:
    """A device that torch can really use."""
    import torch

    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=asked).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {asked}: {str(error).splitlines()[0].rstrip('.')}; use cpu") from None
    return asked


def search_of(beam: int, length_penalty: float, coverage_penalty: float, best: int = 1) -> "Search":
    from regard.decode import Beam, Greedy

    if beam == 1 and best == 1:
        return Greedy()
    return Beam(max(beam, best), length_penalty=length_penalty, coverage_penalty=coverage_penalty, best=best)


Texts = Annotated[
    str | None, typer.Argument(help="A text file (.gz and .xz too), a sentence in quotes, or - for a pipe.")
]


@dataclass(frozen=True)
class Lines:
    """The lines of a file or of a pipe, each read when its turn comes, or one sentence.

    Args:
        texts: they can be read once.
        where: one stands, counted from 1.
        count: how many there are, if that can be known before they are read.
    """

    texts: Iterator[str]
    where: Callable[[int], str]
    count: Callable[[], int | None]


def texts_in(given: str | None) -> Lines:
    from regard.text.files import lines_of, read_lines

    if given is None or given == "-":
        return Lines(lines_of(sys.stdin.buffer, "stdin"), lambda number: f"stdin:{number}", lambda: None)
    if is_sentence(given):
        return Lines(iter([given]), lambda _: "the sentence", lambda: 1)
    return Lines(read_lines(given), lambda number: f"{given}:{number}", lambda: sum(1 for _ in read_lines(given)))


def is_sentence(given: str) -> bool:
    """Several words that name no file: then it is said that they are not taken for a name."""
    if len(given.split()) < 2 or Path(given[:NAME]).exists():
        return False
    typer.echo(f"regard: no file is called {given[:SHOWN]!r}; it is read as a sentence", err=True)
    return True


def command_of(*words: object) -> str:
    """A command that can be copied into a shell."""
    import shlex

    return shlex.join(map(str, words))


def tracked(items: Iterable[T], what: str, total: int | Callable[[], int | None] | None = None) -> Iterable[T]:
    """A progress bar on stderr, if a person is there to see it; only then `total` is asked for."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    shown = console.is_terminal
    if callable(total):
        total = total() if shown else None
    return track(items, what, total, console=console, transient=True, disable=not shown)


# --- whether something can be written is better known before the work than after it ---


def folder_for(path: Path) -> Path:
    """The path of a folder to write into; it need not be there yet."""
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        raise ValueError(f"{there}: is a file, not a folder; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{there}: you may not write here; choose another place")
    return path


def file_for(path: Path) -> Path:
    """The path of a file to write; where it is a link, that of the file it leads to, since a link would be replaced."""
    from regard.text.files import replaceable

    path = path.resolve() if path.is_symlink() else path
    replaceable(path)
    folder_for(path.parent)
    return path


def files_for(**named: Path | None) -> Iterator[Path | None]:
    """The same for several options, which must not name one file: the second would be written over the first."""
    taken: dict[Path, str] = {}
    for option, given in named.items():
        path = given and file_for(given)
        if path and (other := taken.setdefault(path.resolve(), option)) != option:
            raise ValueError(f"--{other} and --{option} are one file, {given}; give each a file of its own")
        yield path
