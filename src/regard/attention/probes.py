"""q, k and a recipe in; exact statistics of the attention weights out, in memory that grows with n, never n².

    seen = probe(q, k, recipe, Wanted(rows=(0, 7), top=8, map=(64, 64), mass=True, entropy=True))
    seen.rows, seen.top, seen.map, seen.mass, seen.entropy

Fused kernels return no weights, and at a hundred thousand tokens nobody could hold them. What is not wanted is not
computed: rows alone cost no more than those rows. A query that sees nothing weighs every key 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.attending import prepare
from regard.attention.kernels import probe_reach
from regard.attention.normaliser import Softmax
from regard.attention.probing import Band, Call, everything, reaches
from regard.attention.recipe import Recipe

CHUNK = 64  # weights of which only the largest is looked at first, in search of the top


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to look at; see `Probed` for what each is. Rows and columns count queries and keys from 0."""

    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    top: int = 0
    map: tuple[int, int] | None = None
    peaks: tuple[int, int] | None = None
    mass: bool = False
    entropy: bool = False
    log_sum_exp: bool = False

    def __post_init__(self):
        if not self.rows and not self.every_query:
            raise ValueError("nothing is wanted: name a statistic, e.g. Wanted(mass=True)")
        if self.top < 0:
            raise ValueError(f"top={self.top}: keys are counted from 1, and 0 asks for none")
        for name, size in (("map", self.map), ("peaks", self.peaks)):
            if size is not None and (len(size) != 2 or min(size) < 1):
                raise ValueError(f"{name}={size}: a map has rows and columns, at least one of each, e.g. (64, 64)")

    @property
    def every_query(self) -> bool:
        """Whether more is wanted than single rows."""
        return bool(self.columns or self.top or self.map or self.peaks or self.mass or self.entropy or self.log_sum_exp)

    def misfit(self, n_q: int, n_k: int) -> str | None:
        for name, chosen, length in (("rows", self.rows, n_q), ("columns", self.columns, n_k)):
            if wrong := [index for index in chosen if not 0 <= index < length]:
                return f"{name}: there is no {wrong[0]} among {length}; they are counted from 0 to {length - 1}"
        return None


@dataclass(frozen=True, eq=False)
class Top:
    """The keys that weigh most, largest first, of equal ones any; key -1 and weight 0 where fewer weigh anything.

    Both are (b, h, i, k).
    """

    keys: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Probed:
    """What was wanted; None what was not. i runs over all queries and j over all keys."""

    rows: Tensor | None  # weights of the chosen queries, (b, h, rows, j)
    columns: Tensor | None  # weights of the chosen keys, (b, h, i, columns)
    top: Top | None
    map: Tensor | None  # the weights shrunk to a picture: query i and key j add to cell (i·R // n_q, j·C // n_k)
    peaks: Tensor | None  # the same, but the largest weight of each cell
    mass: Tensor | None  # what each key gets from all queries together, (b, h, j)
    entropy: Tensor | None  # -Σ p log p, p the weights over their sum, (b, h, i); NaN where a weight is negative
    log_sum_exp: Tensor | None  # log Σ exp of the scores a query sees, (b, h, i); -inf where it sees nothing


@torch.no_grad()
def probe(
    q: Tensor,
    k: Tensor,
    recipe: Recipe = Recipe(),
    wanted: Wanted = Wanted(mass=True, entropy=True),
    *,
    q_at: int | Tensor | None = None,
    k_at: int | Tensor | None = None,
    log_sum_exp: Tensor | None = None,
) -> Probed:
    """Exactly what `steps(q, k, v, recipe).weights` would give; half precision is probed in single.

    Args:
        recipe: what attention is; any that the reference runs, unless its normaliser draws at random.
        wanted: which statistics.
        q_at: where the queries stand, as in `attend`; a number lets the pattern's empty blocks be skipped.
        k_at: where the keys stand, likewise.
        log_sum_exp: log Σ exp of the scores each query sees, (b, h, i), if a fused forward pass has kept it: saves the
            kernels (on a GPU, in half precision) half of their time. Others look for themselves.
    """
    q, k, places = prepare(q, k, k, recipe, q_at, k_at)
    if why := wanted.misfit(q.shape[2], k.shape[2]):
        raise ValueError(why)
    if log_sum_exp is not None and log_sum_exp.shape != q.shape[:3]:
        raise ValueError(f"log_sum_exp has {tuple(log_sum_exp.shape)}, not one number per query: {tuple(q.shape[:3])}")
    if not probe_reach.objections(recipe, q, k, places, wanted.top):
        return fused(probe_reach.Seen.of(recipe, q, k, places), wanted, log_sum_exp)
    call = Call.of(recipe, q, k, places)
    probed = blank(wanted, call.q, call.k)
    if probed.rows is not None:
        for band in call.only(wanted.rows).bands(everything(len(wanted.rows), k.shape[2])):
            probed.rows[band.at] = band.weights
    if wanted.every_query:
        for band in call.bands(reaches(recipe.pattern, q.shape[2], k.shape[2], places.start)):
            read(band, wanted, probed)
    return probed


def fused(seen: probe_reach.Seen, wanted: Wanted, log_sum_exp: Tensor | None) -> Probed:
    """By the kernels: what they find they find in one or two passes; single rows and columns are found in the open."""
    if not wanted.every_query:
        rows = seen.rows(wanted.rows)
        return Probed(
            rows=rows, columns=None, top=None, map=None, peaks=None, mass=None, entropy=None, log_sum_exp=None
        )
    from regard.attention.kernels.probes import find  # only here is Triton needed

    with torch.cuda.device_of(seen.q):
        found, heads = find(seen, wanted, log_sum_exp), seen.q.shape[1]

    def parted(x: Tensor | None) -> Tensor | None:
        return None if x is None else rearrange(x, "(b h) ... -> b h ...", h=heads)

    lse, keys, weights = parted(found.log_sum_exp), parted(found.keys), parted(found.weights)
    assert lse is not None
    return Probed(
        # after the kernels: what takes many small calls is called while they run
        rows=seen.rows(wanted.rows) if wanted.rows else None,
        columns=seen.columns(wanted.columns, lse) if wanted.columns else None,
        top=None if keys is None or weights is None else Top(keys, weights),
        map=parted(found.map),
        peaks=parted(found.peaks),
        mass=parted(found.mass),
        entropy=parted(found.entropy),
        log_sum_exp=lse if wanted.log_sum_exp else None,
    )


def blank(wanted: Wanted, q: Tensor, k: Tensor) -> Probed:
    """What is found where nobody sees anything, to be filled in."""
    (b, h, i, _), j = q.shape, k.shape[2]
    top = (q.new_full((b, h, i, wanted.top), -1, dtype=torch.long), q.new_zeros(b, h, i, wanted.top))
    return Probed(
        rows=q.new_zeros(b, h, len(wanted.rows), j) if wanted.rows else None,
        columns=q.new_zeros(b, h, i, len(wanted.columns)) if wanted.columns else None,
        top=Top(*top) if wanted.top else None,
        map=q.new_zeros(b, h, *wanted.map) if wanted.map else None,
        peaks=q.new_zeros(b, h, *wanted.peaks) if wanted.peaks else None,
        mass=q.new_zeros(b, h, j) if wanted.mass else None,
        entropy=q.new_zeros(b, h, i) if wanted.entropy else None,
        log_sum_exp=q.new_full((b, h, i), -torch.inf) if wanted.log_sum_exp else None,
    )


def read(band: Band, wanted: Wanted, into: Probed) -> None:
    """Add what one band knows."""
    weights, whose = band.weights, (band.sentences, band.heads)
    if into.columns is not None:
        for number, key in enumerate(wanted.columns):
            if (place := band.reach.where(key)) is not None:
                into.columns[(*band.at, number)] = weights[..., place]
    if into.top is not None:
        keys, best = largest(weights, wanted.top)
        into.top.keys[band.at][..., : keys.shape[-1]] = band.keys[keys].masked_fill(best <= 0, -1)
        into.top.weights[band.at][..., : keys.shape[-1]] = best.clamp(min=0)
    if into.entropy is not None:
        into.entropy[band.at] = entropy(weights)
    if into.log_sum_exp is not None:
        into.log_sum_exp[band.at] = log_sum_exp(band)
    if into.mass is not None:
        for keys, part in band.reach.parts(weights.sum(2)):
            into.mass[whose][..., keys] += part
    if into.map is not None:
        cells = band.keys * into.map.shape[3] // band.of[1]
        for row, some in map_rows(band, into.map.shape[2]):
            sums = some.sum(2)
            into.map[whose][:, :, row].scatter_add_(-1, cells.expand_as(sums), sums)
    if into.peaks is not None:
        cells = band.keys * into.peaks.shape[3] // band.of[1]
        for row, some in map_rows(band, into.peaks.shape[2]):
            most = some.amax(2)
            into.peaks[whose][:, :, row].scatter_reduce_(-1, cells.expand_as(most), most, "amax")


def map_rows(band: Band, rows: int) -> Iterator[tuple[int, Tensor]]:
    """The rows of a map that the band's queries fall into, each with the weights of those queries."""
    first, stop, n = band.queries.start, band.queries.stop, band.of[0]
    for row in range(first * rows // n, (stop - 1) * rows // n + 1):
        # query i falls into row i·R // n, so a row begins at the first i that is at least row·n / R
        start, end = max(first, -(-row * n // rows)), min(stop, -(-(row + 1) * n // rows))
        if start < end:
            yield row, band.weights[:, :, start - first : end - first]


def log_sum_exp(band: Band) -> Tensor:
    """log Σ exp s. Softmax has summed already: its largest weight is exp(max s - lse)."""
    scores = band.hidden.put(band.scores)
    if band.normaliser != Softmax():
        return scores.logsumexp(-1)
    largest_weight = band.weights.amax(-1)
    return torch.where(largest_weight == 0, -torch.inf, scores.amax(-1) - largest_weight.log())


def entropy(weights: Tensor) -> Tensor:
    """H = log S - (Σ w log w) / S with S = Σ w: for weights that sum to 1 the last term alone."""
    total = weights.sum(-1)
    some = torch.where(total == 0, 1.0, total)
    # 0 log 0 = 0, hence no -∞; several times faster than xlogy
    logs = weights.log().clamp_(min=torch.finfo(weights.dtype).min)
    return some.log() - logs.mul_(weights).sum(-1) / some


def largest(weights: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Places and values of the largest weights of each row, largest first.

    The k largest lie in the k chunks whose own largest are the largest: a pass of maxima instead of a partial sort.
    """
    n = weights.shape[-1]
    if n < 4 * most * CHUNK:
        best = weights.topk(min(most, n))
        return best.indices, best.values
    # what fills the last chunk must not stand for a key, not even where all that is left weighs 0
    filled = pad(weights, (0, -n % CHUNK), value=-torch.inf)
    chunks = rearrange(filled, "... (c s) -> ... c s", s=CHUNK)
    chosen = chunks.amax(-1).topk(most).indices
    candidates = chunks.gather(-2, chosen[..., None].expand(*chosen.shape, CHUNK))
    best = rearrange(candidates, "... c s -> ... (c s)").topk(most)
    return chosen.gather(-1, best.indices // CHUNK) * CHUNK + best.indices % CHUNK, best.values
