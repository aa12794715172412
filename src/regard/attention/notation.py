"""Parts to text and back: `Causal() & Window(size=512)`. The text is parsed, never executed."""

import ast
import operator
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
    try:
        return build(ast.parse(text.strip(), mode="eval").body, text)
    except SyntaxError as error:
        raise ValueError(f"cannot read {text!r}: {error.msg}") from None
    except TypeError as error:  # wrong arguments for a part that exists
        raise ValueError(f"cannot read {text!r}: {error}") from None


def build(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.UnaryOp(ast.Invert(), inner):
            return ~build(inner, text)
        case ast.BinOp(left, sign, right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](build(left, text), build(right, text))
        case ast.Call(ast.Name(name), arguments, keywords) if name in PARTS:
            named = {keyword.arg: build(keyword.value, text) for keyword in keywords if keyword.arg}
            return PARTS[name](*(build(argument, text) for argument in arguments), **named)
    raise ValueError(f"cannot read {ast.unparse(node)!r} in {text!r}; known parts: {', '.join(PARTS)}")
