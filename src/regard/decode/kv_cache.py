"""Beam KV cache: the keys and values of all beams, and a Transformer that reads one token of every beam with it.

A sentence's beams share its source and one store of keys and values. A beam is the set of slots it can see, so when
beams fork or die no key is copied: what is seen follows the parents, and slots that nobody sees are written again. To
the model the beams are the tokens of a sentence, each of which sees its own slots.
"""

from collections.abc import Callable, Sequence
from ctypes import CDLL
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention import Context, FloatMask, NoPosition, Recipe
from regard.attention.batch_patterns import UnpaddedTokens
from regard.attention.kv_cache import LayerCache
from regard.attention.multihead import with_pattern
from regard.data.tokenizers.base import EOS, PAD
from regard.decode import beam_kernels
from regard.decode.beam_decoder import keep_sentences
from regard.decode.quantized_linear import ChunkedVocabLinear, KernelLinear, OutputLinear, ScreenedLinear
from regard.decode.search import Ids
from regard.decode.topk import TopKLogProbs, topk_logprobs_torch
from regard.layers import transformer_layers
from regard.layers.transformer_layers import DecoderLayer, KeysValues
from regard.models.transformer import Transformer

Slots = tuple[Float[Tensor, "b g c d"], Float[Tensor, "b g c d"]]  # the keys, and the values
FEW_BEAMS = 16  # whose matrix products take as long as one beam's
ROWS = 8  # oneDNN compiles a kernel for every number of rows it meets, and forgets the oldest of a thousand
MAX_CELLS = 16384  # beams × slots, at most, for the Triton kernel, which holds them in registers


@dataclass(frozen=True, eq=False)
class BeamKVCache:
    """The keys and values of b sentences with k beams each. It is written in place: a CUDA graph knows its addresses.

    Args:
        sources: the source's keys and values for every decoder layer.
        source_mask: 0 at source tokens, -∞ at padding.
        past: for every decoder layer the keys and values of the target tokens, c slots for each sentence.
        seen: the slots that each beam sees.
        at: how many tokens the beams have; one number for all sentences, or one for each.
    """

    sources: tuple[KeysValues, ...]
    source_mask: Float[Tensor, "b 1 1 s"]
    past: tuple[Slots, ...]
    seen: Bool[Tensor, "b k c"]
    at: Int[Tensor, "_ 1"]

    @property
    def slots(self) -> int:
        return self.seen.shape[2]

    def wider(self) -> "BeamKVCache":
        """The same with twice the slots."""
        more = self.slots
        past = tuple((pad(k, (0, 0, 0, more)), pad(v, (0, 0, 0, more))) for k, v in self.past)
        return replace(self, past=past, seen=pad(self.seen, (0, more)))


@dataclass(frozen=True, eq=False)
class BeamSlots(LayerCache):
    """One layer's slots at one step: every beam's key and value are written to a slot of its own.

    Args:
        written: the slot of every beam's token.
        mask: the slots that each beam sees.
        positions: where the tokens stand. Keys are kept rotated.
    """

    slots: Slots
    written: Int[Tensor, "b k"]
    mask: FloatMask
    positions: Int[Tensor, "b k"]

    @property
    def first(self):
        return 0  # queries are counted anew at every step

    def attend(self, layer, q, k, v, recipe):
        q, k, recipe = rotate_once(q, k, recipe, self.positions)
        write_slots(self.slots, k, v, self.written)
        (keys, values), used = self.slots, self.mask.mask.shape[3]
        keys, values = keys.narrow(2, 0, used), values.narrow(2, 0, used)
        return layer.core(q, keys, values, with_pattern(recipe, self.mask), backend=layer.backend)


def rotate_once(q: Tensor, k: Tensor, recipe: Recipe, positions: Int[Tensor, "b t"]) -> tuple[Tensor, Tensor, Recipe]:
    """Queries and keys rotated to their positions, so that the cache holds keys as later queries read them, and the
    recipe that attends to such keys."""
    if not recipe.position.parts():
        return q, k, recipe
    for scheme in recipe.query_key_positions:
        q, k = scheme.rotate(q, positions), scheme.rotate_keys(k, positions)
    return q, k, replace(recipe, position=NoPosition())


def pad_sources(
    sources: Sequence[Ids], like: Tensor, multiple: int = 1
) -> tuple[Int[Tensor, "b s"], Float[Tensor, "b 1 1 s"]]:
    """Source texts as rows of one length, a multiple of so many tokens, and a mask, 0 at tokens and -∞ at padding, on
    the device and in the dtype of a tensor."""
    longest = max(len(source) + 1 for source in sources)
    longest += -longest % multiple
    # torch itself takes several times as long to read lists
    ids = np.array([[*source, EOS, *[PAD] * (longest - len(source) - 1)] for source in sources])
    there = np.arange(longest) <= np.array([[len(source)] for source in sources])
    mask = torch.from_numpy(np.where(there, np.float32(0), -np.inf)[:, None, None])
    return torch.from_numpy(ids).to(like.device), mask.to(like.device, like.dtype)


def encode_padded(
    model: Transformer, ids: Int[Tensor, "b s"], mask: Float[Tensor, "b 1 1 s"], tokens: UnpaddedTokens | None = None
) -> tuple[KeysValues, ...]:
    """Each decoder layer's keys and values of the sources."""
    x = model.source_positions(model.embeddings.embed_source(ids), 0)
    context = Context(pattern=FloatMask(mask), tokens=tokens, captured=x.is_cuda)
    states = transformer_layers.encode_layers(model.encoder, model.encoder_norm, context.unpad(x), context)
    return transformer_layers.cross_keys_values(model.decoder, states, context)


def encode_batch(
    model: Transformer, sources: Sequence[Ids], multiple: int = 1
) -> tuple[tuple[KeysValues, ...], Float[Tensor, "b 1 1 s"]]:
    """The same of source texts, padded to a multiple of so many tokens, and their mask."""
    (ids, mask), tokens = pad_sources(sources, model.embeddings.bias, multiple), None
    if ids.device.type == "cpu" and len({*map(len, sources)}) > 1:  # a GPU would have to wait for them
        tokens = UnpaddedTokens.of((mask.flatten() == 0).nonzero()[:, 0], *ids.shape)
    return encode_padded(model, ids, mask, tokens), mask


def decoder_layers(model: Transformer) -> list[DecoderLayer]:
    return [layer for layer in model.decoder if isinstance(layer, DecoderLayer)]


@dataclass(eq=False)
class TransformerBeams:
    """A `BeamDecoder`: a Transformer that decodes the beams of a batch of sentences.

    Args:
        cache: written in place.
        embedding_positions: what is added to the token at each position, as many as there may be steps.
        topk: from hidden states to the best tokens after them.
        rotates_across: whether cross-attention asks for positions.
        used: slots from here on were not in use at the last step; on a GPU it is not known.
    """

    model: Transformer
    cache: BeamKVCache
    embedding_positions: Float[Tensor, "t model"]
    topk: Callable[[Tensor, Tensor, int, Tensor | None], TopKLogProbs]
    vocabulary: int
    rotates_across: bool
    used: int = 0
    covered: None = None  # a coverage penalty needs the attention weights, which are not kept

    @staticmethod
    def of(
        model: Transformer, sources: Sequence[Ids], *, beams: int, slots: int, steps: int, multiple: int = 1
    ) -> "TransformerBeams":
        """The sources encoded, padded to a multiple of so many tokens; nothing written yet."""
        bias, layers = model.embeddings.bias, decoder_layers(model)
        encoded, mask = encode_batch(model, sources, multiple)
        encoded = tuple((k.contiguous(), v.contiguous()) for k, v in encoded)
        size = len(mask), layers[0].attention.groups, slots, encoded[0][0].shape[3]
        past = tuple((bias.new_zeros(size), bias.new_zeros(size)) for _ in layers)
        seen = torch.zeros(len(mask), beams, slots, dtype=torch.bool, device=bias.device)
        at = torch.zeros(1, 1, dtype=torch.long, device=bias.device)
        return TransformerBeams.over(model, BeamKVCache(encoded, mask, past, seen, at), steps)

    @staticmethod
    def over(model: Transformer, cache: BeamKVCache, steps: int, used: int = 0) -> "TransformerBeams":
        """With this cache, for so many steps."""
        bias = model.embeddings.bias
        positions = model.target_positions.table(steps, model.embeddings.table("target").weight).to(bias.dtype)
        rotates = any(layer.cross.recipe.query_key_positions for layer in decoder_layers(model))
        return TransformerBeams(model, cache, positions, topk_of(model), len(bias), rotates, used)

    @property
    def device(self) -> torch.device:
        return self.cache.at.device

    def live(self, goes: Bool[Tensor, "b k"]) -> Int[Tensor, " n"] | None:
        """None if nearly all beams go on, or if there are too few for it to matter. Of many some that do not go on
        are added, up to a multiple of `ROWS`."""
        if goes.numel() < FEW_BEAMS:
            return None
        count = int(goes.sum())
        count += -count % ROWS if goes.numel() >= 8 * ROWS else 0
        if count * 20 > goes.numel() * 19:
            return None
        return goes.flatten().byte().sort(descending=True, stable=True).indices[:count]

    def step(
        self, tokens: Int[Tensor, "b k"], parents: Int[Tensor, "b k"], live: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n model"]:
        cache, (b, k) = self.cache, tokens.shape
        if self.used + k > cache.slots and not tokens.is_cuda:  # a GPU's host widens it ahead of the step
            in_use = int(cache.seen.any(1).sum(-1).max())
            self.cache = cache = cache.wider() if in_use + k > cache.slots else cache
        slots, mask, self.used = follow_parents(cache, parents)
        mask = FloatMask(mask[:, None, :, : self.used])
        at = cache.at.expand(b, k)
        own = Context(tokens=None if live is None else UnpaddedTokens.of(live, b, k), captured=tokens.is_cuda)
        across = replace(own, pattern=FloatMask(cache.source_mask), positions=at if self.rotates_across else None)
        model, cells = self.model, [BeamSlots(past, slots, mask, at) for past in cache.past]
        x = model.embeddings.embed_target(own.unpad(tokens)) + self.embedding_positions[own.unpad(at)]
        x = transformer_layers.decode_layers(model.decoder, model.decoder_norm, x, cache.sources, own, across, cells)
        cache.at.add_(1)
        return model.embeddings.scale_output(x).flatten(0, 1)

    def keep(self, rows: Int[Tensor, " n"]) -> "TransformerBeams":
        return replace(self, cache=keep_sentences(self.cache, rows))


def topk_of(model: Transformer) -> Callable[[Tensor, Tensor, int, Tensor | None], TopKLogProbs]:
    """From hidden states to the best tokens after them, as is fastest on the model's device and in its precision."""
    table, bias = model.embeddings.table("output"), model.embeddings.bias
    linear = OutputLinear(table.weight, bias) if table.projection is None else table.projection
    if isinstance(linear, ChunkedVocabLinear | KernelLinear | ScreenedLinear):
        return linear.topk
    if bias.is_cuda and isinstance(linear, OutputLinear):
        from regard.decode.kernels import topk_logprobs_triton

        return lambda hidden, *rules: topk_logprobs_triton(linear.multiply(hidden), bias, *rules)
    return lambda hidden, *rules: topk_logprobs_torch(linear(hidden), *rules)


def find_kernels(dtype: torch.dtype, *parts: Tensor) -> CDLL | None:
    """The kernels in C, if they know such numbers and can read and write these tensors; None stands for torch."""
    plain = dtype == torch.float32 and all(part.is_cpu and part.is_contiguous() for part in parts)
    return beam_kernels.beam_kernels() if plain else None


def follow_parents(
    cache: BeamKVCache, parents: Int[Tensor, "b k"]
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k c"], int]:
    """Each beam sees what its parent saw, and the slot that is given to its new token: the first that nobody sees.

    The slots, the mask: 0 where a beam sees a slot, -∞ elsewhere; and how many slots are in use (a GPU: how many there
    are).
    """
    if parents.is_cuda and cache.seen[0].numel() <= MAX_CELLS:
        from regard.decode.kernels import follow_parents_triton

        return *follow_parents_triton(cache.seen, parents, cache.source_mask.dtype), cache.slots
    if (kernels := find_kernels(cache.source_mask.dtype, cache.seen)) is not None:
        return beam_kernels.follow_parents(kernels, cache.seen, parents)
    _, k, c = cache.seen.shape
    seen = cache.seen.gather(1, parents[:, :, None].expand(-1, -1, c))
    taken = seen.any(1)
    # every slot counts down from the first, so the free ones with the highest counts come first
    counts = torch.arange(c, 0, -1, device=parents.device).masked_fill(taken, 0)
    slots = counts.topk(k, -1).indices
    cache.seen.copy_(seen.scatter_(2, slots[:, :, None], True))  # noqa: FBT003  (torch's own)
    mask = cache.source_mask.new_zeros(()).where(cache.seen, -torch.inf)
    return slots, mask, c if mask.is_cuda else int(cache.seen.flatten(0, 1).any(0).nonzero()[-1]) + 1


def write_slots(past: Slots, key: Tensor, value: Tensor, slots: Int[Tensor, "b k"]) -> None:
    """Each beam's key and value into its slot."""
    if key.is_cuda:
        from regard.decode.kernels import write_slots_triton

        write_slots_triton(past, key, value, slots)
    elif (kernels := find_kernels(past[0].dtype, past[0])) is not None:
        beam_kernels.write_slots(kernels, past, key, value, slots)
    else:  # the slots of all heads of all sentences are counted through: whole rows are written fastest
        b, g, c, d = past[0].shape
        rows = (torch.arange(0, b * g * c, c).view(b, g, 1) + slots[:, None]).flatten()
        for store, new in zip(past, (key, value), strict=True):
            store.view(-1, d).index_copy_(0, rows, new.reshape(-1, d))
