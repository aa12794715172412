"""regard models build: from pairs to a card in stages, resumed and skipped; regard data translate: synthetic pairs."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regard.cli.models import build_callbacks
from regard.data import SentencePair, read_pairs
from regard.decode import Beam, Greedy, LengthLimit, translation
from regard.decode.translation import PairSynthesis, synthesize_pairs
from regard.tasks.translation.build_recipe import BuildRecipe
from regard.tasks.translation.metrics import closest_text
from regard.tasks.translation.model_build import ModelBuild, name_set
from regard.tasks.translation.task import Translator
from regard.world import World, translation_pairs
from tests.forks import FORKS

from .commands import assert_done, assert_refused, regard

SHARD = 7  # sentences
TINY = """
[{0}.model]
layers = {1}
model = 16
heads = 2
hidden = 24
norm = "pre"
[{0}.train]
steps = 40
batch_size = 120
learning_rate = 0.03
precision = "bf16-pure"
packed = true
max_length = 40
validate_every = 20
checkpoint_every = 20
"""
RECIPE = """
[data]
directions = ["{0}"]
corpora = ["pairs.tsv@en-fr:1"]
exclude = ["test.tsv@en-fr"]
valid = ["dev.tsv@en-fr"]
test = ["test.tsv@en-fr"]
[text]
kind = "words"
[measure]
beam = 2
sentences = 12
"""
SYNTHETIC = """
[back_translation]
enabled = true
recipe = "fr-en.toml"
texts = ["more.tsv@en-fr"]
beam = 1
[distillation]
enabled = true
beam = 2
best_of = 2
originals = true
"""


@pytest.fixture
def recipes() -> Path:
    """Pairs of the miniature world, and the recipes of both directions; the training pairs hold one of the test's."""
    drawn = [translation_pairs(World(max_length=6, seed=seed), "fr", 130, "train") for seed in (0, 1)]
    pairs = list(dict.fromkeys(pair for some in drawn for pair in some))
    parts = {"pairs": [*pairs[:100], pairs[170]], "more": pairs[100:130], "dev": pairs[130:160], "test": pairs[160:190]}
    for name, some in parts.items():
        Path(f"{name}.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in some), encoding="utf-8")
    back = RECIPE.format("fr-en") + TINY.format("teacher", 1)
    Path("fr-en.toml").write_text(back)
    there = RECIPE.format("en-fr") + TINY.format("teacher", 1) + TINY.format("student", 1)
    Path("en-fr.toml").write_text(there + SYNTHETIC)
    return Path("en-fr.toml")


def stages(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_bytes()) for path in sorted((folder / "stages").glob("*.json"))}


def build_of(recipe: Path, **changes: str) -> ModelBuild:
    return ModelBuild(
        recipe=BuildRecipe.load(recipe, changes), data=None, out=Path("models"), callbacks=build_callbacks()
    )


# --- from pairs to a card ---


def test_one_command_makes_a_model_and_its_card_and_the_same_command_makes_nothing_anew(recipes):
    build = ["models", "build", recipes, "--out", "models", "--device", "cpu"]
    stopped = regard(*build, "--minutes", 0)
    assert stopped.exit_code == 130
    assert "the same command goes on" in stopped.stdout
    assert "written: models/en-fr/card.md" in assert_done(regard(*build))
    folder = Path("models/en-fr")
    made = {
        path: path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("card.md", "measurements.json")
    }
    measured = json.loads((folder / "measurements.json").read_bytes())
    systems = ["teacher", "teacher-back", "student-scratch", "student", "int8"]
    assert list(measured["results"]["dev"]) == [one for one in systems if one in measured["results"]["dev"]]
    assert {"teacher", "teacher-back", "student-scratch", "student"} <= set(measured["results"]["dev"])
    assert "test" not in measured["results"]
    (corpus,) = measured["corpora"]
    assert corpus["removed"]["test overlap"] == 1
    assert corpus["kept"] == corpus["read"] - sum(corpus["removed"].values())
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert "| student-scratch | " in card
    assert (folder / "student" / "card.md").read_text(encoding="utf-8") == card
    assert "Not measured: `regard models build` measures them with `--test`." in card
    assert 'precision = "float32"' in (folder / "student.toml").read_text()  # what is for a GPU, in its plain form
    # back-translation keeps the French, distillation the English
    real = {(pair.source, pair.target) for name in ("pairs", "more") for pair in read_pairs(f"{name}.tsv")}
    assert {pair.target for pair in read_pairs(folder / "back-translated.tsv")} <= {target for _, target in real}
    assert {pair.source for pair in read_pairs(folder / "distilled.tsv")} <= {source for source, _ in real}
    assert stages(Path("models/fr-en")).keys() == {"data", "teacher"}

    assert_done(regard(*build))
    assert {path: path.stat().st_mtime_ns for path in made} == made
    assert_done(regard(*build, "--test"))
    tested = json.loads((folder / "measurements.json").read_bytes())["results"]
    assert tested["dev"] == measured["results"]["dev"]
    assert tested["test"]["student"]["test.tsv"]["sentences"] == 12
    assert assert_done(regard("models", "card", folder / "measurements.json")) == (folder / "card.md").read_text()
    assert_refused(regard(*build, "--set", "student.train.steps=4"), "models/en-fr/stages/student")


def test_without_a_teacher_the_student_learns_from_the_corpora_alone(recipes):
    Path("small.toml").write_text(RECIPE.format("en-fr") + TINY.format("student", 1))
    build = ["models", "build", "small.toml", "--out", "models", "--device", "cpu"]
    assert_done(regard(*build))
    assert stages(Path("models/small")).keys() - {"dev.int8"} == {"data", "student", "dev.student"}
    measured = json.loads(Path("models/small/measurements.json").read_bytes())
    assert measured["results"]["dev"].keys() - {"int8"} == {"student"}
    assert measured["synthetic"] == []
    assert "student" not in measured["compared_with"]
    elsewhere = replace(build_of(Path("small.toml")), device="cuda")
    assert elsewhere.recipe.student is not None
    elsewhere.train("student", elsewhere.recipe.student, elsewhere.mixture())  # which has ended, on whatever device
    assert_refused(regard(*build, "--set", "distillation.enabled=true"), "small.toml: only what has a teacher")
    there = build_of(recipes, **{"back_translation.recipe": "small.toml"})
    with pytest.raises(ValueError, match=r"small.toml has no \[teacher.model\]"):
        there.other("small.toml").make_teacher()


def test_without_baselines_only_what_reads_synthetic_pairs_is_trained(recipes):
    build = ["models", "build", recipes, "--out", "models", "--device", "cpu", "--set", "measure.scratch=false"]
    assert_done(regard(*build))
    trained = stages(Path("models/en-fr")).keys() & {"teacher", "teacher-back", "student-scratch", "student"}
    assert trained == {"teacher-back", "student"}
    measured = json.loads(Path("models/en-fr/measurements.json").read_bytes())
    assert measured["compared_with"]["student"] == "teacher-back"
    assert "teacher-back" not in measured["compared_with"]


def test_a_sentence_of_a_test_set_is_excluded_in_all_languages_of_that_set():
    """Tatoeba's English test sentences of German are none to train French on."""
    for name, line in {
        "tatoeba/train.en-fr.tsv": "a cat sleeps\tun chat dort\nan owl sings\tun hibou chante",
        **{
            f"tatoeba/{split}.en-{other}.tsv": f"{split} {other}\t{split} {other}"
            for split in ("dev", "test")
            for other in ("fr", "de")
        },
        "tatoeba/test.en-de.tsv": "An owl sings!\teine Eule singt",
    }.items():
        Path("corpora", name).parent.mkdir(parents=True, exist_ok=True)
        Path("corpora", name).write_text(f"{line}\n", encoding="utf-8")
    Path("en-fr.toml").write_text(
        RECIPE.format("en-fr")
        .replace("pairs.tsv@en-fr:1", "tatoeba")
        .replace("dev.tsv@en-fr", "tatoeba:valid")
        .replace("test.tsv@en-fr", "tatoeba:test")
        + TINY.format("teacher", 1)
    )
    build = replace(build_of(Path("en-fr.toml")), data=Path("corpora"))
    ((source, _, figures),) = build.corpora
    assert [pair.source for pair in source.read(str)] == ["a cat sleeps"]
    assert figures["removed"] == {"test overlap": 1}


def test_a_teacher_of_several_directions_is_given_the_language_and_distilled(recipes):
    both = RECIPE.format("en-fr").replace('["en-fr"]', '["en-fr", "fr-en"]') + TINY.format("teacher", 1)
    Path("both.toml").write_text(both)
    student = recipes.read_text().replace('recipe = "fr-en.toml"', "").replace("enabled = true", "enabled = false", 1)
    student = student.replace(TINY.format("teacher", 1), "").replace("best_of = 2", 'recipe = "both.toml"')
    recipes.write_text(student + "sentences = 30\n")
    lines = ("measure.scratch=false", "text.kind=bpe", "text.vocab_size=400", "teacher.train.steps=41")
    changes = [word for line in lines for word in ("--set", line)]
    assert_done(regard("models", "build", recipes, "--out", "models", "--device", "cpu", *changes))
    measured = json.loads(Path("models/en-fr/measurements.json").read_bytes())
    assert measured["results"]["dev"].keys() - {"int8"} == {
        "teacher of both",
        "student",
    }  # it has no teacher of its own
    assert "steps = 41" in Path("models/both/teacher.toml").read_text()
    assert measured["synthetic"][0]["by"] == "the teacher of both"
    assert measured["synthetic"][0]["read"] == 30
    assert measured["compared_with"]["student"] == "teacher of both"
    assert Translator.load("models/both/teacher").target_languages == ("fr", "en")
    first = next(read_pairs("models/both/valid.tsv"))
    assert first.source.startswith(">>fr<< ")
    # a large teacher may be removed when it has translated: the card has what was measured of it before
    Path("models/both/teacher/model.safetensors").unlink()
    assert_done(regard("models", "build", recipes, "--out", "models", "--device", "cpu", *changes))
    again = json.loads(Path("models/en-fr/measurements.json").read_bytes())
    assert {key: again[key] for key in ("results", "compared_with")} == {
        key: measured[key] for key in ("results", "compared_with")
    }
    Path("models/en-fr/stages/dev.teacher-of-both.json").unlink()
    assert_done(regard("models", "build", recipes, "--out", "models", "--device", "cpu", *changes))
    without = json.loads(Path("models/en-fr/measurements.json").read_bytes())
    assert without["results"]["dev"].keys() - {"int8"} == {"student"}
    assert "student" not in without["compared_with"]


def test_a_student_without_a_teacher_of_its_own_learns_from_what_another_translated_back(recipes):
    both = RECIPE.format("en-fr").replace('["en-fr"]', '["en-fr", "fr-en"]') + TINY.format("teacher", 1)
    Path("both.toml").write_text(both)
    text = recipes.read_text().replace(TINY.format("teacher", 1), "").replace("fr-en.toml", "both.toml")
    text = text.replace("best_of = 2", 'recipe = "both.toml"\nweight = 3.0').replace(
        "beam = 1\n", "beam = 1\nweight = 2.0\n"
    )
    recipes.write_text(text)
    lines = ("measure.sentences=3", "text.kind=bpe", "text.vocab_size=400", "teacher.train.steps=200")
    changes = [word for line in lines for word in ("--set", line)]
    assert_done(regard("models", "build", recipes, "--out", "models", "--device", "cpu", *changes))
    folder = Path("models/en-fr")
    learnt = {name: one["settings"]["pairs"] for name, one in stages(folder).items() if name.startswith("student")}
    assert learnt["student-scratch"] == ["data/pairs:1"]
    assert learnt["student"] == ["data/pairs:1", "back-translated/pairs:2", "distilled/pairs:3"]
    more = {pair.target for pair in read_pairs("more.tsv")}
    assert {pair.target for pair in read_pairs(folder / "back-translated.tsv")} <= more
    measured = json.loads((folder / "measurements.json").read_bytes())
    assert [one["by"] for one in measured["synthetic"]] == ["the teacher of both"] * 2
    assert measured["compared_with"]["student"] == "student-scratch"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("directions", "direction", "en-fr.toml: [data] 'direction' is unknown; did you mean directions?"),
        ('"en-fr"]\ncorpora', '"enfr"]\ncorpora', "en-fr.toml: data.directions: enfr is no direction"),
        (TINY.format("teacher", 1), "", "en-fr.toml: only what has a teacher learns from its translations"),
        ("[student.model]", "[pupil.model]", "en-fr.toml: table 'pupil' is unknown"),
        ('recipe = "fr-en.toml"', "", "en-fr.toml: back_translation.recipe names the recipe of the other direction"),
        ('recipe = "fr-en.toml"', 'recipe = "en-fr.toml"', "is of en-fr; name a recipe of fr-en"),
        ("beam = 2\nsentences", "beam = 0\nsentences", "en-fr.toml: measure.beam = 0 should be at least 1"),
        ('["en-fr"]', '["en-fr", "fr-en"]', "en-fr.toml: a recipe of 2 directions makes a teacher alone"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_recipe_is_one_line_with_the_remedy(recipes, old, new, message):
    text = recipes.read_text()
    assert old in text
    recipes.write_text(text.replace(old, new, 1))
    build = build_of(recipes) if "name a" in message else None
    if build is None:
        assert_refused(regard("models", "build", recipes, "--out", "models"), message)
        return
    with pytest.raises(ValueError, match=message):
        build.back_translate()


def test_sets_are_named_as_people_call_them():
    assert [name_set(word) for word in ("newstest:test", "sets/mine.tsv@en-fr")] == ["newstest, test", "mine.tsv"]


def test_what_is_no_measurement_makes_no_card():
    Path("mine.json").write_text("{}")
    assert_refused(regard("models", "card", "mine.json"), "mine.json: no measurements of a build")


# --- a large file, into training pairs ---


@pytest.fixture
def texts() -> list[str]:
    return [source for source, _ in translation_pairs(World(max_length=6), "fr", 40, "train")]


def lines(texts: list[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def kill_after(shards: int, words: list[str]) -> None:
    """Kill -9 while the shard that follows so many is written."""
    write = translation.write_text_atomic

    def write_or_die(path: Path, text: str) -> None:
        if path.name == f"000-{shards:05d}.json":
            path.with_name(f".{path.name}.torn.part").write_text(text[:20])
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, text)

    translation.SHARD_SENTENCES, translation.write_text_atomic = SHARD, write_or_die
    regard(*words)


def test_killed_it_goes_on_and_ends_with_the_same_bytes(trained, texts, monkeypatch):
    monkeypatch.setattr(translation, "SHARD_SENTENCES", SHARD)
    Path("text.en").write_text(lines(texts))
    command = ["data", "translate", str(trained), "text.en", "--beam", "2", "--out"]
    assert_done(regard(*command, "whole.tsv"))
    # the fork begins in a folder of its own
    killed = FORKS.Process(
        target=kill_after,
        args=(
            3,
            [
                str(Path(word).absolute()) if word == "text.en" else word
                for word in [*command, f"{Path.cwd()}/killed.tsv"]
            ],
        ),
    )
    killed.start()
    killed.join(300)
    assert killed.exitcode == -signal.SIGKILL
    assert sorted(path.name for path in Path("killed.tsv.parts").glob("0*.json")) == [
        f"000-{n:05d}.json" for n in range(3)
    ]
    translated: list[int] = []
    once = PairSynthesis.translate
    monkeypatch.setattr(PairSynthesis, "translate", lambda how, some: translated.append(len(some)) or once(how, some))
    assert_refused(
        regard(*command[:4], "--beam", "3", "--out", "killed.tsv"),
        "killed.tsv.parts holds a translation with other search",
    )
    stopped = regard(*command, "killed.tsv", "--minutes", 0)
    assert (stopped.exit_code, stopped.stdout) == (130, "stopped after 0 minutes; the same command goes on\n")
    assert_done(regard(*command, "killed.tsv"))
    assert sum(translated) == len(texts) - 3 * SHARD
    assert Path("killed.tsv").read_bytes() == Path("whole.tsv").read_bytes()
    assert not Path("killed.tsv.parts").exists()


def test_other_sentences_are_no_continuation(trained, texts, monkeypatch):
    monkeypatch.setattr(translation, "SHARD_SENTENCES", SHARD)
    how = PairSynthesis(translator=Translator.load(trained), search=Greedy())
    pairs, asked = [SentencePair(text, "") for text in texts], iter([False, True])
    assert synthesize_pairs(pairs, how, Path("made.tsv"), stop=lambda: next(asked)) is None
    assert not Path("made.tsv").exists()
    with pytest.raises(
        ValueError, match=r"000-00000\.json holds translations of other sentences; remove made\.tsv\.parts"
    ):
        synthesize_pairs(pairs[1:], how, Path("made.tsv"))
    report = synthesize_pairs(pairs, how, Path("made.tsv"))
    assert report is not None
    assert report.read == len(pairs) == report.pairs + sum(report.left_out.values())


def test_pairs_are_those_of_translating_each_line(trained, texts):
    """In their order: distillation keeps the line as the source, back-translation as the target."""
    translator = Translator.load(trained)
    alone = [translator.translate(text, beam=2) for text in texts]
    how = PairSynthesis(translator=translator, search=Beam(2, length_penalty=1.0), tokens=30)
    made, left_out = how.translate([SentencePair(text, "old") for text in texts])
    ended = {text: one.text for text, one in zip(texts, alone, strict=True)}
    assert len(made) + sum(left_out.values()) == len(texts)
    assert len(made) > 20
    assert made == {row: SentencePair(texts[row], ended[texts[row]]) for row in made}
    back = PairSynthesis(translator=translator, search=Beam(2, length_penalty=1.0), reverse=True)
    swapped, _ = back.translate([SentencePair("old", text) for text in texts])
    assert swapped == {row: pair.swapped() for row, pair in made.items()}


def test_sentences_without_a_whole_translation_are_left_out_and_counted(trained):
    translator = Translator.load(trained)
    how = PairSynthesis(translator=translator, search=Beam(1), max_length=4)
    made, left_out = how.translate(
        [SentencePair("the cat\tsleeps", ""), SentencePair(" ", ""), SentencePair("the cat " * 9, "")]
    )
    assert all(pair.source == "the cat sleeps" for pair in made.values())
    assert (left_out["empty"], left_out["long"]) == (1, 1)
    never_ends = PairSynthesis(translator=translator, search=Beam(1, max_length=LengthLimit(0, 1)))
    assert never_ends.translate([SentencePair("the cat sleeps", "")]) == ({}, {"unfinished": 1})


def test_of_the_n_best_the_one_most_like_the_reference_is_taken(trained, texts):
    translator = Translator.load(trained)
    best = {text: n_best(translator, text) for text in texts}
    pairs = [SentencePair(text, best[text][-1]) for text in texts if len(best[text]) == 3]
    assert len(pairs) > 10
    Path("pairs.tsv").write_text(lines([f"{pair.source}\t{pair.target}" for pair in pairs]), encoding="utf-8")
    command = ["data", "translate", trained, "pairs.tsv", "--beam", 3]
    assert_done(regard(*command, "--best-of", 3, "--out", "closest.tsv"))
    assert_done(regard(*command, "--out", "first.tsv"))
    closest, first = (list(read_pairs(f"{name}.tsv")) for name in ("closest", "first"))
    assert closest == pairs
    assert first == [SentencePair(pair.source, best[pair.source][0]) for pair in pairs]
    assert_refused(
        regard("data", "translate", trained, "text.en", "--best-of", 2, "--out", "x.tsv"), "--best-of 2 compares"
    )


def n_best(translator: Translator, text: str) -> list[str]:
    """Three whole translations that differ, or fewer."""
    found = translator.translate(text, beam=3, n_best=3)
    texts = [found.text, *(one.text for one in found.alternatives)]
    return texts if len(set(texts)) == 3 and all(map(str.strip, texts)) else []


def test_of_equally_close_translations_the_first_is_taken():
    assert closest_text(["le chat dort", "un chat dort"], "") == 0
    assert closest_text(["un chien", "le chat dort", "le chat dort"], "le chat dort bien") == 1


# --- what is said of it ---


def test_a_build_and_its_card_have_help_with_an_example():
    for command in ("build", "card"):
        assert f"Example: regard models {command}" in assert_done(regard("models", command, "--help"))
