"""regard ladder and regard demo: everything at once, in small."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import Result

from regard.cli.demo import LONG_SENTENCES, next_commands
from regard.tasks.translation.task import TranslationSettings
from regard.training.checkpoint import checkpoints

from .commands import WORLD_TESTS, assert_done, assert_plain, assert_refused, regard

SMALL = ["--set", "data.sentences=300", "--set", "data.max_length=7", "--set", "train.batch_size=300"]
SMALL += ["--set", "model.model=16", "--set", "model.hidden=16", "--beam", "1", "--steps", "5"]


def size(picture: str) -> tuple[int, int]:
    with Image.open(picture) as opened:
        return opened.size


@pytest.fixture(scope="module")
def climbed(tmp_path_factory) -> tuple[Path, Result]:
    """The folder of a ladder of two rungs, and what the command answered."""
    folder = tmp_path_factory.mktemp("climbed") / "ladder"
    return folder, regard("ladder", "--models", "gru,bahdanau", *SMALL, "--out", folder)


def test_the_ladder_trains_every_rung_and_draws_both_pictures(climbed, monkeypatch):
    folder, answer = climbed
    monkeypatch.chdir(folder.parent)
    table = assert_done(answer)
    assert_plain(answer.output)
    figures = json.loads(Path("ladder/ladder.json").read_text())
    assert list(figures) == ["gru", "bahdanau"]
    for kind, found in figures.items():
        assert Path(f"ladder/{kind}/model.safetensors").exists()
        assert [bucket["first"] for bucket in found["by_length"]] == [1, 6]
        assert f"{kind:<14} BLEU {found['scores']['BLEU']['value']:.2f}" in table
    for picture in ("bleu-by-length", "alignment-bahdanau"):
        assert min(size(f"ladder/{picture}.png")) > 100
    assert not Path("ladder/alignment-gru.png").exists()  # it has no attention to draw


def test_what_is_trained_is_not_trained_again(climbed, monkeypatch):
    monkeypatch.chdir(climbed[0].parent)
    before = Path("ladder/gru/model.safetensors").stat().st_mtime_ns
    assert "trained:" not in assert_done(regard("ladder", "--models", "gru", *SMALL))
    assert Path("ladder/gru/model.safetensors").stat().st_mtime_ns == before


def test_a_mistake_in_the_last_rung_does_not_wait_for_the_first():
    answer = regard("ladder", "--models", "gru,lstn", *SMALL)
    assert_refused(answer, "model.kind = 'lstn' is unknown; choose from elman")
    assert not Path("ladder").exists()


def test_without_a_corpus_sentences_are_long():
    assert LONG_SENTENCES["data.max_length"] >= 20


def test_the_demo_trains_translates_looks_and_says_what_is_next(monkeypatch):
    usual = TranslationSettings.of_world()
    few = replace(usual, data=replace(usual.data, sentences=1000))  # 40,000 take seconds to draw
    monkeypatch.setattr(TranslationSettings, "of_world", lambda: few)
    output = assert_done(regard("demo", "--steps", "3"))
    assert len(checkpoints(Path("out/demo/checkpoints"))) == 3  # all along the training, for the page to go through
    assert_plain(output)
    assert "Exact match: " in output
    assert f"of {WORLD_TESTS} sentences" in output
    assert min(size("out/demo/alignment.png")) > 100
    for command in next_commands(Path("out/demo")):
        assert command in output
