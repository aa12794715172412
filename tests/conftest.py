"""What every test shares: one seed per test, so that a failure repeats."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)
