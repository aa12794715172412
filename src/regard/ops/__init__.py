"""Ops: fused operations on tensors, each with plain torch and, where it pays, a Triton kernel.

`name.py` holds an operation: its equation, its torch form, and the rule that chooses. Kernels stand in files
`*_triton.py`, which are imported when a GPU first runs one: macOS has no Triton, and with the kernels it would make
`import regard.models` a tenth of a second longer for everybody else.
"""

__all__: list[str] = []
