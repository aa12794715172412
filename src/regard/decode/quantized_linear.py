"""Linear layers of inference: int8 for a CPU; output layers in float32, or whose best tokens are found in slices."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.decode.topk import CHUNK, TopKLogProbs, chunk_maxima, stable_topk, topk_logprobs_torch
from regard.ops.linear import DirectModule

PRECISIONS = {
    "float32": "as the model is",
    "bfloat16": "half the memory; for a GPU",
    "int8": "whole numbers of 8 bits; for a CPU",
}
INT8_BATCH_TOLERANCE = 0.1  # in int8, of a log-probability; 0.019 is the largest difference in 700 sentences
SLICE = 64 * CHUNK  # tokens
MIN_ROWS = 32  # rows whose logits outgrow the CPU caches
ZERO_POINT = 128  # oneDNN multiplies unsigned activations by signed weights


@dataclass(frozen=True, eq=False)
class RowQuantizer:
    """Quantises rows to 8 bits. Its constants are tensors, which torch would otherwise create at every call."""

    eps: Tensor
    levels: Tensor
    zero_point: Tensor

    @staticmethod
    def create() -> "RowQuantizer":
        return RowQuantizer(torch.tensor(1e-30), torch.tensor(127.0), torch.tensor(ZERO_POINT, dtype=torch.uint8))

    def quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """round(127 x / size) + 128 in 8 bits, and each row's scale, its largest |x|."""
        size = x.abs().amax(-1, keepdim=True).add_(self.eps)
        # torch vectorises the conversion to int8, but not to uint8; flipping the sign bit adds 128
        whole = (x * torch.div(self.levels, size)).round_().to(torch.int8)
        return whole.view(torch.uint8).bitwise_xor_(self.zero_point), size


class Int8Linear(DirectModule):
    """8 bits on both sides: y = (x̂ Ŵᵀ) sₓ s_w + b, where x̂ = round(x / sₓ) and sₓ is a row's largest |x| over 127.

    One scale per row of x, not one per batch, so that a result does not depend on the other rows. One exception:
    padding changes the order in which attention sums in float32, and with it last bits, of which one in thousands
    changes a rounding to 8 bits. So in another batch a log-probability may differ by up to INT8_BATCH_TOLERANCE, and of
    two hypotheses that score as close the other may come first. (Attention in float64 would remove that, and a tenth to
    a quarter of the speed.)
    """

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        weight = weight.detach()
        self.scale = weight.abs().amax(1).clamp_min(1e-12) / 127
        whole = (weight / self.scale[:, None]).round().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zero = torch.zeros(len(weight), dtype=torch.long)
        self.bias, self.quantizer = bias.detach(), RowQuantizer.create()
        self.op = torch.ops.onednn.qlinear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply_quantized(*self.quantizer.quantize(x))

    def multiply_quantized(self, whole: Tensor, size: Tensor, out: Tensor | None = None) -> Tensor:
        """y from x̂ and its row scales, written to `out` if it is given."""
        y = self.op(
            whole, 1 / 127, ZERO_POINT, self.weight, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return torch.addcmul(self.bias, y, size, out=y if out is None else out)


class OutputLinear(nn.Module):
    """x Wᵀ + b in float32 at least, whatever the precision of W, so that logits keep their differences."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight, self.bias = weight.detach(), bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x) + self.bias

    def multiply(self, x: Tensor) -> Tensor:
        """Without the bias."""
        if x.is_cuda and x.dtype in (torch.bfloat16, torch.float16):
            rows = torch.mm(x.flatten(0, -2), self.weight.t(), out_dtype=torch.float32)
            return rows.unflatten(0, x.shape[:-1])
        return x @ self.weight.t()


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

    def topk(
        self, x: Float[Tensor, "n model"], banned: UInt8[Tensor, " v"], count: int, must: Int[Tensor, "n 1"] | None
    ) -> TopKLogProbs:
        if len(x) < MIN_ROWS:
            return topk_logprobs_torch(self.whole(x), banned, count, must)
        return chunked_vocab_topk(self, x, banned, count, must)


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
