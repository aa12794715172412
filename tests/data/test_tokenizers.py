"""Nothing is lost on the way to ids and back, no sentence can spell a special id, and a file holds it all."""

import json
import unicodedata
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from regard.data import (
    BOS,
    EOS,
    PAD,
    UNK,
    CharTokenizer,
    SubwordTokenizer,
    TextNormalizer,
    Tokenizer,
    WordTokenizer,
    load_tokenizer,
)
from regard.data.tokenizers.base import NUM_SPECIAL_TOKENS

TEXTS = [
    "the black cat ate the mouse",
    "the light box stood by the lamp, and the lamp lit the box",
    "le chat noir a mangé la souris",
    "die schwarze Katze fraß die Maus",
    "light, lighter, lightest: the lightness of a lighthouse",
]
AWKWARD = [
    "",
    " ",
    "  two  blanks ",
    "tab\tand\nnewline",
    "e\u0301 é ﬁ",
    "👩‍🚀🏽 🇫🇷",
    "مرحبا שלום",
    "हिन्दी ไทย 日本語",
    "\u2028\u00a0\u3000x",
    "\x1ca\x85b\0",
    "\u202e\ufeff",
    "▁Ġ·␣",
    "<s></s><pad><unk>",
    "a" * 1009,
]
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))


@cache
def trained() -> dict[str, Tokenizer]:
    return {
        "words": WordTokenizer.train(TEXTS),
        "characters": CharTokenizer.train(TEXTS, min_count=2),
        "bpe": SubwordTokenizer.bpe(TEXTS, size=307),
        "unigram": SubwordTokenizer.unigram(TEXTS, size=293),
    }


EVERY = ["words", "characters", "bpe", "unigram"]
LOSSLESS = EVERY[1:]


# --- laws ---


@pytest.mark.parametrize("name", LOSSLESS)
@given(text=UNICODE)
def test_encoding_and_decoding_lose_nothing(name, text):
    tokenizer = trained()[name]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_texts_come_back_too(name, text):
    tokenizer = trained()[name]
    ids = tokenizer.encode(text)
    assert tokenizer.decode([BOS, *ids, EOS, PAD, PAD]) == text
    assert tokenizer.encode_batch(["the cat", text]) == [tokenizer.encode("the cat"), ids]


@pytest.mark.parametrize("name", EVERY)
@given(text=UNICODE)
def test_there_is_a_readable_piece_and_a_word_for_every_id(name, text):
    tokenizer = trained()[name]
    ids, tokens, words = tokenizer.encode(text), tokenizer.tokens(text), tokenizer.word_ids(text)
    assert len(tokens) == len(words) == len(ids)
    assert all(tokens)
    assert all(UNK <= one < tokenizer.size for one in ids)
    assert words == sorted(words)
    assert set(words) == (set(range(max(len(text.split()), 1))) if ids else set())


@pytest.mark.parametrize("name", LOSSLESS)
def test_the_pieces_of_a_word_spell_it(name):
    tokenizer, text = trained()[name], "  the  lightness\tof 日本 😀!"
    ids, words = tokenizer.encode(text), tokenizer.word_ids(text)
    spelt = [tokenizer.decode([one for one, at in zip(ids, words, strict=True) if at == word]) for word in range(5)]
    assert [word.strip() for word in spelt] == text.split()


@given(st.lists(st.sampled_from(" ".join(TEXTS).split())))
def test_known_words_with_single_blanks_come_back(words):
    tokenizer = trained()["words"]
    assert tokenizer.decode(tokenizer.encode(" ".join(words))) == " ".join(words)


@pytest.mark.parametrize("name", EVERY)
def test_no_text_can_spell_a_special_id(name):
    specials = "<s> </s> <pad> <unk> [PAD] <|endoftext|>"
    corpus = [*TEXTS, specials, specials]
    for tokenizer in (trained()[name], learn(name, corpus)):
        ids = tokenizer.encode(specials)
        assert not {PAD, BOS, EOS} & set(ids)
        assert name == "words" or UNK not in ids
    assert tokenizer.decode(tokenizer.encode(specials)) == specials


def learn(name: str, texts: list[str]) -> Tokenizer:
    train = {
        "words": WordTokenizer.train,
        "characters": CharTokenizer.train,
        "bpe": SubwordTokenizer.bpe,
        "unigram": SubwordTokenizer.unigram,
    }
    return train[name](texts, size=311)


# --- worked examples ---


def test_words_stand_by_frequency_and_then_by_code():
    words = WordTokenizer.train(["b a c", "c b", "c d"], size=NUM_SPECIAL_TOKENS + 3)
    assert words.vocabulary == ("c", "b", "a")
    assert words.encode("a x  c ") == [6, UNK, 4]
    assert words.decode([BOS, 6, UNK, 4, EOS]) == "a <unk> c"
    assert words.tokens("a x") == ["a", "<unk:x>"]
    assert words.word_ids("a x") == [0, 1]
    assert words.size == 7
    assert WordTokenizer.train(["b a c", "c b"], min_count=2).vocabulary == ("b", "c")


def test_unknown_characters_are_spelt_in_bytes():
    characters = CharTokenizer.train(["abba", "b c"], min_count=2)
    assert characters.vocabulary == "ba"
    assert characters.size == 4 + 256 + 2
    assert characters.encode("aé") == [261, 4 + 0xC3, 4 + 0xA9]
    assert characters.tokens("a é") == ["a", "␣", "<0xC3>", "<0xA9>"]
    assert characters.word_ids("a é") == [0, 1, 1, 1]


def test_the_most_frequent_pair_becomes_one_piece():
    # " ab" thrice: first a+b or blank+a (equally frequent), then the whole; nothing else occurs twice.
    subwords = SubwordTokenizer.bpe(["ab ab", "ab"], size=400)
    assert subwords.size == 4 + 256 + 2
    assert len(subwords.encode("ab ab")) == 2
    assert subwords.tokens("ab abab") == ["ab", "ab", *subwords.tokens("ab abab")[2:]]


@pytest.mark.parametrize("name", ["bpe", "unigram"])
@given(words=st.lists(st.text(st.characters(categories=["Ll", "Lo", "Mn"]), min_size=1), min_size=1))
def test_a_word_is_cut_the_same_wherever_it_stands(name, words):
    encode = trained()[name].encode
    assert encode(" ".join(words)) == [one for word in words for one in encode(word)]


def test_pieces_that_go_on_are_marked_for_the_reader():
    subwords = SubwordTokenizer.bpe(["light"] * 3 + ["ness"], size=270)
    assert subwords.tokens("light lightness  é\t") == [
        *["light", "light"],
        *[f"·{piece}" for piece in "ness"],
        *["␣", "␣", "<0xC3>", "·<0xA9>", "⇥"],
    ]
    assert subwords.word_ids("light lightness  é\t") == [0, *[1] * 5, *[2] * 5]


def test_half_a_character_is_shown_as_such():
    characters = CharTokenizer("")
    assert characters.decode([4 + 0xC3]) == "\ufffd"
    assert characters.decode(torch.tensor([4 + 0xC3, 4 + 0xA9])) == "é"


# --- normal forms ---


def test_the_normal_form_is_applied_before_cutting_and_kept_in_the_file(tmp_path):
    normal = TextNormalizer(form="NFC", lower=True, squeeze=True)
    for tokenizer in (
        WordTokenizer.train(["é A"], normalizer=normal),
        SubwordTokenizer.bpe(["é A"], size=260, normalizer=normal),
    ):
        tokenizer.save(tmp_path / "t.json")
        again = load_tokenizer(tmp_path / "t.json")
        assert again == tokenizer
        assert again.decode(again.encode("  E\u0301   a ")) == "é a"


def test_by_default_nothing_is_changed():
    assert TextNormalizer().apply(" E\u0301  ﬁ ") == " E\u0301  ﬁ "


@given(UNICODE, st.sampled_from([None, "NFC", "NFD", "NFKC", "NFKD"]))
@example("\u03aa\u0301", "NFC")  # the small letter has a composed form, the capital has none
def test_a_form_is_kept_after_lower_case(text, form):
    normal = TextNormalizer(form=form, lower=True).apply(text)
    assert form is None or unicodedata.is_normalized(form, normal)


def test_a_joint_vocabulary_serves_both_languages():
    joint = SubwordTokenizer.bpe(TEXTS, size=300, normalizer=TextNormalizer(language="en"))
    french = joint.with_normalizer(TextNormalizer(language="fr"))
    assert joint.decode(joint.encode("l'ami")) == "l 'ami"
    assert french.decode(french.encode("l'ami")) == "l' ami"
    assert french.normalizer.detokenize("l' ami .") == "l'ami."
    assert french.pieces == joint.pieces


# --- training and files ---


@pytest.mark.parametrize("name", EVERY)
def test_training_twice_writes_the_same_file(name, tmp_path):
    for path in ("one.json", "two.json"):
        learn(name, TEXTS * 7).save(tmp_path / path)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


@pytest.mark.parametrize("name", EVERY)
def test_the_order_of_the_texts_does_not_matter(name):
    assert learn(name, TEXTS[::-1]) == learn(name, TEXTS)


@pytest.mark.parametrize("name", EVERY)
def test_a_saved_tokeniser_comes_back_equal(name, tmp_path):
    trained()[name].save(tmp_path / "t.json")
    again = load_tokenizer(tmp_path / "t.json")
    assert again == trained()[name]
    assert hash(again) == hash(trained()[name])
    assert again.encode(TEXTS[1]) == trained()[name].encode(TEXTS[1])
    assert "lamp" in (tmp_path / "t.json").read_text() or name != "words"


@pytest.mark.parametrize("name", EVERY)
def test_one_sentence_is_enough_and_none_is_not(name):
    assert learn(name, ["cat"]).decode(learn(name, ["cat"]).encode("cat")) == "cat"
    with pytest.raises(ValueError, match="the corpus is empty"):
        learn(name, [])
    with pytest.raises(ValueError, match="not on the one string 'cat'"):
        learn(name, "cat")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_the_size_is_kept(name):
    assert learn(name, TEXTS).size <= 311
    train = SubwordTokenizer.bpe if name == "bpe" else SubwordTokenizer.unigram
    assert train(TEXTS, size=260).size == 260
    with pytest.raises(ValueError, match="size=259 is too small: 4 special ids and 256 bytes"):
        train(TEXTS, size=259)


def test_an_error_in_the_corpus_is_raised_by_training():
    def broken():
        yield "cat"
        raise ValueError("a.en:2: not UTF-8")

    with pytest.raises(ValueError, match=r"^a\.en:2: not UTF-8$"):
        SubwordTokenizer.bpe(broken(), size=300)


@pytest.mark.parametrize("name", EVERY)
def test_ids_of_another_vocabulary_are_refused(name):
    tokenizer = trained()[name]
    for one in (-1, tokenizer.size):
        with pytest.raises(ValueError, match=f"id {one} is not in this vocabulary of {tokenizer.size}"):
            tokenizer.decode([one])


@pytest.mark.parametrize("name", EVERY)
def test_half_a_surrogate_pair_is_refused(name):
    with pytest.raises(ValueError, match=r"character 2 of 'a\\ud800' is a lone surrogate"):
        trained()[name].encode("a\ud800")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"form": "NFX"}, "form='NFX' is no Unicode form; choose from NFC"),
        ({"language": "xx"}, "language='xx' is not known; choose from en, de, fr"),
        ({"lower": "yes"}, "lower='yes'"),
    ],
)
def test_a_normal_form_that_is_none(wrong, message):
    with pytest.raises(ValueError, match=message):
        replace(TextNormalizer(), **wrong)


def model(**parts) -> dict:
    """The file of a good BPE with some parts of its model replaced."""
    held = json.loads(trained()["bpe"].model)  # type: ignore[attr-defined]
    return {**held, **parts}


GOOD = {"format": "regard tokeniser 1", "kind": "words", "normal": {}, "vocabulary": ["a"]}


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ("{", "damaged, or no tokenizer at all"),
        (b"\xff", "damaged, or no tokenizer at all"),
        ([1], "its format is 'list', not 'regard tokeniser 1'"),
        ({"version": "1.0"}, "its format is None"),
        (GOOD | {"format": "regard tokeniser 9"}, "its format is 'regard tokeniser 9'"),
        (GOOD | {"kind": "runes"}, "the kind 'runes' is none of words, characters, subwords"),
        (GOOD | {"normal": {"colour": 1}}, "colour"),
        (GOOD | {"normal": None}, "damaged"),
        (GOOD | {"vocabulary": ["a", "a"]}, "the word 'a' occurs twice"),
        (GOOD | {"vocabulary": ["a b"]}, "'a b' cannot be a word"),
        (GOOD | {"vocabulary": [1]}, "the vocabulary is no list of texts"),
        (GOOD | {"kind": "characters"}, "the vocabulary is no text"),
        ({key: GOOD[key] for key in ("format", "kind", "normal")}, "the field 'vocabulary' is missing"),
        (GOOD | {"kind": "subwords"}, "the field 'model' is missing"),
        (GOOD | {"kind": "subwords", "model": {}}, "the subword model is damaged"),
        (GOOD | {"kind": "subwords", "model": [1]}, "the subword model is damaged"),
    ],
)
def test_a_damaged_or_foreign_file_is_named(held, message, tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(
        held if isinstance(held, bytes) else (held if isinstance(held, str) else json.dumps(held)).encode()
    )
    with pytest.raises(ValueError, match=message) as caught:
        load_tokenizer(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_model_that_would_lose_text_or_know_special_tokens_is_refused():
    token = {"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False}
    added = [{**token, "normalized": False, "special": True}]
    whole = model()["model"]
    vocabulary = whole["vocab"]
    fewer = [piece for piece in vocabulary if piece != "ÿ"]
    short = {**whole, "vocab": {piece: at for at, piece in enumerate(fewer)}}
    for held, message in [
        (model(added_tokens=added), "damaged or foreign: added_tokens"),
        (model(pre_tokenizer=None), "damaged or foreign: pre_tokenizer"),
        (model(model={**whole, "dropout": 0.5}), "damaged or foreign: dropout"),
        (model(model=short), "it has no piece for the byte"),
        (model(model={**whole, "vocab": {**vocabulary, "日": len(vocabulary)}}), "'日' is not made of bytes"),
        (model(model={**whole, "vocab": {**vocabulary, "zz": 9999}}), "its ids have gaps"),
        (model(model={**whole, "merges": [["nothing", "such"]]}), "the subword model is damaged"),
    ]:
        with pytest.raises(ValueError, match=message):
            SubwordTokenizer(json.dumps(held))


def test_a_missing_file_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        load_tokenizer(Path(tmp_path) / "none.json")
