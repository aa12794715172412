"""Hypothesis strategies for patterns, and patterns as matrices."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import Block, Causal, Full, Global, Pattern, Prefix, Random, StrictCausal, Strided, Window
from regard.attention.pattern import And, Not, Or

leaves = st.one_of(
    st.just(Full()),
    st.just(Causal()),
    st.just(StrictCausal()),
    st.integers(1, 6).map(Window),
    st.integers(1, 4).map(Strided),
    st.integers(0, 6).map(Prefix),
    st.integers(0, 3).map(Global),
    st.builds(Random, st.integers(1, 3), st.integers(0, 5)),
)
coarse = st.builds(Block, st.integers(1, 4), leaves)
patterns = st.recursive(
    leaves | coarse, lambda p: st.one_of(st.builds(And, p, p), st.builds(Or, p, p), st.builds(Not, p)), max_leaves=5
)


def cells_of(n_q: int, n_k: int, *, start: int = 0, k_start: int = 0) -> tuple[Tensor, ...]:
    b = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    return (
        b,
        b,
        torch.arange(start, start + n_q).view(1, 1, -1, 1),
        torch.arange(k_start, k_start + n_k).view(1, 1, 1, -1),
    )


def dense(pattern: Pattern, n_q: int, n_k: int | None = None, *, start: int = 0) -> Tensor:
    n_k = n_q if n_k is None else n_k
    return pattern.sees(*cells_of(n_q, n_k, start=start)).expand(1, 1, n_q, n_k)
