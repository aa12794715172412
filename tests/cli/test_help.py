"""The command line answers at once, says what there is, and has an example that runs for everything."""

import re
import resource
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer

from regard.cli import app
from tests.forks import FORKS

from .commands import assert_refused, regard

ALL = typer.main.get_command(app).commands  # type: ignore[attr-defined]
COMMANDS = ["demo", "train", "evaluate", "look", "serve", "ladder", "lecture", "draw", "explain", "gallery", "data"]
COMMANDS += ["api", "settings", "runs", "compare", "import", "export", "publish", "models"]
COMMANDS += [
    "translate",
    "tag",
    "classify",
    "generate",
    "embed",
    "fill",
    "image",
    "answer",
    "autoencode",
    "graph",
    "vectors",
    "bench",
]


def assert_runs(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_waits_for_nothing():
    """Torch, numpy and matplotlib take seconds to load, and no help needs them."""
    words = [["--help"], *([command, "--help"] for command in COMMANDS)]
    assert_runs(f"""
import sys
from typer.testing import CliRunner
from regard.cli import app
for words in {words}:
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
heavy = {{"torch", "matplotlib", "numpy", "regard.attention", "regard.see", "regard.decode"}} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else 0)
""")


def test_help_is_there_in_a_third_of_a_second():
    """Of the processor's time, since others may use it too."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert_runs("import sys; from regard.cli import app; app(['--help'])")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.35


def test_what_regard_offers_is_fetched_when_it_is_used():
    assert_runs("""
import sys, regard
assert "torch" not in sys.modules
assert {"Recipe", "attend", "explain", "MultiHeadAttention"} <= set(dir(regard))
from regard import MultiHeadAttention, Recipe, attend, explain
assert Recipe is sys.modules["regard.attention"].Recipe
try:
    regard.atend
except AttributeError as error:
    assert "no attribute 'atend'" in str(error)
else:
    sys.exit("it has everything")
""")


def test_version():
    assert regard("--version").output == f"{version('regard')}\n"


def test_without_a_command_it_says_what_there_is():
    answer = regard()
    assert answer.exit_code == 0
    assert all(command in answer.output for command in COMMANDS)


def test_the_list_of_commands_is_complete():
    assert {name for name, command in ALL.items() if not command.hidden} == set(COMMANDS)
    assert {name for name, command in ALL.items() if command.hidden} == {"write", "picture", "rebuild"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_whose_flags_exist(command):
    """Files and folders are the reader's own, but every flag of every example must be one that the command has."""
    answer = regard(command, "--help")
    assert answer.exit_code == 0
    text = " ".join(answer.output.split())
    examples = re.findall(r"Example: (.*?)(?= Example: |[╭│])", text)
    assert any(f"regard {command}" in example for example in examples), text
    known = {flag for option in ALL[command].params for flag in (*option.opts, *option.secondary_opts)}
    for example in examples:
        assert set(re.findall(r"--[a-z-]+", example)) <= known, example


def test_a_mistake_names_the_help_that_helps():
    assert_refused(regard("fly"), "No such command 'fly'; see regard --help")
    answer = regard("translate")
    assert answer.stderr == "regard: Missing argument 'MODEL'; see regard translate --help\n"
    assert answer.exit_code == 2


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (OSError(28, "No space left on device", "here"), "here: No space left on device; free disk space, or choose"),
        (OSError("strange"), "output: strange; free disk space, or choose another path"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 7 GiB"),
            "there is not enough memory; use fewer tokens (--tokens) or a smaller model",  # draw has no --device
        ),
        (
            MemoryError(),
            "there is not enough memory; use fewer tokens (--tokens) or a smaller model",
        ),
        (ValueError("two\nlines"), "two lines"),
    ],
)
def test_trouble_is_one_line(trouble, message, monkeypatch):
    def fails(*_):
        raise trouble

    monkeypatch.setattr("regard.see.plots.draw.parse_thing", fails)
    assert_refused(regard("draw", "Causal()"), message)


def test_a_line_that_quotes_a_whole_file_is_cut_in_its_middle(monkeypatch):
    def fails(*_):
        raise ValueError(f"a.txt:1: {'x' * 100_000} is no number; remove it")

    monkeypatch.setattr("regard.see.plots.draw.parse_thing", fails)
    answer = regard("draw", "Causal()")
    assert_refused(answer, "a.txt:1: xxx")
    assert answer.stderr.endswith("xxx is no number; remove it\n")
    assert len(answer.stderr) < 1100


def test_streams_that_are_closed_are_empty():
    """As in: regard draw ... <&- >&- 2>&-."""
    process = FORKS.Process(target=draw_without_streams)
    process.start()
    process.join()
    assert process.exitcode == 2


def draw_without_streams() -> None:
    sys.stdin = sys.stdout = sys.stderr = None
    app(["draw", "Window(0)"])


def test_a_mistake_of_ours_is_not_hidden(monkeypatch):
    def fails(*_):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr("regard.see.plots.draw.parse_thing", fails)
    assert isinstance(regard("draw", "Causal()").exception, RuntimeError)
