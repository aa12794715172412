"""A dozen images that any image classifier should overfit."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from regard.data.images import PixelScaling, images_from_scenes
from regard.world.shapes import ShapeWorld


def assert_learns_shapes(made: nn.Module, steps: int) -> None:
    """The loss falls at the first step, and in the end every picture has its label."""
    seen = images_from_scenes([ShapeWorld(size=24, most=1).scene(number) for number in range(12)])
    x = PixelScaling.of(seen.pixels).apply(seen.pixels)
    optimiser = torch.optim.Adam(made.parameters(), lr=0.003)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = cross_entropy(made(x), seen.labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert torch.equal(made.eval()(x).argmax(-1), seen.labels)
