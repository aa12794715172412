"""States and a table of words in; what the wanted words cost out. All scores of all rows never stand side by side.

With scores s = W x + b, p = softmax(s), the wanted word y and a share ε smoothed over all v words (Szegedy et al.
2016, section 7), a row costs

    (1 − ε)(−log p_y) + ε(−mean log p)  =  −log p_y + ε (s_y − s̄),      ∂/∂s_j = p_j − (1 − ε)[j = y] − ε/v

The mean score is the score of the mean word, s̄ = w̄·x + b̄, so smoothing needs no further pass over the scores.
The gradient is known as soon as the scores are: a chunk of rows leaves its costs and its share of the gradients of
x, W and b, and is forgotten. Nothing is computed twice, and the way back only scales by the gradient that comes in.
"""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import Function
from torch.nn.functional import linear, log_softmax

from regard.layers.vocabulary_room import Room

BUDGET = 64 * 2**20  # bytes of the widened scores of one chunk; two and a half times that is held at once
CACHED = 8 * 2**20  # bytes that a CPU's caches hold: softmax then reads what the product has just written
ROWS = 256  # but not fewer, or the products of matrices waste their time
GPU_BUDGET = 2 * 2**30  # few chunks: each is a launch of several kernels, and products want many rows
TILE = 128  # rows: a product of matrices on a GPU pays for whole tiles
IGNORED = -100  # as in torch


def vocabulary_loss(
    x: Float[Tensor, "n m"],
    table: Float[Tensor, "v m"],
    bias: Float[Tensor, " v"],
    wanted: Int[Tensor, " n"],
    *,
    smoothing: float = 0.0,
    ignored: int = IGNORED,
    budget: int | None = None,
) -> Float[Tensor, ""]:
    """The summed cost of the wanted words: `cross_entropy(linear(x, table, bias), wanted, reduction="sum")`.

    Under autocast products are narrow, and softmax, costs and the sums of gradients wide, as they are for bfloat16
    weights. It can be differentiated once.

    Args:
        smoothing: the share ε of the cost against the uniform distribution.
        ignored: rows that want this word cost nothing and learn nothing, whatever their states are.
        budget: bytes of scores, in float32 or wider, that a chunk of rows may have; one row is always allowed.
            Left out, what suits the device.
    """
    budget = budget_of(x, table) if budget is None else budget
    if not torch.is_grad_enabled():
        return vocabulary_costs(x, table, bias, wanted, smoothing=smoothing, ignored=ignored, budget=budget).sum()
    check(x, table, bias, wanted, smoothing, budget)
    return Chunked.apply(x, table, bias, wanted, Terms(smoothing, ignored, budget))


@torch.no_grad()
def vocabulary_costs(
    x: Float[Tensor, "n m"],
    table: Float[Tensor, "v m"],
    bias: Float[Tensor, " v"],
    wanted: Int[Tensor, " n"],
    *,
    smoothing: float = 0.0,
    ignored: int = IGNORED,
    budget: int | None = None,
) -> Float[Tensor, " n"]:
    """What each wanted word costs, without gradients: the loss is their sum. An ignored one costs 0."""
    budget = budget_of(x, table) if budget is None else budget
    check(x, table, bias, wanted, smoothing, budget)
    given = Given.of(x, table, bias, wanted, Terms(smoothing, ignored, budget))
    costs = given.counts.new_empty(len(x))  # one for all: small pieces kept between large ones would scatter the heap
    with narrow_by_hand(x):
        for rows in given.chunks:
            costs[rows] = given.scored(rows)
    return given.counting(costs)


def budget_of(x: Tensor, table: Tensor) -> int:
    return GPU_BUDGET if x.is_cuda else min(BUDGET, max(CACHED, 4 * ROWS * len(table)))


def check(x: Tensor, table: Tensor, bias: Tensor, wanted: Tensor, smoothing: float, budget: int) -> None:
    (n, width), (size, needed) = x.shape, table.shape
    if width != needed:
        raise ValueError(f"states of width {width} cannot be scored by a table of width {needed}; make the two one")
    if bias.shape != (size,):
        raise ValueError(f"a bias of shape {tuple(bias.shape)} does not fit {size} words; give one number for each")
    if wanted.shape != (n,):
        raise ValueError(f"{n} states cannot want words of shape {tuple(wanted.shape)}; give one word for each state")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing = {smoothing} is no share; choose a number from 0 to 1")
    if budget < 1:
        raise ValueError(f"a budget of {budget} bytes holds no scores; give at least 1, and one row is allowed")


@dataclass(frozen=True)
class Terms:
    """What is counted, and how much may be held for it."""

    smoothing: float
    ignored: int
    budget: int


@dataclass(frozen=True, eq=False)
class Given:
    """The operands in the precision of products, and what all chunks need of them."""

    x: Float[Tensor, "n m"]
    table: Float[Tensor, "v m"]
    bias: Float[Tensor, " v"]
    wanted: Int[Tensor, "n 1"]
    counts: Float[Tensor, " n"]  # 1 for a row that counts, 0 for one that is ignored
    mean_word: Float[Tensor, " m"]
    mean_bias: Float[Tensor, ""]
    terms: Terms

    @staticmethod
    def of(x: Tensor, table: Tensor, bias: Tensor, wanted: Tensor, terms: Terms) -> "Given":
        narrow = product_type(x, table)
        wide = torch.promote_types(narrow, torch.float32)
        hidden = wanted == terms.ignored
        table, bias = table.to(narrow), bias.to(narrow)
        return Given(
            # a state that is ignored may be anything, and 0 · nan is nan
            x.to(narrow).masked_fill(rearrange(hidden, "n -> n 1"), 0.0),
            table,
            bias,
            rearrange(wanted.masked_fill(hidden, 0), "n -> n 1"),
            (~hidden).to(wide),
            summed(table, wide) / len(table),
            bias.mean(dtype=wide),
            terms,
        )

    @property
    def wide(self) -> torch.dtype:
        return self.counts.dtype

    @property
    def chunks(self) -> list[slice]:
        """The rows, as many at a time as the budget allows; so many of them whatever the number of rows is."""
        rows = max(1, self.terms.budget // (len(self.table) * self.wide.itemsize))
        rows -= rows % TILE if rows > TILE else 0
        return [slice(begin, begin + rows) for begin in range(0, len(self.x), rows)] or [slice(0, 0)]

    @property
    def room(self) -> Room:
        return Room.of(min(len(self.x), self.chunks[0].stop), self.table, self.wide)

    def counting(self, costs: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return costs.where(self.counts > 0, 0.0)

    def scored(self, rows: slice) -> Float[Tensor, " r"]:
        """What these rows cost, should they count."""
        scores = linear(self.x[rows], self.table, self.bias)
        log_p = log_softmax(scores, -1, dtype=self.wide)
        costs, picked = (rearrange(each.gather(1, self.wanted[rows]), "r 1 -> r") for each in (-log_p, scores))
        return self.smoothed(rows, costs, picked)

    def smoothed(self, rows: slice, costs: Float[Tensor, " r"], picked: Float[Tensor, " r"]) -> Float[Tensor, " r"]:
        """−log p_y and s_y in; the costs out."""
        if not self.terms.smoothing:
            return costs
        mean = self.x[rows].to(self.wide) @ self.mean_word + self.mean_bias
        return costs + self.terms.smoothing * (picked - mean)

    def differentiated(
        self, rows: slice, room: Room | None
    ) -> tuple[Float[Tensor, " r"], Float[Tensor, "r v"], Float[Tensor, " v"]]:
        """What these rows cost, and ∂/∂s of it, should they count, less the −ε/v that all words share; and the sum of
        that over those that do count."""
        if room is None:
            return self.turned(rows)
        x, wanted = self.x[rows], self.wanted[rows]
        scores, wide = room.filled(x, self.table, self.bias)
        picked, most = wide.gather(1, wanted)[:, 0], wide.amax(-1)
        p = torch.softmax(wide, -1, out=wide)
        # one exponential a word: the likeliest word's p, which is never small, tells log Σ exp s
        log_sum = most - p.amax(-1).log()
        costs = self.smoothed(rows, log_sum - picked, picked)
        # p_y − 1 is rounded once, after the difference
        p_wanted = p.gather(1, wanted) - (1 - self.terms.smoothing)
        ds = p if p.dtype == scores.dtype else scores.copy_(p)  # in the precision of the scores
        # scatter_ would copy all of it, and back
        ds.index_put_((torch.arange(len(x), device=x.device), wanted[:, 0]), p_wanted[:, 0].to(ds.dtype))
        return costs, ds, (self.counts[rows].to(ds.dtype) @ ds).to(self.wide)

    def dstates(self, ds: Float[Tensor, "r v"], share: float) -> Float[Tensor, "r m"]:
        """Of the states, where each of a part `share` of a row's cost wants all words alike."""
        if not share:
            return ds @ self.table
        if ds.is_cuda:  # in one kernel
            return torch.addmm((-share * self.mean_word).to(ds.dtype), ds, self.table)
        return ds @ self.table - share * self.mean_word

    def learnt(
        self, total: Tensor | None, rows: slice, ds: Float[Tensor, "r v"], dtype: torch.dtype
    ) -> Float[Tensor, "v m"]:
        """Of the table, added to those of rows before; the first bring what all rows take from every word alike."""
        x, share = self.x[rows], self.terms.smoothing
        if total is not None or not share:
            return added(total, ds.T, x, self.wide)
        shared = -share / len(self.table) * summed(self.x, self.wide)
        if ds.is_cuda and len(x) == len(self.x) and dtype == ds.dtype:  # all there are: in one kernel, rounded once
            return torch.addmm(shared.to(dtype), ds.T, x)
        return added(None, ds.T, x, self.wide).add_(shared)

    def turned(self, rows: slice) -> tuple[Float[Tensor, " r"], Float[Tensor, "r v"], Float[Tensor, " v"]]:
        """The same by kernels, which write in the scores' place."""
        from regard.layers.vocabulary_kernel import turn_rows

        scores = linear(self.x[rows], self.table, self.bias)
        costs, picked, total = turn_rows(scores, self.wanted[rows], self.counts[rows], 1 - self.terms.smoothing)
        return self.smoothed(rows, costs, picked), scores, total


class Chunked(Function):
    """The sum of the costs; its gradients are made on the way there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, bias: Tensor, wanted: Tensor, terms: Terms) -> Tensor:
        given = Given.of(x, table, bias, wanted, terms)
        share = terms.smoothing
        costs, dx = given.counts.new_empty(len(x)), torch.empty_like(x)
        dtable = dbias = None
        with narrow_by_hand(x):
            room = None if x.is_cuda and given.wide == torch.float32 else given.room
            for rows in given.chunks:
                costs[rows], ds, total = given.differentiated(rows, room)
                dx[rows] = given.dstates(ds, share)
                dtable = given.learnt(dtable, rows, ds, table.dtype)
                dbias = total if dbias is None else dbias.add_(total)
                del ds  # before the next chunk needs room
            assert dtable is not None
            assert dbias is not None
            if share:
                dbias -= share / len(table) * given.counts.sum()
        dx.masked_fill_(rearrange(given.counts == 0, "n -> n 1"), 0.0)
        ctx.save_for_backward(dx, dtable.to(table.dtype), dbias.to(bias.dtype))
        return given.counting(costs).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if torch.is_grad_enabled():  # torch would take these gradients for constants, and say nothing
            raise ValueError(
                "create_graph=True asks for a second derivative, which this loss has not; "
                "take cross_entropy of all the scores, where they fit"
            )
        return *(scaled(part, grad) for part in ctx.saved_tensors), None, None


def scaled(x: Tensor, by: Float[Tensor, ""]) -> Tensor:
    if not x.is_cuda or x.dtype == torch.float64:
        return by * x
    from regard.layers.vocabulary_kernel import scale

    return scale(x, by)


def product_type(x: Tensor, table: Tensor) -> torch.dtype:
    """The precision of products: autocast's, which leaves float64 alone, or that of the operands."""
    own, device = torch.promote_types(x.dtype, table.dtype), x.device.type
    if own != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return own


def narrow_by_hand(x: Tensor) -> torch.autocast:
    """Inside, autocast does not touch the wide sums."""
    return torch.autocast(x.device.type, enabled=False)


def summed(x: Float[Tensor, "n m"], wide: torch.dtype) -> Float[Tensor, " m"]:
    """Of each column; on a GPU by a kernel of ours, for torch's takes four times as long."""
    if not x.is_cuda or not x.numel():
        return x.sum(0, dtype=wide)
    from regard.layers.column_kernel import sum_columns

    return sum_columns(x if x.stride(1) == 1 else x.contiguous(), dtype=wide)


def added(total: Tensor | None, a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    """total + a b, summed wide and in the total's place, if there is one."""
    if total is not None and a.dtype == wide:
        return total.addmm_(a, b)
    # a GPU can leave the product as it was summed, unrounded
    product = torch.mm(a, b, out_dtype=wide) if a.is_cuda and a.dtype != wide else (a @ b).to(wide)
    return product if total is None else total.add_(product)
