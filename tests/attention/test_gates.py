"""Gates: worked examples on paper, laws, and every backend against the recursion token by token in float64."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize
from torch.testing import assert_close

from regard.attention import (
    BACKENDS,
    Alibi,
    Causal,
    Cosine,
    Delta,
    Documents,
    Dot,
    Forget,
    Full,
    Gate,
    GatedDelta,
    KimiDelta,
    Lightning,
    MultiHeadAttention,
    NoGate,
    Padding,
    Proportional,
    Recipe,
    Retention,
    ScalarDecay,
    Softmax,
    StatsRequest,
    Unnormalised,
    VectorDecay,
    Window,
    attend,
    attention_stats,
    explain,
    record_attention,
    steps,
)
from regard.attention.backends import state
from regard.attention.backends.linear import LinearState
from regard.attention.gate import FixedDecay, StateGate
from regard.attention.pattern import Positions
from regard.attention.position import Bias
from regard.models.safetensors_io import load_weights, write_weights
from tests.narrowing import assert_is_instance, not_none

B, H, D, E = 2, 4, 5, 3
Values = dict[str, Any]  # of a gate, tensors by name
STATES = [Retention(), Lightning(H), ScalarDecay(), VectorDecay(), Delta(), GatedDelta(), KimiDelta()]
KINDS = [Forget(), *STATES]


def recipe_of(gate: Gate, **parts) -> Recipe:
    """The plainest recipe that the gate runs with."""
    plain = {} if not isinstance(gate, StateGate | NoGate) else {"score": Dot(), "normaliser": Unnormalised()}
    return Recipe(**{"pattern": Causal(), "gate": gate} | plain | parts)


def random_values(gate: Gate, t: int, *, strength: float = 2.0, dtype=torch.double, b: int = B) -> Values:
    """Decays from none to strong ones, and β from 0 to 1."""
    made = {}
    if "log_decay" in gate.values:
        made["log_decay"] = -strength * torch.rand(b, H, t, *((D,) if gate.decay == "vector" else ()), dtype=dtype)
    if "beta" in gate.values:
        made["beta"] = torch.rand(b, H, t, dtype=dtype)
    return {name: x.requires_grad_() for name, x in made.items()}


def random_inputs(t: int, groups: int = H, dtype=torch.double) -> tuple[Tensor, Tensor, Tensor]:
    """Keys of length 1, with which the delta rule is stable."""
    q, k, v = (torch.randn(B, n, t, w, dtype=dtype) for n, w in ((H, D), (groups, D), (groups, E)))
    return q.requires_grad_(), normalize(k, dim=-1).requires_grad_(), v.requires_grad_()


def bind(recipe: Recipe, values: Values) -> Recipe:
    return recipe.with_gate(**values) if values else recipe


def recursion(gate: Gate, q: Tensor, k: Tensor, v: Tensor, values: Values, ids: Tensor | None = None) -> Tensor:
    """S_t = (I - β_t k_t k_tᵀ) Diag(a_t) S_{t-1} + β_t k_t v_tᵀ and o_t = S_tᵀ q_t, as the papers write it."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    memory, out = torch.zeros(*q.shape[:2], k.shape[3], v.shape[3], dtype=q.dtype), []
    for t in range(q.shape[2]):
        if ids is not None and t and not bool((ids[:, t] == ids[:, t - 1]).all()):
            memory = memory * (ids[:, t] == ids[:, t - 1])[:, None, None, None]
        if isinstance(gate, FixedDecay):
            memory = gate.rate(torch.arange(q.shape[1])).exp()[None, :, None, None] * memory
        if "log_decay" in values:
            a = values["log_decay"][:, :, t].exp()
            memory = (a if a.dim() == 3 else a[..., None])[..., None] * memory
        key, value = k[:, :, t, :, None], v[:, :, t, None]
        if "beta" in values:
            beta = values["beta"][:, :, t, None, None]
            memory = memory - beta * key @ (key.mT @ memory) + beta * key @ value
        else:
            memory = memory + key @ value
        out.append(q[:, :, t, None] @ memory)
    return torch.cat(out, 2)


def values_and_gradients(out: Tensor, inputs: list[Tensor], upstream: Tensor) -> list[Tensor]:
    return [out, *torch.autograd.grad(out, inputs, upstream, retain_graph=True, materialize_grads=True)]


# --- on paper ---


def test_a_forget_gate_of_one_half_halves_the_weight_of_what_is_one_token_older():
    q = torch.zeros(1, 1, 3, 2)
    gated = recipe_of(Forget()).with_gate(log_decay=torch.tensor([[[9.0, 0.5, 0.5]]]).log())
    seen = steps(q, q, q, gated)
    assert_close(seen.weights[0, 0], torch.tensor([[1.0, 0, 0], [1 / 3, 2 / 3, 0], [1 / 7, 2 / 7, 4 / 7]]))
    assert_close(seen.adjusted[0, 0, 2], torch.tensor([0.25, 0.5, 1]).log())


def test_a_state_that_decays_by_hand():
    """q = k = 1: the weights are products of the decays between; v = 8, 4, 2."""
    one, v = torch.ones(1, 1, 3, 1), torch.tensor([8.0, 4.0, 2.0]).view(1, 1, 3, 1)
    recipe = recipe_of(ScalarDecay()).with_gate(log_decay=torch.tensor([[[0.3, 0.5, 0.25]]]).log())
    seen = steps(one, one, v, recipe)
    assert_close(seen.weights[0, 0], torch.tensor([[1.0, 0, 0], [0.5, 1, 0], [0.125, 0.25, 1]]))
    assert_close(seen.output[0, 0, :, 0], torch.tensor([8.0, 4 + 4, 1 + 1 + 2]))


def test_a_decay_of_each_feature_by_hand():
    q, k = torch.tensor([[1.0, 1.0], [1.0, 10.0]]), torch.tensor([[2.0, 3.0], [1.0, 1.0]])
    decay = torch.tensor([[0.9, 0.9], [0.5, 0.1]]).log()[None, None]
    weights = steps(q[None, None], k[None, None], k[None, None], recipe_of(VectorDecay()).with_gate(log_decay=decay))
    assert_close(weights.weights[0, 0], torch.tensor([[5.0, 0], [1 * 2 * 0.5 + 10 * 3 * 0.1, 11]]))


def test_the_delta_rule_by_hand():
    """β = 1/2 and the same key three times: u₁ = v₁/2, u₂ = (v₂ - v₁/2)/2, u₃ = (v₃ - v₁/4 - v₂/2)/2."""
    one, v = torch.ones(1, 1, 3, 1), torch.tensor([8.0, 4.0, 2.0]).view(1, 1, 3, 1)
    seen = steps(one, one, v, recipe_of(Delta()).with_gate(beta=torch.full((1, 1, 3), 0.5)))
    assert_close(seen.weights[0, 0], torch.tensor([[1 / 2, 0, 0], [1 / 4, 1 / 2, 0], [1 / 8, 1 / 4, 1 / 2]]))
    assert_close(seen.output[0, 0, :, 0], torch.tensor([4.0, 4.0, 3.0]))


def test_the_gated_delta_rule_by_hand():
    """β = 1/2, a = 1/2, one key twice: S₁ = v₁/2, S₂ = (1 - 1/2) S₁/2 + v₂/2 = v₁/8 + v₂/2."""
    one, half = torch.ones(1, 1, 2, 1), torch.full((1, 1, 2), 0.5)
    seen = steps(one, one, one, recipe_of(GatedDelta()).with_gate(log_decay=half.log(), beta=half))
    assert_close(seen.weights[0, 0], torch.tensor([[1 / 2, 0], [1 / 8, 1 / 2]]))


def test_retention_and_lightning_decay_as_their_papers_say():
    assert_close(Retention().rate(torch.arange(3)).exp(), torch.tensor([31 / 32, 63 / 64, 127 / 128]).double())
    assert_close(Lightning(4).rate(torch.arange(4)), -Alibi(4).slopes())
    q = torch.ones(1, 2, 2, 1).double()
    assert_close(steps(q, q, q, recipe_of(Retention())).weights[0, :, 1, 0], torch.tensor([31 / 32, 63 / 64]).double())


def test_the_gated_delta_rule_of_each_feature_by_hand():
    """β = 1, keys e₁ and e₂, a₂ = (1/2, 1/4): S₂ = e₁ v₁/2 + e₂ v₂, for e₂ erases nothing of e₁."""
    k, q = torch.eye(2)[None, None], torch.ones(1, 1, 2, 2)
    decay = torch.tensor([[0.9, 0.9], [0.5, 0.25]]).log()[None, None]
    gated = recipe_of(KimiDelta()).with_gate(log_decay=decay, beta=torch.ones(1, 1, 2))
    assert_close(steps(q, k, k, gated).weights[0, 0], torch.tensor([[1.0, 0], [0.5, 1]]))


def test_decays_are_sigmoids_of_what_is_projected_from_a_token():
    x, rate = torch.tensor([0.0, 3.0]).log1p(), torch.tensor(1.0)  # σ is 1/2 and 4/5
    assert_close(Forget().make_log_decay(x, rate).exp(), torch.tensor([1 / 2, 4 / 5]))
    assert_close(VectorDecay(temperature=2.0).make_log_decay(x, rate).exp(), torch.tensor([1 / 2, 4 / 5]).sqrt())


def test_scores_that_are_not_normalised_hide_what_is_no_number():
    scores = torch.tensor([[[[2.0, torch.nan, torch.inf, -1.0]]]])
    visible = torch.tensor([[[[True, False, False, True]]]])
    assert_close(Unnormalised().weigh(scores, visible), torch.tensor([[[[2.0, 0, 0, -1.0]]]]))


def test_a_recipe_without_a_gate_takes_no_values():
    with pytest.raises(ValueError, match="this recipe has no gate to give values to"):
        Recipe().with_gate(log_decay=torch.zeros(1, 1, 3))


# --- laws ---


@pytest.mark.parametrize("gate", [gate for gate in KINDS if not gate.delta and gate.values], ids=repr)
def test_a_gate_that_forgets_nothing_is_none(gate):
    q, k, v = random_inputs(7)
    ungated = Recipe(pattern=Causal()) if gate == Forget() else recipe_of(NoGate())
    values = {name: torch.zeros_like(x) for name, x in random_values(gate, 7).items()}
    assert_close(attend(q, k, v, bind(replace(ungated, gate=gate), values)), attend(q, k, v, ungated))


@pytest.mark.parametrize("gate", [gate for gate in KINDS if gate.values and "log_decay" in gate.values], ids=repr)
def test_a_decay_of_0_forgets_all_that_was_before(gate):
    q, k, v = random_inputs(9)
    recipe = recipe_of(gate)
    values = {name: x.detach() for name, x in random_values(gate, 9).items()}
    values["log_decay"][:, :, 4] = -1e9
    for backend in ("reference", explain(bind(recipe, values), q, k).backend):
        out = attend(q, k, v, bind(recipe, values), backend=backend)
        rest = {name: x[:, :, 4:] for name, x in values.items()}
        after = attend(q[:, :, 4:], k[:, :, 4:], v[:, :, 4:], bind(recipe, rest), backend=backend)
        assert_close(out[:, :, 4:], after)


@pytest.mark.parametrize("backend", ["reference", "state"])
def test_orthonormal_keys_are_stored_exactly_and_a_key_written_twice_is_overwritten(backend):
    keys, v = torch.linalg.qr(torch.randn(6, 6).double()).Q, torch.randn(1, 1, 8, 2).double()
    written = [0, 1, 2, 3, 1, 0, 4, 5]
    k = keys[written][None, None]
    recipe = recipe_of(Delta()).with_gate(beta=torch.ones(1, 1, 8).double())
    read = attend(keys[None, None, :].repeat(1, 1, 2, 1)[:, :, :8], k, v, recipe, backend=backend)
    # the last query asks with key 1 after all eight were written: the second value that was written under it
    assert_close(read[0, 0, 7], v[0, 0, 4])
    seen = steps(k, k, v, recipe).weights[0, 0]
    assert_close(seen, torch.eye(8).double())


@pytest.mark.parametrize("gate", STATES, ids=repr)
def test_what_is_hidden_cannot_be_felt(gate):
    q, k, v = (x.detach() for x in random_inputs(9))
    values = {name: x.detach() for name, x in random_values(gate, 9).items()}
    pattern = Causal() & Padding(torch.tensor([9, 6]))
    poisoned = k.clone()
    poisoned[1, :, 6:] = torch.nan
    for backend in ("reference", "state"):
        recipe = bind(recipe_of(gate, pattern=pattern), values)
        found = attend(q, poisoned, v, recipe, backend=backend)
        assert torch.equal(found, attend(q, k, v, recipe, backend=backend))


@pytest.mark.parametrize("gate", STATES, ids=repr)
def test_a_sentence_does_not_depend_on_its_batch(gate):
    q, k, v = (x.detach() for x in random_inputs(70))
    values = {name: x.detach() for name, x in random_values(gate, 70).items()}
    both = attend(q, k, v, bind(recipe_of(gate), values))
    alone = attend(q[1:], k[1:], v[1:], bind(recipe_of(gate), {name: x[1:] for name, x in values.items()}))
    assert_close(both[1:], alone, rtol=0, atol=1e-14)


# --- parity ---


@pytest.mark.parametrize("groups", [H, 2, 1])
@pytest.mark.parametrize("gate", STATES, ids=repr)
def test_the_effective_weights_are_the_recursion_in_value_and_every_gradient(gate, groups):
    q, k, v = random_inputs(11, groups)
    values = random_values(gate, 11)
    inputs, recipe = [q, k, v, *values.values()], bind(recipe_of(gate), values)
    want = recursion(gate, q, k, v, values)
    upstream = torch.randn_like(want)
    wanted = values_and_gradients(want, inputs, upstream)
    for backend in ("reference", "state"):
        got = values_and_gradients(attend(q, k, v, recipe, backend=backend), inputs, upstream)
        assert_close(got, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("t", [1, 63, 64, 65, 139])
@pytest.mark.parametrize("gate", STATES, ids=repr)
def test_chunks_of_any_length_agree_with_the_recursion(gate, t):
    q, k, v = random_inputs(t)
    values = random_values(gate, t)
    inputs, recipe = [q, k, v, *values.values()], bind(recipe_of(gate), values)
    assert explain(recipe, q, k).backend == "state"
    want = recursion(gate, q, k, v, values)
    upstream = torch.randn_like(want)
    got = values_and_gradients(attend(q, k, v, recipe), inputs, upstream)
    assert_close(got, values_and_gradients(want, inputs, upstream), rtol=1e-10, atol=1e-10)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("strength", [0.02, 3.0, 300.0])
@pytest.mark.parametrize("gate", [gate for gate in STATES if gate.values], ids=repr)
def test_single_precision_is_exact_to_five_digits_whatever_the_decay(gate, strength):
    """Strong decays first and weak ones later in a chunk: what the strong ones leave must not be rounded away."""
    q, k, v = random_inputs(139)
    values = random_values(gate, 139, strength=strength)
    if "log_decay" in values:
        with torch.no_grad():
            values["log_decay"][:, :, 1::3] *= 1e-3
    want = recursion(gate, q, k, v, values)
    upstream = torch.randn_like(want)
    wanted = values_and_gradients(want, [q, k, v, *values.values()], upstream)
    q, k, v = (x.detach().float().requires_grad_() for x in (q, k, v))
    values = {name: x.detach().float().requires_grad_() for name, x in values.items()}
    recipe = bind(recipe_of(gate), values)
    for backend in ("reference", "state"):
        inputs = [q, k, v, *values.values()]
        got = values_and_gradients(attend(q, k, v, recipe, backend=backend), inputs, upstream.float())
        for x, y in zip(got, wanted, strict=True):
            assert float((x.double() - y).abs().max().detach()) < 1e-5 * max(1.0, float(y.abs().max().detach()))


@pytest.mark.parametrize("gate", [NoGate(), *STATES[:4]], ids=repr)
def test_a_decayed_sum_divides_too(gate):
    """s / Σ s with decayed, positive scores, where the delta rule is refused."""
    q, k, v = (x.detach().abs().requires_grad_() for x in random_inputs(70))
    values = random_values(gate, 70)
    recipe = bind(recipe_of(gate, normaliser=Proportional()), values)
    want = attend(q, k, v, recipe, backend="reference")
    assert_close(steps(q, k, v, recipe).weights.sum(-1), torch.ones(B, H, 70).double())
    upstream, inputs = torch.randn_like(want), [q, k, v, *values.values()]
    got = values_and_gradients(attend(q, k, v, recipe, backend="state"), inputs, upstream)
    assert_close(got, values_and_gradients(want, inputs, upstream))


@pytest.mark.parametrize("gate", KINDS, ids=repr)
def test_every_backend_agrees_or_objects(gate):
    """With padding, with fewer queries than keys, and with grouped heads."""
    for groups, new, pattern in [
        (H, 11, Causal()),
        (2, 4, Causal()),
        (1, 11, Causal() & Padding(torch.tensor([11, 7]))),
    ]:
        q, k, v = random_inputs(11, groups)
        values = random_values(gate, 11)
        plain = recipe_of(gate, pattern=pattern)
        recipe, q = bind(plain, values), q[:, :, 11 - new :].detach().requires_grad_()
        want = attend(q, k, v, recipe, q_index=11 - new, backend="reference")
        upstream, inputs, ran = torch.randn_like(want), [q, k, v, *values.values()], set()
        for name, backend in BACKENDS.items():
            if not backend.objections(recipe, q, k, Positions.of(q, k, 11 - new, None)):
                got = attend(q, k, v, recipe, q_index=11 - new, backend=name)
                wanted = values_and_gradients(want, inputs, upstream)
                assert_close(values_and_gradients(got, inputs, upstream), wanted)
                ran.add(name)
        assert ran == ({"gather", "sdpa", "reference"} if gate == Forget() else {"state", "reference"})


@dataclass(frozen=True)
class EveryOther(StateGate):
    """Half is forgotten at every second token: a gate that no backend has seen."""

    decay = "scalar"

    @property
    def values(self):
        return ()

    def total_decay_at(self, b, h, j):
        return torch.div(j, 2, rounding_mode="floor") * torch.tensor(0.5).double().log()


def test_a_gate_of_ones_own_is_the_definitions_or_objected_to():
    q, k, v = random_inputs(5)
    recipe = recipe_of(EveryOther())
    assert "of its own making" in explain(recipe, q, k).reasons["state"][0]
    halved = torch.tensor([0, 0, 1, 0, 1]).double() * torch.tensor(0.5).double().log()
    want = recursion(ScalarDecay(), q, k, v, {"log_decay": halved.expand(B, H, 5)})
    assert_close(attend(q, k, v, recipe), want)


class LearnedTemperature(nn.Module, StateGate):
    """log a = log σ(w x) / τ, τ learned: a gate with weights."""

    decay = "scalar"

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def make_log_decay(self, x, rate):
        return logsigmoid(x) / self.temperature


def test_the_weights_of_a_gate_of_ones_own_are_stored_once_and_learn(tmp_path):
    one, other = (
        MultiHeadAttention(12, heads=H, recipe=recipe_of(LearnedTemperature()).fresh()).double() for _ in range(2)
    )
    assert [name for name in one.state_dict() if "temperature" in name] == ["learned.gate.temperature"]
    nn.init.constant_(assert_is_instance(one.recipe.gate, LearnedTemperature).temperature, 3.0)
    write_weights(one.state_dict(), tmp_path / "layer.safetensors")
    load_weights(other, tmp_path / "layer.safetensors")
    x = torch.randn(2, 9, 12).double()
    assert torch.equal(one(x), other(x))
    other(x).square().sum().backward()
    assert assert_is_instance(other.recipe.gate, LearnedTemperature).temperature.grad != 0


@dataclass(frozen=True)
class Fading(Gate):
    """Adds to a score what the tokens of the query and of the key say: no kind of gate that a cache knows."""

    decay = "scalar"

    def bind(self, log_decay, beta, first):
        return BoundFading(not_none(log_decay), first)


@dataclass(frozen=True, eq=False)
class BoundFading(Gate, Bias):
    log_decay: Tensor
    first: int

    def bind(self, log_decay, beta, first):
        return Fading().bind(log_decay, beta, first)

    def bias(self, b, h, i, j):
        return self.log_decay[b, h, i - self.first] + self.log_decay[b, h, j - self.first]


class KeptFading(Fading):
    def bind(self, log_decay, beta, first):
        return BoundKeptFading(not_none(log_decay), first)


class BoundKeptFading(BoundFading):
    def bind(self, log_decay, beta, first):
        return KeptFading().bind(log_decay, beta, first)

    def bound_values(self):
        return {"log_decay": self.log_decay}


def test_a_cache_keeps_what_was_bound_to_a_gate_of_ones_own_or_says_what_it_misses():
    x = torch.randn(2, 9, 12).double()
    plain, kept = (
        MultiHeadAttention(12, heads=H, recipe=recipe_of(gate)).double() for gate in (Fading(), KeptFading())
    )
    cache, parts = None, []
    for piece in x.split([4, 1, 4], 1):
        part, cache = kept.extend(piece, cache)
        parts.append(part)
    assert_close(torch.cat(parts, 1), kept(x))
    with pytest.raises(ValueError, match="BoundFading does not tell a KV cache what was bound to it"):
        plain.extend(x)


@pytest.mark.parametrize("piece", [4096, 48])
@pytest.mark.parametrize("gate", KINDS, ids=repr)
def test_the_state_begins_anew_with_every_document_of_a_packed_row(gate, piece, monkeypatch):
    monkeypatch.setattr(state, "PIECE", piece)
    monkeypatch.setattr(state, "CHUNK", min(piece, 64))
    ids = torch.tensor([[0] * 20 + [1] * 1 + [2] * 50 + [3] * 70, [5] * 64 + [6] * 64 + [7] * 13])
    q, k, v = random_inputs(141)
    values = random_values(gate, 141)
    pattern = Causal() & Documents(ids)
    recipe = bind(recipe_of(gate, pattern=pattern), values)
    want = attend(q, k, v, recipe, backend="reference")
    upstream, inputs = torch.randn_like(want), [q, k, v, *values.values()]
    wanted = values_and_gradients(want, inputs, upstream)
    assert_close(values_and_gradients(attend(q, k, v, recipe), inputs, upstream), wanted)
    if gate != Forget():
        assert explain(recipe, q, k).backend == "state"
        assert_close(want, recursion(gate, q, k, v, values, ids))


def test_a_document_that_is_taken_up_again_has_no_running_sum():
    q, k, _ = random_inputs(6)
    recipe = recipe_of(Retention(), pattern=Causal() & Documents(torch.tensor([[0, 0, 1, 1, 0, 0]] * 2)))
    assert "interrupted" in explain(recipe, q, k).reasons["state"][0]


@pytest.mark.parametrize("gate", [Forget(), VectorDecay(), KimiDelta()], ids=repr)
def test_gradcheck(gate):
    values = {name: x[:1, :, :5].detach() for name, x in random_values(gate, 5).items()}
    q, k, v = (x[:1].detach() for x in random_inputs(5))
    plain = recipe_of(gate)

    def run(q, k, v, *gates):
        return attend(q, k, v, plain.with_gate(**dict(zip(values, gates, strict=True))))

    inputs = [x[:, :1].clone().requires_grad_() for x in (q, k, v, *values.values())]
    assert torch.autograd.gradcheck(run, inputs)


# --- what is refused ---


def test_a_gate_without_its_values_says_what_it_wants():
    q, k, v = random_inputs(3)
    with pytest.raises(ValueError, match=r"GatedDelta\(\) has not been given.*log_decay=\.\.\., beta=\.\.\."):
        attend(q, k, v, recipe_of(GatedDelta()))
    with pytest.raises(ValueError, match=r"Forget\(\) has not been given"):
        attend(q, k, v, recipe_of(Forget()))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "wants log_decay and beta of each token; log_decay is missing"),
        ({"log_decay": torch.zeros(2, 4, 3)}, "beta is missing"),
        ({"log_decay": torch.zeros(2, 4, 3, 5), "beta": torch.ones(2, 4, 3)}, r"one number for each \(b, h, t\)"),
        ({"log_decay": torch.zeros(2, 4, 9), "beta": torch.ones(2, 4, 9)}, r"is \(2, 4, 9\), not \(2, 4, 3\)"),
        ({"log_decay": torch.zeros(2, 3, 3), "beta": torch.ones(2, 3, 3)}, r"is \(2, 3, 3\), not \(2, 4, 3\)"),
    ],
)
def test_wrong_values_are_refused(values, message):
    q, k, v = random_inputs(3)
    with pytest.raises(ValueError, match=message):
        attend(q, k, v, recipe_of(GatedDelta()).with_gate(**values))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"normaliser": Softmax()}, "normaliser=Unnormalised"),
        ({"normaliser": Proportional()}, "may sum to 0"),
        ({"position": Alibi(4)}, "adds to single scores"),
    ],
)
def test_what_a_state_cannot_be_combined_with_is_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        recipe_of(Delta(), **parts)


def test_a_state_runs_forwards_alone():
    q, k, v = random_inputs(3)
    for pattern in (Full(), Window(2)):
        with pytest.raises(ValueError, match="is not causal"):
            attend(q, k, v, recipe_of(Retention(), pattern=pattern))


# --- recipes ---


@pytest.mark.parametrize("gate", KINDS, ids=repr)
def test_a_gate_prints_and_reads_as_the_other_parts_do(gate):
    recipe = recipe_of(gate)
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert recipe.fresh() == recipe
    assert repr(recipe).endswith(f"gate={gate!r})")
    values = random_values(gate, 3)
    if values:
        with pytest.raises(ValueError, match="data of one batch"):
            bind(recipe, values).to_toml()


def test_a_recipe_without_a_gate_prints_as_before():
    assert "gate" not in repr(Recipe()) + Recipe().to_toml()
    assert Recipe.from_toml("gate = 'NoGate()'") == Recipe()


# --- layers and caches ---


def layer_of(gate: Gate, **parts) -> MultiHeadAttention:
    torch.manual_seed(3)
    recipe = recipe_of(gate, score=Cosine(1.0), **parts)
    return MultiHeadAttention(12, heads=H, groups=2, recipe=recipe).double().eval()


@pytest.mark.parametrize("gate", KINDS, ids=repr)
def test_every_weight_of_a_gated_layer_learns(gate):
    layer, x = layer_of(gate), torch.randn(2, 9, 12).double()
    layer(x).square().sum().backward()
    # softmax does not change when every key's projection gets the same bias
    learning = [name for name, weight in layer.named_parameters() if weight.grad is not None and weight.grad.any()]
    assert {name for name, _ in layer.named_parameters()} - set(learning) <= {"key.bias"}
    assert bool(gate.values) == any(name.startswith("gate.") for name in learning)


@pytest.mark.parametrize("pieces", [[1] * 9, [4, 1, 4], [9]])
@pytest.mark.parametrize("gate", KINDS, ids=repr)
def test_reading_in_pieces_is_reading_at_once(gate, pieces):
    layer, x = layer_of(gate), torch.randn(2, 9, 12).double()
    for record in (False, True):
        cache, out = None, []
        for piece in x.split(pieces, 1):
            if record:
                with record_attention(layer):
                    part, cache = layer.extend(piece, cache)
            else:
                part, cache = layer.extend(piece, cache)
            out.append(part)
        assert_close(torch.cat(out, 1), layer(x))
        assert cache is not None
        assert isinstance(cache.past, tuple if record or gate == Forget() else LinearState)


def test_the_state_of_a_cache_does_not_grow():
    layer, x = layer_of(GatedDelta()), torch.randn(2, 9, 12).double()
    (_, early), (_, late) = layer.extend(x[:, :2]), layer.extend(x)
    assert isinstance(early.past, LinearState)
    assert isinstance(late.past, LinearState)
    assert early.past.kv.shape == late.past.kv.shape == (2, H, 3, 3)
    assert early.past.k is late.past.k is None


@pytest.mark.parametrize("gate", KINDS, ids=repr)
def test_the_weights_of_a_layer_are_those_of_its_output(gate):
    layer, x = layer_of(gate), torch.randn(2, 70, 12).double()
    with record_attention(layer) as record:
        output = layer(x)
    weights = record.weights("attention")
    values = layer.project(x)[2].repeat_interleave(2, 1)
    assert_close(layer.merge_heads(weights @ values), output)


def test_a_gated_layer_attends_to_its_own_text_alone():
    with pytest.raises(ValueError, match="not another text"):
        layer_of(GatedDelta())(torch.randn(1, 3, 12).double(), torch.randn(1, 3, 12).double())


# --- statistics ---


@pytest.mark.parametrize("gate", KINDS, ids=repr)
def test_statistics_are_those_of_the_effective_weights(gate, monkeypatch):
    """A few queries and heads at a time."""
    monkeypatch.setattr("regard.attention.stats.ROWS", 8)
    monkeypatch.setattr("regard.attention.stats.CELLS_AT_ONCE", {"cpu": 100})
    q, k, v = random_inputs(29, 2)
    values = random_values(gate, 29)
    pattern = Causal() & Documents(torch.tensor([[0] * 17 + [1] * 12] * 2))
    recipe = bind(recipe_of(gate, pattern=pattern), values)
    weights = steps(q, k, v, recipe).weights
    stats = attention_stats(q, k, recipe, StatsRequest(rows=(0, 20, 28), columns=(3,), mass=True))
    assert stats.rows is not None
    assert stats.columns is not None
    assert_close(stats.rows, weights[:, :, [0, 20, 28]].detach())
    assert_close(stats.columns, weights[..., [3]].detach())
    assert_close(stats.mass, weights.sum(2).detach())
