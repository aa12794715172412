"""Parts of a user's own on the command line: they train, resume, decode, draw and show, and nothing unnamed runs."""

import os
import py_compile
import shutil
import tomllib
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from regard.cli import progress as progress_module
from regard.decode import Beam, prepare, score_targets, translate
from regard.see import AttentionSite, trace_model
from regard.serve.model_store import ModelStore
from regard.tasks.own_parts import OwnParts
from regard.tasks.translation.task import Translator
from tests.serve.client import client_of, floats, post_trace, site_path

from .commands import LITTLE, assert_done, assert_refused, held, regard

CAT = "the black cat ate the mouse"
# what a user writes; the last line leaves a trace of every time the file is run
MINE = """\
from dataclasses import dataclass
from pathlib import Path
import torch
from torch import nn
from regard.attention import Pattern, Score

class Gated(nn.Module, Score):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.ones(()))

    def compare(self, q, k):
        return self.gate * (q @ k.mT) / q.shape[-1] ** 0.5

@dataclass(frozen=True)
class EveryOther(Pattern):
    distance: int = 2

    def sees(self, b, h, i, j):
        return (i - j) % self.distance == 0

with Path(__file__).with_name("ran").open("a") as file:
    file.write("once\\n")
"""
GATED = 'score = "Gated()"\nposition = "Rotary()"'
RECIPES = [
    *("--set", f"model.encoder={GATED}", "--set", f"model.decoder={GATED}"),
    *("--set", 'model.cross=score = "Gated()"\npattern = "EveryOther() | ~EveryOther(3)"'),
]
SMALL = [*LITTLE, "--set", "data.sentences=300", "--set", "data.max_length=6", "--rate", "0.01"]
SMALL += ["--steps", 6, "--set", "train.checkpoint_every=2", "--set", "train.validate_every=3"]
SMALL += ["--set", "train.keep_checkpoints=5"]


def times_run(file: Path) -> int:
    ran = file.with_name("ran")
    return len(ran.read_text().splitlines()) if ran.exists() else 0


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("mine") / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture(scope="module")
def run(mine, tmp_path_factory) -> Path:
    """A translator whose every attention has parts of a user's own."""
    folder = tmp_path_factory.mktemp("own") / "run"
    done = assert_done(regard("train", "--parts", mine, *SMALL, *RECIPES, "--out", folder))
    assert f"try: regard translate {folder} --parts {mine}" in done
    return folder


@pytest.fixture
def foreign(run, tmp_path) -> Path:
    """The same run, as somebody sends it."""
    return Path(shutil.copytree(run, tmp_path / "foreign"))


@pytest.fixture
def stop_early(monkeypatch):
    """Asks a training to stop after so many steps, as Ctrl-C does."""

    class After:
        def __init__(self, steps: int):
            self.left = steps

        def is_set(self) -> bool:
            self.left -= 1
            return self.left <= 0

    def arrange(steps: int) -> None:
        @contextmanager
        def stopped():
            yield After(steps)

        monkeypatch.setattr(progress_module, "graceful_stop", stopped)

    yield arrange
    monkeypatch.undo()


# --- training, resuming, decoding, drawing, the page ---


def test_a_run_records_the_file_and_learns_its_weights(run, mine):
    recorded = tomllib.loads((run / "settings.toml").read_text())["parts"]
    sum = OwnParts.load([mine]).named["Gated"].__module__[-16:]
    assert recorded == [{"file": str(mine), "sha256": recorded[0]["sha256"], "names": ["Gated", "EveryOther"]}]
    assert recorded[0]["sha256"].startswith(sum)
    assert (run / "parts" / f"mine-{sum[:8]}.py").read_text() == MINE
    gates = [value.item() for name, value in load_file(run / "model.safetensors").items() if name.endswith("gate")]
    assert len(gates) == 3
    assert all(gate != 1.0 for gate in gates)


def test_an_interrupted_run_ends_with_the_same_weights(run, mine, tmp_path, stop_early):
    command = ["train", "--parts", mine, *SMALL, *RECIPES, "--out", tmp_path / "run"]
    stop_early(3)
    interrupted = regard(*command)
    assert interrupted.exit_code == 130
    assert f"regard train --out {tmp_path / 'run'} --parts {mine}" in interrupted.stdout
    stop_early(99)
    assert_refused(regard("train", "--out", tmp_path / "run"), f"{tmp_path / 'run' / 'settings.toml'}: it uses Gated")
    assert_done(regard("train", "--out", tmp_path / "run", "--parts", mine))
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_a_cache_gives_the_scores_of_the_whole_sentence(run, mine):
    translator = Translator.load(run, own_parts=OwnParts.load([mine]))
    source = translator.source.encode(CAT)
    ((found, *_),) = translate(prepare(translator.model), [source], Beam(3))
    (whole,) = score_targets(translator.model, [source], [found.ids])
    assert found.scores == pytest.approx(whole.scores[: len(found.scores)], abs=1e-4)
    assert len(found.scores) > 3
    search = ["--beam", 3, "--length-penalty", 0, "--format", "lines"]
    output = assert_done(regard("translate", run, "-", "--parts", mine, *search, typed=CAT))
    assert output.strip() == translator.detokenize(found.ids).strip()


def test_every_way_to_use_a_run_takes_its_parts(run, mine, tmp_path):
    drawn = assert_done(regard("look", run, CAT, "--parts", mine, "--save", tmp_path / "look.png"))
    assert "mouse" in drawn
    assert (tmp_path / "look.png").stat().st_size > 1000
    assert "BLEU" in assert_done(regard("evaluate", run, "--parts", mine, "--beam", 1))
    more = ["--init-from", run, "--steps", 1, "--set", "train.warmup_steps=1", "--out", tmp_path / "tuned"]
    assert_done(regard("train", "--parts", mine, *more))
    assert "Gated()" in (tmp_path / "tuned" / "settings.toml").read_text()
    assert "■" in assert_done(regard("draw", "Causal() & EveryOther(3)", "--parts", mine, "--tokens", 5))
    assert "runs this recipe" in assert_done(regard("explain", "Gated()", "--parts", mine, "--tokens", 9))


def test_the_page_shows_them(run, mine):
    before = times_run(mine)
    store = ModelStore.from_folders([run], own_parts=OwnParts.load([mine]))
    with client_of(store) as client:
        trace, early = (post_trace(client, {"model": "run", "text": CAT, **more}) for more in ({}, {"checkpoint": 2}))
        shown = {site["name"]: site for site in trace["sites"]}
        assert shown["encoder.0"]["score"] == "Gated()"
        assert shown["decoder.0.cross"]["pattern"] == "EveryOther(distance=2) | ~EveryOther(distance=3)"
        row, before_training = (
            floats(client, f"{site_path(one, 'encoder.0')}/heads/0/rows/1") for one in (trace, early)
        )
        site = trace_model(run, CAT, parts=[mine]).sites["encoder.0"]
        assert isinstance(site, AttentionSite)
        assert row == pytest.approx(site.head(0).weights[1].numpy(), abs=1e-6)
        assert abs(row - before_training).max() > 1e-6
        assert f"parts=['{mine}']" in trace["python"]
    assert times_run(mine) == before + 2  # for the page, and for the trace beside it


# --- recipes ---


def test_a_recipe_names_its_file(run, mine, tmp_path):
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    lines = (run / "settings.toml").read_text().splitlines()
    lines[1] = 'parts = ["mine.py"]'
    recipe = folder / "gated.toml"
    recipe.write_text("\n".join(lines))
    trained = regard("train", recipe, "--steps", 1, "--set", "train.warmup_steps=1", "--out", tmp_path / "run")
    assert_done(trained)
    assert f"{recipe} runs {folder / 'mine.py'}" in trained.stderr
    assert times_run(folder / "mine.py") == 1
    assert f'file = "{folder / "mine.py"}"' in (tmp_path / "run" / "settings.toml").read_text()
    again = regard("train", recipe, "--parts", folder / "mine.py", "--steps", 2, "--out", tmp_path / "run")
    assert_done(again)
    assert times_run(folder / "mine.py") == 2  # once, though it is named twice
    settings = folder / "settings.toml"
    settings.write_text(recipe.read_text())
    asks = f"{settings}: it uses parts of your own; name the file that defines this, to have it run: --parts "
    assert_refused(regard("train", settings, "--out", tmp_path / "other"), asks)
    assert times_run(folder / "mine.py") == 2


# --- nothing runs that is not named ---

COMMANDS = [
    ["translate", "RUN", "-"],
    ["evaluate", "RUN"],
    ["look", "RUN", CAT],
    ["serve", "RUN", "--port", "0"],
    ["train", "--out", "RUN"],
    ["train", "--init-from", "RUN", "--out", "OTHER"],
    ["train", "RUN/settings.toml", "--out", "OTHER"],
]
PLANTED = {
    "as recorded": None,
    "a list": 'parts = ["evil.py"]',
    "its own copy": 'parts = [{file = "parts/evil.py", sha256 = "", names = ["Gated", "EveryOther"]}]',
    "no record": "",
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:2]))
@pytest.mark.parametrize("planted", PLANTED)
def test_what_a_run_names_is_not_run(planted, command, foreign, tmp_path, monkeypatch):
    monkeypatch.chdir(foreign)  # where a module would be found by its name
    lines = (foreign / "settings.toml").read_text().splitlines()
    lines[1] = lines[1] if PLANTED[planted] is None else PLANTED[planted]
    (foreign / "settings.toml").write_text("\n".join(lines))
    evil = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
    for file in (foreign / "evil.py", *(foreign / "parts").iterdir(), foreign / "parts" / "evil.py"):
        file.write_text(evil)
    before = held(foreign)
    words = [word.replace("RUN", str(foreign)).replace("OTHER", str(tmp_path / "other")) for word in command]
    assert_refused(regard(*words, typed=CAT), f"{foreign / 'settings.toml'}: ")
    assert held(foreign) == before
    assert not list(tmp_path.rglob("ran"))


def test_a_changed_file_is_refused_unless_it_is_named_as_such(run, mine, tmp_path):
    other = tmp_path / "mine.py"
    other.write_text(MINE.replace("self.gate * (q", "0 * self.gate * (q"))
    refused = regard("translate", run, "-", "--parts", other, typed=CAT)
    assert_refused(refused, f"{run / 'settings.toml'}: Gated of '{other}' has changed since the training: SHA-256 ")
    assert f"use it as it is: --changed-parts '{other}' instead of --parts" in refused.stderr
    assert_done(regard("translate", run, "-", "--changed-parts", other, typed=CAT))
    moved = tmp_path / "moved" / "renamed.py"
    moved.parent.mkdir()
    shutil.copy(mine, moved)
    assert_done(regard("translate", run, "-", "--parts", moved, typed=CAT))


def test_what_is_hashed_is_what_runs(run, mine, tmp_path):
    """Python would take bytecode from __pycache__ whose time and size are those of the source."""
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    stat = file.stat()
    file.write_text("raise SystemExit(3)".ljust(len(MINE)))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    py_compile.compile(str(file))
    file.write_text(MINE)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert_done(regard("translate", run, "-", "--parts", file, typed=CAT))
    assert times_run(file) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "{file}: no such file; check the name"),
        ("def broken(:\n", "{file}:1: invalid syntax; correct this file of parts"),
        ("x = 1\nprint(y)\n", "{file}:2: NameError: name 'y' is not defined; correct this file of parts"),
        ("import not_installed\n", "{file}:1: ModuleNotFoundError: No module named 'not_installed'; correct this"),
        ("raise SystemExit('enough')\n", "{file}:1: SystemExit: enough; correct this file of parts"),
        ("from regard.attention import Window\nx = 1\n", "{file}: defines no part; write a class derived from Score,"),
        (MINE.replace("EveryOther", "Window"), "{file}: Window is the name of a built-in part; give yours another"),
        (MINE.replace("EveryOther", "Before"), "{file}: Before is the name of a built-in part; give yours another"),
        ("def gelu(x):\n    return x\n", "{file}: gelu is the name of a built-in part; give yours another"),
    ],
    ids=lambda text: (text or "missing")[:20],
)
def test_a_file_without_good_parts_is_refused_in_one_line(text, message, tmp_path):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    assert_refused(regard("train", "--parts", file, *SMALL, "--out", tmp_path / "run"), message.format(file=file))
    assert not (tmp_path / "run").exists()


def test_other_mistakes_are_one_line_too(mine, tmp_path):
    second = tmp_path / "second.py"
    second.write_text(MINE.split("@dataclass")[0])
    train = ["train", *SMALL, "--out", tmp_path / "run"]
    clash = f"Gated is defined in {mine} and in {second}; rename one"
    assert_refused(regard(*train, "--parts", mine, "--parts", second, "--parts", mine), clash)
    assert_refused(regard(*train, "--parts", tmp_path / "mine.txt"), f"{tmp_path / 'mine.txt'}: a file of parts is a")
    encoder = ["--set", 'model.encoder=score = "Gatd()"']
    unknown = regard(*train, "--parts", mine, *encoder)
    assert_refused(unknown, "model.encoder = ")
    assert "known parts: Dot" in unknown.stderr
    assert "Gated, EveryOther; a part of your own needs its file: --parts FILE" in unknown.stderr
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("parts = 3\n")
    assert_refused(regard("train", recipe, "--out", tmp_path / "run"), "parts = 3 should be a list of files, such as")


def test_the_flag_stands_in_the_help_with_an_example():
    assert "--parts mine.py" in assert_done(regard("train", "--help")).replace("\n", " ")
    for command in (
        "translate",
        "tag",
        "classify",
        "generate",
        "image",
        "answer",
        "graph",
        "autoencode",
        "look",
        "serve",
    ):
        assert "--parts" in assert_done(regard(command, "--help"))


def test_weights_of_every_layer_are_its_own(run, mine):
    translator = Translator.load(run, own_parts=OwnParts.load([mine]))
    gates = [value for name, value in translator.model.named_parameters() if name.endswith("gate")]
    assert len({id(gate) for gate in gates}) == 3
    assert all(torch.isfinite(gate) for gate in gates)
