"""Regard: attention models you can build, train, run, trust and see.

The names below are fetched when they are first used, so that `import regard` and `regard --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.attention import MultiHeadAttention, Recipe, attend, explain

__all__ = ["MultiHeadAttention", "Recipe", "attend", "explain"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'regard' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module("regard.attention"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
