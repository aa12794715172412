"""Traces as JSON: output, axes, words, layers, and the Python code of the trace."""

from io import BytesIO
from typing import Any

from einops import rearrange
from PIL import Image

from regard.attention.batch_patterns import Padding
from regard.attention.pattern import And, Full, Pattern
from regard.see.plots.recipe_views import one_line_repr
from regard.see.trace.edits import KINDS, Edits
from regard.see.trace.sites import AttentionSite, GateSite
from regard.see.trace.trace import TokenAxis, Trace, select_initial
from regard.serve.head_views import score_text
from regard.serve.trace_cache import CachedTrace

MAX_OPTIONS = 100  # labels of a classification
MAX_PART_LETTERS = 160  # letters of a recipe's part


def serialize_trace(cached: CachedTrace) -> dict[str, Any]:
    trace = cached.trace
    return {
        "id": cached.id,
        "model": cached.model,
        "task": trace.task,
        "options": list(trace.request.task.inputs.options),
        "text": cached.text,
        "question": trace.request.question or "",
        "checkpoint": cached.checkpoint,
        "said": trace.output_text,
        "output": serialize_output(trace),
        "axes": {name: list(axis.labels) for name, axis in trace.axes.items()},
        "words": {name: serialize_words(axis) for name, axis in trace.axes.items() if axis.words},
        "sites": [serialize_site(site) for site in trace.sites.values()],
        "opening": None if (first := select_initial(trace, cached.folder)) is None else vars(first),
        "steps": 0 if trace.output_ids is None else len(trace.predictions.rows),
        "given": trace.forced_steps,
        "unknown": list(trace.out_of_vocabulary),
        "gold": sorted(map(list, trace.gold_alignment)) or None,
        "picture": serialize_image(cached),
        "edits": trace.request.edits.to_dict(),
        "python": python_code(cached),
    }


def serialize_output(trace: Trace) -> dict[str, Any] | None:
    """The labels of one prediction, most probable first; of several (tags) the best of each; None for a text."""
    if trace.output_ids is not None:
        return None
    if len(trace.predictions.rows) == 1:
        best = trace.predictions.best(0, MAX_OPTIONS)
        return {"labels": [name for name, _ in best], "probabilities": [share for _, share in best], "rows": None}
    best = [trace.predictions.best(row, 1)[0] for row in range(len(trace.predictions.rows))]
    return {
        "labels": [name for name, _ in best],
        "probabilities": [share for _, share in best],
        "rows": list(trace.predictions.rows),
    }


def serialize_words(axis: TokenAxis) -> list[list[Any]]:
    """Each word with the positions of its first and last token."""
    positions: dict[int, list[int]] = {}
    for position, word in enumerate(axis.word_ids):
        if word is not None:
            positions.setdefault(word, []).append(position)
    return [[axis.words[word], min(some), max(some)] for word, some in sorted(positions.items())]


def serialize_site(site: AttentionSite | GateSite) -> dict[str, Any]:
    spot = site.site_name
    shared = {"name": site.name, "queries": spot.queries, "keys": spot.keys}
    if isinstance(site, GateSite):
        empty = dict.fromkeys(("score", "position", "pattern", "normaliser"), "")
        size = {"heads": 0, "n_q": 0, "n_k": site.weights[0].numel(), "shape": list(site.weights.shape[1:])}
        return {**shared, "kind": "gate", **size, **empty, "shown": False, "why": site.note}
    kind = "self" if spot.queries == spot.keys else "pool" if spot.queries == "pooled" else "cross"
    recipe = site.recipe
    parts = {
        "position": recipe.position,
        "pattern": without_padding(recipe.pattern),
        "normaliser": recipe.normaliser,
    }
    return {
        **shared,
        "kind": kind,
        "heads": site.heads,
        "n_q": site.shape[0],
        "n_k": site.shape[1],
        "score": score_text(recipe.score)[:MAX_PART_LETTERS],
        **{name: one_line_repr(part)[:MAX_PART_LETTERS] for name, part in parts.items()},
        "shown": True,
        "why": site.note,
    }


def without_padding(pattern: Pattern) -> Pattern:
    """A single sentence has no padding, so Padding is not shown."""
    if isinstance(pattern, And):
        left, right = without_padding(pattern.left), without_padding(pattern.right)
        return right if left == Full() else left if right == Full() else And(left, right)
    return Full() if isinstance(pattern, Padding) else pattern


def serialize_image(cached: CachedTrace) -> dict[str, Any] | None:
    pixels = cached.trace.image
    if pixels is None:
        return None
    axis = cached.trace.axes.get("patches")
    rows, columns = (axis.grid if axis else None) or (0, 0)
    size = {"height": pixels.shape[1], "width": pixels.shape[2]}
    return {"url": f"api/scenes/{cached.id}/picture", "rows": rows, "columns": columns, **size}


def image_png(trace: Trace) -> bytes:
    """The image as the model receives it."""
    assert trace.image is not None
    pixels, written = trace.image.cpu(), BytesIO()
    array = pixels[0] if len(pixels) == 1 else rearrange(pixels, "c h w -> h w c")
    Image.fromarray(array.numpy()).save(written, "PNG")
    return written.getvalue()


# --- Python code ---


def python_code(cached: CachedTrace) -> str:
    """Code that computes the same trace with the public interface."""
    request, trace = cached.trace.request, cached.trace
    folder = "run" if cached.folder is None else str(cached.folder)
    text = "image.png" if trace.image is not None else request.text
    options: dict[str, object] = {"question": request.question, "target": request.target, "beam": request.beam}
    words = [repr(folder), repr(text), *(f"{name}={value!r}" for name, value in options.items() if value is not None)]
    words += [f"more={request.more}"] if request.more else []
    how = ", ".join(words)
    lines = (
        [] if cached.checkpoint is None else [f"# checkpoint of step {cached.checkpoint}: load it with --checkpoint"]
    )
    lines += [] if not request.prefix and request.ids is None else ["# then branches: trace.branch(step, token)"]
    if not request.edits:
        return "\n".join(
            [
                *lines,
                "from regard.see import trace_model",
                "",
                f"trace = trace_model({how})",
                "print(trace.output_text)\n",
            ]
        )
    used = sorted({"Edits", "compare", "trace_model", *(KINDS[name].__name__ for name in request.edits.to_dict())})
    return "\n".join(
        [
            *lines,
            f"from regard.see import {', '.join(used)}",
            "",
            f"edits = Edits(\n{edits_code(request.edits)})",
            f"before = trace_model({how})",
            f"after = trace_model({how}, edits=edits)",
            "print(compare(before, after))\n",
        ]
    )


def edits_code(edits: Edits) -> str:
    return "".join(f"    {name}={getattr(edits, name)!r},\n" for name in KINDS if getattr(edits, name))
