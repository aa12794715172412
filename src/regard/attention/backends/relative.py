"""Relative-position attention: softmax with a learned bias or learned vectors per distance, tile by tile.

For T5's buckets, Shaw's keys and values and paths through a tree. Nothing of the size queries × keys waits for the
backward pass, and no single numbers are added to an index. Here in plain torch, queries in bands whose scores fit a
fixed space; `kernels/relative.py` has the Triton kernels. A pair (i, j) of relation r has

    S_ij = q_i·k_j + B_ir       O_i = Σ_j P_ij v_j,   M_ir = Σ of P_ij over the pairs of relation r
    G_ij = P_ij (ō_i·v_j + M̄_ir − Δ_i),   Δ_i = Σ_j P_ij (ō_i·v_j + M̄_ir),   B̄_ir = Σ of G_ij over the same pairs.

B is T5's number or Shaw's q·a^K, and Shaw's values add Σ_r M_ir a^V_r: products of small matrices, left to torch. A sum
over the pairs of one relation is a product with the relation's indicator, in a fixed order, so the same every time.
"""

from functools import cache

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import one_hot

from regard.attention.backends.additive import QueryVisibility, hide_scores
from regard.attention.batch_patterns import Padding
from regard.attention.block_map import planning_objections
from regard.attention.gate import state_objections
from regard.attention.normaliser import Softmax
from regard.attention.pattern import And, Causal, Full, Pattern, Positions
from regard.attention.position_variants import Clipped, LogBuckets, Relation, RelativeBias, RelativeVectors
from regard.attention.recipe import Recipe
from regard.attention.score import InnerProduct, ScaledDot
from regard.ops.dispatch import accumulation_dtype

CELLS_AT_ONCE = 2**20  # scores of a band, or indicators of its relations
FEWEST = 16  # queries, on a GPU: below this torch's own kernels waste less
WIDTHS = (16, 32, 64, 128)  # of heads, in the kernels


def objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    learned = [x for x in recipe.score_positions if type(x) in (RelativeBias, RelativeVectors)]
    return [
        *([] if q.is_cuda else planning_objections()),  # plain torch reads the block map
        *([] if isinstance(recipe.score, InnerProduct) else [f"{recipe.score} is not an inner product"]),
        *([] if learned else ["nothing is learned about pairs of positions"]),
        *(f"{scheme} is added besides" for scheme in learned[1:]),
        *(f"{scheme} is not learned by relations" for scheme in recipe.score_positions if scheme not in learned),
        *([] if recipe.normaliser == Softmax() else [f"{recipe.normaliser} is not softmax"]),
        *state_objections(recipe.gate),
    ]


def discouraged(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    fused, cells = (
        not triton_relative_objections(recipe, q, k, positions),
        q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2],
    )
    return [
        *([f"{cells:,} scores fit into one band"] if not fused and cells <= CELLS_AT_ONCE else []),
        *([f"{q.shape[2]} queries leave a kernel's tile empty"] if fused and q.shape[2] < FEWEST else []),
    ]


def attend(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    scheme = scheme_of(recipe)
    if isinstance(scheme, RelativeVectors) and scheme.head != v.shape[-1]:
        raise ValueError(f"{scheme} adds to values of width {scheme.head}, not {v.shape[-1]}")
    if not triton_relative_objections(recipe, q, k, positions) and v.shape[-1] in WIDTHS:
        return attend_by_kernels(recipe, q, k, v, positions)
    q, k = recipe.score.fold_q(q), recipe.score.fold_k(k)
    return attend_tiled(scheme, q, k, v, QueryVisibility(recipe.pattern, positions.grid(*q.shape[:2])))


def scheme_of(recipe: Recipe) -> RelativeBias | RelativeVectors:
    [scheme] = recipe.score_positions
    assert isinstance(scheme, RelativeBias | RelativeVectors)  # or it objected
    return scheme


# --- in plain torch ---


def attend_tiled(
    scheme: RelativeBias | RelativeVectors,
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b g j d"],
    v: Float[Tensor, "b g j e"],
    visibility: QueryVisibility,
) -> Float[Tensor, "b h i e"]:
    """softmax(q·k + what the scheme adds) (v + what the scheme adds), every pattern, any device."""
    k, v = (repeat(x, "b g j d -> b (g r) j d", r=q.shape[1] // x.shape[1]) for x in (k, v))
    with torch.autocast(q.device.type, enabled=False):
        if isinstance(scheme, RelativeBias):
            bias = rearrange(scheme.weight, "h r -> 1 h 1 r")
            return RelativeFunction.apply(scheme.relation, visibility, q, k, v, bias)[0]  # type: ignore[index]
        bias = einsum(q, scheme.keys.to(q.dtype), "b h i d, r d -> b h i r")
        out, mass = RelativeFunction.apply(scheme.relation, visibility, q, k, v, bias)  # type: ignore[misc]
        return out + einsum(mass, scheme.values.to(mass.dtype), "b h i r, r e -> b h i e").to(out.dtype)


class RelativeFunction(torch.autograd.Function):
    """The output and, where rows of the bias belong to queries (Shaw), each row's mass by relation."""

    @staticmethod
    def forward(ctx, relation, visibility, q, k, v, bias):
        out, total = (
            v.new_zeros(*q.shape[:3], v.shape[3]),
            torch.zeros(q.shape[:3], dtype=accumulation_dtype(q), device=q.device),
        )
        by_query = bias.shape[2] == q.shape[2] and bias.shape[0] == q.shape[0]
        mass = total.new_zeros(*q.shape[:3], relation.num_buckets if by_query else 0)
        for rows in bands(relation, visibility, q, k):
            related = bucket_ids(relation, visibility, rows)
            s = scores(q, k, bias, visibility, rows, related)
            top = s.amax(-1, keepdim=True)
            top.masked_fill_(top == -torch.inf, 0.0)  # of a row that sees nothing: all its weights become 0
            p = s.sub_(top).exp_()
            sums = p.sum(-1, keepdim=True)
            sums.masked_fill_(sums == 0, 1.0)
            out[:, :, rows] = p.div_(sums).to(v.dtype) @ v
            total[:, :, rows] = (top + sums.log()).squeeze(-1)
            if by_query:
                mass[:, :, rows] = sum_by_bucket(p, related, relation.num_buckets)
        ctx.save_for_backward(q, k, v, bias, total)
        ctx.call = relation, visibility, by_query
        return out, mass

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, of_mass):  # type: ignore[override]
        (q, k, v, bias, total), (relation, visibility, by_query) = ctx.saved_tensors, ctx.call
        of_q, of_k, of_v, of_bias = (torch.zeros_like(x, dtype=accumulation_dtype(q)) for x in (q, k, v, bias))
        for rows in bands(relation, visibility, q, k):
            related, upstream = bucket_ids(relation, visibility, rows), grad[:, :, rows]
            p = scores(q, k, bias, visibility, rows, related).sub_(total[:, :, rows, None]).exp_()
            of_v += p.to(v.dtype).mT @ upstream
            g = (upstream @ v.mT).to(p.dtype)
            if by_query:
                g += gather_buckets(of_mass[:, :, rows], related, g)
            # not ō·O, which is the same sum but for the rounding of O: in half precision that is all there is left
            # where one key has all the weight
            g = g.mul_(p)
            g.addcmul_(p, g.sum(-1, keepdim=True), value=-1)
            of_q[:, :, rows] = g.to(k.dtype) @ k
            of_k += g.to(q.dtype).mT @ q[:, :, rows]
            if by_query:
                of_bias[:, :, rows] = sum_by_bucket(g, related, relation.num_buckets)
            else:
                of_bias += rearrange(sum_by_bucket_total(g, related, relation.num_buckets), "h r -> 1 h 1 r")
        return None, None, of_q.to(q.dtype), of_k.to(k.dtype), of_v.to(v.dtype), of_bias.to(bias.dtype)


def bands(relation: Relation, visibility: QueryVisibility, q: Tensor, k: Tensor) -> list[slice]:
    """Queries whose scores fit; none if there is no key to see."""
    (b, h, i, _), j = q.shape, k.shape[2]
    if not b * h * i * j:
        return []
    batch = bucket_ids(relation, visibility, slice(0, 1)).shape[0]
    size = max(1, CELLS_AT_ONCE // (j * max(b * h, batch * relation.num_buckets)))
    return [slice(first, min(first + size, i)) for first in range(0, i, size)]


def bucket_ids(relation: Relation, visibility: QueryVisibility, rows: slice) -> Int[Tensor, "#b 1 r j"]:
    return relation.bucket(visibility.cells.b, visibility.cells.i[:, :, rows], visibility.cells.j)


def scores(
    q: Tensor, k: Tensor, bias: Tensor, visibility: QueryVisibility, rows: slice, related: Tensor
) -> Float[Tensor, "b h r j"]:
    s = (q[:, :, rows] @ k.mT).to(accumulation_dtype(q))
    bias = bias if bias.shape[2] == 1 else bias[:, :, rows]
    return hide_scores(s.add_(gather_buckets(bias, related, s)), visibility.band(rows))


def gather_buckets(table: Float[Tensor, "#b h #r kinds"], related: Int[Tensor, "#b 1 r j"], like: Tensor) -> Tensor:
    """What each pair finds in its row of the table under its relation."""
    rows = table.to(like.dtype).expand(*like.shape[:3], -1)
    return rows.gather(-1, related.expand_as(like))


def sum_by_bucket(x: Float[Tensor, "b h r j"], related: Int[Tensor, "#b 1 r j"], kinds: int) -> Tensor:
    """The sum of each row over the pairs of each relation."""
    of = indicator(related, kinds, x.dtype)
    if len(of) == 1:
        return einsum(x, of[0], "b h r j, r j kind -> b h r kind")
    return einsum(x, of, "b h r j, b r j kind -> b h r kind")


def sum_by_bucket_total(x: Float[Tensor, "b h r j"], related: Int[Tensor, "#b 1 r j"], kinds: int) -> Tensor:
    """The same, summed over rows and batch elements as well: one product of matrices."""
    x = x if len(related) > 1 else x.sum(0, keepdim=True)
    return rearrange(x, "b h r j -> h (b r j)") @ rearrange(
        indicator(related, kinds, x.dtype), "b r j kind -> (b r j) kind"
    )


def indicator(related: Int[Tensor, "b 1 r j"], kinds: int, dtype: torch.dtype) -> Float[Tensor, "b r j kinds"]:
    return (related[:, 0, :, :, None] == torch.arange(kinds, device=related.device)).to(dtype)


# --- by the kernels ---


def triton_relative_objections(recipe: Recipe, q: Tensor, k: Tensor, positions: Positions) -> list[str]:
    """Why the Triton kernels cannot run; empty if they can."""
    if q.device.type != "cuda":
        return ["its kernels need a CUDA device"]
    try:
        import triton  # noqa: F401
    except ImportError:
        return ["its kernels need Triton, which is not installed: pip install triton"]
    relation = scheme_of(recipe).relation
    return [
        *(["its kernels count in float32, which is too coarse for float64"] * (q.dtype == torch.float64)),
        *([f"{relation} is not a distance that ends"] * (constant_from(relation) is None)),
        *([f"{recipe.pattern} is not made of Full, Causal and Padding"] * (causal_and_lengths(recipe.pattern) is None)),
        *(["the positions are not consecutive, or passed as a tensor"] * (positions.start is None)),
        *([f"heads of width {q.shape[-1]} are not of {WIDTHS}"] * (q.shape[-1] not in WIDTHS)),
        *(["there is nothing to see"] * (not q.numel() or not k.numel())),
    ]


def attend_by_kernels(recipe: Recipe, q: Tensor, k: Tensor, v: Tensor, positions: Positions) -> Tensor:
    from regard.attention.kernels.relative import (  # only here is Triton needed
        RelativeBiasFunction,
        RelativePlan,
        RelativeTileShapes,
        RelativeVectorsFunction,
    )

    scheme, seen = scheme_of(recipe), causal_and_lengths(recipe.pattern)
    reach, start = constant_from(scheme.relation), positions.start
    assert isinstance(recipe.score, InnerProduct)  # or it objected
    assert seen is not None  # or there was a reason not to, as below
    assert reach is not None
    assert start is not None
    scale = 1.0
    if recipe.score == ScaledDot():
        scale = q.shape[-1] ** -0.5  # within the kernel, so that nothing is rounded and no pass is made
    else:
        q, k = recipe.score.fold_q(q), recipe.score.fold_k(k)
    causal, lengths = seen
    shortest = None if not lengths else torch.stack(torch.broadcast_tensors(*lengths)).amin(0).to(q.device, torch.int32)
    shortest = None if shortest is None else shortest.expand(len(q)).contiguous()
    plan = RelativePlan(
        start, causal, shortest, scale, reach, RelativeTileShapes.of(q, vectors=isinstance(scheme, RelativeVectors))
    )
    with torch.autocast(q.device.type, enabled=False):
        if isinstance(scheme, RelativeBias):
            table = scheme.weight.float() @ bucket_indicator(scheme.relation, reach, q.device).mT
            return RelativeBiasFunction.apply(plan, q, k, v, table)  # type: ignore[return-value]
        keys, values = (by_distance(scheme.relation, reach, x) for x in (scheme.keys, scheme.values))
        return RelativeVectorsFunction.apply(plan, q, k, v, keys, values)  # type: ignore[return-value]


def causal_and_lengths(pattern: Pattern) -> tuple[bool, list[Tensor]] | None:
    """Is it causal, and which lengths cut the keys off? None if there is more to it."""
    match pattern:
        case Full():
            return False, []
        case Causal():
            return True, []
        case Padding():
            return False, [pattern.lengths]
        case And():
            one, other = causal_and_lengths(pattern.left), causal_and_lengths(pattern.right)
            return None if one is None or other is None else (one[0] or other[0], one[1] + other[1])
    return None


def constant_from(relation: Relation) -> int | None:
    """The distance from which on, to either side, nothing changes any more. None if the relation is no distance."""
    match relation:
        case Clipped():
            return max(1, relation.max_distance)
        case LogBuckets() if relation.max_distance > relation.buckets // (4 if relation.bidirectional else 2):
            return last_border(relation)
    return None


@cache
def last_border(buckets: LogBuckets) -> int:
    """Where the last bucket begins; one more, since another device may round that border otherwise."""
    zero, most = torch.zeros((), dtype=torch.long), buckets.max_distance
    name = buckets.bucket(zero, zero, torch.arange(-most, most + 1)).tolist()
    changing = (i for i in range(most, 0, -1) if name[most - i] != name[0] or name[most + i] != name[-1])
    return min(most, next(changing, 0) + 2)


def by_distance(relation: Relation, reach: int, learned: Float[Tensor, "kinds d"]) -> Float[Tensor, "distances d"]:
    """What is learned of the relation that each distance from -reach to reach has."""
    learned = learned.float().contiguous()
    return learned if is_identity(relation, reach) else bucket_indicator(relation, reach, learned.device) @ learned


@cache
def is_identity(relation: Relation, reach: int) -> bool:
    """Is every distance a relation of its own, in this order?"""
    return torch.equal(bucket_indicator(relation, reach, torch.device("cpu")), torch.eye(2 * reach + 1))


@cache
def bucket_indicator(relation: Relation, reach: int, device: torch.device) -> Float[Tensor, "distances kinds"]:
    """The indicator of the relation that each distance has."""
    zero = torch.zeros((), dtype=torch.long, device=device)
    named = relation.bucket(zero, zero, torch.arange(-reach, reach + 1, device=device))
    return one_hot(named, relation.num_buckets).float()
