"""Top-k log-probabilities of the next token: by torch, by Triton, and over a vocabulary in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.data.tokenizers.base import EOS
from regard.decode.model import log_probabilities
from regard.decode.quantized_linear import Int8Linear
from regard.decode.search import stable_topk

CHUNK = 128  # tokens whose maximum is taken first; only the chunks of the best maxima are read


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
    finite = scores.amax(-1).isfinite().all()
    scores.index_fill_(-1, banned.nonzero()[:, 0], -torch.inf)
    if allowed is not None:
        scores.masked_fill_(~allowed, -torch.inf)
    found = TopKLogProbs(*chunked_topk(scores, count), finite)
    return found if must is None or forced is None else found.force(must, forced)


def topk_logprobs_triton(
    logits: Float[Tensor, "n v"],
    bias: Float[Tensor, " v"],
    banned: UInt8[Tensor, " v"],
    count: int,
    must: Int[Tensor, "n 1"] | None,
) -> TopKLogProbs:
    """More than `count` tokens of a row, the best among them; without host synchronisation, so a CUDA graph can capture
    it."""
    from regard.decode.beam_state_kernel import segment_topk

    values, tokens, whole = segment_topk(logits, bias, banned, count)
    found = TopKLogProbs(values, tokens, whole.isfinite().all())
    if must is None:
        return found
    token = must.clamp_min(0)
    return found.force(must, logits.gather(1, token).float() + bias[token] - whole)


def ban_early_end(banned: UInt8[Tensor, " v"], step: Int[Tensor, " 1"], min_length: int) -> UInt8[Tensor, " v"]:
    """EOS is banned too, as long as there are fewer than `min_length` tokens."""
    if not min_length:
        return banned
    banned = banned.clone()
    banned[EOS : EOS + 1].copy_(step < min_length)
    return banned


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


# --- the output layer in slices ---


SLICE = 64 * CHUNK  # tokens
MIN_ROWS = 32  # rows whose logits outgrow the CPU caches


class ChunkedVocabLinear(nn.Module):
    """The output layer in one piece, fastest for few rows, and once more in slices of the vocabulary, for many.

    Args:
        rows: tokens of each slice; the last may have fewer, but whole chunks: it is padded with tokens of bias -∞.
    """

    def __init__(self, whole: Int8Linear, parts: Sequence[Int8Linear], rows: int):
        super().__init__()
        self.whole, self.parts, self.rows = whole, tuple(parts), rows

    @staticmethod
    def of(weight: Tensor, bias: Tensor, rows: int = SLICE) -> "ChunkedVocabLinear":
        missing = -len(weight) % CHUNK
        padded, never = pad(weight.detach(), (0, 0, 0, missing)), pad(bias.detach(), (0, missing), value=-torch.inf)
        pairs = zip(padded.split(rows), never.split(rows), strict=True)
        return ChunkedVocabLinear(Int8Linear(weight, bias), [Int8Linear(*pair) for pair in pairs], rows)

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x)


def chunked_vocab_topk(
    linear: ChunkedVocabLinear,
    x: Float[Tensor, "n model"],
    banned: UInt8[Tensor, " v"],
    count: int,
    must: Int[Tensor, "n 1"] | None,
) -> TopKLogProbs:
    """As `topk_logprobs_torch` of linear(x)."""
    n, banned_ids = len(x), banned.nonzero()[:, 0].tolist()
    widths = [len(part.bias) for part in linear.parts]
    scores, sums, maxima = x.new_empty(n * sum(widths)), [], []
    forced = None if must is None else x.new_zeros(n, 1)
    numbers, size = linear.whole.quantizer.quantize(x)
    for number, (part, width) in enumerate(zip(linear.parts, widths, strict=True)):
        start = number * linear.rows
        here = scores[n * start : n * (start + width)].view(n, width)
        part.multiply_quantized(numbers, size, out=here)
        # torch's logsumexp is slower than its log_softmax, whose largest is the largest score less the sum
        sums.append(here.amax(-1) - here.log_softmax(-1).amax(-1))
        if must is not None and forced is not None:
            inside = (must >= start) & (must < start + width)
            forced = torch.where(inside, here.gather(1, (must - start).clamp(0, width - 1)), forced)
        for token in banned_ids:
            if start <= token < start + width:
                here[:, token - start] = -torch.inf
        maxima.append(chunk_maxima(here))
    total = torch.stack(sums, -1).logsumexp(-1, keepdim=True)
    chunks = stable_topk(torch.cat(maxima, -1), count)[1].sort(-1).values
    values, picked = stable_topk(gather_chunks(scores, chunks, linear.rows, sum(widths)), count)
    ids = chunks.gather(1, picked // CHUNK) * CHUNK + picked % CHUNK
    found = TopKLogProbs(values - total, ids, total.isfinite().all())
    return found if must is None or forced is None else found.force(must, forced - total)


def gather_chunks(scores: Float[Tensor, " all"], chunks: Int[Tensor, "n k"], rows: int, v: int) -> Float[Tensor, "n c"]:
    """The scores in these chunks of every row; slices lie one behind the other, each with all of its rows."""
    n, rows, v = len(chunks), rows // CHUNK, v // CHUNK
    first = chunks // rows * rows
    width = (v - first).clamp_max(rows)
    at = n * first + torch.arange(n)[:, None] * width + chunks - first
    found = scores.view(-1, CHUNK).index_select(0, at.flatten())
    return rearrange(found, "(n k) token -> n (k token)", n=n)
