"""Writing, as the commands see it: how a language model is trained, measured and looked into."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard import see
from regard.cli.options import tracked
from regard.cli.tasks import Looking, Task
from regard.decode.alignment import Head
from regard.decode.model import log_probabilities
from regard.see.panel import Panel, Row, View
from regard.tasks.pointer import chosen
from regard.tasks.surprise import Told, Windows, summed
from regard.tasks.texts import read_texts
from regard.tasks.write import Author, WriteSettings
from regard.text.plain import bits_per_byte, perplexity_per_word, words_in
from regard.text.vocabulary import BOS, EOS, SPECIALS, UNK, Spelt, Tokeniser, Words, readable

EXPECTED = 3  # tokens that are named in the place of one that surprised


# --- measuring ---


@dataclass(frozen=True)
class Measured:
    """What a text cost a model in nats, with a cache beside it and in blocks side by side where there are such.

    Args:
        unknown: tokens that stand for a word outside of the vocabulary; they make the text easier than it is.
        signature: what the figures depend on besides the model.
        costs: of each token, in bits, and the token.
    """

    nats: float
    tokens: int
    words: int
    characters: int
    bytes: int
    unknown: int
    signature: str
    cached: float | None = None
    cache: str = ""
    in_blocks: float | None = None
    costs: tuple[tuple[float, str], ...] = field(default=(), repr=False)

    def each(self, nats: float) -> dict[str, float]:
        """The figures of one sum of nats. What has unknown words was not spelt, so its letters have no cost."""
        figures = {"loss": nats / self.tokens, "perplexity_per_word": perplexity_per_word(nats, self.words)}
        if self.unknown:
            return figures
        return figures | {
            "nats_per_character": nats / self.characters,
            "bits_per_character": nats / self.characters / math.log(2),
            "bits_per_byte": bits_per_byte(nats, self.bytes),
        }

    def ways(self) -> dict[str, float]:
        found = {"": self.nats, "with_cache": self.cached, "in_blocks": self.in_blocks}
        return {name: nats for name, nats in found.items() if nats is not None}

    def table(self) -> str:
        lines = []
        for name, nats in self.ways().items():
            each = self.each(nats)
            lines += [name.replace("_", " ")] if name else []
            lines += [f"{figure.replace('_', ' '):<20} {value:10.4f}" for figure, value in each.items()]
        said = [f"{self.unknown:,} words are unknown to the model: not comparable with others"] * bool(self.unknown)
        return "\n".join([*lines, *said, "", self.signature + (f"|{self.cache}" if self.cache else "")])

    def figures(self) -> dict[str, Any]:
        counted = {name: getattr(self, name) for name in ("tokens", "words", "characters", "bytes", "unknown")}
        found = {
            f"{figure}_{name}" if name else figure: value
            for name, nats in self.ways().items()
            for figure, value in self.each(nats).items()
        }
        return {**found, **counted, "signature": self.signature, "cache": self.cache}

    def lines(self) -> list[str]:
        return [f"{bits:.3f}\t{token}" for bits, token in self.costs]


def measured(author: Author, lines: Sequence[str]) -> Measured:
    ids, words, each = author.ids(lines), author.words, list[Tensor]()

    def noting() -> Iterator[Told]:
        """The vectors of a long text would fill the memory, so they pass by."""
        for some in tracked(author.context.told(author.model, ids), "measuring"):
            each.append(some.nats.cpu())
            yield some

    cached = blocks = None
    with torch.no_grad():
        if author.pointer:
            cached = float(sum(nats.sum() for nats in author.pointer.nats(noting())))
        else:
            summed(noting())
        if isinstance(author.context, Windows):
            blocks = summed(replace(author.context, stride=author.context.length).told(author.model, ids))
    nats, text = torch.cat(each), as_read(words, lines)
    return Measured(
        nats=float(nats.sum(dtype=torch.float64)),
        tokens=len(ids),
        words=words_in(lines),
        characters=len(text),
        bytes=len(text.encode()),
        unknown=int((ids == UNK).sum()),
        signature=signature(author, len(ids), words_in(lines)),
        cached=cached,
        cache=author.pointer.signature if author.pointer else "",
        in_blocks=blocks,
        costs=tuple(zip((nats / math.log(2)).tolist(), (shown(words, one) for one in ids.tolist()), strict=True)),
    )


def keep_pointer(author: Author, held_out: Sequence[str], folder: Path) -> None:
    """The best cache of the size that the settings ask for, beside the weights."""
    if size := author.settings.measure.cache:
        with torch.no_grad():
            told = author.context.told(author.model, author.ids(held_out))
            chosen(tracked(told, "choosing a cache"), size).save(folder)


def as_read(words: Tokeniser, lines: Sequence[str]) -> str:
    """The text that the model is charged for: of words, with one blank between them and one end to a line."""
    if isinstance(words, Words):
        return "".join(" ".join(words.normal.apply(line).split()) + "\n" for line in lines)
    return words.normal.apply("".join(lines))


def signature(author: Author, tokens: int, words: int) -> str:
    normal = author.words.normal
    end = ",one <eos> a line" if isinstance(author.words, Words) else ""
    return "|".join(
        [
            f"tokens:{tokens}",
            f"words:{words}, what stands between blanks and every line's end",
            f"text:{author.words.kind}{end}",
            f"lower:{'yes' if normal.lower else 'no'}",
            f"context:{author.context.stated}",
        ]
    )


def shown(words: Tokeniser, one: int) -> str:
    """A token by itself, its blanks to be seen."""
    if one < SPECIALS:
        return {BOS: "<s>", EOS: "</s>"}.get(one, "<unk>")
    return readable(words.pieces[one - SPECIALS]) if isinstance(words, Spelt) else words.decode([one])


def spelled(words: Tokeniser, one: int) -> str:
    """A token in a running text, its blanks blank; half of a letter as `shown`."""
    if one < SPECIALS or not isinstance(words, Spelt):
        return shown(words, one)
    text = words.pieces[one - SPECIALS].decode(errors="replace")
    return shown(words, one) if "\ufffd" in text else text


# --- looking ---


def look(author: Author, folder: Path, text: str, asked: Looking) -> tuple[str, View]:
    """What surprised the model, and where it looked; without attention, the surprise alone."""
    if asked.target is not None:
        raise ValueError(f"--target {asked.target}: is for translations; a language model reads one text")
    opening, ids = author.beginning(text)
    if len(ids) > asked.longest:
        raise ValueError(f"the text has {len(ids):,} tokens; shorten it, or allow it with --longest {len(ids)}")
    names = [shown(author.words, one) for one in (*opening, *ids)]
    read = torch.tensor([opening + ids], device=author.model.words.weight.device)
    with torch.no_grad():
        logits, looked = author.model.look(read)
    surprise = surprising(author, ids, log_probabilities(logits[0, len(opening) - 1 : -1]))
    heads = {name: weights[0] for name, weights in looked.weights.items()}
    if not heads:
        if asked.head or asked.every or asked.word:
            raise ValueError(f"{folder} is a model without attention; it has no heads to show, only what surprised it")
        return text, surprise
    if asked.word is not None:
        return text, stacked(surprise, *deciding(names, len(opening), heads, asked))
    if asked.every:
        every = {layer: list(weights) for layer, weights in heads.items()}
        return text, stacked(surprise, see.self_view(names, every, causal=True))
    head = head_of(heads, asked.head)
    (row,) = see.self_view(names, {"": [heads[head.layer][head.head]]}, causal=True).rows
    (panel,) = row.panels
    assert isinstance(panel, Panel)
    return text, stacked(surprise, View((Row((replace(panel, title=f"{head.layer}:{head.head}"),)),)))


def surprising(author: Author, ids: Sequence[int], scores: Float[Tensor, "t v"]) -> View:
    chances = scores.exp().gather(-1, torch.tensor(ids, device=scores.device)[:, None])[:, 0]
    best = scores.exp().topk(min(EXPECTED, scores.shape[-1]))
    expected = [
        [(spelled(author.words, one), chance) for one, chance in zip(ones, shares, strict=True)]
        for ones, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    tokens = [spelled(author.words, one) for one in ids]
    # a chance below the smallest number is still one
    return see.growth(
        tokens, chances.double().clamp(min=1e-300).cpu(), alternatives=expected, title="surprise, in bits"
    )


def head_of(heads: dict[str, Float[Tensor, "h t t"]], asked: str | None) -> Head:
    """The one asked for, or the one that looks least at the beginning and at the word itself, where all heads rest."""
    if asked is None:
        busy = {
            Head(layer, number): float(each[:, 1:].sum())
            for layer, weights in heads.items()
            for number, each in enumerate(weights - weights * torch.eye(weights.shape[-1], device=weights.device))
        }
        return max(busy, key=lambda head: busy[head])
    layer, _, number = asked.rpartition(":")
    if layer not in heads or not number.isdecimal() or int(number) >= len(heads[layer]):
        names = ", ".join(f"{layer}:{n}" for layer, weights in heads.items() for n in range(len(weights)))
        raise ValueError(f"--head {asked}: write LAYER:HEAD, one of {names}")
    return Head(layer, int(number))


def deciding(
    names: Sequence[str], opening: int, heads: dict[str, Float[Tensor, "h t t"]], asked: Looking
) -> list[View]:
    """Where the model looked when the word was to be told: its weights stand in the row of the token before it."""
    if asked.word not in names[opening:]:
        raise ValueError(f"--word {asked.word}: no token of the text; they are {' '.join(names[opening:])}")
    at = names.index(asked.word, opening)
    chosen = [head_of(heads, asked.head)] if asked.head else [Head(layer, -1) for layer in heads]
    views = []
    for head in chosen:
        weights = heads[head.layer].mean(0) if head.head < 0 else heads[head.layer][head.head]
        which = "mean of all heads" if head.head < 0 else f"head {head.head}"
        title = f"where {head.layer} looked to tell “{asked.word}” ({which})"
        views.append(see.strip(names[:at], weights[at - 1, :at].cpu(), title))
    return views


def stacked(*views: View) -> View:
    rows = tuple(row for view in views for row in view.rows)
    return replace(views[0], rows=rows, notes=tuple(note for view in views for note in view.notes))


WRITE = Task(
    settings=WriteSettings,
    examples="lines",
    read=lambda settings, split, folder: read_texts(settings.data, split, folder),
    fresh=Author.fresh,
    described=Author.described,
    load=Author.load,
    measure=measured,
    look=look,
    tries=lambda folder: ("write", folder),
    finish=keep_pointer,
)
