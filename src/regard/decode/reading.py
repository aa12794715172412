"""A translator and a sentence with its translation in; which word looked at which, and which word decided, out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from regard.decode.agreement import Annotated, choose_heads
from regard.decode.alignment import Head, Links, all_heads, hard_or_none, merge, mixture
from regard.decode.force import Attention, looked
from regard.decode.greedy import Greedy
from regard.decode.texts import translate_texts
from regard.tasks.run_folder import run_of
from regard.tasks.translate import Translator
from regard.text.files import small
from regard.text.vocabulary import Tokeniser
from regard.world.sentence import Sentence

HEADS = "heads.json"  # beside a model: the heads that align best, as they were chosen on held-out sentences


@dataclass(frozen=True)
class Reading:
    """A text as a model reads it: ids, the words a person sees, and which word each id belongs to."""

    ids: tuple[int, ...]
    words: tuple[str, ...]
    word_of: tuple[int, ...]

    @staticmethod
    def of(tokeniser: Tokeniser, text: str) -> "Reading":
        words = tokeniser.normal.apply(text).split()
        if not words:
            raise ValueError("there is nothing to look at in an empty text; give at least one word")
        return Reading(tuple(tokeniser.encode(text)), tuple(words), tuple(tokeniser.word_of(text)))


@dataclass(frozen=True, eq=False)
class Looked:
    """A sentence, its translation, and the model's cross-attention between them."""

    source: Reading
    target: Reading
    attention: Attention

    def words(self, heads: Sequence[Head]) -> Float[Tensor, "target source_and_end"]:
        """Word by word, the mean of some heads."""
        return merge(mixture(self.attention, heads), self.target.word_of, self.source.word_of)


def look(translator: Translator, source: str, target: str) -> Looked:
    """Where the model looks when it writes exactly this translation."""
    one, other = Reading.of(translator.source, source), Reading.of(translator.target, target)
    return Looked(one, other, looked(translator.model, [one.ids], [other.ids])[0])


def links(translator: Translator, source: str, target: str, heads: Sequence[Head]) -> str:
    """Which source word was translated by which, counted from 0, as other tools read it: 0-0 1-2 2-1."""
    if not (source.split() and target.split()):
        return ""
    found = hard_or_none(look(translator, source, target).words(heads))
    return " ".join(f"{here}-{there}" for here, there in sorted(found))


# --- which heads align ---


def annotated(translator: Translator, sentence: Sentence) -> Annotated:
    """A sentence of the miniature world, whose alignment is known."""
    data = translator.settings.data
    one, other = (
        Reading.of(tokeniser, " ".join(sentence.said(language)))
        for tokeniser, language in ((translator.source, data.source), (translator.target, data.target))
    )
    return Annotated(one.ids, other.ids, one.word_of, other.word_of, gold_links(sentence, data.source, data.target))


def gold_links(sentence: Sentence, source: str, target: str) -> Links:
    """Pairs (word of `source`, word of `target`); one of the languages is English."""
    if source == "en":
        return sentence.into[target].alignment
    return frozenset((there, here) for here, there in sentence.into[source].alignment)


def heads_by_gold(translator: Translator, sentences: Sequence[Sentence]) -> tuple[Head, ...]:
    """The mixture of heads that agrees best with known alignments."""
    return choose_heads(translator.model, [annotated(translator, sentence) for sentence in sentences])


def head_by_coverage(translator: Translator, pairs: Sequence[tuple[str, str]]) -> tuple[Head, ...]:
    """Where no alignment is known: the head whose links reach the most source words, as an alignment's would."""
    seen = [look(translator, source, target) for source, target in pairs]
    if not seen:
        raise ValueError("no head can be chosen without a sentence to look at")

    def reached(head: Head) -> float:
        return sum(
            len({source for source, _ in hard_or_none(one.words([head]))}) / len(one.source.words) for one in seen
        )

    return (max(all_heads(seen[0].attention), key=reached),)


def kept_heads(folder: Path, there: Sequence[Head] | None = None) -> tuple[Head, ...]:
    """What was chosen when the model was trained, the best first; heads that are not `there`, if given, were chosen for
    another model."""
    path = run_of(folder)[0] / HEADS
    if not path.exists():
        return ()
    try:
        kept = json.loads(small(path).read_text(encoding="utf-8"))
        heads = tuple(Head(layer, head, shift) for layer, head, shift in kept)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{path} is damaged; remove it, or train again") from None
    if there is not None and (strange := [head for head in heads if head not in there]):
        raise ValueError(f"{path} names {strange[0]}, which the model does not have; remove it, or train again")
    return heads


def best_head(translator: Translator, folder: Path | None, seen: Looked) -> Head:
    """The head to look at first: the best of those that were kept beside the model, else the one that covers this
    sentence best."""
    kept = kept_heads(folder, all_heads(seen.attention)) if folder else ()
    texts = (" ".join(seen.source.words), " ".join(seen.target.words))
    return (kept or head_by_coverage(translator, [texts]))[0]


# --- which word decided ---


def without(translator: Translator, source: str) -> list[str]:
    """How the sentence is translated when one of its words is left out, for each of them.

    What the model had decided cannot come in through the translation it has begun, for it begins anew. A model without
    attention can be asked as well: nothing inside it is looked at.
    """
    words = Reading.of(translator.source, source).words
    shorter = [" ".join(words[:at] + words[at + 1 :]) for at in range(len(words))]
    return translate_texts(translator, shorter, Greedy())


def decided(translator: Translator, source: str, said: str) -> dict[int, str]:
    """The words on which a word of the translation hangs: without them it is not `said`, but this is written."""
    return {
        at: text
        for at, text in enumerate(without(translator, source))
        if said not in translator.target.normal.apply(text).split()
    }
