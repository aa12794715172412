"""A page of the browser, the addresses that it requested and the errors that were reported in it."""

from collections.abc import Iterable
from typing import Any

import pytest

AXE = "axe.run(CONTEXT, { resultTypes: ['violations'] }).then((found) => found.violations)"


def in_shares(kinds: Iterable[str], parts: int = 3) -> list[Any]:
    """A kind and which of its views: in the short form one of so many shares, another for the next kind; then all."""
    names = list(kinds)
    short = [pytest.param(kind, slice(n % parts, None, parts), id=kind) for n, kind in enumerate(names)]
    return short + [pytest.param(kind, slice(None), id=f"{kind}, whole", marks=pytest.mark.slow) for kind in names]


def axe_violations(page: Any, within: str = "document") -> list[tuple[str, str]]:
    """What axe objects to: the rule, and the first element; what stands around every view need be seen but once."""
    found = page.evaluate(AXE.replace("CONTEXT", within))
    return [(one["id"], one["nodes"][0]["html"][:160]) for one in found]


def open_tab(page: Any, view: str) -> None:
    """A view by its group, and then by its tab."""
    if not page.locator(f"#tab-{view}").count():
        page.locator(f'#groups [data-views~="{view}"]').click()
    page.locator(f"#tab-{view}").click()


class BrowserPage:
    def __init__(self, page: Any, address: str):
        self.page, self.address = page, address
        self.requested: list[str] = []
        self.wrong: list[str] = []
        self.listeners = {
            "request": lambda request: self.requested.append(request.url),
            "pageerror": lambda error: self.wrong.append(str(error)),
            "console": lambda line: self.wrong.append(line.text) if line.type == "error" else None,
        }
        for event, listener in self.listeners.items():
            page.on(event, listener)

    def leave(self) -> None:
        """So that what is opened next is loaded anew, though it be the same address."""
        if self.page.url != "about:blank":
            self.page.goto("about:blank")

    def stop(self) -> None:
        """The page belongs to another test."""
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)
