"""Files: lines of text, plain, .gz or .xz, with errors by file and line; atomic writing; the files of an archive."""

import glob
import gzip
import io
import json
import lzma
import os
import secrets
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

T = TypeVar("T")
COMPRESSED = (".gz", ".xz")
# The first bytes of files that are often mistaken for UTF-8 text, and what to do about them.
OTHER_ENCODINGS = {
    b"\xff\xfe": "it looks like UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "it looks like UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    b"\x1f\x8b": "it looks gz-compressed; give it a name that ends in .gz",
    b"\xfd7zXZ": "it looks xz-compressed; give it a name that ends in .xz",
}
BOM = "\ufeff"
MAX_LINE_BYTES = 2**20  # no sentence has as many bytes, and a reader holds a line several times
MAX_SMALL_BYTES = 2**26  # bytes of a file that is read into memory: settings, a vocabulary
# The largest unpacked size of a compressed file: text shrinks to a quarter or a twentieth, a bomb to much less.
UNPACKED_ALWAYS_ALLOWED, MAX_UNPACK_RATIO = 2**26, 100
MAX_PADDING_BYTES = 2**24  # zero bytes after the end of a .gz; tapes pad by some thousands
GZIP = 31  # zlib's wbits for any window size with a gzip header
BLOCK = 2**17
LOCKED_BYTE = 2**30
CHUNK = 2**22  # characters of lines that are held in memory together


def read_lines(path: str | Path, *, keep_ends: bool = False) -> Iterator[str]:
    r"""The lines without their ends, one at a time, so that a file may be larger than memory.

    A line ends in \n or \r\n and nowhere else: U+2028 and its like are text. A byte-order mark is dropped.

    Examples:
        >>> list(read_lines("pairs.tsv"))[:2]
        ['the cat sleeps\tle chat dort', 'a dog\tun chien']
    """
    path = require_file(path)
    return _stream(path, keep_ends=keep_ends)


def file_format(path: Path) -> str:
    """The suffix that says the file's format, compressed or not: .tsv of train.tsv.xz."""
    return (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix


def require_file(path: str | Path) -> Path:
    """The path, if it is a file; otherwise a ValueError that helps to find it."""
    path = Path(path)
    if path.is_file():
        return path
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; give the files in it by name")
    if path.exists():
        raise ValueError(f"{path}: is a pipe or a device, not a file; write what it holds to a file first")
    compressed = [str(other) for ending in COMPRESSED if (other := Path(f"{path}{ending}")).is_file()]
    remedy = f"but there is {compressed[0]}" if compressed else f"check the name (looked in {path.absolute().parent})"
    raise ValueError(f"{path}: no such file; {remedy}")


def require_small_file(path: str | Path) -> Path:
    """The path, if it is a file small enough to read into memory."""
    path = require_file(path)
    if (size := path.stat().st_size) > MAX_SMALL_BYTES:
        raise ValueError(
            f"{path}: {size:,} bytes, more than the {MAX_SMALL_BYTES:,} such a file can have; restore the original"
        )
    return path


def open_decompressed(path: Path) -> io.BufferedReader:
    """A file to read, decompressed by its suffix; a decompression bomb is refused."""
    unpack = UNPACK.get(path.suffix)
    return io.BufferedReader(BoundedReader(unpack(path), path), BLOCK) if unpack else open(path, "rb")


class GzipReader:
    """The bytes of a .gz. Python's own reader skips zeros after the end one by one: a sparse file takes hours."""

    def __init__(self, path: Path):
        self.path, self.file = path, open(path, "rb")  # noqa: SIM115 (closed by whoever reads)
        self.member, self.unread, self.started = zlib.decompressobj(GZIP), b"", False

    def read(self, size: int) -> bytes:
        """At most so many bytes, and none at the end."""
        while True:
            if self.member.eof:
                self.unread = self.skip_padding(self.member.unused_data)
                self.member, self.started = zlib.decompressobj(GZIP), False
            block = self.unread or self.file.read(BLOCK)
            self.started = self.started or bool(block)
            data = self.member.decompress(block, size)
            self.unread = self.member.unconsumed_tail
            if data:
                return data
            if not block and not self.member.eof:
                if self.started:
                    raise EOFError("Compressed file ended before the end-of-stream marker was reached")
                return b""

    def skip_padding(self, block: bytes) -> bytes:
        """What follows the zeros after a member; nothing after the last."""
        rest, skipped = block.lstrip(b"\0"), 0
        while not rest and (block := self.file.read(BLOCK)):
            rest = block.lstrip(b"\0")
            skipped += len(block) - len(rest)
            if skipped > MAX_PADDING_BYTES:
                raise ValueError(
                    f"{self.path}: more than {MAX_PADDING_BYTES:,} zeros after its end; compress the file again"
                )
        return rest

    def close(self) -> None:
        self.file.close()


UNPACK = {".gz": GzipReader, ".tgz": GzipReader, ".xz": lzma.open, ".txz": lzma.open}


class BoundedReader(io.RawIOBase):
    """The bytes of a compressed file, up to a bound on the compression ratio."""

    def __init__(self, file: "GzipReader | IO[bytes]", path: Path):
        self.file, self.path = file, path
        self.most = self.left = max(UNPACKED_ALWAYS_ALLOWED, MAX_UNPACK_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self.file.read(len(buffer))
        buffer[: len(read)] = read
        self.left -= len(read)
        if self.left < 0:
            raise ValueError(
                f"{self.path}: unpacks to more than {self.most:,} bytes, {MAX_UNPACK_RATIO} times its size or more; if "
                "you trust it, unpack it yourself"
            )
        return len(read)

    def close(self) -> None:
        self.file.close()
        super().close()


def iter_lines(stream: IO[bytes], name: str, *, keep_ends: bool = False) -> Iterator[str]:
    r"""The lines of any stream of bytes, such as sys.stdin.buffer; `name` stands for it in errors.

    Examples:
        >>> import io
        >>> list(iter_lines(io.BytesIO(b"one\r\ntwo\n"), name="standard input"))
        ['one', 'two']
    """
    return decode_lines(iter_bounded_lines(stream, name), name, keep_ends=keep_ends)


def iter_bounded_lines(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """Line by line, none longer than MAX_LINE_BYTES."""
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            raise ValueError(
                f"{name}:{number}: a line of more than {MAX_LINE_BYTES:,} bytes; break it into shorter ones"
            )
        yield raw


def decode_lines(lines: Iterable[bytes], name: str, *, keep_ends: bool = False) -> Iterator[str]:
    """Lines of bytes as text."""
    number = 0
    try:
        for number, raw in enumerate(lines, 1):
            line = decode_line(raw, f"{name}:{number}", opening=number == 1)
            yield line + raw[len(raw.rstrip(b"\r\n")) :].decode() if keep_ends else line
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(
            f"{name}: cannot be read beyond line {number} ({error}); fetch or pack the file again"
        ) from None


def chunks(items: Iterable[T], most: int, size: Callable[[T], int] = len) -> Iterator[list[T]]:  # type: ignore[assignment]
    """Chunks of up to `most` items in order, fewer where they are long, so that memory is bounded."""
    held, taken = list[T](), 0
    for item in items:
        held.append(item)
        taken += size(item)
        if len(held) == most or taken >= CHUNK:
            yield held
            held, taken = [], 0
    if held:
        yield held


def decode_line(raw: bytes, where: str, *, opening: bool = False) -> str:
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        mistaken = [remedy for magic, remedy in OTHER_ENCODINGS.items() if opening and raw.startswith(magic)]
        remedy = mistaken[0] if mistaken else "convert the file, for example: iconv -f LATIN1 -t UTF-8"
        where_byte = f"byte 0x{raw[error.start]:02x}, the {error.start + 1}. of the line"
        raise ValueError(f"{where}: not UTF-8 ({where_byte}); {remedy}") from None
    line = line.removeprefix(BOM) if opening else line
    line = line.removesuffix("\n").removesuffix("\r")
    if "\r" in line:
        # Some programs break the line here and some do not, so the two sides of a corpus would come apart.
        raise ValueError(f"{where}: a carriage return inside the line; remove it, or end every line in \\n")
    return check_text(line, where)


def check_text(text: str, where: str) -> str:
    """The text, unless it has a NUL or a lone surrogate."""
    if "\0" in text:
        raise ValueError(f"{where}: a NUL character; the file is damaged, or not UTF-8 text")
    if at := find_lone_surrogate(text):
        raise ValueError(f"{where}: a lone surrogate (U+{ord(text[at - 1]):04X}, character {at}); remove it")
    return text


def find_lone_surrogate(text: str) -> int:
    """The position of the first lone surrogate, counted from 1; 0 if there is none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start + 1
    return 0


@contextmanager
def open_atomic(path: Path) -> Iterator[IO[bytes]]:
    """A file that replaces the old one when all of it is written (write to a temporary file, fsync, rename).

    A symbolic link is followed; a device, a pipe or a folder is refused. The permissions of the old file are kept.
    """
    path = path.resolve() if path.is_symlink() else path
    mode = check_replaceable(path)
    # an unpredictable name, opened exclusively: nobody can plant a file or a link there
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_stale_parts(path)
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode or 0o666)) as file:
            lock_file(file)
            if mode is not None:
                os.chmod(temporary, mode)  # regardless of the umask
            yield file
            file.flush()
            os.fsync(file.fileno())
            if os.name == "posix":  # while it is locked, so that no other process removes it
                temporary.replace(path)
        if os.name != "posix":  # an open file cannot be renamed there
            temporary.replace(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}); make room, or choose another place") from None
    finally:
        with suppress(OSError):  # there is none, or its folder could not be created
            temporary.unlink()


@contextmanager
def open_compressed(file: IO[bytes], suffix: str) -> Iterator[IO[bytes]]:
    """A file to write, compressed by the suffix, with the same bytes at any time."""
    match suffix:
        case ".gz":
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
                yield compressed  # type: ignore[misc]
        case ".xz":
            # the default preset takes ten times as long to save a third
            with lzma.open(file, "wb", preset=1) as compressed:
                yield compressed  # type: ignore[misc]
        case _:
            yield file


def check_replaceable(path: Path) -> int | None:
    """The permission bits of a file that is about to be replaced; None if there is no file."""
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


def remove_stale_parts(path: Path) -> None:
    """Delete the temporary files that killed processes left of this file; those still being written are locked."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError):  # another process was faster, or is writing it
            if part.is_file() and not part.is_symlink():
                with open(part, "rb") as file:
                    lock_file(file)
            part.unlink()


def lock_file(file: IO[Any]) -> None:
    """An exclusive lock; BlockingIOError if another process has it. The system releases it when a process dies."""
    if sys.platform == "win32":
        # a lock of Windows keeps others from reading the byte, so it is one far behind what the file holds
        before = os.lseek(file.fileno(), 0, os.SEEK_CUR)
        os.lseek(file.fileno(), LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(error.errno, "another process has locked it") from None
        finally:
            os.lseek(file.fileno(), before, os.SEEK_SET)
    else:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks


def write_text_atomic(path: str | Path, text: str) -> None:
    """Write atomically: the file has all of the text, or what it had before."""
    with open_atomic(Path(path)) as file:
        file.write(text.encode("utf-8"))


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{path}: cannot be made a folder ({error.strerror}); choose another place") from None


def read_json_objects(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The location of each line of a .jsonl, and its object, which has these fields; None for an empty line."""
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}:{number}"
        if not line.strip():
            yield where, None
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error}); every line is one object") from None
        for name in fields:
            if not isinstance(row, dict):
                raise ValueError(f"{where}: {type(row).__name__} instead of an object with the field {name!r}")
            if name not in row:
                raise ValueError(f"{where}: no field {name!r}, only {', '.join(map(repr, row)) or 'an empty object'}")
        yield where, row


def _stream(path: Path, *, keep_ends: bool) -> Iterator[str]:
    try:
        with open_decompressed(path) as file:
            yield from iter_lines(file, str(path), keep_ends=keep_ends)
    except OSError as error:
        raise ValueError(f"{path}: cannot be opened ({error.strerror}); check its permissions") from None


# --- the files of a folder or a .tar (plain, .gz, .xz), one at a time, without unpacking to disk ---


ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz")
MAX_FILE_BYTES = 2**28  # bytes of one file


@dataclass(frozen=True)
class FileBytes:
    """A file: where it is, for messages; its path relative to the folder; and its bytes."""

    where: str
    path: PurePosixPath
    bytes: bytes


def iter_files(path: str | Path, *, inside: str = "", endings: tuple[str, ...]) -> Iterator[FileBytes]:
    """The files with one of these suffixes below the folder `inside` of a folder or an archive, except hidden ones.

    The files of a folder are sorted; those of an archive come in its order.
    """
    path = Path(path)
    if path.is_dir():
        return _folder(path / inside, endings)
    if not path.exists():
        raise ValueError(f"{path}: no such folder or archive; check the name (looked in {path.absolute().parent})")
    if not path.is_file():
        raise ValueError(f"{path}: a pipe or a device, neither a folder nor an archive; write it to a file first")
    if not path.name.endswith(ARCHIVES):
        raise ValueError(f"{path}: neither a folder nor an archive; an archive's name ends in {', '.join(ARCHIVES)}")
    return _archive(path, PurePosixPath(inside), endings)


def split_archive_path(path: str) -> tuple[str, str]:
    """The path of a folder or an archive, and of the folder inside it: "set.tar:train" is train in set.tar."""
    archive, colon, inside = path.rpartition(":")
    return (archive, inside) if colon and not Path(path).exists() else (path, "")


def _folder(folder: Path, endings: tuple[str, ...]) -> Iterator[FileBytes]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; check the name (looked in {folder.absolute().parent})")
    for file in sorted(folder.rglob("*")):
        below = PurePosixPath(file.relative_to(folder).as_posix())
        if not _wanted(below, endings) or file.is_dir():
            continue
        if not file.is_file():
            raise ValueError(f"{file}: a broken link, a pipe or a device; replace it by a file, or remove it")
        yield FileBytes(str(file), below, read_file_bytes(file))


def read_file_bytes(file: Path) -> bytes:
    """The contents of an existing file, up to MAX_FILE_BYTES."""
    try:
        check_file_size(file.stat().st_size, str(file))
        return file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror}); check the file and its permissions") from None


def check_file_size(size: int, where: str) -> None:
    if size > MAX_FILE_BYTES:
        raise ValueError(f"{where}: {size} bytes, more than the {MAX_FILE_BYTES} that are read; leave the file out")


def _archive(path: Path, inside: PurePosixPath, endings: tuple[str, ...]) -> Iterator[FileBytes]:
    seen: set[PurePosixPath] = set()
    try:
        # as a stream, so that the unpacked size is bounded: a decompression bomb has a few kilobytes
        with open_decompressed(path) as file, tarfile.open(fileobj=file, mode="r|", bufsize=2**17) as archive:
            for member in archive:
                if file_bytes := _member(archive, member, f"{path}:{member.name}", inside, endings):
                    if file_bytes.path in seen:
                        raise ValueError(f"{file_bytes.where}: twice in the archive; pack it again")
                    seen.add(file_bytes.path)
                    yield file_bytes
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise ValueError(f"{path}: cannot be read to its end ({error}); fetch or pack the archive again") from None


def _member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, where: str, inside: PurePosixPath, endings: tuple[str, ...]
) -> FileBytes | None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"{where}: points outside the archive; pack it again with names below one folder")
    if member.isdir() or not name.is_relative_to(inside) or not _wanted(name.relative_to(inside), endings):
        return None
    if not member.isfile():
        raise ValueError(
            f"{where}: a link or a device, which is never followed; pack the file itself (tar --dereference)"
        )
    check_file_size(member.size, where)
    file = archive.extractfile(member)
    assert file is not None, "a plain file has bytes"
    return FileBytes(where, name.relative_to(inside), file.read())


def _wanted(path: PurePosixPath, endings: tuple[str, ...]) -> bool:
    """Hidden files, such as the ._ files of macOS, are no data."""
    return path.name.lower().endswith(endings) and not any(part.startswith(".") for part in path.parts)
