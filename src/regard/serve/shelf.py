"""Folders of runs in; their models by name out, each loaded once, and again when its files are others."""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from regard.models.weights import load_weights
from regard.see.scene import LEARNERS, learner_of
from regard.serve.examples import example_of, question_of
from regard.serve.wire import Refused
from regard.tasks.kept import Kept, described
from regard.tasks.run_folder import CHECKPOINTS, WEIGHTS, checkpoints, place
from regard.tasks.tables import task_in

Stamp = tuple[tuple[str, int, int], ...]
MOST_CHECKPOINTS = 4  # of all models together, in memory


class Book:
    """One model: where it lies, and what was loaded from there."""

    def __init__(
        self, name: str, folder: Path | None, learner: Kept | None, device: str, checkpoint: str | None = None
    ):
        self.name, self.folder, self.device, self.checkpoint = name, folder, device, checkpoint
        self.lock, self.learner, self.edition = Lock(), learner, 0
        self.stamp: Stamp = ()

    def read(self) -> Kept:
        """The model as its files are now."""
        with self.lock:
            if self.folder is None:
                assert self.learner is not None
                return self.learner
            if self.learner is None or stamp_of(self.folder) != self.stamp:
                self.load(self.folder)
            assert self.learner is not None
            return self.learner

    def load(self, folder: Path) -> None:
        """Once more, where somebody writes the files at this very moment."""
        again = self.learner is not None
        for last in (False, True):
            before = stamp_of(folder)
            try:
                learner = learner_of(folder, self.device, self.checkpoint)
            except (ValueError, OSError) as error:
                if not again:
                    raise
                if last:
                    why = " ".join(str(error).split())
                    raise Refused(
                        f"the files of {self.name} changed and cannot be read ({why}); put them back, then ask again",
                        409,
                    ) from None
                continue
            if stamp_of(folder) == before or last:
                self.learner, self.stamp, self.edition = learner, before, self.edition + 1
                return


class Shelf:
    """Models by name."""

    def __init__(self, books: Iterable[Book]):
        self.books = {book.name: book for book in books}
        self.earlier: OrderedDict[tuple[str, int, int], Kept] = OrderedDict()
        self.lock = Lock()
        if not self.books:
            raise ValueError("there is no model to show; name the folder of a run")

    @staticmethod
    def of(folders: Iterable[Path], device: str = "cpu", checkpoint: str | None = None) -> "Shelf":
        """Every model is loaded at once, so that mistakes show before anybody looks."""
        books: dict[str, Book] = {}
        for folder in folders:
            books |= {(name := free(folder.resolve().name, books)): Book(name, folder, None, device, checkpoint)}
        shelf = Shelf(books.values())
        for book in shelf.books.values():
            book.read()
        return shelf

    @staticmethod
    def holding(learners: Mapping[str, Kept]) -> "Shelf":
        """Models that lie in no folder."""
        return Shelf(Book(name, None, learner, "cpu") for name, learner in learners.items())

    def book(self, name: str | None) -> Book:
        if name is None and len(self.books) == 1:
            return next(iter(self.books.values()))
        if name not in self.books:
            raise Refused(f"there is no model {name!r:.80}; there are {', '.join(self.books)}", 404)
        return self.books[name]

    def learner(self, name: str | None, step: int | None = None) -> Kept:
        """The trained model, or as it was at an earlier step."""
        book = self.book(name)
        return book.read() if step is None else self.at(book, step)

    def steps(self, name: str) -> list[int]:
        """Of the checkpoints that are kept."""
        folder = self.book(name).folder
        return [] if folder is None else [int(path.name) for path in checkpoints(folder / CHECKPOINTS)]

    def training(self, name: str) -> dict[str, Any]:
        """The checkpoints that are kept, the step whose weights became the model's, and the held-out loss by step."""
        folder, steps = self.book(name).folder, self.steps(name)
        untold = {"checkpoints": steps}
        if folder is None or not steps:
            return untold
        try:
            state = (place(folder / "checkpoints", steps[-1]) / "state.json").read_text(encoding="utf-8")
            progress = json.loads(state)["progress"]
            history = [{"step": one["step"], "loss": one["loss"]} for one in progress["history"] if "loss" in one]
            best = progress["best_step"] or steps[-1]
        except (OSError, ValueError, KeyError, TypeError):  # damaged: the weights can be shown all the same
            return untold
        alone = self.learner(name).settings.train.average <= 1
        return {"checkpoints": steps, "final": best if alone else None, "history": history}

    def at(self, book: Book, step: int) -> Kept:
        if step not in (there := self.steps(book.name)):
            steps = f"there are {', '.join(map(str, there))}" if there else "none are kept"
            raise Refused(f"{book.name} has no checkpoint of step {step}; {steps}", 404)
        assert book.folder is not None
        path = place(book.folder / CHECKPOINTS, step) / WEIGHTS
        key = (book.name, step, modified(path))
        with self.lock:
            if key not in self.earlier:
                learner = LEARNERS[task_in(described(book.folder))].described(book.folder)
                load_weights(learner.model, path)
                learner.model.to(book.device).eval()
                self.earlier[key] = learner
                while len(self.earlier) > MOST_CHECKPOINTS:
                    self.earlier.popitem(last=False)
            self.earlier.move_to_end(key)
            return self.earlier[key]

    def listed(self) -> list[dict[str, Any]]:
        return [self.card(name) for name in self.books]

    def card(self, name: str) -> dict[str, Any]:
        learner = self.learner(name)
        task = learner.settings.task
        return {
            "name": name,
            "task": task,
            "what": what_of(learner),
            "example": example_of(learner),
            "question": question_of(learner) or False,
            "picture": task in ("picture", "answer"),
            "checkpoints": self.steps(name),
        }


def what_of(learner: Kept) -> str:
    """One line: the task, the kind of model and its size."""
    settings, data = learner.settings, learner.settings.data
    model = settings.model
    count = sum(x.numel() for x in learner.model.parameters())
    size = f"{count / 1e6:.1f} million" if count >= 1e6 else f"{count:,}"
    between = f" {data.source} → {data.target}" if settings.task == "translate" else ""
    kind = vars(model).get("kind", type(learner.model).__name__.lower())
    return f"{settings.task}{between} · {kind} · {size} parameters"


def stamp_of(folder: Path) -> Stamp:
    """What tells whether any file of a model is another: names, times and sizes."""
    found = []
    try:
        for path in sorted((*folder.glob("*.json"), *folder.glob("*.toml"), *folder.glob("*.safetensors"))):
            known = path.stat()
            found.append((path.name, known.st_mtime_ns, known.st_size))
    except OSError:  # a file that goes while we look: no stamp is ever equal to this one
        return (("", -1, -1),)
    return tuple(found)


def modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise Refused(
            f"{path.parent.name} cannot be read ({error.strerror}); ask for another checkpoint", 409
        ) from None


def free(name: str, taken: Iterable[str]) -> str:
    """The name, or the name and a number."""
    names, number = set(taken), 2
    found = name or "model"
    while found in names:
        found, number = f"{name}-{number}", number + 1
    return found
