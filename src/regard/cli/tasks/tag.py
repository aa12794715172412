"""Tagging, as the commands see it: how a tagger is trained, measured and looked into."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import see
from regard.cli.check import refuse_long
from regard.cli.tasks import Looking, Task
from regard.see.panel import View
from regard.tasks.tag import Seen, Tagger, untagged
from regard.tasks.tag_settings import TagSettings, read_tags
from regard.text.conllu import NONE, Tagged
from regard.world import known


@dataclass(frozen=True)
class Measured:
    """Which tags were right, by the tag that would have been right."""

    sentences: int
    wanted: Counter[str]
    right: Counter[str]
    tagged: tuple[str, ...] = field(repr=False)

    @property
    def accuracy(self) -> float:
        return 100 * self.right.total() / max(1, self.wanted.total())

    def table(self) -> str:
        lines = [f"accuracy {self.accuracy:.2f} %   words:{self.wanted.total()}|sentences:{self.sentences}", ""]
        lines += [f"{tag:<8} {100 * self.right[tag] / n:6.2f} %  of {n:,}" for tag, n in self.wanted.most_common()]
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "words": self.wanted.total(),
            "sentences": self.sentences,
            "by_tag": {tag: {"words": n, "right": self.right[tag]} for tag, n in self.wanted.most_common()},
        }

    def lines(self) -> list[str]:
        return list(self.tagged)


def measured(tagger: Tagger, sentences: Sequence[Tagged]) -> Measured:
    tagger.examples(sentences)  # a tag that is unknown could never be right
    found = tagger.tags(sentences)
    both = [
        (wanted, tag)
        for sentence, tags in zip(sentences, found, strict=True)
        for wanted, tag in zip(sentence.tags, tags, strict=True)
        if wanted != NONE
    ]
    if not both:
        raise ValueError("no word has a tag to compare with; give sentences that are tagged")
    return Measured(
        len(sentences),
        Counter(wanted for wanted, _ in both),
        Counter(wanted for wanted, tag in both if wanted == tag),
        tuple(" ".join(tags) for tags in found),
    )


def look(tagger: Tagger, folder: Path, text: str, asked: Looking) -> tuple[str, View]:
    """Words and tags; for one word where it looked; or every head."""
    if asked.target is not None:
        raise ValueError("--target is a translation, and this model tags words; leave it out")
    sentence = sentence_of(tagger, text)
    refuse_long([tagger.example(sentence).pieces.ids], lambda _: "the sentence", asked.longest)
    seen = tagger.look(sentence)
    said = " ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, seen.tags, strict=True))
    if asked.every:
        heads = {layer: [seen.by_word(head) for head in weights] for layer, weights in seen.weights.items()}
        return said, see.self_view(sentence.words, heads)
    looked = {}
    if asked.word is not None:
        looked = {place_of(asked.word, sentence.words): chosen(seen, asked.head)}
        looked = {at: seen.by_word(weights)[at] for at, weights in looked.items()}
    return said, see.tagged(sentence.words, seen.tags, sure=seen.sure, looked=looked)


def sentence_of(tagger: Tagger, text: str) -> Tagged:
    """Words between blanks; a sentence of the lectures comes with its tree, which some models want."""
    words = text.split()
    gold = known(" ".join(words))
    heads = gold.heads if gold and list(gold.words) == words else None
    if heads is None and tagger.model.encoder.wants_heads:
        raise ValueError("this model wants the words' dependency heads; tag a .conllu with heads: regard tag")
    return Tagged(tuple(words), (NONE,) * len(words), heads)


def place_of(word: str, words: Sequence[str]) -> int:
    if word not in words:
        raise ValueError(f"--word {word}: not in the sentence; its words are {' '.join(words)}")
    return list(words).index(word)


def chosen(seen: Seen, head: str | None) -> Tensor:
    """The weights of one head, written LAYER:HEAD; without one, the mean of the last layer's."""
    if not seen.weights:
        raise ValueError("this model has no attention to look at; leave out --word and --head")
    if head is None:
        return list(seen.weights.values())[-1].mean(0)
    layer, _, number = head.rpartition(":")
    if layer not in seen.weights or not number.isdecimal() or int(number) >= len(seen.weights[layer]):
        names = ", ".join(f"{name}:0 to {len(weights) - 1}" for name, weights in seen.weights.items())
        raise ValueError(f"--head {head}: write LAYER:HEAD, one of {names}")
    return seen.weights[layer][int(number)]


TAG = Task(
    settings=TagSettings,
    examples="sentences",
    read=read_tags,
    fresh=Tagger.fresh,
    described=Tagger.described,
    load=Tagger.load,
    ids=lambda tagger, sentences: (one.pieces.ids for one in tagger.examples(map(untagged, sentences))),
    measure=measured,
    look=look,
    tries=lambda folder: ("tag", folder),
)
