"""Sequence-to-sequence models: the interface of encoder, decoder state, logits and loss; their inputs and eval mode."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from regard.data.packing import PackedBatch
from regard.data.tokenizers.base import BOS, EOS, PAD
from regard.layers.embedding import Embedding
from regard.ops.linear_cross_entropy import linear_cross_entropy
from regard.ops.rdrop_loss import rdrop_loss

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
    """Abstract: all that the decoder knows of the source sentences. A frozen dataclass of tensors, sentences first.

    Examples:
        >>> model = build_model(ModelConfig(kind="gru", layers=1, model=8, hidden=8), 11, 13)
        >>> memory = model.encode(torch.tensor([[5, 6, 2], [7, 2, 0]]), torch.tensor([3, 2]))
        >>> isinstance(memory, Memory), memory.pick(torch.tensor([1, 1, 0])).initial_state[0].shape
        (True, torch.Size([3, 1, 8]))
    """

    def pick(self: T, rows: Int[Tensor, " n"]) -> T:
        """These sentences, in this order; one may come more than once."""
        return select_rows(self, rows)


class DecoderState:
    """Abstract: all that the decoder knows of the tokens it has read. A frozen dataclass, likewise.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, eq=False)
        ... class LastTokens(DecoderState):
        ...     tokens: torch.Tensor
        >>> LastTokens(torch.tensor([[5], [6], [7]])).pick(torch.tensor([2, 2, 0])).tokens.T
        tensor([[7, 7, 5]])
    """

    def pick(self: T, rows: Int[Tensor, " n"]) -> T:
        return select_rows(self, rows)

    def detach(self: T) -> T:
        """The same state, detached from the graph: gradients of what is read from here on end here."""
        return map_tensors(Tensor.detach, self)


M = TypeVar("M", bound=Memory)
S = TypeVar("S", bound=DecoderState)


class Seq2Seq(nn.Module, ABC, Generic[M, S]):
    """Abstract: a model says how it encodes, starts and decodes; the rest follows.

    Padding never changes a result. Decoding a text at once or token by token gives the same logits.

    Examples:
        >>> model = build_model(ModelConfig.from_size("transformer", "tiny"), source_size=11, target_size=13).eval()
        >>> source, lengths, target = torch.tensor([[5, 6, 2]]), torch.tensor([3]), torch.tensor([[1, 7, 8]])
        >>> whole = model(source, lengths, target)
        >>> memory = model.encode(source, lengths)
        >>> first, state = model.step(target[:, :2], model.start(memory), memory)
        >>> then, state = model.step(target[:, 2:], state, memory)
        >>> whole.shape, torch.cat((first, then), 1).allclose(whole, atol=1e-5)
        (torch.Size([1, 3, 13]), True)
    """

    @abstractmethod
    def encode(self, source: Int[Tensor, "b s"], lengths: Int[Tensor, " b"]) -> M:
        """The encoded source; sentence b ends after lengths[b] tokens."""

    @abstractmethod
    def start(self, memory: M) -> S:
        """The decoder's state before the first token."""

    @abstractmethod
    def decode_hidden(self, tokens: Tokens, state: S, memory: M) -> tuple[X, S]:
        """The hidden states that predict what follows each token, and the state after them."""

    @abstractmethod
    def output(self) -> tuple[Embedding, Tensor]:
        """The embedding and the bias that turn the states of `decode_hidden` into logits."""

    def logits(self, x: X) -> Logits:
        table, bias = self.output()
        return table.logits(x, bias)

    def loss(
        self, x: X, targets: Tokens, *, smoothing: float, ignore_index: int, rdrop: float | None = None
    ) -> Float[Tensor, ""]:
        """The summed loss of the targets: see `output_loss`."""
        return output_loss(x, *self.output(), targets, smoothing=smoothing, ignore_index=ignore_index, rdrop=rdrop)

    def hidden_states(self, source: Int[Tensor, "b s"], source_lengths: Int[Tensor, " b"], target_in: Tokens) -> X:
        """As `forward`, before the logits."""
        memory = self.encode(source, source_lengths)
        return self.decode_hidden(target_in, self.start(memory), memory)[0]

    def step(self, tokens: Tokens, state: S, memory: M) -> tuple[Logits, S]:
        """Logits for what follows each token, one or many, and the state after them; the old one stays as it was."""
        x, state = self.decode_hidden(tokens, state, memory)
        return self.logits(x), state

    def forward(self, source: Int[Tensor, "b s"], source_lengths: Int[Tensor, " b"], target_in: Tokens) -> Logits:
        return self.logits(self.hidden_states(source, source_lengths, target_in))


def output_loss(
    x: Float[Tensor, "b t width"],
    table: Embedding,
    bias: Float[Tensor, " size"],
    targets: Tokens,
    *,
    smoothing: float,
    ignore_index: int,
    rdrop: float | None = None,
) -> Float[Tensor, ""]:
    """The summed cross-entropy of the logits that the table gives, which are never all in memory.

    With `rdrop`, the second half of the states are the first half's tokens in another pass (see `rdrop_loss`).
    """
    args = x.flatten(0, 1), table.weight, bias, targets.flatten()
    if rdrop is None:
        return linear_cross_entropy(*args, smoothing=smoothing, ignore_index=ignore_index)
    return rdrop_loss(*args, weight=rdrop, smoothing=smoothing, ignore_index=ignore_index)


@runtime_checkable
class Reorderable(Protocol):
    """A value with one row per sentence: the encoded sources, or the decoder's state (its KV cache)."""

    def pick(self, rows: Tensor) -> "Reorderable":
        """These rows in this order; a row may be left out or repeated."""
        ...


@runtime_checkable
class DecodableModel(Protocol):
    """`encode` the sources once, `start` a state, and `step` it over target tokens, one or many at a time."""

    def encode(self, source: Tensor, lengths: Tensor) -> Reorderable: ...
    def start(self, memory: Any) -> Reorderable: ...
    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, Reorderable]: ...
    def eval(self) -> Any: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...  # noqa: FBT001, FBT002  (torch's own)


EVAL_LOCK = Lock()
# of each module that was in training mode, how many callers hold it in eval mode: the flag is one for all threads
EVAL_CALLERS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


@contextmanager
def inference_mode(model: DecodableModel | nn.Module) -> Iterator[None]:
    """Eval mode and `torch.no_grad`. When the last of several callers leaves, every module that was in training mode
    before the first is so again."""
    with EVAL_LOCK:
        others = bool(EVAL_CALLERS)
        held = [part for part in model.modules() if part.training or (others and part in EVAL_CALLERS)]
        for part in held:
            EVAL_CALLERS[part] = EVAL_CALLERS.get(part, 0) + 1
            object.__setattr__(part, "training", False)  # torch's own, for weights, takes ten times as long
    try:
        # not torch.inference_mode: a tensor that the model caches now could never take part in training
        with torch.no_grad():
            yield
    finally:
        with EVAL_LOCK:
            for part in held:
                EVAL_CALLERS[part] -= 1
                if not EVAL_CALLERS[part]:
                    del EVAL_CALLERS[part]
                    object.__setattr__(part, "training", True)


def device_of(model: DecodableModel) -> torch.device:
    return next(model.parameters()).device


def encode_sources(model: DecodableModel, sources: Sequence[Sequence[int]]) -> tuple[Reorderable, Int[Tensor, " b"]]:
    """The encoded sources, and the length of each, its EOS included."""
    lengths = torch.tensor([len(source) + 1 for source in sources], device=device_of(model))
    return model.encode(pad_ids([*source, EOS] for source in sources).to(lengths.device), lengths), lengths


def decoder_inputs(targets: Sequence[Sequence[int]]) -> Int[Tensor, "b t"]:
    """The targets behind BOS: what the decoder reads to predict them."""
    return pad_ids([BOS, *target] for target in targets)


def pad_ids(rows: Iterable[Sequence[int]]) -> Int[Tensor, "b t"]:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


@runtime_checkable
class PackableModel(Protocol):
    """A model whose layers also take packed rows: a context says which tokens belong to one text."""

    def packed_hidden_states(self, source: PackedBatch, target: PackedBatch) -> X:
        """The hidden states that predict what follows each token of every target text."""
        ...


def count_parameters(model: nn.Module) -> int:
    """The number of parameters; a shared one counts once.

    Examples:
        >>> count_parameters(torch.nn.Linear(3, 5))
        20
        >>> shared = torch.nn.Linear(3, 3)
        >>> count_parameters(torch.nn.Sequential(shared, shared))
        12
    """
    return sum(weight.numel() for weight in model.parameters())
