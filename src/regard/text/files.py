"""A text file, plain, .gz or .xz, in; its lines as strings out. What cannot be read is named by file and line."""

import glob
import io
import lzma
import os
import secrets
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")
COMPRESSED = (".gz", ".xz")
# The first bytes of files that are often mistaken for UTF-8 text, and what to do about them.
STRANGERS = {
    b"\xff\xfe": "it looks like UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "it looks like UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    b"\x1f\x8b": "it looks gz-compressed; give it a name that ends in .gz",
    b"\xfd7zXZ": "it looks xz-compressed; give it a name that ends in .xz",
}
BOM = "\ufeff"
LONGEST_LINE = 2**20  # bytes: no sentence has as many, and what reads a line holds it several times
SMALL = 2**26  # bytes of a file that is read as a whole: settings, a vocabulary
# What a packed file may unpack to: text shrinks to a quarter or a twentieth, and what shrinks to less is made to harm.
UNPACKED_FREELY, UNPACKED_TIMES = 2**26, 100
PADDING = 2**24  # bytes of nothing behind the end of a .gz; tapes round up to some thousands
GZIP = 31  # zlib's name for a window of any size with gzip's header around it
BLOCK = 2**17
CHUNK = 2**22  # letters of lines that are held together


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines without their ends, one at a time, so that a file may be larger than memory.

    A line ends in \\n or \\r\\n and nowhere else: U+2028 and its like are text. A byte-order mark is dropped.
    """
    path = existing(path)
    return _stream(path)


def existing(path: str | Path) -> Path:
    """The path, if there is a file; otherwise a ValueError that helps to find it."""
    path = Path(path)
    if path.is_file():
        return path
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; give the files in it by name")
    if path.exists():
        raise ValueError(f"{path}: is a pipe or a device, not a file; write what it holds to a file first")
    beside = [str(other) for ending in COMPRESSED if (other := Path(f"{path}{ending}")).is_file()]
    remedy = f"but there is {beside[0]}" if beside else f"check the name (looked in {path.absolute().parent})"
    raise ValueError(f"{path}: no such file; {remedy}")


def small(path: str | Path) -> Path:
    """The path, if there is a file that can be read as a whole."""
    path = existing(path)
    if (size := path.stat().st_size) > SMALL:
        raise ValueError(f"{path}: {size:,} bytes, more than the {SMALL:,} that such a file can have; put it back")
    return path


def opened(path: Path) -> io.BufferedReader:
    """A file to read, unpacked if its name says that it is packed; a small one that unpacks to a flood is refused."""
    unpack = UNPACK.get(path.suffix)
    return io.BufferedReader(Unpacked(unpack(path), path), BLOCK) if unpack else open(path, "rb")


class Gunzip:
    """The bytes of a .gz. Python's own reader passes over zeros behind the end one by one: a hole takes it hours."""

    def __init__(self, path: Path):
        self.path, self.file = path, open(path, "rb")  # noqa: SIM115 (closed by whoever reads)
        self.member, self.unread, self.begun = zlib.decompressobj(GZIP), b"", False

    def read(self, size: int) -> bytes:
        """At most so many bytes, and none at the end."""
        while True:
            if self.member.eof:
                self.unread = self.behind_padding(self.member.unused_data)
                self.member, self.begun = zlib.decompressobj(GZIP), False
            block = self.unread or self.file.read(BLOCK)
            self.begun = self.begun or bool(block)
            found = self.member.decompress(block, size)
            self.unread = self.member.unconsumed_tail
            if found:
                return found
            if not block and not self.member.eof:
                if self.begun:
                    raise EOFError("Compressed file ended before the end-of-stream marker was reached")
                return b""

    def behind_padding(self, block: bytes) -> bytes:
        """What follows the zeros between two members, or behind the last: nothing, there."""
        rest, skipped = block.lstrip(b"\0"), 0
        while not rest and (block := self.file.read(BLOCK)):
            rest = block.lstrip(b"\0")
            skipped += len(block) - len(rest)
            if skipped > PADDING:
                raise ValueError(f"{self.path}: more than {PADDING:,} zeros behind its end; pack the file again")
        return rest

    def close(self) -> None:
        self.file.close()


UNPACK = {".gz": Gunzip, ".tgz": Gunzip, ".xz": lzma.open, ".txz": lzma.open}


class Unpacked(io.RawIOBase):
    """The bytes of a packed file, as many as it can hold in earnest."""

    def __init__(self, file: "Gunzip | IO[bytes]", path: Path):
        self.file, self.path = file, path
        self.most = self.left = max(UNPACKED_FREELY, UNPACKED_TIMES * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self.file.read(len(buffer))
        buffer[: len(read)] = read
        self.left -= len(read)
        if self.left < 0:
            raise ValueError(
                f"{self.path}: unpacks to more than {self.most:,} bytes, {UNPACKED_TIMES} times its size or more; if "
                "you trust it, unpack it yourself"
            )
        return len(read)

    def close(self) -> None:
        self.file.close()
        super().close()


def lines_of(stream: IO[bytes], name: str) -> Iterator[str]:
    """The lines of any stream of bytes, such as sys.stdin.buffer; `name` stands for it in what is said."""
    return decoded(short_lines(stream, name), name)


def short_lines(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Line by line, none of which fills the memory."""
    number = 0
    while raw := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(raw) > LONGEST_LINE:
            raise ValueError(f"{name}:{number}: a line of more than {LONGEST_LINE:,} bytes; break it into shorter ones")
        yield raw


def decoded(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines of bytes as text."""
    number = 0
    try:
        for number, raw in enumerate(lines, 1):
            yield line_of(raw, f"{name}:{number}", opening=number == 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"{name}: cannot be read beyond line {number} ({error}); fetch or pack the file again"
        ) from None


def chunks(items: Iterable[T], most: int, size: Callable[[T], int] = len) -> Iterator[list[T]]:  # type: ignore[assignment]
    """So many at a time, in their order, and fewer where they are long: what reads them holds one chunk."""
    held, taken = list[T](), 0
    for item in items:
        held.append(item)
        taken += size(item)
        if len(held) == most or taken >= CHUNK:
            yield held
            held, taken = [], 0
    if held:
        yield held


def line_of(raw: bytes, where: str, *, opening: bool = False) -> str:
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        mistaken = [remedy for magic, remedy in STRANGERS.items() if opening and raw.startswith(magic)]
        remedy = mistaken[0] if mistaken else "convert the file, for example: iconv -f LATIN1 -t UTF-8"
        at = f"byte 0x{raw[error.start]:02x}, the {error.start + 1}. of the line"
        raise ValueError(f"{where}: not UTF-8 ({at}); {remedy}") from None
    line = line.removeprefix(BOM) if opening else line
    line = line.removesuffix("\n").removesuffix("\r")
    if "\r" in line:
        # Some programs break the line here and some do not, so the two sides of a corpus would come apart.
        raise ValueError(f"{where}: a carriage return inside the line; remove it, or end every line in \\n")
    return sound(line, where)


def sound(text: str, where: str) -> str:
    """The text, unless it holds what no sentence can: NUL, or half of a surrogate pair."""
    if "\0" in text:
        raise ValueError(f"{where}: a NUL character; the file is damaged, or not UTF-8 text")
    if at := half(text):
        raise ValueError(f"{where}: half of a surrogate pair (U+{ord(text[at - 1]):04X}, character {at}); remove it")
    return text


def half(text: str) -> int:
    """Where, counting from 1, the first half of a surrogate pair stands without the other; 0 if nowhere."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start + 1
    return 0


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its place when all of it is written: before that, there is what was there before.

    A link stays, and the file it leads to is written; a device, a pipe or a folder would be replaced, and is refused.
    The new file may be read by whoever might read the old one, and by nobody else.
    """
    path = path.resolve() if path.is_symlink() else path
    mode = replaceable(path)
    # a name that nobody can have foreseen, opened only if there is nothing: what is planted there cannot be written
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep_parts(path)
        with open(beside, "xb", opener=lambda name, flags: os.open(name, flags, mode or 0o666)) as file:
            lock(file)
            if mode is not None:
                os.chmod(beside, mode)  # whatever the umask says about new files
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.name == "posix":  # while it is locked, so that nobody sweeps it away
                beside.replace(path)
        if os.name != "posix":  # an open file cannot be renamed there
            beside.replace(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}); make room, or choose another place") from None
    finally:
        with suppress(OSError):  # there is none, or its folder could not be made
            beside.unlink()


def replaceable(path: Path) -> int | None:
    """Who may do what with a file that is about to be replaced, as chmod counts it; None if there is no file."""
    if not path.exists():
        return None
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name a file in it")
    if not path.is_file():
        raise ValueError(f"{path}: is a device or a pipe, not a file; choose another place")
    mode = path.stat().st_mode
    if not mode & 0o222 or not os.access(path, os.W_OK):  # the first, since root has access to everything
        raise ValueError(f"{path}: is read-only; make it writable (chmod u+w), or choose another place")
    return mode & 0o777


def sweep_parts(path: Path) -> None:
    """Delete what processes that were killed have left of this file: what is still being written is locked."""
    if sys.platform == "win32":
        return  # there is no telling
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError):  # somebody was faster, or writes it
            if part.is_file() and not part.is_symlink():
                with open(part, "rb") as file:
                    lock(file)
            part.unlink()


def lock(file: IO[Any]) -> None:
    """The file for this process alone; BlockingIOError if another has it. The system lets go when a process dies."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks cannot tell


def write_whole(path: str | Path, text: str) -> None:
    """The file holds all of the text or what it held before: a full disk tears nothing."""
    with whole(Path(path)) as file:
        file.write(text.encode("utf-8"))


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{path}: cannot be made a folder ({error.strerror}); choose another place") from None


def _stream(path: Path) -> Iterator[str]:
    try:
        with opened(path) as file:
            yield from lines_of(file, str(path))
    except OSError as error:
        raise ValueError(f"{path}: cannot be opened ({error.strerror}); check who may read it") from None
