"""A beam's state and a long list of words in 8 bits in; its best words out, the list multiplied slice by slice.

What is asked of a slice's scores (their sum of exponentials, the largest of every few) is asked while the processor's
caches still hold them. log Σ exp over all is that over the slices of theirs.
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn.functional import pad

from regard.decode.linears import Linear, Whole
from regard.decode.offers import CHUNK, Offers, of_chunks
from regard.decode.ranking import best

SLICE = 64 * CHUNK  # words
MANY = 32  # rows, whose scores of all words outgrow the caches


@dataclass(frozen=True, eq=False)
class Sliced(Linear):
    """A matrix in one piece, which few rows are multiplied by fastest, and once more in slices, for many.

    Args:
        rows: of each part; the last may have fewer, but whole chunks: what is missing is added as words never said.
    """

    whole: Whole
    parts: tuple[Whole, ...]
    rows: int

    @staticmethod
    def of(weight: Tensor, bias: Tensor, rows: int = SLICE) -> "Sliced":
        missing = -len(weight) % CHUNK
        padded, never = pad(weight.detach(), (0, 0, 0, missing)), pad(bias.detach(), (0, missing), value=-torch.inf)
        pairs = zip(padded.split(rows), never.split(rows), strict=True)
        return Sliced(Whole.of(weight, bias), tuple(Whole.of(*pair) for pair in pairs), rows)

    def __call__(self, x):
        return self.whole(x)


def offered(
    words: Sliced, x: Float[Tensor, "n model"], closed: UInt8[Tensor, " v"], count: int, must: Int[Tensor, "n 1"] | None
) -> Offers:
    """As `on_cpu` of words(x)."""
    n, shut = len(x), closed.nonzero()[:, 0].tolist()
    widths = [len(part.bias) for part in words.parts]
    scores, sums, maxima = x.new_empty(n * sum(widths)), [], []
    told = None if must is None else x.new_zeros(n, 1)
    numbers, size = words.whole.numbers.of(x)
    for number, (part, width) in enumerate(zip(words.parts, widths, strict=True)):
        start = number * words.rows
        here = scores[n * start : n * (start + width)].view(n, width)
        part.times(numbers, size, out=here)
        # torch's logsumexp is slower than its log_softmax, whose largest is the largest score less the sum
        sums.append(here.amax(-1) - here.log_softmax(-1).amax(-1))
        if must is not None and told is not None:
            inside = (must >= start) & (must < start + width)
            told = torch.where(inside, here.gather(1, (must - start).clamp(0, width - 1)), told)
        for word in shut:
            if start <= word < start + width:
                here[:, word - start] = -torch.inf
        maxima.append(of_chunks(here))
    total = torch.stack(sums, -1).logsumexp(-1, keepdim=True)
    chunks = best(torch.cat(maxima, -1), count)[1].sort(-1).values
    values, picked = best(read(scores, chunks, words.rows, sum(widths)), count)
    ids = chunks.gather(1, picked // CHUNK) * CHUNK + picked % CHUNK
    found = Offers(values - total, ids, total.isfinite().all())
    return found if must is None or told is None else found.forced(must, told - total)


def read(scores: Float[Tensor, " all"], chunks: Int[Tensor, "n k"], rows: int, v: int) -> Float[Tensor, "n c"]:
    """The scores in these chunks of every row. A slice with its rows lies behind the slice before it."""
    n, rows, v = len(chunks), rows // CHUNK, v // CHUNK
    first = chunks // rows * rows
    width = (v - first).clamp_max(rows)
    at = n * first + torch.arange(n)[:, None] * width + chunks - first
    found = scores.view(-1, CHUNK).index_select(0, at.flatten())
    return rearrange(found, "(n k) word -> n (k word)", n=n)
