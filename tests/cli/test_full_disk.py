"""A disk that is really full: a file system of a few hundred thousand bytes, where one may be mounted."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .commands import LITTLE, assert_done, assert_refused, held, regard


@pytest.fixture
def disk(tmp_path) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """Its folder, and a way to make it larger."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options: str) -> None:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", folder], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("only root may mount a file system")

    try:
        mount("size=8k")
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    yield folder, lambda size: mount("remount", f"size={size}")
    subprocess.run(["umount", folder], check=True)


def test_training_ends_in_one_line_and_goes_on_when_there_is_room(disk, corpus, tmp_path):
    folder, resize = disk
    words = ["train", "--train", corpus(), *LITTLE, "--steps", 12, "--set", "train.checkpoint_every=2"]
    words += ["--set", "train.average_checkpoints=5"]
    assert_refused(regard(*words, "--out", folder / "run"), f"{folder}/run/")
    resize("700k")
    assert_refused(regard(*words, "--out", folder / "run"), "cannot write a checkpoint to ")
    kept = held(folder / "run")
    assert "checkpoints/00000002/state.json" in kept
    assert not any(".draft" in name for name in kept)
    resize("10m")
    answer = regard("train", "--out", folder / "run")
    assert_done(answer)
    assert "resuming from step " in answer.stderr
    assert_done(regard(*words, "--out", tmp_path / "straight"))
    assert held(folder / "run") == held(tmp_path / "straight")


def test_what_was_written_before_stays_whole(disk, trained, corpus):
    folder, _ = disk
    (folder / "old").write_text("from yesterday\n")
    (folder / "filling").write_bytes(bytes(2_000))
    sources = [line.split("\t")[0] for line in corpus(41).read_text(encoding="utf-8").splitlines()]
    (corpus(41).parent / "text.en").write_text("".join(f"{line}\n" for line in sources * 9))
    answer = regard("translate", trained, corpus().parent / "text.en", "--beam", 1, "--out", folder / "old")
    assert_refused(answer, f"{folder}/old: cannot be written (No space left on device); make room, or choose another")
    (folder / "filling").write_bytes(bytes(4_096))
    answer = regard("evaluate", trained, "--pairs", corpus(7), "--save", folder / "old")
    assert_refused(answer, f"{folder}/old: cannot be written (No space left on device); make room, or choose another")
    assert (folder / "old").read_text() == "from yesterday\n"
    assert sorted(path.name for path in folder.iterdir()) == ["filling", "old"]


def test_a_picture_that_does_not_fit_is_one_line(disk, trained):
    folder, _ = disk
    (folder / "look.png").write_text("from yesterday\n")
    answer = regard("look", trained, "the black cat ate the mouse", "--save", folder / "look.png")
    assert_refused(answer, f"{folder}/look.png: cannot be written (No space left on device); make room, or choose ano")
    assert (folder / "look.png").read_text() == "from yesterday\n"
