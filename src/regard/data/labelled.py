"""Labelled texts: .tsv and .jsonl files for text classification, and the label vocabulary.

read_labelled("sst2/train.tsv.xz")                                       text<TAB>label
read_labelled("imdb/train.tsv.xz", columns=("label", "rating", "text"))  whatever the columns are
read_labelled("train.jsonl", fields=("review", "stars"))                 {"review": "...", "stars": 5} on every line
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from regard.data.files import (
    check_text,
    file_format,
    read_json_objects,
    read_lines,
    require_file,
    require_small_file,
    write_text_atomic,
)

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
