"""What regard train refuses: one line on stderr with the value and the remedy, exit code 2, and nothing written."""

import json
import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from regard.models.safetensors_io import write_weights
from regard.tasks.registry import TASKS, get_task
from tests.hostile.bounds import bounded

from .commands import LITTLE, assert_done, assert_refused, held, regard


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Tests run beside their files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)


def trained_on(*files: object):
    return regard("train", *(word for file in files for word in ("--train", file)), *LITTLE, "--steps", 2)


# --- data ---


def test_misaligned_files(tmp_path):
    Path("a.en").write_text("the cat\nthe dog\na cat\n")
    Path("a.fr").write_text("le chat\nle chien\n")
    why = f"{tmp_path}/a.en:3: no partner, because {tmp_path}/a.fr ends after line 2; the two files must match"
    assert_refused(trained_on("a.en", "a.fr"), why)
    assert not Path("run").exists()


def test_a_wrong_encoding(corpus, tmp_path):
    """Windows-1252, whose é is no UTF-8, and UTF-16, which is named."""
    text = corpus().read_text(encoding="utf-8")
    Path("win.tsv").write_bytes(("a café\tun café\n" + text).encode("cp1252"))
    assert_refused(trained_on("win.tsv"), f"{tmp_path}/win.tsv:1: not UTF-8 (byte 0xe9, the 6. of the line); convert")
    Path("wide.tsv").write_bytes(text.encode("utf-16"))
    assert_refused(trained_on("wide.tsv"), f"{tmp_path}/wide.tsv:1: not UTF-8 (byte 0xff, the 1. of the line); it loo")
    assert not Path("run").exists()


def test_an_empty_line(corpus, tmp_path):
    why = f"{tmp_path}/train.tsv:5: both sides are empty; fill it in, remove it, or train with --set data.skip_empty"
    assert_refused(trained_on(corpus(rows={5: ""})), why)


def test_no_lines_at_all(tmp_path):
    Path("none.tsv").write_text("")
    assert_refused(trained_on("none.tsv"), f"{tmp_path}/none.tsv: no pair is left for train; give more, or files of it")


def test_one_pair_is_too_few_to_hold_one_out(corpus, tmp_path):
    assert_refused(trained_on(corpus(1)), f"{tmp_path}/train.tsv: no pair is left for train; give more, or files of it")


def test_lines_that_are_all_too_long():
    Path("long.tsv").write_text("".join(f"{'cat ' * 10_000}\t{'chat ' * 10_000}\n" for _ in range(3)))
    assert_refused(trained_on("long.tsv"), "all 2 examples are longer than train.max_length = 256; raise it")


def test_a_missing_file_and_a_folder(tmp_path):
    assert_refused(trained_on("a.en", "a.fr"), f"{tmp_path}/a.en: no such file; check the name (looked in {tmp_path})")
    assert_refused(trained_on("."), f"{tmp_path}: is a folder; give the files in it by name")


def test_one_side_alone_or_two_tables(corpus, tmp_path):
    """Two tables would be read as the two sides of one."""
    Path("a.en").write_text("the cat\n")
    assert_refused(trained_on("a.en"), f"{tmp_path}/a.en: one file of pairs ends in .tsv or .jsonl, not '.en'; or give")
    path = corpus()
    assert_refused(
        trained_on(path, path), f"{path} holds both sides already; give it alone, or two files of plain text"
    )
    assert_refused(trained_on(path, "a.en"), f"{path} holds both sides already")


def test_two_files_behind_one_flag():
    """The second is taken for a recipe."""
    answer = regard("train", "--train", "a.en", "a.fr")
    assert_refused(answer, "a.fr: a recipe ends in .toml; pass two text files as --train ONE --train OTHER")


def test_a_jsonl_with_other_fields(tmp_path):
    Path("a.jsonl").write_text(json.dumps({"en": "the cat", "de": "die Katze"}) + "\n")
    assert_refused(trained_on("a.jsonl"), f"{tmp_path}/a.jsonl:1: no field 'fr', only 'en', 'de'")


def test_files_that_would_not_be_read(corpus):
    answer = regard("train", "--valid", corpus(), *LITTLE, "--steps", 2)
    assert_refused(answer, f"{corpus()} would not be read, since data.corpus = 'world'; set it to files")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--corpus", "klingon"], "no catalogued corpus is called 'klingon'; choose from multi30k,"),
        (["--corpus", "multi30k"], "multi30k: its folder is not set; name it with --data FOLDER or REGARD_DATA"),
        (["--corpus", "files"], 'data.train names no files; e.g. train = ["train.en", "train.de"] or ["train.tsv"]'),
        (["--to", "tlh"], "the world translates into fr and de, not into 'tlh'"),
        (["--from", "de"], "the world translates from or into en, not from 'de' into 'fr'"),
        (["--device", "cuda"], "--device cuda: "),
        (["--device", "abacus"], "--device abacus: Expected one of cpu, cuda,"),
        (["--device", "meta"], "--device meta: "),
        (["--rate", "nan"], "train.learning_rate = nan should be at least 1e-12"),
        (["--set", "train.max_grad_norm=inf"], "train.max_grad_norm = inf should be at least 0"),
        (["--rate", "-1"], "train.learning_rate = -1.0 should be at least 1e-12"),
        (["--precision", "int8"], "train.precision = 'int8' is unknown; choose from float32, bfloat16,"),
        (["--set", "train.label_smoothing=2"], "train.label_smoothing = 2 should be at least 0 and below 1"),
        (["--set", "train.validate_every=0"], "train.validate_every = 0 should be at least 1"),
        (["--set", "train.steps=0"], "train.steps = 0 should be at least 1"),
        (["--set", "train.warmup_steps=-1"], "train.warmup_steps = -1 should be at least 0"),
        (["--set", "train.warmup_steps=soon"], "train.warmup_steps = 'soon' should be a whole number"),
        (["--set", "train.pace=3"], "[train] has no 'pace'; did you mean packed?"),
        (["--set", "train.steps={a=1}"], "train.steps = {'a': 1} should be a whole number"),
        (["--set", "train.steps=1979-05-27"], "train.steps = datetime.date(1979, 5, 27) should be a whole number"),
        (["--set", "stps=3"], "the task 'translation' has no setting 'stps'; did you mean steps?"),
        (["--set", "model.steps=3"], "[model] has no 'steps'; did you mean train.steps?"),
        (
            ["--set", "max_length=3"],
            "max_length is a setting of several tables; name one: data.max_length or train.max",
        ),
        (["--task", "tager"], "no task is called 'tager'; did you mean tagging?"),
        (["--set", "steps"], "--set steps: write table.key=value, such as train.warmup_steps=100"),
        (["--model", "abacus"], "model.kind = 'abacus' is unknown; choose from elman, gru,"),
        (["--size", "vast"], "model.size = 'vast': no size is called 'vast'; there are tiny, small, base"),
        (["--steps", "0"], "Invalid value for '--steps'"),
        (["--steps", "many"], "Invalid value for '--steps'"),
        (["--colour"], "No such option: --colour"),
    ],
)
def test_flags_that_make_no_sense(words, message):
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert_refused(regard("train", *words), message)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (b"[train]\nsteps = ", "recipe.toml: the settings are no TOML: Invalid value (at end of document)"),
        (b"[training]\n", "recipe.toml: the settings of translation have no table [training]; did you mean train?"),
        (b"steps = 3", "recipe.toml: steps stands outside of a table; write it under one, as train.steps is"),
        (b"[train]\nsteps = 'many'", "recipe.toml: train.steps = 'many' should be a whole number"),
        (b"# caf\xe9", "recipe.toml:1: not UTF-8 (byte 0xe9, the 6. of the line); convert the file"),
    ],
)
def test_a_recipe_that_makes_no_sense(recipe, message):
    Path("recipe.toml").write_bytes(recipe)
    assert_refused(regard("train", "recipe.toml"), message)
    assert not Path("run").exists()


def test_a_recipe_that_is_not_there(tmp_path):
    assert_refused(regard("train", "recipe.toml"), f"recipe.toml: no such file; check the name (looked in {tmp_path})")


# --- the folder ---


def test_an_out_folder_that_is_a_file(corpus, tmp_path):
    Path("run").write_text("a poem")
    assert_refused(trained_on(corpus()), "run: is a file, not a folder; choose another path")
    assert_refused(regard("train", "--out", "run/deeper"), f"{tmp_path}/run: is a file, not a folder; choose another")
    assert Path("run").read_text() == "a poem"


def test_an_out_folder_that_may_not_be_written(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write everywhere
    assert_refused(trained_on(corpus()), f"{tmp_path}: no write permission; choose another folder")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_out_folder_that_really_may_not_be_written(corpus):
    Path("shut").mkdir(mode=0o500)
    assert_refused(regard("train", "--train", corpus(), *LITTLE, "--out", "shut/run"), "shut: you may not write here")


def test_a_folder_with_weights_of_someone_else_stays_as_it_is(corpus):
    """As a Hugging Face folder has them."""
    Path("run").mkdir()
    Path("run/config.json").write_text('{"model_type": "marian"}')
    write_weights({"weight": torch.zeros(3)}, Path("run/model.safetensors"))
    before = held(Path("run"))
    assert_refused(trained_on(corpus()), "run holds model.safetensors but no settings.toml, so it is not a run; choose")
    assert held(Path("run")) == before


def test_another_run_in_the_same_folder(corpus):
    assert_done(trained_on(corpus()))
    before = held(Path("run"))
    answer = regard("train", "--train", corpus(7, name="other.tsv"), *LITTLE)
    assert_refused(answer, "run holds a run with another data.train, trained to its last step, 2; choose another --out")
    answer = regard("train", "--train", corpus(), "--set", "text.kind=words", "--model", "bahdanau", "--size", "tiny")
    assert_refused(answer, 'run holds a run with kind = "transformer", not kind = "bahdanau"; choose another --out')
    assert held(Path("run")) == before


def test_a_run_that_has_learnt_nothing_may_be_changed(corpus):
    answer = regard("train", "--train", corpus(), *LITTLE, "--steps", 20, "--rate", "1e9")
    assert answer.exit_code == 2
    assert_done(trained_on(corpus()))


def test_diverging_training(corpus):
    answer = regard(
        "train", "--train", corpus(), *LITTLE, "--steps", 50, "--rate", "1e6", "--set", "train.warmup_steps=0"
    )
    assert answer.exit_code == 2
    assert "the loss or its gradient was not a number 10 times in a row; lower the learning rate" in answer.stderr
    assert "Traceback" not in answer.output


def test_too_little_memory(corpus):
    with bounded(60, 2**29):
        answer = regard("train", "--train", corpus(), *LITTLE, "--set", "model.hidden=16777216")
    assert_refused(
        answer, "there is not enough memory; use smaller batches (--batch-size), another --device or a smaller mod"
    )


# --- damaged and foreign checkpoints ---


def test_checkpoints_of_a_different_model_size(corpus):
    assert_done(trained_on(corpus()))
    settings = Path("run/settings.toml")
    settings.write_text(settings.read_text().replace("hidden = 24", "hidden = 29"))
    before = held(Path("run"))
    answer = regard("train")
    assert_refused(answer, "run/checkpoints/00000002/model.safetensors: ")
    assert answer.stderr.endswith(": it belongs to another model\n")
    assert held(Path("run")) == before


def test_a_torn_checkpoint_costs_an_interval(corpus):
    words = ["train", "--train", corpus(), *LITTLE, "--steps", 4, "--set", "train.checkpoint_every=2"]
    assert_done(regard(*words))
    whole = held(Path("run"))
    torn = Path("run/checkpoints/00000004/model.safetensors")
    torn.write_bytes(torn.read_bytes()[:-1])
    answer = regard("train")
    assert_done(answer)
    assert "resuming from step 2" in answer.stderr
    assert held(Path("run")) == whole


def test_a_damaged_description_of_a_run(corpus):
    assert_done(trained_on(corpus()))
    Path("run/source.json").write_text("{")
    assert_refused(regard("train"), "run/source.json: damaged, or no tokenizer at all")


# --- settings are named as they were given ---


def wrong_settings(task: str) -> Iterator[tuple[str, object]]:
    """Every line of every table with values that it cannot have, whatever it means."""
    settings = get_task(task).settings.of_world()
    for table in settings.table_names():
        for one in fields(getattr(settings, table)):
            for value in (-1, 10**30, "nonsense", [1], 2.5, True):
                yield f"{table}.{one.name}", value


@pytest.mark.parametrize("task", TASKS)
def test_a_wrong_setting_is_named_by_its_table_and_key(task):
    usual, refused = get_task(task).settings.of_world(), 0
    for name, value in wrong_settings(task):
        try:
            usual.with_changes({name: value})
        except ValueError as mistake:
            table, _, key = name.partition(".")
            output, refused = str(mistake), refused + 1
            assert name in output or (output.startswith(f"[{table}] ") and key in output), f"{name} = {value}: {output}"
    assert refused > 50


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("setting", ["data.corpus=klingon", "train.precision=int9"])
def test_a_setting_that_is_wrong_for_every_task_is_said_with_its_key_or_flag(task, setting):
    answer = regard("train", "--task", task, "--set", setting)
    assert_refused(answer, "")
    name, _, value = setting.partition("=")
    assert name in answer.stderr or f"--{name.partition('.')[2]} {value}" in answer.stderr, answer.stderr


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--set", "data.sentences=20", "--to", "tlh"], "--to tlh"),
        (
            ["--task", "sequence_classification", "--train", "a.jsonl", "--set", "data.text=body"],
            "--set data.text=body",
        ),
    ],
)
def test_a_flag_is_named_behind_what_it_gave(words, given):
    Path("a.jsonl").write_text(json.dumps({"text": "fine", "label": "good"}) + "\n")
    answer = regard("train", *words)
    assert_refused(answer, "")
    assert answer.stderr.endswith(f"(set by {given})\n"), answer.stderr
