"""Feed-forward layer: two linear maps with an activation between them, applied to every token by itself."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, relu

from regard.ops import dispatch
from regard.ops.linear_relu import linear_relu

X = Float[Tensor, "*batch model"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": relu, "gelu": gelu}


class FeedForward(nn.Module):
    """W₂ φ(W₁ x + b₁) + b₂, for every token by itself (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, model: int, hidden: int, *, activation: str = "relu"):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"no activation is called {activation!r}; there are {', '.join(ACTIVATIONS)}")
        self.up: nn.Module = nn.Linear(model, hidden)
        self.down: nn.Module = nn.Linear(hidden, model)
        self.activation = ACTIVATIONS[activation]

    def hidden(self, x: X, *, fused: bool = False) -> Float[Tensor, "*batch hidden"]:
        """φ(W₁ x + b₁)."""
        if fused and self.activation is relu and type(self.up) is nn.Linear and dispatch.use_fused(x):
            return linear_relu(x, self.up.weight, self.up.bias)
        return self.activation(self.up(x))

    def forward(self, x: X) -> X:
        return self.down(self.hidden(x))
