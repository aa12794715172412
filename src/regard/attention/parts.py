"""Parts of a recipe: their text, as `Causal() & Window(size=512)`, and back; their weights by name; and a user's own.

The text is parsed, never executed. A part is a frozen dataclass or an `nn.Module`, and either may hold the other:
TopK(3, then=Temperature()). What a part holds are its fields or attributes, and the members of a collection among them.
"""

import ast
import operator
import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from inspect import isclass, signature
from typing import Any, Self, TypeVar

from torch import Tensor, nn

from regard.attention import (
    gate,
    normaliser,
    pattern,
    position,
    position_variants,
    scaled_score,
    score,
    softmax_variants,
    sparse_patterns,
)
from regard.attention.batch_patterns import BatchPattern
from regard.attention.block_map import attributes_of
from regard.attention.gate import BoundForget, BoundGate, Gate
from regard.attention.layer_options import LayerForm
from regard.attention.normaliser import Normaliser
from regard.attention.pattern import And, Not, Or, Pattern
from regard.attention.position import Position
from regard.attention.position_variants import Relation
from regard.attention.score import Score
from regard.attention.sparse_patterns import Block, PerHead
from regard.ops.rotary import FrequencyScaling

Part = Score | Position | FrequencyScaling | Relation | Pattern | Normaliser | Gate | LayerForm
T = TypeVar("T")

PARTS: dict[str, type] = {
    part.__name__: part
    for part in (
        *(score.Dot, score.ScaledDot, score.Cosine, score.Feature, score.Bilinear, score.Additive),
        *(scaled_score.GivenScale, scaled_score.LogitScale, scaled_score.SoftCap),
        *(position.NoPosition, position_variants.Sinusoidal, position_variants.Learned),
        *(position.Rotary, position_variants.RotaryScaling, position_variants.NTKScaling),
        *(position_variants.YarnScaling, position_variants.AxialRotary, position_variants.XPos, position_variants.CoPE),
        *(position_variants.Alibi, position_variants.RelativeBias, position_variants.RelativeVectors),
        *(position_variants.Clipped, position_variants.LogBuckets),
        *(position_variants.TreePath, position_variants.TreeDepth),
        *(pattern.Full, pattern.Causal, pattern.StrictCausal, pattern.Window, sparse_patterns.Strided),
        *(sparse_patterns.Prefix, sparse_patterns.Global, sparse_patterns.Random, sparse_patterns.Block),
        *(sparse_patterns.PerHead, sparse_patterns.TopBlocks, sparse_patterns.LightningIndexer),
        *(normaliser.Softmax, normaliser.ReLU, normaliser.Sigmoid, normaliser.Proportional, softmax_variants.Sparsemax),
        *(softmax_variants.TopK, normaliser.AttentionDropout),
        *(softmax_variants.SoftmaxPlusOne, softmax_variants.SinkSoftmax, softmax_variants.Entmax),
        *(
            softmax_variants.StickBreaking,
            softmax_variants.TalkingHeads,
            softmax_variants.Differential,
            softmax_variants.MultiToken,
        ),
        *(softmax_variants.Sampled, softmax_variants.StraightThrough, softmax_variants.Hard),
        *(gate.NoGate, gate.Forget, gate.Retention, gate.Lightning, gate.ScalarDecay, gate.VectorDecay),
        *(gate.Unnormalised, gate.Delta, gate.GatedDelta, gate.KimiDelta),
    )
}
# Old names in the recipes of older runs: of parts, and of a part's arguments.
RENAMED_PARTS = {"Before": "StrictCausal", "Dropped": "AttentionDropout"}
RENAMED_ARGUMENTS = {
    ("Learned", "longest"): "max_length",
    ("Clipped", "reach"): "max_distance",
    ("TreePath", "reach"): "max_distance",
    ("LogBuckets", "furthest"): "max_distance",
    ("LogBuckets", "both_ways"): "bidirectional",
    ("Block", "among"): "pattern",
}
MAX_TEXT = 10_000  # letters
MAX_QUOTED = 200  # letters of a text that an error repeats
MAX_DEPTH = 100  # parts inside of parts: whoever walks through them does so by recursion
OPERATORS = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.Add: operator.add}


class PartText(str):
    """Text that may name a user's own parts, together with what these names stand for.

    `parse_part` and `Recipe.from_toml` look there as well as in PARTS. It equals the text alone, and is written as it.
    """

    own_parts: Mapping[str, Any]

    def __new__(cls, text: str, own_parts: Mapping[str, Any]) -> Self:
        made = super().__new__(cls, text)
        made.own_parts = own_parts
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # as unchangeable as any text


def attach_own_parts(value: T, own_parts: Mapping[str, Any]) -> T | PartText:
    """A text that may name these as well; anything that is no text stays as it is."""
    if not own_parts or not isinstance(value, str):
        return value
    return PartText(value, {**own_parts_of(value), **own_parts})


def own_parts_of(text: str) -> Mapping[str, Any]:
    """The user's own parts that a text may name."""
    return text.own_parts if isinstance(text, PartText) else {}


def find_named(name: str, table: Mapping[str, T], what: str) -> T:
    """What a name stands for: one of the user's own parts, or an entry of a table."""
    if (own := own_parts_of(name).get(name)) is not None:
        return own
    if name not in table:
        raise ValueError(f"no {what} is called {name!r}; there are {', '.join(table)}")
    return table[name]


def format_part(part: Part) -> str:
    """A part as the text that `parse_part` reads."""
    if held := next((p for p in leaves(part) if isinstance(p, BatchPattern | BoundForget | BoundGate)), None):
        raise ValueError(f"{type(held).__name__} holds the data of one batch; a recipe file describes them all")
    return repr(part) if prints_arguments(type(part)) else f"{type(part).__name__}()"


def prints_arguments(kind: type) -> bool:
    """What Python and torch print of a class that is no dataclass does not show them."""
    return kind.__repr__ not in (object.__repr__, nn.Module.__repr__)


def leaves(part: Part) -> tuple[Part, ...]:
    if isinstance(part, And | Or):
        return *leaves(part.left), *leaves(part.right)
    if isinstance(part, Not):
        return leaves(part.inner)
    if isinstance(part, PerHead):
        return tuple(leaf for pattern in part.patterns for leaf in leaves(pattern))
    return leaves(part.pattern) if isinstance(part, Block) else (part,)


def parse_part(text: str) -> Any:
    """The part that a text describes, e.g. "Window(256) | Global(1)".

    Examples:
        >>> parse_part("Window(256) | Global(1)")
        Window(size=256) | Global(tokens=1)
        >>> parse_part("TopK(8, then=Sparsemax())") == TopK(8, then=Sparsemax())
        True
    """
    if not isinstance(text, str):
        raise ValueError(f"a part is described by text such as 'Window(256)', not by {text!r}")
    if len(text) > MAX_TEXT:
        raise ValueError(f"cannot read {quote(text)}: {len(text):,} letters, more than {MAX_TEXT:,}; write fewer")
    try:
        found = build_part(ast.parse(text.strip(), mode="eval").body, text)
    except SyntaxError as error:
        raise ValueError(f"cannot read {quote(text)}: {error.msg}") from None
    except TypeError as error:  # wrong arguments for a part that exists
        raise ValueError(f"cannot read {quote(text)}: {error}") from None
    except (RecursionError, MemoryError):  # by which the parser itself says that it is too deep
        raise ValueError(depth_error(text)) from None
    except (ArithmeticError, AttributeError, LookupError, RuntimeError) as error:  # of a user's own part
        raise ValueError(f"cannot read {quote(text)}: {type(error).__name__} {error}") from None
    if not isinstance(found, Part):
        raise ValueError(f"cannot read {quote(text)}: it is {found!r}, and no part; write one such as 'Window(256)'")
    return found


def quote(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…")


def depth_error(text: str) -> str:
    return f"cannot read {quote(text)}: more than {MAX_DEPTH} parts inside of each other; write fewer"


def build_part(node: ast.expr, text: str, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(depth_error(text))
    deeper = depth + 1
    match node:
        case ast.Constant(value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.List(elements) | ast.Tuple(elements):
            return tuple(build_part(element, text, deeper) for element in elements)
        case ast.UnaryOp(ast.Invert(), inner):
            return ~build_part(inner, text, deeper)
        case ast.BinOp(left, sign, right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](build_part(left, text, deeper), build_part(right, text, deeper))
        case ast.Call(ast.Name(written), arguments, keywords) if (known := find_part(written, text)) is not None:
            name = known.__name__
            if any(keyword.arg is None for keyword in keywords):
                raise ValueError(
                    f"cannot read {quote(text)}: ** names nothing; write each argument of {name} by its name"
                )
            names = [RENAMED_ARGUMENTS.get((name, keyword.arg or ""), keyword.arg or "") for keyword in keywords]
            if twice := [one for one in names if names.count(one) > 1]:
                raise ValueError(f"cannot read {quote(text)}: {name} is given {twice[0]} twice; leave one out")
            named = {one: build_part(keyword.value, text, deeper) for one, keyword in zip(names, keywords, strict=True)}
            return known(*(build_part(argument, text, deeper) for argument in arguments), **named)
    names = ", ".join((*PARTS, *(name for name in own_parts_of(text) if find_part(name, text))))
    hint = "; a part of your own needs its file: --parts FILE" if isinstance(node, ast.Call) else ""
    raise ValueError(f"cannot read {quote(ast.unparse(node))} in {quote(text)}; known parts: {names}{hint}")


def find_part(name: str, text: str) -> type | None:
    """The part of a name, also of a former one, or the user's own of that name."""
    found = PARTS.get(RENAMED_PARTS.get(name, name)) or own_parts_of(text).get(name)
    return found if isclass(found) and issubclass(found, Part) else None


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a text; its parser takes lists in lists, so that a hostile one may go deeper than Python does."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists in lists in lists without end; write plain values") from None


# --- what parts hold, their weights above all ---


def children(value: Any) -> dict[str, Any]:
    """What a value holds, by name. Of a module, what it has not registered by itself."""
    match value:
        case Tensor() | type():
            return {}
        case nn.Module():
            return {name: x for name, x in vars(value).items() if not name.startswith("_")}
        case dict():
            return {str(name): x for name, x in value.items()}
        case tuple() | list():
            return {str(n): x for n, x in enumerate(value)}
    return attributes_of(value) if is_dataclass(value) or isinstance(value, Part) else {}


def learned_modules(part: Any, name: str) -> dict[str, nn.Module]:
    """The modules that hold a part's weights, each under the part's name and the way to it."""
    own = {field: x for field, x in children(part).items() if isinstance(x, nn.Parameter)}
    found = {name: part} if isinstance(part, nn.Module) else {name: as_module(own)} if own else {}
    for field, x in children(part).items():
        found |= learned_modules(x, f"{name}_{field}")
    return found


def as_module(weights: dict[str, nn.Parameter]) -> nn.Module:
    """The weights of a part that is no module, as a module."""
    module = nn.Module()
    for name, weight in weights.items():
        module.register_parameter(name, weight)
    return module


def tensors(part: Any) -> Iterator[Tensor]:
    """Every tensor that a part holds, those of its modules included; one held twice comes twice."""
    if isinstance(part, Tensor):
        yield part
    if isinstance(part, nn.Module):
        yield from (*part.parameters(), *part.buffers())
    for x in children(part).values():
        yield from tensors(x)


def fresh(part: Any) -> Any:
    """The same part with weights of its own; what holds none stays, and what was shared within it is shared again."""
    made: dict[int, Any] = {}
    mark_shared(part, made)
    return deepcopy(part, made)


def mark_shared(part: Any, made: dict[int, Any]) -> None:
    """Note for `deepcopy` what need not be copied. A module that is a dataclass of mere settings is made anew."""
    if id(part) in made or isinstance(part, nn.Parameter):
        return
    within = [learned_modules(x, "") or isinstance(x, nn.Parameter) for x in field_values(part)]
    if not learned_modules(part, ""):
        made[id(part)] = part
    elif isinstance(part, nn.Module) and is_dataclass(part) and not any(within):
        made[id(part)] = replace(part)
    else:
        for x in children(part).values():
            mark_shared(x, made)


def field_values(part: Any) -> list[Any]:
    """What a dataclass is made from."""
    return [getattr(part, field.name) for field in fields(part)] if is_dataclass(part) else []


# --- a user's own parts ---


def find_own_parts(value: Any) -> dict[str, type]:
    """The classes of a user's own parts that a recipe holds, however deep, by name."""
    kind, found = type(value), {}
    if isinstance(value, Part) and kind.__module__.split(".")[0] != "regard":
        if find_part(kind.__name__, "") is not None:
            raise ValueError(f"{kind.__name__} is the name of a built-in part; give yours another")
        refuse_hidden_arguments(kind)
        found[kind.__name__] = kind
    for held in (*children(value).values(), *field_values(value)):
        for name, one in find_own_parts(held).items():
            if found.setdefault(name, one) is not one:
                raise ValueError(f"two parts of your own are called {name}; rename one of them")
    return found


def refuse_hidden_arguments(kind: type) -> None:
    """Refuses a part that takes arguments and does not print them: its text would describe another part."""
    every = signature(kind).parameters.values()
    taken = [one.name for one in every if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    if taken and not prints_arguments(kind):
        raise ValueError(f"{kind.__name__} does not print its {taken[0]}, so no text describes it; make it a dataclass")
