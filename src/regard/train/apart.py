"""A batch in; its gradients out, by cores that each work through a part of it alone.

Most of what a small model does is too short for two threads to share: to wake the second takes as long as the work. So
threads do not share it, each takes its own examples forwards and backwards, and what they found is added up in
the order of the parts. Nothing may depend on who comes first: every part draws its noise from a generator of its own.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from threading import Barrier
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from regard.layers.dropout import drawing
from regard.tasks.job import Loss

LEAST = 1024  # words, of both sides: smaller parts are not worth a thread
ROOM = 2**30  # bytes that the gradients of all parts may take
SMALL = 64 * 2**20  # bytes of weights whose step of the optimiser one thread does alone


@runtime_checkable
class Dealt(Protocol):
    """A batch whose examples do not meet one another, so that they can be dealt out."""

    @property
    def tokens(self) -> int: ...

    @property
    def words(self) -> int:
        """What it costs: the words that are read, padding included."""
        ...

    def dealt(self, parts: int) -> list[Self]:
        """So many parts, or fewer: none is empty."""
        ...


Done = tuple[Tensor, tuple[Tensor | None, ...]]


class Apart:
    """The way back over a batch, in parts where that pays, and otherwise as `whole` does it."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        whole: Callable[[Any, Tensor], tuple[Tensor, int]],
        precision: Callable[[], AbstractContextManager[Any]],
    ):
        self.model, self.loss, self.whole, self.precision = model, loss, whole, precision
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        size = sum(weight.numel() * weight.element_size() for weight in self.weights)
        self.threads, self.small = torch.get_num_threads(), size <= SMALL
        self.most = min(self.threads, ROOM // max(size, 1))
        self.pool = pool(self.most, self.threads // self.most) if self.most > 1 else None

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Around a step, what the parts leave to do is not shared: a thread that waits for more holds a core."""
        with counting(1 if self.pool and self.small else self.threads):
            yield

    def __call__(self, batch: Any, scale: Tensor) -> tuple[Tensor, int]:
        parts = self.dealt(batch)
        if self.pool is None or len(parts) < 2:
            with counting(self.threads):
                return self.whole(batch, scale)
        first = torch.get_rng_state()
        generators = [torch.Generator().manual_seed(seed) for seed in torch.randint(2**62, (len(parts),)).tolist()]
        before = torch.get_rng_state()
        done = list(self.pool.map(self.part, parts, generators, [scale] * len(parts)))
        if not torch.equal(before, torch.get_rng_state()):
            # some layer draws from torch's one generator, in the order of the moment: this model is not for parts
            self.pool = None
            torch.set_rng_state(first)
            with counting(self.threads):
                return self.whole(batch, scale)
        found = list(zip(self.weights, *(gradients for _, gradients in done), strict=True))
        list(self.pool.map(add, [found[first :: self.most] for first in range(self.most)]))
        return torch.stack([summed for summed, _ in done]).sum(), batch[1]

    def dealt(self, batch: Any) -> list[Any]:
        if self.pool is None or not (isinstance(batch, tuple) and isinstance(batch[0], Dealt)):
            return []
        return batch[0].dealt(max(1, min(self.most, batch[0].words // LEAST)))

    def part(self, given: Any, generator: torch.Generator, scale: Tensor) -> Done:
        with drawing(generator), self.precision():
            summed, _ = self.loss(self.model, (given, given.tokens))
        return summed.detach(), torch.autograd.grad(summed * scale, self.weights, allow_unused=True)


@contextmanager
def counting(threads: int) -> Iterator[None]:
    """Inside, torch shares the work of this thread among so many."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pool(workers: int, threads: int) -> ThreadPoolExecutor:
    """Workers with so many threads each; all of them start now, for each sets what any new thread begins with."""
    own, all_here = torch.get_num_threads(), Barrier(workers)

    def begin() -> None:
        torch.get_num_threads()  # which begins with what was set last, and would do so later, when it is needed first
        torch.set_num_threads(threads)

    made = ThreadPoolExecutor(workers, "part", begin)
    list(made.map(lambda _: all_here.wait(), range(workers)))
    torch.set_num_threads(own)
    return made


def add(found: list[tuple[Any, ...]]) -> None:
    """To what weights have, the gradients that were found for each, in their order."""
    for weight, *gradients in found:
        for gradient in gradients:
            if gradient is not None:
                weight.grad = laid_out(gradient, weight) if weight.grad is None else weight.grad.add_(gradient)


def laid_out(gradient: Tensor, weight: Tensor) -> Tensor:
    """A copy in memory as the weight is, which the optimiser relies on; and two weights may be given one gradient."""
    return torch.empty_like(weight).copy_(gradient)
