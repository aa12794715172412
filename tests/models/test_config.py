"""Model configurations: to plain values and back, sizes, and error messages."""

import json
import tomllib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from regard.attention import Additive, Causal, Clipped, Dot, Recipe, RelativeVectors, Sinusoidal, Softmax, Sparsemax
from regard.attention.parts import PartText
from regard.layers import FeedForward, PreNorm
from regard.models import KINDS, ModelConfig, build_model, count_parameters
from regard.models.config import EncoderConfig, LanguageModelConfig, PoolingConfig, build_pooling, build_seq2seq_recipe
from tests.models.small_models import LADDER, SOURCE, TARGET


def as_toml(config: ModelConfig) -> str:
    """Every value that a description holds has a place in a TOML file."""
    lines = (
        (name, json.dumps(value) if isinstance(value, str | list) else value)
        for name, value in config.to_dict().items()
    )
    return "\n".join(f"{name} = {str(value).lower() if isinstance(value, bool) else value}" for name, value in lines)


@pytest.mark.parametrize("name", LADDER)
def test_to_a_file_and_back(name):
    config = LADDER[name]
    assert ModelConfig.from_dict(tomllib.loads(as_toml(config))) == config


@pytest.mark.parametrize("size", ["tiny", "small"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_sizes(kind, size):
    model = build_model(ModelConfig.from_size(kind, size), SOURCE, TARGET)
    logits = model(torch.randint(3, SOURCE, (2, 5)), torch.tensor([5, 3]), torch.randint(3, TARGET, (2, 3)))
    assert logits.shape == (2, 3, TARGET)


def test_base_is_vaswanis():
    """Table 3 says 65 million with a joint vocabulary of about 37,000; counted, it is 63: 44 in the layers."""
    config = ModelConfig.from_size("transformer", "base")
    assert (config.layers, config.model, config.heads, config.hidden, config.norm) == (6, 512, 8, 2048, "post")
    with torch.device("meta"):
        model = build_model(replace(config, tie="all"), 37_000, 37_000)
    assert round(count_parameters(model) / 1e6) == 63
    attention, feed_forward, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    layers = 6 * (3 * attention + 2 * feed_forward + 5 * norm)
    assert count_parameters(model) == layers + 37_000 * 512 + 37_000


def test_a_recipe_overrides_the_defaults_of_the_kind():
    sparse = ModelConfig(kind="bahdanau", hidden=10, cross='normaliser = "Sparsemax()"')
    got = build_seq2seq_recipe(sparse, "cross")
    assert isinstance(got.score, Additive)
    assert (got.score.query, got.score.hidden, got.score.key) == (10, 10, 20)
    assert got.normaliser == Sparsemax()
    assert build_seq2seq_recipe(ModelConfig(kind="luong-dot"), "cross") == Recipe(score=Dot())
    windowed = ModelConfig(kind="transformer", encoder='pattern = "Causal()"')
    assert build_seq2seq_recipe(windowed, "encoder") == Recipe(
        position=Sinusoidal(), pattern=Causal(), normaliser=Softmax()
    )
    assert build_seq2seq_recipe(windowed, "cross") == Recipe()
    shaw = Recipe(position=RelativeVectors(Clipped(3), head=4))
    again = build_seq2seq_recipe(ModelConfig(kind="transformer", model=16, decoder=shaw.to_toml()), "decoder")
    assert again.to_toml() == shaw.to_toml()


def test_a_recipe_object_is_its_text():
    recipe = Recipe(pattern=Causal(), normaliser=Sparsemax())
    config = ModelConfig(kind="transformer", encoder=recipe, decoder=(recipe, Recipe()))
    assert config == ModelConfig(
        kind="transformer", encoder=recipe.to_toml(), decoder=(recipe.to_toml(), Recipe().to_toml())
    )
    assert build_seq2seq_recipe(config, "encoder") == recipe  # without a position: a recipe is taken as it is
    assert config.to_dict()["decoder"] == [recipe.to_toml(), Recipe().to_toml()]
    assert LanguageModelConfig(kind="transformer", recipe=recipe).recipe == recipe.to_toml()
    assert PoolingConfig(recipe=Recipe(normaliser=Sparsemax())).recipe == Recipe(normaliser=Sparsemax()).to_toml()
    with pytest.raises(ValueError, match=r"recipe = 3 should be text$"):
        PoolingConfig(recipe=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"norm = Recipe.* should be text$"):
        ModelConfig(kind="transformer", norm=recipe)  # type: ignore[arg-type]


class Sandwich(PreNorm):
    """A residual connection of a user's own."""


def cube(x):
    return x**3


class Half(nn.Module):
    """A readout of a user's own."""

    def __init__(self, width: int, out: int):
        super().__init__()
        self.weight = nn.Linear(width, out)

    def forward(self, x):
        return self.weight(x) / 2


def own(name: str) -> PartText:
    return PartText(name, {"Sandwich": Sandwich, "cube": cube, "Half": Half})


def test_layers_can_be_a_users_own():
    config = ModelConfig(kind="transformer", layers=1, model=8, heads=2, norm=own("Sandwich"), activation=own("cube"))
    model = build_model(replace(config, dropout=0.0), SOURCE, TARGET)
    kinds = {type(module) for module in model.modules()}
    assert Sandwich in kinds
    assert PreNorm not in kinds
    assert {module.activation for module in model.modules() if isinstance(module, FeedForward)} == {cube}
    readout = build_model(ModelConfig(kind="bahdanau", model=8, hidden=8, readout=own("Half")), SOURCE, TARGET)
    assert any(isinstance(module, Half) for module in readout.modules())


@pytest.mark.parametrize(
    ("field", "name", "message"),
    [
        ("norm", "cube", "norm = 'cube' is a part of your own, and no subclass of Residual; name one that is"),
        ("activation", "Half", "activation = 'Half' is a part of your own, and no function of a tensor"),
        ("norm", "Sandwitch", "norm = 'Sandwitch' is unknown; choose from pre, post"),
        ("tie", "Half", "tie = 'Half' is unknown; choose from"),
    ],
)
def test_a_part_of_another_kind_is_refused(field, name, message):
    lines: dict[str, Any] = {"kind": "transformer", field: own(name)}
    with pytest.raises(ValueError, match=message):
        ModelConfig(**lines)


def test_describing_draws_no_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    ModelConfig(kind="bahdanau")
    assert torch.equal(torch.rand(1), expected)


MISTAKES: dict[str, tuple[dict, str]] = {
    "no kind": ({}, "needs a kind: elman, gru"),
    "unknown kind": ({"kind": "rnn"}, "kind = 'rnn' is unknown; choose from elman, gru, lstm, bahdanau"),
    "unknown field": ({"kind": "gru", "width": 3}, "ModelConfig has no 'width'; choose from kind, layers"),
    "wrong type": ({"kind": "gru", "layers": "2"}, "layers = '2' should be a whole number"),
    "truth for a number": ({"kind": "gru", "layers": True}, "layers = True should be"),
    "nothing": ({"kind": "gru", "hidden": 0}, "hidden = 0 should be at least 1"),
    "all dropped": ({"kind": "gru", "dropout": 1.0}, "dropout = 1.0 should be at least 0 and below 1"),
    "heads without a Transformer": ({"kind": "gru", "heads": 8}, "heads = 8 means nothing to the kind 'gru'"),
    "a cell twice": ({"kind": "gru", "cell": "lstm"}, "cell = 'lstm' means nothing to the kind 'gru'"),
    "attention where there is none": ({"kind": "lstm", "cross": 'score = "Dot()"'}, "choose a kind that uses it: bahd"),
    "feeding a Transformer": ({"kind": "transformer", "input_feeding": True}, "luong-dot, luong-general"),
    "odd halves": ({"kind": "lstm", "hidden": 7, "directions": 2}, "hidden = 7; make it even"),
    "three ways": ({"kind": "lstm", "directions": 3}, "directions = 3 should be at least 1 and at most 2"),
    "heads": ({"kind": "transformer", "model": 10, "heads": 4}, "heads = 4 does not divide model = 10"),
    "groups": ({"kind": "transformer", "groups": 3}, "groups = 3 does not divide heads = 4"),
    "norm": ({"kind": "transformer", "norm": "middle"}, "norm = 'middle' is unknown; choose from pre, post"),
    "a part": ({"kind": "transformer", "encoder": 'score = "Nearest()"'}, "the recipe 'encoder': cannot read"),
    "three recipes for two layers": (
        {"kind": "transformer", "encoder": ("", "", "")},
        "encoder has 3 recipes for 2 layers; give one, or one for each",
    ),
    "several embedding positions": (
        {"kind": "transformer", "decoder": ("", 'position = "Rotary()"')},
        r"decoder: layers add Sinusoidal\(theta=10000.0\) and nothing to the embeddings",
    ),
    "several recipes for one attention": (
        {"kind": "bahdanau", "cross": ("", "")},
        "cross has 2 recipes, and a bahdanau has one attention; give one",
    ),
    "numbers for recipes": (
        {"kind": "transformer", "cross": (1, 2)},
        r"cross = \[1, 2\] should be text, or a list of texts, one for each layer",
    ),
    "a line": ({"kind": "transformer", "cross": "scores = 3"}, "the recipe 'cross': a recipe has no 'scores'"),
    "not TOML": ({"kind": "transformer", "cross": "Softmax()"}, "the recipe 'cross': "),
    "slopes": ({"kind": "transformer", "encoder": 'position = "Alibi(8)"'}, "'encoder': .* slopes for 8 heads, not 4"),
    "places": ({"kind": "transformer", "decoder": 'position = "Learned(9, 64)"'}, "embeddings of width 64, not 128"),
    "widths": ({"kind": "bahdanau", "cross": 'score = "Dot()"'}, "one width, not 256 and 512"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_with_their_remedy(mistake):
    given, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(given)


def test_a_size_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="no size is called 'huge'; there are tiny, small, base"):
        ModelConfig.from_size("gru", "huge")


# --- test reading config ---


CONFIGS = [
    EncoderConfig(kind="embed", model=7),
    EncoderConfig(kind="gru", directions=2),
    EncoderConfig(kind="transformer", groups=2, recipe='position = "Rotary()"'),
    LanguageModelConfig(kind="lstm", tied=False),
    LanguageModelConfig(kind="transformer", recipe='pattern = "Window(5)"'),
    LanguageModelConfig(kind="transformer", recipe=('pattern = "Window(5)"', "")),
    PoolingConfig(recipe='normaliser = "Hard()"'),
    PoolingConfig(kind="max"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_a_description_comes_back_from_its_table(config):
    table = config.to_dict()
    assert None not in table.values()
    assert type(config).from_dict(table) == config


E, W, P = EncoderConfig, LanguageModelConfig, PoolingConfig


@pytest.mark.parametrize(
    ("config", "given", "complaint"),
    [
        (E, {"kind": "cnn"}, "kind = 'cnn' is unknown; choose from embed, elman, gru, lstm, transformer"),
        (E, {"kind": "embed", "hidden": 5}, "hidden = 5 means nothing to the kind 'embed'"),
        (E, {"kind": "transformer", "directions": 2}, "directions = 2 means nothing to .*: elman, gru, lstm"),
        (E, {"kind": "gru", "heads": 2}, "heads = 2 means nothing to the kind 'gru'"),
        (E, {"kind": "gru", "hidden": 7, "directions": 2}, "cannot share hidden = 7; make it even"),
        (E, {"kind": "gru", "directions": 3}, "directions = 3 should be at least 1 and at most 2"),
        (E, {"kind": "transformer", "heads": 3}, "heads = 3 does not divide model = 128"),
        (E, {"kind": "transformer", "groups": 3}, "groups = 3 does not divide heads = 4"),
        (E, {"kind": "gru", "model": "wide"}, "model = 'wide' should be a whole number"),
        (E, {"kind": "gru", "dropout": 1.0}, "dropout = 1.0 should be at least 0 and below 1"),
        (E, {"kind": "transformer", "norm": "no"}, "norm = 'no' is unknown; choose from pre, post"),
        (E, {"kind": "transformer", "recipe": 'position = "Alibi(3)"'}, "the recipe: Alibi.* 3 heads, not 4"),
        (
            E,
            {"kind": "transformer", "recipe": ("",)},
            "recipe has 1 recipes for 2 layers; give one, or one for each",
        ),
        (E, {"kind": "transformer", "recipe": 'masks = "x"'}, "the recipe: a recipe has no 'masks'"),
        (E, {"kind": "gru", "width": 3}, "EncoderConfig has no 'width'; choose from kind, layers"),
        (W, {"kind": "embed"}, "kind = 'embed' is unknown; choose from elman, gru, lstm, transformer"),
        (W, {"kind": "lstm", "tied": 1}, "tied = 1 should be true or false"),
        (W, {"kind": "transformer", "recipe": 'position = "TreeDepth()"'}, "TreeDepth.* needs the trees of whole"),
        (W, {}, "LanguageModelConfig needs a kind: elman, gru, lstm, transformer"),
        (P, {"kind": "sum"}, "kind = 'sum' is unknown; choose from mean, max, last, class, tf-idf, log-ratio"),
        (P, {"kind": "mean", "recipe": 'normaliser = "Hard()"'}, "recipe = .* means nothing to the kind 'mean'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_remedy(config, given, complaint):
    with pytest.raises(ValueError, match=complaint):
        config.from_dict(given)


def test_a_description_draws_no_numbers():
    """A learned part is made to be checked; the seed of the model that follows is not touched."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    EncoderConfig(kind="transformer", recipe='score = "Bilinear(32)"\nposition = "Learned(longest=9, model=128)"')
    LanguageModelConfig(kind="transformer", recipe='score = "Bilinear(32)"')
    PoolingConfig(recipe='score = "Additive(5, 3)"')
    assert torch.equal(torch.rand(3), expected)


def test_a_pooling_that_does_not_fit_the_encoder_is_refused():
    with pytest.raises(ValueError, match="compares widths"):
        build_pooling(PoolingConfig(recipe='score = "Additive(5, 3)"'), 7, 11)
