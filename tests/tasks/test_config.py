"""Settings of earlier versions: former names of tasks, keys and values still load."""

import re

import pytest

from regard.cli.train import resolve_task
from regard.tasks.config import RENAMED_KEYS, RENAMED_VALUES, TASK_ALIASES
from regard.tasks.registry import TASKS, get_task
from regard.tasks.tagging.data import TaggingSettings
from regard.tasks.translation.data import TranslationSettings
from regard.tasks.vqa.data import VQASettings

FORMER_TRAIN = """task = "translate"

[train]
consistency = 2.5
exact = false
packed = true
precision = "narrow"
"""


def former_toml(settings, task: str) -> str:
    """The settings as an earlier version wrote them."""
    lines, table = [], ""
    former = {f"{name.split('.')[0]}.{key}": name.split(".")[1] for name, key in RENAMED_KEYS.items()}
    for line in settings.to_toml().splitlines():
        key, equals, value = line.partition(" = ")
        table = line.strip("[]") if line.startswith("[") else table
        lines.append(f"{former.get(f'{table}.{key}', key)}{equals}{value}")
    return "\n".join([f'task = "{task}"', *lines[1:]])


def test_every_task_has_a_former_name():
    assert set(TASK_ALIASES.values()) == set(TASKS)


@pytest.mark.parametrize("former", TASK_ALIASES)
def test_a_settings_file_of_an_earlier_version_loads(former, tmp_path):
    kind = get_task(former).settings
    changes = {"train.exact": "false", "train.steps": "7"} | (
        {"model.picture_layers": "3"} if former == "answer" else {}
    )
    settings = kind.of_world().with_changes(changes)
    (tmp_path / "settings.toml").write_text(text := former_toml(settings, former))
    assert "\nexact = false\n" in text
    assert "deterministic" not in text
    assert "image_layers" not in text
    assert not settings.train.deterministic
    assert kind.load(tmp_path / "settings.toml") == settings


def test_former_keys_and_values_mean_what_they_meant():
    train = TranslationSettings.from_toml(FORMER_TRAIN).train
    assert (train.rdrop, train.deterministic, train.precision) == (2.5, False, "bf16-pure")
    assert VQASettings.from_toml('task = "answer"\n[model]\npicture_layers = 3').model.image_layers == 3


def test_former_keys_and_values_can_be_set():
    former = {"train.consistency": "2.5", "train.exact": "false", "train.precision": "narrow", "train.packed": "true"}
    new = {"train.rdrop": 2.5, "train.deterministic": False, "train.precision": "bf16-pure", "train.packed": True}
    usual = TranslationSettings.of_world()
    assert usual.with_changes(former) == usual.with_changes(new)
    assert VQASettings.of_world().with_changes({"model.picture_layers": "3"}).model.image_layers == 3


@pytest.mark.parametrize("name", RENAMED_KEYS)
def test_a_former_key_beside_its_new_one_is_refused_in_one_line(name):
    table, former = name.split(".")
    kind, key = VQASettings if table == "model" else TranslationSettings, RENAMED_KEYS[name]
    says = re.escape(f"{table}.{former} = 1 and {table}.{key} = 2 are the same setting, renamed; leave out {former}")
    with pytest.raises(ValueError, match=f"^{says}$"):
        kind.from_toml(f'task = "{kind.task}"\n[{table}]\n{former} = 1\n{key} = 2')
    with pytest.raises(ValueError, match=f"^{says}$"):
        kind.of_world().with_changes({f"{table}.{key}": "2", name: "1"})


def test_a_former_key_is_unknown_where_its_new_one_is():
    with pytest.raises(ValueError, match="has no 'picture_layers'"):
        TranslationSettings.from_toml("[model]\npicture_layers = 3")


@pytest.mark.parametrize("value", ["[1]", "{a = 1}", "3"])
def test_a_value_that_is_no_text_is_no_former_one(value):
    for name in RENAMED_VALUES:
        table, key = name.split(".")
        with pytest.raises(ValueError, match=rf"^{table}\.{key} = .* should be text$"):
            TranslationSettings.from_toml(f"[{table}]\n{key} = {value}")


def test_former_task_names_still_work(tmp_path):
    recipe = tmp_path / "tags.toml"
    for written in ("tag", "tagging"):
        assert TaggingSettings.from_toml(f'task = "{written}"') == TaggingSettings()
        recipe.write_text(f'task = "{written}"\n')
        assert resolve_task(tmp_path, None, written) is get_task("tagging")
        for given in (None, "tag", "tagging"):
            assert resolve_task(tmp_path, recipe, given) is get_task("tagging")
    with pytest.raises(ValueError, match="is a recipe for the task 'tagging', not 'write'; leave out --task"):
        resolve_task(tmp_path, recipe, "write")
