"""House rules: what a machine can check of the source, above all the order of imports."""

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from .shapes import checked, share_checked
from .test_architecture import without_examples

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "regard"
# A package imports only from itself and from those before it; a task's command line stands with cli.
PACKAGES = [
    *("ops", "attention", "world", "data", "layers", "models"),
    *("training", "decode", "tasks", "interop", "see", "serve", "cli", "api", "__main__"),
]
ATTENTION = [
    "block_map",
    "score",
    "scaled_score",
    "position",
    "position_variants",
    "pattern",
    "batch_patterns",
    "sparse_patterns",
    "normaliser",
    "softmax_variants",
    "gate",
    "layer_options",
    "parts",
    "recipe",
    "text_positions",
    "backends",
    "kernels",
    "functional",
    "stats",
    "core",
    "latent",
    "kv_cache",
    "native_sparse",
    "multihead",
    "torch_layer",
    "catalogue",
]
BACKENDS = [
    "reference",
    "sdpa",
    "linear",
    "state",
    "flex",
    "tiles",
    "additive",
    "relative",
    "elementwise",
    "hard",
    "packed",
    "masked",
    "block_sparse",
    "gather",
]
KERNELS = [
    "packed",
    "masked",
    "additive",
    "block_sparse",
    "tiles",
    "relative",
    "stats_plan",
    "stats",
]


@cache
def modules() -> list[tuple[Path, ast.Module]]:
    paths = [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
    return [(path, ast.parse(path.read_text())) for path in paths]


def test_every_file_opens_with_a_sentence():
    for path, tree in modules():
        opening = (ast.get_docstring(tree) or "").split("\n")[0]
        assert len(opening.split()) >= 4, path


def test_attend_by_the_reference_can_be_read_in_one_sitting():
    names = ["score", "position", "pattern", "normaliser", "recipe", "functional", "backends/reference"]
    texts = (without_examples((SOURCE / "attention" / f"{name}.py").read_text()) for name in names)
    assert sum(len(text.splitlines()) for text in texts) < 1100


def imports(tree: ast.Module) -> list[str]:
    """Modules of ours that a file needs when it is loaded."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard"):
            module = node.module or ""
            package = (SOURCE.parent / module.replace(".", "/")).is_dir()
            found += [f"{module}.{alias.name}" for alias in node.names] if package else [module]
    return found


def package(module: str) -> str:
    """The entry of PACKAGES that a module belongs to."""
    first, *rest = module.split(".")[1:]
    return "cli" if first == "tasks" and rest[1:2] == ["cli"] else first


def rank(module: str) -> tuple[int, int, int]:
    """Where a module stands in the order of imports: package, file of attention, and backend or kernel."""
    parts = [*module.split(".")[1:], "", ""]
    number = PACKAGES.index(package(module))
    if parts[0] != "attention" or parts[1] not in ATTENTION:
        return number, 99, 0
    within = {"backends": BACKENDS, "kernels": KERNELS}.get(parts[1], [])
    return number, ATTENTION.index(parts[1]), within.index(parts[2]) if parts[2] in within else 99


def test_a_file_imports_only_from_above():
    for path, tree in modules():
        here = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for module in imports(tree):
            if module.startswith("regard.attention.") or package(module) != package(here):
                assert rank(module) <= rank(here), f"{here} imports {module}, which comes after it"


def test_no_class_name_is_used_twice():
    defined = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in defined.items() if len(paths) > 1} == {}


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


def test_shapes_are_checked_under_test():
    """Four of five annotations with a shape at least; tests/shapes.py says which are not checked, and why."""
    assert share_checked() > 0.8


def test_a_shape_is_checked_whenever_it_is_new():
    """Of the arguments and of the result, also after calls that were right."""
    results = [torch.ones(3, 2), torch.ones(3, 2), torch.ones(2, 3), torch.ones(3, 2)]

    def turn(x: Float[Tensor, "i j"], y: Float[Tensor, "i j"] | None = None) -> Float[Tensor, "j i"]:
        return results.pop(0)

    turn, x = checked(turn), torch.ones(2, 3)
    assert [turn(x).shape, turn(x).shape] == [(3, 2)] * 2
    with pytest.raises(TypeCheckError, match="return value"):
        turn(x)
    with pytest.raises(TypeCheckError, match="parameters"):
        turn(x, y=torch.ones(3, 3))
    with pytest.raises(TypeCheckError, match="parameters"):
        turn(x.int())
    assert turn(x, torch.ones(2, 3)).shape == (3, 2)


def test_the_fields_of_a_dataclass_are_checked_whenever_they_are_new():
    @dataclass(frozen=True)
    class Pair:
        x: Float[Tensor, "i j"]
        y: Float[Tensor, "j i"]

    pair = checked(Pair)
    assert [pair(torch.ones(n, 3), y=torch.ones(3, n)).y.shape for n in (2, 2, 4)] == [(3, 2), (3, 2), (3, 4)]
    for wrong in (torch.ones(2, 3), torch.ones(3, 2).int()):
        with pytest.raises(TypeCheckError, match="parameters"):
            pair(torch.ones(2, 3), wrong)


def test_sizes_that_a_shape_writes_or_that_are_equal_are_new():
    """Which letters are equal is all that a shape says of the others."""
    results = [torch.ones(3, 5), torch.ones(3, 7), torch.ones(3, 5), torch.ones(4, 5)]

    def pad(x: Float[Tensor, "n 2"], y: Float[Tensor, "#n"]) -> Float[Tensor, "_ n"]:
        return results.pop(0)

    pad, y = checked(pad), torch.ones(1)
    assert [pad(torch.ones(n, 2), y).shape for n in (5, 7)] == [(3, 5), (3, 7)]
    with pytest.raises(TypeCheckError, match="return value"):
        pad(torch.ones(3, 2), y)
    for x, y in ((torch.ones(5, 3), torch.ones(1)), (torch.ones(5, 2), torch.ones(2))):
        with pytest.raises(TypeCheckError, match="parameters"):
            pad(x, y)
    assert pad(torch.ones(5, 2), torch.ones(5)).shape == (4, 5)
