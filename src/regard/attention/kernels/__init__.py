"""Operations that no library has: each tiled in plain torch, and as Triton kernels beside it. Import the file you need.

Nothing here is imported on loading regard, so Triton need not be installed.
"""
