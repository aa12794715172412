"""A scene, and perhaps a site and a head of it, in; a file out that needs nothing else: pictures, numbers, a page."""

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

from regard.see.drawing import draw, look
from regard.see.labels import readable, short
from regard.see.paint import save
from regard.see.panel import Panel, Scale, View
from regard.see.trace import Site
from regard.serve.answers import Request
from regard.serve.asking import whole
from regard.serve.scenes import Showing
from regard.serve.stages import rows_of
from regard.serve.wire import Answer, Floats, Refused, coarse

KINDS = {
    "svg": "image/svg+xml",
    "png": "image/png",
    "pdf": "application/pdf",
    "html": "text/html; charset=utf-8",
    "npz": "application/octet-stream",
    "csv": "text/csv; charset=utf-8",
}
LABELLED, DRAWN = 96, 512  # a side: that still has a label for each, and of any picture
HEADS = 16  # drawn side by side
MOST_CELLS = 2**22  # of all matrices in one file
DRAWING = Lock()  # matplotlib's settings are of the whole process


def export(asked: Request) -> Answer:
    kind, showing = asked.query.get("format") or "svg", asked.showing
    site, head = asked.query.get("site") or None, whole(asked.query, "head", 0, 2**31)
    body = exported(showing, kind, site, head)
    name = "-".join(["regard", *([site] if site else []), *([str(head)] if head is not None else [])])
    safe = re.sub(r"[^A-Za-z0-9.]+", "-", name)
    return Answer(body, KINDS[kind], {"Content-Disposition": f'attachment; filename="{safe}.{kind}"'})


def exported(showing: Showing, kind: str, site: str | None = None, head: int | None = None) -> bytes:
    """The file; without a site all of them, without a head all of the site's."""
    if kind not in KINDS:
        raise Refused(f"cannot write {kind!r:.40}; there are {', '.join(KINDS)}")
    if site is not None:
        showing.head(site, 0 if head is None else head)
    if kind == "html":
        from regard.serve.embedded import page

        return page(showing, site=site, head=head).encode()
    if kind == "npz":
        return npz(showing, site, head)
    if kind == "csv":
        return table(showing, site, head)
    return drawn(showing, kind, site, head)


def chosen(showing: Showing, site: str | None, head: int | None) -> Iterator[tuple[str, Site, range]]:
    """Which heads of which sites."""
    found = [one for one in showing.scene.sites.values() if isinstance(one, Site) and site in (None, one.name)]
    if not found:
        raise Refused("this model has no attention to write; ask another")
    for one in found:
        yield one.name, one, range(one.heads) if head is None else range(head, head + 1)


def refuse_large(showing: Showing, site: str | None, head: int | None) -> None:
    cells = sum(len(heads) * one.shape[0] * one.shape[1] for _, one, heads in chosen(showing, site, head))
    if cells > MOST_CELLS:
        remedy = "choose a site and a head" if head is None else "shorten the text"
        raise Refused(f"{cells:,} weights are too many for one file ({MOST_CELLS:,}); {remedy}", 413)


# --- numbers ---


def npz(showing: Showing, site: str | None, head: int | None) -> bytes:
    """Weights (head, query, key) and masked scores of each site, and the labels along them."""
    refuse_large(showing, site, head)
    arrays: dict[str, Any] = {"said": np.array(showing.scene.said), "text": np.array(showing.text)}
    for name, one, heads in chosen(showing, site, head):
        n_q, n_k = one.shape
        for stage in ("weights", "masked"):
            arrays[f"{name}/{stage}"] = np.stack([rows_of(one, number, stage, range(n_q)) for number in heads])
        arrays[f"{name}/heads"] = np.array(heads)
        arrays[f"{name}/queries"] = np.array(showing.labels(one.spot.queries, n_q))
        arrays[f"{name}/keys"] = np.array(showing.labels(one.spot.keys, n_k))
    written = BytesIO()
    np.savez_compressed(written, **arrays)
    return written.getvalue()


def table(showing: Showing, site: str | None, head: int | None) -> bytes:
    """One weight a line."""
    refuse_large(showing, site, head)
    written = BytesIO()  # a StringIO takes four bytes for a letter
    text = TextIOWrapper(written, encoding="utf-8", newline="")
    lines = csv.writer(text)
    lines.writerow(["site", "head", "query", "key", "query token", "key token", "weight"])
    for name, one, heads in chosen(showing, site, head):
        n_q, n_k = one.shape
        queries, keys = (
            [cell(label) for label in showing.labels(axis, count)]
            for axis, count in ((one.spot.queries, n_q), (one.spot.keys, n_k))
        )
        for number in heads:
            weights = rows_of(one, number, "weights", range(n_q))
            for i in range(n_q):
                for j in range(n_k):
                    lines.writerow([name, number, i, j, queries[i], keys[j], repr(float(weights[i, j]))])
    text.flush()
    return written.getvalue()


def cell(label: str) -> str:
    """A spreadsheet takes what begins with one of these for a formula, and would run it."""
    return f"'{label}" if label[:1] in ("=", "+", "-", "@", "\t", "\r") and len(label) > 1 else label


# --- pictures ---


def drawn(showing: Showing, kind: str, site: str | None, head: int | None) -> bytes:
    with DRAWING, tempfile.TemporaryDirectory(prefix="regard-") as folder:
        return save(draw(view(showing, site, head)), Path(folder) / f"picture.{kind}").read_bytes()


def view(showing: Showing, site: str | None, head: int | None) -> View:
    """The heads of a site, labelled where there is room; longer texts are drawn by the largest weight of each cell."""
    name, one, heads = next(iter(chosen(showing, site, head)))
    some, (n_q, n_k), spot = heads[:HEADS], one.shape, one.spot
    weights = torch.from_numpy(np.stack([coarse(matrix(one, number), DRAWN, DRAWN) for number in some]))
    how: dict[str, Any] = {}
    if max(n_q, n_k) <= LABELLED:
        visible = [~np.isneginf(rows_of(one, number, "masked", range(n_q))) for number in some]
        how = {"tokens": showing.labels(spot.keys, n_k), "queries": showing.labels(spot.queries, n_q)}
        how["visible"] = torch.from_numpy(np.stack(visible))
    notes = [("", short(readable(showing.text), 60))]
    if max(n_q, n_k) > DRAWN:
        cells = " × ".join(map(str, weights.shape[1:]))
        notes.append(("", f"{n_q} × {n_k} weights in {cells} cells, each the largest in it; the sides count cells"))
    if len(some) < len(heads):
        notes.append(("", f"the first {HEADS} of {len(heads)} heads"))
    # heads are counted from 0, as everywhere on the page
    numbers, rows = iter(some), []
    for row in look(weights, **how).rows:
        named = [renamed(panel, f"head {next(numbers)}", spot.queries, spot.keys) for panel in row.panels]
        rows.append(replace(row, panels=tuple(named), heading="" if rows else name))
    return View(tuple(rows), notes=tuple(notes))


def renamed(panel: Any, title: str, down: str, across: str) -> Panel:
    assert isinstance(panel, Panel)
    named = {"down": replace(panel.down, name=down), "across": replace(panel.across, name=across)}
    return replace(panel, title=title, scale=Scale("roots", 0.0, 1.0, "weight"), **named)  # coloured as on the page


def matrix(site: Site, head: int) -> Floats:
    if site.shape[0] * site.shape[1] > MOST_CELLS:
        return site.pooled(head, DRAWN, DRAWN).cpu().numpy()
    return rows_of(site, head, "weights", range(site.shape[0]))
