"""Rows of several short texts each, without padding between them, in; each word's look at its own text out.

A row is as long as the longest text, or a little longer, and holds as many whole texts as fit; text n of a source row
belongs to text n of the same target row. So attention stays within a row, dense and small, for torch's own kernels: a
few hundred full tiles instead of thousands that are mostly empty. Who sees whom is the same for all layers and heads.
"""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.backends.sdpa import widened

NONE = 0  # the text of what fills up a row


@dataclass(frozen=True, eq=False)
class Texts:
    """Words of several texts in each row.

    Args:
        words: their ids, text after text.
        text: to which text of its row each word belongs, counted from 1; NONE for what fills up the row.
        at: which place it has there, counted from 0.
    """

    words: Int[Tensor, "n t"]
    text: Int[Tensor, "n t"]
    at: Int[Tensor, "n t"]

    def to(self, device: torch.device | str) -> "Texts":
        words, text, at = (part.to(device, non_blocking=True) for part in (self.words, self.text, self.at))
        return Texts(words, text, at)


def hidden(asking: Texts, asked: Texts, dtype: torch.dtype, *, causal: bool = False) -> Float[Tensor, "n 1 i j"]:
    """What is added to the scores: −∞ for words of other texts, and later ones if `causal`.

    What fills up a row sees all of it: nobody reads what comes of it, and 0/0 would spoil the gradients.
    """
    seen = rearrange(asking.text, "n i -> n 1 i 1") == rearrange(asked.text, "n j -> n 1 1 j")
    if causal:
        seen = seen & (rearrange(asking.at, "n i -> n 1 i 1") >= rearrange(asked.at, "n j -> n 1 1 j"))
    seen = seen | (rearrange(asking.text, "n i -> n 1 i 1") == NONE)
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, -torch.inf)


def attend_within(
    q: Float[Tensor, "n i hd"],
    k: Float[Tensor, "n j gd"],
    v: Float[Tensor, "n j gd"],
    added: Float[Tensor, "n 1 i j"],
    *,
    head: int,
    dropout: float = 0.0,
) -> Float[Tensor, "n i hd"]:
    """softmax(q kᵀ / √d + added) v for heads of width `head` side by side."""
    heads = [rearrange(x, "n t (h d) -> n h t d", d=head) for x in (q, k, v)]
    wide = widened(heads[0], heads[1])
    dtype = torch.float32 if wide else q.dtype
    with torch.autocast("cpu", enabled=False) if wide else nullcontext():
        out = scaled_dot_product_attention(
            *(x.to(dtype) if wide else x for x in heads),
            attn_mask=added.to(dtype),
            dropout_p=dropout,
            enable_gqa=q.shape[-1] != k.shape[-1],
        )
    return rearrange(out.to(v.dtype), "n h t d -> n t (h d)")
