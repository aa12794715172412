"""Normalisers that look beyond one row: across heads (talking heads, differential) and across queries (multi-token)."""

from dataclasses import dataclass
from math import exp

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, rms_norm

from regard.attention.normaliser import Normaliser, Scores, Softmax, Visible

NOISE = 0.02  # of fresh weights, around those that change nothing


@dataclass(eq=False, init=False)
class TalkingHeads(nn.Module, Normaliser):
    """Scores are mixed across heads before `then`, and weights after it (Shazeer et al. 2020).

    s'_n = Σ_h before_hn s_h and w'_n = Σ_h after_hn then(s')_h. A hidden score counts as 0. At first each head hears
    little but itself.

    Examples:
        >>> mixing = TalkingHeads(heads=2)
        >>> mixing.before.data = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # the heads exchange their scores
        >>> mixing.after.data = torch.tensor([[1.0, 0.5], [0.0, 0.5]])  # the second has the mean of both
        >>> scores = torch.tensor([[1.0, 3.0], [2.0, 2.0]]).log().view(1, 2, 1, 2)
        >>> mixing.weigh(scores, scores == scores)[0, :, 0].data  # ½ ½, and the mean of ½ ½ and ¼ ¾
        tensor([[0.5000, 0.5000],
                [0.3750, 0.6250]])
    """

    heads: int
    then: Normaliser

    def __init__(self, heads: int, then: Normaliser = Softmax()):
        super().__init__()
        self.heads, self.then = heads, then
        self.before, self.after = (nn.Parameter(torch.eye(heads) + torch.randn(heads, heads) * NOISE) for _ in range(2))

    @property
    def row_wise(self):
        return self.then.row_wise

    def weigh(self, scores, visible):
        refuse_heads(self, self.heads, scores)
        mixed = mix_heads(torch.where(visible, scores, 0.0), self.before)
        return torch.where(visible, mix_heads(self.then.weigh(mixed, visible), self.after), 0.0)

    def for_training(self):
        return with_then(self, TalkingHeads(self.heads, self.then.for_training()))


def mix_heads(x: Scores, weight: Float[Tensor, "h n"]) -> Scores:
    return einsum(x, weight.to(x.dtype), "b h i j, h n -> b n i j")


def refuse_heads(part: Normaliser, heads: int, scores: Scores) -> None:
    if scores.shape[1] != heads:
        raise ValueError(f"{part} has weights for {heads} heads, not {scores.shape[1]}")


def with_then(part: nn.Module, other: nn.Module) -> Normaliser:
    """The other normaliser with the parameters of the part: the same weights around another `then`."""
    if other.then is part.then:  # type: ignore[attr-defined]
        return part  # type: ignore[return-value]
    for name, weight in part._parameters.items():
        other._parameters[name] = weight
    return other  # type: ignore[return-value]


@dataclass(eq=False)
class Differential(nn.Module, Normaliser):
    """softmax(s_2n) - λ softmax(s_2n+1), for both heads of each pair: what both notice is noise (Ye et al. 2024).

    λ = exp(a·b) - exp(c·d) + initial, with learned vectors of the width of a head. The paper's value of width 2d is
    that of the two heads of a pair, side by side; `HeadNorm` is its norm of each pair's output. The weights of a query
    sum to 1 - λ, and some are negative.

    Examples:
        >>> normaliser = Differential(head=1, initial=0.5)
        >>> for vector in normaliser.parameters():
        ...     vector.data.zero_()  # λ = 1 - 1 + 0.5
        tensor([0.])
        tensor([0.])
        tensor([0.])
        tensor([0.])
        >>> scores = torch.tensor([[1.0, 3.0], [2.0, 2.0]]).log().view(1, 2, 1, 2)
        >>> normaliser.weigh(scores, scores == scores)[0, :, 0].data  # ¼ - ½ · ½, ¾ - ½ · ½
        tensor([[0.0000, 0.5000],
                [0.0000, 0.5000]])
    """

    head: int
    initial: float = 0.8

    def __post_init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Parameter(torch.randn(self.head) * 0.1) for _ in range(4))

    @staticmethod
    def initial_of_layer(layer: int) -> float:
        """The paper's 0.8 - 0.6 exp(-0.3 l), l = 0 being the first layer."""
        return 0.8 - 0.6 * exp(-0.3 * layer)

    @property
    def row_wise(self):
        return True

    def weigh(self, scores, visible):
        if scores.shape[1] % 2:
            raise ValueError(f"{self} subtracts the second of each pair of heads; {scores.shape[1]} heads are odd")
        share = (self.a @ self.b).exp() - (self.c @ self.d).exp() + self.initial
        first, second = rearrange(Softmax().weigh(scores, visible), "b (n two) i j -> two b n i j", two=2)
        both = repeat(first - share.to(scores.dtype) * second, "b n i j -> b (n two) i j", two=2)
        return torch.where(visible, both, 0.0)


class HeadNorm(nn.Module):
    """RMS norm of every `width` features of the heads' outputs, with one weight for all, times a scale.

    Differential attention norms each pair of heads, (1 - initial) · RMSNorm (Ye et al. 2024, eq. 3).

    Examples:
        >>> norm = HeadNorm(2, scale=0.2)
        >>> norm(torch.tensor([[[1.0, 1.0, 3.0, 3.0]]])).data
        tensor([[[0.2000, 0.2000, 0.2000, 0.2000]]])
    """

    def __init__(self, width: int, *, scale: float = 1.0, eps: float = 1e-5):
        super().__init__()
        self.width, self.scale, self.eps = width, scale, eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, heads: Float[Tensor, "b t width"]) -> Float[Tensor, "b t width"]:
        if heads.shape[-1] % self.width:
            raise ValueError(f"HeadNorm norms {self.width} features at a time; {heads.shape[-1]} is no multiple")
        parts = heads.unflatten(-1, (-1, self.width))
        return (rms_norm(parts, (self.width,), self.weight, self.eps) * self.scale).flatten(-2)


@dataclass(eq=False, init=False)
class MultiToken(nn.Module, Normaliser):
    """The scores of each head are convolved over neighbouring queries and keys, then weighed (Golovneva et al. 2025).

    s'_ij = Σ_ab θ_ab s_(i-a)(j-b), a = 0 … queries - 1 looking back, b symmetric around 0; the score of a key counts as
    0 if it is hidden from either query, so that packed texts stay apart. Several queries may find a key together. It
    looks across queries, which no KV cache keeps.

    Examples:
        >>> normaliser = MultiToken(heads=1, queries=2, keys=1)
        >>> normaliser.weight.data = torch.tensor([[[1.0], [1.0]]])  # each query's scores, and those of the one before
        >>> scores = torch.tensor([[1.0, 3.0], [2.0, 1.0]]).log()[None, None]
        >>> normaliser.weigh(scores, scores == scores)[0, 0].data  # 1 : 3, then 1·2 : 3·1
        tensor([[0.2500, 0.7500],
                [0.4000, 0.6000]])
    """

    heads: int
    queries: int
    keys: int
    then: Normaliser

    def __init__(self, heads: int, queries: int = 6, keys: int = 11, then: Normaliser = Softmax()):
        super().__init__()
        if queries < 1 or keys < 1 or keys % 2 == 0:
            raise ValueError(
                f"MultiToken: queries={queries} must be at least 1, keys={keys} odd, so that one is central"
            )
        self.heads, self.queries, self.keys, self.then = heads, queries, keys, then
        weight = torch.randn(heads, queries, keys) * NOISE
        weight[:, 0, keys // 2] += 1.0
        self.weight = nn.Parameter(weight)

    @property
    def head_wise(self):
        return self.then.head_wise

    def weigh(self, scores: Scores, visible: Visible) -> Scores:
        refuse_heads(self, self.heads, scores)
        if not scores.numel():
            return scores
        shown, n = torch.where(visible, scores, 0.0), scores.shape[2]
        back = [torch.where(visible, pad(shown, (0, 0, a, 0))[:, :, :n], 0.0) for a in range(self.queries)]
        kernel = self.weight.to(scores.dtype).flip(2)[:, :, None]  # torch correlates, so it is turned round
        around = rearrange(back, "a b h i j -> b (h a) i j")
        return self.then.weigh(conv2d(around, kernel, padding=(0, self.keys // 2), groups=self.heads), visible)

    def for_heads(self, heads):
        some = MultiToken(len(heads), self.queries, self.keys, self.then.for_heads(heads))
        some.weight = nn.Parameter(self.weight[heads.start : heads.stop])
        return some

    def for_training(self):
        return with_then(self, MultiToken(self.heads, self.queries, self.keys, self.then.for_training()))


@dataclass(frozen=True, eq=False)
class GivenWeights(Normaliser):
    """Weights that are known already, of the keys that are still visible."""

    given: Float[Tensor, "b h i j"]

    def weigh(self, scores, visible):
        return torch.where(visible, self.given, 0.0)
