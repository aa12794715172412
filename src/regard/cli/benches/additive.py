"""Queries and keys in; Bahdanau's attention forwards and backwards, by us, eager torch and torch.compile, out."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from regard.attention import Additive, Recipe, attend
from regard.cli.benches.calling import Found, Truth, calls, with_gradients
from regard.cli.benches.work import Case, Missing, Setting

ROUNDS, WARM = 5, 1


def additive(setting: Setting) -> Iterator[Case]:
    """Sentences, queries, keys and width as in the issue that asked for the kernel; smaller on a CPU."""
    if setting.device.startswith("cuda"):
        sizes, dtype = ((2, 256, 256, 64) if setting.quick else (8, 1024, 1024, 512)), torch.bfloat16
    else:
        sizes, dtype = ((1, 16, 17, 8) if setting.quick else (2, 256, 251, 128)), torch.float32
    yield case(sizes, dtype, setting)


def case(sizes: tuple[int, int, int, int], dtype: torch.dtype, setting: Setting) -> Case:
    sentences, queries, keys, width = sizes
    torch.manual_seed(0)
    score = Additive(width, hidden=width).to(setting.device, dtype)
    q, k, v = (
        torch.randn(sentences, 1, tokens, width, device=setting.device, dtype=dtype, requires_grad=True)
        for tokens in (queries, keys, keys)
    )
    upstream = torch.randn_like(q)

    def ours() -> Found:
        return with_gradients(attend(q, k, v, Recipe(score=score)), upstream, q, k, v, *score.parameters())

    def by(function: Callable[..., Tensor]) -> Callable[[], Found]:
        def run() -> Found:
            outputs = function(score.W(q), score.U(k), score.v, v)
            return with_gradients(outputs, upstream, q, k, v, *score.parameters())

        return run

    def one_sentence(dtype: torch.dtype) -> Found:
        there = Additive(width, hidden=width)
        there.load_state_dict(score.state_dict())
        there = there.to(setting.device, dtype)
        one_q, one_k, one_v = (x[:1].detach().to(dtype).requires_grad_() for x in (q, k, v))
        output = attend(one_q, one_k, one_v, Recipe(score=there), backend="reference")
        return with_gradients(output, upstream[:1].to(dtype), one_q, one_k, one_v)

    truth = Truth(one_sentence(torch.float64), one_sentence(dtype), lambda found: [x[:1] for x in found[:4]])
    others = (calls("eager torch", by(eager), setting),)
    missing = (Missing("torch.compile", "takes a minute to compile; leave out --quick"),) if setting.quick else ()
    if not setting.quick:
        others += (calls("torch.compile", by(torch.compile(eager)), setting),)
    name = f"{sentences} sentences, {queries}×{keys}, width {width}"
    return Case(name, (calls("regard", ours, setting),), others, missing, truth.judge, ROUNDS, WARM)


def eager(a: Tensor, b: Tensor, v: Tensor, values: Tensor) -> Tensor:
    """softmax_j(v · tanh(a_i + b_j)) values_j, as everybody writes it: two tensors of queries × keys × width."""
    return (torch.tanh(a[:, :, :, None] + b[:, :, None]) @ v).softmax(-1) @ values
