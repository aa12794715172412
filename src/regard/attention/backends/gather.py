"""Gather backend: any sparse pattern in linear memory, in plain torch, forward and backward, on any device.

The pattern's block map says which blocks of keys each block of queries can see. Rows of blocks that see equally many
are gathered and attended together, as if they were a batch: each row then holds all the keys it may see, so every
score, position and normaliser works unchanged. Nothing of the size of the scores is kept for the backward pass,
which gathers each row again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import and_

import torch
from einops import rearrange
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad
from torch.utils.checkpoint import get_device_states, set_device_states

from regard.attention.backends import reference, sdpa
from regard.attention.backends.block_sparse import conjuncts
from regard.attention.block_map import MIXED, cached_for, is_immutable, planning_objections
from regard.attention.gate import state_objections
from regard.attention.normaliser import Softmax
from regard.attention.parts import tensors
from regard.attention.pattern import IndexGrid, Pattern, Positions
from regard.attention.position import Bias
from regard.attention.recipe import Recipe
from regard.attention.score import Dot, InnerProduct

SIZES = {64: 1.6, 128: 1.2, 256: 1.0}  # block sizes to choose from, and what a cell costs at each (measured)
SHORTEST = 1024  # below this the bookkeeping costs more than it saves
DENSEST = 0.5
CELLS_AT_ONCE = 2**23

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    return planning_objections() or [
        *(
            []
            if positions.start is not None
            else ["its block map needs consecutive positions: pass q_index as a number"]
        ),
        *state_objections(recipe.gate),
        *([] if recipe.normaliser.row_wise else [f"{recipe.normaliser} is not RowWise, so no row may be cut out"]),
        *([f"{recipe.pattern} differs from head to head"] if recipe.pattern.depends_on_head else []),
    ]


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    if min(q.shape[2], k.shape[2]) < SHORTEST:
        return [f"{q.shape[2]} queries and {k.shape[2]} keys are too few for blocks to pay"]
    density = make_plan(recipe.pattern, q.shape[2], k.shape[2], positions.start or 0).density
    return [f"{density:.0%} of the blocks are visible, so skipping the others saves little"] * (density > DENSEST)


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    if not all(x.numel() for x in (q, k, v)):  # there is no block to cut
        return reference.attend(recipe, q, k, v, positions)
    if isinstance(recipe.score, InnerProduct) and not recipe.score.overflows:  # map q and k once, not in every row
        q, k, recipe = recipe.score.fold_q(q), recipe.score.fold_k(k), replace(recipe, score=Dot())
    used = (
        recipe.score,
        recipe.score_positions,
        recipe.normaliser,
    )  # rotary positions are done, and a pattern has no slope
    learned = list(dict.fromkeys(x for x in tensors(used) if x.requires_grad))
    start = positions.start or 0
    call = GatherCall(
        recipe,
        make_plan(recipe.pattern, q.shape[2], k.shape[2], start),
        q.shape,
        k.shape,
        start,
        # torch's CPU kernel has a backward pass of its own, but none for a bias
        uses_flash=q.device.type == "cpu"
        and not learned
        and recipe.normaliser == Softmax()
        and recipe.score == Dot()
        and all(isinstance(scheme, Bias) for scheme in recipe.score_positions)
        and q.shape[3] == v.shape[3],
    )
    if call.uses_flash:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return GatherFunction.apply(call, q, k, v, *learned)


# --- which blocks ---


@dataclass(frozen=True, eq=False)
class BlockRowGroup:
    """Rows of query blocks that see equally many key blocks."""

    rows: Tensor  # r
    cols: Tensor  # r c
    mixed: bool  # some block is mixed, so a mask is needed
    alike: bool  # every row has the same mask


@dataclass(frozen=True, eq=False)
class GatherPlan:
    size: int
    density: float
    groups: tuple[BlockRowGroup, ...]


def make_plan(pattern: Pattern, n_q: int, n_k: int, start: int) -> GatherPlan:
    """Which blocks to compute. What holds for every batch is planned once, and a batch's own data then only masked.

    If that leaves too many blocks, the data are planned with, in every call anew.
    """
    conditions, sizes = conjuncts(pattern), tuple(SIZES)
    lasting = [part for part in conditions if is_immutable(part)]
    if lasting and len(lasting) < len(conditions):
        found = plan_blocks(reduce(and_, lasting), n_q, n_k, start, sizes)
        if found.density <= DENSEST:
            return replace(found, groups=tuple(replace(group, mixed=True, alike=False) for group in found.groups))
    return cached_for(pattern, plan_blocks)(pattern, n_q, n_k, start, sizes)


@lru_cache(maxsize=64)
def plan_blocks(pattern: Pattern, n_q: int, n_k: int, start: int, sizes: tuple[int, ...]) -> GatherPlan:
    """At the block size that makes them cheapest."""
    maps = {size: pattern.blocks(n_q, n_k, size, start=start) for size in sizes}
    size = min(sizes, key=lambda size: maps[size].density * SIZES.get(size, 1.0))
    chosen = maps[size]
    row, col = (x.long() for x in chosen.visible_blocks())
    seen = torch.bincount(row, minlength=len(chosen.rows))
    mixed = torch.zeros_like(seen, dtype=torch.bool)
    mixed[chosen.row[chosen.state == MIXED].long()] = True
    whole = n_k // size  # blocks of keys from here on are filled up, and what fills them must be hidden
    groups = []
    for count in seen[seen > 0].unique().tolist():
        rows = (seen == count).nonzero().flatten()
        cols = col[(seen == count)[row]].view(len(rows), count)
        offsets = cols - rows[:, None]
        # along a diagonal nothing changes, so rows with the same offsets share one mask
        shapes = offsets.unique(dim=0, return_inverse=True)[1] if pattern.is_toeplitz else torch.zeros_like(rows)
        shapes = shapes * 2 + (cols >= whole).any(1)
        for shape in shapes.unique().tolist():
            mine = shapes == shape
            filled = bool(shape % 2)
            masked = bool(mixed[rows[mine]].any()) or filled
            groups.append(BlockRowGroup(rows[mine], cols[mine], masked, pattern.is_toeplitz and not filled))
    return GatherPlan(size, chosen.density, tuple(groups))


# --- attention over them ---


@dataclass(frozen=True, eq=False)
class GatherCall:
    """One use of the backend: how to cut tensors into blocks, gather them, and attend over what was gathered."""

    recipe: Recipe
    plan: GatherPlan
    q_shape: torch.Size
    k_shape: torch.Size
    start: int
    uses_flash: bool

    def cut(self, x: Tensor) -> Tensor:
        """Into blocks, batch and heads side by side, the last block filled with zeros."""
        missing = -x.shape[2] % self.plan.size
        return rearrange(pad(x, (0, 0, 0, missing)), "b h (n s) d -> (b h) n s d", s=self.plan.size).contiguous()

    def paste(self, blocks: Tensor, like: torch.Size) -> Tensor:
        return rearrange(blocks, "(b h) n s d -> b h (n s) d", b=like[0])[:, :, : like[2]]

    def chunks(self):
        """Rows of blocks that are computed together: few enough for their scores to fit."""
        for group in self.plan.groups:
            cells = self.q_shape[0] * self.q_shape[1] * self.plan.size**2 * group.cols.shape[1]
            step = max(1, CELLS_AT_ONCE // cells)
            for rows, cols in zip(group.rows.split(step), group.cols.split(step), strict=True):
                yield GatheredRows(self, group, rows, cols)


@dataclass(frozen=True, eq=False)
class GatheredRows:
    """Some rows of blocks. Each is a batch of its own; batch elements and heads lie along the head axis."""

    call: GatherCall
    group: BlockRowGroup
    rows: Tensor
    cols: Tensor

    def queries(self, blocks: Tensor) -> Tensor:
        return rearrange(blocks[:, self.rows], "h r s ... -> r h s ...")

    def keys(self, blocks: Tensor) -> Tensor:
        if self.slides():  # a window moving over the keys: no copy is needed, the rows may overlap
            (h, n, s, d), (r, c) = blocks.shape, self.cols.shape
            first = blocks.storage_offset() + int(self.cols[0, 0]) * s * d
            return blocks.as_strided((r, h, c * s, d), (s * d, n * s * d, d, 1), first)
        gathered = blocks.flatten(0, 1)[self.where(blocks)]
        return rearrange(gathered, "(h r c) s d -> r h (c s) d", r=len(self.rows), c=self.cols.shape[1])

    def slides(self) -> bool:
        """Each row sees the blocks that follow one another, each row one further than the last."""
        r, c = self.cols.shape
        return bool((self.cols == self.cols[0, 0] + torch.arange(r)[:, None] + torch.arange(c)).all())

    def where(self, blocks: Tensor) -> Tensor:
        """Which blocks these are, all heads in a row: along two axes torch gathers and adds far more slowly."""
        first = torch.arange(0, blocks.shape[0] * blocks.shape[1], blocks.shape[1])
        return (first[:, None] + self.cols.flatten()).flatten().to(blocks.device)

    def put(self, total: Tensor, part: Tensor) -> None:
        total[:, self.rows] = rearrange(part, "r h s ... -> h r s ...").to(total.dtype)  # narrower under autocast

    def scatter_add(self, total: Tensor, part: Tensor) -> None:
        """Add what belongs to gathered keys back to where they came from."""
        blocks = rearrange(part, "r h (c s) d -> (h r c) s d", s=self.call.plan.size)
        total.flatten(0, 1).index_add_(0, self.where(total), blocks)

    def cells(self, device: torch.device, rows: int | None = None) -> tuple[IndexGrid, Tensor]:
        """The index cells of these rows (or the first of them), and which keys are more than filling."""
        size, (batch, heads, n_q, _), n_k = self.call.plan.size, self.call.q_shape, self.call.k_shape[2]
        inside = torch.arange(size, device=device)
        i = self.rows[:rows].to(device)[:, None] * size + inside + self.call.start
        j = rearrange(self.cols[:rows].to(device)[:, :, None] * size + inside, "r c s -> r (c s)")
        b, h = torch.arange(batch, device=device), torch.arange(heads, device=device)
        cells = IndexGrid(
            b.repeat_interleave(heads).view(1, -1, 1, 1),
            h.repeat(batch).view(1, -1, 1, 1),
            i.clamp(max=self.call.start + n_q - 1)[:, None, :, None],  # filling reads an index that exists
            j.clamp(max=n_k - 1)[:, None, None, :],
        )
        return cells, (j < n_k)[:, None, None, :]

    def visible(self, device: torch.device) -> Tensor | None:
        if not self.group.mixed:
            return None
        cells, real = self.cells(device, 1 if self.group.alike else None)
        return cells.visible(self.call.recipe.pattern) & real

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        recipe, (cells, _) = self.call.recipe, self.cells(q.device)
        # which of torch's kernels runs may depend on whether gradients are wanted, and each draws noise of its own
        if sdpa.softmax_dropout(recipe.normaliser) != 0 or sdpa.objections(recipe, q, k, Positions(q, k, None)):
            return self.attend_by_reference(q, k, v)
        return sdpa.attend_masked(recipe, q, k, v, cells, self.visible(q.device))

    def attend_by_reference(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """By the reference, rows of blocks as the batch: a score or normaliser may have weights for every head."""
        visible = self.visible(q.device)
        if visible is None:
            visible = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        cells = IndexGrid(*map(self.by_sentence, self.cells(q.device)[0].all()))
        q, k, v, visible = map(self.by_sentence, (q, k, v, visible))
        out = reference.steps(self.call.recipe, q, k, v, cells, visible).output
        return rearrange(out, "(r b) h s e -> r (b h) s e", r=len(self.rows))

    def by_sentence(self, x: Tensor) -> Tensor:
        """Sentences beside the rows, where they lay beside the heads; what all share stays shared."""
        batch, rows = self.call.q_shape[0], len(self.rows)
        if x.shape[1] == 1:
            return x.repeat_interleave(batch, 0) if len(x) > 1 else x
        return rearrange(x.expand(rows, -1, -1, -1), "r (b h) ... -> (r b) h ...", b=batch)

    def mask(self, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """For the fused kernel: what to add to the scores, and which queries see nothing."""
        visible = self.visible(q.device)
        if visible is None and not self.call.recipe.score_positions:
            return None, None
        cells = self.cells(q.device)[0] if self.call.recipe.score_positions else None
        mask, blind = sdpa.mask(self.call.recipe, q, cells, visible)
        return mask.expand(q.shape[0], -1, -1, -1), blind


@dataclass(frozen=True, eq=False)
class RecomputeState:
    """What a forward pass depends on besides its inputs: the random state of its devices, and autocast."""

    device: torch.device
    cpu: Tensor
    devices: list[int]
    states: list[Tensor]
    autocast: tuple[bool, torch.dtype]

    @staticmethod
    def of(q: Tensor) -> "RecomputeState":
        kind = q.device.type
        autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        return RecomputeState(q.device, torch.get_rng_state(), *get_device_states(q), autocast)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Inside, what was dropped or drawn going forwards is dropped or drawn again, in the same precision."""
        enabled, dtype = self.autocast
        with (
            torch.random.fork_rng(self.devices, device_type=self.device.type),
            torch.autocast(self.device.type, dtype, enabled),
        ):
            torch.set_rng_state(self.cpu)
            set_device_states(self.devices, self.states, device_type=self.device.type)
            yield


class GatherFunction(torch.autograd.Function):
    """Attention over gathered blocks that keeps only its inputs and what a fused kernel wants back."""

    @staticmethod
    def forward(ctx, call: GatherCall, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> Tensor:
        ctx.call, ctx.learned, ctx.shapes = call, learned, (q.shape, k.shape, v.shape)
        ctx.conditions, ctx.data = RecomputeState.of(q), len(held := list(tensors(call.recipe.pattern)))
        q, k, v = call.cut(q), call.cut(k), call.cut(v)
        out = v.new_zeros(*q.shape[:3], v.shape[3])
        lse = q.new_zeros(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))
        for some in call.chunks():
            inputs = some.queries(q), some.keys(k), some.keys(v)
            if call.uses_flash:
                mask, blind = some.mask(inputs[0])
                part, sums = flash(*inputs, 0.0, False, attn_mask=mask, scale=1.0)  # noqa: FBT003
                some.put(out, part if blind is None else part.masked_fill(blind, 0.0))
                some.put(lse, sums)
            else:
                some.put(out, some.attend(*inputs))
        # the pattern's own data are saved as well, so that torch notices if they are written to before the backward
        ctx.save_for_backward(*held, q, k, v, *((out, lse) if call.uses_flash else ()))
        return call.paste(out, call.q_shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        call, (q, k, v, *kept) = ctx.call, ctx.saved_tensors[ctx.data :]
        grad = call.cut(grad)
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        learned = [torch.zeros_like(x) for x in ctx.learned]
        with ctx.conditions.restored():
            for some in call.chunks():
                inputs, upstream = (some.queries(q), some.keys(k), some.keys(v)), some.queries(grad)
                if call.uses_flash:
                    mask, blind = some.mask(inputs[0])
                    upstream = upstream if blind is None else upstream.masked_fill(blind, 0.0)
                    out, lse = map(some.queries, kept)
                    parts = flash_backward(upstream, *inputs, out, lse, 0.0, False, attn_mask=mask, scale=1.0)  # noqa: FBT003
                else:
                    parts = gradients(some, inputs, ctx.learned, upstream)
                some.put(dq, parts[0])
                some.scatter_add(dk, parts[1])
                some.scatter_add(dv, parts[2])
                for total, part in zip(learned, parts[3:], strict=True):
                    total += part
        return None, *map(call.paste, (dq, dk, dv), ctx.shapes), *learned


def gradients(
    some: GatheredRows, inputs: tuple[Tensor, ...], learned: tuple[Tensor, ...], upstream: Tensor
) -> tuple[Tensor, ...]:
    """Attend again, this time under the eyes of autograd."""
    with torch.enable_grad():
        inputs = (*(x.detach().requires_grad_() for x in inputs), *learned)
        out = some.attend(*inputs[:3])
        return torch.autograd.grad(out, inputs, upstream.to(out.dtype), materialize_grads=True)
