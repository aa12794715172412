"""Files of words with their tags in; tagged sentences out, and back, with all that is not a tag left as it was.

read_tagged("train.conllu.xz")                       CoNLL-U: ten columns, trees, comments
read_tagged("train.tsv")                             word<TAB>tag, or blanks between; a blank line ends a sentence
write_conllu([sentence.retagged(tags)], "a.conllu")  the same lines with other tags
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

from regard.text.corpus import kind
from regard.text.files import existing, read_lines, sound, whole
from regard.text.writing import packed

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
NONE = "_"
LONGEST_SENTENCE = 2**24  # letters, with all its columns
# 3-4 writes two words as one (don't), 8.1 is a word that was not said: neither is in the sequence of words.
ASIDE = re.compile(r"[1-9][0-9]*-[1-9][0-9]*|[0-9]+\.[1-9][0-9]*")


@dataclass(frozen=True)
class Tagged:
    """A sentence word by word. `heads` are those of CoNLL-U: counted from 1, 0 for the root. The tag _ means none."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...] | None = None
    comments: tuple[str, ...] = ()
    lines: tuple[str, ...] = field(default=(), repr=False)
    """The lines of the CoNLL-U file behind the comments, which are written again with the tags of now."""

    def __post_init__(self):
        counts = [len(self.words), len(self.tags), *([] if self.heads is None else [len(self.heads)])]
        if len(set(counts)) > 1:
            raise ValueError(f"{' and '.join(map(str, counts))} words, tags and heads; every word has one of each")
        if found := fault(self.words, self.tags, self.heads):
            raise ValueError(f"word {found[0] + 1}: {found[1]}")
        if wrong := [one for one in self.comments if not one.startswith("#") or "\n" in one or "\r" in one]:
            raise ValueError(f"{wrong[0]!r} is no comment; a comment is one line that begins with #")

    def retagged(self, tags: Sequence[str]) -> "Tagged":
        """The same sentence with other tags."""
        return replace(self, tags=tuple(tags))


def read_tagged(path: str | Path) -> Iterator[Tagged]:
    """The sentences of a .conllu, or of two columns in a .tsv or .txt; each plain, .gz or .xz by its name."""
    path = existing(path)
    match kind(path):
        case ".conllu":
            return read_conllu(path)
        case ".tsv" | ".txt":
            return read_columns(path)
    raise ValueError(f"{path}: tagged words end in .conllu, .tsv or .txt, not {kind(path)!r}; rename the file")


def read_conllu(path: str | Path) -> Iterator[Tagged]:
    """One sentence at a time, with the universal part of speech (UPOS) as its tags.

    The heads are None if the file has _ for all of them; otherwise they must be a tree. Several blank lines count as
    one, and after the last sentence there may be none.
    """
    return (_sentence(lines) for lines in _paragraphs(existing(path)))


def read_columns(path: str | Path) -> Iterator[Tagged]:
    """One sentence at a time. A word may hold blanks if a tab parts it from its tag."""
    return (_two_columns(lines) for lines in _paragraphs(existing(path)))


def write_conllu(sentences: Iterable[Tagged], path: str | Path) -> int:
    """How many sentences were written. Those that were read from CoNLL-U keep everything but their tags."""
    return _write((ten_columns(sentence, f"sentence {n}") for n, sentence in enumerate(sentences, 1)), path)


def write_columns(sentences: Iterable[Tagged], path: str | Path) -> int:
    """How many sentences were written: word<TAB>tag on every line, and a blank line after every sentence."""
    return _write((two_columns(sentence) for sentence in sentences), path)


# --- what makes a sentence ---


def fault(words: Sequence[str], tags: Sequence[str], heads: Sequence[int] | None) -> tuple[int, str] | None:
    """The first word, counted from 0, with which something is wrong, and what; None if all is well."""
    if not words:
        return 0, "missing; a sentence has at least one word"
    for at, (word, tag) in enumerate(zip(words, tags, strict=True)):
        if not word or set(word) & set("\t\n\r"):
            return at, f"{word!r} cannot be a word; it is not empty, and no tab or line end is inside"
        if tag.split() != [tag]:
            return at, f"{tag!r} cannot be a tag; it is not empty and has no blanks (write {NONE} where there is none)"
    return None if heads is None else _no_tree(heads)


def _no_tree(heads: Sequence[int]) -> tuple[int, str] | None:
    if strays := [at for at, head in enumerate(heads) if not 0 <= head <= len(heads)]:
        head = heads[strays[0]]
        return strays[0], f"the head {head} is not in the sentence; choose from 1 to {len(heads)}, or 0 for the root"
    roots = [at for at, head in enumerate(heads) if head == 0]
    if not roots:
        return 0, "no word of this sentence has the head 0; give it to the root"
    if len(roots) > 1:
        return roots[1], f"a second root, after word {roots[0] + 1}; only one word of a sentence has the head 0"
    reaches = set(roots)
    for start in range(len(heads)):
        way, at = [], start
        while at not in reaches and at not in way:
            way.append(at)
            at = heads[at] - 1
        if at not in reaches:
            circle = [*way[way.index(at) :], at]
            shown = " → ".join(str(one + 1) for one in circle)
            return at, f"the heads run in a circle ({shown}) and never reach the root; correct one of them"
        reaches.update(way)
    return None


# --- reading ---

Placed = tuple[str, str]  # where it stands, and the line


def _paragraphs(path: Path) -> Iterator[list[Placed]]:
    """The lines between blank lines."""
    held, taken = list[Placed](), 0
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            held.append((f"{path}:{number}", line))
            taken += len(line)
            if taken > LONGEST_SENTENCE:
                raise ValueError(
                    f"{path}:{number}: a sentence of more than {LONGEST_SENTENCE:,} letters; end each with a blank line"
                )
        elif held:
            yield held
            held, taken = [], 0
    if held:
        yield held


def _sentence(placed: list[Placed]) -> Tagged:
    comments = tuple(line for _, line in takewhile(lambda one: one[1].startswith("#"), placed))
    words: list[tuple[str, list[str]]] = []
    for where, line in placed[len(comments) :]:
        cells = _cells(line, where)
        if ASIDE.fullmatch(cells[0]):
            continue
        if cells[0] != str(len(words) + 1):
            raise ValueError(
                f"{where}: the number {cells[0]!r} where {len(words) + 1} is due; number the words of a sentence "
                "1, 2, 3 ..., and end it with a blank line"
            )
        words.append((where, cells))
    if not words:
        raise ValueError(f"{placed[0][0]}: no word before the next blank line; remove that line, or these")
    return _sound(
        [where for where, _ in words],
        tuple(cells[1] for _, cells in words),
        tuple(cells[3] for _, cells in words),
        _heads(words),
        comments,
        tuple(line for _, line in placed[len(comments) :]),
    )


def _cells(line: str, where: str) -> list[str]:
    if line.startswith("#"):
        raise ValueError(f"{where}: a comment inside a sentence; move it before the first word")
    cells = line.split("\t")
    if len(cells) != len(COLUMNS):
        raise ValueError(
            f"{where}: {_columns(len(cells))}; CoNLL-U has {len(COLUMNS)}, with one tab between: {' '.join(COLUMNS)}"
        )
    if "" in cells:
        raise ValueError(
            f"{where}: the column {COLUMNS[cells.index('')]} is empty; write {NONE} where there is nothing"
        )
    return cells


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _heads(words: list[tuple[str, list[str]]]) -> tuple[int, ...] | None:
    if all(cells[6] == NONE for _, cells in words):
        return None
    for where, cells in words:
        if not re.fullmatch("0|[1-9][0-9]*", cells[6]):
            raise ValueError(
                f"{where}: the head {cells[6]!r} is no whole number; write that of a word, 0 for the root, "
                f"or {NONE} for every word of the sentence"
            )
    return tuple(int(cells[6]) for _, cells in words)


def _two_columns(placed: list[Placed]) -> Tagged:
    rows = [line.split("\t") if "\t" in line else line.split() for _, line in placed]
    for (where, _), cells in zip(placed, rows, strict=True):
        if len(cells) != 2:
            raise ValueError(f"{where}: {_columns(len(cells))}; a line is a word, a tab or blanks, and its tag")
    return _sound([where for where, _ in placed], tuple(word for word, _ in rows), tuple(tag for _, tag in rows))


def _sound(
    places: list[str],
    words: tuple[str, ...],
    tags: tuple[str, ...],
    heads: tuple[int, ...] | None = None,
    comments: tuple[str, ...] = (),
    lines: tuple[str, ...] = (),
) -> Tagged:
    """The sentence; what is wrong with it is told by the line, not by the word's number."""
    if found := fault(words, tags, heads):
        raise ValueError(f"{places[found[0]]}: {found[1]}")
    return Tagged(words, tags, heads, comments, lines)


# --- writing ---


def two_columns(sentence: Tagged) -> list[str]:
    """The lines of a sentence, word<TAB>tag."""
    return [f"{word}\t{tag}" for word, tag in zip(sentence.words, sentence.tags, strict=True)]


def ten_columns(sentence: Tagged, where: str) -> list[str]:
    heads = [NONE] * len(sentence.words) if sentence.heads is None else [str(head) for head in sentence.heads]
    fresh = [
        f"{at}\t{word}\t{NONE}\t{tag}\t{NONE}\t{NONE}\t{head}\t{NONE}\t{NONE}\t{NONE}"
        for at, (word, tag, head) in enumerate(zip(sentence.words, sentence.tags, heads, strict=True), 1)
    ]
    if not sentence.lines:
        return [*sentence.comments, *fresh]
    rows = [line.split("\t") for line in sentence.lines]
    spoken = [at for at, cells in enumerate(rows) if not ASIDE.fullmatch(cells[0])]
    if [(rows[at][1], rows[at][6]) for at in spoken] != list(zip(sentence.words, heads, strict=True)):
        raise ValueError(f"{where}: its lines hold other words or heads; leave `lines` out to write it anew")
    for at, tag in zip(spoken, sentence.tags, strict=True):
        rows[at][3] = tag
    return [*sentence.comments, *("\t".join(cells) for cells in rows)]


def _write(sentences: Iterable[list[str]], path: str | Path) -> int:
    path, count = Path(path), 0
    with whole(path) as raw, packed(raw, path.suffix) as file:
        for count, lines in enumerate(sentences, 1):
            file.write(sound("\n".join([*lines, "", ""]), f"sentence {count}").encode())
    return count
