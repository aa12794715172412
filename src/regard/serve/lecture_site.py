"""One head of a traced attention and one of its queries in; the lectures' walk over its real numbers out.

Only the first few keys and dimensions are given in full; what the others add is given as one number, so that every
sum can be followed to its end.
"""

from collections.abc import Sequence
from typing import Any

import torch
from einops import einsum
from torch import Tensor

from regard.attention.normaliser import Softmax
from regard.attention.score import Additive, InnerProduct, ScaledDot
from regard.models.looking import Prepared
from regard.see.edits import refuse
from regard.see.trace import Site
from regard.serve.lecture import rows, softmax_steps

KEYS, WIDTH, HEADS = 5, 4, 12  # shown of each


@torch.no_grad()
def lecture_on(site: Site, head: int, query: int, *, queries: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    """The walk of one query, from q, k and v to the layer's own output; `queries` and `keys` are their labels."""
    refuse("head", head, site.heads, site.name)
    refuse("query", query, site.shape[0], site.name)
    seen = site.steps(head, (query,), slice(0, 1), torch.float32)
    q, k, v = (x[0, 0].float() for x in site.of_head(head))
    q = q[query : query + 1]
    masked = seen.adjusted.masked_fill(~seen.visible, -torch.inf)[0, 0]
    weights, output = seen.weights[0, 0], seen.output[0, 0]
    check = site.check(head)
    return {
        "about": about(site, head, query, queries, keys),
        "made": made(site, head, query),
        "inner": compared(site, q, k),
        "v": rows(v[:KEYS, :WIDTH]),
        "scores": rows(seen.scores[0, 0, :, :KEYS]),
        "bias": rows((seen.adjusted - seen.scores)[0, 0, :, :KEYS]),
        "masked": rows(masked[:, :KEYS]),
        "softmax": softmax_of(site, masked, weights),
        "weights": rows(weights[:, :KEYS]),
        "weights_rest": float(weights[:, KEYS:].sum()),
        "output": rows(output[:, :WIDTH]),
        "output_rest": rows(weights[:, KEYS:] @ v[KEYS:, :WIDTH]),
        "layer": rows(site.output[0, head, query : query + 1, :WIDTH].float()),
        "difference": check.error,
        "tolerance": check.tolerance,
        "all_heads": rows(torch.stack([site.row(n, query)[:KEYS] for n in range(min(HEADS, site.heads))])),
    }


def about(site: Site, head: int, query: int, queries: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    """What is shown of how much, in names and counts."""
    (_, n_k), width, values, score = site.shape, site.q.shape[-1], site.v.shape[-1], site.recipe.score
    called = queries[query] if query < len(queries) else site.spot.queries
    return {
        "site": site.name,
        "head": head,
        "heads": site.heads,
        "query": query,
        "label": called,
        "keys": [keys[j] if j < len(keys) else str(j) for j in range(min(KEYS, n_k))],
        "n_k": n_k,
        "width": width,
        "values": values,
        "score": str(score.score if isinstance(score, Prepared) else score),
        "pattern": str(site.recipe.pattern),
        "normaliser": str(site.recipe.normaliser),
        "note": site.note,
        "said": f"{shown(KEYS, n_k, 'keys')} and {shown(WIDTH, width, 'dimensions')}; every sum runs over all of them",
    }


def made(site: Site, head: int, query: int) -> dict[str, Any] | None:
    """x W = q, k and v of the shown places; for each number what the other dimensions and the bias add.

    Positions that turn q and k come after. None where the layer has no such matrices, or they are not known.
    """
    if (origin := site.origin) is None:
        return None
    found: dict[str, Any] = {"model": [origin.x.shape[-1], origin.memory.shape[-1]], "turned": bool(site.recipe.inside)}
    for part, number, width in (
        ("q", head, site.q.shape[-1]),
        ("k", site.group(head), site.k.shape[-1]),
        ("v", site.group(head), site.v.shape[-1]),
    ):
        how = origin.made(part, number, width)
        x = how.x[0, query : query + 1] if part == "q" else how.x[0, :KEYS]
        x, weight = x.float(), how.weight.float()[:, :WIDTH]
        bias = torch.zeros(weight.shape[1]) if how.bias is None else how.bias.float()[:WIDTH].cpu()
        found[part] = {
            "x": rows(x[:, :WIDTH]),
            "w": rows(weight[:WIDTH]),
            "bias": bias.tolist(),
            "rest": rows(x[:, WIDTH:] @ weight[WIDTH:]),
            "result": rows(x @ weight + bias.to(x)),
        }
    return found


def compared(site: Site, q: Tensor, k: Tensor) -> dict[str, Any]:
    """q and k as the score multiplies them, and for each product what the dimensions beyond the shown ones add."""
    score = site.turned(torch.float32).score
    found: dict[str, Any] = {"dots": None, "root": None, "additive": None, "rest": None}
    match score:
        case ScaledDot():
            found["root"] = q.shape[-1] ** 0.5
        case InnerProduct():
            q, k = score.fold_q(q), score.fold_k(k)
        case Prepared() | Additive():
            learned, keys = (score.score, k) if isinstance(score, Prepared) else (score, score.U(k))
            wq, uk = learned.W(q), keys[:KEYS]
            each = learned.v * torch.tanh(wq + uk)
            found["additive"] = {
                "v": rows(learned.v[None, :WIDTH]),
                "wq": rows(wq[:, :WIDTH]),
                "uk": rows(uk[:, :WIDTH]),
            }
            found["additive"]["width"] = wq.shape[-1]
            found["rest"] = rows(each[:, WIDTH:].sum(-1)[None])
    if isinstance(score, InnerProduct):
        parts = ((q, k[:KEYS]), (q[:, WIDTH:], k[:KEYS, WIDTH:]))
        found["dots"], found["rest"] = (rows(einsum(a, b, "i d, j d -> i j")) for a, b in parts)
    return found | {"width": q.shape[-1], "q": rows(q[:, :WIDTH]), "k": rows(k[:KEYS, :WIDTH])}


def softmax_of(site: Site, masked: Tensor, weights: Tensor) -> dict[str, Any] | None:
    """What softmax divides by what; None where something else, or an edit, made the weights."""
    plain = torch.where(masked.isfinite(), masked.softmax(-1), 0.0)
    if not isinstance(site.recipe.normaliser, Softmax) or not torch.allclose(plain, weights, atol=1e-6):
        return None
    found = softmax_steps(masked)
    return found | {"exponentials": [row[:KEYS] for row in found["exponentials"]]}


def shown(some: int, all_: int, what: str) -> str:
    return f"all {all_} {what}" if all_ <= some else f"the first {some} of {all_} {what}"
