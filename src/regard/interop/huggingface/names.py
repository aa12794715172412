"""Site names of Hugging Face models: encoder.0, decoder.1.self, decoder.1.cross, from the paths of their modules."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from torch import nn

from regard.attention import SiteName
from regard.interop.foreign import is_transformers_model

CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)


def site_names(model: nn.Module, paths: Iterable[str]) -> dict[str, SiteName]:
    """The name of each attention; where two would have the same, as in a model of texts and images, their paths."""
    modules, found = dict(model.named_modules()), {}
    inside = {path: inner_path(modules, path) for path in paths}
    pair = any(CROSS.search(path_inside(path)) for path in inside.values())
    for path, inner in inside.items():
        found[path] = site_name(inner, causal=bool(vars(modules[path]).get("is_causal", False)), pair=pair)
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


def site_name(path: str, *, causal: bool, pair: bool) -> SiteName:
    """Of a model with cross-attention (a pair), or of one stack, which is named after what it does."""
    before, number = split_path(path)
    is_cross = bool(CROSS.search(path_inside(path)))
    decoder = is_cross or "decoder" in before or ("encoder" not in before and causal)
    stack = "decoder" if decoder else "encoder"
    if not pair:
        return SiteName(f"{stack}.{number}", "text", "text")
    if is_cross:
        return SiteName(f"{stack}.{number}.cross", "written", "source")
    return (
        SiteName(f"decoder.{number}.self", "read", "read")
        if decoder
        else SiteName(f"{stack}.{number}", "source", "source")
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
