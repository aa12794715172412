"""A folder in; the right to be the only one who trains in it out, given back however the process ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.text.files import make_folder


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """While this lasts, whoever else claims the folder is refused.

    The system itself lets go of the lock when a process dies, so kill -9 leaves none behind; the file stays, for to
    delete it would let two processes lock two files of the same name.
    """
    make_folder(folder)
    with (folder / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read()
            who = "this process itself" if pid == str(os.getpid()) else f"process {pid}"
            raise ValueError(
                f"{who} is training in {folder} already; wait until it is done, stop it, or choose another folder"
            ) from None
        except OSError:
            pass  # a file system without locks cannot tell
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
