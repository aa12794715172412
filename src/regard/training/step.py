"""Training step: learning rate, accumulation, clipping, loss scaling and the optimiser; its report; its CUDA graphs.

A step whose loss or gradient is not finite must leave weights and optimiser as they are. Only the device knows; so it
is the device that skips: the optimiser's own kernel divides the summed gradients by the number of tokens (and by the
clipping factor), and does nothing where `found_inf` is 1.

A GPU runs kernels long after the host launched them. To read one number is to wait for all of them, and meanwhile
nothing new is launched; so a step starts an asynchronous copy of its few figures, which are read when it is done.

A small model's step is a thousand small kernels, and to launch them one by one takes longer than to run them. A CUDA
graph holds them all, in their order and with their addresses; a new batch is copied to where the captured one was, and
the graph is replayed. The kernels and their random numbers are the same, so the result is bit for bit the same too.
A graph serves batches of one shape. Captured is the backward pass of a batch, or a whole step of one batch, with
clipping and the optimiser: such a graph writes the gradients instead of adding them up, and what changes from step to
step (the batch, its number of tokens, the rate, the scale) is copied to its inputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from math import cos, pi
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.seq2seq import map_tensors
from regard.ops.cuda_graph import CUDAGraphCapture, GraphCapture
from regard.ops.flat_adamw import FlatAdamW

# --- learning rate schedules ---


class Schedule(ABC):
    """Abstract: the rate at each step, counted from 1.

    Examples:
        >>> class Halving(Schedule):  # by a half every hundred steps
        ...     def rate(self, step):
        ...         return 0.001 * 0.5 ** (step // 100)
        >>> TrainConfig(Halving(), steps=1000).schedule.rate(250)
        0.00025
    """

    @abstractmethod
    def rate(self, step: int) -> float: ...


@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """Constant after a linear warm-up.

    Examples:
        >>> schedule = ConstantSchedule(peak=0.001, warmup=4)
        >>> [schedule.rate(step) for step in (1, 2, 4, 100)]
        [0.00025, 0.0005, 0.001, 0.001]
    """

    peak: float
    warmup: int = 0

    def rate(self, step):
        return self.peak * min(1.0, step / max(1, self.warmup))


@dataclass(frozen=True)
class NoamSchedule(Schedule):
    """factor · model^-½ · min(step^-½, step · warmup^-1½), eq. 3 of Vaswani et al. 2017.

    Examples:
        >>> schedule = NoamSchedule(model=512, warmup=4000)
        >>> round(schedule.rate(4000), 6), round(schedule.rate(16_000), 6)  # the peak; half of it
        (0.000699, 0.000349)
    """

    model: int
    warmup: int = 4000
    factor: float = 1.0

    def __post_init__(self):
        if self.model < 1 or self.warmup < 1:
            raise ValueError(f"{self}: model and warmup must be at least 1")

    def rate(self, step):
        return self.factor * self.model**-0.5 * min(step**-0.5, step * self.warmup**-1.5)


@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """Linear warm-up to `peak`, then half a cosine down to `minimum` at the last of `steps`.

    Examples:
        >>> schedule = CosineSchedule(peak=1.0, steps=12, warmup=4, minimum=0.1)
        >>> [round(schedule.rate(step), 3) for step in (1, 4, 8, 12)]
        [0.25, 1.0, 0.55, 0.1]
    """

    peak: float
    steps: int
    warmup: int = 0
    minimum: float = 0.0

    def __post_init__(self):
        if not 0 <= self.warmup < self.steps:
            raise ValueError(f"{self}: a warm-up of {self.warmup} steps does not fit into {self.steps}")

    def rate(self, step):
        if step <= self.warmup:
            return self.peak * step / self.warmup
        done = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return self.minimum + (self.peak - self.minimum) * (1 + cos(pi * done)) / 2


# --- the step ---


MAX_SCALE = 2.0**24
GROWTH_INTERVAL = 2000  # steps

# Of a micro-batch and a loss scale: adds the gradients of the scaled, summed loss to those of the weights, and returns
# that loss and the number of tokens it was summed over.
BackwardFunction = Callable[[Any, Tensor], tuple[Tensor, int]]


@dataclass(frozen=True, eq=False)
class LossScaleState:
    """On the device: how many steps in a row were skipped, and by what the loss is scaled (1 but for float16)."""

    skips: Tensor
    scale: Tensor

    @staticmethod
    def of(skips: int, scale: float, device: torch.device) -> "LossScaleState":
        return LossScaleState(*(torch.tensor(float(each), device=device) for each in (skips, scale)))

    def after(self, skipped: Tensor, step: int, *, scaled: bool) -> "LossScaleState":
        """Loss scaling for float16: halve after an overflow, double every two thousand steps."""
        skips = (self.skips + 1) * skipped
        if not scaled:
            return LossScaleState(skips, self.scale)
        grown = (self.scale * 2).clamp(max=MAX_SCALE) if step % GROWTH_INTERVAL == 0 else self.scale
        return LossScaleState(skips, torch.where(skipped > 0, self.scale / 2, grown))


@dataclass(frozen=True, eq=False)
class StepResult:
    """The figures of a step, on the device: its mean loss, the norm of its gradient, 1 if it was skipped."""

    loss: Tensor
    norm: Tensor
    skipped: Tensor
    tokens: int


def take_step(
    optimiser: torch.optim.Optimizer, batches: Iterable[Any], backward: BackwardFunction, scale: Tensor, *, clip: float
) -> StepResult:
    """Add up the gradients of the batches, and let the optimiser step by their mean over all tokens."""
    total, tokens = torch.zeros_like(scale), 0
    for batch in batches:
        summed, count = backward(batch, scale)
        total, tokens = total + summed, tokens + count
    norm = gradient_norm(gradients_of(optimiser))
    loss, norm, skipped = apply_update(optimiser, norm, total, torch.full_like(scale, tokens), scale, clip=clip)
    return StepResult(loss, norm, skipped, tokens)


def apply_update(
    optimiser: torch.optim.Optimizer,
    norm: Tensor,
    total: Tensor,
    tokens: Tensor,
    scale: Tensor,
    *,
    clip: float,
    skip: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The optimiser's step by the weights' gradients of this norm; `skip` is 1 if it must leave all as it is.

    The number of tokens is a tensor, so that a captured step, whose graph is fixed, divides in the same way.
    """
    norm = norm / (scale * tokens)
    # ‖g‖ is clipped as torch's clip_grad_norm_ does it
    clip_factor = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(norm)
    loss = total / tokens.clamp(min=1)
    skipped = (~(norm.isfinite() & loss.isfinite())).float()
    optimiser.grad_scale = (scale * tokens / clip_factor).float()  # type: ignore[attr-defined]
    optimiser.found_inf = skipped if skip is None else torch.maximum(skipped, skip)  # type: ignore[attr-defined]
    optimiser.step()
    return loss, norm, skipped


def gradients_of(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    if isinstance(optimiser, FlatAdamW):
        return optimiser.gradients
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    return [weight.grad for weight in weights if weight.grad is not None]


def gradient_norm(gradients: list[Tensor]) -> Tensor:
    dtype = torch.promote_types(gradients[0].dtype, torch.float32)
    norms: list[Tensor] = torch._foreach_norm(gradients, dtype=dtype)  # type: ignore[reportPrivateImportUsage]
    return torch.linalg.vector_norm(torch.stack(norms))


# --- the report ---


@dataclass(frozen=True, eq=False)
class AsyncScalars:
    """A few numbers that are copied asynchronously from the device to the host."""

    numbers: Tensor
    event: torch.cuda.Event | None = None

    @staticmethod
    def start_copy(numbers: Tensor) -> "AsyncScalars":
        if not numbers.is_cuda:
            return AsyncScalars(numbers)
        here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True).copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return AsyncScalars(here, event)

    @property
    def is_ready(self) -> bool:
        return self.event is None or self.event.query()

    def read(self) -> list[float]:
        """Waits for them, if need be."""
        if self.event is not None:
            self.event.synchronize()
        return self.numbers.tolist()


@dataclass(frozen=True)
class Report:
    """The figures of one step. Loss, norm and skips wait for the device when they are read.

    Examples:
        >>> from pathlib import Path
        >>> from regard.data import LMBlocks
        >>> data, layer = LMBlocks(torch.arange(4, 104), length=10), torch.nn.Linear(3, 1)
        >>> layer.weight.data, layer.bias.data = torch.ones(1, 3), torch.zeros(1)
        >>> def loss(model, block):
        ...     return model(torch.ones(4, 3)).sum(), 4
        >>> (report,) = train(layer, data, loss, TrainConfig(ConstantSchedule(0.001), steps=1), Path("reported"))
        >>> report.loss, report.norm  # 3 · 4 / 4; the gradient is 1, 1, 1 and 1
        (3.0, 2.0)
        >>> report.step, report.rate, report.tokens, report.skipped
        (1, 0.001, 4, False)
    """

    step: int
    rate: float
    tokens: int
    scalars: AsyncScalars
    validation: dict[str, float] | None = None

    @property
    def loss(self) -> float:
        """The mean over the step's tokens."""
        return self.scalars.read()[0]

    @property
    def norm(self) -> float:
        """Of the gradient, before it was clipped."""
        return self.scalars.read()[1]

    @property
    def skips(self) -> int:
        """Steps in a row, up to this one, that were skipped because they were not finite."""
        return int(self.scalars.read()[2])

    @property
    def skipped(self) -> bool:
        return self.skips > 0


# --- CUDA graphs ---


OPTION, REMEDY = "train.cuda_graph = true: ", "leave cuda_graph out"
MAX_GRAPHS = 64  # graphs that are kept; batches of further shapes are launched kernel by kernel


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A graph: its replay, its input tensors, and the tensor of the summed loss."""

    replay: Callable[[], object]
    inputs: list[Tensor]
    summed: Tensor

    def run(self, given: list[Tensor]) -> Tensor:
        for input_, tensor in zip(self.inputs, given, strict=True):
            input_.copy_(tensor, non_blocking=True)
        self.replay()
        return self.summed.clone()


def no_batches() -> Iterable[Any]:
    return ()


class CapturedBackward:
    """A backward pass for batches of few shapes. A batch is (what the loss reads, the number of its tokens, ...).

    A shape is captured the second time it comes; one that comes once, as the rest of an epoch may, is launched kernel
    by kernel.

    Gradients are added to those that the weights have, so these must be set to 0, not to None, between steps.

    Args:
        model: its gradients and buffers are restored after a capture.
        backward: what is to be captured.
        warmup_batches: to be captured before the first step. The largest come first: their memory pool serves all the
            others too.
        capture: CUDA graphs by default.
    """

    def __init__(
        self,
        model: nn.Module,
        backward: BackwardFunction,
        warmup_batches: Callable[[], Iterable[Any]] = no_batches,
        capture: GraphCapture | None = None,
    ):
        self.model, self.backward, self.warmup_batches = model, backward, warmup_batches
        self.capture = CUDAGraphCapture(OPTION, REMEDY) if capture is None else capture
        self.captured_graphs, self.seen_shapes = dict[Hashable, CapturedGraph](), set[Hashable]()

    def __call__(self, batch: tuple[Any, ...], scale: Tensor) -> tuple[Tensor, int]:
        if not self.seen_shapes:
            for early in self.warmup_batches():
                self.captured_graph(early, scale)
        given, tokens, *rest = batch
        shape = shape_key((given, *rest))
        if shape not in self.captured_graphs and (
            shape not in self.seen_shapes or len(self.captured_graphs) >= MAX_GRAPHS
        ):
            self.seen_shapes.add(shape)
            return self.backward(batch, scale)
        return self.captured_graph(batch, scale).run([*collect_tensors((given, *rest)), scale]), tokens

    def captured_graph(self, batch: tuple[Any, ...], scale: Tensor) -> CapturedGraph:
        """The graph for batches of this shape."""
        given, _, *rest = batch
        shape = shape_key((given, *rest))
        if shape not in self.captured_graphs:
            self.seen_shapes.add(shape)
            self.captured_graphs[shape] = self.capture_batch((given, *rest), scale)
        return self.captured_graphs[shape]

    def capture_batch(self, given: tuple[Any, ...], scale: Tensor) -> CapturedGraph:
        given, scale = map_tensors(Tensor.clone, given), scale.clone()
        weights, buffers = list(self.model.parameters()), list(self.model.buffers())
        grads = [None if weight.grad is None else weight.grad.clone() for weight in weights]
        values, rng = [buffer.clone() for buffer in buffers], rng_state(scale.device)

        def work() -> Tensor:
            return self.backward((given[0], 0, *given[1:]), scale)[0]

        replay, summed = self.capture(work, scale.device)
        for weight, grad in zip(weights, grads, strict=True):
            if weight.grad is not None:
                weight.grad.zero_() if grad is None else weight.grad.copy_(grad)
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)
        set_rng_state(rng, scale.device)
        return CapturedGraph(replay, [*collect_tensors(given), scale], summed)


def rng_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_rng_state(rng: Tensor, device: torch.device) -> None:
    torch.cuda.set_rng_state(rng, device) if device.type == "cuda" else torch.set_rng_state(rng)


def shape_key(value: Any) -> Hashable:
    """The value with shapes instead of its tensors: what a graph depends on."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, tuple):
        return tuple(map(shape_key, value))
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(shape_key(getattr(value, part.name)) for part in fields(value))
    return value


def collect_tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(lambda tensor: (found.append(tensor), tensor)[1], value)
    return found


class CapturedStep:
    """Steps of one batch each, captured once for each shape of a batch.

    The optimiser must be capturable; from its first step here its learning rate is a tensor. A capture leaves weights,
    buffers and the random state as they were.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        backward: BackwardFunction,
        *,
        clip: float,
        capture: GraphCapture | None = None,
    ):
        self.model, self.optimiser, self.backward, self.clip = model, optimiser, backward, clip
        self.capture = CUDAGraphCapture(OPTION, REMEDY) if capture is None else capture
        device = next(model.parameters()).device
        self.rate, self.skip_step = (torch.zeros((), device=device) for _ in range(2))
        self.captured_graphs = dict[Hashable, CapturedGraph]()

    def __call__(self, batches: list[Any], scale: Tensor, rate: float) -> StepResult:
        if len(batches) != 1:
            raise ValueError(f"{len(batches)} batches a step cannot be captured as one CUDA graph; set accumulate = 1")
        given, tokens, *rest = batches[0]
        shape = shape_key((given, *rest))
        if shape not in self.captured_graphs:
            self.captured_graphs[shape] = self.capture_batch((given, *rest), scale)
        self.rate.fill_(rate)
        count = torch.full_like(self.rate, tokens)
        loss, norm, broken = self.captured_graphs[shape].run([*collect_tensors((given, *rest)), scale, count]).unbind()
        return StepResult(loss, norm, broken, tokens)

    def capture_batch(self, given: tuple[Any, ...], scale: Tensor) -> CapturedGraph:
        given, scale, count = map_tensors(Tensor.clone, given), scale.clone(), torch.ones_like(self.rate)
        buffers, rng = list(self.model.buffers()), rng_state(scale.device)
        values = [buffer.clone() for buffer in buffers]
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate
        self.skip_step.fill_(1.0)  # warm-up steps must leave everything as it is: they are skipped
        replay, found = self.capture(lambda: self.run_step(given, scale, count), scale.device)
        self.skip_step.zero_()
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)
        set_rng_state(rng, scale.device)
        return CapturedGraph(replay, [*collect_tensors(given), scale, count], found)

    def run_step(self, given: tuple[Any, ...], scale: Tensor, count: Tensor) -> Tensor:
        """As in `take_step`."""
        weights = [weight for group in self.optimiser.param_groups for weight in group["params"]]
        for weight in weights:
            weight.grad = None  # so that the backward pass writes, and does not add
        summed, _ = self.backward((given[0], 0, *given[1:]), scale)
        norm = gradient_norm(gradients_of(self.optimiser))
        found = apply_update(self.optimiser, norm, summed, count, scale, clip=self.clip, skip=self.skip_step)
        return torch.stack([each.float() for each in found])
