"""A page of the browser, the addresses that it requested and the errors that were reported in it."""

from typing import Any


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
