"""Hard attention: scores to weights that choose one key per query (fourth lecture), and how it is trained."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from regard.attention.normaliser import Normaliser, RowWise, Scores, Softmax, Visible
from regard.ops.dispatch import accumulation_dtype


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
