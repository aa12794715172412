"""Translation metrics: BLEU, chrF and exact match with their signatures, and BLEU by length."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard.data.tokenizers.normalization import TextNormalizer


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
