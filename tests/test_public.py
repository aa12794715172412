"""The public surface: every package lists its names in `__all__`, and every class and function in it is documented."""

import ast
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import regard

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
