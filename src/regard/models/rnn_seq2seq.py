"""Recurrent encoder–decoders: without attention, and with attention to the source (Bahdanau, Luong et al. 2015)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from regard.attention import Additive, AttentionCore, AttentionSites, Full, Padding, Recipe, Score, SiteName
from regard.layers.embedding import TiedEmbeddings
from regard.layers.rnn import HiddenState, RNNLayers
from regard.models.seq2seq import DecoderState, Memory, Seq2Seq
from regard.ops.dropout import Dropout


class Bridge(nn.Module, ABC):
    """Abstract: the encoder's last state to the decoder's first.

    Examples:
        >>> class ZeroBridge(Bridge):  # the decoder begins without a word of the source
        ...     def forward(self, last):
        ...         return tuple(torch.zeros_like(part) for part in last)
        >>> ZeroBridge()((torch.ones(2, 1, 3),))[0].sum()
        tensor(0.)
    """

    @abstractmethod
    def forward(self, last: HiddenState) -> HiddenState: ...


class CopyBridge(Bridge):
    """The last state itself (Sutskever et al. 2014); two directions are concatenated.

    Examples:
        >>> (first,) = CopyBridge(directions=2)((torch.randn(3, 2, 5),))
        >>> first.shape
        torch.Size([3, 1, 10])
    """

    def __init__(self, directions: int = 1):
        super().__init__()
        self.directions = directions

    def forward(self, last):
        return tuple(rearrange(part, "b (l d) h -> b l (d h)", d=self.directions) for part in last)


class BackwardStateBridge(Bridge):
    """s₀ = tanh(W_s h): h is the backward encoder's last state, which has just read the first token.

    Bahdanau et al. 2015, A.2.2.

    Examples:
        >>> from regard.layers import GRU, RNNLayers
        >>> encoder = RNNEncoder(RNNLayers(8, 6, cell=GRU(), directions=2), BackwardStateBridge(6, 5))
        >>> states, (first,) = encoder(torch.randn(2, 7, 8), torch.tensor([7, 4]))
        >>> states.shape, first.shape  # both directions for attention, the backward one starts the decoder
        (torch.Size([2, 7, 12]), torch.Size([2, 1, 5]))
    """

    def __init__(self, width: int, hidden: int, *, parts: int = 1):
        super().__init__()
        self.weights = nn.ModuleList(nn.Linear(width, hidden) for _ in range(parts))

    def forward(self, last):
        backward = (rearrange(part, "b (l d) h -> d b l h", d=2)[1] for part in last)
        return tuple(torch.tanh(weight(part)) for weight, part in zip(self.weights, backward, strict=True))


class RNNEncoder(nn.Module):
    """Source embeddings to the states after each of them and the decoder's initial state.

    Examples:
        >>> from regard.layers import GRU, RNNLayers
        >>> encoder = RNNEncoder(RNNLayers(8, 5, cell=GRU()), CopyBridge())
        >>> states, (first,) = encoder(torch.randn(2, 7, 8), torch.tensor([7, 4]))
        >>> states.shape, torch.equal(first[:, 0], torch.stack((states[0, 6], states[1, 3])))
        (torch.Size([2, 7, 5]), True)
    """

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

    Examples:
        >>> model = build_model(ModelConfig(kind="gru", layers=1, model=8, hidden=16), source_size=11, target_size=13)
        >>> memory = model.encode(torch.tensor([[5, 6, 7, 8, 2]]), torch.tensor([5]))
        >>> memory.initial_state[0].shape  # one state for the whole sentence
        torch.Size([1, 1, 16])
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


# --- decoders with attention to the source ---


@dataclass(frozen=True, eq=False)
class Annotations(Memory):
    """The encoder's state at every source token, as keys and as values, and the decoder's initial state."""

    keys: Float[Tensor, "b 1 s key"]
    values: Float[Tensor, "b 1 s states"]
    lengths: Int[Tensor, " b"]
    initial_state: HiddenState


@dataclass(frozen=True)
class PrecomputedAdditive(Score):
    """vᵀ tanh(W q + k), k being U h already: computed once for a sentence instead of once for every token."""

    score: Additive

    def shape_error(self, d, c):
        return None

    def compare(self, q, k):
        pair = rearrange(self.score.W(q), "b h i m -> b h i 1 m") + rearrange(k, "b h j m -> b h 1 j m")
        return einsum(torch.tanh(pair), self.score.v, "b h i j m, m -> b h i j")


class RNNAttention(nn.Module):
    """c_t = Σ_j α_tj h_j, the weights α by the recipe: one head over the encoder's states."""

    def __init__(self, recipe: Recipe):
        super().__init__()
        if recipe.embedding_positions:
            raise ValueError(
                f"{recipe.position} is added to embeddings, which this attention does not see; a recurrent "
                "encoder knows the order of its tokens: leave the position out"
            )
        self.recipe, self.learned, self.core = recipe, recipe.learned(), AttentionCore()

    @property
    def precomputable_score(self) -> Additive | None:
        """The score whose U h can be computed beforehand; not with rotary positions, which need the keys themselves."""
        return (
            self.recipe.score
            if isinstance(self.recipe.score, Additive) and not self.recipe.query_key_positions
            else None
        )

    def cross_keys_values(
        self, states: Float[Tensor, "b s states"], lengths: Int[Tensor, " b"], first: HiddenState
    ) -> Annotations:
        values = rearrange(states, "b s states -> b 1 s states")
        keys = additive.U(values).to(values.dtype) if (additive := self.precomputable_score) else values
        return Annotations(keys, values, lengths, first)

    def forward(self, q: Float[Tensor, "b t hidden"], at: int, memory: Annotations) -> Float[Tensor, "b t states"]:
        recipe = self.recipe.for_training() if self.training else self.recipe
        padding = Padding(memory.lengths)
        recipe = replace(recipe, pattern=padding if recipe.pattern == Full() else recipe.pattern & padding)
        if additive := self.precomputable_score:
            recipe = replace(recipe, score=PrecomputedAdditive(additive))
        query = rearrange(q, "b t hidden -> b 1 t hidden").to(memory.values.dtype)
        context = self.core(query, memory.keys, memory.values, recipe, q_index=at)
        return rearrange(context, "b 1 t states -> b t states")


# --- state and readout ---


Text = Float[Tensor, "b t width"]
AttendFunction = Callable[[Text, int], Text]  # queries and the index of the first, to contexts


@dataclass(frozen=True, eq=False)
class AttentionRNNState(DecoderState):
    """The hidden state, the last attentional vector (with input feeding), and the number of tokens read."""

    hidden: HiddenState
    input_feed: Float[Tensor, "b concluded"] | None = None
    position: int = 0


class Maxout(nn.Module):
    """The larger of every two of W x + b (Goodfellow et al. 2013).

    Examples:
        >>> readout = Maxout(2, 1)
        >>> readout.weight.weight.data, readout.weight.bias.data = torch.eye(2), torch.zeros(2)
        >>> readout(torch.tensor([[[3.0, 7.0], [5.0, 1.0]]])).data
        tensor([[[7.],
                 [5.]]])
    """

    def __init__(self, width: int, out: int):
        super().__init__()
        self.weight = nn.Linear(width, 2 * out)

    def forward(self, x: Text) -> Float[Tensor, "b t out"]:
        return rearrange(self.weight(x), "b t (out two) -> b t out two", two=2).amax(-1)


class TanhReadout(nn.Module):
    """tanh(W x + b)

    Examples:
        >>> readout = TanhReadout(2, 1)
        >>> readout.weight.weight.data, readout.weight.bias.data = torch.ones(1, 2), torch.zeros(1)
        >>> readout(torch.tensor([[[0.25, 0.25]]])).data  # tanh 0.5
        tensor([[[0.4621]]])
    """

    def __init__(self, width: int, out: int):
        super().__init__()
        self.weight = nn.Linear(width, out)

    def forward(self, x: Text) -> Float[Tensor, "b t out"]:
        return torch.tanh(self.weight(x))


READOUTS: dict[str, Callable[[int, int], nn.Module]] = {"maxout": Maxout, "tanh": TanhReadout}
"""The layers between Bahdanau's states and the logits, by the name that `ModelConfig.readout` takes.

Examples:
    >>> {name: type(build(6, 4)).__name__ for name, build in READOUTS.items()}
    {'maxout': 'Maxout', 'tanh': 'TanhReadout'}
"""


# --- decoders ---


class AttentionRNNDecoder(nn.Module, ABC):
    """Abstract: embeddings to the vectors that predict the next tokens, with attention on the way."""

    def initial_state(self, parts: HiddenState) -> AttentionRNNState:
        return AttentionRNNState(parts)

    @abstractmethod
    def forward(self, x: Text, state: AttentionRNNState, attend: AttendFunction) -> tuple[Text, AttentionRNNState]: ...


class BahdanauDecoder(AttentionRNNDecoder):
    """Attention first: the last state is the query, and the context enters the next state.

    c_t = Σ_j α_tj h_j with α_t from s_{t−1},  s_t = cell([E y; c_t], s_{t−1}),  t_t = readout([s_t; c_t; E y])

    Args:
        rnn: reads embedding and context, concatenated.
        readout: reads state, context and embedding, concatenated.

    Examples:
        >>> from regard.layers import GRU, RNNLayers
        >>> decoder = BahdanauDecoder(RNNLayers(8 + 6, 5, cell=GRU()), readout=Maxout(5 + 6 + 8, 8))
        >>> state = decoder.initial_state((torch.zeros(2, 1, 5),))
        >>> context = torch.zeros(2, 1, 6)  # what attention to the source would give
        >>> predicting, state = decoder(torch.randn(2, 3, 8), state, lambda query, index: context)
        >>> predicting.shape, state.position
        (torch.Size([2, 3, 8]), 3)
    """

    def __init__(self, rnn: RNNLayers, readout: nn.Module):
        super().__init__()
        self.rnn, self.readout = rnn, readout

    def forward(self, x, state, attend):
        Ux, U_context = split_input_weights(self.rnn, x)
        states, contexts, parts = [], [], state.hidden
        for t in range(x.shape[1]):
            context = attend(parts[0][:, -1:], state.position + t)
            top, parts = self.rnn.step(Ux[:, t] + linear(context[:, 0], U_context), parts)
            states.append(top)
            contexts.append(context)
        concluded = self.readout(torch.cat((torch.stack(states, 1), torch.cat(contexts, 1), x), -1))
        return concluded, AttentionRNNState(parts, position=state.position + x.shape[1])


class LuongDecoder(AttentionRNNDecoder):
    """Attention last: the current state is the query, and h̃_t = tanh(W_c [c_t; s_t]) predicts the token (eq. 5).

    No context enters a state, so the decoder runs over all tokens at once, and attends at once.

    Args:
        rnn: reads embeddings.
        concluded: the width of h̃; `context` that of the encoder's states.

    Examples:
        >>> from regard.layers import LSTM, RNNLayers
        >>> decoder = LuongDecoder(RNNLayers(8, 5, cell=LSTM()), context=6, concluded=4)
        >>> state = decoder.initial_state((torch.zeros(2, 1, 5),) * 2)
        >>> predicting, state = decoder(torch.randn(2, 3, 8), state, lambda query, index: torch.zeros(2, 3, 6))
        >>> predicting.shape, state.position
        (torch.Size([2, 3, 4]), 3)
    """

    def __init__(self, rnn: RNNLayers, *, context: int, concluded: int):
        super().__init__()
        self.rnn, self.readout = rnn, TanhReadout(context + rnn.hidden, concluded)

    def forward(self, x, state, attend):
        states, parts = self.rnn(x, state.hidden)
        concluded = self.readout(torch.cat((attend(states, state.position), states), -1))
        return concluded, AttentionRNNState(parts, position=state.position + x.shape[1])


class InputFeedingDecoder(AttentionRNNDecoder):
    """Luong with input feeding: h̃_{t−1} is concatenated to the next embedding, so that the decoder knows what it saw.

    Args:
        rnn: reads embedding and h̃, concatenated.
        concluded: the width of h̃; `context` that of the encoder's states.

    Examples:
        >>> from regard.layers import LSTM, RNNLayers
        >>> decoder = InputFeedingDecoder(RNNLayers(8 + 4, 5, cell=LSTM()), context=6, concluded=4)
        >>> state = decoder.initial_state((torch.zeros(2, 1, 5),) * 2)
        >>> predicting, state = decoder(torch.randn(2, 3, 8), state, lambda query, index: torch.zeros(2, 1, 6))
        >>> predicting.shape, torch.equal(state.input_feed, predicting[:, -1])
        (torch.Size([2, 3, 4]), True)
    """

    def __init__(self, rnn: RNNLayers, *, context: int, concluded: int):
        super().__init__()
        self.rnn, self.readout, self.concluded = rnn, TanhReadout(context + rnn.hidden, concluded), concluded

    def initial_state(self, parts):
        return AttentionRNNState(parts, parts[0].new_zeros(len(parts[0]), self.concluded))

    def forward(self, x, state, attend):
        Ux, U_fed = split_input_weights(self.rnn, x)
        outs, parts, fed = [], state.hidden, state.input_feed
        assert fed is not None  # as in `initial_state`
        for t in range(x.shape[1]):
            top, parts = self.rnn.step(Ux[:, t] + linear(fed, U_fed), parts)
            context = attend(top[:, None], state.position + t)
            outs.append(self.readout(torch.cat((context, top[:, None]), -1)))
            fed = outs[-1][:, 0]
        return torch.cat(outs, 1), AttentionRNNState(parts, fed, state.position + x.shape[1])


def split_input_weights(rnn: RNNLayers, x: Text) -> tuple[Tensor, Tensor]:
    """The embeddings' input to the first layer's gates, and the weights of what is concatenated to them."""
    U, _, b, _ = rnn.weights()
    return linear(x, U[:, : x.shape[2]], b), U[:, x.shape[2] :]


class RNNAttentionSeq2Seq(Seq2Seq[Annotations, AttentionRNNState]):
    """The decoder attends to all states of the encoder, by the recipe.

    Examples:
        >>> model = build_model(ModelConfig(kind="bahdanau", model=8, hidden=8), source_size=11, target_size=13)
        >>> type(model).__name__, model.attention.recipe.score
        ('RNNAttentionSeq2Seq', Additive(query=8, hidden=8, key=16))
        >>> model(torch.tensor([[5, 6, 2]]), torch.tensor([3]), torch.tensor([[1, 7]])).shape
        torch.Size([1, 2, 13])
    """

    attention_sites: ClassVar[AttentionSites] = {"attention": SiteName("attention", "written", "source")}

    def __init__(
        self,
        embeddings: TiedEmbeddings,
        encoder: RNNEncoder,
        decoder: AttentionRNNDecoder,
        *,
        recipe: Recipe,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.embeddings, self.encoder, self.decoder = embeddings, encoder, decoder
        self.attention, self.dropout = RNNAttention(recipe), Dropout(dropout)

    def encode(self, source, lengths):
        states, first = self.encoder(self.embeddings.embed_source(source), lengths)
        return self.attention.cross_keys_values(states, lengths, first)

    def start(self, memory):
        return self.decoder.initial_state(memory.initial_state)

    def decode_hidden(self, tokens, state, memory):
        attend = partial(self.attention, memory=memory)
        concluded, after = self.decoder(self.dropout(self.embeddings.embed_target(tokens)), state, attend)
        return self.dropout(concluded), after

    def output(self):
        return self.embeddings.table("output"), self.embeddings.bias
