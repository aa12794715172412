"""The public surface: every package lists its names in `__all__`, each documented by an example that runs."""

import ast
import doctest
import inspect
import pkgutil
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import regard
from tests.test_site import build_site

PACKAGES = ["regard", *(f"regard.{one.name}" for one in pkgutil.iter_modules(regard.__path__) if one.ispkg)]


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_imports_is_what_it_lists(package):
    module = import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard")
        for alias in node.names
    }
    assert imported == set(module.__all__)
    assert len(module.__all__) == len(set(module.__all__))
    assert set(module.__all__) <= set(dir(module))


def test_the_package_says_that_it_has_types():
    assert (Path(str(regard.__file__)).parent / "py.typed").exists()


def test_dir_shows_what_is_for_users():
    assert dir(regard) == sorted(regard.__all__)


# --- the examples ---


def docstring_of(module: str, name: str) -> str:
    """As the reference shows it: where the name is defined; a constant's is the string below it."""
    body = module_body(module)
    for node, following in pairwise([*body, ast.Pass()]):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
        if name in assigned_names(node) and isinstance(following, ast.Expr):
            return inspect.cleandoc(str(ast.literal_eval(following.value)))
    imports = (node for node in ast.walk(ast.Module(body, [])) if isinstance(node, ast.ImportFrom))
    homes = [node.module for node in imports if name in (alias.name for alias in node.names)]
    return docstring_of(homes[0] or "", name) if homes else ""


def assigned_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Assign):
        return list(map(ast.unparse, node.targets))
    return [ast.unparse(node.target)] if isinstance(node, ast.AnnAssign) else []


@cache
def module_body(module: str) -> list[ast.stmt]:
    return ast.parse(Path(str(import_module(module).__file__)).read_text()).body


@cache
def example_names(package: str) -> dict[str, Any]:
    """What the examples of a package may use: the reference says so at its top."""
    names: dict[str, Any] = {}
    exec(build_site.example_imports(package.partition(".")[2]), names)
    return names


@pytest.fixture(scope="module")
def folder_with_a_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(build_site.EXAMPLE_RUN, {"regard": regard})
    return folder


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in PACKAGES for name in import_module(package).__all__]
)
def test_every_public_name_is_documented_by_an_example_that_runs(package, name, folder_with_a_run, monkeypatch):
    monkeypatch.chdir(folder_with_a_run)
    docstring = docstring_of(package, name)
    assert "\nExamples:\n    >>> " in docstring, f"{package}.{name} has no example in its docstring"
    example = doctest.DocTestParser().get_doctest(
        docstring, dict(example_names(package)), f"{package}.{name}", None, None
    )
    assert any(one.want for one in example.examples), f"the example of {package}.{name} shows nothing"
    output: list[str] = []
    doctest.DocTestRunner().run(example, out=output.append)
    assert not output, "".join(output)
