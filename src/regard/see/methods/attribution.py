"""Attribution: what single tokens and weights do to a prediction, and attention followed through the layers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention import AttentionCall, MultiHeadAttention
from regard.attention.core import RecordedCall, find_sites, hook_attention, hook_modules, record_steps
from regard.attention.native_sparse import BRANCHES
from regard.interop import ForeignModel
from regard.layers.embedding import Embedding
from regard.see.methods.prediction import (
    PredictionTarget,
    frozen_model,
    in_batches,
    log_probabilities,
    prediction_target,
    run_again,
    run_copies,
)
from regard.see.sites import AttentionSite
from regard.see.trace import Trace
from regard.tasks.protocol import ProgressBar, no_progress

# --- attention through layers ---


def self_attention_stack(trace: Trace, axis: str | None = None) -> list[AttentionSite]:
    """The self-attentions over one axis, in their order; by default those of the axis with the most of them."""
    sites = [trace.site(name) for name in trace.attention_names]
    own = [site for site in sites if site.site_name.queries == site.site_name.keys and site.shape[0] == site.shape[1]]
    axes = [site.site_name.keys for site in own]
    if not axes:
        raise ValueError("this model has no self-attention, so nothing flows from layer to layer")
    axis = max(axes, key=axes.count) if axis is None else axis
    if axis not in axes:
        raise ValueError(f"no self-attention is over {axis!r}; there are {', '.join(dict.fromkeys(axes))}")
    return [site for site in own if site.site_name.keys == axis]


def mean_weights(site: AttentionSite) -> Float[Tensor, "i j"]:
    return torch.stack([site.token_weights(head) for head in range(site.heads)]).mean(0)


def mixing_matrices(trace: Trace, axis: str | None) -> list[Float[Tensor, "i j"]]:
    """Of each layer ½ A + ½ I: half of a state is what was attended to, half went around (Abnar & Zuidema 2020)."""
    sites = self_attention_stack(trace, axis)
    for site in sites:
        if site.signed or site.name.rpartition(".")[2] in BRANCHES:
            why = "may be below 0" if site.signed else "are those of one of several attentions that gates add up"
            raise ValueError(
                f"the weights of {site.name} {why}: they are no shares of its output, to be followed from layer "
                "to layer; choose another method"
            )
    found = [mean_weights(site) for site in sites]
    return [(each + torch.eye(len(each), device=each.device)) / 2 for each in found]


@torch.no_grad()
def attention_rollout(trace: Trace, axis: str | None = None) -> Float[Tensor, "i j"]:
    """How much of each token's last state came from each token, if attention and residuals mix linearly: the product of
    all layers' ½ A + ½ I, A the mean over heads (Abnar & Zuidema 2020). Rows sum to 1.

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> rollout = attention_rollout(trace, "source")
        >>> rollout.shape, bool(rollout.sum(-1).allclose(torch.ones(4)))
        (torch.Size([4, 4]), True)
    """
    first, *rest = mixing_matrices(trace, axis)
    for each in rest:
        first = each @ first
    return first


@torch.no_grad()
def attention_flow(trace: Trace, axis: str | None = None) -> Float[Tensor, "i j"]:
    """The largest flow from each token's last state to each token, where the weights ½ A + ½ I are capacities (Abnar &
    Zuidema 2020).

    Examples:
        >>> flow = attention_flow(trace_model("run", "the cat sleeps", target="le chat dort"), "source")
        >>> flow.shape, bool((flow <= 1 + 1e-6).all())
        (torch.Size([4, 4]), True)
    """
    import networkx as nx  # torch brings it along; it takes a third of a second to load

    matrices = [each.double().cpu() for each in mixing_matrices(trace, axis)]
    graph, tokens = nx.DiGraph(), len(matrices[0])
    for layer, matrix in enumerate(matrices):
        cells = ((i, j) for i in range(tokens) for j in range(tokens))
        graph.add_edges_from(((layer + 1, i), (layer, j), {"capacity": float(matrix[i, j])}) for i, j in cells)
    top = len(matrices)
    flows = [[nx.maximum_flow_value(graph, (top, i), (0, j)) for j in range(tokens)] for i in range(tokens)]
    return torch.tensor(flows)


@torch.no_grad()
def value_weighted(trace: Trace, name: str) -> Float[Tensor, "h i j"]:
    """‖α v W^O‖ for every head, query and key: what arrives of a value, not only how large its weight is (Kobayashi et
    al. 2020). Where no linear map reads the heads, as in a model that has none or in one that a library has fused,
    ‖α v‖.

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> value_weighted(trace, "decoder.0.cross").shape
        torch.Size([4, 4, 4])
    """
    site = trace.site(name)
    weights = torch.stack([site.weights(head) for head in range(site.heads)])
    values = site.v[0].repeat_interleave(site.heads // site.v.shape[1], 0)
    project = find_projections(trace).outputs.get(name)
    arriving = values if project is None else [each - project.bias for each in project.of_heads(values)]
    return weights.abs() * torch.stack([each.float().norm(dim=-1) for each in arriving])[:, None]


@dataclass(frozen=True, eq=False)
class OutputProjection:
    """The linear map by which the heads of an attention come back into the residual stream."""

    module: nn.Module
    heads: int
    bias: Float[Tensor, " width"]

    def of_heads(self, x: Float[Tensor, "h t e"]) -> Iterator[Float[Tensor, "t width"]]:
        """What it gives where one head gives this and all others 0; the bias is in each."""
        for head, part in enumerate(x):
            alone = part.new_zeros(len(part), self.heads * part.shape[-1])
            alone[:, head * part.shape[-1] : (head + 1) * part.shape[-1]] = part
            yield self.module(alone)


@dataclass(frozen=True, eq=False)
class RecordedProjections:
    """The output projection of each attention by its name, and every norm that ran with what it read and gave."""

    outputs: dict[str, OutputProjection]
    norms: list[tuple[nn.Module, Tensor, Tensor]]


@torch.no_grad()
def find_projections(trace: Trace) -> RecordedProjections:
    """Of our layers the one that they name; of others the linear map that reads what the heads gave, all together."""
    model = trace.request.task_model.model
    found, norms = dict[str, OutputProjection](), list[tuple[nn.Module, Tensor, Tensor]]()
    waiting = dict[str, tuple[int, Tensor]]()

    def wait(call: RecordedCall) -> None:
        if isinstance(call, AttentionCall):
            waiting[call.site.name] = call.output.shape[1], rearrange(call.output, "b h i e -> b i (h e)")

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        if not args or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            return
        if is_norm(module):
            norms.append((module, args[0].detach()[0], output.detach()[0]))
        for name, (heads, merged) in list(waiting.items()):
            if args[0].numel() == merged.numel() and args[0].reshape(merged.shape).equal(merged):
                del waiting[name]
                if (project := linear_projection(module, heads, merged[0], output[0])) is not None:
                    found[name] = project

    if not isinstance(model, ForeignModel):
        for _, layer, site in find_sites(model):
            if isinstance(layer, MultiHeadAttention) and isinstance(layer.output, nn.Linear):
                found[site.name] = OutputProjection(layer.output, layer.heads, bias_of(layer.output))
        return RecordedProjections(found, norms)
    parts = [part for part in model.model.modules() if not any(True for _ in part.children())]
    with frozen_model(trace), hook_attention(model, wait), hook_modules((part, note) for part in parts):
        run_again(trace)
    for _, layer, site in find_sites(model):  # torch's own reads its weight, and is not called
        if isinstance(layer, nn.MultiheadAttention) and site.name in waiting:
            heads, _ = waiting[site.name]
            found[site.name] = OutputProjection(layer.out_proj, heads, bias_of(layer.out_proj))
    return RecordedProjections(found, norms)


def linear_projection(module: nn.Module, heads: int, read: Tensor, gave: Tensor) -> OutputProjection | None:
    """A module that read all heads, if what it gives is the sum of what it gives of each."""
    bias = module(torch.zeros_like(read[:1]))[0]
    found = OutputProjection(module, heads, bias)
    parts = list(found.of_heads(rearrange(read, "t (h e) -> h t e", h=heads)))
    total = torch.stack(parts).sum(0) - (heads - 1) * bias
    return found if nearly_equal(total, gave) else None


def bias_of(linear: nn.Linear) -> Float[Tensor, " width"]:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()


def is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def nearly_equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) <= 1e-4 * max(1e-3, float(b.abs().max()))


def layer_of(trace: Trace, name: str) -> nn.Module:
    """The layer whose attention has this name."""
    return next(layer for _, layer, site in find_sites(trace.request.task_model.model) if site.name == name)


# --- tokens ---


@dataclass(frozen=True, eq=False)
class TokenScores:
    """What each input token does to one prediction.

    Args:
        scores: of the tokens of each axis.
        difference: what the scores of all tokens add up to, if they do: the logit, less that of the baseline.

    Examples:
        >>> found = leave_one_out(trace_model("run", "the cat sleeps", target="le chat dort"), row=0)
        >>> found.scores["read"][1:].tolist()  # the first word cannot depend on those behind it
        [0.0, 0.0, 0.0]
    """

    target: PredictionTarget
    scores: Mapping[str, Float[Tensor, " tokens"]]
    difference: float | None = None

    @property
    def total(self) -> float:
        return float(sum(each.double().sum() for each in self.scores.values()))


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """The embeddings of tokens, and the table they are from."""

    vectors: Float[Tensor, "b t width"]
    table: Float[Tensor, "vocabulary width"]

    def average(self) -> Float[Tensor, " width"]:
        """The mean of all tokens: what stands for a token that is not there."""
        return self.table.detach().mean(0).to(self.vectors)

    def between(self, share: float) -> Float[Tensor, "b t width"]:
        """So far on the way from the average token to these."""
        return torch.lerp(self.average().expand_as(self.vectors), self.vectors, share)


class EmbeddingMode(TorchFunctionMode):
    """While the block lasts, each embedding of tokens by one of these tables passes a function, in this thread.

    Args:
        tables: of vocabularies, and not of positions.
        change: gets the number of the call and the embeddings, and gives those to go on with.
    """

    def __init__(self, tables: Sequence[Tensor], change: Callable[[int, TokenVectors], Tensor]):
        super().__init__()
        self.tables, self.change, self.calls = {id(table) for table in tables}, change, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func is not nn.functional.embedding or id(args[1]) not in self.tables:
            return found
        self.calls += 1
        return self.change(self.calls - 1, TokenVectors(found, args[1]))


def vocabulary_tables(model: nn.Module) -> Sequence[Tensor]:
    """The tables by which a model embeds its tokens."""
    if not isinstance(model, ForeignModel):
        tables = [part.weight for part in model.modules() if isinstance(part, Embedding)]
    else:
        sizes = {len(table) for table in input_tables(model.model)}
        tables = [
            part.weight
            for part in model.model.modules()
            if isinstance(part, nn.Embedding) and len(part.weight) in sizes
        ]
    if not tables:
        raise ValueError("this model embeds no tokens, so nothing can be said of single ones")
    return tables


def input_tables(model: nn.Module) -> list[Tensor]:
    from transformers import PreTrainedModel

    found = [part.get_input_embeddings() for part in model.modules() if isinstance(part, PreTrainedModel)]
    return [part.weight for part in found if isinstance(part, nn.Embedding)]


def embed(trace: Trace, change: Callable[[int, TokenVectors], Tensor]) -> EmbeddingMode:
    return EmbeddingMode(vocabulary_tables(trace.request.task_model.model), change)


def input_embeddings(trace: Trace) -> list[TokenVectors]:
    """Of the tokens that the model reads: of the source first, then of the target."""
    found: list[TokenVectors] = []

    def keep(call: int, x: TokenVectors) -> Tensor:
        found.append(x)
        return x.vectors

    with embed(trace, keep):
        run_again(trace)
    return found


def embedded_axes(trace: Trace, embeddings: Sequence[TokenVectors]) -> list[str]:
    """Which axis each call embeds: the first not yet taken that has as many tokens."""
    left, found = dict(trace.axes), []
    for x in embeddings:
        name = next(
            (name for name, axis in left.items() if len(axis.labels) == x.vectors.shape[-2]), f"input {len(found)}"
        )
        left.pop(name, None)
        found.append(name)
    return found


def token_gradients(
    trace: Trace, target: PredictionTarget, embeddings: Sequence[Float[Tensor, "copies _ width"]]
) -> tuple[list[float], list[Float[Tensor, "copies _ width"]]]:
    """The logit of the target in each copy, whose tokens have these embeddings, and its gradient with respect to
    them."""
    given = [x.detach().requires_grad_() for x in embeddings]
    with torch.enable_grad(), embed(trace, lambda call, x: given[call]):
        logits = torch.stack([x[target.row, target.option] for x in run_copies(trace, len(given[0]))])
        found = torch.autograd.grad(logits.sum(), given, allow_unused=True)
    none = [torch.zeros_like(x) if each is None else each for x, each in zip(given, found, strict=True)]
    return logits.tolist(), none


def gradient_times_input(trace: Trace, row: int = -1, option: int | None = None) -> TokenScores:
    """Of each token its embedding times the gradient of the logit: what it adds, to first order (Simonyan et al. 2014;
    Shrikumar et al. 2017).

    Examples:
        >>> scores = gradient_times_input(trace_model("run", "the cat sleeps", target="le chat dort"), row=0)
        >>> {axis: each.shape for axis, each in scores.scores.items()}
        {'source': torch.Size([4]), 'read': torch.Size([4])}
    """
    target = prediction_target(trace, row, option)
    with frozen_model(trace):
        x = input_embeddings(trace)
        _, gradients = token_gradients(trace, target, [each.vectors for each in x])
    scores = [(each.vectors * gradient).sum((0, -1)) for each, gradient in zip(x, gradients, strict=True)]
    return TokenScores(target, dict(zip(embedded_axes(trace, x), scores, strict=True)))


def attribute_tokens(
    trace: Trace, row: int = -1, option: int | None = None, *, steps: int = 64, progress: ProgressBar = no_progress
) -> TokenScores:
    """Integrated gradients (Sundararajan et al. 2017): the gradient averaged on the way from the average token to each
    token, times the way. All scores add up to the logit less that of nothing but average tokens, `difference`; where
    `steps` gradients miss it, more are taken where it was missed.

    Examples:
        >>> scores = attribute_tokens(trace_model("run", "the cat sleeps", target="le chat dort"), row=0)
        >>> abs(scores.total - scores.difference) < 0.01 * abs(scores.difference)
        True
    """
    if steps < 2:
        raise ValueError(f"integrated gradients need at least 2 steps, not {steps}")
    target = prediction_target(trace, row, option)
    with frozen_model(trace):
        x = input_embeddings(trace)
        path = GradientPath(trace, target, x, gauss_legendre(min(steps, PANEL_STEPS)))
        ends = torch.linspace(0, 1, 1 + max(1, steps // PANEL_STEPS)).tolist()
        panels = path.panels(list(pairwise(ends)), "integrated gradients", progress)
        difference = panels[-1].logits[1] - panels[0].logits[0]
        # along a path through softmax gradients are steep at a few places, and there alone the panels are halved
        while abs(sum(each.error for each in panels)) > COMPLETENESS * abs(difference) and len(panels) < 2 * steps:
            least = max(abs(each.error) for each in panels) / 2
            steep = [each for each in panels if abs(each.error) >= least]
            halves = [half for each in steep for half in pairwise((each.start, (each.start + each.end) / 2, each.end))]
            panels = [each for each in panels if each not in steep] + path.panels(halves, "steep gradients", progress)
    totals = [torch.stack(each).sum(0) for each in zip(*(panel.gradients for panel in panels), strict=True)]
    ways = [each.vectors - each.average() for each in x]
    scores = [(way * total).sum((0, -1)).float() for way, total in zip(ways, totals, strict=True)]
    return TokenScores(target, dict(zip(embedded_axes(trace, x), scores, strict=True)), difference)


PANEL_STEPS = 8  # gradients of each panel of a path
COMPLETENESS = 0.005  # what the scores may miss of the difference of logits before panels are halved


@dataclass(frozen=True, eq=False)
class PathPanel:
    """A panel of a path: the integral of its gradients, the logits at its ends, and what it misses of their
    difference."""

    start: float
    end: float
    gradients: list[Tensor]
    logits: tuple[float, float]
    error: float


@dataclass(frozen=True, eq=False)
class GradientPath:
    """The straight path from average tokens to a trace's own."""

    trace: Trace
    target: PredictionTarget
    embeddings: Sequence[TokenVectors]
    rule: tuple[list[float], list[float]]

    def panels(self, parts: Sequence[tuple[float, float]], what: str, progress: ProgressBar) -> list[PathPanel]:
        """Of these parts of the path; the gradients of many are taken at once."""
        rule = [*self.rule[0], 0.0, 1.0]
        places = [start + place * (end - start) for start, end in parts for place in rule]
        logits: list[float] = []
        gradients: list[list[Tensor]] = []
        for some in in_batches(self.trace, places, what, progress):
            given = [torch.cat([each.between(place) for place in some]) for each in self.embeddings]
            found, slopes = token_gradients(self.trace, self.target, given)
            logits += found
            gradients += [list(each) for each in zip(*(one.split(1) for one in slopes), strict=True)]
        size = len(rule)
        taken = (slice(n * size, (n + 1) * size) for n in range(len(parts)))
        return [self.panel(*part, gradients[some], logits[some]) for part, some in zip(parts, taken, strict=True)]

    def panel(self, start: float, end: float, gradients: list[list[Tensor]], logits: list[float]) -> PathPanel:
        totals = [torch.zeros_like(each.vectors, dtype=torch.float64) for each in self.embeddings]
        for share, slopes in zip(self.rule[1], gradients[:-2], strict=True):
            totals = [a + share * (end - start) * b.double() for a, b in zip(totals, slopes, strict=True)]
        ways = [each.vectors - each.average() for each in self.embeddings]
        found = sum(float((way * total).sum()) for way, total in zip(ways, totals, strict=True))
        first, last = logits[-2:]
        return PathPanel(start, end, totals, (first, last), found - (last - first))


def gauss_legendre(steps: int) -> tuple[list[float], list[float]]:
    """Places between 0 and 1 and their shares, by which smooth functions are integrated best."""
    # the eigenvalues of the Jacobi matrix of the Legendre polynomials (Golub & Welsch 1969)
    n = torch.arange(1, steps, dtype=torch.float64)
    beside = n / (4 * n * n - 1).sqrt()
    places, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return ((places + 1) / 2).tolist(), vectors[0].square().tolist()


def leave_one_out(
    trace: Trace, row: int = -1, option: int | None = None, *, progress: ProgressBar = no_progress
) -> TokenScores:
    """The log-probability that each token is worth: how much is lost where the average token is read
    instead (Li et al. 2016).

    Examples:
        >>> scores = leave_one_out(trace_model("run", "the cat sleeps", target="le chat dort"), row=0)
        >>> scores.scores["source"].shape
        torch.Size([4])
    """
    target = prediction_target(trace, row, option)
    with frozen_model(trace):
        x, whole = input_embeddings(trace), dict[int, list[float]]()
        places = [(call, place) for call, each in enumerate(x) for place in range(each.vectors.shape[-2])]
        scores = [torch.zeros(each.vectors.shape[-2]) for each in x]
        for some in in_batches(trace, places, "tokens left out", progress):
            # how a sum rounds may depend on the size of the batch and on the place in it; so a copy is compared with
            # the same copy of as large a batch, and a token that cannot be seen is worth 0 on every processor
            if len(some) not in whole:
                whole[len(some)] = log_probabilities(trace, target, len(some))
            with embed(trace, erase(some)):
                found = log_probabilities(trace, target, len(some))
            for (call, place), before, after in zip(some, whole[len(some)], found, strict=True):
                scores[call][place] = before - after
    return TokenScores(target, dict(zip(embedded_axes(trace, x), scores, strict=True)))


def erase(places: Sequence[tuple[int, int]]) -> Callable[[int, TokenVectors], Tensor]:
    """In each copy the average token at one place of one call."""

    def change(number: int, x: TokenVectors) -> Tensor:
        vectors = x.vectors.clone()
        for copy, (call, place) in enumerate(places):
            if number == call:
                vectors[copy, place] = x.average()
        return vectors

    return change


# --- weights ---


def attention_times_gradient(
    trace: Trace, row: int = -1, option: int | None = None
) -> dict[str, Float[Tensor, "h i j"]]:
    """Of each weight A ∂logit/∂A, to first order what it adds to the logit (Barkan et al. 2021); by site.

    Examples:
        >>> found = attention_times_gradient(trace_model("run", "the cat sleeps", target="le chat dort"), row=0)
        >>> found["decoder.0.cross"].shape
        torch.Size([4, 4, 4])
    """
    target = prediction_target(trace, row, option)
    with frozen_model(trace) as model, record_steps(model) as record, torch.enable_grad():
        # the weights take part in a graph even where no parameter wants a gradient
        with embed(trace, lambda call, x: x.vectors.detach().requires_grad_()):
            logit = run_again(trace)[target.row, target.option]
        steps = {name: record.steps(name) for name in trace.attention_names}
        weights = [each.weights for found in steps.values() for each in found]
        if not weights:
            raise ValueError("this model has no attention weights")
        gradients = iter(torch.autograd.grad(logit, weights, allow_unused=True))
    found = {}
    for name, calls in steps.items():
        parts = [(each.weights, next(gradients)) for each in calls]
        products = [torch.zeros_like(w) if g is None else w.detach() * g for w, g in parts]
        found[name] = torch.cat([each[0] for each in products], 1)
    return found


# --- matrices between tokens ---


@dataclass(frozen=True, eq=False)
class TokenMatrices:
    """Matrices between tokens, and the axes of their rows and columns.

    Examples:
        >>> found = explain(trace_model("run", "the cat sleeps", target="le chat dort"), "rollout")
        >>> {name: each.shape for name, each in found.matrices.items()}, found.axes
        ({'source': torch.Size([4, 4])}, {'source': ('source', 'source')})
    """

    matrices: Mapping[str, Float[Tensor, "i j"]]
    axes: Mapping[str, tuple[str, str]]


def through_layers(trace: Trace, matrix: Callable[[Trace, str], Tensor]) -> TokenMatrices:
    axis = self_attention_stack(trace)[0].site_name.keys
    return TokenMatrices({axis: matrix(trace, axis)}, {axis: (axis, axis)})


def by_site(trace: Trace, matrices: Mapping[str, Tensor]) -> TokenMatrices:
    """Of several heads their sum."""
    summed = {name: each.sum(0) if each.dim() == 3 else each for name, each in matrices.items()}
    sites = {name: trace.site(name).site_name for name in matrices}
    return TokenMatrices(summed, {name: (site.queries, site.keys) for name, site in sites.items()})
