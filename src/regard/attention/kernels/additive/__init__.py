"""Additive attention on a GPU: the kernels and their launcher."""
