"""A step in; the same step by algorithms that give the same bits every time out.

Where many threads add to one number, the order of the sum is that of the moment, and so is its last bit: on a GPU in
the gradients of fused attention, on a CPU with several cores in those of a table of relative positions. Torch knows
algorithms in a fixed order for these, and says so where it knows none.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.utils.deterministic as memory

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def exactly(device: torch.device) -> Iterator[None]:
    """Inside, the same numbers give the same bits; what torch cannot promise that for is refused."""
    if device.type == "cuda":
        # cuDNN's recurrent layers use several streams, and cuBLAS then one workspace or another; it is read once,
        # when cuBLAS is first used
        os.environ.setdefault(WORKSPACE, ":4096:8")
    mode, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    switch(device, mode=True)  # only to warn would leave memory-efficient attention as it is
    memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs one more kernel for every tensor
    try:
        yield
    except RuntimeError as error:
        if why := objection(str(error)):
            raise ValueError(why) from None
        raise
    finally:
        switch(device, mode=mode, warn_only=warns)
        memory.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def switch(device: torch.device, *, mode: bool, warn_only: bool = False) -> None:
    """As torch does it; but on a CPU nothing is compiled, and to load the compiler takes seconds."""
    if device.type == "cpu":
        torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)
    else:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def objection(said: str) -> str | None:
    """What a person can do where torch refuses to be exact; None if it said something else."""
    if WORKSPACE in said:
        return (
            f"the GPU was used before training began, and cannot be made exact any more; set {WORKSPACE}=:4096:8 "
            "before Python starts, or train with exact = false"
        )
    what, refused, _ = said.partition(" does not have a deterministic implementation")
    if refused:
        return (
            f"{what} has no algorithm that gives the same bits every time; train with exact = false: a run that is "
            "interrupted then ends with weights that differ in their last bits"
        )
    return None
