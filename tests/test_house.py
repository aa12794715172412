"""The house rules a machine can check."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "regard"
ROOMS = ["world", "text", "attention", "layers", "models", "tasks", "train", "decode", "see", "serve", "interop", "cli"]
HEART = [
    "precision",
    "tree",
    "blocks",
    "score",
    "position",
    "relative",
    "syntax",
    "pattern",
    "reach",
    "given",
    "normaliser",
    "hard",
]
HEART += [
    "causality",
    "notation",
    "parts",
    "recipe",
    "places",
    "kernels",
    "backends",
    "attending",
    "probing",
    "probes",
    "linformer",
    "packing",
    "heads",
    "catalogue",
    "worked",
]
BACKENDS = ["reference", "sdpa", "linear", "flex", "fused", "block"]


def modules() -> list[tuple[Path, ast.Module]]:
    paths = [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
    return [(path, ast.parse(path.read_text())) for path in paths]


def test_every_file_opens_with_a_sentence():
    for path, tree in modules():
        opening = (ast.get_docstring(tree) or "").split("\n")[0]
        assert len(opening.split()) >= 4, path


def test_attend_by_the_reference_can_be_read_in_one_sitting():
    names = ["score", "position", "pattern", "normaliser", "recipe", "places", "attending", "backends/reference"]
    lines = sum(len((SOURCE / "attention" / f"{name}.py").read_text().splitlines()) for name in names)
    assert lines < 1100


def imports(tree: ast.Module) -> list[str]:
    """Modules of ours that a file needs when it is loaded."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard"):
            module = node.module or ""
            package = (SOURCE.parent / module.replace(".", "/")).is_dir()
            found += [f"{module}.{alias.name}" for alias in node.names] if package else [module]
    return found


def place(module: str) -> tuple[int, int, int]:
    """Where a module stands on the way of the data: room, file, and backend."""
    parts = [*module.split(".")[1:], "", ""]
    room = ROOMS.index(parts[0])
    if parts[0] != "attention" or not parts[1] or parts[1] not in HEART:
        return room, 99, 0
    return room, HEART.index(parts[1]), BACKENDS.index(parts[2]) if parts[2] in BACKENDS else 99


def test_a_file_imports_only_from_above():
    for path, tree in modules():
        here = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for module in imports(tree):
            if module.startswith("regard.attention.") or module.split(".")[1] != here.split(".")[1]:
                assert place(module) <= place(here), f"{here} looks ahead to {module}"


def test_nothing_unsafe_is_loaded_and_nothing_swallowed():
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in ("pickle.load", "pickle.loads", "torch.load", "eval", "exec"), path
                assert ast.unparse(node.func) != "hasattr", path
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"{path}:{node.lineno} swallows everything"


def test_shape_types_are_not_hidden_from_the_reader():
    """Prose about shapes drifts; comments like `# (B, T, C)` do not occur."""
    for path, _ in modules():
        assert not re.search(r"#\s*\(?[BN], ?[THNC]\b", path.read_text()), path
