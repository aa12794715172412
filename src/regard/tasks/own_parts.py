"""Own parts: classes and functions of a user's Python files that settings can name, and a run's record of them.

A file runs only if a person names it: by `--parts mine.py`, by `parts=["mine.py"]` in Python, or by the line `parts` of
a recipe that is passed to `regard train`. A run records the path and the SHA-256 of each file whose parts its settings
name, and keeps a copy to read. Loading a run executes neither: whoever loads it names the file again, and a file that
has changed is refused.
"""

import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.abc import SourceLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from torch import nn

from regard.attention.parts import PARTS, RENAMED_PARTS, Part, PartText, attach_own_parts
from regard.data.files import make_folder, open_atomic, require_small_file
from regard.layers.transformer_layers import ACTIVATIONS, NORM_ORDERS
from regard.models.rnn_seq2seq import READOUTS

PartReference = str | Path | type | Callable[..., Any]  # the path of a file, or a part itself
BUILT_IN = frozenset((*PARTS, *RENAMED_PARTS, *NORM_ORDERS, *ACTIVATIONS, *READOUTS))
COPIES = "parts"  # a run's folder of files to read


@dataclass(frozen=True)
class OwnParts:
    """Parts of a user's own, by the names that settings have for them.

    Args:
        named: attention parts, residual connections and other modules as classes, activations as functions.
        changed: names of those that may differ from what a run was trained with.
    """

    named: Mapping[str, Any] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()

    @staticmethod
    def load(given: Iterable[PartReference], changed: Iterable[PartReference] = ()) -> "OwnParts":
        """Runs the files; classes and functions are taken as they are."""
        parts, others = named_parts(given), named_parts(changed)
        return OwnParts(merge(parts, others), frozenset(others))

    def load_more(self, given: Iterable[PartReference]) -> "OwnParts":
        """These and others."""
        return OwnParts(merge(self.named, named_parts(given)), self.changed)

    @property
    def files(self) -> tuple[Path, ...]:
        """Where they are defined, as far as that is known."""
        return files_of(self.named)

    def attach(self, value: Any) -> Any:
        """A value of settings; text that describes parts, or is the name of one, can be read with these."""
        if isinstance(value, list | tuple):
            return [self.attach(one) for one in value]
        describes = isinstance(value, str) and ("(" in value or value in self.named)
        return attach_own_parts(value, self.named) if describes else value

    def check_record(self, record: Any, folder: Path) -> None:
        """Refuses to read settings whose parts are not all here, or were other ones. Paths are relative to a folder."""
        for recorded in read_record(record):
            file = (folder / recorded.file).absolute()
            if missing := [name for name in recorded.names if name not in self.named]:
                raise ValueError(missing_parts(" and ".join(missing), str(file) if recorded.file else ""))
            if not recorded.names and file not in self.files:
                raise ValueError(missing_parts("parts", str(file)))
            for name in recorded.names if recorded.sha256 else ():
                if (source := source_of(self.named[name])).sha256 != recorded.sha256 and name not in self.changed:
                    raise ValueError(changed_part(name, source, recorded))


def named_parts(given: Iterable[PartReference]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in {Path(one).absolute() if isinstance(one, str | Path) else one: one for one in given}.values():
        parts = run_file(Path(one)) if isinstance(one, str | Path) else {one.__name__: one}
        if taken := next((name for name in parts if name in BUILT_IN), None):
            raise ValueError(f"{file_of(parts[taken])}: {taken} is the name of a built-in part; give yours another")
        found = merge(found, parts)
    return found


def merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    for name in one.keys() & other.keys():
        if source_of(one[name]) != source_of(other[name]):
            raise ValueError(f"{name} is defined in {file_of(one[name])} and in {file_of(other[name])}; rename one")
    return {**one, **other}


def missing_parts(what: str, file: str) -> str:
    if not file:
        return f"it uses {what} of your own, from no file; pass parts=[{what}], or a file that defines it: --parts FILE"
    return (
        f"it uses {what} of your own; name the file that defines this, to have it run: --parts {file!r} (in Python: "
        f"parts=[{file!r}])"
    )


def changed_part(name: str, source: "PartSource", recorded: "RecordedFile") -> str:
    here, there = (sum[:12] or "unknown" for sum in (source.sha256, recorded.sha256))
    return (
        f"{name} of {source.file!r} has changed since the training: SHA-256 {here}…, not {there}…; restore it (the run "
        f"has a copy in {COPIES}/), or use it as it is: --changed-parts {source.file!r} instead of --parts (in Python: "
        f"changed_parts=[{source.file!r}])"
    )


# --- running a file ---


class PartsLoader(SourceLoader):
    """Runs exactly the bytes that are recorded: not a file that changes meanwhile, nor cached bytecode beside it."""

    def __init__(self, path: Path, source: bytes):
        self.path, self.source = path, source

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def get_data(self, path: str | bytes) -> bytes:
        return self.source


def run_file(path: Path) -> dict[str, Any]:
    """The parts that a file defines, by name."""
    if path.suffix != ".py":
        raise ValueError(f"{path}: a file of parts is a Python file, and ends in .py")
    loader = PartsLoader(path.absolute(), require_small_file(path).read_bytes())
    spec = spec_from_loader(f"own_parts_{path.stem}_{sha256(loader.source).hexdigest()[:16]}", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses, and whoever shows the source of a class, look it up
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        raise ValueError(f"{path}:{error.lineno}: {error.msg}; correct this file of parts") from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if frame.filename == str(loader.path)), 1)
        raise ValueError(f"{path}:{line}: {type(error).__name__}: {error}; correct this file of parts") from error
    found = {name: value for name, value in vars(module).items() if is_part(value) and value.__module__ == spec.name}
    public = {name: part for name, part in found.items() if not name.startswith("_") and part.__name__ == name}
    if not public:
        raise ValueError(f"{path}: defines no part; write a class derived from Score, Pattern or another part's class")
    return public


def is_part(value: Any) -> bool:
    if inspect.isfunction(value):
        return True
    return inspect.isclass(value) and not inspect.isabstract(value) and issubclass(value, Part | nn.Module)


# --- the record of a run ---


@dataclass(frozen=True)
class PartSource:
    """Where a part comes from, and the source there; of a part that was typed at a prompt, nothing."""

    file: str
    text: bytes

    @property
    def sha256(self) -> str:
        return sha256(self.text).hexdigest() if self.text else ""


def source_of(part: Any) -> PartSource:
    """The file of a part; of a class or function of the running script, or of a notebook, its own lines alone."""
    module = sys.modules.get(part.__module__)
    if module and module.__spec__ and isinstance((loader := module.__spec__.loader), PartsLoader):
        return PartSource(str(loader.path), loader.source)
    try:
        file, lines = Path(inspect.getsourcefile(part) or ""), inspect.getsource(part)
    except (OSError, TypeError):
        return PartSource("", b"")
    whole = part.__module__ != "__main__" and file.is_file()
    return PartSource(str(file.absolute()), file.read_bytes() if whole else lines.encode())


def files_of(named: Mapping[str, Any]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(file) for part in named.values() if (file := source_of(part).file)))


def file_of(part: Any) -> str:
    return source_of(part).file or part.__module__


@dataclass(frozen=True)
class RecordedFile:
    """A file of parts in settings: in a run's, with its SHA-256 and the parts they use; in a recipe, its path alone."""

    file: str
    sha256: str = ""
    names: tuple[str, ...] = ()


def read_record(record: Any) -> list[RecordedFile]:
    """The line `parts` of settings; it may hold anything."""
    found = []
    for one in record if isinstance(record, list) else [record]:
        match one:
            case str(file):
                found.append(RecordedFile(file))
            case {"file": str(file), "sha256": str(sum), "names": [str(), *_] as names}:
                found.append(RecordedFile(file, sum, tuple(map(str, names))))
            case _:
                raise ValueError(f"parts = {repr(record)[:200]} should be a list of files, such as ['mine.py']")
    return found


def format_record(own_parts: Mapping[str, Any]) -> str:
    """The line `parts` of a run's settings; nothing if they use none."""
    names: dict[PartSource, list[str]] = {}
    for name, part in own_parts.items():
        names.setdefault(source_of(part), []).append(name)
    files = [
        f"{{file = {json.dumps(source.file)}, sha256 = {json.dumps(source.sha256)}, names = {json.dumps(used)}}}"
        for source, used in names.items()
    ]
    return f"parts = [{', '.join(files)}]\n" if files else ""


def own_parts_in(values: Iterable[Any]) -> dict[str, Any]:
    """The user's own parts that the texts among the values of settings name."""
    found: dict[str, Any] = {}
    for value in values:
        if isinstance(value, tuple):
            found |= own_parts_in(value)
        elif isinstance(value, PartText):
            found |= {name: value.own_parts[name] for name in re.findall(r"\w+", value) if name in value.own_parts}
    return found


def write_copies(own_parts: Mapping[str, Any], folder: Path) -> None:
    """Keeps the source of each part beside a run, for people to read."""
    for source in dict.fromkeys(map(source_of, own_parts.values())):
        if source.text:
            make_folder(folder / COPIES)
            name = f"{Path(source.file).stem}-{source.sha256[:8]}.py"
            with open_atomic(folder / COPIES / name) as file:
                file.write(source.text)
