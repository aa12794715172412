"""Native sparse attention: compressed, chosen and nearby keys, each by an attention of its own, added by gates.

    o = g₁ attend(q, φ(K₁), φ(V₁)) + g₂ attend(q, K₂, V₂ | the blocks chosen) + g₃ attend(q, K₃, V₃ | a window)

φ maps each block of keys to one, the weights of the first attention say which blocks the second sees, and the gates
g = σ(W x) are made from the token (NSA; Yuan et al. 2025). As there, every query chooses for itself, and heads that
share keys choose together. Unlike there, φ is linear, and blocks of both kinds are the same and do not overlap.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.batch_patterns import Padding
from regard.attention.core import AttentionCore
from regard.attention.functional import steps
from regard.attention.kv_cache import CacheCell, LayerCache
from regard.attention.layer_options import LayerForm
from regard.attention.pattern import Causal, Full, Pattern, Window, require_int
from regard.attention.position import NoPosition
from regard.attention.recipe import Recipe
from regard.attention.sparse_patterns import BlockChoice, top_blocks
from regard.attention.text_positions import Context

if TYPE_CHECKING:
    from regard.attention.multihead import MultiHeadAttention

BRANCHES = "compressed", "chosen", "window"


@dataclass(frozen=True)
class NativeSparse(LayerForm):
    """The sizes of native sparse attention (NSA; Yuan et al. 2025), which is causal.

    Args:
        block: of keys that are compressed into one, and chosen together.
        k: how many blocks a query sees in the second branch, the first and its own among them.
        window: how many keys it sees in the third.

    Examples:
        >>> layer = MultiHeadAttention(16, heads=4, groups=2, form=NativeSparse(block=4, k=2, window=3))
        >>> x = torch.randn(1, 11, 16)
        >>> first, cache = layer.extend(x[:, :5])
        >>> rest, cache = layer.extend(x[:, 5:], cache)
        >>> torch.cat((first, rest), 1).allclose(layer(x), atol=1e-5)
        True
        >>> with record_attention(layer) as record:
        ...     output = layer(x)
        >>> {site.name: tuple(record.weights(site.name).shape) for site in record.sites}
        {'compressed': (1, 4, 11, 2), 'chosen': (1, 4, 11, 11), 'window': (1, 4, 11, 11)}
    """

    block: int = 64
    k: int = 16
    window: int = 512

    def __post_init__(self):
        for number, least, what in ((self.block, 1, "block"), (self.k, 2, "k"), (self.window, 1, "window")):
            require_int(self, number, least, what)

    def check(self, recipe, heads, groups, head):
        if recipe.pattern not in (Full(), Causal()):
            raise ValueError(f"{self} chooses by itself what a token sees: leave out {recipe.pattern}")
        if recipe.gate.values or not recipe.normaliser.row_wise:
            raise ValueError(f"{self} weighs each row by itself; leave out {recipe.gate} and {recipe.normaliser}")


@dataclass(frozen=True)
class CompressedPast(Pattern):
    """Key j stands for a block of tokens, and is seen by those who have read the whole block.

    Examples:
        >>> i, j = torch.arange(6)[:, None], torch.arange(3)
        >>> CompressedPast(2).sees(0, 0, i, j).long()
        tensor([[0, 0, 0],
                [1, 0, 0],
                [1, 0, 0],
                [1, 1, 0],
                [1, 1, 0],
                [1, 1, 1]])
    """

    block: int

    def __post_init__(self):
        require_int(self, self.block, 1, "block")

    def sees(self, b, h, i, j):
        return (j + 1) * self.block <= i + 1


class BlockCompression(nn.Module):
    """φ: one key (or value) of each whole block, W [x₁ + e₁, ..., x_n + e_n], e learned for each place in the block.

    Examples:
        >>> compress = BlockCompression(block=2, head=1)
        >>> compress.weight.weight.data = torch.tensor([[1.0, 10.0]])
        >>> compress(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, 1, 5, 1)).flatten().data  # the last is no block
        tensor([21., 43.])
    """

    def __init__(self, block: int, head: int):
        super().__init__()
        self.block, self.places = block, nn.Parameter(torch.zeros(block, head))
        self.weight = nn.Linear(block * head, head, bias=False)

    def forward(self, x: Float[Tensor, "b g t d"]) -> Float[Tensor, "b g c d"]:
        whole = x[:, :, : x.shape[2] // self.block * self.block]
        blocks = rearrange(whole, "b g (c n) d -> b g c n d", n=self.block) + self.places
        return self.weight(rearrange(blocks, "b g c n d -> b g c (n d)"))


class SparseBranch(nn.Module):
    """One of the attentions, under whose name it is seen."""

    def __init__(self):
        super().__init__()
        self.core = AttentionCore()


class SparseBranches(nn.Module):
    """The three attentions of a layer, whose keys and values are those of the first, of the second and of the third.

    Args:
        form: their sizes.
        model: the width of the tokens.
        heads: how many query heads; `groups` key and value heads of each branch serve them.
        head: the width of a head.
    """

    def __init__(self, form: NativeSparse, model: int, *, heads: int, groups: int, head: int):
        super().__init__()
        self.form, self.heads, self.groups = form, heads, groups
        self.gate = nn.Linear(model, len(BRANCHES) * heads)
        self.compress_key, self.compress_value = (BlockCompression(form.block, head) for _ in range(2))
        self.compressed, self.chosen, self.window = (SparseBranch() for _ in BRANCHES)

    def forward(
        self,
        layer: "MultiHeadAttention",
        x: Float[Tensor, "b t model"],
        recipe: Recipe,
        context: Context,
        cache: LayerCache | None,
    ) -> Float[Tensor, "b h i e"]:
        """The heads of new tokens after those in the cache, which keeps the keys and values of all branches."""
        self.refuse(context, cache)
        q, k, v = layer.project(x, None, context)
        start = 0
        if isinstance(cache, CacheCell):
            start = cache.first
            (k, v), *_ = cache.append((k, v), recipe)
        keys, values = k.chunk(len(BRANCHES), 1), v.chunk(len(BRANCHES), 1)
        few = self.compress_key(keys[0]), self.compress_value(values[0])
        compressed = replace(recipe, position=NoPosition(), pattern=CompressedPast(self.form.block))
        chosen = replace(recipe, pattern=self.choose(layer, q, *few, start))
        near = replace(recipe, pattern=Causal() & Window(self.form.window))
        outputs = (
            self.compressed.core(q, *few, compressed, q_index=start),
            self.chosen.core(q, keys[1], values[1], chosen, q_index=start),
            self.window.core(q, keys[2], values[2], near, q_index=start),
        )
        gates = rearrange(self.gate(*context.pad(x)).sigmoid(), "b t (n h) -> n b h t 1", n=len(BRANCHES))
        return torch.stack(outputs).mul(gates).sum(0)

    def refuse(self, context: Context, cache: LayerCache | None) -> None:
        """Padding comes after a text, and nobody sees what comes after; other patterns have no place here."""
        if not isinstance(cache, CacheCell | None):
            raise ValueError(f"{self.form} keeps the keys of three branches, which {type(cache).__name__} does not")
        if context.segments is not None or context.positions is not None:
            raise ValueError(
                f"{self.form} compresses blocks of one text, and so of several of a packed row; do not pack"
            )
        if not isinstance(context.pattern, Padding | None) or context.bias is not None:
            what = context.bias if context.bias is not None else context.pattern
            raise ValueError(
                f"{self.form} chooses by itself what a token sees; besides it understands Padding, not {what}"
            )

    def choose(self, layer: "MultiHeadAttention", q: Tensor, k: Tensor, v: Tensor, start: int) -> Pattern:
        """What the second attention sees: the blocks that the first attends to most, of all heads that share keys."""
        first = replace(layer.recipe, position=NoPosition(), pattern=CompressedPast(self.form.block))
        with torch.no_grad():
            weights = steps(q, k, v, first, q_index=start).weights
            mass = reduce(weights, "b (g r) i c -> b g i c", "sum", g=self.groups)
            mass[..., :1] = torch.inf  # the first block is always seen
            own = torch.arange(start, start + q.shape[2], device=q.device) // self.form.block
            chosen = top_blocks(mass, own, self.form.k).repeat_interleave(self.heads // self.groups, 1)
        return BlockChoice(chosen, self.form.block, 1, start)
