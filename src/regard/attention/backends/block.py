"""Any sparse pattern in linear memory, in plain torch, forwards and backwards, on any device.

The pattern's block map says which blocks of keys each block of queries can see. Rows of blocks that see equally many
are gathered and attended together, as if they were a batch: each row then holds all the keys it may see, so every
score, position and normaliser works unchanged. Nothing but q, k, v and the output is kept for the backward pass,
which gathers and computes each row again.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from einops import rearrange
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from regard.attention.backends import reference, sdpa
from regard.attention.blocks import MIXED
from regard.attention.pattern import Pattern
from regard.attention.places import Cells, Places
from regard.attention.recipe import Recipe

SIZES = {64: 1.6, 128: 1.2, 256: 1.0}  # block sizes to choose from, and what a cell costs at each (measured)
SHORTEST = 1024  # below this the bookkeeping costs more than it saves
DENSEST = 0.5
CELLS_AT_ONCE = 2**23


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of query blocks that see equally many key blocks."""

    rows: Tensor  # r
    cols: Tensor  # r c
    mixed: bool


@dataclass(frozen=True, eq=False)
class Plan:
    size: int
    density: float
    groups: tuple[Group, ...]


@lru_cache(maxsize=64)
def plan(pattern: Pattern, n_q: int, n_k: int, start: int, sizes: tuple[int, ...]) -> Plan:
    """Which blocks to compute, at the block size that makes them cheapest."""
    maps = {size: pattern.blocks(n_q, n_k, size, start=start) for size in sizes}
    size = min(sizes, key=lambda size: maps[size].density * SIZES.get(size, 1.0))
    row, col = maps[size].visible_blocks()
    seen = torch.bincount(row, minlength=len(maps[size].rows))
    mixed = torch.zeros_like(seen, dtype=torch.bool)
    mixed[maps[size].row[maps[size].state == MIXED].long()] = True
    mixed[-1] |= n_k % size != 0  # the last keys are padding there
    groups = []
    for count in seen.unique().tolist():
        rows = (seen == count).nonzero().flatten()
        if count:
            cols = col[(seen == count)[row]].view(len(rows), count).long()
            groups.append(Group(rows, cols, bool(mixed[rows].any()) or bool((cols == n_k // size).any())))
    return Plan(size, maps[size].density, tuple(groups))


def objections(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
    return [] if places.start is not None else ["its block map needs consecutive positions: give q_at as a number"]


def doubts(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> list[str]:
    if min(q.shape[2], k.shape[2]) < SHORTEST:
        return [f"{q.shape[2]} queries and {k.shape[2]} keys are too few for blocks to pay"]
    density = plan(recipe.pattern, q.shape[2], k.shape[2], places.start or 0, tuple(SIZES)).density
    return [f"{density:.0%} of the blocks are visible, so skipping the others saves little"] * (density > DENSEST)


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
    start = places.start or 0
    todo = plan(recipe.pattern, q.shape[2], k.shape[2], start, tuple(SIZES))
    call = Call(recipe, todo, q.shape, k.shape, start)
    return Gathered.apply(call, q, k, v, *recipe.learned().parameters())


@dataclass(frozen=True, eq=False)
class Call:
    """One use of the backend: how to cut tensors into blocks, gather them, and attend over what was gathered."""

    recipe: Recipe
    plan: Plan
    q_shape: torch.Size
    k_shape: torch.Size
    start: int

    def cut(self, x: Tensor) -> Tensor:
        """Into blocks, batch and heads side by side, the last block filled with zeros."""
        missing = -x.shape[2] % self.plan.size
        return rearrange(pad(x, (0, 0, 0, missing)), "b h (n s) d -> n (b h) s d", s=self.plan.size)

    def paste(self, blocks: Tensor, like: torch.Size) -> Tensor:
        return rearrange(blocks, "n (b h) s d -> b h (n s) d", b=like[0])[:, :, : like[2]]

    def chunks(self):
        """Rows of blocks that are computed together: few enough for their scores to fit."""
        for group in self.plan.groups:
            cells = self.q_shape[0] * self.q_shape[1] * self.plan.size**2 * group.cols.shape[1]
            step = max(1, CELLS_AT_ONCE // cells)
            for rows, cols in zip(group.rows.split(step), group.cols.split(step), strict=True):
                yield rows, cols, group.mixed

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, cols: Tensor, *, mixed: bool) -> Tensor:
        """Each row of blocks is a batch of its own; sentences and heads lie along the head axis."""
        size, device = self.plan.size, q.device
        inside = torch.arange(size, device=device)
        i = rows.to(device)[:, None] * size + inside + self.start
        j = rearrange(cols.to(device)[:, :, None] * size + inside, "r c s -> r (c s)")
        batch, heads = self.q_shape[:2]
        cells = Cells(
            torch.arange(batch, device=device).repeat_interleave(heads).view(1, -1, 1, 1),
            torch.arange(heads, device=device).repeat(batch).view(1, -1, 1, 1),
            i.clamp(max=self.start + self.q_shape[2] - 1)[:, None, :, None],  # what is filled in asks no new question
            j.clamp(max=self.k_shape[2] - 1)[:, None, None, :],
        )
        visible = None
        if mixed:
            visible = self.recipe.pattern.sees(*cells.all()) & (j < self.k_shape[2])[:, None, None, :]
        if sdpa.objections(self.recipe, q, k, Places(i, j, None)):
            return reference.steps(self.recipe, q, k, v, cells, visible).output
        return sdpa.over(self.recipe, q, k, v, cells, visible)


class Gathered(torch.autograd.Function):
    """Attention over gathered blocks that keeps only its inputs and computes the rest again when asked."""

    @staticmethod
    def forward(ctx, call: Call, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        ctx.call, ctx.random = call, torch.get_rng_state()
        ctx.save_for_backward(q, k, v, *learned)
        q, k, v = call.cut(q), call.cut(k), call.cut(v)
        out = v.new_zeros(*q.shape[:3], v.shape[3])
        for rows, cols, mixed in call.chunks():
            out[rows] = call.attend(q[rows], gather(k, cols), gather(v, cols), rows, cols, mixed=mixed)
        return call.paste(out, call.q_shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        call, (q, k, v, *learned) = ctx.call, ctx.saved_tensors
        shapes = [x.shape for x in (q, k, v)]
        q, k, v, grad = call.cut(q), call.cut(k), call.cut(v), call.cut(grad)
        totals = [torch.zeros_like(x) for x in (q, k, v)]
        sums = [torch.zeros_like(x) for x in learned]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random)  # what was dropped or drawn going forwards is dropped or drawn again
            for rows, cols, mixed in call.chunks():
                inputs = [x.detach().requires_grad_() for x in (q[rows], gather(k, cols), gather(v, cols))]
                out = call.attend(*inputs, rows, cols, mixed=mixed)
                if not out.requires_grad:
                    continue
                dq, dk, dv, *rest = torch.autograd.grad(out, (*inputs, *learned), grad[rows], allow_unused=True)
                if dq is not None:
                    totals[0][rows] = dq
                for total, part in zip(totals[1:], (dk, dv), strict=True):
                    if part is not None:
                        spread = rearrange(part, "r h (c s) d -> (r c) h s d", s=call.plan.size)
                        total.index_add_(0, cols.flatten().to(part.device), spread)
                for total, part in zip(sums, rest, strict=True):
                    if part is not None:
                        total += part
        return None, *map(call.paste, totals, shapes), *sums


def gather(blocks: Tensor, cols: Tensor) -> Tensor:
    return rearrange(blocks[cols], "r c h s d -> r h (c s) d")
