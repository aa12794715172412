"""Interoperability: other libraries' models, watched through the same core as our own, or imported as a run of ours."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.interop.foreign import ForeignModel, foreign_model

if TYPE_CHECKING:
    from regard.interop.huggingface.importing import import_model

LAZY = {"import_model": "regard.interop.huggingface.importing"}  # what needs the tasks
__all__ = ["ForeignModel", "foreign_model", "import_model"]


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module 'regard.interop' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *LAZY))
