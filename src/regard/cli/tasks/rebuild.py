"""Rebuilding sentences, as the commands see it: how an autoencoder is trained, measured and looked into."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.cli.check import refuse_long
from regard.cli.options import tracked
from regard.cli.tasks import Looking, Task
from regard.decode.alignment import merge
from regard.decode.greedy import Greedy
from regard.decode.reading import Reading
from regard.decode.rebuilt import rebuilt, written
from regard.decode.translate import in_turn
from regard.see.alignment import END, words
from regard.see.panel import Axis, Panel, Scale, View, grid
from regard.tasks.rebuild import Rebuilder, RebuildSettings, read_sentences
from regard.text.vocabulary import EOS, UNK


@dataclass(frozen=True)
class Measured:
    """How many sentences came back to the letter, by their words, and how many tokens in their places."""

    sentences: Counter[int]
    exact: Counter[int]
    tokens: int
    right: int
    said: tuple[str, ...] = field(repr=False)

    @property
    def share(self) -> float:
        return 100 * self.exact.total() / self.sentences.total()

    @property
    def in_place(self) -> float:
        return 100 * self.right / self.tokens

    def table(self) -> str:
        lines = [
            f"rebuilt exactly {self.share:6.2f} %   sentences:{self.sentences.total()}",
            f"tokens in place {self.in_place:6.2f} %   tokens:{self.tokens}",
            "",
            "words   sentences  exactly",
        ]
        for size, n in sorted(self.sentences.items()):
            share = 100 * self.exact[size] / n
            lines.append(f"{size:<7} {n:>9,}  {share:5.1f} %  {'█' * round(share / 4)}".rstrip())
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        by_length = [{"words": size, "sentences": n, "exact": self.exact[size]} for size, n in self.by_length]
        return {"exact": self.share, "in_place": self.in_place, "by_length": by_length}

    @property
    def by_length(self) -> list[tuple[int, int]]:
        return sorted(self.sentences.items())

    def lines(self) -> list[str]:
        return list(self.said)


def measured(rebuilder: Rebuilder, texts: Sequence[str]) -> Measured:
    """A word that the model does not know cannot come back, so it is wrong whatever is written for it."""
    sources = rebuilder.words.encode_all(texts)
    arriving = in_turn(rebuilder.model, sources, Greedy())
    found = {place: these[0].ids for place, these in tracked(arriving, "rebuilding", len(texts))}
    sizes, places = [len(text.split()) for text in texts], range(len(texts))
    return Measured(
        Counter(sizes),
        Counter(sizes[n] for n in places if list(found[n]) == sources[n] and UNK not in sources[n]),
        sum(map(len, sources)),
        sum(a == b != UNK for n in places for a, b in zip(found[n], sources[n], strict=False)),
        tuple(written(rebuilder, found[n]) for n in places),
    )


# --- looking ---


def look(rebuilder: Rebuilder, folder: Path, text: str, asked: Looking) -> tuple[str, View]:
    """Which words entered which vector of the latent: in the mean of the heads, in one, or in every one."""
    if refused := [name for name in ("word", "target") if vars(asked)[name] is not None]:
        raise ValueError(f"--{refused[0]} means nothing to a model that rebuilds; leave it out")
    refuse_long(rebuilder.words.encode_all([text]), lambda _: "the sentence", asked.longest)
    read, heads = entered(rebuilder, text)
    shown = {"": heads.mean(0)}
    if asked.every:
        shown = {f"head {n}": head for n, head in enumerate(heads)}
    elif asked.head is not None:
        shown = {asked.head: heads[number_of(asked.head, len(heads))]}
    scale, across = Scale.of(heads, "weight"), Axis("word", (*words(read.words, "words"), END))
    panels = [Panel(name, some, scale, down=Axis("latent"), across=across) for name, some in shown.items()]
    return f"{text}\n{next(rebuilt(rebuilder, [text]))}", View(grid(panels))


def entered(rebuilder: Rebuilder, text: str) -> tuple[Reading, Float[Tensor, "h k words_and_end"]]:
    read, device = Reading.of(rebuilder.words, text), next(rebuilder.model.parameters()).device
    ids = torch.tensor([[*read.ids, EOS]], device=device)
    with torch.inference_mode():
        _, looked = rebuilder.model.look_in(ids, torch.tensor([ids.shape[1]], device=device))
    heads = looked.weights["bottleneck"][0].cpu()
    return read, torch.stack([merge(head, range(len(head)), read.word_of) for head in heads])


def number_of(head: str, heads: int) -> int:
    layer, _, number = head.rpartition(":")
    if layer != "bottleneck" or not number.isdecimal() or int(number) >= heads:
        raise ValueError(f"--head {head}: write LAYER:HEAD, one of bottleneck:0 to bottleneck:{heads - 1}")
    return int(number)


REBUILD = Task(
    settings=RebuildSettings,
    examples="sentences",
    read=read_sentences,
    fresh=Rebuilder.fresh,
    described=Rebuilder.described,
    load=Rebuilder.load,
    ids=lambda rebuilder, texts: rebuilder.words.encode_all(texts),
    measure=measured,
    look=look,
    tries=lambda folder: ("rebuild", folder),
)
