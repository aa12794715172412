"""Exports of traces: SVG, PNG, PDF, HTML, NPZ and CSV."""

import csv
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

from regard.see.plots.draw import build_view, draw
from regard.see.plots.mpl_figure import save
from regard.see.plots.panels import ColourScale, Panel, View, truncate_label, visible_text
from regard.see.trace.sites import AttentionSite
from regard.serve.encoding import ApiResponse, Floats, RequestError, max_pool
from regard.serve.handlers import ApiRequest, int_field
from regard.serve.head_views import stage_rows
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
        from regard.serve.bundler import standalone_page

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
    return replace(panel, title=title, scale=ColourScale("roots", 0.0, 1.0, "weight"), **named)  # as on the page


def drawn_matrix(site: AttentionSite, head: int) -> Floats:
    if site.shape[0] * site.shape[1] > MAX_EXPORT_CELLS:
        return site.max_pool(head, MAX_DRAWN_SIDE, MAX_DRAWN_SIDE).cpu().numpy()
    return stage_rows(site, head, "weights", range(site.shape[0]))
