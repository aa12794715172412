"""Sequence-to-sequence models: the interface of encoder, decoder state, logits and loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Recipe, Steps, steps
from regard.layers.embedding import Embedding

Tokens = Int[Tensor, "b t"]
Logits = Float[Tensor, "b t v"]
X = Float[Tensor, "b t model"]
T = TypeVar("T")


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same value with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(map_tensors(change, part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: map_tensors(change, getattr(value, part.name)) for part in fields(value)}
        return replace(value, **parts)
    return value


def select_rows(value: Any, rows: Tensor) -> Any:
    """The same value for other sentences, which are the first axis of every tensor in it."""
    return map_tensors(lambda tensor: tensor.index_select(0, rows), value)


class Memory:
    """Abstract: all that the decoder knows of the source sentences. A frozen dataclass of tensors, sentences first."""

    def pick(self: T, rows: Int[Tensor, " n"]) -> T:
        """These sentences, in this order; one may come more than once."""
        return select_rows(self, rows)


class DecoderState:
    """Abstract: all that the decoder knows of the tokens it has read. A frozen dataclass, likewise."""

    def pick(self: T, rows: Int[Tensor, " n"]) -> T:
        return select_rows(self, rows)

    def detach(self: T) -> T:
        """The same state, detached from the graph: gradients of what is read from here on end here."""
        return map_tensors(Tensor.detach, self)


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """The weights of each attention, by the layer's name; empty for models without attention."""

    weights: dict[str, Float[Tensor, "b h t s"]] = field(default_factory=dict)
    # of the source tokens sampled, where hard attention samples; for `reinforce`
    log_probability: dict[str, Float[Tensor, "b h t"]] = field(default_factory=dict)

    @staticmethod
    def of(seen: dict[str, list[Steps]]) -> "AttentionWeights":
        """From the steps of each layer, one after the other in time."""
        weights = {name: [each.weights for each in some] for name, some in seen.items()}
        drawn = {name: [p for each in some if (p := each.log_probability) is not None] for name, some in seen.items()}
        return AttentionWeights(
            {name: torch.cat(some, 2) for name, some in weights.items()},
            {name: torch.cat(some, 2) for name, some in drawn.items() if some},
        )


# Attention to the memory: q, k, v, the recipe and the position of the first query to the output, and the intermediate
# steps if they are recorded.
AttendFunction = Callable[[Tensor, Tensor, Tensor, Recipe, int], tuple[Tensor, Steps | None]]


def attend_with_steps(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe, at: int) -> tuple[Tensor, Steps | None]:
    seen = steps(q, k, v, recipe, q_index=at)
    return seen.output, seen


M = TypeVar("M", bound=Memory)
S = TypeVar("S", bound=DecoderState)


class Seq2Seq(nn.Module, ABC, Generic[M, S]):
    """Abstract: a model says how it encodes, starts and decodes; the rest follows.

    Padding never changes a result. Decoding a text at once or token by token gives the same logits.
    """

    @abstractmethod
    def encode(self, source: Int[Tensor, "b s"], lengths: Int[Tensor, " b"]) -> M:
        """The encoded source; sentence b ends after lengths[b] tokens."""

    @abstractmethod
    def start(self, memory: M) -> S:
        """The decoder's state before the first token."""

    @abstractmethod
    def decode_hidden(
        self, tokens: Tokens, state: S, memory: M, attending: AttendFunction | None
    ) -> tuple[X, S, dict[str, list[Steps]]]:
        """The hidden states that predict what follows each token, the new state, and the steps of `attending`."""

    @abstractmethod
    def output(self) -> tuple[Embedding, Tensor]:
        """The embedding and the bias that turn the states of `decode_hidden` into logits."""

    def logits(self, x: X) -> Logits:
        table, bias = self.output()
        return table.logits(x, bias)

    def loss(
        self, x: X, targets: Tokens, *, smoothing: float, ignore_index: int, rdrop: float | None = None
    ) -> Float[Tensor, ""]:
        """The summed loss of the targets: see Embedding.loss."""
        table, bias = self.output()
        return table.loss(x, bias, targets, smoothing=smoothing, ignore_index=ignore_index, rdrop=rdrop)

    def hidden_states(self, source: Int[Tensor, "b s"], source_lengths: Int[Tensor, " b"], target_in: Tokens) -> X:
        """As `forward`, before the logits."""
        memory = self.encode(source, source_lengths)
        return self.decode_hidden(target_in, self.start(memory), memory, None)[0]

    def read(
        self, tokens: Tokens, state: S, memory: M, attending: AttendFunction | None
    ) -> tuple[Logits, S, dict[str, list[Steps]]]:
        """Logits for what follows each token, the state after them, and the steps of `attending`."""
        x, state, seen = self.decode_hidden(tokens, state, memory, attending)
        return self.logits(x), state, seen

    def step(self, tokens: Tokens, state: S, memory: M) -> tuple[Logits, S]:
        """Read on: one word or a whole text. The old state stays as it was."""
        logits, state, _ = self.read(tokens, state, memory, None)
        return logits, state

    def look(self, tokens: Tokens, state: S, memory: M) -> tuple[Logits, S, AttentionWeights]:
        """As `step`, and the attention weights."""
        logits, state, seen = self.read(tokens, state, memory, attend_with_steps)
        return logits, state, AttentionWeights.of(seen)

    def forward(self, source: Int[Tensor, "b s"], source_lengths: Int[Tensor, " b"], target_in: Tokens) -> Logits:
        return self.logits(self.hidden_states(source, source_lengths, target_in))


def count_parameters(model: nn.Module) -> int:
    """The number of parameters; a shared one counts once."""
    return sum(weight.numel() for weight in model.parameters())
