"""Native sparse attention: compressed, chosen and nearby keys, each by an attention of its own, added by gates.

    o = g₁ attend(q, φ(K₁), φ(V₁)) + g₂ attend(q, K₂, V₂ | the blocks chosen) + g₃ attend(q, K₃, V₃ | a window)

φ maps each block of keys to one, the weights of the first attention say which blocks the second sees, and the gates
g = σ(W x) are made from the token (NSA; Yuan et al. 2025). As there, every query chooses for itself, and heads that
share keys choose together. Unlike there, φ is linear, and blocks of both kinds are the same and do not overlap.
"""

from dataclasses import dataclass

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.core import AttentionCore
from regard.attention.functional import steps
from regard.attention.kv_cache import KVCache
from regard.attention.multihead import concatenate_heads, split_heads
from regard.attention.pattern import Causal, Pattern, Window, require_int
from regard.attention.position import NoPosition, Position
from regard.attention.recipe import Recipe
from regard.attention.sparse_patterns import BlockChoice, top_blocks

BRANCHES = "compressed", "chosen", "window"


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


class NativeSparseAttention(nn.Module):
    """Self-attention in three branches (NSA; Yuan et al. 2025), causal.

    Args:
        model: the width of the tokens.
        heads: how many query heads; `groups` key and value heads serve them (default: one each).
        block: of keys that are compressed into one, and chosen together.
        k: how many blocks a query sees in the second branch, the first and its own among them.
        window: how many keys it sees in the third.
        position: of the second and third branch.

    Examples:
        >>> layer = NativeSparseAttention(16, heads=4, groups=2, block=4, k=2, window=3)
        >>> x = torch.randn(1, 11, 16)
        >>> first, cache = layer.extend(x[:, :5])
        >>> rest, cache = layer.extend(x[:, 5:], cache)
        >>> torch.cat((first, rest), 1).allclose(layer(x), atol=1e-5)
        True
    """

    def __init__(
        self,
        model: int,
        *,
        heads: int,
        groups: int | None = None,
        block: int = 64,
        k: int = 16,
        window: int = 512,
        position: Position = NoPosition(),
    ):
        super().__init__()
        groups = heads if groups is None else groups
        if model % heads or heads % groups or k < 2:
            raise ValueError(f"{heads} heads must divide the model's {model}, {groups} groups the heads, and k={k} ≥ 2")
        self.heads, self.groups, self.block, self.k = heads, groups, block, k
        head = model // heads
        self.query, self.output = nn.Linear(model, model), nn.Linear(model, model)
        self.keys_values = nn.Linear(model, len(BRANCHES) * 2 * groups * head)
        self.gate = nn.Linear(model, len(BRANCHES) * heads)
        self.compress_key, self.compress_value = (BlockCompression(block, head) for _ in range(2))
        self.cores = nn.ModuleDict({name: AttentionCore() for name in BRANCHES})
        self.recipes = {
            "compressed": Recipe(pattern=CompressedPast(block)),
            "chosen": Recipe(position=position),
            "window": Recipe(position=position, pattern=Causal() & Window(window)),
        }

    def forward(self, x: Float[Tensor, "b t model"]) -> Float[Tensor, "b t model"]:
        return self.extend(x)[0]

    def extend(self, x: Float[Tensor, "b t model"], cache: KVCache | None = None) -> tuple[Tensor, KVCache]:
        """Attention of new tokens after those in the cache, which keeps the keys and values of the three branches."""
        cache = KVCache() if cache is None else cache
        assert cache.past is None or isinstance(cache.past, tuple)  # nobody else makes one for this layer
        new = split_heads(self.keys_values(x), len(BRANCHES) * 2 * self.groups).chunk(len(BRANCHES) * 2, 1)
        past = new if cache.past is None else tuple(torch.cat(pair, 2) for pair in zip(cache.past, new, strict=True))
        q = split_heads(self.query(x), self.heads)
        outputs = self.attend_branches(q, past, cache.length)
        gates = rearrange(self.gate(x).sigmoid(), "b t (n h) -> n b h t 1", n=len(BRANCHES))
        gated = torch.stack(outputs).mul(gates).sum(0)
        return self.output(concatenate_heads(gated)), KVCache(past, cache.length + x.shape[1])

    def attend_branches(self, q: Float[Tensor, "b h i d"], past: tuple[Tensor, ...], start: int) -> list[Tensor]:
        few = self.compress_key(past[0]), self.compress_value(past[1])
        recipes = self.recipes | {"chosen": self.choose(q, *few, start)}
        pairs = dict(zip(BRANCHES, (few, past[2:4], past[4:]), strict=True))
        return [self.cores[name](q, *pairs[name], recipes[name], q_index=start) for name in BRANCHES]

    def choose(self, q: Tensor, k: Tensor, v: Tensor, start: int) -> Recipe:
        """The second branch's recipe: the blocks that the first attends to most, of all heads that share keys."""
        with torch.no_grad():
            weights = steps(q, k, v, self.recipes["compressed"], q_index=start).weights
            mass = reduce(weights, "b (g r) i c -> b g i c", "sum", g=self.groups)
            mass[..., :1] = torch.inf  # the first block is always seen
            own = torch.arange(start, start + q.shape[2], device=q.device) // self.block
            chosen = top_blocks(mass, own, self.k).repeat_interleave(self.heads // self.groups, 1)
        return Recipe(position=self.recipes["chosen"].position, pattern=BlockChoice(chosen, self.block, 1, start))
