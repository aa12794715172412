"""Hooks: any module's attention is recorded or replaced while a block lasts, for one thread alone."""

from threading import Barrier, Thread

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.attention import (
    Alibi,
    AttentionCall,
    AttentionCore,
    Causal,
    Feature,
    GateCall,
    GateCore,
    Hard,
    KVCache,
    MultiHeadAttention,
    Proportional,
    Recipe,
    Rotary,
    SiteName,
    Sparsemax,
    Window,
    attend,
    core,
    parse_part,
    record_attention,
    record_steps,
    steps,
)
from regard.attention.core import AttentionSites, RecordedCall, hook_attention, is_recorded
from tests.narrowing import assert_all_instances, assert_is_instance

ODD = Recipe(position=Alibi(2), pattern=Window(3), normaliser=Sparsemax())


class Reader(nn.Module):
    """Two layers and a gate, which say nothing about themselves."""

    attention_sites: AttentionSites  # undeclared unless it is set

    def __init__(self, recipe: Recipe = ODD):
        super().__init__()
        self.layers = nn.ModuleList(MultiHeadAttention(6, heads=2, recipe=recipe) for _ in range(2))
        self.gate = nn.ModuleDict({"core": GateCore("a gate of the test")})

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x * self.gate["core"](torch.sigmoid(x.mean(-1)))[..., None]


class Outer(nn.Module):
    """Declares some of what is inside."""

    def __init__(self):
        super().__init__()
        self.one, self.two = Reader(), Reader()
        self.attention_sites = {"one.layers.*": SiteName("first.*", "text", "text")}

    def forward(self, x):
        return self.two(self.one(x))


def is_clean(module: nn.Module) -> bool:
    return not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def test_a_model_that_declares_nothing_is_recorded_by_its_paths():
    model, x = Reader().double().eval(), torch.randn(3, 7, 6, dtype=torch.double)
    with record_attention(model) as record:
        output = model(x)
    assert torch.equal(output, model(x))
    assert list(record.calls) == ["layers.0", "layers.1", "gate"]
    assert {(site.queries, site.keys) for site in record.sites} == {("queries", "keys")}
    layer = assert_is_instance(model.layers[0], MultiHeadAttention)
    assert_close(record.weights("layers.0"), layer.look(x)[1].weights)
    (call,) = record.calls_of("layers.0")
    assert isinstance(call, AttentionCall)
    assert call.layer is layer
    assert_close(steps(call.q, call.k, call.v, call.recipe).output, call.output)
    (gate,) = record.calls_of("gate")
    assert isinstance(gate, GateCall)
    assert gate.note == "a gate of the test"
    assert record.weights("gate").shape == (3, 1, 1, 7)
    with pytest.raises(ValueError, match=r"there is no site 'layers.2'; there are layers.0, layers.1, gate"):
        record.weights("layers.2")


def test_names_are_those_that_the_outermost_module_gives():
    model = Outer().eval()
    model.two.attention_sites = {"layers.*": SiteName("block.*", "text", "text")}
    model.one.attention_sites = {"layers.*": SiteName("hidden.*", "", "")}  # the model around it declares others
    with record_attention(model) as record:
        model(torch.randn(1, 5, 6))
    assert list(record.calls) == ["first.0", "first.1", "one.gate", "two.block.0", "two.block.1", "two.gate"]


def test_an_output_can_be_replaced_and_nothing_stays_behind():
    model, x = Reader().eval(), torch.randn(2, 5, 6)
    before = model(x)

    def second_layer_gives_nothing(call: RecordedCall) -> Tensor | None:
        return (
            torch.zeros_like(call.output) if isinstance(call, AttentionCall) and call.site.name == "layers.1" else None
        )

    with hook_attention(model, second_layer_gives_nothing):
        changed = model(x)
        assert is_recorded(model)
    assert not torch.equal(changed, before)
    for name in ("weight", "bias"):
        nn.init.zeros_(model.get_parameter(f"layers.1.value.{name}"))
    assert torch.equal(model(x), changed)
    assert is_clean(model)
    assert not is_recorded(model)
    with pytest.raises(ZeroDivisionError), record_attention(model):
        raise ZeroDivisionError
    assert is_clean(model)


def test_threads_that_share_a_model_do_not_see_each_other():
    """Two replace outputs, one records, one only reads; each at once, many times."""
    model, x = Reader().eval(), torch.randn(1, 5, 6)
    plain, start, found = model(x), Barrier(4), {}
    with hook_attention(model, lambda call: call.output * 2 if isinstance(call, AttentionCall) else None):
        doubled = model(x)

    def run(name, factor):
        start.wait()
        found[name] = True
        for _ in range(60):
            if factor is None:
                with record_attention(model) as record:
                    output = model(x)
                found[name] &= len(record.calls["layers.0"]) == 1 and torch.equal(output, plain)
            elif factor == 1:
                found[name] &= torch.equal(model(x), plain) and not is_recorded(model)
            else:
                with hook_attention(model, lambda call: call.output * 2 if isinstance(call, AttentionCall) else None):
                    found[name] &= torch.equal(model(x), doubled)

    threads = [Thread(target=run, args=pair) for pair in (("a", 2), ("b", 2), ("c", None), ("d", 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys("abcd", True)
    assert is_clean(model)


def test_what_is_drawn_while_training_is_what_is_recorded():
    layer = MultiHeadAttention(6, heads=2, recipe=Recipe(normaliser=Hard())).double().train()
    x = torch.randn(4, 9, 6, dtype=torch.double)
    with record_steps(layer) as record:
        output = layer(x)
    (seen,) = record.steps("attention")
    (call,) = record.calls_of("attention")
    assert isinstance(call, AttentionCall)
    assert seen.output is call.output
    assert_close(layer.merge_heads(seen.weights @ call.v), output)
    drawn = record.log_probability("attention")
    assert drawn is not None
    assert drawn.requires_grad
    with record_steps(layer.eval()) as record:
        layer(x)
    assert record.log_probability("attention") is None


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(pattern=Causal(), position=Rotary()),
        Recipe(pattern=Causal() & Window(3)),
        Recipe(pattern=Causal(), score=Feature(), normaliser=Proportional()),
    ],
)
def test_a_cache_that_is_recorded_keeps_every_key(recipe):
    """Linear attention keeps its keys then, and not their sums; the weights are those of the whole text."""
    layer = MultiHeadAttention(8, heads=2, recipe=recipe).double().eval()
    x = torch.randn(1, 7, 8, dtype=torch.double)
    with record_attention(layer) as whole:
        at_once = layer(x)
    cache, parts = KVCache(), []
    with record_attention(layer) as record:
        for part in x.split([3, 1, 3], 1):
            output, cache = layer.extend(part, cache)
            parts.append(output)
    assert_close(torch.cat(parts, 1), at_once)
    calls = assert_all_instances(record.calls_of("attention"), AttentionCall)
    assert [call.q_index for call in calls] == [0, 3, 4]
    assert_close(record.weights("attention"), whole.weights("attention"))


def test_sums_that_were_begun_unrecorded_are_refused():
    layer = MultiHeadAttention(
        6, heads=2, recipe=Recipe(pattern=Causal(), score=Feature(), normaliser=Proportional())
    ).eval()
    _, cache = layer.extend(torch.randn(1, 3, 6))
    with pytest.raises(ValueError, match="record from the first token on"), record_attention(layer):
        layer.extend(torch.randn(1, 1, 6), cache)


def test_a_core_alone_runs_what_it_is_given():
    alone, (q, k, v) = AttentionCore(), torch.randn(3, 1, 2, 5, 4)
    assert_close(alone(q, k, v, Recipe()), steps(q, k, v, Recipe()).output)
    assert alone(q, k, v, Recipe(), kernel=lambda q, k, v, recipe: v * 2).equal(v * 2)
    with record_attention(alone) as record:
        alone(q, k, v, Recipe(), kernel=lambda q, k, v, recipe: steps(q, k, v, recipe).output)
    assert_close(record.weights("attention"), steps(q, k, v, Recipe()).weights)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(normaliser=parse_part("Sparsemax()"), pattern=parse_part("Causal()")),
        Recipe(position=parse_part("Alibi(2)"), normaliser=parse_part("TopK(3)")),
        Recipe(position=parse_part("Rotary()"), normaliser=parse_part("Sparsemax()")),
    ],
)
def test_what_the_reference_alone_runs_is_run_some_queries_at_a_time(recipe, monkeypatch):
    q, k, v = torch.randn(3, 1, 2, 97, 8)
    at_once = AttentionCore()(q[:, :, 11:], k, v, recipe, q_index=11)
    formed = []
    monkeypatch.setattr(core, "MAX_CELLS", 97)
    monkeypatch.setattr(core, "CELLS_AT_ONCE", 2 * 97 * 5)
    monkeypatch.setattr(core, "attend", lambda q, *given, **where: formed.append(q) or attend(q, *given, **where))
    with torch.no_grad():
        torch.testing.assert_close(AttentionCore()(q[:, :, 11:], k, v, recipe, q_index=11), at_once)
    assert [part.shape[2] for part in formed] == [5] * 17 + [1]
    AttentionCore()(q[:, :, 11:], k, v, recipe, q_index=11)  # whoever asks for gradients needs all weights anyway
    assert formed[-1].shape[2] == 86
