"""regard write, and evaluate and look for language models: given, piped, in other moods, and what they refuse."""

import json
import math
from pathlib import Path

import pytest
import torch

from regard.attention import SiteName
from regard.decode import Greedy
from regard.decode.alignment import AlignmentHead
from regard.tasks.language_modeling.cli import prompt_loop, select_head
from regard.tasks.language_modeling.task import TextGenerator

from .commands import LITTLE, assert_done, assert_plain, assert_refused, regard

RHYME = "one two three four\n"
TINY = [*LITTLE, "--set", "train.max_length=7", "--tokens", 70, "--steps", 60, "--rate", "0.03"]


@pytest.fixture(scope="module")
def generator(tmp_path_factory) -> Path:
    """A language model of four words, trained for a second. To be read only."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text(RHYME * 40)
    more = ["--set", "train.validate_every=60", "--set", "measure.cache=11", "--set", "train.warmup_steps=5"]
    text = folder / "text.txt"
    answer = regard(
        "train", "--task", "language_modeling", "--train", text, "--valid", text, *TINY, *more, "--out", folder / "run"
    )
    assert assert_done(answer).endswith(f"try: regard generate {folder / 'run'}\n")
    return folder / "run"


def test_it_goes_on_with_what_is_given(generator):
    output = assert_done(regard("generate", generator, "one two", "--temperature", 0, "--tokens", 7))
    assert output == "one two three four\none two three four\n"


def test_several_prompts_are_gone_on_with_together(generator):
    output = assert_done(regard("generate", generator, "one two", "three", "--temperature", 0, "--lines", 1))
    assert output == "one two three four\n\nthree four\n"
    answer = regard("generate", generator, "one", "zebra", "--tokens", 3)
    assert answer.stderr == "regard: 'zebra' is out of vocabulary\n"


def test_it_goes_on_with_what_is_piped_and_from_nothing(generator):
    for words in (["-"], []):
        answer = regard("generate", generator, *words, "--temperature", 0, "--lines", 1, typed="one\n")
        assert assert_done(answer) == "one two three four\n"
    assert assert_done(regard("generate", generator, "--temperature", 0, "--lines", 2)) == RHYME * 2
    assert assert_done(regard("generate", generator, "", "--temperature", 0, "--lines", 1)) == RHYME


def test_each_line_typed_is_gone_on_with(generator, type_lines, capsys):
    type_lines("one two", "")
    prompt_loop(TextGenerator.load(generator), Greedy(), tokens=9, lines=1)
    output = capsys.readouterr()
    assert output.out == RHYME * 2
    assert output.err.endswith("Ctrl-D exits.\n> > > ")


def test_a_seed_writes_the_same_again(generator):
    wild = ["--temperature", 3, "--tokens", 40]
    texts = [assert_done(regard("generate", generator, "one", *wild, "--seed", seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    tame = assert_done(regard("generate", generator, "one", *wild, "--top-k", 1))
    assert tame == assert_done(regard("generate", generator, "one", "--temperature", 0, "--tokens", 40))


def test_an_unknown_word_is_said(generator):
    answer = regard("generate", generator, "one zebra", "--tokens", 3)
    assert_done(answer)
    assert answer.stderr == "regard: 'zebra' is out of vocabulary\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", -1], "a temperature is positive"),
        (["--top-p", 0], "top_p=0.0 is no probability"),
        (["--tokens", 0], "Invalid value for '--max-new-tokens' / '--tokens'"),
    ],
)
def test_what_makes_no_sense_is_refused(words, message, generator):
    assert_refused(regard("generate", generator, "one", *words), message)


def test_only_a_language_model_writes(tmp_path):
    assert_refused(regard("generate", tmp_path), f"{tmp_path} holds no model")
    (tmp_path / "settings.toml").write_text('task = "tag"\n')
    assert_refused(regard("generate", tmp_path), f"{tmp_path} is for the task 'tagging', not a language model")


# --- evaluate ---


def test_figures_with_their_signature(generator, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(RHYME * 3 + "\n")
    answer = regard(
        "evaluate", generator, "--on", text, "--save", tmp_path / "f.json", "--outputs", tmp_path / "said.tsv"
    )
    shown = assert_done(answer)
    assert_plain(shown)
    found = json.loads((tmp_path / "f.json").read_text())
    assert (found["tokens"], found["words"], found["bytes"], found["unknown"]) == (16, 16, 3 * 19 + 1, 0)
    assert found["perplexity_per_word"] == pytest.approx(math.exp(found["loss"]))
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * 16 / 58 / math.log(2))
    assert "text:words,one <eos> a line" in found["signature"]
    assert "context:every token once, from the 5 to 7 before it" in shown
    assert found["cache"].startswith("cache:11,theta:")
    assert {"loss_with_cache", "loss_in_blocks"} <= found.keys()
    rows = [line.split("\t") for line in (tmp_path / "said.tsv").read_text().splitlines()]
    assert [token for _, token in rows[:5]] == ["one", "two", "three", "four", "</s>"]
    assert sum(float(bits) for bits, _ in rows) * math.log(2) / 16 == pytest.approx(found["loss"], abs=1e-3)


def test_unknown_words_are_counted_and_cost_no_letters(generator, tmp_path):
    (tmp_path / "text.txt").write_text("one zebra three\n")
    shown = assert_done(regard("evaluate", generator, "--on", tmp_path / "text.txt"))
    assert "1 words are unknown to the model" in shown
    assert "bits per byte" not in shown


def test_nothing_to_measure_is_refused(generator, tmp_path):
    (tmp_path / "text.txt").write_text("\n")
    assert_refused(
        regard("evaluate", generator, "--on", tmp_path / "text.txt"), f"{tmp_path}/text.txt: there is no text"
    )
    assert_refused(regard("evaluate", generator, "--beam", 3), "--beam and penalties are for translations")


# --- look ---


def test_what_surprised_it_and_where_it_looked(generator, tmp_path):
    answer = regard("look", generator, "one two two three", "--save", tmp_path / "look.png")
    shown = assert_done(answer)
    assert_plain(shown)
    assert "surprise, in bits" in shown
    assert "blocks.0:" in shown
    assert "bits a token on average" in shown
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")


def test_heads_and_words_by_their_names(generator):
    assert_done(regard("look", generator, "one two", "--every"))
    one = assert_done(regard("look", generator, "one two", "--head", "blocks.0:1"))
    assert "blocks.0:1" in one
    assert "attended to for “three”" in assert_done(regard("look", generator, "one two three", "--word", "three"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--head", "7:1"], "--head 7:1: write LAYER:HEAD, one of blocks.0:0"),
        (["--word", "six"], "--word six: no token of the text; they are one two"),
        (["--target", "un"], "--target un: is for translations"),
        (["--longest", 1], "the text has 2 tokens; shorten it, or allow it with --max-length 2"),
    ],
)
def test_what_cannot_be_shown_is_refused(words, message, generator):
    assert_refused(regard("look", generator, "one two", *words), message)


def test_the_head_that_looks_at_other_words_is_chosen():
    rests = torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0]])
    itself, before = torch.eye(3), torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    a, b = (SiteName(name, "text", "text") for name in "ab")
    heads = {a: torch.stack((rests, itself)), b: torch.stack((itself, before))}
    assert select_head(heads, None) == AlignmentHead("b", 1)
    loud = {a: 100 * torch.stack((rests, itself)), b: -torch.stack((itself, before))}  # of a state: no shares
    assert select_head(loud | {SiteName("c", "text", "blocks"): torch.ones(1, 3, 2)}, None) == AlignmentHead("b", 1)


def test_a_recurrent_model_is_surprised_as_well(tmp_path):
    (tmp_path / "text.txt").write_text(RHYME * 20)
    kind = ["--model", "gru", "--set", "model.layers=1", "--set", "model.model=8", "--set", "model.hidden=8"]
    letters = ["--set", "text.kind=characters", "--set", "train.max_length=7", "--set", "data.lead=3", "--steps", 2]
    run = tmp_path / "run"
    assert_done(
        regard("train", "--task", "language_modeling", "--train", tmp_path / "text.txt", *kind, *letters, "--out", run)
    )
    assert not (run / "pointer.json").exists()  # none was asked for
    shown = assert_done(regard("look", run, "one two"))
    assert "surprise, in bits" in shown
    assert shown.splitlines()[4] == "one two"
    assert_refused(regard("look", run, "one", "--every"), f"{run} is a model without attention")
    assert "context:every token once, from all before it" in assert_done(regard("evaluate", run))
    assert len(assert_done(regard("generate", run, "one", "--tokens", 9)).rstrip("\n")) >= 3
