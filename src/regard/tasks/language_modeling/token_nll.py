"""Token NLL: the negative log-likelihood of every token of a text, in nats, and the context it is computed in.

How much of the text stands before a token decides what it costs, so a figure means something only with its context:

    SlidingWindows(256, 128)     pieces of the text; a token is predicted from the 129 to 256 tokens before it
    RecurrentContext()           the state of a recurrent model runs through the whole text
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.lm_blocks import BlockOrder, LMBlock, LMBlocks, describe_context, sliding_windows
from regard.models.language_model import LanguageModel

TOKENS = 4096  # read at once


@dataclass(frozen=True, eq=False)
class TokenNLL:
    """Some tokens of a text in their order: the hidden states they were predicted from, the ids, and the NLL of
    each."""

    states: Float[Tensor, "n m"]
    tokens: Int[Tensor, " n"]
    nats: Float[Tensor, " n"]


class EvaluationContext(ABC):
    """Abstract: how a text is read to be measured. Every token is predicted exactly once."""

    @abstractmethod
    def token_nlls(self, model: LanguageModel, ids: Int[Tensor, " n"]) -> Iterator[TokenNLL]: ...

    @property
    @abstractmethod
    def description(self) -> str:
        """What stands before a token that is predicted."""


@dataclass(frozen=True)
class SlidingWindows(EvaluationContext):
    """See `data.lm_blocks.sliding_windows`. With stride = length these are blocks side by side, told from 1 token to
    all."""

    length: int
    stride: int

    def token_nlls(self, model, ids):
        for block in sliding_windows(ids, self.length, self.stride, rows=max(1, TOKENS // self.length)):
            here = block.to(model.embedding.weight.device)
            yield score_block(model, model.decode_hidden(here.inputs, model.start(len(here)))[0], here)

    @property
    def description(self) -> str:
        return describe_context(self.length, self.stride)


@dataclass(frozen=True)
class RecurrentContext(EvaluationContext):
    """From the first token to the last; with more rows, so many parts of the text at once, each from its first."""

    rows: int = 1

    def token_nlls(self, model, ids):
        blocks = LMBlocks(ids, max(1, TOKENS // self.rows), rows=self.rows, order=BlockOrder.SEQUENTIAL)
        state = model.start(self.rows)
        for index in range(blocks.steps(0)):
            (block,) = blocks.at(0, index)
            here = block.to(model.embedding.weight.device)
            x, state = model.decode_hidden(here.inputs, state)
            yield score_block(model, x, here)

    @property
    def description(self) -> str:
        parts = "" if self.rows == 1 else f" in its {self.rows}th of the text"
        return f"every token once, from all before it{parts}"


def score_block(model: LanguageModel, x: Float[Tensor, "b t m"], block: LMBlock) -> TokenNLL:
    states, tokens = x[block.loss_mask], block.targets[block.loss_mask]
    logits = model.logits(states[None])[0].float()
    return TokenNLL(states.float(), tokens, logits.logsumexp(-1) - logits.gather(-1, tokens[:, None])[:, 0])


@torch.no_grad()
def total_nats(parts: Iterator[TokenNLL]) -> float:
    """The nats of a whole text."""
    return float(sum(some.nats.sum(dtype=torch.float64) for some in parts))
