"""Runs that are killed, meet each other, are damaged or diverge: nothing is lost, and nothing happens in silence."""

import random
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from regard.models import safetensors_io as weights_module
from regard.tasks import pretrained
from regard.training import checkpoint
from regard.training import run as train_run
from regard.training.checkpoint import checkpoints, lock_folder
from regard.world import World, translation_pairs
from tests.cli.commands import FORKS, LITTLE, assert_done, assert_refused, held, live, regard, started
from tests.training.killed_runs import Moment, done, half_written, not_done

OFTEN = ["--steps", 5, "--set", "train.checkpoint_every=2", "--set", "train.validate_every=3"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "train.tsv"
    path.write_text(
        "".join(f"{source}\t{target}\n" for source, target in translation_pairs(World(max_length=6), "fr", 41, "train"))
    )
    return path


@pytest.fixture(scope="module")
def parent(corpus, tmp_path_factory) -> Path:
    """A run to start from."""
    folder = tmp_path_factory.mktemp("parent") / "run"
    assert_done(regard("train", "--train", corpus, *LITTLE, "--steps", 3, "--out", folder))
    return folder


@pytest.fixture(scope="module")
def words(corpus, parent) -> list[object]:
    return ["train", "--start", parent, "--train", corpus, *OFTEN, "--seed", 5, "--set", "train.warmup_steps=2"]


@pytest.fixture(scope="module")
def straight(words, tmp_path_factory) -> Path:
    """What nobody disturbed."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert_done(regard(*words, "--out", folder))
    return folder


# --- two at once ---


def test_a_refused_second_process_changes_nothing(words, tmp_path, corpus):
    """Least of all the weights that the first begins with, and begins with again if it is killed."""
    run = tmp_path / "run"
    with lock_folder(run):
        (run / "start.safetensors").write_bytes(b"of another")
        before = held(run)
        for command in (words, ["train", "--train", corpus, *LITTLE, *OFTEN], ["train"]):
            assert_refused(regard(*command, "--out", run), f"this process itself is training in {run} already; wait")
            assert held(run) == before


def test_killed_after_another_was_refused_a_run_still_begins_with_its_start(words, straight, tmp_path, corpus):
    run = tmp_path / "run"
    never = [
        word for key in ("steps", "checkpoint_every", "validate_every") for word in ("--set", f"train.{key}=99999")
    ]
    first = started(tmp_path, *words, *never, "--out", run)
    try:
        first.until(lambda: (run / "settings.toml").exists())
        assert_refused(regard("train", "--train", corpus, *LITTLE, "--out", run), "process ")
    finally:
        first.process.kill()
        first.process.join()
    assert (run / "start.safetensors").exists()
    assert_done(regard(*words, "--out", run))
    assert held(run)["model.safetensors"] == held(straight)["model.safetensors"]


def test_a_folder_that_was_only_claimed_is_gone_again(tmp_path):
    with lock_folder(tmp_path / "run"):
        assert (tmp_path / "run/.lock").exists()
    assert not (tmp_path / "run").exists()
    (tmp_path / "kept").mkdir()
    with lock_folder(tmp_path / "kept"):
        pass
    assert (tmp_path / "kept").exists()


# --- kill -9 ---

MOMENTS = {
    "before the weights to start from": Moment(
        weights_module, "write_weights", lambda path: path.name == "start.safetensors", not_done, 1
    ),
    "after the weights to start from": Moment(
        weights_module, "write_weights", lambda path: path.name == "start.safetensors", done, 1
    ),
    "before the settings": Moment(
        pretrained, "write_text_atomic", lambda path: path.name == "settings.toml", not_done, 1
    ),
    "after the settings": Moment(pretrained, "write_text_atomic", lambda path: path.name == "settings.toml", done, 1),
    "in the first checkpoint": Moment(checkpoint, "save_tensors", lambda path: "model" in path.name, half_written, 1),
    "after the first checkpoint": Moment(Path, "rename", lambda path: ".draft" in path.name, done, 1),
    "before the finished weights": Moment(train_run, "write_weights", lambda path: "model" in path.name, not_done, 1),
    "after the finished weights": Moment(train_run, "write_weights", lambda path: "model" in path.name, done, 1),
}
SHORT = ("after the weights to start from", "after the settings", "after the finished weights")


def dying(moment: str, words: list[str], streams: tuple[str, str, str], folder: str) -> None:
    MOMENTS[moment].prepare()
    live(words, streams, folder)


def killed_at(moment: str, words: list[object], folder: Path) -> None:
    streams = ("/dev/null", str(folder / "out"), str(folder / "err"))
    process = FORKS.Process(target=dying, args=(moment, [str(word) for word in words], streams, str(folder)))
    process.start()
    process.join(timeout=300)
    assert process.exitcode == -signal.SIGKILL, (folder / "err").read_text()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "moment", [pytest.param(one, marks=() if one in SHORT else pytest.mark.slow) for one in MOMENTS]
)
def test_killed_at_any_moment_a_started_run_ends_with_the_same_bytes(moment, words, straight, tmp_path):
    run = tmp_path / "run"
    killed_at(moment, [*words, "--out", run], tmp_path)
    assert_done(regard(*words, "--out", run))
    assert held(run) == held(straight)


@pytest.mark.slow
def test_killed_at_random_again_and_again_a_started_run_ends_with_the_same_bytes(words, straight, tmp_path):
    run, chance = tmp_path / "run", random.Random(0)
    for _ in range(8):
        process = started(tmp_path, *words, "--out", run)
        process.process.join(timeout=chance.uniform(0.2, 3))
        process.process.kill()
        process.process.join()
    assert_done(regard(*words, "--out", run))
    assert held(run) == held(straight)


# --- damage ---


@pytest.fixture(scope="module")
def undamaged(corpus, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undamaged") / "run"
    assert_done(regard("train", "--train", corpus, *LITTLE, *OFTEN, "--out", folder))
    return folder


@pytest.fixture
def finished(undamaged, tmp_path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(undamaged, tmp_path / "run"))


def damaged(path: Path, chance: random.Random) -> None:
    """Cut, emptied, gone, or with one bit that is another."""
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content))
    match chance.choice(["cut", "empty", "gone", "bit"]):
        case "cut":
            path.write_bytes(content[:at])
        case "empty":
            path.write_bytes(b"")
        case "gone":
            path.unlink()
        case _:
            content[at] ^= 1 << chance.randrange(8)
            path.write_bytes(content)


SEEDS = [pytest.param(seed, marks=() if seed < 4 else pytest.mark.slow) for seed in range(40)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_newest_checkpoint_is_named_and_costs_an_interval(seed, finished):
    chance, before = random.Random(seed), held(finished)
    newest = checkpoints(finished / "checkpoints")[-1]
    damaged(chance.choice(sorted(newest.iterdir())), chance)
    (finished / "model.safetensors").unlink()
    answer = regard("translate", finished, "-", typed="the cat\n")
    assert_done(answer)
    assert answer.stderr.splitlines()[0].startswith(f"{finished} was stopped at step 4 of 5; using its ")
    answer = regard("train", "--out", finished)
    assert_done(answer)
    assert f"{newest} is damaged, and is deleted; resuming from step 4\n" in answer.stderr
    assert held(finished) == before


def test_a_damaged_only_checkpoint_is_not_thrown_away_in_silence(finished):
    before = held(finished)
    for path in checkpoints(finished / "checkpoints")[1:]:
        shutil.rmtree(path)
    (only,) = checkpoints(finished / "checkpoints")
    damaged(only / "model.safetensors", random.Random(1))
    (finished / "model.safetensors").unlink()
    assert_refused(regard("translate", finished, "-", typed="the cat\n"), f"{finished} has no checkpoint yet; train it")
    answer = regard("train", "--out", finished)
    assert_done(answer)
    assert f"{only} is damaged, and is deleted; resuming from step 0\n" in answer.stderr
    assert held(finished) == before


# --- what is no number ---


@pytest.mark.parametrize("steps", [1, 9, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (4, 30))])
def test_a_rate_that_is_too_high_ends_with_an_error_however_few_the_steps(steps, corpus, tmp_path):
    given = ["train", "--train", corpus, *LITTLE, "--steps", steps, "--out", tmp_path / "run"]
    answer = regard(*given, "--rate", "1e30", "--set", "train.schedule=constant")
    assert answer.exit_code == 2, answer.output
    assert "lower the learning rate (it was " in answer.stderr
    assert "Traceback" not in answer.output
    assert not (tmp_path / "run/model.safetensors").exists()
    assert checkpoints(tmp_path / "run/checkpoints") == []
    assert_done(regard(*given, "--rate", "1e-3"))
    assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / "run/model.safetensors").values())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("line", ["the nan nan nan", "the 1e999 0 0", "the 1 2 3\nthe 1 2 3"])
def test_word_vectors_that_are_no_numbers_or_come_twice(line, tmp_path):
    rows = [line, "cat 0.1 0.2 0.3"]
    (tmp_path / "vectors.txt").write_text(f"{len(line.splitlines()) + 1} 3\n" + "\n".join(rows) + "\n")
    given = ["--set", "words.kind=file", "--set", f"words.file={tmp_path / 'vectors.txt'}", "--set", "model.model=3"]
    given += ["--set", "model.heads=1", "--set", "data.sentences=50"]
    answer = regard("train", "--task", "sequence_classification", *given, "--steps", 1, "--out", tmp_path / "run")
    assert_refused(answer, f"{tmp_path / 'vectors.txt'}:")
    assert not (tmp_path / "run").exists()
