"""What is a corpus that has a name? Its title, licence and home, and its files with their checksums, as a value."""

from dataclasses import KW_ONLY, dataclass
from itertools import combinations


@dataclass(frozen=True)
class Part:
    """One file: of one language, or a table with a column for each of two."""

    split: str
    languages: tuple[str, ...]
    path: str
    """Below the folder of all corpora, without .gz or .xz."""
    sha256: str
    """Of the content, unpacked: a plain, a .gz and a .xz copy of one text have the same."""
    address: str | None = None
    """Where this very file is public."""


@dataclass(frozen=True)
class Known:
    """A corpus that has a name."""

    name: str
    _: KW_ONLY
    title: str
    size: str
    licence: str
    ships: bool
    """May weights that were trained on it be given to others?"""
    homepage: str
    parts: tuple[Part, ...]
    originals: tuple[str, ...] = ()
    """Public archives to make it from, where its files are not public one by one."""
    note: str = ""
    """In what the files differ from the public ones, and how to make them."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.split for part in self.parts))

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(language for part in self.parts for language in part.languages))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The languages it translates between, both ways. Files of one language each match line by line."""
        tables = dict.fromkeys((a, b) for a, b in (part.languages for part in self.parts if len(part.languages) == 2))
        sides = dict.fromkeys(part.languages[0] for part in self.parts if len(part.languages) == 1)
        return (*tables, *combinations(sides, 2))


def parts(folder: str, table: str, *, at: str = "", ending: str = "") -> tuple[Part, ...]:
    """Lines of split, languages (- for none), name and checksum; `at` is where the files are public, and packed how."""
    rows = [line.split() for line in table.strip().splitlines()]
    return tuple(
        Part(
            split,
            () if languages == "-" else tuple(languages.split("-")),
            f"{folder}/{name}",
            sha256,
            f"{at}{name}{ending}" if at else None,
        )
        for split, languages, name, sha256 in rows
    )
