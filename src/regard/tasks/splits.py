"""Data splits: reads the examples of train, valid or test from the world, files or a known corpus."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, NoReturn, TypeVar, get_args

from regard.tasks.config import DataSettings

Split = Literal["train", "valid", "test"]
HELD_OUT = 100  # of training examples without validation files, every hundredth is held out, of fewer the last
WORLD_TESTS = 1000  # examples of the world to validate on, and as many to test on
E = TypeVar("E")


@dataclass(frozen=True)
class LoadedExamples(Generic[E]):
    """Examples, and what was left out of them in sentences."""

    examples: list[E]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExampleReaders(Generic[E]):
    """How a task reads its examples, wherever they come from.

    Args:
        world: so many examples of a split of the miniature world; there are always others.
        files: what the files of one split hold.
        known: a split of a known corpus, by its name, in a folder.
        examples: what they are called.
        files_hint: for a split, how its files are given in a recipe and on the command line.
        generated: the corpora that `world` makes.
    """

    world: Callable[[Split, int | None], list[E]]
    files: Callable[[Sequence[str]], LoadedExamples[E]]
    known: Callable[[str, Split, Path | None], list[E]]
    examples: str
    files_hint: Callable[[Split], str]
    generated: tuple[str, ...] = ("world",)


def read_examples(
    sources: ExampleReaders[E], data: DataSettings, split: Split, folder: Path | None = None
) -> LoadedExamples[E]:
    """`folder` holds the known corpora."""
    if split not in get_args(Split):
        raise ValueError(f"a split is one of {', '.join(get_args(Split))}, not {split!r}")
    if data.corpus == "files":
        return read_from_files(sources, data, split)
    if named := data.train or data.valid or data.test:
        raise ValueError(f"{named[0]} would not be read, since data.corpus = {data.corpus!r}; set it to files")
    if data.corpus in sources.generated:
        return LoadedExamples(sources.world(split, None if split == "train" else WORLD_TESTS))
    return LoadedExamples(sources.known(data.corpus, split, folder))


def read_from_files(sources: ExampleReaders[E], data: DataSettings, split: Split) -> LoadedExamples[E]:
    named: dict[Split, tuple[str, ...]] = {"train": data.train, "valid": data.valid, "test": data.test}
    from_train = split == "valid" and not data.valid
    paths = data.train if from_train else named[split]
    if not paths:
        raise ValueError(f"data.{split} names no files; e.g. {sources.files_hint(split)}")
    found = sources.files(paths)
    if from_train or (split == "train" and not data.valid):
        found = LoadedExamples(split_held_out(found.examples, split), found.skipped)
    if not found.examples:
        examples = sources.examples.removesuffix("s")
        raise ValueError(f"{' and '.join(paths)}: no {examples} is left for {split}; give more, or files of its own")
    return found


def split_held_out(examples: Sequence[E], split: Split, every: int = HELD_OUT) -> list[E]:
    """Where nobody set examples aside to validate on: each hundredth, or of fewer the last; the rest is to train on."""
    held_out = set(range(every - 1, len(examples), every)) or {len(examples) - 1}
    return [one for n, one in enumerate(examples) if (n in held_out) == (split == "valid")]


def refuse_blank(sentence: str) -> NoReturn:
    raise ValueError(f"{sentence}; fill it in, remove it, or train with --set data.skip_empty=true")
