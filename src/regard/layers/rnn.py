"""Recurrent layers: Elman, GRU and LSTM cells as equations, and layers of them, fused by torch or unrolled.

A cell has no weights: it is given Ux = b + U x, the token's input to its gates, and Wh = c + W h, that of the last
state. Gates are in the order of torch's own cells, so that both use the same weights.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn.functional import dropout, linear
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

GateInputs = Float[Tensor, "b gates"]
HiddenState = tuple[Tensor, ...]
"""The state of a cell, h first: (h,), or (h, c) for the LSTM.

Examples:
    >>> layers = RNNLayers(3, 5, cell=LSTM(), layers=2)
    >>> _, state = layers(torch.randn(1, 7, 3))
    >>> [tuple(part.shape) for part in state]
    [(1, 2, 5), (1, 2, 5)]
"""


class Cell(ABC):
    """Abstract: `step` is the definition, `torch_module` the class of torch that computes the same for a whole text.

    Examples:
        >>> class Leaky(Cell):  # half of the old state, half of the new
        ...     torch_module, state_size = torch.nn.RNN, 1
        ...     def step(self, Ux, Wh, state):
        ...         return ((state[0] + torch.tanh(Wh + Ux)) / 2,)
        >>> Leaky().step(torch.zeros(1, 2), torch.zeros(1, 2), (torch.ones(1, 2),))
        (tensor([[0.5000, 0.5000]]),)
    """

    torch_module: type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]
    state_size: int  # tensors in a state

    @abstractmethod
    def step(self, Ux: GateInputs, Wh: GateInputs, state: HiddenState) -> HiddenState: ...


@dataclass(frozen=True)
class Elman(Cell):
    """h = tanh(b + W h + U x), as the fourth lecture writes it (Elman 1990).

    Examples:
        >>> Elman().step(torch.tensor([[0.25]]), torch.tensor([[0.25]]), (torch.zeros(1, 1),))  # tanh 0.5
        (tensor([[0.4621]]),)
    """

    torch_module = nn.RNN
    state_size = 1

    def step(self, Ux, Wh, state):
        return (torch.tanh(Wh + Ux),)


@dataclass(frozen=True)
class GRU(Cell):
    """h = (1 − z) ⊙ n + z ⊙ h (Cho et al. 2014).

    r = σ(U_r x + W_r h)              reset gate
    z = σ(U_z x + W_z h)              update gate
    n = tanh(U_n x + r ⊙ W_n h)       candidate state

    Examples:
        >>> Ux = torch.tensor([[0.0, 0.0, 0.5]])  # reset, update and candidate
        >>> GRU().step(Ux, torch.zeros(1, 3), (torch.ones(1, 1),))  # (tanh 0.5 + 1) / 2
        (tensor([[0.7311]]),)
    """

    torch_module = nn.GRU
    state_size = 1

    def step(self, Ux, Wh, state):
        (h,) = state
        (Ux_r, Ux_z, Ux_n), (Wh_r, Wh_z, Wh_n) = Ux.chunk(3, -1), Wh.chunk(3, -1)
        r = torch.sigmoid(Ux_r + Wh_r)
        z = torch.sigmoid(Ux_z + Wh_z)
        n = torch.tanh(Ux_n + r * Wh_n)
        return ((1 - z) * n + z * h,)


@dataclass(frozen=True)
class LSTM(Cell):
    """c = f ⊙ c + i ⊙ g and h = o ⊙ tanh(c) (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    i, f, o = σ(U x + W h), each with weights of its own     input, forget and output gates
    g = tanh(U_g x + W_g h)                                  candidate cell state

    Examples:
        >>> gates = torch.tensor([[100.0, -100.0, 0.5, 100.0]])  # read all, forget all, the candidate, show all
        >>> h, c = LSTM().step(gates, torch.zeros(1, 4), (torch.zeros(1, 1), torch.ones(1, 1)))
        >>> c, h  # tanh 0.5, and tanh of that
        (tensor([[0.4621]]), tensor([[0.4318]]))
    """

    torch_module = nn.LSTM
    state_size = 2

    def step(self, Ux, Wh, state):
        _, c = state
        i, f, g, o = (Ux + Wh).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


CELLS: dict[str, Cell] = {"elman": Elman(), "gru": GRU(), "lstm": LSTM()}
"""The recurrent cells by name; `ModelConfig.cell` takes one.

Examples:
    >>> CELLS
    {'elman': Elman(), 'gru': GRU(), 'lstm': LSTM()}
"""


# --- layers ---


Text = Float[Tensor, "b t width"]
Lengths = Int[Tensor, " b"]

# the functions behind torch's layers, which take the weights as arguments
TORCH_FUNCTIONS: dict[type[nn.Module], Callable[..., tuple[Tensor, ...]]] = {
    nn.RNN: torch.rnn_tanh,
    nn.GRU: torch.gru,
    nn.LSTM: torch.lstm,
}


class RNNLayers(nn.Module):
    """Layers of one cell. A state holds tensors of shape (b, layers × directions, hidden). Padding changes no state.

    Args:
        width: of the tokens.
        hidden: of the states.
        cell: the equations; the weights are torch's, so that its fused kernels can use them.
        layers: each reads the states of the one below.
        directions: 1 reads forwards; 2 also backwards, and the two states are concatenated.
        dropout: between the layers, while training.

    Examples:
        >>> layers = RNNLayers(3, 5, cell=GRU(), directions=2)
        >>> states, (last,) = layers(torch.randn(2, 7, 3), lengths=torch.tensor([7, 4]))
        >>> states.shape, last.shape
        (torch.Size([2, 7, 10]), torch.Size([2, 2, 5]))
        >>> states[1, 4:].any()  # padding has no states
        tensor(False)
    """

    def __init__(
        self, width: int, hidden: int, *, cell: Cell, layers: int = 1, directions: int = 1, dropout: float = 0.0
    ):
        super().__init__()
        if directions not in (1, 2):
            raise ValueError(f"a text has 1 or 2 directions, not {directions}")
        self.cell, self.layers, self.directions, self.hidden = cell, layers, directions, hidden
        self.dropout = dropout if layers > 1 else 0.0  # one layer has nothing between its layers
        self.may_sync = True  # may the host wait for the lengths? see `disable_host_sync`
        self.fused = cell.torch_module(
            width, hidden, layers, batch_first=True, dropout=self.dropout, bidirectional=directions == 2
        )

    def zeros(self, x: Text) -> HiddenState:
        """The state before the first token."""
        return (x.new_zeros(len(x), self.layers * self.directions, self.hidden),) * self.cell.state_size

    def forward(
        self, x: Text, state: HiddenState | None = None, lengths: Lengths | None = None
    ) -> tuple[Tensor, HiddenState]:
        """The states after each token, 0 on padding, and the last state of each sentence."""
        given = tuple(rearrange(part, "b n h -> n b h").contiguous() for part in state or self.zeros(x))
        text = x if lengths is None else pack(x, lengths)
        out, last = self.fused(text, given if self.cell.state_size > 1 else given[0])
        if isinstance(out, PackedSequence):
            out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        last = last if self.cell.state_size > 1 else (last,)
        return out, tuple(rearrange(part, "n b h -> b n h") for part in last)

    def states(self, x: Text, lengths: Lengths) -> Tensor:
        """The states after each token, as `forward` returns them."""
        return self(x, lengths=lengths)[0] if self.may_sync else self.forward_padded(x, lengths)

    def forward_padded(self, x: Text, lengths: Lengths) -> Tensor:
        """The states after each token, in shapes that do not depend on the lengths: padding is read too, after a text.

        So that it comes after it backwards as well, each text is reversed within its own length, and back again.
        """
        b, t = x.shape[:2]
        at = torch.arange(t, device=x.device)
        here = at < lengths[:, None]
        turned = torch.where(here, lengths[:, None] - 1 - at, at) + torch.arange(b, device=x.device)[:, None] * t
        for layer in range(self.layers):
            x, ways = dropout(x, self.dropout, self.training and layer > 0), []
            for direction in range(self.directions):
                out = self.run_direction(ReverseSequence.apply(x, turned) if direction else x, layer, direction)
                ways.append(ReverseSequence.apply(out, turned) if direction else out)
            x = torch.cat(ways, -1)
        return x.masked_fill(~here[..., None], 0.0)

    def run_direction(self, x: Text, layer: int, direction: int) -> Tensor:
        zero = x.new_zeros(1, len(x), self.hidden)
        with warnings.catch_warnings():
            # the weights of both directions are contiguous in memory, those of one direction are not
            warnings.filterwarnings("ignore", "RNN module weights are not part")
            out, *_ = TORCH_FUNCTIONS[self.cell.torch_module](
                x,
                (zero,) * self.cell.state_size if self.cell.state_size > 1 else zero,
                list(self.weights(layer, direction)),
                has_biases=True,
                num_layers=1,
                dropout=0.0,
                train=self.training,
                bidirectional=False,
                batch_first=True,
            )
        return out

    def forward_weight_dropped(self, x: Text, state: HiddenState, rate: float) -> tuple[Tensor, HiddenState]:
        """As `forward`, with dropout on the weights W between states, one mask for all tokens (Merity et al. 2018)."""
        flat = [each for U, W, b, c in self.fused.all_weights for each in (U, dropout(W, rate), b, c)]
        given = tuple(rearrange(part, "b n h -> n b h").contiguous() for part in state)
        given = given if self.cell.state_size > 1 else given[0]
        out, *last = TORCH_FUNCTIONS[self.cell.torch_module](
            x,
            given,
            flat,
            has_biases=True,
            num_layers=self.layers,
            dropout=self.dropout,
            train=True,
            bidirectional=self.directions == 2,
            batch_first=True,
        )
        return out, tuple(rearrange(part, "n b h -> b n h") for part in last)

    def forward_unrolled(
        self, x: Text, state: HiddenState | None = None, lengths: Lengths | None = None
    ) -> tuple[Tensor, HiddenState]:
        """The same by the cell's own equations, token by token."""
        state, lasts = state or self.zeros(x), []
        for layer in range(self.layers):
            x = dropout(x, self.dropout, self.training and layer > 0)
            ways = []
            for direction in range(self.directions):
                out, last = self.unroll_direction(x, state, lengths, layer, direction)
                ways.append(out)
                lasts.append(last)
            x = torch.cat(ways, -1)
        return x, stack_states(lasts)

    def unroll_direction(
        self, x: Text, state: HiddenState, lengths: Lengths | None, layer: int, direction: int
    ) -> tuple[Tensor, HiddenState]:
        """One layer in one direction. On padding the state stays as it is."""
        U, W, b, c = self.weights(layer, direction)
        now = tuple(part[:, layer * self.directions + direction] for part in state)
        Ux, outs = linear(x, U, b), {}
        for at in range(x.shape[1]) if direction == 0 else reversed(range(x.shape[1])):
            then = self.cell.step(Ux[:, at], linear(now[0], W, c), now)
            real = torch.ones_like(now[0][:, :1]).bool() if lengths is None else (at < lengths)[:, None]
            now = tuple(torch.where(real, new, old) for new, old in zip(then, now, strict=True))
            outs[at] = torch.where(real, now[0], 0.0)
        return torch.stack([outs[at] for at in range(x.shape[1])], 1), now

    def step(self, Ux: Float[Tensor, "b gates"], state: HiddenState) -> tuple[Tensor, HiddenState]:
        """One token through all layers, forwards; Ux is its input to the gates of the first."""
        lasts = []
        for layer in range(self.layers):
            U, W, b, c = self.weights(layer)
            if layer > 0:
                Ux = linear(dropout(lasts[-1][0], self.dropout, self.training), U, b)
            here = tuple(part[:, layer] for part in state)
            lasts.append(self.cell.step(Ux, linear(here[0], W, c), here))
        return lasts[-1][0], stack_states(lasts)

    def weights(self, layer: int = 0, direction: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """U, W, b and c of b + U x and c + W h."""
        U, W, b, c = self.fused.all_weights[layer * self.directions + direction]
        return U, W, b, c


def disable_host_sync(model: nn.Module) -> None:
    """From now on the host never waits for the device: a little more work, which a CUDA graph can capture."""
    for part in model.modules():
        if isinstance(part, RNNLayers):
            part.may_sync = False


class ReverseSequence(Function):
    """Permutes the tokens of a batch by an order that is its own inverse, so its backward pass is its forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Text, order: Int[Tensor, "b t"]) -> Text:
        ctx.save_for_backward(order)
        return rearrange(rearrange(x, "b t m -> (b t) m")[order.flatten()], "(b t) m -> b t m", b=len(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ReverseSequence.apply(grad, *ctx.saved_tensors), None


def stack_states(lasts: list[HiddenState]) -> HiddenState:
    return tuple(torch.stack(same, 1) for same in zip(*lasts, strict=True))


def pack(x: Text, lengths: Lengths) -> PackedSequence:
    here = lengths.cpu()
    if len(here) != len(x) or int(here.min()) < 1 or int(here.max()) > x.shape[1]:
        raise ValueError(f"lengths must be {len(x)} integers from 1 to {x.shape[1]}, not {here.tolist()}")
    return pack_padded_sequence(x, here, batch_first=True, enforce_sorted=False)
