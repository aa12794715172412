"""A model's weights to a safetensors file and back. Nothing is ever unpickled."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.text.files import existing, whole


def load_weights(model: nn.Module, path: Path) -> None:
    """Safetensors into a model; a file that does not fit is refused with the first name that differs."""
    refuse_misfit(model, path)
    tensors, wanted = load_file(path), named_tensors(model)
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])


def refuse_misfit(model: nn.Module, path: Path) -> None:
    """The names and shapes in the file's head must be the model's, of which no more than `shapes_only` is needed."""
    held, wanted = shapes_in(path), named_tensors(model)
    for name in sorted(held.keys() ^ wanted.keys()):
        raise ValueError(f"{path} {'has' if name in held else 'lacks'} {name!r}: it belongs to another model")
    for name, shape in held.items():
        if shape != tuple(wanted[name].shape):
            shapes = f"{shape}, the model wants {tuple(wanted[name].shape)}"
            raise ValueError(f"{path}: {name!r} is {shapes}: it belongs to another model")


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """By name, from the head of the file alone."""
    try:
        with safe_open(existing(path), framework="pt") as file:  # existing: a pipe would keep us waiting
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None


class Undrawn(TorchFunctionMode):
    """No weight is drawn: where there is no memory it would be for nothing, and torch takes seconds to prepare it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in DRAWING else func(*args, **(kwargs or {}))


DRAWING = (Tensor.normal_, Tensor.uniform_)


@contextmanager
def shapes_only() -> Iterator[None]:
    """A model that is built meanwhile has the shapes of its weights and takes no memory."""
    with torch.device("meta"), Undrawn():
        yield


def note_of(path: Path) -> str:
    """What was noted when the weights were written."""
    with safe_open(path, framework="pt") as file:
        return (file.metadata() or {}).get("note", "")


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every weight once: tied ones under their first name. They are the model's own memory, to be written to."""
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The same, to be saved: of a transposed weight, which safetensors refuses, a copy in order."""
    return {name: tensor.contiguous() for name, tensor in named_tensors(model).items()}


def write_weights(tensors: dict[str, Tensor], path: Path, note: str = "") -> None:
    """The whole file under its name, or what was there before: a full disk tears nothing. `note` stands in its head."""
    try:
        with whole(path) as file:
            save_file(tensors, file.name, {"note": note})
    except SafetensorError as error:
        raise ValueError(f"{path}: cannot be written ({error}); make room, or choose another place") from None
