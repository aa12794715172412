"""Language models: chunking changes nothing, and attention is causal."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from regard.attention import (
    LAYER_RECIPES,
    Causal,
    GatedDelta,
    Global,
    KVCache,
    NoGate,
    TopBlocks,
    Window,
    get_layer_recipes,
)
from regard.attention.backends.linear import LinearState
from regard.models.config import LanguageModelConfig
from regard.models.language_model import LanguageModel, LockedDropout, max_lookback
from regard.models.transformer import KVCaches
from regard.see import AttentionSite, trace_module
from regard.see.edits import Edits, HeadOff
from tests.narrowing import assert_is_instance
from tests.recorded import call_recorded

SIZE = 17
FIXED = ("transformer, linear", "transformer, gated delta")  # with a state of fixed size
EXACT: Any = {"rtol": 0.0, "atol": 1e-10}


def recurrent(kind: str, **changes: Any) -> LanguageModelConfig:
    return LanguageModelConfig(**{"kind": kind, "layers": 2, "model": 6, "hidden": 10, "dropout": 0.0} | changes)


def transformer(recipe: str | tuple[str, ...] = "", **changes: Any) -> LanguageModelConfig:
    sizes = {"layers": 2, "model": 8, "hidden": 11, "heads": 2, "dropout": 0.0}
    return LanguageModelConfig(**{"kind": "transformer", "recipe": recipe, **sizes} | changes)


LINEAR = 'score = "Feature()"\nnormaliser = "Proportional()"'
STATE = 'score = "Cosine(1.0)"\nnormaliser = "Unnormalised()"\n'
UNNORMALISED = ("transformer, gated delta", "transformer, retention and rotary")  # whose weights do not sum to 1
WRITERS = {
    "elman": recurrent("elman", layers=1),
    "gru": recurrent("gru", tied=False),
    "lstm": recurrent("lstm", hidden=6),
    "lstm, dropped": recurrent("lstm", word_dropout=0.3, weight_dropout=0.4),
    "transformer": transformer(),
    "transformer, untied": transformer(tied=False, norm="post", groups=1),
    "transformer, rotary": transformer('position = "Rotary()"'),
    "transformer, learned places": transformer('position = "Learned(longest=11, model=8)"'),
    "transformer, window": transformer('pattern = "Window(3)"'),
    "transformer, window of itself": transformer('pattern = "Window(1)"'),
    "transformer, window and rotary": transformer('pattern = "Causal() & Window(4)"\nposition = "Rotary()"'),
    "transformer, window and distances": transformer('pattern = "Window(3)"\nposition = "Alibi(2)"'),
    "transformer, window and shaw": transformer('pattern = "Window(3)"\nposition = "RelativeVectors(Clipped(2), 4)"'),
    "transformer, window and beginning": transformer('pattern = "Window(2) | Global(1)"'),
    "transformer, linear": transformer(LINEAR),
    "transformer, linear and rotary": transformer(LINEAR + '\nposition = "Rotary()"'),
    "transformer, forget": transformer('gate = "Forget()"'),
    "transformer, forget and window": transformer('gate = "Forget()"\npattern = "Window(3)"'),
    "transformer, gated delta": transformer(STATE + 'gate = "GatedDelta()"', groups=1),
    "transformer, retention and rotary": transformer(STATE + 'gate = "Retention()"\nposition = "Rotary()"'),
    "transformer, sparsemax": transformer('normaliser = "Sparsemax()"'),
    "transformer, a window, linear, all": transformer(('pattern = "Window(3)"', LINEAR, ""), layers=3),
    "transformer, windows of its layers": transformer(('pattern = "Window(2)"', 'pattern = "Window(5)"')),
}


def writer_of(name: str) -> LanguageModel:
    return LanguageModel(WRITERS[name], SIZE).double().eval()


def texts():
    return torch.randint(0, SIZE, (3, 11))


def by_pieces(model, tokens, pieces):
    state, parts = model.start(len(tokens)), []
    for words in tokens.split(pieces, 1):
        logits, state = model.step(words, state)
        parts.append(logits)
    return torch.cat(parts, 1), state


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pieces", [[1] * 11, [5, 1, 2, 3]], ids=["word by word", "in pieces"])
@pytest.mark.parametrize("name", WRITERS)
def test_reading_on_is_reading_at_once(name, pieces):
    model, tokens = writer_of(name), texts()
    assert_close(by_pieces(model, tokens, pieces)[0], model(tokens), **EXACT)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WRITERS)
def test_in_single_precision_too(name):
    model, tokens = writer_of(name).float(), texts()
    assert_close(by_pieces(model, tokens, [1] * 11)[0], model(tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", WRITERS)
def test_nobody_sees_the_future(name):
    """So padding behind a text changes nothing before it either."""
    model, tokens = writer_of(name), texts()
    other = tokens.clone()
    other[:, 7:] = (other[:, 7:] + 1) % SIZE
    assert_close(model(other)[:, :7], model(tokens)[:, :7], **EXACT)
    assert not torch.allclose(model(other)[:, 7:], model(tokens)[:, 7:])
    assert_close(model(tokens[1:2, :5])[0], model(tokens)[1, :5], **EXACT)  # company, too


@pytest.mark.parametrize("name", WRITERS)
def test_picked_texts_go_on_where_they_were(name):
    """Reordered, left out and repeated; the old state stays as it was."""
    model, tokens = writer_of(name), texts()
    rows = torch.tensor([2, 0, 2, 2])
    _, state = model.step(tokens[:, :6], model.start(3))
    expected, _ = model.step(tokens[:, 6:], state)
    assert_close(model.step(tokens[rows, 6:], state.pick(rows))[0], expected[rows], **EXACT)
    assert_close(model.step(tokens[rows], model.start(3).pick(rows))[0], model(tokens)[rows], **EXACT)
    assert torch.equal(model.step(tokens[:, 6:], state)[0], expected)


@pytest.mark.parametrize("name", [name for name in WRITERS if not name.endswith("itself")])
def test_a_detached_state_says_the_same_and_has_no_past_to_learn_from(name):
    model, tokens = writer_of(name), texts() % 8
    early, late = tokens[:, :6], tokens[:, 6:] + 8  # words that stand nowhere before
    _, state = model.step(early, model.start(3))
    expected, _ = model.step(late, state)
    logits, _ = model.step(late, state.detach())
    assert torch.equal(logits, expected)

    def learnt(scores):
        """By the words read early, leaving aside that they are scored as well."""
        (gradient,) = torch.autograd.grad(scores[..., 8:].square().sum(), model.embedding.weight)
        return gradient[early.unique()].abs().sum()

    assert learnt(logits) == 0
    assert learnt(expected) > 0


@pytest.mark.parametrize("name", ["lstm, dropped", "transformer", "transformer, window", "transformer, linear"])
def test_half_precision_is_near(name):
    model, tokens = writer_of(name).float(), texts()
    with torch.autocast("cpu", torch.bfloat16):
        half = by_pieces(model, tokens, [4, 7])[0]
        model.train()(tokens).float().logsumexp(-1).sum().backward()
    assert_close(half.float(), model.eval()(tokens), rtol=0, atol=0.1)


@pytest.mark.parametrize("name", WRITERS)
def test_recording_captures_weights_and_changes_nothing(name):
    model, tokens = writer_of(name), texts()
    logits, record = call_recorded(model, tokens)
    assert_close(logits, model(tokens), **EXACT)
    layers = [f"blocks.{n}" for n in range(WRITERS[name].layers)]
    assert list(record.calls) == (layers if name.startswith("transformer") else [])
    for weights in map(record.weights, record.calls):
        assert weights.shape == (3, 2, 11, 11)
        assert (weights.triu(1) == 0).all()
        if name not in UNNORMALISED:
            assert_close(weights.sum(-1), torch.ones(3, 2, 11, dtype=torch.double))


def remembered(state) -> int:
    return sum(
        x.numel()
        for layer in state.layers
        for x in (layer.past if type(layer.past) is tuple else vars(layer.past).values())
        if x is not None
    )


def test_a_window_and_linear_attention_remember_no_more_of_a_longer_text():
    sizes = {}
    for name in ("transformer", "transformer, window", "transformer, window of itself", *FIXED):
        model = writer_of(name)
        sizes[name] = [remembered(model.step(torch.randint(0, SIZE, (1, n)), model.start(1))[1]) for n in (5, 50)]
    assert sizes["transformer"][1] == 10 * sizes["transformer"][0]
    assert sizes["transformer, window"] == [2 * 2 * 2 * 8] * 2  # two layers, keys and values, two words, their width
    assert sizes["transformer, window of itself"] == [0, 0]
    for name in FIXED:
        assert sizes[name][0] == sizes[name][1] > 0


def cached_tokens(cache: KVCache) -> int:
    keys, _ = assert_is_instance(cache.past, tuple)
    return keys.shape[2]


def test_each_layer_remembers_what_its_own_recipe_needs():
    model = writer_of("transformer, a window, linear, all")
    for n in (5, 50):
        _, state = model.step(torch.randint(0, SIZE, (1, n)), model.start(1))
        window, linear, every = assert_is_instance(state, KVCaches).layers
        assert isinstance(linear.past, LinearState)
        assert (cached_tokens(window), cached_tokens(every)) == (2, n)
        assert {window.length, linear.length, every.length} == {n}
    assert model.memory_grows(model.step(texts(), model.start(3))[1])
    windows = writer_of("transformer, windows of its layers")
    state = assert_is_instance(windows.step(texts(), windows.start(3))[1], KVCaches)
    assert [cached_tokens(layer) for layer in state.layers] == [1, 4]
    assert not windows.memory_grows(state)


def test_how_far_back_a_pattern_sees():
    assert max_lookback(Window(3)) == 2
    assert max_lookback(Causal() & Window(5) & Window(4)) == 3
    assert max_lookback(Window(2) | Window(7)) == 6
    assert max_lookback(Causal()) is None
    assert max_lookback(Window(3) | Global(1)) is None
    assert max_lookback(Window(3) & TopBlocks(2, 4)) is None  # which is chosen among all keys


@pytest.mark.parametrize("name", WRITERS)
def test_every_weight_learns_and_is_stored_once(name):
    model, tokens = writer_of(name).train(), texts()
    model(tokens).logsumexp(-1).sum().backward()
    idle = [key for key, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    # a window of itself has one weight, 1, whatever the query and the key
    alone = ("key.weight", "query.weight", "query.bias") if name.endswith("itself") else ()
    assert [key for key in idle if not key.endswith(("key.bias", *alone))] == []
    weights = model.state_dict()
    assert len({weight.data_ptr() for weight in weights.values()}) == len(weights)


def test_tied_words_are_scored_by_the_table_that_reads_them():
    """A state that equals a word's row scores it by the row's square, wherever the state came from."""
    model = writer_of("lstm")
    assert_close(
        model.logits(model.embedding.weight[None])[0], model.embedding.weight @ model.embedding.weight.T, **EXACT
    )
    assert "output.weight" not in model.state_dict()
    assert "output.weight" in writer_of("gru").state_dict()


def test_locked_dropout_has_one_mask_for_all_words_of_a_text():
    x = torch.ones(3, 5, 101)
    dropped = LockedDropout(0.5).train()(x)
    assert (dropped == dropped[:, :1]).all()
    assert not torch.equal(dropped[0], dropped[1])
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(LockedDropout(0.5).eval()(x), x)


def test_a_recurrent_writers_states_are_dropped_as_they_leave():
    model, tokens = LanguageModel(replace(WRITERS["gru"], dropout=0.5), SIZE).train(), texts()
    x, _ = model.backbone.read(model.embed(tokens), model.start(3))
    gone = x == 0
    assert 0.2 < gone.float().mean() < 0.8
    assert (gone == gone[:, :1]).all()


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_what_is_read_and_what_is_scored_can_be_dropped_besides(name):
    tokens = texts()
    read = LanguageModel(replace(WRITERS[name], input_dropout=0.5), SIZE).train().embed(tokens)
    scored, _ = (model := LanguageModel(replace(WRITERS[name], output_dropout=0.5), SIZE).train()).decode_hidden(
        tokens, model.start(3)
    )
    for x in (read, scored):
        gone = x == 0
        assert 0.1 < gone.float().mean() < 0.9
        assert (gone == gone[:, :1]).all()
    assert not (model.eval().decode_hidden(tokens, model.start(3))[0] == 0).any()


def test_a_dropped_word_is_dropped_wherever_it_stands():
    model = LanguageModel(transformer(word_dropout=0.5), SIZE).train()
    tokens = torch.arange(SIZE).repeat(2, 2)
    x = model.embed(tokens)
    gone = (x == 0).all(-1)
    assert 0 < gone[0, :SIZE].sum() < SIZE
    assert (gone == gone[0, :SIZE].repeat(2, 2)).all()
    assert_close(x[~gone], 2 * model.embedding.embed(tokens)[~gone])
    assert torch.equal(model.eval().embed(tokens), model.embedding.embed(tokens))


@pytest.mark.parametrize("name", ["lstm, dropped", "elman"])
def test_dropped_weights_are_drawn_for_each_call_and_only_while_training(name):
    config = replace(WRITERS[name], weight_dropout=0.5, word_dropout=0.0)
    model, tokens = LanguageModel(config, SIZE), texts()
    assert not torch.allclose(model.train()(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), model(tokens))


TRANSFORMERS = ["transformer", "transformer, window", "transformer, linear", "transformer, gated delta"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["elman", "gru", "lstm", *TRANSFORMERS])
def test_a_rhyme_is_learnt(name):
    assert_learns_rhyme(WRITERS[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "gate", ["Retention()", "Lightning(2)", "ScalarDecay()", "VectorDecay()", "Delta()", "GatedDelta()", "KimiDelta()"]
)
def test_a_rhyme_is_learnt_with_every_gate_and_stored(gate):
    config = transformer(f'{STATE}gate = "{gate}"')
    model, again, tokens = assert_learns_rhyme(config), LanguageModel(config, SIZE).eval(), texts()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(tokens), model(tokens))
    assert_close(by_pieces(again, tokens, [1] * 11)[0], model(tokens), rtol=0, atol=1e-4)


def assert_learns_rhyme(config: LanguageModelConfig) -> LanguageModel:
    """Each word is told by the one before it."""
    tokens = (torch.arange(12) + torch.arange(4)[:, None]) % 5
    model = LanguageModel(config, SIZE).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimiser.step()
    assert (model.eval()(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]).float().mean() > 0.9
    return model


# --- recipes of layers ---


LATENT = {"recipe": "position = 'Rotary(fraction=0.5)'", "kv_rank": 5, "rotary_head": 4, "value_head": 6}
OF_LAYERS: dict[str, Any] = {name: {"recipe": name} for name in LAYER_RECIPES} | {"latent": LATENT}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OF_LAYERS)
def test_recipes_of_layers_are_settings_decode_as_they_read_and_are_seen_as_they_ran(name):
    sizes = {"layers": 4, "model": 16, "heads": 2, "hidden": 8, "dropout": 0.0}
    config = LanguageModelConfig(kind="transformer", **sizes, **OF_LAYERS[name])
    assert LanguageModelConfig.from_dict(config.to_dict()) == config
    model = LanguageModel(config, 11).double().eval()
    tokens = torch.randint(0, 11, (2, 9))
    state, logits = model.start(2), []
    for piece in tokens.split([4, 1, 1, 3], 1):
        found, state = model.step(piece, state)
        logits.append(found)
    assert_close(torch.cat(logits, 1), model(tokens))
    output, sites = trace_module(model, tokens)
    assert_close(output, model(tokens))
    assert list(sites) == [f"blocks.{n}" for n in range(4)]
    assert all(assert_is_instance(site, AttentionSite).check().holds for site in sites.values())
    changed, _ = trace_module(model, tokens, edits=Edits(off=(HeadOff("blocks.2", 1),)))
    assert not torch.allclose(changed, output)


def test_a_hybrid_ends_with_its_full_layer_whatever_the_depth():
    for layers in (1, 2, 4, 6, 7, 12):
        gates = [type(one.gate) for one in get_layer_recipes("3 gated delta : 1 full", layers)]
        assert gates == [NoGate if (layers - n) % 4 == 1 else GatedDelta for n in range(layers)]
    windows = [one.pattern == Causal() & Window(64) for one in get_layer_recipes("5 window : 1 full", 12)]
    assert windows == ([True] * 5 + [False]) * 2


def test_an_unknown_recipe_of_layers_is_refused():
    with pytest.raises(ValueError, match=r"no recipe of layers is called '3 delta'; there are softmax"):
        LanguageModelConfig(kind="transformer", recipe="3 delta")
