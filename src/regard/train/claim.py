"""A folder in; the right to be the only one who trains in it out, given back however the process ends."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from regard.text.files import lock, make_folder

LOCK = ".lock"


@dataclass(frozen=True)
class Claim:
    """That a folder is ours, for whoever wants to see it."""

    folder: Path


@contextmanager
def claimed(folder: Path) -> Iterator[Claim]:
    """While this lasts, whoever else claims the folder is refused. One that was made for it, and stays empty, goes.

    The system itself lets go of the lock when a process dies, so kill -9 leaves none behind; the file stays, but in a
    folder that goes. So it is ours only if it still lies there once it is locked.
    """
    fresh = not folder.exists()
    with locked(folder) as file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield Claim(folder)
        finally:
            if fresh and [path.name for path in folder.iterdir()] == [LOCK]:
                (folder / LOCK).unlink()
                with suppress(OSError):  # somebody who came meanwhile made a file of that name anew
                    folder.rmdir()


def locked(folder: Path) -> IO[str]:
    """The file, locked as long as it is open."""
    while True:
        make_folder(folder)
        try:
            file = open(folder / LOCK, "a+", opener=open_own)  # noqa: SIM115 (the caller closes it)
        except FileNotFoundError:  # the folder went before our eyes
            continue
        try:
            lock(file)
        except BlockingIOError:
            with file:
                file.seek(0)
                pid = file.read()
            who = "this process itself" if pid == str(os.getpid()) else f"process {pid}"
            raise ValueError(
                f"{who} is training in {folder} already; wait until it is done, stop it, or choose another folder"
            ) from None
        if lies_at(file, folder / LOCK):
            return file
        file.close()


def lies_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def open_own(name: str, flags: int) -> int:
    """A plain file of this name alone: to write through a link would spoil what it leads to."""
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
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
