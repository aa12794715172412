"""Trace recorder: keeps every attention of a model as it ran, and applies edits, by hooks on the model itself.

    recorder = AttentionRecorder(edits)
    with recorder.record(model):
        logits = model(tokens)
    recorder.sites()

Nothing is kept on the model: what is recorded lives as long as its recorder.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import AttentionCall, AttentionCore, GateCall, MultiHeadAttention, Pattern
from regard.attention.core import (
    GateCore,
    HasModules,
    RecordedCall,
    core_hook,
    find_sites,
    hook_attention,
    hook_modules,
)
from regard.attention.functional import prepare
from regard.interop import foreign_model
from regard.models.seq2seq import inference_mode
from regard.see.edits import Edits, SiteEdits, SiteExtent, refuse_index, refuse_unknown
from regard.see.sites import CELLS_AT_ONCE, AttentionSite, GateSite, Projections


@contextmanager
def apply_edits(model: HasModules, edits: Edits) -> Iterator[None]:
    """The model with its edits while the block lasts, for any search; without edits it is left alone."""
    if not edits:
        yield
        return
    with hook_attention(model, lambda call: edit_call(call, edits.at_site(call.site.name))):
        yield


def edit_call(call: RecordedCall, edits: SiteEdits) -> Tensor | None:
    """What an attention or a gate gives with these edits; None if that is what it gave."""
    if isinstance(call, GateCall):
        return edit_gate(call, edits)
    return edit_heads(build_site(call, edits)) if edits.edited_heads(call.q.shape[1]) else None


def edit_gate(call: GateCall, edits: SiteEdits) -> Tensor | None:
    weights = call.weights
    if edits.shut:
        return torch.zeros_like(weights)
    if not edits.off:
        return None
    refuse_index("weight", max(edits.off), weights[0].numel(), call.site.name)
    off = torch.tensor(sorted(edits.off), device=weights.device)
    return weights.flatten(1).index_fill(1, off, 0.0).view_as(weights)


def edit_heads(site: AttentionSite) -> Tensor:
    """The output of a site with its edits; heads that are not edited stay the same, bit for bit."""
    output, precise = site.output.clone(), torch.promote_types(site.q.dtype, torch.float32)
    n_q, n_k = site.shape
    for head in site.edits.edited_heads(site.heads):
        for rows in torch.arange(n_q).split(max(1, CELLS_AT_ONCE // max(1, n_k))):
            found = site.differentiable_steps(head, rows.tolist(), slice(None), precise).output[:, 0]
            output[:, head, rows[0] : rows[-1] + 1] = found.to(output.dtype)
    return output


def build_site(call: AttentionCall, edits: SiteEdits) -> AttentionSite:
    """An attention as it ran, before its edits."""
    if call.k_index:
        raise ValueError(
            f"the cache of {call.site.name} has dropped its first {call.k_index} keys; record from the first token on"
        )
    where = call.q_index, call.k_index, call.q_positions, call.k_positions
    recipe, q, k, _ = prepare(call.q, call.k, call.v, call.recipe, *where)
    return AttentionSite(call.site, q, k, call.v, recipe, call.output, call.q_index, edits)


@dataclass(frozen=True, eq=False)
class AttentionRecorder:
    """Applies edits, and keeps every attention as it ran."""

    edits: Edits = Edits()
    calls: dict[str, list[AttentionSite | GateSite]] = field(default_factory=dict)
    inputs: dict[nn.Module, Tensor] = field(default_factory=dict)  # of projections and mixtures, the last of each

    @contextmanager
    def record(self, model: HasModules, name: str | None = None) -> Iterator[None]:
        """Whatever this thread runs of the model while the block lasts; of a single layer, under this name."""
        sites = list(find_sites(model))
        layers = [layer for _, layer, _ in sites if isinstance(layer, MultiHeadAttention)]
        parts = [part for layer in layers for part in (layer.query, layer.key, layer.compress) if part is not None]

        def see(call: RecordedCall) -> Tensor | None:
            return self.keep(call if name is None else replace(call, site=replace(call.site, name=name)))

        hooks = [(part, self.keep_input) for part in parts]
        with hook_modules([*hooks, *((core, core_hook(site, layer, see)) for core, layer, site in sites)]):
            yield

    def keep_input(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.inputs[part] = args[0]

    def keep(self, call: RecordedCall) -> Tensor | None:
        edits = self.edits.at_site(call.site.name)
        calls = self.calls.setdefault(call.site.name, [])
        if isinstance(call, GateCall):
            changed = edit_gate(call, edits)
            calls.append(GateSite(call.site, call.weights if changed is None else changed, call.note))
            return changed
        site = build_site(call, edits)
        changed = edit_heads(site) if edits.edited_heads(site.heads) else None
        if isinstance(call.layer, MultiHeadAttention):
            known = {"projections": self.projections(call.layer, site), "mixture": self.mixture(call.layer, site)}
            site = replace(site, **known)
        calls.append(site if changed is None else replace(site, output=changed))
        return changed

    def projections(self, layer: MultiHeadAttention, site: AttentionSite) -> Projections | None:
        """None where the inputs do not make all of q and k: of cached tokens only k and v are known."""
        x, memory = self.inputs.get(layer.query), self.inputs.get(layer.key)
        if x is None or memory is None:
            return None
        (b, _, i, _), j = site.q.shape, site.k.shape[2]
        complete = tuple(x.shape[:2]) == (b, i) and tuple(memory.shape[:2]) == (b, j)
        return Projections.of(layer, x, memory) if complete else None

    def mixture(self, layer: MultiHeadAttention, site: AttentionSite) -> Tensor | None:
        if layer.compress is None:
            return None
        tokens = self.inputs[layer.compress].shape[2]
        return layer.compress.F[:, :, :tokens].expand(site.k.shape[1], -1, -1).detach()

    def sites(self) -> dict[str, AttentionSite | GateSite]:
        """By name, in the order they ran; the steps of a recurrent decoder are one site."""
        return {name: merge_calls(calls) for name, calls in self.calls.items()}


def merge_calls(calls: list[AttentionSite | GateSite]) -> AttentionSite | GateSite:
    first = calls[0]
    if isinstance(first, GateSite):
        return first
    sites = [site for site in calls if isinstance(site, AttentionSite)]
    for before, after in pairwise(sites):
        if after.query_offset != before.query_offset + before.shape[0]:
            raise ValueError(
                f"{first.name} ran {len(sites)} times on the same tokens, as a layer with shared weights does, and a "
                "trace shows each attention once; watch it: regard.watch(model)"
            )
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


def with_cores(model: nn.Module) -> nn.Module:
    """The model itself, or, where its attentions pass no core of ours, one around it whose attentions do."""
    ours = any(isinstance(part, AttentionCore | GateCore) for part in model.modules())
    return model if ours else foreign_model(model)


def trace_module(
    module: nn.Module, *inputs: Any, edits: Edits = Edits(), name: str | None = None, **named: Any
) -> tuple[Any, dict[str, AttentionSite | GateSite]]:
    """What any module makes of its inputs, and every attention on the way, by the names it declares or by its paths.

    Also a module of torch's own attention layers, or of transformers. A single layer may be given a name.

    Examples:
        >>> layers = torch.nn.Sequential(*(regard.MultiHeadAttention(8, heads=heads) for heads in (2, 4)))
        >>> output, sites = trace_module(layers, torch.randn(1, 5, 8))
        >>> {name: site.heads for name, site in sites.items()}
        {'0': 2, '1': 4}
    """
    recorder, module = AttentionRecorder(edits), with_cores(module)
    with inference_mode(module), recorder.record(module, name):
        output = module(*inputs, **named)
    sites = recorder.sites()
    refuse_unknown(edits, site_extents(sites, {}))
    return output, sites


def trace_layer(
    layer: MultiHeadAttention,
    x: Tensor,
    memory: Tensor | None = None,
    *,
    pattern: Pattern | None = None,
    edits: Edits = Edits(),
    name: str = "attention",
) -> AttentionSite:
    """The attention of one layer: x is (b, t, model), and attends to itself or to `memory`.

    Examples:
        >>> layer = regard.MultiHeadAttention(8, heads=2)
        >>> site = trace_layer(layer, torch.randn(1, 5, 8), memory=torch.randn(1, 7, 8))
        >>> site.shape, site.weights(head=0).shape, site.check().holds
        ((5, 7), torch.Size([5, 7]), True)
    """
    _, sites = trace_module(layer, x, memory, edits=edits, name=name, pattern=pattern)
    site = sites[name]
    assert isinstance(site, AttentionSite)
    return site
