"""Weights to a safetensors file and back, however they lie in memory."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from regard.models.weights import load_weights, tensors_of, write_weights


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
    write_weights(tensors_of(saved), path)
    load_weights(model, path)
    assert torch.equal(model.weight, saved.weight)
    assert torch.equal(model.counts, saved.counts)
    assert model.weight.stride() == strides
