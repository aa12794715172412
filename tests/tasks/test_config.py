"""Run settings: former names of tasks, keys and values still load, and mistakes are named."""

import re
import tomllib

import pytest

from regard.tasks.config import RENAMED_KEYS, RENAMED_VALUES, TASK_ALIASES
from regard.tasks.image_classification.task import ImageClassificationSettings
from regard.tasks.registry import TASKS, get_task
from regard.tasks.sequence_classification.task import ClassificationSettings
from regard.tasks.tagging.task import TaggingSettings
from regard.tasks.train_request import resolve_task
from regard.tasks.translation.task import TranslationSettings
from regard.tasks.vqa.task import VQASettings

FORMER_TRAIN = """task = "translate"

[train]
consistency = 2.5
exact = false
packed = true
precision = "narrow"
"""


# every key that was renamed in its table, as files of earlier versions have them
FORMER_KEYS = {
    TranslationSettings: """
[data]
shortest = 4
longest = 9
[text]
size = 700
lower = true
[train]
tokens = 512
accumulate = 3
rate = 0.002
warmup = 17
smoothing = 0.2
consistency = 1.5
clip = 0.5
decay = 0.01
longest = 99
best = "accuracy"
exact = false
average = 4
keep = 5
packed = true
capture = true
""",
    ClassificationSettings: """
[data]
columns = ["label", "text"]
most = 61
""",
    ImageClassificationSettings: """
[data]
pictures = 31
rows = 8
columns = 9
[augment]
turn = 7
stretch = 11
grey = 0.25
hide = 3
both_ways = true
""",
    VQASettings: """
[data]
most = 2
[model]
picture_layers = 3
""",
}
UNCHANGED = {"train.packed", "data.columns", "data.most"}  # the last two in one of their tables


def former_toml(settings, task: str) -> str:
    """The settings as an earlier version wrote them."""
    lines, table = [], ""
    former = {f"{name.split('.')[0]}.{key}": name.split(".")[1] for name, key in RENAMED_KEYS.items()}
    for line in settings.to_toml().splitlines():
        key, equals, value = line.partition(" = ")
        table = line.strip("[]") if line.startswith("[") else table
        lines.append(f"{former.get(f'{table}.{key}', key)}{equals}{value}")
    return "\n".join([f'task = "{task}"', *lines[1:]])


def test_every_task_that_has_had_another_name_is_known_by_it():
    assert set(TASK_ALIASES.values()) == set(TASKS) - {"masked_language_modeling"}


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


def test_every_former_key_is_read():
    texts = {name: value for kind, text in FORMER_KEYS.items() for name, value in flat(tomllib.loads(text)).items()}
    assert texts.keys() - UNCHANGED == RENAMED_KEYS.keys() - UNCHANGED
    for kind, text in FORMER_KEYS.items():
        settings, usual, written = kind.from_toml(f'task = "{kind.task}"' + text), kind(), flat(tomllib.loads(text))
        found, before = flat(tomllib.loads(settings.to_toml())), flat(tomllib.loads(usual.to_toml()))
        changed = {name: value for name, value in found.items() if value != before[name]}
        assert sorted(map(repr, changed.values())) == sorted(map(repr, written.values()))  # all, and nothing else
        for name, value in written.items():
            table, key = name.split(".")
            new = f"{table}.{RENAMED_KEYS.get(name, key)}"
            assert found[new if new in found else name] == value


def flat(tables):
    return {f"{name}.{key}": value for name, table in tables.items() if name != "task" for key, value in table.items()}


def test_changes_are_known_by_the_names_of_today():
    assert TranslationSettings.current_names({"train.warmup": 3, "steps": 7, "model": "gru", "size": "tiny"}) == {
        "train.warmup_steps": 3,
        "train.steps": 7,
        "model.kind": "gru",
        "model.size": "tiny",
    }
    both = {"train.warmup": 3, "train.warmup_steps": 4}
    assert TranslationSettings.current_names(both) == both
    assert VQASettings.current_names({"data.most": 2, "data.rows": 8}) == {"data.most": 2, "data.height": 8}


def test_former_keys_and_values_can_be_set():
    former = {"train.consistency": "2.5", "train.exact": "false", "train.precision": "narrow", "train.packed": "true"}
    new = {"train.rdrop": 2.5, "train.deterministic": False, "train.precision": "bf16-pure", "train.packed": True}
    usual = TranslationSettings.of_world()
    assert usual.with_changes(former) == usual.with_changes(new)
    assert VQASettings.of_world().with_changes({"model.picture_layers": "3"}).model.image_layers == 3


@pytest.mark.parametrize("name", RENAMED_KEYS)
def test_a_former_key_beside_its_new_one_is_refused_in_one_line(name):
    table, former = name.split(".")
    key = RENAMED_KEYS[name]
    kinds = (TranslationSettings, ImageClassificationSettings, ClassificationSettings, VQASettings)
    kind = next(one for one in kinds if f"\n{key} = " in one.of_world().to_toml())
    message = re.escape(f"{table}.{former} = 1 and {table}.{key} = 2 are the same setting, renamed; leave out {former}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        kind.from_toml(f'task = "{kind.task}"\n[{table}]\n{former} = 1\n{key} = 2')
    with pytest.raises(ValueError, match=f"^{message}$"):
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


SETTINGS_ERRORS = {
    "translation": [
        ("[train]\nstep = 3", r"\[train\] has no 'step'; did you mean steps\?"),
        ("[train]\nsteps = 'many'", "train.steps = 'many' should be a whole number"),
        ("[training]\n", "no table"),
        ("[text]\nkind = 'syllables'", "choose from bpe"),
        ("[train]\nschedule = 'linear'", "choose from noam"),
        ("steps = ", "no TOML"),
    ],
    "image_classification": [
        ("[augment]\nhide = -1", "augment.cutout = -1 should be at least 0"),
        ("[augment]\nmixup = 0.7\ncutmix = 0.7", "from 0 to 1, and so are the two together"),
        ("[augment]\nturn = 200", "augment.rotation = 200 should be at least 0 and at most 180"),
        ("[train]\nrdrop = 1.0", "train.rdrop = 1.0 is for texts"),
        ("[data]\nmode = 'CMYK'", "data.mode = 'CMYK' is unknown; choose from RGB, L"),
        ("[data]\nheight = 8", "data.height = 8, width = 0: a size to resize to has both height and width"),
        ("[model]\nkind = 'cnn'\npatch = 8", "patch = 8 means nothing to the kind 'cnn'"),
        ("[model]\nkind = 'vit'\nattention = 'spatial'", "means nothing to the kind 'vit'"),
        ("[model]\nkind = 'vit'\nheads = 5", "heads = 5 does not divide model = 64"),
        ("[model]\nkind = 'cnn'\nwidth = 17", "groups of 16"),
        ("[model]\nkind = 'mlp'", "kind = 'mlp' is unknown"),
    ],
    "sequence_classification": [
        ("[words]\nkind = 'one-hot'", "only counted; choose model.kind = 'embed'"),
        ("[words]\nkind = 'two-hot'", "kind = 'two-hot' is unknown; choose from learned, skip-gram, file, one-hot"),
        ("[words]\ndropout = 1.5", "words.dropout = 1.5 should be at least 0 and below 1"),
        ("[pooling]\nkind = 'sum'", "choose from mean, max, last, class, tf-idf"),
        ("[data]\nphrases = 'some'", "data.phrases = 'some' should be true or false"),
    ],
    "language_modeling": [
        ('[text]\nkind = "bpe"\nlanguage = "en"', "text.language = 'en' takes the blanks"),
        ("[measure]\nstride = 9\n[train]\nmax_length = 7", "measure.stride = 9 would leave tokens out"),
        (
            "[train]\nbatch_size = 6\nmax_length = 7",
            "train.batch_size = 6 is too small for a block of train.max_length = 7",
        ),
        ("[measure]\ncache = -1", "measure.cache = -1 should be at least 0"),
        ("[data]\nlead = -1", "data.lead = -1"),
        ('task = "tag"', "the task is 'tag', not 'language_modeling'"),
    ],
}


@pytest.mark.parametrize(
    ("task", "text", "message"), [(task, *row) for task, rows in SETTINGS_ERRORS.items() for row in rows]
)
def test_settings_that_make_no_sense_are_named(task, text, message):
    with pytest.raises(ValueError, match=message):
        get_task(task).settings.from_toml(text if text.startswith("task") else f'task = "{task}"\n{text}')
