"""Every recipe can be read, says its commands and names a known corpus; those of builds exclude every test set."""

from dataclasses import fields
from pathlib import Path

import pytest

from regard.data.corpora import CORPORA
from regard.data.token_files import split_weight
from regard.models.config import ModelConfig, build_model
from regard.tasks.config import read_task_name
from regard.tasks.registry import get_task
from regard.tasks.translation.build_recipe import BuildData, BuildRecipe, MeasureSettings, SynthesisSettings
from regard.tasks.translation.model_card import count_weights
from regard.training.config import make_train_config

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
BUILDS = sorted((ROOT / "recipes" / "shipped").glob("*.toml"))
# corpora with sets to develop and to test on, none of whose sentences may be trained on
JUDGES = ("tatoeba", "newstest", "europarl")


def test_there_are_recipes():
    assert len(RECIPES) >= 8


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_can_be_run_as_it_says(path):
    settings = get_task(read_task_name(path)).settings.load(path)
    assert settings.data.corpus in ("world", "stories", *CORPORA)
    make_train_config(settings.train, 1)
    head = "".join(line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.startswith("#"))
    for phrase in (f"regard train recipes/{path.name}", "regard evaluate run", "Expected"):
        assert phrase in head


# --- recipes of builds ---


def test_there_is_a_build_for_each_direction():
    assert {path.stem for path in BUILDS} == {"en-fr-small", "en-fr", "fr-en", "en-de", "de-en", "multilingual"}


@pytest.mark.parametrize("path", BUILDS, ids=lambda path: path.stem)
def test_a_build_excludes_every_set_that_it_or_another_is_judged_by(path):
    data = BuildRecipe.load(path).data
    judged = {f"{name}:{split}" for name in JUDGES for split in CORPORA[name].splits if split != "train"}
    assert len(judged) == 5
    assert judged <= set(data.exclude)
    assert set(data.valid) | set(data.test) <= judged
    assert not set(data.valid) & set(data.test)
    assert not any(word.endswith(":test") for word in data.valid)


@pytest.mark.parametrize("path", BUILDS, ids=lambda path: path.stem)
def test_what_a_build_ships_learnt_from_corpora_that_allow_it(path):
    recipe = BuildRecipe.load(path)
    words = [*recipe.data.corpora, *recipe.back_translation.texts, *recipe.distillation.texts]
    names = {split_weight(word)[0].partition("@")[0] for word in words}
    assert names
    assert all(CORPORA[name].redistributable for name in names)


@pytest.mark.parametrize("path", BUILDS, ids=lambda path: path.stem)
def test_a_build_can_be_run_as_it_says(path):
    recipe = BuildRecipe.load(path)
    assert f"regard models build recipes/shipped/{path.name} --data FOLDER" in path.read_text(encoding="utf-8")
    for plan in filter(None, (recipe.teacher, recipe.student)):
        assert make_train_config(plan.train, 1).capture_step == plan.train.cuda_graph
        plain = plan.on("cpu").train
        assert (plain.precision, plain.cuda_graph, plain.steps) == (
            "float32" if plan.train.precision == "bf16-pure" else plan.train.precision,
            False,
            plan.train.steps,
        )
    for table in (recipe.back_translation, recipe.distillation):
        if table.recipe:
            beside = BuildRecipe.load(path.parent / table.recipe)
            assert recipe.data.pairs[0][::-1] in beside.data.pairs


@pytest.mark.parametrize("path", [path for path in BUILDS if path.stem != "multilingual"], ids=lambda path: path.stem)
def test_a_student_has_ten_megabytes_in_eight_bits_at_most(path):
    recipe = BuildRecipe.load(path)
    assert recipe.student is not None
    size, model = recipe.text.vocab_size, recipe.student.model
    assert isinstance(model, ModelConfig)
    assert count_weights(build_model(model, size, size))["int8_bytes"] <= 10e6


@pytest.mark.parametrize("table", [BuildData, SynthesisSettings, MeasureSettings])
def test_the_guide_names_every_key_of_a_recipe(table):
    guide = (ROOT / "docs" / "howto" / "make-a-translator.md").read_text(encoding="utf-8")
    missing = [one.name for one in fields(table) if f"`{one.name}`" not in guide]
    assert missing == []
