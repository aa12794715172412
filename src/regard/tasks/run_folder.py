"""A run's folder: its finished weights and its checkpoints, and which of them a model is loaded from.

run/settings.toml            what is trained; beside it the vocabularies
    model.safetensors        the finished weights, once it is trained to the end
    checkpoints/00000500/    model.safetensors, optimiser.safetensors, state.json: see `regard.train.checkpoint`
    log.jsonl                what happened: see `regard.train.log`
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SETTINGS, WEIGHTS, CHECKPOINTS = "settings.toml", "model.safetensors", "checkpoints"


@dataclass(frozen=True)
class RunWeights:
    """The weights that a model of a run is loaded from.

    Args:
        run: the folder of the run.
        file: where they are.
        notice: what to say to somebody who did not ask for these; "" for finished weights, and for those asked for.
    """

    run: Path
    file: Path
    notice: str = ""


def weights_of(folder: Path, checkpoint: str | int | None = None, *, steps: int | None = None) -> RunWeights:
    """Those of a checkpoint: "best", "last" or a step. Without one: the finished, else the best, else the last.

    `folder` may be that of a checkpoint itself. `steps` is how many the run should take, for the notice.
    """
    run, step = run_of(folder)
    if step is not None and checkpoint is not None:
        raise ValueError(f"{folder} is a checkpoint itself; leave out the choice of {checkpoint!r}, or name {run}")
    asked = checkpoint if step is None else step
    if asked is None and (run / WEIGHTS).exists():
        return RunWeights(run, run / WEIGHTS)
    saved = run / CHECKPOINTS
    newest = next(((path, state) for path in reversed(checkpoints(saved)) if (state := whole(path))), None)
    if newest is None:
        raise ValueError(f"{run} has no checkpoint yet; train it: regard train --out {run}")
    last, best = int(newest[0].name), newest[1]["progress"]["best_step"]
    named = {"last": last} | ({"best": best} if best and whole(place(saved, best)) else {})
    if asked is None:
        name, at = list(named.items())[-1]
        planned = "" if steps is None else f" of {steps:,}"
        notice = f"{run} was stopped at step {last:,}{planned}; using its {name} checkpoint (step {at:,})"
        return RunWeights(run, place(saved, at) / WEIGHTS, notice)
    at = str(named.get(str(asked), asked))
    if at.isdecimal() and whole(place(saved, int(at))):
        return RunWeights(run, place(saved, int(at)) / WEIGHTS)
    there = ", ".join([*named, *(str(int(path.name)) for path in checkpoints(saved))])
    raise ValueError(f"{run} has no whole checkpoint {asked}; choose from {there}")


def run_of(folder: Path) -> tuple[Path, int | None]:
    """The run that a folder belongs to: it is one, or the checkpoint of one at this step."""
    here = folder.absolute()
    run = here.parent.parent
    if here.parent.name == CHECKPOINTS and here.name.isdecimal() and (run / SETTINGS).exists():
        return (folder.parent.parent if folder.name == here.name else run), int(here.name)
    return folder, None


# --- checkpoints ---


def place(folder: Path, step: int) -> Path:
    return folder / f"{step:08d}"


def checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(
        (path for path in folder.glob("[0-9]*") if path.is_dir() and path.name.isdecimal()),
        key=lambda path: int(path.name),
    )


def whole(path: Path) -> dict[str, Any] | None:
    """The state of a checkpoint whose files are all as they were written; None if any is missing or torn."""
    try:
        state = json.loads((path / "state.json").read_text())
        if state.keys() != {"progress", "sums"} and state.pop("sum") != state_sum(state):  # early ones had no sum
            return None
        return state if all(checksum(path / name) == sum for name, sum in state["sums"].items()) else None
    except (FileNotFoundError, ValueError, KeyError, AttributeError):
        return None  # any other trouble with the disk is not for us to pass over: it may pass


def state_sum(state: dict[str, Any]) -> str:
    """Of what state.json says, itself."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
