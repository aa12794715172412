"""Model cards: what is measured, and the Markdown of fixed measurements."""

import copy
import re
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from regard.data import SentencePair
from regard.data.tokenizers.base import TextNormalizer
from regard.tasks.translation.metrics import TranslationMetrics
from regard.tasks.translation.model_card import (
    MAX_QUOTED,
    count_weights,
    describe_corpus,
    find_failures,
    kilowatt_hours,
    may_be_quoted,
    measure_set,
    render_card,
)

PAIRS = [
    ("one two three four", "eins zwei drei vier"),
    ("a b c d e f g h i j k", "ah be ce de eh eff ge ha ih jot ka"),
    (" ".join("abcdefghijklmnopqrstuvwxyz"), " ".join(letter * 2 for letter in "abcdefghijklmnopqrstuvwxyz")),
]


def metrics(found: list[str]) -> TranslationMetrics:
    wanted = tuple(target for _, target in PAIRS)
    return TranslationMetrics(tuple(found), wanted, tuple(len(source.split()) for source, _ in PAIRS), TextNormalizer())


def one_set(bleu: float) -> dict[str, Any]:
    found = measure_set(metrics([target for _, target in PAIRS]))
    return found | {"BLEU": {"value": bleu, "signature": "nrefs:1|tok:13a"}}


@pytest.fixture
def measured() -> dict[str, Any]:
    cleaning = {"read": 100, "removed": {"test overlap": 7, "ratio": 3}, "kept": 90}
    dev = {"teacher": 40.0, "student": 38.75}
    stages = [("data", 30.0, "cpu", "a CPU"), ("teacher", 1800.0, "cuda", "a GPU")]
    return {
        "name": "en-de",
        "version": "9.8.7",
        "source": "en",
        "target": "de",
        "model": {
            "description": "A transformer",
            "vocabulary": 10_000,
            "weights": {"parameters": 9_000_000, "float32_bytes": 36_000_000, "int8_bytes": 9_400_000},
        },
        "corpora": [describe_corpus("tatoeba", 2.0, cleaning)],
        "synthetic": [{"name": "distilled", "by": "the teacher of en-de", "pairs": 88, "read": 90}],
        "excluded": ["tatoeba, test"],
        "search": "beam 5, length penalty 1",
        "results": {"dev": {name: {"tatoeba, valid": one_set(bleu)} for name, bleu in dev.items()}},
        "shipped": "student",
        "compared_with": {"student": "teacher"},
        "failures": [{"set": "tatoeba, valid", "chrF": 3.25, "source": "a|b", "reference": "*c*", "output": "<d>"}],
        "stages": [dict(zip(("name", "seconds", "kind", "device"), one, strict=True)) for one in stages],
        "notes": ["It was made twice."],
        "watts": {"cuda": 600.0, "cpu": 120.0},
        "command": "regard models build recipes/shipped/en-de.toml --data FOLDER --out models",
    }


def rows(card: str) -> list[list[str]]:
    """The cells of all tables."""
    return [re.split(r" (?<!\\)\| ", line[2:-2]) for line in card.splitlines() if line.startswith("| ")]


# --- the Markdown ---


def test_a_card_says_what_was_measured(measured):
    card = render_card(measured)
    found = rows(card)
    front, body = card.removeprefix("---\n").split("\n---\n\n")
    assert yaml.safe_load(front) == {
        "language": ["en", "de"],
        "license": "CC BY 2.0 FR: name tatoeba.org",
        "datasets": ["tatoeba"],
        "bleu": 38.8,
    }
    assert body.startswith("# en-de: a translator from en to de\n")
    assert "9,000,000 parameters, 9.4 MB in int8" in card
    assert "36.0 MB in float32" in card
    assert "Regard 9.8.7" in card
    corpus = next(row for row in found if row[0].startswith("[tatoeba]"))
    assert corpus[2:] == ["CC BY 2.0 FR: name tatoeba.org", "100", "90", "2"]
    assert "- tatoeba, removed by cleaning: test overlap 7, ratio 3." in card
    assert "- distilled: 88 pairs of 90 sentences, translated by the teacher of en-de." in card
    assert "Pairs with a sentence of tatoeba, test were removed by code" in card
    assert ["student", "tatoeba, valid", "3", "38.8", "100.0"] in found
    assert "- BLEU: `nrefs:1|tok:13a`" in card
    assert "- chrF: `nrefs:1|case:mixed" in card
    assert ["tatoeba, valid", "100.0 (1)", "100.0 (1)", "100.0 (1)"] in found
    assert card.rstrip().endswith(f"```bash\n{measured['command']}\n```")


def test_a_step_gains_the_difference_to_the_step_it_is_compared_with(measured):
    found = rows(render_card(measured))
    assert ["student", "38.8", "38.8", "-1.2 to teacher"] in found
    assert ["teacher", "40.0", "40.0", ""] in found


def test_a_gain_that_rounds_to_nothing_has_no_sign_of_a_loss(measured):
    (sets,) = [measured["results"]["dev"]["teacher"]]
    measured["results"]["dev"]["student"] = {
        name: {**one, "BLEU": {**one["BLEU"], "value": one["BLEU"]["value"] - 0.01}} for name, one in sets.items()
    }
    assert ["student", "40.0", "40.0", "+0.0 to teacher"] in rows(render_card(measured))


def test_energy_is_the_assumed_power_times_the_time(measured):
    assert kilowatt_hours(measured) == pytest.approx(0.3 + 0.001)
    card = render_card(measured)
    assert "In all 30 min 30 s." in card
    assert "\nIt was made twice.\n" in card
    assert "estimated and not measured: 0.301 kWh, an assumed power of 120 W (CPU) and 600 W (GPU)" in card


def test_sentences_on_a_card_are_text_and_not_markdown(measured):
    assert ["3.2", r"a\|b", r"\*c\*", r"\<d>"] in rows(render_card(measured))


def test_a_translation_that_repeats_itself_is_cut(measured):
    measured["failures"][0]["output"] = "ha" * 1000
    (row,) = (row for row in rows(render_card(measured)) if row[1] == r"a\|b")
    assert row[3] == "ha" * (MAX_QUOTED // 2) + "…"


def test_test_sets_stand_on_a_card_only_if_they_were_measured(measured):
    card = render_card(measured)
    assert "### Test sets, looked at once\n\nNot measured: `regard models build` measures them with `--test`." in card
    tested = copy.deepcopy(measured)
    tested["results"]["test"] = {"student": {"tatoeba, test": one_set(37.0)}}
    assert ["student", "tatoeba, test", "3", "37.0", "100.0"] in rows(render_card(tested))


def test_weights_that_may_not_be_shipped_say_so(measured):
    assert "Do not ship these weights" not in render_card(measured)
    counts = {"read": 1, "removed": {}, "kept": 1}
    for name in ("multi30k", "mine"):
        kept = {**measured, "corpora": [*measured["corpora"], describe_corpus(name, 1.0, counts)]}
        assert f"Not known to be free to distribute: {name}. Do not ship these weights." in render_card(kept)


# --- what is measured ---


def test_bleu_by_length_has_three_rows_of_cased_text():
    found = measure_set(metrics([PAIRS[0][1], PAIRS[1][1].title(), PAIRS[2][1]]))
    assert {row["words"]: row["sentences"] for row in found["by_length"]} == {"1–10": 1, "11–25": 1, "26 and more": 1}
    short, middle, long = (row["BLEU"] for row in found["by_length"])
    assert short == pytest.approx(100)
    assert long == pytest.approx(100)
    assert middle < 10
    assert "case:mixed" in found["BLEU"]["signature"]


def test_failures_are_the_least_alike_of_sentences_that_are_long_enough():
    pairs = [SentencePair("a b c d", target) for target in ("gleich", "ähnlich", "anders")]
    pairs.insert(0, SentencePair("a b c", "kurz"))
    found = find_failures(pairs, ["xyz", "gleich", "ähnlic", "xyz"], 2)
    assert [(one["reference"], one["output"]) for one in found] == [("anders", "xyz"), ("ähnlich", "ähnlic")]
    assert found[0]["chrF"] < found[1]["chrF"] < 100


def test_sentences_are_quoted_from_corpora_that_are_free():
    quoted = {word: may_be_quoted(word) for word in ("tatoeba:valid", "europarl:valid", "newstest:valid", "mine.tsv")}
    assert quoted == {"tatoeba:valid": True, "europarl:valid": True, "newstest:valid": False, "mine.tsv": True}


def test_eight_bits_are_a_byte_for_each_weight_of_a_matrix_and_a_scale_for_each_row():
    model = nn.Sequential(nn.Linear(100, 10), nn.LayerNorm(10))
    assert count_weights(model) == {"parameters": 1030, "float32_bytes": 4120, "int8_bytes": 1000 + 4 * 10 + 4 * 30}
    assert count_weights(nn.Embedding(7, 5))["int8_bytes"] == 35 + 28
    assert torch.get_default_dtype() == torch.float32
