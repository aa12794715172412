"""What somebody asks of a model in, as JSON; the scene of it out, made now or kept from before."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.see.edits import Edits
from regard.see.scene import LONGEST, Asked, made
from regard.see.scene_writing import Pair
from regard.serve.examples import Album, question_of
from regard.serve.scenes import Scenes, Showing
from regard.serve.shelf import Shelf
from regard.serve.wire import Refused
from regard.tasks.answer import Answerer
from regard.tasks.classify import TextClassifier
from regard.tasks.kept import Kept
from regard.tasks.rebuild import Rebuilder
from regard.tasks.tag import Tagger
from regard.tasks.translate import Translator
from regard.tasks.write import Author
from regard.text.files import half

LETTERS = 200_000
TOKENS = LONGEST  # of a text that is looked at: its weights are never held together
PAIRED, SEARCHED = 4096, 1024  # of one whose translation is given, and of one from which it is searched for
MORE, USUALLY_MORE, BEAM = 256, 12, 32
MOST_EDITS = 4096
FIELDS = ("model", "text", "question", "target", "beam", "more", "checkpoint", "edits", "picture")


@dataclass(frozen=True)
class Wanted:
    """A question that makes sense: which model, and what it is asked."""

    model: str
    asked: Asked
    text: str
    folder: Path | None
    checkpoint: int | None
    edition: int

    @property
    def key(self) -> tuple[Any, ...]:
        """What two questions with the same answer share."""
        asked = self.asked
        said = (self.text, asked.question, asked.target, asked.beam, asked.more, asked.prefix, asked.ids)
        return self.model, self.checkpoint, self.edition, *said, asked.edits


@dataclass(frozen=True, eq=False)
class Desk:
    """What every answer is made from."""

    shelf: Shelf
    scenes: Scenes
    album: Album

    def scene(self, body: Mapping[str, Any]) -> Showing:
        return self.shown(self.wanted(body))

    def shown(self, wanted: Wanted) -> Showing:
        def make(number: str) -> Showing:
            scene = made(wanted.asked)
            found = self.scenes.arrays
            return Showing(number, wanted.model, scene, wanted.text, wanted.folder, wanted.checkpoint, found)

        return self.scenes.made(wanted.key, make)

    def wanted(self, body: Mapping[str, Any]) -> Wanted:
        if strange := [name for name in body if name not in FIELDS]:
            raise Refused(f"{strange[0]!r:.80} means nothing here; a scene has {', '.join(FIELDS)}")
        step = whole(body, "checkpoint", 0, 2**62)
        book = self.shelf.book(text_in(body, "model") or None)
        learner, edits = self.shelf.learner(book.name, step), edits_in(body)
        task = learner.settings.task
        text, question = text_in(body, "text"), text_in(body, "question")
        read = text
        if task in ("picture", "answer"):
            given = body.get("picture")
            text = text if given in (None, "") else self.album.put(text_in(body, "picture", most=2**26))
            if not text.strip():
                raise Refused("there is no picture; give a PNG or JPEG file, or name an example")
            read = str(self.album.path(text))
        elif body.get("picture"):
            raise Refused(f"{book.name} reads no pictures; give a text")
        if not text.strip():
            raise Refused("the text is empty; give at least one word")
        target, beam = text_in(body, "target") or None, whole(body, "beam", 1, BEAM)
        if task == "answer" and not question.strip():
            question = question_of(learner)
        more = whole(body, "more", 0, MORE)
        more = (USUALLY_MORE if more is None else more) if task == "write" else more or 0
        refuse_long(learner, question if task == "answer" else text, target)
        asked = Asked(learner, read, question or None, target, beam, more, TOKENS + MORE, edits=edits)
        return Wanted(book.name, asked, text, book.folder, step, book.edition)


def text_in(body: Mapping[str, Any], name: str, most: int = LETTERS) -> str:
    """A text of the body; none is empty."""
    text = body.get(name)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise Refused(f"{name} is a text, not {text!r:.80}")
    if len(text) > most:
        raise Refused(f"{name} has {len(text):,} letters, and the page reads at most {most:,}; split it", 413)
    if "\0" in text:
        raise Refused(f"{name} holds a NUL character, which no text does; remove it")
    if at := half(text):
        raise Refused(f"character {at} of {name} is half of a surrogate pair; remove it")
    return text


def whole(body: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    """A whole number of the body, or of an address, where all are texts; None where there is none."""
    value = body.get(name)
    if value is None or value == "":
        return None
    try:
        number = None if isinstance(value, (bool, float)) else int(value)
    except (ValueError, TypeError):
        number = None
    if number is None or not least <= number <= most:
        raise Refused(f"{name} is a whole number from {least} to {most}, not {value!r:.40}")
    return number


def edits_in(body: Mapping[str, Any]) -> Edits:
    """As a table or, in an address, as its JSON."""
    edits = body.get("edits") or {}
    if isinstance(edits, str):
        try:
            edits = json.loads(edits)
        except (ValueError, RecursionError):
            raise Refused("edits are JSON, a table of lists; these cannot be read") from None
    if isinstance(edits, dict) and sum(len(some) for some in edits.values() if isinstance(some, list)) > MOST_EDITS:
        raise Refused(f"there are more than {MOST_EDITS:,} edits; make fewer", 413)
    return Edits.from_dict(edits)


def refuse_long(learner: Kept, text: str, target: str | None) -> None:
    """What would take minutes: each word that is written looks at all words again."""
    why, most = "are looked at; split it", TOKENS
    match learner:
        case Translator() | Rebuilder():
            pair = Pair.of(learner)
            count, most = len(pair.source.encode(text)), PAIRED if target else SEARCHED
            why = "are read beside a target; split it"
            if not target:
                why = f"are written from, word after word; split it, or give a target: then {PAIRED:,} are read"
            elif len(pair.target.encode(target)) > PAIRED:
                raise Refused(f"the target is longer than the {PAIRED:,} tokens that are read; split it", 413)
        case Author() | Tagger() | TextClassifier() | Answerer():
            count = len(learner.words.encode(text))
        case _:
            return
    if count > most:
        raise Refused(f"the text has {count:,} tokens, and at most {most:,} {why}", 413)
