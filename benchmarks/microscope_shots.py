"""Screenshots of every view of the microscope, light and dark, as small PNG files."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from browsing import PageViewer
from regard.serve.model_store import ModelStore

CAT, QUESTION = "the black cat ate the mouse", "what colour is the circle"
TRAINED: dict[str, dict[str, Any]] = {
    "transformer": {"train.keep_checkpoints": 99, "train.validate_every": 500},
    "bahdanau": {"model.kind": "bahdanau", "model.layers": 1, "model.model": 128, "model.hidden": 128},
    "writer": {"task": "language_modeling"},
    "shapes": {"task": "image_classification"},
    "gated": {
        "task": "image_classification",
        "model.kind": "cnn",
        "model.width": 16,
        "train.steps": 400,
        "train.validate_every": 100,
    },
    "answers": {"task": "vqa"},
}
CROSS: dict[str, Any] = {
    "model": "transformer",
    "text": CAT,
    "site": "decoder.0.cross",
    "head": 1,
    "query": 2,
    "key": 1,
}
OFF = {"off": [{"site": "decoder.1.cross", "head": head} for head in (1, 2, 3)]}
VIEWS: dict[str, dict[str, Any]] = {
    "start": CROSS | {"site": "decoder.1.cross", "head": 2},
    "explain": CROSS | {"explain": {"method": "integrated-gradients", "row": 2}},
    "model": CROSS,
    "row": CROSS,
    "overview": CROSS,
    "matrix": CROSS,
    "lines": CROSS | {"site": "decoder.1.self", "head": 0, "query": 5},
    "alignment": CROSS,
    "pair": CROSS,
    "generation": CROSS | {"step": 2},
    "beam": CROSS,
    "overlay": {"model": "answers", "text": "example 2", "question": QUESTION, "site": "look.1.cross", "query": 4},
    "gates": {"model": "gated", "text": "example 2"},
    "whatif": CROSS | {"site": "decoder.1.cross", "edits": OFF},
    "corpus": CROSS | {"corpus": {"count": 1000}},
    "comparison": CROSS | {"other": {"model": "bahdanau"}},
    "training": CROSS,
    "positions": {"positions": {"kind": "sinusoidal", "length": 64, "width": 64}},
    "masks": {"mask": {"pattern": "Causal() & (Window(8) | Global(2))", "length": 64, "block": 8}},
    "lecture": {"lecture": "3.1"},
}
SIZE, SHARP, MOST = {"width": 1280, "height": 800}, 2, 200_000


def shelf_of_runs(folder: Path) -> ModelStore:
    """The models of the pictures, trained where they are missing."""
    from regard.cli.train import train_run
    from regard.tasks.train_request import TrainRequest

    for name, settings in TRAINED.items():
        if not (folder / name / "model.safetensors").exists():
            more = {key: value for key, value in settings.items() if key != "task"}
            train_run(TrainRequest(folder / name, overrides=more, device="cpu", task=settings.get("task")))
    return ModelStore.from_folders([folder / name for name in TRAINED])


def shoot(browser: Any, address: str, folder: Path, only: str | None = None) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    names = only.split(",") if only else list(VIEWS)
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport=SIZE, device_scale_factor=SHARP, color_scheme=scheme)
        viewer = PageViewer(context.new_page(), address)
        for view in names:
            viewer.turn(view, **VIEWS[view])
            settle(viewer)
            path = folder / f"microscope-{view}{'' if scheme == 'light' else '-dark'}.png"
            path.write_bytes(small(viewer.page.screenshot(type="png")))
            yield path
        assert not viewer.wrong, viewer.wrong
        context.close()


def settle(viewer: PageViewer) -> None:
    """Until no request is open and everything has been painted."""
    frames, rows = (f"document.querySelectorAll('{one}').length" for one in (".frame canvas", ".seen tr"))
    viewer.until(f"{frames} <= {rows}")
    viewer.until("!window.pending")
    viewer.page.wait_for_timeout(400)


def small(png: bytes, most: int = MOST) -> bytes:
    """The same picture in few colours, and if that is not enough, in fewer."""
    image, written = Image.open(BytesIO(png)).convert("RGB"), BytesIO()
    for colours in (256, 128, 64, 32):
        written = BytesIO()
        image.quantize(colours, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
        if written.tell() <= most:
            break
    return written.getvalue()
