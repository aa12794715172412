"""A text in, a state after every token out: fused by torch, or token by token in the open. Padding changes no state."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn.functional import dropout, linear
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from regard.layers.cells import Cell, Parts

Text = Float[Tensor, "b t width"]
Lengths = Int[Tensor, " b"]

# what torch's layers call; here with weights of the caller's choice
FUSED: dict[type[nn.Module], Callable[..., tuple[Tensor, ...]]] = {
    nn.RNN: torch.rnn_tanh,
    nn.GRU: torch.gru,
    nn.LSTM: torch.lstm,
}


class Recurrent(nn.Module):
    """Layers of one cell. A state holds tensors of shape (b, layers × directions, hidden), directions side by side.

    Args:
        width: of the tokens.
        hidden: of the states.
        cell: the equations; the weights are torch's, so that its fused kernels can use them.
        layers: each reads the states of the one below.
        directions: 1 reads forwards; 2 also backwards, and the two states stand side by side.
        dropout: between the layers, while training.
    """

    def __init__(
        self, width: int, hidden: int, *, cell: Cell, layers: int = 1, directions: int = 1, dropout: float = 0.0
    ):
        super().__init__()
        if directions not in (1, 2):
            raise ValueError(f"a text has 1 or 2 directions, not {directions}")
        self.cell, self.layers, self.directions, self.hidden = cell, layers, directions, hidden
        self.dropout = dropout if layers > 1 else 0.0  # there is nothing between the layers of one
        self.asks = True  # how long texts are, where only their states are wanted: see `stop_asking`
        self.fused = cell.fused(
            width, hidden, layers, batch_first=True, dropout=self.dropout, bidirectional=directions == 2
        )

    def zeros(self, x: Text) -> Parts:
        """The state before the first token."""
        return (x.new_zeros(len(x), self.layers * self.directions, self.hidden),) * self.cell.parts

    def forward(self, x: Text, state: Parts | None = None, lengths: Lengths | None = None) -> tuple[Tensor, Parts]:
        """The states after each token, 0 on padding, and the last state of each sentence."""
        given = tuple(rearrange(part, "b n h -> n b h").contiguous() for part in state or self.zeros(x))
        text = x if lengths is None else packed(x, lengths)
        out, last = self.fused(text, given if self.cell.parts > 1 else given[0])
        if isinstance(out, PackedSequence):
            out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        last = last if self.cell.parts > 1 else (last,)
        return out, tuple(rearrange(part, "n b h -> b n h") for part in last)

    def states(self, x: Text, lengths: Lengths) -> Tensor:
        """Those after each token, as `forward` gives them."""
        return self(x, lengths=lengths)[0] if self.asks else self.beside_padding(x, lengths)

    def beside_padding(self, x: Text, lengths: Lengths) -> Tensor:
        """The states after each token, in the same shapes whatever the lengths are: padding is read too, behind a text.

        So that it stands behind it backwards as well, each text is turned round in its own place, and back again.
        """
        b, t = x.shape[:2]
        at = torch.arange(t, device=x.device)
        here = at < lengths[:, None]
        turned = torch.where(here, lengths[:, None] - 1 - at, at) + torch.arange(b, device=x.device)[:, None] * t
        for layer in range(self.layers):
            x, ways = dropout(x, self.dropout, self.training and layer > 0), []
            for direction in range(self.directions):
                out = self.one_fused(Turned.apply(x, turned) if direction else x, layer, direction)
                ways.append(Turned.apply(out, turned) if direction else out)
            x = torch.cat(ways, -1)
        return x.masked_fill(~here[..., None], 0.0)

    def one_fused(self, x: Text, layer: int, direction: int) -> Tensor:
        zero = x.new_zeros(1, len(x), self.hidden)
        with warnings.catch_warnings():
            # those of both directions lie in one piece of memory, but one direction's do not
            warnings.filterwarnings("ignore", "RNN module weights are not part")
            out, *_ = FUSED[self.cell.fused](
                x,
                (zero,) * self.cell.parts if self.cell.parts > 1 else zero,
                list(self.weights(layer, direction)),
                has_biases=True,
                num_layers=1,
                dropout=0.0,
                train=self.training,
                bidirectional=False,
                batch_first=True,
            )
        return out

    def with_dropped_weights(self, x: Text, state: Parts, rate: float) -> tuple[Tensor, Parts]:
        """As `forward`, without a share of the weights W between states: drawn for this call, and the same for all of
        its tokens (Merity et al. 2018)."""
        flat = [each for U, W, b, c in self.fused.all_weights for each in (U, dropout(W, rate), b, c)]
        given = tuple(rearrange(part, "b n h -> n b h").contiguous() for part in state)
        given = given if self.cell.parts > 1 else given[0]
        out, *last = FUSED[self.cell.fused](
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

    def token_by_token(
        self, x: Text, state: Parts | None = None, lengths: Lengths | None = None
    ) -> tuple[Tensor, Parts]:
        """The same with the cell's own equations, every step in the open."""
        state, lasts = state or self.zeros(x), []
        for layer in range(self.layers):
            x = dropout(x, self.dropout, self.training and layer > 0)
            ways = []
            for direction in range(self.directions):
                out, last = self.one_way(x, state, lengths, layer, direction)
                ways.append(out)
                lasts.append(last)
            x = torch.cat(ways, -1)
        return x, side_by_side(lasts)

    def one_way(
        self, x: Text, state: Parts, lengths: Lengths | None, layer: int, direction: int
    ) -> tuple[Tensor, Parts]:
        """One layer in one direction. A sentence waits in its state while the token is padding."""
        U, W, b, c = self.weights(layer, direction)
        now = tuple(part[:, layer * self.directions + direction] for part in state)
        Ux, outs = linear(x, U, b), {}
        for at in range(x.shape[1]) if direction == 0 else reversed(range(x.shape[1])):
            then = self.cell.step(Ux[:, at], linear(now[0], W, c), now)
            real = torch.ones_like(now[0][:, :1]).bool() if lengths is None else (at < lengths)[:, None]
            now = tuple(torch.where(real, new, old) for new, old in zip(then, now, strict=True))
            outs[at] = torch.where(real, now[0], 0.0)
        return torch.stack([outs[at] for at in range(x.shape[1])], 1), now

    def next(self, Ux: Float[Tensor, "b gates"], state: Parts) -> tuple[Tensor, Parts]:
        """One token through all layers, forwards; Ux is what it says to the gates of the first."""
        lasts = []
        for layer in range(self.layers):
            U, W, b, c = self.weights(layer)
            if layer > 0:
                Ux = linear(dropout(lasts[-1][0], self.dropout, self.training), U, b)
            here = tuple(part[:, layer] for part in state)
            lasts.append(self.cell.step(Ux, linear(here[0], W, c), here))
        return lasts[-1][0], side_by_side(lasts)

    def weights(self, layer: int = 0, direction: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """U, W, b and c of b + U x and c + W h."""
        U, W, b, c = self.fused.all_weights[layer * self.directions + direction]
        return U, W, b, c


def stop_asking(model: nn.Module) -> None:
    """From now on the device is told all and asked nothing: a little more work, which can be recorded."""
    for part in model.modules():
        if isinstance(part, Recurrent):
            part.asks = False


class Turned(Function):
    """Every text of a batch with its tokens in an order that, used twice, is none: the way back is the way there."""

    @staticmethod
    def forward(ctx: Any, x: Text, order: Int[Tensor, "b t"]) -> Text:
        ctx.save_for_backward(order)
        return rearrange(rearrange(x, "b t m -> (b t) m")[order.flatten()], "(b t) m -> b t m", b=len(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return Turned.apply(grad, *ctx.saved_tensors), None


def side_by_side(lasts: list[Parts]) -> Parts:
    return tuple(torch.stack(same, 1) for same in zip(*lasts, strict=True))


def packed(x: Text, lengths: Lengths) -> PackedSequence:
    here = lengths.cpu()
    if len(here) != len(x) or int(here.min()) < 1 or int(here.max()) > x.shape[1]:
        raise ValueError(f"lengths must be {len(x)} numbers from 1 to {x.shape[1]}, not {here.tolist()}")
    return pack_padded_sequence(x, here, batch_first=True, enforce_sorted=False)
