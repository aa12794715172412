"""The figures of the README, of docs/results.md and of the guides are those that were measured."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_pages_show_the_measured_figures():
    spec = importlib.util.spec_from_file_location("figures", ROOT / "benchmarks" / "figures.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    for path, text in figures.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run: python benchmarks/figures.py"
    assert all(figures.table().count(f"| {row}") == 1 for row in figures.README_ROWS)


def test_the_guide_calculates_from_the_measured_rate():
    speed = json.loads((ROOT / "benchmarks" / "results" / "training-speed.json").read_text())["rows"][0]["tokens/s"]
    assert f"{speed:,.0f} tokens/s of both sides" in (ROOT / "docs" / "howto" / "many-gpus.md").read_text()


@pytest.mark.slow
def test_the_guide_has_what_the_calculation_prints():
    printed = subprocess.run([sys.executable, ROOT / "benchmarks" / "scaling.py"], capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout in (ROOT / "docs" / "howto" / "many-gpus.md").read_text()
