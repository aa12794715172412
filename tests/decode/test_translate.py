"""Texts in, translations out: a line for a line, in their places, whatever is batched with what."""

import sys
from dataclasses import replace

import pytest
import torch

from regard.data import SentencePair
from regard.decode import Beam, Greedy, Sampling
from regard.decode.translation import detokenize_line, translate_lines, translate_texts, unknown_source_words
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.translation.task import TranslationSettings, Translator
from regard.world import World, translation_pairs

TINY = ModelConfig(kind="transformer", layers=1, model=12, heads=2, hidden=20, dropout=0.0)
KNOWN = [SentencePair(*pair) for pair in translation_pairs(World(max_length=6), "fr", 37, "train")]
LINES = ["the cat", "", *(pair.source for pair in KNOWN[:9]), "  ", "a dog", ""]


@pytest.fixture(scope="module")
def translator() -> Translator:
    """Of words, and of no use, but it writes something for everything."""
    made = Translator.from_examples(
        KNOWN, TranslationSettings(text=PairTokenizerSettings(kind="words", joint=False), model=TINY)
    )
    made.model.eval()
    return made


def test_every_text_has_its_place_and_an_empty_one_stays_empty(translator):
    found = dict(translate_lines(translator, LINES, Greedy()))
    assert sorted(found) == list(range(len(LINES)))
    assert [bool(found[place][0].text) for place in range(len(LINES))] == [bool(line.strip()) for line in LINES]
    nothing = found[1][0].hypothesis
    assert (nothing.ids, nothing.log_probability, nothing.finished) == ((), 0.0, True)


@pytest.mark.sampled(3, first=1)
@pytest.mark.parametrize(
    "search", [Greedy(), Beam(3, n_best=3), Sampling(seed=5, samples=2)], ids=["greedy", "beam", "sample"]
)
def test_windows_and_budgets_change_nothing(search, translator, monkeypatch):
    wanted = dict(translate_lines(translator, LINES, search))
    for window, tokens in ((3, 4096), (1000, 1), (5, 40)):
        monkeypatch.setattr(sys.modules["regard.decode.translation"], "WINDOW", window)
        found = dict(translate_lines(translator, LINES, search, tokens=tokens))
        assert {place: [one.text for one in these] for place, these in found.items()} == {
            place: [one.text for one in these] for place, these in wanted.items()
        }
        for place, these in wanted.items():
            for one, other in zip(these, found[place], strict=True):
                assert one.hypothesis.log_probability == pytest.approx(other.hypothesis.log_probability, abs=1e-4)


def test_the_same_sentence_drawn_twice_is_drawn_anew(translator, monkeypatch):
    """Even where it begins another window: its place in the whole text decides its draws."""
    monkeypatch.setattr(sys.modules["regard.decode.translation"], "WINDOW", 1)
    drawn = translate_texts(translator, [KNOWN[0].source] * 7, Sampling(seed=2))
    assert len(set(drawn)) > 1


def test_the_first_lines_are_there_before_the_last_are_begun(translator, monkeypatch):
    monkeypatch.setattr(sys.modules["regard.decode.translation"], "WINDOW", 4)
    places = [place for place, _ in translate_lines(translator, ["a " * n for n in range(1, 12)], Greedy())]
    assert [sorted(places[start : start + 4]) for start in (0, 4, 8)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_the_best_are_in_order(translator):
    best = dict(translate_lines(translator, LINES, Beam(3)))
    assert translate_texts(translator, LINES, Beam(3)) == [best[place][0].text for place in range(len(LINES))]
    assert translate_texts(translator, [], Greedy()) == []


def test_whoever_reads_has_gradients_of_their_own(translator):
    for _ in translate_lines(translator, ["the cat"], Greedy()):
        assert torch.is_grad_enabled()


def test_a_line_break_that_a_model_spells_does_not_break_the_line(translator):
    spelt = replace(
        translator,
        target=Translator.from_examples(
            KNOWN, TranslationSettings(text=PairTokenizerSettings(kind="characters"))
        ).target,
    )
    ids = spelt.target.encode("le chat\r\nnoir\n")
    assert spelt.detokenize(ids) == "le chat\r\nnoir\n"
    assert detokenize_line(spelt, ids) == "le chat  noir "


def test_a_text_of_spaces_is_empty_though_it_has_tokens():
    spelt = Translator.from_examples(
        KNOWN, TranslationSettings(text=PairTokenizerSettings(kind="characters"), model=TINY)
    )
    assert spelt.source.encode("  ")
    assert [text == "" for text in translate_texts(spelt, ["the cat", "  ", "\t"], Greedy())] == [False, True, True]
    assert spelt.translate("  ").text == ""


def test_unknown_words_are_named(translator):
    assert unknown_source_words(translator, "the zebra and the 😀") == ["zebra", "and", "😀"]
    assert unknown_source_words(translator, "the") == []
