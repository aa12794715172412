"""Sparse patterns that are not the same along every diagonal: prefix, global, random, and blocks of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch
from torch import Tensor

from regard.attention.block_map import Span, exact_bounds, move_to_device, scatter
from regard.attention.pattern import Pattern, ToeplitzPattern, Window, require_int


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
