"""A scene in; a page of it that needs no server out: the page itself with every number of the scene beside it.

page(showing)            the HTML text, for a file
Copy(page(showing))      the same in a frame, for a notebook
"""

import base64
import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.see.labels import readable, short
from regard.see.trace import Gate, Site
from regard.serve import described
from regard.serve.bundled import bundled
from regard.serve.scenes import Showing
from regard.serve.stages import rows_of, score_text, sides
from regard.serve.wire import Refused, finite, thumbnail
from regard.serve.writing import beam_steps, best

CELLS = 2**19  # of all heads with every stage; then come heads with their weights alone
MOST_CELLS = 2**22  # of the one head that was asked for
STEPS, NUMBERS = 256, 2**18  # whose next tokens are kept, and probabilities in all


@dataclass(frozen=True)
class Copy:
    """A page in a frame; a notebook shows it."""

    html: str
    height: int = 760

    def _repr_html_(self) -> str:
        # scripts, but nothing of the notebook around it
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" title="Regard" '
            f'style="width:100%;height:{self.height}px;border:0"></iframe>'
        )


def page(showing: Showing, *, site: str | None = None, head: int | None = None) -> str:
    title = f"{showing.scene.task} · {short(readable(showing.text), 60)}"
    return bundled(finite(held(showing, site, head)), title)


def held(showing: Showing, site: str | None, head: int | None) -> dict[str, Any]:
    """All that the page can ask of one scene."""
    scene, card = showing.scene, described.described(showing)
    if card["picture"]:
        card["picture"]["url"] = f"data:image/png;base64,{base64.b64encode(described.png(scene)).decode()}"
    model = {"name": showing.model, "task": scene.task, "what": scene.task, "example": showing.text, "checkpoints": []}
    model |= {"question": scene.asked.question or False, "picture": False}
    sites = {one.name: one for one in scene.sites.values() if isinstance(one, Site)}
    view, first = "overview" if site is None else "matrix", card["opening"]
    if site is None and first is not None:
        site, head = first["site"], first["head"]
    heads: dict[str, Any] = {}
    left = CELLS
    for name, number in wanted(sites, site, head):
        one = sites[name]
        cells, alone = one.shape[0] * one.shape[1], not heads
        if alone and cells > MOST_CELLS:
            raise Refused(f"{one.shape[0]} × {one.shape[1]} weights are too many for a page; shorten the text", 413)
        if cells <= left or alone:
            heads[f"{name}/{number}"] = head_card(one, number, everything=cells <= left)
            left -= cells
    return {
        "models": {"models": [model]},
        "scene": card,
        "view": {"site": site or "", "head": head or 0, "view": view},
        "statistics": showing.statistics(),
        "thumbnails": {name: octets(thumbnail(showing.overview(name)[1].cpu().numpy())) for name in sites},
        "sites": {name: site_card(one) for name, one in sites.items()},
        "heads": heads,
        "gates": {one.name: gate_card(one) for one in scene.sites.values() if isinstance(one, Gate)},
        **written(showing),
    }


def wanted(sites: dict[str, Site], site: str | None, head: int | None) -> Iterator[tuple[str, int]]:
    """What was asked for first."""
    if site is not None and head is not None:
        yield site, head
    order = sorted(sites, key=lambda name: name != site)
    yield from ((name, n) for name in order for n in range(sites[name].heads) if (name, n) != (site, head))


def site_card(site: Site) -> dict[str, Any]:
    return {
        "temperature": site.here.temperature,
        "biased": bool(site.recipe.on_score),
        "score": score_text(site.recipe.score),
    }


def gate_card(gate: Gate) -> dict[str, Any]:
    return {"shape": list(gate.weights.shape[1:]), "weights": numbers(gate.weights[0].float())}


def head_card(site: Site, head: int, *, everything: bool) -> dict[str, Any]:
    n_q, n_k = site.shape
    found: dict[str, Any] = {"shape": [n_q, n_k], "weights": floats(rows_of(site, head, "weights", range(n_q)))}
    check = site.check(head)
    found["check"] = {"difference": check.error, "tolerance": check.tolerance}
    if everything:
        for stage in ("products", "scores", "adjusted"):
            found[stage] = floats(rows_of(site, head, stage, range(n_q)))
        found["temperature"] = site.here.temperature
        found["visible"] = octets(rows_of(site, head, "visible", range(n_q)).astype(np.uint8))
        found |= vectors(site, head)
    return found


def vectors(site: Site, head: int) -> dict[str, Any]:
    """What the products of any pair are made of."""
    with torch.no_grad():
        q, k, v = (x[0, 0].float() for x in site.of_head(head))
        try:
            both = sides(site.turned(torch.float32).score, q, k)
        except Refused as why:  # a pair's products cannot be shown; all else can
            return {"note": str(why)}
        found = {"q": numbers(both.q), "k": numbers(both.k), "v": numbers(v), "scale": both.scale, "note": both.note}
        return found | {"tanh": None if both.v is None else numbers(both.v)}


def written(showing: Showing) -> dict[str, Any]:
    scene = showing.scene
    if scene.written is None:
        return {"tokens": [], "next": None, "beam": None}
    steps, options = len(scene.outcome.rows), scene.outcome.logits.shape[1]
    tokens = [best(scene, step, 20) for step in range(min(steps, STEPS))]
    small = steps * options <= NUMBERS
    shares = numbers(scene.outcome.logits.double().softmax(-1).float()) if small else None
    return {"tokens": tokens, "next": shares, "beam": beam_steps(scene)}


def numbers(values: Tensor) -> str:
    return floats(values.detach().cpu().numpy())


def floats(values: NDArray[np.float32]) -> str:
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()


def octets(values: NDArray[np.uint8]) -> dict[str, Any]:
    return {"shape": list(values.shape), "data": base64.b64encode(values.tobytes()).decode()}
