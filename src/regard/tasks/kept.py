"""A model with its settings and vocabularies in; the files that keep it out, and back: what all tasks' models share."""

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from regard.models.weights import (
    load_weights,
    note_of,
    refuse_misfit,
    shapes_in,
    shapes_only,
    tensors_of,
    write_weights,
)
from regard.tasks.run_folder import SETTINGS, WEIGHTS, run_of, weights_of
from regard.tasks.tables import Tables, depths_in
from regard.text.files import make_folder, write_whole

T = TypeVar("T", bound=Tables)


class Part(Protocol):
    """A tokeniser, labels: what is kept beside the weights in a file of its own."""

    def save(self, path: Path, /) -> None: ...


class Kept(ABC):
    """Abstract: a model with its settings and the parts it reads and writes with, which a folder can hold."""

    model: Any  # an nn.Module
    settings: Any  # Tables

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Part]: ...

    @classmethod
    @abstractmethod
    def described(cls, folder: Path) -> Self:
        """What `describe` wrote, with new weights."""

    def describe(self, folder: Path) -> str:
        """All but the weights: settings.toml and each part as NAME.json, whose checksum is what the weights note."""
        make_folder(folder)
        for name, part in self.parts.items():
            part.save(folder / f"{name}.json")
        write_whole(folder / SETTINGS, self.settings.to_toml())  # last: what it describes is all there
        return checksum(folder, self.parts)

    def save(self, folder: Path) -> None:
        note = self.describe(folder)
        write_weights(tensors_of(self.model), folder / WEIGHTS, note)

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", checkpoint: str | int | None = None) -> Self:
        """With the weights of the run as it stands (see `weights_of`), if they belong to the parts beside them."""
        folder = Path(folder)
        described(folder)
        chosen = weights_of(folder, checkpoint)
        cls.refuse_other(chosen.run, chosen.file)
        found = cls.described(chosen.run)
        load_weights(found.model, chosen.file)
        if note_of(chosen.file) not in ("", checksum(chosen.run, found.parts)):
            files = " or ".join(f"{name}.json" for name in found.parts)
            raise ValueError(f"{folder}: {files} is not what the weights were trained with; put it back")
        if notice := chosen.notice(found.settings.train.steps):
            logging.getLogger(__name__).warning(notice)
        found.model.to(device).eval()
        return found

    @classmethod
    def refuse_other(cls, folder: Path, weights: Path) -> None:
        """Settings that describe another model than the weights are of, before it is built: it may fill the memory."""
        count = len(shapes_in(weights))
        for name, depth in depths_in(described(folder)).items():
            if depth > count:  # each has at least one weight, and to shape a million of them would take hours
                raise ValueError(f"{folder / SETTINGS}: {name} = {depth}, but the weights in {weights} are of fewer")
        with shapes_only():
            refuse_misfit(cls.described(folder).model, weights)


def checksum(folder: Path, names: Iterable[str]) -> str:
    """Of the parts: others of the same size would fit the weights, and mean something else."""
    return hashlib.sha256(b"".join((folder / f"{name}.json").read_bytes() for name in names)).hexdigest()


def settings_in(folder: Path, kind: type[T]) -> T:
    return kind.load(described(folder))


def described(folder: Path) -> Path:
    """The file of settings in the folder of a run, or of one of its checkpoints."""
    run, _ = run_of(folder)
    if not (run / SETTINGS).exists():
        raise ValueError(f"{folder} holds no model: {SETTINGS} is missing; train one with regard train")
    return run / SETTINGS
