"""Explanation methods: from what was attended to, to what it did to a prediction.

    trace = trace_model("run", "the black cat ate the mouse")
    ablate_heads(trace, row=0)                       what each head is worth: the loss of log-probability without it
    attribute_tokens(trace, row=0)                   integrated gradients: what each token adds to a logit
    patch_activations(trace, other, row=0)           where two inputs begin to differ in what is predicted
    logit_lens(trace, row=0)                         what each layer would have predicted

Every method runs the traced model again on the same inputs, with hooks: no model is copied or changed. They hold for
our models, and for those of Hugging Face and torch wherever a trace does; what a model does not have is refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, Literal, TypeVar

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention import AttentionCall, MultiHeadAttention
from regard.attention.core import RecordedCall, find_sites, hook_attention, hook_modules, record_steps
from regard.interop import ForeignModel
from regard.layers.embedding import Embedding
from regard.layers.sublayers import Residual
from regard.models.seq2seq import inference_mode
from regard.see.sites import AttentionSite
from regard.see.trace import Trace
from regard.tasks.protocol import ProgressBar, no_progress

T = TypeVar("T")

# --- what is explained ---


@dataclass(frozen=True)
class PredictionTarget:
    """One option of one row of a trace's predictions, whose logit or log-probability is explained.

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> ablate_heads(trace, row=3).target.row  # the option is the one that the model prefers there
        3
    """

    row: int
    option: int
    name: str


def prediction_target(trace: Trace, row: int = -1, option: int | None = None) -> PredictionTarget:
    """By default the last row, and the option that the model prefers there."""
    rows = len(trace.predictions.rows)
    if not rows:
        raise ValueError("this model predicts nothing; ask for rollout, flow, value-zeroing or value-norms")
    if not -rows <= row < rows:
        raise ValueError(f"there is no row {row}; they are counted from 0 to {rows - 1}")
    logits = trace.predictions.logits[row]
    if option is not None and not 0 <= option < len(logits):
        raise ValueError(f"there is no option {option}; they are counted from 0 to {len(logits) - 1}")
    chosen = int(logits.argmax()) if option is None else option
    return PredictionTarget(row % rows, chosen, trace.predictions.option_name(chosen))


def run_again(trace: Trace) -> Float[Tensor, "rows options"]:
    """The logits of the traced model for the traced input, under whatever hooks are set."""
    return run_copies(trace, 1)[0]


def run_copies(trace: Trace, copies: int) -> list[Float[Tensor, "rows options"]]:
    """The same for so many copies of the input at once, each of which a hook may change in its own way."""
    request = trace.request
    return [x.float() for x in request.task.forward_batch(request.task_model.model, [trace.encoded] * copies)]


TOKENS_AT_ONCE = 2048  # of all copies of an input: more are no faster on a CPU


def copies_at_once(trace: Trace) -> int:
    """How many copies of the input one call takes."""
    tokens = sum(len(axis.labels) for axis in trace.axes.values())
    return max(1, TOKENS_AT_ONCE // max(1, tokens)) if trace.request.task.takes_batches else 1


def log_probabilities(trace: Trace, target: PredictionTarget, copies: int = 1) -> list[float]:
    """Of the target, in each copy."""
    return [float(x[target.row].double().log_softmax(-1)[target.option]) for x in run_copies(trace, copies)]


def in_batches(trace: Trace, items: Sequence[T], what: str, progress: ProgressBar) -> Iterator[list[T]]:
    """As many items as there are copies of the input in one call; progress counts the items."""
    size = copies_at_once(trace)
    counted = iter(progress(items, what))
    while some := list(islice(counted, size)):
        yield some


@contextmanager
def frozen_model(trace: Trace) -> Iterator[nn.Module]:
    """The traced model in eval mode and without gradients, edited as in the trace."""
    model = trace.request.task_model.model
    with inference_mode(model), trace.request.edited():
        yield model


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
    found = [mean_weights(site) for site in self_attention_stack(trace, axis)]
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
    al. 2020). Of models of other libraries, whose output projection is not known by a name, ‖α v‖.

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> value_weighted(trace, "decoder.0.cross").shape
        torch.Size([4, 4, 4])
    """
    site = trace.site(name)
    weights = torch.stack([site.weights(head) for head in range(site.heads)])
    values = site.v[0].repeat_interleave(site.heads // site.v.shape[1], 0).float()
    layer = layer_of(trace, name)
    if isinstance(layer, MultiHeadAttention) and isinstance(layer.output, nn.Linear):
        output = rearrange(layer.output.weight.float(), "m (h e) -> h e m", h=site.heads)
        values = einsum(values, output, "h j e, h e m -> h j m")
    return weights.abs() * values.norm(dim=-1)[:, None]


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
        (before,), x = log_probabilities(trace, target), input_embeddings(trace)
        places = [(call, place) for call, each in enumerate(x) for place in range(each.vectors.shape[-2])]
        scores = [torch.zeros(each.vectors.shape[-2]) for each in x]
        for some in in_batches(trace, places, "tokens left out", progress):
            with embed(trace, erase(some)):
                found = log_probabilities(trace, target, len(some))
            for (call, place), value in zip(some, found, strict=True):
                scores[call][place] = before - value
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
    """How much each token's state behind a layer changes (1 - cosine) where the value of one token is 0 in that layer,
    its rows scaled to sum to 1 (Mohebbi et al. 2023); by site.

    Examples:
        >>> found = value_zeroing(trace_model("run", "the cat sleeps", target="le chat dort"), "source")
        >>> {name: each.shape for name, each in found.items()}
        {'encoder.0': torch.Size([4, 4]), 'encoder.1': torch.Size([4, 4])}
    """
    sites = self_attention_stack(trace, axis)
    with frozen_model(trace) as model:
        blocks = find_blocks(model)
        owners = {site.name: layer for _, layer, site in find_sites(model)}
        cores = {site.name: core for core, _, site in find_sites(model)}
        with recorded_streams(blocks) as before:
            run_again(trace)
        found = {site.name: torch.zeros(site.shape) for site in sites}
        cells = [(each, key) for each in sites for key in range(each.shape[1])]
        for site, key in progress(cells, "values"):
            block = next(block for block in blocks if holds(block.module, {id(owners[site.name])}))
            hook = hook_modules([(cores[site.name], zero_value(key))], before=True)
            with hook, recorded_streams([block]) as after:
                run_again(trace)
            alike = torch.cosine_similarity(before[block.name][0].double(), after[block.name][0].double(), -1)
            found[site.name][:, key] = (1 - alike).clamp(min=0).float()
    return {name: each / each.sum(-1, keepdim=True).clamp(min=1e-30) for name, each in found.items()}


def zero_value(key: int) -> Callable[..., Any]:
    def hook(core: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        q, k, v, *rest = args
        return (q, k, v.index_fill(2, torch.tensor([key], device=v.device), 0.0), *rest), kwargs

    return hook


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
    models of other libraries, that of every attention, all heads together, and of every feed-forward network.

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


def is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def note_site(
    recorders: "Sequence[StreamRecorder]", name: str, core: nn.Module, layer: nn.Module
) -> Callable[..., None]:
    mine = [each for each in recorders if holds(each.block.module, {id(core), id(layer)})]

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        for recorder in mine:
            recorder.sites.append(name)

    return hook


def nearly_equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and float((a - b).abs().max()) <= 1e-4 * max(1e-3, float(b.abs().max()))


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
    scales = FrozenNormScales()
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
        vector = step.states
        for later in mine[n + 1 :]:
            if later.normed is not None:
                vector = freeze_norm(*later.normed, later.states)[0](vector)
        parts[step.name] = parts.get(step.name, 0.0) + float((vector.double() * slopes.double()).sum())
    with ratios.applied(again=True), replaced_stream(last, base[None]), FrozenNormScales(iter(scales.found)):
        parts["biases"] = float(run_again(trace)[target.row, target.option])
    return exact_sum(LogitContributions(target, parts, logit))


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


# --- the methods by name ---


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


@dataclass(frozen=True, eq=False)
class NextTokens:
    """The most probable tokens of one step: each with the model's probability, and that with which it is drawn.

    Args:
        tokens: name, probability, and the probability at the trace's temperature, top-k and top-p.
        kept: how many tokens can be drawn at all.
        entropy: of what is drawn, in nats.

    Examples:
        >>> from regard.decode import Sampling
        >>> found = next_tokens(trace_model("run", "the cat sleeps", sampling=Sampling(top_k=3)), row=0)
        >>> found.kept, round(sum(drawn for _, _, drawn in found.tokens), 4)
        (3, 1.0)
    """

    row: int
    tokens: tuple[tuple[str, float, float], ...]
    kept: int
    entropy: float


def next_tokens(trace: Trace, row: int = -1, count: int = 20) -> NextTokens:
    """What could have come next, as the trace's own sampling draws it; without one, by the model's probabilities.

    Examples:
        >>> found = next_tokens(trace_model("run", "the cat sleeps", target="le chat dort"), row=0, count=3)
        >>> len(found.tokens), found.tokens[0][1] == found.tokens[0][2]
        (3, True)
    """
    target = prediction_target(trace, row)
    shares, drawn = (trace.next_token_probabilities(target.row, how) for how in (None, trace.request.sampling))
    top = shares.topk(min(count, len(shares))).indices.tolist()
    tokens = tuple((trace.predictions.option_name(n), float(shares[n]), float(drawn[n])) for n in top)
    entropy = float(torch.special.entr(drawn.double()).sum())
    return NextTokens(target.row, tokens, int((drawn > 0).sum()), entropy)


Explanation = HeadEffects | TokenScores | TokenMatrices | LogitLens | LogitContributions | ResidualStream | NextTokens
"""What a method finds.

Examples:
    >>> isinstance(explain(trace_model("run", "the cat sleeps", target="le chat dort"), "lens"), Explanation)
    True
"""


def explain(trace: Trace, method: str, row: int = -1, progress: ProgressBar = no_progress) -> Explanation:
    """What a method, by its name in `METHODS`, finds of one prediction.

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> type(explain(trace, "mean-heads", row=0)).__name__
        'HeadEffects'
    """
    if method not in METHODS:
        raise ValueError(f"no method is called {method!r}; there are {', '.join(METHODS)}")
    if trace.predictions.rows:  # a model without a head predicts nothing, and yet attends
        prediction_target(trace, row)
    return METHODS[method](trace, row, progress)


def through_layers(trace: Trace, matrix: Callable[[Trace, str], Tensor]) -> TokenMatrices:
    axis = self_attention_stack(trace)[0].site_name.keys
    return TokenMatrices({axis: matrix(trace, axis)}, {axis: (axis, axis)})


def by_site(trace: Trace, matrices: Mapping[str, Tensor]) -> TokenMatrices:
    """Of several heads their sum."""
    summed = {name: each.sum(0) if each.dim() == 3 else each for name, each in matrices.items()}
    sites = {name: trace.site(name).site_name for name in matrices}
    return TokenMatrices(summed, {name: (site.queries, site.keys) for name, site in sites.items()})


METHODS: dict[str, Callable[[Trace, int, ProgressBar], Explanation]] = {
    "heads": lambda trace, row, progress: ablate_heads(trace, row, progress=progress),
    "mean-heads": lambda trace, row, progress: ablate_heads(trace, row, by="mean", progress=progress),
    "integrated-gradients": lambda trace, row, progress: attribute_tokens(trace, row, progress=progress),
    "gradient-input": lambda trace, row, progress: gradient_times_input(trace, row),
    "leave-one-out": lambda trace, row, progress: leave_one_out(trace, row, progress=progress),
    "rollout": lambda trace, row, progress: through_layers(trace, attention_rollout),
    "flow": lambda trace, row, progress: through_layers(trace, attention_flow),
    "value-zeroing": lambda trace, row, progress: by_site(trace, value_zeroing(trace, progress=progress)),
    "value-norms": lambda trace, row, progress: by_site(
        trace, {name: value_weighted(trace, name) for name in trace.attention_names}
    ),
    "attention-gradient": lambda trace, row, progress: by_site(trace, attention_times_gradient(trace, row)),
    "lens": lambda trace, row, progress: logit_lens(trace, progress=progress),
    "contributions": lambda trace, row, progress: logit_contributions(trace, row),
    "residual-stream": lambda trace, row, progress: residual_stream(trace, row, progress=progress),
    "next-tokens": lambda trace, row, progress: next_tokens(trace, row),
}
"""The methods that explain a prediction, by name; `regard look --method` and the page take one.

Examples:
    >>> METHODS["heads"](trace_model("run", "the cat sleeps", target="le chat dort"), 0, no_progress).target.row
    0
"""
