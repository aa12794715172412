"""A source text and the target so far in, scores for the next words out: what every rung of the ladder can do."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Recipe, Steps, attend, steps
from regard.layers.words import Table

Tokens = Int[Tensor, "b t"]
Logits = Float[Tensor, "b t v"]
X = Float[Tensor, "b t model"]
T = TypeVar("T")


def everywhere(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same value with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(everywhere(change, part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: everywhere(change, getattr(value, part.name)) for part in fields(value)}
        return replace(value, **parts)
    return value


def picked(value: Any, rows: Tensor) -> Any:
    """The same value for other sentences: every tensor in it has them along its first axis."""
    return everywhere(lambda tensor: tensor.index_select(0, rows), value)


class Memory:
    """Abstract: all that the decoder knows of the source sentences. A frozen dataclass of tensors, sentences first."""

    def pick(self: T, rows: Int[Tensor, " n"]) -> T:
        """These sentences, in this order; one may come more than once."""
        return picked(self, rows)


class State:
    """Abstract: all that the decoder knows of the words it has read. A frozen dataclass, likewise."""

    def pick(self: T, rows: Int[Tensor, " n"]) -> T:
        return picked(self, rows)

    def detach(self: T) -> T:
        """The same state without its history: gradients of what is read from here on end here."""
        return everywhere(Tensor.detach, self)


@dataclass(frozen=True, eq=False)
class Looked:
    """What each cross-attention saw, by the layer's name; empty for models without attention."""

    weights: dict[str, Float[Tensor, "b h t s"]] = field(default_factory=dict)
    # of the source words drawn, where hard attention draws them; for `reinforce`
    log_probability: dict[str, Float[Tensor, "b h t"]] = field(default_factory=dict)

    @staticmethod
    def of(seen: dict[str, list[Steps]]) -> "Looked":
        """From the steps of each layer, one after the other in time."""
        weights = {name: [each.weights for each in some] for name, some in seen.items()}
        drawn = {name: [p for each in some if (p := each.log_probability) is not None] for name, some in seen.items()}
        return Looked(
            {name: torch.cat(some, 2) for name, some in weights.items()},
            {name: torch.cat(some, 2) for name, some in drawn.items() if some},
        )


# How a model attends to its memory: q, k, v, the recipe and the place of the first query in; the output, and the steps
# on the way to it if they are wanted, out.
Attending = Callable[[Tensor, Tensor, Tensor, Recipe, int], tuple[Tensor, Steps | None]]


def fast(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe, at: int) -> tuple[Tensor, Steps | None]:
    return attend(q, k, v, recipe, q_at=at), None


def in_the_open(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe, at: int) -> tuple[Tensor, Steps | None]:
    seen = steps(q, k, v, recipe, q_at=at)
    return seen.output, seen


M = TypeVar("M", bound=Memory)
S = TypeVar("S", bound=State)


class Seq2Seq(nn.Module, ABC, Generic[M, S]):
    """Abstract: a rung says how it encodes, starts and reads; the rest follows.

    Padding never changes a result. Reading a text at once or word by word gives the same scores.
    """

    @abstractmethod
    def encode(self, source: Int[Tensor, "b s"], lengths: Int[Tensor, " b"]) -> M:
        """What there is to know of the source; sentence b ends after lengths[b] words."""

    @abstractmethod
    def start(self, memory: M) -> S:
        """The decoder before its first word."""

    @abstractmethod
    def reach(self, tokens: Tokens, state: S, memory: M, attending: Attending) -> tuple[X, S, dict[str, list[Steps]]]:
        """What tells what follows each of these words, the state after them, and whatever `attending` shows."""

    @abstractmethod
    def output(self) -> tuple[Table, Tensor]:
        """The table and the bias that score what `reach` returns."""

    def logits(self, x: X) -> Logits:
        table, bias = self.output()
        return table.score(x, bias)

    def cost(
        self, x: X, wanted: Tokens, *, smoothing: float, ignored: int, consistency: float | None = None
    ) -> Float[Tensor, ""]:
        """The summed cost of the wanted words: see Table.cost."""
        table, bias = self.output()
        return table.cost(x, bias, wanted, smoothing=smoothing, ignored=ignored, consistency=consistency)

    def states(self, source: Int[Tensor, "b s"], source_lengths: Int[Tensor, " b"], target_in: Tokens) -> X:
        """As `forward`, before the scores."""
        memory = self.encode(source, source_lengths)
        return self.reach(target_in, self.start(memory), memory, fast)[0]

    def read(
        self, tokens: Tokens, state: S, memory: M, attending: Attending
    ) -> tuple[Logits, S, dict[str, list[Steps]]]:
        """Scores for what follows each of these words, the state after them, and whatever `attending` shows."""
        x, state, seen = self.reach(tokens, state, memory, attending)
        return self.logits(x), state, seen

    def step(self, tokens: Tokens, state: S, memory: M) -> tuple[Logits, S]:
        """Read on: one word or a whole text. The old state stays as it was."""
        logits, state, _ = self.read(tokens, state, memory, fast)
        return logits, state

    def look(self, tokens: Tokens, state: S, memory: M) -> tuple[Logits, S, Looked]:
        """As `step`, and what was looked at."""
        logits, state, seen = self.read(tokens, state, memory, in_the_open)
        return logits, state, Looked.of(seen)

    def forward(self, source: Int[Tensor, "b s"], source_lengths: Int[Tensor, " b"], target_in: Tokens) -> Logits:
        return self.logits(self.states(source, source_lengths, target_in))


def parameters(model: nn.Module) -> int:
    """How many numbers a model learns; a shared one counts once."""
    return sum(weight.numel() for weight in model.parameters())
