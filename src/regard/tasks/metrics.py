"""Translations and references in; BLEU, chrF with their signatures, BLEU by length and exact matches out."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


@dataclass(frozen=True)
class Figure:
    """A score and the signature that says exactly how it was computed."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def bleu(found: Sequence[str], wanted: Sequence[str], *, tokenised: bool = False) -> Figure:
    """Corpus BLEU by sacreBLEU; `tokenised` texts are split at blanks alone."""
    check(found, wanted)
    metric = BLEU(tokenize="none" if tokenised else "13a", force=tokenised)
    score = metric.corpus_score(list(found), [list(wanted)])
    return Figure("BLEU", score.score, str(metric.get_signature()))


def chrf(found: Sequence[str], wanted: Sequence[str]) -> Figure:
    check(found, wanted)
    metric = CHRF()
    return Figure("chrF", metric.corpus_score(list(found), [list(wanted)]).score, str(metric.get_signature()))


def exact(found: Sequence[str], wanted: Sequence[str]) -> Figure:
    """The share of sentences that are right to the letter, in percent."""
    check(found, wanted)
    hits = sum(one == other for one, other in zip(found, wanted, strict=True))
    return Figure("exact match", 100 * hits / len(found), f"sentences:{len(found)}")


def by_length(
    found: Sequence[str], wanted: Sequence[str], lengths: Sequence[int], edges: Sequence[int]
) -> list[tuple[int, int, float]]:
    """BLEU of the sentences whose source length lies in [edge, next edge), and how many there are."""
    rows = []
    for low, high in zip(edges, (*edges[1:], 10**9), strict=True):
        mine = [n for n, length in enumerate(lengths) if low <= length < high]
        if mine:
            score = bleu([found[n] for n in mine], [wanted[n] for n in mine], tokenised=True)
            rows.append((low, len(mine), score.value))
    return rows


def check(found: Sequence[str], wanted: Sequence[str]) -> None:
    if len(found) != len(wanted) or not found:
        raise ValueError(f"{len(found)} translations for {len(wanted)} references: there must be one for each")
