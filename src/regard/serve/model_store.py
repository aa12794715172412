"""Loaded models by name, reloaded when their files change, with example inputs, uploaded images and sounds."""

import base64
import binascii
import hashlib
import json
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any

from PIL import Image

from regard.data.images import decode_image
from regard.data.preprocess import EXAMPLE_SOUND, SPEECH_RATE, decode_wav, example_wav
from regard.models.safetensors_io import load_weights
from regard.see.trace import load_pretrained
from regard.serve.encoding import RequestError
from regard.tasks.image_batches import EXAMPLE_IMAGES, example_world
from regard.tasks.own_parts import OwnParts
from regard.tasks.pretrained import PretrainedModel
from regard.tasks.registry import get_task, task_of_run
from regard.training.checkpoint import CHECKPOINTS, WEIGHTS, checkpoint_path, checkpoints, read_example

MAX_UPLOADS = 64  # uploaded images and sounds kept
MAX_PIXELS = 2**24  # of an image: decoding and encoding it takes about 300 MB


class MediaStore:
    """Images and sounds by name, as files: examples and uploads. A name is never a path."""

    def __init__(self):
        self.folder_handle: tempfile.TemporaryDirectory[str] | None = None
        self.uploads: OrderedDict[str, Path] = OrderedDict()
        self.lock = Lock()

    @property
    def folder(self) -> Path:
        """Created for the first file."""
        self.folder_handle = self.folder_handle or tempfile.TemporaryDirectory(prefix="regard-")
        return Path(self.folder_handle.name)

    def close(self) -> None:
        with self.lock:
            if self.folder_handle is not None:
                self.folder_handle.cleanup()
            self.folder_handle = None
            self.uploads.clear()

    def path(self, kind: str, name: str) -> Path:
        """The file of an upload or of an example; `kind` is image or audio."""
        with self.lock:
            if name in self.uploads:
                self.uploads.move_to_end(name)
                return self.uploads[name]
            if name in EXAMPLES[kind]:
                path = self.folder / f"{name}{SUFFIXES[kind]}"
                if not path.exists():
                    path.write_bytes(example_file(kind, name))
                return path
        named = " to ".join(dict.fromkeys((EXAMPLES[kind][0], EXAMPLES[kind][-1])))
        what = "image" if kind == "image" else "sound"
        raise RequestError(f"there is no {what} {name!r:.80}; upload a file, or name {named}")

    def put(self, kind: str, encoded: str) -> str:
        """Stores an image or a sound in base64; returns its name."""
        what, formats = ("image", "PNG or JPEG") if kind == "image" else ("sound", ".wav")
        try:
            held = base64.b64decode(
                encoded.partition(",")[2] if encoded.startswith("data:") else encoded, validate=True
            )
        except (binascii.Error, ValueError):
            raise RequestError(f"the {what} is not base64; send a {formats} file") from None
        name = f"{what} {hashlib.sha256(held).hexdigest()[:12]}"
        with self.lock:  # one at a time: a decoded image is large
            path = self.folder / f"{name}{SUFFIXES[kind]}"
            path.write_bytes(readable_file(kind, held))
            self.uploads[name] = path
            while len(self.uploads) > MAX_UPLOADS:
                self.uploads.popitem(last=False)[1].unlink(missing_ok=True)
        return name


EXAMPLES = {"image": EXAMPLE_IMAGES, "audio": (EXAMPLE_SOUND,)}
SUFFIXES = {"image": ".png", "audio": ".wav"}


def example_file(kind: str, name: str) -> bytes:
    if kind == "audio":
        return example_wav()
    return png_bytes(example_world().scene(EXAMPLE_IMAGES.index(name), "test").pixels())


def readable_file(kind: str, held: bytes) -> bytes:
    """An upload as it is kept; what is no image or no sound is refused."""
    if kind == "audio":
        decode_wav(held, "the sound", SPEECH_RATE)
        return held
    return png_bytes(decode_image(held, "the image", most_pixels=MAX_PIXELS))


def png_bytes(pixels: Any) -> bytes:
    written = BytesIO()
    Image.fromarray(pixels).save(written, "PNG")
    return written.getvalue()


# --- models ---


Fingerprint = tuple[tuple[str, int, int], ...]
MAX_CHECKPOINTS = 4  # of all models together, in memory


class ModelEntry:
    """One model: its folder, and what was loaded from it."""

    def __init__(
        self,
        name: str,
        folder: Path | None,
        task_model: PretrainedModel | None,
        device: str,
        checkpoint: str | None = None,
        own_parts: OwnParts = OwnParts(),
    ):
        self.name, self.folder, self.device, self.checkpoint = name, folder, device, checkpoint
        self.own_parts = own_parts
        self.lock, self.model, self.version = Lock(), task_model, 0
        self.fingerprint: Fingerprint = ()

    def current_model(self) -> PretrainedModel:
        """The model as its files are now."""
        with self.lock:
            if self.folder is None:
                assert self.model is not None
                return self.model
            if self.model is None or fingerprint_folder(self.folder) != self.fingerprint:
                self.load(self.folder)
            assert self.model is not None
            return self.model

    def load(self, folder: Path) -> None:
        """Loads; tries twice if the files change meanwhile."""
        again = self.model is not None
        for last in (False, True):
            before = fingerprint_folder(folder)
            try:
                task_model = load_pretrained(folder, self.device, self.checkpoint, self.own_parts)
            except (ValueError, OSError) as error:
                if not again:
                    raise
                if last:
                    why = " ".join(str(error).split())
                    raise RequestError(
                        f"the files of {self.name} changed and cannot be read ({why}); restore them, then ask again",
                        409,
                    ) from None
                continue
            if fingerprint_folder(folder) == before or last:
                self.model, self.fingerprint, self.version = task_model, before, self.version + 1
                return


class ModelStore:
    """Models by name."""

    def __init__(self, entries: Iterable[ModelEntry]):
        self.entries = {entry.name: entry for entry in entries}
        self.checkpoints: OrderedDict[tuple[str, int, int], PretrainedModel] = OrderedDict()
        self.lock = Lock()
        if not self.entries:
            raise ValueError("no model given; name a run folder")

    @staticmethod
    def from_folders(
        folders: Iterable[Path], device: str = "cpu", checkpoint: str | None = None, own_parts: OwnParts = OwnParts()
    ) -> "ModelStore":
        """Loads every model at once, so that errors show at the start."""
        entries: dict[str, ModelEntry] = {}
        for folder in folders:
            entries |= {
                (name := unique_name(folder.resolve().name, entries)): ModelEntry(
                    name, folder, None, device, checkpoint, own_parts
                )
            }
        store = ModelStore(entries.values())
        for entry in store.entries.values():
            entry.current_model()
        return store

    @staticmethod
    def from_models(task_models: Mapping[str, PretrainedModel]) -> "ModelStore":
        """Models in memory."""
        return ModelStore(ModelEntry(name, None, task_model, "cpu") for name, task_model in task_models.items())

    def entry(self, name: str | None) -> ModelEntry:
        if name is None and len(self.entries) == 1:
            return next(iter(self.entries.values()))
        if name not in self.entries:
            raise RequestError(f"there is no model {name!r:.80}; there are {', '.join(self.entries)}", 404)
        return self.entries[name]

    def model(self, name: str | None, step: int | None = None) -> PretrainedModel:
        """The trained model, or as it was at an earlier step."""
        entry = self.entry(name)
        return entry.current_model() if step is None else self.load_checkpoint(entry, step)

    def steps(self, name: str) -> list[int]:
        """Of the checkpoints that are kept."""
        folder = self.entry(name).folder
        return [] if folder is None else [int(path.name) for path in checkpoints(folder / CHECKPOINTS)]

    def training_history(self, name: str) -> dict[str, Any]:
        """The checkpoints that are kept, the step whose weights became the model's, and the held-out loss by step."""
        folder, steps = self.entry(name).folder, self.steps(name)
        untold = {"checkpoints": steps}
        if folder is None or not steps:
            return untold
        try:
            state = (checkpoint_path(folder / "checkpoints", steps[-1]) / "state.json").read_text(encoding="utf-8")
            progress = json.loads(state)["progress"]
            history = [{"step": one["step"], "loss": one["loss"]} for one in progress["history"] if "loss" in one]
            best = progress["best_step"] or steps[-1]
        except (OSError, ValueError, KeyError, TypeError):  # damaged: the weights can be shown all the same
            return untold
        alone = self.model(name).settings.train.average_checkpoints <= 1
        return {"checkpoints": steps, "final": best if alone else None, "history": history}

    def load_checkpoint(self, entry: ModelEntry, step: int) -> PretrainedModel:
        if step not in (there := self.steps(entry.name)):
            steps = f"there are {', '.join(map(str, there))}" if there else "none are kept"
            raise RequestError(f"{entry.name} has no checkpoint of step {step}; {steps}", 404)
        assert entry.folder is not None
        path = checkpoint_path(entry.folder / CHECKPOINTS, step) / WEIGHTS
        key = (entry.name, step, modified_time(path))
        with self.lock:
            if key not in self.checkpoints:
                task_model = task_of_run(entry.folder).task_model.from_description(entry.folder, entry.own_parts)
                load_weights(task_model.model, path)
                task_model.model.to(entry.device).eval()
                self.checkpoints[key] = task_model
                while len(self.checkpoints) > MAX_CHECKPOINTS:
                    self.checkpoints.popitem(last=False)
            self.checkpoints.move_to_end(key)
            return self.checkpoints[key]

    def describe_all(self) -> list[dict[str, Any]]:
        return [self.describe(name) for name in self.entries]

    def describe(self, name: str) -> dict[str, Any]:
        task_model = self.model(name)
        task = get_task(task_model.settings.task)
        example, folder = task.example_input(task_model), self.entry(name).folder
        text = read_example(folder) if folder else ""
        return {
            "name": name,
            "task": task.name,
            "what": describe_model(task_model),
            "example": text or example.text,
            "question": example.question or False,
            "picture": task.inputs.kind == "image",
            "sound": task.inputs.kind == "audio",
            "checkpoints": self.steps(name),
        }


def describe_model(task_model: PretrainedModel) -> str:
    """One line: the task, the kind of model and its size."""
    task = get_task(task_model.settings.task)
    count = sum(x.numel() for x in task_model.model.parameters())
    size = f"{count / 1e6:.1f} million" if count >= 1e6 else f"{count:,}"
    details = task.describe(task_model)
    kind = vars(task_model.settings.model).get("kind", type(task_model.model).__name__.lower())
    return f"{task.name}{details and f' {details}'} · {kind} · {size} parameters"


def fingerprint_folder(folder: Path) -> Fingerprint:
    """Names, times and sizes of a model's files, to detect changes."""
    found = []
    try:
        for path in sorted((*folder.glob("*.json"), *folder.glob("*.toml"), *folder.glob("*.safetensors"))):
            known = path.stat()
            found.append((path.name, known.st_mtime_ns, known.st_size))
    except OSError:  # a file was removed meanwhile: equal to no other fingerprint
        return (("", -1, -1),)
    return tuple(found)


def modified_time(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise RequestError(
            f"{path.parent.name} cannot be read ({error.strerror}); choose another checkpoint", 409
        ) from None


def unique_name(name: str, taken: Iterable[str]) -> str:
    """The name, or the name and a number."""
    names, number = set(taken), 2
    found = name or "model"
    while found in names:
        found, number = f"{name}-{number}", number + 1
    return found
