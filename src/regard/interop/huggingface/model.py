"""Hugging Face models with a core for each of their attentions, named after its layer: encoder.0, decoder.1.cross."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from regard.attention import SiteName
from regard.attention.core import hook_modules
from regard.interop.foreign import ForeignModel, is_transformers_model
from regard.interop.huggingface.attention import INTERFACE, uses_interface


class HuggingFaceModel(ForeignModel):
    """A model of transformers whose attention can be recorded and edited.

    Args:
        model: any model whose attentions go through transformers' AttentionInterface, as nearly all do.
    """

    def __init__(self, model: nn.Module):
        paths = [path for path, module in model.named_modules() if uses_interface(module)]
        if bypassing := find_bypassing(model, paths):
            kind = type(dict(model.named_modules())[bypassing[0]]).__name__
            raise ValueError(
                f"{type(model).__name__} cannot be watched: its {kind} computes attention by itself, and not through "
                "transformers' AttentionInterface"
            )
        if not paths:
            raise ValueError(f"{type(model).__name__} has no attention that could be watched; watch another")
        super().__init__(model, site_names(model, paths))

    @contextmanager
    def attached(self) -> Iterator[None]:
        with INTERFACE.attach(self) as attachment:

            def refuse_unseen(module: nn.Module, *call: Any) -> None:
                """A layer may know another way as well, as GPT-2 does with reorder_and_upcast_attn."""
                if self.hooked_core(module) is not None and module not in attachment.shown:
                    raise ValueError(
                        f"{type(module).__name__} ran without transformers' AttentionInterface, so it cannot be "
                        'watched; choose another implementation: model.set_attn_implementation("sdpa")'
                    )
                attachment.shown.discard(module)

            with hook_modules((module, refuse_unseen) for module in self.paths):
                yield


def find_bypassing(model: nn.Module, paths: list[str]) -> list[str]:
    """The paths of modules that are called attention, and neither use the interface nor stand around one that does."""
    known = set(paths)
    around = {path[:at] for path in paths for at in range(len(path)) if path[at] == "."}

    def belongs(path: str) -> bool:
        return path in known or path in around or any(path.startswith(f"{one}.") for one in known)

    return [
        path
        for path, module in model.named_modules()
        if path
        and "Attention" in type(module).__name__
        and not belongs(path)
        and next(module.parameters(), None) is not None
    ]


# --- names of sites ---


# what a model of transformers reads, by its `main_input_name`, where that is no text
AXES = {"pixel_values": "patches", "input_features": "frames", "input_values": "frames"}
CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)


def site_names(model: nn.Module, paths: Iterable[str]) -> dict[str, SiteName]:
    """The name of each attention; where two would have the same, as in a model of texts and images, their paths."""
    modules, found = dict(model.named_modules()), {}
    inside = {path: inner_path(modules, path) for path in paths}
    pair = any(CROSS.search(path_inside(path)) for path in inside.values())
    for path, inner in inside.items():
        causal = bool(vars(modules[path]).get("is_causal", False))
        found[path] = site_name(inner, axis_read(modules, path), causal=causal, pair=pair)
    twice = {name for name, count in Counter(site.name for site in found.values()).items() if count > 1}
    return {
        path: SiteName(path, site.queries, site.keys) if site.name in twice else site for path, site in found.items()
    }


def inner_path(modules: Mapping[str, nn.Module], path: str) -> str:
    """The path within the model of transformers, which may stand inside of another module."""
    names = path.split(".")
    for depth in range(len(names)):
        if is_transformers_model(modules[".".join(names[:depth])]):
            return ".".join(names[depth:])
    return path


def axis_read(modules: Mapping[str, nn.Module], path: str) -> str | None:
    """What the model around an attention reads, if it reads no text."""
    names = path.split(".")
    around = [modules[".".join(names[:depth])] for depth in range(len(names))]
    read = [AXES.get(str(one.main_input_name)) for one in around if is_transformers_model(one)]
    return next((axis for axis in reversed(read) if axis is not None), None)


def site_name(path: str, axis: str | None, *, causal: bool, pair: bool) -> SiteName:
    """Of a model with cross-attention (a pair), or of one stack, which is named after what it does; `axis` is what it
    reads, if that is no text."""
    before, number = split_path(path)
    is_cross = bool(CROSS.search(path_inside(path)))
    decoder = is_cross or "decoder" in before or ("encoder" not in before and causal)
    stack = "decoder" if decoder else "encoder"
    if not pair:
        return SiteName(f"{stack}.{number}", axis or "text", axis or "text")
    source = axis or "source"
    if is_cross:
        return SiteName(f"{stack}.{number}.cross", "written", source)
    return (
        SiteName(f"decoder.{number}.self", "read", "read") if decoder else SiteName(f"{stack}.{number}", source, source)
    )


def split_path(path: str) -> tuple[list[str], str]:
    """The names before the number of the layer, and that number."""
    names = path.split(".")
    at = next((n for n, name in enumerate(names) if name.isdecimal()), len(names))
    return names[:at], names[at] if at < len(names) else "0"


def path_inside(path: str) -> str:
    """What follows the number of the layer."""
    before, _ = split_path(path)
    return ".".join(path.split(".")[len(before) :])
