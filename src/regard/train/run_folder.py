"""Run folder: its finished weights and its checkpoints, and which of them a model is loaded from.

run/settings.toml            what is trained; beside it the vocabularies
    model.safetensors        the finished weights, once it is trained to the end
    checkpoints/00000500/    model.safetensors, optimiser.safetensors, state.json: see `regard.train.checkpoint`
    log.jsonl                what happened: see `regard.train.report`
"""

import hashlib
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from regard.data.files import require_file, require_small_file

SETTINGS, WEIGHTS, OPTIMISER = "settings.toml", "model.safetensors", "optimiser.safetensors"
CHECKPOINTS = "checkpoints"


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


# --- checkpoints ---


@dataclass(frozen=True)
class Progress:
    """Where a run stands, besides its weights: all that the next step depends on."""

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
    """Finished checkpoints, oldest first."""
    return sorted(
        (path for path in folder.glob("[0-9]*") if path.is_dir() and path.name.isdecimal()),
        key=lambda path: int(path.name),
    )


def read_valid_state(path: Path) -> dict[str, Any] | None:
    """The state of a checkpoint whose files are all as they were written; None if any is missing or torn."""
    try:
        state = json.loads(require_small_file(path / "state.json").read_text(encoding="utf-8"))
        if not is_valid_state(state, int(path.name)):
            return None
        said = state.pop("sum", None)  # early ones had none
        sound = said in (None, state_checksum(state))
        return state if sound and all(checksum(path / name) == sum for name, sum in state["sums"].items()) else None
    except (FileNotFoundError, ValueError, RecursionError):
        return None  # any other trouble with the disk is not for us to pass over: it may pass


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
