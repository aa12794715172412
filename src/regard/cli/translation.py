"""Evaluation of a translator: metrics, BLEU by length, and the choice of its alignment heads."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from regard.cli.options import with_progress
from regard.data.files import write_text_atomic
from regard.data.parallel import SentencePair
from regard.decode import Greedy
from regard.decode.alignment import AlignmentHead
from regard.decode.search import Search
from regard.decode.translate import translate_lines, translate_texts
from regard.decode.word_alignment import HEADS_FILE, select_head_by_coverage, select_heads_by_gold
from regard.models.config import RNN_KINDS
from regard.tasks.metrics import LengthBucket, MetricScore, bleu_by_length, translation_metrics
from regard.tasks.translation.task import Translator
from regard.world import World

EDGES = (1, *range(6, 51, 5), 71)  # where buckets of sentence lengths, in words, begin


@dataclass(frozen=True)
class TranslationMetrics:
    """Metrics on a set of pairs, and the translations."""

    scores: tuple[MetricScore, ...]
    lengths: tuple[LengthBucket, ...]
    translations: tuple[str, ...] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "scores": {one.name: {"value": one.value, "signature": one.signature} for one in self.scores},
            "by_length": [asdict(bucket) for bucket in self.lengths],
        }

    def lines(self) -> list[str]:
        return list(self.translations)

    def table(self) -> str:
        lines = [f"{one.name:<28} {one.value:6.2f}   {one.signature}" for one in self.scores]
        lines += ["", "words   sentences   BLEU"]
        for bucket in self.lengths:
            lines.append(f"{bucket!s:<7} {bucket.sentences:>9,}  {bucket.bleu:5.1f}  {'█' * round(bucket.bleu / 4)}")
        return "\n".join(lines)


def evaluate_translations(translator: Translator, pairs: Sequence[SentencePair], search: Search) -> TranslationMetrics:
    """Texts as people write them, and where the model reads them tokenised, as it reads them."""
    arriving = translate_lines(translator, [pair.source for pair in pairs], search)
    found = dict(with_progress(arriving, "translating", len(pairs)))
    texts = [found[place][0].text for place in range(len(pairs))]
    wanted = [pair.target for pair in pairs]
    normal = translator.target.normalizer
    seen, references = [normal.apply(text) for text in texts], [normal.apply(text) for text in wanted]
    words = [len(pair.source.split()) for pair in pairs]
    return TranslationMetrics(
        tuple(translation_metrics(normal, texts, wanted)),
        tuple(bleu_by_length(seen, references, words, EDGES)),
        tuple(texts),
    )


# --- alignment heads ---


MAX_SENTENCES = 100  # on which the heads are chosen
MAX_PAIR_TOKENS = 256  # tokens of a side: the attention weights of longer pairs take too much memory


def save_alignment_heads(
    translator: Translator, held_out: list[SentencePair], folder: Path
) -> tuple[AlignmentHead, ...]:
    """Chooses on held-out sentences, by gold alignments where available; none for a model without attention."""
    heads = choose_alignment_heads(translator, held_out)
    rows = [[head.layer, head.head, head.shift] for head in heads]
    write_text_atomic(folder / HEADS_FILE, json.dumps(rows) + "\n")
    return heads


def choose_alignment_heads(translator: Translator, held_out: list[SentencePair]) -> tuple[AlignmentHead, ...]:
    config, data = translator.settings.model, translator.settings.data
    if config.kind in RNN_KINDS:
        return ()
    if data.corpus == "world":
        world = World(min_length=data.min_length, max_length=data.max_length)
        return select_heads_by_gold(translator, [world.sentence(number, "valid") for number in range(MAX_SENTENCES)])
    lengths = [max(map(len, example)) for example in translator.examples(held_out)]
    short = [
        (pair.source, pair.target) for pair, length in zip(held_out, lengths, strict=True) if length <= MAX_PAIR_TOKENS
    ]
    return select_head_by_coverage(translator, short[:MAX_SENTENCES]) if short else ()


def alignment_heads_from_texts(translator: Translator, texts: Sequence[str]) -> tuple[AlignmentHead, ...]:
    """For an unfinished run, which has saved none: chosen on its own translations of the first of these texts."""
    if translator.settings.model.kind in RNN_KINDS:
        return ()
    short = [text for text in texts if 0 < len(translator.source.encode(text)) <= MAX_PAIR_TOKENS][:MAX_SENTENCES]
    pairs = [pair for pair in zip(short, translate_texts(translator, short, Greedy()), strict=True) if pair[1].strip()]
    return select_head_by_coverage(translator, pairs) if pairs else ()
