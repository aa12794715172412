"""A scene in; what the page knows of it out, ready for JSON: what was said, axes, words, sites, and Python to copy."""

from io import BytesIO
from typing import Any

from einops import rearrange
from PIL import Image

from regard.attention.given import Padding
from regard.attention.pattern import And, Full, Pattern
from regard.see.edits import KINDS, Edits
from regard.see.opening import opening
from regard.see.scene import Axis, Scene
from regard.see.trace import Gate, Site
from regard.see.views import code
from regard.serve.scenes import Showing
from regard.serve.stages import score_text

MOST_OPTIONS = 100  # of an outcome, when it is no text
LONGEST = 160  # letters of a part of a recipe


def described(showing: Showing) -> dict[str, Any]:
    scene = showing.scene
    return {
        "id": showing.id,
        "model": showing.model,
        "task": scene.task,
        "text": showing.text,
        "question": scene.asked.question or "",
        "checkpoint": showing.checkpoint,
        "said": scene.said,
        "output": output(scene),
        "axes": {name: list(axis.labels) for name, axis in scene.axes.items()},
        "words": {name: words(axis) for name, axis in scene.axes.items() if axis.words},
        "sites": [site_card(site) for site in scene.sites.values()],
        "opening": None if (first := opening(scene, showing.folder)) is None else vars(first),
        "steps": 0 if scene.written is None else len(scene.outcome.rows),
        "given": scene.given,
        "unknown": list(scene.unknown),
        "gold": sorted(map(list, scene.gold)) or None,
        "picture": picture(showing),
        "edits": scene.asked.edits.to_dict(),
        "python": python(showing),
    }


def output(scene: Scene) -> dict[str, Any] | None:
    """Of one choice its options, the most probable first; of several, as tags, the best of each; of a text nothing."""
    if scene.written is not None:
        return None
    if len(scene.outcome.rows) == 1:
        best = scene.outcome.best(0, MOST_OPTIONS)
        return {"labels": [name for name, _ in best], "probabilities": [share for _, share in best], "rows": None}
    best = [scene.outcome.best(row, 1)[0] for row in range(len(scene.outcome.rows))]
    return {
        "labels": [name for name, _ in best],
        "probabilities": [share for _, share in best],
        "rows": list(scene.outcome.rows),
    }


def words(axis: Axis) -> list[list[Any]]:
    """Each with its first and last place."""
    places: dict[int, list[int]] = {}
    for place, word in enumerate(axis.word_of):
        if word is not None:
            places.setdefault(word, []).append(place)
    return [[axis.words[word], min(some), max(some)] for word, some in sorted(places.items())]


def site_card(site: Site | Gate) -> dict[str, Any]:
    spot = site.spot
    shared = {"name": site.name, "queries": spot.queries, "keys": spot.keys}
    if isinstance(site, Gate):
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
        "score": score_text(recipe.score)[:LONGEST],
        **{name: code(part)[:LONGEST] for name, part in parts.items()},
        "shown": True,
        "why": site.note,
    }


def without_padding(pattern: Pattern) -> Pattern:
    """One sentence alone has no padding, so saying it would only puzzle."""
    if isinstance(pattern, And):
        left, right = without_padding(pattern.left), without_padding(pattern.right)
        return right if left == Full() else left if right == Full() else And(left, right)
    return Full() if isinstance(pattern, Padding) else pattern


def picture(showing: Showing) -> dict[str, Any] | None:
    pixels = showing.scene.picture
    if pixels is None:
        return None
    axis = showing.scene.axes.get("patches")
    rows, columns = (axis.grid if axis else None) or (0, 0)
    size = {"height": pixels.shape[1], "width": pixels.shape[2]}
    return {"url": f"api/scenes/{showing.id}/picture", "rows": rows, "columns": columns, **size}


def png(scene: Scene) -> bytes:
    """The picture as the model was given it."""
    assert scene.picture is not None
    pixels, written = scene.picture.cpu(), BytesIO()
    array = pixels[0] if len(pixels) == 1 else rearrange(pixels, "c h w -> h w c")
    Image.fromarray(array.numpy()).save(written, "PNG")
    return written.getvalue()


# --- as Python ---


def python(showing: Showing) -> str:
    """Lines that make the same scene with the public interface."""
    asked, scene = showing.scene.asked, showing.scene
    folder = "run" if showing.folder is None else str(showing.folder)
    text = "picture.png" if scene.picture is not None else asked.text
    given: dict[str, object] = {"question": asked.question, "target": asked.target, "beam": asked.beam}
    words = [repr(folder), repr(text), *(f"{name}={value!r}" for name, value in given.items() if value is not None)]
    words += [f"more={asked.more}"] if asked.more else []
    how = ", ".join(words)
    lines = [] if showing.checkpoint is None else [f"# of an earlier step, {showing.checkpoint}, the page alone knows"]
    lines += [] if not asked.prefix and asked.ids is None else ["# and then other tokens: scene.branch(step, token)"]
    if not asked.edits:
        return "\n".join(
            [*lines, "from regard.see import scene_of", "", f"scene = scene_of({how})", "print(scene.said)\n"]
        )
    used = sorted({"Edits", "compare", "scene_of", *(KINDS[name].__name__ for name in asked.edits.to_dict())})
    return "\n".join(
        [
            *lines,
            f"from regard.see import {', '.join(used)}",
            "",
            f"edits = Edits(\n{edits_in(asked.edits)})",
            f"before = scene_of({how})",
            f"after = scene_of({how}, edits=edits)",
            "print(compare(before, after))\n",
        ]
    )


def edits_in(edits: Edits) -> str:
    return "".join(f"    {name}={getattr(edits, name)!r},\n" for name in KINDS if getattr(edits, name))
