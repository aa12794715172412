"""Pretrained models: saves and loads a model with its settings, tokenisers and labels."""

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

import torch

from regard.data.files import make_folder, write_text_atomic
from regard.models.safetensors_io import (
    check_compatible,
    load_weights,
    read_note,
    saveable_tensors,
    shapes_in,
    shapes_only,
    write_weights,
)
from regard.tasks.config import RunSettings, read_depths
from regard.tasks.own_parts import OwnParts, write_copies
from regard.tasks.registry import is_huggingface_folder
from regard.training.run_folder import SETTINGS, WEIGHTS, resolve_run, resolve_weights

if TYPE_CHECKING:
    from regard.training.config import TrainingJob

T = TypeVar("T", bound=RunSettings)


class SavedPart(Protocol):
    """A tokeniser, labels: what is saved beside the weights in a file of its own."""

    def save(self, path: Path, /) -> None: ...


class PretrainedModel(ABC):
    """Abstract: a model with its settings and the parts it reads and writes with, which a folder can hold."""

    settings_type: ClassVar[type[RunSettings]]
    # attribute: (name of its file, what reads it); in the order of `build_model`'s arguments
    part_files: ClassVar[Mapping[str, tuple[str, Callable[[Path], SavedPart]]]]

    model: Any  # an nn.Module
    settings: Any  # RunSettings

    @staticmethod
    @abstractmethod
    def build_model(*args: Any, **kwargs: Any) -> Any:
        """A model with new weights, of the parts and the settings."""

    @classmethod
    def from_parts(cls, *parts: Any, settings: Any) -> Self:
        """A model whose new weights follow from the seed; a dataclass of the model, its parts and the settings."""
        torch.manual_seed(settings.train.seed)
        named = dict(zip(cls.part_files, parts, strict=True))
        return cls(model=cls.build_model(*parts, settings), settings=settings, **named)  # type: ignore[call-arg]

    @property
    def parts(self) -> dict[str, SavedPart]:
        """By the names of their files."""
        return {name: getattr(self, attribute) for attribute, (name, _) in self.part_files.items()}

    @staticmethod
    @abstractmethod
    def from_examples(examples: Any, settings: Any, /) -> "PretrainedModel":
        """New weights; vocabularies and labels from training examples."""

    @classmethod
    def from_description(cls, folder: Path, own_parts: OwnParts = OwnParts()) -> Self:
        """What `describe` wrote, with new weights."""
        settings = load_settings(folder, cls.settings_type, own_parts)
        return cls.from_parts(
            *(load(folder / f"{name}.json") for name, load in cls.part_files.values()), settings=settings
        )

    @abstractmethod
    def job(self, examples: Sequence[Any], held_out: Sequence[Any], device: str = "cpu", /) -> "TrainingJob":
        """The training of this model on these examples."""

    def describe(self, folder: Path) -> str:
        """All but the weights: settings.toml and each part as NAME.json, whose checksum is what the weights note."""
        make_folder(folder)
        for name, part in self.parts.items():
            part.save(folder / f"{name}.json")
        write_copies(self.settings.own_parts, folder)
        write_text_atomic(folder / SETTINGS, self.settings.to_toml())  # last: what it describes is all there
        return parts_checksum(folder, self.parts)

    def save(self, folder: Path) -> None:
        note = self.describe(folder)
        write_weights(saveable_tensors(self.model), folder / WEIGHTS, note)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str = "cpu",
        checkpoint: str | int | None = None,
        own_parts: OwnParts = OwnParts(),
    ) -> Self:
        """With the weights of the run as it stands (see `resolve_weights`), if they belong to the parts beside them."""
        folder = Path(folder)
        settings_path(folder)
        chosen = resolve_weights(folder, checkpoint)
        cls.check_weights_match(chosen.run, chosen.file, own_parts)
        found = cls.from_description(chosen.run, own_parts)
        load_weights(found.model, chosen.file)
        if read_note(chosen.file) not in ("", parts_checksum(chosen.run, found.parts)):
            files = " or ".join(f"{name}.json" for name in found.parts)
            raise ValueError(f"{folder}: {files} is not what the weights were trained with; put it back")
        if notice := chosen.stopped_notice(found.settings.train.steps):
            logging.getLogger(__name__).warning(notice)
        found.model.to(device).eval()
        return found.with_extras(chosen.run)

    def with_extras(self, run: Path) -> Self:
        """With what else a run's folder holds for it."""
        return self

    @classmethod
    def check_weights_match(cls, folder: Path, weights: Path, own_parts: OwnParts = OwnParts()) -> None:
        """Settings that describe another model than the weights are of, before it is built: it may fill the memory."""
        count = len(shapes_in(weights))
        for name, depth in read_depths(settings_path(folder)).items():
            if depth > count:  # each has at least one weight, and to shape a million of them would take hours
                raise ValueError(f"{folder / SETTINGS}: {name} = {depth}, but the weights in {weights} are of fewer")
        with shapes_only():
            check_compatible(cls.from_description(folder, own_parts).model, weights)


def parts_checksum(folder: Path, names: Iterable[str]) -> str:
    """Of the parts: others of the same size would fit the weights, and mean something else."""
    return hashlib.sha256(b"".join((folder / f"{name}.json").read_bytes() for name in names)).hexdigest()


def load_settings(folder: Path, kind: type[T], own_parts: OwnParts = OwnParts()) -> T:
    return kind.load(settings_path(folder), own_parts)


def settings_path(folder: Path) -> Path:
    """The file of settings in the folder of a run, or of one of its checkpoints."""
    run, _ = resolve_run(folder)
    if is_huggingface_folder(run):
        raise ValueError(
            f"{folder} is a Hugging Face model, and no run: regard look and regard serve show it, the rest is for runs"
        )
    if not (run / SETTINGS).exists():
        raise ValueError(f"{folder} holds no model: {SETTINGS} is missing; train one with regard train")
    return run / SETTINGS
