"""The benchmark of states: an implementation that hangs or crashes costs its own row and no other."""

import importlib
import os
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def state(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("state")


def send_made_up(to, units, *, peers):
    to.send(None)
    for kind, name in units:
        if name == "hangs":
            to.send({"kind": kind, "implementation": name, "tokens": 1})
            time.sleep(60)
        if name == "crashes":
            os._exit(7)
        to.send({"kind": kind, "implementation": name, "tokens": 2})
        to.send(None)


def test_what_hangs_or_crashes_costs_only_its_own_row(state):
    units = [("a", "well"), ("a", "hangs"), ("a", "well"), ("b", "crashes"), ("b", "well")]
    found = list(state.limited_rows(units, 1.0, peers=True, send=send_made_up))
    assert found == [
        {"kind": "a", "implementation": "well", "tokens": 2},
        {"kind": "a", "implementation": "hangs", "tokens": 1},
        {"kind": "a", "implementation": "hangs", "error": "did not end in 1 s"},
        {"kind": "a", "implementation": "well", "tokens": 2},
        {"kind": "b", "implementation": "crashes", "error": "its process ended with exit code 7"},
        {"kind": "b", "implementation": "well", "tokens": 2},
    ]
