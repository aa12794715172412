"""A recipe in; what the kernels of a probe must know of it, or why they cannot probe it, out.

They know inner products of halves with softmax, patterns that are a band of differences i - j (and a length for each
sentence), and biases that depend on i - j alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from math import e, log2

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.given import Padding
from regard.attention.normaliser import Softmax
from regard.attention.pattern import And, Before, Causal, Full, Pattern, Window
from regard.attention.places import Places
from regard.attention.position import Alibi, Bias, OnScore
from regard.attention.recipe import Recipe
from regard.attention.relative import Clipped, LogBuckets, RelativeBias
from regard.attention.score import Dot, ScaledDot

FAR = 2**28  # further apart than any two places
FEWEST = 128  # queries and keys: below this torch's own kernels waste less
MOST = 64  # keys that can be searched for at once
WIDEST = 256
MARGIN = 256  # biases on either side that a tile at the edge reads and does not use
LOG_2_E = log2(e)


@dataclass(frozen=True)
class Band:
    """Differences i - j from `least` to `most`."""

    least: int = -FAR
    most: int = FAR

    def __and__(self, other: "Band") -> "Band":
        return Band(max(self.least, other.least), min(self.most, other.most))


def band(pattern: Pattern) -> Band | None:
    """The differences that a pattern lets see, whatever it says of lengths; None if that is not all it says."""
    match pattern:
        case And(left, right):
            one, other = band(left), band(right)
            return None if one is None or other is None else one & other
        case Full() | Padding():
            return Band()
        case Causal():
            return Band(least=0)
        case Before():
            return Band(least=1)
        case Window(size):
            return Band(1 - size, size - 1)
    return None


def lengths(pattern: Pattern, batch: int, n_k: int, device: torch.device) -> Int[Tensor, "b"]:
    """So many keys each sentence has."""
    match pattern:
        case And(left, right):
            return torch.minimum(lengths(left, batch, n_k, device), lengths(right, batch, n_k, device))
        case Padding(given):
            return given.to(device, torch.int32).clamp(0, n_k).expand(batch)
    return torch.full((batch,), n_k, dtype=torch.int32, device=device)


def pads(pattern: Pattern) -> bool:
    return isinstance(pattern, Padding) or (isinstance(pattern, And) and (pads(pattern.left) or pads(pattern.right)))


def by_difference(scheme: OnScore) -> bool:
    if isinstance(scheme, RelativeBias):
        return isinstance(scheme.relation, (Clipped, LogBuckets))
    return isinstance(scheme, Alibi)


def objections(recipe: Recipe, q: Tensor, k: Tensor, places: Places, top: int = 0) -> list[str]:
    """Why the kernels cannot probe this; empty if they can."""
    short = min(q.shape[2], k.shape[2])
    return [
        *([] if find_spec("triton") else ["its kernels need Triton, which is not installed: pip install triton"]),
        *([] if q.is_cuda else [f"its kernels run on a GPU, not on {q.device}"]),
        *([] if q.dtype in (torch.bfloat16, torch.float16) else [f"tensor cores would round {q.dtype}"]),
        *([] if isinstance(recipe.score, (Dot, ScaledDot)) else [f"{recipe.score} would round what it makes of q"]),
        *([] if recipe.normaliser == Softmax() else [f"{recipe.normaliser} is not softmax"]),
        *([] if band(recipe.pattern) else [f"{recipe.pattern} is not a band of differences i - j"]),
        *([] if places.start is not None else ["places given one by one have no band of differences"]),
        *(f"{scheme} does not depend on i - j alone" for scheme in recipe.on_score if not by_difference(scheme)),
        *([f"{short} tokens leave a tile empty"] if short < FEWEST else []),
        *([f"heads of width {q.shape[3]} are wider than {WIDEST}"] if q.shape[3] > WIDEST else []),
        *([f"a tile has no room for the {top} largest"] if top > MOST else []),
        *([] if q.stride(3) == 1 and k.stride(3) == 1 else ["a token's features must lie side by side"]),
    ]


@dataclass(frozen=True, eq=False)
class Seen:
    """q, k and all that a kernel needs to know of who sees whom."""

    q: Float[Tensor, "b h i d"]
    k: Float[Tensor, "b g j d"]
    scale: float
    start: int
    band: Band
    lengths: Int[Tensor, "b"]
    padded: bool
    biases: Float[Tensor, "h r"] | None  # by difference, the smallest first, MARGIN more on either side

    @staticmethod
    def of(recipe: Recipe, q: Tensor, k: Tensor, places: Places) -> "Seen":
        differences, start = band(recipe.pattern), places.start
        assert differences is not None  # or the kernels objected
        assert start is not None
        q, k = (x if x.shape[2] * x.stride(2) < 2**31 else x.contiguous() for x in (q, k))
        scale = q.shape[3] ** -0.5 if isinstance(recipe.score, ScaledDot) else 1.0
        known = lengths(recipe.pattern, q.shape[0], k.shape[2], q.device).contiguous()
        biases = table(recipe.on_score, q, k, start)
        return Seen(q, k, scale, start, differences, known, pads(recipe.pattern), biases)

    @property
    def everything(self) -> bool:
        return self.band == Band() and not self.padded

    @property
    def heads(self) -> int:
        """Of all sentences together."""
        return self.q.shape[0] * self.q.shape[1]

    @property
    def origin(self) -> int:
        """Where in the table of biases the difference 0 stands."""
        return MARGIN + self.k.shape[2] - 1 - self.start

    def keys_of(self, first: int, stop: int) -> tuple[int, int]:
        """The first key that some of these queries see, and the one after the last."""
        low, high = first + self.start - self.band.most, stop + self.start - self.band.least
        high = max(0, min(self.k.shape[2], high))
        return min(max(0, low), high), high

    def rows(self, chosen: tuple[int, ...]) -> Float[Tensor, "b h r j"]:
        """The weights of some queries."""
        i, j = self.tensor(chosen), self.every(self.k)
        q = self.q[:, :, i]
        scores = self.each_head(lambda sentence, head: self.scores(sentence, head, i, j, q, self.k))
        return scores.softmax(-1).masked_fill_((scores == -torch.inf).all(-1, keepdim=True), 0.0)

    def columns(self, chosen: tuple[int, ...], lse: Float[Tensor, "b h i"]) -> Float[Tensor, "b h i c"]:
        """The weights of some keys."""
        i, j = self.every(self.q), self.tensor(chosen)
        k = self.k[:, :, j]
        scores = self.each_head(lambda sentence, head: self.scores(sentence, head, i, j, self.q, k))
        return scores.sub_(lse.nan_to_num(0.0, 0.0, 0.0)[..., None]).exp_()  # from a blind row every key is hidden

    def tensor(self, places: tuple[int, ...]) -> Int[Tensor, "t"]:
        """Without waiting for what the GPU is doing."""
        here = torch.tensor(places)
        return (here.pin_memory() if self.q.is_cuda else here).to(self.q.device, non_blocking=True)

    def every(self, x: Tensor) -> Int[Tensor, "t"]:
        return torch.arange(x.shape[2], device=x.device)

    def each_head(self, run: Callable[[int, int], Tensor]) -> Float[Tensor, "b h i j"]:
        """One after the other: in float32 all of them would be larger than what they were made from."""
        batch, heads = self.q.shape[:2]
        return torch.stack([torch.stack([run(b, h) for h in range(heads)]) for b in range(batch)])

    def scores(self, sentence: int, head: int, i: Tensor, j: Tensor, q: Tensor, k: Tensor) -> Float[Tensor, "i j"]:
        """Scores of one head in the open, in float32; -∞ where hidden. q and k are those of the places i and j."""
        apart, group = i[:, None] + self.start - j, head * self.k.shape[1] // self.q.shape[1]
        s = (q[sentence, head].float() @ k[sentence, group].float().mT).mul_(self.scale)
        if self.biases is not None:
            s += self.biases[head, apart + self.origin]
        seen = (apart >= self.band.least) & (apart <= self.band.most) & (j < self.lengths[sentence])
        return s.masked_fill_(~seen, -torch.inf)


def table(schemes: tuple[OnScore, ...], q: Tensor, k: Tensor, start: int) -> Tensor | None:
    """What all schemes together add to the scores of each head, by difference."""
    if not schemes:
        return None
    first, last = start - k.shape[2] + 1, start + q.shape[2] - 1
    apart = torch.arange(first, last + 1, device=q.device)
    zero, h = torch.zeros_like(apart[:1]), torch.arange(q.shape[1], device=q.device)[:, None]
    added = torch.zeros(q.shape[1], len(apart), device=q.device)
    for scheme in schemes:
        assert isinstance(scheme, Bias)  # or the kernels objected
        added += scheme.bias(zero, h, apart, zero).float()
    return pad(added, (MARGIN, MARGIN)).contiguous()
