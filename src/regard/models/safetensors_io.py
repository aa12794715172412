"""Safetensors files: a model's weights written and loaded, also packed to 8 bits, or with names of earlier versions.

A packed file holds each matrix as whole numbers q of 8 bits with one scale s for each of its rows, W_ij = s_i q_ij; its
note says so, and the scales of "name" are "name:scale". It is loaded as the float32 weights s_i q_ij.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from stat import S_IMODE
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


@cache  # nineteen rules, and a model asks three times for each weight
def current_name(name: str) -> str:
    """The name that a weight has now."""
    for old, new in RENAMED:
        name = old.sub(new, name)
    return name


def load_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file of weights, by their current names; those of a packed one as float32."""
    return {current_name(name): tensor for name, tensor in unpack_weights(load_file(path)).items()}


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
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            packed = (file.metadata() or {}).get("note", "").startswith(PACKED)
            kinds = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from None
    for name, (kind, shape) in kinds.items() if packed else ():
        if kind == "I8" and kinds.get(scale_name(name)) not in (("F16", shape[:1]), ("F32", shape[:1])):
            raise ValueError(f"{path} is damaged: {name!r} lacks a scale for each of its rows; restore the file")
    return {current_name(name): shape for name, (_, shape) in kinds.items() if not (packed and is_scale(name))}


# --- packed weights ---


PACKED, LEVELS = "int8 rows: ", 127  # what the note of a packed file begins with


def scale_name(name: str) -> str:
    return f"{name}:scale"


def is_scale(name: str) -> bool:
    return name.endswith(":scale")


def pack_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each matrix in 8 bits, as whole numbers and a scale for each row; vectors stay as they are.

    Examples:
        >>> packed = pack_weights({"up": torch.tensor([[0.0, 63.5], [1.0, -254.0]]), "bias": torch.ones(2)})
        >>> {name: tensor.tolist() for name, tensor in packed.items()}
        {'up': [[0, 127], [0, -127]], 'up:scale': [0.5, 2.0], 'bias': [1.0, 1.0]}
    """
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or not tensor.is_floating_point():
            packed[name] = tensor
        elif not tensor.isfinite().all():
            raise ValueError(f"{name!r} holds numbers that are not finite, which 8 bits cannot; train the model again")
        else:
            packed[name], packed[scale_name(name)] = quantize_rows(tensor)
    return packed


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """q = round(W / s), where s is the largest |W| of a row over 127, in float16 where that is exact enough."""
    rows = weight.float().flatten(1)
    exact, half = rows.abs().amax(1) / LEVELS, torch.finfo(torch.float16)
    normal = (exact == 0) | ((exact >= half.tiny) & (exact <= half.max))  # below, float16 has fewer digits
    scale = exact.half() if bool(normal.all()) else exact
    step = torch.where(scale == 0, 1.0, scale.float())
    return (rows / step[:, None]).round_().to(torch.int8).view(weight.shape), scale


def unpack_weights(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights s_i q_ij that `pack_weights` stands for; what is not packed as it is.

    Examples:
        >>> unpack_weights({"up": torch.tensor([[3, -127]], dtype=torch.int8), "up:scale": torch.tensor([0.5])})
        {'up': tensor([[  1.5000, -63.5000]])}
    """
    scales = {name: packed[scale_name(name)].float() for name in packed if scale_name(name) in packed}
    return {
        name: (tensor.flatten(1).float() * scales[name][:, None]).view(tensor.shape) if name in scales else tensor
        for name, tensor in packed.items()
        if not is_scale(name)
    }


class SkipInit(TorchFunctionMode):
    """Skips random numbers and their scaling: a tensor without memory has none, and for these functions torch would
    first import its compilers (seconds, and 100 MiB)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in INIT_FUNCTIONS or (func is Tensor.mul and isinstance(args[1], float)):
            return args[0] if args else given["tensor"]
        return (torch.empty if func is torch.randn else func)(*args, **given)


INIT_FUNCTIONS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


class SkipDraws(TorchFunctionMode):
    """Skips random numbers for the weights of a model that is built to be loaded: they take longer than the file."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        weight = args[0] if args else given.get("tensor")
        return weight if func in INIT_FUNCTIONS and isinstance(weight, nn.Parameter) else func(*args, **given)


@contextmanager
def shapes_only() -> Iterator[None]:
    """A model that is built meanwhile has the shapes of its weights and takes no memory."""
    with torch.device("meta"), SkipInit():
        yield


def read_note(path: Path) -> str:
    """The note in the metadata of the file."""
    with safe_open(path, framework="pt") as file:
        return (file.metadata() or {}).get("note", "").removeprefix(PACKED)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every weight once: tied ones under their first name. They share memory with the model."""
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def saveable_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The same, contiguous: safetensors refuses a transposed weight."""
    return {name: tensor.contiguous() for name, tensor in named_tensors(model).items()}


def save_tensors(tensors: dict[str, Tensor], path: str | Path, metadata: dict[str, str] | None = None) -> None:
    """A file with the permissions of any new one, or those that it has: the library's only their owner may read."""
    path = Path(path)
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata)
    path.chmod(S_IMODE(mode))


def write_weights(tensors: dict[str, Tensor], path: Path, note: str = "") -> None:
    """Written atomically, so that a full disk leaves the old file as it was. `note` goes into the metadata."""
    form = PACKED if any(map(is_scale, tensors)) else ""  # one key: the library writes several in any order
    try:
        with open_atomic(path) as file:
            save_tensors(tensors, file.name, {"note": f"{form}{note}"})
    except SafetensorError as error:
        raise ValueError(f"{path}: cannot be written ({error}); free some space, or choose another path") from None
