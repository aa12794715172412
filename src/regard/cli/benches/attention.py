"""Queries, keys and values in; attention forwards and backwards, by us and by torch, to be timed, out.

Two works: `attention` begins at q, k and v; `layer` has the projections of a multi-head layer around it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from regard.attention import Causal, Full, MultiHeadAttention, Pattern, Recipe, Window, attend
from regard.cli.benches.calling import Found, Truth, absent, calls, with_gradients
from regard.cli.benches.work import Case, Missing, Setting

ROUNDS, WARM = 7, 1
PATTERNS: dict[str, Pattern] = {"full": Full(), "causal": Causal(), "window 256": Window(256)}


@dataclass(frozen=True)
class Sizes:
    """Of a batch: sentences, heads, tokens and the width of a head."""

    sentences: int
    heads: int
    tokens: int
    head: int
    dtype: torch.dtype = torch.float32

    @property
    def model(self) -> int:
        return self.heads * self.head


def sizes_of(setting: Setting, *, tokens: int) -> Sizes:
    if setting.device.startswith("cuda"):
        return Sizes(4, 16, 512 if setting.quick else 4 * tokens, 64, torch.bfloat16)
    return Sizes(1, 2, 64, 16) if setting.quick else Sizes(2, 8, tokens, 64)


# --- attention ---


def attention(setting: Setting) -> Iterator[Case]:
    for name, pattern in PATTERNS.items():
        sizes = sizes_of(setting, tokens=2048 if name.startswith("window") else 1024)
        yield attention_case(name, pattern, sizes, setting)


def attention_case(name: str, pattern: Pattern, sizes: Sizes, setting: Setting) -> Case:
    torch.manual_seed(0)
    shape = (sizes.sentences, sizes.heads, sizes.tokens, sizes.head)
    q, k, v = (torch.randn(shape, device=setting.device, dtype=sizes.dtype, requires_grad=True) for _ in range(3))
    upstream, recipe = torch.randn_like(q), Recipe(pattern=pattern)

    def both(function: Callable[..., Tensor], *given: Tensor, up: Tensor) -> Found:
        return with_gradients(function(*given), up, *given)

    def through(function: Callable[..., Tensor]) -> Callable[[], Found]:
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
    truth = Truth(exact, plain, lambda found: [one(x) for x in found])
    others = [calls("torch SDPA", through(sdpa(pattern, q)), setting)]
    missing: list[Missing] = []
    if setting.device.startswith("cuda"):
        others.append(calls("torch FlexAttention", through(flex(pattern, q)), setting))
    else:
        missing.append(Missing("torch FlexAttention", "has no backward pass on the CPU; --device cuda measures it"))
    ours = calls("regard", through(lambda q, k, v: attend(q, k, v, recipe)), setting)
    return Case(described(name, sizes), (ours,), tuple(others), tuple(missing), truth.judge, ROUNDS, WARM)


def described(name: str, sizes: Sizes) -> str:
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


def layer(setting: Setting) -> Iterator[Case]:
    for name in ("full", "causal"):
        yield layer_case(name, sizes_of(setting, tokens=512), setting)


def layer_case(name: str, sizes: Sizes, setting: Setting) -> Case:
    """Everybody has the same weights: Wq, Wk, Wv and Wo, and biases of 0, for not everybody has them."""
    torch.manual_seed(0)
    where = {"device": setting.device, "dtype": sizes.dtype}
    x = torch.randn(sizes.sentences, sizes.tokens, sizes.model, requires_grad=True, **where)
    upstream = torch.randn_like(x)
    ours = MultiHeadAttention(sizes.model, heads=sizes.heads, recipe=Recipe(pattern=PATTERNS[name]))
    for bias in (ours.query.bias, ours.key.bias, ours.value.bias, ours.output.bias):
        nn.init.zeros_(bias)  # type: ignore[arg-type]
    ours = ours.to(**where)

    def through(run: Callable[[Tensor], Tensor], first: nn.Module) -> Callable[[], Found]:
        weight = next(first.parameters())
        return lambda: with_gradients(run(x), upstream, x, weight)

    def found_by(dtype: torch.dtype) -> Found:
        there = MultiHeadAttention(sizes.model, heads=sizes.heads, recipe=Recipe(pattern=PATTERNS[name]))
        there.load_state_dict(ours.state_dict())
        there, given = there.to(setting.device, dtype), x.detach().to(dtype).requires_grad_()
        output = there.joined(attend(*there.projected(given, None, None), there.recipe, backend="reference"))
        return with_gradients(output, upstream.to(dtype), given, there.output.weight)  # type: ignore[arg-type]

    truth = Truth(found_by(torch.float64), found_by(sizes.dtype), lambda found: found)
    others = [calls("nn.MultiheadAttention", through(*torch_layer(ours, name, sizes)), setting)]
    missing = absent("x-transformers", "x_transformers")
    if missing is None:
        others.append(calls("x-transformers", through(*x_layer(ours, name, sizes)), setting))
    way = calls("regard", through(ours, ours.output), setting)
    return Case(described(name, sizes), (way,), tuple(others), (missing,) if missing else (), truth.judge, ROUNDS, WARM)


def torch_layer(ours: MultiHeadAttention, name: str, sizes: Sizes) -> tuple[Callable[[Tensor], Tensor], nn.Module]:
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


def x_layer(ours: MultiHeadAttention, name: str, sizes: Sizes) -> tuple[Callable[[Tensor], Tensor], nn.Module]:
    theirs = import_module("x_transformers.x_transformers").Attention(
        dim=sizes.model, dim_head=sizes.head, heads=sizes.heads, causal=name == "causal", flash=True
    )
    theirs = theirs.to(ours.output.weight)
    with torch.no_grad():
        pairs = ((theirs.to_q, ours.query), (theirs.to_k, ours.key), (theirs.to_v, ours.value))
        for there, here in (*pairs, (theirs.to_out, ours.output)):
            there.weight.copy_(here.weight)
    return lambda x: theirs(x), theirs.to_out
