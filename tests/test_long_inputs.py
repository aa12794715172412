"""The benchmark of long inputs: every mechanism is a model that can be trained; the page shows what was measured."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

ROOT = Path(__file__).parent.parent


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("long_inputs")
    for name in ("long_inputs", "long_inputs_page", "machine"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("mechanism", ["full", "window", "bigbird", "linformer", "linear"])
def test_every_mechanism_sees_no_more_than_it_should_and_has_gradients(benchmark, mechanism):
    torch.manual_seed(0)
    model = benchmark.model_of(mechanism, words=64, size=11, labels=3)
    ids = torch.randint(4, 11, (2, 64))
    logits = benchmark.logits_of(model, ids)
    assert logits.shape == (2, 3)
    far = ids.clone()
    far[:, -1] = 4 + (ids[:, -1] - 3) % 7  # another word at the far end
    moved = (benchmark.logits_of(model, far) - logits).abs().max()
    if mechanism == "window":
        assert moved == 0  # two layers of Window(16) reach 30 words
    else:
        assert moved > 1e-6
    logits.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def test_layers_without_a_padding_mask_agree_with_the_encoder(benchmark):
    torch.manual_seed(0)
    model = benchmark.model_of("bigbird", words=64, size=11, labels=3)
    ids, lengths = torch.randint(4, 11, (2, 64)), torch.tensor([64, 64])
    unpadded = model.encoder(ids, lengths)
    model.encoder.context = model.encoder.context.inner
    assert_close(model.encoder(ids, lengths), unpadded)


def test_texts_are_as_long_as_they_are_said_to_be_and_labels_are_known(benchmark):
    for name, task in benchmark.TASKS.items():
        for text, label in task.examples(67, 5, "test", 3):
            assert len(text.split()) == 67, name
            assert label in task.labels


def test_a_table_says_the_mean_of_the_seeds_and_leaves_a_gap_where_nothing_ran(benchmark):
    one = {"task": "listops", "words": 1024, "mechanism": "full", "seed": 0, "accuracy": 0.25, "batch": 7, "ms": 3.0}
    rows = [
        {**one, "mib": 100.0},
        {**one, "mib": 102.0, "seed": 1, "accuracy": 0.75, "ms": 4.0},
        {**{key: one[key] for key in ("task", "words", "seed")}, "mechanism": "window", "failed": "out of memory"},
    ]
    machine = {"gpu": None, "cpu": "a CPU", "torch": "2"}
    page = benchmark.show.__globals__
    table = page["trade_off"]({"rows": rows, "steps": 5, "command": "python it.py", "machine": machine})
    assert "| listops, full | 50.0 |" in table
    assert "| listops, window | – |" in table
    assert "| ms, full | 3.5 |" in table
    assert "| MiB, full | 101 |" in table
    assert "7 of 1,024 words" in table


def test_the_page_shows_what_was_measured(benchmark):
    page = benchmark.show.__globals__
    text = page["PAGE"].read_text(encoding="utf-8")
    assert page["replaced"](text) == text, "run: python benchmarks/long_inputs.py --show"
