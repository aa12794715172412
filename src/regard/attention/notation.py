"""Parts to text and back: `Causal() & Window(size=512)`. The text is parsed, never executed."""

import ast
import operator
import tomllib
from typing import Any

from regard.attention import hard, normaliser, pattern, position, reach, relative, score, syntax
from regard.attention.given import Given
from regard.attention.normaliser import Normaliser
from regard.attention.pattern import And, Not, Or, Pattern
from regard.attention.position import Position
from regard.attention.reach import Block
from regard.attention.relative import Relation
from regard.attention.score import Score

Part = Score | Position | Relation | Pattern | Normaliser

PARTS: dict[str, type] = {
    part.__name__: part
    for part in (
        *(score.Dot, score.ScaledDot, score.Cosine, score.Feature, score.Bilinear, score.Additive),
        *(position.NoPosition, position.Sinusoidal, position.Learned, position.Rotary, position.Alibi),
        *(relative.RelativeBias, relative.RelativeVectors, relative.Clipped, relative.LogBuckets),
        *(syntax.TreePath, syntax.TreeDepth),
        *(pattern.Full, pattern.Causal, pattern.Before, pattern.Window, pattern.Strided),
        *(reach.Prefix, reach.Global, reach.Random, reach.Block),
        *(normaliser.Softmax, normaliser.ReLU, normaliser.Sigmoid, normaliser.Proportional, normaliser.Sparsemax),
        *(normaliser.TopK, normaliser.Dropped, hard.Sampled, hard.StraightThrough, hard.Hard),
    )
}
LONGEST = 10_000  # letters
SHOWN = 200  # letters of a text that are said again
DEEPEST = 100  # parts inside of parts: whoever walks through them does so by recursion
OPERATORS = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.Add: operator.add}


def write(part: Part) -> str:
    """A part as the text that `read` understands."""
    if held := next((p for p in leaves(part) if isinstance(p, Given)), None):
        raise ValueError(f"{type(held).__name__} holds the data of one batch; a recipe file describes them all")
    return repr(part)


def leaves(part: Part) -> tuple[Part, ...]:
    if isinstance(part, And | Or):
        return *leaves(part.left), *leaves(part.right)
    if isinstance(part, Not):
        return leaves(part.inner)
    return leaves(part.among) if isinstance(part, Block) else (part,)


def read(text: str) -> Any:
    """The part that a text describes, e.g. "Window(256) | Global(1)"."""
    if not isinstance(text, str):
        raise ValueError(f"a part is described by text such as 'Window(256)', not by {text!r}")
    if len(text) > LONGEST:
        raise ValueError(f"cannot read {shown(text)}: {len(text):,} letters, more than {LONGEST:,}; write fewer")
    try:
        found = build(ast.parse(text.strip(), mode="eval").body, text)
    except SyntaxError as error:
        raise ValueError(f"cannot read {shown(text)}: {error.msg}") from None
    except TypeError as error:  # wrong arguments for a part that exists
        raise ValueError(f"cannot read {shown(text)}: {error}") from None
    except (RecursionError, MemoryError):  # by which the parser itself says that it is too deep
        raise ValueError(too_deep(text)) from None
    if not isinstance(found, Part):
        raise ValueError(f"cannot read {shown(text)}: it is {found!r}, and no part; write one such as 'Window(256)'")
    return found


def shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


def too_deep(text: str) -> str:
    return f"cannot read {shown(text)}: more than {DEEPEST} parts inside of each other; write fewer"


def build(node: ast.expr, text: str, depth: int = 0) -> Any:
    if depth > DEEPEST:
        raise ValueError(too_deep(text))
    deeper = depth + 1
    match node:
        case ast.Constant(value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.UnaryOp(ast.Invert(), inner):
            return ~build(inner, text, deeper)
        case ast.BinOp(left, sign, right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](build(left, text, deeper), build(right, text, deeper))
        case ast.Call(ast.Name(name), arguments, keywords) if name in PARTS:
            names = [keyword.arg for keyword in keywords]
            if None in names:
                raise ValueError(
                    f"cannot read {shown(text)}: ** names nothing; write each argument of {name} by its name"
                )
            if twice := [one for one in names if names.count(one) > 1]:
                raise ValueError(f"cannot read {shown(text)}: {name} is given {twice[0]} twice; leave one out")
            named = {keyword.arg or "": build(keyword.value, text, deeper) for keyword in keywords}
            return PARTS[name](*(build(argument, text, deeper) for argument in arguments), **named)
    raise ValueError(f"cannot read {shown(ast.unparse(node))} in {shown(text)}; known parts: {', '.join(PARTS)}")


def read_toml(text: str) -> dict[str, Any]:
    """The tables of a text; its parser takes lists in lists, so that a hostile one may go deeper than Python does."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists in lists in lists without end; write plain values") from None
