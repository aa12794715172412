"""Attention of transformers: while a model is attached, its attention functions pass the cores of a ForeignModel.

Every attention that can be watched asks transformers' `AttentionInterface.get_interface` for the function that the
configuration names (sdpa, eager). Attached, the same function comes back inside of one that shows q, k, v, mask and
scale to the core. The configuration is left alone, so masks are made, and kernels run, as without anybody looking.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import (
    AdditiveMask,
    AttentionCore,
    BooleanMask,
    Causal,
    Full,
    NoPosition,
    Pattern,
    Recipe,
    Softmax,
)
from regard.attention.position import Position
from regard.attention.scaled_score import SoftCap, score_with_scale
from regard.attention.softmax_variants import SinkSoftmax
from regard.interop.foreign import Attachment, PatchedLibrary, mask_pattern

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]

IMPLEMENTATIONS = ("eager", "sdpa")
# What attention functions are given besides q, k, v and the mask, and what it changes. A keyword that is in neither
# table may change the weights in ways that nobody here knows, so it is refused.
READ = ("scaling", "dropout", "is_causal", "softcap", "s_aux", "position_bias")
WITHOUT_EFFECT = (
    "sliding_window",  # the mask holds it
    *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "deterministic"),  # of flash attention alone
    *("position_ids", "cache_position", "use_cache", "past_key_values", "layer_idx"),
    *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "num_items_in_batch"),
)


def uses_interface(module: nn.Module) -> bool:
    """Whether a module's forward asks transformers for its attention function."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)  # a compiled forward has none
    return code is not None and "get_interface" in code.co_names


# --- the interface ---


class PatchedInterface(PatchedLibrary):
    """transformers' AttentionInterface, whose functions pass the hooked cores of attached models."""

    own: Any  # transformers' method

    def patch(self):
        from transformers import AttentionInterface

        self.own = own = AttentionInterface.get_interface

        def get_interface(interface: Any, implementation: str, default: AttentionFunction) -> AttentionFunction:
            return partial(self.run, implementation, own(interface, implementation, default))

        AttentionInterface.get_interface = get_interface  # type: ignore[assignment]

    def restore(self):
        from transformers import AttentionInterface

        AttentionInterface.get_interface = self.own

    def run(
        self, implementation: str, function: AttentionFunction, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The function, and every hooked core of this module around it."""
        for attachment in tuple(self.attachments):
            if (core := attachment.core_of(module)) is not None:
                function = partial(show_call, attachment, core, implementation, function)
        return function(module, *args, **kwargs)


INTERFACE = PatchedInterface()  # of the process, as transformers' own is


def show_call(
    attachment: Attachment,
    core: AttentionCore,
    implementation: str,
    function: AttentionFunction,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    """An attention function's own output, or what the hooks of the core make of it."""
    call = InterfaceCall(module, implementation, query, key, attention_mask, given)
    index = call.q_index()
    if call.is_causal:
        attachment.decoder_index = index
    elif attachment.model.is_cross(module):
        index = attachment.decoder_index
    weights: list[Tensor | None] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe) -> Tensor:
        output, own = function(module, q, k, v, attention_mask, **given)
        weights.append(own)
        return output.transpose(1, 2)

    attachment.shown.add(module)
    output = core(query, key, value, call.recipe(index), q_index=index, kernel=kernel)
    return output.transpose(1, 2).contiguous(), weights[0] if weights else None  # a hook may bring its own kernel


# --- one call as a recipe ---


@dataclass(frozen=True, eq=False)
class InterfaceCall:
    """What an attention function was given, and what that means."""

    module: nn.Module
    implementation: str
    q: Tensor
    k: Tensor
    mask: Any
    given: Mapping[str, Any]

    def __post_init__(self):
        name = type(self.module).__name__
        if self.implementation not in IMPLEMENTATIONS:
            raise ValueError(
                f"{name} attends by {self.implementation!r}, which cannot be watched; choose another: "
                'model.set_attn_implementation("sdpa")'
            )
        if unknown := [one for one, x in self.given.items() if x is not None and one not in (*READ, *WITHOUT_EFFECT)]:
            raise ValueError(
                f"{name} gives its attention {unknown[0]!r}, which is not known here, so its weights cannot be shown "
                "exactly; run it unwatched"
            )
        if self.given.get("dropout"):
            raise ValueError(
                f"{name} drops weights at random ({self.given['dropout']:g}), so they cannot be shown; "
                "call model.eval() first"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.q.shape[2], self.k.shape[2]

    @property
    def is_causal(self) -> bool:
        """Whether the module attends to itself and the past, whatever the mask."""
        given = self.given.get("is_causal")
        return bool(vars(self.module).get("is_causal", True) if given is None else given)

    def recipe(self, index: int) -> Recipe:
        """What was computed, for queries that begin at this index."""
        scale = self.given.get("scaling")
        scale = self.q.shape[-1] ** -0.5 if scale is None else float(scale)
        cap, sinks = self.given.get("softcap"), self.given.get("s_aux")
        score = score_with_scale(scale, self.q.shape[-1])
        pattern, position = self.pattern_and_bias(index)
        return Recipe(
            score=score if cap is None else SoftCap(float(cap), score),
            position=position,
            pattern=pattern,
            normaliser=Softmax() if sinks is None else SinkSoftmax.of(sinks.detach().flatten()),
        )

    def q_index(self) -> int:
        """The index of the first query among the keys, where there is one sequence; after others a mask says."""
        n_q, n_k = self.shape
        if not self.is_causal or n_q >= n_k:
            return 0
        if isinstance(self.mask, Tensor):
            seen = visible_cells(self.mask[..., :n_k])[..., -1, :].flatten(0, -2).any(0).nonzero()
            return max(0, int(seen.max()) + 1 - n_q) if len(seen) else n_k - n_q  # a static cache has empty places
        return n_k - n_q

    def pattern_and_bias(self, first: int) -> tuple[Pattern, Position]:
        (n_q, n_k), bias = self.shape, self.given.get("position_bias")
        position: Position = NoPosition()
        if bias is not None and bool(bias.any()):  # T5's cross-attention is given nothing but zeros
            position = AdditiveMask(bias.detach()[..., :n_k], first)
        if self.mask is None:
            # sdpa alone is told so by a flag, and then counts queries from the first key
            if self.implementation == "sdpa" and self.is_causal and n_q > 1:
                return (BooleanMask(first_keys(n_q, n_k, self.q.device), first) if first else Causal()), position
            return Full(), position
        if not isinstance(self.mask, Tensor) or self.mask.dim() != 4:
            raise ValueError(f"{type(self.module).__name__} has a mask {type(self.mask).__name__}, which is not known")
        mask = self.mask[..., :n_k]
        visible = visible_cells(mask)
        if mask.dtype == torch.bool:
            if self.implementation == "sdpa" and bias is not None:  # the mask and the bias are one there
                blind = ~visible.any(-1, keepdim=True)
                if bool(blind.any()):
                    return BooleanMask(visible | blind, first), AdditiveMask(bias.masked_fill(blind, 0.0), first)
            return mask_pattern(visible, first, self.window), position
        # a row of the smallest numbers alone rounds all its scores away, and weighs every key alike
        blind = ~visible.any(-1, keepdim=True)
        added = mask.masked_fill(~visible & ~blind, 0.0)
        if bool((added != 0).any()):
            position = position + AdditiveMask(added, first)
        return mask_pattern(visible | blind, first, self.window), position

    @property
    def window(self) -> int | None:
        """How many keys a query sees, where the module says so; the mask has the last word."""
        return vars(self.module).get("sliding_window") or self.given.get("sliding_window")


def visible_cells(mask: Tensor) -> Tensor:
    """What a mask lets see: True, or a number that is not of the size that hides."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def first_keys(n_q: int, n_k: int, device: torch.device) -> Tensor:
    return torch.ones(n_q, n_k, dtype=torch.bool, device=device).tril()[None, None]
