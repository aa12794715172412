"""A translator and sentence pairs in; its translations and every figure about them out."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from regard.cli.options import tracked
from regard.decode.search import Search
from regard.decode.texts import translations
from regard.tasks.metrics import Bucket, Figure, by_length, figures
from regard.tasks.translate import Translator
from regard.text.corpus import Pair

EDGES = (1, *range(6, 51, 5), 71)  # where buckets of sentence lengths, in words, begin


@dataclass(frozen=True)
class Measured:
    """Figures over one set of pairs, and the translations they are of."""

    scores: tuple[Figure, ...]
    lengths: tuple[Bucket, ...]
    translations: tuple[str, ...] = field(repr=False)

    def figures(self) -> dict[str, Any]:
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


def measured(translator: Translator, pairs: Sequence[Pair], search: Search) -> Measured:
    """Texts as people write them, and where the model reads them tokenised, as it reads them."""
    arriving = translations(translator, [pair.source for pair in pairs], search)
    found = dict(tracked(arriving, "translating", len(pairs)))
    texts = [found[place][0].text for place in range(len(pairs))]
    wanted = [pair.target for pair in pairs]
    normal = translator.target.normal
    seen, references = [normal.apply(text) for text in texts], [normal.apply(text) for text in wanted]
    words = [len(pair.source.split()) for pair in pairs]
    return Measured(
        tuple(figures(normal, texts, wanted)), tuple(by_length(seen, references, words, EDGES)), tuple(texts)
    )
