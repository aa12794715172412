"""The `regard` command: `app` is fetched when it is used, since tasks take their options from this package."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.cli.main import app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'regard.cli' has no attribute {name!r}; it has app")
    from regard.cli.main import app

    return app


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
