"""Attention core and its hooks: the weightless modules that every attention and gate passes, and who sees them.

    with record_attention(model) as record:
        logits = model(tokens)
    record.weights("encoder.0")                     b h t t

The modules keep nothing, so a forward hook can see them, or replace what they return, whatever the model around them
is. A model may name its attentions, in `attention_sites` beside its definition; one that names none is recorded by the
paths of its modules. Nothing is kept on the model, and other threads that use it are not recorded.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from threading import get_ident
from typing import Any, Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.attention.backends import choose, masked
from regard.attention.backends.reference import Steps
from regard.attention.functional import attend, prepare, steps
from regard.attention.recipe import Recipe
from regard.attention.sparse_patterns import ContentPattern, conditions, is_content, without_choice
from regard.ops import dispatch

MAX_CELLS = 2**26  # weights that the reference may form at once, where no gradients are needed
CELLS_AT_ONCE = 2**22  # and those that it forms at once of more

AttentionKernel = Callable[[Tensor, Tensor, Tensor, Recipe], Tensor]


@dataclass(eq=False)
class ThreadHook:
    """A forward hook, or one before it, for the calls of one thread alone: a model may serve several at once."""

    function: Callable[..., Any]
    thread: int
    active: bool = True

    def __call__(self, module: nn.Module, *call: Any) -> Any:
        # another thread's call may meet a hook that is being removed, and then comes without its named arguments
        return self.function(module, *call) if self.is_current else None

    @property
    def is_current(self) -> bool:
        return self.active and get_ident() == self.thread


def is_hooked(module: nn.Module) -> bool:
    """Does this thread record or edit what the module computes?"""
    hooks = *module._forward_hooks.values(), *module._forward_pre_hooks.values()
    return any(isinstance(hook, ThreadHook) and hook.is_current for hook in hooks)


class AttentionCore(nn.Module):
    """Every attention of every model passes here: `attend`, or a kernel that computes the same in another order.

    Examples:
        >>> class Pooling(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.core = AttentionCore()
        ...     def forward(self, x):
        ...         return self.core(x, x, x, Recipe(pattern=Window(2)))
        >>> pooling = Pooling()
        >>> with record_attention(pooling) as record:
        ...     output = pooling(torch.zeros(1, 1, 3, 4))
        >>> record.weights("attention")[0, 0]
        tensor([[0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333],
                [0.0000, 0.5000, 0.5000]])
    """

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        recipe: Recipe,
        *,
        q_index: int = 0,
        k_index: int = 0,
        q_positions: Tensor | None = None,
        k_positions: Tensor | None = None,
        backend: str | None = None,
        kernel: AttentionKernel | None = None,
    ) -> Tensor:
        if kernel is not None:
            return kernel(q, k, v, recipe)
        if q_positions is None and backend is None and masked.is_decoding(recipe):
            return masked.attend(recipe, q, k, v)
        given = {"k_index": k_index, "q_positions": q_positions, "k_positions": k_positions, "backend": backend}
        if not must_split(q, k, v, recipe, q_index, **given):
            return attend(q, k, v, recipe, q_index=q_index, **given)
        # the reference forms every weight at once, so of a long text it gets some queries at a time
        parts = q.split(max(1, CELLS_AT_ONCE // (q.shape[1] * k.shape[2])), 2)
        starts = accumulate((part.shape[2] for part in parts), initial=q_index)
        split = [attend(part, k, v, recipe, q_index=at, **given) for part, at in zip(parts, starts, strict=False)]
        return torch.cat(split, 2)


def must_split(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    recipe: Recipe,
    q_index: int,
    *,
    k_index: int,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    backend: str | None,
) -> bool:
    """Whether the reference would run it and form too many weights at once: then it gets some queries at a time. No
    gradient may need all weights, and no row depend on another. Code that is traced must not ask for the length."""
    if torch.is_grad_enabled() or dispatch.is_exporting() or torch.compiler.is_compiling():
        return False
    few = q.shape[1] * q.shape[2] * k.shape[2] <= MAX_CELLS
    if (
        few
        or is_content(recipe.pattern)
        or q_positions is not None
        or k_positions is not None
        or not recipe.normaliser.row_wise
    ):
        return False
    return (backend or choose(*prepare(q, k, v, recipe, q_index, k_index))[0]) == "reference"


class GateCore(nn.Module):
    """Weights without queries pass here: gates of channels, static poolings.

    Args:
        note: what a reader must know of these weights.

    Examples:
        >>> gate = GateCore("weights of the mean over time")
        >>> gate(torch.tensor([[0.25, 0.75]]))
        tensor([[0.2500, 0.7500]])
    """

    def __init__(self, note: str):
        super().__init__()
        self.note = note

    def forward(self, weights: Tensor) -> Tensor:
        return weights


# --- sites ---


@dataclass(frozen=True)
class SiteName:
    """Which attention: its name in the model, and the names of the axes of its queries and keys.

    Examples:
        >>> SiteName("decoder.0.cross", queries="target", keys="source")
        SiteName(name='decoder.0.cross', queries='target', keys='source')
        >>> layer = MultiHeadAttention(8, heads=2)
        >>> with record_attention(layer) as record:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> record.sites
        [SiteName(name='attention', queries='queries', keys='keys')]
    """

    name: str
    queries: str
    keys: str


UNDECLARED_AXES = "queries", "keys"  # of a site that nobody has declared

AttentionSites = Mapping[str, SiteName]
"""How a model calls its attentions: from the path of a layer inside of it to a `SiteName`.

Each * of a path is one name, and stands at the same place in the site's name.

Examples:
    >>> class Encoder(torch.nn.Module):
    ...     attention_sites: AttentionSites = {"layers.*": SiteName("encoder.*", "source", "source")}
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layers = torch.nn.Sequential(*(MultiHeadAttention(8, heads=2) for _ in range(2)))
    >>> encoder = Encoder()
    >>> with record_attention(encoder) as record:
    ...     output = encoder.layers(torch.randn(1, 5, 8))
    >>> [site.name for site in record.sites]
    ['encoder.0', 'encoder.1']
"""


@runtime_checkable
class DeclaresSites(Protocol):
    """A module that says how the attentions inside of it are called."""

    attention_sites: AttentionSites


class HasModules(Protocol):
    """A model, or whatever runs one."""

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...


# --- calls ---


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of an AttentionCore: what it was given, and what the layer goes on with.

    Examples:
        >>> layer = MultiHeadAttention(8, heads=2)
        >>> with record_attention(layer) as record:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> call = record.calls_of("attention")[0]
        >>> call.q.shape, call.steps().weights.sum(-1).allclose(torch.ones(1, 2, 5))
        (torch.Size([1, 2, 5, 4]), True)
    """

    site: SiteName
    layer: nn.Module  # whose core it is
    q: Float[Tensor, "b h i d"]
    k: Float[Tensor, "b g j c"]
    v: Float[Tensor, "b g j e"]
    recipe: Recipe
    output: Float[Tensor, "b h i e"]
    q_index: int = 0
    k_index: int = 0
    q_positions: Tensor | None = None
    k_positions: Tensor | None = None
    computed: Steps | None = None  # where every step was computed, as by `record_steps`

    def steps(self) -> Steps:
        """Every step on the way to the output, by the reference."""
        if self.computed is not None:
            return self.computed
        where = {"q_positions": self.q_positions, "k_positions": self.k_positions}
        return steps(self.q, self.k, self.v, self.recipe, q_index=self.q_index, k_index=self.k_index, **where)


@dataclass(frozen=True, eq=False)
class GateCall:
    """One call of a GateCore.

    Examples:
        >>> gate = GateCore("one weight for each channel")
        >>> with record_attention(gate) as record:
        ...     output = gate(torch.tensor([[0.25, 0.75]]))
        >>> call = record.calls_of("attention")[0]
        >>> call.weights, call.note
        (tensor([[0.2500, 0.7500]]), 'one weight for each channel')
    """

    site: SiteName
    weights: Float[Tensor, "b ..."]
    note: str


RecordedCall = AttentionCall | GateCall


@dataclass(frozen=True, eq=False)
class AttentionRecord:
    """Every call, by the name of its site, in the order of their first calls.

    Examples:
        >>> layers = torch.nn.Sequential(MultiHeadAttention(8, heads=2), MultiHeadAttention(8, heads=4))
        >>> with record_attention(layers) as record:
        ...     output = layers(torch.randn(1, 5, 8))
        >>> {site.name: tuple(record.weights(site.name).shape) for site in record.sites}
        {'0': (1, 2, 5, 5), '1': (1, 4, 5, 5)}
    """

    calls: dict[str, list[RecordedCall]] = field(default_factory=dict)

    @property
    def sites(self) -> list[SiteName]:
        return [calls[0].site for calls in self.calls.values()]

    def calls_of(self, name: str) -> list[RecordedCall]:
        if name not in self.calls:
            raise ValueError(f"there is no site {name!r:.80}; there are {', '.join(self.calls) or 'none'}")
        return self.calls[name]

    def steps(self, name: str) -> list[Steps]:
        """Every step of each call of an attention."""
        return [call.steps() for call in self.calls_of(name) if isinstance(call, AttentionCall)]

    def weights(self, name: str) -> Float[Tensor, "b h t s"]:
        """The weights of a site; several calls are one after the other in time. Those of a static pooling are those of
        one head and one query; those of a gate are as they are."""
        gates = [call.weights for call in self.calls_of(name) if isinstance(call, GateCall)]
        if gates:
            return rearrange(gates[0], "b t -> b 1 1 t") if gates[0].dim() == 2 else gates[0]
        weights = [found.weights for found in self.steps(name)]
        keys = max(each.shape[-1] for each in weights)  # a KV cache grows from call to call
        return torch.cat([pad(each, (0, keys - each.shape[-1])) for each in weights], 2)

    def log_probability(self, name: str) -> Float[Tensor, "b h t"] | None:
        """Of the keys that sampled hard attention drew, for `reinforce`; None where nothing was drawn. The draw of the
        output itself is known to `record_steps` alone."""
        drawn = [found.log_probability for found in self.steps(name)]
        return torch.cat([one for one in drawn if one is not None], 2) if None not in drawn and drawn else None


@runtime_checkable
class HasRecipe(Protocol):
    """A layer that knows what its attention is."""

    recipe: Recipe


def choice_loss(record: AttentionRecord) -> Tensor | None:
    """What patterns that choose keys by weights of their own learn from, of all recorded layers together: the `loss` of
    each, against what the layer's heads attend to if it hides no earlier key (the warm-up of DeepSeek-V3.2). None where
    no pattern learns. A trained run adds it by itself; a loop of your own does so:

    Examples:
        >>> recipe = Recipe(pattern=LightningIndexer(3, query=8))
        >>> layer, x = MultiHeadAttention(8, heads=2, recipe=recipe), torch.randn(1, 9, 8)
        >>> with record_attention(layer) as record:
        ...     loss = layer(x).square().mean()
        >>> (loss + choice_loss(record)).backward()
        >>> all(weight.grad is not None for weight in layer.parameters())
        True
    """
    found = list[Tensor]()
    for call in (call for calls in record.calls.values() for call in calls if isinstance(call, AttentionCall)):
        pattern = call.recipe.pattern
        if not is_content(pattern) and isinstance(call.layer, HasRecipe):
            pattern = call.layer.recipe.pattern  # with a KV cache, that of the call holds what was chosen
        for part in conditions(pattern):
            if not isinstance(part, ContentPattern) or type(part).loss is ContentPattern.loss:
                continue
            recipe = replace(call.recipe, pattern=without_choice(pattern, part))
            where = call.q_index, call.k_index, call.q_positions, call.k_positions
            with torch.no_grad():
                weights = replace(call, recipe=recipe, computed=None).steps().weights
                _, q, k, _ = prepare(call.q, call.k, call.v, recipe, *where)
            if (loss := part.loss(q, k, weights)) is not None:
                found.append(loss)
    return torch.stack(found).sum() if found else None


# --- hooks ---


@contextmanager
def hook_modules(functions: Iterable[tuple[nn.Module, Callable[..., Any]]], *, before: bool = False) -> Iterator[None]:
    """Forward hooks for this thread's calls while the block lasts: a function gets module, arguments, named arguments
    and output, and may return another output. One that runs before may return other arguments."""
    hooks, handles = list[ThreadHook](), []
    try:
        for module, function in functions:
            hooks.append(ThreadHook(function, get_ident()))
            register = module.register_forward_pre_hook if before else module.register_forward_hook
            handles.append(register(hooks[-1], with_kwargs=True))
        yield
    finally:
        for hook in hooks:
            hook.active = False  # should a thread be stopped while it removes them
        for handle in handles:
            handle.remove()


@contextmanager
def hook_attention(model: HasModules, function: Callable[[RecordedCall], Tensor | None]) -> Iterator[None]:
    """Every attention and gate of a model is shown to the function, which may return another output."""
    with hook_modules((core, core_hook(site, layer, function)) for core, layer, site in find_sites(model)):
        yield


def core_hook(
    site: SiteName, layer: nn.Module, function: Callable[[RecordedCall], Tensor | None]
) -> Callable[..., Tensor | None]:
    def hook(core: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
        if isinstance(core, GateCore):
            return function(GateCall(site, output, core.note))
        kernel = kwargs.get("kernel")
        computed = kernel.found if isinstance(kernel, StepsKernel) else None
        q, k, v, recipe = args
        return function(AttentionCall(site, layer, q, k, v, recipe, output, computed=computed, **placement(kwargs)))

    return hook


@contextmanager
def record_attention(model: HasModules) -> Iterator[AttentionRecord]:
    """Keeps what every attention was given and gave; weights are computed on demand. No bit of the
    model's output changes.

    Examples:
        >>> layer, x = MultiHeadAttention(8, heads=2), torch.randn(1, 5, 8)
        >>> with record_attention(layer) as record:
        ...     output = layer(x)
        >>> record.weights("attention").shape, torch.equal(output, layer(x))
        (torch.Size([1, 2, 5, 5]), True)
    """
    record = AttentionRecord()

    def keep(call: RecordedCall) -> None:
        record.calls.setdefault(call.site.name, []).append(call)

    with hook_attention(model, keep):
        yield record


@contextmanager
def record_steps(model: HasModules) -> Iterator[AttentionRecord]:
    """As `record_attention`, with every attention computed step by step by the reference: where weights are drawn, as
    by hard attention while training, those recorded are those of the output.

    Examples:
        >>> layer = MultiHeadAttention(8, heads=2, recipe=Recipe(normaliser=Hard())).train()
        >>> with record_steps(layer) as record:
        ...     output = layer(torch.randn(1, 5, 8))
        >>> record.weights("attention").sum(-1).unique(), record.log_probability("attention").shape
        (tensor([1.]), torch.Size([1, 2, 5]))
    """
    cores = [core for core, _, _ in find_sites(model) if isinstance(core, AttentionCore)]
    with record_attention(model) as record, hook_modules(((core, use_steps) for core in cores), before=True):
        yield record


@dataclass(eq=False)
class StepsKernel:
    """The reference, which keeps every step of its one call."""

    where: dict[str, Any]
    found: Steps | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, recipe: Recipe) -> Tensor:
        self.found = steps(q, k, v, recipe, **self.where)
        return self.found.output


def use_steps(core: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return args, kwargs | {"kernel": StepsKernel(placement(kwargs))}


def placement(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The indices and positions of queries and keys among a core's named arguments."""
    return {name: one for name, one in kwargs.items() if name not in ("backend", "kernel")}


def is_recorded(model: HasModules) -> bool:
    """Does this thread record or edit the model's attention? Then it must run as it is, and not by other layers."""
    return any(is_hooked(part) for _, part in model.named_modules() if isinstance(part, AttentionCore | GateCore))


# --- names ---


def find_sites(model: HasModules) -> Iterator[tuple[nn.Module, nn.Module, SiteName]]:
    """Every core of a model, the layer that it belongs to, and the name of its site."""
    modules = dict(model.named_modules())
    for path, core in modules.items():
        if isinstance(core, AttentionCore | GateCore):
            owner = path.rpartition(".")[0]
            yield core, modules[owner], site_of(modules, owner)


def site_of(modules: Mapping[str, nn.Module], path: str) -> SiteName:
    """As the outermost module around the layer calls it; else by its path. A layer of several attentions calls them by
    names behind its own."""
    names = path.split(".") if path else []
    for depth in range(len(names) + 1):
        outer, module = ".".join(names[:depth]), modules[".".join(names[:depth])]
        for cut in range(len(names), depth - 1, -1):
            within = site_within(modules[".".join(names[:cut])], ".".join(names[cut:]))
            found = declared_site(module, ".".join(names[depth:cut])) if within is not None else None
            if found is not None and within is not None:
                axes = {"queries": found.queries, "keys": found.keys}
                name = ".".join(filter(None, (outer, found.name, within.name))) or "attention"
                return SiteName(name, axes.get(within.queries, within.queries), axes.get(within.keys, within.keys))
    return SiteName(path or "attention", *UNDECLARED_AXES)


def site_within(layer: nn.Module, path: str) -> SiteName | None:
    """How a layer calls the attention at a path of its own. The one that is all of it has no name; its axes are what
    the model around it says, but for keys that only the layer knows: "queries" to "mixtures"."""
    found = declared_site(layer, path)
    if path:
        return found
    known = found if found and found.queries == UNDECLARED_AXES[0] else SiteName("", *UNDECLARED_AXES)
    return replace(known, name="")


def declared_site(module: nn.Module, path: str) -> SiteName | None:
    for pattern, site in module.attention_sites.items() if isinstance(module, DeclaresSites) else ():
        if found := path_pattern(pattern).fullmatch(path):
            return replace(site, name=fill_name(site.name, found.groups()))
    return None


@cache
def path_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", r"(\w+)"))


def fill_name(name: str, parts: Sequence[str]) -> str:
    for part in parts:
        name = name.replace("*", part, 1)
    return name
