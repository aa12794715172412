"""Planted links, modes and leftovers: what is written is the file that was named, and nothing else."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.cli.options import writable_file, writable_files
from regard.data.files import open_atomic, write_text_atomic
from regard.models.safetensors_io import write_weights
from regard.training.checkpoint import lock_folder
from tests.cli.commands import assert_refused, regard


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def victim(tmp_path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious\n")
    return path


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


# --- the lock of a run ---


@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to], ids=["symbolic", "hard"])
def test_a_lock_is_not_written_through_a_link(plant, folder, victim):
    plant(folder / ".lock", victim)
    with pytest.raises(ValueError, match=r"\.lock: is a .*; remove it"), lock_folder(folder):
        pass
    assert victim.read_text() == "precious\n"


def test_a_link_to_nothing_does_not_make_a_file_elsewhere(folder, tmp_path):
    (folder / ".lock").symlink_to(tmp_path / "made")
    with pytest.raises(ValueError, match=r"\.lock: is a link"), lock_folder(folder):
        pass
    assert not (tmp_path / "made").exists()


def test_a_pipe_in_the_place_of_a_lock_keeps_nobody_waiting(folder):
    os.mkfifo(folder / ".lock")
    with pytest.raises(ValueError, match=r"\.lock: is a pipe"), lock_folder(folder):
        pass


def test_a_plain_lock_is_taken_and_given_back(folder):
    for _ in range(2):
        with (
            lock_folder(folder),
            pytest.raises(ValueError, match="this process itself is training"),
            lock_folder(folder),
        ):
            pass
    assert (folder / ".lock").read_text() == str(os.getpid())


# --- what is written beside a file before it takes its place ---


@pytest.mark.parametrize("pid", [None, 1], ids=["own", "1"])
def test_a_planted_part_is_not_written_through(pid, folder, victim):
    (folder / f".out.{pid or os.getpid()}.part").symlink_to(victim)
    write_text_atomic(folder / "out", "new\n")
    assert victim.read_text() == "precious\n"
    assert (folder / "out").read_text() == "new\n"
    assert os.listdir(folder) == ["out"]


def test_weights_are_not_written_through_a_planted_part(folder, victim):
    (folder / f".w.safetensors.{os.getpid()}.part").symlink_to(victim)
    write_weights({"w": torch.arange(3.0)}, folder / "w.safetensors")
    assert victim.read_text() == "precious\n"
    assert load_file(folder / "w.safetensors")["w"].tolist() == [0.0, 1.0, 2.0]
    assert os.listdir(folder) == ["w.safetensors"]


def test_a_part_cannot_be_foreseen_and_is_nobody_else_s(folder):
    names = []
    for _ in range(2):
        with open_atomic(folder / "out") as file:
            names.append(file.name)
            assert not Path(file.name).is_symlink()
    assert len(set(names)) == 2


def test_what_a_killed_process_left_is_swept_away_and_what_is_being_written_is_not(folder):
    code = (
        "import os, signal, sys; from pathlib import Path; from regard.data.files import open_atomic\n"
        "with open_atomic(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, folder / "out"], check=False)
    assert done.returncode == -9
    (left,) = folder.iterdir()
    (folder / ".other.1234.part").touch()
    with open_atomic(folder / "out") as file:
        assert not left.exists()
        file.write(b"first\n")
        write_text_atomic(folder / "out", "second\n")  # another writer, at the same time
        assert Path(file.name).exists()
    assert sorted(os.listdir(folder)) == [".other.1234.part", "out"]
    assert (folder / "out").read_text() == "first\n"


def test_a_name_with_signs_of_a_pattern_sweeps_nobody_else_s(folder):
    (folder / ".a.1.part").touch()
    write_text_atomic(folder / "[a]", "new\n")
    assert sorted(os.listdir(folder)) == [".a.1.part", "[a]"]


# --- modes ---


@pytest.mark.parametrize("before", [0o600, 0o640, 0o604, 0o755])
def test_a_file_keeps_its_mode(before, folder):
    path = folder / "out"
    path.touch()
    path.chmod(before)
    with open_atomic(path) as file:
        assert mode(Path(file.name)) == before
    assert mode(path) == before


def test_a_new_file_is_as_open_as_the_umask_says(folder):
    code = (
        "import os, sys; from pathlib import Path; from regard.data.files import write_text_atomic\n"
        "os.umask(0o027); write_text_atomic(sys.argv[1], 'new')\n"
    )
    subprocess.run([sys.executable, "-c", code, folder / "out"], check=True)
    assert mode(folder / "out") == 0o640


def test_a_read_only_file_is_not_replaced(folder):
    path = folder / "out"
    path.write_text("precious\n")
    path.chmod(0o400)
    for write in (lambda: write_text_atomic(path, "new\n"), lambda: writable_file(path)):
        with pytest.raises(ValueError, match=r"out: is read-only; make it writable \(chmod u\+w\), or choose another"):
            write()
    assert path.read_text() == "precious\n"
    assert os.listdir(folder) == ["out"]


# --- several options, one file ---


def test_two_options_cannot_name_one_file(folder):
    (folder / "link").symlink_to("X")
    for other in ("X", "../folder/X", "link"):
        with pytest.raises(ValueError, match=r"--out and --align are one file, .*; give each a file of its own"):
            list(writable_files(out=folder / "X", align=folder / other))
    assert list(writable_files(out=folder / "X", align=None, save=folder / "Y")) == [folder / "X", None, folder / "Y"]


@pytest.mark.parametrize(
    "words",
    [
        ("translate", "run", "text.en", "--out", "X", "--align", "X"),
        ("evaluate", "run", "--save", "X", "--outputs", "X"),
        ("rebuild", "run", "text.en", "--out", "X", "--latents", "X"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_says_which_two(words, monkeypatch, folder):
    monkeypatch.chdir(folder)
    Path("run").mkdir()
    assert_refused(regard(*words), f"{words[-4]} and {words[-2]} are one file, X; give each a file of its own")
