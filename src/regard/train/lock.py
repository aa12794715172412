"""Folder lock: one process trains in a folder at a time, released however the process ends."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from regard.data.files import lock_file, make_folder

LOCK = ".lock"
# Windows has neither flag: its links need special rights, and its pipes have no names in folders.
REGULAR = 0 if sys.platform == "win32" else os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True)
class FolderLock:
    """Proof that a folder is locked by this process."""

    folder: Path


@contextmanager
def lock_folder(folder: Path) -> Iterator[FolderLock]:
    """Inside, other processes cannot lock the folder. One that was created for it, and stays empty, is removed.

    The system releases the lock when a process dies, so kill -9 leaves none behind; the file stays, unless its folder
    is removed. So the lock is valid only if the file is still there once it is locked.
    """
    fresh = not folder.exists()
    with open_locked(folder) as file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield FolderLock(folder)
        finally:
            if fresh and [path.name for path in folder.iterdir()] == [LOCK]:
                if sys.platform == "win32":  # an open file cannot be removed there
                    file.close()
                (folder / LOCK).unlink()
                with suppress(OSError):  # another process created the file again meanwhile
                    folder.rmdir()


def open_locked(folder: Path) -> IO[str]:
    """The file, locked as long as it is open."""
    while True:
        make_folder(folder)
        try:
            file = open(folder / LOCK, "a+", opener=open_regular_file)  # noqa: SIM115 (the caller closes it)
        except FileNotFoundError:  # the folder was removed meanwhile
            continue
        try:
            lock_file(file)
        except BlockingIOError:
            with file:
                file.seek(0)
                pid = file.read()
            who = "this process itself" if pid == str(os.getpid()) else f"process {pid}"
            raise ValueError(
                f"{who} is training in {folder} already; wait until it is done, stop it, or choose another folder"
            ) from None
        if is_same_file(file, folder / LOCK):
            return file
        file.close()


def is_same_file(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def open_regular_file(name: str, flags: int) -> int:
    """A regular file without links: to write through a link would change its target."""
    try:
        descriptor = os.open(name, flags | REGULAR, 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        if Path(name).is_symlink():
            raise ValueError(f"{name}: is a link, and a lock must be a file of its own; remove it") from None
        raise ValueError(f"{name}: cannot be opened ({error.strerror}); remove it, or choose another folder") from None
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
        os.close(descriptor)
        raise ValueError(f"{name}: is a pipe, a device or a second name of a file; remove it")
    return descriptor
