"""What a model asks of its attention in; the answer out, edited as wished, and kept where somebody wants to see it.

A walk (see walks.py) leads a model's input through its layers and hands every attention to one of these. Nothing is
ever kept on the model: what is seen is kept here, and goes when this goes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from regard.attention import MultiHeadAttention, Pattern, Recipe, attend
from regard.attention.attending import prepare
from regard.attention.backends import choose
from regard.decode.model import at_rest
from regard.see.edits import Edits, Extent, refuse, refuse_unknown
from regard.see.origin import Origin
from regard.see.trace import CELLS_AT_ONCE, Gate, Site, Spot

MOST_CELLS = 2**26  # weights that may stand side by side in a layer's own kernel

Run = Callable[[Tensor, Tensor, Tensor, Recipe, int], Tensor]  # q, k, v, the recipe and the place of the first query


def fused(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe, at: int) -> Tensor:
    """As the layers themselves do: by whichever backend is fastest.

    The reference holds every weight at once; of a long text it is given some queries at a time.
    """
    if q.shape[1] * q.shape[2] * k.shape[2] <= MOST_CELLS:
        return attend(q, k, v, recipe, q_at=at)
    if choose(recipe, *prepare(q, k, v, recipe, at, None))[0] != "reference":
        return attend(q, k, v, recipe, q_at=at)
    parts = q.split(max(1, CELLS_AT_ONCE // (q.shape[1] * k.shape[2])), 2)
    starts = accumulate((part.shape[2] for part in parts), initial=at)
    return torch.cat([attend(part, k, v, recipe, q_at=start) for part, start in zip(parts, starts, strict=False)], 2)


class Attending(ABC):
    """Abstract: what a walk hands its attention to."""

    @abstractmethod
    def attend(
        self,
        spot: Spot,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        recipe: Recipe,
        *,
        at: int = 0,
        run: Run = fused,
        mixture: Tensor | None = None,
        origin: Origin | None = None,
    ) -> Tensor:
        """The output of every head, (b, h, i, e); `at` is the place of the first query, and keys stand from 0 on."""

    @abstractmethod
    def gate(self, spot: Spot, weights: Tensor, note: str) -> Tensor:
        """Weights that no query asked for, as they are to be used."""


@dataclass(frozen=True)
class Editing(Attending):
    """The model with its edits; heads that are not edited stay as they are, bit for bit."""

    edits: Edits = Edits()

    def attend(self, spot, q, k, v, recipe, *, at=0, run=fused, mixture=None, origin=None):
        if not self.edits.of(spot.name).touched(q.shape[1]):
            return run(q, k, v, recipe, at)
        return self.site(spot, q, k, v, recipe, at, run, mixture).output

    def site(
        self, spot: Spot, q: Tensor, k: Tensor, v: Tensor, recipe: Recipe, at: int, run: Run, mixture: Tensor | None
    ) -> Site:
        output, here = run(q, k, v, recipe, at), self.edits.of(spot.name)
        turned_q, turned_k, _ = prepare(q, k, v, recipe, at, None)
        site = Site(spot, turned_q, turned_k, v, recipe, output, at, here, mixture)
        if not (touched := here.touched(site.heads)):
            return site
        output, precise = output.clone(), torch.promote_types(q.dtype, torch.float32)
        for head in touched:
            for rows in torch.arange(q.shape[2]).split(max(1, CELLS_AT_ONCE // max(1, k.shape[2]))):
                found = site.steps(head, rows.tolist(), slice(None), precise).output[:, 0]
                output[:, head, rows[0] : rows[-1] + 1] = found.to(output.dtype)
        return replace(site, output=output)

    def gate(self, spot, weights, note):
        here = self.edits.of(spot.name)
        if here.shut:
            return torch.zeros_like(weights)
        if not (off := here.off):
            return weights
        refuse("weight", max(off), weights[0].numel(), spot.name)
        changed = weights.flatten(1).index_fill(1, torch.tensor(sorted(off), device=weights.device), 0.0)
        return changed.view_as(weights)


@dataclass(frozen=True, eq=False)
class Tracing(Attending):
    """The same, and every attention kept as it ran."""

    edits: Edits = Edits()
    calls: dict[str, list[Site | Gate]] = field(default_factory=dict)

    def attend(self, spot, q, k, v, recipe, *, at=0, run=fused, mixture=None, origin=None):
        site = replace(Editing(self.edits).site(spot, q, k, v, recipe, at, run, mixture), origin=origin)
        self.calls.setdefault(spot.name, []).append(site)
        return site.output

    def gate(self, spot, weights, note):
        weights = Editing(self.edits).gate(spot, weights, note)
        self.calls.setdefault(spot.name, []).append(Gate(spot, weights, note))
        return weights

    def sites(self) -> dict[str, Site | Gate]:
        """By name, in the order they ran; a recurrent decoder's questions, one after the other, are one site's."""
        return {name: together(calls) for name, calls in self.calls.items()}


def together(calls: list[Site | Gate]) -> Site | Gate:
    first = calls[0]
    if isinstance(first, Gate):
        return first
    sites = [site for site in calls if isinstance(site, Site)]
    q, output = (torch.cat(parts, 2) for parts in ([site.q for site in sites], [site.output for site in sites]))
    origin = first.origin if len(sites) == 1 else None
    return replace(sites[-1], q=q, output=output, at=first.at, origin=origin)


def extents(sites: dict[str, Site | Gate], queries: dict[str, int]) -> dict[str, Extent]:
    """What can be edited; of axes that are still being written there may be more `queries` than there are."""
    found = {}
    for name, site in sites.items():
        if isinstance(site, Gate):
            found[name] = extent_of(site.weights)
        else:
            n_q, n_k = site.shape
            found[name] = Extent(site.heads, max(n_q, queries.get(site.spot.queries, 0)), n_k)
    return found


def extent_of(weights: Tensor) -> Extent:
    """A gate has no queries: each of its weights can be switched off, and that is all."""
    return Extent(weights[0].numel(), 0, 0)


def layer_site(
    layer: MultiHeadAttention,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    pattern: Pattern | None = None,
    edits: Edits = Edits(),
    name: str = "attention",
) -> Site:
    """What a single layer does with its tokens: x is (b, t, model), and attends to itself or to `memory`."""
    tracing = Tracing(edits)
    with at_rest(layer):
        heads_of(layer, x, Spot(name, "queries", "keys"), tracing, memory=memory, pattern=pattern)
    sites = tracing.sites()
    refuse_unknown(edits, extents(sites, {}))
    site = sites[name]
    assert isinstance(site, Site)
    return site


def heads_of(
    layer: MultiHeadAttention,
    x: Tensor,
    spot: Spot,
    attending: Attending,
    *,
    memory: Tensor | None = None,
    pattern: Pattern | None = None,
    recipe: Recipe | None = None,
) -> Tensor:
    """A layer's forward pass, by whoever attends."""
    q, k, v = layer.projected(x, memory, pattern)
    mixture = None
    if layer.compress is not None:
        tokens = (x if memory is None else memory).shape[1]
        mixture = layer.compress.F[:, :, :tokens].expand(k.shape[1], -1, -1).detach()
    recipe = layer.recipe_for(pattern, None) if recipe is None else recipe
    origin = Origin.of(layer, x, memory)
    return layer.joined(attending.attend(spot, q, k, v, recipe, mixture=mixture, origin=origin))
