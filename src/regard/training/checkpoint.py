"""Checkpoints: weights, optimiser state and progress, written atomically; their average; and the progress of a run.

run/checkpoints/00000500/model.safetensors   the weights
                         optimiser.safetensors   the optimiser's state
                         state.json              step, epoch, validation history, and the other files' checksums
                .draft-…, .gone-…            being written, being deleted: what is left of them after a crash is no
                                             checkpoint, and the next run removes it
"""

import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.models.safetensors_io import load_tensors, load_weights, saveable_tensors
from regard.training.config import TrainConfig, TrainingData
from regard.training.distributed import Replica, gather_tensor, shard_like
from regard.training.run_folder import (
    OPTIMISER,
    WEIGHTS,
    Progress,
    checkpoint_path,
    checkpoints,
    checksum,
    read_valid_state,
    state_checksum,
)
from regard.training.step import LossScaleState


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
    final = checkpoint_path(folder, progress.step)
    draft = folder / f".draft-{final.name}"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_file(saveable_tensors(model), draft / WEIGHTS)
        save_file(optimiser_tensors(optimiser), draft / OPTIMISER)
        sums = {path.name: checksum(path) for path in sorted(draft.iterdir())}
        state = {"progress": asdict(progress), "sums": sums}
        (draft / "state.json").write_text(json.dumps({**state, "sum": state_checksum(state)}, indent=1))
        for path in (*draft.iterdir(), draft):
            sync(path)
        discard(final)  # of an earlier attempt
        draft.rename(final)
        sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"cannot write a checkpoint to {folder}: {why}; earlier ones are untouched") from None
    return final


def save(folder: Path, trained: Replica, optimiser: torch.optim.Optimizer, progress: Progress) -> None:
    """A checkpoint by rank 0; the others send it their parts of the optimiser's state."""
    if trained.group.is_main:
        write_checkpoint(folder, trained.model, optimiser, progress)
    else:
        for _ in gather_state(optimiser):
            pass


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
            load_optimiser(optimiser, load_file(path / OPTIMISER))
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
    return dict(gather_state(optimiser)) or {"none": torch.zeros(1)}


def gather_state(optimiser: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The optimiser's state by index and name; what processes share is gathered on the host, one tensor at a time."""
    for index, values in optimiser.state_dict()["state"].items():
        for name, value in values.items():
            tensor = torch.as_tensor(value)
            whole = gather_tensor(tensor)
            yield f"{index}.{name}", (whole if whole is tensor else whole.cpu()).contiguous()


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    for key, tensor in tensors.items():
        if "." in key:
            index, name = key.split(".")
            # a copy: the file is memory-mapped, and some file systems cannot delete a folder with a mapped file
            state.setdefault(int(index), {})[name] = shard_like(weights[int(index)], tensor.clone())
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
