"""Descriptions of models that read and write: from a table and back, and what they refuse."""

import pytest
import torch

from regard.models.reading_config import EncoderConfig, PoolingConfig, WriterConfig, build_pooling

CONFIGS = [
    EncoderConfig(kind="embed", model=7),
    EncoderConfig(kind="gru", directions=2),
    EncoderConfig(kind="transformer", groups=2, recipe='position = "Rotary()"'),
    WriterConfig(kind="lstm", tied=False),
    WriterConfig(kind="transformer", recipe='pattern = "Window(5)"'),
    PoolingConfig(recipe='normaliser = "Hard()"'),
    PoolingConfig(kind="max"),
]


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_a_description_comes_back_from_its_table(config):
    table = config.to_dict()
    assert None not in table.values()
    assert type(config).from_dict(table) == config


E, W, P = EncoderConfig, WriterConfig, PoolingConfig


@pytest.mark.parametrize(
    ("config", "given", "complaint"),
    [
        (E, {"kind": "cnn"}, "kind = 'cnn' is unknown; choose from embed, elman, gru, lstm, transformer"),
        (E, {"kind": "embed", "hidden": 5}, "hidden = 5 means nothing to the kind 'embed'"),
        (E, {"kind": "transformer", "directions": 2}, "directions = 2 means nothing to .*: elman, gru, lstm"),
        (E, {"kind": "gru", "heads": 2}, "heads = 2 means nothing to the kind 'gru'"),
        (E, {"kind": "gru", "hidden": 7, "directions": 2}, "cannot share hidden = 7; make it even"),
        (E, {"kind": "gru", "directions": 3}, "directions = 3 should be 1 or 2"),
        (E, {"kind": "transformer", "heads": 3}, "heads = 3 does not divide model = 128"),
        (E, {"kind": "transformer", "groups": 3}, "groups = 3 does not divide heads = 4"),
        (E, {"kind": "gru", "model": "wide"}, "model = 'wide' should be a whole number"),
        (E, {"kind": "gru", "dropout": 1.0}, "dropout = 1.0 should lie in"),
        (E, {"kind": "transformer", "norm": "no"}, "norm = 'no' is unknown; choose from pre, post"),
        (E, {"kind": "transformer", "recipe": 'position = "Alibi(3)"'}, "the recipe: Alibi.* 3 heads, not 4"),
        (E, {"kind": "transformer", "recipe": 'masks = "x"'}, "the recipe: a recipe has no 'masks'"),
        (E, {"kind": "gru", "width": 3}, "EncoderConfig has no 'width'; it has kind, layers"),
        (W, {"kind": "embed"}, "kind = 'embed' is unknown; choose from elman, gru, lstm, transformer"),
        (W, {"kind": "lstm", "tied": 1}, "tied = 1 should be true or false"),
        (W, {"kind": "transformer", "recipe": 'position = "TreeDepth()"'}, "TreeDepth.* wants the trees of whole"),
        (W, {}, "WriterConfig needs a kind: elman, gru, lstm, transformer"),
        (P, {"kind": "sum"}, "kind = 'sum' is unknown; choose from mean, max, last, tf-idf, log-ratio"),
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
    WriterConfig(kind="transformer", recipe='score = "Bilinear(32)"')
    PoolingConfig(recipe='score = "Additive(5, 3)"')
    assert torch.equal(torch.rand(3), expected)


def test_a_pooling_that_does_not_fit_the_encoder_is_refused():
    with pytest.raises(ValueError, match="compares widths"):
        build_pooling(PoolingConfig(recipe='score = "Additive(5, 3)"'), 7, 11)
