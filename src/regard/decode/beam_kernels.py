"""Kernels of beam search in C for CPUs: candidate selection, hypotheses, slots of the KV cache (beam_kernels.c)."""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.data.tokenizers.base import PAD
from regard.decode.search import Hypothesis
from regard.ops.c_kernels import compile_kernels

if TYPE_CHECKING:
    from regard.decode.beam import BeamState

POINTER, NUMBER, WIDE = ctypes.c_void_p, ctypes.c_long, ctypes.c_int64
ARGUMENTS = {
    "select_candidates": [
        *3 * [POINTER],
        NUMBER,
        POINTER,
        NUMBER,
        *12 * [POINTER],
        *8 * [NUMBER],
        WIDE,
        WIDE,
        ctypes.c_int,
    ],
    "backtrack": [*4 * [POINTER], *2 * [NUMBER], *2 * [POINTER], *5 * [NUMBER], WIDE, *6 * [POINTER]],
    "follow_parents": [*4 * [POINTER], *3 * [NUMBER]],
    "write_slots": [*5 * [POINTER], *8 * [NUMBER]],
}
RESULTS = {
    "select_candidates": ctypes.c_int,
    "backtrack": ctypes.c_int,
    "follow_parents": NUMBER,
}


@cache
def beam_kernels() -> ctypes.CDLL | None:
    """Where they can be compiled."""
    if (kernels := compile_kernels(Path(__file__).with_name("beam_kernels.c"))) is not None:
        for name, arguments in ARGUMENTS.items():
            function = getattr(kernels, name)
            function.argtypes, function.restype = arguments, RESULTS.get(name)
    return kernels


def select_candidates(
    kernels: ctypes.CDLL,
    beams: "BeamState",
    values: Float[Tensor, "n c"],
    tokens: Int[Tensor, "n c"],
    step: Int[Tensor, " _"],
    live: Int[Tensor, " n"] | None = None,
) -> None:
    """As `beam.select_candidates`; the candidates are those of the live beams, or of all."""
    (b, k), history = beams.tokens.shape, beams.backpointers
    values, tokens, live = values.contiguous(), tokens.contiguous(), live if live is None else live.contiguous()
    first, second, _ = history.tokens.stride()
    recorded = kernels.select_candidates(
        values.data_ptr(), tokens.data_ptr(), None if live is None else live.data_ptr(), len(values), step.data_ptr(),
        len(step) == 1, beams.tokens.data_ptr(), beams.parents.data_ptr(), beams.totals.data_ptr(),
        beams.best_finished.data_ptr(), beams.finished_step.data_ptr(), beams.max_lengths.data_ptr(),
        beams.max_length_penalty.data_ptr(), beams.penalties.data_ptr(), history.tokens.data_ptr(),
        history.parents.data_ptr(), history.log_probabilities.data_ptr(), history.scores.data_ptr(),
        len(history.tokens), first, second, b, k, values.shape[1], history.tokens.shape[2],
        beams.best_finished.shape[1], beams.eos, PAD, beams.prune,
    )  # fmt: skip
    assert recorded, f"a history of {len(history.tokens)} steps has no room for step {step.max()}"


def backtrack(kernels: ctypes.CDLL, beams: "BeamState", rows: Sequence[int], steps: int) -> list[list[Hypothesis]]:
    """As `beam.backtrack`, the hypotheses of each row."""
    history, n, (best, k) = beams.backpointers, len(rows), (beams.best_finished.shape[1], beams.tokens.shape[1])
    numbers, values = torch.empty(n, best, steps, dtype=torch.long), torch.empty(n, best, steps, dtype=torch.double)
    index, counts, lengths = (
        torch.tensor(rows),
        torch.empty(n, dtype=torch.long),
        torch.empty(n, best, dtype=torch.long),
    )
    finished, ranked_by = torch.empty(n, best, dtype=torch.bool), torch.empty(n, best, dtype=torch.double)
    first, second, _ = history.tokens.stride()
    whole = kernels.backtrack(
        history.tokens.data_ptr(), history.parents.data_ptr(), history.log_probabilities.data_ptr(),
        history.scores.data_ptr(), first, second, beams.finished_step.data_ptr(), index.data_ptr(), n, steps, k,
        history.tokens.shape[2], best, beams.eos, counts.data_ptr(), lengths.data_ptr(), finished.data_ptr(),
        ranked_by.data_ptr(), numbers.data_ptr(), values.data_ptr(),
    )  # fmt: skip
    assert whole, f"of rows {rows} some are not done within {steps} steps"
    found = list[list[Hypothesis]]()
    parts = (part.tolist() for part in (counts, lengths, finished, ranked_by, numbers, values))
    for count, *sentence in zip(*parts, strict=True):
        paths = zip(*(part[: max(count, 0)] for part in sentence), strict=True)
        one = [
            Hypothesis(tuple(ids[: length - over]), tuple(logs[:length]), finished=over, score=score)
            for length, over, score, ids, logs in paths
        ]
        found.append(one if count >= 0 else [Hypothesis((), (), finished=False, score=0.0)])
    return found


def follow_parents(
    kernels: ctypes.CDLL, seen: Bool[Tensor, "b k c"], parents: Int[Tensor, "b k"]
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k c"], int]:
    """As `kv_cache.follow_parents`, and how many slots are in use."""
    slots, mask, parents = torch.empty_like(parents), torch.empty(seen.shape), parents.contiguous()
    used = kernels.follow_parents(seen.data_ptr(), parents.data_ptr(), slots.data_ptr(), mask.data_ptr(), *seen.shape)
    assert used >= 0, "a beam has no slot for its token"
    return slots, mask, used


def write_slots(
    kernels: ctypes.CDLL,
    past: tuple[Float[Tensor, "b g c d"], Float[Tensor, "b g c d"]],
    key: Float[Tensor, "b g k d"],
    value: Float[Tensor, "b g k d"],
    slots: Int[Tensor, "b k"],
) -> None:
    """As `kv_cache.write_slots`."""
    (keys, values), (b, g, k, d) = past, key.shape
    if key.stride() != value.stride() or key.stride(3) != 1:  # a rotated key lies otherwise than a value
        key, value = key.contiguous(), value.contiguous()
    assert key.dtype == value.dtype == keys.dtype
    new_b, new_g, new_k, _ = key.stride()
    kernels.write_slots(
        keys.data_ptr(), values.data_ptr(), key.data_ptr(), value.data_ptr(), slots.data_ptr(), new_b, new_g, new_k,
        b, g, k, keys.shape[2], d,
    )  # fmt: skip
