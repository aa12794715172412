"""Descriptions of models: to plain values and back, named sizes, and mistakes that are named."""

import tomllib
from dataclasses import replace

import pytest
import torch

from regard.attention import Additive, Causal, Clipped, Dot, Recipe, RelativeVectors, Sinusoidal, Softmax, Sparsemax
from regard.models import KINDS, ModelConfig, build_model, parameters
from regard.models.config import recipe
from tests.models.ladder import LADDER, SOURCE, TARGET


def as_toml(config: ModelConfig) -> str:
    """Every value that a description holds has a place in a TOML file."""
    lines = ((name, f"'''{value}'''" if isinstance(value, str) else value) for name, value in config.to_dict().items())
    return "\n".join(f"{name} = {str(value).lower() if isinstance(value, bool) else value}" for name, value in lines)


@pytest.mark.parametrize("name", LADDER)
def test_to_a_file_and_back(name):
    config = LADDER[name]
    assert ModelConfig.from_dict(tomllib.loads(as_toml(config))) == config


@pytest.mark.parametrize("size", ["tiny", "small"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_sizes(kind, size):
    model = build_model(ModelConfig.named(kind, size), SOURCE, TARGET)
    logits = model(torch.randint(3, SOURCE, (2, 5)), torch.tensor([5, 3]), torch.randint(3, TARGET, (2, 3)))
    assert logits.shape == (2, 3, TARGET)


def test_base_is_vaswanis():
    """Table 3 says 65 million with a joint vocabulary of about 37,000; counted, it is 63: 44 in the layers."""
    config = ModelConfig.named("transformer", "base")
    assert (config.layers, config.model, config.heads, config.hidden, config.norm) == (6, 512, 8, 2048, "post")
    with torch.device("meta"):
        model = build_model(replace(config, tie="all"), 37_000, 37_000)
    assert round(parameters(model) / 1e6) == 63
    attention, feed_forward, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    layers = 6 * (3 * attention + 2 * feed_forward + 5 * norm)
    assert parameters(model) == layers + 37_000 * 512 + 37_000


def test_a_recipe_says_what_is_different_and_the_kind_the_rest():
    sparse = ModelConfig(kind="bahdanau", hidden=10, cross='normaliser = "Sparsemax()"')
    got = recipe(sparse, "cross")
    assert isinstance(got.score, Additive)
    assert (got.score.query, got.score.hidden, got.score.key) == (10, 10, 20)
    assert got.normaliser == Sparsemax()
    assert recipe(ModelConfig(kind="luong-dot"), "cross") == Recipe(score=Dot())
    windowed = ModelConfig(kind="transformer", encoder='pattern = "Causal()"')
    assert recipe(windowed, "encoder") == Recipe(position=Sinusoidal(), pattern=Causal(), normaliser=Softmax())
    assert recipe(windowed, "cross") == Recipe()
    shaw = Recipe(position=RelativeVectors(Clipped(3), head=4))
    again = recipe(ModelConfig(kind="transformer", model=16, decoder=shaw.to_toml()), "decoder")
    assert again.to_toml() == shaw.to_toml()


def test_describing_draws_no_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    ModelConfig(kind="bahdanau")
    assert torch.equal(torch.rand(1), expected)


MISTAKES: dict[str, tuple[dict, str]] = {
    "no kind": ({}, "needs a kind: elman, gru"),
    "unknown kind": ({"kind": "rnn"}, "kind = 'rnn' is unknown; choose from elman, gru, lstm, bahdanau"),
    "unknown field": ({"kind": "gru", "width": 3}, "ModelConfig has no 'width'; it has kind, layers"),
    "wrong type": ({"kind": "gru", "layers": "2"}, "layers = '2' should be a whole number"),
    "truth for a number": ({"kind": "gru", "layers": True}, "layers = True should be"),
    "nothing": ({"kind": "gru", "hidden": 0}, "hidden = 0 should be at least 1"),
    "all dropped": ({"kind": "gru", "dropout": 1.0}, r"dropout = 1.0 should lie in \[0, 1\)"),
    "heads without a Transformer": ({"kind": "gru", "heads": 8}, "heads = 8 means nothing to the kind 'gru'"),
    "a cell twice": ({"kind": "gru", "cell": "lstm"}, "cell = 'lstm' means nothing to the kind 'gru'"),
    "attention where there is none": ({"kind": "lstm", "cross": 'score = "Dot()"'}, "choose a kind that uses it: bahd"),
    "feeding a Transformer": ({"kind": "transformer", "input_feeding": True}, "luong-dot, luong-general"),
    "odd halves": ({"kind": "lstm", "hidden": 7, "directions": 2}, "hidden = 7; make it even"),
    "three ways": ({"kind": "lstm", "directions": 3}, "directions = 3 should be 1 or 2"),
    "heads": ({"kind": "transformer", "model": 10, "heads": 4}, "heads = 4 does not divide model = 10"),
    "groups": ({"kind": "transformer", "groups": 3}, "groups = 3 does not divide heads = 4"),
    "norm": ({"kind": "transformer", "norm": "middle"}, "norm = 'middle' is unknown; choose from pre, post"),
    "a part": ({"kind": "transformer", "encoder": 'score = "Nearest()"'}, "the recipe 'encoder': cannot read"),
    "a line": ({"kind": "transformer", "cross": "scores = 3"}, "the recipe 'cross': a recipe has no 'scores'"),
    "not TOML": ({"kind": "transformer", "cross": "Softmax()"}, "the recipe 'cross': "),
    "slopes": ({"kind": "transformer", "encoder": 'position = "Alibi(8)"'}, "'encoder': .* slopes for 8 heads, not 4"),
    "places": ({"kind": "transformer", "decoder": 'position = "Learned(9, 64)"'}, "words of width 64, not 128"),
    "widths": ({"kind": "bahdanau", "cross": 'score = "Dot()"'}, "one width, not 256 and 512"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_with_their_remedy(mistake):
    given, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(given)


def test_a_size_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="no size is called 'huge'; there are tiny, small, base"):
        ModelConfig.named("gru", "huge")
