"""Interventions: heads ablated, activations patched from another input, and values zeroed; what it changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention import AttentionCall
from regard.attention.core import RecordedCall, find_sites, hook_attention, hook_modules
from regard.see.methods.attribution import self_attention_stack
from regard.see.methods.layers import LayerBlock, find_blocks, holds, recorded_streams, replaced_stream
from regard.see.methods.prediction import (
    PredictionTarget,
    frozen_model,
    in_batches,
    log_probabilities,
    prediction_target,
    run_again,
    run_copies,
)
from regard.see.trace import Trace
from regard.tasks.protocol import ProgressBar, no_progress

# --- heads ---


@dataclass(frozen=True, eq=False)
class HeadEffects:
    """What each head is worth to one prediction: the log-probability with it, less that without it.

    Args:
        effects: of the heads of each site.
        log_probability: with all heads.

    Examples:
        >>> found = ablate_heads(trace_model("run", "the cat sleeps", target="le chat dort"), row=0)
        >>> (site, head, effect), *others = found.ranked()
        >>> effect == float(found.effects[site][head]) and effect >= others[0][2]
        True
    """

    target: PredictionTarget
    effects: Mapping[str, Float[Tensor, " heads"]]
    log_probability: float

    def ranked(self) -> list[tuple[str, int, float]]:
        """Site, head and effect, the most needed first."""
        flat = [(name, n, each) for name, some in self.effects.items() for n, each in enumerate(some.tolist())]
        return sorted(flat, key=lambda found: -found[2])


def ablate_heads(
    trace: Trace,
    row: int = -1,
    option: int | None = None,
    *,
    by: Literal["zero", "mean"] = "zero",
    progress: ProgressBar = no_progress,
) -> HeadEffects:
    """Each head's output replaced by 0, or by its mean over the queries, one head at a time (Michel et al. 2019).

    Examples:
        >>> found = ablate_heads(trace_model("run", "the cat sleeps", target="le chat dort"), row=0)
        >>> found.effects["decoder.0.cross"].shape, len(found.ranked())
        (torch.Size([4]), 24)
    """
    if by not in ("zero", "mean"):
        raise ValueError(f"a head is replaced by 'zero' or by 'mean', not by {by!r}")
    target = prediction_target(trace, row, option)
    heads = {name: trace.site(name).heads for name in trace.attention_names}
    if not heads:
        raise ValueError("this model has no attention heads")
    effects = {name: torch.zeros(count) for name, count in heads.items()}
    with frozen_model(trace) as model:
        linears = LinearRecord()
        with hook_attention(model, linears.note_site), LinearMode(linears):
            (before,) = log_probabilities(trace, target)
        every = [(name, n) for name in linears.sites for n in range(heads.get(name, 0))]
        for some in in_batches(trace, every, "heads", progress):
            with hook_attention(model, replace_heads(some, by)), linears.replayed(some[0][0], len(some)):
                found = log_probabilities(trace, target, len(some))
            for (name, head), value in zip(some, found, strict=True):
                effects[name][head] = before - value
    return HeadEffects(target, effects, before)


def replace_heads(heads: Sequence[tuple[str, int]], by: str) -> Callable[[RecordedCall], Tensor | None]:
    """In each copy another head of a site gives 0, or its mean over the queries."""

    def change(call: RecordedCall) -> Tensor | None:
        here = [(copy, head) for copy, (name, head) in enumerate(heads) if name == call.site.name]
        if not here or not isinstance(call, AttentionCall):
            return None
        output = call.output.clone()
        for copy, head in here:
            output[copy, head] = 0.0 if by == "zero" else output[copy, head].mean(-2, keepdim=True)
        return output

    return change


MAX_RECORD = 2**29  # bytes of outputs that are kept


@dataclass(eq=False)
class LinearRecord:
    """The first linear maps of a run in their order, each with the length of its input and its output; how many came
    before each attention.

    What is changed at one attention changes nothing before it, so these are not computed again.
    """

    maps: list[tuple[int, Tensor]] = field(default_factory=list)
    sites: dict[str, int] = field(default_factory=dict)
    left: int = MAX_RECORD

    def note_site(self, call: RecordedCall) -> None:
        self.sites.setdefault(call.site.name, len(self.maps))

    def keep(self, x: Tensor, output: Tensor) -> None:
        self.left -= output.nbytes
        if self.left >= 0:
            self.maps.append((len(x), output))

    def replayed(self, site: str, copies: int) -> "LinearMode":
        """Those before an attention, for so many copies of the input."""
        return LinearMode(None, self.maps[: self.sites[site]], copies)


class LinearMode(TorchFunctionMode):
    """While the block lasts, linear maps are kept, or the first of them taken from a record, in this thread.

    Args:
        record: where they are kept.
        known: of a run of one input, in the order of the calls.
        copies: how many of that input are run.
    """

    def __init__(self, record: LinearRecord | None, known: Sequence[tuple[int, Tensor]] = (), copies: int = 1):
        super().__init__()
        self.record, self.known, self.copies = record, iter(known), copies

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not nn.functional.linear:
            return func(*args, **(kwargs or {}))
        size, output = next(self.known, (0, None))
        if output is not None and len(args[0]) == size * self.copies:
            return output.repeat(self.copies, *[1] * (output.dim() - 1))
        if output is not None and len(args[0]) == size:  # of no input, as of positions
            return output.clone()
        found = func(*args, **(kwargs or {}))
        if self.record is not None:
            self.record.keep(args[0], found)
        return found


# --- activation patching ---


@dataclass(frozen=True, eq=False)
class PatchEffects:
    """How much of the difference between two inputs each part of the model brings back.

    Args:
        layers: the names of the layers, or of the attentions.
        effects: for every layer and position, or every attention and head: 0 as the other input, 1 as this one.
        labels: of the columns.
        clean, other: the difference of the two logits for either input.

    Examples:
        >>> model = regard.load("run")
        >>> texts = ("the cat sleeps", "the mouse sleeps")
        >>> clean, other = (model.trace(text, target="le chat dort") for text in texts)
        >>> found = patch_activations(clean, other, row=1, options=(5, 6), part="attention")
        >>> found.layers[-1], found.effects.shape
        ('decoder.1.cross', torch.Size([6, 4]))
    """

    layers: tuple[str, ...]
    effects: Float[Tensor, "layers columns"]
    labels: tuple[str, ...]
    clean: float
    other: float


def patch_activations(
    clean: Trace,
    other: Trace,
    row: int = -1,
    *,
    options: tuple[int | None, int | None] = (None, None),
    part: Literal["residual", "attention", "head"] = "residual",
    progress: ProgressBar = no_progress,
) -> PatchEffects:
    """The other input is run with one state of the clean one in its place (Vig et al. 2020; Meng et al. 2022); measured
    is the logit of what the clean input gives, less that of what the other one gives.

    Args:
        clean, other: traces of one model, of inputs of equally many tokens that give something else.
        options: those whose logits are compared. Default: what either input gives.
        part: the residual stream behind each layer at each position, the output of each attention at each query, or
            that of each head at all queries.

    Examples:
        >>> model = regard.load("run")
        >>> texts = ("the cat sleeps", "the mouse sleeps")
        >>> clean, other = (model.trace(text, target="le chat dort") for text in texts)
        >>> patch_activations(clean, other, row=1, options=(5, 6)).effects.shape
        torch.Size([4, 4])
    """
    if clean.request.task_model is not other.request.task_model:
        raise ValueError("the two traces are of different models; trace both inputs with one")
    wanted, instead = (prediction_target(trace, row, n) for trace, n in zip((clean, other), options, strict=True))
    if wanted.option == instead.option:
        raise ValueError(
            f"both inputs give {wanted.name!r} at row {wanted.row}; choose another row, other inputs, or two options"
        )

    def difference() -> float:
        logits = run_again(other)[wanted.row].double()
        return float(logits[wanted.option] - logits[instead.option])

    with frozen_model(clean) as model:
        patches = residual_patches(clean, model) if part == "residual" else attention_patches(clean, model, part)
        refuse_other_shapes(clean, other)
        start = difference()
        logits = clean.predictions.logits[wanted.row].double()
        goal = float(logits[wanted.option] - logits[instead.option])
        rows: dict[str, list[float]] = {}
        for name, patched in progress(patches, "patches"):
            with patched():
                rows.setdefault(name, []).append((difference() - start) / (goal - start))
    width = max(map(len, rows.values()))
    effects = torch.tensor([each + [torch.nan] * (width - len(each)) for each in rows.values()])
    labels = [f"head {n}" for n in range(width)] if part == "head" else [str(n) for n in range(width)]
    return PatchEffects(tuple(rows), effects, tuple(labels), goal, start)


def refuse_other_shapes(clean: Trace, other: Trace) -> None:
    shapes = [{name: trace.site(name).shape for name in trace.attention_names} for trace in (clean, other)]
    if shapes[0] != shapes[1]:
        raise ValueError("the two inputs have different numbers of tokens; a state of one has no place in the other")


Patch = tuple[str, Callable[[], Any]]


def residual_patches(clean: Trace, model: nn.Module) -> list[Patch]:
    blocks = find_blocks(model)
    with recorded_streams(blocks) as streams:
        run_again(clean)

    def patch(block: LayerBlock, place: int) -> Callable[[], Any]:
        return lambda: replaced_stream(block, streams[block.name], torch.tensor([place]))

    return [(block.name, patch(block, n)) for block in blocks for n in range(streams[block.name].shape[1])]


def attention_patches(clean: Trace, model: nn.Module, part: str) -> list[Patch]:
    if part not in ("attention", "head"):
        raise ValueError(f"a patch is of 'residual', 'attention' or 'head', not {part!r}")
    sites = {name: clean.site(name) for name in clean.attention_names}

    def patch(name: str, where: tuple[slice, slice]) -> Callable[[], Any]:
        def change(call: RecordedCall) -> Tensor | None:
            if call.site.name != name or not isinstance(call, AttentionCall):
                return None
            output = call.output.clone()
            output[(slice(None), *where)] = sites[name].output[(slice(None), *where)].to(output)
            return output

        return lambda: hook_attention(model, change)

    def one(n: int) -> slice:
        return slice(n, n + 1)

    if part == "head":
        return [(name, patch(name, (one(n), slice(None)))) for name, site in sites.items() for n in range(site.heads)]
    return [(name, patch(name, (slice(None), one(n)))) for name, site in sites.items() for n in range(site.shape[0])]


@torch.no_grad()
def value_zeroing(
    trace: Trace, axis: str | None = None, *, progress: ProgressBar = no_progress
) -> dict[str, Float[Tensor, "i j"]]:
    """How much each query's state behind a layer changes (1 - cosine) where the value of one key is 0 in one attention
    of it, its rows scaled to sum to 1 (Mohebbi et al. 2023); of every attention of a stack, by its name.

    Args:
        axis: only the self-attentions over it.

    Examples:
        >>> found = value_zeroing(trace_model("run", "the cat sleeps", target="le chat dort"), "source")
        >>> {name: each.shape for name, each in found.items()}
        {'encoder.0': torch.Size([4, 4]), 'encoder.1': torch.Size([4, 4])}
    """
    model = trace.request.task_model.model
    blocks = find_blocks(model)
    cores = {site.name: core for core, _, site in find_sites(model)}
    owners = {site.name: layer for _, layer, site in find_sites(model)}
    names = trace.attention_names if axis is None else [site.name for site in self_attention_stack(trace, axis)]
    inside = {
        name: block.name
        for name in names
        for block in blocks
        if holds(block.module, {id(owners[name]), id(cores[name])})
    }
    with frozen_model(trace):
        with recorded_streams(blocks) as before:
            run_again(trace)
        sites = [trace.site(name) for name in inside]
        # the keys of a mixture are no tokens, and the states of a layer may be fewer than its queries
        sites = [site for site in sites if site.mixture is None and before[inside[site.name]].shape[1] == site.shape[0]]
        found = {site.name: torch.zeros(site.shape) for site in sites}
        cells = [(site.name, key) for site in sites for key in range(site.shape[1])]
        for some in in_batches(trace, cells, "values", progress):
            hooks = [(cores[name], zero_values(name, some)) for name in {name for name, _ in some}]
            with hook_modules(hooks, before=True), recorded_streams(blocks) as after:
                run_copies(trace, len(some))
            for copy, (name, key) in enumerate(some):
                states = before[inside[name]][0].double(), after[inside[name]][copy].double()
                found[name][:, key] = (1 - torch.cosine_similarity(*states, -1)).clamp(min=0).float()
    return {name: each / each.sum(-1, keepdim=True).clamp(min=1e-30) for name, each in found.items()}


def zero_values(name: str, cells: Sequence[tuple[str, int]]) -> Callable[..., Any]:
    """In each copy that is of this attention the value of its key is 0."""

    def hook(core: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        q, k, v, *rest = args
        v = v.clone()
        for copy, (site, key) in enumerate(cells):
            if site == name:
                v[copy, :, key] = 0.0
        return (q, k, v, *rest), kwargs

    return hook
