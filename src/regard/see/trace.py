"""One attention of one layer as it ran: q, k, v, the recipe and what the layer gave in; any head's weights out.

    site = scene.sites["decoder.1.cross"]
    site.head(3).weights, site.row(3, 7), site.check(3), site.statistics(), site.pooled(3, 64, 64)

A fused kernel returns no weights. A site keeps what went into it and what came out, and works out one head when asked,
by the reference, in single precision; `check` tells how far those weights are from what the layer gave.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from einops import einsum
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention import Hard, Recipe, ScaledDot
from regard.attention.backends import linear, reference
from regard.attention.places import Cells, Places
from regard.attention.position import Together
from regard.attention.probing import Call, reaches
from regard.see.edits import Here, refuse
from regard.see.origin import Origin
from regard.see.summaries import Band, Statistics, blank, paint, summarised

CELLS_AT_ONCE = 2**22  # weights that may stand side by side
WHOLE = 2**26  # weights of the largest matrix that is ever made whole: 8,192 tokens by as many


@dataclass(frozen=True)
class Spot:
    """Which attention: its name in the model, and what its queries and keys are, as a scene calls its axes."""

    name: str
    queries: str
    keys: str


@dataclass(frozen=True, eq=False)
class Head:
    """One head, step by step."""

    products: Float[Tensor, "i j"] | None  # q · k before it is divided by √d; None for other scores
    scores: Float[Tensor, "i j"]  # as the recipe compares
    adjusted: Float[Tensor, "i j"]  # with what positions add
    visible: Bool[Tensor, "i j"]  # as the pattern says; a mask among the edits hides more
    weights: Float[Tensor, "i j"]  # edits included
    output: Float[Tensor, "i e"]


@dataclass(frozen=True)
class Check:
    """How far the recomputed output is from the layer's own at most, and how far it may be."""

    error: float
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance

    def __str__(self) -> str:
        return f"|A·V - layer output| ≤ {self.error:.1e} ({'within' if self.holds else 'beyond'} {self.tolerance:.0e})"


@dataclass(frozen=True, eq=False)
class Site:
    """One attention as it ran. q and k are turned by their positions already; b sentences, of which the first is meant
    unless another is named."""

    spot: Spot
    q: Float[Tensor, "b h i d"]
    k: Float[Tensor, "b g j c"]
    v: Float[Tensor, "b g j e"]
    recipe: Recipe  # all of it, as the layer was built
    output: Float[Tensor, "b h i e"]  # what the layer's own kernel gave for these heads
    at: int = 0  # the place of the first query; keys stand from 0 on
    here: Here = Here("")
    mixture: Float[Tensor, "g j t"] | None = None  # of which tokens each value is made, if it is mixed (Linformer's F)
    origin: Origin | None = None  # what q, k and v were made from, where that is known

    @property
    def name(self) -> str:
        return self.spot.name

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.q.shape[2], self.k.shape[2]

    @property
    def note(self) -> str:
        """What a reader must know of these weights; mostly nothing."""
        if self.mixture is not None:
            mixed, tokens = self.mixture.shape[1:]
            return (
                f"the {mixed} keys are mixtures of {tokens} tokens (Linformer): `implied` tells what each token weighs"
            )
        if isinstance(self.recipe.normaliser, Hard):
            return "hard attention: each query takes its best key alone, so every weight is 0 or 1"
        places = Places.of(self.q, self.k, self.at, None)
        if not linear.objections(self.turned(), self.q, self.k, places):
            return "linear attention: the layer keeps sums and never forms these weights, but they give its output"
        return ""

    # --- one head ---

    def head(self, head: int, *, sentence: int = 0, dtype: torch.dtype = torch.float32) -> Head:
        """Every step of one head; no other is computed."""
        if self.shape[0] * self.shape[1] > WHOLE:
            raise ValueError(f"{self.name}: {self.shape} weights are too many to hold; use row(...) and pooled(...)")
        found = self.steps(head, range(self.shape[0]), slice(sentence, sentence + 1), dtype)
        products = None
        if isinstance(self.recipe.score, ScaledDot):
            q, k, _ = (x[sentence, 0].to(dtype) for x in self.of_head(head))
            products = einsum(q, k, "i d, j d -> i j")
        parts = (found.scores, found.adjusted, found.visible, found.weights, found.output)
        return Head(products, *(part[0, 0] for part in parts))

    def row(
        self, head: int, query: int, *, sentence: int = 0, dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, " j"]:
        """The weights of one query."""
        refuse("query", query, self.shape[0], self.name)
        return self.steps(head, (query,), slice(sentence, sentence + 1), dtype).weights[0, 0, 0]

    @torch.no_grad()
    def implied(self, head: int, *, sentence: int = 0) -> Float[Tensor, "i t"]:
        """What each token weighs in the output: the weights themselves, or through the mixtures (may be negative)."""
        weights = self.head(head, sentence=sentence).weights
        return weights if self.mixture is None else weights @ self.mixture[self.group(head)].to(weights)

    def check(self, head: int) -> Check:
        """|A·V - what the layer gave|, for all sentences."""
        error, (n_q, n_k), values = 0.0, self.shape, self.of_head(head)[2]
        for rows in torch.arange(n_q).split(max(1, CELLS_AT_ONCE // max(1, n_k * len(self.q)))):
            again = self.steps(head, rows.tolist(), slice(None), torch.float32).output[:, 0]
            given = self.output[:, head].index_select(1, rows.to(self.q.device)).float()
            error = max(error, float((again - given).abs().max())) if again.numel() else error
        # half precision rounds each weight and each output once; in single precision sums differ by their order
        size = max(1.0, float(values.abs().max())) if values.numel() else 1.0
        return Check(error, max(1e-5, 4 * torch.finfo(self.output.dtype).eps) * size)

    # --- all heads ---

    def statistics(self, *, sentence: int = 0) -> Statistics:
        """Of every head, in memory that grows with the tokens."""
        return summarised(self.bands_together(sentence), self.heads, self.at)

    def overview(
        self, rows: int, columns: int, *, sentence: int = 0
    ) -> tuple[Statistics, Float[Tensor, "h rows columns"]]:
        """The same, and a small picture of every head, as `pooled` paints it; -∞ where nothing may be seen."""
        one = blank(rows, columns, range(self.shape[0]), range(self.shape[1]), self.q)
        pictures = one.expand(self.heads, -1, -1).clone()
        found = summarised(self.bands_together(sentence), self.heads, self.at, pictures, self.shape)
        return found, pictures.masked_fill_(~self.pooled_visible(one, sentence), -torch.inf)

    @torch.no_grad()
    def pooled_visible(self, picture: Float[Tensor, "rows columns"], sentence: int) -> Bool[Tensor, "#h rows columns"]:
        """Of every cell of such a picture whether a query may see a key in it; all, where the matrix is too large."""
        (n_q, n_k), each = self.shape, slice(sentence, sentence + 1)
        if n_q * n_k > WHOLE:
            return torch.ones_like(picture, dtype=torch.bool)[None]
        everyone = torch.arange(n_q, device=self.q.device)
        heads = range(self.heads if self.recipe.pattern.asks_head else 1)
        seen = picture.new_zeros(len(heads), *picture.shape)
        for head in heads:
            for rows in everyone.split(max(1, CELLS_AT_ONCE // max(1, n_k))):
                visible = self.cells(head, rows, each).visible(self.recipe.pattern).expand(1, 1, len(rows), n_k)
                band = rows, torch.arange(n_k, device=rows.device), visible[0, 0].float()
                paint(seen[head], band, range(n_q), range(n_k))
        return seen > 0

    def pooled(
        self,
        head: int,
        rows: int,
        columns: int,
        *,
        queries: range | None = None,
        keys: range | None = None,
        sentence: int = 0,
    ) -> Float[Tensor, "rows columns"]:
        """A picture of one head, or of some of its queries and keys: each cell the largest weight that falls into it.

        Never larger than what it shows.
        """
        (n_q, n_k), whole = self.shape, queries is None
        queries, keys = range(n_q) if queries is None else queries, range(n_k) if keys is None else keys
        for name, some, count in (("query", queries, n_q), ("key", keys, n_k)):
            if some.step != 1 or not len(some):
                raise ValueError(f"{some}: a picture shows {name} after {name}, at least one")
            refuse(name, some.start, count, self.name)
            refuse(name, some.stop - 1, count, self.name)
        picture = blank(rows, columns, queries, keys, self.q)
        for band in self.bands(head, sentence, None if whole else queries):
            paint(picture, band, queries, keys)
        return picture

    @torch.no_grad()
    def bands(self, head: int, sentence: int = 0, queries: range | None = None) -> Iterator[Band]:
        """Some queries at a time, the keys they may see, and those weights; what no block shows is left out."""
        refuse("head", head, self.heads, self.name)
        device, (n_q, n_k) = self.q.device, self.shape
        chosen = range(n_q) if queries is None else queries
        if head in self.here.by_cell:
            keys = torch.arange(n_k, device=device)
            for rows in torch.tensor(chosen).split(max(1, CELLS_AT_ONCE // max(1, n_k))):
                found = self.steps(head, rows.tolist(), slice(sentence, sentence + 1), torch.float32)
                yield rows.to(device), keys, found.weights[0, 0]
            return
        call = self.call(range(head, head + 1), sentence)
        where = reaches(self.recipe.pattern, n_q, n_k, self.at)
        if queries is not None:
            where = reaches(self.recipe.pattern, len(chosen), n_k, self.at + chosen.start)
            call = call.only(tuple(chosen))
        for band in call.bands(where):
            rows = torch.arange(band.queries.start, band.queries.stop, device=device) + chosen.start
            yield rows, band.keys, band.weights[0, 0]

    @torch.no_grad()
    def bands_together(self, sentence: int = 0) -> Iterator[tuple[slice, Band]]:
        """The same for all heads, many at once: one product for a dozen heads costs little more than for one."""
        if self.here.by_cell:
            for head in range(self.heads):
                for queries, keys, weights in self.bands(head, sentence):
                    yield slice(head, head + 1), (queries, keys, weights[None])
            return
        call = self.call(range(self.heads), sentence)
        for band in call.bands(reaches(self.recipe.pattern, *self.shape, self.at)):
            rows = torch.arange(band.queries.start, band.queries.stop, device=self.q.device)
            yield band.heads, (rows, band.keys, band.weights[0])

    # --- how ---

    def call(self, heads: range, sentence: int) -> Call:
        """For the probes: one head or all, which still know their numbers, for biases and patterns ask for them."""
        groups = slice(self.group(heads.start), self.group(heads.stop - 1) + 1)
        parts = self.q[:, heads.start : heads.stop], self.k[:, groups]
        q, k = (x[sentence : sentence + 1].float() for x in parts)
        recipe = self.turned(torch.float32)
        recipe = replace(recipe, normaliser=self.here.warmth().on(recipe.normaliser, heads.start, ()))
        call = Call.of(recipe, q, k, Places.of(q, k, self.at, None))
        b, h = (torch.tensor(numbers, device=q.device) for numbers in ([sentence], list(heads)))
        return replace(call, cells=replace(call.cells, b=b.view(1, 1, 1, 1), h=h.view(1, -1, 1, 1)))

    @torch.no_grad()
    def steps(self, head: int, queries: Sequence[int] | range, sentences: slice, dtype: torch.dtype) -> reference.Steps:
        """By the reference: one head, these queries, all keys."""
        rows = torch.tensor(list(queries), dtype=torch.long, device=self.q.device)
        q, k, v = (x[sentences].to(dtype) for x in self.of_head(head))
        cells = self.cells(head, rows, sentences)
        recipe = self.turned(dtype)
        places = (rows + self.at).tolist()
        recipe = replace(recipe, normaliser=self.here.on(recipe.normaliser, head, places))
        return reference.steps(recipe, q.index_select(2, rows), k, v, cells)

    def cells(self, head: int, rows: Tensor, sentences: slice) -> Cells:
        """One head, these queries, all keys."""
        q, k, _ = (x[sentences] for x in self.of_head(head))
        b = torch.arange(len(self.q), device=q.device)[sentences].view(-1, 1, 1, 1)
        cells = Places.of(q, k, self.at, None).cells(len(q), 1)
        number = torch.full((1, 1, 1, 1), head, device=q.device)
        return replace(cells, b=b, h=number, i=cells.i.index_select(2, rows))

    def visible(self, head: int, queries: Sequence[int] | range, *, sentence: int = 0) -> Bool[Tensor, "i j"]:
        """Which keys these queries may see; no score is computed."""
        rows = torch.tensor(list(queries), dtype=torch.long, device=self.q.device)
        found = self.cells(head, rows, slice(sentence, sentence + 1)).visible(self.recipe.pattern)
        return found.expand(1, 1, len(rows), self.shape[1])[0, 0]

    def turned(self, dtype: torch.dtype | None = None) -> Recipe:
        """The recipe for q and k that are turned already."""
        recipe = replace(self.recipe, position=Together(self.recipe.on_score))
        return recipe if dtype is None else cast(recipe, dtype)

    def of_head(self, head: int) -> tuple[Tensor, Tensor, Tensor]:
        refuse("head", head, self.heads, self.name)
        group = self.group(head)
        return self.q[:, head : head + 1], self.k[:, group : group + 1], self.v[:, group : group + 1]

    def group(self, head: int) -> int:
        return head // (self.heads // self.k.shape[1])


@dataclass(frozen=True, eq=False)
class Gate:
    """Weights that no query asked for: of channels or places (a CNN's gates), or of words (static poolings)."""

    spot: Spot
    weights: Float[Tensor, "b ..."]
    note: str

    @property
    def name(self) -> str:
        return self.spot.name


def cast(part: Any, dtype: torch.dtype) -> Any:
    """The same part, its learned numbers in another precision; the original stays as it is."""
    if isinstance(part, nn.Module):
        return part if all(one.dtype == dtype for one in part.parameters()) else deepcopy(part).to(dtype)
    if isinstance(part, tuple):
        made = tuple(cast(one, dtype) for one in part)
        return part if all(one is other for one, other in zip(made, part, strict=True)) else made
    if is_dataclass(part) and not isinstance(part, type):
        given = {field.name: getattr(part, field.name) for field in fields(part)}
        made = {name: cast(one, dtype) for name, one in given.items()}
        return part if all(made[name] is given[name] for name in given) else replace(part, **made)
    return part
