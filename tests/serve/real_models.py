"""The microscope as a person meets it: its own server, small models of every kind, a browser; what its tests share."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save_file

from regard.models.safetensors_io import saveable_tensors
from regard.see import AttentionSite, Trace, trace_model
from regard.serve.model_store import MediaStore, ModelEntry, ModelStore
from regard.tasks.pretrained import PretrainedModel
from tests.see.untrained_models import CAT, generator, image_classifier, translator

from .client import learners

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
QUESTION = "what colour is the circle"
ASKED: dict[str, dict[str, Any]] = {
    **{kind: {"model": kind, "text": CAT} for kind in ("translate", "bahdanau", "tag", "classify", "write", "rebuild")},
    **{kind: {"model": kind, "text": "example 2"} for kind in ("picture", "cnn")},
    "places": {"model": "places", "text": "example 2"},
    "answer": {"model": "answer", "text": "example 2", "question": QUESTION},
}
MATRICES = ["translate", "bahdanau", "tag", "classify", "write", "picture", "answer", "rebuild"]
STEPS = (5, 10)


@contextmanager
def benchmark() -> Iterator[ModuleType]:
    """benchmarks/microscope.py and what it imports: the server and the browser are the same as there."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import microscope

        yield microscope
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in ("microscope", "microscope_shots", "browsing", "machine"):
            sys.modules.pop(name, None)


class House:
    """The models behind the server, and what the library alone says about them."""

    def __init__(self, folder: Path):
        self.learners: dict[str, PretrainedModel] = learners() | {
            "pieces": translator(text="bpe"),
            "letters": generator(text="characters"),
            "places": image_classifier("cnn", attention="spatial"),
        }
        self.folder = folder / "kept"
        self.album = MediaStore()
        self.traces: dict[str, Trace] = {}
        kept = translator()
        kept.save(self.folder)
        for step in STEPS:
            place = self.folder / "checkpoints" / f"{step:08d}"
            place.mkdir(parents=True)
            weights = {name: tensor * (1 + step / 10) for name, tensor in saveable_tensors(kept.model).items()}
            save_file(weights, place / "model.safetensors")

    def store(self, more: dict[str, Any]) -> ModelStore:
        held = ModelStore.from_models(self.learners | more).entries.values()
        return ModelStore([*held, ModelEntry("kept", self.folder, None, "cpu")])

    def trace(self, kind: str) -> Trace:
        """By the library alone."""
        if kind in self.traces:
            return self.traces[kind]
        options: dict[str, Any] = {name: one for name, one in ASKED[kind].items() if name != "model"}
        if options["text"].startswith("example"):
            options["text"] = str(self.album.path("image", options["text"]))
        self.traces[kind] = trace_model(self.learners[kind], **options, more=12 if kind == "write" else 0)
        return self.traces[kind]

    def sites(self, kind: str) -> list[AttentionSite]:
        return [site for site in self.trace(kind).sites.values() if isinstance(site, AttentionSite)]


def stages(site: AttentionSite, head: int) -> dict[str, torch.Tensor]:
    """The four matrices of a head by the reference."""
    seen = site.head(head)
    return {
        "products": (seen.scores if seen.products is None else seen.products).detach(),
        "scores": seen.scores.detach(),
        "masked": seen.adjusted.detach().masked_fill(~seen.visible, -torch.inf),
        "weights": seen.weights.detach(),
    }


def numbers(node: Any) -> list[float]:
    return [float(one) for one in node.evaluate("(node) => [...node.querySelectorAll('data')].map((one) => one.value)")]
