"""A text and a model that writes in; the scene of what it wrote out: translators, rebuilders, language models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.decode.beam import Beam
from regard.decode.greedy import Greedy
from regard.decode.limits import Longest
from regard.decode.model import Model, at_rest, encoded, target_in
from regard.decode.reading import Reading, gold_links
from regard.decode.translate import translate
from regard.decode.writing import spoken, usual, write
from regard.models.autoencoder import Autoencoder
from regard.models.seq2seq import Seq2Seq
from regard.see.attending import Editing, Tracing
from regard.see.beam_tree import BeamTree, beam_tree, continued
from regard.see.edits import Edits
from regard.see.scene import Asked, Axis, Outcome, Scene, made, sites_of
from regard.see.swaps import swapped, without_swaps
from regard.see.tokens import id_of, named, words_of
from regard.see.walked import Walked, WalkedWriter
from regard.tasks.rebuild import Rebuilder
from regard.tasks.translate import Translator
from regard.tasks.write import Author
from regard.text.vocabulary import BOS, EOS, PAD, Tokeniser
from regard.world import known

BEAM = 4  # hypotheses shown of a language model that wrote greedily
MOST_SCORES = 2**28  # of a text: one for every token that may follow, behind every token
BREAKS = str.maketrans("\n\r", "  ")


@dataclass(frozen=True, eq=False)
class Pair:
    """What translating and rebuilding share: a sentence is read with one vocabulary and written with another."""

    model: Seq2Seq
    source: Tokeniser
    target: Tokeniser
    beam: int  # unless another is asked for

    @staticmethod
    def of(learner: Translator | Rebuilder) -> "Pair":
        if isinstance(learner, Translator):
            return Pair(learner.model, learner.source, learner.target, 5)
        return Pair(learner.model, learner.words, learner.words, 1)

    def reading(self, asked: Asked) -> Reading:
        return Reading.of(self.source, swapped(self.source.normal.apply(asked.text), asked.edits))

    def search(self, asked: Asked) -> Beam:
        return Beam(self.beam if asked.beam is None else asked.beam, length_penalty=1.0)

    def searched(self, edits: Edits) -> Model:
        """What is searched: the model itself, or the model with its edits."""
        edits = without_swaps(edits)
        return Walked(self.model, Editing(edits)) if edits else self.model


def translated(asked: Asked, translator: Translator) -> Scene:
    scene = written(asked, Pair.of(translator), "translate")
    data, source = translator.settings.data, scene.axes["source"]
    sentence = known(" ".join(source.words)) if data.corpus == "world" and data.source == "en" else None
    if sentence and (sentence.words, sentence.said(data.target)) == (source.words, scene.axes["written"].words):
        return replace(scene, gold=gold_links(sentence, data.source, data.target))
    return scene


def rebuilt(asked: Asked, rebuilder: Rebuilder) -> Scene:
    return written(asked, Pair.of(rebuilder), "rebuild")


def written(asked: Asked, pair: Pair, task: str) -> Scene:
    """The target that was given, or the one that the search chose, read once more with every attention in the open."""
    source, target, tracing = pair.reading(asked), pair.target, Tracing(without_swaps(asked.edits))
    asked.refuse_long(len(source.ids))
    text = told(asked, pair, source)
    walked = Walked(pair.model, tracing)
    with at_rest(pair.model):
        memory, lengths = encoded(walked, [source.ids])
        logits, _ = walked.step(target_in([text.ids]).to(lengths.device), walked.start(memory), memory)
    axes = {
        "source": Axis((*names(pair.source, source), "</s>"), source.words, (*source.word_of, None)),
        "read": Axis(("<s>", *text.labels), text.words, (None, *text.word_of)),
        "written": Axis((*text.labels, text.end), text.words, (*text.word_of, None)),
    }
    if isinstance(pair.model, Autoencoder):
        axes["latents"] = Axis(tuple(f"latent {n}" for n in range(pair.model.decoder.shape[0])))
    longest = 0 if text.given else Longest().of(len(source.ids))
    return Scene(
        asked,
        task,
        target.normal.restore(target.decode(text.ids)).translate(BREAKS),
        axes,
        sites_of(tracing, {"read": longest, "written": longest}),
        Outcome(axes["written"].labels, logits[0].float(), lambda one: named(target, one)),
        written=text.ids,
        given=len(axes["written"].labels) if asked.target is not None else 0,
    )


@dataclass(frozen=True)
class Told:
    """A text that was written: its ids and their names, its words, and how it ends."""

    ids: tuple[int, ...]
    labels: tuple[str, ...]
    words: tuple[str, ...]
    word_of: tuple[int, ...]
    end: str
    given: bool


def told(asked: Asked, pair: Pair, source: Reading) -> Told:
    """The target that is given, as it reads; or what the search chooses."""
    target = pair.target
    if asked.target is not None and asked.target.strip():
        read = Reading.of(target, asked.target)
        asked.refuse_long(len(read.ids))
        return Told(read.ids, names(target, read), read.words, read.word_of, "</s>", given=True)
    if (ids := () if asked.target is not None else asked.ids) is not None:
        end, given = "</s>", True
    else:
        found = translate(pair.searched(asked.edits), [source.ids], pair.search(asked), prefixes=[asked.prefix])[0][0]
        ids, end, given = found.ids, "</s>" if found.finished else "…", False
    return Told(ids, tuple(named(target, one) for one in ids), *words_of(target, ids), end, given)


def names(tokeniser: Tokeniser, read: Reading) -> tuple[str, ...]:
    """One for each id; of a word that is not known, the word itself."""
    of_text = tokeniser.tokens(" ".join(read.words))
    plain = [named(tokeniser, one) for one in read.ids]
    return tuple(of_text if len(of_text) == len(plain) else plain)  # several blanks are read as they stand


def authored(asked: Asked, author: Author) -> Scene:
    """A text as the model reads it, and `more` tokens that it writes behind it, the most probable each time."""
    opening, ids = author.beginning(swapped(asked.text, asked.edits))
    given = min(len(ids), len(asked.prefix) - 1) if asked.prefix else len(ids)  # the last of a prefix was chosen
    ids, edits = list(asked.prefix) or ids, without_swaps(asked.edits)
    asked.refuse_long(len(ids) + asked.more)
    refuse_wide(len(ids) + asked.more, author.words.size)
    more = list[int]()
    if asked.more and (asked.beam or 1) == 1:
        telling = write(
            searched(asked, author), opening + ids, Greedy(), tokens=asked.more, allowed=usual(author.words)
        )
        more = [one.id for one in telling]
    elif asked.more:
        more = list(beams_of(asked, author).found[0].ids)
    tracing, everything = Tracing(edits), opening + ids + more
    walked = WalkedWriter(author.model, tracing)
    with at_rest(author.model):
        read = torch.tensor([everything], device=author.model.words.weight.device)
        x, _ = walked.read(read, walked.start(1))
        logits = walked.logits(x[:, len(opening) - 1 :])[0].float()
    labels = [named(author.words, one) for one in everything]
    words, word_of = words_of(author.words, ids + more)
    said = (author.words.normal.restore(author.words.decode(ids)) if asked.prefix else asked.text) + "".join(
        spoken(author.words, more, opening + ids)
    )
    return Scene(
        asked,
        "write",
        said,
        {"text": Axis(tuple(labels), words, (*[None] * len(opening), *word_of))},
        sites_of(tracing, {"text": len(everything) + asked.more}),
        Outcome((*labels[len(opening) :], "…"), logits, lambda one: named(author.words, one)),
        written=tuple(ids + more),
        given=given,
    )


def searched(asked: Asked, author: Author) -> Any:
    """What writes: the model itself, or the model with its edits."""
    edits = without_swaps(asked.edits)
    return WalkedWriter(author.model, Editing(edits)) if edits else author.model


def refuse_wide(tokens: int, options: int) -> None:
    if tokens * options > MOST_SCORES:
        raise ValueError(
            f"{tokens:,} tokens, each with the scores of {options:,} that may follow, are too many to keep; "
            f"shorten the text to {MOST_SCORES // options:,}"
        )


# --- otherwise ---


def branched(scene: Scene, ids: Sequence[int], step: int, token: int | str) -> Scene:
    """Up to a step as it was, then another token."""
    asked, learner = scene.asked, scene.asked.learner
    if not 0 <= step <= len(ids):
        raise ValueError(f"there is no step {step}; they are counted from 0 to {len(ids)}")
    if isinstance(learner, Author):
        one = id_of(learner.words, token)
        more = max(asked.more, len(ids) - step - 1)
        return made(replace(asked, prefix=(*ids[:step], one), more=more))
    assert isinstance(learner, (Translator, Rebuilder))  # nobody else writes
    target = Pair.of(learner).target
    one = id_of(target, token)
    if one == EOS:
        return made(replace(asked, target=None, prefix=(), ids=tuple(ids[:step])))
    if one in (PAD, BOS):
        raise ValueError(f"{named(target, one)} never comes in the middle of a text; choose another token")
    return made(replace(asked, target=None, ids=None, prefix=(*ids[:step], one)))


def tree_of(asked: Asked) -> BeamTree:
    learner = asked.learner
    if isinstance(learner, Author):
        return beams_of(asked, learner)
    assert isinstance(learner, (Translator, Rebuilder))  # nobody else writes
    pair = Pair.of(learner)
    return beam_tree(pair.searched(asked.edits), pair.reading(asked).ids, pair.search(asked), asked.prefix)


def beams_of(asked: Asked, author: Author) -> BeamTree:
    """Of what a language model writes behind its text; without a beam, of what a usual one would have kept."""
    if not asked.more:
        raise ValueError("nothing was written behind this text, so there are no beams; ask for some tokens: more=12")
    if (size := BEAM if asked.beam is None else asked.beam) < 1:
        raise ValueError(f"a beam of size {size} keeps nothing; choose 1 or more")
    opening, ids = author.beginning(swapped(asked.text, asked.edits))
    prompt = opening + (list(asked.prefix) or ids)
    return continued(searched(asked, author), prompt, size, asked.more, usual(author.words))
