"""One server for the tests of a file, and one browser; without a browser its tests are skipped, and say why."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from regard.serve.model_store import ModelStore
from regard.tasks.pretrained import PretrainedModel

from .client import client_of, learners

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
# every new window would load the list below the address bar, a page of its own that costs as much as ours
FLAGS += ["--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup"]
WIDE = {"width": 1280, "height": 800}
AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"  # where `make browser` puts it


@pytest.fixture(scope="module")
def models() -> dict[str, PretrainedModel]:
    return learners()


@pytest.fixture(scope="module")
def client(models) -> Iterator[TestClient]:
    with client_of(ModelStore.from_models(models)) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install playwright")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with playwright.sync_playwright() as engine:
        try:
            running = engine.chromium.launch(executable_path=found, args=FLAGS)
        except playwright.Error as reason:
            pytest.skip(f"no Chromium can be had ({str(reason).splitlines()[0]}); `apt install chromium`")
        yield running
        running.close()


@pytest.fixture(scope="module")
def module_page(browser) -> Iterator[Any]:
    """One page for the tests of a file: a window and a process for each test would take most of the time."""
    context = browser.new_context(viewport=WIDE)
    yield context.new_page()
    context.close()


@pytest.fixture
def shared_page(module_page) -> Iterator[Any]:
    """The page of the file, empty again after each test, as it was when it was new."""
    yield module_page
    module_page.unroute_all(behavior="ignoreErrors")
    module_page.goto("about:blank")
    if module_page.viewport_size != WIDE:
        module_page.set_viewport_size(WIDE)
    module_page.emulate_media(color_scheme="null")
    module_page.context.clear_permissions()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script that says whether everybody can use a page."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed; `make browser` installs it")
    return AXE.read_text()
