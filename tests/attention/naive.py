"""Naive attention by the papers' formulas, one query at a time: the library's parts are read, nothing of it is called.

In float64 it says what is right; in a smaller type it is the plain implementation that others are measured against.
"""

from math import ceil, floor, log, pi, sqrt

import torch
from torch import Tensor

from regard.attention import position_variants as relative
from regard.attention import softmax_variants as variants
from regard.attention.batch_patterns import Documents, Edges, Padding
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
from regard.attention.position_variants import AxialRotary, NTKScaling, XPos, YarnScaling
from regard.attention.scaled_score import LogitScale, SoftCap
from regard.attention.score import Additive, Bilinear, Cosine, Dot, Feature, ScaledDot, Score
from regard.attention.sparse_patterns import Block, Global, PerHead, Prefix, Random, Strided
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
        rows, seen = [], []
        for h in range(heads):
            k = placed(schemes, case.k[b, h // (heads // groups)], k_index[b], of_keys=True)
            q = placed(schemes, case.q[b, h], q_index[b])
            seen.append([[sees(case.recipe.pattern, b, h, i, j) for j in k_index[b]] for i in q_index[b]])
            rows.append(
                [
                    row_of_scores(case.recipe.score, schemes, b, h, q[i], k, q_index[b][i], k_index[b], seen[h][i])
                    for i in range(n_q)
                ]
            )
        for h, weights in enumerate(weigh_heads(case.recipe.normaliser, rows, seen)):
            for i, row in enumerate(weights):
                total = row @ case.v[b, h // (heads // groups)]
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
    score: Score,
    schemes: tuple[Position, ...],
    b: int,
    h: int,
    q: Tensor,
    k: Tensor,
    i: int,
    k_index: list[int],
    seen: list[bool],
) -> Tensor:
    plain, query = compared(score, q, k, h), folded(score, q, h)
    s = plain
    for scheme in schemes:
        if isinstance(scheme, relative.CoPE):
            s = s + counted(scheme, query, plain, seen)
        else:
            s = s + torch.stack([added_score(scheme, query, b, h, i, j) for j in k_index]) if k_index else s
    return s


def counted(scheme: relative.CoPE, q: Tensor, s: Tensor, seen: list[bool]) -> Tensor:
    """q · e[p], p the sum of the gates from a key to the last, e between two whole positions a mixture."""
    added, p = [], s.new_zeros(())
    for j in reversed(range(len(s))):
        p = p + (1 / (1 + torch.exp(-s[j])) if seen[j] else 0.0)
        at = torch.minimum(p, s.new_tensor(float(scheme.max_position)))
        low = min(int(at), scheme.max_position - 1)
        vector = (1 - (at - low)) * scheme.vectors[low] + (at - low) * scheme.vectors[low + 1]
        added.append(q @ vector)
    return torch.stack(added[::-1]) if added else s


def compared(score: Score, q: Tensor, k: Tensor, h: int) -> Tensor:
    match score:
        case SoftCap():
            return score.cap * torch.tanh(compared(score.score, q, k, h) / score.cap)
        case LogitScale():
            return score.log_scale[h].exp() * compared(score.score, q, k, h)
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
    return k @ folded(score, q, h)


def folded(score: Score, q: Tensor, h: int) -> Tensor:
    """The left side of the inner product; the query itself where there is none."""
    match score:
        case LogitScale():
            return score.log_scale[h].exp() * folded(score.score, q, h)
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
    assert isinstance(score, Dot | Additive | Distance | LearnedDistance | HeldDistance | SoftCap)
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


def placed(schemes: tuple[Position, ...], x: Tensor, at: list[int], *, of_keys: bool = False) -> Tensor:
    """Tokens (t, d) at their positions."""
    for scheme in schemes:
        match scheme:
            case Rotary():
                n = int(x.shape[1] * scheme.fraction)
                x = torch.cat((rotated(scheme, x[:, :n], at), x[:, n:]), 1)
            case AxialRotary():
                cells, half = [max(0, i - scheme.first) for i in at], x.shape[1] // 2
                axis = Rotary(scheme.theta)
                down = rotated(axis, x[:, :half], [cell // scheme.width for cell in cells])
                x = torch.cat((down, rotated(axis, x[:, half:], [cell % scheme.width for cell in cells])), 1)
            case XPos():
                x = rotated(Rotary(scheme.theta, scheme.pairs), x, at)
                d = x.shape[1]
                pair = [c // 2 if scheme.pairs == "adjacent" else c % (d // 2) for c in range(d)]
                base = torch.tensor([(2 * p / d + 0.4) / 1.4 for p in pair], dtype=torch.float64)
                power = torch.tensor(at, dtype=torch.float64)[:, None] / scheme.scale
                x = x * (base ** (-power if of_keys else power)).to(x.dtype)
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
        frequency, size = scheme.theta ** (-2 * p / d), 1.0
        match scheme.scaling:
            case NTKScaling(factor):
                frequency = (scheme.theta * factor ** (d / (d - 2))) ** (-2 * p / d)
            case YarnScaling():
                frequency, size = yarn(scheme.scaling, scheme.theta, p, d)
        angle = torch.tensor(at, dtype=torch.float64) * frequency
        cos, sin = (size * angle.cos()).to(x.dtype), (size * angle.sin()).to(x.dtype)
        columns[one] = x[:, one] * cos - x[:, other] * sin
        columns[other] = x[:, one] * sin + x[:, other] * cos
    return torch.stack([columns[c] for c in range(d)], 1)


def yarn(scaling: YarnScaling, theta: float, p: int, d: int) -> tuple[float, float]:
    """Peng et al. 2023, appendix: a ramp over the pairs between those of `fast` and `slow` turns; and the magnitude."""
    first, last = (
        d * log(scaling.length / (turns * 2 * pi)) / (2 * log(theta)) for turns in (scaling.fast, scaling.slow)
    )
    if scaling.whole:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, d - 1)
    slowed = min(1.0, max(0.0, (p - first) / max(last - first, 0.001)))
    frequency = theta ** (-2 * p / d)
    return frequency * (1 - slowed) + frequency / scaling.factor * slowed, 0.1 * log(scaling.factor) + 1


def added_score(scheme: Position, q: Tensor, b: int, h: int, i: int, j: int) -> Tensor:
    match scheme:
        case relative.Alibi():
            return q.new_tensor(-slope(scheme.heads, h) * abs(i - j))
        case relative.RelativeBias():
            return scheme.weight[h, related(scheme.relation, b, i, j)]
        case relative.RelativeVectors():
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
            case relative.RelativeVectors():
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


def related(relation: relative.Relation, b: int, i: int, j: int) -> int:
    match relation:
        case relative.Clipped():
            return max(-relation.max_distance, min(relation.max_distance, j - i)) + relation.max_distance
        case relative.TreePath():
            assert relation.paths is not None
            path = int(relation.paths[b if len(relation.paths) > 1 else 0, i, j])
            return max(-relation.max_distance, min(relation.max_distance, path)) + relation.max_distance
        case relative.LogBuckets():
            return bucket(relation, j - i)
    raise AssertionError(relation)


def bucket(relation: relative.LogBuckets, ahead: int) -> int:
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
        case Global(int() as tokens):
            return min(i, j) < tokens
        case Global(tuple() as tokens):
            return i in tokens or j in tokens
        case PerHead():
            return sees(pattern.patterns[h % len(pattern.patterns)], b, h, i, j)
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


def weigh_heads(normaliser: Normaliser, rows: list[list[Tensor]], seen: list[list[list[bool]]]) -> list[list[Tensor]]:
    """The weights of all heads, of which some normalisers mix several."""
    match normaliser:
        case variants.TalkingHeads():
            shown = [
                [hide(row, visible) for row, visible in zip(*both, strict=True)]
                for both in zip(rows, seen, strict=True)
            ]
            weights = weigh_heads(normaliser.then, mixed(normaliser.before, shown), seen)
            weights = mixed(normaliser.after, weights)
            return [
                [hide(row, visible) for row, visible in zip(*both, strict=True)]
                for both in zip(weights, seen, strict=True)
            ]
        case variants.Differential():
            share = torch.exp(normaliser.a @ normaliser.b) - torch.exp(normaliser.c @ normaliser.d) + normaliser.initial
            plain, found = weigh_heads(Softmax(), rows, seen), []
            for h in range(len(rows)):
                pair = zip(plain[h - h % 2], plain[h - h % 2 + 1], seen[h], strict=True)
                found.append([hide(one - share * other, visible) for one, other, visible in pair])
            return found
        case variants.MultiToken():
            return [
                weigh_all(normaliser.then, convolved(normaliser.weight[h], rows[h], seen[h]), seen[h], h)
                for h in range(len(rows))
            ]
    return [weigh_all(normaliser, rows[h], seen[h], h) for h in range(len(rows))]


def hide(row: Tensor, visible: list[bool]) -> Tensor:
    return torch.where(torch.tensor(visible, dtype=torch.bool), row, 0.0)


def mixed(weight: Tensor, rows: list[list[Tensor]]) -> list[list[Tensor]]:
    """Row i of head n is Σ_h weight_hn row i of head h."""
    heads = range(len(rows))
    return [
        [sum((weight[h, n] * rows[h][i] for h in heads), rows[0][i] * 0) for i in range(len(rows[0]))] for n in heads
    ]


def convolved(weight: Tensor, rows: list[Tensor], seen: list[list[bool]]) -> list[Tensor]:
    """Σ_ab θ_ab s_(i-a)(j-b), a score being 0 where the key is missing or hidden from either query."""
    shown = [hide(row, visible) for row, visible in zip(rows, seen, strict=True)]
    back, around = weight.shape
    found = []
    for i, row in enumerate(shown):
        total = torch.zeros_like(row)
        for a in range(min(back, i + 1)):
            for b in range(around):
                shift = b - around // 2
                keys, other = [j - shift for j in range(len(row))], hide(shown[i - a], seen[i])
                near = [other[j] if 0 <= j < len(row) else row.new_zeros(()) for j in keys]
                total = total + weight[a, b] * torch.stack(near) if near else total
        found.append(total)
    return found


def weigh_all(normaliser: Normaliser, rows: list[Tensor], seen: list[list[bool]], h: int) -> list[Tensor]:
    if isinstance(normaliser, AcrossQueries) and rows:
        columns = torch.stack(rows).unbind(1)
        weights = [weigh(Softmax(), column, [row[j] for row in seen], h) for j, column in enumerate(columns)]
        return list(torch.stack(weights, 1)) if weights else rows
    return [weigh(normaliser, row, visible, h) for row, visible in zip(rows, seen, strict=True)]


def weigh(normaliser: Normaliser, scores: Tensor, seen: list[bool], h: int) -> Tensor:
    """The weights of one row: those of the keys that are seen, and 0 for the others."""
    at = torch.tensor([j for j, visible in enumerate(seen) if visible], dtype=torch.long)
    weights = torch.zeros_like(scores)
    return weights.index_put((at,), of_visible(normaliser, scores[at], h)) if len(at) else weights


def of_visible(normaliser: Normaliser, s: Tensor, h: int) -> Tensor:
    match normaliser:
        case variants.SoftmaxPlusOne() | variants.SinkSoftmax():
            sink = s.new_zeros(1) if isinstance(normaliser, variants.SoftmaxPlusOne) else normaliser.sinks[h : h + 1]
            return of_visible(Softmax(), torch.cat((s, sink)), h)[:-1]
        case variants.Entmax():
            return entmax(s, normaliser.alpha)
        case variants.StickBreaking():
            share, left = of_visible(Sigmoid(), s, h), s.new_ones(())
            taken = []
            for part in share.flip(0):
                taken.append(left * part)
                left = left * (1 - part)
            return torch.stack(taken[::-1])
        case Softmax():
            e = torch.exp(s - s.max().detach())
            return e / e.sum()
        case LearnedTemperature() | HeldTemperature():
            return of_visible(Softmax(), s * normaliser.weight, h)
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
        case variants.Hard():
            best = s.tolist().index(max(s.tolist()))
            return torch.zeros_like(s).index_fill(0, torch.tensor([best]), 1.0)
        case variants.Sparsemax():
            return sparsemax(s)
        case variants.TopK():
            least = sorted(s.tolist(), reverse=True)[: normaliser.k][-1]
            return weigh(normaliser.then, s, (s >= least).tolist(), h)
        case AttentionDropout():
            assert normaliser.rate == 0  # or there is no one answer
            return of_visible(normaliser.then, s, h)
    raise AssertionError(normaliser)


def entmax(s: Tensor, alpha: float) -> Tensor:
    """Peters et al. 2019, eq. 10: [(α - 1) s - τ]₊^(1 / (α - 1)); the keys that weigh anything are known from τ, found
    by bisection, and among them τ follows from the implicit function theorem."""
    z = (alpha - 1) * (s - s.max().detach()).double()
    low, high = -1.0, 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if sum(max(x - middle, 0.0) ** (1 / (alpha - 1)) for x in z.tolist()) >= 1 else (low, middle)
        )
    support = z.detach() > low
    slope = torch.where(support, (z.detach() - low).clamp(min=1e-300) ** (1 / (alpha - 1) - 1), 0.0) / (alpha - 1)
    threshold = low + ((slope * z).sum() - (slope * z).sum().detach()) / slope.sum()
    return torch.where(support, (torch.where(support, z - threshold, 1.0)) ** (1 / (alpha - 1)), 0.0).to(s.dtype)


def sparsemax(s: Tensor) -> Tensor:
    """Martins & Astudillo 2016, algorithm 1: k(z) is the largest k with 1 + k z_(k) > Σ_{j≤k} z_(j)."""
    s, k = s - s.max().detach(), 0  # or the sums of large scores would round the 1 away
    z = s.sort(descending=True).values
    for n in range(1, len(z) + 1):
        if 1 + n * z[n - 1].item() > sum(z[:n].tolist()):
            k = n
    threshold = (z[:k].sum() - 1) / k
    return torch.where(s > threshold, s - threshold, 0.0)
