"""Hugging Face models behind our interface: a core for each attention, and what our searches ask of a model.

Every attention that can be watched asks transformers' `AttentionInterface.get_interface` for the function that the
configuration names (sdpa, eager). While a model is attached, the same function comes back inside of one that shows q,
k, v, mask and scale to the core. The configuration is left alone, so masks are made, and kernels run, as without
anybody looking.
"""

import inspect
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor, nn

from regard.attention import (
    AdditiveMask,
    BooleanMask,
    Causal,
    NoPosition,
    Recipe,
    Softmax,
)
from regard.attention.core import AttentionCore, SiteName, hook_modules
from regard.attention.pattern import Full, Pattern
from regard.attention.position import Position
from regard.attention.scaled_score import SoftCap, score_with_scale
from regard.attention.softmax_variants import SinkSoftmax
from regard.data.images import read_image
from regard.data.preprocess import read_wav
from regard.data.tokenizers.base import BOS, EOS, PAD, TextNormalizer
from regard.data.tokenizers.pretrained import ForeignTokenizer, foreign_order
from regard.interop.foreign import Attachment, ForeignModel, PatchedLibrary, is_transformers_model, mask_pattern
from regard.tasks.image_batches import grid_axis
from regard.tasks.protocol import TaskInput, TokenAxis

# --- tokenizers: the ids of a model are mapped to our order on the way in, and its logits on the way out ---


@dataclass(frozen=True, eq=False)
class HuggingFaceTokenizer(ForeignTokenizer):
    """A tokenizer of transformers.

    Args:
        own: the tokenizer.
        to_foreign: of each id here the id there; -1 for a special one that the model does not have.
        from_foreign: the reverse.
        side: which of its texts it reads: a source's (text), or a target's, whose pieces or language may be others.
    """

    own: Any = field(repr=False)
    to_foreign: tuple[int, ...] = field(repr=False)
    from_foreign: dict[int, int] = field(repr=False)
    side: Literal["text", "text_target"] = "text"
    normalizer: TextNormalizer = TextNormalizer()
    kind = "huggingface"

    @staticmethod
    def of(own: Any, vocabulary: int, start: int | None, end: int | None) -> "HuggingFaceTokenizer":
        """For a model with so many logits, whose texts begin and end with these ids of its own."""
        to_foreign, from_foreign = foreign_order(vocabulary, (own.pad_token_id, start, end, own.unk_token_id))
        return HuggingFaceTokenizer(own, to_foreign, from_foreign)

    def encode(self, text):
        return [self.from_foreign[one] for one in self.foreign_ids(text)]

    def foreign_ids(self, text: str) -> list[int]:
        """The model's own ids of a text with all that its tokenizer adds, but for the end, which a search appends."""
        ids = list(self.own(**{self.side: text})["input_ids"])
        return ids[:-1] if ids and self.from_foreign[ids[-1]] == EOS else ids

    def foreign_piece(self, one):
        found = self.own.convert_ids_to_tokens(one)
        return found if isinstance(found, str) else None

    def foreign_text(self, ids, *, skip_special):
        return self.own.decode(list(ids), skip_special_tokens=skip_special)

    def is_foreign_special(self, one):
        return one in self.own.all_special_ids

    def to_dict(self):
        raise ValueError("a Hugging Face tokenizer is saved by itself: tokenizer.save_pretrained(folder)")

    def written(self, ids: Iterable[int]) -> str:
        """The text of what a model wrote, without its special tokens."""
        return self.own.decode([self.to_foreign[one] for one in ids], skip_special_tokens=True).strip()


# --- pictures and sounds ---


# tokens that stand before the patches, by the parameters that they are
TOKENS_BEFORE = {
    "cls_token": "class",
    "class_embedding": "class",
    "distillation_token": "distillation",
    "register_tokens": "register",
}


def part_of(processor: Any, name: str) -> Any:
    """The part of a processor (its image_processor, its tokenizer), or the processor where it is that part itself."""
    return vars(processor).get(name, processor)


# --- pictures ---


@dataclass(frozen=True, eq=False)
class PictureReader:
    """An image processor of transformers."""

    processor: Any

    @staticmethod
    def of(processor: Any, model: Any) -> "PictureReader":
        from transformers.image_processing_utils import BaseImageProcessor

        found = part_of(processor, "image_processor")
        if not isinstance(found, BaseImageProcessor):
            raise ValueError(
                f"{type(model).__name__} reads pictures, and {type(processor).__name__} is no image processor; give "
                "one: regard.trace(model, image_processor, picture)"
            )
        return PictureReader(found)

    def read(self, given: TaskInput) -> Float[Tensor, "1 c h w"]:
        """Resized and normalised as the model wants it."""
        image = Image.fromarray(rearrange(read_image(given.media), "c h w -> h w c").numpy())
        return self.processor(images=image, return_tensors="pt")["pixel_values"].float()

    def shown(self, pixels: Float[Tensor, "1 c h w"]) -> UInt8[Tensor, "c h w"]:
        """What the model reads, as a picture again."""
        found, shape = pixels[0].cpu(), (-1, 1, 1)
        if self.processor.do_normalize:
            mean, std = (torch.tensor(one).view(shape) for one in (self.processor.image_mean, self.processor.image_std))
            found = found * std + mean
        found = found / self.processor.rescale_factor if self.processor.do_rescale else found
        return found.round().clamp(0, 255).to(torch.uint8)


def patch_axis(model: Any, pixels: Float[Tensor, "1 c h w"]) -> TokenAxis:
    """The tokens that a model makes of a picture."""
    config = model.config
    found = vars(config).get("patch_size") or vars(vars(config).get("vision_config") or config).get("patch_size")
    if found is None:
        raise ValueError(
            f"the configuration of {type(model).__name__} names no patch_size; watch it: regard.watch(model)"
        )
    high, wide = (found, found) if isinstance(found, int) else found
    before = []
    for path, weight in model.named_parameters():
        if name := TOKENS_BEFORE.get(path.rpartition(".")[2]):
            count = weight.shape[1] if weight.dim() == 3 else 1
            before += [name] if count == 1 else [f"{name} {n}" for n in range(count)]
    return grid_axis((pixels.shape[2] // high, pixels.shape[3] // wide), before)


# --- sounds ---


@dataclass(frozen=True, eq=False)
class SoundReader:
    """A feature extractor of transformers."""

    extractor: Any

    @staticmethod
    def of(processor: Any, model: Any) -> "SoundReader":
        from transformers import SequenceFeatureExtractor

        found = part_of(processor, "feature_extractor")
        if not isinstance(found, SequenceFeatureExtractor) or part_of(processor, "tokenizer") is processor:
            raise ValueError(
                f"{type(model).__name__} reads sounds, and {type(processor).__name__} holds no feature extractor and "
                "tokenizer; give its processor: regard.trace(model, processor, sound)"
            )
        return SoundReader(found)

    @property
    def rate(self) -> int:
        return self.extractor.sampling_rate

    def read(self, given: TaskInput) -> Float[Tensor, "1 bins t"]:
        """The features of a .wav file, of samples at the extractor's own rate, or those that are given."""
        if given.array is None:
            samples = read_wav(given.text, self.rate)
        else:
            samples = np.asarray(given.array, np.float32)
            if samples.ndim == 3 and len(samples) == 1:
                samples = samples[0]
            if samples.ndim == 2 and len(samples) == self.extractor.feature_size:
                return torch.from_numpy(samples)[None]
            if samples.ndim != 1 or not len(samples):
                raise ValueError(
                    f"a sound is samples, shape (n,), or {self.extractor.feature_size} features of each frame, shape "
                    f"({self.extractor.feature_size}, frames), not {samples.shape}"
                )
        seconds, most = len(samples) / self.rate, self.extractor.n_samples / self.rate
        if seconds > most:
            raise ValueError(f"a sound of {seconds:.1f} s is longer than the {most:g} s that the model reads; cut it")
        return self.extractor(samples, sampling_rate=self.rate, return_tensors="pt")["input_features"].float()

    def axis(self, frames: int, positions: int) -> TokenAxis:
        """What an encoder makes of so many frames: the second at which each of its positions begins."""
        seconds = frames * self.extractor.hop_length / self.rate / positions
        return TokenAxis(tuple(f"{n * seconds:.2f} s" for n in range(positions)))


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


# --- attention functions of transformers ---


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
            # sdpa alone has a flag for it, and then counts queries from the first key
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
