"""What tests share: one seed per test, so that a failure repeats, Ctrl-C as in a terminal, Triton's interpreter."""

import gc
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from .shapes import check_shapes

HERE = Path(__file__).parent
check_shapes()  # before anything of the package is imported

# whoever starts the suite in the background, or with nohup, has it ignore these, and with it every run that is tested
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


torch.set_num_threads(1)  # fixtures of a file are made before the one of each test; two workers share two cores

# a sweep of all that torch, its compilers and the collected tests hold takes longer than most tests
gc.set_threshold(50_000, 20, 100)


# Folders whose files take longest come first, so that no worker is left with a long one at the end.
LONGEST_FIRST = ["serve", "cli", "hostile", "training", "decode", "see", "ops", "tasks", "models", "attention"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(HERE).parts[0]
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=rank)


@pytest.fixture(scope="module")
def interpreted(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the test's module prints when it is run with Triton's interpreter."""
    from tests.attention.triton_interpreter import run_interpreted

    return run_interpreted(request.module.__name__)


def pytest_collection_finish() -> None:
    gc.freeze()


# without a GPU, torch notes for each that may still come who seeded it: a traceback, longer to make than most tests
seed_torch = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


@pytest.fixture(autouse=True)
def _one_seed():
    seed_torch(0)
    torch.set_num_threads(1)
