"""Convolutional network: sizes, invariances, its weights, and that it learns."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from regard.models import count_parameters
from regard.models.vision import GATES, ChannelCNN, ConvolutionBlock
from tests.models.overfitting import assert_learns_shapes
from tests.narrowing import assert_is_instance, not_none
from tests.recorded import call_recorded


def model(attention: str = "channel", *, width: int = 8, norm: str = "group") -> ChannelCNN:
    """Blocks begin as the way around them; here they are made to be felt."""
    made = ChannelCNN(3, classes=7, width=width, blocks=1, attention=attention, norm=norm)
    for weight in made.parameters():
        if not weight.any():
            torch.nn.init.normal_(weight, std=0.1)
    return made.double().eval()


def test_parameters_are_counted_on_paper():
    def block(inputs, outputs, gate):
        around = 0 if inputs == outputs else inputs * outputs
        return 2 * inputs + 9 * inputs * outputs + 2 * outputs + 9 * outputs * outputs + around + gate

    ends = 9 * 3 * 16 + 2 * 64 + 2 * 64 + 64 * 7 + 7
    gates = {
        "none": (0, 0, 0),
        "channel": tuple(c * (c // 16) + c // 16 + (c // 16) * c + c for c in (16, 32, 64)),
        "spatial": (2 * 49 + 1,) * 3,
    }
    assert set(gates) == set(GATES)
    for attention, (one, two, three) in gates.items():
        blocks = block(16, 16, one) + block(16, 32, two) + block(32, 64, three)
        assert count_parameters(model(attention, width=16)) == blocks + ends


def test_the_size_for_cifar():
    """Without gates the convolutions of a wide residual network of 16 layers, 4 times as wide: 2.7 million weights."""
    assert 2.6e6 < count_parameters(ChannelCNN(3, classes=10, attention="none")) < 2.9e6
    assert count_parameters(ChannelCNN(3, classes=10)) < 1.03 * count_parameters(
        ChannelCNN(3, classes=10, attention="none")
    )


@pytest.mark.parametrize(
    ("attention", "shapes"),
    {
        "channel": [(8, 1, 1), (16, 1, 1), (32, 1, 1)],
        "spatial": [(1, 12, 20), (1, 6, 10), (1, 3, 5)],
        "none": [],
    }.items(),
)
def test_recording_gives_the_same_logits_and_the_weights_of_every_gate(attention, shapes):
    made, x = model(attention), torch.randn(2, 3, 12, 20, dtype=torch.double)
    logits, record = call_recorded(made, x)
    assert_close(logits, made(x), rtol=0, atol=0)
    assert [record.weights(name).shape for name in record.calls] == [(2, *shape) for shape in shapes]
    assert list(record.calls) == ["stage.0.0", "stage.1.0", "stage.2.0"][: len(shapes)]


@pytest.mark.parametrize("attention", GATES)
def test_an_image_has_the_same_logits_alone_and_in_a_batch(attention):
    made, x = model(attention), torch.randn(5, 3, 12, 20, dtype=torch.double)
    for mode in (True, False):  # no batch's mean is taken, so it holds while training too
        made.train(mode)
        together = made(x)
        for n in range(5):
            assert_close(made(x[n : n + 1]), together[n : n + 1], rtol=0, atol=1e-10)
    single = made.float()
    assert_close(single(x[3:4].float()), single(x.float())[3:4], rtol=0, atol=1e-5)


def test_the_norm_of_a_batch_is_felt_while_training_alone():
    made, x = model(norm="batch"), torch.randn(5, 3, 12, 20, dtype=torch.double)
    made.train()
    assert not torch.allclose(made(x[:2]), made(x)[:2])
    made.eval()
    assert_close(made(x[:1]), made(x)[:1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("attention", GATES)
def test_gradients_add_up_however_images_share_batches(attention):
    made, x, y = model(attention), torch.randn(5, 3, 8, 8, dtype=torch.double), torch.tensor([0, 3, 6, 2, 2])

    def gradients(*parts: slice) -> tuple[Tensor, ...]:
        losses = [cross_entropy(made(x[part]), y[part], reduction="sum") for part in parts]
        return torch.autograd.grad(losses, list(made.parameters()))

    assert_close(gradients(slice(0, 2), slice(2, 5)), gradients(slice(0, 5)))


@pytest.mark.parametrize("attention", ["channel", "spatial"])
def test_the_gate_is_felt(attention):
    made, x = model(attention), torch.randn(2, 3, 12, 20, dtype=torch.double)
    before = made(x)
    for name, weight in made.named_parameters():
        if "gate" in name and name.endswith("bias"):
            torch.nn.init.constant_(weight, 5.0)
    assert not torch.allclose(made(x), before)


def test_a_new_block_is_the_way_around_it():
    made = ChannelCNN(3, classes=7, width=8, blocks=2)
    x = torch.randn(2, 8, 6, 6)
    assert torch.equal(made.stages["0-1"](x), x)
    wider = assert_is_instance(made.stages["1-0"], ConvolutionBlock)
    assert_close(wider(x), not_none(wider.shortcut)(torch.relu(wider.norm_in(x))))


@pytest.mark.parametrize("size", [(1, 1), (7, 28), (28, 28), (32, 32)])
def test_any_size_of_picture_will_do(size):
    assert model()(torch.randn(2, 3, *size, dtype=torch.double)).shape == (2, 7)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("attention", "norm"), [("channel", "group"), ("spatial", "group"), ("none", "group"), ("channel", "batch")]
)
def test_shapes_are_learned_by_heart(attention, norm):
    made = ChannelCNN(3, classes=3, width=16, blocks=1, attention=attention, norm=norm)
    assert_learns_shapes(made, steps=40)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="attention is one of channel, spatial, none, not 'both'"):
        ChannelCNN(3, classes=7, attention="both")
    with pytest.raises(ValueError, match="norm is one of group, batch, not 'layer'"):
        ChannelCNN(3, classes=7, norm="layer")
    with pytest.raises(ValueError, match="width = 40 cannot be cut into groups of 16 channels"):
        ChannelCNN(3, classes=7, width=40)
    with pytest.raises(ValueError, match=r"classes = 0, .*: each is at least 1"):
        ChannelCNN(3, classes=0)
    with pytest.raises(ValueError, match=r"3 channels, rows, columns\), not \(2, 1, 8, 8\)"):
        ChannelCNN(3, classes=7, width=8)(torch.zeros(2, 1, 8, 8))
