"""Damaged and foreign folders of models: each command that reads one says what is wrong with which file."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from .commands import assert_refused, held, regard

COMMANDS = {
    "translate": lambda folder: regard("translate", folder, "-", typed="the cat\n"),
    "evaluate": lambda folder: regard("evaluate", folder),
    "look": lambda folder: regard("look", folder, "the cat"),
}


@pytest.fixture(params=COMMANDS)
def command(request):
    return COMMANDS[request.param]


def test_a_folder_that_is_not_there_or_holds_something_else(command, tmp_path):
    assert_refused(command(tmp_path / "run"), f"{tmp_path / 'run'} holds no model: settings.toml is missing; train")
    (tmp_path / "text.en").write_text("the cat\n")
    assert_refused(command(tmp_path / "text.en"), f"{tmp_path / 'text.en'} holds no model")


def test_a_hugging_face_folder_that_is_not_whole(command, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    save_file({"weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    before = held(tmp_path)
    answer = command(tmp_path)
    if command in (COMMANDS["evaluate"], COMMANDS["look"]):  # which can use one that is whole
        assert_refused(answer, f"{tmp_path / 'config.json'} names no architecture; save the model with save_pretrained")
    else:
        assert_refused(answer, f"{tmp_path} is a Hugging Face model, and no run: regard look and regard serve show it")
    assert held(tmp_path) == before


def test_a_run_without_a_checkpoint(command, copied):
    (copied / "model.safetensors").unlink()
    shutil.rmtree(copied / "checkpoints")
    assert_refused(command(copied), f"{copied} has no checkpoint yet; train it: regard train --out {copied}")


@pytest.mark.parametrize("left", [0, 3, 100, -1])
def test_truncated_weights(left, copied):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:left])
    assert_refused(COMMANDS["translate"](copied), f"{weights} is damaged or no safetensors file: ")


def test_a_pickle_named_model_safetensors_is_never_opened(command, copied):
    class Trap:
        def __reduce__(self):
            return Path.touch, (copied / "sprung",)

    (copied / "model.safetensors").write_bytes(pickle.dumps(Trap()))
    assert_refused(command(copied), f"{copied / 'model.safetensors'} is damaged or no safetensors file: ")
    torch.save({"weight": Trap()}, copied / "model.safetensors")
    assert_refused(command(copied), f"{copied / 'model.safetensors'} is damaged or no safetensors file: ")
    assert not (copied / "sprung").exists()


def test_weights_of_another_model(copied):
    weights = copied / "model.safetensors"
    tensors = load_file(weights)
    name = sorted(tensors)[0]
    save_file({**tensors, "extra": torch.zeros(1)}, weights)
    assert_refused(COMMANDS["translate"](copied), f"{weights} has 'extra': it belongs to another model")
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, weights)
    assert_refused(COMMANDS["translate"](copied), f"{weights} lacks {name!r}: it belongs to another model")
    save_file({**tensors, name: torch.zeros(7, 5)}, weights)
    assert_refused(COMMANDS["translate"](copied), f"{weights}: {name!r} is (7, 5), the model wants ")


def test_a_tokeniser_of_another_model(command, copied):
    """It does not fit, or is of the same size by chance, and the weights would translate nonsense."""
    tokenizer = json.loads((copied / "source.json").read_text(encoding="utf-8"))
    tokenizer["vocabulary"] = list(reversed(tokenizer["vocabulary"]))
    (copied / "source.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    why = f"{copied}: source.json or target.json is not what the weights were trained with; put it back"
    assert_refused(command(copied), why)
    shutil.copy(copied / "target.json", copied / "source.json")
    assert_refused(command(copied), f"{copied / 'model.safetensors'}: ")


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "another"}', "\0"])
def test_a_damaged_tokeniser(text, command, copied):
    (copied / "source.json").write_text(text)
    assert_refused(command(copied), f"{copied / 'source.json'}: ")


def test_a_missing_tokeniser(command, copied):
    (copied / "target.json").unlink()
    assert_refused(command(copied), f"{copied / 'target.json'}: no such file; check the name (looked in {copied})")


@pytest.mark.parametrize(
    "text", [b"nonsense", b"[train]\nsteps = 'many'", b"[poetry]", b"[model]\nmodel = -3", b"\xff"]
)
def test_settings_that_are_nonsense(text, command, copied):
    (copied / "settings.toml").write_bytes(text)
    assert_refused(command(copied), f"{copied / 'settings.toml'}:")


def test_settings_of_another_model(command, copied):
    settings = copied / "settings.toml"
    settings.write_text(settings.read_text().replace("hidden = 64", "hidden = 96"))
    assert_refused(command(copied), f"{copied / 'model.safetensors'}: ")
