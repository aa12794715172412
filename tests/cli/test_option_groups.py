"""Groups of options are values: what they ask for can be seen without a command line."""

from pathlib import Path

import pytest

from regard.cli.data import CleaningOptions, FieldOptions, PrepareOptions, ShardOptions
from regard.cli.demo import RungOptions
from regard.cli.look import SamplingOptions, ViewOptions
from regard.cli.options import SearchOptions
from regard.cli.train import SettingOptions, StartOptions
from regard.decode import Beam, Greedy, Sampling
from regard.tasks.translation.cli import HypothesisOptions


def test_flags_are_settings_by_their_keys():
    options = SettingOptions(train=["a.tsv"], model="luong-dot", steps=3, seed=0, set_=["train.warmup_steps = 5"])
    assert options.overrides() == {
        "data.train": ["a.tsv"],
        "data.corpus": "files",
        "model.kind": "luong-dot",
        "train.steps": 3,
        "train.seed": 0,
        "train.warmup_steps": "5",
    }
    assert SettingOptions(train=["a.tsv"], corpus="multi30k").overrides()["data.corpus"] == "multi30k"
    assert SettingOptions().overrides() == {}


def test_a_checkpoint_is_of_a_run_to_begin_with():
    with pytest.raises(ValueError, match="--checkpoint best is of the run to initialise from; add --init-from RUN"):
        StartOptions(checkpoint="best")
    assert StartOptions(Path("run"), "best").checkpoint == "best"


def test_every_rung_has_the_settings_of_all_and_its_own_kind():
    rungs = RungOptions(models="gru, transformer", size="small", steps=7, set_=["train.seed=3"])
    assert rungs.changes(Path("recipe.toml")) == {
        kind: {"train.steps": 7, "train.seed": "3", "model.kind": kind, "model.size": "small"}
        for kind in ("gru", "transformer")
    }
    assert rungs.changes(None)["gru"]["data.max_length"] == 20  # the miniature world's long sentences


def test_hypotheses_are_searched_for_or_drawn(capsys):
    search = SearchOptions(beam=1, length_penalty=0)
    assert HypothesisOptions().build(search) == Greedy()
    assert HypothesisOptions(best=3).build(search) == Beam(3, length_penalty=0, n_best=3)
    assert HypothesisOptions(best=3, sample=True, top_k=5).build(search) == Sampling(samples=3, top_k=5)
    with pytest.raises(ValueError, match="--top-k needs --sample"):
        HypothesisOptions(top_k=5).build(search)
    assert not capsys.readouterr().err
    HypothesisOptions(best=3).build(SearchOptions())
    assert "ranked by the penalised score" in capsys.readouterr().err
    assert [HypothesisOptions(best=n).with_scores for n in (1, 2)] == [False, True]


def test_an_output_is_drawn_if_any_option_of_it_is_given():
    assert SamplingOptions().build() is None
    assert SamplingOptions(seed=0).build() == Sampling(seed=0)


def test_all_heads_are_shown_without_one_of_them():
    for one in ({"head": "encoder.0:1"}, {"word": "cat"}):
        with pytest.raises(ValueError, match="--all-heads shows all heads and words"):
            ViewOptions(all_heads=True, **one)
    assert [ViewOptions(all_heads=one).names_heads for one in (False, True)] == [False, True]


def test_pairs_and_texts_are_prepared_by_the_same_options(tmp_path):
    (tmp_path / "a.tsv").write_text("one\tun\n")
    (tmp_path / "a.txt").write_text("one\n")
    shards = ShardOptions(held_out=3, workers=2)
    pairs = PrepareOptions(inputs=[f"{tmp_path / 'a.tsv'}"], out=tmp_path / "out", shards=shards).of_pairs()
    assert [(one.name, one.languages) for one in pairs.sources] == [("a", ("en", "fr"))]
    assert (pairs.held_out, pairs.workers, pairs.rules) == (3, 2, CleaningOptions().build())
    bare = PrepareOptions(
        inputs=[f"{tmp_path / 'a.tsv'}"], out=tmp_path / "out", names=FieldOptions(target="de"), no_clean=True
    ).of_pairs()
    assert (bare.rules, bare.sources[0].languages) == (None, ("en", "de"))
    texts = PrepareOptions(inputs=[f"{tmp_path / 'a.txt'}"], out=tmp_path / "out", shards=shards)
    found = texts.of_texts()
    assert ([one.name for one in found.sources], found.held_out, found.duplicates) == (["a"], 3, True)
    with pytest.raises(ValueError, match="--separate, --tags and the rules of cleaning but --keep-duplicates"):
        PrepareOptions(inputs=texts.inputs, out=texts.out, shards=ShardOptions(tags=True)).of_texts()
