"""A model and an input in; what it said, from which scores, and every attention on the way out: a scene.

    scene = scene_of("run", "the black cat ate the mouse")
    scene.said, scene.axes["source"].labels, list(scene.sites)
    scene.sites["decoder.0.cross"].head(1).weights       rows are scene.axes["written"], columns scene.axes["source"]
    scene.next_tokens(2), scene.branch(2, "chat"), scene.beam_tree()

It works for all tasks, and with edits (see edits.py). A generated text is looked at as it was chosen in the end: its
decoder's sites are those of reading exactly these tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.decode.alignment import Links
from regard.decode.texts import unknown_words
from regard.see.attending import Tracing, extents
from regard.see.beam_tree import BeamTree
from regard.see.edits import Edits, refuse_unknown
from regard.see.swaps import swapped
from regard.see.trace import Gate, Site
from regard.tasks.answer import Answerer
from regard.tasks.classify import TextClassifier
from regard.tasks.graph import Labeller
from regard.tasks.kept import Kept, described
from regard.tasks.picture import Recogniser
from regard.tasks.rebuild import Rebuilder
from regard.tasks.tables import task_in
from regard.tasks.tag import Tagger
from regard.tasks.translate import Translator
from regard.tasks.write import Author
from regard.text.vocabulary import Tokeniser

LONGEST = 16_384  # tokens of an input, unless more are allowed

LEARNERS: dict[str, type[Kept]] = {
    "translate": Translator,
    "tag": Tagger,
    "classify": TextClassifier,
    "write": Author,
    "picture": Recogniser,
    "answer": Answerer,
    "graph": Labeller,
    "rebuild": Rebuilder,
}


@dataclass(frozen=True)
class Axis:
    """What stands along a side of a site's matrices: a label for each place, and the words that places belong to."""

    labels: tuple[str, ...]
    words: tuple[str, ...] = ()
    word_of: tuple[int | None, ...] = ()  # None: no word, as the end of a sentence; empty: there are no words
    grid: tuple[int, int] | None = None  # rows and columns of a picture's patches, which are the last places

    @property
    def groups(self) -> list[tuple[str, list[int]]]:
        """Each word with its places, in their order; what is no word stands for itself."""
        found: dict[object, tuple[str, list[int]]] = {}
        for place, label in enumerate(self.labels):
            word = self.word_of[place] if self.word_of else None
            key, name = (("place", place), label) if word is None else (word, self.words[word])
            found.setdefault(key, (name, []))[1].append(place)
        return list(found.values())


def by_word(weights: Float[Tensor, "i j"], queries: Axis, keys: Axis) -> Float[Tensor, "words other_words"]:
    """Pieces to words: summed over a key's pieces, averaged over a query's."""
    summed = torch.stack([weights[:, places].sum(1) for _, places in keys.groups], 1)
    return torch.stack([summed[places].mean(0) for _, places in queries.groups])


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the model chose from: for each row (a label, a word's tag, a token written) a score for each option."""

    rows: tuple[str, ...]
    logits: Float[Tensor, "rows options"]
    name: Callable[[int], str] = field(repr=False)  # of an option

    def probabilities(self, row: int) -> Float[Tensor, " options"]:
        if not 0 <= row < len(self.rows):
            raise ValueError(f"there is no step {row}; they are counted from 0 to {len(self.rows) - 1}")
        return self.logits[row].double().softmax(-1).float()

    def best(self, row: int, count: int = 5) -> list[tuple[str, float]]:
        """The options that are most probable."""
        found = self.probabilities(row)
        top = found.topk(min(count, len(found)))
        return [(self.name(n), p) for n, p in zip(top.indices.tolist(), top.values.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class Asked:
    """What a scene is made from; see `scene_of`."""

    learner: Kept = field(repr=False)
    text: str
    question: str | None = None
    target: str | None = None
    beam: int | None = None
    more: int = 0
    longest: int = LONGEST
    prefix: tuple[int, ...] = ()  # what the written text must begin with
    ids: tuple[int, ...] | None = None  # all of it, if it is known
    edits: Edits = Edits()

    def refuse_long(self, tokens: int) -> None:
        if tokens > self.longest:
            raise ValueError(f"{tokens:,} tokens are too many to look at; shorten it, or allow them: longest={tokens}")


@dataclass(frozen=True, eq=False)
class Scene:
    """What one model made of one input. Arrays are on the model's device; there is one sentence, number 0."""

    asked: Asked
    task: str
    said: str
    axes: Mapping[str, Axis]
    sites: Mapping[str, Site | Gate]  # in the order they ran; empty for a model without attention
    outcome: Outcome
    gold: Links = frozenset()  # (source word, target word), where the miniature world knows them
    picture: UInt8[Tensor, "c h w"] | None = None  # as the model was given it
    written: tuple[int, ...] | None = None  # ids of the text that was generated, or read to be gone on with
    given: int = 0  # steps whose tokens were not chosen: a prompt's, or a target's

    def site(self, name: str) -> Site:
        """An attention by its name; a gate has no heads and is found in `sites`."""
        if not isinstance(found := self.sites.get(name), Site):
            there = [name for name, site in self.sites.items() if isinstance(site, Site)]
            raise ValueError(f"there is no site {name!r:.80}; there are {', '.join(there) or 'none'}")
        return found

    def words(self, name: str, head: int) -> Float[Tensor, "words other_words"]:
        """The weights of one head between words."""
        spot = self.site(name).spot
        pooled = Axis((spot.queries,))
        return by_word(self.site(name).head(head).weights, self.axes.get(spot.queries, pooled), self.axes[spot.keys])

    @property
    def unknown(self) -> tuple[str, ...]:
        """The words that the model has no id for, each once: what it makes of them is a guess."""
        asked, learner = self.asked, self.asked.learner
        texts: list[tuple[Tokeniser, str]] = []
        match learner:
            case Translator():
                texts = [(learner.source, swapped(asked.text, asked.edits)), (learner.target, asked.target or "")]
            case Answerer():
                texts = [(learner.words, swapped(asked.question or "", asked.edits))]
            case Rebuilder() | Author() | Tagger() | TextClassifier():
                texts = [(learner.words, swapped(asked.text, asked.edits)), (learner.words, asked.target or "")]
        return tuple(dict.fromkeys(word for words, text in texts for word in unknown_words(words, text)))

    def to_python(self, model: str = "run") -> str:
        """Lines that make this scene from the folder of its model, and compare it with the one without edits."""
        asked = {name: getattr(self.asked, name) for name in ("question", "target", "beam", "more")}
        return self.asked.edits.to_python(model, self.asked.text, {name: one for name, one in asked.items() if one})

    # --- generated text ---

    def next_tokens(self, step: int) -> Float[Tensor, " vocabulary"]:
        """The probability of every token at one step, given those before it; `outcome.name` names them."""
        self.generated()
        return self.outcome.probabilities(step)

    def branch(self, step: int, token: int | str) -> "Scene":
        """The same up to a step, then this token, then whatever the model makes of it."""
        from regard.see.scene_writing import branched

        return branched(self, self.generated(), step, token)

    def beam_tree(self) -> BeamTree:
        """Every hypothesis that the search kept, step by step."""
        from regard.see.scene_writing import tree_of

        self.generated()
        return tree_of(self.asked)

    def generated(self) -> tuple[int, ...]:
        if self.written is None:
            raise ValueError(f"a model for the task {self.task!r} writes nothing step by step")
        return self.written


def scene_of(
    model: Kept | Path | str,
    text: str,
    *,
    question: str | None = None,
    target: str | None = None,
    beam: int | None = None,
    more: int = 0,
    longest: int = LONGEST,
    edits: Edits = Edits(),
    device: str = "cpu",
) -> Scene:
    """What a model makes of an input.

    Args:
        model: a trained model, or the folder of its run.
        text: a sentence; the path of a picture; the name of a node.
        question: about the picture.
        target: the translation (or the rebuilt sentence) to look at; without one, the model's own.
        beam: hypotheses of the search; 5 for translations, 1 (greedy) for others.
        more: how many tokens a language model writes after the text.
        longest: an input of more tokens is refused.
        edits: what is changed.
        device: where a folder's model is loaded to.
    """
    learner = model if isinstance(model, Kept) else learner_of(Path(model), device)
    if not text.strip():
        raise ValueError("the text is empty; give at least one word")
    return made(Asked(learner, text, question, target, beam, more, longest, edits=edits))


def made(asked: Asked) -> Scene:
    from regard.see import scene_labels, scene_pictures, scene_writing

    learner = asked.learner
    refuse_strange(asked)
    match learner:
        case Translator():
            return scene_writing.translated(asked, learner)
        case Rebuilder():
            return scene_writing.rebuilt(asked, learner)
        case Author():
            return scene_writing.authored(asked, learner)
        case Tagger():
            return scene_labels.tagged(asked, learner)
        case TextClassifier():
            return scene_labels.classified(asked, learner)
        case Labeller():
            return scene_labels.labelled(asked, learner)
        case Recogniser():
            return scene_pictures.recognised(asked, learner)
        case Answerer():
            return scene_pictures.answered(asked, learner)
    raise ValueError(f"{type(learner).__name__} is no model of a task; there are {', '.join(LEARNERS)}")


def refuse_strange(asked: Asked) -> None:
    """What means nothing to this task."""
    task = asked.learner.settings.task
    meant = {"question": ("answer",), "target": ("translate", "rebuild"), "beam": ("translate", "rebuild", "write")}
    for name, tasks in meant.items():
        if getattr(asked, name) is not None and task not in tasks:
            raise ValueError(f"{name} means nothing to a model for the task {task!r}; leave it out")
    if asked.more and task != "write":
        raise ValueError(f"more = {asked.more} means nothing to a model for the task {task!r}; leave it out")


def learner_of(folder: Path, device: str = "cpu", checkpoint: str | int | None = None) -> Kept:
    """The model of a run as it stands, or at a checkpoint, whatever its task."""
    task = task_in(described(folder))
    if task not in LEARNERS:
        raise ValueError(f"{folder}: no task is called {task!r:.80}; there are {', '.join(LEARNERS)}")
    return LEARNERS[task].load(folder, device, checkpoint)


def sites_of(tracing: Tracing, queries: Mapping[str, int] | None = None) -> dict[str, Site | Gate]:
    """What was traced; an edit of something that is not there is refused."""
    sites = tracing.sites()
    refuse_unknown(tracing.edits, extents(sites, dict(queries or {})))
    return sites


def edited(scene: Scene, edits: Edits) -> Scene:
    """The same question asked again, with these edits instead."""
    return made(replace(scene.asked, edits=edits))
