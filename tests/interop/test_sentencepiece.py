"""SentencePiece tokenizers: the ids and texts of transformers' Marian, T5 and Llama, from models trained here."""

from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import LlamaConfig, LlamaForCausalLM, LlamaTokenizer, MarianTokenizer, T5Tokenizer

import regard
from regard.interop import import_model
from regard.interop.huggingface.checkpoint import Checkpoint

from .checkpoints import DECODER, SENTENCES, write_json

TEXTS = [
    *SENTENCES,
    "Déjà vu: naïve café, Straße.",
    "1,024 mice saw 7 cats!",
    "日本語 のテキスト",
    "“quoted” … — text",
] * 3
AWKWARD = [
    "",
    " ",
    "the cat",
    "  two  spaces ",
    "the\tcat\nsat",
    "Déjà vu",
    "cafe\u0301 \ufb01ne ½",  # composed by the model's own normalisation
    "日本 🦊 fox",
    "\u200bzero\u00a0width",
    "“quoted”…",
    "a" * 50,
    *SENTENCES,
]
SPECIAL = {"unk_token": "<unk>", "eos_token": "</s>"}


def train(path: Path, **settings: Any) -> sentencepiece.SentencePieceProcessor:
    chosen = {"vocab_size": 90, "hard_vocab_limit": False, "minloglevel": 2, **settings}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_prefix=str(path), **chosen)
    Path(f"{path}.vocab").unlink()
    Path(f"{path}.model").rename(path)
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def save_marian(folder: Path) -> Any:
    """Its vocabulary is a file of its own, whose ids are not those of the two models."""
    model = train(folder / "source.spm")
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())
    plain = [
        piece for n in range(model.get_piece_size()) if not model.is_control(n) and (piece := model.id_to_piece(n))
    ]
    pieces = ["</s>", "<unk>", *(piece for piece in reversed(plain) if piece != "<unk>"), ">>fra<<", "<pad>"]
    write_json(folder / "vocab.json", {piece: n for n, piece in enumerate(pieces)})
    write_json(
        folder / "tokenizer_config.json", SPECIAL | {"pad_token": "<pad>", "source_lang": "en", "target_lang": "fr"}
    )
    tokenizer = MarianTokenizer.from_pretrained(folder)
    tokenizer.punc_normalizer = lambda text: text  # which sacremoses would be, where it is installed
    return tokenizer


def save_t5(folder: Path) -> Any:
    train(folder / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write_json(folder / "tokenizer_config.json", SPECIAL | {"pad_token": "<pad>", "tokenizer_class": "T5Tokenizer"})
    return T5Tokenizer.from_pretrained(folder)


def save_llama(folder: Path) -> Any:
    """What is in no piece is written in bytes, and texts are not normalised."""
    identity = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    train(folder / "tokenizer.model", model_type="bpe", byte_fallback=True, vocab_size=400, **identity)
    config = SPECIAL | {"bos_token": "<s>", "add_bos_token": True, "tokenizer_class": "LlamaTokenizer"}
    write_json(folder / "tokenizer_config.json", config)
    return LlamaTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("save", [save_marian, save_t5, save_llama])
@pytest.mark.filterwarnings("ignore:Recommended:UserWarning")  # sacremoses, which is set aside
def test_ids_and_texts_are_those_of_transformers(save, tmp_path):
    write_json(tmp_path / "config.json", {})
    theirs, ours = save(tmp_path), Checkpoint(tmp_path).engine()
    # before a blank, transformers' Llama leaves out the blank that SentencePiece itself puts before every text
    texts = [text for text in AWKWARD if save is not save_llama or not text.startswith(" ")]
    for text in texts:
        expected = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text) == expected, text
        assert ours.decode(expected, skip_special=True) == theirs.decode(expected, skip_special_tokens=True).strip()
    assert len({one for text in texts for one in ours.encode(text)}) > 40
    if save is save_marian:
        code = theirs(">>fra<< the cat", add_special_tokens=False).input_ids
        assert ours.encode(">>fra<< the cat") == code
        assert ours.piece(code[0]) == ">>fra<<"
        assert len(ours.encode(">>xyz<< the cat")) > len(code)  # a code that it does not know is text


@pytest.mark.parametrize("save", [save_marian, save_t5, save_llama])
@pytest.mark.filterwarnings("ignore:Recommended:UserWarning")
def test_a_special_token_that_a_text_spells_is_text(save, tmp_path):
    """transformers reads it as the token itself."""
    write_json(tmp_path / "config.json", {})
    theirs, ours = save(tmp_path), Checkpoint(tmp_path).engine()
    end = theirs.convert_tokens_to_ids("</s>")
    assert end in theirs("the </s> cat", add_special_tokens=False).input_ids
    assert end not in ours.encode("the </s> cat")


def test_a_llama_of_sentencepiece_reads_its_text_after_bos(tmp_path):
    tokenizer = save_llama(tmp_path)
    config = LlamaConfig(**DECODER, vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    model: Any = regard.load(import_model(tmp_path, tmp_path / "run"), device="cpu").task_model
    words = model.tokenizer
    ids = [words.to_foreign[one] for one in words.encode("the cat")]
    assert words.starts
    assert [1, *ids] == tokenizer("the cat").input_ids
