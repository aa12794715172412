"""Translation metrics: BLEU, chrF, chrF++ and TER by sacreBLEU, with signatures, by length, paired tests; and COMET.

COMET (Rei et al. 2020) is scored by unbabel-comet in an environment of the user's own, as a subprocess: it pins
versions of torch and numpy that others cannot share, so it is never imported here.
"""

import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from regard.data.tokenizers.base import TextNormalizer
from regard.tasks.metrics import RESAMPLES, MetricScore, PairedResult, TaskMetrics, paired_bootstrap


@dataclass(frozen=True)
class TextMetric:
    """A metric of sacreBLEU.

    Args:
        build: a new metric of sacreBLEU.
        normal: the form in which texts are compared; None is as people write them.
    """

    name: str
    build: Callable[..., Metric]
    normal: TextNormalizer | None = None

    def metric(self, wanted: Sequence[str]) -> Metric:
        """For these references. Where none has as many words as BLEU's longest n-grams, 4, the plain BLEU of the best
        translation is 0: then it counts up to the n-grams that there are, and its signature says eff:yes."""
        metric = self.build()
        if isinstance(metric, BLEU) and longest(map(metric.tokenizer, self.texts(wanted))) < metric.max_ngram_order:
            return self.build(effective_order=True)
        return metric

    def score(self, found: Sequence[str], wanted: Sequence[str]) -> MetricScore:
        check_paired(found, wanted)
        metric = self.metric(wanted)
        score = metric.corpus_score(self.texts(found), [self.texts(wanted)]).score
        if isinstance(metric, BLEU):
            score = min(score, 100.0)  # rounding may carry it beyond
        return MetricScore(self.name, score, str(metric.get_signature()))

    def texts(self, texts: Sequence[str]) -> list[str]:
        return [self.normal.apply(text) for text in texts] if self.normal else list(texts)

    def compare(self, first: Sequence[str], second: Sequence[str], wanted: Sequence[str]) -> PairedResult:
        """Paired bootstrap resampling by sacreBLEU."""
        systems: list[tuple[str, Sequence[str]]] = [("first", self.texts(first)), ("second", self.texts(second))]
        metric = self.metric(wanted)
        test = PairedTest(systems, {self.name: metric}, [self.texts(wanted)], test_type="bs", n_samples=RESAMPLES)
        signatures, results = test()
        (name,) = signatures
        one, two = results[name]
        assert isinstance(one, Result)
        assert isinstance(two, Result)
        assert two.p_value is not None
        # of equal scores sacreBLEU says 1 / (resamples + 1), which reads as if they differed
        p_value = two.p_value if one.score != two.score else 1.0
        return PairedResult(p_value, (float(one.ci or 0.0), float(two.ci or 0.0)), str(signatures[name]))


BLEU_13A = TextMetric("BLEU", BLEU)
CHRF_PLAIN = TextMetric("chrF", CHRF)
TRANSLATION_EDIT_RATE = TextMetric("TER", TER)  # the lower, the better; it does not look at capitals
MAX_TER_WORDS = 150  # of a reference: the time that TER takes grows faster than with the square of its length


def chrf_plus_plus(*, lowercase: bool = False) -> TextMetric:
    """chrF++: character n-grams, and words and pairs of words (Popović 2017)."""
    return TextMetric("chrF++", partial(CHRF, word_order=2, lowercase=lowercase))


def tokenized_bleu(normal: TextNormalizer) -> TextMetric:
    """BLEU over the words of a normal form."""
    name = f"BLEU, {'lower-cased, ' if normal.lower else ''}tokenised"
    return TextMetric(name, partial(BLEU, tokenize="none", force=True), normal)


def text_metrics(normal: TextNormalizer, wanted: Sequence[str]) -> list[TextMetric]:
    """All that can be said of texts in this normal form: a lower-cased one has no capitals to be judged by."""
    edits = [TRANSLATION_EDIT_RATE] if longest(wanted) <= MAX_TER_WORDS else []
    if normal.lower:
        return [tokenized_bleu(normal), chrf_plus_plus(lowercase=True), *edits]
    forms = [replace(normal, lower=True), normal] if normal.language else []
    return [*map(tokenized_bleu, forms), BLEU_13A, CHRF_PLAIN, chrf_plus_plus(), *edits]


def longest(texts: Iterable[str]) -> int:
    """The words of the longest."""
    return max((len(text.split()) for text in texts), default=0)


def translation_metrics(normal: TextNormalizer, found: Sequence[str], wanted: Sequence[str]) -> list[MetricScore]:
    """The scores of texts that a model in this normal form wrote."""
    scores = [metric.score(found, wanted) for metric in text_metrics(normal, wanted)]
    return scores if normal.lower else [*scores, exact_match(found, wanted)]


def bleu(found: Sequence[str], wanted: Sequence[str], *, tokenised: bool = False) -> MetricScore:
    """Corpus BLEU by sacreBLEU; `tokenised` texts are split at blanks alone."""
    metric = TextMetric("BLEU", partial(BLEU, tokenize="none", force=True)) if tokenised else BLEU_13A
    return metric.score(found, wanted)


def exact_match(found: Sequence[str], wanted: Sequence[str]) -> MetricScore:
    """The share of sentences that are right to the letter, in percent."""
    check_paired(found, wanted)
    hits = sum(one == other for one, other in zip(found, wanted, strict=True))
    return MetricScore("exact match", 100 * hits / len(found), f"sentences:{len(found)}")


def closest_text(texts: Sequence[str], reference: str) -> int:
    """Which of some translations is most like the reference, by the BLEU of the sentence; of equals the first.

    Examples:
        >>> closest_text(["a cat is asleep", "the cat sleeps now"], "the cat sleeps here")
        1
    """
    if len(texts) == 1 or not reference.strip():
        return 0
    metric = BLEU(effective_order=True)
    scores = [metric.sentence_score(text, [reference]).score for text in texts]
    return scores.index(max(scores))


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
    found: Sequence[str],
    wanted: Sequence[str],
    lengths: Sequence[int],
    edges: Sequence[int],
    *,
    tokenised: bool = True,
) -> list[LengthBucket]:
    """BLEU by the length of the source, in words; a bucket reaches from one edge to the next.

    Examples:
        >>> rows = bleu_by_length(["a b c d e", "a b c d"], ["a b c d e", "e f g h"], [5, 4], (1, 5))
        >>> [(str(row), row.sentences, round(row.bleu)) for row in rows]
        [('1–4', 1, 0), ('5–5', 1, 100)]
    """
    check_paired(found, wanted)
    rows = []
    for low, high in zip(edges, (*edges[1:], max(*lengths, *edges) + 1), strict=True):
        mine = [n for n, length in enumerate(lengths) if low <= length < high]
        if mine:
            score = bleu([found[n] for n in mine], [wanted[n] for n in mine], tokenised=tokenised)
            rows.append(
                LengthBucket(low, high - 1, len(mine), round(sum(lengths[n] for n in mine) / len(mine), 1), score.value)
            )
    return rows


def check_paired(found: Sequence[str], wanted: Sequence[str]) -> None:
    if len(found) != len(wanted) or not found:
        raise ValueError(f"{len(found)} translations for {len(wanted)} references: there must be one for each")


EDGES = (1, *range(6, 51, 5), 71)  # where buckets of sentence lengths, in words, begin


@dataclass(frozen=True)
class TranslationMetrics(TaskMetrics):
    """Metrics on a set of pairs, and the translations.

    Args:
        source_lengths: words of each source.
        normal: the form in which the model writes.
        further_scores: those that were computed elsewhere.
    """

    translations: tuple[str, ...] = field(repr=False)
    references: tuple[str, ...] = field(repr=False)
    source_lengths: tuple[int, ...] = field(repr=False)
    normal: TextNormalizer
    further_scores: tuple[MetricScore, ...] = ()

    @property
    def scores(self) -> Sequence[MetricScore]:
        return [*self.sacrebleu_scores, *self.further_scores]

    @cached_property
    def sacrebleu_scores(self) -> list[MetricScore]:
        """Of texts as people write them, and where the model reads them tokenised, as it reads them."""
        return translation_metrics(self.normal, self.translations, self.references)

    @cached_property
    def lengths(self) -> list[LengthBucket]:
        seen, wanted = ([self.normal.apply(text) for text in texts] for texts in (self.translations, self.references))
        return bleu_by_length(seen, wanted, self.source_lengths, EDGES)

    def to_json(self) -> dict[str, Any]:
        return {
            "scores": {one.name: {"value": one.value, "signature": one.signature} for one in self.scores},
            "by_length": [asdict(bucket) for bucket in self.lengths],
        }

    def lines(self) -> list[str]:
        return list(self.translations)

    def compare(self, other: "TranslationMetrics") -> dict[str, PairedResult]:
        wanted = self.references
        results = {
            metric.name: metric.compare(self.translations, other.translations, wanted)
            for metric in text_metrics(self.normal, wanted)
        }
        if not self.normal.lower:
            one, two = (
                np.array([a == b for a, b in zip(each.translations, wanted, strict=True)]) for each in (self, other)
            )
            results["exact match"] = paired_bootstrap(one, two, np.ones(len(wanted)), what=f"sentences:{len(wanted)}")
        return results

    def table(self) -> str:
        lines = [f"{one.name:<28} {one.value:6.2f}   {one.signature}" for one in self.scores]
        if (words := longest(self.references)) > MAX_TER_WORDS:
            lines.append(f"{'TER':<28}      –   would take long: a reference has {words:,} words")
        if any("|eff:yes|" in one.signature for one in self.scores if one.name.startswith("BLEU")):
            lines.append("no reference has four words, so BLEU counts the shorter n-grams alone (eff:yes)")
        lines += ["", "words   sentences   BLEU"]
        for bucket in self.lengths:
            lines.append(f"{bucket!s:<7} {bucket.sentences:>9,}  {bucket.bleu:5.1f}  {'█' * round(bucket.bleu / 4)}")
        return "\n".join(lines)


# --- COMET ---


DEFAULT_COMET_MODEL = "Unbabel/wmt22-comet-da"
SYSTEM_SCORE = re.compile(r"^[^\t\n]*\tscore: (-?\d+\.\d+)\s*$", re.MULTILINE)  # lines of segments have three columns


@dataclass(frozen=True)
class CometScorer:
    """The comet-score of another environment.

    Args:
        python: its interpreter.
        version: of unbabel-comet there.
        model: the name of a COMET model, or a checkpoint file.
        gpus: how many it may use; 0 is the CPU.
    """

    python: str
    version: str
    model: str = DEFAULT_COMET_MODEL
    gpus: int = 0

    @staticmethod
    def find(python: str, model: str = DEFAULT_COMET_MODEL, *, gpus: int = 0) -> "CometScorer":
        """Refuses an interpreter that does not run, or that has no COMET."""
        code = "from importlib.metadata import version; print(version('unbabel-comet'))"
        done = run_python(python, "-c", code)
        if done.returncode:
            raise ValueError(f"{python} has no COMET; install it there: {python} -m pip install unbabel-comet")
        return CometScorer(python, done.stdout.strip(), model, gpus)

    def score(self, sources: Sequence[str], found: Sequence[str], wanted: Sequence[str]) -> MetricScore:
        """The system score, times 100."""
        with TemporaryDirectory() as folder:
            paths = [Path(folder) / name for name in ("source", "translation", "reference")]
            for path, texts in zip(paths, (sources, found, wanted), strict=True):
                path.write_text("".join(f"{' '.join(text.split())}\n" for text in texts), encoding="utf-8")
            files = [word for flag, path in zip(("-s", "-t", "-r"), paths, strict=True) for word in (flag, str(path))]
            options = ["--model", self.model, "--gpus", str(self.gpus), "--quiet"]
            done = run_python(self.python, "-m", "comet.cli.score", *files, *options)
        scores = SYSTEM_SCORE.findall(done.stdout)
        if done.returncode or not scores:
            said = (done.stderr.strip() or done.stdout.strip() or "it says nothing").splitlines()[-1]
            raise ValueError(f"COMET fails: {said}; try it alone: {self.python} -m comet.cli.score --help")
        signature = f"model:{self.model}|scale:100|version:{self.version}"
        return MetricScore("COMET", 100 * float(scores[-1]), signature)


def run_python(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run([python, *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ValueError(
            f"{python}: {error.strerror}; name the Python of an environment that has unbabel-comet, such as "
            "comet/bin/python"
        ) from None
