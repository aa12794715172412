"""A browser on the microscope: its own server on a free port, and Chromium driven by Playwright."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

from playwright.sync_api import Error, Page, sync_playwright

from regard.serve.app import create_app
from regard.serve.model_store import ModelStore
from regard.serve.server import create_server, new_token, open_socket, page_url

FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync --force-color-profile=srgb"
# every new window would load the list below the address bar, a page of its own that costs as much as ours
FLAGS += " --disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup"
MISSING = "no Chromium can be had ({}); `apt install chromium`, or `make browser`"

# Playwright's own waiting evaluates text in the page, which its policy forbids
UNTIL = """() => new Promise((done, give_up) => {
  const last = performance.now() + 20000;
  const text = (id) => document.getElementById(id)?.textContent;
  const seen = () => [window.pending, text("panel")?.slice(0, 80), text("problem"), text("status"), location.hash];
  const look = () => {
    let found = false;
    try { found = CONDITION; } catch { /* not there yet */ }
    if (found) requestAnimationFrame(() => done(performance.now()));
    else if (performance.now() > last) give_up(new Error(["never came true: " + TEXT, seen()].join("; ")));
    else setTimeout(look, 4);
  };
  look();
})"""
READY = "document.getElementById('panel').getAttribute('aria-busy') === 'false' && !window.pending && "
# requests that are not yet drawn: a body is read after its headers came
COUNTED = """(() => {
  const ask = window.fetch;
  window.pending = 0;
  window.fetch = (...all) => {
    window.pending += 1;
    return ask(...all).finally(() => setTimeout(() => (window.pending -= 1), 30));
  };
})()"""
SHOWN = {
    "lecture": "document.querySelector('regard-lecture table td')",
    "": "document.querySelector('regard-VIEW').dataset.painted",
}


class NoBrowser(RuntimeError):
    """There is none on this machine."""


@contextmanager
def served(models: ModelStore) -> Iterator[str]:
    """The address of a real server, in a thread of its own until the block ends."""
    with open_socket(0) as here:
        token = new_token()
        server = create_server(create_app(models, token=token))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [here]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield page_url(here, token)
        server.should_exit = True
        thread.join(10)


@contextmanager
def chromium() -> Iterator[Any]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as engine:
        try:
            running = engine.chromium.launch(executable_path=found, args=FLAGS.split())
        except Error as reason:
            raise NoBrowser(MISSING.format(str(reason).splitlines()[0])) from None
        yield running
        running.close()


class PageViewer:
    """A page in a browser, the addresses it requested, and its errors."""

    def __init__(self, page: Page, address: str):
        self.page, self.address = page, address
        self.requested: list[str] = []
        self.wrong: list[str] = []
        self.refused: list[str] = []
        page.add_init_script(COUNTED)
        page.on("request", lambda request: self.requested.append(request.url))
        page.on("response", lambda it: self.refused.append(f"{it.status} {it.url}") if it.status >= 400 else None)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", lambda line: self.wrong.append(line.text) if line.type == "error" else None)
        page.on("dialog", self.refuse)

    def refuse(self, dialog: Any) -> None:
        """No script of ours opens one, so somebody else's ran."""
        self.wrong.append(f"a dialog opened: {dialog.message}")
        dialog.dismiss()

    def open(self, view: str, **state: Any) -> Any:
        """The view in a page loaded anew."""
        self.page.goto("about:blank")
        self.page.goto(self.address + hashed(view, state))
        return self.shown(view)

    def turn(self, view: str, **state: Any) -> Any:
        """The view without loading the page again."""
        if self.page.url == "about:blank":
            return self.open(view, **state)
        self.page.evaluate(
            # at once: the page writes its address a little after a click, and might write it over this one
            """(hash) => new Promise((done) => {
              history.pushState(null, "", hash);
              dispatchEvent(new PopStateEvent("popstate"));
              requestAnimationFrame(() => setTimeout(done, 20));
            })""",
            hashed(view, state),
        )
        return self.shown(view)

    def shown(self, view: str) -> Any:
        self.until(READY + SHOWN.get(view, SHOWN[""]).replace("VIEW", view))
        return self.page.locator(f"regard-{view}")

    def until(self, condition: str) -> float:
        return self.page.evaluate(UNTIL.replace("CONDITION", condition).replace("TEXT", json.dumps(condition)))

    def time(self, act: str, condition: str) -> float:
        """Milliseconds from an act in the page to the frame in which a condition holds."""
        waiting = UNTIL.replace("CONDITION", condition).replace("TEXT", json.dumps(condition))
        return self.page.evaluate(
            f"async () => {{ const from = performance.now(); {act}; return (await ({waiting})()) - from; }}"
        )

    def heap(self) -> int:
        """Bytes that the page holds, once what nobody needs is thrown away: its scripts' objects, the contents of their
        arrays, which V8 keeps elsewhere, and the browser's own objects."""
        session = self.page.context.new_cdp_session(self.page)
        session.send("HeapProfiler.collectGarbage")
        found = session.send("Runtime.getHeapUsage")
        return sum(int(found.get(part, 0)) for part in ("usedSize", "backingStorageSize", "embedderHeapUsedSize"))

    def strangers(self) -> set[str]:
        """Hosts of its requests besides its own server; a data: address has none."""
        mine = urlsplit(self.address).netloc
        hosts = {urlsplit(url).netloc for url in self.requested if not url.startswith(("data:", "blob:", "about:"))}
        return hosts - {mine}


def hashed(view: str, state: dict[str, Any]) -> str:
    parts = [f"{name}={quote(one if isinstance(one, str) else '~' + json.dumps(one))}" for name, one in state.items()]
    return f"#{'&'.join([f'view={view}', *parts])}"
