"""What every test shares: one seed per test, so that a failure repeats, and Ctrl-C as in a terminal."""

import signal

import pytest
import torch

# whoever starts the suite in the background, or with nohup, has it ignore these, and with it every run that is tested
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _one_seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)
