"""What tests share: one seed per test, so that a failure repeats, Ctrl-C as in a terminal, Triton's interpreter."""

import gc
import logging
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from .shapes import check_shapes

HERE = Path(__file__).parent
# to write 260 modules and 300 test files as bytecode anew takes each worker and what it starts longer than most files
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# a thread of torch that waits would spin, on a core that the other worker needs; workers and what they start inherit it
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
check_shapes()  # before anything of the package is imported

# whoever starts the suite in the background, or with nohup, has it ignore these, and with it every run that is tested
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


torch.set_num_threads(1)  # fixtures of a file are made before the one of each test; two workers share two cores

# without a GPU, torch notes for each that may still come who seeded it: a traceback, longer to make than most tests
if not torch.cuda.is_available():
    torch.cuda.manual_seed_all = torch.xpu.manual_seed_all = torch.mtia.manual_seed_all = lambda seed: None

# what survives a loss of power is not tested, and to wait for the disk is most of what a small checkpoint takes
os.fsync = lambda fd: None

# a sweep of all that torch, its compilers and the collected tests hold takes longer than most tests
gc.set_threshold(50_000, 20, 100)


# What takes longest comes first, so that no worker is left with a long file at the end.
LONGEST_FIRST = ["test_docs.py", "serve", "interop", "cli", "test_new_model.py", "test_site.py", "hostile", "training"]
LONGEST_FIRST += ["decode", "see", "tasks", "models", "test_house.py", "test_public.py", "test_architecture.py"]
LONGEST_FIRST += ["test_platforms.py", "test_notebooks.py", "ops", "attention"]


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    for item in items:
        if sampled := item.get_closest_marker("sampled"):
            name = item.nodeid.partition("[")[0]
            if (seen[name] - sampled.kwargs.get("first", 0)) % sampled.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1

    def rank(item: pytest.Item) -> int:
        name = item.path.relative_to(HERE).parts[0]
        return LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=rank)


@pytest.fixture(scope="module")
def interpreted(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the test's module prints when it is run with Triton's interpreter."""
    from tests.attention.triton_interpreter import run_interpreted

    return run_interpreted(request.module.__name__)


@pytest.fixture(scope="module")
def interpreted_whole(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The same with the argument `whole`: more cases, for the slow tests."""
    from tests.attention.triton_interpreter import run_interpreted

    return run_interpreted(request.module.__name__, "whole")


def pytest_collection_finish() -> None:
    gc.freeze()
    # torch keeps 40 loggers apart from the root; pytest would listen to each of them anew in every phase of every test
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(autouse=True)
def _one_seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)
