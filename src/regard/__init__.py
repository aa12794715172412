"""Regard: attention models you can build, train, run, trust and see.

The names below are imported when first used, so that `import regard` and `regard --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.api import LoadedModel, load, trace, train
    from regard.attention import MultiHeadAttention, Recipe, attend, explain
    from regard.see import watch

MODULES = {
    "LoadedModel": "regard.api",
    "MultiHeadAttention": "regard.attention",
    "Recipe": "regard.attention",
    "attend": "regard.attention",
    "explain": "regard.attention",
    "load": "regard.api",
    "trace": "regard.api",
    "train": "regard.api",
    "watch": "regard.see",
}
__all__ = ["LoadedModel", "MultiHeadAttention", "Recipe", "attend", "explain", "load", "trace", "train", "watch"]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
