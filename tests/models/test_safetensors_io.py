"""Safetensors files: every memory layout, and files with the names of earlier versions."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.models.config import (
    EncoderConfig,
    LanguageModelConfig,
    ModelConfig,
    PoolingConfig,
    WordEmbeddingConfig,
    build_model,
)
from regard.models.encoder import build_classifier
from regard.models.language_model import LanguageModel
from regard.models.safetensors_io import (
    check_compatible,
    current_name,
    load_weights,
    named_tensors,
    saveable_tensors,
    write_weights,
)
from regard.training.checkpoint import average


class Strided(nn.Module):
    """A weight and a buffer whose axes lie in memory in some order, every so many numbers one of theirs."""

    weight: nn.Parameter
    counts: torch.Tensor

    def __init__(self, order: list[int], step: int):
        super().__init__()
        shape = [(2, 3, 5)[axis] for axis in order]
        back = [order.index(axis) for axis in range(3)]
        one, other = (torch.randn(*shape[:-1], shape[-1] * step)[..., ::step].permute(back) for _ in range(2))
        self.weight = nn.Parameter(one)
        self.register_buffer("counts", other)


@settings(max_examples=30, deadline=None)
@given(order=st.permutations([0, 1, 2]), step=st.integers(1, 3))
def test_every_memory_layout_is_saved_and_loaded(tmp_path_factory, order, step):
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    saved, model = Strided(order, step), Strided(order, step)
    strides = model.weight.stride()
    write_weights(saveable_tensors(saved), path)
    load_weights(model, path)
    assert torch.equal(model.weight, saved.weight)
    assert torch.equal(model.counts, saved.counts)
    assert model.weight.stride() == strides


# --- names of earlier versions ---

LEARNED = 'position = "Learned(7, 4)"'
NORM = ("weight", "bias")
ATTENTION = tuple(f"{part}.{kind}" for part in ("query", "key", "value", "output") for kind in NORM)
FEED_FORWARD = tuple(f"{part}.{kind}" for part in ("up", "down") for kind in NORM)


def layer_names(prefix: str, *attentions: str) -> list[str]:
    """Of a layer as files had it: attentions, feed-forward, and the norms around them."""
    return [
        *(f"{prefix}.{attention}.{name}" for attention in attentions for name in ATTENTION),
        *(f"{prefix}.feed_forward.{name}" for name in FEED_FORWARD),
        *(f"{prefix}.around_{part}.norm.{name}" for part in (*attentions, "feed_forward") for name in NORM),
    ]


# the names that a file had, in the order of the model's parameters
OLD_NAMES = {
    "transformer": [
        *("words.bias", "words.tables.target.weight", "words.tables.source.weight", "words.tables.output.weight"),
        *("source_places.learned.0.weight", "target_places.learned.0.weight"),
        *layer_names("encoder.0", "attention"),
        *layer_names("decoder.0", "attention", "cross"),
        *(f"{side}_norm.{name}" for side in ("encoder", "decoder") for name in NORM),
    ],
    "language model": [
        *("bias", "words.weight", "past.places.learned.0.weight"),
        *layer_names("past.layers.0", "attention"),
        *(f"past.norm.{name}" for name in NORM),
    ],
    "recurrent language model": [
        *("bias", "words.weight"),
        *(f"past.layers.0.fused.{part}_{way}_l0" for part in ("weight", "bias") for way in ("ih", "hh")),
        *(f"back.{name}" for name in NORM),
    ],
    "classifier": [
        *("encoder.words.weight", "encoder.places.learned.0.weight"),
        *layer_names("encoder.context.layers.0", "attention"),
        *(f"encoder.context.norm.{name}" for name in NORM),
        *("pooling.query", "output.weight", "output.bias"),
    ],
}


def model_of(kind: str) -> nn.Module:
    sizes: dict[str, Any] = {"layers": 1, "model": 4, "hidden": 6}
    match kind:
        case "transformer":
            config = ModelConfig(kind="transformer", heads=2, encoder=LEARNED, decoder=LEARNED, **sizes)
            return build_model(config, 11, 13)
        case "language model":
            return LanguageModel(LanguageModelConfig(kind="transformer", heads=2, recipe=LEARNED, **sizes), 11)
        case "recurrent language model":
            return LanguageModel(LanguageModelConfig(kind="gru", **sizes), 11)
    encoder = EncoderConfig(kind="transformer", heads=2, recipe=LEARNED, **sizes)
    return build_classifier(WordEmbeddingConfig(), encoder, PoolingConfig(), size=11, labels=3)


def with_old_names(model: nn.Module, kind: str) -> dict[str, Tensor]:
    names, tensors = OLD_NAMES[kind], saveable_tensors(model)
    assert len(names) == len(tensors)
    return dict(zip(names, tensors.values(), strict=True))


@pytest.mark.parametrize("kind", OLD_NAMES)
def test_a_file_with_old_names_loads(kind, tmp_path):
    path, saved, model = tmp_path / "model.safetensors", model_of(kind), model_of(kind)
    old = with_old_names(saved, kind)
    assert any(name not in named_tensors(model) for name in old)
    write_weights(old, path)
    check_compatible(model, path)
    load_weights(model, path)
    for name, tensor in named_tensors(saved).items():
        assert torch.equal(named_tensors(model)[name], tensor), name


def test_checkpoints_with_old_and_new_names_are_averaged(tmp_path: Path):
    kind = "language model"
    one, other = model_of(kind), model_of(kind)
    for name, tensors in (("1", with_old_names(one, kind)), ("2", saveable_tensors(other))):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    mean = average([tmp_path / "1", tmp_path / "2"])
    assert mean.keys() == named_tensors(one).keys()
    for name, tensor in mean.items():
        expected = (named_tensors(one)[name].double() + named_tensors(other)[name].double()) / 2
        assert torch.equal(tensor, expected.to(tensor.dtype)), name


def test_a_file_of_another_model_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    write_weights(with_old_names(model_of("classifier"), "classifier"), path)
    with pytest.raises(ValueError, match="it belongs to another model"):
        load_weights(model_of("language model"), path)


def test_a_users_own_field_keeps_its_name():
    """`among` was the field of a pattern in blocks alone."""
    assert current_name("attention.learned.pattern_left_among_0.w") == "attention.learned.pattern_left_pattern_0.w"
    assert current_name("attention.learned.normaliser_among_0.w") == "attention.learned.normaliser_among_0.w"


def test_loading_a_model_imports_no_compiler(tmp_path):
    """Random numbers without memory are what torch imports its compilers for, Triton among them: 3 s and 100 MiB."""
    program = """
import sys
from pathlib import Path
from regard.serve.playground import walk_through_example
from tests.serve.client import learners

for name, model in learners().items():
    model.save(folder := Path(sys.argv[1]) / name)
    type(model).load(folder)
walk_through_example({})
assert not {"torch._dynamo", "triton"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=Path(__file__).parents[2], check=True)
