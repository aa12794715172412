"""Translation, as the commands see it: how a translator is trained, measured and looked into."""

from dataclasses import replace
from pathlib import Path

import torch

from regard import see
from regard.cli.check import check
from regard.cli.heads import keep_heads
from regard.cli.measure import measured
from regard.cli.options import search_of
from regard.cli.tasks import Looking, Task
from regard.decode.alignment import Head, all_heads
from regard.decode.reading import Looked, best_head, decided, gold_links
from regard.decode.reading import look as looked_at
from regard.decode.texts import translate_texts
from regard.see.alignment import Alignment, stack, strip
from regard.see.heads import heads_view
from regard.see.panel import View
from regard.tasks.data import read_split
from regard.tasks.settings import Settings
from regard.tasks.translate import Translator
from regard.world import known


def look(translator: Translator, folder: Path, text: str, asked: Looking) -> tuple[str, View]:
    check(translator, text, "the sentence", longest=asked.longest)
    written = asked.target
    if written is None:
        written = translate_texts(translator, [text], search_of(asked.beam, 1.0, 0.0))[0]
    if not written.strip():
        raise ValueError(f"{text!r} is translated by nothing; give a translation to look at with --target")
    seen = looked_at(translator, text, written)
    if asked.every:
        view = every_head(seen)
    elif asked.word is not None:
        view = deciding(translator, seen, text, asked.word, head_for(translator, folder, seen, asked.head))
    else:
        head = head_for(translator, folder, seen, asked.head)
        view = see.look(alignment(translator, seen, text, (head,)), title=head.name)
    return f"{text}\n{written}", view


def head_for(translator: Translator, model: Path, seen: Looked, asked: str | None) -> Head:
    """The one asked for, or the one at which the page opens as well."""
    if asked is None:
        return best_head(translator, model, seen)
    there = all_heads(seen.attention)
    layer, _, number = asked.rpartition(":")
    if not number.isdecimal() or Head(layer, int(number)) not in there:
        names = ", ".join(dict.fromkeys(f"{head.layer}:{head.head}" for head in there))
        raise ValueError(f"--head {asked}: write LAYER:HEAD, one of {names}")
    return Head(layer, int(number))


def alignment(translator: Translator, seen: Looked, text: str, heads: tuple[Head, ...]):
    """The matrix; a sentence of the lectures, if translated as they do, comes with its gold alignment."""
    data, gold = translator.settings.data, frozenset()
    sentence = known(text) if data.corpus == "world" and data.source == "en" else None
    if sentence and sentence.words == seen.source.words and sentence.said(data.target) == seen.target.words:
        gold = gold_links(sentence, data.source, data.target)
    return Alignment(seen.source.words, seen.target.words, seen.words(heads), gold)


def every_head(seen: Looked) -> View:
    panels = {
        layer: [seen.words([Head(layer, number)]) for number in range(weights.shape[0])]
        for layer, weights in seen.attention.layers.items()
    }
    return heads_view(seen.source.words, seen.target.words, panels)


def deciding(translator: Translator, seen: Looked, text: str, word: str, head: Head) -> View:
    """Two strips: where the model looked for the word's translation, and without which words it is another."""
    if word not in seen.source.words:
        raise ValueError(f"--word {word}: not in the sentence; its words are {' '.join(seen.source.words)}")
    at, weights = seen.source.words.index(word), seen.words([head])[:, :-1]
    there = int(weights[:, at].argmax())
    said, words = seen.target.words[there], seen.source.words
    others = {place: written for place, written in decided(translator, text, said).items() if place != at}
    hangs = torch.tensor([float(place in others) for place in range(len(words))])
    shown = stack(
        strip(words, weights[there].cpu(), f"where it looked to write “{said}” ({head.name})", at=at),
        strip(words, hangs, f"left out, it is not “{said}” any more" if others else "no other word decides", at=at),
    )
    return replace(shown, notes=tuple((f"no {words[place]}", written) for place, written in others.items()))


TRANSLATE = Task(
    settings=Settings,
    examples="pairs",
    read=lambda settings, split, folder: read_split(settings.data, split, folder),
    fresh=Translator.fresh,
    described=Translator.described,
    load=Translator.load,
    ids=lambda translator, pairs: translator.source.encode_all(pair.source for pair in pairs),
    measure=lambda translator, pairs: measured(translator, pairs, search_of(5, 1.0, 0.0)),
    look=look,
    tries=lambda folder: ("translate", folder),
    finish=keep_heads,
)
