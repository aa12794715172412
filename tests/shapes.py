"""Shape checks: which modules' jaxtyping annotations beartype checks under test, and which it does not, and why."""

import ast
import inspect
import re
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import cache, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, UnionType
from typing import Any, Union, get_args, get_origin

from beartype import beartype
from jaxtyping import AbstractArray, jaxtyped
from numpy import ndarray
from torch import Tensor
from torch.nn import Parameter

SOURCE = Path(__file__).parent.parent / "src"
SHAPES = {"Bool", "Complex", "Float", "Float32", "Inexact", "Int", "Integer", "Num", "Real", "Shaped", "UInt8"}
# A package, module or function that stays unchecked, and why.
USER = "a mistake here is the user's and must be a ValueError"
TRACED = "traced by a compiler (FlexAttention, torch.compile), which cannot see through the checks"
HELD = "what it holds in memory is measured, and a check holds the arguments"
UNCHECKED = {
    "regard.attention.functional": USER,
    "regard.attention.multihead": USER,
    "regard.attention.pattern": TRACED,
    "regard.attention.position": TRACED,
    "regard.attention.backends.flex": TRACED,
    "regard.attention.backends.additive": HELD,
    "regard.attention.backends.hard.hard_attention": USER,
    "regard.data.lm_blocks.LMBlocks": USER,
    "regard.data.lm_blocks.prepend_bos": USER,
    "regard.layers.rnn.pack": USER,
    "regard.layers.rnn.RNNLayers.forward": USER,
    "regard.models.autoencoder.Autoencoder.memory_from_latent": USER,
    "regard.ops.linear_cross_entropy": TRACED,
    "regard.see.plots.attention_maps": USER,
    "regard.see.plots.text_views": USER,
}


@cache
def sources() -> dict[str, str]:
    """The text of every module of the package, by the module's name."""
    paths = sorted((SOURCE / "regard").rglob("*.py"))
    names = (".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for path in paths)
    return {name: path.read_text() for name, path in zip(names, paths, strict=True)}


@cache
def tree(module: str) -> ast.Module:
    """A module as it is written; whoever changes it parses it anew."""
    return ast.parse(sources()[module])


def is_unchecked(name: str) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in UNCHECKED)


def is_checked(module: str) -> bool:
    source = sources()[module]
    return "from jaxtyping import" in source and not is_unchecked(module)


# --- the hook; jaxtyping's own decorates every function there is, which costs seconds ---


class ShapeChecks(ast.NodeTransformer):
    """Decorates the functions and dataclasses of a module that are annotated with a shape."""

    def __init__(self, module: str):
        self.path, self.names, self.found = [module], shape_names(module), 0

    def visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            return self.generic_visit(node)
        self.path.append(node.name)
        self.generic_visit(node)
        found = sum(has_shape(one, self.names) for one in annotations(node))
        if found and not is_unchecked(".".join(self.path)) and not says_itself(node):
            self.found += found
            # after other decorators of a function, which may drop its annotations, and before `dataclass`
            node.decorator_list.insert(0 if isinstance(node, ast.ClassDef) else len(node.decorator_list), decorator())
        self.path.pop()
        return node


def says_itself(node: ast.AST) -> bool:
    """A dataclass that looks at its fields itself, and raises a ValueError."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(part, ast.FunctionDef) and part.name == "__post_init__" for part in node.body
    )


def decorator() -> ast.expr:
    here = f"__import__({__name__!r}, fromlist=['checked'])"
    return ast.parse(f"{here}.checked", mode="eval").body


def checked(decorated: Any) -> Any:
    """Checks every combination of shapes and dtypes when it first occurs, since jaxtyping takes 0.1 ms for a call.
    Letters say which sizes are equal and not how large they are, so shapes that differ in that alone are one."""
    if isinstance(decorated, type):
        if is_dataclass(decorated):  # and no protocol, which is never made
            decorated.__init__ = checked(decorated.__init__)
        return decorated
    whole = jaxtyped(decorated, typechecker=check_annotated_shapes)
    parameters = inspect.signature(decorated).parameters.values()
    hints = {name: hint for name, hint in decorated.__annotations__.items() if holds_array(hint)}
    places = [(n, one.name) for n, one in enumerate(parameters) if one.name in hints]
    starred = any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)
    if starred or not all(map(is_plain, hints.values())):
        return whole
    answer, seen = threading.local(), set[Any]()
    written = {int(size): size for hint in hints.values() for size in re.findall(r"\b\d+\b", str(hint))} | {1: "1"}

    @wraps(decorated)
    def give_answer(*args: Any, **named: Any) -> Any:
        return answer.given

    check_answer = jaxtyped(give_answer, typechecker=check_annotated_shapes)

    @wraps(decorated)
    def check_once(*args: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        given = [args[n] if n < len(args) else named.get(name) for n, name in places]
        sizes = written.copy()
        try:
            shapes = describe(given, sizes)
        except Indescribable:
            return whole(*args, **named)
        if shapes not in seen:
            found = whole(*args, **named)
            seen.add(shapes)
            return found
        found = decorated(*args, **named)
        try:
            result = (shapes, describe(found, sizes)) if "return" in hints else shapes
        except Indescribable:
            result = None
        if result not in seen:
            answer.given = found
            try:
                check_answer(*args, **named)
            finally:
                del answer.given  # nothing is held
            seen.update([result] if result else [])
        return found

    return check_once


class Indescribable(Exception):
    """A tensor of a tracer, whose shape may hold what is no number yet."""


def describe(x: Any, sizes: dict[int, Any]) -> Any:
    """All that a check asks about what is annotated with shapes; a size that no hint writes is told by its number."""
    if type(x) is Tensor or type(x) is Parameter or isinstance(x, ndarray):
        return tuple([sizes.setdefault(size, len(sizes)) for size in x.shape]), x.dtype
    if isinstance(x, tuple | list):
        return type(x), *[describe(one, sizes) for one in x]
    if isinstance(x, Tensor):
        raise Indescribable
    return type(x)


def is_plain(hint: Any) -> bool:
    """An array of letters and numbers alone, or a tuple, list or choice of such."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return "{" not in hint.dim_str
    return get_origin(hint) in (tuple, list, Union, UnionType) and all(
        is_plain(one) or not holds_array(one) for one in get_args(hint)
    )


def check_annotated_shapes(function: Callable) -> Callable:
    """beartype, for arguments and results that are annotated with shapes; of the others pyright knows more."""
    function.__annotations__ = {name: hint for name, hint in function.__annotations__.items() if holds_array(hint)}
    return beartype(function)


def holds_array(hint: Any) -> bool:
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(holds_array, get_args(hint)))


class CheckedLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(sources()[fullname])
        ShapeChecks(fullname).visit(tree)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class CheckedFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in sources() and is_checked(fullname) else None
        if spec is not None and spec.origin is not None:
            spec.loader = CheckedLoader(fullname, spec.origin)
        return spec


def check_shapes() -> None:
    """Whatever is imported of these modules from now on raises when a tensor has not the shape that is written."""
    sys.meta_path.insert(0, CheckedFinder())


# --- the count ---


def has_shape(annotation: ast.expr | None, names: set[str]) -> bool:
    nodes = ast.walk(annotation) if annotation is not None else ()
    return any(isinstance(node, ast.Name) and node.id in names for node in nodes)


@cache
def own_shapes(module: str) -> set[str]:
    """jaxtyping's names that a module imports, and those it gives to shapes made with them."""
    names: set[str] = set()
    for node in tree(module).body:
        if isinstance(node, ast.ImportFrom) and node.module == "jaxtyping":
            names |= {alias.name for alias in node.names if alias.name in SHAPES}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
            names |= {ast.unparse(target) for target in node.targets if has_shape(node.value, names)}
    return names


@cache
def shape_names(module: str) -> set[str]:
    """What a module calls shapes: by its own names, and those of the modules it imports from."""
    names = set(own_shapes(module))
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module in sources():
            names |= {alias.name for alias in node.names} & (own_shapes(node.module) - SHAPES)
    return names


def annotations(node: ast.AST) -> list[ast.expr | None]:
    """Of a function's arguments and result, or of a class's fields."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = (one for one in ast.walk(node.args) if isinstance(one, ast.arg))
        return [*(one.annotation for one in arguments), node.returns]
    fields = node.body if isinstance(node, ast.ClassDef) else []
    return [field.annotation for field in fields if isinstance(field, ast.AnnAssign)]


def count_shapes(module: str) -> tuple[int, int]:
    """How many arguments, results and fields a module annotates with a shape, and how many of them are checked."""
    if not shape_names(module):
        return 0, 0
    every, checks = 0, ShapeChecks(module)
    checks.visit(ast.parse(sources()[module]))
    for node in ast.walk(tree(module)):
        every += sum(has_shape(one, shape_names(module)) for one in annotations(node))
    return every, checks.found if is_checked(module) else 0


def share_checked() -> float:
    """Shape annotations that are checked, of all there are."""
    every, found = zip(*map(count_shapes, sources()), strict=True)
    return sum(found) / sum(every)
