"""A training state in, a folder on disk out, and back. Written atomically: a crash costs at most the last interval.

run/checkpoints/00000500/model.safetensors   the weights
                         optimiser.safetensors   what the optimiser remembers
                         state.json              step, epoch, validation history, and the other files' checksums
                .draft-…, .gone-…            being written, being deleted: what is left of them after a crash is no
                                             checkpoint, and the next run sweeps it away
"""

import json
import logging
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.models.weights import load_weights, tensors_of
from regard.tasks.run_folder import OPTIMISER, WEIGHTS, Progress, checkpoints, checksum, place, state_sum, whole


def write_checkpoint(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress) -> Path:
    """A complete checkpoint under its final name, or none at all."""
    final = place(folder, progress.step)
    draft = folder / f".draft-{final.name}"
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_file(tensors_of(model), draft / WEIGHTS)
        save_file(remembered(optimiser), draft / OPTIMISER)
        sums = {path.name: checksum(path) for path in sorted(draft.iterdir())}
        state = {"progress": asdict(progress), "sums": sums}
        (draft / "state.json").write_text(json.dumps({**state, "sum": state_sum(state)}, indent=1))
        for path in (*draft.iterdir(), draft):
            sync(path)
        discard(final)  # of an earlier try
        draft.rename(final)
        sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"cannot write a checkpoint to {folder}: {why}; earlier ones are untouched") from None
    return final


def read_checkpoint(folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> Progress | None:
    """Load the newest checkpoint that is whole; None if there is none."""
    for path in reversed(checkpoints(folder)):
        state = whole(path)
        if state is not None:
            load_weights(model, path / WEIGHTS)
            recall(optimiser, load_file(path / OPTIMISER))
            progress = state["progress"]
            return Progress(**{**progress, "history": tuple(progress.get("history", ()))})
    return None


def keep(folder: Path, newest: int, *, always: Collection[int], due: Callable[[int], bool]) -> None:
    """Delete all but the newest checkpoints that were due, those of the steps `always`, and the very last.

    Of those that were not due (someone left) a run that was never left has none, and so must this one in the end.
    """
    steps = [int(path.name) for path in checkpoints(folder)]
    kept = {*always, *steps[-1:], *[step for step in steps if due(step)][-newest:]}
    for step in steps:
        if step not in kept:
            discard(place(folder, step))


def sweep(folder: Path, after: int) -> None:
    """Delete what a killed run left behind, and torn checkpoints later than the step that one could go on from.

    A torn one would take the place of a newer whole one among those to keep, and of an older in their mean.
    """
    torn = [path for path in checkpoints(folder) if int(path.name) > after]
    if after == 0 and len(torn) > 1:  # no crash tears two, so this is not for us to throw away
        raise ValueError(f"of {len(torn)} checkpoints in {folder} none is whole; to begin anew, move that folder away")
    for path in (*folder.glob(".draft-*"), *folder.glob(".gone-*")):
        shutil.rmtree(path)
    for path in torn:
        logging.getLogger(__name__).warning(f"{path} is damaged, and is thrown away; going on from step {after:,}")
        discard(path)


def discard(path: Path) -> None:
    """Delete a checkpoint, which at no moment is there by half."""
    if path.exists():
        gone = path.with_name(f".gone-{path.name}")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone)


def remembered(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimiser.state_dict()["state"]
    return {
        f"{index}.{name}": torch.as_tensor(value).contiguous()
        for index, values in state.items()
        for name, value in values.items()
    } or {"none": torch.zeros(1)}


def recall(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if "." in key:
            index, name = key.split(".")
            # a copy: the file is only mapped into memory, and some file systems delete no folder of which a part is
            state.setdefault(int(index), {})[name] = tensor.clone()
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights, summed in float64."""
    if not paths:
        raise ValueError("there is no checkpoint to average")
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in load_file(path / "model.safetensors").items():
            total[name] = tensor.double() if name not in total else total[name] + tensor.double()
    like = load_file(paths[0] / "model.safetensors")
    return {name: (tensor / len(paths)).to(like[name].dtype) for name, tensor in total.items()}


def sync(path: Path) -> None:
    """Ask the system to really write it, so that a power cut cannot reorder what was written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
