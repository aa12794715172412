"""Beam KV cache: the keys and values of all beams, and one decoding step of a prepared model.

A sentence's beams share its source and one store of keys and values. A beam is the set of slots it can see, so when
beams fork or die no key is copied: what is seen follows the parents, and slots that nobody sees are written again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.data.tokenizers.base import EOS, PAD
from regard.decode.ready import PreparedAttention, PreparedModel

KeysValues = Float[Tensor, "2 b g c d"]
QUERIES = 32  # that read the same keys, at most, for our own kernel; torch's is made for more
CELLS = 16384  # beams × slots, at most, for our own kernel: they stand in registers


@dataclass(frozen=True, eq=False)
class BeamKVCache:
    """The memory of b sentences with k beams each. It is written in place: a graph of kernels knows its addresses."""

    sources: tuple[Float[Tensor, "2 b g s d"], ...]
    hidden: Float[Tensor, "b 1 1 s"]
    past: tuple[KeysValues, ...]
    seen: Bool[Tensor, "b k c"]
    at: Int[Tensor, " 1"]

    @property
    def slots(self) -> int:
        return self.seen.shape[2]

    def keep(self, rows: Int[Tensor, " n"]) -> "BeamKVCache":
        """Room for these sentences alone, in this order. Keys and values are moved within this room, which is lost;
        who keeps its place is not moved."""
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        for kv in (*self.sources, *self.past):
            kv[:, moved] = kv[:, rows[moved]]
        return BeamKVCache(
            tuple(kv[:, : len(rows)] for kv in self.sources),
            self.hidden[rows],
            tuple(kv[:, : len(rows)] for kv in self.past),
            self.seen[rows],
            self.at.clone(),
        )

    def pick(self, rows: Int[Tensor, " n"]) -> "BeamKVCache":
        """As `keep`, but copied: on a GPU one kernel to each store, and the host need not wait to know who is moved."""
        sources, past = (tuple(kv[:, rows] for kv in store) for store in (self.sources, self.past))
        return BeamKVCache(sources, self.hidden[rows], past, self.seen[rows], self.at)

    def wider(self, slots: int) -> "BeamKVCache":
        """The same with more slots."""
        more = slots - self.slots
        return BeamKVCache(
            self.sources,
            self.hidden,
            tuple(torch.cat((kv, kv.new_zeros(*kv.shape[:3], more, kv.shape[4])), 3) for kv in self.past),
            torch.cat((self.seen, self.seen.new_zeros(*self.seen.shape[:2], more)), 2),
            self.at,
        )


def room_for(
    ready: PreparedModel, sources: Sequence[Sequence[int]], beams: int, slots: int, *, multiple: int = 1
) -> BeamKVCache:
    """The sources encoded, padded to a multiple of so many tokens; nothing written yet."""
    longest = max(len(source) + 1 for source in sources)
    longest += -longest % multiple
    rows = np.array([[*source, EOS, *[PAD] * (longest - len(source) - 1)] for source in sources])
    ids = torch.from_numpy(rows).to(ready.device)  # torch itself takes several times as long to read lists
    lengths = torch.tensor([len(source) + 1 for source in sources], device=ready.device)
    x = ready.source(ids)
    unseen = torch.arange(ids.shape[1], device=ready.device) >= rearrange(lengths, "b -> b 1")
    hidden = torch.zeros(unseen.shape, dtype=x.dtype, device=ready.device).masked_fill(unseen, -torch.inf)
    hidden = rearrange(hidden, "b s -> b 1 1 s").contiguous()
    real = (~unseen).flatten().nonzero()[:, 0] if x.device.type == "cpu" else None
    states = encode(ready, x, hidden, real)
    kept = []
    for _, across, _ in ready.decoder:
        assert across.source is not None
        k, v = heads_of(spread(across.source(states), real, ids.numel()), len(rows), 2, across.groups)
        k = across.fold(k, k, torch.arange(ids.shape[1], device=ready.device))[1]
        kept.append(torch.stack((k, v)))
    one, own = kept[0], ready.decoder[0][0]
    past = tuple(one.new_zeros(2, len(rows), own.groups, slots, one.shape[-1]) for _ in ready.decoder)
    seen = torch.zeros(len(rows), beams, slots, dtype=torch.bool, device=ready.device)
    return BeamKVCache(tuple(kept), hidden, past, seen, torch.zeros(1, dtype=torch.long, device=ready.device))


def encode(
    ready: PreparedModel, x: Float[Tensor, "b s model"], hidden: Tensor, real: Int[Tensor, " n"] | None
) -> Float[Tensor, "n model"]:
    """The encoder's states, of the real words alone where they are given: what fills a batch up is not multiplied."""
    b, s, _ = x.shape
    at = torch.arange(s, device=x.device)
    x = rearrange(x, "b s model -> (b s) model")
    x = only(x, real)
    for look, think in ready.encoder:
        q, k, v = projected(look, spread(look.into(look.around.before(x)), real, b * s), b)
        heads = joined(attended(*look.fold(q, k, at), v, hidden))
        x = think(look.around.after(x, look.out(only(heads, real))))
    return ready.last(x, "encoder")


def only(x: Tensor, rows: Int[Tensor, " n"] | None) -> Tensor:
    return x if rows is None else x.index_select(0, rows)


def spread(x: Num[Tensor, "n width"], real: Int[Tensor, " n"] | None, count: int) -> Num[Tensor, "count width"]:
    """The rows at their places among as many as there are with padding."""
    return x if real is None else x.new_zeros(count, x.shape[1]).index_copy_(0, real, x)


def step(
    ready: PreparedModel,
    room: BeamKVCache,
    tokens: Int[Tensor, "b k"],
    parents: Int[Tensor, "b k"],
    place: Tensor,
    *,
    width: int | None = None,
    live: Int[Tensor, " n"] | None = None,
) -> Float[Tensor, "n model"]:
    """The states out of which the next words come, after the words just written by beams that grew out of `parents`.

    Args:
        place: what is added to the words for where they stand.
        width: as many slots are in use, at least; None looks them up.
        live: the beams that are asked for, of all counted through; None asks for all.
    """
    (b, k), beams = tokens.shape, tokens.numel()
    slots, see = follow(room, parents, place.dtype)
    width = int(room.seen.flatten(0, 1).any(0).nonzero()[-1]) + 1 if width is None else width
    see = rearrange(see[:, :, :width], "b k c -> b 1 k c")
    x = ready.read(only(rearrange(tokens, "b k -> (b k)"), live)) + place
    at, cells = room.at.expand(k), slots if slots.is_cuda else cells_of(slots, room.past[0])
    everywhere = (
        None if live is None else spread(torch.arange(len(live), device=live.device)[:, None], live, beams)[:, 0]
    )
    for (own, across, think), source, past in zip(ready.decoder, room.sources, room.past, strict=True):
        q, key, value = projected(own, only(own.into(own.around.before(x)), everywhere), b)
        q, key = own.fold(q, key, at)
        write(past, key, value, cells)
        heads = attended(q, past[0, :, :, :width], past[1, :, :, :width], see)
        x = own.around.after(x, own.out(only(joined(heads), live)))
        q = heads_of(only(across.into(across.around.before(x)), everywhere), b, 1, across.heads)[0]
        heads = attended(across.fold(q, q, at)[0], source[0], source[1], room.hidden)
        x = across.around.after(x, across.out(only(joined(heads), live)))
        x = think(x)
    room.at.add_(1)
    return ready.last(x, "decoder")


def follow(
    room: BeamKVCache, parents: Int[Tensor, "b k"], dtype: torch.dtype
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k c"]]:
    """Each beam sees what its parent saw, and the slot that is given to its new word: the first that nobody sees.

    The slots, and what is added to scores: 0 where a beam sees a slot, -∞ elsewhere.
    """
    if parents.is_cuda and room.seen[0].numel() <= CELLS:
        from regard.decode.room_kernel import followed

        return followed(room.seen, parents, dtype)
    _, k, c = room.seen.shape
    seen = room.seen.gather(1, repeat(parents, "b k -> b k c", c=c))
    taken = seen.any(1)
    # every slot counts down from the first, so the free ones with the highest counts come first
    counts = torch.arange(c, 0, -1, device=parents.device).masked_fill(taken, 0)
    slots = counts.topk(k, -1).indices
    room.seen.copy_(seen.scatter_(2, rearrange(slots, "b k -> b k 1"), True))  # noqa: FBT003  (torch's own)
    return slots, torch.zeros((), dtype=dtype, device=parents.device).where(room.seen, -torch.inf)


def cells_of(slots: Int[Tensor, "b k"], past: KeysValues) -> Int[Tensor, " n"]:
    """Where the slots of every sentence and head are, if all are counted through: whole rows are written fastest."""
    _, b, g, c, _ = past.shape
    first = rearrange(torch.arange(b * g, device=slots.device) * c, "(b g) -> b g 1", g=g)
    return rearrange(first + rearrange(slots, "b k -> b 1 k"), "b g k -> (b g k)")


def write(past: KeysValues, key: Tensor, value: Tensor, cells: Int[Tensor, "..."]) -> None:
    """Each beam's key and value into its slot, which a GPU's kernel counts through by itself."""
    if past.is_cuda:
        from regard.decode.room_kernel import keep

        keep(past, key, value, cells)
    else:
        for store, new in zip(past, (key, value), strict=True):
            store.view(-1, store.shape[-1]).index_copy_(0, cells, new.reshape(-1, store.shape[-1]))


def projected(look: PreparedAttention, x: Float[Tensor, "n width"], sentences: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values out of one product, without a copy."""
    if look.heads == look.groups:
        q, k, v = heads_of(x, sentences, 3, look.heads)
        return q, k, v
    head = x.shape[1] // (look.heads + 2 * look.groups)
    q, kv = x.split((look.heads * head, 2 * look.groups * head), -1)
    k, v = heads_of(kv, sentences, 2, look.groups)
    return heads_of(q, sentences, 1, look.heads)[0], k, v


def heads_of(x: Float[Tensor, "n width"], sentences: int, parts: int, heads: int) -> Float[Tensor, "parts b h t d"]:
    # (b t) (parts h d) -> parts b h t d. Not by einops, nor below: for one sentence it would take a tenth of the step
    return x.view(sentences, x.shape[0] // sentences, parts, heads, -1).permute(2, 0, 3, 1, 4)


def joined(heads: Float[Tensor, "b h t d"]) -> Float[Tensor, "n width"]:
    b, h, t, d = heads.shape
    return heads.transpose(1, 2).reshape(b * t, h * d)


def attended(q: Tensor, k: Tensor, v: Tensor, added: Tensor) -> Float[Tensor, "b h t d"]:
    """softmax(q kᵀ + added) v. For a few queries torch's fused kernel is slower on a CPU than its three parts, and on a
    GPU than one made for them."""
    if q.is_cuda and q.shape[1] // k.shape[1] * q.shape[2] <= QUERIES:
        from regard.decode.room_kernel import looked

        return looked(q, k, v, added)
    if q.device.type != "cpu":
        mask = added.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
    if q.shape[2] > 64:
        mask = added.expand(q.shape[0], 1, q.shape[2], k.shape[2])
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return (q @ k.mT).add_(added).softmax(-1) @ v
