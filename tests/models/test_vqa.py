"""Visual question answering: sizes, invariances, its attention, and cross-attention worked by hand."""

import pytest
import torch
from torch.testing import assert_close

from regard.attention import MultiHeadAttention
from regard.models import count_parameters
from regard.models.vision import ConvolutionalPatches, CrossAttentionLayer, VQAConfig, VQAModel, rollout
from tests.recorded import call_recorded

CONFIG = VQAConfig(patch=3, image_layers=1, question_layers=1, layers=2, model=12, heads=3, hidden=17)


def model(config: VQAConfig = CONFIG) -> VQAModel:
    return VQAModel(config, shape=(3, 6, 15), vocabulary_size=23, answers=7).double().eval()


def given(n: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pixels = torch.randn(n, 3, 6, 15, dtype=torch.double)
    return pixels, torch.randint(1, 23, (n, 5)), torch.full((n,), 5)


def test_parameters_are_counted_on_paper():
    attention = 4 * (12 * 12 + 12)
    layer = attention + 12 * 17 + 17 + 17 * 12 + 12 + 2 * 2 * 12
    picture = 3 * 3 * 3 * 12 + 12 + (2 + 5) * 12 + layer + 2 * 12
    question = 23 * 12 + layer + 2 * 12
    looking = 2 * (layer + attention + 2 * 12) + 2 * 12
    assert count_parameters(model()) == picture + question + looking + 12 + 12 * 7 + 7


ACROSS = ["look.0.cross", "look.1.cross"]


def test_recording_gives_the_same_logits_and_each_words_weights_over_the_patches():
    made, (pixels, tokens, lengths) = model(), given()
    logits, record = call_recorded(made, pixels, tokens, lengths)
    assert_close(logits, made(pixels, tokens, lengths), rtol=0, atol=0)
    assert [site.name for site in record.sites if site.keys == "patches"] == ["picture.0", *ACROSS]
    for name in ACROSS:
        assert record.weights(name).shape == (2, 3, 5, 10)
        assert_close(record.weights(name).sum(-1), torch.ones(2, 3, 5, dtype=torch.double))
    weights = record.weights(ACROSS[1])
    assert made.to_grid(weights).shape == (2, 3, 5, 2, 5)
    assert torch.equal(made.to_grid(weights)[1, 2, 3, 1, 4], weights[1, 2, 3, 9])
    assert_close(record.weights("pooling").sum(-1), torch.ones(2, 1, 1, dtype=torch.double))


def test_batch_and_padding_change_nothing():
    made, (pixels, tokens, lengths) = model(), given(3)
    alone = made(pixels[:1], tokens[:1, :3], lengths[:1] - 2)
    tokens[0, 3:] = 0
    lengths[0] = 3
    assert_close(made(pixels, tokens, lengths)[:1], alone)
    tokens[0, 3:] = 11
    assert_close(made(pixels, tokens, lengths)[:1], alone)


def test_a_picture_is_read_once_for_all_its_questions():
    made, (pixels, tokens, lengths) = model(), given(3)
    about = torch.tensor([1, 0, 1])
    assert_close(made(pixels[:2], tokens, lengths, about), made(pixels[about], tokens, lengths))
    logits, _ = call_recorded(made, pixels[:2], tokens, lengths, about)
    assert_close(logits, made(pixels[:2], tokens, lengths, about), rtol=0, atol=0)


def test_words_attend_to_the_patch_that_answers_them():
    """Scores log 1, log 1, log 6 of three patches are weights 1/8, 1/8, 6/8; what is seen is their mean so weighed."""
    cross = CrossAttentionLayer(VQAConfig(model=2, heads=1, hidden=3).stack(1)).double().eval().cross
    assert isinstance(cross, MultiHeadAttention)
    with torch.no_grad():
        for part in (cross.query, cross.key, cross.value, cross.output):
            torch.nn.init.eye_(part.get_parameter("weight"))
    patches = torch.tensor([[[0.0, 4.0], [0.0, 8.0], [torch.log(torch.tensor(6.0)), 16.0]]], dtype=torch.double)
    word = torch.tensor([[[2.0**0.5, 0.0]]], dtype=torch.double)
    seen, steps = cross.look(word, patches)
    assert_close(steps.weights[0, 0, 0], torch.tensor([1 / 8, 1 / 8, 6 / 8], dtype=torch.double))
    assert_close(seen[0, 0, 1], torch.tensor((4 + 8 + 6 * 16) / 8, dtype=torch.double))


def test_what_flows_through_two_layers_on_paper():
    """Half of each token stays: (1 + w)/2. Layers that swap two tokens, then that let both see the first."""
    swap, first = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])
    through = rollout([swap, first])
    assert_close(through[0], torch.tensor([[1.0, 0.0], [0.5, 0.5]]) @ torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    assert_close(rollout([first, swap])[0], torch.tensor([[0.75, 0.25], [0.75, 0.25]]))
    heads = torch.cat((swap, first), 1)  # in the mean the second token looks at the first, and the first at both
    assert_close(rollout([heads])[0], torch.tensor([[0.75, 0.25], [0.5, 0.5]]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "heads = 5 does not divide model = 64"),
        ({"kind": "none"}, "kind = 'none' is unknown; choose from cross"),
        ({"layers": 0}, "layers = 0 should be at least 1"),
        ({"stem": "wavelet"}, "choose from linear, convolution"),
    ],
)
def test_descriptions_that_make_no_sense(changes, message):
    with pytest.raises(ValueError, match=message):
        VQAConfig(**changes)


def test_patches_by_convolution_halve_until_one_is_left():
    made = ConvolutionalPatches(4, 12, channels=1).double()
    x = torch.zeros(1, 1, 8, 20, dtype=torch.double)
    assert made(x).shape == (1, 10, 12)
    shapes = {name: tuple(weight.shape) for name, weight in made.named_parameters() if weight.dim() > 1}
    assert shapes == {
        "downsample.0.0.weight": (6, 1, 3, 3),
        "downsample.1.0.weight": (12, 6, 3, 3),
        "project.weight": (12, 12, 1, 1),
    }
    with pytest.raises(ValueError, match="patches of 4 x 4 pixels do not tile an image of 6 x 15"):
        made(torch.zeros(1, 1, 6, 15, dtype=torch.double))
    with pytest.raises(ValueError, match="patches of 6 x 6 pixels cannot be halved to 1; choose 2, 4, 8 or 16"):
        ConvolutionalPatches(6, 12)
