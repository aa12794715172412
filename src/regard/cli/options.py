"""Shared options and arguments: loading a model, search, input texts, writable paths."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cached_property, wraps
from inspect import Parameter, signature
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from regard.decode.search import Search
    from regard.tasks.own_parts import OwnParts
    from regard.tasks.pretrained import PretrainedModel

T = TypeVar("T")
Model = TypeVar("Model", bound="PretrainedModel")
MAX_FILE_NAME, MAX_QUOTED = 255, 40  # letters of a file name, and of a quoted sentence
FILES = (
    "Training files; for translation: a .tsv, a .jsonl with a field per language, (passed twice) two text files, or "
    "folders of regard data prepare, each with :WEIGHT if you like."
)
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", envvar="REGARD_DATA", help="The folder that holds known corpora; see regard data."),
]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or mps; auto picks the fastest available.")]


def model_folder(model: Path | None) -> Path | None:
    """The callback of an option or argument that takes the folder of a run, or the name of a model that is shipped."""
    from regard.tasks.model_packages import resolve_model

    return model and resolve_model(model)


def model_folders(models: list[Path] | None) -> list[Path]:
    """The same for several."""
    from regard.tasks.model_packages import resolve_model

    return [resolve_model(model) for model in models or []]


ModelArgument = Annotated[
    Path,
    typer.Argument(
        help="A run folder, the folder of one of its checkpoints, or a name: regard models lists them.",
        metavar="MODEL",
        callback=model_folder,
    ),
]
CheckpointOption = Annotated[
    str | None,
    typer.Option(help="best, last or a step; default: the final model, or the best checkpoint of an interrupted run."),
]
PartsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--parts",
        metavar="FILE",
        help="Run this Python file: it defines parts of your own, which the model uses. Repeatable.",
    ),
]
ChangedPartsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--changed-parts", metavar="FILE", help="The same, though it has changed since the model was trained with it."
    ),
]
BeamSize = Annotated[int, typer.Option("--beam", min=1, help="Beam width; 1 is greedy search.")]
LengthPenalty = Annotated[
    float, typer.Option(min=0, max=64, help="Length penalty: above 0 favours longer translations (Wu et al. 2016).")
]
CoveragePenalty = Annotated[
    float,
    typer.Option(
        min=0,
        max=64,
        help="Coverage penalty: above 0 favours translations that attend to every source token (Wu et al. 2016).",
    ),
]
MAX_LENGTH_NAMES = ("--max-length", "--longest")
MaxLength = Annotated[
    int, typer.Option(*MAX_LENGTH_NAMES, min=1, help="Maximum tokens of a sentence; a longer one is refused.")
]
MinutesOption = Annotated[
    float | None,
    typer.Option("--minutes", min=0, help="Stop after so many minutes; the same command goes on where it stopped."),
]
BATCH_LINES = 256  # lines that are read together
MAX_PROMPT_TOKENS = 16_384


def file_or_stdout(path: Path | None) -> Path | None:
    """The callback of an option whose default is stdout, which - is, too."""
    return None if path == Path("-") else path


OutOption = Annotated[
    Path | None,
    typer.Option(
        callback=file_or_stdout,
        help="Write here instead of stdout, and only if every line can be read: on stdout, the lines before a bad one "
        "may be printed.",
    ),
]
Split = Literal["train", "valid", "test"]


def resolve_device(name: str) -> str:
    """A device that torch can really use."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {name}: {str(error).splitlines()[0].rstrip('.')}; use cpu") from None
    return name


def stop_after(minutes: float | None) -> Callable[[], bool]:
    """Whether so many minutes have passed since now; without a number they never have."""
    end = inf if minutes is None else time.monotonic() + 60 * minutes
    return lambda: time.monotonic() >= end


def load_parts(parts: list[Path] | None, changed: list[Path] | None) -> "OwnParts":
    """Runs the files of --parts and --changed-parts, and no others."""
    from regard.tasks.own_parts import OwnParts

    return OwnParts.load(parts or [], changed or [])


# --- groups of options that several commands share ---


@dataclass(frozen=True)
class LoadOptions:
    """How the model of a run is loaded: which checkpoint, on which device, with which parts of the user's own."""

    checkpoint: CheckpointOption = None
    device: DeviceOption = "auto"
    parts: PartsOption = None
    changed_parts: ChangedPartsOption = None

    def load(self, kind: type[Model], folder: Path) -> Model:
        return kind.load(folder, self.torch_device, self.checkpoint, self.own_parts)

    @property
    def torch_device(self) -> str:
        return resolve_device(self.device)

    @cached_property
    def own_parts(self) -> "OwnParts":
        """Their files are run once, however many models are loaded."""
        return load_parts(self.parts, self.changed_parts)


@dataclass(frozen=True)
class SearchOptions:
    """Greedy or beam search."""

    beam: BeamSize = 5
    length_penalty: LengthPenalty = 1.0
    coverage_penalty: CoveragePenalty = 0.0

    def build(self, best: int = 1) -> "Search":
        from regard.decode import Beam, Greedy

        if self.beam == 1 and best == 1:
            return Greedy()
        return Beam(
            max(self.beam, best),
            length_penalty=self.length_penalty,
            coverage_penalty=self.coverage_penalty,
            n_best=best,
        )


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: a parameter whose type is a dataclass of options stands for all its fields."""
    given = signature(command).parameters.values()
    groups: dict[str, Any] = {one.name: one.annotation for one in given if is_dataclass(one.annotation)}

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    options = [
        option
        for one in given
        for option in (
            option_fields(one.annotation) if one.name in groups else [one.replace(kind=Parameter.KEYWORD_ONLY)]
        )
    ]
    run.__signature__ = signature(command).replace(parameters=options)  # type: ignore[attr-defined]
    return run


def option_fields(group: Any) -> list[Parameter]:
    """An option of each field, with its default."""
    assert all(field.default is not MISSING for field in fields(group))
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(group)
    ]


TextArgument = Annotated[
    str | None, typer.Argument(help="A text file (.gz and .xz too), a sentence in quotes, or - for stdin.")
]


@dataclass(frozen=True)
class InputLines:
    """The lines of a file or of stdin, read lazily, or one sentence.

    Args:
        texts: an iterator over the lines.
        location: "file:line" of a line, counted from 1.
        count: the number of lines, or None if it is unknown before they are read.
    """

    texts: Iterator[str]
    location: Callable[[int], str]
    count: Callable[[], int | None]


def read_input(argument: str | None) -> InputLines:
    from regard.data.files import iter_lines, read_lines

    if argument is None or argument == "-":
        return InputLines(iter_lines(sys.stdin.buffer, "stdin"), lambda number: f"stdin:{number}", lambda: None)
    if is_sentence(argument):
        return InputLines(iter([announce_sentence(argument)]), lambda _: "the sentence", lambda: 1)
    return InputLines(
        read_lines(argument), lambda number: f"{argument}:{number}", lambda: sum(1 for _ in read_lines(argument))
    )


@dataclass(frozen=True)
class TextFiles:
    """The text that a command reads line by line, and where it writes a line for each."""

    file: TextArgument = None
    out: OutOption = None

    @property
    def are_typed(self) -> bool:
        """Nothing is given, and somebody sits at the terminal."""
        return self.file is None and sys.stdin.isatty()

    def read(self) -> InputLines:
        return read_input(self.file)

    def writable_out(self) -> Path | None:
        return self.out and writable_file(self.out)


def read_whole_input(argument: str | None) -> str:
    """The same as one text, its line ends as they are."""
    from regard.data.files import iter_lines, read_lines

    if argument is None or argument == "-":
        return "".join(iter_lines(sys.stdin.buffer, "stdin", keep_ends=True))
    return announce_sentence(argument) if is_sentence(argument) else "".join(read_lines(argument, keep_ends=True))


def is_sentence(argument: str) -> bool:
    """A word or several that name no file; a word with a slash or an ending is a file that is missing."""
    words = argument.split()
    if not words:
        raise ValueError("the sentence is empty; give at least one word")
    if Path(argument[:MAX_FILE_NAME]).exists():
        return False
    return len(words) > 1 or not re.search(r"[/\\]|\.[^.!?…]", argument)


def announce_sentence(argument: str) -> str:
    """The sentence; if it might be meant as a file, a notice on stderr says how it is read."""
    one_word = len(argument.split()) == 1
    ends = argument.rstrip().endswith((".", "!", "?", "…"))
    if not ends and (one_word or re.search(r"\S/\S|\.\w{1,6}$", re.sub(r"\w+://\S+", "", argument))):
        shown = argument if len(argument) <= MAX_QUOTED else f"{argument[:MAX_QUOTED]}…"
        typer.echo(f"regard: no file is called {shown!r}; it is read as a sentence", err=True)
    return argument


def shell_command(*words: object) -> str:
    """A command that can be copied into a shell."""
    import shlex

    return shlex.join(map(str, words))


def refuse_long(encoded: Iterable[Sequence[int]], where: Callable[[int], str], max_length: int, first: int = 1) -> None:
    """`where` gives the location of a text by its number; texts are counted from `first`."""
    for number, ids in enumerate(encoded, first):
        if len(ids) > max_length:
            raise ValueError(
                f"{where(number)}: {len(ids):,} tokens; split it, or allow it with --max-length {len(ids)}"
            )


def parse_head(text: str, heads: Sequence[int]) -> tuple[int, int]:
    """LAYER:HEAD, both counted from 0; so many heads has each layer."""
    layer, _, head = text.partition(":")
    if not (layer.isdecimal() and head.isdecimal() and int(layer) < len(heads) and int(head) < heads[int(layer)]):
        raise ValueError(
            f"--head {text}: write LAYER:HEAD, counted from 0: layers to {len(heads) - 1}, heads to {heads[0] - 1}"
        )
    return int(layer), int(head)


# --- lines typed at a prompt, and lines of output ---


def print_notice(line: str) -> None:
    """On stderr, so that it does not stand among the output."""
    typer.echo(line, err=True)


def answer_typed_lines(invitation: str, answer: Callable[[str], object]) -> None:
    """Reads lines at a prompt until an empty one; an error is printed, and the loop continues."""
    typer.echo(f"{invitation}; an empty line or Ctrl-D exits.", err=True)
    while line := read_line():
        try:
            answer(line)
        except ValueError as mistake:
            typer.echo(f"regard: {mistake}", err=True)


def read_line() -> str:
    typer.echo("> ", nl=False, err=True)  # not by input(), whose prompt would stand among redirected translations
    try:
        return input().strip()
    except EOFError:
        return ""


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


# --- output paths, checked before the work begins ---


def writable_folder(path: Path) -> Path:
    """The path of a folder to write into; it need not exist."""
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        raise ValueError(f"{there}: is a file, not a folder; choose another path")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{there}: no write permission; choose another folder")
    return path


def writable_file(path: Path) -> Path:
    """The path of a file to write; a symbolic link is resolved, since it would be replaced otherwise."""
    from regard.data.files import check_replaceable

    if path == Path("-"):
        raise ValueError("- stands for stdout, which has other output here; give the name of a file")
    path = path.resolve() if path.is_symlink() else path
    check_replaceable(path)
    writable_folder(path.parent)
    return path


def writable_files(**named: Path | None) -> Iterator[Path | None]:
    """The same for several options, which must not name the same file: the second would overwrite the first."""
    taken: dict[Path, str] = {}
    for option, given in named.items():
        path = given and writable_file(given)
        if path and (other := taken.setdefault(path.resolve(), option)) != option:
            raise ValueError(f"--{other} and --{option} are one file, {given}; give each a file of its own")
        yield path
