"""One head of a site in; its products, scores, masked scores or weights out, and all about one pair of tokens.

The stages are called as in Python (`Head.products`, `.scores`, `.adjusted`, `.visible`, `.weights`); masked is what the
normaliser is given: adjusted, divided by the temperature, and -∞ where hidden.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from regard.attention.score import Additive, Bilinear, Cosine, Dot, InnerProduct, ScaledDot, Score
from regard.models.looking import Prepared
from regard.see.edits import refuse
from regard.see.trace import Site
from regard.see.views import code
from regard.serve.wire import Floats, Refused

STAGES = ("products", "scores", "adjusted", "visible", "masked", "weights")
AT_ONCE = 2**22  # cells computed together


def stage_named(name: str) -> str:
    if name not in STAGES:
        raise Refused(f"there is no stage {name!r:.40}; there are {', '.join(STAGES)}")
    return name


@torch.no_grad()
def rows_of(site: Site, head: int, stage: str, queries: range) -> Floats:
    """These queries, all keys."""
    parts = [part for _, part in bands(site, head, stage, queries)]
    return np.concatenate(parts) if parts else np.zeros((0, site.shape[1]), np.float32)


def bands(site: Site, head: int, stage: str, queries: range) -> Iterator[tuple[range, Floats]]:
    """The same, a few queries at a time."""
    size = max(1, AT_ONCE // max(1, site.shape[1]))
    for start in range(queries.start, queries.stop, size):
        some = range(start, min(start + size, queries.stop))
        yield some, computed(site, head, stage, some).cpu().numpy()


@torch.no_grad()
def computed(site: Site, head: int, stage: str, queries: range) -> Tensor:
    if stage == "visible":
        return seen(site, head, queries, site.visible(head, queries)).float()
    if stage == "products" and isinstance(site.recipe.score, ScaledDot):
        q, k, _ = (x[0, 0].float() for x in site.of_head(head))
        return einsum(q[queries.start : queries.stop], k, "i d, j d -> i j")
    found = site.steps(head, queries, slice(0, 1), torch.float32)
    if stage == "weights":
        return found.weights[0, 0]
    if stage in ("products", "scores"):
        return found.scores[0, 0]
    if stage == "adjusted":
        return found.adjusted[0, 0]
    given = found.adjusted[0, 0] / site.here.temperature
    return given.masked_fill(~seen(site, head, queries, found.visible[0, 0]), -torch.inf)


def seen(site: Site, head: int, queries: Sequence[int] | range, visible: Tensor) -> Tensor:
    """What the pattern shows and no edit hides."""
    visible = visible.clone()
    for one in site.here.masks:
        if one.head == head and one.query - site.at in queries:
            visible[list(queries).index(one.query - site.at), one.key] = False
    return visible


# --- one pair ---


@torch.no_grad()
def pair(site: Site, head: int, query: int, key: int) -> dict[str, Any]:
    """Every product between a query and a key, what becomes of their sum, and what the key then gives."""
    refuse("query", query, site.shape[0], site.name)
    refuse("key", key, site.shape[1], site.name)
    found = site.steps(head, (query,), slice(0, 1), torch.float32)
    q, k, v = (x[0, 0].float() for x in site.of_head(head))
    both = sides(site.turned(torch.float32).score, q, k)
    products = both.products(query, key)
    weight = found.weights[0, 0, 0, key]
    bias = float(found.adjusted[0, 0, 0, key] - found.scores[0, 0, 0, key])
    return {
        "q": both.q[query].tolist(),
        "k": both.k[key].tolist(),
        "products": products.tolist(),
        "dot": float(products.double().sum()),
        "scale": both.scale,
        "bias": bias,
        "temperature": site.here.temperature,
        "adjusted": float(found.adjusted[0, 0, 0, key]),
        "visible": bool(seen(site, head, (query,), found.visible[0, 0])[0, key]),
        "weight": float(weight),
        "v": v[key].tolist(),
        "added": (weight * v[key]).tolist(),
        "score": score_text(site.recipe.score),
        "note": both.note,
    }


def score_text(score: Score) -> str:
    """As the recipe was written."""
    return code(score.score if isinstance(score, Prepared) else score)


@dataclass(frozen=True)
class Sides:
    """What is multiplied with what, term by term: `q` and `k`, or with `v` given v·tanh(q + k); then by `scale`."""

    q: Tensor
    k: Tensor
    scale: float = 1.0
    v: Tensor | None = None
    note: str = ""

    def products(self, query: int, key: int) -> Tensor:
        q, k = self.q[query], self.k[key]
        return q * k if self.v is None else self.v * torch.tanh(q + k)


TANH = "q is Wq, k is Uk; a product is v·tanh(Wq + Uk)"


def sides(score: Score, q: Float[Tensor, "i d"], k: Float[Tensor, "j c"]) -> Sides:
    """A head's queries and keys as its score multiplies them."""
    match score:
        case ScaledDot():
            return Sides(q, k, q.shape[-1] ** -0.5)
        case Dot():
            return Sides(q, k)
        case Cosine():
            note = "q and k are shown as directions, of length 1"
            return Sides(normalize(q, dim=-1), normalize(k, dim=-1), score.temperature, note=note)
        case Additive():
            return Sides(score.W(q), score.U(k), v=score.v, note=TANH)
        case Prepared():
            return Sides(score.score.W(q), k, v=score.score.v, note=TANH)
        case InnerProduct():
            folded = score.fold_q(q[None, None])[0, 0], score.fold_k(k[None, None])[0, 0]
            note = "q is qW" if isinstance(score, Bilinear) else f"q and k are shown as {code(score)} maps them"
            return Sides(*folded, note=note)
    raise Refused(f"{code(score)} compares a query and a key in a way that has no products to show")
