"""The settings reference: every key of every task has its type, range, default and sentence, and they are true."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import pytest

from regard.models.autoencoder import AutoencoderConfig
from regard.models.config_base import ConfigBase, Range, SettingsTable, describe_table, parse_args, suggest
from regard.tasks.config import RunSettings
from regard.tasks.registry import TASKS, get_task
from regard.tasks.settings_reference import describe_all, describe_tables

SETTINGS: list[type[RunSettings]] = [get_task(name).settings for name in TASKS]


def tables() -> Iterator[tuple[type[RunSettings], str, SettingsTable]]:
    for settings in SETTINGS:
        yield from ((settings, name, getattr(settings(), name)) for name in settings.table_names())


def test_every_key_of_every_task_is_documented():
    for settings, name, table in tables():
        found = {one.key: one for one in describe_table(table)}
        assert set(found) - {"size"} == {field.name for field in fields(table)}  # type: ignore[arg-type]
        for key, one in found.items():
            where = f"{settings.task}: {name}.{key}"
            assert len(one.sentence.split()) >= 3, where
            assert not one.sentence.endswith("."), where
            assert one.allowed or "number" not in one.type, where


def test_docstrings_describe_no_key_that_is_not_there():
    held = {key for _, _, table in tables() for key in (field.name for field in fields(table))}  # type: ignore[arg-type]
    for _, _, table in tables():
        own = {field.name for field in fields(table)}  # type: ignore[arg-type]
        for base in type(table).__mro__:
            described = set(parse_args(base.__doc__ or ""))
            assert described <= (held if base is ConfigBase else own), base


def test_a_default_that_differs_is_named_with_its_tasks():
    (train,) = (table for table in describe_all() if table.name == "train")
    assert train.tasks == tuple(TASKS)
    rows = {key: default for key, _, default, _, _ in train.rows()}
    assert rows["batch_size"] == "4096; 128 for image_classification, vqa"
    assert rows["warmup_steps"] == "20 for node_classification"
    (own,) = (table for table in describe_tables(get_task("vqa").settings) if table.name == "train")
    assert next(row for row in own.rows() if row[0] == "batch_size")[2] == "128"


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: one.task)
def test_a_line_of_a_file_leaves_the_defaults_of_the_task_as_they_are(settings):
    """As --set does."""
    usual = settings()
    read = settings.from_toml(f'task = "{settings.task}"\n[train]\nseed = 7\n[model]\nmodel = 16\n')
    assert read.train == replace(usual.train, seed=7)
    assert read.model == replace(usual.model, model=16)
    assert read == usual.with_changes({"train.seed": 7, "model.model": 16})


def test_another_kind_of_model_starts_from_the_fields_of_its_own():
    """The usual one has a single layer, and no dropout."""
    read = get_task("autoencoding").settings.from_toml('task = "autoencoding"\n[model]\nkind = "gru"\nlatents = 3')
    assert read.model == AutoencoderConfig(kind="gru", latents=3)


def test_what_a_base_class_allows_holds_for_its_tables():
    """Pictures are RGB or L, also those that questions are about."""
    with pytest.raises(ValueError, match=r"^data\.mode = 'CMYK' is unknown; choose from RGB, L$"):
        get_task("vqa").settings.from_toml('task = "vqa"\n[data]\nmode = "CMYK"')
    allowed = {one.key: one.allowed for one in describe_table(get_task("vqa").settings().data)}
    assert (allowed["mode"], allowed["images"], allowed["held_out"]) == ("RGB, L", "≥ 1", "compositions, pictures")


def test_a_warm_up_follows_from_the_steps_unless_it_is_set():
    translation, nodes = get_task("translation").settings, get_task("node_classification").settings
    assert translation.from_toml("[train]\nsteps = 70").train.warmup_steps == 7
    assert nodes.from_toml('task = "node_classification"\n[train]\nsteps = 70').train.warmup_steps == 20


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: one.task)
def test_a_number_outside_of_its_range_is_refused_by_the_range(settings):
    usual = settings()
    for name in settings.table_names():
        table = getattr(usual, name)
        for field in fields(table):
            allowed = table.known_range(field)
            beyond = [] if allowed is None else [allowed.least - 1, *(v for v in (allowed.most + 1,) if v < 2**63)]
            for value in beyond:
                value = int(value) if field.type is not float else value
                message = f"{name}.{field.name} = {value} should be {allowed}"
                with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                    usual.with_changes({f"{name}.{field.name}": value})


@pytest.mark.parametrize(
    ("given", "inside", "outside", "words", "interval"),
    [
        (Range(1), (1, 9e9), (0, float("inf"), float("nan")), "at least 1", "≥ 1"),
        (Range(0, below=1), (0, 0.999), (1, -1e-9), "at least 0 and below 1", "≥ 0, < 1"),
        (Range(0, most=180), (0, 180), (181, -1), "at least 0 and at most 180", "0 to 180"),
    ],
)
def test_ranges(given, inside, outside, words, interval):
    assert all(value in given for value in inside)
    assert not any(value in given for value in outside)
    assert (str(given), given.interval) == (words, interval)


def test_sentences_are_read_from_docstrings_and_those_of_a_class_go_before_its_bases():
    @dataclass(frozen=True, kw_only=True)
    class Base(SettingsTable):
        """A table.

        Args:
            one, two: what both
                share.
            three: of the base.

        Not part of it: no key.
        """

        one: int = 1
        two: int = 2
        three: int = 3

    @dataclass(frozen=True, kw_only=True)
    class Table(Base):
        """Another.

        Args:
            three: its own; a colon: here too.
        """

        ranges: ClassVar = {"two": Range(2, most=5)}

    found = {one.key: (one.sentence, one.allowed, one.default) for one in describe_table(Table(two=4))}
    assert found == {
        "one": ("what both share", "≥ 0", 1),
        "two": ("what both share", "2 to 5", 4),
        "three": ("its own; a colon: here too", "≥ 0", 3),
    }
    with pytest.raises(ValueError, match="two = 6 should be at least 2 and at most 5"):
        Table(two=6)
    with pytest.raises(ValueError, match=r"two = 2\.0 should be a whole number"):
        Table(two=2.0)  # type: ignore[arg-type]


# --- keys that are not there ---


def test_a_key_is_found_by_itself_where_one_table_has_it():
    translation = get_task("translation").settings
    assert translation.resolve_key("steps") == "train.steps"
    assert translation.resolve_key("model") == "model.kind"
    assert translation.resolve_key("size") == "model.size"
    assert translation.resolve_key("text.lowercase") == "text.lowercase"
    assert translation.resolve_key("train.rate") == "train.rate"  # a former name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.step", "[train] has no 'step'; did you mean steps?"),
        ("model.steps", "[model] has no 'steps'; did you mean train.steps?"),
        ("trian.steps", "the settings of translation have no table [trian]; did you mean train?"),
        ("leyers", "the task 'translation' has no setting 'leyers'; did you mean layers?"),
        ("zzz", "the task 'translation' has no setting 'zzz'; see regard settings translation"),
        ("text.zzz", "[text] has no 'zzz'; choose from kind, vocab_size, joint, lowercase, source_language, "),
        ("max_length", "max_length is a setting of several tables; name one: data.max_length or train.max_length"),
    ],
)
def test_an_unknown_key_names_its_nearest(name, message):
    settings = get_task("translation").settings
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        settings.resolve_key(name)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        settings().with_changes({name: 3})
    table, dot, key = name.partition(".")
    if dot:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            settings.from_toml(f"[{table}]\n{key} = 3")


def test_a_line_outside_of_a_table_is_refused_with_its_table():
    with pytest.raises(ValueError, match=r"^steps stands outside of a table; write it under one, as train.steps is$"):
        get_task("translation").settings.from_toml("steps = 3")
    with pytest.raises(ValueError, match=r"^train stands outside of a table; write it under one, such as \[train\]$"):
        get_task("translation").settings.from_toml("train = 3")


def test_the_nearest_of_a_few_names():
    assert suggest("tager", TASKS) == "did you mean tagging?"
    assert suggest("xyz", ["one", "two"]) == "choose from one, two"
