"""States and their projections in; each word's look at its own text, by what they make of it, out.

The look's way back holds the gradients of queries, keys and values while they are still wide, so it is the look that
sums them for the projections' biases: nobody has to read them again for it.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import Function

from regard.layers.linear_summed import for_products, product, product_back
from regard.layers.packed_rows import row_look, row_look_at_itself, row_look_at_itself_back, row_look_back

X = Float[Tensor, "n t model"]
Text = Int[Tensor, "n t"]


def look_at_itself(
    x: X, weights: Sequence[Tensor], biases: Sequence[Tensor], text: Text, seed: Tensor, **how: Any
) -> X:
    """`row_look_at_itself` of W x + b, by three projections. `how`: its heads, head, causal and dropout."""
    return LookAtItself.apply(*for_products(x), text, seed, how, *for_products(*weights, *biases))


def look_across(
    x: X, weight: Tensor, bias: Tensor, k: Tensor, v: Tensor, asking: Text, asked: Text, seed: Tensor, **how: Any
) -> X:
    """`row_look` with queries W x + b. `how`: its head, causal and dropout."""
    x, weight, bias = for_products(x, weight, bias)
    return LookAcross.apply(x, weight, bias, k, v, asking, asked, seed, how)


class LookAtItself(Function):
    """In terms of operations that compilers and recordings take as they are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, text: Tensor, seed: Tensor, how: dict[str, Any], *parts: Tensor) -> Tensor:
        weights, biases = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        qkv = product(x, weights, biases)
        out, sums = row_look_at_itself(qkv, text, seed, **how)
        ctx.save_for_backward(x, out, sums, qkv, text, seed, *weights)
        ctx.how = how
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, out, sums, qkv, text, seed, *weights = ctx.saved_tensors
        dqkv, total = row_look_at_itself_back(grad, out, sums, qkv, text, seed, **ctx.how)
        dx, dweight = product_back(dqkv, x, weights)
        sizes = [len(weight) for weight in weights]
        return dx, None, None, None, *dweight.split(sizes), *total.split(sizes)


class LookAcross(Function):
    """The same at another text, whose keys and values are given."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        k: Tensor,
        v: Tensor,
        asking: Tensor,
        asked: Tensor,
        seed: Tensor,
        how: dict[str, Any],
    ) -> Tensor:
        q = product(x, [weight], [bias])
        out, sums = row_look(q, k, v, asking, asked, seed, **how)
        ctx.save_for_backward(x, weight, out, sums, q, k, v, asking, asked, seed)
        ctx.how = how
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, *looked = ctx.saved_tensors
        dq, dk, dv, total = row_look_back(grad, *looked, **ctx.how)
        dx, dweight = product_back(dq, x, [weight])
        return dx, dweight, total[: len(weight)], dk, dv, None, None, None, None
