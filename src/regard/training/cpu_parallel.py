"""Data parallelism on a CPU: threads that each compute the gradients of a part of the batch.

Most operations of a small model are too short for two threads to share: to wake the second takes as long as the work.
So each thread takes its own examples forwards and backwards, and the gradients are added up in the order of the parts.
Nothing may depend on which thread comes first: every part has a random generator of its own.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from threading import Barrier
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from regard.ops.dropout import use_generator
from regard.training.config import Loss

MIN_TOKENS = 1024  # tokens, of both sides: smaller parts are not worth a thread
MAX_GRADIENT_BYTES = 2**30  # limit for the gradients of all parts
SMALL_MODEL_BYTES = 64 * 2**20  # limit of weights whose optimiser step one thread does alone


@runtime_checkable
class Splittable(Protocol):
    """A batch whose examples do not meet one another, so that its rows can be split."""

    @property
    def tokens(self) -> int: ...

    @property
    def num_positions(self) -> int:
        """What it costs: positions of all tensors, padding included."""
        ...

    def split_rows(self, parts: int) -> list[Self]:
        """So many parts, or fewer: none is empty."""
        ...


PartResult = tuple[Tensor, tuple[Tensor | None, ...]]


class ThreadedBackward:
    """The backward pass over a batch, in parts where that pays, and otherwise by `fallback`."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        fallback: Callable[[Any, Tensor], tuple[Tensor, int]],
        precision: Callable[[], AbstractContextManager[Any]],
    ):
        self.model, self.loss, self.fallback, self.precision = model, loss, fallback, precision
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        size = sum(weight.numel() * weight.element_size() for weight in self.weights)
        self.threads, self.small = torch.get_num_threads(), size <= SMALL_MODEL_BYTES
        self.max_parts = min(self.threads, MAX_GRADIENT_BYTES // max(size, 1))
        self.pool = make_pool(self.max_parts, self.threads // self.max_parts) if self.max_parts > 1 else None

    @contextmanager
    def limited_threads(self) -> Iterator[None]:
        """Around a step, the rest of the work uses one thread: a second one that waits would occupy a core."""
        with use_threads(1 if self.pool and self.small else self.threads):
            yield

    def __call__(self, batch: Any, scale: Tensor) -> tuple[Tensor, int]:
        parts = self.split_batch(batch)
        if self.pool is None or len(parts) < 2:
            with use_threads(self.threads):
                return self.fallback(batch, scale)
        first = torch.get_rng_state()
        generators = [torch.Generator().manual_seed(seed) for seed in torch.randint(2**62, (len(parts),)).tolist()]
        before = torch.get_rng_state()
        results = list(self.pool.map(self.backward_part, parts, generators, [scale] * len(parts)))
        if not torch.equal(before, torch.get_rng_state()):
            # some layer draws from torch's global generator, in no fixed order: this model cannot be split
            self.pool = None
            torch.set_rng_state(first)
            with use_threads(self.threads):
                return self.fallback(batch, scale)
        gradients_by_weight = list(zip(self.weights, *(gradients for _, gradients in results), strict=True))
        list(
            self.pool.map(
                add_gradients, [gradients_by_weight[first :: self.max_parts] for first in range(self.max_parts)]
            )
        )
        return torch.stack([summed for summed, _ in results]).sum(), batch[1]

    def split_batch(self, batch: Any) -> list[Any]:
        if self.pool is None or not (isinstance(batch, tuple) and isinstance(batch[0], Splittable)):
            return []
        return batch[0].split_rows(max(1, min(self.max_parts, batch[0].num_positions // MIN_TOKENS)))

    def backward_part(self, part: Any, generator: torch.Generator, scale: Tensor) -> PartResult:
        with use_generator(generator), self.precision():
            summed, _ = self.loss(self.model, (part, part.tokens))
        return summed.detach(), torch.autograd.grad(summed * scale, self.weights, allow_unused=True)


@contextmanager
def use_threads(threads: int) -> Iterator[None]:
    """Inside, torch uses so many threads for the operations of this one."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_pool(workers: int, threads: int) -> ThreadPoolExecutor:
    """Workers with so many threads each; all of them start now, since each sets the default of new threads."""
    own, all_here = torch.get_num_threads(), Barrier(workers)

    def begin() -> None:
        torch.get_num_threads()  # initialises the count now, from the last default, instead of at its first use
        torch.set_num_threads(threads)

    executor = ThreadPoolExecutor(workers, "part", begin)
    list(executor.map(lambda _: all_here.wait(), range(workers)))
    torch.set_num_threads(own)
    return executor


def add_gradients(gradients_by_weight: list[tuple[Any, ...]]) -> None:
    """Add the gradients of all parts to the weights', in the order of the parts."""
    for weight, *gradients in gradients_by_weight:
        for gradient in gradients:
            if gradient is not None:
                weight.grad = copy_in_layout(gradient, weight) if weight.grad is None else weight.grad.add_(gradient)


def copy_in_layout(gradient: Tensor, weight: Tensor) -> Tensor:
    """A copy with the weight's memory layout, which the optimiser relies on; two weights may share one gradient."""
    return torch.empty_like(weight).copy_(gradient)
