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


@pytest.fixture(scope="session")
def axe() -> str:
    """The script that says whether everybody can use a page."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed; `make browser` installs it")
    return AXE.read_text()
