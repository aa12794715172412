"""Texts packed into rows in; for every layer a way to look within them out. Three ways, one meaning.

    Dense     torch's attention under a mask: any device, any row, and the same bits every time
    Tiled     kernels of ours, one tile a row: no mask, the same bits every time; rows of up to 128 words
    Varlen    FlashAttention told where each text ends: rows of any length, on a GPU, for 16-bit numbers

A way is a value; what it makes of a batch, the sights, are what the layers are given.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.layers.packed import NONE, Texts, attend_within, hidden
from regard.layers.packed_rows import LONGEST, row_look, row_look_at_itself

WIDEST = 64  # numbers in a head: of wider ones a tile is slow, or does not fit at all

Q = Float[Tensor, "n i hd"]
K = Float[Tensor, "n j gd"]


class Sight(ABC):
    """Abstract: who sees whom in one layer, and how to look."""

    @abstractmethod
    def attend(self, q: Q, k: K, v: K, *, head: int, dropout: float) -> Q:
        """softmax(q kᵀ / √head) v among those who see each other, for heads of width `head` side by side."""

    @abstractmethod
    def attend_itself(self, qkv: Float[Tensor, "n t all"], *, heads: int, head: int, dropout: float) -> Q:
        """The same for queries, keys and values that lie side by side."""


class Looking(ABC):
    """Abstract: a way to look within packed texts."""

    @abstractmethod
    def sights(
        self, asking: Texts, asked: Texts, dtype: torch.dtype, *, causal: bool = False, layers: int = 1
    ) -> list[Sight]:
        """One for each of so many layers; `dtype` is that of the queries."""


# --- under a mask ---


@dataclass(frozen=True, eq=False)
class Masked(Sight):
    added: Float[Tensor, "n 1 i j"]

    def attend(self, q, k, v, *, head, dropout):
        return attend_within(q, k, v, self.added, head=head, dropout=dropout)

    def attend_itself(self, qkv, *, heads, head, dropout):
        return self.attend(*parted(qkv, heads, head), head=head, dropout=dropout)


@dataclass(frozen=True)
class Dense(Looking):
    def sights(self, asking, asked, dtype, *, causal=False, layers=1) -> list[Sight]:
        return [Masked(hidden(asking, asked, dtype, causal=causal))] * layers


# --- one tile a row ---


@dataclass(frozen=True, eq=False)
class OneTile(Sight):
    asking: Int[Tensor, "n i"]
    asked: Int[Tensor, "n j"]
    seed: Int[Tensor, ""]  # of the noise of dropout
    causal: bool

    def attend(self, q, k, v, *, head, dropout):
        q, k = (x.to(v.dtype) for x in (q, k))  # turning them may have widened them
        return row_look(q, k, v, self.asking, self.asked, self.seed, head, self.causal, dropout)[0]

    def attend_itself(self, qkv, *, heads, head, dropout):
        return row_look_at_itself(qkv, self.asking, self.seed, heads, head, self.causal, dropout)[0]


@dataclass(frozen=True)
class Tiled(Looking):
    def sights(self, asking, asked, dtype, *, causal=False, layers=1) -> list[Sight]:
        length = max(asking.text.shape[1], asked.text.shape[1])
        if length > LONGEST:
            raise ValueError(
                f"rows of {length} words do not fit into one tile of {LONGEST}; use Dense() or Varlen(...)"
            )
        seeds = torch.randint(2**31, (layers,), device=asking.text.device)
        return [OneTile(asking.text.contiguous(), asked.text.contiguous(), seed, causal) for seed in seeds.unbind()]


def fastest(length: int, head: int, precision: str) -> Looking:
    """Of those that give the same bits every time, on a GPU; of numbers in 32 bits, a tile does not fit there."""
    return Tiled() if length <= LONGEST and head <= WIDEST and precision != "float32" else Dense()


# --- text by text ---


@dataclass(frozen=True, eq=False)
class TextByText(Sight):
    """Where the texts begin, and the last one ends, in all rows laid one behind the other."""

    asking: Int[Tensor, " texts"]
    asked: Int[Tensor, " texts"]
    causal: bool

    def attend(self, q, k, v, *, head, dropout):
        (rows, queries, _), keys = q.shape, k.shape[1]
        heads = [rearrange(x.to(v.dtype), "n t (h d) -> (n t) h d", d=head) for x in (q, k, v)]
        ends = self.asking, self.asked, queries, keys
        how = {"dropout_p": dropout, "is_causal": self.causal, "return_debug_mask": False}
        found = torch.ops.aten._flash_attention_forward(*heads, *ends, **how)[0]
        return rearrange(found, "(n t) h d -> n t (h d)", n=rows)

    def attend_itself(self, qkv, *, heads, head, dropout):
        return self.attend(*parted(qkv, heads, head), head=head, dropout=dropout)


@dataclass(frozen=True)
class Varlen(Looking):
    """Args:
    most: texts that one row may hold; their number, not what is in them, is the same for all batches.
    """

    most: int

    def sights(self, asking, asked, dtype, *, causal=False, layers=1) -> list[Sight]:
        if not asking.text.is_cuda or dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(f"Varlen() runs on a GPU in 16 bits, not in {dtype} on {asking.text.device}; use Dense()")
        return [TextByText(ends(asking, self.most), ends(asked, self.most), causal)] * layers


def ends(texts: Texts, most: int) -> Int[Tensor, " texts"]:
    """Each row's texts, empty ones and what fills it up included, so that text n of one side is text n of the other."""
    numbers = (torch.arange(most + 1, device=texts.text.device) + 1) % (most + 1)  # what fills up comes last
    assert NONE == 0
    counts = (rearrange(texts.text, "n t -> n t 1") == numbers).sum(1)
    return pad(counts.flatten().cumsum(0), (1, 0)).to(torch.int32)


def parted(qkv: Tensor, heads: int, head: int) -> list[Tensor]:
    keys = (qkv.shape[2] - heads * head) // 2
    return list(qkv.split([heads * head, keys, keys], 2))
