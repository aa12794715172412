"""Triton kernels, a folder per backend; nothing here is imported on loading regard but stats/plan.

So Triton need not be installed.
"""
