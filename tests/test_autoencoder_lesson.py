"""The figures of the lesson on autoencoders are those that were measured."""

import importlib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_lesson_shows_the_measured_figures(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    page = (ROOT / "docs" / "14-autoencoder.md").read_text(encoding="utf-8")
    autoencoder = importlib.import_module("autoencoder")
    assert autoencoder.with_figures(page) == page, "run: python benchmarks/autoencoder.py draw"
