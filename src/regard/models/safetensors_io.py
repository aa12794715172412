"""Safetensors files: a model's weights written and loaded, also those with names of earlier versions."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.data.files import open_atomic, require_file

# names that weights had in files of earlier versions; every rule is applied, in this order
RENAMED = [
    (re.compile(old), new)
    for old, new in (
        # what is inside a layer
        (r"\baround_(attention|cross|feed_forward)\.", r"residual_\1."),
        (r"\b(source|target)_places\.", r"\1_positions."),
        (r"\b(encoder|decoder|question|picture|past)\.(places|placed)\.", r"\1.positions."),
        (r"\b(encoder|picture)\.patches\.halve\.", r"\1.patches.downsample."),
        (r"\b(learned\.pattern\w*?)_among(?=[_.])", r"\1_pattern"),  # a learned pattern within blocks
        (r"^(stages\.\d+-\d+)\.around\.", r"\1.shortcut."),
        # embeddings
        (r"^words\.(tables\.|bias$)", r"embeddings.\1"),
        (r"^words\.weight$", "embedding.weight"),
        (r"\b(encoder|question)\.words\.weight$", r"\1.embedding.weight"),
        (r"^(layers\.\d+)\.words\.", r"\1.encoder_layer."),
        # parts of one model
        (r"^spelling\.letters\.", "spelling.embedding."),
        (r"^spelling\.", "char_encoder."),
        (r"^past\.", "backbone."),
        (r"^back\.", "output_projection."),
        (r"^decoder\.first\.", "decoder.initial_projection."),
        (r"^decoder\.widened\.which$", "decoder.latent_projection.index_embedding"),
        (r"^decoder\.widened\.", "decoder.latent_projection."),
        (r"^question\.", "question_encoder."),
        (r"^picture\.", "image_encoder."),
    )
]


def current_name(name: str) -> str:
    """The name that a weight has now."""
    for old, new in RENAMED:
        name = old.sub(new, name)
    return name


def load_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file of weights, by their current names."""
    return {current_name(name): tensor for name, tensor in load_file(path).items()}


def load_weights(model: nn.Module, path: Path) -> None:
    """Safetensors into a model; a file that does not fit is refused with the first name that differs."""
    check_compatible(model, path)
    tensors, expected = load_tensors(path), named_tensors(model)
    with torch.no_grad():
        for name, tensor in expected.items():
            tensor.copy_(tensors[name])


def check_compatible(model: nn.Module, path: Path) -> None:
    """The names and shapes in the file's header must be the model's, which may be one of `shapes_only`."""
    saved, expected = shapes_in(path), named_tensors(model)
    for name in sorted(saved.keys() ^ expected.keys()):
        raise ValueError(f"{path} {'has' if name in saved else 'lacks'} {name!r}: it belongs to another model")
    for name, shape in saved.items():
        if shape != tuple(expected[name].shape):
            shapes = f"{shape}, the model wants {tuple(expected[name].shape)}"
            raise ValueError(f"{path}: {name!r} is {shapes}: it belongs to another model")


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """By current name, from the file's header alone."""
    try:
        with safe_open(require_file(path), framework="pt") as file:  # a regular file: opening a pipe would block
            return {current_name(name): tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None


class SkipInit(TorchFunctionMode):
    """Skips random numbers and their scaling: a tensor without memory has none, and for these functions torch would
    first import its compilers (seconds, and 100 MiB)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in INIT_FUNCTIONS or (func is Tensor.mul and isinstance(args[1], float)):
            return args[0] if args else given["tensor"]
        return (torch.empty if func is torch.randn else func)(*args, **given)


INIT_FUNCTIONS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_)


@contextmanager
def shapes_only() -> Iterator[None]:
    """A model that is built meanwhile has the shapes of its weights and takes no memory."""
    with torch.device("meta"), SkipInit():
        yield


def read_note(path: Path) -> str:
    """The note in the metadata of the file."""
    with safe_open(path, framework="pt") as file:
        return (file.metadata() or {}).get("note", "")


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every weight once: tied ones under their first name. They share memory with the model."""
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def saveable_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The same, contiguous: safetensors refuses a transposed weight."""
    return {name: tensor.contiguous() for name, tensor in named_tensors(model).items()}


def write_weights(tensors: dict[str, Tensor], path: Path, note: str = "") -> None:
    """Written atomically, so that a full disk leaves the old file as it was. `note` goes into the metadata."""
    try:
        with open_atomic(path) as file:
            save_file(tensors, file.name, {"note": note})
    except SafetensorError as error:
        raise ValueError(f"{path}: cannot be written ({error}); free some space, or choose another path") from None
