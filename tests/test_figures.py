"""The figures of the README are those that were measured."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_readme_shows_the_measured_figures():
    spec = importlib.util.spec_from_file_location("figures", ROOT / "benchmarks" / "figures.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert figures.replaced(readme) == readme, "run: python benchmarks/figures.py"
