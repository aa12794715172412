"""A model with its settings and vocabularies in; the files that keep it out, and back: what all tasks' models share."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from torch import nn

from regard.models.weights import load_weights, note_of, tensors_of, write_weights
from regard.tasks.tables import Tables
from regard.text.files import make_folder, write_whole

SETTINGS, WEIGHTS = "settings.toml", "model.safetensors"
T = TypeVar("T", bound=Tables)


class Part(Protocol):
    """A tokeniser, labels: what is kept beside the weights in a file of its own."""

    def save(self, path: Path, /) -> None: ...


def describe(folder: Path, settings: Tables, parts: Mapping[str, Part]) -> str:
    """All but the weights: settings.toml and each part as NAME.json, whose checksum is what the weights note."""
    make_folder(folder)
    for name, part in parts.items():
        part.save(folder / f"{name}.json")
    write_whole(folder / SETTINGS, settings.to_toml())  # last: what it describes is all there
    return checksum(folder, parts)


def checksum(folder: Path, names: Iterable[str]) -> str:
    """Of the parts: others of the same size would fit the weights, and mean something else."""
    return hashlib.sha256(b"".join((folder / f"{name}.json").read_bytes() for name in names)).hexdigest()


def settings_in(folder: Path, kind: type[T]) -> T:
    return kind.load(described(folder))


def described(folder: Path) -> Path:
    """The file of settings in the folder of a run."""
    if not (folder / SETTINGS).exists():
        raise ValueError(f"{folder} holds no model: {SETTINGS} is missing; train one with regard train")
    return folder / SETTINGS


def save(model: nn.Module, folder: Path, settings: Tables, parts: Mapping[str, Part]) -> None:
    note = describe(folder, settings, parts)
    write_weights(tensors_of(model), folder / WEIGHTS, note)


def load(model: nn.Module, folder: Path, names: Iterable[str], device: str) -> None:
    """The trained weights into the model, if they belong to the parts that lie beside them."""
    names = list(names)
    if not (folder / WEIGHTS).exists():
        raise ValueError(f"{folder} is not trained to the end; go on with it: regard train --out {folder}")
    load_weights(model, folder / WEIGHTS)
    if note_of(folder / WEIGHTS) not in ("", checksum(folder, names)):
        files = " or ".join(f"{name}.json" for name in names)
        raise ValueError(f"{folder}: {files} is not what the weights were trained with; put it back")
    model.to(device).eval()
