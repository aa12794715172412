"""Softmax variants: sparse (top-k, sparsemax, entmax), a share for nobody (plus one, sinks), stick-breaking; hard;
and those that look beyond one row: across heads (talking heads, differential) and across queries (multi-token)."""

from dataclasses import dataclass
from math import exp

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, logsigmoid, one_hot, pad, softplus

from regard.attention.normaliser import AttentionDropout, Normaliser, RowWise, Scores, Softmax, Visible, Wrapper
from regard.ops.dispatch import accumulation_dtype
from regard.ops.rms_norm import rms_norm

# --- sparse ---


@dataclass(frozen=True)
class TopK(Wrapper):
    """Only the k best keys of each row are seen (and what ties with the last); `then` weighs those.

    Examples:
        >>> scores = torch.tensor([[[[1.0, 3.0, 2.0]]]]).log()
        >>> TopK(2).weigh(scores, scores < 2)
        tensor([[[[0.0000, 0.6000, 0.4000]]]])
    """

    k: int
    then: Normaliser = Softmax()

    def __post_init__(self):
        if self.k < 1:
            raise ValueError(f"TopK({self.k}) sees nothing; k must be at least 1")

    def weigh(self, scores, visible):
        return self.then.weigh(scores, self.best(scores, visible))

    def log_probability(self, scores, visible, weights):
        return self.then.log_probability(scores, self.best(scores, visible), weights)

    def best(self, scores: Scores, visible: Visible) -> Visible:
        hidden = scores.masked_fill(~visible, -torch.inf)
        return visible & (hidden >= hidden.topk(min(self.k, scores.shape[-1]), -1).values[..., -1:])


@dataclass(frozen=True)
class Sparsemax(RowWise):
    """The nearest point of the simplex: small scores weigh exactly 0 (Martins & Astudillo 2016, algorithm 1).

    Examples:
        >>> scores = torch.tensor([[[[0.5, 1.0, -1.0]]]])
        >>> Sparsemax().weigh(scores, scores < 2)
        tensor([[[[0.2500, 0.7500, 0.0000]]]])
    """

    def weigh(self, scores, visible):
        hidden = scores.to(accumulation_dtype(scores)).masked_fill(~visible, -torch.inf)
        ranked = hidden.sort(-1, descending=True).values
        # counted from the best one: sums of large scores would round away the 1 that the weights sum to
        best = ranked[..., :1].detach().clamp(min=torch.finfo(ranked.dtype).min)
        ranked = (ranked - best).clamp(min=-1.0)
        rank = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        support = 1 + rank * ranked > ranked.cumsum(-1)
        total, count = (x.sum(-1, keepdim=True) for x in (torch.where(support, ranked, 0.0), support))
        threshold = (total - 1) / count.clamp(min=1)
        return torch.where(visible, (hidden - best - threshold).relu(), 0.0).to(scores.dtype)


@dataclass(frozen=True)
class Entmax(RowWise):
    """[(α - 1) s - τ]₊^(1 / (α - 1)), τ such that they sum to 1 (Peters et al. 2019): softmax as α → 1, sparsemax at 2.

    The gradient is exact, by the implicit function theorem: with p the weights and g = p^(2 - α) where p > 0,
    ∂p/∂s = diag(g) - g gᵀ / Σ g.

    Examples:
        >>> scores = torch.tensor([[[[0.4, 0.0, -2.0]]]])
        >>> Entmax(1.5).weigh(scores, scores < 1)  # τ = -0.6: (0.2 + 0.6)², (0 + 0.6)², and -1 + 0.6 is below 0
        tensor([[[[0.6400, 0.3600, 0.0000]]]])
        >>> Entmax(2.0).weigh(scores, scores < 1), Entmax(1.0).weigh(scores, scores < 1)
        (tensor([[[[0.7000, 0.3000, 0.0000]]]]), tensor([[[[0.5678, 0.3806, 0.0515]]]]))
    """

    alpha: float = 1.5

    def __post_init__(self):
        if not self.alpha >= 1:
            raise ValueError(f"Entmax({self.alpha}): alpha must be at least 1, which is softmax")

    def weigh(self, scores, visible):
        if self.alpha in (1, 2):
            return (Softmax() if self.alpha == 1 else Sparsemax()).weigh(scores, visible)
        z = (self.alpha - 1) * scores.to(accumulation_dtype(scores)).masked_fill(~visible, -torch.inf)
        best = z.detach().amax(-1, keepdim=True) if z.shape[-1] else z.new_zeros(*z.shape[:3], 1)
        z = z - best.clamp(min=torch.finfo(z.dtype).min)
        with torch.no_grad():
            above = z - (entmax15_threshold(z) if self.alpha == 1.5 else self.bisect(z))
            support = above > 0
            power = torch.where(support, above, 1.0)
            p = torch.where(support, power ** (1 / (self.alpha - 1)), 0.0)
            g = torch.where(support, power ** ((2 - self.alpha) / (self.alpha - 1)), 0.0)
        if not z.requires_grad:
            return p.to(scores.dtype)
        visible_z = torch.where(support, z, 0.0) / (self.alpha - 1)
        mean = (g * visible_z).sum(-1, keepdim=True) / g.sum(-1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)
        tangent = g * (visible_z - mean)  # whose derivative is that of the weights, and whose value is taken off again
        return (p + (tangent - tangent.detach())).to(scores.dtype)

    def bisect(self, z: Scores) -> Tensor:
        """τ, for z whose largest is 0: at -1 the best key alone weighs 1, at -n^(1 - α) all together at most 1."""
        low = z.new_full((*z.shape[:3], 1), -1.0)
        step = 1.0 - max(z.shape[-1], 1) ** (1 - self.alpha)
        for _ in range(torch.finfo(z.dtype).bits + 4):
            step = step / 2
            total = ((z - low - step).clamp(min=0) ** (1 / (self.alpha - 1))).sum(-1, keepdim=True)
            low = torch.where(total >= 1, low + step, low)
        return low


def entmax15_threshold(z: Scores) -> Tensor:
    """τ for α = 1.5 in closed form (Peters et al. 2019, algorithm 2); z is half of the scores, its largest 0."""
    ranked = z.sort(-1, descending=True).values.clamp(min=-2.0)  # what lies 1 below the best weighs nothing
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    mean, square = ranked.cumsum(-1) / rank, ranked.square().cumsum(-1) / rank
    threshold = mean - ((1 / rank - (square - mean.square())).clamp(min=0)).sqrt()
    support = (threshold <= ranked).sum(-1, keepdim=True)
    return threshold.gather(-1, (support - 1).clamp(min=0)) if z.shape[-1] else z.new_zeros(*z.shape[:3], 1)


# --- a share for nobody ---


@dataclass(frozen=True)
class SoftmaxPlusOne(RowWise):
    """exp(s) / (1 + Σ exp(s)): a query may attend to nothing, as if there were one more key with score 0 and value 0.

    Examples:
        >>> scores = torch.tensor([[[[1.0, 2.0, 4.0]]]]).log()
        >>> SoftmaxPlusOne().weigh(scores, scores < 1)
        tensor([[[[0.2500, 0.5000, 0.0000]]]])
    """

    def weigh(self, scores, visible):
        return softmax_with_sink(scores, visible, scores.new_zeros(1))


@dataclass(eq=False)
class SinkSoftmax(nn.Module, RowWise):
    """exp(s) / (exp(sink_h) + Σ exp(s)): a head's learned sink takes a share and gives nothing (gpt-oss, 2025).

    Examples:
        >>> normaliser = SinkSoftmax.of(torch.tensor([1.0, 5.0]).log())
        >>> scores = torch.tensor([1.0, 2.0]).log().expand(1, 2, 1, 2)
        >>> normaliser.weigh(scores, scores == scores)[0].data  # 1/4 and 2/4; 1/8 and 2/8
        tensor([[[0.2500, 0.5000]],
        <BLANKLINE>
                [[0.1250, 0.2500]]])
    """

    heads: int

    def __post_init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.zeros(self.heads))

    @staticmethod
    def of(sinks: Float[Tensor, " h"]) -> "SinkSoftmax":
        """With these sinks, which a model gives."""
        made = SinkSoftmax(len(sinks))
        made.sinks = nn.Parameter(sinks.detach(), requires_grad=sinks.requires_grad)
        return made

    def weigh(self, scores, visible):
        if scores.shape[1] != self.heads:
            raise ValueError(f"{self} has sinks for {self.heads} heads, not {scores.shape[1]}")
        return softmax_with_sink(scores, visible, rearrange(self.sinks.to(scores.dtype), "h -> h 1 1"))

    def for_heads(self, heads):
        return SinkSoftmax.of(self.sinks[heads.start : heads.stop])


def split_sinks(
    normaliser: Normaliser, device: torch.device | None = None
) -> tuple[Normaliser, Float[Tensor, "#h"] | None]:
    """The same without its sinks, and these: with z = log Σ exp(s), its output is that of softmax times σ(z - sink)."""
    match normaliser:
        case SoftmaxPlusOne():
            return Softmax(), torch.zeros(1, device=device)
        case SinkSoftmax():
            return Softmax(), normaliser.sinks
        case AttentionDropout():
            then, sinks = split_sinks(normaliser.then, device)
            return AttentionDropout(normaliser.rate, then), sinks
    return normaliser, None


def softmax_with_sink(scores: Scores, visible: Visible, sink: Tensor) -> Scores:
    """Softmax over the visible keys and the sink, of which only the keys' weights are kept."""
    hidden = scores.masked_fill(~visible, -torch.inf)
    return torch.cat([hidden, sink.expand(*scores.shape[:3], 1)], -1).softmax(-1)[..., :-1]


# --- stick-breaking ---


@dataclass(frozen=True)
class StickBreaking(RowWise):
    """σ(s_j) Π_{k > j} (1 - σ(s_k)): from the last visible key back, each takes its share of what the later ones left.

    Keys are taken in their order, so that attention knows recency without positions (Tan et al. 2024, with
    `StrictCausal()`). The weights sum to at most 1.

    Examples:
        >>> scores = torch.tensor([[[[1.0, 3.0, 1.0, 9.0]]]]).log()  # σ: 1/2, 3/4, 1/2
        >>> StickBreaking().weigh(scores, scores < 2)  # 1/2 · 1/4 · 1/2, 3/4 · 1/2, 1/2
        tensor([[[[0.0625, 0.3750, 0.5000, 0.0000]]]])
    """

    def weigh(self, scores, visible):
        s = torch.where(visible, scores.to(accumulation_dtype(scores)), 0.0)
        left = torch.where(visible, softplus(s), 0.0)  # -log(1 - σ(s))
        later = left.flip(-1).cumsum(-1).flip(-1) - left
        return torch.where(visible, (logsigmoid(s) - later).exp(), 0.0).to(scores.dtype)


# --- hard attention: one key per query (fourth lecture), and how it is trained ---


@dataclass(frozen=True)
class Sampled(RowWise):
    """One key per row, drawn with its softmax probability: not differentiable, so trained by REINFORCE.

    Examples:
        >>> scores = torch.tensor([1.0, 4.0]).log().expand(1, 1, 10_000, 2)
        >>> weights = Sampled().weigh(scores, scores >= 0)
        >>> weights.unique(), weights.mean(2).round(decimals=1)
        (tensor([0., 1.]), tensor([[[0.2000, 0.8000]]]))
    """

    def weigh(self, scores, visible):
        return one_hot_argmax(add_gumbel_noise(scores), visible).to(scores.dtype)

    def log_probability(self, scores, visible, weights):
        # a row that saw nothing drew nothing, and log p = 0
        log_weights = scores.masked_fill(~visible, -torch.inf).log_softmax(-1, dtype=accumulation_dtype(scores))
        return torch.where(weights > 0, log_weights, 0.0).sum(-1)


@dataclass(frozen=True)
class StraightThrough(RowWise):
    """Sampled forwards, softmax backwards: the straight-through Gumbel estimator (Jang et al. 2017).

    Examples:
        >>> scores = torch.zeros(1, 1, 1, 3, requires_grad=True)
        >>> weights = StraightThrough().weigh(scores, scores == 0)
        >>> weights.unique(sorted=True).tolist()
        [0.0, 1.0]
        >>> bool(torch.autograd.grad(weights[..., 0].sum(), scores)[0].any())
        True
    """

    temperature: float = 1.0

    def weigh(self, scores, visible):
        noisy = add_gumbel_noise(scores)
        soft = Softmax().weigh(noisy / self.temperature, visible)
        return (one_hot_argmax(noisy, visible) + (soft - soft.detach())).to(scores.dtype)


@dataclass(frozen=True)
class Hard(RowWise):
    """The best key of each row and nothing else (the first of equals); while training, `training` instead.

    Examples:
        >>> scores = torch.tensor([[[[1.0, 3.0, 3.0]]]])
        >>> Hard().weigh(scores, scores > 0)
        tensor([[[[0., 1., 0.]]]])
        >>> Hard().for_training()
        Sampled()
    """

    training: Normaliser = Sampled()

    def weigh(self, scores, visible):
        return one_hot_argmax(scores, visible)

    def for_training(self):
        return self.training


def one_hot_argmax(scores: Scores, visible: Visible) -> Scores:
    if not scores.shape[-1]:
        return torch.zeros_like(scores)  # without keys there is no best one
    best = scores.masked_fill(~visible, -torch.inf).argmax(-1)
    return (one_hot(best, scores.shape[-1]).bool() & visible).to(scores.dtype)


def add_gumbel_noise(scores: Scores) -> Scores:
    """With Gumbel noise, after which the arg-max is a draw from the softmax.

    Never in half precision, where many sums are equal and the first of them would win more than its share.
    """
    return scores - torch.empty_like(scores, dtype=accumulation_dtype(scores)).exponential_().log()


def reinforce(
    log_probability: Float[Tensor, "*rows"], reward: Float[Tensor, "*rows"], baseline: Float[Tensor, "*rows"]
) -> Float[Tensor, ""]:
    """A loss whose gradient is -E[(reward - baseline) ∇ log p] (Williams 1992); the baseline only calms it.

    Examples:
        >>> log_probability = torch.tensor([0.25, 0.75]).log().requires_grad_()
        >>> loss = reinforce(log_probability, reward=torch.tensor([1.0, 0.0]), baseline=torch.tensor([0.5, 0.5]))
        >>> torch.autograd.grad(loss, log_probability)[0]
        tensor([-0.2500,  0.2500])
    """
    return -((reward - baseline).detach() * log_probability).mean()


# --- beyond one row: across heads and across queries ---


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
        then = self.then.for_training()
        return self if then is self.then else with_weights_of(self, TalkingHeads(self.heads, then))


def mix_heads(x: Scores, weight: Float[Tensor, "h n"]) -> Scores:
    return einsum(x, weight.to(x.dtype), "b h i j, h n -> b n i j")


def refuse_heads(part: Normaliser, heads: int, scores: Scores) -> None:
    if scores.shape[1] != heads:
        raise ValueError(f"{part} has weights for {heads} heads, not {scores.shape[1]}")


def with_weights_of(part: nn.Module, other: nn.Module) -> Normaliser:
    """The other normaliser with the parameters of the part: the same weights around another `then`."""
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
        return (rms_norm(parts, self.weight, self.eps) * self.scale).flatten(-2)


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
        then = self.then.for_training()
        return (
            self if then is self.then else with_weights_of(self, MultiToken(self.heads, self.queries, self.keys, then))
        )


@dataclass(frozen=True, eq=False)
class GivenWeights(Normaliser):
    """Weights that are known already, of the keys that are still visible."""

    given: Float[Tensor, "b h i j"]

    def weigh(self, scores, visible):
        return torch.where(visible, self.given, 0.0)
