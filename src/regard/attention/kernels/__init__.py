"""Triton kernels, by backend. Loading regard imports none of them but stats_plan, so Triton need not be installed."""
