"""Recurrent decoders that look back at the source while they write: Bahdanau et al. 2015 and Luong et al. 2015."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.attention import Recipe, Steps
from regard.layers.cells import Parts
from regard.layers.dropout import Dropout
from regard.layers.recurrent import Recurrent
from regard.layers.words import Words
from regard.models.looking import Annotations, Looking
from regard.models.recurrent import Encoder
from regard.models.seq2seq import Seq2Seq, State

Text = Float[Tensor, "b t width"]
Ask = Callable[[Text, int], tuple[Text, Steps | None]]  # questions and the place of the first in, contexts out


@dataclass(frozen=True, eq=False)
class Aligned(State):
    """The decoder's state, what it concluded last (if that is fed back), and how many words it has read."""

    parts: Parts
    fed: Float[Tensor, "b concluded"] | None = None
    seen: int = 0


# --- what a word is predicted from ---


class Maxout(nn.Module):
    """The larger of every two of W x + b (Goodfellow et al. 2013)."""

    def __init__(self, width: int, out: int):
        super().__init__()
        self.weight = nn.Linear(width, 2 * out)

    def forward(self, x: Text) -> Float[Tensor, "b t out"]:
        return rearrange(self.weight(x), "b t (out two) -> b t out two", two=2).amax(-1)


class Squashed(nn.Module):
    """tanh(W x + b)"""

    def __init__(self, width: int, out: int):
        super().__init__()
        self.weight = nn.Linear(width, out)

    def forward(self, x: Text) -> Float[Tensor, "b t out"]:
        return torch.tanh(self.weight(x))


READOUTS: dict[str, Callable[[int, int], nn.Module]] = {"maxout": Maxout, "tanh": Squashed}


# --- when to look ---


class Decoder(nn.Module, ABC):
    """Abstract: word vectors in, what the next words are predicted from out, asking on the way."""

    def first(self, parts: Parts) -> Aligned:
        return Aligned(parts)

    @abstractmethod
    def forward(self, x: Text, state: Aligned, ask: Ask) -> tuple[Text, Aligned, list[Steps]]: ...


class Bahdanau(Decoder):
    """Looks, then moves: the last state asks, and the answer helps to make the next.

    c_t = Σ_j α_tj h_j with α_t from s_{t−1},  s_t = cell([E y; c_t], s_{t−1}),  t_t = readout([s_t; c_t; E y])

    Args:
        rnn: reads word vector and context, side by side.
        readout: reads state, context and word vector, side by side.
    """

    def __init__(self, rnn: Recurrent, readout: nn.Module):
        super().__init__()
        self.rnn, self.readout = rnn, readout

    def forward(self, x, state, ask):
        Ux, U_context = split(self.rnn, x)
        states, contexts, seen, parts = [], [], [], state.parts
        for t in range(x.shape[1]):
            context, steps = ask(parts[0][:, -1:], state.seen + t)
            top, parts = self.rnn.next(Ux[:, t] + linear(context[:, 0], U_context), parts)
            states.append(top)
            contexts.append(context)
            seen += [steps] if steps else []
        concluded = self.readout(torch.cat((torch.stack(states, 1), torch.cat(contexts, 1), x), -1))
        return concluded, Aligned(parts, seen=state.seen + x.shape[1]), seen


class Luong(Decoder):
    """Moves, then looks: the current state asks, and h̃_t = tanh(W_c [c_t; s_t]) predicts the word (eq. 5).

    No answer changes a state, so the decoder runs over all words at once, and all ask at once.

    Args:
        rnn: reads word vectors.
        concluded: the width of h̃; `context` that of the encoder's states.
    """

    def __init__(self, rnn: Recurrent, *, context: int, concluded: int):
        super().__init__()
        self.rnn, self.readout = rnn, Squashed(context + rnn.hidden, concluded)

    def forward(self, x, state, ask):
        states, parts = self.rnn(x, state.parts)
        context, steps = ask(states, state.seen)
        concluded = self.readout(torch.cat((context, states), -1))
        return concluded, Aligned(parts, seen=state.seen + x.shape[1]), [steps] if steps else []


class LuongFed(Decoder):
    """Luong with input feeding: h̃_{t−1} stands beside the next word vector, so that the decoder knows where it looked.

    Args:
        rnn: reads word vector and h̃, side by side.
        concluded: the width of h̃; `context` that of the encoder's states.
    """

    def __init__(self, rnn: Recurrent, *, context: int, concluded: int):
        super().__init__()
        self.rnn, self.readout, self.concluded = rnn, Squashed(context + rnn.hidden, concluded), concluded

    def first(self, parts):
        return Aligned(parts, parts[0].new_zeros(len(parts[0]), self.concluded))

    def forward(self, x, state, ask):
        Ux, U_fed = split(self.rnn, x)
        outs, seen, parts, fed = [], [], state.parts, state.fed
        assert fed is not None  # as `first` began
        for t in range(x.shape[1]):
            top, parts = self.rnn.next(Ux[:, t] + linear(fed, U_fed), parts)
            context, steps = ask(top[:, None], state.seen + t)
            outs.append(self.readout(torch.cat((context, top[:, None]), -1)))
            fed = outs[-1][:, 0]
            seen += [steps] if steps else []
        return torch.cat(outs, 1), Aligned(parts, fed, state.seen + x.shape[1]), seen


def split(rnn: Recurrent, x: Text) -> tuple[Tensor, Tensor]:
    """What the words say to the first layer's gates, all at once, and the weights for what stands beside a word."""
    U, _, b, _ = rnn.weights()
    return linear(x, U[:, : x.shape[2]], b), U[:, x.shape[2] :]


class WithAttention(Seq2Seq[Annotations, Aligned]):
    """All states of the encoder are kept, and the decoder looks at them by the recipe."""

    def __init__(self, words: Words, encoder: Encoder, decoder: Decoder, *, recipe: Recipe, dropout: float = 0.0):
        super().__init__()
        self.words, self.encoder, self.decoder = words, encoder, decoder
        self.attention, self.dropout = Looking(recipe), Dropout(dropout)

    def encode(self, source, lengths):
        states, first = self.encoder(self.words.source(source), lengths)
        return self.attention.remember(states, lengths, first)

    def start(self, memory):
        return self.decoder.first(memory.first)

    def reach(self, tokens, state, memory, attending):
        ask = partial(self.attention, memory=memory, attending=attending)
        concluded, after, seen = self.decoder(self.dropout(self.words.target(tokens)), state, ask)
        return self.dropout(concluded), after, {"attention": seen} if seen else {}

    def output(self):
        return self.words.table("output"), self.words.bias
