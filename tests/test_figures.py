"""The figures of the README and of docs/results.md are those that were measured."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_pages_show_the_measured_figures():
    spec = importlib.util.spec_from_file_location("figures", ROOT / "benchmarks" / "figures.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    for path, text in figures.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run: python benchmarks/figures.py"
    assert all(figures.table().count(f"| {row}") == 1 for row in figures.README_ROWS)
