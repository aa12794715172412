"""Interoperability: models of other libraries, watched by the same hooks as ours or imported, and exports of ours."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.interop.foreign import ForeignModel, foreign_model

if TYPE_CHECKING:
    from regard.interop.exporter import export, publish
    from regard.interop.huggingface.importing import import_model

# what needs the tasks
LAZY = {
    "export": "regard.interop.exporter",
    "import_model": "regard.interop.huggingface.importing",
    "publish": "regard.interop.exporter",
}
__all__ = ["ForeignModel", "export", "foreign_model", "import_model", "publish"]


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module 'regard.interop' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *LAZY))
