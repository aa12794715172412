"""The public surface: every package lists its names in `__all__`, and every class and function in it is documented."""

import ast
import doctest
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest
import torch

import regard
from regard.attention import Causal

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


# --- the names of `regard` itself ---


def test_dir_shows_what_is_for_users():
    assert dir(regard) == sorted(regard.__all__)


@pytest.fixture(scope="module")
def folder_with_a_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    (folder / "pairs.tsv").write_text("the cat sleeps\tle chat dort\na dog\tun chien\n" * 20)
    settings = {"text.kind": "words", "train.batch_size": 64, "train.checkpoint_every": 1}
    regard.train(train=folder / "pairs.tsv", out=folder / "run", size="tiny", steps=2, **settings)
    return folder


# those of attend, explain and Recipe are in the README: their files are to be read in one sitting
@pytest.mark.parametrize("name", [name for name in regard.__all__ if name not in ("attend", "explain", "Recipe")])
def test_its_example_runs(name, folder_with_a_run, monkeypatch):
    monkeypatch.chdir(folder_with_a_run)
    names = {"regard": regard, "torch": torch, "Causal": Causal}
    example = doctest.DocTestParser().get_doctest(getattr(regard, name).__doc__, names, name, None, None)
    assert example.examples
    output: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=output.append)
    assert not output, "".join(output)
