"""A folder or a .tar (plain, .gz, .xz) in; the files under it out, one at a time, nothing ever unpacked to the disk."""

import lzma
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from regard.text.files import opened

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz")
LARGEST = 2**28  # bytes of one file


@dataclass(frozen=True)
class Found:
    """A file: where it is, for people; its path below the folder that was asked for; and its bytes."""

    where: str
    path: PurePosixPath
    bytes: bytes


def files_under(path: str | Path, *, inside: str = "", endings: tuple[str, ...]) -> Iterator[Found]:
    """The files with one of these endings below the folder `inside` of a folder or an archive; hidden ones are not.

    A folder's files come in order; an archive's as they lie in it.
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


def within(path: str) -> tuple[str, str]:
    """A folder or an archive, and the folder in it that is meant: "set.tar:train" is train in set.tar."""
    place, colon, inside = path.rpartition(":")
    return (place, inside) if colon and not Path(path).exists() else (path, "")


def _folder(folder: Path, endings: tuple[str, ...]) -> Iterator[Found]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; check the name (looked in {folder.absolute().parent})")
    for file in sorted(folder.rglob("*")):
        below = PurePosixPath(file.relative_to(folder).as_posix())
        if not _wanted(below, endings) or file.is_dir():
            continue
        if not file.is_file():
            raise ValueError(f"{file}: a broken link, a pipe or a device; replace it by a file, or remove it")
        yield Found(str(file), below, bytes_of(file))


def bytes_of(file: Path) -> bytes:
    """All of a file, which is there."""
    try:
        refuse_large(file.stat().st_size, str(file))
        return file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror}); check the file and who may read it") from None


def refuse_large(size: int, where: str) -> None:
    if size > LARGEST:
        raise ValueError(f"{where}: {size} bytes, more than the {LARGEST} that are read; leave the file out")


def _archive(path: Path, inside: PurePosixPath, endings: tuple[str, ...]) -> Iterator[Found]:
    seen: set[PurePosixPath] = set()
    try:
        # forwards only, so that what is unpacked is counted: an archive of a few kilobytes can hold anything
        with opened(path) as file, tarfile.open(fileobj=file, mode="r|", bufsize=2**17) as archive:
            for member in archive:
                if found := _member(archive, member, f"{path}:{member.name}", inside, endings):
                    if found.path in seen:
                        raise ValueError(f"{found.where}: twice in the archive; pack it again")
                    seen.add(found.path)
                    yield found
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise ValueError(f"{path}: cannot be read to its end ({error}); fetch or pack the archive again") from None


def _member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, where: str, inside: PurePosixPath, endings: tuple[str, ...]
) -> Found | None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"{where}: leads out of the archive; pack it again with names below one folder")
    if member.isdir() or not name.is_relative_to(inside) or not _wanted(name.relative_to(inside), endings):
        return None
    if not member.isfile():
        raise ValueError(
            f"{where}: a link or a device, which is never followed; pack the file itself (tar --dereference)"
        )
    refuse_large(member.size, where)
    file = archive.extractfile(member)
    assert file is not None, "a plain file has bytes"
    return Found(where, name.relative_to(inside), file.read())


def _wanted(path: PurePosixPath, endings: tuple[str, ...]) -> bool:
    """A hidden file, such as the ._ twins that some systems pack, is nobody's data."""
    return path.name.lower().endswith(endings) and not any(part.startswith(".") for part in path.parts)
