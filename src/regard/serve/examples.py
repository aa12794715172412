"""A model in; something to try it on out: a sentence, a picture of coloured shapes, a question, a node's name."""

import base64
import binascii
import hashlib
import tempfile
from collections import OrderedDict
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any

from PIL import Image

from regard.serve.wire import Refused
from regard.tasks.kept import Kept
from regard.text.images import decode
from regard.text.vocabulary import BOS, EOS, PAD, UNK
from regard.world import LECTURE, known
from regard.world.questions import ask
from regard.world.shapes import ShapeWorld

SPECIAL = max(PAD, BOS, EOS, UNK) + 1
SENTENCE = "the black cat ate the mouse"
PICTURES = tuple(f"example {number}" for number in range(1, 7))
FREQUENT = 1000  # ids among which an example's words are looked for: vocabularies begin with what is frequent
MOST = 64  # pictures that people gave, kept
MOST_PIXELS = 2**24  # of one: read and written it takes some 300 MB


def example_of(learner: Kept) -> str:
    match learner.settings.task:
        case "picture" | "answer":
            return PICTURES[0]
        case "graph":
            from regard.tasks.graph import trained_on

            return trained_on(learner.settings.data).nodes[0].name
        case "translate" if learner.settings.data.corpus == "world" and learner.settings.data.source != "en":
            sentence = known(SENTENCE) or LECTURE[0]
            return " ".join(sentence.said(learner.settings.data.source))
    if learner.settings.data.corpus == "world":
        return SENTENCE
    return first_words(learner.parts["source" if learner.settings.task == "translate" else "words"])


def first_words(tokeniser: Any, count: int = 6) -> str:
    """A few of the most frequent words that a model knows: of what it was trained on there may be nothing here."""
    words = (tokeniser.decode([id]).strip() for id in range(SPECIAL, min(tokeniser.size, FREQUENT)))
    known = dict.fromkeys(word for word in words if word.isalpha())
    longer = [word for word in known if len(word) > 1] or list(known)  # a model that spells knows letters alone
    return " ".join(longer[:count]) or SENTENCE


def question_of(learner: Kept) -> str:
    return ask(world(), 0, "test").question.text if learner.settings.task == "answer" else ""


def world() -> ShapeWorld:
    return ShapeWorld(fewest=1, most=1)


class Album:
    """Pictures by name, as files that a model can read: examples, and what people gave. A name is never a path."""

    def __init__(self):
        self.held: tempfile.TemporaryDirectory[str] | None = None
        self.given: OrderedDict[str, Path] = OrderedDict()
        self.lock = Lock()

    @property
    def folder(self) -> Path:
        """Made for the first picture; most servers show none."""
        self.held = self.held or tempfile.TemporaryDirectory(prefix="regard-")
        return Path(self.held.name)

    def close(self) -> None:
        with self.lock:
            if self.held is not None:
                self.held.cleanup()
            self.held = None
            self.given.clear()

    def path(self, name: str) -> Path:
        with self.lock:
            if name in self.given:
                self.given.move_to_end(name)
                return self.given[name]
            if name in PICTURES:
                path = self.folder / f"{name}.png"
                if not path.exists():
                    Image.fromarray(world().scene(PICTURES.index(name), "test").pixels()).save(path)
                return path
        raise Refused(f"there is no picture {name!r:.80}; give one as a file, or name {PICTURES[0]} to {PICTURES[-1]}")

    def put(self, encoded: str) -> str:
        """The name under which a picture in base64 is kept from now on."""
        try:
            held = base64.b64decode(
                encoded.partition(",")[2] if encoded.startswith("data:") else encoded, validate=True
            )
        except (binascii.Error, ValueError):
            raise Refused("the picture is not base64; send a PNG or JPEG file") from None
        name = f"picture {hashlib.sha256(held).hexdigest()[:12]}"
        with self.lock:  # one after the other: a picture in the open is large
            pixels = decode(held, "the picture", most_pixels=MOST_PIXELS)  # whatever is no picture is refused here
            path = self.folder / f"{name}.png"
            written = BytesIO()
            Image.fromarray(pixels).save(written, "PNG")
            path.write_bytes(written.getvalue())
            self.given[name] = path
            while len(self.given) > MOST:
                self.given.popitem(last=False)[1].unlink(missing_ok=True)
        return name
