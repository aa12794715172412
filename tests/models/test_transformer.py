"""Transformer: its recipes, its KV caches, its initialisation, and torch's own for comparison."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.attention import (
    POSITIONS,
    RECIPES,
    Additive,
    Alibi,
    Causal,
    Recipe,
    RecipeSizes,
    Sinusoidal,
    Sparsemax,
    Window,
    from_torch,
    get_recipe,
)
from regard.decode import prepare
from regard.layers import TiedEmbeddings
from regard.layers.transformer_layers import DecoderLayer, EncoderLayer, Residual
from regard.models import StackConfig, Transformer
from regard.models.transformer import make_causal
from tests.models.small_models import LENGTHS, SOURCE, TARGET, model_of, sentences
from tests.narrowing import assert_all_instances, assert_is_instance

SIZES = RecipeSizes(heads=2, head=4, tokens=7, window=2, block=2)
STACK = StackConfig(layers=2, model=8, heads=2, hidden=11)


def test_branches_that_nothing_norms_start_so_small_that_their_sum_is_as_one():
    post = replace(STACK, norm="post")
    assert (STACK.init_gain(9), post.init_gain(9)) == (pytest.approx(1 / 3), 1.0)


def test_a_norm_follows_the_last_layer_unless_each_sum_is_normed():
    assert isinstance(STACK.final_norm(), nn.LayerNorm)
    assert isinstance(replace(STACK, norm_type="rms").final_norm(), nn.RMSNorm)
    assert isinstance(replace(STACK, norm="post").final_norm(), nn.Identity)


def encoder_layers(model: Transformer) -> list[EncoderLayer]:
    return assert_all_instances(model.encoder, EncoderLayer)


def decoder_layers(model: Transformer) -> list[DecoderLayer]:
    return assert_all_instances(model.decoder, DecoderLayer)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("position", ["sinusoidal", "alibi"])
@pytest.mark.parametrize("name", RECIPES)
def test_any_recipe_serves_the_encoder(name, position):
    """And a sentence never feels its padding."""
    recipe = get_recipe(name, position, SIZES)
    model = Transformer(TiedEmbeddings(SOURCE, TARGET, 8), STACK, encoder=recipe).double().eval()
    source, lengths, target = sentences()
    together = model(source, lengths, target)
    n, length = 2, LENGTHS[2]
    alone = model(source[n : n + 1, :length], lengths[n : n + 1], target[n : n + 1])
    assert_close(alone[0], together[n], rtol=0, atol=1e-10)


@pytest.mark.parametrize("position", POSITIONS)
def test_any_position_serves_both_sides(position):
    recipe = Recipe(position=POSITIONS[position](SIZES))
    model = Transformer(TiedEmbeddings(SOURCE, TARGET, 8), STACK, encoder=recipe, decoder=recipe).double().eval()
    source, lengths, target = sentences()
    source[0] = torch.arange(3, 10)
    moved = source.clone()
    moved[0] = source[0, [3, 1, 2, 0, 4, 5, 6]]
    felt = not torch.allclose(model(moved, lengths, target)[0], model(source, lengths, target)[0])
    assert felt == (position != "none")
    model(source, lengths, target).square().sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_layers_built_from_one_recipe_share_nothing():
    recipe = get_recipe("bahdanau", "learned", SIZES)
    model = Transformer(TiedEmbeddings(SOURCE, TARGET, 8), STACK, encoder=recipe, decoder=recipe)
    scores = [weight for name, weight in model.named_parameters() if name.endswith("score.v")]
    places = [weight for name, weight in model.named_parameters() if "positions" in name]
    assert len({id(weight) for weight in scores}) == 4
    assert len({id(weight) for weight in places}) == 2
    assert id(assert_is_instance(recipe.score, Additive).v) not in map(id, model.parameters())


def test_the_decoder_is_causal_whatever_its_recipe():
    assert make_causal(Recipe()).pattern == make_causal(Recipe(pattern=Causal())).pattern == Causal()
    assert make_causal(Recipe(pattern=Window(3))).pattern == Window(3) & Causal()


def test_the_source_is_projected_once():
    """Memory holds each layer's keys and values; reading on touches them no more."""
    model, (source, lengths, target) = model_of("transformer, one group"), sentences()
    memory = model.encode(source, lengths)
    assert [[tuple(x.shape) for x in layer] for layer in memory.layers] == [[(3, 1, 7, 4)] * 2] * 2
    touched = []
    for layer in decoder_layers(assert_is_instance(model, Transformer)):
        layer.cross.key.register_forward_hook(lambda *_: touched.append("key"))
    _, state = model.step(target, model.start(memory), memory)
    assert touched == []
    assert [cache.length for cache in state.layers] == [5, 5]


def test_a_linear_decoder_remembers_a_state_of_fixed_size():
    model, (source, lengths, target) = model_of("transformer, linear decoder"), sentences()
    memory = model.encode(source, lengths)
    state, sizes = model.start(memory), set()
    for word in target.split(1, 1):
        _, state = model.step(word, state, memory)
        sizes.add(state.layers[0].past.kv.numel())
    assert len(sizes) == 1


def test_cross_attention_has_no_embeddings():
    with pytest.raises(ValueError, match="give it to the encoder's or the decoder's recipe"):
        Transformer(TiedEmbeddings(SOURCE, TARGET, 8), STACK, cross=Recipe(position=Sinusoidal()))


def test_a_recipe_for_each_layer():
    recipes = [Recipe(pattern=Window(2)), Recipe(normaliser=Sparsemax())]
    embeddings = TiedEmbeddings(SOURCE, TARGET, 8)
    model = Transformer(embeddings, STACK, encoder=recipes, decoder=recipes, cross=recipes[::-1])
    assert [layer.attention.recipe for layer in encoder_layers(model)] == recipes
    assert [layer.cross.recipe for layer in decoder_layers(model)] == recipes[::-1]
    assert [layer.attention.recipe for layer in decoder_layers(model)] == [make_causal(recipe) for recipe in recipes]
    assert prepare(model) is model  # decoding by prepared layers asks all of them, not the first alone


def test_recipes_that_do_not_fit_their_layers_are_refused():
    embeddings, plain = TiedEmbeddings(SOURCE, TARGET, 8), Recipe()
    for place in ("encoder", "decoder", "cross"):
        recipes: dict[str, Any] = {place: [plain] * 3}
        with pytest.raises(ValueError, match=f"^{place} has 3 recipes for 2 layers; give one, or one for each$"):
            Transformer(embeddings, STACK, **recipes)
    message = (
        r"^encoder: layers add Sinusoidal\(theta=10000.0\) and nothing to the embeddings, which is done once for all"
    )
    with pytest.raises(ValueError, match=message):
        Transformer(embeddings, STACK, encoder=[Recipe(position=Sinusoidal()), plain])
    Transformer(embeddings, STACK, decoder=[Recipe(position=Sinusoidal() + Alibi(2)), Recipe(position=Sinusoidal())])


# --- torch's own beside it ---


def take(ours: Transformer, theirs: nn.Transformer) -> None:
    """The weights of torch's layers into ours."""
    encoder = assert_is_instance(theirs.encoder, nn.TransformerEncoder).layers
    for mine, other in zip(
        encoder_layers(ours), assert_all_instances(encoder, nn.TransformerEncoderLayer), strict=True
    ):
        mine.attention.load_state_dict(from_torch(other.self_attn).state_dict())
        take_rest(mine, other, [mine.residual_attention, mine.residual_feed_forward], [other.norm1, other.norm2])
    decoder = assert_is_instance(theirs.decoder, nn.TransformerDecoder).layers
    for mine, other in zip(
        decoder_layers(ours), assert_all_instances(decoder, nn.TransformerDecoderLayer), strict=True
    ):
        mine.attention.load_state_dict(from_torch(other.self_attn).state_dict())
        mine.cross.load_state_dict(from_torch(other.multihead_attn).state_dict())
        around = [mine.residual_attention, mine.residual_cross, mine.residual_feed_forward]
        take_rest(mine, other, around, [other.norm1, other.norm2, other.norm3])


def take_rest(
    mine: EncoderLayer | DecoderLayer,
    other: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer,
    around: list[Residual],
    norms: list[nn.LayerNorm],
) -> None:
    mine.feed_forward.up.load_state_dict(other.linear1.state_dict())
    mine.feed_forward.down.load_state_dict(other.linear2.state_dict())
    for residual, norm in zip(around, norms, strict=True):
        residual.norm.load_state_dict(norm.state_dict())


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_torchs_transformer_agrees(norm):
    """The same weights give the same scores. (After post-norm torch norms once more, which Vaswani does not.)"""
    ours = Transformer(TiedEmbeddings(SOURCE, TARGET, 8), StackConfig(layers=2, model=8, heads=2, hidden=11, norm=norm))
    theirs = nn.Transformer(8, 2, 2, 2, 11, 0.0, batch_first=True, norm_first=norm == "pre").double()
    ours = ours.double().eval()
    take(ours, theirs)
    if norm == "post":
        theirs.encoder.norm = theirs.decoder.norm = None
    source, lengths, target = sentences()
    padding = torch.arange(7) >= lengths[:, None]
    x, y = (
        Sinusoidal().embed(read(words), torch.arange(words.shape[1]))
        for read, words in ((ours.embeddings.embed_source, source), (ours.embeddings.embed_target, target))
    )
    ahead = torch.ones(5, 5).triu(1).bool()
    out = theirs(x, y, tgt_mask=ahead, src_key_padding_mask=padding, memory_key_padding_mask=padding)
    assert_close(ours(source, lengths, target), ours.logits(out))


# --- how it starts ---


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_deep_stack_starts_at_size_one(norm):
    """Whatever the depth, scores begin neither vanished nor exploded."""
    for layers in (1, 8):
        stack = StackConfig(layers=layers, model=64, heads=4, hidden=128, norm=norm)
        model = Transformer(TiedEmbeddings(101, 103, 64), stack)
        logits = model(torch.randint(3, 101, (3, 11)), torch.tensor([11, 5, 7]), torch.randint(3, 103, (3, 13)))
        assert 0.5 < logits.std() < 2


def test_branches_start_smaller_where_nothing_norms_their_sum():
    pre, post = (
        Transformer(TiedEmbeddings(5, 5, 64), StackConfig(layers=8, model=64, heads=4, hidden=128, norm=norm))
        for norm in ("pre", "post")
    )
    large, small = (model.get_parameter("encoder.0.feed_forward.down.weight").std() for model in (post, pre))
    assert_close((large / small).item(), 4.0, rtol=0.05, atol=0)  # √16: eight layers of two branches
    assert_close(
        post.get_parameter("encoder.0.attention.query.weight").std().item(), (1 / 128) ** 0.5, rtol=0.05, atol=0
    )
