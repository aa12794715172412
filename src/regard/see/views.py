"""A pattern, weights or the steps of attention in; the panels that show them out."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.attention.backends.reference import Steps
from regard.attention.given import Documents
from regard.attention.notation import leaves
from regard.attention.pattern import Pattern
from regard.see.labels import labelled
from regard.see.panel import Axis, Panel, Row, Scale, View, grid

Tokens = int | Sequence[str]  # how many, or which

TOKENS = 32
MOST_CELLS = 1024  # a side; a longer mask is shown by its blocks
MOST_BLOCKS = 128


# --- patterns ---


def pattern_view(
    pattern: Pattern, *, tokens: Tokens | None = None, queries: Tokens | None = None, block: int | None = None
) -> View:
    """The mask: queries down, keys across. With `block`, also which blocks of that size are empty, mixed and full.

    A mask too long for cells is never formed: its blocks are shown alone.
    """
    n_k, n_q = lengths(pattern, tokens, queries)
    if max(n_q, n_k) > MOST_CELLS:
        size = block or 2 ** ((max(n_q, n_k) - 1) // MOST_BLOCKS).bit_length()
        return View((Row((block_panel(pattern, n_q, n_k, size),)),), title=code(pattern))
    down, across = axis("query", tokens if queries is None else queries), axis("key", tokens)
    masks = mask(pattern, n_q, n_k)
    names = ["cells" if block else ""] if len(masks) == 1 else [f"sentence {b + 1}" for b in range(len(masks))]
    panels = [
        Panel(name, seen, Scale("mask"), down=down, across=across) for name, seen in zip(names, masks, strict=True)
    ]
    panels += [block_panel(pattern, n_q, n_k, block)] if block else []
    return View(grid(panels), title=code(pattern))


def mask(pattern: Pattern, n_q: int, n_k: int) -> Tensor:
    """May query i of sentence b look at key j?  (b, i, j); the first head's, where heads differ."""
    b = torch.arange(pattern.batches).view(-1, 1, 1)
    i, j = torch.arange(n_q).view(1, -1, 1), torch.arange(n_k).view(1, 1, -1)
    return pattern.to("cpu").sees(b, torch.zeros_like(b), i, j).expand(pattern.batches, n_q, n_k)


def block_panel(pattern: Pattern, n_q: int, n_k: int, block: int) -> Panel:
    states = pattern.blocks(n_q, n_k, block).dense()
    return Panel(
        f"blocks of {block}", states, Scale("blocks", 0, 2), down=Axis("query block"), across=Axis("key block")
    )


def lengths(pattern: Pattern, tokens: Tokens | None, queries: Tokens | None) -> tuple[int, int]:
    """How many keys and queries: as asked, else as many as the pattern holds data for, else the usual number."""
    named = [part for part in leaves(pattern) if isinstance(part, Documents)]
    known_k = min([TOKENS**4, *((part.ids if part.keys is None else part.keys).shape[1] for part in named)])
    known_q = min([TOKENS**4, *(part.ids.shape[1] for part in named)])
    n_k = (known_k if named else TOKENS) if tokens is None else count(tokens)
    n_q = (known_q if named and tokens is None else n_k) if queries is None else count(queries)
    if min(n_q, n_k) < 1:
        raise ValueError(f"{n_q} queries and {n_k} keys make no picture; ask for at least 1 of each")
    if n_q > known_q or n_k > known_k:
        raise ValueError(
            f"{code(pattern)} names {known_q} queries and {known_k} keys, not {n_q} and {n_k}; ask for fewer"
        )
    return n_k, n_q


def count(tokens: Tokens) -> int:
    return tokens if isinstance(tokens, int) else len(tokens)


def axis(name: str, tokens: Tokens | None) -> Axis:
    if tokens is None or isinstance(tokens, int):
        return Axis(name)
    return Axis(name, labelled(tokens, wanted=len(tokens), name="tokens"))


def code(part: object) -> str:
    """A part as one line."""
    return " ".join(repr(part).split())


# --- weights ---


def weights_view(
    weights: Tensor,
    *,
    tokens: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    visible: Tensor | None = None,
) -> View:
    """Weights (i, j), (h, i, j) or (1, h, i, j). `tokens` names the keys, and the queries unless `queries` does."""
    heads = by_head(weights)
    shown = None if visible is None else by_head(visible.expand(weights.shape)).bool()
    down, across = sides(heads, tokens, queries)
    scale = Scale.of_rows(heads if shown is None else heads.where(shown, 0.0), "weight")
    names = [""] if len(heads) == 1 else [f"head {h + 1}" for h in range(len(heads))]
    panels = [
        Panel(name, head, scale, None if shown is None else shown[h], down, across)
        for h, (name, head) in enumerate(zip(names, heads, strict=True))
    ]
    return View(grid(panels, most=4 if heads.shape[1] > 1 else 1))


def by_head(x: Tensor) -> Tensor:
    if x.dim() == 4 and len(x) != 1:
        raise ValueError(f"weights of {len(x)} sentences; draw one at a time: weights[0], weights[1], ...")
    if not 2 <= x.dim() <= 4 or not x.numel():
        raise ValueError(f"weights must be (i, j), (h, i, j) or (1, h, i, j), not {tuple(x.shape)}")
    return x.detach().cpu().double().reshape(-1, *x.shape[-2:])


def sides(heads: Tensor, tokens: Sequence[str] | None, queries: Sequence[str] | None) -> tuple[Axis, Axis]:
    _, n_q, n_k = heads.shape
    across = Axis("key", None if tokens is None else labelled(tokens, wanted=n_k, name="tokens"))
    if queries is None and tokens is not None and n_q == 1 < n_k:
        return Axis("", ("",)), across  # the one row needs no name
    if queries is None and tokens is not None and n_q != n_k:
        raise ValueError(f"{n_k} tokens name the keys, but there are {n_q} queries; name them too: queries=[...]")
    named = tokens if queries is None else queries
    return Axis("query", None if named is None else labelled(named, wanted=n_q, name="queries")), across


def steps_view(steps: Steps, *, tokens: Sequence[str] | None = None, queries: Sequence[str] | None = None) -> View:
    """From left to right what happens to one head: scores → adjusted → visible → weights."""
    scores, adjusted, visible, weights = map(by_head, (steps.scores, steps.adjusted, steps.visible, steps.weights))
    visible = visible.bool()
    down, across = sides(weights, tokens, queries)
    by_score = Scale.of(torch.cat((scores, adjusted)), "score")
    by_weight = Scale.of_rows(weights, "weight")
    same = " (nothing added)" if torch.equal(scores, adjusted) else ""
    rows = [
        Row(
            (
                Panel("scores", scores[h], by_score, None, down, across),
                Panel(f"adjusted{same}", adjusted[h], by_score, None, down, across),
                Panel("visible", visible[h], Scale("mask"), None, down, across),
                Panel("weights", weights[h], by_weight, visible[h], down, across),
            ),
            heading=f"head {h + 1}" if len(scores) > 1 else "",
        )
        for h in range(len(scores))
    ]
    return View(tuple(rows))
