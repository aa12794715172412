"""Labelled texts: .tsv and .jsonl files for text classification, the label vocabulary; and sentences with tagged words.

read_labelled("sst2/train.tsv.xz")                                       text<TAB>label
read_labelled("imdb/train.tsv.xz", columns=("label", "rating", "text"))  whatever the columns are
read_labelled("train.jsonl", fields=("review", "stars"))                 {"review": "...", "stars": 5} on every line
read_tagged("train.conllu.xz")                       CoNLL-U: ten columns, trees, comments
read_tagged("train.tsv")                             word<TAB>tag, or spaces between; a blank line ends a sentence
write_conllu([sentence.with_tags(tags)], "a.conllu")  the same lines with other tags
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from regard.data.files import (
    check_text,
    file_format,
    open_atomic,
    open_compressed,
    read_json_objects,
    read_lines,
    require_file,
    require_small_file,
    write_text_atomic,
)
from regard.data.tokenizers.base import UNK, Tokenizer

FORMAT = "regard labels 1"
MAX_LISTED = 20  # so many labels are named in a message


@dataclass(frozen=True)
class LabelledText:
    """A text and its label.

    Examples:
        >>> LabelledText("a fine film", "good")
        LabelledText(text='a fine film', label='good')
    """

    text: str
    label: str


@dataclass(frozen=True)
class Labels:
    """The label vocabulary: the classes of texts or of words, each with its index.

    Examples:
        >>> labels = Labels.of(["good", "bad", "good"])
        >>> labels.names, labels.index("good"), labels.name(0)
        (('bad', 'good'), 1, 'bad')
        >>> labels.index("fine")
        Traceback (most recent call last):
            ...
        ValueError: the label 'fine' is not known; the known ones are bad, good
    """

    names: tuple[str, ...]

    def __post_init__(self):
        if not self.names:
            raise ValueError("no labels; a classifier needs at least one")
        if wrong := [name for name in self.names if not isinstance(name, str) or not name.strip()]:
            raise ValueError(f"{wrong[0]!r} cannot be a label; a label is a text that is not empty")
        if twice := [name for name, times in Counter(self.names).items() if times > 1]:
            raise ValueError(f"the label {twice[0]!r} stands twice among the labels; name each once")

    @staticmethod
    def of(labels: Iterable[str]) -> "Labels":
        """All that occur, in code-point order, so that the indices do not depend on the order of the texts."""
        return Labels(tuple(sorted(set(labels))))

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def index(self, name: str, where: str = "") -> int:
        """The label's index; `where` is where the label was read, for the error."""
        if name not in self._numbers:
            more = f" and {len(self) - MAX_LISTED} more" if len(self) > MAX_LISTED else ""
            shown = ", ".join(self.names[:MAX_LISTED]) + more
            raise ValueError(f"{where and f'{where}: '}the label {name!r} is not known; the known ones are {shown}")
        return self._numbers[name]

    def name(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise ValueError(f"there is no label number {index}; there are {len(self)}, counted from 0")
        return self.names[index]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def save(self, path: str | Path) -> None:
        write_text_atomic(
            path, json.dumps({"format": FORMAT, "names": self.names}, ensure_ascii=False, indent=1) + "\n"
        )

    @staticmethod
    def load(path: str | Path) -> "Labels":
        path = require_small_file(path)
        try:
            saved = json.loads(path.read_bytes().decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: damaged, or no labels at all ({error}); save them again") from None
        if not isinstance(saved, dict) or saved.get("format") != FORMAT or not isinstance(saved.get("names"), list):
            raise ValueError(f"{path}: not the labels of this Regard, whose format is {FORMAT!r}; save them again")
        try:
            return Labels(tuple(saved["names"]))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: damaged: {error}; save them again") from None


def raise_on_empty(sentence: str) -> NoReturn:
    """The default handler of an empty text or label: an error."""
    raise ValueError(f"{sentence}; fill it in, remove the line, or skip such lines")


def read_labelled(
    path: str | Path,
    *,
    fields: tuple[str, str] = ("text", "label"),
    columns: Sequence[str] | None = None,
    labels: Labels | None = None,
    on_empty: Callable[[str], object] = raise_on_empty,
) -> Iterator[LabelledText]:
    r"""The texts of a .tsv or a .jsonl, plain, .gz or .xz by its name, one at a time.

    `fields` names the text and the label, and `columns` all columns of a .tsv in their order: those two by default.
    A first line that repeats these names is a heading.
    With `labels`, any other label is refused. `on_empty` is called for a line whose text or label is empty, with a
    sentence that names file and line; the default raises, otherwise the line is skipped. Labels are stripped.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("reviews.tsv").write_text("a fine film\tgood\ntoo long\tbad\n")
        >>> list(read_labelled("reviews.tsv"))
        [LabelledText(text='a fine film', label='good'), LabelledText(text='too long', label='bad')]
    """
    path = require_file(path)
    match file_format(path):
        case ".tsv":
            located = _tsv(path, fields, _columns(fields, fields if columns is None else columns))
        case ".jsonl" if columns is None:
            located = _jsonl(path, fields)
        case ".jsonl":
            raise ValueError(f"{path}: a .jsonl has no columns; leave out columns={columns!r} and name the fields")
        case ending:
            raise ValueError(f"{path}: texts with labels end in .tsv or .jsonl, not {ending!r}; rename the file")
    return _skip_empty(located, labels, on_empty)


def _columns(fields: tuple[str, str], columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str) or len(set(columns)) < len(columns):
        raise ValueError(f"columns={columns!r} must be the names of all columns, without repetition")
    if missing := [name for name in fields if name not in columns]:
        raise ValueError(f"no column is called {missing[0]!r}, only {', '.join(columns)}; name the two in `fields`")
    return tuple(columns)


LocatedText = tuple[str, LabelledText]  # file:line, and the text


def _skip_empty(
    located: Iterator[LocatedText], labels: Labels | None, on_empty: Callable[[str], object]
) -> Iterator[LabelledText]:
    for where, one in located:
        if not one.text.strip() or not one.label.strip():
            on_empty(f"{where}: the {'label' if one.text.strip() else 'text'} is empty")
            continue
        if labels is not None:
            labels.index(one.label, where)
        yield one


def _tsv(path: Path, fields: tuple[str, str], columns: tuple[str, ...]) -> Iterator[LocatedText]:
    text, label = (columns.index(name) for name in fields)
    for number, line in enumerate(read_lines(path), 1):
        cells = line.split("\t") if line.strip() else [""] * len(columns)
        if len(cells) != len(columns):
            count = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
            expected = ", tab, ".join(columns)
            raise ValueError(f"{path}:{number}: {count}; a line is {expected}, which are {len(columns)}")
        if number == 1 and tuple(cells) == columns:
            continue
        yield f"{path}:{number}", LabelledText(cells[text], cells[label].strip())


def _jsonl(path: Path, fields: tuple[str, str]) -> Iterator[LocatedText]:
    for where, row in read_json_objects(path, fields):
        if row is None:
            yield where, LabelledText("", "")
            continue
        text, label = (row[name] for name in fields)
        if not isinstance(text, str):
            raise ValueError(f"{where}: the field {fields[0]!r} is {type(text).__name__}, not text")
        # Labels are often written as numbers; 1 and "1" are one label. True is a number to Python, but no label.
        if not isinstance(label, str | int) or isinstance(label, bool):
            raise ValueError(f"{where}: the field {fields[1]!r} is {label!r}; a label is a text or a whole number")
        yield where, LabelledText(check_text(text, where), check_text(str(label).strip(), where))


# --- tagged sentences ---

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
NO_VALUE = "_"
MAX_SENTENCE_BYTES = 2**24  # characters, with all its columns
# 3-4 is a multiword token (don't), 8.1 an empty node: neither is in the sequence of words.
NON_WORD_ID = re.compile(r"[1-9][0-9]*-[1-9][0-9]*|[0-9]+\.[1-9][0-9]*")


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence, a tag per word (_ is none); `governors` are the HEAD column of CoNLL-U: from 1, 0 for the root.

    Examples:
        >>> sentence = TaggedSentence(("the", "cat", "sleeps"), ("DET", "NOUN", "VERB"), governors=(2, 3, 0))
        >>> sentence.with_tags(["D", "N", "V"]).tags
        ('D', 'N', 'V')
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    governors: tuple[int, ...] | None = None
    comments: tuple[str, ...] = ()
    lines: tuple[str, ...] = field(default=(), repr=False)
    """The lines of the CoNLL-U file after the comments, which are written again with the current tags."""

    def __post_init__(self):
        counts = [len(self.words), len(self.tags), *([] if self.governors is None else [len(self.governors)])]
        if len(set(counts)) > 1:
            raise ValueError(f"{' and '.join(map(str, counts))} words, tags and governors; every word has one of each")
        if fault := find_fault(self.words, self.tags, self.governors):
            raise ValueError(f"word {fault[0] + 1}: {fault[1]}")
        if wrong := [one for one in self.comments if not one.startswith("#") or "\n" in one or "\r" in one]:
            raise ValueError(f"{wrong[0]!r} is no comment; a comment is one line that begins with #")

    def with_tags(self, tags: Sequence[str]) -> "TaggedSentence":
        """The same sentence with other tags."""
        return replace(self, tags=tuple(tags))


def read_tagged(path: str | Path) -> Iterator[TaggedSentence]:
    """The sentences of a .conllu, or of two columns in a .tsv or .txt; each plain, .gz or .xz by its name.

    Examples:
        >>> write_columns([TaggedSentence(("the", "cat"), ("DET", "NOUN"))], "tags.tsv")
        1
        >>> [one.tags for one in read_tagged("tags.tsv")]
        [('DET', 'NOUN')]
    """
    path = require_file(path)
    match file_format(path):
        case ".conllu":
            return read_conllu(path)
        case ".tsv" | ".txt":
            return read_columns(path)
    raise ValueError(f"{path}: tagged words end in .conllu, .tsv or .txt, not {file_format(path)!r}; rename the file")


def read_conllu(path: str | Path) -> Iterator[TaggedSentence]:
    """One sentence at a time, with the universal part of speech (UPOS) as its tags.

    The governors are None if the HEAD column has _ for all words; otherwise they must be a tree. Several blank lines
    count as one, and after the last sentence there may be none.

    Examples:
        >>> write_conllu([TaggedSentence(("the", "cat"), ("DET", "NOUN"), governors=(2, 0))], "tree.conllu")
        1
        >>> [(one.words, one.tags, one.governors) for one in read_conllu("tree.conllu")]
        [(('the', 'cat'), ('DET', 'NOUN'), (2, 0))]
    """
    return (_sentence(lines) for lines in _paragraphs(require_file(path)))


def read_columns(path: str | Path) -> Iterator[TaggedSentence]:
    """One sentence at a time. A word may contain spaces if a tab separates it from its tag.

    Examples:
        >>> write_columns([TaggedSentence(("the", "cat"), ("DET", "NOUN"))], "tags.tsv")
        1
        >>> list(read_columns("tags.tsv"))
        [TaggedSentence(words=('the', 'cat'), tags=('DET', 'NOUN'), governors=None, comments=())]
    """
    return (_two_columns(lines) for lines in _paragraphs(require_file(path)))


def write_conllu(sentences: Iterable[TaggedSentence], path: str | Path) -> int:
    r"""How many sentences were written. Those read from CoNLL-U keep everything but their tags.

    Examples:
        >>> write_conllu([TaggedSentence(("cats",), ("NOUN",), governors=(0,))], "tree.conllu")
        1
        >>> list(read_lines("tree.conllu"))
        ['1\tcats\t_\tNOUN\t_\t_\t0\t_\t_\t_', '']
    """
    return _write((format_conllu(sentence, f"sentence {n}") for n, sentence in enumerate(sentences, 1)), path)


def write_columns(sentences: Iterable[TaggedSentence], path: str | Path) -> int:
    r"""How many sentences were written: word<TAB>tag on every line, and a blank line after every sentence.

    Examples:
        >>> write_columns([TaggedSentence(("the", "cat"), ("DET", "NOUN"))], "tags.tsv")
        1
        >>> list(read_lines("tags.tsv"))
        ['the\tDET', 'cat\tNOUN', '']
    """
    return _write((format_two_columns(sentence) for sentence in sentences), path)


# --- validation ---


def find_fault(words: Sequence[str], tags: Sequence[str], governors: Sequence[int] | None) -> tuple[int, str] | None:
    """The index of the first wrong word and what is wrong with it; None if the sentence is valid."""
    if not words:
        return 0, "missing; a sentence has at least one word"
    for at, (word, tag) in enumerate(zip(words, tags, strict=True)):
        if not word or set(word) & set("\t\n\r"):
            return at, f"{word!r} cannot be a word; it is not empty and has no tab or line end"
        if tag.split() != [tag]:
            return (
                at,
                f"{tag!r} cannot be a tag; it is not empty and has no spaces (write {NO_VALUE} where there is none)",
            )
    return None if governors is None else _tree_error(governors)


def _tree_error(governors: Sequence[int]) -> tuple[int, str] | None:
    if strays := [at for at, governor in enumerate(governors) if not 0 <= governor <= len(governors)]:
        at, governor = strays[0], governors[strays[0]]
        return (
            at,
            f"the governor {governor} is not in the sentence; choose from 1 to {len(governors)}, or 0 for the root",
        )
    roots = [at for at, governor in enumerate(governors) if governor == 0]
    if not roots:
        return 0, "no word of this sentence has the governor 0; give it to the root"
    if len(roots) > 1:
        return roots[1], f"a second root, after word {roots[0] + 1}; only one word of a sentence has the governor 0"
    reaches = set(roots)
    for start in range(len(governors)):
        path, at = [], start
        while at not in reaches and at not in path:
            path.append(at)
            at = governors[at] - 1
        if at not in reaches:
            cycle = [*path[path.index(at) :], at]
            shown = " → ".join(str(one + 1) for one in cycle)
            return at, f"the governors form a cycle ({shown}) that never reaches the root; correct one of them"
        reaches.update(path)
    return None


# --- reading ---

LocatedLine = tuple[str, str]  # file:line, and the line


def _paragraphs(path: Path) -> Iterator[list[LocatedLine]]:
    """The lines between blank lines."""
    held, taken = list[LocatedLine](), 0
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            held.append((f"{path}:{number}", line))
            taken += len(line)
            if taken > MAX_SENTENCE_BYTES:
                raise ValueError(
                    f"{path}:{number}: a sentence of more than {MAX_SENTENCE_BYTES:,} characters; "
                    "end each with a blank line"
                )
        elif held:
            yield held
            held, taken = [], 0
    if held:
        yield held


def _sentence(located: list[LocatedLine]) -> TaggedSentence:
    comments = tuple(line for _, line in takewhile(lambda one: one[1].startswith("#"), located))
    words: list[tuple[str, list[str]]] = []
    for where, line in located[len(comments) :]:
        cells = _cells(line, where)
        if NON_WORD_ID.fullmatch(cells[0]):
            continue
        if cells[0] != str(len(words) + 1):
            raise ValueError(
                f"{where}: the number {cells[0]!r} where {len(words) + 1} is expected; number the words of a sentence "
                "1, 2, 3 ..., and end it with a blank line"
            )
        words.append((where, cells))
    if not words:
        raise ValueError(f"{located[0][0]}: no word before the next blank line; remove that line, or these")
    return _checked_sentence(
        [where for where, _ in words],
        tuple(cells[1] for _, cells in words),
        tuple(cells[3] for _, cells in words),
        _governors(words),
        comments,
        tuple(line for _, line in located[len(comments) :]),
    )


def _cells(line: str, where: str) -> list[str]:
    if line.startswith("#"):
        raise ValueError(f"{where}: a comment inside a sentence; move it before the first word")
    cells = line.split("\t")
    if len(cells) != len(COLUMNS):
        raise ValueError(
            f"{where}: {_count_columns(len(cells))}; CoNLL-U has {len(COLUMNS)}, "
            f"with one tab between: {' '.join(COLUMNS)}"
        )
    if "" in cells:
        raise ValueError(
            f"{where}: the column {COLUMNS[cells.index('')]} is empty; write {NO_VALUE} where there is nothing"
        )
    return cells


def _count_columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _governors(words: list[tuple[str, list[str]]]) -> tuple[int, ...] | None:
    if all(cells[6] == NO_VALUE for _, cells in words):
        return None
    for where, cells in words:
        if not re.fullmatch("0|[1-9][0-9]*", cells[6]):
            raise ValueError(
                f"{where}: the governor {cells[6]!r} is no whole number; write the number of a word, 0 for the root, "
                f"or {NO_VALUE} for every word of the sentence"
            )
    return tuple(int(cells[6]) for _, cells in words)


def _two_columns(located: list[LocatedLine]) -> TaggedSentence:
    rows = [line.split("\t") if "\t" in line else line.split() for _, line in located]
    for (where, _), cells in zip(located, rows, strict=True):
        if len(cells) != 2:
            raise ValueError(f"{where}: {_count_columns(len(cells))}; a line is a word, a tab or spaces, and its tag")
    return _checked_sentence(
        [where for where, _ in located], tuple(word for word, _ in rows), tuple(tag for _, tag in rows)
    )


def _checked_sentence(
    locations: list[str],
    words: tuple[str, ...],
    tags: tuple[str, ...],
    governors: tuple[int, ...] | None = None,
    comments: tuple[str, ...] = (),
    lines: tuple[str, ...] = (),
) -> TaggedSentence:
    """The sentence; its errors name the line, not the number of the word."""
    if fault := find_fault(words, tags, governors):
        raise ValueError(f"{locations[fault[0]]}: {fault[1]}")
    return TaggedSentence(words, tags, governors, comments, lines)


# --- writing ---


def format_two_columns(sentence: TaggedSentence) -> list[str]:
    """The lines of a sentence, word<TAB>tag."""
    return [f"{word}\t{tag}" for word, tag in zip(sentence.words, sentence.tags, strict=True)]


def format_conllu(sentence: TaggedSentence, where: str) -> list[str]:
    governors = (
        [NO_VALUE] * len(sentence.words) if sentence.governors is None else [str(one) for one in sentence.governors]
    )
    fresh = [
        f"{at}\t{word}\t{NO_VALUE}\t{tag}\t{NO_VALUE}\t{NO_VALUE}\t{governor}\t{NO_VALUE}\t{NO_VALUE}\t{NO_VALUE}"
        for at, (word, tag, governor) in enumerate(zip(sentence.words, sentence.tags, governors, strict=True), 1)
    ]
    if not sentence.lines:
        return [*sentence.comments, *fresh]
    rows = [line.split("\t") for line in sentence.lines]
    word_rows = [at for at, cells in enumerate(rows) if not NON_WORD_ID.fullmatch(cells[0])]
    if [(rows[at][1], rows[at][6]) for at in word_rows] != list(zip(sentence.words, governors, strict=True)):
        raise ValueError(f"{where}: its lines have other words or governors; leave out `lines` to write it anew")
    for at, tag in zip(word_rows, sentence.tags, strict=True):
        rows[at][3] = tag
    return [*sentence.comments, *("\t".join(cells) for cells in rows)]


def _write(sentences: Iterable[list[str]], path: str | Path) -> int:
    path, count = Path(path), 0
    with open_atomic(path) as raw, open_compressed(raw, path.suffix) as file:
        for count, lines in enumerate(sentences, 1):
            file.write(check_text("\n".join([*lines, "", ""]), f"sentence {count}").encode())
    return count


# --- word pieces: a tagger predicts one tag per word, however many tokens the word has ---


Value = TypeVar("Value")


class WordPieces(NamedTuple):
    """The ids of a sentence, and for each word the index of its first piece; the others follow it.

    Examples:
        >>> pieces = WordPieces(ids=[10, 11, 12], first_indices=[0, 1])  # the cats: the, cat, s
        >>> pieces.spans, pieces.word_ids
        ([(0, 1), (1, 3)], [0, 1, 1])
        >>> pieces.per_word(["DET", "NOUN", "X"])
        ['DET', 'NOUN']
    """

    ids: list[int]
    first_indices: list[int]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """For each word, the start and stop of its pieces."""
        return list(pairwise([*self.first_indices, len(self.ids)]))

    @property
    def word_ids(self) -> list[int]:
        """For each piece, which word it belongs to."""
        return [word for word, (start, stop) in enumerate(self.spans) for _ in range(start, stop)]

    def per_word(self, values: Sequence[Value]) -> list[Value]:
        """Of values per piece, those of the words: the value at the first piece."""
        if len(values) != len(self.ids):
            raise ValueError(f"{len(values)} values for {len(self.ids)} pieces; every piece has one")
        return [values[first] for first in self.first_indices]

    def governors(self, word_governors: Sequence[int]) -> list[int]:
        """The dependency tree over pieces: the first piece stands for the word and governs the others."""
        if len(word_governors) != len(self.first_indices):
            raise ValueError(f"{len(word_governors)} governors for {len(self.first_indices)} words; every word has one")
        above = [0 if governor == 0 else self.first_indices[governor - 1] + 1 for governor in word_governors]
        return [
            above[word] if at == self.first_indices[word] else self.first_indices[word] + 1
            for at, word in enumerate(self.word_ids)
        ]


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> WordPieces:
    """Every word has a piece: UNK if the tokenizer gives none.

    Ordinary words give the ids of the sentence with single spaces. A space of its own belongs to the word after it.

    Examples:
        >>> tokenizer = SubwordTokenizer.bpe(["the cat"] * 2, size=270)
        >>> pieces = encode_words(tokenizer, ["the", "cats"])
        >>> tokenizer.tokens("the cats"), pieces.spans
        (['the', 'cat', '·s'], [(0, 1), (1, 3)])
    """
    if isinstance(words, str):
        raise ValueError(f"the words of a sentence are a list, not the one string {words[:20]!r}; split it first")
    ids: list[int] = []
    first_indices: list[int] = []
    separator = _separator_ids(tokenizer)
    for pieces in tokenizer.encode_batch(words):
        first_indices.append(len(ids))
        ids += [*(separator if len(first_indices) > 1 else []), *(pieces or [UNK])]
    return WordPieces(ids, first_indices)


def _separator_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids between two words: none for tokenizers whose pieces contain the space."""
    one, two = tokenizer.encode("x"), tokenizer.encode("x x")
    return two[len(one) : len(two) - len(one)]
