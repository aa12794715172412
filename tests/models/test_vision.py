"""Vision Transformer: sizes, invariances, its attention, and that it learns."""

import pytest
import torch
from torch.testing import assert_close

from regard.attention import Causal, Global, Learned, NoPosition, Recipe, RelativeBias, Rotary, Sinusoidal, TopK, Window
from regard.attention.position_variants import Clipped
from regard.layers.stack import LayerRecipes
from regard.models import StackConfig, count_parameters
from regard.models.vision import POOLS, LearnedGridPosition, PatchEncoder, Patches, VisionTransformer, patch, unpatch
from tests.models.overfitting import assert_learns_shapes
from tests.recorded import call_recorded

STACK = StackConfig(layers=2, model=12, heads=3, hidden=17, activation="gelu")
RECIPES = {
    "plain": None,
    "no places": Recipe(),
    "sinusoidal": Recipe(position=Sinusoidal()),
    "grid and rotary": Recipe(position=LearnedGridPosition(2, 5, 12) + Rotary()),
    "relative": Recipe(position=RelativeBias(Clipped(3), heads=3)),
    "window and global": Recipe(pattern=Window(2) | Global(1), position=Sinusoidal()),
    "top 3": Recipe(normaliser=TopK(3)),
    "a window, then all": [Recipe(pattern=Window(2), position=Sinusoidal()), Recipe(position=Sinusoidal())],
}


def model(recipe: LayerRecipes | None = None, pool: str = "class") -> VisionTransformer:
    made = VisionTransformer(Patches(3, 12), STACK, image_size=(6, 15), classes=7, recipe=recipe, pool=pool)
    return made.double().eval()


def pictures(n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, 6, 15, dtype=torch.double)


@pytest.mark.parametrize("pool", POOLS)
def test_parameters_are_counted_on_paper(pool):
    patches = 3 * 3 * 3 * 12 + 12
    places = (2 + 5) * 12
    attention = 4 * (12 * 12 + 12)
    feed_forward = 12 * 17 + 17 + 17 * 12 + 12
    layers = 2 * (attention + feed_forward + 2 * 2 * 12)
    rest = 2 * 12 + 12 * 7 + 7
    token = 12 if pool == "class" else 0
    assert count_parameters(model(pool=pool)) == patches + places + layers + rest + token


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", RECIPES)
def test_recording_gives_the_same_logits_and_the_weights_of_every_layer(name, pool):
    made, x = model(RECIPES[name], pool), pictures()
    logits, record = call_recorded(made, x)
    tokens = 10 + made.encoder.pool.extra
    assert_close(logits, made(x), rtol=0, atol=0)
    assert list(record.calls) == ["blocks.0", "blocks.1"]
    for weights in map(record.weights, record.calls):
        assert weights.shape == (2, 3, tokens, tokens)
        assert_close(weights.sum(-1), torch.ones(2, 3, tokens, dtype=torch.double))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", RECIPES)
def test_an_image_has_the_same_logits_alone_and_in_a_batch(name, pool):
    made, x = model(RECIPES[name], pool), pictures(5)
    together = made(x)
    for n in range(5):
        assert_close(made(x[n : n + 1]), together[n : n + 1], rtol=0, atol=1e-10)
    single = made.float()
    assert_close(single(x[3:4].float()), single(x.float())[3:4], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pool", POOLS)
def test_without_positions_the_order_of_patches_changes_nothing(pool):
    made, x = model(Recipe(position=NoPosition()), pool), pictures()
    jumbled = unpatch(patch(x, 3).flip(1), 3, (2, 5))
    assert_close(made(jumbled), made(x))
    placed = model(pool=pool)
    assert not torch.allclose(placed(jumbled), placed(x))


def test_rows_and_columns_are_distinguished():
    """One patch lit, all others alike: each of the ten places is felt as another."""
    made, x = model(), torch.zeros(10, 10, 27, dtype=torch.double)
    x[torch.arange(10), torch.arange(10)] = 1.0
    scores = made(unpatch(x, 3, (2, 5)))
    assert torch.pdist(scores).min() > 1e-6


def test_what_a_pattern_hides_cannot_be_felt():
    """Looking back alone, the first patch never learns what the last shows."""
    made, x = model(Recipe(pattern=Causal()), "mean"), pictures()
    other = x.clone()
    other[..., 3:, 12:] = 99.0
    assert_close(made.encoder(x)[:, :9], made.encoder(other)[:, :9])
    assert not torch.allclose(made.encoder(x)[:, 9], made.encoder(other)[:, 9])


def test_the_grid_shows_what_the_class_token_sees():
    made, x = model(), pictures()
    weights = call_recorded(made, x)[1].weights("blocks.1")
    seen = made.encoder.to_grid(weights)
    assert seen.shape == (2, 3, 2, 5)
    assert torch.equal(seen[1, 2, 1, 3], weights[1, 2, 0, 1 + 5 + 3])
    averaged = model(pool="mean")
    weights = call_recorded(averaged, x)[1].weights("blocks.0")
    assert_close(averaged.encoder.to_grid(weights)[0, 1, 0, 4], weights[0, 1, :, 4].mean())


def test_the_encoder_can_be_attended_to_without_classes():
    encoder = PatchEncoder(Patches(3, 12), STACK, image_size=(6, 15)).double().eval()
    states, record = call_recorded(encoder, pictures())
    assert states.shape == (2, 10, 12)
    assert record.weights("blocks.1").shape == (2, 3, 10, 10)


def test_the_class_token_may_have_the_first_position():
    """Where the positions of the patches follow it, it is as if they had these, and it were so much larger."""
    apart, together = (
        PatchEncoder(
            Patches(3, 12), STACK, image_size=(6, 15), recipe=Recipe(position=Learned(n, 12)), pool="class", **more
        )
        .double()
        .eval()
        for n, more in ((10, {}), (11, {"class_position": True}))
    )
    weights = apart.state_dict()
    first = torch.randn(12, dtype=torch.float64)
    weights["positions.learned.0.weight"] = torch.cat([first[None], weights["positions.learned.0.weight"]])
    together.load_state_dict(weights)
    with torch.no_grad():
        apart.get_parameter("pool.token").add_(first)
    x = pictures()
    assert_close(apart(x), together(x))


def test_layers_do_not_share_weights():
    made = model(Recipe(position=RelativeBias(Clipped(3), heads=3)))
    assert len({weight.data_ptr() for weight in made.parameters()}) == len(list(made.parameters()))
    first, second = (dict(layer.named_parameters()) for layer in made.encoder.layers)
    assert not torch.equal(first["attention.query.weight"], second["attention.query.weight"])


@pytest.mark.parametrize("pool", POOLS)
def test_shapes_are_learned_by_heart(pool):
    stack = StackConfig(layers=2, model=24, heads=2, hidden=48, activation="gelu")
    made = VisionTransformer(Patches(4, 24), stack, image_size=(24, 24), classes=3, pool=pool)
    assert_learns_shapes(made, steps=60)


def test_what_does_not_fit_is_refused():
    def made(**changes):
        given = {"image_size": (6, 15), "classes": 7} | changes
        return VisionTransformer(Patches(3, 12), STACK, **given)

    with pytest.raises(ValueError, match="no pool is called 'max'; there are class, mean"):
        made(pool="max")
    with pytest.raises(ValueError, match="do not tile an image of 7 x 15"):
        made(image_size=(7, 15))
    with pytest.raises(ValueError, match="classes = 0 should be at least 1"):
        made(classes=0)
    with pytest.raises(ValueError, match="patches of width 13 do not fit layers of width 12"):
        VisionTransformer(Patches(3, 13), STACK, image_size=(6, 15), classes=7)
    with pytest.raises(ValueError, match="images of 6 x 15 pixels, not 15 x 6; resize them"):
        made()(torch.zeros(1, 3, 15, 6))
    with pytest.raises(ValueError, match=r"3 channels, rows, columns\), not \(1, 1, 6, 15\)"):
        made()(torch.zeros(1, 1, 6, 15))
