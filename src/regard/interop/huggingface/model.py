"""Hugging Face models with a core for each of their attentions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from regard.attention.core import hook_modules
from regard.interop.foreign import ForeignModel
from regard.interop.huggingface.attention import INTERFACE, uses_interface
from regard.interop.huggingface.names import site_names


class HuggingFaceModel(ForeignModel):
    """A model of transformers whose attention can be recorded and edited.

    Args:
        model: any model whose attentions go through transformers' AttentionInterface, as nearly all do.
    """

    def __init__(self, model: nn.Module):
        paths = [path for path, module in model.named_modules() if uses_interface(module)]
        if bypassing := find_bypassing(model, paths):
            kind = type(dict(model.named_modules())[bypassing[0]]).__name__
            raise ValueError(
                f"{type(model).__name__} cannot be watched: its {kind} computes attention by itself, and not through "
                "transformers' AttentionInterface"
            )
        if not paths:
            raise ValueError(f"{type(model).__name__} has no attention that could be watched; watch another")
        super().__init__(model, site_names(model, paths))

    @contextmanager
    def attached(self) -> Iterator[None]:
        with INTERFACE.attach(self) as attachment:

            def refuse_unseen(module: nn.Module, *call: Any) -> None:
                """A layer may know another way as well, as GPT-2 does with reorder_and_upcast_attn."""
                if self.hooked_core(module) is not None and module not in attachment.shown:
                    raise ValueError(
                        f"{type(module).__name__} ran without transformers' AttentionInterface, so it cannot be "
                        'watched; choose another implementation: model.set_attn_implementation("sdpa")'
                    )
                attachment.shown.discard(module)

            with hook_modules((module, refuse_unseen) for module in self.paths):
                yield


def find_bypassing(model: nn.Module, paths: list[str]) -> list[str]:
    """The paths of modules that are called attention, and neither use the interface nor stand around one that does."""
    known = set(paths)
    around = {path[:at] for path in paths for at in range(len(path)) if path[at] == "."}

    def belongs(path: str) -> bool:
        return path in known or path in around or any(path.startswith(f"{one}.") for one in known)

    return [
        path
        for path, module in model.named_modules()
        if path
        and "Attention" in type(module).__name__
        and not belongs(path)
        and next(module.parameters(), None) is not None
    ]
