"""A position scheme in; its famous picture out: stripes, angles, biases, or which learned vector a pair reads."""

from dataclasses import replace

import torch
from torch import Tensor

from regard.attention.position import Alibi, Beside, Bias, Inside, Learned, OnScore, Position
from regard.attention.relative import RelativeBias, RelativeVectors
from regard.attention.syntax import TreeDepth, TreePath
from regard.see.panel import Axis, Curve, Panel, Row, Scale, View, grid

TOKENS = 64
WIDTH = 64  # of the model or head, where the scheme leaves it open


def position_view(position: Position, *, tokens: int | None = None, width: int | None = None) -> View:
    """The first `tokens` places; `width` features where the scheme does not fix them."""
    parts, rows = position.parts(), []
    for scheme in parts:
        first, *others = rows_of(scheme, tokens, width)
        rows += [replace(first, heading=repr(scheme) if len(parts) > 1 else ""), *others]
    return View(tuple(rows) or nothing(tokens or 8), title=repr(position))


def rows_of(scheme: Position, tokens: int | None, width: int | None) -> tuple[Row, ...]:
    if isinstance(scheme, Beside):
        model = scheme.model if isinstance(scheme, Learned) else width or WIDTH
        return stripes(scheme, length(scheme, tokens, TOKENS), model)
    if isinstance(scheme, Inside):
        return turned(scheme, length(scheme, tokens, TOKENS), width or WIDTH)
    if isinstance(scheme, Bias):
        return biases(scheme, length(scheme, tokens, 32))
    if isinstance(scheme, RelativeVectors):
        return relations(scheme, length(scheme, tokens, 12))
    if isinstance(scheme, OnScore):
        return on_score(scheme, torch.ones(1, 1, length(scheme, tokens, 32), width or WIDTH))
    raise ValueError(f"{scheme!r} is neither beside the token, nor inside q and k, nor on the score: nothing to draw")


def length(scheme: Position, wanted: int | None, usual: int) -> int:
    """How many places to draw: as wanted, else the usual number or as many as the scheme knows."""
    known = 1024  # more rows than a screen has
    if isinstance(scheme, Learned):
        known = min(known, scheme.longest)
    elif isinstance(scheme, TreeDepth) and scheme.depths is not None:
        known = min(known, scheme.depths.shape[1])
    elif isinstance(scheme, RelativeBias | RelativeVectors) and isinstance(scheme.relation, TreePath):
        known = known if scheme.relation.paths is None else min(known, scheme.relation.paths.shape[1])
    if wanted is not None and not 1 <= wanted <= known:
        raise ValueError(f"{scheme!r} cannot show {wanted} places; ask for 1 to {known}")
    return wanted or min(usual, known)


def stripes(scheme: Beside, tokens: int, width: int) -> tuple[Row, ...]:
    table = scheme.table(torch.arange(tokens), width).detach().cpu().double()
    if table.dim() == 3 and len(table) > 1:
        raise ValueError(f"{scheme!r} was given {len(table)} trees; draw one at a time")
    table = table.view(tokens, -1)
    return (Row((striped("added to each token", table),)),)


def striped(title: str, table: Tensor) -> Panel:
    return Panel(title, table, signed(table), down=Axis("position"), across=Axis("feature"))


def signed(values: Tensor) -> Scale:
    finite = values[torch.isfinite(values)]
    most = (float(finite.abs().max()) if len(finite) else 0.0) or 1.0
    return Scale("signed", -most, most)


def turned(scheme: Inside, tokens: int, width: int) -> tuple[Row, ...]:
    """What becomes of a vector of ones, and how q · k falls with the distance when both are such vectors."""
    ones = torch.ones(1, 1, tokens, width, dtype=torch.float64)
    turned = scheme.turn(ones, torch.arange(tokens))[0, 0].detach().cpu()
    product = turned @ turned[0]
    curve = Curve("q · k when both are ones", torch.arange(tokens), product, "distance i − j", "q · k")
    return (Row((striped("a vector of ones, turned", turned), curve)),)


def cells(heads: int, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    at = torch.arange(tokens)
    return torch.zeros(1, 1, 1, 1, dtype=torch.long), torch.arange(heads).view(1, -1, 1, 1), at[:, None], at[None]


def biases(scheme: Bias, tokens: int) -> tuple[Row, ...]:
    """One matrix per head; a bias that does not say how many heads it serves is drawn for one."""
    heads = scheme.heads if isinstance(scheme, Alibi | RelativeBias) else 1
    bias = scheme.bias(*cells(heads, tokens)).detach().cpu().double().expand(1, heads, tokens, tokens)[0]
    # a bias that only dims is coloured by what it leaves of a weight, so that gentle slopes show too
    scale = Scale("dimming", -6, 0, "bias") if bias.max() <= 0 else signed(bias)
    slopes = [f", slope {slope:.3g}" for slope in scheme.slopes()] if isinstance(scheme, Alibi) else [""] * heads
    return grid([Panel(f"head {h + 1}{slopes[h]}", bias[h], scale) for h in range(heads)])


def relations(scheme: RelativeVectors, tokens: int) -> tuple[Row, ...]:
    b, _, i, j = cells(1, tokens)
    relation = scheme.relation.between(b, i, j).expand(1, 1, tokens, tokens)[0, 0]
    scale = Scale("kinds", 0, scheme.relation.kinds - 1)
    return (Row((Panel("which learned vector each pair reads", relation.cpu().double(), scale),)),)


def on_score(scheme: OnScore, q: Tensor) -> tuple[Row, ...]:
    added = scheme.on_score(q, *cells(1, q.shape[2])).detach().cpu().double()
    values = added.expand(1, 1, q.shape[2], q.shape[2])[0, 0]
    return (Row((Panel("added to the score of a query of ones", values, signed(values)),)),)


def nothing(tokens: int) -> tuple[Row, ...]:
    return (Row((Panel("added to each score", torch.zeros(tokens, tokens), Scale("signed", -1, 1)),)),)
