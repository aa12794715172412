"""The [data] of a run and the name of a split in; its sentence pairs out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, get_args

from regard.tasks.settings import DataSettings
from regard.text.corpus import Pair, kind, read_pairs
from regard.text.known import known_pairs
from regard.world.world import World, pairs

Split = Literal["train", "valid", "test"]
HELD_OUT = 100  # of training pairs without validation files, every hundredth is held out, of fewer the last
WORLD_TESTS = 1000  # sentences of the world to validate on, and as many to test on


@dataclass(frozen=True)
class Parallel:
    """Sentence pairs, and what was left out of them in sentences."""

    pairs: list[Pair]
    skipped: tuple[str, ...] = ()


def read_split(data: DataSettings, split: Split, folder: Path | None = None) -> Parallel:
    """`folder` holds the known corpora."""
    if split not in get_args(Split):
        raise ValueError(f"a split is one of {', '.join(get_args(Split))}, not {split!r}")
    if data.corpus == "files":
        return of_files(data, split)
    if named := data.train or data.valid or data.test:
        raise ValueError(f"{named[0]} would not be read, since data.corpus = {data.corpus!r}; set it to files")
    if data.corpus == "world":
        return Parallel(of_world(data, split))
    return Parallel(known_pairs(data.corpus, split, data.source, data.target, folder))


def of_world(data: DataSettings, split: Split) -> list[Pair]:
    world = World(shortest=data.shortest, longest=data.longest)
    count = data.sentences if split == "train" else WORLD_TESTS
    if data.source == "en":
        return [Pair(*pair) for pair in pairs(world, data.target, count, split)]
    if data.target == "en":
        return [Pair(*pair).swapped() for pair in pairs(world, data.source, count, split)]
    raise ValueError(f"the world translates from or into en, not from {data.source!r} into {data.target!r}")


def of_files(data: DataSettings, split: Split) -> Parallel:
    named: dict[Split, tuple[str, ...]] = {"train": data.train, "valid": data.valid, "test": data.test}
    from_train = split == "valid" and not data.valid
    paths = data.train if from_train else named[split]
    if not paths:
        raise ValueError(
            f'data.{split} names no files; e.g. {split} = ["{split}.en", "{split}.de"] or ["{split}.tsv"], '
            f"or on the command line --{split} {split}.en --{split} {split}.de"
        )
    found = given_pairs(paths, data)
    if from_train or (split == "train" and not data.valid):
        count = len(found.pairs)
        held_out = set(range(HELD_OUT - 1, count, HELD_OUT)) or {count - 1}
        found = Parallel([pair for n, pair in enumerate(found.pairs) if (n in held_out) == from_train], found.skipped)
    if not found.pairs:
        raise ValueError(f"{' and '.join(paths)}: no pair is left for {split}; give more, or files of its own")
    return found


def given_pairs(paths: Sequence[str], data: DataSettings) -> Parallel:
    """The pairs of one .tsv, of one .jsonl, whose fields are the languages, or of two text files."""
    if len(paths) > 1 and (tables := [path for path in paths if kind(Path(path)) in (".tsv", ".jsonl")]):
        raise ValueError(f"{tables[0]} holds both sides already; give it alone, or two files of plain text")
    skipped: list[str] = []
    blank: Callable[[str], object] = skipped.append if data.skip_empty else refuse
    return Parallel(list(read_pairs(paths, fields=(data.source, data.target), blank=blank)), tuple(skipped))


def refuse(sentence: str) -> NoReturn:
    raise ValueError(f"{sentence}; fill it in, remove the pair, or train with --set data.skip_empty=true")
