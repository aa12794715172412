"""Hugging Face models behind our interface: a core for each attention, and what our searches ask of a model."""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import SiteName
from regard.attention.core import hook_modules
from regard.data.tokenizers.base import BOS, PAD
from regard.interop.foreign import ForeignModel, is_transformers_model
from regard.interop.huggingface.attention import INTERFACE, uses_interface
from regard.interop.huggingface.processors import HuggingFaceTokenizer


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


# --- names of sites ---


# what a model of transformers reads, by its `main_input_name`, where that is no text
AXES = {"pixel_values": "patches", "input_features": "frames", "input_values": "frames"}
CROSS = re.compile(r"cross|enc_?dec|encoder_attn", re.IGNORECASE)


def site_names(model: nn.Module, paths: Iterable[str]) -> dict[str, SiteName]:
    """The name of each attention; where two would have the same, as in a model of texts and images, their paths."""
    modules, found = dict(model.named_modules()), {}
    inside = {path: inner_path(modules, path) for path in paths}
    pair = any(CROSS.search(path_inside(path)) for path in inside.values())
    for path, inner in inside.items():
        causal = bool(vars(modules[path]).get("is_causal", False))
        found[path] = site_name(inner, axis_read(modules, path), causal=causal, pair=pair)
    twice = {name for name, count in Counter(site.name for site in found.values()).items() if count > 1}
    return {
        path: SiteName(path, site.queries, site.keys) if site.name in twice else site for path, site in found.items()
    }


def inner_path(modules: Mapping[str, nn.Module], path: str) -> str:
    """The path within the model of transformers, which may stand inside of another module."""
    names = path.split(".")
    for depth in range(len(names)):
        if is_transformers_model(modules[".".join(names[:depth])]):
            return ".".join(names[depth:])
    return path


def axis_read(modules: Mapping[str, nn.Module], path: str) -> str | None:
    """What the model around an attention reads, if it reads no text."""
    names = path.split(".")
    around = [modules[".".join(names[:depth])] for depth in range(len(names))]
    read = [AXES.get(str(one.main_input_name)) for one in around if is_transformers_model(one)]
    return next((axis for axis in reversed(read) if axis is not None), None)


def site_name(path: str, axis: str | None, *, causal: bool, pair: bool) -> SiteName:
    """Of a model with cross-attention (a pair), or of one stack, which is named after what it does; `axis` is what it
    reads, if that is no text."""
    before, number = split_path(path)
    is_cross = bool(CROSS.search(path_inside(path)))
    decoder = is_cross or "decoder" in before or ("encoder" not in before and causal)
    stack = "decoder" if decoder else "encoder"
    if not pair:
        return SiteName(f"{stack}.{number}", axis or "text", axis or "text")
    source = axis or "source"
    if is_cross:
        return SiteName(f"{stack}.{number}.cross", "written", source)
    return (
        SiteName(f"decoder.{number}.self", "read", "read") if decoder else SiteName(f"{stack}.{number}", source, source)
    )


def split_path(path: str) -> tuple[list[str], str]:
    """The names before the number of the layer, and that number."""
    names = path.split(".")
    at = next((n for n, name in enumerate(names) if name.isdecimal()), len(names))
    return names[:at], names[at] if at < len(names) else "0"


def path_inside(path: str) -> str:
    """What follows the number of the layer."""
    before, _ = split_path(path)
    return ".".join(path.split(".")[len(before) :])


# --- models that generate ---


def copy_cache(cache: Any) -> Any:
    """A cache that can grow while the old one stays as it was: it shares the tensors, which are never written to."""
    found = copy(cache)
    if "self_attention_cache" in vars(cache):
        found.self_attention_cache = copy_cache(cache.self_attention_cache)
        found.cross_attention_cache = copy_cache(cache.cross_attention_cache)
        found.is_updated = dict(cache.is_updated)
    else:
        found.layers = [copy(layer) for layer in cache.layers]
    return found


@dataclass(frozen=True, eq=False)
class CacheState:
    """A KV cache of transformers, a row for each hypothesis."""

    cache: Any

    def pick(self, rows: Tensor) -> "CacheState":
        found = copy_cache(self.cache)
        found.batch_select_indices(rows)
        return CacheState(found)


@dataclass(frozen=True, eq=False)
class EncoderMemory:
    """What the encoder made of the sources, and which of their tokens are no padding; None: none can be."""

    hidden: Tensor
    mask: Tensor | None

    def pick(self, rows: Tensor) -> "EncoderMemory":
        return EncoderMemory(self.hidden[rows], None if self.mask is None else self.mask[rows])


class GenerativeModel(HuggingFaceModel):
    """Abstract: a Hugging Face model whose tokens and logits have our order of ids.

    Args:
        model: a causal language model, or a sequence-to-sequence model.
        tokenizer: with that order.
    """

    to_foreign: Tensor
    missing: Tensor

    def __init__(self, model: nn.Module, tokenizer: HuggingFaceTokenizer):
        super().__init__(model)
        ids = torch.tensor(tokenizer.to_foreign)
        self.register_buffer("to_foreign", ids.clamp(min=0), persistent=False)
        # what begins a text is some other token as well (T5's padding, BART's end), and counts once
        missing = (ids < 0) | (torch.arange(len(ids)) == BOS)
        self.register_buffer("missing", missing, persistent=False)

    @property
    def embedding(self) -> nn.Module:
        """Of the tokens; it says where the model is."""
        return self.model.get_input_embeddings()  # type: ignore[operator]

    def own_order(self, logits: Tensor) -> Tensor:
        """Logits in our order, -∞ for special tokens that the model does not have."""
        return logits.index_select(-1, self.to_foreign).masked_fill(self.missing, -torch.inf)

    def new_cache(self) -> Any:
        """One that drops no keys, also of layers with a sliding window: the mask hides them."""
        from transformers import DynamicCache

        return DynamicCache()


class CausalLM(GenerativeModel):
    """A causal language model, read at once or token by token."""

    def start(self, batch: int) -> CacheState:
        return CacheState(self.new_cache())

    def decode_hidden(self, tokens: Tensor, state: CacheState) -> tuple[Tensor, CacheState]:
        """Logits already: what comes between them and the hidden states is the model's own."""
        cache = copy_cache(state.cache)
        with self.attached():
            found = self.model(input_ids=self.to_foreign[tokens], past_key_values=cache, use_cache=True)
        return self.own_order(found.logits), CacheState(cache)

    def logits(self, x: Tensor) -> Tensor:
        return x

    def memory_grows(self, state: CacheState) -> bool:
        return True


class EncoderDecoderLM(GenerativeModel):
    """Abstract: a sequence-to-sequence model: sources are encoded once, targets are read step by step."""

    @abstractmethod
    def encode(self, source: Tensor, lengths: Tensor) -> EncoderMemory: ...

    def start(self, memory: EncoderMemory) -> CacheState:
        from transformers import EncoderDecoderCache

        return CacheState(EncoderDecoderCache(self.new_cache(), self.new_cache()))

    def step(self, tokens: Tensor, state: CacheState, memory: EncoderMemory) -> tuple[Tensor, CacheState]:
        from transformers.modeling_outputs import BaseModelOutput

        cache = copy_cache(state.cache)
        with self.attached():
            found = self.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=memory.hidden),  # type: ignore[arg-type]
                attention_mask=memory.mask,
                decoder_input_ids=self.to_foreign[tokens],
                past_key_values=cache,
                use_cache=True,
            )
        return self.own_order(found.logits), CacheState(cache)


class Seq2SeqLM(EncoderDecoderLM):
    """A sequence-to-sequence model whose sources are texts."""

    def encode(self, source: Tensor, lengths: Tensor) -> EncoderMemory:
        mask = torch.arange(source.shape[1], device=source.device) < lengths[:, None]
        ids = self.to_foreign[source].masked_fill(source == PAD, self.model.config.pad_token_id or 0)  # type: ignore
        with self.attached():
            found = self.model.get_encoder()(input_ids=ids, attention_mask=mask.long())  # type: ignore[operator]
        return EncoderMemory(found.last_hidden_state, mask.long())


class SpeechSeq2SeqLM(EncoderDecoderLM):
    """A sequence-to-sequence model whose sources are sounds: their features (b, bins, frames)."""

    def encode(self, source: Tensor, lengths: Tensor) -> EncoderMemory:
        with self.attached():
            found = self.model.get_encoder()(source.to(self.embedding.weight))  # type: ignore[operator, arg-type]
        return EncoderMemory(found.last_hidden_state, None)


@dataclass(frozen=True, eq=False)
class HeardSpeech:
    """A speech model with the one sound that it reads, so that a search need not know of sounds.

    Args:
        model: the speech model.
        features: of the sound.
        forced: how many tokens the text is made to begin with.
        suppressed: ids of ours that are never written after them.
        not_first: ids of ours that may not follow them at once.
    """

    model: SpeechSeq2SeqLM
    features: Tensor
    forced: int = 0
    suppressed: tuple[int, ...] = ()
    not_first: tuple[int, ...] = ()

    def encode(self, source: Tensor, lengths: Tensor) -> EncoderMemory:
        return self.model.encode(self.features, lengths)

    def start(self, memory: EncoderMemory) -> CacheState:
        return self.model.start(memory)

    def step(self, tokens: Tensor, state: CacheState, memory: EncoderMemory) -> tuple[Tensor, CacheState]:
        first = self.forced - state.cache.get_seq_length()
        logits, state = self.model.step(tokens, state, memory)
        logits[:, max(first, 0) :, list(self.suppressed)] = -torch.inf
        if 0 <= first < logits.shape[1]:
            logits[:, first, list(self.not_first)] = -torch.inf
        return logits, state

    def eval(self) -> "HeardSpeech":
        self.model.eval()
        return self

    def modules(self) -> Iterator[nn.Module]:
        return self.model.modules()

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        return self.model.named_modules()

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:  # noqa: FBT001, FBT002  (torch's own)
        return self.model.parameters(recurse)
