"""Layers: what each would have predicted (logit lens), the residual stream, and what each part added to a logit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention import MultiHeadAttention
from regard.attention.core import find_sites, hook_modules
from regard.interop import ForeignModel
from regard.layers.transformer_layers import Residual
from regard.see.methods.attribution import (
    RecordedProjections,
    TokenVectors,
    embed,
    find_projections,
    input_embeddings,
    is_norm,
    mean_weights,
    nearly_equal,
)
from regard.see.methods.prediction import PredictionTarget, frozen_model, prediction_target, run_again
from regard.see.trace import Trace
from regard.tasks.protocol import ProgressBar, no_progress

# --- layers: the residual stream ---


@dataclass(frozen=True, eq=False)
class LayerBlock:
    """A layer of a stack: the module whose output is the residual stream behind it."""

    name: str
    module: nn.Module = field(repr=False)
    stack: str


def find_blocks(model: nn.Module) -> list[LayerBlock]:
    """The layers of every stack: the modules of a list each of which holds attention."""
    root = model.model if isinstance(model, ForeignModel) else model
    owners = {id(layer) for _, layer, _ in find_sites(model)}
    found = []
    for path, module in root.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) and all(holds(part, owners) for part in module):
            found += [LayerBlock(f"{path}.{n}" if path else str(n), part, path) for n, part in enumerate(module)]
    if not found:
        raise ValueError("this model has no stack of layers with attention")
    return found


def queries_of_block(model: nn.Module, block: LayerBlock) -> str:
    """The axis of a layer's positions: that of the queries of its first attention."""
    return next(site.queries for _, layer, site in find_sites(model) if holds(block.module, {id(layer)}))


def holds(module: nn.Module, owners: set[int]) -> bool:
    return any(id(part) in owners for part in module.modules())


def stream_of(output: Any) -> Tensor:
    """The states that a layer gives, alone or before what else it returns."""
    return output if isinstance(output, Tensor) else output[0]


def with_stream(output: Any, stream: Tensor) -> Any:
    return stream if isinstance(output, Tensor) else (stream, *output[1:])


@contextmanager
def recorded_streams(blocks: Sequence[LayerBlock]) -> Iterator[dict[str, Tensor]]:
    """The output of every block while the block of code lasts."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            found[name] = stream_of(output).detach()

        return hook

    with hook_modules((block.module, keep(block.name)) for block in blocks):
        yield found


@contextmanager
def replaced_stream(block: LayerBlock, stream: Tensor, places: slice | Tensor = slice(None)) -> Iterator[None]:
    """The output of one block is another one, at all or some positions."""

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        changed = stream_of(output).clone()
        changed[:, places] = stream[:, places].to(changed)
        return with_stream(output, changed)

    with hook_modules([(block.module, hook)]):
        yield


@dataclass(frozen=True, eq=False)
class LogitLens:
    """What the model would have predicted from the residual stream behind each layer of its last stack.

    Args:
        layers: the names of the layers.
        logits: of every layer and row; the last layer's are the model's own.

    Examples:
        >>> lens = logit_lens(trace_model("run", "the cat sleeps", target="le chat dort"))
        >>> lens.logits.shape, len(lens.best(layer=0, row=1, count=3))
        (torch.Size([2, 4, 14]), 3)
    """

    layers: tuple[str, ...]
    logits: Float[Tensor, "layers rows options"]
    trace: Trace = field(repr=False)

    def best(self, layer: int, row: int, count: int = 5) -> list[tuple[str, float]]:
        """The most probable options of a row behind a layer."""
        found = self.logits[layer, row].double().softmax(-1)
        top = found.topk(min(count, len(found)))
        names = (self.trace.predictions.option_name(n) for n in top.indices.tolist())
        return list(zip(names, top.values.tolist(), strict=True))


def logit_lens(trace: Trace, *, progress: ProgressBar = no_progress) -> LogitLens:
    """What follows the last layer, applied to the output of each layer (nostalgebraist 2020).

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> lens = logit_lens(trace)
        >>> lens.layers, bool(lens.logits[-1].allclose(trace.predictions.logits, atol=1e-4))
        (('decoder.0', 'decoder.1'), True)
    """
    with frozen_model(trace) as model:
        blocks = find_blocks(model)
        last = blocks[-1]
        stack = [block for block in blocks if block.stack == last.stack]
        with recorded_streams(stack) as streams:
            run_again(trace)
        logits = []
        for block in progress(stack, "layers"):
            with replaced_stream(last, streams[block.name]):
                logits.append(run_again(trace))
    return LogitLens(tuple(block.name for block in stack), torch.stack(logits), trace)


# --- what adds up to a logit ---


@dataclass(frozen=True, eq=False)
class LogitContributions:
    """What each part of the model added to a logit, at the prediction's own position: they sum to it.

    Args:
        parts: by name: each head of each attention, each feed-forward network, the embedding, and "biases": those of
            projections, norms and logits, and the vectors of positions.
        logit: the model's own.

    Examples:
        >>> found = logit_contributions(trace_model("run", "the cat sleeps", target="le chat dort"), row=0)
        >>> sum(found.parts.values()) == found.total, "decoder.1.cross.head 3" in found.parts
        (True, True)
    """

    target: PredictionTarget
    parts: Mapping[str, float]
    logit: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def logit_contributions(trace: Trace, row: int = -1, option: int | None = None) -> LogitContributions:
    """The direct path of every head and feed-forward network to the logit (Elhage et al. 2021): all that is not linear
    between them and the logit (the scales of norms) is kept as it was, so the sum is exact, in any order of norms. Of
    models of other libraries, the heads of an attention are told apart by the linear map that reads them; where none
    does, they are one part.

    Examples:
        >>> found = logit_contributions(trace_model("run", "the cat sleeps", target="le chat dort"), row=0)
        >>> abs(found.total - found.logit) < 1e-3, len(found.parts)
        (True, 20)
    """
    target = prediction_target(trace, row, option)
    with frozen_model(trace) as model:
        if isinstance(model, ForeignModel):
            return added_parts(trace, target, record_stream(trace, model))
        stack = find_blocks(model)[-1].stack
        blocks = [block for block in find_blocks(model) if block.stack == stack]
        paths, scales = DirectPaths(), FrozenNormScales()
        with torch.enable_grad(), paths.followed(blocks, trace), scales:
            logit = run_again(trace)[target.row, target.option]
            gradients = torch.autograd.grad(logit, paths.branches, allow_unused=True)
        with DirectPaths(nothing=True).followed(blocks, trace), FrozenNormScales(iter(scales.found)):
            rest = float(run_again(trace)[target.row, target.option])
    parts: dict[str, float] = {}
    for name, branch, gradient in zip(paths.names, paths.branches, gradients, strict=True):
        share = 0.0 if gradient is None else float((branch.detach().double() * gradient.double()).sum())
        parts[name] = parts.get(name, 0.0) + share
    parts["biases"] = rest  # the logit where no branch adds anything
    return exact_sum(LogitContributions(target, parts, float(logit.detach())))


def exact_sum(found: LogitContributions) -> LogitContributions:
    if abs(found.total - found.logit) > 1e-3 * max(1.0, abs(found.logit)):
        raise ValueError(
            "what follows the last layer of this model is not linear, so nothing adds up; use ablate_heads"
        )
    return found


@dataclass(eq=False)
class DirectPaths:
    """What the sub-layers of a stack add to the residual stream, as leaves of a graph that is linear behind them.

    Args:
        nothing: each of them adds 0 instead.
    """

    nothing: bool = False
    names: list[str] = field(default_factory=list)
    branches: list[Tensor] = field(default_factory=list)

    def leaf(self, name: str, x: Tensor) -> Tensor:
        if self.nothing:
            return torch.zeros_like(x)
        self.names.append(name)
        self.branches.append(x.detach().requires_grad_())
        return self.branches[-1]

    @contextmanager
    def followed(self, blocks: Sequence[LayerBlock], trace: Trace) -> Iterator[None]:
        names = {id(part): f"{block.name}.{path}" for block in blocks for path, part in block.module.named_modules()}
        residuals = [part for block in blocks for part in block.module.modules() if isinstance(part, Residual)]
        calls = len(input_embeddings(trace))

        def follow(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            stream, function, project = args
            name = names[id(part)].replace(".residual_", ".")
            return (stream, lambda y: function(y.detach()), BranchLeaf(self, name, project, blocks)), kwargs

        def last_call(call: int, x: TokenVectors) -> Tensor:
            return self.leaf("embedding", x.vectors) if call == calls - 1 else x.vectors

        with ExitStack() as stack:
            stack.enter_context(hook_modules([(part, follow) for part in residuals], before=True))
            stack.enter_context(embed(trace, last_call))
            yield


class BranchLeaf(nn.Module):
    """The last projection of a sub-layer, whose result becomes a leaf: of attention, one for each head."""

    def __init__(self, paths: DirectPaths, name: str, project: nn.Module, blocks: Sequence[LayerBlock]):
        super().__init__()
        owners = [part for block in blocks for part in block.module.modules() if isinstance(part, MultiHeadAttention)]
        self.paths, self.name, self.projection = paths, name, [project]
        self.heads = next((owner.heads for owner in owners if owner.output is project), 0)

    def forward(self, y: Tensor) -> Tensor:
        (project,) = self.projection
        if not self.heads or not isinstance(project, nn.Linear):
            return self.paths.leaf(self.name, project(y))
        parts = rearrange(y, "... (h e) -> h ... e", h=self.heads)
        matrices = rearrange(project.weight, "m (h e) -> h e m", h=self.heads)
        heads = [
            self.paths.leaf(f"{self.name}.head {n}", part @ one)
            for n, (part, one) in enumerate(zip(parts, matrices, strict=True))
        ]
        whole = torch.stack(heads).sum(0)
        return whole if project.bias is None else whole + project.bias


class FrozenNormScales(TorchFunctionMode):
    """While the block lasts, norms multiply by a number of which no gradient is taken.

    Args:
        given: these numbers instead of their own, in the order of the calls.
    """

    def __init__(self, given: Iterator[Tensor] | None = None):
        super().__init__()
        self.given, self.found = given, list[Tensor]()

    def scale(self, variance: Tensor, eps: float) -> Tensor:
        self.found.append((variance + eps).rsqrt().detach() if self.given is None else next(self.given))
        return self.found[-1]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        named = dict(kwargs or {})
        if func in (torch.layer_norm, nn.functional.layer_norm):
            return self.layer_norm(*args, **named)
        if func in (torch.rms_norm, nn.functional.rms_norm):
            return self.rms_norm(*args, **named)
        return func(*args, **named)

    def layer_norm(
        self,
        x: Tensor,
        shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
        *_: Any,
    ) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = self.scale(x.var(-1, unbiased=False, keepdim=True), eps)
        found = centred * scale if weight is None else centred * scale * weight
        return found if bias is None else found + bias

    def rms_norm(
        self, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        scale = self.scale(x.square().mean(-1, keepdim=True), eps)
        return x * scale if weight is None else x * scale * weight


# --- the residual stream, part by part ---


@dataclass(frozen=True, eq=False)
class StreamPart:
    """One part of the model as the residual stream passes it: what it gave at one position.

    Args:
        kind: the embedding, a norm, what an attention or a feed-forward network adds, or the sum behind it.
        layer: the layer that it belongs to.
        vector: what it gave, at the position of its stack.
        added: what it added to the logit directly; None for what adds nothing, or where nothing adds up.
        sites: of an attention, the names of its sites.
        best: of the last sum of a layer, what the model would have predicted from it (the logit lens).

    Examples:
        >>> found = residual_stream(trace_model("run", "the cat sleeps", target="le chat dort"), row=1)
        >>> [part.kind for part in found.stacks["decoder"][:4]]
        ['embedding', 'norm', 'attention', 'sum']
    """

    name: str
    kind: str
    layer: str
    vector: Float[Tensor, " width"] = field(repr=False)
    added: float | None = None
    sites: tuple[str, ...] = ()
    best: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, eq=False)
class ResidualStream:
    """The whole model as one position of the residual stream passes it, from the embedding to the logits.

    Args:
        stacks: the parts of each stack of layers in the order in which they ran; the prediction is read from the last.
        positions: of each stack: in the last the one from which the prediction is read, in others the one to which
            the last attention between the two attends most.
        contributions: what adds up to the logit, or None.
        note: why nothing adds up, where nothing does.

    Examples:
        >>> found = residual_stream(trace_model("run", "the cat sleeps", target="le chat dort"), row=1)
        >>> found.positions["decoder"], list(found.stacks)
        (1, ['encoder', 'decoder'])
        >>> first, norm, attention, total = found.stacks["decoder"][:4]
        >>> bool(total.vector.allclose(first.vector + attention.vector, atol=1e-5))
        True
    """

    target: PredictionTarget
    stacks: Mapping[str, tuple[StreamPart, ...]]
    positions: Mapping[str, int]
    logit: float
    contributions: LogitContributions | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class StreamStep:
    """What a part gave at all positions; of a norm behind a sum, also what it read."""

    name: str
    kind: str
    block: LayerBlock
    states: Float[Tensor, "t width"]
    normed: tuple[nn.Module, Tensor] | None = None
    sites: tuple[str, ...] = ()


def residual_stream(
    trace: Trace, row: int = -1, option: int | None = None, *, progress: ProgressBar = no_progress
) -> ResidualStream:
    """Every part of the model that the residual stream passes, with what it gave at the prediction's own position and
    what it added to the logit.

    Of models of other libraries, whose sub-layers have no common names, they are found by their numbers: the stream
    before and behind each norm, and which module gave the difference. Where no module did, it is refused.

    Examples:
        >>> found = residual_stream(trace_model("run", "the cat sleeps", target="le chat dort"), row=1)
        >>> parts = [part for parts in found.stacks.values() for part in parts if part.added is not None]
        >>> total = sum(part.added for part in parts) + found.contributions.parts["biases"]
        >>> abs(total - found.logit) < 1e-3
        True
    """
    target = prediction_target(trace, row, option)
    with frozen_model(trace) as model:
        steps = record_stream(trace, model)
        last = steps[-1].block
        logit, slopes = stream_gradient(trace, target, last)
        places = {last.stack: int(slopes.norm(dim=-1).argmax())}
        for step in steps:
            if step.block.stack not in places:
                places[step.block.stack] = attended_position(trace, len(step.states), places[last.stack])
        try:
            found, note = logit_contributions(trace, target.row, target.option), ""
        except ValueError as error:
            found, note = None, str(error)
    lens = logit_lens(trace, progress=progress)
    stacks: dict[str, list[StreamPart]] = {}
    ends = {step.block.name: step for step in steps if step.name != final_norm_name(step.block)}
    for step in steps:
        layer, place = step.block.name, places[step.block.stack]
        best = (
            tuple(lens.best(lens.layers.index(layer), target.row))
            if step is ends[layer] and layer in lens.layers
            else ()
        )
        added = None if found is None or step.block.stack != last.stack else part_of(found, step)
        part = StreamPart(step.name, step.kind, layer, step.states[place].float(), added, step.sites, best)
        stacks.setdefault(step.block.stack, []).append(part)
    return ResidualStream(target, {name: tuple(parts) for name, parts in stacks.items()}, places, logit, found, note)


def part_of(found: LogitContributions, step: StreamStep) -> float | None:
    """What a part added: of an attention, its heads together."""
    mine = [value for name, value in found.parts.items() if name == step.name or name.startswith(f"{step.name}.head ")]
    return sum(mine) if mine and step.kind not in ("norm", "sum") else None


def attended_position(trace: Trace, tokens: int, query: int) -> int:
    """Of a text of so many tokens, that to which the last attention to it attends most at this query."""
    sites = [trace.site(name) for name in trace.attention_names]
    fits = [site for site in sites if site.site_name.queries != site.site_name.keys and site.shape[1] == tokens]
    return int(mean_weights(fits[-1])[query].argmax()) if fits and query < fits[-1].shape[0] else 0


def stream_gradient(
    trace: Trace, target: PredictionTarget, last: LayerBlock, scales: "FrozenNormScales | None" = None
) -> tuple[float, Float[Tensor, "t width"]]:
    """The logit, and its gradient with respect to the residual stream behind the last layer."""
    kept: list[Tensor] = []

    def leaf(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        kept.append(stream_of(output).detach().requires_grad_())
        return with_stream(output, kept[-1])

    with torch.enable_grad(), hook_modules([(last.module, leaf)]), scales or ExitStack():
        logit = run_again(trace)[target.row, target.option]
        (slopes,) = torch.autograd.grad(logit, kept[-1:], allow_unused=True)
    return float(logit.detach()), torch.zeros_like(kept[-1])[0] if slopes is None else slopes[0]


def record_stream(trace: Trace, model: nn.Module) -> list[StreamStep]:
    """What every part of every stack of layers gave, in the order in which they ran."""
    recorders = [StreamRecorder(block) for block in find_blocks(model)]
    cores = [(core, note_site(recorders, site.name, core, layer)) for core, layer, site in find_sites(model)]
    inside = {id(part) for recorder in recorders for part in recorder.block.module.modules()}
    norms = [part for part in model.modules() if is_norm(part) and id(part) not in inside]
    ran: list[StreamRecorder] = []  # the last layer that has run comes last
    final: dict[str, StreamStep] = {}

    def note_norm(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if ran and isinstance(output, Tensor) and output.shape[1:] == ran[-1].state.shape:
            block = ran[-1].block
            final[block.stack] = StreamStep(final_norm_name(block), "norm", block, output.detach()[0])

    def note_run(recorder: StreamRecorder) -> Callable[..., None]:
        return lambda module, args, kwargs, output: ran.append(recorder)

    with ExitStack() as stack:
        stack.enter_context(hook_modules(cores))
        stack.enter_context(hook_modules((part, note_norm) for part in norms))
        stack.enter_context(hook_modules((each.block.module, note_run(each)) for each in recorders))
        for recorder in recorders:
            stack.enter_context(recorder.recorded())
        run_again(trace)
    seen: set[str] = set()
    steps = []
    for recorder in recorders:
        block, states = recorder.block, recorder.start
        if states is None:
            raise ValueError(f"{recorder.block.name} did not run, so the residual stream is not known")
        if block.stack not in seen:
            name = "embedding" if block.stack == recorders[-1].block.stack else f"{block.stack}.embedding"
            steps.append(StreamStep(name, "embedding", block, states))
            seen.add(block.stack)
        steps += recorder.steps
    ends = [n for n, step in enumerate(steps) if n + 1 == len(steps) or steps[n + 1].block.stack != step.block.stack]
    for n in reversed(ends):
        steps[n + 1 : n + 1] = [final[steps[n].block.stack]] if steps[n].block.stack in final else []
    return steps


def final_norm_name(block: LayerBlock) -> str:
    return f"{block.stack}.final norm"


def note_site(
    recorders: "Sequence[StreamRecorder]", name: str, core: nn.Module, layer: nn.Module
) -> Callable[..., None]:
    mine = [each for each in recorders if holds(each.block.module, {id(core), id(layer)})]

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        for recorder in mine:
            recorder.sites.append(name)

    return hook


@dataclass(eq=False)
class StreamRecorder:
    """What the parts of one layer gave in one call of the model.

    Args:
        start: the stream as the layer read it.
        state: the stream so far.
        outputs: what modules of the layer gave that could be added to it.
        sites: the attentions that have run since the last sum.
    """

    block: LayerBlock
    start: Tensor | None = None
    state: Tensor = field(default_factory=lambda: torch.zeros(0))
    norms: list[tuple[nn.Module, Tensor, Tensor, tuple[str, ...], int]] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    steps: list[StreamStep] = field(default_factory=list)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        module = self.block.module
        residuals = [part for part in module.modules() if isinstance(part, Residual)]
        names = {id(part): path for path, part in module.named_modules()}
        with ExitStack() as stack:
            stack.enter_context(hook_modules([(module, self.enter)], before=True))
            for part in residuals:
                name = names[id(part)].replace("residual_", "")
                stack.enter_context(hook_modules([(part, self.follow(name))], before=True))
            if not residuals:
                inside = [part for part in module.modules() if part is not module]
                stack.enter_context(hook_modules((part, self.note) for part in inside))
                stack.enter_context(hook_modules([(module, self.leave)]))
            yield

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
        first = given[0] if given else torch.zeros(0)
        if first.dim() != 3:
            raise ValueError(
                f"what {self.block.name} reads are no states of tokens, so there is no residual stream to follow"
            )
        self.start = self.state = first.detach()[0]
        self.norms, self.outputs, self.sites, self.steps = [], [], [], []

    def add(self, name: str, kind: str, states: Tensor, normed: tuple[nn.Module, Tensor] | None = None) -> None:
        path = f"{self.block.name}.{name}"
        sites = tuple(self.sites) if kind == "attention" else ()
        self.steps.append(StreamStep(path, kind, self.block, states, normed, sites))

    def branch(self, name: str, added: Tensor) -> None:
        """A sub-layer, and the sum behind it."""
        self.add(name, "attention" if self.sites else "feed-forward", added)
        self.state = self.state + added
        self.add(f"{name}.sum", "sum", self.state)
        self.sites.clear()

    # --- our layers ---

    def follow(self, name: str) -> Callable[..., Any]:
        def hook(part: Residual, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            stream, function, project = args

            def normed(y: Tensor) -> Tensor:
                if not part.norms_sum:
                    self.add(f"{name}.norm", "norm", y.detach()[0])
                return function(y)

            def ended(y: Tensor) -> None:
                self.branch(name, y.detach()[0])
                if part.norms_sum:
                    normal = (part.norm(self.state)).detach()
                    self.add(f"{name}.norm", "norm", normal, (part.norm, self.state))
                    self.state = normal

            return (stream, normed, ObservedProjection(project, ended)), kwargs

        return hook

    # --- those of others ---

    def note(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        """A module inside the layer has run."""
        found = stream_of(output) if isinstance(output, Tensor | tuple) and len(output) else None
        if not isinstance(found, Tensor) or self.start is None or found.shape[1:] != self.start.shape:
            return
        self.outputs.append(found.detach()[0])
        if is_norm(module) and args and isinstance(args[0], Tensor):
            sites = tuple(self.sites)
            self.norms.append((module, args[0].detach()[0], found.detach()[0], sites, len(self.outputs)))

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """The layer has run: which norms read the stream, and which module gave what was added between them?"""
        end = stream_of(output).detach()[0]
        post = bool(self.norms) and nearly_equal(self.norms[-1][2], end)
        seen, done = list(self.sites), 0
        for norm, read, gave, sites, count in self.norms:
            self.sites = list(sites[done:])
            if nearly_equal(read, self.state):
                self.add(self.next_norm, "norm", gave)
            elif self.was_given(read - self.state, count):
                self.branch(self.sublayer(), read - self.state)
                done = len(sites)
                self.add(self.next_norm, "norm", gave, (norm, read) if post else None)
                self.state = gave if post else self.state
        self.sites = seen[done:]
        if not nearly_equal(self.state, end):
            if not self.was_given(end - self.state, len(self.outputs)):
                raise ValueError(
                    f"what the sub-layers of {self.block.name} add is no module's output, so its parts are not known; "
                    "use the logit lens"
                )
            self.branch(self.sublayer(), end - self.state)

    @property
    def next_norm(self) -> str:
        return f"norm {1 + sum(step.kind == 'norm' for step in self.steps)}"

    def was_given(self, added: Tensor, count: int) -> bool:
        return any(nearly_equal(each, added) for each in self.outputs[:count])

    def sublayer(self) -> str:
        if not self.sites:
            return "feed_forward"
        return "cross" if self.sites[-1].endswith("cross") else "attention"


class ObservedProjection(nn.Module):
    """The last projection of a sub-layer, whose result is shown to a function."""

    def __init__(self, project: nn.Module, show: Callable[[Tensor], None]):
        super().__init__()
        self.projection, self.show = [project], show

    def forward(self, y: Tensor) -> Tensor:
        (project,) = self.projection
        found = project(y)
        self.show(found)
        return found


def added_parts(trace: Trace, target: PredictionTarget, steps: Sequence[StreamStep]) -> LogitContributions:
    """What each part of the last stack adds to the logit, where a sum or the frozen norms behind it lead there."""
    last = steps[-1].block
    mine = [step for step in steps if step.block.stack == last.stack]
    ratios = FrozenRatios(trace)
    scales, projections = FrozenNormScales(), find_projections(trace)
    with ratios.applied():
        logit, slopes = stream_gradient(trace, target, last, scales)
    parts: dict[str, float] = {}
    base = torch.zeros_like(slopes)
    for n, step in enumerate(mine):
        if step.normed is not None:
            linear, bias = freeze_norm(*step.normed, step.states)
            base = linear(base) + bias
        if step.kind in ("norm", "sum"):
            continue
        for name, vector in head_vectors(trace, step, projections):
            for later in mine[n + 1 :]:
                if later.normed is not None:
                    vector = freeze_norm(*later.normed, later.states)[0](vector)
            parts[name] = parts.get(name, 0.0) + float((vector.double() * slopes.double()).sum())
    constant = parts.pop("biases", 0.0)
    with ratios.applied(again=True), replaced_stream(last, base[None]), FrozenNormScales(iter(scales.found)):
        parts["biases"] = constant + float(run_again(trace)[target.row, target.option])
    return exact_sum(LogitContributions(target, parts, logit))


def head_vectors(
    trace: Trace, step: StreamStep, projections: RecordedProjections
) -> Iterator[tuple[str, Float[Tensor, "t width"]]]:
    """What each head of an attention gave, and the bias of their projection; of other parts, what they gave."""
    project = projections.outputs.get(step.sites[0]) if len(step.sites) == 1 else None
    if step.kind != "attention" or project is None:
        yield step.name, step.states
        return
    bias = project.bias.expand_as(step.states)
    heads = [each - bias for each in project.of_heads(trace.site(step.sites[0]).output[0])]
    whole = torch.stack(heads).sum(0) + bias
    if not nearly_equal(whole, step.states):  # a norm of the attention's own, as Gemma has
        own = (
            each for each in projections.norms if nearly_equal(each[1], whole) and nearly_equal(each[2], step.states)
        )
        if (norm := next(own, None)) is None:
            yield step.name, step.states
            return
        linear, rest = freeze_norm(*norm)
        heads, bias = [linear(each) for each in heads], linear(bias) + rest
    yield from ((f"{step.name}.head {n}", each) for n, each in enumerate(heads))
    yield "biases", bias


def freeze_norm(norm: nn.Module, read: Tensor, gave: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A norm as the linear map that it was where it read this, and its bias."""
    if isinstance(norm, nn.LayerNorm):
        scale = (read.var(-1, unbiased=False, keepdim=True) + norm.eps).rsqrt()
        weight = 1.0 if norm.weight is None else norm.weight.detach()

        def linear(x: Tensor) -> Tensor:
            return (x - x.mean(-1, keepdim=True)) * scale * weight

    else:
        ratio = element_ratio(read, gave)

        def linear(x: Tensor) -> Tensor:
            return x * ratio

    return linear, gave - linear(read)


def element_ratio(read: Tensor, gave: Tensor) -> Tensor:
    """By what a norm without a mean multiplied each number."""
    return torch.where(read == 0, 0.0, gave / torch.where(read == 0, 1.0, read)).detach()


class FrozenRatios:
    """RMS norms behind the last layer that a library has written out itself: they multiply as in the first call."""

    def __init__(self, trace: Trace):
        model = trace.request.task_model.model
        blocks = {id(part) for block in find_blocks(model) for part in block.module.modules()}
        known = (nn.LayerNorm, nn.RMSNorm)  # those are frozen by the function that they call
        self.norms = [
            part for part in model.modules() if is_norm(part) and id(part) not in blocks and not isinstance(part, known)
        ]
        self.found: list[Tensor] = []

    @contextmanager
    def applied(self, *, again: bool = False) -> Iterator[None]:
        given = iter(self.found) if again else None

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> Any:
            if given is None:
                self.found.append(element_ratio(args[0].detach(), output.detach()))
            return args[0] * (self.found[-1] if given is None else next(given))

        with hook_modules((part, hook) for part in self.norms):
            yield
