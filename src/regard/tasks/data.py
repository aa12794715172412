"""The [data] of a run and the name of a split in; its examples out: of the world, of files, or of a known corpus."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, NoReturn, TypeVar, get_args

from regard.tasks.settings import DataSettings
from regard.tasks.tables import From
from regard.text.corpus import Pair, kind, read_pairs
from regard.text.known import known_pairs
from regard.world.stories import Stories, graded
from regard.world.stories import pairs as story_pairs
from regard.world.world import World, pairs

Split = Literal["train", "valid", "test"]
HELD_OUT = 100  # of training examples without validation files, every hundredth is held out, of fewer the last
WORLD_TESTS = 1000  # examples of the world to validate on, and as many to test on
E = TypeVar("E")


@dataclass(frozen=True)
class Read(Generic[E]):
    """Examples, and what was left out of them in sentences."""

    examples: list[E]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sources(Generic[E]):
    """How a task reads its examples, wherever they come from.

    Args:
        world: so many examples of a split of the miniature world; there are always others.
        files: what the files of one split hold.
        known: a split of a known corpus, by its name, in a folder.
        examples: what they are called.
        files_called: for a split, how its files are given in a recipe and on the command line.
        made: the corpora that `world` makes.
    """

    world: Callable[[Split, int | None], list[E]]
    files: Callable[[Sequence[str]], Read[E]]
    known: Callable[[str, Split, Path | None], list[E]]
    examples: str
    files_called: Callable[[Split], str]
    made: tuple[str, ...] = ("world",)


def read_from(sources: Sources[E], data: From, split: Split, folder: Path | None = None) -> Read[E]:
    """`folder` holds the known corpora."""
    if split not in get_args(Split):
        raise ValueError(f"a split is one of {', '.join(get_args(Split))}, not {split!r}")
    if data.corpus == "files":
        return of_files(sources, data, split)
    if named := data.train or data.valid or data.test:
        raise ValueError(f"{named[0]} would not be read, since data.corpus = {data.corpus!r}; set it to files")
    if data.corpus in sources.made:
        return Read(sources.world(split, None if split == "train" else WORLD_TESTS))
    return Read(sources.known(data.corpus, split, folder))


def of_files(sources: Sources[E], data: From, split: Split) -> Read[E]:
    named: dict[Split, tuple[str, ...]] = {"train": data.train, "valid": data.valid, "test": data.test}
    from_train = split == "valid" and not data.valid
    paths = data.train if from_train else named[split]
    if not paths:
        raise ValueError(f"data.{split} names no files; e.g. {sources.files_called(split)}")
    found = sources.files(paths)
    if from_train or (split == "train" and not data.valid):
        found = Read(divided(found.examples, split), found.skipped)
    if not found.examples:
        examples = sources.examples.removesuffix("s")
        raise ValueError(f"{' and '.join(paths)}: no {examples} is left for {split}; give more, or files of its own")
    return found


def divided(examples: Sequence[E], split: Split, every: int = HELD_OUT) -> list[E]:
    """Where nobody set examples aside to validate on: each hundredth, or of fewer the last; the rest is to train on."""
    held_out = set(range(every - 1, len(examples), every)) or {len(examples) - 1}
    return [one for n, one in enumerate(examples) if (n in held_out) == (split == "valid")]


# --- sentence pairs ---


def read_split(data: DataSettings, split: Split, folder: Path | None = None) -> Read[Pair]:
    """The sentence pairs of a split."""
    sources = Sources(
        world=lambda split, count: of_world(data, split, data.sentences if count is None else count),
        files=lambda paths: given_pairs(paths, data),
        known=lambda name, split, folder: known_pairs(name, split, data.source, data.target, folder),
        examples="pairs",
        files_called=lambda split: (
            f'{split} = ["{split}.en", "{split}.de"] or ["{split}.tsv"], '
            f"or on the command line --{split} {split}.en --{split} {split}.de"
        ),
        made=("world", "stories"),
    )
    return read_from(sources, data, split, folder)


def of_world(data: DataSettings, split: Split, count: int) -> list[Pair]:
    if data.corpus == "stories":
        told = graded if split == "train" else story_pairs
        return [Pair(*pair) for pair in told(Stories(words=data.longest, told=1), count, split)]
    world = World(shortest=data.shortest, longest=data.longest)
    if data.source == "en":
        return [Pair(*pair) for pair in pairs(world, data.target, count, split)]
    if data.target == "en":
        return [Pair(*pair).swapped() for pair in pairs(world, data.source, count, split)]
    raise ValueError(f"the world translates from or into en, not from {data.source!r} into {data.target!r}")


def given_pairs(paths: Sequence[str], data: DataSettings) -> Read[Pair]:
    """The pairs of one .tsv, of one .jsonl, whose fields are the languages, or of two text files."""
    if len(paths) > 1 and (tables := [path for path in paths if kind(Path(path)) in (".tsv", ".jsonl")]):
        raise ValueError(f"{tables[0]} holds both sides already; give it alone, or two files of plain text")
    skipped: list[str] = []
    blank: Callable[[str], object] = skipped.append if data.skip_empty else refuse
    return Read(list(read_pairs(paths, fields=(data.source, data.target), blank=blank)), tuple(skipped))


def refuse(sentence: str) -> NoReturn:
    raise ValueError(f"{sentence}; fill it in, remove it, or train with --set data.skip_empty=true")
