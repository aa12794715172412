"""Platforms: without what only Unix has, the package imports, loads a model, decodes and locks its files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from regard.decode import Beam
from regard.decode.translation import translate_texts
from tests.see.untrained_models import translator

SOURCE = Path(__file__).parents[1] / "src"
# Windows as far as Python shows it: the name of the platform, modules and names that are missing there, and msvcrt.
# Other libraries are imported before, since they would look for the DLLs of their Windows builds.
WINDOWS = """
from fcntl import LOCK_EX, LOCK_NB, flock
import importlib, os, pkgutil, signal, sys, types
import matplotlib.pyplot, numpy, sacrebleu, safetensors.torch, tokenizers, torch, torch.utils.flop_counter, typer
import anywidget, uvicorn, starlette.applications, starlette.staticfiles, tempfile, rich.progress, rich.table, PIL.Image

def locking(descriptor, mode, count):
    assert os.lseek(descriptor, 0, os.SEEK_CUR) >= os.fstat(descriptor).st_size, "its bytes could not be read"
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None

sys.platform = "win32"
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
for missing in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[missing] = None
for module, names in (
    (signal, ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "setitimer", "alarm")),
    (os, ("fork", "getuid", "geteuid", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_CLOEXEC", "fchmod", "sysconf")),
):
    for name in names:
        delattr(module, name)
"""
IMPORTS = """
import regard
names = [one.name for one in pkgutil.walk_packages(regard.__path__, "regard.")]
for name in names:
    if ".kernels." not in name and not name.endswith(("_triton", "_kernel")):  # Triton is for Linux
        importlib.import_module(name)
print(len(names))
"""
DECODES = """
from regard.decode import Beam
from regard.decode.translation import translate_texts
from regard.tasks.translation.task import Translator
(text,) = translate_texts(Translator.load({folder!r}), ["the black cat ate the mouse"], Beam(2))
print(repr(text))
"""
LOCKS = """
from pathlib import Path
from regard.data.files import open_atomic, write_text_atomic
from regard.training.checkpoint import sync
from regard.training.checkpoint import lock_folder
from regard.cli.progress import graceful_stop

folder = Path({folder!r})
with lock_folder(folder):
    try:
        with lock_folder(folder):
            print("two have locked it")
    except ValueError as error:
        print(error)
write_text_atomic(folder / "text", "one")
with open_atomic(folder / "text") as file:
    file.write(b"two")
    write_text_atomic(folder / "text", "three")  # the one that is being written is locked, and stays
print((folder / "text").read_text(), sorted(path.name for path in folder.iterdir()))
sync(folder / "text")
sync(folder)
with graceful_stop() as stop:
    print(stop.is_set())
"""


@pytest.fixture(scope="module")
def said_on_windows(tmp_path_factory) -> dict[str, list[str]]:
    """What each script prints, all in one process, and what the model that one of them loads translates here."""
    model, saved, locked = translator(), tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("locks") / "run"
    model.save(saved)
    (here,) = translate_texts(model, ["the black cat ate the mouse"], Beam(2))
    scripts = {
        "IMPORTS": IMPORTS,
        "DECODES": DECODES.format(folder=str(saved)),
        "LOCKS": LOCKS.format(folder=str(locked)),
    }
    script = WINDOWS + "".join(f"print('---', {name!r})\n{text}" for name, text in scripts.items())
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={"PYTHONPATH": str(SOURCE)}
    )
    assert done.returncode == 0, done.stderr
    said = dict(zip(scripts, re.split("^--- .*\n", done.stdout, flags=re.MULTILINE)[1:], strict=True))
    return {name: text.splitlines() for name, text in said.items()} | {"here": [repr(here)]}


def test_every_module_is_imported_without_what_only_unix_has(said_on_windows):
    assert int(said_on_windows["IMPORTS"][0]) > 150


def test_a_model_is_loaded_and_decodes_there_as_it_does_here(said_on_windows):
    assert said_on_windows["DECODES"] == said_on_windows["here"]


def test_a_folder_is_locked_there_by_its_own_means(said_on_windows):
    refused, files, stopped = said_on_windows["LOCKS"]
    assert refused.startswith("this process itself is training in")
    assert files == "two ['text']"
    assert stopped == "False"
