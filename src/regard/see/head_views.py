"""The stages of one head (products, scores, adjusted, masked, weights) and one query-key pair.

The stages are named as in Python (`Head.products`, `.scores`, `.adjusted`, `.visible`, `.weights`); masked is the input
of the normaliser: adjusted, divided by the temperature, and -∞ where masked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from regard.attention.normaliser import Softmax
from regard.attention.position import QueryKeyPosition
from regard.attention.scaled_score import GivenScale, SoftCap, is_scaled_product
from regard.attention.score import Additive, Bilinear, Cosine, Dot, InnerProduct, ScaledDot, Score
from regard.decode.alignment import aer, argmax_links
from regard.models.rnn_seq2seq import PrecomputedAdditive
from regard.see.edits import refuse_index
from regard.see.plots.recipe_views import one_line_repr
from regard.see.sites import AttentionSite
from regard.see.trace import Trace

STAGES = ("products", "scores", "adjusted", "visible", "masked", "weights")
CHUNK_CELLS = 2**22  # cells computed together


def parse_stage(name: str) -> str:
    if name not in STAGES:
        raise ValueError(f"there is no stage {name!r:.40}; there are {', '.join(STAGES)}")
    return name


@torch.no_grad()
def stage_rows(site: AttentionSite, head: int, stage: str, queries: range) -> NDArray[np.float32]:
    """The rows of these queries, all keys."""
    parts = [part for _, part in stage_row_chunks(site, head, stage, queries)]
    return np.concatenate(parts) if parts else np.zeros((0, site.shape[1]), np.float32)


def stage_row_chunks(
    site: AttentionSite, head: int, stage: str, queries: range
) -> Iterator[tuple[range, NDArray[np.float32]]]:
    """The same in chunks of queries."""
    size = max(1, CHUNK_CELLS // max(1, site.shape[1]))
    for start in range(queries.start, queries.stop, size):
        some = range(start, min(start + size, queries.stop))
        yield some, compute_stage(site, head, stage, some).cpu().numpy()


@torch.no_grad()
def compute_stage(site: AttentionSite, head: int, stage: str, queries: range) -> Tensor:
    if stage == "visible":
        return visible_after_edits(site, head, queries, site.visible(head, queries)).float()
    if stage == "products" and is_scaled_product(site.recipe.score):
        q, k, _ = (x[0, 0].float() for x in site.head_qkv(head))
        return einsum(q[queries.start : queries.stop], k, "i d, j d -> i j")
    found = site.steps(head, queries, slice(0, 1), torch.float32)
    if stage == "weights":
        return found.weights[0, 0]
    if stage in ("products", "scores"):
        return found.scores[0, 0]
    if stage == "adjusted":
        return found.adjusted[0, 0]
    logits = found.adjusted[0, 0] / site.edits.temperature
    return logits.masked_fill(~visible_after_edits(site, head, queries, found.visible[0, 0]), -torch.inf)


def visible_after_edits(site: AttentionSite, head: int, queries: Sequence[int] | range, visible: Tensor) -> Tensor:
    """Visible by the pattern and not masked by an edit."""
    visible = visible.clone()
    for one in site.edits.masks:
        if one.head == head and one.query - site.query_offset in queries:
            visible[list(queries).index(one.query - site.query_offset), one.key] = False
    return visible


# --- one pair ---


@dataclass(frozen=True)
class PairTerms:
    """One query and one key of a head: the terms of their score, every stage up to the weight, and weight · v.

    The products add up to `dot`; dot · scale + bias is `adjusted`, where no cap stands between.

    Examples:
        >>> pair = pair_terms(trace_model("run", "the cat sleeps").site("decoder.0.cross"), 1, query=0, key=1)
        >>> abs(sum(pair.products) * pair.scale + pair.bias - pair.adjusted) < 1e-5
        True
    """

    q: list[float]
    k: list[float]
    products: list[float]
    dot: float
    scale: float
    cap: float | None
    bias: float
    temperature: float
    adjusted: float
    visible: bool
    weight: float
    v: list[float]
    added: list[float]
    score: str
    note: str


@torch.no_grad()
def pair_terms(site: AttentionSite, head: int, query: int, key: int) -> PairTerms:
    """The products of a query and a key, their sum through every stage, and the contribution weight · v.

    Examples:
        >>> site = trace_model("run", "the cat sleeps").site("decoder.0.cross")
        >>> pair = pair_terms(site, 1, query=0, key=1)
        >>> abs(pair.weight - float(site.weights(1)[0, 1])) < 1e-6
        True
    """
    refuse_index("query", query, site.shape[0], site.name)
    refuse_index("key", key, site.shape[1], site.name)
    found = site.steps(head, (query,), slice(0, 1), torch.float32)
    q, k, v = (x[0, 0].float() for x in site.head_qkv(head))
    both = product_terms(site.recipe_after_rotation(torch.float32).score.for_heads(range(head, head + 1)), q, k)
    products = both.products(query, key)
    weight = found.weights[0, 0, 0, key]
    return PairTerms(
        q=both.q[query].tolist(),
        k=both.k[key].tolist(),
        products=products.tolist(),
        dot=float(products.double().sum()),
        scale=both.scale,
        cap=both.cap,
        bias=float(found.adjusted[0, 0, 0, key] - found.scores[0, 0, 0, key]),
        temperature=site.edits.temperature,
        adjusted=float(found.adjusted[0, 0, 0, key]),
        visible=bool(visible_after_edits(site, head, (query,), found.visible[0, 0])[0, key]),
        weight=float(weight),
        v=v[key].tolist(),
        added=(weight * v[key]).tolist(),
        score=score_text(site.recipe.score),
        note=both.note,
    )


MAX_ROW_KEYS = 64  # keys of a row that are taken apart, the strongest


@dataclass(frozen=True)
class KeyTerms:
    """One key of a row: the terms of its score, their sum, exp, the weight, and the norm of weight · v.

    Examples:
        >>> row = row_terms(trace_model("run", "the cat sleeps").site("decoder.0.cross"), 1, query=0)
        >>> abs(sum(row.keys[1].products) - row.keys[1].dot) < 1e-5
        True
    """

    key: int
    products: list[float]
    dot: float
    score: float
    bias: float
    visible: bool
    exp: float
    weight: float
    norm: float


@dataclass(frozen=True)
class RowTerms:
    """One query of a head against its keys, and what they add up to; `rest` is of the keys that are not taken apart.

    Examples:
        >>> row = row_terms(trace_model("run", "the cat sleeps").site("decoder.0.cross"), 1, query=0)
        >>> abs(row.sum["weight"] - 1) < 1e-5, row.rest["count"]
        (True, 0)
    """

    q: list[float]
    keys: list[KeyTerms]
    rest: dict[str, float]
    sum: dict[str, float]
    output_norm: float
    scale: float
    cap: float | None
    temperature: float
    largest: float | None
    softmax: bool
    rotated: bool
    note: str


@torch.no_grad()
def row_terms(site: AttentionSite, head: int, query: int) -> RowTerms:
    """A query against all keys: the terms of each score, exp, their sum, the weights, and the norm of weight · v.

    Of many keys the strongest are taken apart, in the order of the text, and the rest is added up.

    Examples:
        >>> site = trace_model("run", "the cat sleeps").site("decoder.0.cross")
        >>> row = row_terms(site, 1, query=0)
        >>> [key.weight for key in row.keys] == site.row(1, 0).tolist()
        True
    """
    refuse_index("query", query, site.shape[0], site.name)
    found = site.steps(head, (query,), slice(0, 1), torch.float32)
    scores, adjusted, weights = (x[0, 0, 0] for x in (found.scores, found.adjusted, found.weights))
    visible = visible_after_edits(site, head, (query,), found.visible[0, 0])[0]
    logits = (adjusted / site.edits.temperature).masked_fill(~visible, -torch.inf)
    exps = (logits - logits[visible].amax()).exp() if visible.any() else torch.zeros_like(logits)
    q, k, v = (x[0, 0].float() for x in site.head_qkv(head))
    both = product_terms(site.recipe_after_rotation(torch.float32).score.for_heads(range(head, head + 1)), q, k)
    shown = sorted(weights.topk(min(MAX_ROW_KEYS, len(weights))).indices.tolist())
    rest = ~torch.isin(torch.arange(len(weights)), torch.tensor(shown)).to(weights.device)
    keys = [
        KeyTerms(
            key=j,
            products=both.products(query, j).tolist(),
            dot=float(both.products(query, j).double().sum()),
            score=float(scores[j]),
            bias=float(adjusted[j] - scores[j]),
            visible=bool(visible[j]),
            exp=float(exps[j]),
            weight=float(weights[j]),
            norm=float((weights[j] * v[j]).norm()),
        )
        for j in shown
    ]
    return RowTerms(
        q=both.q[query].tolist(),
        keys=keys,
        rest={"count": int(rest.sum()), "exp": float(exps[rest].sum()), "weight": float(weights[rest].sum())},
        sum={"exp": float(exps.double().sum()), "weight": float(weights.double().sum())},
        output_norm=float((weights @ v).norm()),
        scale=both.scale,
        cap=both.cap,
        temperature=site.edits.temperature,
        largest=float(logits[visible].amax()) if visible.any() else None,
        softmax=isinstance(site.recipe.normaliser, Softmax),
        rotated=isinstance(site.recipe.position, QueryKeyPosition),
        note=both.note,
    )


def score_text(score: Score) -> str:
    """The score as in the recipe."""
    return one_line_repr(score.score if isinstance(score, PrecomputedAdditive) else score)


@dataclass(frozen=True)
class ProductTerms:
    """The terms of a score: q·k, or v·tanh(q + k) if there is a `v`; their sum is multiplied by `scale`."""

    q: Tensor
    k: Tensor
    scale: float = 1.0
    v: Tensor | None = None
    note: str = ""
    cap: float | None = None  # then that product x becomes cap · tanh(x / cap)

    def products(self, query: int, key: int) -> Tensor:
        q, k = self.q[query], self.k[key]
        return q * k if self.v is None else self.v * torch.tanh(q + k)


TANH = "q is Wq, k is Uk; a product is v·tanh(Wq + Uk)"


def product_terms(score: Score, q: Float[Tensor, "i d"], k: Float[Tensor, "j c"]) -> ProductTerms:
    """The queries and keys of a head as its score transforms them."""
    match score:
        case ScaledDot():
            return ProductTerms(q, k, q.shape[-1] ** -0.5)
        case Dot():
            return ProductTerms(q, k)
        case GivenScale():
            return ProductTerms(q, k, score.scale)
        case SoftCap():
            return replace(product_terms(score.score, q, k), cap=score.cap)
        case Cosine():
            note = "q and k are shown normalised to length 1"
            return ProductTerms(normalize(q, dim=-1), normalize(k, dim=-1), score.temperature, note=note)
        case Additive():
            return ProductTerms(score.W(q), score.U(k), v=score.v, note=TANH)
        case PrecomputedAdditive():
            return ProductTerms(score.score.W(q), k, v=score.score.v, note=TANH)
        case InnerProduct():
            folded = score.fold_q(q[None, None])[0, 0], score.fold_k(k[None, None])[0, 0]
            note = (
                "q is qW" if isinstance(score, Bilinear) else f"q and k are shown as {one_line_repr(score)} maps them"
            )
            return ProductTerms(*folded, note=note)
    raise ValueError(f"{one_line_repr(score)} has no elementwise products to show")


def alignment_error_rates(trace: Trace, name: str) -> list[float] | None:
    """The alignment error rate of every head; None where no alignment is known, or the attention is not between the
    words of both sides.

    Examples:
        >>> trace = trace_model("run", "the cat sleeps", target="le chat dort")
        >>> alignment_error_rates(trace, "encoder.0") is None
        True
    """
    site_name = trace.site(name).site_name
    if not trace.gold_alignment or (site_name.queries, site_name.keys) != ("written", "source"):
        return None
    ends = len(trace.axes["written"].word_groups) - len(trace.axes["written"].words)
    heads = (trace.word_weights(name, head) for head in range(trace.site(name).heads))
    return [aer(trace.gold_alignment, frozenset(), argmax_links(words[: len(words) - ends])) for words in heads]
