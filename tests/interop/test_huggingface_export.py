"""Hugging Face export: transformers gives our tokens, and ours -> Hugging Face -> ours is the same bits."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import regard
from regard.data.tokenizers.base import BOS, EOS, PAD, UNK
from regard.interop import exporter, import_model
from regard.interop.export_format import ProofInputs, encode_text
from regard.interop.huggingface import exporting
from regard.interop.huggingface.exporting import find_class
from regard.interop.huggingface.weights import ABSENT_LOGIT
from regard.models.safetensors_io import named_tensors

from .checkpoints import CHECKPOINTS, SENTENCES
from .exports import HALVES, LEARNED, LLAMA, SOURCE, generator, proof_inputs, translator

HF = exporter.find_format("hf")
PLAIN: dict[str, Any] = {"output_bias": False, "embedding_scale": "none"}
LLAMA_LIKE = LLAMA | PLAIN
LANGUAGES = {"M2M100": {"source_language": "eng_Latn", "target_language": "fra_Latn"}}


def load(run: Path) -> Any:
    return regard.load(run, device="cpu").task_model


def assert_same_run(found: Any, expected: Any) -> None:
    """To the bit: weights, configuration, tokenizers, logits."""
    ours, theirs = named_tensors(expected.model), named_tensors(found.model)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())
    assert found.settings.model == expected.settings.model
    text = "w3 w14 w28 <s> unseen w3"
    for name in found.part_files:
        one, other = getattr(found, name), getattr(expected, name)
        assert type(one) is type(other)
        assert one.encode(text) == other.encode(text)
    ids, lengths = torch.tensor([[5, 6, 9, 2], [7, 11, 2, 0]]), torch.tensor([4, 3])
    given = (ids, lengths, ids.roll(1, 1)) if "source" in found.part_files else (ids,)
    with torch.no_grad():
        assert torch.equal(found.model(*given), expected.model(*given))


# --- our own models ---


OWN: dict[str, tuple[str, Any]] = {
    "pre norm, three tables": ("PegasusForConditionalGeneration", lambda: translator()),
    "pre norm, odd width": ("PegasusForConditionalGeneration", lambda: translator(model=9, tie="target")),
    "pre norm, one table of input": ("PegasusForConditionalGeneration", lambda: translator(tie="input", target=SOURCE)),
    "pre norm, one table": ("PegasusForConditionalGeneration", lambda: translator(tie="all", target=SOURCE)),
    "post norm, three tables": ("MarianMTModel", lambda: translator(norm="post", activation="gelu")),
    "post norm, two tables": ("MarianMTModel", lambda: translator(norm="post", tie="target", decoder_layers=1)),
    "post norm, one table of input": ("MarianMTModel", lambda: translator(norm="post", tie="input", target=SOURCE)),
    "post norm, one table": ("MarianMTModel", lambda: translator(norm="post", tie="all", target=SOURCE)),
    "learned positions": (
        "BlenderbotForConditionalGeneration",
        lambda: translator(encoder=LEARNED, decoder=LEARNED, tie="target"),
    ),
    "like GPT-2": ("GPT2LMHeadModel", lambda: generator(recipe=LEARNED, **PLAIN)),
    "like GPT-2, untied": ("GPT2LMHeadModel", lambda: generator(recipe=LEARNED, tied=False, **PLAIN)),
    "like CTRL": ("CTRLLMHeadModel", lambda: generator(activation="relu", norm_eps=1e-6)),
    "like Llama": ("LlamaForCausalLM", lambda: generator(**LLAMA_LIKE)),
    "like Llama, adjacent pairs": (
        "LlamaForCausalLM",
        lambda: generator(**LLAMA_LIKE | {"recipe": 'position = "Rotary()"', "groups": None, "tied": False}),
    ),
    "like Qwen3": ("Qwen3ForCausalLM", lambda: generator(**LLAMA_LIKE, qk_norm=True)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OWN)
def test_a_model_of_ours_is_one_of_transformers_and_comes_back_to_the_bit(name, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "CONTINUATION", 5)
    monkeypatch.setattr(exporting, "translation_limit", lambda *_: 8)
    architecture, made = OWN[name][0], OWN[name][1]()
    assert (HF.objections(made), find_class(made)) == ([], (architecture, []))
    (tmp_path / "hf").mkdir()
    HF.write(made, tmp_path / "hf", "float32")
    for check in HF.prove(made, tmp_path / "hf", proof_inputs(made, 6), "float32"):
        assert (check.failure(), check.identical) == (None, 6)
        assert check.largest_difference < 2e-5
    assert_same_run(load(import_model(tmp_path / "hf", tmp_path / "run")), made)
    # and without what we wrote of it, from the files of transformers alone
    shutil.rmtree(tmp_path / "hf" / "regard")
    assert load(import_model(tmp_path / "hf", tmp_path / "foreign")).settings.task == made.settings.task


def test_rows_that_fill_up_a_table_are_never_predicted(tmp_path):
    """Pegasus has one size for two vocabularies."""
    made = translator()
    assert (made.source.size, made.target.size) == (33, 27)
    HF.write(made, tmp_path, "float32")
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["lm_head.weight"].shape == tensors["model.encoder.embed_tokens.weight"].shape == (33, 12)
    assert tensors["final_logits_bias"][0, 27:].tolist() == [ABSENT_LOGIT] * 6
    assert not tensors["lm_head.weight"][27:].any()


def test_two_vocabularies_are_two_tokenizers(tmp_path):
    made = translator()
    HF.write(made, tmp_path, "float32")
    source = transformers.AutoTokenizer.from_pretrained(tmp_path)
    target = transformers.AutoTokenizer.from_pretrained(tmp_path, subfolder="target_tokenizer")
    assert source("w3 </s> w28")["input_ids"] == [7, UNK, 32, EOS]
    assert target("w3 w28")["input_ids"] == [7, UNK, EOS]
    assert target.decode([BOS, 7, 8, EOS], skip_special_tokens=True) == "w3 w4"


def test_features_are_sines_first_and_then_cosines(tmp_path):
    """Ours alternate: the columns 0, 2, 4 … of a table of ours are the first ones there."""
    made = translator(norm="post")
    HF.write(made, tmp_path, "float32")
    tensors, ours = load_file(tmp_path / "model.safetensors"), named_tensors(made.model)
    order = [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]
    theirs = tensors["model.encoder.embed_tokens.weight"]
    assert torch.equal(theirs, ours["embeddings.tables.source.weight"][:, order])
    assert torch.equal(tensors["model.encoder.layers.1.fc2.bias"], ours["encoder.1.feed_forward.down.bias"][order])
    assert torch.equal(tensors["model.encoder.layers.1.fc1.bias"], ours["encoder.1.feed_forward.up.bias"])


REFUSED = {
    "sparsemax": (
        lambda: translator(cross='normaliser = "Sparsemax()"'),
        "PegasusForConditionalGeneration, the normaliser of cross is Softmax(), not Sparsemax()",
    ),
    "alibi": (lambda: translator(encoder='position = "Alibi(heads=3)"'), "not Alibi(heads=3)"),
    "mixed sinusoids": (
        lambda: translator(encoder="position = \"Sinusoidal(pairs='halves')\""),
        "the position of decoder is Sinusoidal(theta=10000.0, pairs='halves'), not Sinusoidal(theta=10000.0)",
    ),
    "rotary": (lambda: translator(model=24, encoder=HALVES, decoder=HALVES), "the position of encoder is"),
    "recurrent": (lambda: translator(kind="gru", heads=4, hidden=12), "the model 'gru' is none of its classes"),
    "our usual language model": (
        lambda: generator(),
        "in the nearest of its classes (GPT2LMHeadModel, CTRLLMHeadModel, LlamaForCausalLM, Qwen3ForCausalLM), "
        "CTRLLMHeadModel, norm_eps is 1e-06, not 1e-05, activation is 'relu', not 'gelu'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_none_of_transformers_classes_is_named_with_the_nearest(name):
    make, part = REFUSED[name]
    (objection,) = HF.objections(make())
    assert part in objection


# --- imported models ---


@pytest.fixture(params=CHECKPOINTS)
def checkpoint(request, tmp_path):
    """The name of a family, its folder, and the run that it was imported as."""
    CHECKPOINTS[request.param].save(tmp_path / "folder")
    run = import_model(tmp_path / "folder", tmp_path / "run", **LANGUAGES.get(request.param, {}))
    return request.param, tmp_path / "folder", load(run)


@pytest.mark.sampled(3)
def test_an_imported_model_goes_back_to_the_same_tensors(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "CONTINUATION", 5)
    monkeypatch.setattr(exporting, "translation_limit", lambda *_: 8)
    name, folder, made = checkpoint
    (tmp_path / "hf").mkdir()
    HF.write(made, tmp_path / "hf", "float32")
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "hf"))
    assert before.keys() == after.keys()
    assert all(torch.equal(weight, after[key]) for key, weight in before.items())
    config = transformers.AutoConfig.from_pretrained(tmp_path / "hf")
    assert config.architectures == [CHECKPOINTS[name].model]
    inputs = ProofInputs(((1,), (2,)), "images")
    if name != "ViT":
        inputs = ProofInputs(tuple(encode_text(made, text) for text in SENTENCES), "texts")
        assert [tuple(ids) for ids in HF.encode(made, tmp_path / "hf", SENTENCES)] == list(inputs.ids)
    for check in HF.prove(made, tmp_path / "hf", inputs, "float32"):
        assert (check.failure(), check.identical) == (None, len(inputs.ids))
        assert check.largest_difference < 2e-5
    shutil.rmtree(tmp_path / "hf" / "regard")  # which a folder of somebody else has not
    again = load(import_model(tmp_path / "hf", tmp_path / "again", **LANGUAGES.get(name, {})))
    ours, theirs = named_tensors(made.model), named_tensors(again.model)
    assert all(torch.equal(weight, theirs[key]) for key, weight in ours.items())
    assert again.settings.model == made.settings.model


def imported(name: str, folder: Path) -> Any:
    CHECKPOINTS[name].save(folder / "folder")
    return load(import_model(folder / "folder", folder / "run", **LANGUAGES.get(name, {})))


def test_what_starts_a_target_is_exported_as_it_was_trained_on(tmp_path):
    """Marian's targets begin with its padding, which nothing else reads."""
    made = imported("Marian", tmp_path)
    table = made.model.get_parameter("embeddings.tables.target.weight")
    with torch.no_grad():
        table[BOS] += 0.5
    (tmp_path / "hf").mkdir()
    HF.write(made, tmp_path / "hf", "float32")
    theirs = load_file(tmp_path / "hf" / "model.safetensors")["model.shared.weight"]
    assert torch.equal(theirs[made.target.to_foreign[PAD]], table[BOS])


def test_two_vectors_of_what_is_one_token_there_are_refused(tmp_path):
    """M2M100's targets begin with what ends its texts."""
    made = imported("M2M100", tmp_path)
    with torch.no_grad():
        made.model.get_parameter("embeddings.tables.target.weight")[BOS] += 0.5
    with pytest.raises(ValueError, match=r"tokens 2 and 1 are one there, .*; export it to ctranslate2 or onnx"):
        HF.write(made, tmp_path, "float32")


# --- what we write of a run beside the files of transformers is hostile until proved otherwise ---


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    HF.write(generator(recipe=LEARNED, **PLAIN), folder, "float32")
    return folder


@pytest.mark.parametrize("trouble", ["link", "task", "depth", "width", "vocabulary"])
def test_a_description_that_is_not_of_these_weights_is_refused(written, tmp_path, trouble):
    folder = tmp_path / "hf"
    shutil.copytree(written, folder)
    settings, words = folder / "regard" / "settings.toml", folder / "regard" / "tokenizer.json"
    match trouble:
        case "link":
            shutil.move(words, tmp_path / "elsewhere.json")
            words.symlink_to(tmp_path / "elsewhere.json")
        case "task":
            settings.write_text(settings.read_text().replace('"language_modeling"', '"translation"'))
        case "depth":
            settings.write_text(settings.read_text().replace("layers = 2", "layers = 900000"))
        case "width":
            settings.write_text(settings.read_text().replace("hidden = 20", "hidden = 99"))
        case "vocabulary":
            saved = json.loads(words.read_text())
            words.write_text(json.dumps(saved | {"vocabulary": [*saved["vocabulary"], "more"]}))
    message = {
        "link": "is a link that leads out of the folder",
        "task": "is of the task translation, and GPT2LMHeadModel is for language_modeling",
        "depth": "asks for 900000 layers",
        "width": "do not belong together",
        "vocabulary": "34 tokens and a table of 33 rows do not belong together",
    }[trouble]
    with pytest.raises(ValueError, match=message):
        import_model(folder, tmp_path / "run")
