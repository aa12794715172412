"""Train requests: what is said of a run, and read and refused, before its first step; without a terminal."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from regard.tasks.own_parts import OwnParts
from regard.tasks.train_request import TrainRequest, describe_rows, prepare_run, with_recipe_parts
from regard.training.config import TrainSettings
from regard.training.packed_corpus import PackedCorpus

PART = """
from dataclasses import dataclass
from regard.attention import Pattern

@dataclass(frozen=True)
class EveryOther(Pattern):
    def sees(self, b, h, i, j):
        return (i - j) % 2 == 0
"""
PAIRS = "".join(f"the cat number {n}\tle chat {n}\n" for n in range(40))


def test_a_run_is_prepared_without_a_terminal_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text(PAIRS)
    done, told = [], []

    @contextmanager
    def status(what: str):
        done.append(what)
        yield

    overrides = {"data.corpus": "files", "data.train": ["pairs.tsv"], "model.size": "tiny", "train.steps": "7"}
    request = TrainRequest(Path("run"), overrides=overrides, device="cpu")
    run = prepare_run(request, notice=told.append, status=status)
    assert (run.existing, run.last_step, run.changes, run.fit.job.train.steps) == (None, 0, {}, 7)
    assert done == ["reading pairs", "preparing the model"]
    assert told == []
    assert "7 steps" in list(run.lines())[-1]
    assert not Path("run").exists()


def test_files_that_a_recipe_names_are_said_before_they_are_run(tmp_path):
    (tmp_path / "mine.py").write_text(PART)
    recipe, told = tmp_path / "recipe.toml", []
    recipe.write_text('parts = ["mine.py"]\n')
    found = with_recipe_parts(OwnParts(), recipe, told.append)
    assert told == [f"{recipe} runs {tmp_path / 'mine.py'}"]
    assert [Path(file).name for file in found.files] == ["mine.py"]


@pytest.mark.parametrize(
    ("longest", "device", "said"), [(128, "cuda", True), (127, "cuda", False), (128, "cpu", False)]
)
def test_rows_that_are_too_long_for_one_kernel_are_named(longest, device, said):
    """A pair of 128 tokens and its end take a row of 192."""
    corpus = PackedCorpus.of([([5] * longest, [6, 7])], TrainSettings(batch_size=256, max_length=128, packed=True))
    notice = describe_rows(replace(corpus, device=device))
    assert notice.startswith("rows of 192 tokens, as the longest pairs need: with train.max_length = 127") is said
    assert bool(notice) is said
