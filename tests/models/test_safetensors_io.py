"""Safetensors files: every memory layout, and files with the names of earlier versions."""

import os
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
    load_tensors,
    load_weights,
    named_tensors,
    pack_weights,
    read_note,
    saveable_tensors,
    shapes_in,
    unpack_weights,
    write_weights,
)
from regard.training.checkpoint import Progress, average, write_checkpoint


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


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_who_may_read_a_new_file_may_read_weights(mask, tmp_path):
    """Whatever the library makes of it; and a file that is there keeps its permissions."""
    before = os.umask(mask)
    try:
        write_weights({"weight": torch.ones(2)}, tmp_path / "new")
        layer = nn.Linear(2, 2)
        write_checkpoint(tmp_path / "run", layer, torch.optim.AdamW(layer.parameters()), Progress())
        (tmp_path / "plain").touch()
        (tmp_path / "old").touch(0o640)
        (tmp_path / "old").chmod(0o640)
        write_weights({"weight": torch.ones(2)}, tmp_path / "old")
    finally:
        os.umask(before)
    weights = [tmp_path / "new", *(tmp_path / "run").rglob("*.safetensors")]
    assert {path.stat().st_mode for path in weights} == {(tmp_path / "plain").stat().st_mode}
    assert len(weights) == 3
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o640


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
    words = [sys.executable, "-c", program, str(tmp_path)]
    run = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


# --- packed to 8 bits ---


def rows_of(exponents: list[int], width: int) -> Tensor:
    """A row for each, whose largest number is about 2 to that power; None is a row of zeros."""
    return torch.stack([torch.randn(width) * 2.0**one if one else torch.zeros(width) for one in exponents])


@settings(max_examples=40, deadline=None)
@given(
    exponents=st.lists(st.integers(-40, 30), min_size=1, max_size=5), width=st.integers(1, 9), seed=st.integers(0, 99)
)
def test_packed_weights_are_whole_numbers_times_the_scale_of_their_row(tmp_path_factory, exponents, width, seed):
    torch.manual_seed(seed)
    weight, path = rows_of(exponents, width), tmp_path_factory.mktemp("packed") / "model.safetensors"
    packed = pack_weights({"up": weight, "bias": weight[0]})
    whole, scale = packed["up"], packed["up:scale"].float()[:, None]
    write_weights(packed, path)
    found = load_tensors(path)
    assert found.keys() == {"up", "bias"}
    assert torch.equal(found["up"], whole.float() * scale)
    assert torch.equal(found["bias"], weight[0])
    assert int(whole.int().abs().max()) <= 127
    assert ((found["up"] - weight).abs() <= 0.5005 * scale + 1e-45).all()
    assert (whole.int().abs().amax(1) == 127 * weight.any(1)).all()  # all 8 bits are used
    again = pack_weights(found)
    assert torch.equal(again["up"], whole)
    assert torch.equal(again["up:scale"], packed["up:scale"])


def test_scales_are_float16_where_that_is_exact_enough():
    usual, tiny, huge = torch.ones(2, 3), torch.full((2, 3), 1e-6), torch.full((2, 3), 1e8)
    packed = pack_weights({"usual": usual, "tiny": tiny, "huge": huge})
    kinds = [packed[f"{name}:scale"].dtype for name in ("usual", "tiny", "huge")]
    assert kinds == [torch.float16, torch.float32, torch.float32]
    for name, weight in {"usual": usual, "tiny": tiny, "huge": huge}.items():
        assert torch.allclose(unpack_weights(packed)[name], weight, rtol=5e-4)


def test_a_packed_file_is_a_quarter_as_large_and_loads_into_the_model(tmp_path):
    model, other = (
        nn.Sequential(nn.Linear(64, 96), nn.Conv2d(3, 4, 5)),
        nn.Sequential(nn.Linear(64, 96), nn.Conv2d(3, 4, 5)),
    )
    tensors = saveable_tensors(model)
    write_weights(tensors, tmp_path / "whole.safetensors", "checksum")
    write_weights(pack_weights(tensors), tmp_path / "packed.safetensors", "checksum")
    load_weights(other, tmp_path / "packed.safetensors")
    for name, tensor in named_tensors(other).items():
        assert torch.allclose(tensor, tensors[name], atol=1e-3)
    assert shapes_in(tmp_path / "packed.safetensors") == {name: tuple(one.shape) for name, one in tensors.items()}
    assert read_note(tmp_path / "packed.safetensors") == "checksum"
    whole, packed = ((tmp_path / f"{name}.safetensors").stat().st_size for name in ("whole", "packed"))
    assert packed < 0.35 * whole


@pytest.mark.parametrize("spoil", ["missing", "fewer", "whole numbers"])
def test_a_packed_file_without_a_scale_for_every_row_is_damaged(spoil, tmp_path):
    model, path = nn.Linear(5, 3), tmp_path / "model.safetensors"
    packed = pack_weights(saveable_tensors(model))
    scales = {"fewer": packed["weight:scale"][:2], "whole numbers": torch.ones(3, dtype=torch.int8)}
    del packed["weight:scale"]
    packed |= {"weight:scale": scales[spoil]} if spoil in scales else {}
    save_file(packed, path, {"note": "int8 rows: checksum"})
    with pytest.raises(ValueError, match="is damaged: 'weight' lacks a scale for each of its rows"):
        load_weights(model, path)


def test_weights_that_are_not_finite_are_not_packed():
    with pytest.raises(ValueError, match="'up' holds numbers that are not finite"):
        pack_weights({"up": torch.tensor([[1.0, torch.nan]])})
