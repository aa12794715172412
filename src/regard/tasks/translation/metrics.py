"""Translation metrics: BLEU, chrF and exact match with their signatures, BLEU by length, and a translator's."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard.data.parallel import SentencePair
from regard.data.tokenizers.normalization import TextNormalizer
from regard.decode.search import Search
from regard.decode.translate import translate_lines
from regard.tasks.protocol import ProgressBar, no_progress

if TYPE_CHECKING:
    from regard.tasks.translation.task import Translator


@dataclass(frozen=True)
class MetricScore:
    """A score and the signature that says exactly how it was computed."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def bleu(found: Sequence[str], wanted: Sequence[str], *, tokenised: bool = False) -> MetricScore:
    """Corpus BLEU by sacreBLEU; `tokenised` texts are split at blanks alone."""
    check_paired(found, wanted)
    metric = BLEU(tokenize="none" if tokenised else "13a", force=tokenised)
    score = metric.corpus_score(list(found), [list(wanted)])
    return MetricScore("BLEU", min(score.score, 100.0), str(metric.get_signature()))  # rounding may carry it beyond


def chrf(found: Sequence[str], wanted: Sequence[str]) -> MetricScore:
    check_paired(found, wanted)
    metric = CHRF()
    return MetricScore("chrF", metric.corpus_score(list(found), [list(wanted)]).score, str(metric.get_signature()))


def exact_match(found: Sequence[str], wanted: Sequence[str]) -> MetricScore:
    """The share of sentences that are right to the letter, in percent."""
    check_paired(found, wanted)
    hits = sum(one == other for one, other in zip(found, wanted, strict=True))
    return MetricScore("exact match", 100 * hits / len(found), f"sentences:{len(found)}")


def translation_metrics(normal: TextNormalizer, found: Sequence[str], wanted: Sequence[str]) -> list[MetricScore]:
    """All that can be said of texts in this normal form: a lower-cased one has no capitals to be judged by."""
    if normal.lower:
        return [tokenized_bleu(normal, found, wanted)]
    forms = [replace(normal, lower=True), normal] if normal.language else []
    words = [tokenized_bleu(form, found, wanted) for form in forms]
    return [*words, bleu(found, wanted), chrf(found, wanted), exact_match(found, wanted)]


def tokenized_bleu(normal: TextNormalizer, found: Sequence[str], wanted: Sequence[str]) -> MetricScore:
    """BLEU over the words of this normal form."""
    score = bleu([normal.apply(text) for text in found], [normal.apply(text) for text in wanted], tokenised=True)
    return replace(score, name=f"BLEU, {'lower-cased, ' if normal.lower else ''}tokenised")


@dataclass(frozen=True)
class LengthBucket:
    """The sentences whose source has from `first` to `last` words: how many, their mean length, their BLEU."""

    first: int
    last: int
    sentences: int
    length: float
    bleu: float

    def __str__(self) -> str:
        return f"{self.first}–{self.last}"


def bleu_by_length(
    found: Sequence[str], wanted: Sequence[str], lengths: Sequence[int], edges: Sequence[int]
) -> list[LengthBucket]:
    """BLEU of tokenised texts by the length of their source; a bucket reaches from one edge to the next."""
    check_paired(found, wanted)
    rows = []
    for low, high in zip(edges, (*edges[1:], max(*lengths, *edges) + 1), strict=True):
        mine = [n for n, length in enumerate(lengths) if low <= length < high]
        if mine:
            score = bleu([found[n] for n in mine], [wanted[n] for n in mine], tokenised=True)
            rows.append(
                LengthBucket(low, high - 1, len(mine), round(sum(lengths[n] for n in mine) / len(mine), 1), score.value)
            )
    return rows


def check_paired(found: Sequence[str], wanted: Sequence[str]) -> None:
    if len(found) != len(wanted) or not found:
        raise ValueError(f"{len(found)} translations for {len(wanted)} references: there must be one for each")


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


def evaluate_translations(
    translator: "Translator", pairs: Sequence[SentencePair], search: Search, progress: ProgressBar = no_progress
) -> TranslationMetrics:
    """Texts as people write them, and where the model reads them tokenised, as it reads them."""
    arriving = translate_lines(translator, [pair.source for pair in pairs], search)
    found = dict(progress(arriving, "translating", len(pairs)))
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
