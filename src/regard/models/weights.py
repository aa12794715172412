"""A model's weights to a safetensors file and back. Nothing is ever unpickled."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.text.files import whole


def load_weights(model: nn.Module, path: Path) -> None:
    """Safetensors into a model; a file that does not fit is refused with the first name that differs."""
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None
    wanted = tensors_of(model)
    for name in sorted(tensors.keys() ^ wanted.keys()):
        raise ValueError(f"{path} {'has' if name in tensors else 'lacks'} {name!r}: it belongs to another model")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(tensor.shape)}, the model wants {tuple(wanted[name].shape)}"
            raise ValueError(f"{path}: {name!r} is {shapes}: it belongs to another model")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])


def note_of(path: Path) -> str:
    """What was noted when the weights were written."""
    with safe_open(path, framework="pt") as file:
        return (file.metadata() or {}).get("note", "")


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Every weight once: tied ones under their first name."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().contiguous() for name, tensor in named}


def write_weights(tensors: dict[str, Tensor], path: Path, note: str = "") -> None:
    """The whole file under its name, or what was there before: a full disk tears nothing. `note` stands in its head."""
    try:
        with whole(path) as file:
            save_file(tensors, file.name, {"note": note})
    except SafetensorError as error:
        raise ValueError(f"{path}: cannot be written ({error}); make room, or choose another place") from None
