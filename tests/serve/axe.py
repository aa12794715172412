"""Where `make browser` puts axe-core, which says whether everybody can use a page; None where it is not installed."""

from pathlib import Path

FILE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
AXE = FILE if FILE.exists() else None
