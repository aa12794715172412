"""Foreign models: models of other libraries, each of whose attentions passes an AttentionCore while they are attached.

    foreign = foreign_model(model)
    with foreign.attached(), record_attention(foreign) as record:
        model(tokens)

The foreign model keeps its layers, its weights and its own kernels. Nothing is written to it: its attention functions
look for a core that this thread has hooked, and without one they run as ever.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from threading import Lock, get_ident
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from regard.attention import AttentionCall, AttentionCore, BooleanMask, Causal, Full, Pattern, SiteName, Window
from regard.attention.core import is_hooked


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
    from regard.interop.torch_modules import TorchModel

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
