"""A sentence as a model reads it: words, what it attended to for each, which heads align, and which word decided."""

import pytest
import torch
from torch.testing import assert_close

from regard.data import SentencePair
from regard.data.tokenizers.base import TokenizedText
from regard.decode import Greedy, alignment
from regard.decode.alignment import (
    AlignmentHead,
    CrossAttentionMaps,
    SentencePairAttention,
    annotate_pair,
    attend_pair,
    dice_coefficients,
    find_deciding_words,
    format_links,
    gold_links,
    link_coverage,
    select_head_by_coverage,
    select_heads_by_gold,
    translate_without_each_word,
)
from regard.decode.translation import translate_texts
from regard.models.config import ModelConfig
from regard.tasks.config import PairTokenizerSettings
from regard.tasks.translation.task import TranslationData, TranslationSettings, Translator
from regard.world import World, find_lecture_sentence, translation_pairs

TINY = ModelConfig(kind="transformer", layers=2, model=12, heads=2, hidden=20, dropout=0.0)
KNOWN = [SentencePair(*pair) for pair in translation_pairs(World(max_length=6), "fr", 61, "train")]
SOURCE, TARGET = "the black cat ate the mouse", "le chat noir a mangé la souris"


def translator(kind: str = "bpe", model: ModelConfig = TINY, *, source: str = "en", target: str = "fr") -> Translator:
    text = PairTokenizerSettings(kind=kind, vocab_size=300, joint=kind != "words")
    data = TranslationData(source=source, target=target)
    made = Translator.from_examples(KNOWN, TranslationSettings(data=data, text=text, model=model))
    made.model.eval()
    return made


# --- words ---


@pytest.mark.parametrize("kind", ["words", "bpe", "characters"])
def test_every_id_belongs_to_a_word_that_a_person_sees(kind):
    tokenizer = translator(kind).source
    reading = TokenizedText.of(tokenizer, SOURCE)
    assert reading.words == tuple(SOURCE.split())
    assert list(reading.ids) == tokenizer.encode(SOURCE)
    assert sorted(set(reading.word_ids)) == list(range(6))
    assert len(reading.word_ids) == len(reading.ids)


def test_an_empty_text_has_no_attention():
    with pytest.raises(ValueError, match="an empty text has no attention to show; give at least one word"):
        TokenizedText.of(translator("words").source, "  ")


def test_pieces_become_words_by_hand():
    """Two target pieces of one word are averaged, two source pieces of one word summed; the end stays alone."""
    source, target = TokenizedText((4, 5, 6), ("ab", "c"), (0, 0, 1)), TokenizedText((7, 8), ("xy",), (0, 0))
    weights = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.5, 0.3, 0.2, 0.0], [0.0, 0.0, 0.0, 1.0]]])
    attention = SentencePairAttention(source, target, CrossAttentionMaps({"cross": weights}))
    assert_close(attention.word_matrix([AlignmentHead("cross", 0)]), torch.tensor([[0.55, 0.25, 0.2]]))
    assert_close(attention.word_matrix([AlignmentHead("cross", 0, shift=1)]), torch.tensor([[0.4, 0.1, 0.5]]))


@pytest.mark.parametrize("kind", ["words", "bpe"])
def test_where_a_model_looked_is_a_distribution_for_every_word(kind):
    seen = attend_pair(translator(kind), SOURCE, TARGET)
    assert (len(seen.target.words), len(seen.source.words)) == (7, 6)
    words = seen.word_matrix([AlignmentHead("decoder.0.cross", 0), AlignmentHead("decoder.1.cross", 1)])
    assert words.shape == (7, 7)
    assert_close(words.sum(-1), torch.ones(7))


# --- which heads align ---


def test_gold_alignments_turn_around():
    sentence = find_lecture_sentence(SOURCE)
    assert sentence is not None
    forward, backward = gold_links(sentence, "en", "fr"), gold_links(sentence, "fr", "en")
    assert backward == {(target, source) for source, target in forward}
    assert (1, 2) in forward  # black, noir
    assert (2, 1) in forward  # cat, chat


@pytest.mark.parametrize("languages", [("en", "fr"), ("fr", "en")])
def test_an_annotated_sentence_is_the_one_that_is_translated(languages):
    made = translator("words", source=languages[0], target=languages[1])
    sentence = find_lecture_sentence(SOURCE)
    assert sentence is not None
    found = annotate_pair(made, sentence)
    assert found.source == tuple(made.source.encode(" ".join(sentence.words_for(languages[0]))))
    assert found.target == tuple(made.target.encode(" ".join(sentence.words_for(languages[1]))))


def test_heads_by_gold_are_heads_of_the_model():
    world = World(max_length=6)
    heads = select_heads_by_gold(translator("words"), [world.sentence(number, "valid") for number in range(5)])
    assert heads
    assert {head.layer for head in heads} <= {"decoder.0.cross", "decoder.1.cross"}


def test_the_head_that_reaches_most_words_covers_best():
    made = translator("words")
    (chosen,) = select_head_by_coverage(made, [(SOURCE, TARGET)])
    seen = attend_pair(made, SOURCE, TARGET)

    def reached(head: AlignmentHead) -> int:
        found = seen.word_matrix([head]).argmax(-1).tolist()
        return len({column for column in found if column < 6})

    every = [
        AlignmentHead(layer, head, shift)
        for layer in ("decoder.0.cross", "decoder.1.cross")
        for head in (0, 1)
        for shift in (0, 1)
    ]
    assert reached(chosen) == max(map(reached, every))


PAIRS = [
    (["the", "cat", "sleeps"], ["le", "chat", "dort"]),
    (["the", "dog", "runs"], ["le", "chien", "court"]),
]


def test_dice_coefficients_by_hand():
    found = dice_coefficients(PAIRS)
    assert found["the", "le"] == found["cat", "chat"] == 1.0  # 2 · 2 / (2 + 2) and 2 · 1 / (1 + 1)
    assert found["the", "chat"] == pytest.approx(2 / 3)  # 2 · 1 / (2 + 1)
    assert ("cat", "chien") not in found


def test_links_that_are_one_word_off_cover_less_than_the_right_ones():
    dice, (source, target) = dice_coefficients(PAIRS), PAIRS[0]
    right, shifted = frozenset({(0, 0), (1, 1), (2, 2)}), frozenset({(1, 0), (2, 1), (0, 2)})
    assert link_coverage(right, source, target, dice) == 1.0
    assert link_coverage(shifted, source, target, dice) == pytest.approx((2 / 3 + 1 + 2 / 3) / 3)
    assert link_coverage(frozenset({(0, 0), (0, 1)}), source, target, dice) == pytest.approx(1 / 3)


def test_no_head_without_a_sentence():
    with pytest.raises(ValueError, match="no head can be chosen without sentences; give at least one pair"):
        select_head_by_coverage(translator("words"), [])


def test_links_are_written_as_other_tools_read_them():
    made = translator("words")
    head = AlignmentHead("decoder.1.cross", 1)
    weights = attend_pair(made, SOURCE, TARGET).word_matrix([head])
    found = [(int(row.argmax()), target) for target, row in enumerate(weights) if int(row.argmax()) < 6]
    assert format_links(made, SOURCE, TARGET, [head]) == " ".join(
        f"{source}-{target}" for source, target in sorted(found)
    )
    assert format_links(made, SOURCE, " ", [head]) == ""


# --- which word decided ---


@pytest.mark.parametrize("kind", ["words", "characters"])
@pytest.mark.parametrize("model", [TINY, ModelConfig(kind="gru", layers=1, model=12, hidden=20, dropout=0.0)], ids=str)
def test_each_word_is_left_out_in_turn(kind, model):
    """A model without attention can be asked as well."""
    made = translator(kind, model)
    texts = ["black cat", "a cat", "a black"]
    assert translate_without_each_word(made, "a black cat") == translate_texts(made, texts, Greedy())


def test_a_word_decides_if_the_translation_is_another_without_it(monkeypatch):
    made = translator("words")
    found = ["il porte la lumière", "il porte la boîte légère", "la boîte"]
    monkeypatch.setattr(alignment, "translate_without_each_word", lambda *_: found)
    assert find_deciding_words(made, "a light box", "légère") == {0: "il porte la lumière", 2: "la boîte"}
