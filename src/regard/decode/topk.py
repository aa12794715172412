"""Top-k: the most probable tokens of every row, as log-probabilities; ties go to the lower token."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

CHUNK = 128  # tokens whose maximum is taken first; only the chunks of the best maxima are read


def log_probabilities(logits: Float[Tensor, "*rows v"]) -> Float[Tensor, "*rows v"]:
    """Log-softmax in float32 at least, whatever precision the model runs in."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return logits.log_softmax(-1)


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


@dataclass(frozen=True, eq=False)
class TopKLogProbs:
    """Candidate tokens of each row, the model's own log-probability of each, and whether all scores are finite."""

    values: Float[Tensor, "n c"]
    tokens: Int[Tensor, "n c"]
    finite: Bool[Tensor, ""]

    def force(self, must: Int[Tensor, "n 1"], forced: Float[Tensor, "n 1"]) -> "TopKLogProbs":
        """Where a token is forced, that token alone, even a banned one."""
        first = torch.arange(self.values.shape[1], device=self.values.device) == 0
        values = torch.where(must < 0, self.values, torch.where(first, forced, -torch.inf))
        return TopKLogProbs(values, torch.where(must < 0, self.tokens, must), self.finite)


def topk_logprobs_torch(
    logits: Float[Tensor, "n v"],
    banned: UInt8[Tensor, " v"],
    count: int,
    must: Int[Tensor, "n 1"] | None,
    allowed: Bool[Tensor, "n v"] | None = None,
) -> TopKLogProbs:
    """The `count` best tokens of a row, or all of a smaller vocabulary; `allowed` says row by row which may come."""
    scores = log_probabilities(logits)
    forced = None if must is None else scores.gather(1, must.clamp_min(0))
    finite = ~scores[:, 0].isnan().any()  # one NaN or +∞ makes all log-probabilities of its row NaN
    scores.index_fill_(-1, banned.nonzero()[:, 0], -torch.inf)
    if allowed is not None:
        scores.masked_fill_(~allowed, -torch.inf)
    found = TopKLogProbs(*chunked_topk(scores, count), finite)
    return found if must is None or forced is None else found.force(must, forced)


def chunked_topk(scores: Float[Tensor, "n v"], count: int) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """As `stable_topk`, in one pass: the k chunks with the largest maxima hold the k best tokens, since every chunk
    ranked before a token's own holds a token ranked before it."""
    v = scores.shape[1]
    if v < 4 * CHUNK * count:
        return stable_topk(scores, count)
    maxima = chunk_maxima(scores)
    chunks = stable_topk(maxima, count)[1].sort(-1).values
    tokens = (chunks[:, :, None] * CHUNK + torch.arange(CHUNK, device=scores.device)).flatten(1)
    values = scores.gather(1, tokens.clamp_max(v - 1)).masked_fill_(tokens >= v, -torch.inf)
    values, picked = stable_topk(values, count)
    return values, tokens.gather(1, picked)


def chunk_maxima(scores: Float[Tensor, "n v"]) -> Float[Tensor, "n chunks"]:
    """The maximum of every chunk of tokens, and of the rest."""
    whole = scores.shape[1] // CHUNK * CHUNK
    maxima = scores[:, :whole].unflatten(1, (-1, CHUNK)).amax(-1)
    return maxima if whole == scores.shape[1] else torch.cat((maxima, scores[:, whole:].amax(-1, keepdim=True)), 1)
