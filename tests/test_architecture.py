"""docs/architecture.md: its four walks name the files that really run, in the order in which they are entered."""

import json
import re
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from regard.attention import Causal, Recipe, Rotary, attend
from regard.data.parallel import SentencePair
from regard.decode import Beam, prepare, translate
from regard.models.config import ModelConfig
from regard.see import trace_model
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.translation.task import TranslationData, TranslationSettings, Translator
from regard.training.checkpoint import Progress
from regard.training.config import TrainSettings, make_train_config
from regard.training.loop import make_captured_step, make_optimiser, one_step
from regard.training.step import LossScaleState

from .forks import run_program

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "regard"
PAGE = ROOT / "docs" / "architecture.md"
PAIRS = [SentencePair(*pair) for pair in (("the cat sleeps", "le chat dort"), ("a dog", "un chien"))] * 8
# files and lines that a reader may have to open, at most, the examples in docstrings apart; the attention of a longer
# walk is a walk of its own
LIMITS = {"attend": (9, 1100), "training step": (20, 3100), "decoding": (10, 1635), "trace": (25, 5700)}


def entered_files(run: Callable[[], Any]) -> list[str]:
    """The files of the package whose functions are called, in order of their first call."""
    found: dict[str, None] = {}

    def enter(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(SOURCE)):
            found.setdefault(Path(path).relative_to(SOURCE).as_posix())

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(found)


def attention() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 8).unbind()
    attend(q, k, v, Recipe(position=Rotary(), pattern=Causal()), backend="reference")


@cache
def translator() -> Translator:
    settings = TranslationSettings(
        data=TranslationData(corpus="files", train=("pairs.tsv",)),
        text=PairTokenizerSettings(kind="words"),
        model=ModelConfig(kind="transformer", layers=2, model=16, heads=2, hidden=32),
        train=TrainSettings(steps=3, batch_size=64, packed=True, cuda_graph=True),
    )
    return Translator.from_examples(PAIRS, settings)


def training_step() -> Callable[[], Any]:
    """Packed rows, and the step captured as a whole: on a CPU the capture runs it."""
    job = translator().job(PAIRS, PAIRS[:2])
    config = make_train_config(job.train, job.width)
    optimiser = make_optimiser(job.model, config, captured=False)

    def capture(work: Callable[[], torch.Tensor], device: torch.device) -> tuple[Callable[[], object], torch.Tensor]:
        return lambda: None, work()

    step = make_captured_step(job.model, job.loss, config, optimiser, capture)
    scale = LossScaleState.of(0, 1.0, torch.device("cpu"))
    return lambda: one_step(job.model, optimiser, job.data, step, config, Progress(), scale)


def decoding() -> Callable[[], Any]:
    model, source = prepare(translator().model), translator().source.encode("the cat sleeps")
    return lambda: translate(model, [source], Beam(4))


def trace() -> Callable[[], Any]:
    return lambda: trace_model(translator(), "the cat sleeps", target="le chat dort").site("encoder.0").check(0)


WALKS: dict[str, Callable[[], Callable[[], Any]]] = {
    "attend": lambda: attention,
    "training step": training_step,
    "decoding": decoding,
    "trace": trace,
}


def walked_files(name: str) -> list[str]:
    """Longer walks leave out what happens inside `attend`, and the parts of a recipe."""
    files = entered_files(WALKS[name]())
    return (
        files if name == "attend" else [file for file in files if not file.startswith("attention/") or multihead(file)]
    )


def multihead(file: str) -> bool:
    return file == "attention/multihead.py"


def listed_files(name: str) -> list[str]:
    """What the page lists under the heading of a walk."""
    _, _, section = PAGE.read_text().partition(f"\n## {name.capitalize()}\n")
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section.partition("\n## ")[0], re.MULTILINE)


def without_examples(source: str) -> str:
    """A file's text with its docstrings as they would be without the `Examples:` sections that close them."""

    def close(found: re.Match[str]) -> str:
        opening, margin = found.groups()
        return f'{opening}"""' if opening else f'\n{margin}"""'

    return re.sub(r'(""".*)?\n\n( *)Examples:\n(?:\2 .*\n|\n)+?\2"""', close, source)


@pytest.fixture(scope="module")
def walks() -> dict[str, list[str]]:
    """In a process of its own, where no cache spares a file."""
    run = run_program(
        "import os; os.environ['REGARD_KERNELS'] = '0'  # as on a machine that cannot compile them\n"
        f"from {__name__} import WALKS, json, walked_files\n"
        "print(json.dumps({name: walked_files(name) for name in WALKS}))"
    )
    assert run.code == 0, run.err
    return json.loads(run.out)


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_lists_the_files_that_run(name, walks):
    assert listed_files(name) == walks[name]


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_is_short(name):
    files, lines = LIMITS[name]
    listed = listed_files(name)
    assert len(listed) <= files
    assert sum(len(without_examples((SOURCE / file).read_text()).splitlines()) for file in listed) <= lines


def test_examples_in_docstrings_are_not_counted():
    short, long = 'def one():\n    """One."""\n', 'def one():\n    """One.\n\n    Not two.\n    """\n'
    example = "\n\n    Examples:\n        >>> one()\n        1\n    "
    assert without_examples(short) == without_examples(short.replace('."""', f'.{example}"""')) == short
    assert without_examples(long) == without_examples(long.replace("two.\n    ", f"two.{example}")) == long
