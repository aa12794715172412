"""Determinism: torch's deterministic algorithms for a training step.

Where many threads add to one number, the order of the sum varies, and so does its last bit: on a GPU in the gradients
of fused attention, on a CPU with several cores in those of relative positions. Torch has deterministic algorithms for
these, and raises an error where it has none.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.utils.deterministic as memory

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def use_deterministic(device: torch.device) -> Iterator[None]:
    """Inside, the same numbers give the same bits; an operation without a deterministic algorithm is an error."""
    if device.type == "cuda":
        # cuDNN's recurrent layers use several streams, and cuBLAS then varying workspaces; the variable is read
        # once, when cuBLAS is first used
        os.environ.setdefault(WORKSPACE, ":4096:8")
    mode, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    set_deterministic(device, mode=True)  # with warn_only, memory-efficient attention would stay nondeterministic
    memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # one more kernel for every tensor
    try:
        yield
    except RuntimeError as error:
        if why := explain_error(str(error)):
            raise ValueError(why) from None
        raise
    finally:
        set_deterministic(device, mode=mode, warn_only=warns)
        memory.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def set_deterministic(device: torch.device, *, mode: bool, warn_only: bool = False) -> None:
    """As torch does it; but on a CPU nothing is compiled, and to load the compiler takes seconds."""
    if device.type == "cpu":
        torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)
    else:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def explain_error(message: str) -> str | None:
    """The remedy, where torch has no deterministic algorithm; None for other errors."""
    if WORKSPACE in message:
        return (
            f"the GPU was used before training began, and cannot become deterministic; set {WORKSPACE}=:4096:8 "
            "before Python starts, or train with deterministic = false"
        )
    what, refused, _ = message.partition(" does not have a deterministic implementation")
    if refused:
        return (
            f"{what} has no algorithm that gives the same bits every time; train with deterministic = false: a run "
            "that is interrupted then ends with weights that differ in their last bits"
        )
    return None
