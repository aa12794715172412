"""regard train --init-from: fine-tunes a trained model with its own vocabulary, and can be interrupted."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from regard.tasks.translation.task import TranslationSettings

from .commands import assert_done, assert_refused, held, regard

# of every other task, and how its world is made small
TASKS = dict.fromkeys(("tagging", "sequence_classification", "language_modeling", "autoencoding"), "sentences=300")
TASKS |= {"image_classification": "pictures=120", "vqa": "pictures=300", "node_classification": "people=60"}
VERBS = {"tagging": "tag", "sequence_classification": "classify", "language_modeling": "generate"}
VERBS |= {
    "autoencoding": "autoencode",
    "image_classification": "image",
    "vqa": "answer",
    "node_classification": "graph",
}
BRIEF = ["--steps", 2, "--rate", "1e-3"]


def settings(folder: Path) -> TranslationSettings:
    return TranslationSettings.load(folder / "settings.toml")


def test_it_begins_with_the_weights_and_the_vocabulary_of_the_other(trained, corpus, tmp_path):
    out = tmp_path / "mine"
    answer = regard("train", "--start", trained, "--train", corpus(), "--rate", "1e-12", "--steps", 1, "--out", out)
    assert_done(answer)
    assert f"initialised with the weights and the vocabulary of {trained}\n" in answer.stderr
    for name, weight in load_file(trained / "model.safetensors").items():
        assert_close(load_file(out / "model.safetensors")[name], weight, rtol=0, atol=1e-6)
    assert all((out / name).read_bytes() == (trained / name).read_bytes() for name in ("source.json", "target.json"))
    before, after = settings(trained), settings(out)
    assert (after.text, after.model) == (before.text, before.model)
    assert after.data.train == (str(tmp_path / "train.tsv"),)
    assert after.train.batch_size == before.train.batch_size
    assert not (out / "start.safetensors").exists()


def test_it_goes_on_when_killed_before_its_first_checkpoint(trained, corpus, tmp_path):
    words = ["train", "--start", trained, "--train", corpus(), *BRIEF]
    assert_done(regard(*words, "--out", tmp_path / "whole"))
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in ("settings.toml", "source.json", "target.json"):
        shutil.copy(tmp_path / "whole" / name, killed)
    shutil.copy(trained / "model.safetensors", killed / "start.safetensors")
    assert_done(regard("train", "--out", killed))
    assert held(killed)["model.safetensors"] == held(tmp_path / "whole")["model.safetensors"]
    again = regard(*words, "--out", killed)  # and the same command, once more, only finds it finished
    assert "resuming from step 2" in again.stderr


def test_a_run_of_its_own_knows_nothing_of_another_start(trained, corpus, tmp_path):
    """As one is left by whoever killed a run before it had described itself."""
    words = ["train", "--train", corpus(), "--set", "text.kind=words", "--size", "tiny", "--steps", 1]
    (tmp_path / "one").mkdir()
    shutil.copy(trained / "model.safetensors", tmp_path / "one" / "start.safetensors")
    for out in ("one", "other"):
        assert_done(regard(*words, "--out", tmp_path / out))
    assert held(tmp_path / "one")["model.safetensors"] == held(tmp_path / "other")["model.safetensors"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("task", TASKS)
def test_every_task_can_start_from_another_run(task, tmp_path):
    small = ["--set", f"data.{TASKS[task]}"]
    assert_done(regard("train", "--task", task, *small, *BRIEF, "--out", tmp_path / "one"))
    assert_done(regard("train", "--start", tmp_path / "one", "--seed", 3, "--out", tmp_path / "other"))
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "other"))
    assert one.keys() == other.keys()
    assert any(not weight.equal(other[name]) for name, weight in one.items())
    assert all((weight - other[name]).abs().max() < 0.1 for name, weight in one.items() if weight.is_floating_point())


# --- what is refused ---


def test_no_run_one_without_a_checkpoint_and_one_of_another_task(trained, copied, tmp_path):
    assert_refused(regard("train", "--start", tmp_path, "--out", tmp_path / "mine"), f"{tmp_path} holds no model")
    (copied / "model.safetensors").unlink()
    shutil.rmtree(copied / "checkpoints")
    answer = regard("train", "--start", copied, "--out", tmp_path / "mine")
    assert_refused(answer, f"{copied} has no checkpoint yet; train it: regard train --out {copied}")
    answer = regard("train", "--start", trained, "--task", "tagging", "--out", tmp_path / "mine")
    assert_refused(answer, f"{trained / 'settings.toml'}: the task is 'translation', not 'tagging'")
    assert not (tmp_path / "mine").exists()


def test_what_would_make_another_model_or_vocabulary(trained, corpus, tmp_path):
    for change, table in (("model.layers=2", "model"), ("text.kind=bpe", "text")):
        answer = regard("train", "--start", trained, "--train", corpus(), "--set", change, "--out", tmp_path / "mine")
        assert_refused(
            answer, f"{trained} was trained with another [{table}]; to initialise from it, leave out what changes"
        )
    assert not (tmp_path / "mine").exists()


def test_a_label_that_the_model_does_not_know(tmp_path):
    texts = {"one.tsv": "good\tup\nbad\tdown\n" * 20, "other.tsv": "good\tup\nodd\tsideways\n" * 20}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    given = ["--set", "text.kind=words", *BRIEF]
    assert_done(
        regard(
            "train",
            "--task",
            "sequence_classification",
            "--train",
            tmp_path / "one.tsv",
            *given,
            "--out",
            tmp_path / "one",
        )
    )
    answer = regard(
        "train", "--start", tmp_path / "one", "--train", tmp_path / "other.tsv", "--out", tmp_path / "other"
    )
    assert_refused(answer, "")
    assert "sideways" in answer.stderr
    assert not (tmp_path / "other").exists()
