"""States as Triton kernels: against the recursion in float64, the chunked form of plain torch, and the definition."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._pytree import tree_leaves

from regard.attention import (
    Causal,
    Delta,
    Documents,
    Dot,
    Feature,
    Gate,
    GatedDelta,
    KimiDelta,
    NoGate,
    Padding,
    Recipe,
    Retention,
    ScalarDecay,
    Unnormalised,
    VectorDecay,
)
from regard.attention.backends import linear, state
from regard.attention.functional import attend
from regard.attention.normaliser import Normaliser, Proportional
from regard.attention.pattern import Positions
from regard.attention.score import FEATURES
from tests.attention.accuracy import assert_as_accurate
from tests.attention.qkv import Shape
from tests.attention.triton_interpreter import compile_for_hopper, print_json

# tokens, width of keys, of values, gate, normaliser, φ; chunks have 16 tokens
CASES: dict[str, tuple[int, int, int, Gate, Normaliser, str | None]] = {
    "three chunks, the last one short": (37, 5, 7, NoGate(), Proportional(), "elu+1"),
    "rows whose keys are all 0": (3, 2, 3, NoGate(), Proportional(), "relu"),
    "decays, wider than 16": (33, 19, 17, ScalarDecay(), Unnormalised(), None),
    "decays that divide": (20, 3, 2, ScalarDecay(), Proportional(), "elu+1"),
    "delta rule": (37, 5, 7, Delta(), Unnormalised(), None),
    "gated delta rule": (50, 3, 2, GatedDelta(), Unnormalised(), None),
    "decays of each feature": (40, 3, 2, VectorDecay(), Unnormalised(), None),
    "decays of each feature that divide": (20, 2, 3, VectorDecay(), Proportional(), "elu+1"),
    "gated delta rule with a decay of each feature": (37, 3, 2, KimiDelta(), Unnormalised(), None),
    "more chunks than are read at once": (16 * 8 + 1, 3, 2, ScalarDecay(), Unnormalised(), None),
}


def random_values(gate: Gate, shape: Shape, width: int, strength: float = 2.0, **options: Any) -> dict[str, Any]:
    """Strong and weak decays, so that sums of them differ by little where they are large; and β from 0 to 1."""
    made = {}
    if "log_decay" in gate.values:
        features = (width,) if gate.decay == "vector" else ()
        made["log_decay"] = -strength * torch.rand(*shape, *features, **options)
        made["log_decay"][:, :, 1::3] *= 1e-3
    if "beta" in gate.values:
        made["beta"] = torch.rand(shape, **options)
    return made


def recursion(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, normaliser: Normaliser
) -> Tensor:
    """S_t = a_t (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ and o_t = S_tᵀ q_t, token by token."""
    ones = torch.ones_like(v[..., :1])
    v = torch.cat((v, ones), -1)
    memory, out = torch.zeros(*q.shape[:2], k.shape[3], v.shape[3], dtype=q.dtype), []
    for t in range(q.shape[2]):
        if log_decay is not None:
            a = log_decay[:, :, t].exp()
            memory = (a[..., None] if a.dim() == 3 else a[..., None, None]) * memory
        key, new = k[:, :, t, :, None], v[:, :, t, None]
        if beta is not None:
            new = beta[:, :, t, None, None] * (new - key.mT @ memory)
        memory = memory + key @ new
        out.append(q[:, :, t, None] @ memory)
    found = torch.cat(out, 2)
    return linear.divide(found[..., :-1], found[..., -1]) if normaliser == Proportional() else found[..., :-1]


def forward_and_backward(out: Tensor, given: Sequence[Tensor], upstream: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    return out, torch.autograd.grad(out, given, upstream.to(out))


def kernel_cases() -> dict[str, float]:
    """The largest relative difference between kernels and the recursion in float64, for each case."""
    from regard.attention.kernels.state import StateTiles, chunked_state

    found = {}
    for name, (t, d, e, gate, normaliser, feature) in CASES.items():
        q, k, v = (torch.randn(2, 1, t, width) for width in (d, d, e))
        k = normalize(k, dim=-1) if gate.delta else k
        values = random_values(gate, (2, 1, t), d)
        given = [q, k, v, *values.values()]
        exact = [x.double().requires_grad_() for x in given]
        for x in given:
            x.requires_grad_()
        slots = {name: 3 + n for n, name in enumerate(values)}
        decay, beta = (exact[slots[name]] if name in slots else None for name in ("log_decay", "beta"))
        queries, keys = (x if feature is None else FEATURES[feature](x) for x in exact[:2])
        want = recursion(queries, keys, exact[2], decay, beta, normaliser)
        tiles = StateTiles(chunk=16)
        options: dict[str, Any] = {"normalised": normaliser == Proportional(), "feature": feature, "tiles": tiles}
        got = chunked_state(q, k, v, **values, **options)
        upstream = torch.randn(2, 1, t, e)
        pairs = [forward_and_backward(out, xs, upstream) for out, xs in ((want, exact), (got, given))]
        leaves = zip(*map(tree_leaves, pairs), strict=True)
        found[name] = max(float(((x - y).abs().max() / x.abs().max()).detach()) for x, y in leaves)
    return found


def prompt_cases() -> dict[str, float]:
    """The largest difference between a text read by the kernels in two parts, with its state, and plain torch."""
    from regard.attention.kernels.state import extend_state

    found = {}
    for name, gate, normaliser in (
        ("decays that divide", ScalarDecay(), Proportional()),
        ("gated delta rule", GatedDelta(), Unnormalised()),
    ):
        q, k, v = torch.rand(1, 2, 45, 5), normalize(torch.rand(1, 2, 45, 5), dim=-1), torch.randn(1, 2, 45, 3)
        values = random_values(gate, (1, 2, 45), 5)
        recipe = Recipe(score=Dot(), pattern=Causal(), normaliser=normaliser, gate=gate).with_gate(**values)
        inputs = state.GatedInputs.of(recipe, q, k, v, torch.arange(45))
        want, after = state.run(recipe, inputs, None)
        past, parts = None, []
        for part in (slice(19), slice(19, 45)):
            decay, beta = (None if x is None else x[:, :, part] for x in (values["log_decay"], values.get("beta")))
            queries, keys, new = (x[:, :, part] for x in (q, k, v))
            options = {"normalised": normaliser == Proportional()}
            out, *past = extend_state(queries, keys, new, decay, beta, past, **options)  # type: ignore[arg-type]
            parts.append(out)
        pairs = [(want, torch.cat(parts, 2)), *zip((after.kv, after.k), past or (), strict=True)]
        found[f"prompt: {name}"] = max(float((x - y).abs().max()) for x, y in pairs if x is not None)
    return found


@pytest.mark.parametrize("case", ["decays that divide", "gated delta rule"])
def test_a_text_read_in_two_parts_by_the_kernels_interpreted_leaves_the_state_of_plain_torch(case, interpreted):
    assert interpreted[f"prompt: {case}"] < 5e-6


@pytest.mark.parametrize("case", CASES)
def test_the_kernels_interpreted_agree_with_the_recursion_in_value_and_every_gradient(case, interpreted):
    assert interpreted[case] < 5e-6


@pytest.mark.parametrize("kernel", ["chunk_key_sums", "chunk_query_sums", "chunk_outputs", "chunk_gradients"])
def test_the_kernels_compile_for_a_hopper(kernel):
    """The interpreter forgives what the compiler does not; neither needs a GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from regard.attention.kernels import state as kernels

    flags = {"DECAY": "scalar", "DELTA": kernel == "chunk_outputs", "NORMALISED": False, "MAP": None}
    given = {"D": 64, "DP": 64, "E": 64, "EP": 64, "CHUNK": 64, "PRECISION": "tf32", "SUMS": "bf16x2"} | flags
    half = ("q", "k", "v", "out", "grad", "dq", "dk", "dv", "inverse")
    compiled_kernel = getattr(kernels, kernel)
    kinds = {name: "*bf16" if name in half else "*fp32" for name in compiled_kernel.arg_names if name not in given}
    kinds |= dict.fromkeys(("n", "chunks"), "i32")
    compiled = compile_for_hopper(compiled_kernel, given, kinds, num_warps=8)
    assert "wgmma" in compiled.asm["ptx"]


def test_a_query_whose_features_are_all_zero_gives_nothing():
    """φ = relu: the first query scores 0, so its weights and its output are 0; the second weighs both keys alike."""
    q = torch.tensor([-1.0, 2.0], dtype=torch.double).view(1, 1, 2, 1)
    k, v = torch.ones(1, 1, 2, 1, dtype=torch.double), torch.tensor([3.0, 5.0], dtype=torch.double).view(1, 1, 2, 1)
    recipe = Recipe(score=Feature("relu"), normaliser=Proportional(), pattern=Causal())
    out = linear.attend(recipe, q, k, v, Positions.of(q, k, 0, None))
    assert out.flatten().tolist() == [0.0, 4.0]


def test_what_the_kernels_cannot_do_plain_torch_does():
    q = torch.zeros(1, 1, 3, 4)
    assert "need a GPU" in linear.triton_objections(q, q)[0]
    assert "need a GPU" in linear.prompt_objections(q, q, q)[0]
    assert "has no gradient" in linear.prompt_objections(q, q, q.clone().requires_grad_())[0]


def test_a_document_forgets_what_was_before_it_as_a_decay_that_leaves_nothing():
    assert torch.tensor(state.NOTHING).exp() == 0.0


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
KINDS = [NoGate(), Retention(), ScalarDecay(), VectorDecay(), Delta(), GatedDelta(), KimiDelta()]
PATTERNS = {
    "causal": (Causal(), 1031),
    "padded": (Causal() & Padding(torch.tensor([200, 531])), 531),
    "documents": (Causal() & Documents(torch.arange(299).div(70, rounding_mode="floor")[None].expand(2, -1)), 299),
}


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@gpu
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("gate", KINDS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("divides", [False, True])
def test_on_a_gpu_the_kernels_are_as_good_as_the_definition(dtype, gate, pattern, divides):
    """Error at most twice that of the definition in the same dtype, plus float32's own last digits."""
    if divides and (gate.delta or pattern == "documents"):
        pytest.skip("the delta rule erases, so that its weights may sum to 0; one normaliser is enough for documents")
    (visible, tokens), d, e = PATTERNS[pattern], 53, 61
    q, k, v = (torch.randn(2, heads, tokens, width, device="cuda") for heads, width in ((3, d), (1, d), (1, e)))
    k = normalize(k, dim=-1) if gate.delta else k
    values = random_values(gate, (2, 3, tokens), d, 0.3, device="cuda")
    given = [x.to(dtype).requires_grad_() for x in (q, k, v)] + [x.requires_grad_() for x in values.values()]
    score, normaliser = (Feature(), Proportional()) if divides else (Dot(), Unnormalised())
    recipe = Recipe(score=score, normaliser=normaliser, pattern=visible.to("cuda"), gate=gate)
    backend = "linear" if divides and gate == NoGate() else "state"
    exact = [x.detach().to(torch.double, copy=True).requires_grad_() for x in given]
    upstream = torch.randn(2, 3, tokens, e, device="cuda").to(dtype)

    def run(tensors: Sequence[Tensor], backend: str) -> tuple[Tensor, tuple[Tensor, ...]]:
        named: dict[str, Any] = dict(zip(values, tensors[3:], strict=True))
        q, k, v = tensors[:3]
        bound = recipe.with_gate(**named) if named else recipe
        return forward_and_backward(attend(q, k, v, bound, backend=backend), tensors, upstream)

    truth, coarse = run(exact, "reference"), run(given, "reference")
    ours, again = (run(given, backend) for _ in range(2))
    assert_as_accurate(truth, coarse, ours, slack=1e-5)
    for one, other in zip(tree_leaves(ours), tree_leaves(again), strict=True):
        assert torch.equal(one, other)


if __name__ == "__main__":
    torch.manual_seed(0)
    print_json(lambda: kernel_cases() | prompt_cases())
