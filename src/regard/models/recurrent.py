"""Recurrent encoders, how their last state starts a decoder, and the model that has nothing else to go by."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.layers.cells import Parts
from regard.layers.dropout import Dropout
from regard.layers.recurrent import Recurrent
from regard.layers.words import Words
from regard.models.seq2seq import Memory, Seq2Seq, State


class Bridge(nn.Module, ABC):
    """Abstract: the encoder's last state to the decoder's first."""

    @abstractmethod
    def forward(self, last: Parts) -> Parts: ...


class Carried(Bridge):
    """The last state itself (Sutskever et al. 2014); two directions stand side by side in it."""

    def __init__(self, directions: int = 1):
        super().__init__()
        self.directions = directions

    def forward(self, last):
        return tuple(rearrange(part, "b (l d) h -> b l (d h)", d=self.directions) for part in last)


class Backward(Bridge):
    """s₀ = tanh(W_s h): h is the backward reader's last state, which has just read the first word.

    Bahdanau et al. 2015, A.2.2.
    """

    def __init__(self, width: int, hidden: int, *, parts: int = 1):
        super().__init__()
        self.weights = nn.ModuleList(nn.Linear(width, hidden) for _ in range(parts))

    def forward(self, last):
        backward = (rearrange(part, "b (l d) h -> d b l h", d=2)[1] for part in last)
        return tuple(torch.tanh(weight(part)) for weight, part in zip(self.weights, backward, strict=True))


class Encoder(nn.Module):
    """Source words to the states after each of them and the decoder's first state."""

    def __init__(self, rnn: Recurrent, bridge: Bridge, *, dropout: float = 0.0):
        super().__init__()
        self.rnn, self.bridge, self.dropout = rnn, bridge, Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "b s width"], lengths: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b s states"], Parts]:
        states, last = self.rnn(self.dropout(x), lengths=lengths)
        return states, self.bridge(last)


@dataclass(frozen=True, eq=False)
class Thought(Memory):
    """One state for the whole sentence, however long: the bottleneck."""

    first: Parts


@dataclass(frozen=True, eq=False)
class Reading(State):
    parts: Parts


class WithoutAttention(Seq2Seq[Thought, Reading]):
    """The last state of the encoder starts the decoder, which sees the source no more (Sutskever et al. 2014).

    h(t) = cell(E y(t), h(t−1)),  o(t) = c + V h(t).
    """

    def __init__(self, words: Words, encoder: Encoder, decoder: Recurrent, *, dropout: float = 0.0):
        super().__init__()
        self.words, self.encoder, self.decoder, self.dropout = words, encoder, decoder, Dropout(dropout)

    def encode(self, source, lengths):
        return Thought(self.encoder(self.words.source(source), lengths)[1])

    def start(self, memory):
        return Reading(memory.first)

    def reach(self, tokens, state, memory, attending):
        states, parts = self.decoder(self.dropout(self.words.target(tokens)), state.parts)
        return self.dropout(states), Reading(parts), {}

    def output(self):
        return self.words.table("output"), self.words.bias
