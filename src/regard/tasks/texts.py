"""The [data] of a run in; running text of a split out, line by line: of the world, of files, or of a known corpus."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.tasks.data import HELD_OUT, Read, Sources, Split, read_from
from regard.tasks.tables import From
from regard.text.known import known_path
from regard.text.plain import read_text
from regard.world import World

SHAKESPEARE = "tinyshakespeare"  # one text, of which everybody trains on the first nine tenths of the characters


@dataclass(frozen=True, kw_only=True)
class WriteData(From):
    """Running text; files are plain text. It is learnt in blocks of train.longest tokens."""

    lead: int = 0  # tokens before each block that are read for their context, and not learnt
    sentences: int = 20_000  # for the world: how many, and of how many words
    shortest: int = 3
    longest: int = 12

    def __post_init__(self):
        if self.lead < 0:
            raise ValueError(f"data.lead = {self.lead} should be at least 0")


def read_texts(data: WriteData, split: Split, folder: Path | None = None) -> Read[str]:
    """The lines of a split, each with its end: together they are the text, letter by letter."""
    world = World(shortest=data.shortest, longest=data.longest)
    parted = data.corpus == "files" and not data.valid and split != "test"

    def of_files(paths: Sequence[str]) -> Read[str]:
        text = "".join(ended(read_text(path)) for path in paths)
        if not text.strip():
            raise ValueError(f"{' and '.join(paths)}: there is no text; give at least one word")
        return Read(lines_in(part(text, split) if parted else text))

    def of_known(name: str, split: Split, folder: Path | None) -> list[str]:
        if name != SHAKESPEARE:
            return lines_in(read_text(known_path(name, split, folder)))
        if split == "test":
            raise ValueError(f"{name} has no split 'test'; it has train, valid")
        text = read_text(known_path(name, "whole", folder))
        nine = len(text) * 9 // 10
        return lines_in(text[:nine] if split == "train" else text[nine:])

    sources = Sources(
        world=lambda split, count: [
            f"{' '.join(world.sentence(number, split).words)}\n" for number in range(count or data.sentences)
        ],
        files=of_files,
        known=of_known,
        examples="lines",
        files_called=lambda split: f'{split} = ["{split}.txt"], or on the command line --{split} {split}.txt',
    )
    if parted and data.train:  # a text is cut once: of every hundredth line nothing would stand before it
        return of_files(data.train)
    return read_from(sources, data, split, folder)


def ended(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"


def part(text: str, split: Split) -> str:
    """Of a text without one to validate on the last hundredth is held out, from the beginning of a word."""
    at = len(text) - max(1, len(text) // HELD_OUT)
    at = 1 + max(text.rfind(blank, 0, at) for blank in " \n")
    found = text[:at] if split == "train" else text[at:]
    if not found.strip():
        raise ValueError(f"no text is left for {split}; give more, or files of its own: --valid valid.txt")
    return found


def lines_in(text: str) -> list[str]:
    """With their ends; a line ends in \\n and nowhere else."""
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + ([rest] if rest else [])
