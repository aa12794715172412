"""Kernels, by backend: in Triton, of which loading regard imports none but stats_plan, and in C (ops/c_kernels.py)."""
