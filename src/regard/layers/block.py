"""What a Transformer's layer is made of besides attention: feed-forward, and the residual path with its norm."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import gelu, relu

from regard.layers.dropout import Dropout

X = Float[Tensor, "b t model"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": relu, "gelu": gelu}


class FeedForward(nn.Module):
    """W₂ φ(W₁ x + b₁) + b₂, for every token by itself (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, model: int, hidden: int, *, activation: str = "relu"):
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"no activation is called {activation!r}; there are {', '.join(ACTIVATIONS)}")
        self.up, self.down = nn.Linear(model, hidden), nn.Linear(hidden, model)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: X) -> X:
        return self.down(self.activation(self.up(x)))


class Residual(nn.Module, ABC):
    """Abstract: the way around a sub-layer f. What f does besides (a cache, say) can stand between the two verbs."""

    def __init__(self, model: int, *, dropout: float = 0.0):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(model), Dropout(dropout)

    @abstractmethod
    def before(self, x: X) -> X:
        """What f is given."""

    @abstractmethod
    def added(self, x: X, y: X) -> X:
        """What leaves the layer, y being what is left of what f made."""

    @staticmethod
    @abstractmethod
    def last(model: int) -> nn.Module:
        """What follows the last layer of a stack."""

    @staticmethod
    @abstractmethod
    def gain(branches: int) -> float:
        """How large a branch may start, if so many are added one after the other."""

    def after(self, x: X, y: X) -> X:
        """What leaves the layer, y being what f made."""
        return self.added(x, self.dropout(y))

    def forward(self, x: X, f: Callable[[Tensor], Tensor]) -> X:
        return self.after(x, f(self.before(x)))


class PostNorm(Residual):
    """norm(x + f(x)): as published (Vaswani et al. 2017). Wants a warm-up."""

    def before(self, x):
        return x

    def added(self, x, y):
        return self.norm(x + y)

    @staticmethod
    def last(model):
        return nn.Identity()

    @staticmethod
    def gain(branches):
        return 1.0  # the norm sets every sum straight


class PreNorm(Residual):
    """x + f(norm(x)): the way through is free from top to bottom (Xiong et al. 2020)."""

    def before(self, x):
        return self.norm(x)

    def added(self, x, y):
        return x + y

    @staticmethod
    def last(model):
        return nn.LayerNorm(model)  # nothing else ever norms the sum

    @staticmethod
    def gain(branches):
        return branches**-0.5  # so that the sum of all starts as large as one (Radford et al. 2019)


ORDERS: dict[str, type[Residual]] = {"pre": PreNorm, "post": PostNorm}
