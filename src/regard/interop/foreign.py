"""Foreign models: models of other libraries, each of whose attentions passes an AttentionCore while they are attached.

    foreign = foreign_model(model)
    with foreign.attached(), record_attention(foreign) as record:
        model(tokens)

The foreign model keeps its layers, its weights and its own kernels. Nothing is written to it: its attention functions
look for a core that this thread has hooked, and without one they run as ever.

Of torch, nn.MultiheadAttention, and so nn.Transformer and its layers. Their fused fast path shows nothing, so it is off
meanwhile. For a caller who asks for weights (need_weights), torch would leave its fused attention: watched, that one
runs, and the weights are those of the reference, before edits.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, get_ident
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import (
    AttentionCall,
    AttentionCore,
    BooleanMask,
    Causal,
    Full,
    NoPosition,
    Pattern,
    Recipe,
    SiteName,
    Window,
)
from regard.attention.batch_patterns import mask_parts
from regard.attention.core import UNDECLARED_AXES, ThreadHook, is_hooked
from regard.attention.scaled_score import score_with_scale


class ForeignModel(nn.Module, ABC):
    """Abstract: a model around another library's, with a core for each of its attentions.

    Args:
        model: the other library's.
        sites: the name of each attention, by the path of its module.

    Examples:
        >>> from regard.attention import record_attention
        >>> layer, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 5, 8)
        >>> foreign = foreign_model(layer)
        >>> with foreign.attached(), record_attention(foreign) as record:
        ...     output, _ = layer(x, x, x)
        >>> [site.name for site in record.sites], record.weights("attention").shape
        (['attention'], torch.Size([1, 2, 5, 5]))
    """

    def __init__(self, model: nn.Module, sites: Mapping[str, SiteName]):
        super().__init__()
        self.model = model
        modules = dict(model.named_modules())
        self.attention_sites = dict(sites)
        self.paths = {modules[path]: path for path in sites}
        # no submodules of ours: they would be saved, and listed, with the foreign ones
        self.cores: Mapping[str, AttentionCore] = {path: AttentionCore() for path in sites}

    @abstractmethod
    def attached(self) -> AbstractContextManager[None]:
        """While the block lasts, the model's attentions pass their cores."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self.attached():
            return self.model(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:  # type: ignore[override]
        """Those of the foreign model by their own paths, each core below its attention; this one is the root."""
        yield "", self
        for path, module in self.model.named_modules():
            if path:
                yield path, module
        for path, core in self.cores.items():
            yield f"{path}.core" if path else "core", core

    def hooked_core(self, module: nn.Module) -> AttentionCore | None:
        """The core of an attention, if this thread records or edits it."""
        path = self.paths.get(module)
        core = None if path is None else self.cores[path]
        return core if core is not None and is_hooked(core) else None

    def is_cross(self, module: nn.Module) -> bool:
        """Whether an attention's queries and keys are of different texts."""
        site = self.attention_sites[self.paths[module]]
        return site.queries != site.keys


# --- what is attached ---


@dataclass(eq=False)
class Attachment:
    """A model that is attached in one thread, and how far it has come there.

    Args:
        decoder_index: of the first query among the keys, at the last self-attention of its decoder.
        running: the attention layers whose forward pass runs, innermost last.
        calls: what those were given, until they end.
        shown: the attention layers that have passed their cores, and whose forward pass has not ended.
    """

    model: ForeignModel
    thread: int = field(default_factory=get_ident)
    decoder_index: int = 0
    running: list[nn.Module] = field(default_factory=list)
    calls: dict[nn.Module, AttentionCall] = field(default_factory=dict)
    shown: set[nn.Module] = field(default_factory=set)

    def core_of(self, module: nn.Module) -> AttentionCore | None:
        return self.model.hooked_core(module) if get_ident() == self.thread else None


class PatchedLibrary(ABC):
    """Abstract: a function of another library that stands for its own while models are attached, in any thread."""

    def __init__(self):
        self.attachments: list[Attachment] = []
        self.lock = Lock()

    @abstractmethod
    def patch(self) -> None: ...

    @abstractmethod
    def restore(self) -> None: ...

    @contextmanager
    def attach(self, model: ForeignModel) -> Iterator[Attachment]:
        """While the block lasts, the model's attentions pass their cores, in this thread."""
        attachment = Attachment(model)
        with self.lock:
            if not self.attachments:
                self.patch()
            self.attachments.append(attachment)
        try:
            yield attachment
        finally:
            with self.lock:
                self.attachments.remove(attachment)
                if not self.attachments:
                    self.restore()


# --- which library ---


def foreign_model(model: nn.Module) -> ForeignModel:
    """A model of transformers, one around it (an adapter, a pipeline of modules), or one of torch's own layers.

    Examples:
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
        >>> foreign = foreign_model(torch.nn.TransformerEncoder(layer, num_layers=2))
        >>> [site.name for site in foreign.attention_sites.values()]
        ['layers.0', 'layers.1']
    """
    if isinstance(model, ForeignModel):
        return model
    if any(is_transformers_model(part) for part in model.modules()):
        from regard.interop.huggingface.model import HuggingFaceModel

        return HuggingFaceModel(model)
    return TorchModel(model)


def is_transformers_model(model: nn.Module) -> bool:
    """Decided without an import: a model of transformers cannot exist before transformers was loaded."""
    return any(
        (kind.__module__, kind.__name__) == ("transformers.modeling_utils", "PreTrainedModel")
        for kind in type(model).__mro__
    )


# --- masks ---


def mask_pattern(visible: Bool[Tensor, "b h i j"], first: int = 0, window: int | None = None) -> Pattern:
    """What a mask shows, by its name where it has one: all, the past, or a window of the past. Its first row belongs to
    the query at `first`."""
    n_q, n_k = visible.shape[-2:]
    i, j = torch.arange(first, first + n_q, device=visible.device)[:, None], torch.arange(n_k, device=visible.device)
    for pattern in (Full(), Causal(), *([] if window is None else [Causal() & Window(window)])):
        if bool((visible == pattern.sees(i.new_zeros(()), i.new_zeros(()), i, j)).all()):
            return pattern
    return BooleanMask(visible, first)


# --- attention of torch ---


class PatchedFunctional(PatchedLibrary):
    """torch.nn.functional's scaled dot-product attention, which passes the core of the layer that runs."""

    own: Callable[..., Tensor]
    fast_path: bool

    def patch(self):
        self.own, self.fast_path = functional.scaled_dot_product_attention, torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        functional.scaled_dot_product_attention = self.run  # type: ignore[assignment]

    def restore(self):
        functional.scaled_dot_product_attention = self.own  # type: ignore[assignment]
        torch.backends.mha.set_fastpath_enabled(self.fast_path)

    def run(self, *args: Any, **kwargs: Any) -> Tensor:
        function = self.own
        for attachment in tuple(self.attachments):
            module = attachment.running[-1] if attachment.running else None
            if module is not None and (core := attachment.core_of(module)) is not None:
                function = partial(show_call, attachment, core, function)
        return function(*args, **kwargs)


FUNCTIONAL = PatchedFunctional()  # of the process, as torch's own is


def show_call(
    attachment: Attachment,
    core: AttentionCore,
    function: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002  (torch's own)
) -> Tensor:
    """The function's own output, or what the hooks of the core make of it."""
    if dropout_p:
        raise ValueError(
            f"the layer drops weights at random ({dropout_p:g}), so they cannot be shown; call model.eval() first"
        )
    pattern, bias = Causal() if is_causal else Full(), None
    if attn_mask is not None:
        pattern, bias = mask_parts(attn_mask, (query.shape[0], query.shape[1], query.shape[2], key.shape[2]))
        pattern = mask_pattern(pattern.visible)
    position = NoPosition() if bias is None or not bool((bias.added != 0).any()) else bias
    recipe = Recipe(
        score=score_with_scale(query.shape[-1] ** -0.5, query.shape[-1]), pattern=pattern, position=position
    )

    def kernel(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe) -> Tensor:
        return function(q, k, v, attn_mask, dropout_p, is_causal)

    output = core(query, key, value, recipe, kernel=kernel)
    module = attachment.running[-1]
    site = attachment.model.attention_sites[attachment.model.paths[module]]
    attachment.calls[module] = AttentionCall(site, module, query, key, value, recipe, output)
    return output


class TorchModel(ForeignModel):
    """A module with torch's own attention layers, which can be recorded and edited."""

    def __init__(self, model: nn.Module):
        paths = [path for path, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)]
        if not paths:
            raise ValueError(
                f"{type(model).__name__} has no attention that could be watched: it holds no AttentionCore, no "
                "nn.MultiheadAttention, and is no model of transformers"
            )
        super().__init__(model, {path: torch_site(path) for path in paths})

    @contextmanager
    def attached(self) -> Iterator[None]:
        handles = []
        with FUNCTIONAL.attach(self) as attachment:
            try:
                for module in self.paths:
                    layer = LayerCalls(attachment)
                    before, after = (ThreadHook(one, attachment.thread) for one in (layer.enter, layer.leave))
                    handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
                    handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))
                yield
            finally:
                for handle in handles:
                    handle.remove()


def torch_site(path: str) -> SiteName:
    """By the path, without the names that nn.Transformer gives to all of its layers."""
    names = ["cross" if name == "multihead_attn" else name for name in path.split(".")]
    names = [name for name in names if name not in ("layers", "self_attn")]
    names = ["layers", *names] if names and names[0].isdecimal() else names
    return SiteName(".".join(names) or "attention", *UNDECLARED_AXES)


@dataclass(eq=False)
class LayerCalls:
    """One attention layer: while its forward pass runs, torch's attention is its own."""

    attachment: Attachment
    averaged: bool | None = None  # of the weights that the caller asked for, over heads; None if for none

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The same call, without weights: to return them, torch would leave its fused attention."""
        bound = inspect.signature(nn.MultiheadAttention.forward).bind(module, *args, **kwargs)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        self.averaged = given["average_attn_weights"] if given["need_weights"] else None
        self.attachment.running.append(module)
        return (), given | {"need_weights": False}

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        self.attachment.running.remove(module)
        call = self.attachment.calls.pop(module, None)
        if self.averaged is None or call is None or output is None:
            return None
        found = call.steps().weights
        found = found.mean(1) if self.averaged else found
        return output[0], found if kwargs["query"].dim() == 3 else found[0]
