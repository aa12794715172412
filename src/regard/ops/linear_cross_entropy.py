"""Linear cross-entropy: cross_entropy(linear(x, table, bias), targets) without all logits in memory at once.

With scores s = W x + b, p = softmax(s), the target y and label smoothing ε over all v classes (Szegedy et al. 2016,
section 7), the loss of a row is

    (1 − ε)(−log p_y) + ε(−mean log p)  =  −log p_y + ε (s_y − s̄),      ∂/∂s_j = p_j − (1 − ε)[j = y] − ε/v

The mean score is the score of the mean embedding, s̄ = w̄·x + b̄, so smoothing needs no further pass over the scores.
The gradient is known as soon as the scores are: a chunk of rows leaves its loss and its part of the gradients of x, W
and b, and its scores are discarded. Nothing is computed twice, and the backward pass only scales by the incoming
gradient.
"""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import Function
from torch.nn.functional import linear, log_softmax

from regard.ops.dispatch import matmul_dtype, no_autocast

BUDGET = 64 * 2**20  # bytes of a chunk's scores in float32; two and a half times that is held at once
CACHED = 8 * 2**20  # bytes that a CPU's caches hold: softmax then reads what the product has just written
ROWS = 256  # at least so many, or matrix products are inefficient
GPU_BUDGET = 2 * 2**30  # few chunks: each launches several kernels, and products need many rows
TILE = 128  # rows: a matrix product on a GPU pays for whole tiles
IGNORED = -100  # as in torch


def linear_cross_entropy(
    x: Float[Tensor, "n m"],
    table: Float[Tensor, "v m"],
    bias: Float[Tensor, " v"],
    targets: Int[Tensor, " n"],
    *,
    smoothing: float = 0.0,
    ignore_index: int = IGNORED,
    budget: int | None = None,
) -> Float[Tensor, ""]:
    """The summed loss: `cross_entropy(linear(x, table, bias), targets, reduction="sum")`.

    Under autocast, and for bfloat16 weights, products are in 16 bits, and softmax, losses and sums of gradients in
    float32. It can be differentiated once.

    Args:
        smoothing: ε, the weight of the uniform distribution among the targets.
        ignore_index: rows with this target have no loss and no gradient, whatever their states are.
        budget: bytes of scores, in float32 or wider, that a chunk of rows may have; one row is always allowed.
            By default, what suits the device.
    """
    budget = default_budget(x, table) if budget is None else budget
    if not torch.is_grad_enabled():
        return linear_cross_entropy_per_row(
            x, table, bias, targets, smoothing=smoothing, ignore_index=ignore_index, budget=budget
        ).sum()
    check_shapes(x, table, bias, targets, smoothing, budget)
    return LinearCrossEntropyFunction.apply(x, table, bias, targets, LossOptions(smoothing, ignore_index, budget))


@torch.no_grad()
def linear_cross_entropy_per_row(
    x: Float[Tensor, "n m"],
    table: Float[Tensor, "v m"],
    bias: Float[Tensor, " v"],
    targets: Int[Tensor, " n"],
    *,
    smoothing: float = 0.0,
    ignore_index: int = IGNORED,
    budget: int | None = None,
) -> Float[Tensor, " n"]:
    """The loss of each row, without gradients; 0 where it is ignored."""
    budget = default_budget(x, table) if budget is None else budget
    check_shapes(x, table, bias, targets, smoothing, budget)
    inputs = LossInputs.of(x, table, bias, targets, LossOptions(smoothing, ignore_index, budget))
    losses = inputs.row_mask.new_empty(
        len(x)
    )  # allocated once: small blocks between large ones would fragment the heap
    with no_autocast(x):
        for rows in inputs.chunks:
            losses[rows] = inputs.loss_of_rows(rows)
    return inputs.zero_ignored(losses)


def default_budget(x: Tensor, table: Tensor) -> int:
    return GPU_BUDGET if x.is_cuda else min(BUDGET, max(CACHED, 4 * ROWS * len(table)))


def check_shapes(x: Tensor, table: Tensor, bias: Tensor, targets: Tensor, smoothing: float, budget: int) -> None:
    (n, width), (size, needed) = x.shape, table.shape
    if width != needed:
        raise ValueError(f"states of width {width} do not fit an embedding of width {needed}; make the two equal")
    if bias.shape != (size,):
        raise ValueError(f"a bias of shape {tuple(bias.shape)} does not fit {size} classes; give one number for each")
    if targets.shape != (n,):
        raise ValueError(
            f"{n} states do not fit targets of shape {tuple(targets.shape)}; give one target for each state"
        )
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing = {smoothing} should lie between 0 and 1; choose a number from 0 to 1")
    if budget < 1:
        raise ValueError(f"a budget of {budget} bytes holds no scores; give at least 1 (one row is always allowed)")


@dataclass(frozen=True)
class LossOptions:
    """Label smoothing, the target to ignore, and the memory for scores."""

    smoothing: float
    ignore_index: int
    budget: int


@dataclass(frozen=True, eq=False)
class LogitsBuffer:
    """Memory for the scores of one chunk after the other, in the dtype of products and in float32 or wider.

    To a CPU, memory that is new each time costs more than the softmax that is written to it: every page of it is
    fetched from the system, filled with zeros, and given back.
    """

    scores: Float[Tensor, "r v"]
    wide: Float[Tensor, "r v"]  # the same memory, if products are that wide

    @staticmethod
    def of(rows: int, table: Float[Tensor, "v m"], wide: torch.dtype) -> "LogitsBuffer":
        scores = table.new_empty(rows, len(table))
        return LogitsBuffer(scores, scores if wide == scores.dtype else torch.empty_like(scores, dtype=wide))

    def fill(
        self, x: Float[Tensor, "r m"], table: Float[Tensor, "v m"], bias: Float[Tensor, " v"]
    ) -> tuple[Float[Tensor, "r v"], Float[Tensor, "r v"]]:
        """The scores of these rows, also in float32 or wider; the two may share memory."""
        scores, wide = self.scores[: len(x)], self.wide[: len(x)]
        torch.addmm(bias, x, table.T, out=scores)
        return scores, scores if wide.dtype == scores.dtype else wide.copy_(scores)


@dataclass(frozen=True, eq=False)
class LossInputs:
    """The operands in the dtype of products, and what all chunks need of them.

    Args:
        table, bias: of the output layer.
        mean_embedding: the mean row of the table, for label smoothing.
    """

    x: Float[Tensor, "n m"]
    table: Float[Tensor, "v m"]
    bias: Float[Tensor, " v"]
    targets: Int[Tensor, "n 1"]
    row_mask: Float[Tensor, " n"]  # 1 for a row that counts, 0 for one that is ignored
    mean_embedding: Float[Tensor, " m"]
    mean_bias: Float[Tensor, ""]
    options: LossOptions

    @staticmethod
    def of(x: Tensor, table: Tensor, bias: Tensor, targets: Tensor, options: LossOptions) -> "LossInputs":
        dtype = matmul_dtype(x, table)
        wide = torch.promote_types(dtype, torch.float32)
        ignored = targets == options.ignore_index
        table, bias = table.to(dtype), bias.to(dtype)
        return LossInputs(
            # an ignored state may be anything, and 0 · nan is nan
            x.to(dtype).masked_fill(rearrange(ignored, "n -> n 1"), 0.0),
            table,
            bias,
            rearrange(targets.masked_fill(ignored, 0), "n -> n 1"),
            (~ignored).to(wide),
            column_sums(table, wide) / len(table),
            bias.mean(dtype=wide),
            options,
        )

    @property
    def wide(self) -> torch.dtype:
        return self.row_mask.dtype

    @property
    def chunks(self) -> list[slice]:
        """Slices of as many rows as the budget allows, a size that does not depend on the number of rows."""
        rows = max(1, self.options.budget // (len(self.table) * self.wide.itemsize))
        rows -= rows % TILE if rows > TILE else 0
        return [slice(begin, begin + rows) for begin in range(0, len(self.x), rows)] or [slice(0, 0)]

    @property
    def buffer(self) -> LogitsBuffer:
        return LogitsBuffer.of(min(len(self.x), self.chunks[0].stop), self.table, self.wide)

    def zero_ignored(self, losses: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return losses.where(self.row_mask > 0, 0.0)

    def loss_of_rows(self, rows: slice) -> Float[Tensor, " r"]:
        """The loss of these rows, as if none was ignored."""
        scores = linear(self.x[rows], self.table, self.bias)
        log_p = log_softmax(scores, -1, dtype=self.wide)
        losses, target_scores = (rearrange(each.gather(1, self.targets[rows]), "r 1 -> r") for each in (-log_p, scores))
        return self.add_smoothing(rows, losses, target_scores)

    def add_smoothing(
        self, rows: slice, losses: Float[Tensor, " r"], target_scores: Float[Tensor, " r"]
    ) -> Float[Tensor, " r"]:
        """The losses, from −log p_y and s_y."""
        if not self.options.smoothing:
            return losses
        mean = self.x[rows].to(self.wide) @ self.mean_embedding + self.mean_bias
        return losses + self.options.smoothing * (target_scores - mean)

    def loss_and_gradient(
        self, rows: slice, buffer: LogitsBuffer | None
    ) -> tuple[Float[Tensor, " r"], Float[Tensor, "r v"], Float[Tensor, " v"]]:
        """The loss of these rows and its gradient by the scores, as if none was ignored and without the −ε/v that all
        classes share; and the sum of that gradient over the rows that are not ignored."""
        if buffer is None:
            return self.loss_and_gradient_triton(rows)
        x, targets = self.x[rows], self.targets[rows]
        scores, wide = buffer.fill(x, self.table, self.bias)
        target_scores, top = wide.gather(1, targets)[:, 0], wide.amax(-1)
        p = torch.softmax(wide, -1, out=wide)
        # one exponential for each score: log Σ exp s follows from the largest p, which is never small
        log_sum = top - p.amax(-1).log()
        losses = self.add_smoothing(rows, log_sum - target_scores, target_scores)
        # p_y − 1 is rounded once, after the difference
        p_target = p.gather(1, targets) - (1 - self.options.smoothing)
        ds = p if p.dtype == scores.dtype else scores.copy_(p)  # in the precision of the scores
        # scatter_ would copy all of it, and back
        ds.index_put_((torch.arange(len(x), device=x.device), targets[:, 0]), p_target[:, 0].to(ds.dtype))
        return losses, ds, (self.row_mask[rows].to(ds.dtype) @ ds).to(self.wide)

    def grad_states(self, ds: Float[Tensor, "r v"], smoothing: float) -> Float[Tensor, "r m"]:
        """The gradient of the states; `smoothing` is the weight of the uniform distribution in a row's loss."""
        if not smoothing:
            return ds @ self.table
        if ds.is_cuda:  # in one kernel
            return torch.addmm((-smoothing * self.mean_embedding).to(ds.dtype), ds, self.table)
        return ds @ self.table - smoothing * self.mean_embedding

    def add_grad_table(
        self, total: Tensor | None, rows: slice, ds: Float[Tensor, "r v"], dtype: torch.dtype
    ) -> Float[Tensor, "v m"]:
        """The gradient of the table, added to that of earlier rows; the first chunk adds what smoothing contributes."""
        x, smoothing = self.x[rows], self.options.smoothing
        if total is not None or not smoothing:
            return add_product(total, ds.T, x, self.wide)
        shared = -smoothing / len(self.table) * column_sums(self.x, self.wide)
        if ds.is_cuda and len(x) == len(self.x) and dtype == ds.dtype:  # the only chunk: in one kernel, rounded once
            return torch.addmm(shared.to(dtype), ds.T, x)
        return add_product(None, ds.T, x, self.wide).add_(shared)

    def finish_gradients(
        self,
        dx: Float[Tensor, "n m"],
        dtable: Float[Tensor, "v m"] | None,
        dbias: Float[Tensor, " v"] | None,
        smoothing: float,
        dtypes: tuple[torch.dtype, torch.dtype],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Those of states, table and bias after the last chunk; ignored rows have none."""
        assert dtable is not None
        assert dbias is not None
        if smoothing:
            dbias -= smoothing / len(dbias) * self.row_mask.sum()
        dx.masked_fill_(rearrange(self.row_mask == 0, "n -> n 1"), 0.0)
        return dx, dtable.to(dtypes[0]), dbias.to(dtypes[1])

    def loss_and_gradient_triton(
        self, rows: slice
    ) -> tuple[Float[Tensor, " r"], Float[Tensor, "r v"], Float[Tensor, " v"]]:
        """The same by kernels, in place of the scores."""
        from regard.ops.linear_triton import cross_entropy_rows

        scores = linear(self.x[rows], self.table, self.bias)
        losses, target_scores, total = cross_entropy_rows(
            scores, self.targets[rows], self.row_mask[rows], 1 - self.options.smoothing
        )
        return self.add_smoothing(rows, losses, target_scores), scores, total


class LinearCrossEntropyFunction(Function):
    """The summed loss; its gradients are computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, bias: Tensor, targets: Tensor, options: LossOptions) -> Tensor:
        inputs = LossInputs.of(x, table, bias, targets, options)
        smoothing = options.smoothing
        losses, dx = inputs.row_mask.new_empty(len(x)), torch.empty_like(x)
        dtable = dbias = None
        with no_autocast(x):
            buffer = None if x.is_cuda and inputs.wide == torch.float32 else inputs.buffer
            for rows in inputs.chunks:
                losses[rows], ds, total = inputs.loss_and_gradient(rows, buffer)
                dx[rows] = inputs.grad_states(ds, smoothing)
                dtable = inputs.add_grad_table(dtable, rows, ds, table.dtype)
                dbias = total if dbias is None else dbias.add_(total)
                del ds  # before the next chunk needs memory
        ctx.save_for_backward(*inputs.finish_gradients(dx, dtable, dbias, smoothing, (table.dtype, bias.dtype)))
        return inputs.zero_ignored(losses).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if torch.is_grad_enabled():  # torch would silently take these gradients for constants
            raise ValueError(
                "create_graph=True needs a second derivative, which this loss does not have; "
                "use torch's cross_entropy of all logits, where they fit"
            )
        return *(scale_by(part, grad) for part in ctx.saved_tensors), None, None


def scale_by(x: Tensor, by: Float[Tensor, ""]) -> Tensor:
    if not x.is_cuda or x.dtype == torch.float64:
        return by * x
    from regard.ops.linear_triton import scale

    return scale(x, by)


def column_sums(x: Float[Tensor, "n m"], wide: torch.dtype) -> Float[Tensor, " m"]:
    """Σ over the rows; on a GPU by a Triton kernel, for torch's takes four times as long."""
    if not x.is_cuda or not x.numel():
        return x.sum(0, dtype=wide)
    from regard.ops.linear_triton import sum_columns

    return sum_columns(x if x.stride(1) == 1 else x.contiguous(), dtype=wide)


def add_product(total: Tensor | None, a: Tensor, b: Tensor, wide: torch.dtype) -> Tensor:
    """total + a b, summed in the dtype `wide`, in place of the total if there is one."""
    if total is not None and a.dtype == wide:
        return total.addmm_(a, b)
    # a GPU can return the product in the precision it was summed in
    product = torch.mm(a, b, out_dtype=wide) if a.is_cuda and a.dtype != wide else (a @ b).to(wide)
    return product if total is None else total.add_(product)
