"""Checkpoints: weights, optimiser state and progress, written atomically, in a run's folder; the lock of a folder.

run/settings.toml            what is trained; beside it the vocabularies
    model.safetensors        the finished weights, once it is trained to the end
    checkpoints/00000500/    model.safetensors        the weights
                             optimiser.safetensors    the optimiser's state; with FSDP of several processes the folder
                             optimiser/               in place of it, where each has written its part
                             state.json               step, epoch, validation history, the other files' checksums
                .draft-…, .gone-…                     being written, being deleted: what is left of them after a crash
                                                      is no checkpoint, and the next run removes it
    log.jsonl                what happened: see `regard.training.run`
    example.txt              a text of a few words that was held out, with which the page begins
    parts/                   copies of a user's own parts, to read: see `regard.tasks.own_parts`
"""

import hashlib
import json
import logging
import math
import os
import re
import shutil
import stat
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.data.files import lock_file, make_folder, read_lines, require_file, require_small_file, write_text_atomic
from regard.models.safetensors_io import load_tensors, load_weights, save_tensors, saveable_tensors
from regard.training.config import TrainConfig, TrainingData
from regard.training.distributed import ProcessGroup, Replica, is_shard, shard_like
from regard.training.step import LossScaleState

SETTINGS, WEIGHTS, OPTIMISER = "settings.toml", "model.safetensors", "optimiser.safetensors"
SHARDS, SHARD_NAME = "optimiser", re.compile(r"optimiser/[\w-]+\.safetensors")
SHARD = "shard-{:05d}-model-00001-of-00001.safetensors"  # as torch calls what process n - 1 writes
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


# --- which checkpoints are there and whole ---


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
                and are_checkpoint_files(sums)
            )
    return False


def are_checkpoint_files(names: Collection[str]) -> bool:
    """The weights, and the optimiser's state as one file or as several."""
    others = {*names} - {WEIGHTS}
    return len(others) < len(names) and (
        others == {OPTIMISER} or (bool(others) and all(map(SHARD_NAME.fullmatch, others)))
    )


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


# --- writing, reading and deleting ---


def write_checkpoint(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress) -> Path:
    """A complete checkpoint under its final name, or none at all.

    Examples:
        >>> from pathlib import Path
        >>> layer = torch.nn.Linear(3, 1)
        >>> optimiser = torch.optim.AdamW(layer.parameters())
        >>> path = write_checkpoint(Path("written"), layer, optimiser, Progress(step=500))
        >>> path.as_posix(), sorted(file.name for file in path.iterdir())
        ('written/00000500', ['model.safetensors', 'optimiser.safetensors', 'state.json'])
    """
    with checkpoint_draft(folder, progress) as draft:
        save_tensors(saveable_tensors(model), draft / WEIGHTS)
        save_tensors(optimiser_tensors(optimiser), draft / OPTIMISER)
        finish_draft(draft, {name: checksum(draft / name) for name in (WEIGHTS, OPTIMISER)}, progress)
    return checkpoint_path(folder, progress.step)


@contextmanager
def checkpoint_draft(folder: Path, progress: Progress) -> Iterator[Path]:
    """The folder to write a checkpoint to; whatever goes wrong meanwhile, earlier ones stay as they are."""
    draft = folder / f".draft-{checkpoint_path(folder, progress.step).name}"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
    except (OSError, SafetensorError, ValueError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, ValueError):
            raise
        raise ValueError(cannot_write(folder, error.strerror if isinstance(error, OSError) else error)) from None


def cannot_write(folder: Path, why: object) -> str:
    return f"cannot write a checkpoint to {folder}: {why}; earlier ones are untouched"


def finish_draft(draft: Path, sums: dict[str, str], progress: Progress) -> None:
    """Names the checksums of its files, and renames it."""
    state = {"progress": asdict(progress), "sums": dict(sorted(sums.items()))}
    (draft / "state.json").write_text(json.dumps({**state, "sum": state_checksum(state)}, indent=1))
    for path in (*draft.rglob("*"), draft):
        sync(path)
    final = checkpoint_path(draft.parent, progress.step)
    discard(final)  # of an earlier attempt
    draft.rename(final)
    sync(draft.parent)


def save(folder: Path, trained: Replica, optimiser: torch.optim.Optimizer, progress: Progress) -> None:
    """A checkpoint by rank 0; with FSDP every process writes its part of the optimiser's state."""
    if trained.module is not trained.model:
        write_shards(folder, trained, optimiser, progress)
    elif trained.group.is_main:
        write_checkpoint(folder, trained.model, optimiser, progress)


def write_shards(folder: Path, trained: Replica, optimiser: torch.optim.Optimizer, progress: Progress) -> None:
    """A checkpoint whose optimiser's state is written by all processes beside each other, in safetensors.

    The weights are one file by rank 0, which has gathered them to validate: so every command reads them.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

    group, name = trained.group, checkpoint_path(folder, progress.step).name
    shards = folder / f".draft-{name}" / SHARDS
    # in one order, also after resuming; what all have would be dealt out in any
    state = sorted(local_state(optimiser), key=lambda one: one[0])
    own = {name: tensor for name, tensor in state if group.is_main or is_shard(tensor)}
    with checkpoint_draft(folder, progress) if group.is_main else nullcontext() as draft:
        group.barrier()  # the folder is there
        if draft:
            save_tensors(saveable_tensors(trained.model), draft / WEIGHTS)
        try:
            save_distributed(own, storage_writer=HuggingFaceStorageWriter(str(shards), save_distributed=True))
        except CheckpointException as error:
            raise ValueError(cannot_write(folder, first_failure(error))) from None
        sums = checksum_shards(shards, group)
        if draft:
            finish_draft(draft, {WEIGHTS: checksum(draft / WEIGHTS), **sums}, progress)


def first_failure(error: Any) -> str:
    """What one of the processes says."""
    rank, (reason, _) = min(error.failures.items(), key=lambda one: one[0])
    return f"process {rank}: {getattr(reason, 'strerror', None) or reason}"


def checksum_shards(folder: Path, group: ProcessGroup) -> dict[str, str]:
    """By name; each process reads what it wrote itself: of the others' files a shared file system may not tell yet."""
    path, sums = folder / SHARD.format(group.rank + 1), torch.zeros(group.size, 32, dtype=torch.int64)
    if path.exists():  # it does not where there are fewer weights than processes
        sort_note(path)
        sums[group.rank] = torch.tensor(list(bytes.fromhex(checksum(path))))
    rows = group.sum_all(sums).tolist()
    found = {f"{SHARDS}/{SHARD.format(n)}": bytes(row).hex() for n, row in enumerate(rows, 1) if any(row)}
    assert found, f"torch gives the parts of a checkpoint another name than {path.name}"
    return found


def sort_note(path: Path) -> None:
    """The notes in a safetensors header, which the library writes in any order: the same state is the same bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        notes = dict(sorted(header.pop("__metadata__").items()))
        text = json.dumps({"__metadata__": notes, **header}, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(text) <= size, "the same in another order"
        file.seek(8)
        file.write(text.ljust(size))


def read_checkpoint(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> Progress | None:
    """Load the newest checkpoint that is whole; None if there is none.

    Examples:
        >>> from pathlib import Path
        >>> layer, other = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
        >>> path = write_checkpoint(Path("saved"), layer, torch.optim.AdamW(layer.parameters()), Progress(step=9))
        >>> progress = read_checkpoint(Path("saved"), other, torch.optim.AdamW(other.parameters()))
        >>> progress.step, torch.equal(layer.weight, other.weight)
        (9, True)
    """
    for path in reversed(checkpoints(folder)):
        state = read_valid_state(path)
        if state is not None:
            load_weights(model, path / WEIGHTS)
            whole = (path / OPTIMISER).exists()
            load_optimiser(optimiser, load_file(path / OPTIMISER) if whole else read_shards(path / SHARDS, optimiser))
            progress = state["progress"]
            return Progress(**{**progress, "history": tuple(progress.get("history", ()))})
    return None


def resume(
    folder: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    config: TrainConfig,
    due: Callable[[int], bool] | None,
) -> Progress:
    """Load the newest checkpoint; given which steps are due for one, delete what a killed run left behind."""
    progress = read_checkpoint(folder, model, optimiser) or Progress()
    if due is not None:
        remove_leftovers(folder, progress.step)
        prune_checkpoints(folder, config.keep, always=best_steps(progress, config), due=due)
    return progress


def prune_checkpoints(folder: Path, newest: int, *, always: Collection[int], due: Callable[[int], bool]) -> None:
    """Delete all but the newest checkpoints that were due, those of the steps `always`, and the very last.

    One that was not due (the run was interrupted) must not stay, as an uninterrupted run has none.
    """
    steps = [int(path.name) for path in checkpoints(folder)]
    keep = {*always, *steps[-1:], *[step for step in steps if due(step)][-newest:]}
    for step in steps:
        if step not in keep:
            discard(checkpoint_path(folder, step))


def remove_leftovers(folder: Path, after: int) -> None:
    """Delete what a killed run left behind, and damaged checkpoints later than the step to resume from.

    A damaged one would be counted among those to keep, and in their average.
    """
    damaged = [path for path in checkpoints(folder) if int(path.name) > after]
    if after == 0 and len(damaged) > 1:  # no crash damages two, so they are not deleted
        raise ValueError(
            f"all {len(damaged)} checkpoints in {folder} are damaged; to start again, move that folder away"
        )
    for path in (*folder.glob(".draft-*"), *folder.glob(".gone-*")):
        shutil.rmtree(path)
    for path in damaged:
        logging.getLogger(__name__).warning(f"{path} is damaged, and is deleted; resuming from step {after:,}")
        discard(path)


def discard(path: Path) -> None:
    """Delete a checkpoint, atomically."""
    if path.exists():
        gone = path.with_name(f".gone-{path.name}")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone)


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in local_state(optimiser)} or {"none": torch.zeros(1)}


def local_state(optimiser: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The optimiser's state by index and name; of what processes share, the part of this one."""
    for index, values in optimiser.state_dict()["state"].items():
        for name, value in values.items():
            yield f"{index}.{name}", torch.as_tensor(value)


def read_shards(folder: Path, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state, however many processes wrote it; of a weight that they share, the part of this one."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    found: dict[str, Tensor] = {}
    for name, saved in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(saved, TensorStorageMetadata), "there are only tensors in a safetensors file"
        like = weights[int(name.partition(".")[0])]
        whole = torch.zeros(saved.size, dtype=saved.properties.dtype)
        found[name] = torch.zeros_like(like, dtype=whole.dtype) if like.shape == whole.shape else whole
    try:
        with warnings.catch_warnings():  # each process reads by itself, as is meant
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            load(found, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        raise ValueError(
            f"{folder}: belongs to another model ({first_failure(error)}); train in another folder"
        ) from None
    return found


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    for key, tensor in tensors.items():
        if "." in key:
            index, name = key.split(".")
            # a copy: the file is memory-mapped, and some file systems cannot delete a folder with a mapped file
            part = tensor if is_shard(tensor) else shard_like(weights[int(index)], tensor.clone())
            state.setdefault(int(index), {})[name] = part
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights, summed in float64.

    Examples:
        >>> from pathlib import Path
        >>> for step, value in ((1, 2.0), (2, 4.0)):
        ...     layer = torch.nn.Linear(1, 1, bias=False)
        ...     layer.weight.data = torch.tensor([[value]])
        ...     optimiser = torch.optim.AdamW(layer.parameters())
        ...     path = write_checkpoint(Path("two"), layer, optimiser, Progress(step=step))
        >>> average(checkpoints(Path("two")))
        {'weight': tensor([[3.]])}
    """
    if not paths:
        raise ValueError("there is no checkpoint to average; train first")
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in load_tensors(path / WEIGHTS).items():
            total[name] = tensor.double() if name not in total else total[name] + tensor.double()
    like = load_tensors(paths[0] / WEIGHTS)
    return {name: (tensor / len(paths)).to(like[name].dtype) for name, tensor in total.items()}


def sync(path: Path) -> None:
    """Flush to disk, so that a power cut cannot reorder what was written."""
    if sys.platform == "win32" and path.is_dir():
        return  # only files can be flushed there
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- progress: validations, the best of them, and resuming with another number of steps or other settings ---


def weights_are_finite(model: nn.Module) -> bool:
    return bool(torch.stack([weight.isfinite().all() for weight in model.parameters()]).all())


def has_finite_validation(progress: Progress) -> bool:
    """False if no validation so far was finite: a checkpoint would be useless."""
    return progress.best is not None or not progress.history


def with_loss_scale(progress: Progress, loss_scale: LossScaleState, config: TrainConfig) -> Progress:
    """Progress for a checkpoint, with the state of loss scaling from the device."""
    scaler = {"scale": float(loss_scale.scale)} if config.precision == "float16" else {}
    return replace(progress, skips=int(loss_scale.skips), scaler=scaler)


def record_validation(progress: Progress, figures: dict[str, float], by: str = "loss") -> Progress:
    """With this validation in the history, and as the best if it is."""
    if by not in figures:
        raise ValueError(f"best = {by!r}: validation finds only {', '.join(figures)}; choose one of them")
    found = figures[by] if by == "loss" else -figures[by]
    numbers = all(map(math.isfinite, figures.values()))  # accuracy may be finite where the loss is not
    better = numbers and found < (math.inf if progress.best is None else progress.best)
    return replace(
        progress,
        best=found if better else progress.best,
        best_step=progress.step if better else progress.best_step,
        worse=0 if better else progress.worse + 1,
        history=(*progress.history, {"step": progress.step, **figures}),
    )


def resume_progress(progress: Progress, config: TrainConfig, data: TrainingData) -> Progress:
    """The progress to resume from, as if the settings had always been these.

    With other data, or larger batches, the epoch may be over already.
    """
    progress = without_final_validation(progress, config)
    if progress.index and progress.index >= data.steps(progress.epoch):
        return replace(progress, epoch=progress.epoch + 1, index=0)
    return progress


def without_final_validation(progress: Progress, config: TrainConfig) -> Progress:
    """Without a validation that was due only because the run was at its end."""
    rest = [
        each for each in progress.history if each["step"] < progress.step or progress.step % config.validate_every == 0
    ]
    found = replace(progress, best=None, best_step=0, worse=0, history=())
    for step, figures in ((each["step"], {k: v for k, v in each.items() if k != "step"}) for each in rest):
        found = record_validation(replace(found, step=int(step)), figures, config.best)
    return replace(found, step=progress.step)


def best_steps(progress: Progress, config: TrainConfig) -> set[int]:
    """The best checkpoint's step, and that of the best if the run is extended."""
    return {progress.best_step, without_final_validation(progress, config).best_step}


def is_validation_step(config: TrainConfig, step: int) -> bool:
    return step % config.validate_every == 0 or step == config.steps


def out_of_patience(progress: Progress, config: TrainConfig) -> bool:
    return config.patience > 0 and progress.worse >= config.patience


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
