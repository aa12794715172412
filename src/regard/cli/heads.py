"""A trained model in; the heads that align best, kept beside it, out."""

import json
from collections.abc import Sequence
from pathlib import Path

from regard.decode import Greedy
from regard.decode.alignment import Head
from regard.decode.reading import HEADS, head_by_coverage, heads_by_gold
from regard.decode.texts import translate_texts
from regard.models.config import PLAIN
from regard.tasks.translate import Translator
from regard.text.corpus import Pair
from regard.text.files import write_whole
from regard.world import World

SENTENCES = 100  # are enough to tell which head aligns
LONGEST = 256  # tokens on a side: all weights of a longer pair at once are too much to hold


def keep_heads(translator: Translator, held_out: list[Pair], folder: Path) -> tuple[Head, ...]:
    """Choose on held-out sentences, by gold alignments where there are any; none for a model without attention."""
    heads = chosen(translator, held_out)
    rows = [[head.layer, head.head, head.shift] for head in heads]
    write_whole(folder / HEADS, json.dumps(rows) + "\n")
    return heads


def chosen(translator: Translator, held_out: list[Pair]) -> tuple[Head, ...]:
    config, data = translator.settings.model, translator.settings.data
    if config.kind in PLAIN:
        return ()
    if data.corpus == "world":
        world = World(shortest=data.shortest, longest=data.longest)
        return heads_by_gold(translator, [world.sentence(number, "valid") for number in range(SENTENCES)])
    lengths = [max(map(len, example)) for example in translator.examples(held_out)]
    short = [(pair.source, pair.target) for pair, length in zip(held_out, lengths, strict=True) if length <= LONGEST]
    return head_by_coverage(translator, short[:SENTENCES]) if short else ()


def heads_by_texts(translator: Translator, texts: Sequence[str]) -> tuple[Head, ...]:
    """Of a run that is not finished, and has kept none: by what it makes of the first of these texts."""
    if translator.settings.model.kind in PLAIN:
        return ()
    short = [text for text in texts if 0 < len(translator.source.encode(text)) <= LONGEST][:SENTENCES]
    pairs = [pair for pair in zip(short, translate_texts(translator, short, Greedy()), strict=True) if pair[1].strip()]
    return head_by_coverage(translator, pairs) if pairs else ()
