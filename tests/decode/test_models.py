"""The contracts on the ladder's own models: cached = uncached, any batch, and scores that are the model's own."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from regard.attention import record_attention
from regard.decode import (
    AnnotatedPair,
    Beam,
    Greedy,
    LengthLimit,
    Sampling,
    choose_head,
    cross_attention_maps,
    score,
    stream,
    translate,
)
from regard.models import ModelConfig, Seq2Seq, build_model

from .toy_models import naive_beam, naive_greedy, same

small = partial(ModelConfig, model=12, hidden=14, layers=1, dropout=0.3)
CONFIGS = {
    "gru": small(kind="gru"),
    "bahdanau": small(kind="bahdanau"),
    "luong": small(kind="luong-general", input_feeding=True),
    "transformer": small(kind="transformer", heads=3, layers=2),
}
WITH_ATTENTION = [name for name in CONFIGS if name != "gru"]
SOURCES = [(5, 9, 4), (), (7,), (10, 10, 3, 8, 6, 5, 4), (4, 6)]
SHORT = LengthLimit(0.5, 5)


def model(name: str) -> Seq2Seq:
    """Untrained models hardly prefer a token; larger weights make them decided, and some translations end."""
    torch.manual_seed(13)
    made = build_model(CONFIGS[name], 11, 11)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.5)
        made.get_parameter("embeddings.bias")[2] = 3.0
    return made


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_batch_with_a_cache_finds_what_one_sentence_from_scratch_finds(name):
    made = model(name).double()
    beam = Beam(3, 0.8, 0.2 if name in WITH_ATTENTION else 0.0, n_best=3, max_length=SHORT)
    found, greedy = translate(made, SOURCES, beam), translate(made, SOURCES, Greedy(SHORT))
    ends = {h.finished for some in found for h in some}
    made.eval()  # for the searches below, which know nothing of resting
    for source, some, [first] in zip(SOURCES, found, greedy, strict=True):
        limit = SHORT.of(len(source))
        expected = naive_beam(made, source, limit, beam)
        assert [(h.ids, h.finished) for h in some] == [(ids, finished) for ids, _, _, finished in expected]
        assert [h.score for h in some] == pytest.approx([value for _, _, value, _ in expected], abs=1e-9)
        assert (first.ids, first.finished) == naive_greedy(made, source, limit)[::2]
    assert True in ends


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "search",
    [Greedy(SHORT), Beam(4, 0.6, n_best=4, max_length=SHORT), Sampling(seed=3, samples=2, max_length=SHORT)],
    ids=lambda search: type(search).__name__,
)
def test_in_single_precision_no_batch_changes_a_translation(name, search):
    made = model(name)
    together = translate(made, SOURCES, search)
    others = [translate(made, SOURCES[: n + 1], search)[n] for n in range(len(SOURCES))]
    for one, other in zip(together, others, strict=True):
        assert all(same(*pair, within=1e-5) for pair in zip(one, other, strict=True))
    finished = [(source, h) for source, some in zip(SOURCES, together, strict=True) for h in some if h.finished]
    own = score(made, [source for source, _ in finished], [h.ids for _, h in finished])
    assert [h.log_probability for _, h in finished] == pytest.approx(own, abs=1e-5)


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_forced_weights_are_those_of_reading_token_by_token(name):
    made, source, target = model(name).double().eval(), (5, 9, 4), (7, 6)
    [attention] = cross_attention_maps(made, [source], [target])
    memory = made.encode(torch.tensor([[*source, 2]]), torch.tensor([4]))
    state, rows = made.start(memory), []
    for token in (1, *target):
        with record_attention(made) as record:
            _, state = made.step(torch.tensor([[token]]), state, memory)
        rows.append({layer: record.weights(layer) for layer in attention.layers})
    for layer, weights in attention.layers.items():
        assert_close(weights, torch.cat([row[layer][0] for row in rows], 1))
        assert_close(weights.sum(-1), torch.ones(weights.shape[:2], dtype=torch.double))


def test_a_head_can_be_chosen_and_a_stream_read():
    made = model("transformer")
    links = frozenset({(0, 0), (1, 1)})
    head = choose_head(made, [AnnotatedPair((5, 6), (7, 8), (0, 1), (0, 1), links)])
    assert head.layer in cross_attention_maps(made, [(5,)], [(6,)])[0].layers
    assert tuple(stream(made, (5, 9), Greedy(SHORT))) == translate(made, [(5, 9)], Greedy(SHORT))[0][0].ids


def test_a_model_without_attention_says_so():
    made = model("gru")
    with pytest.raises(ValueError, match="use coverage_penalty=0"):
        translate(made, [(5,)], Beam(3, coverage_penalty=0.2))
    with pytest.raises(ValueError, match="the model has no cross-attention; use a model with attention"):
        cross_attention_maps(made, [(5,)], [(6,)])
