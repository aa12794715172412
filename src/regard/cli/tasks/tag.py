"""Tagging, as the commands see it: how a tagger is trained, measured and looked into."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.cli.tasks import Looking, Task
from regard.see.panel import View
from regard.tasks.tag import Tagger, TagSettings, read_tags
from regard.text.conllu import NONE, Tagged


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
    device = str(next(tagger.model.parameters()).device)
    found = tagger.tags(sentences, device)
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
    raise NotImplementedError


TAG = Task(
    settings=TagSettings,
    examples="sentences",
    read=read_tags,
    fresh=Tagger.fresh,
    described=Tagger.described,
    load=Tagger.load,
    measure=measured,
    look=look,
    tries=lambda folder: ("evaluate", folder),
)
