"""Attention statistics on a GPU: the kernels, their launcher, and the plan, which needs no Triton."""
