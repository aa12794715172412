"""Translation in the miniature world: BLEU against length, alignment error rates, and ambiguous words.

    python benchmarks/world.py gru bahdanau luong-dot transformer      trains and measures, writes results/world-*.json
    python benchmarks/world.py deciding                                which word decided, by the model of `make demo`
    python benchmarks/world.py draw                                    draws what was measured into docs/pictures

Heads are chosen on validation sentences; every figure is of test sentences, which hold compositions that occur in no
training sentence.
"""

import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from machine import RESULTS, write
from regard.cli.options import resolve_device
from regard.cli.progress import train_with_progress
from regard.decode import AlignmentHead, Greedy
from regard.decode.alignment import (
    annotate_pair,
    annotated_attention_maps,
    attend_pair,
    evaluate_heads,
    find_deciding_words,
)
from regard.tasks.translation.task import TranslationSettings, Translator, choose_alignment_heads, evaluate_translations
from regard.training.run import TrainingRun
from regard.world import Ambiguity, Sentence, World, find_lecture_sentence

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
SHARED = {
    "data.max_length": 30,
    "data.sentences": 60_000,
    "train.steps": 2000,
    "train.batch_size": 8192,
    "train.warmup_steps": 300,
    "train.validate_every": 500,
    "train.label_smoothing": 0.0,
    "train.learning_rate": 2e-3,
    "train.weight_decay": 0.1,
}
RECURRENT = {"model.size": "tiny", "model.hidden": 256, "model.dropout": 0.0}
RUNGS: dict[str, dict[str, Any]] = {
    "gru": {"model.kind": "gru", **RECURRENT},
    "bahdanau": {"model.kind": "bahdanau", **RECURRENT},
    "luong-dot": {"model.kind": "luong-dot", **RECURRENT},
    "transformer": {"model.kind": "transformer", "model.size": "tiny", "model.dropout": 0.0},
}
TESTS = 1000
MATRIX = "the black cat ate the mouse"
AMBIGUOUS = ("the man carries the light box", "she turned off the light")


# --- train and measure ---


def measure(kind: str) -> Path:
    console, device = Console(stderr=True), resolve_device("auto")
    settings = TranslationSettings.of_world().with_changes({**SHARED, **RUNGS[kind]})
    pairs, held_out, tests = (settings.data.read(split).examples for split in ("train", "valid", "test"))
    translator = Translator.from_examples(pairs, settings)
    with tempfile.TemporaryDirectory() as folder:
        if not train_with_progress(TrainingRun(translator.job(pairs, held_out, device), Path(folder)), console):
            raise SystemExit(f"{kind}: stopped before the end; nothing is measured")
    found = evaluate_translations(translator, tests, Greedy())
    world = World(min_length=settings.data.min_length, max_length=settings.data.max_length)
    sentences = [world.sentence(number, "test") for number in range(TESTS)]
    assert [" ".join(sentence.words) for sentence in sentences] == [pair.source for pair in tests]
    heads = choose_alignment_heads(translator, held_out)
    rows = {
        **found.to_json(),
        "ambiguous": ambiguous(sentences, found.translations),
        **(aligned(translator, sentences, heads) if heads else {}),
    }
    command = f"python benchmarks/world.py {kind}"
    return write(f"world-{kind}", command, [rows], settings=settings.to_toml(), weights=count(translator))


def count(translator: Translator) -> int:
    return sum(parameter.numel() for parameter in translator.model.parameters())


def ambiguous_words(sentences: list[Sentence]) -> list[tuple[int, Ambiguity]]:
    """Every ambiguous word that French tells apart, with the number of its sentence."""
    return [(n, one) for n, sentence in enumerate(sentences) for one in sentence.ambiguities if "fr" in one.languages]


def ambiguous(sentences: list[Sentence], translations: tuple[str, ...]) -> dict[str, Any]:
    """A reading is right if every word that shows it stands in the translation."""
    right, total = Counter[str](), Counter[str]()
    for n, one in ambiguous_words(sentences):
        wanted, written = Counter(sentences[n].expected_words(one, "fr")), Counter(translations[n].split())
        total[one.sense] += 1
        right[one.sense] += wanted <= written
    wrong = {reading: [right[reading], total[reading]] for reading in total if right[reading] < total[reading]}
    return {"right": right.total(), "of": total.total(), "readings that failed": wrong}


def aligned(translator: Translator, sentences: list[Sentence], heads: tuple[AlignmentHead, ...]) -> dict[str, Any]:
    """Alignment error of the chosen heads, and the weights of the sentences that are drawn."""
    examples = [annotate_pair(translator, sentence) for sentence in sentences]
    total = evaluate_heads(heads, annotated_attention_maps(translator.model, examples), examples)
    return {
        "heads": [asdict(head) for head in heads],
        "aer": total.error,
        "precision": total.precision,
        "recall": total.recall,
        "matrix": matrix(translator, heads),
    }


def matrix(translator: Translator, heads: tuple[AlignmentHead, ...]) -> dict[str, Any]:
    sentence = find_lecture_sentence(MATRIX)
    assert sentence is not None
    seen = attend_pair(translator, MATRIX, " ".join(sentence.renderings.fr.words))
    return {
        "source": sentence.words,
        "target": sentence.renderings.fr.words,
        "gold": sorted(sentence.renderings.fr.alignment),
        "weights": seen.word_matrix(heads).tolist(),
    }


# --- which word decided ---


def deciding() -> Path:
    """By the model of `make demo`: of ambiguous words, how many hang on one other word, and is it the grammar's?"""
    settings = TranslationSettings.of_world()
    pairs, held_out = (settings.data.read(split).examples for split in ("train", "valid"))
    translator = Translator.from_examples(pairs, settings)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train_with_progress(TrainingRun(translator.job(pairs, held_out), Path(folder)), Console(stderr=True))
    heads = choose_alignment_heads(translator, held_out)
    world = World(min_length=settings.data.min_length, max_length=settings.data.max_length)
    sentences = [world.sentence(number, "test") for number in range(TESTS)]
    some = named = 0
    for n, one in ambiguous_words(sentences):
        words, said = sentences[n].words, sentences[n].expected_words(one, "fr")
        found = {at for word in said for at in find_deciding_words(translator, " ".join(words), word)} - {one.index}
        some, named = some + bool(found), named + (one.decider in found)
    rows = {
        "words": len(ambiguous_words(sentences)),
        "hang on another word": some,
        "on the one the grammar names": named,
    }
    strips = [strip_of(translator, heads, text) for text in AMBIGUOUS]
    return write("world-deciding", "python benchmarks/world.py deciding", [{**rows, "strips": strips}])


def strip_of(translator: Translator, heads: tuple[AlignmentHead, ...], text: str) -> dict[str, Any]:
    """What the model attended to for the ambiguous word, and how it translates without each other word."""
    sentence = find_lecture_sentence(text)
    assert sentence is not None
    (one,) = sentence.ambiguities
    there = min(there for here, there in sentence.renderings.fr.alignment if here == one.index)
    said = sentence.renderings.fr.words[there]
    return {
        "words": sentence.words,
        "at": one.index,
        "said": said,
        "looked": attend_pair(translator, text, " ".join(sentence.renderings.fr.words))
        .word_matrix(heads)[there, :-1]
        .tolist(),
        "without": {at: text for at, text in find_deciding_words(translator, text, said).items() if at != one.index},
    }


# --- draw ---


def draw() -> None:
    from regard import see
    from regard.see.plots.attention_maps import Alignment, stack, strip
    from regard.see.plots.charts import LengthCurves

    found = {kind: json.loads((RESULTS / f"world-{kind}.json").read_text())["rows"][0] for kind in RUNGS}
    PICTURES.mkdir(exist_ok=True)
    curves = tuple(
        (kind, tuple((at["length"], at["bleu"], at["sentences"]) for at in row["by_length"]))
        for kind, row in found.items()
    )
    see.save(see.draw(LengthCurves(curves)), PICTURES / "bleu-by-length.png")
    for kind, row in found.items():
        if "matrix" not in row:
            continue
        drawn = row["matrix"]
        gold = frozenset((source, target) for source, target in drawn["gold"])
        weights = torch.tensor(drawn["weights"])
        alignment = Alignment(tuple(drawn["source"]), tuple(drawn["target"]), weights, gold)
        see.save(see.draw(alignment, title=kind), PICTURES / f"alignment-{kind}.png")
    strips = []
    for case in json.loads((RESULTS / "world-deciding.json").read_text())["rows"][0]["strips"]:
        words, said = case["words"], case["said"]
        strips.append(
            strip(words, torch.tensor(case["looked"]), f"what it attended to for “{said}”", highlight=case["at"])
        )
        for at, text in case["without"].items():
            left_out = torch.tensor([float(place == int(at)) for place in range(len(words))])
            strips.append(strip(words, left_out, f"without “{words[int(at)]}”: {text}", highlight=case["at"]))
    see.save(see.draw(stack(*strips)), PICTURES / "deciding-words.png")


if __name__ == "__main__":
    for name in sys.argv[1:] or [*RUNGS, "deciding", "draw"]:
        draw() if name == "draw" else print(deciding() if name == "deciding" else measure(name))
