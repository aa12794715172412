"""Naive attention by the papers' formulas, one query at a time: the library's parts are read, nothing of it is called.

In float64 it says what is right; in a smaller type it is the plain implementation that others are measured against.
"""

from math import log, sqrt

import torch
from torch import Tensor

from regard.attention.batch_patterns import Documents, Edges, Padding
from regard.attention.hard_normaliser import Hard
from regard.attention.normaliser import (
    AttentionDropout,
    Normaliser,
    Proportional,
    ReLU,
    Sigmoid,
    Softmax,
)
from regard.attention.pattern import And, Causal, Full, Not, Or, Pattern, StrictCausal, Window
from regard.attention.position import Position, Rotary
from regard.attention.relative_position import (
    Alibi,
    Clipped,
    LogBuckets,
    Relation,
    RelativeBias,
    RelativeVectors,
    TreePath,
)
from regard.attention.score import Additive, Bilinear, Cosine, Dot, Feature, ScaledDot, Score
from regard.attention.softmax_variants import Sparsemax, TopK
from regard.attention.sparse_patterns import Block, Global, Prefix, Random, Strided
from tests.attention.random_recipes import (
    AcrossQueries,
    Case,
    Coprime,
    Distance,
    Growing,
    HeldBias,
    HeldDistance,
    HeldGrowing,
    HeldMask,
    HeldNearness,
    HeldProduct,
    HeldTemperature,
    LearnedBias,
    LearnedDistance,
    LearnedGate,
    LearnedGrowing,
    LearnedNearness,
    LearnedTemperature,
    Nearness,
    OddHeads,
    RootBias,
    Softplus,
)


def attention(case: Case) -> Tensor:
    """out[b, h, i] = Σ_j w_ij (v_j + a_ij)"""
    (batch, heads, n_q, _), (groups, n_k) = case.q.shape, case.k.shape[1:3]
    q_index, k_index = standing(case.q_index, batch, n_q), standing(case.k_index, batch, n_k)
    schemes, out = case.recipe.position.parts(), case.v.new_zeros(batch, heads, n_q, case.v.shape[3])
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // groups)
            k = placed(schemes, case.k[b, g], k_index[b])
            q = placed(schemes, case.q[b, h], q_index[b])
            rows = [
                row_of_scores(case.recipe.score, schemes, b, h, q[i], k, q_index[b][i], k_index[b]) for i in range(n_q)
            ]
            seen = [[sees(case.recipe.pattern, b, h, i, j) for j in k_index[b]] for i in q_index[b]]
            weights = weigh_all(case.recipe.normaliser, rows, seen)
            for i, row in enumerate(weights):
                total = row @ case.v[b, g]
                for scheme in schemes:
                    total = total + added_value(scheme, row, b, q_index[b][i], k_index[b])
                out[b, h, i] = total
    return out


def standing(at: int | Tensor | None, batch: int, tokens: int) -> list[list[int]]:
    if isinstance(at, Tensor):
        return at.expand(batch, -1).tolist()
    return [list(range(at or 0, (at or 0) + tokens))] * batch


# --- scores ---


def row_of_scores(
    score: Score, schemes: tuple[Position, ...], b: int, h: int, q: Tensor, k: Tensor, i: int, k_index: list[int]
) -> Tensor:
    s, query = compared(score, q, k), folded(score, q)
    for scheme in schemes:
        s = s + torch.stack([added_score(scheme, query, b, h, i, j) for j in k_index]) if k_index else s
    return s


def compared(score: Score, q: Tensor, k: Tensor) -> Tensor:
    match score:
        case Additive():
            return torch.tanh(score.W.weight @ q + k @ score.U.weight.T) @ score.v
        case Distance():
            return -((q - k) ** 2).sum(-1)
        case LearnedDistance() | HeldDistance():
            return -(score.weight * (q - k) ** 2).sum(-1)
        case Cosine():
            return score.temperature * (unit(k) @ unit(q))
        case Feature():
            return feature(score.map, k) @ feature(score.map, q)
        case HeldProduct():
            return (k @ score.weight) @ (q @ score.weight)
    return k @ folded(score, q)


def folded(score: Score, q: Tensor) -> Tensor:
    """The left side of the inner product; the query itself where there is none."""
    match score:
        case ScaledDot():
            return q / sqrt(len(q))
        case Cosine():
            return score.temperature * unit(q)
        case Feature():
            return feature(score.map, q)
        case Bilinear():
            return score.weight.T @ q
        case HeldProduct():
            return q @ score.weight
    assert isinstance(score, Dot | Additive | Distance | LearnedDistance | HeldDistance)
    return q


def unit(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


def feature(name: str, x: Tensor) -> Tensor:
    return {
        "relu": torch.where(x > 0, x, 0.0),
        "exp": torch.exp(x),
        "elu+1": torch.where(x > 0, x + 1, torch.exp(x)),
    }[name]


# --- positions ---


def placed(schemes: tuple[Position, ...], x: Tensor, at: list[int]) -> Tensor:
    """Tokens (t, d) at their positions."""
    for scheme in schemes:
        match scheme:
            case Rotary():
                x = rotated(scheme, x, at)
            case Growing():
                x = x * (1 + 0.05 * x.new_tensor(at))[:, None]
            case LearnedGrowing() | HeldGrowing():
                x = x * (1 + 0.05 * scheme.rate * x.new_tensor(at))[:, None]
    return x


def rotated(scheme: Rotary, x: Tensor, at: list[int]) -> Tensor:
    """Each pair of features is a complex number, multiplied by e^(i·position·θ^(-2p/d))."""
    d, columns = x.shape[1], {}
    for p in range(d // 2):
        one, other = (2 * p, 2 * p + 1) if scheme.pairs == "adjacent" else (p, p + d // 2)
        angle = torch.tensor(at, dtype=torch.float64) * scheme.theta ** (-2 * p / d)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        columns[one] = x[:, one] * cos - x[:, other] * sin
        columns[other] = x[:, one] * sin + x[:, other] * cos
    return torch.stack([columns[c] for c in range(d)], 1)


def added_score(scheme: Position, q: Tensor, b: int, h: int, i: int, j: int) -> Tensor:
    match scheme:
        case Alibi():
            return q.new_tensor(-slope(scheme.heads, h) * abs(i - j))
        case RelativeBias():
            return scheme.weight[h, related(scheme.relation, b, i, j)]
        case RelativeVectors():
            return q @ scheme.keys[related(scheme.relation, b, i, j)]
        case RootBias():
            return q.new_tensor(-sqrt(abs(i - j)) / (2 if h % 2 else 1))
        case LearnedBias() | HeldBias():
            return scheme.weight[h, (i - j) % 5] * (-1 if b % 2 else 1)
        case Nearness() if i == j:
            return q.sum()
        case LearnedNearness() | HeldNearness() if i == j:
            return q @ scheme.a
    return q.new_zeros(())


def added_value(scheme: Position, weights: Tensor, b: int, i: int, k_index: list[int]) -> Tensor:
    """Σ_j w_ij a_ij"""
    total = weights.new_zeros(())
    for weight, j in zip(weights, k_index, strict=True):
        match scheme:
            case RelativeVectors():
                total = total + weight * scheme.values[related(scheme.relation, b, i, j)]
            case Nearness() if i == j:
                total = total + weight
            case LearnedNearness() | HeldNearness() if i == j:
                total = total + weight * scheme.c
    return total


def slope(heads: int, h: int) -> float:
    """Press et al. 2022: 2^(-8/n), 2^(-16/n), ...; past a power of two, every other term of the next series."""
    power = 1
    while power * 2 <= heads:
        power *= 2
    return 2 ** (-8 * (h + 1) / power) if h < power else 2 ** (-8 * (2 * (h - power) + 1) / (2 * power))


def related(relation: Relation, b: int, i: int, j: int) -> int:
    match relation:
        case Clipped():
            return max(-relation.max_distance, min(relation.max_distance, j - i)) + relation.max_distance
        case TreePath():
            assert relation.paths is not None
            path = int(relation.paths[b if len(relation.paths) > 1 else 0, i, j])
            return max(-relation.max_distance, min(relation.max_distance, path)) + relation.max_distance
        case LogBuckets():
            return bucket(relation, j - i)
    raise AssertionError(relation)


def bucket(relation: LogBuckets, ahead: int) -> int:
    """T5: half of the buckets for keys ahead; half of those exact, the rest logarithmic up to `furthest`."""
    buckets, first, distance = relation.buckets, 0, max(0, -ahead)
    if relation.bidirectional:
        buckets //= 2
        first, distance = (buckets if ahead > 0 else 0), abs(ahead)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    far = log(distance / exact) / log(relation.max_distance / exact) * (buckets - exact)
    return first + min(buckets - 1, exact + int(far))


# --- patterns ---


def sees(pattern: Pattern, b: int, h: int, i: int, j: int) -> bool:
    match pattern:
        case And():
            return sees(pattern.left, b, h, i, j) and sees(pattern.right, b, h, i, j)
        case Or():
            return sees(pattern.left, b, h, i, j) or sees(pattern.right, b, h, i, j)
        case Not():
            return not sees(pattern.inner, b, h, i, j)
        case Block():
            return sees(pattern.pattern, b, h, i // pattern.size, j // pattern.size)
        case Full():
            return True
        case Causal():
            return j <= i
        case StrictCausal():
            return j < i
        case Window():
            return abs(i - j) < pattern.size
        case Strided():
            return (i - j) % pattern.stride == 0
        case Prefix():
            return j < pattern.length
        case Global():
            return min(i, j) < pattern.tokens
        case Random():
            return min(i, j) in picks(pattern, max(i, j))
        case Padding():
            return j < int(own(pattern.lengths, b))
        case Documents():
            keys = pattern.segment_ids if pattern.key_segment_ids is None else pattern.key_segment_ids
            return bool(own(pattern.segment_ids, b)[i] == own(keys, b)[j])
        case Edges():
            return [i, j] in pattern.edge_index.T.tolist()
        case Coprime():
            return (i + 2 * j) % 3 != 0
        case OddHeads():
            return h % 2 == 0 or j <= i
        case LearnedGate():
            return bool(pattern.weight[(i - j) % 7] > 0)
        case HeldMask():
            return bool(pattern.mask[i, j])
    raise AssertionError(pattern)


def own(data: Tensor, b: int) -> Tensor:
    return data[b if len(data) > 1 else 0]


def picks(pattern: Random, token: int) -> set[int]:
    """One earlier token from each stratum of the past, by the noise that the pattern is defined by."""
    found = set()
    for stratum in range(pattern.picks):
        start, stop = token * stratum // pattern.picks, token * (stratum + 1) // pattern.picks
        noise = token * 0x9E3779B + stratum * 0x85EBCA7 + pattern.seed * 0xC2B2AE3
        for _ in range(3):
            noise = ((noise % 2**31) ^ ((noise % 2**31) >> 15)) * 0x45D9F3B
        if stop > start:
            found.add(start + (noise % 2**31) * (stop - start) // 2**31)
    return found


# --- normalisers ---


def weigh_all(normaliser: Normaliser, rows: list[Tensor], seen: list[list[bool]]) -> list[Tensor]:
    if isinstance(normaliser, AcrossQueries) and rows:
        columns = torch.stack(rows).unbind(1)
        weights = [weigh(Softmax(), column, [row[j] for row in seen]) for j, column in enumerate(columns)]
        return list(torch.stack(weights, 1)) if weights else rows
    return [weigh(normaliser, row, visible) for row, visible in zip(rows, seen, strict=True)]


def weigh(normaliser: Normaliser, scores: Tensor, seen: list[bool]) -> Tensor:
    """The weights of one row: those of the keys that are seen, and 0 for the others."""
    at = torch.tensor([j for j, visible in enumerate(seen) if visible], dtype=torch.long)
    weights = torch.zeros_like(scores)
    return weights.index_put((at,), of_visible(normaliser, scores[at])) if len(at) else weights


def of_visible(normaliser: Normaliser, s: Tensor) -> Tensor:
    match normaliser:
        case Softmax():
            e = torch.exp(s - s.max().detach())
            return e / e.sum()
        case LearnedTemperature() | HeldTemperature():
            return of_visible(Softmax(), s * normaliser.weight)
        case ReLU():
            return torch.where(s > 0, s, 0.0)
        case Sigmoid():
            e = torch.exp(s.clamp(max=0))  # one form for each sign, or float16 overflows
            return torch.where(s > 0, 1 / (1 + torch.exp(-s.clamp(min=0))), e / (1 + e))
        case Softplus():
            low = torch.log(1 + torch.exp(s.clamp(max=0)))
            return torch.where(s > 0, s + torch.log(1 + torch.exp(-s.clamp(min=0))), low)
        case Proportional():
            return s / s.sum() if s.sum() != 0 else torch.zeros_like(s)
        case Hard():
            best = s.tolist().index(max(s.tolist()))
            return torch.zeros_like(s).index_fill(0, torch.tensor([best]), 1.0)
        case Sparsemax():
            return sparsemax(s)
        case TopK():
            least = sorted(s.tolist(), reverse=True)[: normaliser.k][-1]
            return weigh(normaliser.then, s, (s >= least).tolist())
        case AttentionDropout():
            assert normaliser.rate == 0  # or there is no one answer
            return of_visible(normaliser.then, s)
    raise AssertionError(normaliser)


def sparsemax(s: Tensor) -> Tensor:
    """Martins & Astudillo 2016, algorithm 1: k(z) is the largest k with 1 + k z_(k) > Σ_{j≤k} z_(j)."""
    s, k = s - s.max().detach(), 0  # or the sums of large scores would round the 1 away
    z = s.sort(descending=True).values
    for n in range(1, len(z) + 1):
        if 1 + n * z[n - 1].item() > sum(z[:n].tolist()):
            k = n
    threshold = (z[:k].sum() - 1) / k
    return torch.where(s > threshold, s - threshold, 0.0)
