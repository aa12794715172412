"""Attention of torch: nn.MultiheadAttention, and so nn.Transformer and its layers, while they are attached.

Their fused fast path shows nothing, so it is off meanwhile. For a caller who asks for weights (need_weights), torch
would leave its fused attention: watched, that one runs, and the weights are the reference's, before edits.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import AttentionCall, AttentionCore, Causal, Full, NoPosition, Recipe, SiteName
from regard.attention.batch_patterns import mask_parts
from regard.attention.core import UNDECLARED_AXES, ThreadHook
from regard.attention.scaled_score import score_with_scale
from regard.interop.foreign import Attachment, ForeignModel, PatchedLibrary, mask_pattern


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
