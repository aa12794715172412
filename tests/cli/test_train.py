"""regard train: recipes and flags, leaving and going on, early stopping, averaging, curves, and what is left out."""

import json
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from regard.cli import progress as train_progress
from regard.data import read_pairs
from regard.data.parallel import write_pairs
from regard.tasks.translation.task import TranslationSettings
from regard.training.checkpoint import lock_folder

from .commands import LITTLE, assert_done, assert_plain, assert_refused, held, no_room, regard


def settings(folder: Path) -> TranslationSettings:
    return TranslationSettings.from_toml((folder / "settings.toml").read_text(encoding="utf-8"))


def test_flags_alone_train_a_translator(corpus, tmp_path):
    answer = regard("train", "--train", corpus(101), *LITTLE, "--steps", 3, "--seed", 5, "--out", tmp_path / "run")
    assert assert_done(answer) == f"trained: {tmp_path / 'run'}; try: regard translate {tmp_path / 'run'}\n"
    assert answer.stderr.splitlines()[0].startswith("100 pairs, 1 for validation; transformer with ")
    assert "step       3   valid loss " in answer.stderr
    assert (settings(tmp_path / "run").train.steps, settings(tmp_path / "run").train.seed) == (3, 5)
    assert_done(regard("translate", tmp_path / "run", "-", typed="the cat\n"))


def test_a_recipe_finds_its_files_from_where_it_lies_and_flags_change_it(corpus, tmp_path, monkeypatch):
    corpus(name="pairs.tsv")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[data]\ncorpus = "files"\ntrain = ["pairs.tsv"]\n[text]\nkind = "words"\n[train]\n'
        "steps = 7\nbatch_size = 300\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert_done(regard("train", "../recipe.toml", *LITTLE, "--steps", 2, "--out", "run"))
    assert settings(elsewhere / "run").data.train == (str(tmp_path / "pairs.tsv"),)
    assert settings(elsewhere / "run").train.steps == 2
    monkeypatch.chdir(tmp_path)  # and from anywhere else it is the same run
    assert (
        "resuming from step 2" in regard("train", "recipe.toml", *LITTLE, "--steps", 2, "--out", "elsewhere/run").stderr
    )


def test_a_file_on_the_command_line_is_found_from_where_one_stands(corpus, tmp_path, monkeypatch):
    corpus()
    monkeypatch.chdir(tmp_path)
    assert_done(
        regard("train", "--set", "data.corpus=files", "--set", 'data.train=["train.tsv"]', *LITTLE, "--steps", 2)
    )
    assert settings(tmp_path / "run").data.train == (str(tmp_path / "train.tsv"),)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["two.xz", "two.gz", "pairs.jsonl", "pairs.jsonl.xz", "pairs.tsv.gz", "two"])
def test_every_layout_of_files_trains_the_same_model(name, corpus, tmp_path):
    """Packed or not, .tsv, two files, or a JSONL with the fields en and fr."""
    written = write_pairs(read_pairs(corpus(7)), tmp_path / name, ("en", "fr")).paths
    for out, paths in (("one", [tmp_path / "train.tsv"]), ("other", written)):
        files = [word for path in paths for word in ("--train", path)]
        assert_done(regard("train", *files, *LITTLE, "--steps", 1, "--out", tmp_path / out))
    one, other = (held(tmp_path / out)["model.safetensors"] for out in ("one", "other"))
    assert one == other


def test_line_ends_of_another_system_and_a_missing_last_one_change_nothing(corpus, tmp_path):
    plain = corpus(7).read_bytes()
    (tmp_path / "crlf.tsv").write_bytes(plain.replace(b"\n", b"\r\n"))
    (tmp_path / "open.tsv").write_bytes(plain.removesuffix(b"\n"))
    models = []
    for name in ("train", "crlf", "open"):
        assert_done(
            regard("train", "--train", tmp_path / f"{name}.tsv", *LITTLE, "--steps", 1, "--out", tmp_path / name)
        )
        models.append(held(tmp_path / name)["model.safetensors"])
    assert models[0] == models[1] == models[2]


def test_a_run_is_settled_by_its_settings(corpus, tmp_path):
    """Accumulation, precision and averaging can be set, and are kept beside the model."""
    more = [
        "--set",
        "train.gradient_accumulation=2",
        "--set",
        "train.average_checkpoints=3",
        "--set",
        "train.checkpoint_every=1",
    ]
    assert_done(
        regard(
            "train",
            "--train",
            corpus(),
            *LITTLE,
            *more,
            "--precision",
            "bfloat16",
            "--steps",
            4,
            "--out",
            tmp_path / "run",
        )
    )
    kept = settings(tmp_path / "run").train
    assert (kept.gradient_accumulation, kept.average_checkpoints, kept.precision) == (2, 3, "bfloat16")
    last = [load_file(tmp_path / f"run/checkpoints/0000000{step}/model.safetensors") for step in (2, 3, 4)]
    for name, mean in load_file(tmp_path / "run/model.safetensors").items():
        assert_close(mean, sum(one[name] for one in last) / 3)


def test_early_stopping_keeps_the_best_and_says_so(corpus, tmp_path):
    late = [
        "--rate",
        "3",
        "--set",
        "train.warmup_steps=0",
        "--set",
        "train.validate_every=1",
        "--set",
        "train.patience=2",
    ]
    answer = regard("train", "--train", corpus(), *LITTLE, *late, "--steps", 50, "--out", tmp_path / "run")
    assert_done(answer)
    newest = max((tmp_path / "run/checkpoints").glob("0*"))
    progress = json.loads((newest / "state.json").read_text())["progress"]
    assert progress["step"] == progress["best_step"] + 2 < 50
    assert f"early stopping at step {progress['step']}: no improvement in 2 validations" in answer.stderr
    best = tmp_path / f"run/checkpoints/{progress['best_step']:08d}"
    for name, tensor in load_file(tmp_path / "run/model.safetensors").items():
        assert_close(tensor, load_file(best / "model.safetensors")[name], rtol=0, atol=0)


# --- leaving and going on ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_saves_and_going_on_ends_with_the_same_bits(number, corpus, tmp_path, monkeypatch):
    words = ["train", "--train", corpus(), *LITTLE, "--steps", 9, "--set", "train.validate_every=4"]
    words += ["--set", "train.average_checkpoints=2", "--set", "train.checkpoint_every=3"]
    straight, left = tmp_path / "straight", tmp_path / "left"
    assert_done(regard(*words, "--out", straight))
    output = train_progress.validation_line

    def interrupted(report, running):
        signal.raise_signal(number)
        return output(report, running)

    with monkeypatch.context() as patch:
        patch.setattr(train_progress, "validation_line", interrupted)
        answer = regard(*words, "--device", "cpu", "--out", left)
    again = f"regard train --out {left} --device cpu"
    assert answer.exit_code == 130
    assert answer.stdout == f"saved: {left} at step 4; resume with: {again}\n"
    answer = regard(*again.split()[1:])
    assert "resuming from step 4" in answer.stderr
    assert_done(answer)
    assert held(left) == held(straight)


def test_a_second_ctrl_c_stops_at_once_and_loses_no_checkpoint(corpus, tmp_path, monkeypatch):
    def interrupted(report, running):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(train_progress, "validation_line", interrupted)
    answer = regard(
        "train",
        "--train",
        corpus(),
        *LITTLE,
        "--steps",
        9,
        "--set",
        "train.validate_every=3",
        "--out",
        tmp_path / "run",
    )
    assert answer.exit_code == 130
    assert "Traceback" not in answer.output
    monkeypatch.undo()
    assert "resuming from step 3" in regard("train", "--out", tmp_path / "run").stderr


def test_a_real_ctrl_c_reaches_a_real_run(corpus, tmp_path, start):
    often = ["--steps", 100_000, "--set", "train.validate_every=5"]
    process = start("train", "--train", corpus(), *LITTLE, *often, "--out", tmp_path / "run")
    process.until(lambda: process.err.exists() and "valid loss" in process.err.read_text())
    process.send(signal.SIGINT)
    assert process.ends() == 130
    assert process.out.read_text().startswith(f"saved: {tmp_path / 'run'} at step ")
    assert "Traceback" not in process.err.read_text()
    assert_plain(process.err.read_text())


def test_a_finished_run_stays_as_it_is(corpus, tmp_path):
    words = ["train", "--train", corpus(), *LITTLE, "--steps", 2, "--out", tmp_path / "run"]
    assert_done(regard(*words))
    before = held(tmp_path / "run")
    assert_done(regard(*words))
    assert_done(regard("train", "--out", tmp_path / "run"))
    assert held(tmp_path / "run") == before


# --- what it says ---


def test_a_line_of_ten_thousand_tokens_is_left_out_and_said(corpus, tmp_path):
    long = "\t".join(["cat " * 10_000, "chat " * 10_000])
    answer = regard(
        "train", "--train", corpus(150, rows={7: long, 100: long}), *LITTLE, "--steps", 1, "--out", tmp_path / "run"
    )
    assert_refused(answer, "of 1 held-out examples none is within train.max_length = 256; raise it")
    answer = regard(
        "train", "--train", corpus(200, rows={7: long, 100: long}), *LITTLE, "--steps", 1, "--out", tmp_path / "run"
    )
    assert_done(answer)
    assert answer.stderr.startswith(
        "skipped: 2 of 200 pairs, with more tokens on a side than train.max_length = 256 or train.batch_size = 300\n"
    )


def test_pairs_with_an_empty_side_can_be_left_out_and_are_counted(corpus, tmp_path):
    path = corpus(rows={5: "the cat\t", 9: "\tle chat"})
    more = ["--set", "data.skip_empty=true", "--steps", 1, "--out", tmp_path / "run"]
    answer = regard("train", "--train", path, *LITTLE, *more)
    assert_done(answer)
    assert answer.stderr.startswith(f"skipped: 2 of 41 pairs, for empty parts ({path}:5: the target is empty)\n")


def test_words_that_no_one_has_seen_are_trained_on(corpus, tmp_path):
    """Emoji, text from right to left, combining marks, and a word of five thousand letters."""
    rows = {2: "😀 cat\t😀 chat", 3: "שלום עולם\tمرحبا بالعالم", 4: f"{'x' * 5000}\tà̶̂"}
    path = corpus(rows=rows)
    for kind in ("words", "bpe", "characters"):
        out = tmp_path / kind
        answer = regard("train", "--train", path, *LITTLE, "--set", f"text.kind={kind}", "--steps", 1, "--out", out)
        assert_done(answer)
        assert_done(regard("translate", out, "-", "--beam", 2, typed="😀 שלום cat\n"))


def test_nothing_but_text_is_written_where_no_terminal_is(corpus, tmp_path):
    answer = regard("train", "--train", corpus(), *LITTLE, "--steps", 2, "--out", tmp_path / "run")
    assert_plain(answer.output)
    assert len(answer.stderr.splitlines()) == 3


# --- two runs, and no room ---


def test_two_runs_in_one_folder_at_once_are_refused(corpus, tmp_path):
    words = ["train", "--train", corpus(), *LITTLE, "--steps", 2, "--out", tmp_path / "run"]
    with lock_folder(tmp_path / "run"):
        assert_refused(regard(*words), f"this process itself is training in {tmp_path / 'run'} already")
    assert not (tmp_path / "run/settings.toml").exists()
    assert_done(regard(*words))


@pytest.mark.parametrize("free_bytes", [100, 5_000, 30_000])
def test_a_full_disk_costs_the_last_interval_at_most(free_bytes, corpus, tmp_path):
    """No room for the settings, for the weights, or for what the optimiser remembers."""
    words = ["train", "--train", corpus(), *LITTLE, "--steps", 4, "--set", "train.checkpoint_every=2"]
    with no_room(after=free_bytes):
        answer = regard(*words, "--out", tmp_path / "run")
    assert answer.exit_code == 2
    assert "File too large" in answer.stderr
    assert "Traceback" not in answer.output
    assert_done(regard(*words, "--out", tmp_path / "run"))
    assert_done(regard(*words, "--out", tmp_path / "other"))
    assert held(tmp_path / "run") == held(tmp_path / "other")


def test_a_full_disk_leaves_earlier_checkpoints_whole(corpus, tmp_path, monkeypatch):
    words = ["train", "--train", corpus(), *LITTLE, "--steps", 8, "--set", "train.checkpoint_every=2"]
    words += ["--set", "train.validate_every=4"]
    output = train_progress.validation_line
    with monkeypatch.context() as patch:
        patch.setattr(
            train_progress, "validation_line", lambda *both: (signal.raise_signal(signal.SIGINT), output(*both))[1]
        )
        assert regard(*words, "--out", tmp_path / "run").exit_code == 130
    before = held(tmp_path / "run")
    free_bytes = {name: len(content) for name, content in before.items()}
    for full in (100, free_bytes["target.json"] + 1, free_bytes["checkpoints/00000004/model.safetensors"] + 1):
        with no_room(after=full):
            answer = regard("train", "--out", tmp_path / "run")
        assert_refused(answer, "cannot write a checkpoint" if full > 100 else f"{tmp_path / 'run'}/source.json")
        assert held(tmp_path / "run") == before
    assert_done(regard("train", "--out", tmp_path / "run"))
