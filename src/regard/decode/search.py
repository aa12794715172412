"""Search strategies: their abstract class, stable top-k, and the length and coverage penalties."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import AttentionRecord
from regard.decode.constraints import Constraints
from regard.decode.hypothesis import DecodingRequest, Hypothesis
from regard.decode.model import DecodableModel


class Search(ABC):
    """Abstract: a search strategy, a frozen value."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many rows of a batch one sentence may take."""

    @abstractmethod
    def run(
        self, model: DecodableModel, requests: Sequence[DecodingRequest], constraints: Constraints
    ) -> list[list[Hypothesis]]:
        """The hypotheses of every request of one batch, best first, by a model in eval mode; none depends on the
        others."""


def stable_topk(scores: Float[Tensor, "n v"], count: int) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """The `count` best of every row and their ids, best first; of ties the lower id first."""
    count = min(count, scores.shape[-1])
    if count == scores.shape[-1]:
        return torch.sort(scores, dim=-1, descending=True, stable=True)
    values, ids = scores.topk(count, -1)
    # topk orders ties arbitrarily. Inside the list two stable sorts repair that; at its border, where some ties are in
    # and others out, the whole row has to be sorted. Both are rare, and the second is expensive.
    ids, order = ids.sort(-1)
    values, again = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    ids, last = ids.gather(-1, again), values[:, -1:]
    tied = ((scores >= last).sum(-1) > count) & (last[:, 0] > -torch.inf)
    if tied.any():
        sorted_values, sorted_ids = torch.sort(scores[tied], dim=-1, descending=True, stable=True)
        values[tied], ids[tied] = sorted_values[:, :count], sorted_ids[:, :count]
    return values, ids


# --- penalties ---


MAX_PENALTY = 64.0  # an exponent that float64 can still raise any length to
MIN_COVERAGE = 1e-9  # a source token that was never attended to costs much, but not infinity


def length_penalty(length: int, alpha: float) -> float:
    """lp(y) = ((5 + |y|) / 6)^α, where |y| counts EOS."""
    return ((5 + length) / 6) ** alpha


def cross_attention_sites(record: AttentionRecord) -> list[str]:
    """The attentions from target tokens to the source (or a latent) among those that were recorded."""
    return [site.name for site in record.sites if site.queries == "written"]


def mean_cross_attention(record: AttentionRecord) -> Float[Tensor, "n s"]:
    """The cross-attention of the token just predicted: the mean over the heads of the last layer."""
    if not (sites := cross_attention_sites(record)):
        raise ValueError("the model has no cross-attention to compute coverage from; use coverage_penalty=0")
    return reduce(record.weights(sites[-1])[:, :, -1], "n h s -> n s", "mean")


def coverage_penalty(coverage: Float[Tensor, "n s"], lengths: Int[Tensor, " n"], beta: float) -> Float[Tensor, " n"]:
    """cp(x, y) = β Σᵢ log min(Σⱼ weightⱼᵢ, 1) over the source tokens i, EOS included, and target tokens j."""
    real = torch.arange(coverage.shape[-1], device=coverage.device) < rearrange(lengths, "n -> n 1")
    return beta * torch.where(real, coverage.clamp(MIN_COVERAGE, 1.0).log(), 0.0).sum(-1)
