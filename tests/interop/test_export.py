"""Exports: other engines give the tokens of our models, or nothing is written; tokenizers, proofs, cards, uploads."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers as library
import torch
from tokenizers import decoders, models, pre_tokenizers
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.data.tokenizers.base import EOS, UNK, ByteTokenizer, CharTokenizer, TextNormalizer, WordTokenizer
from regard.data.tokenizers.pretrained import PretrainedTokenizer, TokenizersEngine
from regard.data.tokenizers.subwords import SubwordTokenizer
from regard.interop import ctranslate2, export, exporter, import_model, publish
from regard.interop.export_format import (
    PROOF,
    Check,
    ProofInputs,
    TranslationEngine,
    compare_engines,
    compare_outputs,
    encode_text,
    export_tokenizer,
    prompt_opening,
    special_names,
    token_names,
    words_first,
)
from regard.interop.huggingface import exporting
from regard.tasks.translation.task import Translator
from tests.forks import run_program

from .checkpoints import CHECKPOINTS, SENTENCES, save_opus_mt
from .exports import HALVES, LEARNED, LLAMA, SOURCE, generator, proof_inputs, translator

PAIRS = {"the cat sleeps": "le chat dort", "a dog": "un chien", "the dog sleeps": "le chien dort", "a cat": "un chat"}


# --- tokenizer.json ---


TEXTS = [
    "The black cat ate the mouse.",
    "l'été   naïve 😀\ta\n b",
    "ﬁne ÉCLAIR 123 ...",
    " it begins with a blank",
    "日本語 and <s> </s>",
    "never seen: ☃ wörd",
]
NORMALIZERS = [
    TextNormalizer(),
    TextNormalizer(form="NFKC", lower=True),
    TextNormalizer(squeeze=True),
    TextNormalizer(language="en", lower=True),
]


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=repr)
def test_a_tokenizer_json_gives_the_same_ids_and_the_same_texts(normalizer):
    learnt = TEXTS[:5] * 4
    for tokenizer in (
        WordTokenizer.train(learnt, normalizer=normalizer),
        CharTokenizer.train(learnt, normalizer=normalizer),
        ByteTokenizer(normalizer),
        SubwordTokenizer.bpe(learnt, size=300, normalizer=normalizer),
        SubwordTokenizer.unigram(learnt, size=300, normalizer=normalizer),
    ):
        made = library.Tokenizer.from_str(export_tokenizer(tokenizer, after=[EOS]).to_str())
        assert made.get_vocab_size() == tokenizer.size
        for text in TEXTS:
            ids = tokenizer.encode(text)
            assert made.encode(words_first(normalizer, text)).ids == [*ids, EOS], (tokenizer.kind, text)
            assert made.decode(ids, skip_special_tokens=False) == tokenizer.decode(ids), (tokenizer.kind, text)


def test_a_vocabulary_that_has_a_word_like_a_special_token_gives_that_another_name():
    assert special_names(["cat", "<unk>", "<<unk>>"]) == ["<pad>", "<s>", "</s>", "<<<unk>>>"]
    names = token_names(WordTokenizer(("cat", "</s>")))
    assert names == ["<pad>", "<s>", "<</s>>", "<unk>", "cat", "</s>"]
    assert len({*token_names(CharTokenizer("a<"))}) == 4 + 256 + 2


def test_a_word_that_is_spelt_as_a_special_token_is_unknown():
    made = WordTokenizer(("cat", "</s>"))
    for text in ("cat </s> <s> <</s>>", "<unk> <pad>cat <pad>", "<s><s>"):
        assert export_tokenizer(made).encode(text).ids == made.encode(text)


@pytest.mark.parametrize("kind", ["words", "lines", "one line", "bytes"])
def test_a_prompt_begins_as_the_language_model_learnt_it(kind):
    learnt = ["the cat\n", "a dog\n"]
    made = {
        "words": WordTokenizer.train(learnt),
        "lines": SubwordTokenizer.bpe(learnt, size=270),
        "one line": CharTokenizer.train(["the cat"]),
        "bytes": ByteTokenizer(),
    }[kind]
    writer = generator()
    writer = type(writer)(model=writer.model, tokenizer=made, settings=writer.settings)
    before, opening = prompt_opening(made)
    found = export_tokenizer(made, before=before, opening=opening)
    opened, ids = writer.encode_prompt("a cat")
    assert found.encode("a cat").ids == [*opened, *ids]
    assert found.decode([one for one in found.encode("a cat").ids if one > UNK]) == "a cat"


def foreign_engine(kind: str) -> library.Tokenizer:
    """A tokenizer of another toolkit, whose special tokens lie about."""
    pieces = ["\u2581the", "\u2581cat", "<end>", "\u2581", "c", "a", "<unk>", "t", "h", "e", "<fill>"]
    if kind == "unigram":
        made = library.Tokenizer(models.Unigram([(piece, -1.0 - n) for n, piece in enumerate(pieces)], unk_id=6))
    elif kind == "words":
        made = library.Tokenizer(models.WordLevel({piece: n for n, piece in enumerate(pieces)}, unk_token="<unk>"))
    else:
        merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("c", "a")]
        pieces += ["th", "the", "ca"]
        vocabulary = {piece: n for n, piece in enumerate(pieces)}
        made = library.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.add_special_tokens(["<end>", "<unk>", "<fill>", "<fr>"])
    return made


@pytest.mark.parametrize("kind", ["unigram", "words", "bpe"])
def test_a_tokenizer_of_another_toolkit_is_exported_with_our_ids(kind):
    own = foreign_engine(kind)
    size = own.get_vocab_size() + 2
    fill, end, unknown, tag = (own.get_vocab()[piece] for piece in ("<fill>", "<end>", "<unk>", "<fr>"))
    made = PretrainedTokenizer(TokenizersEngine(own.to_str()), size, (fill, fill, end, unknown))
    made = replace(made, first_ids=(made.from_foreign[tag],))
    found = library.Tokenizer.from_str(export_tokenizer(made, before=made.first_ids, after=[EOS]).to_str())
    for text in ("the cat", "catthe a <end> hat", "never <fr> \u2603"):
        assert found.encode(text).ids == [*made.encode(text), EOS], text
        ids = made.encode(text)[1:]
        assert found.decode(ids) == made.engine.decode([made.to_foreign[one] for one in ids], skip_special=False)
    assert found.encode("the").tokens[0] == "<fr>"
    names = token_names(made)
    assert len({*names}) == len(names) == size + 1  # what starts a text is a token of its own here


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("to", ["ctranslate2", "hf"])
def test_models_of_sentencepiece_are_exported_as_they_are(to, tmp_path, monkeypatch, capsys):
    save_opus_mt(tmp_path / "folder")
    made: Any = regard.load(import_model(tmp_path / "folder", tmp_path / "run"), device="cpu").task_model
    for module in (ctranslate2, exporting):
        monkeypatch.setattr(module, "translation_limit", lambda *_: 17)
    monkeypatch.setattr(exporting, "MAX_LENGTH", 17)  # of the code that is shown
    texts = (*SENTENCES, "a catty, mous!")
    inputs = ProofInputs(tuple(encode_text(made, text) for text in texts), "texts", texts)
    (tmp_path / "out").mkdir()
    format = exporter.find_format(to)
    assert format.objections(made) == []
    for check in exporter.write_and_prove(format, made, tmp_path / "out", inputs, "float32"):
        assert (check.failure(), check.identical) == (None, 5)
    monkeypatch.chdir(tmp_path)
    exec(format.usage(made, "out", SENTENCES[0]), {})
    assert isinstance(capsys.readouterr().out, str)


# --- CTranslate2 ---


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["Marian", "M2M100", "GPT-2", "Llama, tied"])
def test_an_imported_model_gives_its_tokens_in_ctranslate2(name, tmp_path, monkeypatch):
    monkeypatch.setattr(ctranslate2, "CONTINUATION", 7)
    CHECKPOINTS[name].save(tmp_path / "hf")
    tags = {"source_language": "eng_Latn", "target_language": "fra_Latn"} if name == "M2M100" else {}
    made: Any = regard.load(import_model(tmp_path / "hf", tmp_path / "run", **tags), device="cpu").task_model
    (tmp_path / "out").mkdir()
    inputs = ProofInputs(tuple(encode_text(made, text) for text in SENTENCES), "texts", tuple(SENTENCES))
    format = exporter.find_format("ctranslate2")
    for check in exporter.write_and_prove(format, made, tmp_path / "out", inputs, "float32"):
        assert (check.failure(), check.identical) == (None, 4)
        assert check.largest_difference < 2e-5
    if name == "M2M100":
        assert "target_prefix=[['fra_Latn']])[0].hypotheses[0][1:]" in format.usage(made, "out", SENTENCES[0])


MODELS = {
    "pre norm, three tables": lambda: translator(),
    "post norm, gelu, one table": lambda: translator(norm="post", activation="gelu", tie="all", target=SOURCE),
    "learned positions": lambda: translator(tie="target", encoder=LEARNED, decoder=LEARNED),
    "no positions, unscaled scores": lambda: translator(
        decoder_layers=1, encoder='position = "NoPosition()"\nscore = "Dot()"', decoder='score = "Dot()"'
    ),
    "grouped heads, rotary": lambda: translator(model=24, groups=1, encoder=HALVES, decoder=HALVES),
    "wide heads, large epsilon": lambda: translator(norm_eps=0.01, embedding_scale="none", head=6),
    "language model": lambda: generator(),
    "language model, learned, tanh": lambda: generator(activation="gelu_tanh", recipe=LEARNED, tied=False),
    "language model like Llama": lambda: generator(**LLAMA),
    "language model with normed heads": lambda: generator(norm_type="rms", qk_norm=True),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_ctranslate2_gives_our_tokens(name, tmp_path, monkeypatch):
    monkeypatch.setattr(ctranslate2, "CONTINUATION", 7)
    made, format = MODELS[name](), exporter.find_format("ctranslate2")
    assert not format.objections(made)
    format.write(made, tmp_path, "float32")
    checks = format.prove(made, tmp_path, proof_inputs(made), "float32")
    assert [check.name for check in checks] == ["greedy", "beam 4"]
    for check in checks:
        assert (check.failure(), check.identical) == (None, 17)
        assert check.largest_difference < 2e-5
    assert any(check.tokens for check in checks)


OBJECTIONS = {
    "bahdanau": (lambda: translator(kind="bahdanau", heads=4, hidden=12), "the model 'bahdanau' is recurrent"),
    "window": (lambda: translator(encoder='pattern = "Window(2)"'), "the pattern Window(size=2) of self-attention"),
    "sparsemax": (lambda: translator(cross='normaliser = "Sparsemax()"'), "Sparsemax() of cross-attention"),
    "cosine": (lambda: translator(decoder='score = "Cosine()"'), "the score Cosine"),
    "alibi": (lambda: generator(recipe='position = "Alibi(heads=3)"'), "the position Alibi(heads=3)"),
    "scaled rotary": (
        lambda: generator(recipe='position = "Rotary(scaling=RotaryScaling(factor=8.0))"'),
        "scaling=RotaryScaling(factor=8.0, length=8192, slow=1.0, fast=4.0)) of self-attention is none",
    ),
    "rotary across": (lambda: translator(model=24, cross=HALVES), "the position Rotary"),
    "normed heads": (lambda: translator(norm_type="rms", qk_norm=True), "of cross-attention are normed by RMSNorm"),
}


@pytest.mark.parametrize("name", OBJECTIONS)
def test_what_ctranslate2_cannot_hold_is_named(name):
    make, part = OBJECTIONS[name]
    (objection,) = exporter.find_format("ctranslate2").objections(make())
    assert part in objection


def test_writing_quantised_weights_leaves_the_model_as_it_was(tmp_path):
    made = translator()
    before = {name: weight.clone() for name, weight in made.model.named_parameters()}
    exporter.find_format("ctranslate2").write(made, tmp_path, "int8")
    assert all(torch.equal(weight, before[name]) for name, weight in made.model.named_parameters())


# --- checks ---


def test_a_check_counts_what_differs_and_says_where_first():
    check = compare_outputs("greedy", [(4, 5), (6,), (7,)], [(4, 5), (6, 7), ()])
    assert (check.sentences, check.identical, check.tokens) == (3, 1, 4)
    assert check.failure() == "2 of 3 outputs differ (greedy), first that of input 2: [6] became [6, 7]"
    assert Check("int8", 3, 1, 4, exact=False, first=check.first).failure() is None


def test_equal_tokens_with_other_probabilities_are_no_proof():
    one, other = translator(), translator()
    with torch.no_grad():
        other.model.get_parameter("embeddings.bias").mul_(1.01)
    inputs = proof_inputs(one).ids
    (check,) = compare_engines(TranslationEngine(one.model), TranslationEngine(other.model), inputs, 3, beams=(1,))
    assert 1e-3 < check.largest_difference < 0.5
    assert "a log-probability differs by" in (check.failure() or "") or check.first is not None


# --- runs ---


def command(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="regard")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small translator, trained well enough to translate what it was trained on."""
    folder = tmp_path_factory.mktemp("runs")
    lines = "".join(f"{source}\t{target}\n" for source, target in PAIRS.items())
    (folder / "pairs.tsv").write_text(lines * 20)
    (folder / "valid.tsv").write_text(lines)
    sizes = {"model.layers": 1, "model.model": 24, "model.hidden": 32, "model.dropout": 0.0}
    regard.train(
        train=folder / "pairs.tsv",
        valid=folder / "valid.tsv",
        out=folder / "run",
        steps=50,
        **{"text.kind": "words", "train.batch_size": 64, "train.learning_rate": 0.02, **sizes},
    )
    metrics = {"on": ["test.tsv"], "scores": {"BLEU": {"value": 41.25, "signature": "nrefs:1|case:mixed"}}}
    (folder / "run" / "metrics.json").write_text(json.dumps(metrics))
    return folder / "run"


@pytest.fixture(scope="module")
def exported(run):
    out = run.parent / "exported"
    found = command("export", run, "--to", "ctranslate2", "--out", out)
    assert found.exit_code == 0, found.output
    assert "beam 4: 4 of 4 identical" in found.output
    return out


def test_an_export_says_what_it_proved(exported, run):
    proof = json.loads((exported / PROOF).read_text())
    assert proof["identical"] is True
    checks = [(one["check"], one["sentences"], one["identical"]) for one in proof["checks"]]
    assert checks == [("tokenizer.json", 4, 4), ("greedy", 4, 4), ("beam 4", 4, 4)]
    assert 0 < proof["largest_difference"] < 1e-4
    assert {*proof["versions"]} == {"regard", "torch", "ctranslate2"}
    assert {*proof["sha256"]} >= {"model.bin", "config.json", "source_tokenizer.json", "target_tokenizer.json"}
    assert str(run.parent) not in (exported / PROOF).read_text()


def code_of(card: Path) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", card.read_text(), re.DOTALL)
    return code


def test_the_card_has_sizes_metrics_and_code_that_runs(exported, run, capsys, monkeypatch):
    card = (exported / "README.md").read_text()
    assert "layers 1, model 24, hidden 32" in card
    assert "- test.tsv: BLEU 41.25 (`nrefs:1|case:mixed`)" in card
    assert "- validation: loss" in card
    assert "trained by Regard" in card
    assert "- trained for 50 steps on files" in card
    monkeypatch.chdir(exported.parent)
    exec(code_of(exported / "README.md"), {})
    text = re.search(r"encode\('(.*?)'\)", card)
    assert text
    assert capsys.readouterr().out.strip() == regard.load(run, device="cpu").translate(text[1], beam=4).text


def test_int8_says_what_share_is_identical_and_calls_nothing_else_so(run, tmp_path):
    proof = export(run, "ctranslate2", tmp_path / "out", precision="int8")
    saved = json.loads((tmp_path / "out" / PROOF).read_text())
    assert "identical" not in saved
    assert saved["share_identical"].keys() == {check.name for check in proof.checks}
    assert {"beam 4, float32", "beam 4", "beam 4, Regard's int8"} <= saved["share_identical"].keys()
    quantized = next(one for one in saved["checks"] if one["check"] == "beam 4")
    assert quantized["mean_log_probability"]["here"] == pytest.approx(
        quantized["mean_log_probability"]["float32"], abs=0.1
    )
    assert (tmp_path / "out" / "model.bin").stat().st_size < (run.parent / "exported" / "model.bin").stat().st_size
    assert not (tmp_path / "out" / "float32").exists()


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_weight_that_was_tampered_with_leaves_nothing(run, tmp_path, monkeypatch):
    write = ctranslate2.write_norm

    def tampered(spec: Any, norm: Any) -> None:
        write(spec, norm)
        spec.gamma[3] *= 1.4

    monkeypatch.setattr(ctranslate2, "write_norm", tampered)
    found = command("export", run, "--to", "ctranslate2", "--out", tmp_path / "out")
    assert found.exit_code == 2
    assert "the model written for CTranslate2 is not this one: " in found.output
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=["stop", "full"])
def test_an_export_that_is_torn_leaves_nothing(run, tmp_path, monkeypatch, trouble):
    def torn(*_: Any) -> None:
        raise trouble

    monkeypatch.setattr(exporter.Proof, "save", torn)
    with pytest.raises((KeyboardInterrupt, ValueError)):
        export(run, "ctranslate2", tmp_path / "out")
    assert left_in(tmp_path) == []


def test_an_export_never_writes_over_anything(run, exported, tmp_path):
    with pytest.raises(ValueError, match="is there already; remove it, or choose another --out"):
        export(run, "ctranslate2", exported)
    (tmp_path / "empty").mkdir()
    assert export(run, "ctranslate2", tmp_path / "empty").exact


def test_sentences_are_those_of_a_file_or_of_the_validation_data_or_drawn(run, tmp_path, caplog):
    (tmp_path / "texts").write_text("a cat\n\nthe dog\n")
    assert export(run, "ctranslate2", tmp_path / "file", sentences=tmp_path / "texts").checks[0].sentences == 2
    assert export(run, "ctranslate2", tmp_path / "few", count=3).origin == "files, valid"
    (run.parent / "valid.tsv").rename(run.parent / "elsewhere.tsv")
    try:
        proof = export(run, "ctranslate2", tmp_path / "drawn", count=9)
    finally:
        (run.parent / "elsewhere.tsv").rename(run.parent / "valid.tsv")
    assert proof.origin == "ids drawn at random (the validation data was not there)"
    assert [check.sentences for check in proof.checks] == [9, 9]
    assert "give --sentences" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"to": "keras"}, "choose from"),
        ({"to": "onnx", "precision": "int8"}, "precision int8 is not written for ONNX; choose from float32"),
        ({"count": 0}, "0 sentences prove nothing"),
        ({"run": "nowhere"}, "nowhere holds no model"),
    ],
)
def test_what_cannot_be_asked_for_is_said_in_a_line(run, tmp_path, changes, message):
    given = {"run": run, "to": "ctranslate2", "out": tmp_path / "out"} | changes
    with pytest.raises(ValueError, match=message):
        export(**given)


def test_a_package_that_is_missing_is_named_with_the_way_to_get_it(run, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.interop.export_format.find_spec", lambda name: None)
    message = r"an export to CTranslate2 needs ctranslate2; pip install 'regard\[interop\]'"
    with pytest.raises(ValueError, match=message):
        export(run, "ctranslate2", tmp_path / "out")


# --- Hugging Face: classes, tensors and refusals are in test_huggingface_export.py ---


@pytest.fixture(scope="module")
def exported_to_hf(run):
    found = command("export", run, "--to", "hf", "--out", run.parent / "hf")
    assert found.exit_code == 0, found.output
    assert "beam 4: 4 of 4 identical" in found.output
    return run.parent / "hf"


def test_a_hugging_face_folder_is_proved_and_names_no_file_of_the_run(exported_to_hf, run):
    proof = json.loads((exported_to_hf / PROOF).read_text())
    assert (proof["engine"], proof["identical"]) == ("transformers", True)
    assert [one["check"] for one in proof["checks"]] == ["tokenizer.json", "greedy", "beam 4"]
    assert {"transformers", "tokenizers"} < {*proof["versions"]}
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {*proof["sha256"]} >= names | {"regard/settings.toml", "regard/source.json"}
    texts = (path.read_text() for path in exported_to_hf.rglob("*") if path.suffix in (".json", ".toml", ".md"))
    assert not any(str(run.parent) in text for text in texts)
    assert "would go" in command("publish", exported_to_hf, "--repo", "me/en-fr", "--dry-run").output


def test_the_card_of_a_hugging_face_folder_has_code_that_runs(exported_to_hf, run, capsys, monkeypatch):
    monkeypatch.chdir(exported_to_hf.parent)
    exec(code_of(exported_to_hf / "README.md"), {})
    text = re.search(r"source\('(.*?)'", (exported_to_hf / "README.md").read_text())
    assert text
    assert capsys.readouterr().out.strip() == regard.load(run, device="cpu").translate(text[1], beam=4).text


def test_a_run_comes_back_from_hugging_face_to_the_bit(exported_to_hf, run, tmp_path):
    done = command("import", exported_to_hf, "--out", tmp_path / "back")
    assert done.exit_code == 0, done.output
    before, after = (Translator.load(path) for path in (run, tmp_path / "back"))
    weights = dict(after.model.named_parameters())
    assert all(weights[name].equal(weight) for name, weight in before.model.named_parameters())
    assert [after.source.encode(text) for text in PAIRS] == [before.source.encode(text) for text in PAIRS]
    assert after.settings.train == before.settings.train


def test_a_hugging_face_folder_of_other_weights_is_not_kept(run, tmp_path, monkeypatch):
    from regard.interop.huggingface import exporting

    save = exporting.save_tensors
    monkeypatch.setattr(
        exporting, "save_tensors", lambda tensors, *rest: save({k: x * 1.2 for k, x in tensors.items()}, *rest)
    )
    found = command("export", run, "--to", "hf", "--out", tmp_path / "out")
    assert found.exit_code == 2
    assert "the model written for transformers is not this one: " in found.output
    assert left_in(tmp_path) == []


# --- publishing ---


def test_a_dry_run_lists_what_would_go(exported):
    found = command("publish", exported, "--repo", "me/en-fr", "--dry-run")
    assert found.exit_code == 0
    size = (exported / "model.bin").stat().st_size
    assert f"{size:,}  model.bin" in found.output
    assert "would go: 7 files" in found.output


def test_a_folder_whose_proof_is_not_of_it_is_not_published(exported, run, tmp_path):
    with pytest.raises(ValueError, match=r"has no proof.json"):
        publish(run, "me/model", dry_run=True)
    copied = tmp_path / "copied"
    shutil.copytree(exported, copied)
    (copied / "more.bin").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"more.bin was changed or added after the proof"):
        publish(copied, "me/model", dry_run=True)
    (copied / "more.bin").unlink()
    with open(copied / "model.bin", "r+b") as file:
        file.seek(1000)
        file.write(b"\xff")
    with pytest.raises(ValueError, match=r"model.bin was changed"):
        publish(copied, "me/model", dry_run=True)
    (copied / "model.bin").unlink()
    with pytest.raises(ValueError, match=r"model.bin is missing"):
        publish(copied, "me/model", dry_run=True)
    (copied / "model.bin").symlink_to(exported / "model.bin")
    with pytest.raises(ValueError, match="is a link, which is not followed"):
        publish(copied, "me/model", dry_run=True)


def test_publishing_says_what_is_missing_in_a_line(exported, monkeypatch):
    with pytest.raises(ValueError, match=r"escape' is no name on the hub; write user/name"):
        publish(exported, "../escape", dry_run=True)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"me/model cannot be reached .*check the network, and log in"):
        publish(exported, "me/model")
    monkeypatch.setattr(exporter, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"publishing needs huggingface_hub; pip install 'regard\[interop\]'"):
        publish(exported, "me/model")


# --- ONNX: in a process of its own, since shapes that are types, as checked under test, cannot be traced ---


ONNX = """
import sys
from pathlib import Path

import regard
from regard.interop import export
from regard.interop.exporter import find_format
from tests.interop.exports import translator

run, out = map(Path, sys.argv[1:])
proof = export(run, "onnx", out)
assert proof.exact and [check.name for check in proof.checks] == ["tokenizer.json", "greedy", "beam 4"]
assert 0 < proof.to_json()["largest_difference"] < 1e-4
code = (out / "README.md").read_text().split("```python")[1].split("```")[0]
exec(code.replace(f'"{out.name}/', f'"{out}/'))
(objection,) = find_format("onnx").objections(translator(kind="gru", heads=4, hidden=12))
assert "the model 'gru' is recurrent" in objection
"""


def test_onnx_gives_our_tokens(run, tmp_path):
    """Searched by our own beam search, in batches of any size, with a cache that begins empty and grows."""
    done = run_program(ONNX, run, tmp_path / "onnx")
    assert done.code == 0, done.err[-3000:]
    text = re.search(r"encode\('(.*?)'\)", code_of(tmp_path / "onnx" / "README.md"))
    assert text
    assert done.out.strip() == regard.load(run, device="cpu").translate(text[1], beam=1).text
