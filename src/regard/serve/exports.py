"""Exports of traces: SVG, PNG, PDF, NPZ and CSV, and HTML: the page and one trace in a single file.

In the file styles are inlined, and modules stand in an import map.
"""

import base64
import csv
import html
import json
import posixpath
import re
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from io import BytesIO, TextIOWrapper
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.see.head_views import product_terms, score_text, stage_rows
from regard.see.plots.draw import build_view, draw
from regard.see.plots.mpl_figure import save
from regard.see.plots.panels import ColourScale, Panel, View, truncate_label, visible_text
from regard.see.sites import AttentionSite, GateSite
from regard.serve.encoding import ApiResponse, Floats, RequestError, max_pool, replace_nonfinite, thumbnail_bytes
from regard.serve.generation import beam_steps, top_token_table
from regard.serve.handlers import ApiRequest, image_png, int_field, serialize_trace
from regard.serve.trace_cache import CachedTrace

MEDIA_TYPES = {
    "svg": "image/svg+xml",
    "png": "image/png",
    "pdf": "application/pdf",
    "html": "text/html; charset=utf-8",
    "npz": "application/octet-stream",
    "csv": "text/csv; charset=utf-8",
}
MAX_LABELLED_SIDE, MAX_DRAWN_SIDE = 96, 512  # of a plot with a label per token, and of any plot
MAX_HEADS = 16  # in one plot
MAX_EXPORT_CELLS = 2**22  # of all matrices in one file
MATPLOTLIB_LOCK = Lock()  # matplotlib's settings are global


def export(request: ApiRequest) -> ApiResponse:
    kind, cached = request.query.get("format") or "svg", request.cached
    site, head = request.query.get("site") or None, int_field(request.query, "head", 0, 2**31)
    body = export_bytes(cached, kind, site, head)
    name = "-".join(["regard", *([site] if site else []), *([str(head)] if head is not None else [])])
    safe = re.sub(r"[^A-Za-z0-9.]+", "-", name)
    return ApiResponse(body, MEDIA_TYPES[kind], {"Content-Disposition": f'attachment; filename="{safe}.{kind}"'})


def export_bytes(cached: CachedTrace, kind: str, site: str | None = None, head: int | None = None) -> bytes:
    """The file; all layers if `site` is None, all heads if `head` is None."""
    if kind not in MEDIA_TYPES:
        raise RequestError(f"cannot write {kind!r:.40}; there are {', '.join(MEDIA_TYPES)}")
    if site is not None:
        cached.head(site, 0 if head is None else head)
    if kind == "html":
        return standalone_page(cached, site=site, head=head).encode()
    if kind == "npz":
        return export_npz(cached, site, head)
    if kind == "csv":
        return export_csv(cached, site, head)
    return export_image(cached, kind, site, head)


def selected_heads(
    cached: CachedTrace, site: str | None, head: int | None
) -> Iterator[tuple[str, AttentionSite, range]]:
    """Name, layer and heads of the selection."""
    found = [one for one in cached.trace.sites.values() if isinstance(one, AttentionSite) and site in (None, one.name)]
    if not found:
        raise RequestError("this model has no attention weights to export; choose another")
    for one in found:
        yield one.name, one, range(one.heads) if head is None else range(head, head + 1)


def refuse_large(cached: CachedTrace, site: str | None, head: int | None) -> None:
    cells = sum(len(heads) * one.shape[0] * one.shape[1] for _, one, heads in selected_heads(cached, site, head))
    if cells > MAX_EXPORT_CELLS:
        remedy = "choose a layer and a head" if head is None else "shorten the text"
        raise RequestError(f"{cells:,} weights are too many for one file ({MAX_EXPORT_CELLS:,}); {remedy}", 413)


# --- numbers ---


def export_npz(cached: CachedTrace, site: str | None, head: int | None) -> bytes:
    """Weights (head, query, key) and masked scores of each layer, and the labels of their axes."""
    refuse_large(cached, site, head)
    arrays: dict[str, Any] = {"output_text": np.array(cached.trace.output_text), "text": np.array(cached.text)}
    for name, one, heads in selected_heads(cached, site, head):
        n_q, n_k = one.shape
        for stage in ("weights", "masked"):
            arrays[f"{name}/{stage}"] = np.stack([stage_rows(one, number, stage, range(n_q)) for number in heads])
        arrays[f"{name}/heads"] = np.array(heads)
        arrays[f"{name}/queries"] = np.array(cached.labels(one.site_name.queries, n_q))
        arrays[f"{name}/keys"] = np.array(cached.labels(one.site_name.keys, n_k))
    written = BytesIO()
    np.savez_compressed(written, **arrays)
    return written.getvalue()


def export_csv(cached: CachedTrace, site: str | None, head: int | None) -> bytes:
    """One weight a line."""
    refuse_large(cached, site, head)
    written = BytesIO()  # a StringIO takes four bytes for a letter
    text = TextIOWrapper(written, encoding="utf-8", newline="")
    lines = csv.writer(text)
    lines.writerow(["site", "head", "query", "key", "query token", "key token", "weight"])
    for name, one, heads in selected_heads(cached, site, head):
        n_q, n_k = one.shape
        queries, keys = (
            [escape_formula(label) for label in cached.labels(axis, count)]
            for axis, count in ((one.site_name.queries, n_q), (one.site_name.keys, n_k))
        )
        for number in heads:
            weights = stage_rows(one, number, "weights", range(n_q))
            for i in range(n_q):
                for j in range(n_k):
                    lines.writerow([name, number, i, j, queries[i], keys[j], repr(float(weights[i, j]))])
    text.flush()
    return written.getvalue()


def escape_formula(label: str) -> str:
    """Quotes labels that a spreadsheet would run as a formula."""
    return f"'{label}" if label[:1] in ("=", "+", "-", "@", "\t", "\r") and len(label) > 1 else label


# --- plots ---


def export_image(cached: CachedTrace, kind: str, site: str | None, head: int | None) -> bytes:
    with MATPLOTLIB_LOCK, tempfile.TemporaryDirectory(prefix="regard-") as folder:
        return save(draw(head_maps(cached, site, head)), Path(folder) / f"plot.{kind}").read_bytes()


def head_maps(cached: CachedTrace, site: str | None, head: int | None) -> View:
    """The heads of a layer, labelled where there is space; long texts are max-pooled."""
    name, one, heads = next(iter(selected_heads(cached, site, head)))
    some, (n_q, n_k), spot = heads[:MAX_HEADS], one.shape, one.site_name
    weights = torch.from_numpy(
        np.stack([max_pool(drawn_matrix(one, number), MAX_DRAWN_SIDE, MAX_DRAWN_SIDE) for number in some])
    )
    how: dict[str, Any] = {}
    if max(n_q, n_k) <= MAX_LABELLED_SIDE:
        visible = [~np.isneginf(stage_rows(one, number, "masked", range(n_q))) for number in some]
        how = {"tokens": cached.labels(spot.keys, n_k), "queries": cached.labels(spot.queries, n_q)}
        how["visible"] = torch.from_numpy(np.stack(visible))
    notes = [("", truncate_label(visible_text(cached.text), 60))]
    if max(n_q, n_k) > MAX_DRAWN_SIDE:
        cells = " × ".join(map(str, weights.shape[1:]))
        notes.append(("", f"{n_q} × {n_k} weights in {cells} cells, max-pooled; the axes count cells"))
    if len(some) < len(heads):
        notes.append(("", f"the first {MAX_HEADS} of {len(heads)} heads"))
    # heads are counted from 0, as everywhere on the page
    numbers, rows = iter(some), []
    for row in build_view(weights, **how).rows:
        named = [rename_axes(panel, f"head {next(numbers)}", spot.queries, spot.keys) for panel in row.panels]
        rows.append(replace(row, panels=tuple(named), heading="" if rows else name))
    return View(tuple(rows), notes=tuple(notes))


def rename_axes(panel: Any, title: str, down: str, across: str) -> Panel:
    assert isinstance(panel, Panel)
    named = {"down": replace(panel.down, name=down), "across": replace(panel.across, name=across)}
    # shares as on the page; those of a state may be negative
    scale = panel.scale if panel.scale.kind == "signed" else ColourScale("roots", 0.0, 1.0, "weight")
    return replace(panel, title=title, scale=scale, **named)


def drawn_matrix(site: AttentionSite, head: int) -> Floats:
    if site.shape[0] * site.shape[1] > MAX_EXPORT_CELLS:
        return site.max_pool(head, MAX_DRAWN_SIDE, MAX_DRAWN_SIDE).cpu().numpy()
    return stage_rows(site, head, "weights", range(site.shape[0]))


# --- the page in a single file ---


BASE_URL = "http://regard.invalid/static/"  # the base URL of the modules; never requested
IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*|\bimport\()"(\.{1,2}/[^"]+\.js)"')
VIEWS = ("start", "overview", "matrix", "lines", "alignment", "pair", "generation", "beam", "overlay")
KEEP_VIEWS = "\nVIEWS.splice(0, VIEWS.length, ...VIEWS.filter((view) => %s.includes(view.name)));\n"
INDEX, MAIN, SHIM, LIVE = "js/views/index.js", "js/main.js", "js/embedded.js", "js/live.js"


def bundle_page(data: dict[str, Any], title: str, *, live: bool = False) -> str:
    """The page with its data inlined; a live one has every view, and asks the frame's parent for what it needs."""
    modules = reachable_modules(all_views() if live else VIEWS)
    addresses = {f"regard/{name}": data_url("text/javascript", text) for name, text in modules.items()}
    imports = json.dumps({"imports": addresses})
    start = 'import "regard/js/main.js";'
    shim = page_file(LIVE if live else SHIM)
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


def all_views() -> tuple[str, ...]:
    return tuple(re.findall(r'name: "(\w+)"', page_file(INDEX)))


def reachable_modules(views: Sequence[str] = VIEWS) -> dict[str, str]:
    """Every module that the bundled views need, its imports by name instead of by path."""
    found: dict[str, str] = {}
    waiting = [MAIN]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        text = page_file(name)
        if name == INDEX:
            text += KEEP_VIEWS % json.dumps(views)
        needs = [resolve_import(name, path) for _, path in IMPORT.findall(text)]
        hidden = {f"js/views/{view}.js" for view in re.findall(r'name: "(\w+)"', text)} if name == INDEX else set()
        bundled = {f"js/views/{view}.js" for view in views}
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
MAX_PAGE_CELLS = 2**22  # of the weights of all heads, the requested one first
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
    model |= {"question": trace.request.question or False, "picture": False, "sound": False}
    sites = {one.name: one for one in trace.sites.values() if isinstance(one, AttentionSite)}
    view, first = "overview" if site is None else "matrix", card["opening"]
    if site is None and first is not None:
        site, head = first["site"], first["head"]
    heads: dict[str, Any] = {}
    left, left_full = MAX_PAGE_CELLS, MAX_FULL_CELLS
    for name, number in heads_in_order(sites, site, head):
        one = sites[name]
        cells, alone = one.shape[0] * one.shape[1], not heads
        if alone and cells > MAX_PAGE_CELLS:
            raise RequestError(
                f"{one.shape[0]} × {one.shape[1]} weights are too many for a page; shorten the text", 413
            )
        if cells <= left:
            everything = cells <= left_full
            heads[f"{name}/{number}"] = embed_head(one, number, everything=everything)
            left, left_full = left - cells, left_full - cells * everything
    return {
        "models": {"models": [model]},
        "trace": card,
        "view": {"site": site or "", "head": head or 0, "view": view},
        "statistics": cached.statistics(),
        "thumbnails": {
            name: uint8_base64(thumbnail_bytes(cached.overview(name)[1].cpu().numpy(), signed=one.signed))
            for name, one in sites.items()
        },
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
            both = product_terms(site.recipe_after_rotation(torch.float32).score.for_heads(range(head, head + 1)), q, k)
        except ValueError as why:  # only the pair view is unavailable
            return {"note": str(why)}
        found = {
            "q": tensor_base64(both.q),
            "k": tensor_base64(both.k),
            "v": tensor_base64(v),
            "scale": both.scale,
            "cap": both.cap,
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
