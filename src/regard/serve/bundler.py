"""The page and one trace in a single HTML file: styles inlined, modules in an import map."""

import base64
import html
import json
import posixpath
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.see.plots.panels import truncate_label, visible_text
from regard.see.trace.sites import AttentionSite, GateSite
from regard.serve.encoding import RequestError, replace_nonfinite, thumbnail_bytes
from regard.serve.generation import beam_steps, top_token_table
from regard.serve.handlers import image_png, serialize_trace
from regard.serve.head_views import product_terms, score_text, stage_rows
from regard.serve.trace_cache import CachedTrace

BASE_URL = "http://regard.invalid/static/"  # the base URL of the modules; never requested
IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*|\bimport\()"(\.{1,2}/[^"]+\.js)"')
VIEWS = ("overview", "matrix", "lines", "alignment", "pair", "generation", "beam", "overlay")
KEEP_VIEWS = "\nVIEWS.splice(0, VIEWS.length, ...VIEWS.filter((view) => %s.includes(view.name)));\n"
INDEX, MAIN, SHIM = "js/views/index.js", "js/main.js", "js/embedded.js"


def bundle_page(data: dict[str, Any], title: str) -> str:
    """The page with its data inlined."""
    modules = reachable_modules()
    addresses = {f"regard/{name}": data_url("text/javascript", text) for name, text in modules.items()}
    imports = json.dumps({"imports": addresses})
    start = 'import "regard/js/main.js";'
    shim = page_file(SHIM)
    # unknown to the author of any displayed text; imports of a script with the nonce are allowed as well
    nonce = secrets.token_urlsafe(16)
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src 'nonce-{nonce}'",
            "style-src 'unsafe-inline' data:",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    page = page_file("index.html")
    page = re.sub(r"\s*<link rel=\"stylesheet\"[^>]*>", "", page)
    page = re.sub(r"\s*<script\b.*?</script>", "", page, flags=re.DOTALL)
    page = re.sub(r"<title>.*?</title>", lambda _: f"<title>{escape_html(title)}</title>", page)
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        *(f"<style>{text}</style>" for text in stylesheets()),
        f'<script type="application/json" id="regard-data">{escape_script_json(data)}</script>',
        f'<script type="importmap" nonce="{nonce}">{imports}</script>',
        f'<script nonce="{nonce}">{shim}</script>',
        f'<script type="module" nonce="{nonce}">{start}</script>',
    ]
    # the policy comes first: it applies to what follows it
    return re.sub(r"(<meta charset=[^>]*>)", lambda found: "\n".join([found[1], *head]), page, count=1)


def reachable_modules() -> dict[str, str]:
    """Every module that the bundled views need, its imports by name instead of by path."""
    found: dict[str, str] = {}
    waiting = [MAIN]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        text = page_file(name)
        if name == INDEX:
            text += KEEP_VIEWS % json.dumps(VIEWS)
        needs = [resolve_import(name, path) for _, path in IMPORT.findall(text)]
        hidden = {f"js/views/{view}.js" for view in re.findall(r'name: "(\w+)"', text)} if name == INDEX else set()
        bundled = {f"js/views/{view}.js" for view in VIEWS}
        waiting += [one for one in needs if (one not in hidden or one in bundled) and page_file_exists(one)]
        text = text.replace("import.meta.url", json.dumps(BASE_URL + name))
        found[name] = IMPORT.sub(lambda match, name=name: f'{match[1]}"regard/{resolve_import(name, match[2])}"', text)
    return found


def resolve_import(module: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(module), path))


def stylesheets() -> list[str]:
    """All stylesheets, style.css first."""
    names = sorted(one.name for one in files("regard.serve").joinpath("page").iterdir() if one.name.endswith(".css"))
    found = [page_file(name) for name in sorted(names, key=lambda name: name != "style.css")]
    assert not any("</style" in text for text in found)
    return found


def page_file(name: str) -> str:
    return files("regard.serve").joinpath("page", *name.split("/")).read_text(encoding="utf-8")


def page_file_exists(name: str) -> bool:
    return files("regard.serve").joinpath("page", *name.split("/")).is_file()


def data_url(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def escape_script_json(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element around it, or begin another."""
    signs = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
    return "".join(signs.get(sign, sign) for sign in json.dumps(data, allow_nan=False, separators=(",", ":")))


def escape_html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# --- the trace ---


MAX_FULL_CELLS = 2**19  # of all heads with every stage; further heads have their weights only
MAX_HEAD_CELLS = 2**22  # of the requested head
MAX_STEPS, MAX_PROBABILITIES = 256, 2**18  # with next tokens, and probabilities in total


@dataclass(frozen=True)
class NotebookFrame:
    """An exported page in an iframe of a notebook."""

    html: str
    height: int = 760

    def _repr_html_(self) -> str:
        # scripts run, but cannot reach the notebook
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" title="Regard" '
            f'style="width:100%;height:{self.height}px;border:0"></iframe>'
        )


def standalone_page(cached: CachedTrace, *, site: str | None = None, head: int | None = None) -> str:
    title = f"{cached.trace.task} · {truncate_label(visible_text(cached.text), 60)}"
    return bundle_page(replace_nonfinite(embed_trace(cached, site, head)), title)


def embed_trace(cached: CachedTrace, site: str | None, head: int | None) -> dict[str, Any]:
    """All data of one trace that the page can request."""
    trace, card = cached.trace, serialize_trace(cached)
    if card["picture"]:
        card["picture"]["url"] = f"data:image/png;base64,{base64.b64encode(image_png(trace)).decode()}"
    model = {"name": cached.model, "task": trace.task, "what": trace.task, "example": cached.text, "checkpoints": []}
    model |= {"question": trace.request.question or False, "picture": False}
    sites = {one.name: one for one in trace.sites.values() if isinstance(one, AttentionSite)}
    view, first = "overview" if site is None else "matrix", card["opening"]
    if site is None and first is not None:
        site, head = first["site"], first["head"]
    heads: dict[str, Any] = {}
    left = MAX_FULL_CELLS
    for name, number in heads_in_order(sites, site, head):
        one = sites[name]
        cells, alone = one.shape[0] * one.shape[1], not heads
        if alone and cells > MAX_HEAD_CELLS:
            raise RequestError(
                f"{one.shape[0]} × {one.shape[1]} weights are too many for a page; shorten the text", 413
            )
        if cells <= left or alone:
            heads[f"{name}/{number}"] = embed_head(one, number, everything=cells <= left)
            left -= cells
    return {
        "models": {"models": [model]},
        "trace": card,
        "view": {"site": site or "", "head": head or 0, "view": view},
        "statistics": cached.statistics(),
        "thumbnails": {name: uint8_base64(thumbnail_bytes(cached.overview(name)[1].cpu().numpy())) for name in sites},
        "sites": {name: embed_site(one) for name, one in sites.items()},
        "heads": heads,
        "gates": {one.name: embed_gate(one) for one in trace.sites.values() if isinstance(one, GateSite)},
        **embed_generation(cached),
    }


def heads_in_order(sites: dict[str, AttentionSite], site: str | None, head: int | None) -> Iterator[tuple[str, int]]:
    """The requested head first."""
    if site is not None and head is not None:
        yield site, head
    order = sorted(sites, key=lambda name: name != site)
    yield from ((name, n) for name in order for n in range(sites[name].heads) if (name, n) != (site, head))


def embed_site(site: AttentionSite) -> dict[str, Any]:
    return {
        "temperature": site.edits.temperature,
        "biased": bool(site.recipe.score_positions),
        "score": score_text(site.recipe.score),
    }


def embed_gate(gate: GateSite) -> dict[str, Any]:
    return {"shape": list(gate.weights.shape[1:]), "weights": tensor_base64(gate.weights[0].float())}


def embed_head(site: AttentionSite, head: int, *, everything: bool) -> dict[str, Any]:
    n_q, n_k = site.shape
    found: dict[str, Any] = {
        "shape": [n_q, n_k],
        "weights": float32_base64(stage_rows(site, head, "weights", range(n_q))),
    }
    check = site.check(head)
    found["check"] = {"difference": check.error, "tolerance": check.tolerance}
    if everything:
        for stage in ("products", "scores", "adjusted"):
            found[stage] = float32_base64(stage_rows(site, head, stage, range(n_q)))
        found["temperature"] = site.edits.temperature
        found["visible"] = uint8_base64(stage_rows(site, head, "visible", range(n_q)).astype(np.uint8))
        found |= embed_vectors(site, head)
    return found


def embed_vectors(site: AttentionSite, head: int) -> dict[str, Any]:
    """The vectors from which the products of any pair are computed."""
    with torch.no_grad():
        q, k, v = (x[0, 0].float() for x in site.head_qkv(head))
        try:
            both = product_terms(site.recipe_after_rotation(torch.float32).score, q, k)
        except RequestError as why:  # only the pair view is unavailable
            return {"note": str(why)}
        found = {
            "q": tensor_base64(both.q),
            "k": tensor_base64(both.k),
            "v": tensor_base64(v),
            "scale": both.scale,
            "note": both.note,
        }
        return found | {"tanh": None if both.v is None else tensor_base64(both.v)}


def embed_generation(cached: CachedTrace) -> dict[str, Any]:
    trace = cached.trace
    if trace.output_ids is None:
        return {"tokens": [], "next": None, "beam": None}
    steps, options = len(trace.predictions.rows), trace.predictions.logits.shape[1]
    tokens = [top_token_table(trace, step, 20) for step in range(min(steps, MAX_STEPS))]
    small = steps * options <= MAX_PROBABILITIES
    shares = tensor_base64(trace.predictions.logits.double().softmax(-1).float()) if small else None
    return {"tokens": tokens, "next": shares, "beam": beam_steps(trace)}


def tensor_base64(values: Tensor) -> str:
    return float32_base64(values.detach().cpu().numpy())


def float32_base64(values: NDArray[np.float32]) -> str:
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()


def uint8_base64(values: NDArray[np.uint8]) -> dict[str, Any]:
    return {"shape": list(values.shape), "data": base64.b64encode(values.tobytes()).decode()}
