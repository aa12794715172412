"""Archives: the files of a folder or a .tar (plain, .gz, .xz), one at a time, without unpacking to disk."""

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from regard.data.files import open_decompressed

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
