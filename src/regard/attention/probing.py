"""q, k and a recipe in; the exact weights, a band of queries at a time, out: all that a probe needs to see.

A band is some queries against every key they may see (the pattern's block map leaves out the rest), so that each row
is whole and the reference itself can weigh it, whatever the normaliser. No n × n matrix exists at any time.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention.backends import reference
from regard.attention.blocks import MIXED
from regard.attention.hard import Sampled, StraightThrough
from regard.attention.normaliser import Dropped, Normaliser, Softmax, TopK
from regard.attention.pattern import Pattern
from regard.attention.places import Cells, Places
from regard.attention.position import OnScore, Together
from regard.attention.recipe import Recipe
from regard.attention.score import Additive, Dot, InnerProduct, Score

ROWS = 128  # queries in a band, and the size of the blocks that are skipped
CELLS_AT_ONCE = {"cpu": 2**20, "cuda": 2**24}  # weights in a band: what stays in a cache, what keeps a GPU busy


@dataclass(frozen=True)
class Reach:
    """The keys a band sees, as ascending runs (first, stop), and where among them the pattern must be asked."""

    runs: tuple[tuple[int, int], ...]
    mixed: tuple[tuple[int, int], ...]  # counted in the band, from its first key

    def __len__(self) -> int:
        return sum(stop - first for first, stop in self.runs)

    def take(self, x: Tensor, dim: int) -> Tensor:
        parts = [x.narrow(dim, first, stop - first) for first, stop in self.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def where(self, key: int) -> int | None:
        """At which place of the band this key stands, if at all."""
        before = 0
        for first, stop in self.runs:
            if first <= key < stop:
                return before + key - first
            before += stop - first
        return None

    def parts(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """What belongs to each run of keys, along the last axis."""
        lengths = [stop - first for first, stop in self.runs]
        for (first, stop), part in zip(self.runs, x.split(lengths, -1), strict=True):
            yield slice(first, stop), part


@dataclass(frozen=True, eq=False)
class Band:
    """Some sentences, heads and queries, the keys they see, and what the reference says of them."""

    sentences: slice
    heads: slice
    queries: slice
    reach: Reach
    of: tuple[int, int]  # so many queries and keys there are in all
    scores: Tensor  # with positions, the hidden ones too
    hidden: "Hidden"
    normaliser: Normaliser
    weights: Tensor

    @property
    def at(self) -> tuple[slice, slice, slice]:
        return self.sentences, self.heads, self.queries

    @property
    def keys(self) -> Tensor:
        return torch.cat([torch.arange(*run, device=self.weights.device) for run in self.reach.runs])


@dataclass(frozen=True, eq=False)
class Call:
    """What is probed: q and k already turned by their positions, and the cells they stand in."""

    recipe: Recipe
    q: Tensor
    k: Tensor
    cells: Cells

    @staticmethod
    def of(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> "Call":
        if why := objection(recipe.normaliser):
            raise ValueError(why)
        if q.dtype.itemsize < 4:  # as fused kernels do: scores and sums of half precision are kept in single
            q, k, recipe = q.float(), k.float(), widened(recipe)
        score = recipe.score
        if isinstance(score, InnerProduct):  # map q and k once, not again in every band
            q, k, score = score.fold_q(q), score.fold_k(k), Dot()
        else:
            score = Tiled(score, score.hidden if isinstance(score, Additive) else q.shape[3], cells_at_once(q))
        position = Together(tuple(map(ScoreOnly, recipe.on_score)))
        return Call(replace(recipe, score=score, position=position), q, k, places.cells(*q.shape[:2]))

    def only(self, queries: tuple[int, ...]) -> "Call":
        chosen = torch.tensor(queries, dtype=torch.long, device=self.q.device)
        cells = replace(self.cells, i=self.cells.i.index_select(2, chosen))
        return replace(self, q=self.q.index_select(2, chosen), cells=cells)

    def bands(self, reaches: list[Reach]) -> Iterator[Band]:
        """All queries, ROWS at a time, each with its reach; fewer queries and heads where that would be too many."""
        (batch, heads, n_q, _), at_once = self.q.shape, cells_at_once(self.q)
        for number, reach in enumerate(reaches):
            if not len(reach):
                continue
            first, last = number * ROWS, min((number + 1) * ROWS, n_q)
            for queries in slices(first, last, min(ROWS, at_once // len(reach))):
                fit = at_once // ((queries.stop - queries.start) * len(reach))
                for sentences in slices(0, batch, fit // heads):
                    hidden = self.hidden(sentences, queries, reach)
                    for some in slices(0, heads, whole_groups(fit, heads // self.k.shape[1])):
                        yield self.band(sentences, some, queries, reach, hidden)

    def hidden(self, sentences: slice, queries: slice, reach: Reach) -> "Hidden":
        cells = self.cells_of(sentences, slice(None), queries, reach)
        parts = ((slice(*some), replace(cells, j=cells.j[..., slice(*some)])) for some in reach.mixed)
        return Hidden(tuple((some, ~part.visible(self.recipe.pattern)) for some, part in parts))

    def band(self, sentences: slice, heads: slice, queries: slice, reach: Reach, hidden: "Hidden") -> Band:
        share = self.q.shape[1] // self.k.shape[1]
        q = self.q[sentences, heads, queries]
        k = reach.take(self.k[sentences, heads.start // share : -(-heads.stop // share)], 2)
        cells = self.cells_of(sentences, heads, queries, reach)
        recipe, hidden, yes = self.recipe, hidden.of(heads), torch.ones((), dtype=torch.bool, device=q.device)
        visible = yes.expand(1, 1, q.shape[2], len(reach))
        if recipe.normaliser == Softmax():
            recipe = replace(recipe, normaliser=Sparing(hidden))
        elif hidden.parts:
            visible = hidden.visible(visible)
        steps = reference.steps(recipe, q, k, k[..., :0], cells, visible)
        of = self.q.shape[2], self.k.shape[2]
        return Band(sentences, heads, queries, reach, of, steps.adjusted, hidden, self.recipe.normaliser, steps.weights)

    def cells_of(self, sentences: slice, heads: slice, queries: slice, reach: Reach) -> Cells:
        i, j = (at[sentences] if len(at) > 1 else at for at in (self.cells.i, self.cells.j))
        return Cells(self.cells.b[sentences], self.cells.h[:, heads], i[:, :, queries], reach.take(j, 3))


# --- what is hidden ---


@dataclass(frozen=True, eq=False)
class Hidden:
    """Which keys of a band are hidden after all, and only where that is in doubt: most blocks are full or empty."""

    parts: tuple[tuple[slice, Tensor], ...]

    def of(self, heads: slice) -> "Hidden":
        return Hidden(tuple((at, mask[:, heads] if mask.shape[1] > 1 else mask) for at, mask in self.parts))

    def visible(self, everything: Tensor) -> Tensor:
        shape = self.parts[0][1].shape[:2]
        visible = everything.expand(*shape, -1, -1).clone()
        for at, mask in self.parts:
            visible[..., at] = ~mask
        return visible

    def put(self, scores: Tensor) -> Tensor:
        """The scores, -∞ where hidden."""
        scores = scores.clone() if self.parts else scores
        for at, mask in self.parts:
            scores[..., at].masked_fill_(mask, -torch.inf)
        return scores

    def blind(self, keys: int) -> Tensor | None:
        """Queries from which every key is hidden; None where there can be none."""
        if sum(at.stop - at.start for at, _ in self.parts) < keys:
            return None
        return torch.stack([mask.all(-1, keepdim=True) for _, mask in self.parts]).all(0)


@dataclass(frozen=True, eq=False)
class Sparing(Normaliser):
    """Softmax that knows where keys are hidden, and does not look for them elsewhere."""

    hidden: Hidden

    def weigh(self, scores, visible):
        weights, blind = self.hidden.put(scores).softmax(-1), self.hidden.blind(scores.shape[-1])
        return weights if blind is None else weights.masked_fill_(blind, 0.0)


# --- which keys ---


def reaches(pattern: Pattern, n_q: int, n_k: int, start: int | None) -> list[Reach]:
    """For each band the keys it may see; all of them where no block map can be had."""
    number = -(-n_q // ROWS)
    if start is None or pattern.asks_head or not n_k or not n_q:
        return everything(n_q, n_k)
    runs: list[list[tuple[int, int]]] = [[] for _ in range(number)]
    mixed: list[list[tuple[int, int]]] = [[] for _ in range(number)]
    lengths = [0] * number
    blocks = pattern.blocks(n_q, n_k, ROWS, start=start)
    for row, first, stop, state in zip(*map(Tensor.tolist, blocks.runs()), strict=True):
        begin, end = first * ROWS, min(stop * ROWS, n_k)
        joins = bool(runs[row]) and runs[row][-1][1] == begin  # a mixed run may go on from a full one
        runs[row].append((runs[row].pop()[0] if joins else begin, end))
        if state == MIXED:
            mixed[row].append((lengths[row], lengths[row] + end - begin))
        lengths[row] += end - begin
    return [Reach(tuple(keys), tuple(some)) for keys, some in zip(runs, mixed, strict=True)]


def everything(n_q: int, n_k: int) -> list[Reach]:
    return [Reach(((0, n_k),), ((0, n_k),))] * -(-n_q // ROWS)


def slices(first: int, last: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    for start in range(first, last, size):
        yield slice(start, min(start + size, last))


def whole_groups(fit: int, share: int) -> int:
    """So many heads that each key head serves all of them or one alone."""
    return fit // share * share or 1


def cells_at_once(x: Tensor) -> int:
    return CELLS_AT_ONCE["cpu" if x.device.type == "cpu" else "cuda"]


# --- the recipe, made ready ---


def objection(normaliser: Normaliser) -> str | None:
    """Why there is no such thing as its exact weights; None if there is."""
    if isinstance(normaliser, (Sampled, StraightThrough, Dropped)):
        return f"{normaliser} draws at random, and a probe would see another draw: probe what it draws from (Softmax())"
    return objection(normaliser.then) if isinstance(normaliser, TopK) else None


def widened(recipe: Recipe) -> Recipe:
    """The same recipe in single precision."""

    def wide(part: Any) -> Any:
        return deepcopy(part).float() if isinstance(part, nn.Module) else part

    position = Together(tuple(map(wide, recipe.on_score)))
    return replace(recipe, score=wide(recipe.score), position=position, normaliser=wide(recipe.normaliser))


@dataclass(frozen=True, eq=False)
class ScoreOnly(OnScore):
    """Another scheme, less what it adds to the values, which nobody asks for here."""

    scheme: OnScore

    def on_score(self, q, b, h, i, j):
        return self.scheme.on_score(q, b, h, i, j)


@dataclass(frozen=True, eq=False)
class Tiled(Score):
    """Another score, a few keys at a time: one that looks at q and k together needs `hidden` numbers per pair."""

    score: Score
    hidden: int
    at_once: int

    def compare(self, q, k):
        size = max(1, self.at_once // max(1, self.hidden * q.shape[0] * q.shape[1] * q.shape[2]))
        return torch.cat([self.score.compare(q, part) for part in k.split(size, 2)], -1)
