"""Recurrent encoder–decoder without attention: encoders, bridges to the decoder, and the model."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.layers.embedding import TiedEmbeddings
from regard.layers.rnn import HiddenState, RNNLayers
from regard.models.seq2seq import DecoderState, Memory, Seq2Seq
from regard.ops.dropout import Dropout


class Bridge(nn.Module, ABC):
    """Abstract: the encoder's last state to the decoder's first."""

    @abstractmethod
    def forward(self, last: HiddenState) -> HiddenState: ...


class CopyBridge(Bridge):
    """The last state itself (Sutskever et al. 2014); two directions are concatenated."""

    def __init__(self, directions: int = 1):
        super().__init__()
        self.directions = directions

    def forward(self, last):
        return tuple(rearrange(part, "b (l d) h -> b l (d h)", d=self.directions) for part in last)


class BackwardStateBridge(Bridge):
    """s₀ = tanh(W_s h): h is the backward encoder's last state, which has just read the first token.

    Bahdanau et al. 2015, A.2.2.
    """

    def __init__(self, width: int, hidden: int, *, parts: int = 1):
        super().__init__()
        self.weights = nn.ModuleList(nn.Linear(width, hidden) for _ in range(parts))

    def forward(self, last):
        backward = (rearrange(part, "b (l d) h -> d b l h", d=2)[1] for part in last)
        return tuple(torch.tanh(weight(part)) for weight, part in zip(self.weights, backward, strict=True))


class RNNEncoder(nn.Module):
    """Source embeddings to the states after each of them and the decoder's initial state."""

    def __init__(self, rnn: RNNLayers, bridge: Bridge, *, dropout: float = 0.0):
        super().__init__()
        self.rnn, self.bridge, self.dropout = rnn, bridge, Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "b s width"], lengths: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b s states"], HiddenState]:
        states, last = self.rnn(self.dropout(x), lengths=lengths)
        return states, self.bridge(last)


@dataclass(frozen=True, eq=False)
class FinalState(Memory):
    """One state for the whole sentence, however long: the bottleneck."""

    initial_state: HiddenState


@dataclass(frozen=True, eq=False)
class RNNState(DecoderState):
    hidden: HiddenState


class RNNSeq2Seq(Seq2Seq[FinalState, RNNState]):
    """The last state of the encoder starts the decoder, which sees the source no more (Sutskever et al. 2014).

    h(t) = cell(E y(t), h(t−1)),  o(t) = c + V h(t).
    """

    def __init__(self, embeddings: TiedEmbeddings, encoder: RNNEncoder, decoder: RNNLayers, *, dropout: float = 0.0):
        super().__init__()
        self.embeddings, self.encoder, self.decoder, self.dropout = embeddings, encoder, decoder, Dropout(dropout)

    def encode(self, source, lengths):
        return FinalState(self.encoder(self.embeddings.embed_source(source), lengths)[1])

    def start(self, memory):
        return RNNState(memory.initial_state)

    def decode_hidden(self, tokens, state, memory):
        states, parts = self.decoder(self.dropout(self.embeddings.embed_target(tokens)), state.hidden)
        return self.dropout(states), RNNState(parts)

    def output(self):
        return self.embeddings.table("output"), self.embeddings.bias
