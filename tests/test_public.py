"""The public surface: every package lists its names in `__all__`, and every class and function in it is documented."""

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
def test_every_public_name_is_there_and_documented(package):
    module = import_module(package)
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            docstring = found.__doc__ or ""
            # a dataclass without a docstring has its signature as one
            assert docstring.removeprefix(f"{found.__name__}(") == docstring != "", f"{package}.{name} has no docstring"


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


def docstring_of(package: str, name: str) -> str:
    """That of a class or function; a constant's is the string below its definition, as the reference shows it."""
    module = import_module(package)
    found = getattr(module, name)
    if inspect.isclass(found) or inspect.isfunction(found):
        return found.__doc__ or ""
    body = module_body(home_of(package, name))
    for node, following in pairwise(body):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if name in map(ast.unparse, targets) and isinstance(following, ast.Expr):
            return str(ast.literal_eval(following.value))
    return ""


def home_of(package: str, name: str) -> str:
    """The module that defines a public name of a package."""
    nodes = ast.walk(ast.Module(module_body(package), []))
    homes = (
        node for node in nodes if isinstance(node, ast.ImportFrom) and name in (alias.name for alias in node.names)
    )
    return next(homes).module or ""


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


DOCUMENTED = ["regard", *(f"regard.{name}" for name in ("attention", "data", "models", "training", "world"))]


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in DOCUMENTED for name in import_module(package).__all__]
)
def test_its_example_runs(package, name, folder_with_a_run, monkeypatch):
    monkeypatch.chdir(folder_with_a_run)
    docstring = inspect.cleandoc(docstring_of(package, name))
    assert "\nExamples:\n    >>> " in docstring, f"{package}.{name} has no example in its docstring"
    example = doctest.DocTestParser().get_doctest(
        docstring, dict(example_names(package)), f"{package}.{name}", None, None
    )
    assert any(one.want for one in example.examples), f"the example of {package}.{name} shows nothing"
    output: list[str] = []
    doctest.DocTestRunner().run(example, out=output.append)
    assert not output, "".join(output)
