"""Recurrent cells: Elman, GRU and LSTM as equations without weights.

A cell is given Ux = b + U x, the token's input to its gates, and Wh = c + W h, that of the last state. Gates are in the
order of torch's own cells, so that both use the same weights.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

GateInputs = Float[Tensor, "b gates"]
HiddenState = tuple[Tensor, ...]  # the state, h first: (h,), or (h, c) for the LSTM


class Cell(ABC):
    """Abstract: `step` is the definition, `torch_module` the class of torch that computes the same for a whole text."""

    torch_module: type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]
    state_size: int  # tensors in a state

    @abstractmethod
    def step(self, Ux: GateInputs, Wh: GateInputs, state: HiddenState) -> HiddenState: ...


@dataclass(frozen=True)
class Elman(Cell):
    """h = tanh(b + W h + U x), as the fourth lecture writes it (Elman 1990)."""

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
    """

    torch_module = nn.LSTM
    state_size = 2

    def step(self, Ux, Wh, state):
        _, c = state
        i, f, g, o = (Ux + Wh).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


CELLS: dict[str, Cell] = {"elman": Elman(), "gru": GRU(), "lstm": LSTM()}
