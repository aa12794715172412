"""A language model and a text in; what every token of it costs the model, in nats, and the vector that told it, out.

How much of the text stands before a token decides what it costs, so a figure means something only with its context:

    Windows(256, 128)     pieces of the text; a token is told from the 129 to 256 tokens before it
    Running()             the state of a recurrent model runs through the whole text
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models.writer import Writer
from regard.text.plain import Block, Blocks, Order, context, windows

TOKENS = 4096  # read at once


@dataclass(frozen=True, eq=False)
class Told:
    """Some tokens of a text in their order: the vectors they were told from, which they are, and what each cost."""

    states: Float[Tensor, "n m"]
    tokens: Int[Tensor, " n"]
    nats: Float[Tensor, " n"]


class Context(ABC):
    """Abstract: how a text is read to be measured. Every token is told exactly once."""

    @abstractmethod
    def told(self, model: Writer, ids: Int[Tensor, " n"]) -> Iterator[Told]: ...

    @property
    @abstractmethod
    def stated(self) -> str:
        """What stands before a token that is told."""


@dataclass(frozen=True)
class Windows(Context):
    """See `text.plain.windows`. With stride = length these are blocks side by side, told from 1 token to all."""

    length: int
    stride: int

    def told(self, model, ids):
        for block in windows(ids, self.length, self.stride, rows=max(1, TOKENS // self.length)):
            here = block.to(model.words.weight.device)
            yield found(model, model.read(here.inputs, model.start(len(here)))[0], here)

    @property
    def stated(self) -> str:
        return context(self.length, self.stride)


@dataclass(frozen=True)
class Running(Context):
    """From the first token to the last; with more rows, so many parts of the text at once, each from its first."""

    rows: int = 1

    def told(self, model, ids):
        blocks = Blocks(ids, max(1, TOKENS // self.rows), rows=self.rows, order=Order.ONWARD)
        state = model.start(self.rows)
        for index in range(blocks.steps(0)):
            (block,) = blocks.at(0, index)
            here = block.to(model.words.weight.device)
            x, state = model.read(here.inputs, state)
            yield found(model, x, here)

    @property
    def stated(self) -> str:
        parts = "" if self.rows == 1 else f" in its {self.rows}th of the text"
        return f"every token once, from all before it{parts}"


def found(model: Writer, x: Float[Tensor, "b t m"], block: Block) -> Told:
    states, tokens = x[block.scored], block.targets[block.scored]
    logits = model.logits(states[None])[0].float()
    return Told(states.float(), tokens, logits.logsumexp(-1) - logits.gather(-1, tokens[:, None])[:, 0])


@torch.no_grad()
def summed(told: Iterator[Told]) -> float:
    """The nats of a whole text."""
    return float(sum(some.nats.sum(dtype=torch.float64) for some in told))
