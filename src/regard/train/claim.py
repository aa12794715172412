"""A folder in; the right to be the only one who trains in it out, given back however the process ends."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.text.files import lock, make_folder


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """While this lasts, whoever else claims the folder is refused.

    The system itself lets go of the lock when a process dies, so kill -9 leaves none behind; the file stays, for to
    delete it would let two processes lock two files of the same name.
    """
    make_folder(folder)
    with open(folder / ".lock", "a+", opener=open_own) as file:
        try:
            lock(file)
        except BlockingIOError:
            file.seek(0)
            pid = file.read()
            who = "this process itself" if pid == str(os.getpid()) else f"process {pid}"
            raise ValueError(
                f"{who} is training in {folder} already; wait until it is done, stop it, or choose another folder"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def open_own(name: str, flags: int) -> int:
    """A plain file of this name alone: to write through a link would spoil what it leads to."""
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if Path(name).is_symlink():
            raise ValueError(f"{name}: is a link, and a lock must be a file of its own; remove it") from None
        raise ValueError(f"{name}: cannot be opened ({error.strerror}); remove it, or choose another folder") from None
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
        os.close(descriptor)
        raise ValueError(f"{name}: is a pipe, a device or a second name of a file; remove it")
    return descriptor
