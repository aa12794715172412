"""Model card (Mitchell et al. 2019) of a translator: Markdown from one JSON of measurements, and what is measured."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from sacrebleu.metrics.chrf import CHRF
from torch import nn

from regard.data.corpora import CORPORA
from regard.data.parallel import SentencePair
from regard.tasks.translation.metrics import BLEU_13A, CHRF_PLAIN, TranslationMetrics, bleu_by_length

LENGTHS = (1, 11, 26)  # words of a source where the rows of BLEU by length begin
FAILURES, FAILURE_WORDS = 5, 4  # failures of a set that a card shows, and the words of a source, at least
MAX_QUOTED = 240  # letters of a sentence on a card: a model that fails may repeat itself
KINDS = {"cuda": "GPU", "cpu": "CPU"}
SCALE_BYTES = 4  # of the float32 scale that a row of 8-bit weights has
INTENDED = (
    "Sentences like those it learnt from: everyday language and speeches. A document is split into sentences, which "
    "are translated one by one."
)
NOT_INTENDED = (
    "contracts, medicine, law, safety or anything whose mistakes harm someone, unless a person who knows both "
    "languages reads every sentence",
    "news, literature, poetry, chats with slang, and texts full of technical terms: it has seen few or none",
    "what depends on other sentences: it reads one at a time, so pronouns, politeness and terms may change between two",
    "other languages: their words are copied, or translated by chance",
    "judging people, or as evidence of what somebody has said",
)


# --- what is measured ---


def measure_set(found: TranslationMetrics) -> dict[str, Any]:
    """Cased, detokenised BLEU and chrF with their signatures, and BLEU by the length of the source."""
    scores = (metric.score(found.translations, found.references) for metric in (BLEU_13A, CHRF_PLAIN))
    rows = bleu_by_length(found.translations, found.references, found.source_lengths, LENGTHS, tokenised=False)
    return {
        "sentences": len(found.references),
        **{one.name: {"value": one.value, "signature": one.signature} for one in scores},
        "by_length": [{"words": name_bucket(row.first), "sentences": row.sentences, "BLEU": row.bleu} for row in rows],
    }


def name_bucket(first: int) -> str:
    """The words of a bucket that begins there.

    Examples:
        >>> [name_bucket(first) for first in LENGTHS]
        ['1–10', '11–25', '26 and more']
    """
    after = LENGTHS[LENGTHS.index(first) + 1 :]
    return f"{first}–{after[0] - 1}" if after else f"{first} and more"


def find_failures(pairs: Sequence[SentencePair], found: Sequence[str], count: int = FAILURES) -> list[dict[str, Any]]:
    """The translations with the least chrF of their sentence, of sources with four words at least.

    Examples:
        >>> pairs = [SentencePair("I am an old cat", "je suis un vieux chat"), SentencePair("no", "non")]
        >>> [(one["output"], one["chrF"]) for one in find_failures(pairs, ["gold", "gold"])]
        [('gold', 0.0)]
    """
    metric = CHRF()
    rows = [
        {
            "chrF": round(metric.sentence_score(text, [pair.target]).score, 1),
            "source": pair.source,
            "reference": pair.target,
            "output": text,
        }
        for pair, text in zip(pairs, found, strict=True)
        if len(pair.source.split()) >= FAILURE_WORDS
    ]
    return sorted(rows, key=lambda row: row["chrF"])[:count]


def count_weights(model: nn.Module) -> dict[str, int]:
    """Parameters, and their bytes in float32 and in int8: a byte each in matrices, and a scale for each of their rows.

    Examples:
        >>> count_weights(nn.Linear(10, 3))
        {'parameters': 33, 'float32_bytes': 132, 'int8_bytes': 54}
    """
    weights = list(model.parameters())
    matrices = [one for one in weights if one.dim() > 1]
    small = sum(one.numel() for one in matrices) + SCALE_BYTES * sum(one.numel() // one.shape[-1] for one in matrices)
    others = sum(4 * one.numel() for one in weights if one.dim() <= 1)
    total = sum(one.numel() for one in weights)
    return {"parameters": total, "float32_bytes": 4 * total, "int8_bytes": small + others}


def describe_corpus(name: str, weight: float, cleaning: Mapping[str, Any]) -> dict[str, Any]:
    """Its licence and home, as far as they are known, and what cleaning left of it."""
    known = CORPORA.get(name)
    facts = (known.title, known.licence, known.homepage) if known else ("a file of one's own", "as of the file", "")
    return {
        "name": name,
        **dict(zip(("title", "licence", "homepage"), facts, strict=True)),
        "redistributable": bool(known and known.redistributable),
        "weight": weight,
        **cleaning,
    }


def may_be_quoted(dataset: str) -> bool:
    """Whether sentences of a set may stand on a card: those of a corpus that is free to be distributed."""
    known = CORPORA.get(dataset.partition(":")[0])
    return known is None or known.redistributable


# --- the card ---


def render_card(measured: Mapping[str, Any]) -> str:
    """Markdown; the JSON is written by `regard models build`."""
    parts = (front, data_section, results_section, gains_section, failures_section, limits_section, cost_section)
    return "\n\n".join("\n".join(part(measured)) for part in parts) + "\n"


def front(measured: Mapping[str, Any]) -> Iterator[str]:
    """With YAML before it, as model hubs read it; `bleu` is that of the shipped model on the first set."""
    model, sizes = measured["model"], measured["model"]["weights"]
    split = "test" if "test" in measured["results"] else "dev"
    sets = measured["results"].get(split, {}).get(measured["shipped"], {})
    yield "---"
    yield f"language: [{measured['source']}, {measured['target']}]"
    yield f"license: {json.dumps('; '.join(dict.fromkeys(one['licence'] for one in measured['corpora'])))}"
    yield f"datasets: [{', '.join(one['name'] for one in measured['corpora'])}]"
    yield from (f"bleu: {one['BLEU']['value']:.1f}  # {name}" for name, one in list(sets.items())[:1])
    yield "---"
    yield ""
    yield f"# {measured['name']}: a translator from {measured['source']} to {measured['target']}"
    yield ""
    yield (
        f"{model['description']}: {sizes['parameters']:,} parameters, {megabytes(sizes['int8_bytes'])} in int8 "
        f"(8 bits a weight of a matrix, a scale for each row), {megabytes(sizes['float32_bytes'])} in float32; a "
        f"vocabulary of {model['vocabulary']:,} subwords. Made by Regard {measured['version']}."
    )
    yield ""
    yield INTENDED


def data_section(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "## What it learnt from"
    yield ""
    rows = [
        (
            f"[{one['name']}]({one['homepage']})" if one["homepage"] else one["name"],
            one["title"],
            one["licence"],
            f"{one['read']:,}",
            f"{one['kept']:,}",
            f"{one['weight']:g}",
        )
        for one in measured["corpora"]
    ]
    yield from table(("corpus", "what", "licence and attribution", "pairs", "kept", "weight"), rows)
    yield ""
    for one in measured["corpora"]:
        removed = ", ".join(f"{rule} {count:,}" for rule, count in one["removed"].items()) or "nothing"
        yield f"- {one['name']}, removed by cleaning: {removed}."
    for one in measured["synthetic"]:
        yield f"- {one['name']}: {one['pairs']:,} pairs of {one['read']:,} sentences, translated by {one['by']}."
    yield (
        f"- Pairs with a sentence of {'; '.join(measured['excluded'])} were removed by code, in all languages of those "
        "sets, whatever its case, punctuation and spaces."
    )
    if foreign := [one["name"] for one in measured["corpora"] if not one["redistributable"]]:
        yield f"- Not known to be free to distribute: {', '.join(foreign)}. Do not ship these weights."


def results_section(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "## Results"
    yield ""
    yield f"Cased, detokenised sacreBLEU and chrF; {measured['search']}."
    for split, why in (
        ("test", "Test sets, looked at once"),
        ("dev", "Development sets, by which steps were chosen; none was trained on"),
    ):
        if not (found := measured["results"].get(split)):
            yield f"\n### {why}\n\nNot measured: `regard models build` measures them with `--test`."
            continue
        yield f"\n### {why}\n"
        rows = [
            (system, name, f"{one['sentences']:,}", f"{one['BLEU']['value']:.1f}", f"{one['chrF']['value']:.1f}")
            for system, sets in found.items()
            for name, one in sets.items()
        ]
        yield from table(("model", "set", "sentences", "BLEU", "chrF"), rows)
        yield ""
        yield f"BLEU by the words of the source, {measured['shipped']}:\n"
        sets = found.get(measured["shipped"], {})
        yield from table(
            ("set", *map(name_bucket, LENGTHS)), [(name, *length_cells(one)) for name, one in sets.items()]
        )
    yield ""
    yield from (f"- {name}: `{signature}`" for name, signature in sorted(signatures(measured["results"])))


def length_cells(one: Mapping[str, Any]) -> list[str]:
    """BLEU of each bucket, with its sentences; – where it has none."""
    found = {row["words"]: f"{row['BLEU']:.1f} ({row['sentences']:,})" for row in one["by_length"]}
    return [found.get(name_bucket(first), "–") for first in LENGTHS]


def signatures(results: Mapping[str, Any]) -> set[tuple[str, str]]:
    sets = [one for systems in results.values() for sets in systems.values() for one in sets.values()]
    return {(name, one[name]["signature"]) for one in sets for name in ("BLEU", "chrF")}


def gains_section(measured: Mapping[str, Any]) -> Iterator[str]:
    """BLEU on the development sets after each step, and the mean's difference to the step that it is compared with."""
    yield "## What each step gained"
    yield ""
    found = measured["results"].get("dev", {})
    if not found:
        yield "Not measured."
        return
    names = list(next(iter(found.values())))
    means = {system: sum(one["BLEU"]["value"] for one in sets.values()) / len(sets) for system, sets in found.items()}
    rows = []
    for system, sets in found.items():
        before = measured["compared_with"].get(system)
        gain = f"{means[system] - means[before]:+z.1f} to {before}" if before in means else ""
        rows.append((system, *(f"{sets[name]['BLEU']['value']:.1f}" for name in names), f"{means[system]:.1f}", gain))
    yield "BLEU on the development sets.\n"
    yield from table(("step", *names, "mean", "gain"), rows)


def failures_section(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "## Known failures"
    yield ""
    if not measured["failures"]:
        yield "No development set whose sentences may be quoted was measured."
        return
    yield (
        f"The {FAILURES} translations of each development set with the least chrF of their sentence, of sources with "
        f"{FAILURE_WORDS} words and more; some are right, and only unlike the reference."
    )
    for name, rows in groupby(measured["failures"], key=lambda row: row["set"]):
        yield f"\n{name}:\n"
        cells = (
            (f"{row['chrF']:.1f}", *(escape_cell(row[part]) for part in ("source", "reference", "output")))
            for row in rows
        )
        yield from table(("chrF", "source", "reference", "output"), cells)


def limits_section(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "## What not to use it for"
    yield ""
    yield from (f"- {one}" for one in NOT_INTENDED)
    yield (
        "- It repeats what its corpora say, prejudices and old facts among them, and may leave out a negation or a "
        "number: read what it writes."
    )


def cost_section(measured: Mapping[str, Any]) -> Iterator[str]:
    yield "## Training, its time and its energy"
    yield ""
    rows = [(one["name"], one["device"], duration(one["seconds"])) for one in measured["stages"]]
    yield from table(("stage", "on", "time"), rows)
    total, energy = sum(one["seconds"] for one in measured["stages"]), kilowatt_hours(measured)
    kinds = dict.fromkeys(one["kind"] for one in measured["stages"])
    watts = " and ".join(f"{measured['watts'][kind]:g} W ({KINDS[kind]})" for kind in kinds)
    yield ""
    yield (
        f"In all {duration(total)}. Energy, estimated and not measured: {energy:.3f} kWh, an assumed power of {watts} "
        "times the time of each stage; what a killed stage had taken is not counted."
    )
    yield from (line for note in measured.get("notes", ()) for line in ("", note))
    yield ""
    yield "One command makes it again:"
    yield ""
    yield f"```bash\n{measured['command']}\n```"


def kilowatt_hours(measured: Mapping[str, Any]) -> float:
    """The assumed power of each stage's device times its time.

    Examples:
        >>> stages = [{"kind": "cuda", "seconds": 1800}, {"kind": "cpu", "seconds": 3600}]
        >>> kilowatt_hours({"stages": stages, "watts": {"cuda": 700, "cpu": 50}})
        0.4
    """
    return sum(one["seconds"] * measured["watts"][one["kind"]] for one in measured["stages"]) / 3.6e6


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{' --- |' * len(header)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def escape_cell(text: str) -> str:
    """Text that would otherwise be Markdown, or end a cell of a table; what is very long is cut.

    Examples:
        >>> print(escape_cell("a|b *c*"))
        a\\|b \\*c\\*
    """
    line = " ".join(text.split())
    line = line if len(line) <= MAX_QUOTED else f"{line[:MAX_QUOTED]}…"
    return "".join(f"\\{letter}" if letter in "\\|*_`<[" else letter for letter in line)


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes.

    Examples:
        >>> duration(59.4), duration(61), duration(7260)
        ('59 s', '1 min 1 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
