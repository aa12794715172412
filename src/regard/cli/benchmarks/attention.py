"""Attention benchmarks: softmax attention, a multi-head layer and additive attention, forward and backward pass.

`attention` begins at q, k and v; `layer` has the projections of a multi-head layer around it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from regard.attention import Additive, Causal, Full, MultiHeadAttention, Pattern, Recipe, Window, attend
from regard.cli.benchmarks.harness import (
    BenchmarkSettings,
    Case,
    MissingPeer,
    Outputs,
    ReferenceResult,
    missing_package,
    timed_calls,
    with_gradients,
)

ROUNDS, WARMUP = 7, 1
PATTERNS: dict[str, Pattern] = {"full": Full(), "causal": Causal(), "window 256": Window(256)}


@dataclass(frozen=True)
class BatchShape:
    """Sentences, heads, tokens and head width of a batch."""

    sentences: int
    heads: int
    tokens: int
    head: int
    dtype: torch.dtype = torch.float32

    @property
    def model(self) -> int:
        return self.heads * self.head


def sizes_of(setting: BenchmarkSettings, *, tokens: int) -> BatchShape:
    if setting.device.startswith("cuda"):
        return BatchShape(4, 16, 512 if setting.quick else 4 * tokens, 64, torch.bfloat16)
    return BatchShape(1, 2, 64, 16) if setting.quick else BatchShape(2, 8, tokens, 64)


# --- attention ---


def attention(setting: BenchmarkSettings) -> Iterator[Case]:
    for name, pattern in PATTERNS.items():
        sizes = sizes_of(setting, tokens=2048 if name.startswith("window") else 1024)
        yield attention_case(name, pattern, sizes, setting)


def attention_case(name: str, pattern: Pattern, sizes: BatchShape, setting: BenchmarkSettings) -> Case:
    torch.manual_seed(0)
    shape = (sizes.sentences, sizes.heads, sizes.tokens, sizes.head)
    q, k, v = (torch.randn(shape, device=setting.device, dtype=sizes.dtype, requires_grad=True) for _ in range(3))
    upstream, recipe = torch.randn_like(q), Recipe(pattern=pattern)

    def both(function: Callable[..., Tensor], *inputs: Tensor, up: Tensor) -> Outputs:
        return with_gradients(function(*inputs), up, *inputs)

    def through(function: Callable[..., Tensor]) -> Callable[[], Outputs]:
        return lambda: both(function, q, k, v, up=upstream)

    def one(x: Tensor) -> Tensor:
        return x[:1, :1].detach()

    small = [one(x) for x in (q, k, v)]
    exact, plain = (
        both(
            lambda q, k, v: attend(q, k, v, recipe, backend="reference"),
            *(x.to(dtype).requires_grad_() for x in small),
            up=one(upstream).to(dtype),
        )
        for dtype in (torch.float64, sizes.dtype)
    )
    truth = ReferenceResult(exact, plain, lambda found: [one(x) for x in found])
    others = [timed_calls("torch SDPA", through(sdpa(pattern, q)), setting)]
    missing: list[MissingPeer] = []
    if setting.device.startswith("cuda"):
        others.append(timed_calls("torch FlexAttention", through(flex(pattern, q)), setting))
    else:
        missing.append(MissingPeer("torch FlexAttention", "has no backward pass on the CPU; --device cuda measures it"))
    ours = timed_calls("regard", through(lambda q, k, v: attend(q, k, v, recipe)), setting)
    return Case(case_name(name, sizes), (ours,), tuple(others), tuple(missing), truth.judge, ROUNDS, WARMUP)


def case_name(name: str, sizes: BatchShape) -> str:
    return f"{name}, {sizes.sentences}×{sizes.heads}×{sizes.tokens}×{sizes.head}"


def sdpa(pattern: Pattern, q: Tensor) -> Callable[..., Tensor]:
    if pattern == Full():
        return scaled_dot_product_attention
    if pattern == Causal():
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)
    seen = mask_of(pattern, q)
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=seen)


def mask_of(pattern: Pattern, q: Tensor) -> Tensor:
    at, none = torch.arange(q.shape[2], device=q.device), torch.zeros((), dtype=torch.long, device=q.device)
    return pattern.sees(none, none, at[:, None], at[None, :])


def flex(pattern: Pattern, q: Tensor) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tokens = q.shape[2]
    blocks = create_block_mask(pattern.sees, None, None, tokens, tokens, device=str(q.device))
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=None if pattern == Full() else blocks)  # type: ignore[return-value]


# --- a layer ---


def layer(setting: BenchmarkSettings) -> Iterator[Case]:
    for name in ("full", "causal"):
        yield layer_case(name, sizes_of(setting, tokens=512), setting)


def layer_case(name: str, sizes: BatchShape, setting: BenchmarkSettings) -> Case:
    """All implementations have the same weights Wq, Wk, Wv and Wo, and biases of 0, since not all have biases."""
    torch.manual_seed(0)
    where = {"device": setting.device, "dtype": sizes.dtype}
    x = torch.randn(sizes.sentences, sizes.tokens, sizes.model, requires_grad=True, **where)
    upstream = torch.randn_like(x)
    ours = MultiHeadAttention(sizes.model, heads=sizes.heads, recipe=Recipe(pattern=PATTERNS[name]))
    for bias in (ours.query.bias, ours.key.bias, ours.value.bias, ours.output.bias):
        nn.init.zeros_(bias)  # type: ignore[arg-type]
    ours = ours.to(**where)

    def through(run: Callable[[Tensor], Tensor], first: nn.Module) -> Callable[[], Outputs]:
        weight = next(first.parameters())
        return lambda: with_gradients(run(x), upstream, x, weight)

    def found_by(dtype: torch.dtype) -> Outputs:
        there = MultiHeadAttention(sizes.model, heads=sizes.heads, recipe=Recipe(pattern=PATTERNS[name]))
        there.load_state_dict(ours.state_dict())
        there, inputs = there.to(setting.device, dtype), x.detach().to(dtype).requires_grad_()
        output = there.merge_heads(attend(*there.project(inputs), there.recipe, backend="reference"))
        return with_gradients(output, upstream.to(dtype), inputs, there.output.weight)  # type: ignore[arg-type]

    truth = ReferenceResult(found_by(torch.float64), found_by(sizes.dtype), lambda found: found)
    others = [timed_calls("nn.MultiheadAttention", through(*torch_layer(ours, name, sizes)), setting)]
    missing = missing_package("x-transformers", "x_transformers")
    if missing is None:
        others.append(timed_calls("x-transformers", through(*x_layer(ours, name, sizes)), setting))
    way = timed_calls("regard", through(ours, ours.output), setting)
    return Case(
        case_name(name, sizes), (way,), tuple(others), (missing,) if missing else (), truth.judge, ROUNDS, WARMUP
    )


def torch_layer(ours: MultiHeadAttention, name: str, sizes: BatchShape) -> tuple[Callable[[Tensor], Tensor], nn.Module]:
    theirs = nn.MultiheadAttention(sizes.model, sizes.heads, batch_first=True).to(ours.output.weight)  # type: ignore[arg-type]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in (ours.query, ours.key, ours.value)]))  # type: ignore[arg-type]
        theirs.out_proj.weight.copy_(ours.output.weight)  # type: ignore[arg-type]
    later = torch.ones(sizes.tokens, sizes.tokens, dtype=torch.bool).triu(1).to(theirs.in_proj_weight.device)

    def run(x: Tensor) -> Tensor:
        if name == "full":
            return theirs(x, x, x, need_weights=False)[0]
        return theirs(x, x, x, need_weights=False, attn_mask=later, is_causal=True)[0]

    return run, theirs.out_proj


def x_layer(ours: MultiHeadAttention, name: str, sizes: BatchShape) -> tuple[Callable[[Tensor], Tensor], nn.Module]:
    theirs = import_module("x_transformers.x_transformers").Attention(
        dim=sizes.model, dim_head=sizes.head, heads=sizes.heads, causal=name == "causal", flash=True
    )
    theirs = theirs.to(ours.output.weight)
    with torch.no_grad():
        pairs = ((theirs.to_q, ours.query), (theirs.to_k, ours.key), (theirs.to_v, ours.value))
        for there, here in (*pairs, (theirs.to_out, ours.output)):
            there.weight.copy_(here.weight)
    return lambda x: theirs(x), theirs.to_out


# --- additive ---


ADDITIVE_ROUNDS, ADDITIVE_WARMUP = 5, 1


def additive(setting: BenchmarkSettings) -> Iterator[Case]:
    """Sentences, queries, keys and width; smaller on a CPU."""
    if setting.device.startswith("cuda"):
        sizes, dtype = ((2, 256, 256, 64) if setting.quick else (8, 1024, 1024, 512)), torch.bfloat16
    else:
        sizes, dtype = ((1, 16, 17, 8) if setting.quick else (2, 256, 251, 128)), torch.float32
    yield additive_case(sizes, dtype, setting)


def additive_case(sizes: tuple[int, int, int, int], dtype: torch.dtype, setting: BenchmarkSettings) -> Case:
    sentences, queries, keys, width = sizes
    torch.manual_seed(0)
    score = Additive(width, hidden=width).to(setting.device, dtype)
    q, k, v = (
        torch.randn(sentences, 1, tokens, width, device=setting.device, dtype=dtype, requires_grad=True)
        for tokens in (queries, keys, keys)
    )
    upstream = torch.randn_like(q)

    def ours() -> Outputs:
        return with_gradients(attend(q, k, v, Recipe(score=score)), upstream, q, k, v, *score.parameters())

    def by(function: Callable[..., Tensor]) -> Callable[[], Outputs]:
        def run() -> Outputs:
            outputs = function(score.W(q), score.U(k), score.v, v)
            return with_gradients(outputs, upstream, q, k, v, *score.parameters())

        return run

    def one_sentence(dtype: torch.dtype) -> Outputs:
        there = Additive(width, hidden=width)
        there.load_state_dict(score.state_dict())
        there = there.to(setting.device, dtype)
        one_q, one_k, one_v = (x[:1].detach().to(dtype).requires_grad_() for x in (q, k, v))
        output = attend(one_q, one_k, one_v, Recipe(score=there), backend="reference")
        return with_gradients(output, upstream[:1].to(dtype), one_q, one_k, one_v)

    truth = ReferenceResult(one_sentence(torch.float64), one_sentence(dtype), lambda found: [x[:1] for x in found[:4]])
    others = (timed_calls("eager torch", by(eager), setting),)
    missing = (MissingPeer("torch.compile", "takes a minute to compile; leave out --quick"),) if setting.quick else ()
    if not setting.quick:
        others += (timed_calls("torch.compile", by(torch.compile(eager)), setting),)
    name = f"{sentences} sentences, {queries}×{keys}, width {width}"
    return Case(
        name, (timed_calls("regard", ours, setting),), others, missing, truth.judge, ADDITIVE_ROUNDS, ADDITIVE_WARMUP
    )


def eager(a: Tensor, b: Tensor, v: Tensor, values: Tensor) -> Tensor:
    """softmax_j(v · tanh(a_i + b_j)) values_j, in eager torch: two tensors of queries × keys × width."""
    return (torch.tanh(a[:, :, :, None] + b[:, :, None]) @ v).softmax(-1) @ values
