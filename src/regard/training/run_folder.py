"""Run folder: its finished weights and checkpoints, which of them a model is loaded from, and the lock of a folder.

run/settings.toml            what is trained; beside it the vocabularies
    model.safetensors        the finished weights, once it is trained to the end
    checkpoints/00000500/    model.safetensors, optimiser.safetensors, state.json: see `regard.training.checkpoint`
    log.jsonl                what happened: see `regard.training.run`
    example.txt              a text of a few words that was held out, with which the page begins
    parts/                   copies of a user's own parts, to read: see `regard.tasks.own_parts`
"""

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from regard.data.files import lock_file, make_folder, read_lines, require_file, require_small_file, write_text_atomic

SETTINGS, WEIGHTS, OPTIMISER = "settings.toml", "model.safetensors", "optimiser.safetensors"
CHECKPOINTS = "checkpoints"
EXAMPLE, EXAMPLE_WORDS, MAX_EXAMPLE_LETTERS = "example.txt", range(3, 13), 400


@dataclass(frozen=True)
class RunWeights:
    """The weights that a model of a run is loaded from.

    Args:
        run: the folder of the run.
        file: where they are.
        name, step: which checkpoint it is, if somebody who did not ask for one should hear of it.
        last: the step at which the run was stopped.
    """

    run: Path
    file: Path
    name: str = ""
    step: int = 0
    last: int = 0

    def stopped_notice(self, steps: int) -> str:
        """What to say of a run that should take so many steps; "" for finished weights, and for those asked for."""
        stopped = f"{self.run} was stopped at step {self.last:,} of {steps:,}"
        return f"{stopped}; using its {self.name} checkpoint (step {self.step:,})" if self.name else ""


def resolve_weights(folder: Path, checkpoint: str | int | None = None) -> RunWeights:
    """Those of a checkpoint: "best", "last" or a step. Without one: the finished, else the best, else the last.

    `folder` may be that of a checkpoint itself.
    """
    run, step = resolve_run(folder)
    if step is not None and checkpoint is not None:
        raise ValueError(f"{folder} is a checkpoint itself; leave out the choice of {checkpoint!r}, or name {run}")
    requested = checkpoint if step is None else step
    if requested is None and (run / WEIGHTS).exists():
        return RunWeights(run, run / WEIGHTS)
    saved = run / CHECKPOINTS
    newest = next(((path, state) for path in reversed(checkpoints(saved)) if (state := read_valid_state(path))), None)
    if newest is None:
        raise ValueError(f"{run} has no checkpoint yet; train it: regard train --out {run}")
    last, best = int(newest[0].name), newest[1]["progress"]["best_step"]
    named = {"last": last} | ({"best": best} if best and read_valid_state(checkpoint_path(saved, best)) else {})
    if requested is None:
        name, at = list(named.items())[-1]
        return RunWeights(run, checkpoint_path(saved, at) / WEIGHTS, name, at, last)
    at = str(named.get(str(requested), requested))
    if at.isdecimal() and read_valid_state(checkpoint_path(saved, int(at))):
        return RunWeights(run, checkpoint_path(saved, int(at)) / WEIGHTS)
    there = ", ".join([*named, *(str(int(path.name)) for path in checkpoints(saved))])
    raise ValueError(f"{run} has no whole checkpoint {requested}; choose from {there}")


def resolve_run(folder: Path) -> tuple[Path, int | None]:
    """The run that a folder belongs to: it is one, or the checkpoint of one at this step."""
    here = folder.absolute()
    run = here.parent.parent
    if here.parent.name == CHECKPOINTS and here.name.isdecimal() and (run / SETTINGS).exists():
        return (folder.parent.parent if folder.name == here.name else run), int(here.name)
    return folder, None


def save_example(run: Path, texts: Iterable[str]) -> None:
    """The first of the held-out texts that has a few words, if one has: the data may move away."""
    joined = (" ".join(text.split()) for text in texts)
    short = (text for text in joined if len(text.split()) in EXAMPLE_WORDS and len(text) <= MAX_EXAMPLE_LETTERS)
    if text := next(short, ""):
        write_text_atomic(run / EXAMPLE, f"{text}\n")


def read_example(folder: Path) -> str:
    """The text that was kept for a run, or for the run of a checkpoint; "" if there is none."""
    path = resolve_run(folder)[0] / EXAMPLE
    return next(read_lines(path), "")[:MAX_EXAMPLE_LETTERS] if path.exists() else ""


# --- checkpoints ---


@dataclass(frozen=True)
class Progress:
    """Where a run stands, besides its weights: all that the next step depends on.

    Examples:
        >>> from pathlib import Path
        >>> layer = torch.nn.Linear(3, 1)
        >>> optimiser = torch.optim.AdamW(layer.parameters())
        >>> path = write_checkpoint(Path("progress"), layer, optimiser, Progress(step=7, epoch=1, index=2))
        >>> progress = read_checkpoint(Path("progress"), layer, optimiser)
        >>> progress.step, progress.epoch, progress.index  # the next batch is number 2 of epoch 1
        (7, 1, 2)
    """

    step: int = 0
    epoch: int = 0
    index: int = 0  # the next batch of this epoch
    best: float | None = None
    best_step: int = 0
    worse: int = 0  # validations since the best
    skips: int = 0  # steps in a row whose gradient was no number
    history: tuple[dict[str, float], ...] = ()
    scaler: dict[str, float] = field(default_factory=dict)


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"{step:08d}"


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first.

    Examples:
        >>> from pathlib import Path
        >>> [path.name for path in checkpoints(Path("run/checkpoints"))]
        ['00000001', '00000002']
    """
    return sorted(
        (path for path in folder.glob("[0-9]*") if path.is_dir() and path.name.isdecimal()),
        key=lambda path: int(path.name),
    )


def read_valid_state(path: Path) -> dict[str, Any] | None:
    """The state of a checkpoint whose files are all as they were written; None if any is missing or torn."""
    try:
        state = read_state(path)
        return state if state and all(checksum(path / name) == sum for name, sum in state["sums"].items()) else None
    except (FileNotFoundError, ValueError):
        return None  # any other trouble with the disk is not for us to pass over: it may pass


def read_state(path: Path) -> dict[str, Any] | None:
    """The state of a checkpoint, if state.json is as it was written; its other files, which are large, are not read."""
    try:
        state = json.loads(require_small_file(path / "state.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not is_valid_state(state, int(path.name)):
        return None
    expected = state.pop("sum", None)  # early ones had none
    sound = expected in (None, state_checksum(state))
    return state if sound else None


def is_valid_state(state: Any, step: int) -> bool:
    """Whether a file holds what is written at a step (see `Progress`): somebody may have written something else."""
    match state:
        case {"progress": dict(progress), "sums": dict(sums)}:
            return (
                state.keys() <= {"progress", "sums", "sum"}
                and progress.get("step") == step
                and progress.keys() <= {field.name for field in fields(Progress)}
                and all(is_valid_field(name, value) for name, value in progress.items())
                and sums.keys() == {WEIGHTS, OPTIMISER}
            )
    return False


def is_valid_field(name: str, value: Any) -> bool:
    match name:
        case "best":
            return value is None or is_number(value)
        case "scaler":
            return are_numbers(value)
        case "history":
            return isinstance(value, list) and all(map(are_numbers, value))
    return is_number(value) and isinstance(value, int) and value >= 0


def are_numbers(held: Any) -> bool:
    return isinstance(held, dict) and all(map(is_number, held.values()))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def state_checksum(state: dict[str, Any]) -> str:
    """Of what state.json says, itself."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def checksum(path: Path) -> str:
    with require_file(path).open("rb") as file:  # existing: a pipe would keep us waiting, a device would never end
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- the lock ---


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
