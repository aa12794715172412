"""Sparse patterns: prefix, global, random and blocks of tokens; and keys that are chosen by content, once per call.

    TopBlocks(16, 64)                   the 16 blocks of 64 keys that fit best                    MoBA
    LightningIndexer(512, query=768)    the 512 keys that a small learned scorer ranks highest    DeepSeek-V3.2

`attend` asks a pattern chosen by content for its plan: an ordinary pattern that holds what was chosen, which every
backend runs, the reference included, and every picture shows. The choice itself has no gradient, as in the papers.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import is_, or_
from typing import Any

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.attention.batch_patterns import BatchPattern, BooleanMask, batch_row
from regard.attention.block_map import Span, exact_bounds, move_to_device, scatter
from regard.attention.pattern import And, Causal, Not, Or, Pattern, Positions, ToeplitzPattern, Window, require_int
from regard.ops.dispatch import accumulation_dtype


@dataclass(frozen=True)
class Strided(ToeplitzPattern):
    """Keys a whole number of strides away.

    Examples:
        >>> i, j = torch.arange(5)[:, None], torch.arange(5)
        >>> Strided(2).sees(0, 0, i, j).long()
        tensor([[1, 0, 1, 0, 1],
                [0, 1, 0, 1, 0],
                [1, 0, 1, 0, 1],
                [0, 1, 0, 1, 0],
                [1, 0, 1, 0, 1]])
    """

    stride: int

    def __post_init__(self):
        require_int(self, self.stride, 1, "stride")

    def sees(self, b, h, i, j):
        return (i - j) % self.stride == 0


@dataclass(frozen=True)
class Prefix(Pattern):
    """The first `length` keys are seen by all; `Causal() | Prefix(n)` is the prefix language model.

    Examples:
        >>> i, j = torch.arange(4)[:, None], torch.arange(4)
        >>> (Causal() | Prefix(2)).sees(0, 0, i, j).long()
        tensor([[1, 1, 0, 0],
                [1, 1, 0, 0],
                [1, 1, 1, 0],
                [1, 1, 1, 1]])
    """

    length: int

    def __post_init__(self):
        require_int(self, self.length, 0, "length")

    def sees(self, b, h, i, j):
        return (j < self.length) & (i == i)

    def count(self, rows, cols):
        return exact_bounds(rows.sizes[:, None] * cols.below(self.length))


@dataclass(frozen=True)
class Global(Pattern):
    """The first `tokens` tokens, or those that are listed, see all and are seen by all.

    Examples:
        >>> i, j = torch.arange(3)[:, None], torch.arange(3)
        >>> Global(1).sees(0, 0, i, j).long()
        tensor([[1, 1, 1],
                [1, 0, 0],
                [1, 0, 0]])
        >>> Global([0, 2]).sees(0, 0, i, j).long()
        tensor([[1, 1, 1],
                [1, 0, 1],
                [1, 1, 1]])
    """

    tokens: int | Sequence[int]

    def __post_init__(self):
        if isinstance(self.tokens, Sequence):
            for token in self.tokens:
                require_int(self, token, 0, "each of tokens")
            object.__setattr__(self, "tokens", tuple(sorted(set(self.tokens))))
        else:
            require_int(self, self.tokens, 0, "tokens")

    def chosen(self, at: Tensor) -> Tensor:
        if isinstance(self.tokens, int):
            return at < self.tokens
        return reduce(or_, (at == token for token in self.tokens), at < 0)

    def sees(self, b, h, i, j):
        return self.chosen(i) | self.chosen(j)

    def count(self, rows, cols):
        others = (rows.sizes - self.within(rows))[:, None] * (cols.sizes - self.within(cols))
        return exact_bounds(rows.sizes[:, None] * cols.sizes - others)

    def within(self, span: Span) -> Tensor:
        """How many of these tokens each block holds."""
        if isinstance(self.tokens, int):
            return span.below(self.tokens)
        return sum((span.below(token + 1) - span.below(token) for token in self.tokens), torch.zeros_like(span.sizes))


@dataclass(frozen=True)
class PerHead(Pattern):
    """A pattern for each head; where there are more heads than patterns, these are repeated in turn.

    Examples:
        >>> i, j = torch.arange(3)[:, None], torch.arange(3)
        >>> PerHead([Causal(), Window(1)]).sees(0, torch.arange(2).view(2, 1, 1), i, j).long()
        tensor([[[1, 0, 0],
                 [1, 1, 0],
                 [1, 1, 1]],
        <BLANKLINE>
                [[1, 0, 0],
                 [0, 1, 0],
                 [0, 0, 1]]])
    """

    patterns: Sequence[Pattern]

    def __post_init__(self):
        if not self.patterns or not all(isinstance(pattern, Pattern) for pattern in self.patterns):
            raise ValueError(f"PerHead({self.patterns!r}): name a pattern for each head, e.g. [Causal(), Window(2)]")
        object.__setattr__(self, "patterns", tuple(self.patterns))

    def sees(self, b, h, i, j):
        turn = h % len(self.patterns)
        each = ((turn == n) & pattern.sees(b, h, i, j) for n, pattern in enumerate(self.patterns))
        return reduce(or_, each)

    @property
    def is_toeplitz(self):
        return all(pattern.is_toeplitz for pattern in self.patterns)

    @property
    def batches(self):
        return max(pattern.batches for pattern in self.patterns)

    def shape_error(self, n_q, n_k):
        return next((why for pattern in self.patterns if (why := pattern.shape_error(n_q, n_k))), None)

    @property
    def depends_on_head(self):
        return len(set(self.patterns)) > 1 or self.patterns[0].depends_on_head

    def plan(self, *call):
        planned = tuple(pattern.plan(*call) for pattern in self.patterns)
        return self if all(map(is_, planned, self.patterns)) else PerHead(planned)

    def to(self, device):
        return PerHead(tuple(move_to_device(pattern, device) for pattern in self.patterns))


@dataclass(frozen=True)
class Random(Pattern):
    """Every token picks `picks` tokens before it, and the two see each other. Seeded, whatever the length.

    The past is cut into `picks` equal strata and one token is drawn from each, so no token is picked twice and a
    longer sequence does not change the picks of a shorter one.

    Examples:
        >>> i, j = torch.arange(5)[:, None], torch.arange(5)
        >>> Random(1, seed=0).sees(0, 0, i, j).long()
        tensor([[0, 1, 1, 0, 0],
                [1, 0, 0, 1, 0],
                [1, 0, 0, 0, 0],
                [0, 1, 0, 0, 1],
                [0, 0, 0, 1, 0]])
    """

    picks: int
    seed: int = 0

    def __post_init__(self):
        require_int(self, self.picks, 1, "picks")
        require_int(self, self.seed, 0, "seed")

    def sees(self, b, h, i, j):
        later, earlier = torch.maximum(i, j), torch.minimum(i, j)
        seen = later < 0
        for stratum in range(self.picks):
            picked, exists = self.pick(later, stratum)
            seen = seen | (exists & (picked == earlier))
        return seen

    def pick(self, token: Tensor, stratum: int) -> tuple[Tensor, Tensor]:
        """The earlier token picked in this stratum, and whether the stratum holds any."""
        token = token.long()  # a compiled kernel may count in 32 bits, where the noise would overflow
        start, stop = token * stratum // self.picks, token * (stratum + 1) // self.picks
        noise = token * 0x9E3779B + stratum * 0x85EBCA7 + self.seed * 0xC2B2AE3
        for _ in range(3):  # multiply and fold, within 31 bits so that int64 never overflows
            noise = ((noise & 0x7FFFFFFF) ^ ((noise & 0x7FFFFFFF) >> 15)) * 0x45D9F3B
        return start + ((noise & 0x7FFFFFFF) * (stop - start) >> 31), stop > start

    def count(self, rows, cols):
        tokens = torch.arange(max(rows.stop, cols.stop))
        total = torch.zeros(len(rows), len(cols), dtype=torch.int64)
        for stratum in range(self.picks):
            picked, exists = self.pick(tokens, stratum)
            later, earlier = tokens[exists], picked[exists]
            scatter(total, later, earlier, rows, cols)
            scatter(total, earlier, later, rows, cols)
        return total, total


@dataclass(frozen=True)
class Block(Pattern):
    """Another pattern, seen from further away: it speaks of blocks of `size` tokens instead of tokens.

    Examples:
        >>> i, j = torch.arange(6)[:, None], torch.arange(6)
        >>> Block(2, Window(1) | Global(1)).sees(0, 0, i, j).long()
        tensor([[1, 1, 1, 1, 1, 1],
                [1, 1, 1, 1, 1, 1],
                [1, 1, 1, 1, 0, 0],
                [1, 1, 1, 1, 0, 0],
                [1, 1, 0, 0, 1, 1],
                [1, 1, 0, 0, 1, 1]])
    """

    size: int
    pattern: Pattern = Window(1)

    def __post_init__(self):
        require_int(self, self.size, 1, "size")
        if not isinstance(self.pattern, Pattern):
            raise ValueError(f"Block({self.size}, {self.pattern!r}): `pattern` must be a pattern, e.g. Window(2)")
        if is_content(self.pattern):
            raise ValueError(f"{self.pattern} is chosen from the keys of tokens, and blocks of {self.size} have none")

    def sees(self, b, h, i, j):
        return self.pattern.sees(b, h, i // self.size, j // self.size)

    def count(self, rows, cols):
        area = rows.sizes[:, None] * cols.sizes
        (far_rows, row), (far_cols, col) = self.coarse_span(rows), self.coarse_span(cols)
        if far_rows is None or far_cols is None:
            return torch.zeros_like(area), area
        low, high = (bound[row[:, None], col] for bound in self.pattern.count(far_rows, far_cols))
        # each of my blocks holds `unit` cells of theirs, fewer where the sequence ends within it
        unit = min(self.size, rows.size) * min(self.size, cols.size)
        missing = (far_rows.sizes[:, None] * far_cols.sizes)[row[:, None], col] * unit - area
        return (low * unit - missing).clamp(min=0), (high * unit).minimum(area)

    def coarse_span(self, span: Span) -> tuple[Span | None, Tensor]:
        """The span counted in my blocks, and which of them each block of the span lies in; None if they cross."""
        far = self.size * max(1, span.size // self.size)
        if far % span.size or far % self.size or span.start % min(span.size, self.size):
            return None, span.firsts
        first = span.start // self.size
        row = (span.firsts - first * self.size) // far
        return Span(first, -(-span.stop // self.size), far // self.size), row

    @property
    def batches(self):
        return self.pattern.batches

    def shape_error(self, n_q, n_k):
        return self.pattern.shape_error(-(-n_q // self.size), -(-n_k // self.size))

    @property
    def depends_on_head(self):
        return self.pattern.depends_on_head

    def to(self, device):
        return Block(self.size, move_to_device(self.pattern, device))


# --- chosen by content ---


class ContentPattern(Pattern):
    """Abstract: `choose` finds the visible keys from queries and keys as the score meets them, rotated; no later ones.

    Examples:
        >>> class Alike(ContentPattern):  # earlier keys on the query's side
        ...     def choose(self, q, k, positions, past):
        ...         seen = (q @ k.mT > 0) & (positions.k <= positions.q[:, None])
        ...         return BooleanMask(seen, positions.start)
        >>> x = torch.tensor([1.0, -1.0, 1.0]).view(1, 1, 3, 1)
        >>> steps(x, x, x, Recipe(pattern=Alike())).visible[0, 0].long()
        tensor([[1, 0, 0],
                [0, 1, 0],
                [1, 0, 1]])
    """

    def plan(self, *call: Any) -> Pattern:
        q, k, positions, past = call
        with torch.no_grad():
            return self.choose(q, k, positions, None if past is None else past.get(self))

    @abstractmethod
    def choose(
        self, q: Float[Tensor, "b h i d"], k: Float[Tensor, "b g j d"], positions: Positions, past: Pattern | None
    ) -> Pattern:
        """What these queries may attend to; `past` is what was chosen for those before them, of a KV cache."""

    def loss(self, q: Tensor, k: Tensor, weights: Float[Tensor, "b h i j"]) -> Float[Tensor, ""] | None:
        """What its own weights learn by, as the choice has no gradient: of queries and keys as `choose` has them, and
        of what the heads attend to where it hides no earlier key. None where there is nothing to learn."""
        return None

    def sees(self, b, h, i, j):
        raise ValueError(f"{self} is chosen from queries and keys; ask steps(q, k, v, recipe).visible what was chosen")

    @property
    def depends_on_head(self) -> bool:
        return True


def is_content(pattern: Pattern) -> bool:
    """Is any of it chosen from the content?"""
    return any(isinstance(part, ContentPattern) for part in conditions(pattern))


def conditions(pattern: Pattern) -> Iterator[Pattern]:
    """What a pattern is combined of by &, | and ~; a pattern for each head, and then those of the heads."""
    match pattern:
        case And(left, right) | Or(left, right):
            yield from (*conditions(left), *conditions(right))
        case Not(inner):
            yield from conditions(inner)
        case PerHead(patterns):
            yield pattern
            for one in patterns:
                yield from conditions(one)
        case _:
            yield pattern


def without_choice(pattern: Pattern, part: Pattern) -> Pattern:
    """The same where this part, which chooses from the content, hides no earlier key."""
    match pattern:
        case And(left, right):
            return without_choice(left, part) & without_choice(right, part)
        case Or(left, right):
            return without_choice(left, part) | without_choice(right, part)
        case Not(inner):
            return ~without_choice(inner, part)
        case PerHead(patterns):
            return PerHead([without_choice(one, part) for one in patterns])
        case _:
            return Causal() if pattern is part else pattern


def plans_of(pattern: Pattern, planned: Pattern) -> dict[Pattern, Pattern]:
    """What each content pattern chose, itself perhaps combined of others, for the next call with a KV cache."""
    match pattern, planned:
        case ContentPattern(), _:
            return {pattern: planned}
        case ((And() | Or()), (And() | Or())):
            return plans_of(pattern.left, planned.left) | plans_of(pattern.right, planned.right)
        case Not(), Not():
            return plans_of(pattern.inner, planned.inner)
        case PerHead(), PerHead():
            each = zip(pattern.patterns, planned.patterns, strict=True)
            return {part: plan for pair in each for part, plan in plans_of(*pair).items()}
    return {}


# --- blocks ---


@dataclass(frozen=True)
class TopBlocks(ContentPattern):
    """The query's own block of keys up to itself, and of the earlier blocks the k - 1 with the largest q · mean(keys).

    Mixture of block attention (Lu et al. 2025), each head by itself. There every query chooses: `queries=1`. Here
    `queries` of them that follow one another, by default a block, share what the first of them chooses, so that a
    kernel's tiles are seen whole or not at all. The first, and not their mean: no choice depends on a later token.

    Examples:
        >>> q = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, -1.0]).view(1, 1, 6, 1)
        >>> k = torch.tensor([-1.0, -1.0, 2.0, 1.0, 0.0, 0.0]).view(1, 1, 6, 1)  # blocks of mean -1, 1.5 and 0
        >>> steps(q, k, k, Recipe(pattern=TopBlocks(2, 2, queries=1))).visible[0, 0, 4:].long()
        tensor([[0, 0, 1, 1, 1, 0],
                [1, 1, 0, 0, 1, 1]])
        >>> steps(q, k, k, Recipe(pattern=TopBlocks(2, 2))).visible[0, 0, 4:].long()  # the last follows the one before
        tensor([[0, 0, 1, 1, 1, 0],
                [0, 0, 1, 1, 1, 1]])
    """

    k: int
    block: int
    queries: int | None = None

    def __post_init__(self):
        for number, what in ((self.k, "k"), (self.block, "block"), (self.queries or self.block, "queries")):
            require_int(self, number, 1, what)
        if self.block % self.group:
            raise ValueError(f"{self}: {self.queries} queries that choose together must divide a block of {self.block}")

    @property
    def group(self) -> int:
        """How many queries share a choice."""
        return self.block if self.queries is None else self.queries

    def choose(self, q, k, positions, past):
        if positions.start is None:
            raise ValueError(f"{self} needs consecutive positions from the first key on; pass q_index as a number")
        remainder = positions.start % self.group
        if remainder and not isinstance(past, BlockChoice):
            raise ValueError(
                f"{self} lets the first of {self.group} queries choose for all, and these begin at {positions.start}, "
                "behind one; pass queries from a multiple on, or a KV cache"
            )
        offset = -positions.start % self.group
        own = positions.q[offset :: self.group] // self.block
        chosen = self.best_blocks(q[:, :, offset :: self.group], k, own)
        if remainder:
            assert isinstance(past, BlockChoice)  # or it was refused
            chosen = torch.cat((past.chosen[:, :, -1:], chosen), 2)
        return BlockChoice(chosen, self.block, self.group, positions.start // self.group)

    def best_blocks(
        self, q: Float[Tensor, "b h r d"], k: Float[Tensor, "b g j d"], own: Int[Tensor, " r"]
    ) -> Int[Tensor, "b h r k"]:
        """The blocks of each query that chooses, its own among them, in their order; -1 where there is none."""
        blocks = k.shape[2] // self.block
        whole = rearrange(k[:, :, : blocks * self.block], "b g (c n) d -> b g c n d", n=self.block)
        means = repeat(whole.mean(3, dtype=accumulation_dtype(k)), "b g c d -> b (g r) c d", r=q.shape[1] // k.shape[1])
        scores = einsum(q.to(means.dtype), means, "b h r d, b h c d -> b h r c")
        return top_blocks(scores, own, self.k)


def top_blocks(scores: Float[Tensor, "b h r c"], own: Int[Tensor, " r"], k: int) -> Int[Tensor, "b h r k"]:
    """Of each row its own block and the k - 1 best of those before it, in their order; -1 where there are fewer."""
    blocks = scores.shape[-1]
    earlier = torch.arange(blocks, device=scores.device) < own[:, None]
    best = scores.masked_fill(~earlier, -torch.inf).topk(min(k - 1, blocks), -1).indices
    best = pad(torch.where(best < own[:, None], best, -1), (k - 1 - best.shape[-1], 0), value=-1)
    return torch.cat((best, own[:, None].expand(*best.shape[:3], 1)), -1).sort(-1).values


@dataclass(frozen=True, eq=False, repr=False)
class BlockChoice(BatchPattern):
    """What was chosen: `queries` queries that follow one another see these blocks of keys, up to themselves.

    `chosen` is (b, h, rows, k), -1 where there are fewer than k; its first row belongs to group `first` of queries.

    Examples:
        >>> choice = BlockChoice(torch.tensor([[[[-1, 0], [-1, 1], [0, 2]]]]), block=2, queries=2)
        >>> i, j = torch.arange(6)[:, None], torch.arange(6)
        >>> choice.sees(torch.tensor(0), torch.tensor(0), i, j).long()
        tensor([[1, 0, 0, 0, 0, 0],
                [1, 1, 0, 0, 0, 0],
                [0, 0, 1, 0, 0, 0],
                [0, 0, 1, 1, 0, 0],
                [1, 1, 0, 0, 1, 0],
                [1, 1, 0, 0, 1, 1]])
    """

    chosen: Tensor
    block: int
    queries: int
    first: int = 0

    def sees(self, b, h, i, j):
        row, rows = i // self.queries - self.first, self.chosen.shape[2]
        found = self.chosen[batch_row(b, self.chosen), h if self.chosen.shape[1] > 1 else h * 0, row.clamp(0, rows - 1)]
        seen = j < 0
        for n in range(self.chosen.shape[3]):  # one by one: all at once they would be k masks
            seen = seen | (found[..., n] == j // self.block)
        return seen & (j <= i) & (row >= 0)

    def shape_error(self, n_q, n_k):
        known = (self.first + self.chosen.shape[2]) * self.queries
        return None if n_q <= known else f"{self} chose for {known} queries, not for {n_q}"

    @property
    def batches(self):
        return len(self.chosen)

    @property
    def depends_on_head(self) -> bool:  # type: ignore[override]
        return self.chosen.shape[1] > 1


# --- single keys ---


@dataclass(eq=False)
class LightningIndexer(nn.Module, ContentPattern):
    """The k earlier keys with the largest index I_ij = Σ_n w_in ReLU(q'_in · k'_j), of all heads together: sparse
    attention of DeepSeek-V3.2 (2025), whose indexer of a few narrow heads is cheap.

    q', k' and w are projections of the layer's queries and keys, all heads side by side (there: of the token). It
    learns by `loss` alone: the divergence of softmax(I) from what the heads attend to; the choice has no gradient.

    Args:
        k: how many keys a query sees.
        query: the width of the queries of all heads together; `key` that of the keys (default: the same).
        heads: of the indexer, each `width` wide.

    Examples:
        >>> indexer = LightningIndexer(2, query=1, heads=1, width=1)
        >>> for weight in indexer.parameters():
        ...     weight.data = torch.ones(1, 1)
        >>> q, k = torch.ones(1, 1, 4, 1), torch.tensor([2.0, 1.0, 3.0, 0.5]).view(1, 1, 4, 1)
        >>> steps(q, k, k, Recipe(pattern=indexer)).visible[0, 0].long()  # I_ij = k_j
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [1, 0, 1, 0],
                [1, 0, 1, 0]])
    """

    k: int
    query: int
    key: int | None = None
    heads: int = 4
    width: int = 32

    def __post_init__(self):
        super().__init__()
        require_int(self, self.k, 1, "k")
        self.to_query = nn.Linear(self.query, self.heads * self.width, bias=False)
        self.to_key = nn.Linear(self.key or self.query, self.width, bias=False)
        self.to_weight = nn.Linear(self.query, self.heads, bias=False)

    def index(self, q: Float[Tensor, "b h i d"], k: Float[Tensor, "b g j d"]) -> Float[Tensor, "b i j"]:
        q, k = (rearrange(x, "b h t d -> b t (h d)").to(self.to_key.weight.dtype) for x in (q, k))
        if q.shape[-1] != self.query or k.shape[-1] != (self.key or self.query):
            raise ValueError(
                f"{self} reads heads of {self.query} and {self.key or self.query} numbers in all, not of "
                f"{q.shape[-1]} and {k.shape[-1]}; say query= and key="
            )
        queries = rearrange(self.to_query(q), "b i (n d) -> b n i d", n=self.heads)
        each = einsum(queries, self.to_key(k), "b n i d, b j d -> b n i j").relu()
        return einsum(self.to_weight(q), each, "b i n, b n i j -> b i j") * (self.heads * self.width) ** -0.5

    def choose(self, q, k, positions, past):
        later = (positions.k[..., None, :] > positions.q[..., :, None]).expand(len(q), q.shape[2], k.shape[2])
        index = self.index(q, k).masked_fill(later, -torch.inf)
        # of equals, and ReLU makes many 0, the earlier, however many keys there are
        best = index.sort(dim=-1, descending=True, stable=True).indices[..., : self.k]
        seen = torch.zeros_like(later).scatter(-1, best, value=True) & ~later
        return BooleanMask(seen[:, None], positions.start or 0)

    def loss(self, q: Tensor, k: Tensor, weights: Float[Tensor, "b h i j"]) -> Float[Tensor, ""]:
        """KL(p ‖ softmax(I)) over the keys that the weights see, p the mean of the heads' weights.

        Examples:
            >>> indexer, x = LightningIndexer(4, query=6), torch.randn(1, 2, 5, 3)
            >>> weights = steps(x, x, x, Recipe(pattern=Causal())).weights
            >>> bool(indexer.loss(x, x, weights) > 0)
            True
        """
        target = weights.detach().mean(1)
        index = self.index(q.detach(), k.detach()).masked_fill(target == 0, -torch.inf)
        log_index = torch.where(target > 0, index.log_softmax(-1), 0.0)
        log_target = torch.where(target > 0, target, 1.0).log()
        return (target * (log_target - log_index)).sum(-1).mean()
