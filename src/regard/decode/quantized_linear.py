"""Linear layers of inference: by kernels for a CPU, in int8; output layers screened by int8, or searched in slices."""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.decode.topk import CHUNK, TopKLogProbs, chunk_maxima, stable_topk, topk_logprobs_torch
from regard.ops.c_kernels import compile_kernels
from regard.ops.linear import DirectModule, MkldnnLinear

PRECISIONS = {
    "float32": "as the model is",
    "bfloat16": "half the memory; for a GPU",
    "int8": "whole numbers of 8 bits; for a CPU",
    "screened": "float32, in which only words near the best by 8 bits are scored; for a CPU",
}
INT8_BATCH_TOLERANCE = 0.1  # in int8, of a log-probability; 0.019 is the largest difference in 700 sentences
SLICE = 64 * CHUNK  # tokens
MIN_ROWS = 32  # rows whose logits outgrow the CPU caches
SCREENED_TOLERANCE = (
    2e-3  # screened, of a token's log-probability; 1.1e-3 is the largest with SmolLM2's weights, 2e-4 their mean
)
SURE = 3e-3  # tokens as probable are scored in float32 too, however few are asked for
FINE = 0.25  # x has one term of 8 bits if its rounding adds so much to the bound of a mean token's score at most,
MAX_SHARE = 1.5  # and at most so many times what the rounding of W adds
MOST_MISSED = -0.5  # of a row's probability, by screening
MAX_NEAR = 512  # tokens near the best in a row; to gather more takes as long as the whole product
KERNEL_COLUMNS = 64  # of a tile of our own kernels
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
        whole, self.scale = self.quantize_weight(weight)
        self.weight = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zero = torch.zeros(len(weight), dtype=torch.long)
        self.bias, self.quantizer = bias.detach(), RowQuantizer.create()
        self.op = torch.ops.onednn.qlinear_pointwise.default

    @staticmethod
    def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
        """Ŵ, and the scale of each of its rows."""
        weight = weight.detach()
        scale = weight.abs().amax(1).clamp_min(1e-12) / 127
        return (weight / scale[:, None]).round().to(torch.int8), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply_quantized(*self.quantizer.quantize(x))

    def multiply_quantized(self, whole: Tensor, size: Tensor, out: Tensor | None = None) -> Tensor:
        """y from x̂ and its row scales, written to `out` if it is given."""
        y = self.product(whole)
        return torch.addcmul(self.bias, y, size, out=y if out is None else out)

    def product(self, whole: Tensor) -> Tensor:
        """Without row scales and bias."""
        return self.op(
            whole, 1 / 127, ZERO_POINT, self.weight, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )


class WithoutGradient(torch.autograd.Function):
    """A function that has no derivative here: who asks for one is told, instead of being given 0."""

    @staticmethod
    def forward(ctx, x, function):
        return function(x)

    @staticmethod
    def backward(ctx, *grads):
        raise ValueError("a prepared model is for inference and has no gradients; differentiate the model itself")


class KernelLinear(DirectModule, ABC):
    """Abstract: a linear layer by kernels of our own (linear_kernels.c), as are the best of its outputs' logits, which
    are never written out. They compute in torch's threads, each row by itself and in one order, so that a result has
    the same bits whatever the other rows are and however many threads there are.

    Args:
        weight: (out, in).
    """

    precision: ClassVar[str]

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.size, self.bias = tuple(weight.shape), bias.detach()
        self.padded_bias = pad(self.bias, (0, -len(weight) % KERNEL_COLUMNS), value=-torch.inf)

    @abstractmethod
    def addresses(self) -> tuple[int, ...]:
        """Of the packed weight, and of what else its kernels want."""

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            return WithoutGradient.apply(x, self.forward)  # type: ignore[return-value]
        self.check(x)
        kernels, (n, k), (*before, _) = linear_kernels(), self.size, x.shape
        assert kernels is not None
        x, y, bias = x.contiguous(), x.new_empty((*before, n)), self.padded_bias.data_ptr()
        kernels[self.precision].linear(x.data_ptr(), x.numel() // k, k, *self.addresses(), bias, n, y.data_ptr())
        return y

    def check(self, x: Tensor) -> None:
        """Kernels know addresses alone, and would read whatever lies there."""
        if x.dtype is not torch.float32 or x.size(-1) != self.size[1] or not x.is_cpu:
            raise ValueError(
                f"a layer that was prepared for {self.size[1]} numbers in float32 on a CPU cannot read {x.size(-1)} in "
                f"{x.dtype} on {x.device}; prepare the model anew, as it is to be used"
            )

    def topk(
        self, x: Float[Tensor, "n model"], banned: UInt8[Tensor, " v"], count: int, must: Int[Tensor, "n 1"] | None
    ) -> TopKLogProbs:
        self.check(x)
        kernels, rows, x, count = linear_kernels(), len(x), x.contiguous(), min(count, self.size[0])
        assert kernels is not None
        values, tokens = x.new_empty(rows, count), torch.empty(rows, count, dtype=torch.long)
        must = None if must is None else must.contiguous()
        forced = None if must is None else x.new_empty(rows, 1)
        finite = kernels[self.precision].topk(
            x.data_ptr(),
            rows,
            self.size[1],
            *self.addresses(),
            self.padded_bias.data_ptr(),
            self.size[0],
            banned.data_ptr(),
            count,
            values.data_ptr(),
            tokens.data_ptr(),
            None if must is None else must.data_ptr(),
            None if forced is None else forced.data_ptr(),
        )
        found = TopKLogProbs(values, tokens, torch.tensor(bool(finite)))
        return found if must is None or forced is None else found.force(must, forced)


class Float32KernelLinear(KernelLinear):
    """As torch's linear layer: of 5 rows three times as fast as oneDNN's where the matrix fits into a core's cache, of
    hundreds as fast."""

    precision = "float32"

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__(weight, bias)
        whole = pad(weight.detach(), (0, 0, 0, -len(weight) % KERNEL_COLUMNS))
        self.weight = rearrange(whole, "(c n) k -> c k n", n=KERNEL_COLUMNS).contiguous()

    def addresses(self):
        return (self.weight.data_ptr(),)


class Int8KernelLinear(KernelLinear):
    """As Int8Linear: rounding, product, scales and bias are one pass."""

    precision = "int8"

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__(weight, bias)
        whole, scale = Int8Linear.quantize_weight(weight)
        columns = -len(weight) % KERNEL_COLUMNS
        whole = pad(whole, (0, -weight.shape[1] % 4, 0, columns))
        self.weight = rearrange(whole, "(c n) (i four) -> c i n four", n=KERNEL_COLUMNS, four=4).contiguous()
        self.scale = pad(scale / 127, (0, columns))
        self.offset = ZERO_POINT * whole.sum(1, dtype=torch.int32)

    def addresses(self):
        return self.weight.data_ptr(), self.scale.data_ptr(), self.offset.data_ptr()


@dataclass(frozen=True)
class LinearKernels:
    """The kernels of one precision: a linear layer, and the best tokens of one."""

    linear: Callable[..., None]
    topk: Callable[..., int]


@cache
def linear_kernels() -> Mapping[str, LinearKernels] | None:
    """By precision, where they can be compiled."""
    if (library := compile_kernels(Path(__file__).with_name("linear_kernels.c"))) is None:
        return None
    pointer, number, found = ctypes.c_void_p, ctypes.c_long, dict[str, LinearKernels]()
    for precision, linear, topk, matrices in (
        ("float32", library.float_linear, library.float_topk, 1),
        ("int8", library.int8_linear, library.int8_topk, 3),
    ):
        matrix = [pointer, number, number, *matrices * [pointer], pointer, number]
        linear.argtypes, linear.restype = [*matrix, pointer], None
        topk.argtypes = [*matrix, pointer, number, pointer, pointer, pointer, pointer]
        found[precision] = LinearKernels(linear, topk)
    return found


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


class ScreenedLinear(nn.Module):
    """x Wᵀ + b in float32. Where the best tokens are asked for, all are first screened in 8 bits, with a proven bound:

    |C_i x - Ĉ_i x̂| ≤ ‖C_i - Ĉ_i‖ ‖x‖ + ‖Ĉ_i‖ ‖x - x̂‖  (Cauchy-Schwarz), where C_i is W_i less the mean of all rows. x̂
    has a second term of 8 bits in those rows whose first one is too coarse.

    Each token that can be among the best by its bound is scored in float32, so the best are those of the whole product.
    The probabilities' sum takes the others as they were screened, unless they are as probable as SURE. Its logarithm is
    off by the bound at most; since the errors of many tokens nearly cancel, by far less: SCREENED_TOLERANCE holds for
    trained and random weights.
    """

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight, self.bias = weight.detach(), bias.detach()
        self.whole, self.mean, missing = MkldnnLinear(self.weight, self.bias), self.weight.mean(0), -len(weight) % CHUNK
        table = pad(self.weight - self.mean, (0, 0, 0, missing))
        self.screen = Int8Linear(table, pad(self.bias, (0, missing), value=-torch.inf))
        rounded = (table / self.screen.scale[:, None]).round() * self.screen.scale[:, None]
        error, size = torch.linalg.vector_norm(table - rounded, dim=1), torch.linalg.vector_norm(table, dim=1)
        error += weight.shape[1] * torch.finfo(torch.float32).eps * (size + self.mean.norm())  # of the sums themselves
        size += error
        self.ratio, self.fine = error.sum() / size.sum(), FINE / size[: len(weight)].mean()
        self.error = torch.maximum(error, self.ratio * size).view(-1, CHUNK)  # so that size ≤ error / ratio
        self.chunk_error = self.error.amax(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x)

    def topk(
        self, x: Float[Tensor, "n model"], banned: UInt8[Tensor, " v"], count: int, must: Int[Tensor, "n 1"] | None
    ) -> TopKLogProbs:
        """As `topk_logprobs_torch` of self(x), which it is where a token is forced or screening leaves too many."""
        found = self.topk_screened(x, banned, count) if must is None else None
        return topk_logprobs_torch(self.whole(x), banned, count, must) if found is None else found

    def topk_screened(
        self, x: Float[Tensor, "n model"], banned: UInt8[Tensor, " v"], count: int
    ) -> TopKLogProbs | None:
        scores, reach = self.screened_scores(x)
        largest = scores.amax(-1)
        rough = torch.log_softmax(scores, -1, out=scores)
        total = largest - rough.amax(-1) + (x * self.mean).sum(-1)
        row, token = self.near_best(rough.index_fill_(-1, banned.nonzero()[:, 0], -torch.inf), reach, count)
        near = torch.bincount(row, minlength=len(x))
        if near.min() < count or len(row) > MAX_NEAR * len(x):  # no row has a token near where x or W is not finite
            return None
        # row by row, so that what is gathered stays in the cache
        parts = zip(token.split(near.tolist()), x, strict=True)
        exact = [self.weight.index_select(0, part).mul_(one).sum(-1) for part, one in parts]
        exact, first = torch.cat(exact) + self.bias[token], near.cumsum(0) - near
        change = (exact - total[row]).exp_() - rough.flatten()[row * rough.shape[1] + token].exp_()
        change = total.new_zeros(len(x)).index_add_(0, row, change)
        # the rest of the sum is lost beside what it was taken from, or all of it beside what was missed
        if not MOST_MISSED <= change.min() <= change.max() < torch.inf:
            return None
        total += change.log1p_()
        place = row * (width := int(near.max())) + torch.arange(len(row)) - first[row]
        values = exact.new_full((len(x) * width,), -torch.inf).index_copy_(0, place, exact).view(-1, width)
        values, picked = stable_topk(values, count)
        return TopKLogProbs(values - total[:, None], token[first[:, None] + picked], total.isfinite().all())

    def screened_scores(self, x: Float[Tensor, "n model"]) -> tuple[Float[Tensor, "n v"], Float[Tensor, "n 1"]]:
        """Ĉ x̂ + b, and what a token's error is multiplied by for its bound."""
        screen, n = self.screen, len(x)
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        first, size = screen.quantizer.quantize(x)
        rest = x - (first.float() - ZERO_POINT) * (size / 127)
        gap = torch.linalg.vector_norm(rest, dim=1, keepdim=True)
        coarse = (gap > torch.minimum(MAX_SHARE * self.ratio * norm, self.fine)).nonzero()[:, 0]
        second, small = screen.quantizer.quantize(rest[coarse])
        products = screen.product(torch.cat((first, second)) if len(coarse) else first)
        scores = torch.addcmul(screen.bias, products[:n], size, out=products[:n])
        if len(coarse):
            rest = rest[coarse] - (second.float() - ZERO_POINT) * (small / 127)
            scores.index_add_(0, coarse, products[n:].mul_(small))
            gap[coarse] = torch.linalg.vector_norm(rest, dim=1, keepdim=True)
        return scores, norm + gap / self.ratio

    def near_best(
        self, scores: Float[Tensor, "n v"], reach: Float[Tensor, "n 1"], count: int
    ) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
        """Row and token of all that may be among the best `count` of a row, or are as probable as SURE: chunk by chunk,
        then token by token."""
        scores = scores.view(len(scores), -1, CHUNK)
        maxima, rows = scores.amax(-1), torch.arange(len(scores))[:, None]
        best = maxima.topk(min(count, maxima.shape[1])).indices
        # so many tokens score as much for sure
        least = (scores[rows, best] - reach[:, None] * self.error[best]).flatten(1).topk(count).values[:, -1:]
        least = least.clamp_max(log(SURE))
        row, chunk = (maxima + reach * self.chunk_error >= least).nonzero().unbind(1)
        upper = torch.addcmul(scores[row, chunk], reach[row], self.error[chunk])
        which, token = (upper >= least[row]).nonzero().unbind(1)
        return row[which], chunk[which] * CHUNK + token
