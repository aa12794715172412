"""Attention recorder: runs each attention of a model, applies edits, and keeps what ran.

A forward pass of walks.py hands every attention to one of these. Nothing is kept on the model: what is recorded lives
as long as its recorder.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from regard.attention import MultiHeadAttention, Pattern, Recipe, attend
from regard.attention.backends import choose
from regard.attention.functional import prepare
from regard.decode.model import inference_mode
from regard.see.trace.edits import Edits, SiteExtent, refuse_index, refuse_unknown
from regard.see.trace.projections import Projections
from regard.see.trace.sites import CELLS_AT_ONCE, AttentionSite, GateSite, SiteName

MAX_KERNEL_CELLS = 2**26  # weights that a layer's own kernel may form at once

# q, k, v, the recipe and the position of the first query
RunAttention = Callable[[Tensor, Tensor, Tensor, Recipe, int], Tensor]


def run_attention(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe, at: int) -> Tensor:
    """Attention as the layers compute it: by the fastest backend.

    The reference forms every weight at once, so of a long text it gets some queries at a time.
    """
    if q.shape[1] * q.shape[2] * k.shape[2] <= MAX_KERNEL_CELLS:
        return attend(q, k, v, recipe, q_index=at)
    if choose(recipe, *prepare(q, k, v, recipe, at, None))[0] != "reference":
        return attend(q, k, v, recipe, q_index=at)
    parts = q.split(max(1, CELLS_AT_ONCE // (q.shape[1] * k.shape[2])), 2)
    starts = accumulate((part.shape[2] for part in parts), initial=at)
    return torch.cat([attend(part, k, v, recipe, q_index=start) for part, start in zip(parts, starts, strict=False)], 2)


class AttentionRunner(ABC):
    """Abstract: computes each attention of a forward pass."""

    @abstractmethod
    def attend(
        self,
        spot: SiteName,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        recipe: Recipe,
        *,
        at: int = 0,
        run: RunAttention = run_attention,
        mixture: Tensor | None = None,
        origin: Projections | None = None,
    ) -> Tensor:
        """The output of every head, (b, h, i, e); `at` is the position of the first query; keys count from 0."""

    @abstractmethod
    def gate(self, spot: SiteName, weights: Tensor, note: str) -> Tensor:
        """Weights without queries, as they are to be used."""


@dataclass(frozen=True)
class EditingRunner(AttentionRunner):
    """Applies edits; heads that are not edited stay the same, bit for bit."""

    edits: Edits = Edits()

    def attend(self, spot, q, k, v, recipe, *, at=0, run=run_attention, mixture=None, origin=None):
        if not self.edits.at_site(spot.name).edited_heads(q.shape[1]):
            return run(q, k, v, recipe, at)
        return self.site(spot, q, k, v, recipe, at, run, mixture).output

    def site(
        self,
        spot: SiteName,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        recipe: Recipe,
        at: int,
        run: RunAttention,
        mixture: Tensor | None,
    ) -> AttentionSite:
        output, here = run(q, k, v, recipe, at), self.edits.at_site(spot.name)
        rotated_q, rotated_k, _ = prepare(q, k, v, recipe, at, None)
        site = AttentionSite(spot, rotated_q, rotated_k, v, recipe, output, at, here, mixture)
        if not (edited := here.edited_heads(site.heads)):
            return site
        output, precise = output.clone(), torch.promote_types(q.dtype, torch.float32)
        for head in edited:
            for rows in torch.arange(q.shape[2]).split(max(1, CELLS_AT_ONCE // max(1, k.shape[2]))):
                found = site.steps(head, rows.tolist(), slice(None), precise).output[:, 0]
                output[:, head, rows[0] : rows[-1] + 1] = found.to(output.dtype)
        return replace(site, output=output)

    def gate(self, spot, weights, note):
        here = self.edits.at_site(spot.name)
        if here.shut:
            return torch.zeros_like(weights)
        if not (off := here.off):
            return weights
        refuse_index("weight", max(off), weights[0].numel(), spot.name)
        changed = weights.flatten(1).index_fill(1, torch.tensor(sorted(off), device=weights.device), 0.0)
        return changed.view_as(weights)


@dataclass(frozen=True, eq=False)
class AttentionRecorder(AttentionRunner):
    """Applies edits, and keeps every attention as it ran."""

    edits: Edits = Edits()
    calls: dict[str, list[AttentionSite | GateSite]] = field(default_factory=dict)

    def attend(self, spot, q, k, v, recipe, *, at=0, run=run_attention, mixture=None, origin=None):
        site = replace(EditingRunner(self.edits).site(spot, q, k, v, recipe, at, run, mixture), projections=origin)
        self.calls.setdefault(spot.name, []).append(site)
        return site.output

    def gate(self, spot, weights, note):
        weights = EditingRunner(self.edits).gate(spot, weights, note)
        self.calls.setdefault(spot.name, []).append(GateSite(spot, weights, note))
        return weights

    def sites(self) -> dict[str, AttentionSite | GateSite]:
        """By name, in the order they ran; the steps of a recurrent decoder are one site."""
        return {name: merge_calls(calls) for name, calls in self.calls.items()}


def merge_calls(calls: list[AttentionSite | GateSite]) -> AttentionSite | GateSite:
    first = calls[0]
    if isinstance(first, GateSite):
        return first
    sites = [site for site in calls if isinstance(site, AttentionSite)]
    q, output = (torch.cat(parts, 2) for parts in ([site.q for site in sites], [site.output for site in sites]))
    origin = first.projections if len(sites) == 1 else None
    return replace(sites[-1], q=q, output=output, query_offset=first.query_offset, projections=origin)


def site_extents(sites: dict[str, AttentionSite | GateSite], queries: dict[str, int]) -> dict[str, SiteExtent]:
    """What can be edited; axes of text that is still generated may reach up to `queries`."""
    found = {}
    for name, site in sites.items():
        if isinstance(site, GateSite):
            found[name] = gate_extent(site.weights)
        else:
            n_q, n_k = site.shape
            found[name] = SiteExtent(site.heads, max(n_q, queries.get(site.site_name.queries, 0)), n_k)
    return found


def gate_extent(weights: Tensor) -> SiteExtent:
    """A gate has no queries: each of its weights can be switched off, and that is all."""
    return SiteExtent(weights[0].numel(), 0, 0)


def trace_layer(
    layer: MultiHeadAttention,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    pattern: Pattern | None = None,
    edits: Edits = Edits(),
    name: str = "attention",
) -> AttentionSite:
    """The attention of one layer: x is (b, t, model), and attends to itself or to `memory`."""
    recorder = AttentionRecorder(edits)
    with inference_mode(layer):
        run_heads(layer, x, SiteName(name, "queries", "keys"), recorder, memory=memory, pattern=pattern)
    sites = recorder.sites()
    refuse_unknown(edits, site_extents(sites, {}))
    site = sites[name]
    assert isinstance(site, AttentionSite)
    return site


def run_heads(
    layer: MultiHeadAttention,
    x: Tensor,
    spot: SiteName,
    attending: AttentionRunner,
    *,
    memory: Tensor | None = None,
    pattern: Pattern | None = None,
    recipe: Recipe | None = None,
) -> Tensor:
    """A layer's forward pass, its attention computed by `attending`."""
    q, k, v = layer.project(x, memory, pattern)
    mixture = None
    if layer.compress is not None:
        tokens = (x if memory is None else memory).shape[1]
        mixture = layer.compress.F[:, :, :tokens].expand(k.shape[1], -1, -1).detach()
    recipe = layer.effective_recipe(pattern, None) if recipe is None else recipe
    origin = Projections.of(layer, x, memory)
    return layer.merge_heads(attending.attend(spot, q, k, v, recipe, mixture=mixture, origin=origin))
