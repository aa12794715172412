"""Tagging on the command line: accuracy by tag, and views of self-attention."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from regard import see
from regard.cli.input_checks import refuse_long
from regard.data.tagged import NO_VALUE, TaggedSentence
from regard.see.plots.panels import View
from regard.tasks.registry import Task, ViewRequest
from regard.tasks.tagging.data import TaggingSettings, read_tagged_sentences
from regard.tasks.tagging.task import Tagger, TaggingPrediction, without_tags
from regard.world import find_lecture_sentence


@dataclass(frozen=True)
class TaggingMetrics:
    """Which tags were right, by the tag that would have been right."""

    sentences: int
    wanted: Counter[str]
    right: Counter[str]
    outputs: tuple[str, ...] = field(repr=False)

    @property
    def accuracy(self) -> float:
        return 100 * self.right.total() / max(1, self.wanted.total())

    def table(self) -> str:
        lines = [f"accuracy {self.accuracy:.2f} %   words:{self.wanted.total()}|sentences:{self.sentences}", ""]
        lines += [f"{tag:<8} {100 * self.right[tag] / n:6.2f} %  of {n:,}" for tag, n in self.wanted.most_common()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "words": self.wanted.total(),
            "sentences": self.sentences,
            "by_tag": {tag: {"words": n, "right": self.right[tag]} for tag, n in self.wanted.most_common()},
        }

    def lines(self) -> list[str]:
        return list(self.outputs)


def evaluate_tagger(tagger: Tagger, sentences: Sequence[TaggedSentence]) -> TaggingMetrics:
    tagger.examples(sentences)  # a tag that is unknown could never be right
    found = tagger.predict(sentences)
    both = [
        (wanted, tag)
        for sentence, tags in zip(sentences, found, strict=True)
        for wanted, tag in zip(sentence.tags, tags, strict=True)
        if wanted != NO_VALUE
    ]
    if not both:
        raise ValueError("no word has a tag to compare with; give sentences that are tagged")
    return TaggingMetrics(
        len(sentences),
        Counter(wanted for wanted, _ in both),
        Counter(wanted for wanted, tag in both if wanted == tag),
        tuple(" ".join(tags) for tags in found),
    )


def view_tagging(tagger: Tagger, folder: Path, text: str, asked: ViewRequest) -> tuple[str, View]:
    """Words and tags; for one word where it looked; or every head."""
    if asked.target is not None:
        raise ValueError("--target is a translation, and this model tags words; leave it out")
    sentence = parse_sentence(tagger, text)
    refuse_long([tagger.example(sentence).pieces.ids], lambda _: "the sentence", asked.max_tokens)
    seen = tagger.predict_with_attention(sentence)
    said = " ".join(f"{word}/{tag}" for word, tag in zip(sentence.words, seen.tags, strict=True))
    if asked.all_heads:
        heads = {layer: [seen.word_weights(head) for head in weights] for layer, weights in seen.weights.items()}
        return said, see.self_attention_maps(sentence.words, heads)
    looked = {}
    if asked.word is not None:
        looked = {find_word(asked.word, sentence.words): select_head_weights(seen, asked.head)}
        looked = {at: seen.word_weights(weights)[at] for at, weights in looked.items()}
    return said, see.tag_view(sentence.words, seen.tags, probabilities=seen.confidence, attention=looked)


def parse_sentence(tagger: Tagger, text: str) -> TaggedSentence:
    """Words between blanks; a sentence of the lectures comes with its tree, which some models want."""
    words = text.split()
    gold = find_lecture_sentence(" ".join(words))
    heads = gold.governors if gold and list(gold.words) == words else None
    if heads is None and tagger.model.encoder.needs_governors:
        raise ValueError("this model wants the words' dependency heads; tag a .conllu with heads: regard tag")
    return TaggedSentence(tuple(words), (NO_VALUE,) * len(words), heads)


def find_word(word: str, words: Sequence[str]) -> int:
    if word not in words:
        raise ValueError(f"--word {word}: not in the sentence; its words are {' '.join(words)}")
    return list(words).index(word)


def select_head_weights(seen: TaggingPrediction, head: str | None) -> Tensor:
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


TAGGING = Task(
    settings=TaggingSettings,
    examples="sentences",
    read=read_tagged_sentences,
    from_examples=Tagger.from_examples,
    from_description=Tagger.from_description,
    load=Tagger.load,
    token_ids=lambda tagger, sentences: (one.pieces.ids for one in tagger.examples(map(without_tags, sentences))),
    evaluate=evaluate_tagger,
    view=view_tagging,
    suggested_command=lambda folder: ("tag", folder),
)
